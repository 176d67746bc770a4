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
            health: TrainHealth::default(),
            complained: false,
        })
    }
}

/// Packets behind the first of a train that make a window.
const WINDOW_PACKETS: u32 = 64;

/// Whether trains reach a peer.
///
/// An adapter that cuts trains in hardware may number the IPv4 identifications in its own way.
/// Then the ICRC of every packet but the first of a train is wrong for the peer, which drops it
/// silently, and all of them are sent again. Losses of other kinds hit first packets too.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct TrainHealth {
    stopped: bool,
    /// In this window: packets that left behind the first of a train, those of them that had to
    /// be sent again, and first ones at which sending again began.
    behind_sent: u32,
    behind_lost: u32,
    first_lost: u32,
}

impl TrainHealth {
    /// Whether trains are of use.
    pub(super) fn is_good(&self) -> bool {
        !self.stopped
    }

    /// Trains failed for a reason that the kernel told.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// A packet leaves at `place` of its train.
    fn sent(&mut self, place: u8) {
        self.behind_sent += u32::from(place > 0);
    }

    /// A packet that left at `place` has to be sent again; `begins` if what was sent before it
    /// arrived. True if this is what shows that trains are of no use.
    fn lost(&mut self, place: u8, begins: bool) -> bool {
        match place {
            0 => self.first_lost += u32::from(begins),
            _ => self.behind_lost += 1,
        }
        if self.behind_sent < WINDOW_PACKETS || self.stopped {
            return false;
        }
        // All of them, but for those whose acknowledgement is on the way.
        let verdict = self.first_lost == 0 && self.behind_lost * 10 >= self.behind_sent * 9;
        *self = TrainHealth { stopped: verdict, ..TrainHealth::default() };
        verdict
    }
}

/// Entries of [`Places`]: more than all windows of some busy queue pairs.
const PLACES: usize = 4096;

#[derive(Copy, Clone, PartialEq, Eq)]
struct Place {
    qpn: u32,
    psn: u32,
    place: u8,
}

const NOWHERE: Place = Place { qpn: u32::MAX, psn: u32::MAX, place: 0 };

/// At which place of their trains the newest packets left. Old entries are overwritten: what is
/// not found counts for nothing.
pub(super) struct Places {
    entries: Box<[Place]>,
    /// The last packet that was sent again: a run of these begins with what was lost.
    last_again: (u32, u32),
}

impl Places {
    pub(super) fn new() -> Places {
        Places { entries: vec![NOWHERE; PLACES].into_boxed_slice(), last_again: (u32::MAX, u32::MAX) }
    }

    fn index(qpn: u32, psn: u32) -> usize {
        (qpn.wrapping_mul(0x9e37_79b1) >> 12).wrapping_add(psn) as usize % PLACES
    }

    /// A packet leaves for the first time.
    pub(super) fn sent(&mut self, health: &mut TrainHealth, qpn: Qpn, psn: Psn, place: usize) {
        let (qpn, psn, place) = (qpn.get(), psn.get(), place as u8);
        self.entries[Self::index(qpn, psn)] = Place { qpn, psn, place };
        health.sent(place);
    }

    /// A packet leaves again; true if this shows that trains to its peer are of no use.
    pub(super) fn again(&mut self, health: &mut TrainHealth, qpn: Qpn, psn: Psn) -> bool {
        let begins = self.last_again != (qpn.get(), psn.minus(1).get());
        self.last_again = (qpn.get(), psn.get());
        let entry = &mut self.entries[Self::index(qpn.get(), psn.get())];
        if (entry.qpn, entry.psn) != (qpn.get(), psn.get()) {
            return false;
        }
        // Each packet counts once.
        let place = std::mem::replace(entry, NOWHERE).place;
        health.lost(place, begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QPN: Qpn = Qpn::new(0x77_1234);

    /// Sends trains of 8; `arrives` says which of their packets do. Sending again goes back to
    /// the first that did not. Gives the packets sent when trains were stopped.
    fn run(mut arrives: impl FnMut(u32, usize) -> bool) -> Option<u32> {
        let (mut places, mut health) = (Places::new(), TrainHealth::default());
        for train in 0..500 {
            for place in 0..8 {
                places.sent(&mut health, QPN, Psn::new(train * 8 + place), place as usize);
            }
            let Some(lost) = (0..8).find(|&place| !arrives(train, place as usize)) else { continue };
            for place in lost..8 {
                if places.again(&mut health, QPN, Psn::new(train * 8 + place)) {
                    return Some(train * 8);
                }
            }
        }
        None
    }

    #[test]
    fn wrong_numbering_is_found_within_two_windows() {
        assert!(run(|_, place| place == 0).is_some_and(|sent| sent <= 128));
    }

    #[test]
    fn plain_loss_is_not_mistaken_for_it() {
        for loss in [0.0, 0.01, 0.05, 0.2, 0.5] {
            let mut rng = fastrand::Rng::with_seed(9);
            assert_eq!(run(|_, _| rng.f64() >= loss), None, "at a loss of {loss}");
        }
        assert_eq!(run(|_, _| false), None, "a dead peer");
    }
}
