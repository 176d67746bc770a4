//! Fences: ranges of a LUN where an abandoned write may still land.
//!
//! A block write whose task was given up (its channel died, or task management could not wait any
//! longer) still sits in the kernel. Until it is back, a later write to the same blocks would race
//! with it, and old data could win. So such a write holds a fence, and writes that touch a fenced
//! range wait. Fences are rare: the fast path pays one relaxed load.
//!
//! This is one of the few things that shards share directly: a fence must stand on every shard
//! before the initiator is told anything, and a lock taken only when something went wrong does
//! that without a round of messages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A range of bytes of a LUN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.offset_bytes < other.offset_bytes.saturating_add(other.len_bytes)
            && other.offset_bytes < self.offset_bytes.saturating_add(self.len_bytes)
    }
}

/// Names a standing fence.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FenceId(u64);

#[derive(Default)]
struct Standing {
    next_id: u64,
    ranges: Vec<(FenceId, Range)>,
}

/// The fences of one LUN, shared by all shards.
#[derive(Default)]
pub struct Fences {
    count: AtomicUsize,
    standing: Mutex<Standing>,
}

impl Fences {
    /// Puts up a fence around `range`.
    pub fn raise(&self, range: Range) -> FenceId {
        let mut standing = self.standing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let id = FenceId(standing.next_id);
        standing.next_id += 1;
        standing.ranges.push((id, range));
        self.count.store(standing.ranges.len(), Ordering::Release);
        id
    }

    /// Takes a fence down: the write it stood for is back.
    pub fn lower(&self, id: FenceId) {
        let mut standing = self.standing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        standing.ranges.retain(|(standing, _)| *standing != id);
        self.count.store(standing.ranges.len(), Ordering::Release);
    }

    /// How many fences stand.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether a write to `range` has to wait.
    #[inline]
    pub fn blocks(&self, range: &Range) -> bool {
        self.count() != 0 && self.blocks_slow(range)
    }

    #[cold]
    fn blocks_slow(&self, range: &Range) -> bool {
        let standing = self.standing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        standing.ranges.iter().any(|(_, fenced)| fenced.overlaps(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset_bytes: u64, len_bytes: u64) -> Range {
        Range { offset_bytes, len_bytes }
    }

    #[test]
    fn only_overlapping_writes_wait_and_only_while_the_fence_stands() {
        let fences = Fences::default();
        let first = fences.raise(range(4096, 4096));
        let second = fences.raise(range(4096, 512));
        assert!(!fences.blocks(&range(0, 4096)));
        assert!(!fences.blocks(&range(8192, 512)));
        assert!(fences.blocks(&range(8191, 1)));
        assert!(fences.blocks(&range(0, u64::MAX)));
        fences.lower(first);
        assert!(fences.blocks(&range(4096, 1)));
        assert!(!fences.blocks(&range(4608, 512)));
        fences.lower(second);
        assert_eq!(fences.count(), 0);
        assert!(!fences.blocks(&range(4096, 4096)));
    }
}
