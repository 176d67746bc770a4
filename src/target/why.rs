//! Why a channel ends: every exit has its words for the log and its counter.

use std::fmt;
use std::time::Duration;

use crate::rdma::verbs::WcStatus;

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
    WorkRequest(WcStatus),
    /// The initiator sent an RDMA request that is malformed or not allowed.
    BadRequest,
    /// The provider reported an error of the queue pair.
    QueuePair,
    /// The completion queue ran over: completions are lost.
    Overrun,
    /// The peer showed no sign of life.
    Silent(Duration),
    /// The login was never completed by the initiator.
    NotEstablished,
    /// The initiator broke the protocol.
    Violation(String),
    /// An administrator ended the session.
    Kicked,
    /// The listener that it came by is removed with its sessions.
    ListenerRemoved,
    /// The RDMA device is gone.
    DeviceRemoved,
    /// srpoll stops, or the target is removed.
    ShutDown,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::PeerGone | Why::LoggedOut => f.write_str("the initiator logged out"),
            Why::Replaced => f.write_str("a new login of the same initiator replaced it"),
            Why::Forgotten => f.write_str("the initiator has forgotten it and connects anew"),
            Why::WorkRequest(WcStatus::RetryExceeded) => f.write_str("the initiator acknowledges nothing"),
            Why::WorkRequest(WcStatus::RemoteAccess) => {
                f.write_str("the initiator's memory does not allow what its command asked for")
            }
            Why::WorkRequest(status) => write!(f, "a work request failed: {status:?}"),
            Why::BadRequest => f.write_str("the initiator sent an RDMA request that is not allowed"),
            Why::QueuePair => f.write_str("the queue pair failed"),
            Why::Overrun => f.write_str("the completion queue ran over"),
            Why::Silent(time) => write!(f, "the initiator has been silent for {:.1} s", time.as_secs_f64()),
            Why::NotEstablished => f.write_str("the initiator did not complete the login"),
            Why::Violation(what) => write!(f, "the initiator broke the protocol: {what}"),
            Why::Kicked => f.write_str("an administrator ended it"),
            Why::ListenerRemoved => f.write_str("its listener was removed"),
            Why::DeviceRemoved => f.write_str("the RDMA device is gone"),
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

    /// The place of its counter, in the order of [`Exits::NAMES`].
    const fn place(&self) -> usize {
        match self {
            Why::PeerGone => 0,
            Why::LoggedOut => 1,
            Why::Replaced => 2,
            Why::Forgotten => 3,
            Why::WorkRequest(WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded) => 4,
            Why::WorkRequest(WcStatus::RemoteAccess) => 5,
            Why::WorkRequest(_) => 6,
            Why::BadRequest => 7,
            Why::QueuePair => 8,
            Why::Overrun => 9,
            Why::Silent(_) => 10,
            Why::NotEstablished => 11,
            Why::Violation(_) => 12,
            Why::Kicked => 13,
            Why::ListenerRemoved => 14,
            Why::DeviceRemoved => 15,
            Why::ShutDown => 16,
        }
    }
}

/// How many channels have ended by each exit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits([u64; Exits::NAMES.len()]);

impl Exits {
    /// The counters by name.
    pub const NAMES: [&'static str; 17] = [
        "ended_disconnected",
        "ended_logged_out",
        "ended_replaced",
        "ended_forgotten",
        "ended_retry_exceeded",
        "ended_remote_access",
        "ended_work_request",
        "ended_bad_request",
        "ended_queue_pair",
        "ended_overrun",
        "ended_silent",
        "ended_not_established",
        "ended_violation",
        "ended_kicked",
        "ended_listener_removed",
        "ended_device_removed",
        "ended_shut_down",
    ];

    /// One more.
    pub fn count(&mut self, why: &Why) {
        self.0[why.place()] += 1;
    }

    /// How many by that exit.
    pub fn of(&self, why: &Why) -> u64 {
        self.0[why.place()]
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// All of them, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Exits::NAMES.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_has_its_counter() {
        let all = [
            Why::PeerGone,
            Why::LoggedOut,
            Why::Replaced,
            Why::Forgotten,
            Why::WorkRequest(WcStatus::RetryExceeded),
            Why::WorkRequest(WcStatus::RemoteAccess),
            Why::WorkRequest(WcStatus::LocalLength),
            Why::BadRequest,
            Why::QueuePair,
            Why::Overrun,
            Why::Silent(Duration::from_secs(10)),
            Why::NotEstablished,
            Why::Violation("it did".to_owned()),
            Why::Kicked,
            Why::ListenerRemoved,
            Why::DeviceRemoved,
            Why::ShutDown,
        ];
        let mut exits = Exits::default();
        for (at, why) in all.iter().enumerate() {
            exits.count(why);
            assert_eq!(exits.of(why), 1, "{why:?} has a counter of its own");
            assert_eq!(exits.named().nth(at).unwrap().1, 1, "in the order of the names: {why:?}");
        }
        assert_eq!(exits.total(), Exits::NAMES.len() as u64);
        assert_eq!(
            all[10].to_string(),
            "the initiator has been silent for 10.0 s",
            "what is not the same every time is in the words"
        );
    }
}
