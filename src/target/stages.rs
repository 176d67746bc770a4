//! Where the time of commands goes: a histogram for each stage, by logical unit, direction and size.
//!
//! A command is in one stage at a time, so the stages of a command add up to its total. Reading the
//! clock costs some 20 ns, as much as everything else here together; therefore a reading serves
//! `STAMPS_A_READING` commands of one batch, and within one stage nothing is read at all.

use reactors::clock::Clock;
use reactors::time::Time;

/// Commands of one batch that share a reading of the clock: the stage of a command begins or ends at
/// most the time of so many commands too early, some 2 us.
const STAMPS_A_READING: u8 = 8;

/// A part of a command's way, in the order in which they come. A command that moves its data in
/// several chunks is in some of them several times; what counts is the sum.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Stage {
    /// From the turn that received its packet until it is parsed, checked and has its memory. How long
    /// the packet lay in the kernel before is not known here.
    #[default]
    Receive,
    /// In line for data memory.
    Buffer,
    /// RDMA READs of its data or descriptor table are on the way, or wait for their window.
    Read,
    /// At the block device, or in line for it.
    Backend,
    /// Its data are written to the initiator and its response is posted, or waits for room in the
    /// send queue.
    Response,
}

impl Stage {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All, in order.
    pub const ALL: [Stage; Stage::COUNT] =
        [Stage::Receive, Stage::Buffer, Stage::Read, Stage::Backend, Stage::Response];

    /// Its name in the RPC.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Buffer => "buffer",
            Stage::Read => "rdma_read",
            Stage::Backend => "backend",
            Stage::Response => "response",
        }
    }
}

/// The clock of stages. Without one a turn is a moment, as on a virtual clock.
#[derive(Debug)]
pub struct StageClock {
    clock: Option<Clock>,
    last: Time,
    /// Stamps that the last reading still serves.
    left: u8,
}

impl StageClock {
    /// Reads `clock`, or stands still within a turn.
    pub fn new(clock: Option<Clock>) -> Self {
        StageClock { clock, last: Time::ZERO, left: 0 }
    }

    /// A turn begins at `now`.
    #[inline]
    pub fn turn(&mut self, now: Time) {
        self.last = now;
        self.left = 0;
    }

    /// Another batch begins: the next stamp is read anew.
    #[inline]
    pub fn batch(&mut self) {
        self.left = 0;
    }

    /// The time now.
    #[inline]
    pub fn stamp(&mut self) -> Time {
        if self.left == 0 {
            self.left = STAMPS_A_READING;
            if let Some(clock) = self.clock {
                self.last = clock.now();
            }
        }
        self.left -= 1;
        self.last
    }
}

/// How long one command was in which stage so far.
#[derive(Copy, Clone, Debug)]
pub struct Laps {
    stage: Stage,
    since: Time,
    ns: [u64; Stage::COUNT],
}

impl Laps {
    /// A command that came at `now`.
    pub fn new(now: Time) -> Self {
        Laps { stage: Stage::Receive, since: now, ns: [0; Stage::COUNT] }
    }

    /// Moves on to `stage`; reads the clock only if it is in another one.
    #[inline]
    pub fn enter(&mut self, stage: Stage, clock: &mut StageClock) {
        if self.stage != stage {
            self.close(clock.stamp());
            self.stage = stage;
        }
    }

    #[inline]
    fn close(&mut self, at: Time) {
        self.ns[self.stage as usize] += at.as_nanos().saturating_sub(self.since.as_nanos());
        self.since = at;
    }
}

/// What a command moved.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks to the initiator.
    Read,
    /// Blocks from the initiator.
    Write,
    /// Anything else; what it moves is of no account.
    Other,
}

/// The longest data of each size class but the last.
const SIZE_LIMITS: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Names of the size classes.
const SIZE_NAMES: [&str; SIZES] = ["<=4k", "<=16k", "<=64k", "<=256k", ">256k"];
const SIZES: usize = SIZE_LIMITS.len() + 1;
const CLASSES: usize = 2 * SIZES + 1;

/// Classes of commands: reads and writes by size, and everything else.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Class(u8);

impl Class {
    /// The class of a command that moves so many bytes.
    #[inline]
    pub fn of(kind: Kind, bytes: u32) -> Class {
        let size = SIZE_LIMITS.iter().filter(|&&limit| bytes > limit).count() as u8;
        match kind {
            Kind::Read => Class(size),
            Kind::Write => Class(SIZES as u8 + size),
            Kind::Other => Class(CLASSES as u8 - 1),
        }
    }

    /// `read`, `write` or `other`.
    pub fn operation(self) -> &'static str {
        match usize::from(self.0) / SIZES {
            0 => "read",
            1 => "write",
            _ => "other",
        }
    }

    /// Which sizes it holds; `any` for what is neither read nor write.
    pub fn size(self) -> &'static str {
        if usize::from(self.0) + 1 == CLASSES { "any" } else { SIZE_NAMES[usize::from(self.0) % SIZES] }
    }
}

/// Each power of two is cut into this many buckets, so that a value is known to an eighth.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Longer than 2^36 ns, 69 s, counts as that.
const TOP_BIT: u32 = 36;
const BUCKETS: usize = (TOP_BIT - SUB_BITS + 1) as usize * SUB;

/// Words of a histogram: its buckets, the sum of all values, the largest.
const WORDS: usize = BUCKETS + 2;
const SUM: usize = BUCKETS;
const MAX: usize = BUCKETS + 1;
/// Words of a class: the stages and the total.
const CLASS_WORDS: usize = (Stage::COUNT + 1) * WORDS;

#[inline]
fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let within = (ns >> shift) as usize & (SUB - 1);
    ((shift as usize + 1) * SUB + within).min(BUCKETS - 1)
}

/// The longest time of a bucket.
fn longest(bucket: usize) -> u64 {
    match (bucket / SUB).checked_sub(1) {
        None => bucket as u64,
        Some(shift) => (((SUB + bucket % SUB + 1) as u64) << shift) - 1,
    }
}

/// Counts a time in a histogram.
#[inline]
fn count(words: &mut [u64], ns: u64) {
    words[bucket(ns)] += 1;
    words[SUM] = words[SUM].saturating_add(ns);
    words[MAX] = words[MAX].max(ns);
}

/// The histograms of one logical unit on one shard.
pub struct Stages {
    /// Class after class. The kernel gives zeroed memory when it is first touched, so a class that
    /// nobody uses costs nothing.
    words: Box<[u64]>,
}

impl Default for Stages {
    fn default() -> Self {
        Stages { words: vec![0; CLASSES * CLASS_WORDS].into() }
    }
}

impl Stages {
    /// A command is answered: its laps end now.
    #[inline]
    pub fn record(&mut self, class: Class, laps: &Laps, clock: &mut StageClock) {
        let last = clock.stamp().as_nanos().saturating_sub(laps.since.as_nanos());
        let at = usize::from(class.0) * CLASS_WORDS;
        let Some(words) = self.words.get_mut(at..at + CLASS_WORDS) else { return };
        let mut total = 0;
        // One by one, and not copied: what was written a moment ago is read as it was written.
        for (stage, words) in words.chunks_exact_mut(WORDS).take(Stage::COUNT).enumerate() {
            let ns = laps.ns[stage] + if stage == laps.stage as usize { last } else { 0 };
            if ns > 0 {
                count(words, ns);
                total += ns;
            }
        }
        count(&mut words[Stage::COUNT * WORDS..], total);
    }

    /// What was recorded so far of the logical unit `lun`, by class; then everything is zero again if
    /// `reset`.
    pub fn read(&mut self, lun: u16, reset: bool) -> impl Iterator<Item = StageReading> + '_ {
        self.words.chunks_exact_mut(CLASS_WORDS).enumerate().filter_map(move |(class, words)| {
            // All have a total.
            if words[Stage::COUNT * WORDS..][..BUCKETS].iter().all(|&count| count == 0) {
                return None;
            }
            let mut spreads: Vec<_> = words.chunks_exact(WORDS).map(|words| Spread(words.into())).collect();
            // Who was not in a stage left no trace there.
            let commands = spreads[Stage::COUNT].count();
            for spread in &mut spreads[..Stage::COUNT] {
                spread.0[0] = commands - spread.count();
            }
            if reset {
                words.fill(0);
            }
            Some(StageReading { lun, class: Class(class as u8), spreads })
        })
    }
}

/// How the commands of one class fared on one logical unit.
#[derive(Clone, PartialEq, Eq)]
pub struct StageReading {
    /// The number of the logical unit.
    pub lun: u16,
    /// Which commands.
    pub class: Class,
    /// The stages in order, then the total.
    spreads: Vec<Spread>,
}

impl std::fmt::Debug for StageReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = self.named().map(|(name, spread)| (name, spread.mean_ns()));
        f.debug_struct("StageReading").field("lun", &self.lun).field("class", &self.class).finish()?;
        f.debug_map().entries(named).finish()
    }
}

impl StageReading {
    /// How long the commands were in one stage.
    pub fn stage(&self, stage: Stage) -> &Spread {
        &self.spreads[stage as usize]
    }

    /// How long the commands took from their reception to the post of their response.
    pub fn total(&self) -> &Spread {
        &self.spreads[Stage::COUNT]
    }

    /// The stages by name in their order, then `total`.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &Spread)> {
        Stage::ALL.iter().map(|stage| stage.name()).chain(["total"]).zip(&self.spreads)
    }

    /// What several shards recorded, one entry for each class of a logical unit, in their order.
    pub fn merged(readings: impl IntoIterator<Item = StageReading>) -> Vec<StageReading> {
        let mut merged = std::collections::BTreeMap::<(u16, u8), StageReading>::new();
        for reading in readings {
            match merged.entry((reading.lun, reading.class.0)) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(reading);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    for (into, more) in entry.get_mut().spreads.iter_mut().zip(reading.spreads) {
                        into.add(&more);
                    }
                }
            }
        }
        merged.into_values().collect()
    }
}

/// How a time spreads over many commands.
#[derive(Clone, PartialEq, Eq)]
pub struct Spread(Box<[u64]>);

impl Spread {
    fn add(&mut self, more: &Spread) {
        for (into, count) in self.0[..=SUM].iter_mut().zip(&more.0) {
            *into = into.saturating_add(*count);
        }
        self.0[MAX] = self.0[MAX].max(more.0[MAX]);
    }

    /// How many commands.
    pub fn count(&self) -> u64 {
        self.0[..BUCKETS].iter().sum()
    }

    /// The mean in nanoseconds; exact.
    pub fn mean_ns(&self) -> f64 {
        self.0[SUM] as f64 / self.count().max(1) as f64
    }

    /// The longest in nanoseconds; exact.
    pub fn max_ns(&self) -> u64 {
        self.0[MAX]
    }

    /// The time in nanoseconds that the share `quantile`, 0..=1, of commands did not exceed; up to an
    /// eighth too long, never too short.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let wanted = ((self.count() as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.0[..BUCKETS].iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        bucket.map_or(0, |bucket| longest(bucket).min(self.max_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    #[test]
    fn buckets_follow_each_other_and_hold_an_eighth() {
        for bucket_number in 0..BUCKETS - 1 {
            let top = longest(bucket_number);
            assert_eq!((bucket(top), bucket(top + 1)), (bucket_number, bucket_number + 1));
        }
        for ns in [8, 100, 1_000, 123_456, 1 << 35] {
            let top = longest(bucket(ns));
            assert!(ns <= top && top - ns <= ns / 8, "{ns} in a bucket up to {top}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn classes_are_direction_and_size() {
        let words = |kind, bytes| {
            let class = Class::of(kind, bytes);
            (class.operation(), class.size())
        };
        assert_eq!(words(Kind::Read, 512), ("read", "<=4k"));
        assert_eq!(words(Kind::Read, 4096), ("read", "<=4k"));
        assert_eq!(words(Kind::Write, 4097), ("write", "<=16k"));
        assert_eq!(words(Kind::Write, 1 << 20), ("write", ">256k"));
        assert_eq!(words(Kind::Other, 4096), ("other", "any"));
    }

    #[test]
    fn stages_add_up_to_the_total() {
        let mut clock = StageClock::new(None);
        let mut stages = Stages::default();
        let mut laps = Laps::new(at(1_000));
        for (ns, stage) in [(1_010, Stage::Read), (1_030, Stage::Backend), (1_060, Stage::Read)] {
            clock.turn(at(ns));
            laps.enter(stage, &mut clock);
        }
        clock.turn(at(1_100));
        laps.enter(Stage::Read, &mut clock);
        laps.enter(Stage::Response, &mut clock);
        clock.turn(at(1_150));
        stages.record(Class::of(Kind::Write, 4096), &laps, &mut clock);
        let read: Vec<_> = stages.read(3, true).collect();
        let [reading] = &read[..] else { panic!("{read:?}") };
        let max: Vec<_> = reading.named().map(|(name, spread)| (name, spread.max_ns())).collect();
        let expected = [
            ("receive", 10),
            ("buffer", 0),
            ("rdma_read", 60),
            ("backend", 30),
            ("response", 50),
            ("total", 150),
        ];
        assert_eq!(max, expected);
        assert_eq!(stages.read(3, false).count(), 0, "it was reset");
    }

    #[test]
    fn shards_merge_and_quantiles_are_not_too_short() {
        let reading = |from: u64| {
            let mut stages = Stages::default();
            for ns in from..from + 500 {
                let mut clock = StageClock::new(None);
                clock.turn(at(ns));
                stages.record(Class::of(Kind::Read, 512), &Laps::new(Time::ZERO), &mut clock);
            }
            stages.read(0, false).next().unwrap()
        };
        let merged = StageReading::merged([reading(1), reading(501)]);
        let [merged] = &merged[..] else { panic!("{merged:?}") };
        let total = merged.total();
        assert_eq!((total.count(), total.max_ns(), total.mean_ns()), (1000, 1000, 500.5));
        for (quantile, exact) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let ns = total.quantile_ns(quantile);
            assert!(ns >= exact && ns <= exact + exact / 8, "{quantile}: {ns}");
        }
        assert_eq!(merged.stage(Stage::Backend).quantile_ns(1.0), 0);
    }
}
