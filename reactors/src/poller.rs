//! What a reactor runs.

use std::os::fd::RawFd;

use crate::time::Time;

/// How much a turn found to do: packets, completions, messages. Zero means idle.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Busy(pub usize);

impl Busy {
    /// Nothing to do.
    pub const IDLE: Busy = Busy(0);

    /// Whether nothing was done.
    pub const fn is_idle(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::Add for Busy {
    type Output = Busy;
    fn add(self, more: Busy) -> Busy {
        Busy(self.0.saturating_add(more.0))
    }
}

impl std::ops::AddAssign for Busy {
    fn add_assign(&mut self, more: Busy) {
        *self = *self + more;
    }
}

/// Work that is done by looking at it again and again. It may hold what cannot leave its thread.
pub trait Poller {
    /// One turn: does what there is to do, never waits.
    fn poll(&mut self, now: Time) -> Busy;

    /// When there will be something to do although no descriptor becomes readable and no
    /// message comes; [`Time::NEVER`] if only those can bring work.
    fn next_deadline(&self) -> Time {
        Time::NEVER
    }

    /// Adds the descriptors that become readable when there is something to do. A reactor that
    /// goes to sleep waits for them. They must stay open until [`wait_fds_epoch`] has changed.
    ///
    /// [`wait_fds_epoch`]: Self::wait_fds_epoch
    fn wait_fds(&self, fds: &mut Vec<RawFd>) {
        let _ = fds;
    }

    /// Changes whenever [`wait_fds`](Self::wait_fds) would answer differently.
    fn wait_fds_epoch(&self) -> u64 {
        0
    }

    /// Whether the work is over: the reactor then drops the poller and its thread ends.
    fn is_done(&self) -> bool {
        false
    }
}
