//! Which IPv4 identifications a peer's packets may have.
//!
//! A UDP socket does not show the identification, and the ICRC covers it. The one value that
//! makes a received ICRC right can be computed, and half of the check is that there is one at
//! all. This gets the other half back: senders number their packets in an order.
//!
//! * Our own kind sends 0, and 0, 1, 2, ... within a segmented send.
//! * Linux's rxe takes a counter of the kernel's for the pair of addresses: one up a packet, and
//!   after a pause a random jump of up to one for each kernel tick that passed. What goes to other
//!   shards counts too.
//! * Who follows no order is found out after a few packets, and then only the first half of the
//!   check is left for it.

use reactors::time::Time;

/// Segments of one segmented send are numbered below this (UDP_MAX_SEGMENTS of the kernel).
const MOST_SEGMENTS: u16 = 128;
/// How far a counter may go on between two packets that we see: others share it, and packets are
/// lost. 214 was the most that a guest's rxe was seen to do.
const STRIDE: u16 = 1024;
/// How many packets a peer may have sent in a millisecond that we did not see: with several shards each
/// sees only what is steered to it, so a connection that was quiet finds the counter far ahead. (A DREQ
/// was refused for that, on the shard of the connection manager, after 12 s of traffic on another.)
const PACKETS_A_MS: u128 = 256;
/// How far behind the newest a late packet may be.
const BEHIND: u16 = 512;
/// So many unlikely identifications in a row, and there is no order.
const PATIENCE: u8 = 8;

/// What a peer's identifications were like.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Identifications {
    /// The newest of a peer that counts; `None` before the first.
    newest: Option<u16>,
    newest_at: Time,
    /// The last packet was numbered by its place in its segmented send.
    by_place: bool,
    /// One that was refused: if the next follows it, the counter has jumped.
    refused: u16,
    refusals: u8,
}

/// What to do with a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Likely {
    Yes,
    No,
    /// As `Yes`, and from now on every identification of this peer is.
    Anything,
}

impl Identifications {
    /// The identification that the packet at `place` of its datagram most likely has.
    pub(super) fn guess(&self, place: usize) -> u16 {
        match self.newest {
            Some(newest) if !self.by_place => newest.wrapping_add(1),
            _ => place as u16,
        }
    }

    /// Takes note of a packet whose ICRC is right with `id`, and says whether that is likely.
    pub(super) fn judge(&mut self, now: Time, id: u16, place: usize) -> Likely {
        if self.refusals > PATIENCE {
            return Likely::Yes;
        }
        self.by_place = id == place as u16 || id < MOST_SEGMENTS;
        if self.by_place {
            return Likely::Yes;
        }
        let Some(newest) = self.newest else {
            self.advance(now, id);
            return Likely::Yes;
        };
        let ahead = id.wrapping_sub(newest);
        let unseen = now.since(self.newest_at).as_millis() * PACKETS_A_MS;
        let stride = STRIDE.saturating_add(u16::try_from(unseen).unwrap_or(u16::MAX));
        if ahead <= stride {
            self.advance(now, id);
            Likely::Yes
        } else if newest.wrapping_sub(id) <= BEHIND {
            Likely::Yes
        } else if self.refusals > 0 && id.wrapping_sub(self.refused) <= STRIDE {
            self.advance(now, id);
            Likely::Yes
        } else {
            self.refused = id;
            self.refusals += 1;
            if self.refusals > PATIENCE { Likely::Anything } else { Likely::No }
        }
    }

    fn advance(&mut self, now: Time, id: u16) {
        self.newest = Some(id);
        self.newest_at = now;
        self.refusals = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Time::from_nanos(1);

    #[test]
    fn places_in_a_train_are_likely_and_guessed() {
        let mut ids = Identifications::default();
        for place in 0..5 {
            assert_eq!(ids.guess(place), place as u16);
            assert_eq!(ids.judge(NOW, place as u16, place), Likely::Yes);
        }
        // A receiver that merges in another way: a train cut in two, or singles merged.
        assert_eq!(ids.judge(NOW, 9, 0), Likely::Yes);
        assert_eq!(ids.judge(NOW, 0, 3), Likely::Yes);
    }

    #[test]
    fn a_counter_is_followed_over_its_wrap() {
        let mut ids = Identifications::default();
        assert_eq!(ids.judge(NOW, 65_000, 0), Likely::Yes);
        assert_eq!(ids.guess(0), 65_001);
        assert_eq!(ids.judge(NOW, 65_500, 0), Likely::Yes);
        assert_eq!(ids.judge(NOW, 200, 0), Likely::Yes, "ahead over the wrap");
        assert_eq!(ids.judge(NOW, 65_499, 0), Likely::Yes, "a late one");
        assert_eq!(ids.guess(0), 201);
        assert_eq!(ids.judge(NOW, 30_000, 0), Likely::No);
        assert_eq!(ids.judge(NOW, 202, 0), Likely::Yes);
    }

    #[test]
    fn a_pause_allows_a_jump() {
        let mut ids = Identifications::default();
        ids.judge(NOW, 1_000, 0);
        assert_eq!(ids.judge(NOW, 9_000, 0), Likely::No);
        assert_eq!(ids.judge(NOW + Duration::from_secs(10), 9_000, 0), Likely::Yes);
    }

    #[test]
    fn what_other_shards_received_counts() {
        let mut ids = Identifications::default();
        ids.judge(NOW, 1_000, 0);
        // 38,460 packets in 12 s went to the other shard; then a single one comes here.
        assert_eq!(ids.judge(NOW + Duration::from_secs(12), 39_461, 0), Likely::Yes);
        assert_eq!(ids.judge(NOW + Duration::from_secs(12), 60_000, 0), Likely::No, "at once no such jump");
    }

    #[test]
    fn a_jump_costs_one_packet() {
        let mut ids = Identifications::default();
        ids.judge(NOW, 1_000, 0);
        assert_eq!(ids.judge(NOW, 40_000, 0), Likely::No);
        assert_eq!(ids.judge(NOW, 40_001, 0), Likely::Yes);
        assert_eq!(ids.guess(0), 40_002);
    }

    #[test]
    fn no_order_is_found_out() {
        let mut ids = Identifications::default();
        let mut rng = fastrand::Rng::with_seed(3);
        let verdicts: Vec<_> = (0..200).map(|_| ids.judge(NOW, rng.u16(MOST_SEGMENTS..), 0)).collect();
        assert!(verdicts.contains(&Likely::Anything));
        assert!(verdicts[100..].iter().all(|verdict| *verdict == Likely::Yes));
    }
}
