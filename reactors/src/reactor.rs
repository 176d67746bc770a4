//! The polling thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::affinity::{self, AffinityError};
use crate::clock::Clock;
use crate::poller::{Busy, Poller};
use crate::stats::ReactorStats;
use crate::time::Time;
use crate::wake::{Bed, Waker};

/// What a reactor does when there is nothing to do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Looks again at once: lowest latency, a whole core.
    Spin,
    /// Sleeps once nothing came for this long, until a descriptor, a message or the next
    /// deadline wakes it.
    Sleep {
        /// How long it looks before it sleeps.
        after: Duration,
    },
}

impl Default for Idle {
    fn default() -> Self {
        Idle::Sleep { after: Duration::from_micros(50) }
    }
}

/// How to start a reactor.
#[derive(Clone, Debug)]
pub struct ReactorConfig {
    /// Name of the thread; the kernel shows 15 bytes of it.
    pub name: String,
    /// The core to pin to; `None` leaves the thread to the scheduler (tests).
    pub core: Option<usize>,
    /// What to do when idle.
    pub idle: Idle,
    /// Wakes it; the rings to this reactor are made with it.
    pub waker: Waker,
}

/// Why a reactor did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError<E> {
    /// The core cannot be had.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// No thread or no epoll.
    #[error("cannot start the thread of a reactor: {0}")]
    Thread(#[source] io::Error),
    /// The poller could not be built.
    #[error("{0}")]
    Build(E),
    /// Building the poller panicked.
    #[error("the thread of a reactor panicked while it started")]
    Panicked,
}

/// The thread of a reactor panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the thread of a reactor panicked")]
pub struct Panicked;

/// What the builder of a poller may know of its reactor.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// The clock that `poll` is called with.
    pub clock: Clock,
    /// Wakes this reactor.
    pub waker: Waker,
    /// What this reactor does.
    pub stats: Arc<ReactorStats>,
}

/// A running polling thread. Dropping it stops the thread and waits for its end.
#[derive(Debug)]
pub struct Reactor {
    core: Option<usize>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    stats: Arc<ReactorStats>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts a thread, pins it, builds the poller on it with `build` and runs it until
    /// [`stop`](Self::stop) is called or the poller is done. Returns when the poller is built.
    ///
    /// The poller need not be `Send`: it is built, run and dropped on its thread.
    pub fn spawn<P, E, B>(config: ReactorConfig, build: B) -> Result<Reactor, SpawnError<E>>
    where
        P: Poller,
        E: Send + 'static,
        B: FnOnce(Seat) -> Result<P, E> + Send + 'static,
    {
        let ReactorConfig { name, core, idle, waker } = config;
        // Before the thread pins itself: it also lists the cores while nobody is pinned.
        if let Some(core) = core {
            affinity::check(&[core])?;
        }
        let clock = Clock::get();
        let stats = Arc::new(ReactorStats::default());
        let stop = Arc::new(AtomicBool::new(false));
        let seat = Seat { core, clock, waker: waker.clone(), stats: Arc::clone(&stats) };
        let (started, wait_started) = mpsc::sync_channel(1);
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::Builder::new().name(name).spawn(move || {
                let built = Runner::prepare(&seat, idle, stop)
                    .and_then(|runner| Ok((runner, build(seat).map_err(SpawnError::Build)?)));
                match built {
                    Ok((runner, poller)) => {
                        let _ = started.send(Ok(()));
                        runner.run(poller);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })
        };
        let thread = thread.map_err(SpawnError::Thread)?;
        let reactor = Reactor { core, stop, waker, stats, thread: Some(thread) };
        match wait_started.recv() {
            Ok(Ok(())) => Ok(reactor),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(SpawnError::Panicked),
        }
    }

    /// The core it is pinned to.
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// What it does.
    pub fn stats(&self) -> &Arc<ReactorStats> {
        &self.stats
    }

    /// Whether its thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells it to stop after the turn it is in.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Waits until its thread has ended: after [`stop`](Self::stop), or when the poller is done.
    pub fn join(mut self) -> Result<(), Panicked> {
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| Panicked),
            None => Ok(()),
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop();
            let _ = thread.join();
        }
    }
}

/// The loop.
struct Runner {
    clock: Clock,
    idle: Idle,
    stop: Arc<AtomicBool>,
    waker: Waker,
    stats: Arc<ReactorStats>,
    bed: Bed,
    /// Which descriptors the bed knows.
    fds_epoch: Option<u64>,
}

impl Runner {
    fn prepare<E>(seat: &Seat, idle: Idle, stop: Arc<AtomicBool>) -> Result<Runner, SpawnError<E>> {
        if let Some(core) = seat.core {
            affinity::pin(core)?;
        }
        // The default slack of 50 us would delay every short timer. Not worth failing for.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        Ok(Runner {
            clock: seat.clock,
            idle,
            stop,
            waker: seat.waker.clone(),
            stats: Arc::clone(&seat.stats),
            bed: Bed::new(seat.waker.clone()).map_err(SpawnError::Thread)?,
            fds_epoch: None,
        })
    }

    fn is_told_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run<P: Poller>(mut self, mut poller: P) {
        let mut now = self.clock.now();
        let mut idle_since = now;
        while !self.is_told_to_stop() && !poller.is_done() {
            let work = poller.poll(now);
            let after = self.clock.now();
            self.stats.turn(nanos_between(now, after), work.0);
            now = after;
            if !work.is_idle() {
                idle_since = now;
                continue;
            }
            match self.idle {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Sleep { after } if now.since(idle_since) >= after => {
                    self.sleep(&mut poller, now);
                    now = self.clock.now();
                    idle_since = now;
                }
                Idle::Sleep { .. } => std::hint::spin_loop(),
            }
        }
    }

    /// Sleeps unless there is something to do after all.
    fn sleep<P: Poller>(&mut self, poller: &mut P, now: Time) {
        if poller.next_deadline() <= now {
            return;
        }
        self.waker.say_asleep();
        let mut now = self.clock.now();
        let work = poller.poll(now);
        let after = self.clock.now();
        self.stats.turn(nanos_between(now, after), work.0);
        now = after;
        if work == Busy::IDLE && !self.is_told_to_stop() && !poller.is_done() && self.tuck_in(poller) {
            let deadline = poller.next_deadline();
            let at_most = (deadline != Time::NEVER).then(|| deadline.since(now));
            if let Err(error) = self.bed.wait(at_most) {
                tracing::error!(%error, "a reactor cannot sleep, it spins from now on");
                self.idle = Idle::Spin;
            }
            self.stats.slept(nanos_between(now, self.clock.now()));
        }
        self.waker.say_awake();
    }

    /// Brings the bed's descriptors up to date; false if that failed.
    fn tuck_in<P: Poller>(&mut self, poller: &P) -> bool {
        let epoch = poller.wait_fds_epoch();
        if self.fds_epoch == Some(epoch) {
            return true;
        }
        match self.bed.set_fds(|fds| poller.wait_fds(fds)) {
            Ok(()) => {
                self.fds_epoch = Some(epoch);
                true
            }
            Err(error) => {
                tracing::error!(%error, "a reactor cannot wait for its descriptors, it spins from now on");
                self.idle = Idle::Spin;
                false
            }
        }
    }
}

fn nanos_between(from: Time, to: Time) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}
