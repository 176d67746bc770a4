//! The data memory of a shard: pieces of the arena for transfers, and the tasks that wait for one.
//!
//! A task takes the memory of a whole chunk or none, in the order in which tasks asked. A task
//! that holds memory can always go on with what it holds (its second chunk is taken only when
//! nobody waits), so memory comes back and the first in line is served: no deadlock, however
//! small the arena.

use std::collections::VecDeque;

use reactors::buddy::{Buddy, Piece};
use reactors::memory::Region;
use reactors::slab::Key;

use crate::rdma::verbs::Sge;
use crate::wire::num::LKey;

/// A task in line for memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Waiter {
    task: Key,
    len_bytes: usize,
}

/// The data memory of one shard.
pub struct Pool {
    region: Region,
    lkey: LKey,
    buddy: Buddy,
    waiting: VecDeque<Waiter>,
}

impl Pool {
    /// All of `region`; at most `tasks` tasks can wait.
    pub fn new(region: Region, lkey: LKey, tasks: usize) -> Self {
        let buddy = Buddy::new(region.len_bytes());
        Pool { region, lkey, buddy, waiting: VecDeque::with_capacity(tasks) }
    }

    /// Memory for `len_bytes`, unless somebody waits already or there is none.
    #[inline]
    pub fn take(&mut self, len_bytes: usize) -> Option<Piece> {
        if !self.waiting.is_empty() {
            return None;
        }
        self.buddy.alloc(len_bytes)
    }

    /// Puts `task` in line for `len_bytes`; it is served by [`serve`](Self::serve).
    pub fn wait(&mut self, task: Key, len_bytes: usize) {
        self.waiting.push_back(Waiter { task, len_bytes });
    }

    /// Takes `task` out of the line: it has ended while waiting.
    pub fn forget(&mut self, task: Key) {
        self.waiting.retain(|waiter| waiter.task != task);
    }

    /// The first in line with its memory, if there is enough for it now.
    pub fn serve(&mut self) -> Option<(Key, Piece)> {
        let first = self.waiting.front()?;
        let piece = self.buddy.alloc(first.len_bytes)?;
        let first = self.waiting.pop_front()?;
        Some((first.task, piece))
    }

    /// Gives a piece back.
    pub fn put(&mut self, piece: Piece) {
        self.buddy.free(piece);
    }

    /// How many tasks wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Free bytes.
    pub fn free_bytes(&self) -> usize {
        self.buddy.free_bytes()
    }

    /// Bytes of the whole pool.
    pub fn capacity_bytes(&self) -> usize {
        self.buddy.capacity_bytes()
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// `len_bytes` at `offset` of `piece`, for a work request.
    pub fn sge(&self, piece: Piece, offset: usize, len_bytes: u32) -> Sge {
        debug_assert!(offset + len_bytes as usize <= piece.len_bytes());
        Sge { addr: self.region.addr() + (piece.offset() + offset) as u64, len_bytes, lkey: self.lkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 256 << 10;

    fn key(slot: u32) -> Key {
        Key { slot, generation: 0 }
    }

    #[test]
    fn nobody_overtakes_the_first_in_line() {
        let mut pool = Pool::new(Region::heap(2 * CHUNK), LKey(1), 8);
        let first = pool.take(CHUNK).unwrap();
        let second = pool.take(4096).unwrap();
        assert!(pool.take(CHUNK).is_none());
        pool.wait(key(1), CHUNK);
        // There is room for 4 KiB, but key 1 is first.
        assert!(pool.take(4096).is_none());
        pool.wait(key(2), 4096);
        assert!(pool.serve().is_none());
        pool.put(second);
        let (task, _) = pool.serve().unwrap();
        assert_eq!(task, key(1));
        assert!(pool.serve().is_none());
        pool.put(first);
        assert_eq!(pool.serve().unwrap().0, key(2));
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn who_has_ended_does_not_block_the_line() {
        let mut pool = Pool::new(Region::heap(CHUNK), LKey(1), 8);
        let all = pool.take(CHUNK).unwrap();
        pool.wait(key(1), CHUNK);
        pool.wait(key(2), CHUNK);
        pool.forget(key(1));
        pool.put(all);
        assert_eq!(pool.serve().unwrap().0, key(2));
    }
}
