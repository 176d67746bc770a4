//! How a channel's queue pair is drained: the table of its life, and the waits as plain values.
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
//! Block operations of the channel are cancelled and awaited too. A deadline always ends the wait.

use std::time::Duration;

use reactors::time::Time;

/// How long the receive side is given after the marker when no event comes.
pub const LAST_WQE_GRACE: Duration = Duration::from_millis(100);

/// Where a channel's queue pair is in its life.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Accepted; neither RTU nor data have come.
    Connecting,
    /// In use.
    Live,
    /// Failed or asked to end: takes no new information units.
    Draining,
    /// In ERR with the marker posted: waiting for flushes and block operations.
    Quiescing,
    /// Everything is back; the queue pair can go.
    Flushed,
    /// Gone.
    Destroyed,
}

/// What moves a queue pair along.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LifeEvent {
    /// RTU or the first data came.
    Established,
    /// Something ended the channel.
    End,
    /// The queue pair is in ERR and the marker is posted (or posting it was refused).
    MarkerPosted,
    /// Marker, receive side and tasks are back.
    Quiet,
    /// The deadline passed.
    Overdue,
    /// The queue pair was destroyed.
    Destroyed,
}

/// All states, for tables.
pub const LIVES: [Life; 6] =
    [Life::Connecting, Life::Live, Life::Draining, Life::Quiescing, Life::Flushed, Life::Destroyed];
/// All events, for tables.
pub const LIFE_EVENTS: [LifeEvent; 6] = [
    LifeEvent::Established,
    LifeEvent::End,
    LifeEvent::MarkerPosted,
    LifeEvent::Quiet,
    LifeEvent::Overdue,
    LifeEvent::Destroyed,
];

/// An event that the state does not know.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} in state {state:?}")]
pub struct IllegalLife {
    /// The state.
    pub state: Life,
    /// The event.
    pub event: LifeEvent,
}

impl Life {
    /// The state after `event`.
    pub const fn next(self, event: LifeEvent) -> Result<Life, IllegalLife> {
        use Life::*;
        use LifeEvent as E;
        Ok(match (self, event) {
            (Connecting | Live, E::Established) => Live,
            (Connecting | Live, E::End) => Draining,
            // Ending is idempotent: several things notice the same death.
            (Draining | Quiescing | Flushed, E::End) => self,
            (Draining, E::MarkerPosted) => Quiescing,
            (Quiescing, E::Quiet | E::Overdue) => Flushed,
            (Flushed, E::Destroyed) => Destroyed,
            (state, event) => return Err(IllegalLife { state, event }),
        })
    }

    /// Whether information units are taken.
    pub const fn takes_ius(self) -> bool {
        matches!(self, Life::Connecting | Life::Live)
    }
}

/// Why a channel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The initiator sent DREQ.
    PeerGone,
    /// The initiator sent SRP_I_LOGOUT.
    LoggedOut,
    /// A newer login of the same nexus with SINGLE replaced it.
    Replaced,
    /// The peer has forgotten the connection: it asked for a new one with the same queue pair.
    Forgotten,
    /// A work request failed.
    WorkRequest(crate::rdma::verbs::WcStatus),
    /// The provider reported an error of the queue pair.
    QueuePair,
    /// The peer showed no sign of life.
    Silent(Duration),
    /// The login was never completed by the initiator.
    NotEstablished,
    /// The initiator broke the protocol.
    Violation(String),
    /// An administrator ended the session.
    Kicked,
    /// The listener or the target is being removed, or srpoll stops.
    ShutDown,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::PeerGone | Why::LoggedOut => f.write_str("the initiator logged out"),
            Why::Replaced => f.write_str("a new login of the same initiator replaced it"),
            Why::Forgotten => f.write_str("the initiator has forgotten it and connects anew"),
            Why::WorkRequest(status) => write!(f, "a work request failed: {status:?}"),
            Why::QueuePair => f.write_str("the queue pair failed"),
            Why::Silent(time) => write!(f, "the initiator has been silent for {:.1} s", time.as_secs_f64()),
            Why::NotEstablished => f.write_str("the initiator did not complete the login"),
            Why::Violation(what) => write!(f, "the initiator broke the protocol: {what}"),
            Why::Kicked => f.write_str("an administrator ended it"),
            Why::ShutDown => f.write_str("the target is shutting down"),
        }
    }
}

impl Why {
    /// Whether the end is our decision (or the queue pair's), so that the peer is to be told; not
    /// if the connection manager said that the connection is over.
    pub const fn is_ours(&self) -> bool {
        !matches!(self, Why::Forgotten | Why::NotEstablished | Why::PeerGone)
    }
}

/// The waits of one drain.
#[derive(Clone, Debug)]
pub struct Drain {
    /// When it began.
    pub since: Time,
    deadline: Time,
    marker_wanted: bool,
    marker_back: bool,
    last_wqe: bool,
    /// From when on the receive side counts as quiet without the event.
    grace_ends: Time,
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
        Drain {
            since: now,
            deadline: now + limit,
            marker_wanted: false,
            marker_back: false,
            last_wqe: false,
            grace_ends: Time::NEVER,
        }
    }

    /// The send queue had no room for the marker: it is to be posted later.
    pub fn marker_wanted(&mut self) {
        self.marker_wanted = true;
    }

    /// Whether the marker is still to be posted.
    pub fn wants_marker(&self) -> bool {
        self.marker_wanted
    }

    /// The marker is posted after all.
    pub fn marker_posted(&mut self) {
        self.marker_wanted = false;
    }

    /// The marker's completion came, or it could not be posted: the send queue is empty.
    pub fn marker_back(&mut self, now: Time) {
        if !self.marker_back {
            self.marker_back = true;
            self.grace_ends = now + LAST_WQE_GRACE;
        }
    }

    /// LAST_WQE_REACHED came. It may come early, late, twice or never.
    pub fn last_wqe(&mut self) {
        self.last_wqe = true;
    }

    /// What to do now, while `tasks` of the channel are not back.
    pub fn step(&self, now: Time, tasks: usize) -> Step {
        let receive_side_quiet = self.marker_back && (self.last_wqe || now >= self.grace_ends);
        if receive_side_quiet && tasks == 0 {
            Step::Quiet
        } else if now >= self.deadline {
            Step::Overdue
        } else if receive_side_quiet || !self.marker_back {
            Step::Wait(self.deadline)
        } else {
            Step::Wait(self.grace_ends.min(self.deadline))
        }
    }

    /// What is missing, in words for the log.
    pub fn missing(&self, tasks: usize) -> String {
        let mut missing = Vec::new();
        if !self.marker_back {
            missing.push("the flush of its send queue".to_owned());
        }
        if tasks > 0 {
            missing.push(format!("{tasks} tasks"));
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

    #[test]
    fn table_of_lives() {
        let mut table = String::new();
        for state in LIVES {
            for event in LIFE_EVENTS {
                if let Ok(next) = state.next(event) {
                    table += &format!("{state:?} + {event:?} -> {next:?}\n");
                }
            }
        }
        assert_eq!(
            table,
            "Connecting + Established -> Live\n\
             Connecting + End -> Draining\n\
             Live + Established -> Live\n\
             Live + End -> Draining\n\
             Draining + End -> Draining\n\
             Draining + MarkerPosted -> Quiescing\n\
             Quiescing + End -> Quiescing\n\
             Quiescing + Quiet -> Flushed\n\
             Quiescing + Overdue -> Flushed\n\
             Flushed + End -> Flushed\n\
             Flushed + Destroyed -> Destroyed\n"
        );
    }

    #[test]
    fn quiet_needs_marker_receive_side_and_tasks() {
        let mut drain = Drain::new(at(0), Duration::from_secs(8));
        assert_eq!(drain.step(at(1), 0), Step::Wait(at(8000)));
        drain.last_wqe(); // early: proves nothing about the send side
        assert_eq!(drain.step(at(2), 0), Step::Wait(at(8000)));
        drain.marker_back(at(3));
        assert_eq!(drain.step(at(3), 2), Step::Wait(at(8000)));
        assert_eq!(drain.step(at(3), 0), Step::Quiet);
    }

    #[test]
    fn without_the_event_the_grace_decides() {
        let mut drain = Drain::new(at(0), Duration::from_secs(8));
        drain.marker_back(at(10));
        drain.marker_back(at(50)); // a second flush does not prolong it
        assert_eq!(drain.step(at(11), 0), Step::Wait(at(110)));
        assert_eq!(drain.step(at(110), 0), Step::Quiet);
    }

    #[test]
    fn the_deadline_always_ends_it() {
        let drain = Drain::new(at(0), Duration::from_secs(1));
        assert_eq!(drain.step(at(999), 1), Step::Wait(at(1000)));
        assert_eq!(drain.step(at(1000), 1), Step::Overdue);
        assert_eq!(drain.missing(3), "the flush of its send queue and 3 tasks");
    }
}
