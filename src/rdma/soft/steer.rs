//! Which shard a packet is for, and how it gets there when the kernel steered it elsewhere.

#![cfg_attr(test, allow(unsafe_code))]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};

use super::port::PortSocket;
use crate::rdma::verbs::Path;
use crate::wire::num::Qpn;

/// How many packets wait on the way to a shard; more are lost, as on any full queue of a network.
const RING_PACKETS: usize = 1024;
/// How many opened ports wait for a shard to take its part.
const RING_PORTS: usize = 64;

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

/// What comes to a shard from the others.
#[derive(Debug)]
struct Entrance {
    strays: ArrayQueue<Stray>,
    /// Sockets that shard 0 opened for this one.
    ports: ArrayQueue<PortSocket>,
    /// Readable while `announced`: a descriptor for shards that sleep.
    event: OwnedFd,
    announced: AtomicBool,
}

/// One shard's end of the rings by which packets that landed on the wrong shard, and sockets, are
/// handed over.
#[derive(Debug)]
pub struct ShardLinks {
    shard: usize,
    all: Arc<[Entrance]>,
}

/// Links between so many shards, in shard order.
pub fn link_shards(shards: usize) -> io::Result<Vec<ShardLinks>> {
    let entrance = || -> io::Result<Entrance> {
        Ok(Entrance {
            strays: ArrayQueue::new(RING_PACKETS),
            ports: ArrayQueue::new(RING_PORTS),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            announced: AtomicBool::new(false),
        })
    };
    let all: Arc<[Entrance]> = (0..shards).map(|_| entrance()).collect::<io::Result<Vec<_>>>()?.into();
    Ok((0..shards).map(|shard| ShardLinks { shard, all: Arc::clone(&all) }).collect())
}

impl ShardLinks {
    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.all.len()
    }

    /// Hands a packet to `shard`; false if it is lost.
    pub(super) fn hand_over(&self, shard: usize, path: Path, packet: &[u8]) -> bool {
        let Some(to) = self.all.get(shard) else { return false };
        // It allocates, which the right way never does: this is the slow way.
        if to.strays.push(Stray { path, bytes: packet.into() }).is_err() {
            return false;
        }
        if !to.announced.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&to.event, &1u64.to_ne_bytes());
        }
        true
    }

    /// The packets that others handed to this shard.
    pub(super) fn take_over(&self, mut take: impl FnMut(Stray)) {
        let own = &self.all[self.shard];
        if !own.announced.load(Ordering::Relaxed) {
            return;
        }
        let _ = rustix::io::read(&own.event, &mut [0u8; 8]);
        // Before looking: what is put in from now on is announced again.
        own.announced.store(false, Ordering::SeqCst);
        // No more than were there: others may be faster than we are.
        for _ in 0..own.strays.len() {
            match own.strays.pop() {
                Some(stray) => take(stray),
                None => break,
            }
        }
        if !own.strays.is_empty() && !own.announced.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&own.event, &1u64.to_ne_bytes());
        }
    }

    /// Gives sockets of a port to the shards that they were opened for; ours comes back.
    pub(super) fn distribute(&self, sockets: Vec<PortSocket>) -> Option<PortSocket> {
        let mut own = None;
        for (shard, socket) in sockets.into_iter().enumerate() {
            if shard == self.shard {
                own = Some(socket);
            } else if let Some(to) = self.all.get(shard) {
                // The oldest that nobody took goes: its port was given up by its shard.
                to.ports.force_push(socket);
            }
        }
        own
    }

    /// The socket that shard 0 opened for us on `address`.
    pub(super) fn collect(&self, address: IpAddr) -> Option<PortSocket> {
        let ports = &self.all[self.shard].ports;
        for _ in 0..ports.len() {
            let socket = ports.pop()?;
            if socket.address == address {
                return Some(socket);
            }
            ports.force_push(socket);
        }
        None
    }

    /// Readable when something was handed to this shard.
    pub(super) fn wait_fd(&self) -> RawFd {
        self.all[self.shard].event.as_raw_fd()
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
        assert_eq!(shard_of(Qpn::new(0x12_3457), 1), 1);
        assert_eq!(shard_of(Qpn::new(0x12_3457), 0), 0);
        assert_eq!(shard_of(Qpn::GSI, 1), 0);
    }

    fn is_readable(fd: RawFd) -> bool {
        let mut set = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        // SAFETY: one valid pollfd, as the count says.
        unsafe { libc::poll(set.as_mut_ptr(), 1, 0) == 1 }
    }

    #[test]
    fn links_lead_to_the_shard_wake_it_and_lose_what_does_not_fit() {
        let links = link_shards(2).unwrap();
        let here = IpAddr::from([127, 0, 0, 1]);
        let path = Path { local: here, remote: here, scope_id: 0 };
        assert!(!is_readable(links[1].wait_fd()));
        for _ in 0..RING_PACKETS {
            assert!(links[0].hand_over(1, path, b"packet"));
        }
        assert!(!links[0].hand_over(1, path, b"packet"));
        assert!(!links[0].hand_over(2, path, b"packet"));
        assert!(is_readable(links[1].wait_fd()) && !is_readable(links[0].wait_fd()));
        let mut taken = 0;
        links[1].take_over(|stray| taken += usize::from(&*stray.bytes == b"packet"));
        assert_eq!(taken, RING_PACKETS);
        assert!(!is_readable(links[1].wait_fd()));
        links[1].take_over(|_| unreachable!("all were taken"));
        assert!(links[0].hand_over(1, path, b"again") && is_readable(links[1].wait_fd()));
    }
}
