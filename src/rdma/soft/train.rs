//! A train: packets of one length, the last perhaps shorter, that leave as one segmented send.
//!
//! Payload is not copied, unless it is short or sent again: the train keeps pointers into memory
//! regions until it leaves. That is why it must leave, or be dropped, before anything else runs on the
//! shard: [`Transmitter`](super::transmit::Transmitter) sees to it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use super::socket::{self, Address};
use crate::rdma::engine::Outgoing;
use crate::wire::icrc::{ICRC_LEN, Prefix};

/// Most bytes of a train: what one UDP datagram may have over IPv6, the less of both.
pub(super) const MAX_TRAIN_BYTES: usize = 65_535 - 40 - 8;
/// Most packets that any kernel takes in a train.
const MAX_SEGMENTS: usize = 128;
/// Payload up to this is copied: that is cheaper than one more piece for the kernel to gather.
const COPY_BYTES: usize = 256;
/// A packet adds its pieces of payload, and one piece between them; the last end is one more.
const MAX_IOVECS: usize = MAX_SEGMENTS * (2 * crate::rdma::verbs::MAX_SGE) + 1;

/// The longest packet, without ICRC, that is kept back to see what follows.
const TAIL_BYTES: usize = 256;

/// Packets that will leave together.
pub(super) struct Train {
    /// Headers, ends and short payloads, in order.
    scratch: Box<[u8]>,
    used: usize,
    /// Where the run of scratch bytes begins that no iovec names yet.
    run: usize,
    iovecs: Vec<libc::iovec>,
    /// Length of all packets but the last.
    segment_bytes: usize,
    total_bytes: usize,
    count: usize,
    /// A shorter packet is in it: nothing may follow.
    closed: bool,
    /// A shorter packet, without ICRC, that ends this train if nothing of its length follows, and begins
    /// the next one if something does.
    tail: [u8; TAIL_BYTES],
    tail_len: usize,
}

// SAFETY: the pointers of a train lead to its own scratch and to memory regions, which any thread
// may read; and a train that is moved between threads is empty, since it never outlives the
// transmission that filled it.
unsafe impl Send for Train {}

impl Train {
    pub(super) fn new() -> Train {
        Train {
            scratch: vec![0; MAX_TRAIN_BYTES].into_boxed_slice(),
            used: 0,
            run: 0,
            iovecs: Vec::with_capacity(MAX_IOVECS),
            segment_bytes: 0,
            total_bytes: 0,
            count: 0,
            closed: false,
            tail: [0; TAIL_BYTES],
            tail_len: 0,
        }
    }

    /// Packets in it.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Bytes in it.
    pub(super) fn len_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Whether a packet of `len_bytes`, ICRC included, may be appended to a train of at most
    /// `max_segments`.
    pub(super) fn takes(&self, len_bytes: usize, max_segments: usize) -> bool {
        self.count == 0
            || (!self.closed
                && len_bytes <= self.segment_bytes
                && self.count < max_segments.min(MAX_SEGMENTS)
                && self.total_bytes + len_bytes <= MAX_TRAIN_BYTES)
    }

    /// Keeps a packet of `len_bytes`, ICRC included, back as the tail, if it is one that would close the
    /// train; `write` writes it without ICRC. False if it is none.
    pub(super) fn keep(&mut self, len_bytes: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let len = len_bytes - ICRC_LEN;
        let keeps = self.count > 0 && len_bytes < self.segment_bytes && len <= TAIL_BYTES;
        if keeps {
            write(&mut self.tail[..len]);
            self.tail_len = len;
        }
        keeps
    }

    /// Length of the tail, ICRC included, if one is kept.
    pub(super) fn tail_bytes(&self) -> Option<usize> {
        (self.tail_len > 0).then_some(self.tail_len + ICRC_LEN)
    }

    /// Appends the tail, if one is kept, to this train or, if it is empty, as its first packet.
    pub(super) fn append_tail(&mut self, prefix: &Prefix) {
        if self.tail_len > 0 {
            let tail = self.tail;
            let len = std::mem::take(&mut self.tail_len);
            self.append_copy(prefix, &tail[..len], |_| {});
        }
    }

    /// Appends a packet and its ICRC; its payload must stay where it is until the train has left.
    pub(super) fn append(&mut self, prefix: &Prefix, out: &Outgoing<'_>) {
        let ib_bytes = out.len_bytes();
        let mut icrc = prefix.begin(ib_bytes, self.count as u16);
        icrc.headers(out.header);
        self.copy(out.header);
        for piece in out.payload {
            let at = piece.region.raw(piece.offset, piece.len_bytes).expect("the engine checks its pieces");
            // SAFETY: in bounds and initialised. The payload belongs to a posted work request, so
            // that its owner does not write it, and no other slice of it is made meanwhile. A disk in
            // memory may be written by another shard: then these plain bytes are old or new.
            let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), piece.len_bytes) };
            let copied = self.used;
            if bytes.len() <= COPY_BYTES || out.retransmission {
                self.copy(bytes);
            } else {
                self.end_run();
                self.iovecs.push(libc::iovec { iov_base: at.as_ptr().cast(), iov_len: piece.len_bytes });
            }
            // What changes between its checksum and its way into the kernel is damaged for the peer, who
            // asks for it again. That once is enough, of a copy; but to read back at once what was just
            // written costs more than to read the source again.
            icrc.update(if out.retransmission { &self.scratch[copied..self.used] } else { bytes });
        }
        if out.pad > 0 {
            let pad = &[0; 3][..usize::from(out.pad)];
            icrc.update(pad);
            self.copy(pad);
        }
        self.copy(&icrc.finish());
        self.grow(ib_bytes + ICRC_LEN);
    }

    /// Appends a copy of a packet, with its ICRC; `spoil` may change the copy.
    pub(super) fn append_copy(&mut self, prefix: &Prefix, ib: &[u8], spoil: impl FnOnce(&mut [u8])) {
        let at = self.used;
        self.copy(ib);
        self.copy(&prefix.icrc(ib, self.count as u16));
        spoil(&mut self.scratch[at..self.used]);
        self.grow(ib.len() + ICRC_LEN);
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.scratch[self.used..][..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }

    /// Names the scratch bytes since the last iovec in one of their own.
    fn end_run(&mut self) {
        let len = self.used - self.run;
        if len > 0 {
            let start = self.scratch[self.run..].as_ptr();
            self.iovecs.push(libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len });
            self.run = self.used;
        }
    }

    fn grow(&mut self, len_bytes: usize) {
        if self.count == 0 {
            self.segment_bytes = len_bytes;
        } else {
            self.closed = len_bytes < self.segment_bytes;
        }
        self.count += 1;
        self.total_bytes += len_bytes;
    }

    /// Sends the train and empties it, whether that worked or not.
    pub(super) fn leave(&mut self, from: BorrowedFd<'_>, to: &Address) -> io::Result<()> {
        self.end_run();
        let segment = (self.count > 1).then_some(self.segment_bytes as u16);
        // SAFETY: the iovecs lead to `scratch` and to regions that the engine keeps registered
        // for longer than the transmission in which they were appended, which is not over.
        let sent = unsafe { socket::send(from, to, &self.iovecs, segment) };
        self.clear();
        sent
    }

    /// Empties it, but for the tail.
    pub(super) fn clear(&mut self) {
        self.iovecs.clear();
        (self.used, self.run, self.count, self.total_bytes, self.closed) = (0, 0, 0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use reactors::memory::Region;

    use super::*;
    use crate::rdma::engine::Piece;
    use crate::rdma::verbs::Path;
    use crate::wire::bth::{Bth, Opcode};
    use crate::wire::num::{Psn, Qpn};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn prefix() -> Prefix {
        Prefix::new(HERE, HERE, 50_000, 4791).unwrap()
    }

    /// All bytes of a train, as the kernel would gather them.
    fn gathered(train: &mut Train) -> Vec<u8> {
        train.end_run();
        let piece = |iov: &libc::iovec| {
            // SAFETY: as in `leave`: the regions of these tests live until their end.
            unsafe { std::slice::from_raw_parts(iov.iov_base.cast::<u8>(), iov.iov_len) }.to_vec()
        };
        train.iovecs.iter().flat_map(piece).collect()
    }

    fn header(pad: u8) -> [u8; 12] {
        let mut bytes = [0; 12];
        Bth { pad, ..Bth::new(Opcode::SendOnly, Qpn::new(0x1234), Psn::new(5)) }.emit(&mut bytes);
        bytes
    }

    #[test]
    fn packets_are_what_copying_them_would_have_made() {
        let region = Region::heap(8192);
        for at in 0..8192 {
            region.write(at, &[(at * 7) as u8]).unwrap();
        }
        let path = Path { local: HERE, remote: HERE, scope_id: 0 };
        let mut train = Train::new();
        let mut expected = Vec::new();
        // Long and short pieces, two pieces, pads; all of one length.
        let shapes: [(&[(usize, usize)], u8); 4] =
            [(&[(0, 1000)], 0), (&[(1, 997)], 3), (&[(5, 300), (900, 700)], 0), (&[(4096, 998)], 2)];
        for (index, (pieces, pad)) in shapes.into_iter().enumerate() {
            let header = header(pad);
            let payload: Vec<Piece<'_>> = pieces
                .iter()
                .map(|&(offset, len_bytes)| Piece { region: &region, offset, len_bytes })
                .collect();
            let out = Outgoing {
                path: &path,
                dest_qpn: Qpn::new(0x1234),
                header: &header,
                payload: &payload,
                pad,
                retransmission: false,
            };
            assert!(train.takes(out.len_bytes() + ICRC_LEN, 64));
            train.append(&prefix(), &out);
            let mut ib = vec![0; out.len_bytes()];
            out.copy_to(&mut ib);
            let icrc = prefix().icrc(&ib, index as u16);
            expected.extend(ib);
            expected.extend(icrc);
        }
        assert_eq!((train.len(), train.len_bytes()), (4, expected.len()));
        assert_eq!(gathered(&mut train), expected);
        assert!(!train.takes(1020, 64), "longer than the others");
        assert!(!train.takes(1016, 4), "one more than the kernel takes");
        assert!(train.takes(1016, 64));
        train.append_copy(&prefix(), &header(0), |_| {});
        assert!(!train.takes(16, 64), "closed by a shorter one");
        train.clear();
        assert!(train.len() == 0 && train.takes(4140, 64));
    }

    #[test]
    fn what_is_sent_again_is_what_was_checked() {
        let region = Region::heap(4096);
        region.fill(0, 4096, 1).unwrap();
        let path = Path { local: HERE, remote: HERE, scope_id: 0 };
        let payload = [Piece { region: &region, offset: 8, len_bytes: 1000 }];
        let mut train = Train::new();
        let out = Outgoing {
            path: &path,
            dest_qpn: Qpn::new(0x1234),
            header: &header(0),
            payload: &payload,
            pad: 0,
            retransmission: true,
        };
        train.append(&prefix(), &out);
        region.fill(0, 4096, 2).unwrap();
        let sent = gathered(&mut train);
        assert_eq!(sent[12..1012], [1; 1000]);
        assert_eq!(sent[1012..], prefix().icrc(&sent[..1012], 0));
    }

    #[test]
    fn a_tail_ends_its_train_or_begins_the_next() {
        let (long, short) = ([1; 1000], [2; 48]);
        let write = |bytes: &mut [u8]| bytes.copy_from_slice(&short);
        let mut train = Train::new();
        assert!(!train.keep(52, write), "there is nothing that it could end");
        train.append_copy(&prefix(), &long, |_| {});
        assert!(!train.keep(1004, |_| panic!("not shorter")));
        assert!(train.keep(52, write));
        assert_eq!((train.tail_bytes(), train.len()), (Some(52), 1));
        train.append_tail(&prefix());
        assert_eq!((train.tail_bytes(), train.len(), train.len_bytes()), (None, 2, 1056));
        let ended = gathered(&mut train);
        assert_eq!(prefix().solve_id(&ended[1004..], 1), Some(1), "the second of its train");
        train.clear();
        train.append_copy(&prefix(), &long, |_| {});
        assert!(train.keep(52, write));
        train.clear();
        train.append_tail(&prefix());
        assert!(train.takes(52, 64), "others of its length follow");
        assert_eq!(prefix().solve_id(&gathered(&mut train), 0), Some(0), "the first of its own");
    }

    #[test]
    fn a_train_is_no_longer_than_a_datagram() {
        let mut train = Train::new();
        let ib = [0; 4096 + 28];
        while train.takes(ib.len() + ICRC_LEN, 128) {
            train.append_copy(&prefix(), &ib, |_| {});
        }
        assert_eq!(train.len(), 15);
        let mut spoiled = Train::new();
        spoiled.append_copy(&prefix(), &ib, |bytes| bytes[20] ^= 1);
        assert!(prefix().solve_id(&gathered(&mut spoiled), 0).is_none());
    }
}
