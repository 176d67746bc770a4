//! How a channel's queue pair is drained: the waits as plain values.
//!
//! The fast path's share is one branch on a completion's status; all the rest happens in the slow
//! lane. A queue pair that failed goes to the error state, which flushes both its queues:
//!
//! * send side: a zero-length RDMA WRITE posted after the move to ERR (the marker) flushes last,
//!   so its completion proves that everything posted before has completed (ib_srpt does the same:
//!   `srpt_ch_qp_err` and `srpt_zerolength_write`);
//! * receive side: with a shared receive queue nothing is posted for this queue pair, but a
//!   completion of it may still lie in the completion queue. After the marker the queue is polled
//!   empty, then LAST_WQE_REACHED or 100 ms are awaited, then it is polled empty again. The event
//!   is a hint: rxe of kernel 6.1 never sends it, 6.12 several times and early.
//!
//! A marker that completes with success was carried out: the queue pair never went to ERR. It is
//! moved again, with a new marker; one that stays is destroyed. Block operations of the channel are
//! cancelled and awaited too. A deadline always ends the wait.

use std::time::Duration;

use reactors::time::Time;

use super::limits::{LAST_WQE_WAIT, MARKERS_AT_MOST};

/// Where the marker is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Marker {
    /// To be posted.
    Wanted,
    /// Posted.
    Out,
    /// Flushed, or refused: nothing is on the send queue any more.
    Back {
        /// From when on the receive side counts as quiet without the event.
        grace_ends: Time,
    },
}

/// The waits of one drain.
#[derive(Clone, Debug)]
pub struct Drain {
    /// When it began.
    pub since: Time,
    deadline: Time,
    marker: Marker,
    markers: u32,
    /// How often the completion queue had been polled empty when the receive side went quiet.
    empties_before: Option<u64>,
}

/// What a drain waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing yet; look again at this time at the latest.
    Wait(Time),
    /// All is back.
    Quiet,
    /// Not all is back, and the deadline has passed.
    Overdue,
}

impl Drain {
    /// A drain that began `now` and is ended by force after `limit`.
    pub fn new(now: Time, limit: Duration) -> Self {
        Drain { since: now, deadline: now + limit, marker: Marker::Wanted, markers: 0, empties_before: None }
    }

    /// Whether the marker is to be posted.
    pub fn wants_marker(&self) -> bool {
        self.marker == Marker::Wanted
    }

    /// The marker is posted.
    pub fn marker_posted(&mut self) {
        self.marker = Marker::Out;
        self.markers += 1;
    }

    /// The marker was flushed, or it could not be posted: the send queue is empty.
    pub fn marker_back(&mut self, now: Time) {
        if !matches!(self.marker, Marker::Back { .. }) {
            self.marker = Marker::Back { grace_ends: now + LAST_WQE_WAIT };
        }
    }

    /// The marker was carried out, so the queue pair is not in ERR. Whether to move it there once
    /// more and to post another one; if not, the drain is overdue.
    pub fn marker_succeeded(&mut self, now: Time) -> bool {
        if self.marker != Marker::Out {
            return false;
        }
        let again = self.markers < MARKERS_AT_MOST;
        if again {
            self.marker = Marker::Wanted;
        } else {
            self.deadline = now;
        }
        again
    }

    /// What to do now, while `tasks` of the channel are not back. `last_wqe`: LAST_WQE_REACHED came,
    /// early, late, or twice; it may never come. `empties` counts how often the completion queue was
    /// polled empty so far.
    pub fn step(&mut self, now: Time, last_wqe: bool, tasks: usize, empties: u64) -> Step {
        let overdue = now >= self.deadline;
        let Marker::Back { grace_ends } = self.marker else {
            return if overdue { Step::Overdue } else { Step::Wait(self.deadline) };
        };
        if !last_wqe && now < grace_ends {
            return if overdue { Step::Overdue } else { Step::Wait(grace_ends.min(self.deadline)) };
        }
        let before = *self.empties_before.get_or_insert(empties);
        match (empties > before, tasks) {
            (true, 0) => Step::Quiet,
            _ if overdue => Step::Overdue,
            // The queue is polled in the next turn.
            (false, _) => Step::Wait(now),
            (true, _) => Step::Wait(self.deadline),
        }
    }

    /// What is missing, in words for the log and for `srp_get_sessions`; empty if nothing is.
    pub fn missing(&self, last_wqe: bool, tasks: usize) -> String {
        let mut missing = Vec::new();
        match self.marker {
            Marker::Back { .. } => {
                if !last_wqe && self.empties_before.is_none() {
                    missing.push("the last of its receives".to_owned());
                }
            }
            Marker::Wanted if self.markers > 0 => missing.push("its queue pair to go to ERR".to_owned()),
            Marker::Wanted | Marker::Out => missing.push("the flush of its send queue".to_owned()),
        }
        match tasks {
            0 => {}
            1 => missing.push("1 task".to_owned()),
            _ => missing.push(format!("{tasks} tasks")),
        }
        missing.join(" and ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// A drain that began at 0 and has its marker posted.
    fn posted(limit_ms: u64) -> Drain {
        let mut drain = Drain::new(at(0), Duration::from_millis(limit_ms));
        assert!(drain.wants_marker());
        drain.marker_posted();
        drain
    }

    #[test]
    fn quiet_needs_marker_receive_side_and_tasks() {
        let mut drain = posted(8000);
        assert_eq!(drain.step(at(1), false, 0, 1), Step::Wait(at(8000)));
        // An early event proves nothing about the send side.
        assert_eq!(drain.step(at(2), true, 0, 2), Step::Wait(at(8000)));
        drain.marker_back(at(3));
        assert_eq!(drain.step(at(3), true, 2, 3), Step::Wait(at(3)), "the queue is polled empty once more");
        assert_eq!(drain.step(at(4), true, 2, 4), Step::Wait(at(8000)));
        assert_eq!(drain.step(at(5), true, 0, 5), Step::Quiet);
    }

    #[test]
    fn a_completion_queue_that_is_never_empty_proves_nothing() {
        let mut drain = posted(8000);
        drain.marker_back(at(3));
        for ms in 3..8000 {
            assert_eq!(drain.step(at(ms), true, 0, 17), Step::Wait(at(ms)));
        }
        assert_eq!(drain.step(at(8000), true, 0, 17), Step::Overdue);
    }

    #[test]
    fn without_the_event_the_grace_decides() {
        let mut drain = posted(8000);
        drain.marker_back(at(10));
        drain.marker_back(at(50)); // a second flush does not prolong it
        assert_eq!(drain.step(at(11), false, 0, 1), Step::Wait(at(110)));
        assert_eq!(drain.missing(false, 0), "the last of its receives");
        assert_eq!(drain.step(at(110), false, 0, 2), Step::Wait(at(110)));
        assert_eq!(drain.step(at(110), false, 0, 3), Step::Quiet);
        assert_eq!(drain.missing(false, 0), "");
    }

    #[test]
    fn the_event_may_come_late() {
        let mut drain = posted(8000);
        drain.marker_back(at(10));
        assert_eq!(drain.step(at(11), false, 0, 1), Step::Wait(at(110)));
        assert_eq!(drain.step(at(12), true, 0, 2), Step::Wait(at(12)));
        assert_eq!(drain.step(at(13), true, 0, 3), Step::Quiet);
    }

    #[test]
    fn a_marker_that_is_carried_out_is_posted_again_and_not_for_ever() {
        let mut drain = posted(8000);
        for _ in 1..MARKERS_AT_MOST {
            assert!(drain.marker_succeeded(at(1)) && drain.wants_marker());
            assert_eq!(drain.missing(false, 0), "its queue pair to go to ERR");
            assert!(!drain.marker_succeeded(at(1)), "one marker, one answer");
            drain.marker_posted();
        }
        assert!(!drain.marker_succeeded(at(2)));
        assert_eq!(drain.step(at(2), true, 0, 9), Step::Overdue);
    }

    #[test]
    fn the_deadline_always_ends_it() {
        let mut drain = posted(1000);
        assert_eq!(drain.step(at(999), false, 1, 1), Step::Wait(at(1000)));
        assert_eq!(drain.step(at(1000), false, 1, 2), Step::Overdue);
        assert_eq!(drain.missing(false, 3), "the flush of its send queue and 3 tasks");
        drain.marker_back(at(1000));
        assert_eq!(drain.step(at(1001), false, 0, 3), Step::Overdue);
    }
}
