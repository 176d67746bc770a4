//! When I/Os are due if they come at a rate of their own, whether or not earlier ones have ended (an
//! open loop). Latency then counts from when an I/O was due: one that had to wait for a slow one is as
//! late as its user saw it. Counting from when it was sent would leave that out ("coordinated
//! omission").

use std::num::NonZeroU64;
use std::time::Duration;

use reactors::time::Time;

const NANOS: u128 = 1_000_000_000;

/// I/Os at a steady rate from a start on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    started: Time,
    per_second: NonZeroU64,
    taken: u64,
}

impl Schedule {
    pub(super) fn new(per_second: NonZeroU64) -> Self {
        Schedule { started: Time::ZERO, per_second, taken: 0 }
    }

    /// The first I/O is due now.
    pub(super) fn start(&mut self, now: Time) {
        (self.started, self.taken) = (now, 0);
    }

    /// When the next I/O is due.
    pub(super) fn next(&self) -> Time {
        let nanos = u128::from(self.taken) * NANOS / u128::from(self.per_second.get());
        self.started + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The next I/O is sent.
    pub(super) fn take(&mut self) {
        self.taken += 1;
    }

    /// How many I/Os are due at `now` and not taken.
    pub(super) fn behind(&self, now: Time) -> u64 {
        let due = now.since(self.started).as_nanos() * u128::from(self.per_second.get()) / NANOS;
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ios_are_due_at_even_distances_whatever_was_sent() {
        let mut schedule = Schedule::new(NonZeroU64::new(3).unwrap());
        let start = Time::from_nanos(5_000_000_000);
        schedule.start(start);
        let mut due = Vec::new();
        for _ in 0..7 {
            due.push(schedule.next().since(start).as_millis());
            schedule.take();
        }
        assert_eq!(due, [0, 333, 666, 1000, 1333, 1666, 2000]);
        assert_eq!(schedule.behind(start + Duration::from_secs(2)), 0);
        assert_eq!(schedule.behind(start + Duration::from_secs(10)), 23);
    }
}
