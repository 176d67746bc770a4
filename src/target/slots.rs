//! The receive slots of a shard: where SRP information units land.
//!
//! All channels of a shard share one receive queue of fixed-size slots. A slot is posted, or held
//! by the task whose command lies in it, or about to be posted again; the three numbers always
//! add up. Credits are granted against slots, so an initiator that keeps to its request limit
//! always finds one, and a stalled LUN can only hold the slots that its own credits stand for.
//!
//! Slots begin 68 bytes before a page, so that immediate data (at offset 68 of an SRP_CMD, as
//! Linux's ib_srp sends it) is page aligned and goes to the block device without a copy.

use reactors::memory::{PAGE_BYTES, Region};
use reactors::slab::Key;

use crate::rdma::verbs::{Device, RecvWr, Sge, SrqId, VerbsError};
use crate::target::limits::{IMMEDIATE_OFFSET_BYTES, MAX_IT_IU_BYTES, RECV_STRIDE_BYTES};
use crate::target::wr::Tag;
use crate::wire::num::LKey;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum SlotState {
    Posted,
    Held,
    Idle,
}

struct Slot {
    generation: u32,
    state: SlotState,
}

/// How many slots are where.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SlotCounts {
    /// All slots.
    pub total: u32,
    /// Posted to the shared receive queue.
    pub posted: u32,
    /// Held by tasks.
    pub held: u32,
    /// Promised to initiators as credits, control slots included.
    pub granted: u32,
    /// How often one was posted since start.
    pub posts: u64,
    /// How often one came back with a completion.
    pub returns: u64,
}

/// The receive slots of one shard.
pub struct Slots {
    region: Region,
    lkey: LKey,
    srq: SrqId,
    slots: Box<[Slot]>,
    idle: Vec<u32>,
    held: u32,
    granted: u32,
    posts: u64,
    returns: u64,
}

impl Slots {
    /// `count` slots in `region`, none posted yet.
    pub fn new(region: Region, lkey: LKey, srq: SrqId, count: u32) -> Self {
        assert!(count as usize * RECV_STRIDE_BYTES <= region.len_bytes(), "slots lie in their region");
        Slots {
            region,
            lkey,
            srq,
            slots: (0..count).map(|_| Slot { generation: 0, state: SlotState::Idle }).collect(),
            idle: (0..count).rev().collect(),
            held: 0,
            granted: 0,
            posts: 0,
            returns: 0,
        }
    }

    /// How many slots are where.
    pub fn counts(&self) -> SlotCounts {
        let total = self.slots.len() as u32;
        let posted = total - self.held - self.idle.len() as u32;
        let (posts, returns) = (self.posts, self.returns);
        SlotCounts { total, posted, held: self.held, granted: self.granted, posts, returns }
    }

    /// Notes that `count` slots are promised to a channel; shard 0 keeps the books and never
    /// promises more than there are.
    pub fn grant(&mut self, count: u32) {
        self.granted += count;
        debug_assert!(self.granted <= self.slots.len() as u32);
    }

    /// Takes a promise of `count` slots back: the channel is gone.
    pub fn ungrant(&mut self, count: u32) {
        debug_assert!(count <= self.granted);
        self.granted = self.granted.saturating_sub(count);
    }

    /// The slot of a receive completion is the caller's now. `None` if the handle is stale.
    pub fn take(&mut self, key: Key) -> Option<u32> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.generation != key.generation || slot.state != SlotState::Posted {
            return None;
        }
        slot.state = SlotState::Held;
        slot.generation = slot.generation.wrapping_add(1);
        self.held += 1;
        self.returns += 1;
        Some(key.slot)
    }

    /// Gives a slot back; it is posted again with the next [`post`](Self::post).
    pub fn put(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        assert_eq!(entry.state, SlotState::Held, "slot {slot} given back twice");
        entry.state = SlotState::Idle;
        self.held -= 1;
        self.idle.push(slot);
    }

    /// Whether [`post`](Self::post) has something to do.
    #[inline]
    pub fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Posts what was given back. Ends early when the queue has no room.
    pub fn post<D: Device>(&mut self, device: &mut D) -> Result<(), VerbsError> {
        while let Some(&index) = self.idle.last() {
            let slot = &mut self.slots[index as usize];
            let key = Key { slot: index, generation: slot.generation };
            let sge = Sge {
                addr: self.region.addr() + Self::offset(index) as u64,
                len_bytes: MAX_IT_IU_BYTES,
                lkey: self.lkey,
            };
            match device.post_srq_recv(self.srq, &RecvWr { wr_id: Tag::Receive.bits(key), sge }) {
                Ok(()) => {}
                Err(VerbsError::QueueFull) => break,
                Err(error) => return Err(error),
            }
            slot.state = SlotState::Posted;
            self.posts += 1;
            self.idle.pop();
        }
        Ok(())
    }

    /// The queue that they were posted to is gone, and `srq` takes its place: all that were there are
    /// to be posted again. A completion of the old queue finds nothing.
    pub fn renew(&mut self, srq: SrqId) {
        self.srq = srq;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.state == SlotState::Posted {
                slot.state = SlotState::Idle;
                slot.generation = slot.generation.wrapping_add(1);
                self.idle.push(index as u32);
            }
        }
    }

    /// Where `slot` begins in the region, in bytes.
    pub const fn offset(slot: u32) -> usize {
        slot as usize * RECV_STRIDE_BYTES + PAGE_BYTES - IMMEDIATE_OFFSET_BYTES
    }

    /// The memory of all slots.
    pub fn region(&self) -> &Region {
        &self.region
    }
}
