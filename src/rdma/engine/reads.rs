//! RDMA READs that a queue pair answers: the responder resources.

use std::collections::VecDeque;

use crate::wire::ext::Reth;
use crate::wire::num::Psn;

/// One execution of a READ: from which packet to which, and how far it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Index of its first packet within the READ.
    start: u32,
    /// The next one to send.
    next: u32,
    /// One after its last.
    end: u32,
    len_bytes: u32,
}

/// A READ of the peer, kept until its place is needed, so that lost answers can be given again.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadContext {
    first: Psn,
    packets: u32,
    reth: Reth,
    run: Run,
    /// How many of its packets were ever sent.
    sent: u32,
}

/// A packet of an answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadPacket {
    pub(super) psn: Psn,
    /// Where its data lie.
    pub(super) at: Reth,
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// It was sent before.
    pub(super) again: bool,
}

impl ReadContext {
    fn is_active(&self) -> bool {
        self.run.next < self.run.end
    }

    fn was_answered(&self) -> bool {
        self.sent == self.packets
    }
}

/// READs in PSN order, oldest first.
pub(super) struct ReadQueue {
    contexts: VecDeque<ReadContext>,
    capacity: usize,
    /// Index of the oldest that has something to send; their number if none has.
    oldest_active: usize,
}

impl ReadQueue {
    pub(super) fn new(capacity: u8) -> Self {
        let capacity = usize::from(capacity);
        ReadQueue { contexts: VecDeque::with_capacity(capacity), capacity, oldest_active: 0 }
    }

    /// Whether answers are waiting to be sent.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.oldest_active < self.contexts.len()
    }

    pub(super) fn clear(&mut self) {
        self.contexts.clear();
        self.oldest_active = 0;
    }

    /// Takes a new READ. `false`: the peer has more in flight than was agreed.
    pub(super) fn push(&mut self, first: Psn, packets: u32, reth: Reth) -> bool {
        if self.contexts.len() == self.capacity {
            match self.contexts.front() {
                Some(oldest) if oldest.was_answered() => {
                    let again = oldest.is_active();
                    self.contexts.pop_front();
                    self.oldest_active = self.oldest_active.saturating_sub(1);
                    if again {
                        self.find_active(0);
                    }
                }
                _ => return false,
            }
        }
        let run = Run { start: 0, next: 0, end: packets, len_bytes: reth.len_bytes };
        self.contexts.push_back(ReadContext { first, packets, reth, run, sent: 0 });
        true
    }

    /// A READ that was seen before, or a part of one, is asked for again. `false` if it is not
    /// kept any more, or is not that one: it gets no answer.
    pub(super) fn again(&mut self, psn: Psn, packets: u32, reth: &Reth, mtu_bytes: u32) -> bool {
        let found = self.contexts.iter().position(|context| {
            let index = psn.distance_from(context.first);
            index >= 0 && (index as u32) < context.packets
        });
        let Some(at) = found else { return false };
        let context = &mut self.contexts[at];
        let index = psn.distance_from(context.first) as u32;
        let skipped = index * mtu_bytes;
        let part = reth.rkey == context.reth.rkey
            && reth.addr == context.reth.addr.wrapping_add(u64::from(skipped))
            && skipped <= context.reth.len_bytes
            && reth.len_bytes <= context.reth.len_bytes - skipped
            && packets <= context.packets - index;
        if !part {
            return false;
        }
        context.run = Run { start: index, next: index, end: index + packets, len_bytes: reth.len_bytes };
        self.oldest_active = self.oldest_active.min(at);
        true
    }

    /// The next packet of the oldest answer, without taking it.
    #[inline]
    pub(super) fn peek(&self, mtu_bytes: u32) -> Option<ReadPacket> {
        let context = self.contexts.get(self.oldest_active)?;
        let run = &context.run;
        let offset = (run.next - run.start) * mtu_bytes;
        let at = Reth {
            addr: context.reth.addr.wrapping_add(u64::from(run.next * mtu_bytes)),
            rkey: context.reth.rkey,
            len_bytes: (run.len_bytes - offset).min(mtu_bytes),
        };
        Some(ReadPacket {
            psn: context.first.plus(run.next),
            at,
            begins: run.next == run.start,
            ends: run.next + 1 == run.end,
            again: run.next < context.sent,
        })
    }

    /// The packet that [`peek`](Self::peek) showed was sent.
    #[inline]
    pub(super) fn advance(&mut self) {
        let Some(context) = self.contexts.get_mut(self.oldest_active) else { return };
        context.run.next += 1;
        context.sent = context.sent.max(context.run.next);
        if !context.is_active() {
            self.find_active(self.oldest_active + 1);
        }
    }

    fn find_active(&mut self, from: usize) {
        let found = self.contexts.iter().skip(from).position(ReadContext::is_active);
        self.oldest_active = found.map_or(self.contexts.len(), |index| from + index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::num::RKey;

    fn reth(addr: u64, len_bytes: u32) -> Reth {
        Reth { addr, rkey: RKey(5), len_bytes }
    }

    fn drain(queue: &mut ReadQueue) -> Vec<(u32, u64, u32, bool, bool, bool)> {
        let mut out = Vec::new();
        while let Some(packet) = queue.peek(1024) {
            let ReadPacket { psn, at, begins, ends, again } = packet;
            out.push((psn.get(), at.addr, at.len_bytes, begins, ends, again));
            queue.advance();
        }
        out
    }

    #[test]
    fn a_part_is_answered_again_from_where_it_begins() {
        let mut queue = ReadQueue::new(2);
        assert!(queue.push(Psn::new(0xff_ffff), 3, reth(0x1000, 2500)));
        assert_eq!(
            drain(&mut queue),
            [
                (0xff_ffff, 0x1000, 1024, true, false, false),
                (0, 0x1400, 1024, false, false, false),
                (1, 0x1800, 452, false, true, false)
            ]
        );
        assert!(queue.again(Psn::new(0), 2, &reth(0x1400, 1476), 1024));
        assert_eq!(
            drain(&mut queue),
            [(0, 0x1400, 1024, true, false, true), (1, 0x1800, 452, false, true, true)]
        );
        assert!(!queue.is_active());
    }

    #[test]
    fn what_is_no_part_gets_no_answer() {
        let mut queue = ReadQueue::new(1);
        assert!(queue.push(Psn::new(10), 3, reth(0x1000, 2500)));
        drain(&mut queue);
        assert!(!queue.again(Psn::new(9), 1, &reth(0x1000, 1), 1024), "before it");
        assert!(!queue.again(Psn::new(13), 1, &reth(0x1000, 1), 1024), "after it");
        assert!(!queue.again(Psn::new(11), 1, &reth(0x1000, 1), 1024), "another place");
        assert!(!queue.again(Psn::new(11), 2, &reth(0x1400, 1477), 1024), "longer");
        let other = Reth { rkey: RKey(6), ..reth(0x1400, 10) };
        assert!(!queue.again(Psn::new(11), 1, &other, 1024), "another key");
        assert!(queue.again(Psn::new(11), 1, &reth(0x1400, 10), 1024));
    }

    #[test]
    fn the_oldest_goes_first_and_one_that_is_repeated_gives_way() {
        let mut queue = ReadQueue::new(2);
        assert!(queue.push(Psn::new(0), 1, reth(0, 4)));
        assert!(queue.push(Psn::new(1), 2, reth(0, 2000)));
        queue.advance();
        queue.advance();
        // A repeated first one comes before the rest of the second.
        assert!(queue.again(Psn::new(0), 1, &reth(0, 4), 1024));
        assert_eq!(queue.peek(1024).unwrap().psn, Psn::new(0));
        // A third takes its place before it was repeated: whoever sends it had the answer.
        assert!(queue.push(Psn::new(3), 1, reth(0, 4)));
        let psns: Vec<_> = drain(&mut queue).iter().map(|packet| packet.0).collect();
        assert_eq!(psns, [2, 3]);
    }

    #[test]
    fn more_than_agreed_is_refused_and_answered_ones_make_room() {
        let mut queue = ReadQueue::new(2);
        assert!(queue.push(Psn::new(0), 1, reth(0, 4)));
        assert!(queue.push(Psn::new(1), 1, reth(0, 4)));
        assert!(!queue.push(Psn::new(2), 1, reth(0, 4)));
        queue.advance();
        assert!(queue.push(Psn::new(2), 1, reth(0, 4)));
        assert_eq!(drain(&mut queue).len(), 2);
        assert!(!ReadQueue::new(0).push(Psn::new(0), 1, reth(0, 0)), "none was agreed");
    }
}
