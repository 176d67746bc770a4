//! What a device has done: counters in the manner of SPDK's `bdev_get_iostat`.
//!
//! Each queue counts in memory of its own, which only its thread writes (a relaxed load and a
//! relaxed store, no shared cache line and no locked instruction); readers add up the queues.
//! What a closed queue counted stays with the device.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use reactors::time::Time;

use crate::io::{IoError, OpKind};

/// Counters of one kind of operation.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct KindStats {
    /// Operations that succeeded.
    pub ops: u64,
    /// Bytes that those covered.
    pub bytes: u64,
    /// Operations that failed, without those that were cancelled.
    pub errors: u64,
    /// Operations that were cancelled before they took effect.
    pub cancelled: u64,
    /// Sum of the latencies of what succeeded, in nanoseconds: from the poll that handed an
    /// operation over to the poll that found it done.
    pub latency_ns: u64,
    /// The longest of those, in nanoseconds.
    pub max_latency_ns: u64,
    /// The shortest of those, in nanoseconds; zero if there was none.
    pub min_latency_ns: u64,
}

impl KindStats {
    /// Both together.
    fn merge(&mut self, other: &KindStats) {
        self.min_latency_ns = match (self.ops, other.ops) {
            (_, 0) => self.min_latency_ns,
            (0, _) => other.min_latency_ns,
            _ => self.min_latency_ns.min(other.min_latency_ns),
        };
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.cancelled += other.cancelled;
        self.latency_ns += other.latency_ns;
        self.max_latency_ns = self.max_latency_ns.max(other.max_latency_ns);
    }
}

/// Counters of a device, by kind of operation.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct IoStats {
    kinds: [KindStats; OpKind::COUNT],
}

impl IoStats {
    /// The counters of operations of `kind`.
    pub const fn of(&self, kind: OpKind) -> &KindStats {
        &self.kinds[kind.index()]
    }

    /// Operations of all kinds that failed.
    pub fn errors(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.errors).sum()
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &IoStats) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.merge(theirs);
        }
    }
}

#[derive(Default)]
struct KindCounters {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    cancelled: AtomicU64,
    latency_ns: AtomicU64,
    max_latency_ns: AtomicU64,
    /// `u64::MAX` - the shortest, so that zero means none.
    min_latency_complement: AtomicU64,
}

impl KindCounters {
    fn read(&self) -> KindStats {
        let complement = self.min_latency_complement.load(Relaxed);
        KindStats {
            ops: self.ops.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            latency_ns: self.latency_ns.load(Relaxed),
            max_latency_ns: self.max_latency_ns.load(Relaxed),
            min_latency_ns: if complement == 0 { 0 } else { u64::MAX - complement },
        }
    }
}

/// One writer's counters, on cache lines that it shares with nobody.
#[derive(Default)]
#[repr(align(128))]
struct QueueCounters {
    kinds: [KindCounters; OpKind::COUNT],
}

impl QueueCounters {
    fn read(&self) -> IoStats {
        IoStats { kinds: std::array::from_fn(|kind| self.kinds[kind].read()) }
    }
}

/// Adds without a locked instruction: right because a queue's counters have one writer.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

fn raise(counter: &AtomicU64, to: u64) {
    if to > counter.load(Relaxed) {
        counter.store(to, Relaxed);
    }
}

#[derive(Default)]
struct Totals {
    closed: IoStats,
    open: Vec<Weak<QueueCounters>>,
}

/// The counters of a device.
#[derive(Default)]
pub struct DeviceStats {
    totals: Arc<Mutex<Totals>>,
}

impl DeviceStats {
    /// Counters of a new queue.
    pub fn open_queue(&self) -> QueueStats {
        let counters = Arc::new(QueueCounters::default());
        lock(&self.totals).open.push(Arc::downgrade(&counters));
        QueueStats { counters, totals: Arc::clone(&self.totals) }
    }

    /// What all queues, open and closed, have counted.
    pub fn read(&self) -> IoStats {
        let totals = lock(&self.totals);
        let mut sum = totals.closed;
        for queue in totals.open.iter().filter_map(Weak::upgrade) {
            sum.merge(&queue.read());
        }
        sum
    }
}

fn lock(totals: &Mutex<Totals>) -> MutexGuard<'_, Totals> {
    // Counters are right at every step, so a panic elsewhere does not spoil them.
    totals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The counters of one queue; belongs to the thread of the queue.
pub struct QueueStats {
    counters: Arc<QueueCounters>,
    totals: Arc<Mutex<Totals>>,
}

impl QueueStats {
    /// Counts the end of an operation over `bytes` that was handed over at `began`.
    #[inline]
    pub fn count(&mut self, kind: OpKind, bytes: u64, began: Time, now: Time, result: Result<(), IoError>) {
        let counters = &self.counters.kinds[kind.index()];
        match result {
            Ok(()) => {
                let latency_ns = now.as_nanos().saturating_sub(began.as_nanos());
                add(&counters.ops, 1);
                add(&counters.bytes, bytes);
                add(&counters.latency_ns, latency_ns);
                raise(&counters.max_latency_ns, latency_ns);
                raise(&counters.min_latency_complement, u64::MAX - latency_ns);
            }
            Err(IoError::Cancelled) => add(&counters.cancelled, 1),
            Err(_) => add(&counters.errors, 1),
        }
    }
}

impl Drop for QueueStats {
    fn drop(&mut self) {
        let mut totals = lock(&self.totals);
        let counted = self.counters.read();
        totals.closed.merge(&counted);
        let mine = Arc::as_ptr(&self.counters);
        totals.open.retain(|queue| queue.as_ptr() != mine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_and_closed_queues_add_up() {
        let device = DeviceStats::default();
        let (mut first, mut second) = (device.open_queue(), device.open_queue());
        let at = Time::from_nanos;
        first.count(OpKind::Read, 4096, at(100), at(150), Ok(()));
        second.count(OpKind::Read, 512, at(100), at(120), Ok(()));
        second.count(OpKind::Read, 512, at(100), at(120), Err(IoError::Medium(5)));
        second.count(OpKind::Write, 512, at(100), at(120), Err(IoError::Cancelled));
        let both = device.read();
        drop(first);
        assert_eq!(device.read(), both, "closing a queue loses nothing");
        drop(second);
        assert_eq!(device.read(), both);
        let reads = KindStats {
            ops: 2,
            bytes: 4608,
            errors: 1,
            cancelled: 0,
            latency_ns: 70,
            max_latency_ns: 50,
            min_latency_ns: 20,
        };
        assert_eq!(*both.of(OpKind::Read), reads);
        assert_eq!(both.of(OpKind::Write).cancelled, 1);
        assert_eq!(both.errors(), 1);
    }

    #[test]
    fn an_idle_queue_does_not_become_the_shortest_latency() {
        let device = DeviceStats::default();
        let (mut busy, _idle) = (device.open_queue(), device.open_queue());
        busy.count(OpKind::Write, 512, Time::ZERO, Time::from_nanos(9), Ok(()));
        assert_eq!(device.read().of(OpKind::Write).min_latency_ns, 9);
    }
}
