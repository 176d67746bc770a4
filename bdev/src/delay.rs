//! A device that takes its time: another device, each of whose operations lasts as long as told.
//! For tests of timeouts and task management, and to see what latency does to a workload.
//!
//! Where an operation waits decides what a cancellation can do. Before the device below
//! ([`Hold::Before`]) it has had no effect and ends as cancelled at once. After it
//! ([`Hold::After`], SPDK's way) it has had its effect, cannot be cancelled, and stalls whoever
//! wants its end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reactors::handle::Handle;
use reactors::memory::Region;
use reactors::slab::{Key, Slab};
use reactors::time::Time;
use uuid::Uuid;

use crate::check::{Below, admit};
use crate::device::{Bdev, BlockQueue, Geometry};
use crate::io::{Completion, Io, IoError, IoId, OpKind, OpenError, RegionId, SubmitError};
use crate::stats::{DeviceStats, IoStats, QueueStats};

/// Where operations wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Before they reach the device below: a cancellation takes effect.
    Before,
    /// After they are done: a cancellation changes nothing.
    After,
}

/// One operation in so many waits the 99th percentile's time.
const P99_EVERY: u32 = 100;

/// Latencies by kind of operation; changed while queues are open.
struct Latencies {
    /// Of most operations.
    average_us: [AtomicU64; OpKind::COUNT],
    /// Of one in [`P99_EVERY`].
    p99_us: [AtomicU64; OpKind::COUNT],
}

/// A device that takes its time.
pub struct DelayBdev {
    name: String,
    uuid: Uuid,
    base: Arc<dyn Bdev>,
    hold: Hold,
    latencies: Arc<Latencies>,
    stats: DeviceStats,
}

impl DelayBdev {
    /// A device over `base` that adds nothing yet.
    pub fn new(name: &str, base: Arc<dyn Bdev>, hold: Hold) -> DelayBdev {
        let zeroes = || std::array::from_fn(|_| AtomicU64::new(0));
        DelayBdev {
            name: name.to_owned(),
            uuid: Uuid::new_v5(&base.uuid(), b"delay"),
            base,
            hold,
            latencies: Arc::new(Latencies { average_us: zeroes(), p99_us: zeroes() }),
            stats: DeviceStats::default(),
        }
    }

    /// The same device with another identity than the one derived from its base.
    pub fn with_uuid(self, uuid: Uuid) -> DelayBdev {
        DelayBdev { uuid, ..self }
    }

    /// From now on operations of `kind` wait `micros` microseconds more.
    pub fn set_latency_us(&self, kind: OpKind, micros: u64) {
        self.set_average_us(kind, micros);
        self.set_p99_us(kind, micros);
    }

    /// From now on 99 of 100 operations of `kind` wait `micros` microseconds more.
    pub fn set_average_us(&self, kind: OpKind, micros: u64) {
        self.latencies.average_us[kind.index()].store(micros, Ordering::Relaxed);
    }

    /// From now on one of 100 operations of `kind` waits `micros` microseconds more.
    pub fn set_p99_us(&self, kind: OpKind, micros: u64) {
        self.latencies.p99_us[kind.index()].store(micros, Ordering::Relaxed);
    }

    /// From now on all operations wait `micros` microseconds more.
    pub fn set_latencies_us(&self, micros: u64) {
        OpKind::ALL.into_iter().for_each(|kind| self.set_latency_us(kind, micros));
    }

    /// How long 99 of 100 operations of `kind` wait, in microseconds.
    pub fn average_us(&self, kind: OpKind) -> u64 {
        self.latencies.average_us[kind.index()].load(Ordering::Relaxed)
    }

    /// How long one of 100 operations of `kind` waits, in microseconds.
    pub fn p99_us(&self, kind: OpKind) -> u64 {
        self.latencies.p99_us[kind.index()].load(Ordering::Relaxed)
    }
}

impl Bdev for DelayBdev {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> &'static str {
        "delay"
    }

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn base(&self) -> Option<&dyn Bdev> {
        Some(&*self.base)
    }

    fn stats(&self) -> IoStats {
        self.stats.read()
    }

    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        Ok(Box::new(DelayQueue {
            base: self.base.open_queue(depth)?,
            device: Arc::clone(&self.base),
            regions: Below::new(),
            hold: self.hold,
            latencies: Arc::clone(&self.latencies),
            held: Slab::new(depth),
            fresh: VecDeque::with_capacity(depth),
            due: BinaryHeap::with_capacity(depth),
            late: VecDeque::with_capacity(depth),
            cancelled: VecDeque::with_capacity(depth),
            from_base: Vec::with_capacity(depth),
            now: Time::ZERO,
            until_p99: P99_EVERY,
            stats: self.stats.open_queue(),
        }))
    }
}

/// Where an operation is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits; nobody below knows it.
    Before,
    /// The device below has it.
    Below,
    /// Done below, with this result, and waits.
    After(Result<(), IoError>),
}

struct Held {
    io: Io,
    stage: Stage,
    /// When it was taken; unknown until the first poll after that.
    began: Time,
}

struct DelayQueue {
    base: Box<dyn BlockQueue>,
    device: Arc<dyn Bdev>,
    regions: Below,
    hold: Hold,
    latencies: Arc<Latencies>,
    held: Slab<Held>,
    /// Taken since the last poll.
    fresh: VecDeque<Key>,
    /// When what waits is due. Keys of what was cancelled find nothing.
    due: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// Was due, and the device below had no room.
    late: VecDeque<Key>,
    cancelled: VecDeque<Key>,
    from_base: Vec<Completion>,
    now: Time,
    /// Operations up to and with the next that waits the 99th percentile's time.
    until_p99: u32,
    stats: QueueStats,
}

impl DelayQueue {
    fn wait_until(&mut self, key: Key, at: Time) {
        // What was cancelled stays in the heap until it is due; make room for the living.
        if self.due.len() == self.due.capacity() {
            let held = &self.held;
            self.due.retain(|&Reverse((_, slot, generation))| held.get(Key { slot, generation }).is_some());
        }
        self.due.push(Reverse((at, key.slot, key.generation)));
    }

    fn wait_from(&mut self, key: Key, from: Time) {
        let Some(held) = self.held.get(key) else { return };
        let kind = held.io.op.kind().index();
        self.until_p99 -= 1;
        let table = if self.until_p99 == 0 { &self.latencies.p99_us } else { &self.latencies.average_us };
        let micros = table[kind].load(Ordering::Relaxed);
        if self.until_p99 == 0 {
            self.until_p99 = P99_EVERY;
        }
        self.wait_until(key, from + Duration::from_micros(micros));
    }

    fn end(&mut self, key: Key, result: Result<(), IoError>, completions: &mut Vec<Completion>) {
        if let Some(Held { io, began, .. }) = self.held.remove(key) {
            self.stats.count(io.op.kind(), io.len_bytes, began, self.now, result);
            completions.push(Completion { id: io.id, result });
        }
    }

    /// What the device below is asked for. The id there is the place here, so that the way back
    /// is short.
    fn below(&self, key: Key, io: &Io) -> Io {
        Io { id: IoId(key.handle(0).to_bits()), region: self.regions.below(io.region), ..*io }
    }

    /// Gives an operation that has waited to the device below; it stays late if there is no room.
    fn hand_down(&mut self, key: Key, completions: &mut Vec<Completion>) {
        let Some(io) = self.held.get(key).map(|held| self.below(key, &held.io)) else { return };
        match self.base.submit(io) {
            Ok(()) => self.set_stage(key, Stage::Below),
            Err(SubmitError::Full) => self.late.push_back(key),
            // It was valid when it was taken, so the device has shrunk since.
            Err(SubmitError::Invalid) => self.end(key, Err(IoError::Truncated), completions),
        }
    }

    fn set_stage(&mut self, key: Key, stage: Stage) {
        if let Some(held) = self.held.get_mut(key) {
            held.stage = stage;
        }
    }

    /// Starts the clocks of what was taken since the last poll.
    fn begin_fresh(&mut self) {
        while let Some(key) = self.fresh.pop_front() {
            let Some(held) = self.held.get_mut(key) else { continue };
            held.began = self.now;
            if held.stage == Stage::Before {
                self.wait_from(key, self.now);
            }
        }
    }

    /// Moves on what is due.
    fn run_due(&mut self, completions: &mut Vec<Completion>) {
        while completions.len() < completions.capacity()
            && let Some(&Reverse((at, slot, generation))) = self.due.peek()
            && at <= self.now
        {
            self.due.pop();
            let key = Key { slot, generation };
            match self.held.get(key).map(|held| held.stage) {
                Some(Stage::Before) => self.hand_down(key, completions),
                Some(Stage::After(result)) => self.end(key, result, completions),
                Some(Stage::Below) | None => {}
            }
        }
    }
}

impl BlockQueue for DelayQueue {
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.regions.register(&mut *self.base, region)
    }

    fn submit(&mut self, io: Io) -> Result<(), SubmitError> {
        let key = self.held.next_key().ok_or(SubmitError::Full)?;
        // What cannot be done is found out below; here only what is no operation at all.
        let _ = admit(&io, &self.device.geometry(), self.regions.regions())?;
        let stage = match self.hold {
            Hold::Before => Stage::Before,
            Hold::After => {
                let below = self.below(key, &io);
                self.base.submit(below)?;
                Stage::Below
            }
        };
        self.held.insert(Held { io, stage, began: self.now }).map_err(|_| SubmitError::Full)?;
        self.fresh.push_back(key);
        Ok(())
    }

    fn cancel(&mut self, id: IoId) {
        let found = self.held.iter().find(|(_, held)| held.io.id == id).map(|(key, held)| (key, held.stage));
        match found {
            Some((key, Stage::Before)) if !self.cancelled.contains(&key) => self.cancelled.push_back(key),
            Some((key, Stage::Below)) => self.base.cancel(IoId(key.handle(0).to_bits())),
            _ => {}
        }
    }

    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        self.now = now;
        self.begin_fresh();
        while completions.len() < completions.capacity()
            && let Some(key) = self.cancelled.pop_front()
        {
            self.end(key, Err(IoError::Cancelled), completions);
        }
        for _ in 0..self.late.len() {
            if completions.len() < completions.capacity()
                && let Some(key) = self.late.pop_front()
            {
                self.hand_down(key, completions);
            }
        }
        self.run_due(completions);

        self.from_base.clear();
        self.base.poll(now, &mut self.from_base);
        for at in 0..self.from_base.len() {
            let Completion { id, result } = self.from_base[at];
            let key = Key::from(Handle::from_bits(id.0));
            let Some(held) = self.held.get_mut(key) else { continue };
            held.stage = Stage::After(result);
            let began = held.began;
            match self.hold {
                Hold::Before => self.wait_until(key, Time::ZERO),
                Hold::After => self.wait_from(key, began),
            }
        }
        self.run_due(completions);
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.wait_fd()
    }

    fn next_deadline(&self) -> Time {
        if !self.fresh.is_empty() || !self.cancelled.is_empty() || !self.late.is_empty() {
            return Time::ZERO;
        }
        // What was cancelled stays in `due` until its time: with nothing held that is nobody's.
        let due = self.due.peek().filter(|_| !self.held.is_empty());
        due.map_or(Time::NEVER, |Reverse((at, ..))| *at).min(self.base.next_deadline())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Op;
    use crate::malloc::{MallocBdev, MallocOptions};
    use crate::testing::Driver;

    const WRITE: Op = Op::Write { fua: false };

    fn over_malloc(hold: Hold) -> DelayBdev {
        let options = MallocOptions { len_bytes: 1 << 20, block_bytes: 512, read_only: false, uuid: None };
        DelayBdev::new("d0", Arc::new(MallocBdev::create("m0", &options).unwrap()), hold)
    }

    #[test]
    fn operations_last_as_long_as_told() {
        for hold in [Hold::Before, Hold::After] {
            let device = over_malloc(hold);
            device.set_latency_us(OpKind::Read, 5_000);
            let mut driver = Driver::open(&device, 8);
            driver.write(0, &[3; 512]).unwrap();
            let read = driver.try_submit(Op::Read, 0, 512).unwrap();
            driver.poll();
            driver.advance(Duration::from_micros(4_990));
            assert!(driver.poll().is_empty(), "{hold:?}: too early");
            driver.advance(Duration::from_micros(10));
            assert_eq!(driver.poll(), [Completion { id: read, result: Ok(()) }], "{hold:?}");
            let reads = *device.stats().of(OpKind::Read);
            assert!(reads.min_latency_ns >= 5_000_000, "{hold:?}: {reads:?}");
            device.set_latencies_us(0);
            assert_eq!(driver.read(0, 512).unwrap(), [3; 512]);
        }
    }

    #[test]
    fn one_operation_of_a_hundred_waits_longer() {
        for hold in [Hold::Before, Hold::After] {
            let device = over_malloc(hold);
            device.set_average_us(OpKind::Read, 10);
            device.set_p99_us(OpKind::Read, 70_000);
            assert_eq!((device.average_us(OpKind::Read), device.p99_us(OpKind::Read)), (10, 70_000));
            let mut driver = Driver::open(&device, 1);
            let mut slow = 0;
            for _ in 0..200 {
                let read = driver.try_submit(Op::Read, 0, 512).unwrap();
                driver.poll();
                driver.advance(Duration::from_micros(10));
                if driver.poll().is_empty() {
                    slow += 1;
                    assert_eq!(driver.wait(read), Ok(()));
                }
            }
            assert_eq!(slow, 2, "{hold:?}");
            let reads = *device.stats().of(OpKind::Read);
            assert!(reads.max_latency_ns >= 70_000_000, "{hold:?}: {reads:?}");
        }
    }

    #[test]
    fn cancelling_before_takes_effect_and_after_does_not() {
        let device = over_malloc(Hold::Before);
        device.set_latencies_us(60_000_000);
        let mut driver = Driver::open(&device, 4);
        driver.region().fill(0, 512, 9).unwrap();
        let write = driver.try_submit(WRITE, 0, 512).unwrap();
        driver.poll();
        driver.queue().cancel(write);
        driver.queue().cancel(write);
        assert_eq!(driver.poll(), [Completion { id: write, result: Err(IoError::Cancelled) }]);
        assert_eq!(driver.queue().in_flight(), 0);
        assert_eq!(driver.queue().next_deadline(), Time::NEVER, "nothing is left to be done");
        assert_eq!(Driver::open(&*device.base, 1).read(0, 512).unwrap(), [0; 512]);

        let device = over_malloc(Hold::After);
        device.set_latencies_us(60_000_000);
        let mut driver = Driver::open(&device, 4);
        driver.region().fill(0, 512, 9).unwrap();
        let write = driver.try_submit(WRITE, 0, 512).unwrap();
        driver.poll();
        driver.queue().cancel(write);
        driver.advance(Duration::from_secs(59));
        assert!(driver.poll().is_empty(), "it stalls");
        assert_eq!(driver.wait(write), Ok(()));
        assert_eq!(Driver::open(&*device.base, 1).read(0, 512).unwrap(), [9; 512]);
    }

    #[test]
    fn the_heap_never_outgrows_what_is_held() {
        let device = over_malloc(Hold::Before);
        device.set_latencies_us(1_000_000_000);
        let mut driver = Driver::open(&device, 4);
        for _ in 0..100 {
            let read = driver.try_submit(Op::Read, 0, 512).unwrap();
            driver.poll();
            driver.queue().cancel(read);
            assert_eq!(driver.wait(read), Err(IoError::Cancelled));
        }
        for _ in 0..4 {
            driver.try_submit(Op::Read, 0, 512).unwrap();
        }
        assert_eq!(driver.try_submit(Op::Read, 0, 512), Err(SubmitError::Full));
        assert_eq!(driver.try_submit(Op::Read, 1 << 20, 512), Err(SubmitError::Full));
    }
}
