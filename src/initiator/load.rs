//! A workload on one logical unit: what `perf` runs.
//!
//! With verification every piece of the logical unit (an I/O's length, aligned) has at most one
//! I/O at a time, is written before it is read, and is read back at the end.

use std::num::NonZeroU64;
use std::time::Duration;

use hdrhistogram::Histogram;
use reactors::time::Time;

use super::ledger::{Claim, Ledger};
use super::scan::{CommandError, LunInfo, Pace, Verdict, execute, failure, judge};
use super::schedule::Schedule;
use super::session::{Session, SessionError, SessionState};
use super::slot::{Completion, Outcome, SlotId};
use super::stamp::{Found, Stamp, look};
use super::submit::{Command, PostError, Transfer};
use crate::rdma::verbs::{Connections, Device};
use crate::wire::scsi::cdb::{Cdb, ReadWrite};
use crate::wire::srp::{RawLun, TaskAttribute};

/// Longest latency that the histogram tells apart, in nanoseconds.
const MAX_LATENCY_NS: u64 = 120_000_000_000;
/// Most pieces that verification keeps account of: 64 MiB of table.
pub const MAX_VERIFIED_PIECES: u64 = 1 << 24;
/// How often an I/O is sent again because the logical unit is busy, before that is an error.
const MAX_TRIES: u32 = 1000;
/// How long an I/O that met a busy logical unit waits.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// How many pieces are tried to find one that is not busy.
const PICKS: u32 = 32;
/// How many failures are told in words.
const TOLD: usize = 8;

/// Which I/Os, and where.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// From the start on, and again.
    Sequential,
    /// Anywhere.
    Random,
}

/// When a run ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After a time.
    After(Duration),
    /// After so many I/Os.
    Ios(u64),
}

/// A workload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Where.
    pub pattern: Pattern,
    /// How many of 100 I/Os are reads.
    pub read_percent: u8,
    /// Bytes of an I/O: a multiple of the block size.
    pub io_bytes: u32,
    /// I/Os at a time.
    pub depth: u32,
    /// When it ends.
    pub stop: Stop,
    /// Whether all data are checked.
    pub verify: bool,
    /// Seed of all choices.
    pub seed: u64,
    /// Marks what this run writes.
    pub run: u64,
}

/// Why a workload did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It does not fit the logical unit.
    #[error("{0}")]
    Unfit(String),
    /// The session was lost.
    #[error("{0}")]
    Lost(SessionError),
    /// A command failed before the run.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// I/Os of the run, without the last reading.
    pub ios: u64,
    /// Those that were reads.
    pub reads: u64,
    /// Bytes of those I/Os.
    pub bytes: u64,
    /// How long the run took.
    pub elapsed: Duration,
    /// Their latencies in nanoseconds: from the last time that they were sent, or from when they were due.
    pub latency: Histogram<u64>,
    /// I/Os that failed, and data that were wrong.
    pub errors: u64,
    /// The first of them, in words.
    pub told: Vec<String>,
    /// I/Os sent again: unit attentions, busy units, aborts, lost sessions.
    pub retries: u64,
    /// I/Os whose data were written by this run, or read and compared; the last reading included.
    pub verified: u64,
    /// Pieces that could not be read back, because their last write failed.
    pub unknown: u64,
    /// I/Os that were due before the end of a run at a rate, and were not sent.
    pub unsent: u64,
}

/// Who watches a run.
pub trait Watch {
    /// Asked once a turn: whether the run shall end early.
    fn interrupted(&mut self) -> bool {
        false
    }

    /// Called once a turn of the measured part.
    fn look(&mut self, now: Time, report: &Report) {
        let _ = (now, report);
    }

    /// The measured part is over; what was written is read back now, if it is to be verified.
    fn measured(&mut self) {}
}

/// Nobody watches.
impl Watch for () {}

/// An I/O on its way.
#[derive(Copy, Clone, Debug)]
struct Io {
    piece: u64,
    write: bool,
    /// What is written, or expected.
    generation: u32,
    tries: u32,
    /// When it was to be sent, at a rate.
    due: Option<Time>,
    /// Not to be sent before.
    not_before: Time,
}

/// Where a run is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// No new I/Os; those on the way end.
    Draining,
    /// Everything written is read back.
    ReadingBack,
    Over,
}

/// A running workload. All its memory is allocated at its start.
pub struct Load {
    workload: Workload,
    lun: RawLun,
    lun_number: u16,
    block_bytes: u32,
    io_blocks: u32,
    pieces: u64,
    rng: fastrand::Rng,
    next_sequential: u64,
    ledger: Option<Ledger>,
    schedule: Option<Schedule>,
    batch: u32,
    phase: Phase,
    started: Time,
    /// I/Os by the index of their request.
    flying: Vec<Option<Io>>,
    in_flight: u32,
    again: Vec<Io>,
    issued: u64,
    /// Which request buffers hold stamped data of ours (without verification they are reused).
    stamped: Vec<bool>,
    read_back: u64,
    report: Report,
}

impl Load {
    /// A workload on a logical unit, to be run over a session whose requests are numbered below
    /// `requests`.
    pub fn new(workload: Workload, info: &LunInfo, requests: usize) -> Result<Self, LoadError> {
        let unfit = |text: String| Err(LoadError::Unfit(text));
        let io_blocks = workload.io_bytes / info.block_bytes;
        if workload.io_bytes == 0 || !workload.io_bytes.is_multiple_of(info.block_bytes) {
            return unfit(format!(
                "an I/O of {} bytes is no multiple of the block size {}",
                workload.io_bytes, info.block_bytes
            ));
        }
        if info.max_transfer_blocks.is_some_and(|most| io_blocks > most) {
            return unfit(format!(
                "an I/O of {} bytes is longer than the logical unit takes ({} blocks)",
                workload.io_bytes,
                info.max_transfer_blocks.unwrap_or(0)
            ));
        }
        let all = info.blocks / u64::from(io_blocks);
        if all == 0 {
            return unfit(format!("the logical unit is shorter than an I/O of {} bytes", workload.io_bytes));
        }
        let pieces = if workload.verify { all.min(MAX_VERIFIED_PIECES) } else { all };
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("bounds of a histogram");
        Ok(Load {
            workload,
            lun: RawLun(info.lun.emit()),
            lun_number: info.lun.get(),
            block_bytes: info.block_bytes,
            io_blocks,
            pieces,
            rng: fastrand::Rng::with_seed(workload.seed),
            next_sequential: 0,
            ledger: workload.verify.then(|| Ledger::new(pieces as usize)),
            schedule: None,
            batch: 1,
            phase: Phase::Running,
            started: Time::ZERO,
            flying: vec![None; requests],
            in_flight: 0,
            again: Vec::with_capacity(requests),
            issued: 0,
            stamped: vec![false; requests],
            read_back: 0,
            report: Report {
                ios: 0,
                reads: 0,
                bytes: 0,
                elapsed: Duration::ZERO,
                latency,
                errors: 0,
                told: Vec::with_capacity(TOLD),
                retries: 0,
                verified: 0,
                unknown: 0,
                unsent: 0,
            },
        })
    }

    /// So many I/Os a second, due at even distances whether or not earlier ones have ended, as far as
    /// the depth allows.
    pub fn at_rate(self, per_second: NonZeroU64) -> Self {
        Load { schedule: Some(Schedule::new(per_second)), ..self }
    }

    /// New I/Os are sent `count` at a time, once so many have ended.
    pub fn in_batches(self, count: u32) -> Self {
        Load { batch: count.clamp(1, self.workload.depth), ..self }
    }

    /// How many bytes of the logical unit the workload touches.
    pub fn reach_bytes(&self) -> u64 {
        self.pieces * u64::from(self.workload.io_bytes)
    }

    /// Runs to the end.
    pub fn run<D: Device + Connections>(
        mut self,
        session: &mut Session<D>,
        pace: &mut impl Pace,
        watch: &mut impl Watch,
    ) -> Result<Report, LoadError> {
        self.started = pace.now();
        if let Some(schedule) = &mut self.schedule {
            schedule.start(self.started);
        }
        loop {
            let mut busy = session.poll(pace.now());
            let now = pace.now();
            while let Some(completion) = session.next_completion() {
                busy += 1;
                self.completed(session, now, &completion);
            }
            if !matches!(
                session.state(),
                SessionState::Live | SessionState::Waiting | SessionState::Connecting
            ) {
                let why = session.why_lost().cloned().unwrap_or(SessionError::Disconnected);
                return Err(LoadError::Lost(why));
            }
            self.move_phase(now, watch);
            if self.phase == Phase::Over {
                self.report.unknown = self.ledger.as_ref().map_or(0, |ledger| ledger.unknown() as u64);
                return Ok(self.report);
            }
            let posted = self.fill_up(session, pace);
            pace.turn(busy > 0 || posted, session.next_deadline().min(self.next_change(now)));
        }
    }

    /// When something changes although nothing arrives.
    fn next_change(&self, now: Time) -> Time {
        let end = match (self.phase, self.workload.stop) {
            (Phase::Running, Stop::After(time)) => self.started + time,
            _ => Time::NEVER,
        };
        // One that is due already waits for a request.
        let due = self.schedule.filter(|_| self.phase == Phase::Running).map(|schedule| schedule.next());
        let end = end.min(due.filter(|&at| at > now).unwrap_or(Time::NEVER));
        // Those that are due already wait for a request, which comes with something else.
        let later = self.again.iter().map(|io| io.not_before).filter(|&at| at > now);
        end.min(later.min().unwrap_or(Time::NEVER))
    }

    fn move_phase(&mut self, now: Time, watch: &mut impl Watch) {
        if self.phase == Phase::Running {
            let over = match self.workload.stop {
                Stop::After(time) => now >= self.started + time,
                Stop::Ios(count) => self.issued >= count,
            };
            watch.look(now, &self.report);
            if over || watch.interrupted() {
                self.report.unsent = self.schedule.map_or(0, |schedule| schedule.behind(now));
                self.phase = Phase::Draining;
            }
        }
        if self.phase == Phase::Draining && self.in_flight == 0 && self.again.is_empty() {
            self.report.elapsed = now.since(self.started);
            watch.measured();
            self.phase = if self.ledger.is_some() { Phase::ReadingBack } else { Phase::Over };
        }
        let all = self.read_back >= self.pieces;
        if self.phase == Phase::ReadingBack && all && self.in_flight == 0 && self.again.is_empty() {
            self.phase = Phase::Over;
        }
    }

    /// Posts as many I/Os as there is room for; whether there were any.
    fn fill_up<D: Device + Connections>(&mut self, session: &mut Session<D>, pace: &mut impl Pace) -> bool {
        let mut posted = false;
        let free = self.workload.depth - self.in_flight;
        if self.phase == Phase::Running && free < self.batch && self.in_flight > 0 {
            return false;
        }
        while self.in_flight < self.workload.depth {
            let Some(slot) = session.reserve() else { break };
            let now = pace.now();
            let Some(io) = self.next_io(now) else {
                session.release(slot);
                break;
            };
            if !self.post(session, now, slot, io) {
                break;
            }
            posted = true;
        }
        posted
    }

    /// The next I/O, claimed; `None` if there is none now.
    fn next_io(&mut self, now: Time) -> Option<Io> {
        if let Some(index) = self.again.iter().position(|io| io.not_before <= now) {
            return Some(self.again.swap_remove(index));
        }
        match self.phase {
            Phase::Running => {
                if matches!(self.workload.stop, Stop::Ios(count) if self.issued >= count) {
                    return None;
                }
                let due = self.schedule.map(|schedule| schedule.next());
                if due.is_some_and(|due| due > now) {
                    return None;
                }
                let io = self.pick()?;
                self.issued += 1;
                if let Some(schedule) = &mut self.schedule {
                    schedule.take();
                }
                Some(Io { due, ..io })
            }
            Phase::ReadingBack => {
                let ledger = self.ledger.as_mut()?;
                while self.read_back < self.pieces {
                    let piece = self.read_back;
                    self.read_back += 1;
                    if let Some(generation) = ledger.claim_written(piece as usize) {
                        let not_before = now;
                        let tries = 0;
                        return Some(Io { piece, write: false, generation, tries, due: None, not_before });
                    }
                }
                None
            }
            Phase::Draining | Phase::Over => None,
        }
    }

    fn pick(&mut self) -> Option<Io> {
        let write = match self.workload.read_percent {
            0 => true,
            100 => false,
            percent => self.rng.u8(0..100) >= percent,
        };
        for _ in 0..PICKS {
            let piece = match self.workload.pattern {
                Pattern::Random => self.rng.u64(0..self.pieces),
                Pattern::Sequential => {
                    let piece = self.next_sequential;
                    self.next_sequential = if piece + 1 < self.pieces { piece + 1 } else { 0 };
                    piece
                }
            };
            let io = |write, generation| {
                let not_before = Time::ZERO;
                Io { piece, write, generation, tries: 0, due: None, not_before }
            };
            match self.ledger.as_mut().map(|ledger| ledger.claim(piece as usize, write)) {
                None => return Some(io(write, 1)),
                Some(Claim::Read(generation)) => return Some(io(false, generation)),
                Some(Claim::Write(generation)) => return Some(io(true, generation)),
                Some(Claim::Busy) => {}
            }
        }
        None
    }

    fn stamp(&self, io: &Io, block: u32) -> Stamp {
        let offset =
            io.piece * u64::from(self.workload.io_bytes) + u64::from(block) * u64::from(self.block_bytes);
        Stamp { run: self.workload.run, lun: self.lun_number, offset, generation: io.generation }
    }

    fn post<D: Device + Connections>(
        &mut self,
        session: &mut Session<D>,
        now: Time,
        slot: SlotId,
        io: Io,
    ) -> bool {
        let len = self.workload.io_bytes;
        let rw = ReadWrite::plain(io.piece * u64::from(self.io_blocks), self.io_blocks);
        let (cdb, transfer) =
            if io.write { (Cdb::Write(rw), Transfer::Out(len)) } else { (Cdb::Read(rw), Transfer::In(len)) };
        // Without verification a buffer is stamped once and written wherever: marked as ours.
        if io.write && (self.ledger.is_some() || !self.stamped[slot.index()]) {
            let filled = session.fill(slot, len as usize, |bytes| {
                for (block, bytes) in (0..).zip(bytes.chunks_exact_mut(self.block_bytes as usize)) {
                    self.stamp(&io, block).write(bytes);
                }
            });
            filled.expect("an I/O fits its buffer");
        }
        self.stamped[slot.index()] = io.write;
        let command =
            Command { lun: self.lun, cdb: cdb.emit(), transfer, attribute: TaskAttribute::Simple, user: 0 };
        match session.post(now, slot, &command) {
            Ok(()) => {
                self.flying[slot.index()] = Some(io);
                self.in_flight += 1;
                true
            }
            Err(why) => {
                debug_assert_ne!(why, PostError::TooLong, "buffers are as long as I/Os");
                session.release(slot);
                self.again.push(Io { not_before: now, ..io });
                false
            }
        }
    }

    fn completed<D: Device + Connections>(
        &mut self,
        session: &mut Session<D>,
        now: Time,
        completion: &Completion,
    ) {
        let slot = completion.slot;
        let Some(io) = self.flying[slot.index()].take() else {
            session.release(slot);
            return;
        };
        self.in_flight -= 1;
        match completion.outcome {
            Outcome::Status { status, sense, .. } => match judge(status, sense.as_ref()) {
                Verdict::Good if completion.outcome.is_good() => {
                    self.good(session, now, completion, &io);
                }
                Verdict::Again => self.retry(&io, now, Duration::ZERO),
                Verdict::Later if io.tries < MAX_TRIES => self.retry(&io, now, BUSY_PAUSE),
                Verdict::Good => self.failed(&io, "transferred another length than asked for".to_owned()),
                _ => self.failed(&io, format!("failed with {}", failure(status, sense.as_ref()))),
            },
            // What it did is unknown: done again with the same data, the result is the same.
            Outcome::Aborted | Outcome::Lost => self.retry(&io, now, Duration::ZERO),
        }
        session.release(slot);
    }

    fn good<D: Device + Connections>(
        &mut self,
        session: &mut Session<D>,
        now: Time,
        completion: &Completion,
        io: &Io,
    ) {
        if self.phase != Phase::ReadingBack {
            self.report.ios += 1;
            self.report.reads += u64::from(!io.write);
            self.report.bytes += u64::from(self.workload.io_bytes);
            let nanos = now.since(io.due.unwrap_or(completion.posted)).as_nanos() as u64;
            self.report.latency.saturating_record(nanos.max(1));
        }
        let Some(ledger) = &mut self.ledger else { return };
        let piece = io.piece as usize;
        self.report.verified += 1;
        if io.write {
            ledger.end_write(piece, io.generation, true);
            return;
        }
        ledger.end_read(piece);
        let len = self.workload.io_bytes as usize;
        let block_bytes = self.block_bytes as usize;
        let checked = session.look(completion.slot, len, |bytes| {
            (0..)
                .zip(bytes.chunks_exact(block_bytes))
                .find_map(|(block, bytes)| self.stamp(io, block).check(bytes).err())
        });
        if let Some(mismatch) = checked.expect("an I/O fits its buffer") {
            self.report.verified -= 1;
            self.tell(format!("LUN {}: {mismatch}", self.lun_number));
        }
    }

    fn retry(&mut self, io: &Io, now: Time, pause: Duration) {
        self.report.retries += 1;
        self.again.push(Io { tries: io.tries + 1, not_before: now + pause, ..*io });
    }

    fn failed(&mut self, io: &Io, how: String) {
        if let Some(ledger) = &mut self.ledger {
            if io.write {
                ledger.end_write(io.piece as usize, io.generation, false);
            } else {
                ledger.end_read(io.piece as usize);
            }
        }
        let what = if io.write { "write" } else { "read" };
        let offset = io.piece * u64::from(self.workload.io_bytes);
        self.tell(format!("LUN {}: a {what} at offset {offset} {how}", self.lun_number));
    }

    fn tell(&mut self, text: String) {
        self.report.errors += 1;
        if self.report.told.len() < TOLD {
            self.report.told.push(text);
        }
    }
}

/// Up to this size a logical unit is looked at whole.
const WHOLE_BYTES: u64 = 64 << 20;
/// Of a larger one: so much at the start, and at the end,
const EDGE_BYTES: u64 = 4 << 20;
/// and so many places between.
const SAMPLES: u32 = 256;

/// The first place that holds neither zeros nor stamped blocks, in bytes, if one is found: the
/// logical unit has somebody's data. A large one is looked at where a file system would show:
/// its start, its end, and at random places.
pub fn find_foreign<D: Device + Connections>(
    session: &mut Session<D>,
    pace: &mut impl Pace,
    info: &LunInfo,
    seed: u64,
) -> Result<Option<u64>, CommandError> {
    let most = session.config().max_io_bytes / info.block_bytes;
    let most = most.min(info.max_transfer_blocks.unwrap_or(u32::MAX)).max(1);
    let mut data = vec![0; most as usize * info.block_bytes as usize];
    let mut look_at = |from: u64, blocks: u64| -> Result<Option<u64>, CommandError> {
        let mut lba = from;
        while lba < from + blocks {
            let count = u64::from(most).min(from + blocks - lba) as u32;
            let bytes = &mut data[..count as usize * info.block_bytes as usize];
            let cdb = Cdb::Read(ReadWrite::plain(lba, count));
            execute(session, pace, "READ", info.lun, &cdb, bytes)?;
            for (block, bytes) in (lba..).zip(bytes.chunks_exact(info.block_bytes as usize)) {
                if look(bytes) == Found::Foreign {
                    return Ok(Some(block * u64::from(info.block_bytes)));
                }
            }
            lba += u64::from(count);
        }
        Ok(None)
    };
    if info.len_bytes() <= WHOLE_BYTES {
        return look_at(0, info.blocks);
    }
    let edge = EDGE_BYTES / u64::from(info.block_bytes);
    for from in [0, info.blocks - edge] {
        if let Some(found) = look_at(from, edge)? {
            return Ok(Some(found));
        }
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..SAMPLES {
        if let Some(found) = look_at(rng.u64(0..info.blocks), 1)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
