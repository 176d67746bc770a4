//! A simulated disk on virtual time: what a real one does seldom, this one does often, and the
//! same again for the same seed.
//!
//! An operation has its effect at a random moment between its start and its completion, so
//! operations in flight overtake each other. It may fail (a write perhaps after some of its
//! blocks), stall, or be cancelled with or without success. What was written and not flushed may
//! be lost when the power fails. Nothing here looks at a clock: time is what `poll` is told.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use reactors::memory::{OutOfBounds, Region};
use reactors::slab::{Key, Slab};
use reactors::time::Time;
use uuid::Uuid;

use crate::check::{Regions, admit, blocks_of};
use crate::device::{Bdev, BlockQueue, Geometry};
use crate::io::{Completion, Io, IoError, IoId, Op, OpenError, RegionId, SubmitError};
use crate::stats::{DeviceStats, IoStats, QueueStats};

/// How often something happens: this many times in 10,000.
pub type PerMyriad = u32;

/// What a simulated disk shall be and do.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Its size in bytes: a multiple of the block size.
    pub len_bytes: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// What all chance comes from.
    pub seed: u64,
    /// The shortest latency.
    pub min_latency: Duration,
    /// The longest latency of what does not stall.
    pub max_latency: Duration,
    /// How many operations stall.
    pub stalls: PerMyriad,
    /// How much longer those take.
    pub stall: Duration,
    /// How many operations fail, as errors of the medium.
    pub errors: PerMyriad,
    /// How many submissions meet a full queue although there is room, while others are in flight.
    pub full: PerMyriad,
    /// How many cancellations succeed, of those that come before the effect.
    pub cancels: PerMyriad,
}

impl SimOptions {
    /// A disk that makes no mistakes, and whose operations take 20 to 200 us.
    pub fn faultless(len_bytes: u64, seed: u64) -> SimOptions {
        SimOptions {
            len_bytes,
            block_bytes: 512,
            seed,
            min_latency: Duration::from_micros(20),
            max_latency: Duration::from_micros(200),
            stalls: 0,
            stall: Duration::ZERO,
            errors: 0,
            full: 0,
            cancels: 5_000,
        }
    }
}

/// The medium and its volatile cache, shared by the queues.
struct Medium {
    /// What reads see.
    seen: Region,
    /// What survives when the power fails.
    durable: Region,
    /// Blocks in which the two may differ.
    dirty: BTreeSet<u64>,
    block_bytes: u64,
}

impl Medium {
    /// Has the effect of `io`, on its first `len_bytes` only.
    fn effect(&mut self, io: &Io, len_bytes: u64, regions: &Regions) -> Result<(), OutOfBounds> {
        // Sizes were checked against a region of that many bytes.
        let (at, len) = (io.offset_bytes as usize, len_bytes as usize);
        match (io.op, regions.get(io.region)) {
            (Op::Flush, _) => return self.sync_all(),
            (Op::Read, Some(buffer)) => return self.seen.copy_to(at, buffer, io.region_offset, len),
            (Op::Write { .. }, Some(buffer)) => buffer.copy_to(io.region_offset, &self.seen, at, len)?,
            (Op::Unmap | Op::WriteZeroes, _) => self.seen.clear(at, len)?,
            (Op::Read | Op::Write { .. }, None) => return Ok(()),
        }
        let blocks = io.offset_bytes / self.block_bytes..(io.offset_bytes + len_bytes) / self.block_bytes;
        if io.op == (Op::Write { fua: true }) {
            self.seen.copy_to(at, &self.durable, at, len)?;
            blocks.for_each(|block| {
                self.dirty.remove(&block);
            });
        } else {
            self.dirty.extend(blocks);
        }
        Ok(())
    }

    fn sync(&self, block: u64) -> Result<(), OutOfBounds> {
        let at = (block * self.block_bytes) as usize;
        self.seen.copy_to(at, &self.durable, at, self.block_bytes as usize)
    }

    fn sync_all(&mut self) -> Result<(), OutOfBounds> {
        for block in std::mem::take(&mut self.dirty) {
            self.sync(block)?;
        }
        Ok(())
    }
}

struct Shared {
    options: SimOptions,
    geometry: Geometry,
    medium: Mutex<Medium>,
    queues_opened: AtomicU64,
    stats: DeviceStats,
}

impl Shared {
    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A simulated disk.
pub struct SimBdev {
    name: String,
    uuid: Uuid,
    shared: Arc<Shared>,
}

impl SimBdev {
    /// A disk of zeroes.
    pub fn create(name: &str, options: &SimOptions) -> Result<SimBdev, OpenError> {
        let blocks = blocks_of(name, options.len_bytes, options.block_bytes)?;
        if options.min_latency > options.max_latency {
            let (min, max) = (options.min_latency, options.max_latency);
            return Err(OpenError::new(
                name,
                format_args!("the shortest latency, {min:?}, is above the longest, {max:?}"),
            ));
        }
        let memory = || {
            let len = usize::try_from(options.len_bytes).map_err(|error| OpenError::new(name, error))?;
            Region::anonymous(len).map_err(|error| OpenError::new(name, error))
        };
        let medium = Medium {
            seen: memory()?,
            durable: memory()?,
            dirty: BTreeSet::new(),
            block_bytes: u64::from(options.block_bytes),
        };
        let geometry = Geometry {
            block_bytes: options.block_bytes,
            blocks,
            physical_block_exponent: 0,
            buffer_align_bytes: 1,
            read_only: false,
            write_cache: true,
            unmap: true,
            unmap_reads_zeroes: true,
            write_zeroes: true,
            rotational: false,
        };
        let shared = Shared {
            options: options.clone(),
            geometry,
            medium: Mutex::new(medium),
            queues_opened: AtomicU64::new(0),
            stats: DeviceStats::default(),
        };
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes());
        Ok(SimBdev { name: name.to_owned(), uuid, shared: Arc::new(shared) })
    }

    /// The power fails: of what was not flushed each block survives or not, by chance. Operations
    /// in flight are the business of who drops their queues.
    pub fn power_fail(&self, rng: &mut Rng) {
        let mut medium = self.shared.medium();
        for block in std::mem::take(&mut medium.dirty) {
            let at = (block * medium.block_bytes) as usize;
            let len = medium.block_bytes as usize;
            let (from, to) =
                if rng.bool() { (&medium.seen, &medium.durable) } else { (&medium.durable, &medium.seen) };
            let copied = from.copy_to(at, to, at, len);
            debug_assert!(copied.is_ok(), "both are of the disk's size");
        }
    }
}

impl Bdev for SimBdev {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> &'static str {
        "Simulated disk"
    }

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn stats(&self) -> IoStats {
        self.shared.stats.read()
    }

    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        let number = self.shared.queues_opened.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(SimQueue {
            shared: Arc::clone(&self.shared),
            rng: Rng::with_seed(self.shared.options.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            regions: Regions::new(),
            running: Slab::new(depth),
            fresh: VecDeque::with_capacity(depth),
            events: BinaryHeap::with_capacity(depth * 4),
            next_event: 0,
            now: Time::ZERO,
            stats: self.shared.stats.open_queue(),
        }))
    }
}

/// One operation.
struct Running {
    io: Io,
    began: Time,
    /// What it will complete with, once it had its effect.
    result: Option<Result<(), IoError>>,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Effect,
    End,
}

/// When, in which order, what, to which operation.
type Event = (Time, u64, What, u32, u32);

struct SimQueue {
    shared: Arc<Shared>,
    rng: Rng,
    regions: Regions,
    running: Slab<Running>,
    /// Taken since the last poll.
    fresh: VecDeque<Key>,
    events: BinaryHeap<Reverse<Event>>,
    next_event: u64,
    now: Time,
    stats: QueueStats,
}

impl SimQueue {
    fn chance(&mut self, of: PerMyriad) -> bool {
        of > 0 && self.rng.u32(0..10_000) < of
    }

    fn at(&mut self, at: Time, what: What, key: Key) {
        if self.events.len() == self.events.capacity() {
            let running = &self.running;
            self.events
                .retain(|&Reverse((.., slot, generation))| running.get(Key { slot, generation }).is_some());
        }
        self.events.push(Reverse((at, self.next_event, what, key.slot, key.generation)));
        self.next_event += 1;
    }

    fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.u64(nanos(shortest)..=nanos(longest)))
    }

    fn begin(&mut self, key: Key) {
        let now = self.now;
        let Some(running) = self.running.get_mut(key) else { return };
        running.began = now;
        let SimOptions { min_latency, max_latency, stalls, stall, .. } = self.shared.options;
        let mut latency = self.between(min_latency, max_latency);
        if self.chance(stalls) {
            latency += stall;
        }
        let effect = self.between(Duration::ZERO, latency);
        self.at(now + effect, What::Effect, key);
        self.at(now + latency, What::End, key);
    }

    fn effect(&mut self, key: Key) {
        let fails = self.chance(self.shared.options.errors);
        let Some(running) = self.running.get_mut(key) else { return };
        let io = running.io;
        let mut len_bytes = io.len_bytes;
        if fails {
            running.result = Some(Err(IoError::Medium(libc::EIO)));
            // Some of the blocks may have been written before the one that could not.
            let block_bytes = u64::from(self.shared.geometry.block_bytes);
            len_bytes =
                if io.op.is_write() { self.rng.u64(0..=len_bytes / block_bytes) * block_bytes } else { 0 };
        } else {
            running.result = Some(Ok(()));
        }
        if len_bytes > 0 || (io.op == Op::Flush && !fails) {
            let happened = self.shared.medium().effect(&io, len_bytes, &self.regions);
            debug_assert!(happened.is_ok(), "checked when it was taken");
        }
    }
}

impl BlockQueue for SimQueue {
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.regions.add(region)
    }

    fn submit(&mut self, io: Io) -> Result<(), SubmitError> {
        if self.running.is_full() {
            return Err(SubmitError::Full);
        }
        let valid = admit(&io, &self.shared.geometry, &self.regions)?;
        if !self.running.is_empty() && self.chance(self.shared.options.full) {
            return Err(SubmitError::Full);
        }
        let result = valid.err().map(Err);
        let running = Running { io, began: self.now, result };
        let key = self.running.insert(running).map_err(|_| SubmitError::Full)?;
        self.fresh.push_back(key);
        Ok(())
    }

    fn cancel(&mut self, id: IoId) {
        let early = |running: &Running| running.io.id == id && running.result.is_none();
        let Some(key) = self.running.iter().find(|(_, running)| early(running)).map(|(key, _)| key) else {
            return;
        };
        if self.chance(self.shared.options.cancels)
            && let Some(running) = self.running.get_mut(key)
        {
            running.result = Some(Err(IoError::Cancelled));
            self.at(self.now, What::End, key);
        }
    }

    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        self.now = now;
        while let Some(key) = self.fresh.pop_front() {
            self.begin(key);
        }
        while completions.len() < completions.capacity()
            && let Some(&Reverse((at, _, what, slot, generation))) = self.events.peek()
            && at <= now
        {
            self.events.pop();
            let key = Key { slot, generation };
            match (what, self.running.get(key).map(|running| running.result)) {
                (What::Effect, Some(None)) => self.effect(key),
                (What::End, Some(Some(result))) => {
                    if let Some(Running { io, began, .. }) = self.running.remove(key) {
                        self.stats.count(io.op.kind(), io.len_bytes, began, now, result);
                        completions.push(Completion { id: io.id, result });
                    }
                }
                // Cancelled before its effect, or over.
                _ => {}
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.running.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_deadline(&self) -> Time {
        if !self.fresh.is_empty() {
            return Time::ZERO;
        }
        self.events.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::OpKind;
    use crate::testing::Driver;

    const WRITE: Op = Op::Write { fua: false };

    fn disk(change: impl FnOnce(&mut SimOptions)) -> SimBdev {
        let mut options = SimOptions::faultless(1 << 20, 7);
        change(&mut options);
        SimBdev::create("s0", &options).unwrap()
    }

    #[test]
    fn one_seed_is_one_history() {
        let history = |seed| {
            let device = disk(|options| (options.seed, options.errors, options.stalls) = (seed, 1_000, 500));
            let mut driver = Driver::open(&device, 16);
            for n in 0..16 {
                driver.try_submit(if n % 2 == 0 { WRITE } else { Op::Read }, n * 512, 512).unwrap();
            }
            let mut order = Vec::new();
            while driver.queue().in_flight() > 0 {
                order.extend(driver.wait_some());
            }
            order.iter().map(|completion| (completion.id.0, completion.result)).collect::<Vec<_>>()
        };
        assert_eq!(history(1), history(1));
        assert_ne!(history(1), history(2));
        let in_order: Vec<u64> = (0..16).collect();
        assert_ne!(
            history(1).iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            in_order,
            "they overtake each other"
        );
    }

    #[test]
    fn what_was_flushed_or_forced_survives_the_power() {
        let device = disk(|_| {});
        let mut driver = Driver::open(&device, 4);
        driver.write(0, &[1; 512]).unwrap();
        driver.run(Op::Flush, 0, 0).unwrap();
        driver.region().fill(0, 512, 2).unwrap();
        driver.run(Op::Write { fua: true }, 512, 512).unwrap();
        for block in 2..102 {
            driver.write(block * 512, &[3; 512]).unwrap();
        }
        device.power_fail(&mut Rng::with_seed(1));
        assert_eq!(driver.read(0, 512).unwrap(), [1; 512]);
        assert_eq!(driver.read(512, 512).unwrap(), [2; 512]);
        let lost = (2..102).filter(|block| driver.read(block * 512, 512).unwrap() == [0; 512]).count();
        assert!((20..80).contains(&lost), "{lost} of 100 blocks lost");
        let after = driver.read(0, 102 * 512).unwrap();
        device.power_fail(&mut Rng::with_seed(2));
        assert_eq!(driver.read(0, 102 * 512).unwrap(), after, "what survived once is durable");
    }

    #[test]
    fn a_cancelled_operation_had_no_effect() {
        let device = disk(|options| options.cancels = 10_000);
        let mut driver = Driver::open(&device, 4);
        let (mut cancelled, mut done) = (0, 0);
        for n in 0..200_u64 {
            driver.region().fill(0, 512, 7).unwrap();
            let write = driver.try_submit(WRITE, n * 512, 512).unwrap();
            driver.poll();
            driver.advance(Duration::from_micros(50));
            let early = driver.poll().to_vec();
            driver.queue().cancel(write);
            let result = early.first().map_or_else(|| driver.wait(write), |completion| completion.result);
            let byte = driver.read(n * 512, 512).unwrap()[0];
            match result {
                Ok(()) => (done, _) = (done + 1, assert_eq!(byte, 7)),
                Err(IoError::Cancelled) => (cancelled, _) = (cancelled + 1, assert_eq!(byte, 0)),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(done > 10 && cancelled > 10, "{done} done, {cancelled} cancelled");
        assert_eq!(device.stats().of(OpKind::Write).cancelled, cancelled);
    }

    #[test]
    fn full_comes_only_while_something_will_come_back() {
        let device = disk(|options| options.full = 10_000);
        let mut driver = Driver::open(&device, 4);
        let first = driver.try_submit(Op::Read, 0, 512).unwrap();
        assert_eq!(driver.try_submit(Op::Read, 0, 512), Err(SubmitError::Full));
        driver.wait(first).unwrap();
        driver.read(0, 512).unwrap();
    }
}
