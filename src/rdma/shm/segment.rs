//! The shared segment of a connection: words that the two sides say to each other, and a ring each
//! way. The active side makes it; the passive side maps it as memory of a stranger.
//!
//! ```text
//!       0  words of the active side    a cache line each: what it has taken, whether it sleeps,
//!    1024  words of the passive side   whether it is closed, whether it is copying
//!    4096  cells that the active side writes
//!   20480  cells that the passive side writes
//! ```

use std::sync::atomic::AtomicU64;

use reactors::memory::{PAGE_BYTES, Region};

use super::ring::RING_BYTES;

/// Length of a segment in bytes.
pub(super) const SEGMENT_BYTES: usize = PAGE_BYTES + 2 * RING_BYTES;

const SIDE_BYTES: usize = 1024;
/// Two cache lines, since processors fetch them in pairs.
const WORD_BYTES: usize = 128;

/// Which half of a segment is ours.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// We asked for the connection and made the segment.
    Active,
    /// We were asked.
    Passive,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Active => Side::Passive,
            Side::Passive => Side::Active,
        }
    }

    /// Where the cells begin that this side writes.
    pub(super) fn cells_at(self) -> usize {
        PAGE_BYTES + self as usize * RING_BYTES
    }
}

/// What a side says; only it writes there, but for [`Asleep`](Word::Asleep), which the other clears.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// How many cells it has taken out of the ring that the other writes.
    Taken,
    /// 1: it sleeps, or is about to, and wants the bell.
    Asleep,
    /// 1: its memory may not be touched any more.
    Closed,
    /// 1: it may be copying to or from the other's memory.
    Copying,
}

impl Word {
    /// Where it lies among the words of `side`, in bytes from the start of the segment.
    pub(super) fn at(self, side: Side) -> usize {
        side as usize * SIDE_BYTES + self as usize * WORD_BYTES
    }

    /// The word of `side` itself.
    pub(super) fn of(self, side: Side, segment: &Region) -> &AtomicU64 {
        segment.word(self.at(side)).expect("a segment has its words")
    }
}
