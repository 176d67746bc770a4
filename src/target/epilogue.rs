//! What shard 0 tells of the end of a session: one line, when its last channel is gone. A session
//! that goes on with fewer channels gets a line, too, when no more of them have ended for a while.

use std::time::Duration;

use reactors::time::Time;

use super::message::Tally;
use super::nexus::NexusId;
use super::why::Why;
use crate::rdma::verbs::{ConnId, Peer};

/// How long the ends of channels of a session that goes on are gathered.
const GATHER: Duration = Duration::from_secs(1);

/// The channels of a nexus that have ended, and those that are about to, since the last line.
#[derive(Debug, Default)]
pub(super) struct Epilogue {
    /// Why the first of them ended, and from where they came.
    first: Option<(Why, Peer)>,
    /// Ends that have begun and are not over.
    pending: Vec<ConnId>,
    /// Ends that are over, and when the last of them was.
    channels: u32,
    last: Time,
    /// Commands that were cut off.
    cut: u32,
    tally: Tally,
}

/// What is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The session is over; else it goes on.
    pub(super) over: bool,
    /// Why the first channel ended.
    pub(super) why: Why,
    /// The peer of the first channel.
    pub(super) peer: Peer,
    /// How many channels ended.
    pub(super) channels: u32,
    /// Commands that were cut off.
    pub(super) cut: u32,
    /// What they all did in their lives.
    pub(super) tally: Tally,
}

impl Epilogue {
    /// The end of a channel begins, with `cut` commands in progress. It may be said twice: by who asks
    /// for the end, and by who makes it.
    pub(super) fn begins(&mut self, conn: ConnId, why: Why, peer: Peer, cut: u32) {
        self.first.get_or_insert((why, peer));
        self.cut += cut;
        if !self.pending.contains(&conn) {
            self.pending.push(conn);
        }
    }

    /// A channel is gone.
    pub(super) fn is_over(&mut self, now: Time, conn: ConnId, tally: Tally) {
        self.pending.retain(|other| *other != conn);
        self.channels += 1;
        self.tally += tally;
        self.last = now;
    }

    /// What is to be told now, once, of a nexus that has `left` channels.
    pub(super) fn due(&mut self, now: Time, left: usize) -> Option<Told> {
        let (why, _) = self.first.as_ref()?;
        // A session whose channels give way to those of a new login is over, too.
        let over = left == 0 || *why == Why::Replaced;
        let gathered = over || now.since(self.last) >= GATHER;
        if !self.pending.is_empty() || self.channels == 0 || !gathered {
            return None;
        }
        let Epilogue { first, channels, cut, tally, .. } = std::mem::take(self);
        first.map(|(why, peer)| Told { over, why, peer, channels, cut, tally })
    }
}

impl Told {
    /// Puts the line into the log.
    pub(super) fn log(&self, nexus: &NexusId, left: usize) {
        let Told { over, why, peer, channels, cut, tally } = self;
        let initiator = &nexus.initiator;
        let Tally { commands, read_bytes, written_bytes } = tally;
        if *over {
            tracing::info!(%initiator, %peer, channels, commands, cut, read_bytes, written_bytes,
                "session ended: {why}");
        } else {
            tracing::info!(%initiator, %peer, channels, left, cut, "a session goes on with fewer channels: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use reactors::slab::Key;

    use super::*;

    const PEER: Peer = Peer::Address(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn conn(slot: u32) -> ConnId {
        ConnId(Key { slot, generation: 0 })
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn one(commands: u64) -> Tally {
        Tally { commands, ..Tally::default() }
    }

    #[test]
    fn a_session_is_one_line() {
        let mut epilogue = Epilogue::default();
        for slot in 0..3 {
            epilogue.begins(conn(slot), Why::Silent(Duration::from_secs(u64::from(slot))), PEER, 2);
        }
        for (slot, left) in [(2, 2), (0, 1)] {
            epilogue.is_over(at(1), conn(slot), one(10));
            assert_eq!(epilogue.due(at(5000), left), None, "one is still to go");
        }
        epilogue.is_over(at(2), conn(1), one(10));
        let told = epilogue.due(at(2), 0).unwrap();
        assert!(told.over);
        assert_eq!((told.channels, told.cut, told.tally.commands), (3, 6, 30));
        assert_eq!(told.why, Why::Silent(Duration::ZERO), "the first one's");
        assert_eq!(epilogue.due(at(9000), 0), None, "told once");
    }

    #[test]
    fn a_session_that_goes_on_is_told_of_after_a_while() {
        let mut epilogue = Epilogue::default();
        for (slot, ms) in [(0, 0), (1, 900)] {
            epilogue.begins(conn(slot), Why::QueuePair, PEER, 0);
            epilogue.is_over(at(ms), conn(slot), one(1));
            assert_eq!(epilogue.due(at(ms + 999), 6), None);
        }
        let told = epilogue.due(at(1900), 6).unwrap();
        assert_eq!((told.over, told.channels), (false, 2));
    }

    #[test]
    fn a_replaced_session_is_told_of_when_all_its_channels_are_gone() {
        let mut epilogue = Epilogue::default();
        // The registry asks for both ends; one shard is done before the other has begun.
        epilogue.begins(conn(0), Why::Replaced, PEER, 0);
        epilogue.begins(conn(1), Why::Replaced, PEER, 0);
        epilogue.begins(conn(0), Why::Replaced, PEER, 5);
        epilogue.is_over(at(1), conn(0), one(1));
        assert_eq!(epilogue.due(at(1), 1), None);
        epilogue.begins(conn(1), Why::Replaced, PEER, 5);
        epilogue.is_over(at(2), conn(1), one(1));
        let told = epilogue.due(at(2), 1).unwrap();
        assert_eq!((told.over, told.channels, told.cut), (true, 2, 10));
    }
}
