//! Peers that we send to: addresses, ICRC prefixes, and whether trains reach them.

use std::net::IpAddr;

use super::port::{ROCE_PORT, SENDERS};
use super::socket::Address;
use crate::wire::icrc::Prefix;
use crate::wire::num::{Psn, Qpn};

/// Who is sent to: the slot of our port, the peer's address, its interface if link-local.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PeerKey {
    pub(super) port: u32,
    pub(super) remote: IpAddr,
    pub(super) scope_id: u32,
}

/// A peer.
pub(super) struct Peer {
    pub(super) remote: IpAddr,
    pub(super) to: Address,
    /// One for each sending socket.
    pub(super) prefixes: [Prefix; SENDERS],
    pub(super) health: TrainHealth,
    /// A failure to send to it was logged.
    pub(super) complained: bool,
}

impl Peer {
    /// `None` if the two addresses are of different families.
    pub(super) fn new(local: IpAddr, source_ports: [u16; SENDERS], key: &PeerKey) -> Option<Peer> {
        let first = Prefix::new(local, key.remote, source_ports[0], ROCE_PORT)?;
        let mut prefixes = [first; SENDERS];
        for (prefix, port) in prefixes.iter_mut().zip(source_ports) {
            *prefix = Prefix::new(local, key.remote, port, ROCE_PORT)?;
        }
        Some(Peer {
            remote: key.remote,
            to: Address::new(key.remote, ROCE_PORT, key.scope_id),
            prefixes,
            health: TrainHealth::Doubtful(0),
            complained: false,
        })
    }
}

/// Whether trains reach a peer.
///
/// An adapter that cuts trains in hardware may number the IPv4 identifications in its own way.
/// Then the ICRC of every packet but the first of a train is wrong for the peer, which drops it
/// silently: each of them has to be sent again. One that need not shows that trains arrive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum TrainHealth {
    /// So many packets behind the first of a train had to be sent again, and all had to.
    Doubtful(u32),
    /// One arrived.
    Proven,
    /// None arrived, or the kernel refused a train.
    Stopped,
}

/// So many packets without a proof are enough: over several times what can be on the way, so that
/// plain loss, after which a requester sends everything again, is not mistaken for this.
const ENOUGH: u32 = 512;

impl TrainHealth {
    /// Whether trains are worth a try.
    pub(super) fn is_good(self) -> bool {
        self != TrainHealth::Stopped
    }

    /// Whether it is not known yet.
    pub(super) fn is_doubtful(self) -> bool {
        matches!(self, TrainHealth::Doubtful(_))
    }

    /// A packet behind the first of a train came to its end. True if it is the last straw.
    fn ended(&mut self, sent_again: bool) -> bool {
        if let TrainHealth::Doubtful(lost) = self {
            *self = match sent_again {
                false => TrainHealth::Proven,
                true if *lost + 1 < ENOUGH => TrainHealth::Doubtful(*lost + 1),
                true => TrainHealth::Stopped,
            };
            return *self == TrainHealth::Stopped;
        }
        false
    }
}

/// Queue pairs that are watched at a time.
const ROWS: usize = 32;
/// PSNs of a queue pair that are remembered. More than a requester has on the way: when the next
/// lap comes to an entry, its packet has been acknowledged.
const LAP: usize = 256;
/// In an entry: the packet was sent again. The rest is one more than its place in its train, or 0.
const AGAIN: u8 = 0x80;

#[derive(Clone)]
struct Row {
    qpn: Qpn,
    places: [u8; LAP],
}

/// At which place of their trains the newest packets to doubtful peers left.
pub(super) struct Places {
    rows: Box<[Row]>,
}

impl Places {
    pub(super) fn new() -> Places {
        Places { rows: vec![Row { qpn: Qpn::new(0), places: [0; LAP] }; ROWS].into_boxed_slice() }
    }

    fn entry(&mut self, qpn: Qpn, psn: Psn) -> &mut u8 {
        let row = &mut self.rows[(qpn.get().wrapping_mul(0x9e37_79b1) >> 27) as usize % ROWS];
        if row.qpn != qpn {
            *row = Row { qpn, places: [0; LAP] };
        }
        &mut row.places[psn.get() as usize % LAP]
    }

    /// A packet leaves, for the first time or again. True if it became clear that trains to its
    /// peer are of no use.
    #[inline]
    pub(super) fn note(
        &mut self,
        health: &mut TrainHealth,
        (qpn, psn): (Qpn, Psn),
        place: usize,
        again: bool,
    ) -> bool {
        if !matches!(health, TrainHealth::Doubtful(_)) {
            return false;
        }
        let entry = self.entry(qpn, psn);
        if again {
            *entry |= AGAIN;
            return false;
        }
        let before = std::mem::replace(entry, place as u8 + 1);
        let was_behind = before & !AGAIN > 1;
        was_behind && health.ended(before & AGAIN != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends flights of 8 trains of 8 to some queue pairs; `arrives` says which packets do. What
    /// comes after the first that does not is sent again.
    fn run(qps: u32, mut arrives: impl FnMut(usize) -> bool) -> TrainHealth {
        let (mut places, mut health) = (Places::new(), TrainHealth::Doubtful(0));
        for flight in 0..400 {
            for qp in 0..qps {
                let number = |n: u32| (Qpn::new(0x77_1234 + qp * 2), Psn::new(0xff_ff00 + flight * 64 + n));
                for n in 0..64 {
                    places.note(&mut health, number(n), n as usize % 8, false);
                }
                let lost = (0..64).find(|&n| !arrives(n as usize % 8)).unwrap_or(64);
                for n in lost..64 {
                    places.note(&mut health, number(n), 0, true);
                }
            }
        }
        health
    }

    #[test]
    fn wrong_numbering_is_found_out() {
        assert_eq!(run(1, |place| place == 0), TrainHealth::Stopped);
        assert_eq!(run(20, |place| place == 0), TrainHealth::Stopped);
    }

    #[test]
    fn plain_loss_is_not_mistaken_for_it() {
        for loss in [0.0, 0.01, 0.05, 0.2] {
            for seed in 0..20 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let health = run(1 + seed as u32 % 4, |_| rng.f64() >= loss);
                assert_eq!(health, TrainHealth::Proven, "at a loss of {loss}");
            }
        }
    }
}
