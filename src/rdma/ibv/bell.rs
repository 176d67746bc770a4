//! How a thread is called that may sleep on descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable from [`ring`](Self::ring) until [`answer`](Self::answer), and a flag
/// that spares who polls the system call.
#[derive(Debug)]
pub(super) struct Bell {
    event: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Bell { event, rung: AtomicBool::new(false) })
    }

    /// Calls. What the caller put somewhere before is there when the bell is answered.
    pub(super) fn ring(&self) {
        // Fails only if the counter is at its limit: then it is readable, which is all we want.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        // After the descriptor: who sees the flag also makes it quiet again.
        self.rung.store(true, Ordering::Release);
    }

    /// Whether somebody called since the last time; then it is quiet again.
    #[inline]
    pub(super) fn answer(&self) -> bool {
        // Looking first keeps the line shared while nobody calls.
        if !self.rung.load(Ordering::Relaxed) || !self.rung.swap(false, Ordering::AcqRel) {
            return false;
        }
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        true
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(bell: &Bell) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_until_answered() {
        let bell = Bell::new().unwrap();
        assert!(!bell.answer() && !readable(&bell));
        bell.ring();
        bell.ring();
        assert!(readable(&bell));
        assert!(bell.answer());
        assert!(!readable(&bell) && !bell.answer());
    }

    #[test]
    fn no_call_is_lost_between_threads() {
        let bell = Bell::new().unwrap();
        let (to, from) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let bell = &bell;
            scope.spawn(move || {
                for number in 0..1000 {
                    to.send(number).unwrap();
                    bell.ring();
                }
            });
            let mut seen = 0;
            while seen < 1000 {
                poll(&mut [PollFd::new(bell, PollFlags::IN)], None).unwrap();
                if bell.answer() {
                    seen += from.try_iter().count();
                }
            }
        });
    }
}
