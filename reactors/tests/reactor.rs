//! Reactors as their users see them: unpinned, with real threads.

use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use reactors::affinity::{self, AffinityError};
use reactors::poller::{Busy, Poller};
use reactors::reactor::{Idle, Panicked, Reactor, ReactorConfig, SpawnError};
use reactors::ring::{Mailbox, Outbox};
use reactors::time::Time;
use reactors::wake::Waker;

fn config(waker: &Waker, idle: Idle) -> ReactorConfig {
    ReactorConfig { name: "test".into(), core: None, idle, waker: waker.clone() }
}

const SLEEPY: Idle = Idle::Sleep { after: Duration::ZERO };

/// Sends back what it gets; done when told the number that ends it. Not `Send`, on purpose.
struct Echo {
    mailbox: Mailbox<u64>,
    outbox: Outbox<u64>,
    done: bool,
    _local: Rc<()>,
}

const LAST: u64 = u64::MAX;

impl Poller for Echo {
    fn poll(&mut self, _now: Time) -> Busy {
        let mut work = self.outbox.flush();
        // No more than what the outbox can hold, as any bounded owner does.
        while self.outbox.backlog() == 0 {
            let Some(message) = self.mailbox.recv() else { break };
            work += 1;
            if message == LAST {
                self.done = true;
            } else {
                self.outbox.send(message).unwrap();
            }
        }
        Busy(work)
    }

    fn next_deadline(&self) -> Time {
        // Nobody calls when a full ring has room again.
        if self.outbox.backlog() > 0 { Time::ZERO } else { Time::NEVER }
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

fn echo(mailbox: Mailbox<u64>, outbox: Outbox<u64>) -> Echo {
    Echo { mailbox, outbox, done: false, _local: Rc::new(()) }
}

/// Ping and pong between two reactors that fall asleep after every idle turn: a lost wake-up
/// would stop it for ever.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 5_000;
    struct Ping {
        mailbox: Mailbox<u64>,
        peer: Outbox<u64>,
        got: u64,
    }
    impl Poller for Ping {
        fn poll(&mut self, _now: Time) -> Busy {
            let mut work = 0;
            while let Some(n) = self.mailbox.recv() {
                assert_eq!(n, self.got);
                self.got += 1;
                let next = if self.got == ROUNDS { LAST } else { self.got };
                self.peer.send(next).unwrap();
                work += 1;
            }
            Busy(work)
        }
        fn is_done(&self) -> bool {
            self.got == ROUNDS
        }
    }
    let (ping_waker, pong_waker) = (Waker::new().unwrap(), Waker::new().unwrap());
    let (to_ping, ping_box) = Mailbox::new(4, &ping_waker);
    let (to_pong, pong_box) = Mailbox::new(4, &pong_waker);
    let pong = Reactor::spawn(config(&pong_waker, SLEEPY), move |_| {
        Ok::<_, ()>(echo(pong_box, Outbox::new(to_ping, 4)))
    })
    .unwrap();
    let ping = Reactor::spawn(config(&ping_waker, SLEEPY), move |_| {
        let mut peer = Outbox::new(to_pong, 4);
        peer.send(0).unwrap();
        Ok::<_, ()>(Ping { mailbox: ping_box, peer, got: 0 })
    })
    .unwrap();
    let stats = Arc::clone(pong.stats());
    ping.join().unwrap();
    pong.join().unwrap();
    let reading = stats.read();
    assert_eq!(reading.work, ROUNDS + 1, "every round and the end");
    assert!(reading.busy_turns <= reading.turns && reading.busy_turns > 0, "{reading:?}");
}

#[test]
fn a_flood_from_two_threads_arrives_whole() {
    const EACH: u64 = 5_000;
    let (echo_waker, own_waker) = (Waker::new().unwrap(), Waker::new().unwrap());
    let (to_echo, echo_box) = Mailbox::new(16, &echo_waker);
    let (to_us, our_box) = Mailbox::new(16, &own_waker);
    let reactor = Reactor::spawn(config(&echo_waker, SLEEPY), move |_| {
        Ok::<_, ()>(echo(echo_box, Outbox::new(to_us, 1)))
    })
    .unwrap();
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let to_echo = to_echo.clone();
            std::thread::spawn(move || {
                for n in 0..EACH {
                    while to_echo.send(n).is_err() {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut sum = 0;
    for _ in 0..2 * EACH {
        sum += loop {
            match our_box.recv() {
                Some(n) => break n,
                None => std::thread::yield_now(),
            }
        };
    }
    assert_eq!(sum, EACH * (EACH - 1));
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    while to_echo.send(LAST).is_err() {}
    reactor.join().unwrap();
}

/// Nothing arrives and nobody calls: only the deadline can wake it.
#[test]
fn a_deadline_wakes_a_sleeper() {
    struct Alarm {
        next: Time,
        left: u32,
        early: Arc<AtomicUsize>,
    }
    impl Poller for Alarm {
        fn poll(&mut self, now: Time) -> Busy {
            if now < self.next {
                self.early.fetch_add(1, Ordering::Relaxed);
                return Busy::IDLE;
            }
            self.left -= 1;
            self.next = now + Duration::from_micros(300);
            Busy(1)
        }
        fn next_deadline(&self) -> Time {
            self.next
        }
        fn is_done(&self) -> bool {
            self.left == 0
        }
    }
    let waker = Waker::new().unwrap();
    let early = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&early);
    let reactor = Reactor::spawn(config(&waker, SLEEPY), move |seat| {
        Ok::<_, ()>(Alarm { next: seat.clock.now() + Duration::from_millis(1), left: 20, early: seen })
    })
    .unwrap();
    let stats = Arc::clone(reactor.stats());
    reactor.join().unwrap();
    let reading = stats.read();
    assert_eq!(reading.work, 20);
    assert!(reading.sleeps >= 19, "{reading:?}");
    // It slept in between instead of looking: two looks a sleep, and a few for coarse clocks.
    assert!(early.load(Ordering::Relaxed) < 400, "{early:?}");
}

/// The descriptors that a sleeper waits for change while it runs.
#[test]
fn descriptors_may_come_while_it_runs() {
    use std::io::{PipeReader, Read, Write};
    use std::os::fd::{AsRawFd, RawFd};

    struct Reads {
        new: Mailbox<PipeReader>,
        have: Vec<PipeReader>,
        got: Arc<AtomicUsize>,
        told: mpsc::Sender<()>,
    }
    impl Poller for Reads {
        fn poll(&mut self, _now: Time) -> Busy {
            if let Some(reader) = self.new.recv() {
                self.have.push(reader);
                return Busy(1);
            }
            let mut work = 0;
            for reader in &mut self.have {
                let mut set = [rustix::event::PollFd::new(&*reader, rustix::event::PollFlags::IN)];
                let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                if rustix::event::poll(&mut set, Some(&now)) == Ok(1) {
                    work += reader.read(&mut [0]).unwrap();
                }
            }
            if work > 0 {
                self.got.fetch_add(work, Ordering::Relaxed);
                self.told.send(()).unwrap();
            }
            Busy(work)
        }
        fn wait_fds(&self, fds: &mut Vec<RawFd>) {
            fds.extend(self.have.iter().map(AsRawFd::as_raw_fd));
        }
        fn wait_fds_epoch(&self) -> u64 {
            self.have.len() as u64
        }
    }
    let waker = Waker::new().unwrap();
    let (send, new) = Mailbox::new(2, &waker);
    let got = Arc::new(AtomicUsize::new(0));
    let (told, wait_told) = mpsc::channel();
    let seen = Arc::clone(&got);
    let reactor = Reactor::spawn(config(&waker, SLEEPY), move |_| {
        Ok::<_, ()>(Reads { new, have: Vec::new(), got: seen, told })
    })
    .unwrap();
    let mut writers = Vec::new();
    for n in 1..=2 {
        let (reader, writer) = std::io::pipe().unwrap();
        send.send(reader).unwrap();
        writers.push(writer);
        writers.last_mut().unwrap().write_all(b"x").unwrap();
        wait_told.recv_timeout(Duration::from_secs(10)).expect("the reactor saw the new descriptor");
        assert_eq!(got.load(Ordering::Relaxed), n);
    }
    reactor.stop();
    reactor.join().unwrap();
}

struct Nothing;
impl Poller for Nothing {
    fn poll(&mut self, _now: Time) -> Busy {
        Busy::IDLE
    }
}

#[test]
fn stop_ends_sleepers_and_spinners() {
    for idle in [SLEEPY, Idle::Spin] {
        let waker = Waker::new().unwrap();
        let reactor = Reactor::spawn(config(&waker, idle), |_| Ok::<_, ()>(Nothing)).unwrap();
        assert!(!reactor.is_finished());
        reactor.stop();
        reactor.join().unwrap();
        // And dropping one is enough.
        drop(Reactor::spawn(config(&waker, idle), |_| Ok::<_, ()>(Nothing)).unwrap());
    }
}

#[test]
fn what_fails_at_the_start_is_told_to_the_caller() {
    let waker = Waker::new().unwrap();
    let failed = Reactor::spawn(config(&waker, Idle::Spin), |_| Err::<Nothing, _>("no socket"));
    assert_eq!(failed.unwrap_err().to_string(), "no socket");

    let absent = ReactorConfig { core: Some(4000), ..config(&waker, Idle::Spin) };
    let failed = Reactor::spawn(absent, |_| Ok::<_, ()>(Nothing));
    assert!(matches!(
        failed.unwrap_err(),
        SpawnError::Affinity(AffinityError::Missing { missing, .. }) if missing == [4000]
    ));
}

#[test]
fn a_panic_is_reported_by_join() {
    struct Panics;
    impl Poller for Panics {
        fn poll(&mut self, _now: Time) -> Busy {
            panic!("on purpose");
        }
    }
    let waker = Waker::new().unwrap();
    let reactor = Reactor::spawn(config(&waker, Idle::Spin), |_| Ok::<_, ()>(Panics)).unwrap();
    assert_eq!(reactor.join(), Err(Panicked));
}

#[test]
fn a_pinned_reactor_knows_its_core() {
    let core = *affinity::available().first().unwrap();
    let waker = Waker::new().unwrap();
    let pinned = ReactorConfig { core: Some(core), ..config(&waker, SLEEPY) };
    let reactor = Reactor::spawn(pinned, move |seat| {
        assert_eq!(seat.core, Some(core));
        Ok::<_, ()>(Nothing)
    })
    .unwrap();
    assert_eq!(reactor.core(), Some(core));
}
