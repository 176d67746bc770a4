//! Going to sleep and being woken, without a lost wake-up.
//!
//! A thread that goes to sleep first says so, then looks at its rings once more, and only then
//! waits. One that has put something on a ring looks whether the owner said so, and only then
//! pays for a system call. The two fences make at least one of them see the other.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

#[derive(Debug)]
struct Inner {
    asleep: AtomicBool,
    event: OwnedFd,
}

/// Wakes one reactor; clones wake the same.
///
/// It exists before its reactor, so that rings between reactors can be made before any of them
/// runs.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<Inner>,
}

impl Waker {
    /// A waker with its own eventfd.
    pub fn new() -> io::Result<Waker> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Waker { inner: Arc::new(Inner { asleep: AtomicBool::new(false), event }) })
    }

    /// Wakes the reactor if it sleeps or is about to. What the caller wrote before is seen by
    /// the reactor's next turn.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.inner.asleep.load(Ordering::Relaxed) && self.inner.asleep.swap(false, Ordering::AcqRel) {
            // Fails only if the counter is at its limit: then it is readable, which is all we want.
            let _ = rustix::io::write(&self.inner.event, &1u64.to_ne_bytes());
        }
    }

    /// Says that the reactor is about to sleep. Whoever calls this must look for work once more
    /// before it waits.
    pub(crate) fn say_asleep(&self) {
        self.inner.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the reactor does not sleep.
    pub(crate) fn say_awake(&self) {
        self.inner.asleep.store(false, Ordering::Release);
    }
}

/// Where a reactor sleeps: one epoll of its waker and its poller's descriptors. Also for loops that
/// poll and are no reactor.
pub struct Bed {
    waker: Waker,
    epoll: OwnedFd,
    fds: Vec<RawFd>,
}

impl Bed {
    /// A bed that only `waker` wakes from.
    pub fn new(waker: Waker) -> io::Result<Bed> {
        let epoll = Bed::make(&waker, &[])?;
        Ok(Bed { waker, epoll, fds: Vec::with_capacity(16) })
    }

    fn make(waker: &Waker, fds: &[RawFd]) -> io::Result<OwnedFd> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, &waker.inner.event, EventData::new_u64(0), EventFlags::IN)?;
        for &fd in fds {
            // SAFETY: the poller keeps its descriptors open until its epoch changes, and epoll
            // takes no hold of the number beyond this call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            epoll::add(&set, fd, EventData::new_u64(1), EventFlags::IN)?;
        }
        Ok(set)
    }

    /// Takes the descriptors that `list` names, in place of all that were there. The set is made
    /// anew, since a closed number that was opened again has silently left the old one. They stay
    /// open until the next call.
    pub fn set_fds(&mut self, list: impl FnOnce(&mut Vec<RawFd>)) -> io::Result<()> {
        self.fds.clear();
        list(&mut self.fds);
        self.epoll = Bed::make(&self.waker, &self.fds)?;
        Ok(())
    }

    /// Waits until something is readable, the waker calls, or `at_most` is over; `None` waits
    /// for ever. To the nanosecond, unlike `epoll_wait`: RNR timers are tens of microseconds.
    pub fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let timeout = at_most.map(|wait| Timespec {
            tv_sec: wait.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut set = [PollFd::new(&self.epoll, PollFlags::IN)];
        let ready = match poll(&mut set, timeout.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        if ready > 0 {
            // Also takes back a call that came late, after the flag was cleared.
            let _ = rustix::io::read(&self.waker.inner.event, &mut [0u8; 8]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_between_saying_and_waiting_is_not_lost() {
        let waker = Waker::new().unwrap();
        let bed = Bed::new(waker.clone()).unwrap();
        waker.say_asleep();
        waker.wake();
        bed.wait(None).unwrap();
        assert!(!waker.inner.asleep.load(Ordering::Relaxed));
    }

    #[test]
    fn nobody_pays_for_one_who_is_awake() {
        let waker = Waker::new().unwrap();
        waker.wake();
        assert!(rustix::io::read(&waker.inner.event, &mut [0u8; 8]).is_err());
    }

    #[test]
    fn descriptors_wake_and_may_be_exchanged() {
        let waker = Waker::new().unwrap();
        let mut bed = Bed::new(waker).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        bed.set_fds(|fds| fds.push(fd)).unwrap();
        io::Write::write_all(&mut writer, b"x").unwrap();
        bed.wait(None).unwrap();
        bed.set_fds(|_| {}).unwrap();
        bed.wait(Some(Duration::from_micros(50))).unwrap();
    }
}
