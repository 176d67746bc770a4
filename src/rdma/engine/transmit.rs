//! Packets on their way out: what the provider gets.

use std::collections::VecDeque;

use reactors::memory::Region;
use reactors::time::Time;

use super::device::Engine;
use super::qp::Qp;
use crate::rdma::verbs::Path;
use crate::wire::num::Qpn;

/// A piece of payload that still lies in its memory region.
#[derive(Copy, Clone, Debug)]
pub struct Piece<'a> {
    /// The region.
    pub region: &'a Region,
    /// Where the piece begins, in bytes from the region's start.
    pub offset: usize,
    /// How long it is.
    pub len_bytes: usize,
}

/// A packet to be sent. Only the ICRC is missing: it needs addresses, ports and the place of the
/// packet in its train, which the provider knows.
#[derive(Copy, Clone, Debug)]
pub struct Outgoing<'a> {
    /// From which of our addresses to which peer.
    pub path: &'a Path,
    /// The destination QPN that the header names.
    pub dest_qpn: Qpn,
    /// BTH and extension headers.
    pub header: &'a [u8],
    /// The payload, piece after piece; lies still until the call ends.
    pub payload: &'a [Piece<'a>],
    /// Zero bytes to send after the payload, 0..=3; the BTH says so too.
    pub pad: u8,
    /// Whether this packet was sent before: then it goes in a datagram of its own.
    pub retransmission: bool,
}

impl Outgoing<'_> {
    /// Bytes of the payload without pad.
    pub fn payload_bytes(&self) -> usize {
        self.payload.iter().map(|piece| piece.len_bytes).sum()
    }

    /// Bytes of header, payload and pad: what [`copy_to`](Self::copy_to) writes.
    pub fn len_bytes(&self) -> usize {
        self.header.len() + self.payload_bytes() + usize::from(self.pad)
    }

    /// Writes header, payload and pad to `out` and gives the number of bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`len_bytes`](Self::len_bytes).
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let (header, mut rest) = out.split_at_mut(self.header.len());
        header.copy_from_slice(self.header);
        for piece in self.payload {
            let (bytes, after) = rest.split_at_mut(piece.len_bytes);
            piece.region.read(piece.offset, bytes).expect("pieces lie within their region");
            rest = after;
        }
        rest[..usize::from(self.pad)].fill(0);
        self.len_bytes()
    }
}

/// Where packets go: a provider's packer of trains.
pub trait Sink {
    /// Whether one more packet is taken. `false` ends [`transmit`](super::Engine::transmit).
    fn has_room(&self) -> bool;
    /// Takes a packet; the payload must be read before this returns.
    fn packet(&mut self, out: &Outgoing<'_>);
}

/// In which order packets leave: the same kind and size together, so that they can share one
/// segmented send.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// READ requests.
    Read,
    /// WRITEs and READ responses.
    Bulk,
    /// SENDs.
    Send,
    /// ACKs and NAKs.
    Reply,
}

impl Class {
    const COUNT: usize = 4;
    const IN_ORDER: [Class; Class::COUNT] = [Class::Read, Class::Bulk, Class::Send, Class::Reply];
    /// Packets of one class before the next one has its turn, so that a long READ's answer keeps
    /// nobody from sending.
    const QUOTA: usize = 128;
}

/// Slots of queue pairs that have something to send, by the class of what they send next, so that nobody
/// is asked who has nothing of a class.
pub(super) struct Ready {
    /// Since the last transmission; their class is not known yet.
    new: Vec<u32>,
    by_class: [VecDeque<u32>; Class::COUNT],
}

impl Ready {
    pub(super) fn new(qps: usize) -> Ready {
        Ready {
            new: Vec::with_capacity(qps),
            by_class: std::array::from_fn(|_| VecDeque::with_capacity(qps)),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u32) {
        self.new.push(slot);
    }

    /// Puts a queue pair behind the others of the class of what it sends next, if it has anything to send.
    #[inline]
    fn file(&mut self, qp: &mut Qp, class: Option<Class>) {
        qp.is_ready = class.is_some();
        if let Some(class) = class {
            self.by_class[class as usize].push_back(qp.key.slot);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.by_class.iter().all(VecDeque::is_empty)
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.new.retain(|other| *other != slot);
        self.by_class.iter_mut().for_each(|queue| queue.retain(|other| *other != slot));
    }

    /// All of them, for the audit.
    pub(super) fn iter(&self) -> impl Iterator<Item = &u32> {
        self.new.iter().chain(self.by_class.iter().flatten())
    }
}

/// How far a round through the classes is; it goes on where a sink ran out of room.
pub(super) struct Round {
    class: usize,
    left: usize,
}

impl Round {
    pub(super) const START: Round = Round { class: 0, left: Class::QUOTA };

    fn next_class(&mut self) {
        *self = Round { class: (self.class + 1) % Class::IN_ORDER.len(), left: Class::QUOTA };
    }
}

impl Engine {
    /// Hands out packets while `sink` has room; gives how many. Of all queue pairs first the READ
    /// requests, then WRITEs and READ responses, then SENDs, then ACKs, as far as the order
    /// within each queue pair allows; in turn, a few packets each. Also flushes the send queues of
    /// queue pairs in ERR, which takes no room.
    pub fn transmit(&mut self, now: Time, sink: &mut impl Sink) -> usize {
        self.flush_errored();
        let mut sent = 0;
        self.sort_ready();
        while !self.shared.ready.is_empty() && sink.has_room() {
            sent += self.transmit_class(now, sink);
            if sink.has_room() || self.round.left == 0 {
                self.round.next_class();
            }
            self.sort_ready();
        }
        if self.shared.ready.is_empty() {
            self.round = Round::START;
        }
        // What failed on its way out left something to flush.
        self.flush_errored();
        self.settle();
        sent
    }

    /// Puts who became ready behind the others of its class.
    fn sort_ready(&mut self) {
        let mut new = std::mem::take(&mut self.shared.ready.new);
        for slot in new.drain(..) {
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            let class = qp.offers(&self.shared).class();
            self.shared.ready.file(qp, class);
        }
        self.shared.ready.new = new;
    }

    /// What the present class allows, within its quota.
    fn transmit_class(&mut self, now: Time, sink: &mut impl Sink) -> usize {
        let class = Class::IN_ORDER[self.round.class];
        let mut sent = 0;
        while self.round.left > 0 && sink.has_room() {
            let Some(slot) = self.shared.ready.by_class[class as usize].pop_front() else { break };
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            let (by_this, left) = qp.turn(&mut self.shared, now, class, self.round.left, sink);
            sent += by_this;
            self.round.left -= by_this;
            self.shared.ready.file(qp, left);
        }
        sent
    }

    fn flush_errored(&mut self) {
        while let Some(slot) = self.shared.flushes.pop() {
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            qp.flush_due = false;
            qp.flush_sends(&mut self.shared);
        }
    }
}
