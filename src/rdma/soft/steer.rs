//! Which shard a packet is for, and how it gets there when the kernel steered it elsewhere.

use std::net::IpAddr;

use reactors::ring::{Mailbox, Sender};
use reactors::wake::Waker;

use crate::rdma::verbs::Path;
use crate::wire::num::Qpn;

/// How many packets wait on the way to a shard; more are lost, as on any full queue of a network.
const RING_PACKETS: usize = 1024;

/// How many low bits of a QPN tell the shard.
pub fn shard_bits(shards: usize) -> u32 {
    shards.next_power_of_two().trailing_zeros()
}

/// The shard that owns `qpn`. QPN 1 belongs to shard 0, which has the connection manager.
#[inline]
pub(super) fn shard_of(qpn: Qpn, shard_bits: u32) -> usize {
    if qpn == Qpn::GSI { 0 } else { qpn.get() as usize & ((1 << shard_bits) - 1) }
}

/// A packet on its way to the shard that it is for; its ICRC was right and is cut off.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) path: Path,
    pub(super) bytes: Box<[u8]>,
}

/// One shard's end of the rings by which packets that landed on the wrong shard are handed over.
#[derive(Debug)]
pub struct ShardLinks {
    pub(super) mailbox: Mailbox<Stray>,
    /// By shard; our own too, which nobody uses.
    pub(super) others: Vec<Sender<Stray>>,
}

/// Links between shards, one for each waker, in shard order.
pub fn link_shards(wakers: &[Waker]) -> Vec<ShardLinks> {
    let (senders, mailboxes): (Vec<_>, Vec<_>) =
        wakers.iter().map(|waker| Mailbox::new(RING_PACKETS, waker)).unzip();
    mailboxes.into_iter().map(|mailbox| ShardLinks { mailbox, others: senders.clone() }).collect()
}

impl ShardLinks {
    /// Hands a packet to `shard`; false if it is lost.
    pub(super) fn hand_over(&self, shard: usize, path: Path, packet: &[u8]) -> bool {
        match self.others.get(shard) {
            // It allocates, which the right way never does: this is the slow way.
            Some(sender) => sender.send(Stray { path, bytes: packet.into() }).is_ok(),
            None => false,
        }
    }
}

/// A path as the other end sees it.
pub(super) fn reversed(path: &Path) -> Path {
    Path { local: path.remote, remote: path.local, scope_id: path.scope_id }
}

/// Whether packets to `address` need a scope.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_tell_the_shard_and_the_gsi_is_at_home_on_the_first() {
        assert_eq!((1..=5).map(shard_bits).collect::<Vec<_>>(), [0, 1, 2, 2, 3]);
        assert_eq!(shard_of(Qpn::new(0x1234_57), 1), 1);
        assert_eq!(shard_of(Qpn::new(0x1234_57), 0), 0);
        assert_eq!(shard_of(Qpn::GSI, 1), 0);
    }

    #[test]
    fn links_lead_to_the_shard_and_lose_what_does_not_fit() {
        let wakers = [Waker::new().unwrap(), Waker::new().unwrap()];
        let links = link_shards(&wakers);
        let here = IpAddr::from([127, 0, 0, 1]);
        let path = Path { local: here, remote: here, scope_id: 0 };
        for _ in 0..RING_PACKETS {
            assert!(links[0].hand_over(1, path, b"packet"));
        }
        assert!(!links[0].hand_over(1, path, b"packet"));
        assert!(!links[0].hand_over(2, path, b"packet"));
        assert_eq!(&*links[1].mailbox.recv().unwrap().bytes, b"packet");
        assert!(links[0].mailbox.is_empty());
    }
}
