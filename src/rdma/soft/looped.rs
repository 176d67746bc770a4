//! Packets from one queue pair of a device to another of the same: they never meet the kernel.

use crate::rdma::verbs::Path;

use super::transmit::MAX_PACKET_BYTES;

/// How many packets may be on their way. Each takes 4 KiB, and they are touched only if used.
const PACKETS: usize = 256;

#[derive(Copy, Clone)]
struct Slot {
    path: Path,
    len_bytes: usize,
}

/// A ring of packets, in order.
pub(super) struct Looped {
    bytes: Box<[u8]>,
    slots: Box<[Option<Slot>]>,
    first: usize,
    used: usize,
}

impl Looped {
    pub(super) fn new() -> Looped {
        Looped {
            bytes: vec![0; PACKETS * MAX_PACKET_BYTES].into_boxed_slice(),
            slots: vec![None; PACKETS].into_boxed_slice(),
            first: 0,
            used: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Whether a turn of the engine may begin: it sends no more than a few packets before it asks
    /// again, and what does not fit is lost.
    pub(super) fn has_room(&self) -> bool {
        self.used < PACKETS - 32
    }

    /// Takes a packet of `len_bytes` from `path.local` to `path.remote`; false if it is lost.
    pub(super) fn push(&mut self, path: &Path, len_bytes: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if self.used == PACKETS || len_bytes > MAX_PACKET_BYTES {
            return false;
        }
        let at = (self.first + self.used) % PACKETS;
        write(&mut self.bytes[at * MAX_PACKET_BYTES..][..len_bytes]);
        self.slots[at] = Some(Slot { path: *path, len_bytes });
        self.used += 1;
        true
    }

    /// Takes the oldest packet out, as long as `take` looks at it; false if there is none.
    pub(super) fn pop(&mut self, take: impl FnOnce(Path, &[u8])) -> bool {
        let at = self.first;
        let Some(slot) = self.slots[at].take() else { return false };
        self.first = (at + 1) % PACKETS;
        self.used -= 1;
        take(slot.path, &self.bytes[at * MAX_PACKET_BYTES..][..slot.len_bytes]);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn packets_go_round_in_order_and_no_more_than_fit() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let path = Path { local: here, remote: here, scope_id: 0 };
        let mut looped = Looped::new();
        for round in 0..3 {
            for n in 0..PACKETS {
                assert!(looped.push(&path, 4, |bytes| bytes.copy_from_slice(&(n as u32).to_le_bytes())));
            }
            assert!(!looped.push(&path, 4, |_| {}) && !looped.has_room());
            for n in 0..PACKETS - round {
                assert!(looped.pop(|_, bytes| assert_eq!(bytes, (n as u32).to_le_bytes())));
            }
            while looped.pop(|_, _| {}) {}
        }
        assert_eq!(looped.len(), 0);
        assert!(!looped.push(&path, MAX_PACKET_BYTES + 1, |_| {}));
    }
}
