//! What a reactor did, readable from other threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that one thread writes and any may read. Each is right by itself; two of them read
/// together may be a turn apart.
#[derive(Debug, Default)]
pub struct ReactorStats {
    busy_ns: AtomicU64,
    idle_ns: AtomicU64,
    asleep_ns: AtomicU64,
    turns: AtomicU64,
    busy_turns: AtomicU64,
    work: AtomicU64,
    sleeps: AtomicU64,
}

/// A reading of [`ReactorStats`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactorReading {
    /// Nanoseconds of turns that found work.
    pub busy_ns: u64,
    /// Nanoseconds of turns that found none, sleep not counted.
    pub idle_ns: u64,
    /// Nanoseconds asleep.
    pub asleep_ns: u64,
    /// Turns.
    pub turns: u64,
    /// Turns that found work.
    pub busy_turns: u64,
    /// Sum of what turns found (packets, completions, messages).
    pub work: u64,
    /// How often it slept.
    pub sleeps: u64,
}

/// Adds to a counter that only the calling thread writes: no locked instruction is needed.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl ReactorStats {
    /// A reading.
    pub fn read(&self) -> ReactorReading {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReactorReading {
            busy_ns: load(&self.busy_ns),
            idle_ns: load(&self.idle_ns),
            asleep_ns: load(&self.asleep_ns),
            turns: load(&self.turns),
            busy_turns: load(&self.busy_turns),
            work: load(&self.work),
            sleeps: load(&self.sleeps),
        }
    }

    #[inline]
    pub(crate) fn turn(&self, took_ns: u64, work: usize) {
        add(&self.turns, 1);
        if work == 0 {
            add(&self.idle_ns, took_ns);
        } else {
            add(&self.busy_ns, took_ns);
            add(&self.busy_turns, 1);
            add(&self.work, work as u64);
        }
    }

    pub(crate) fn slept(&self, took_ns: u64) {
        add(&self.asleep_ns, took_ns);
        add(&self.sleeps, 1);
    }
}
