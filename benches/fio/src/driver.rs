//! A session on one logical unit that takes I/Os by offset and length and gives back error numbers.
//!
//! It spins: I/Os are sent and their ends noticed in [`Driver::poll`], which fio calls in a loop, and what was
//! submitted since the last time leaves together. Who takes ended I/Os one by one and submits a new one for each
//! is not to poll between: see [`Driver::commit`]. Unit attentions are cleared and busy logical units asked
//! again, as the kernel does below a block device.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use anyhow::Context;
use reactors::memory::Region;
use reactors::reactor::Idle;
use reactors::time::Time;
use srpoll::cli::endpoint::Poll;
use srpoll::initiator::scan::{LunInfo, Pace, Verdict, close, failure, judge, scan, wait_live};
use srpoll::initiator::{
    Command, Outcome, PostError, Session, SessionConfig, SessionState, SlotId, Transfer,
};
use srpoll::rdma::verbs::{Connections, Device};
use srpoll::wire::scsi::cdb::{Cdb, ReadWrite};
use srpoll::wire::scsi::sense::{Asc, Sense, SenseKey};
use srpoll::wire::scsi::unmap::{self, UnmapDescriptor};
use srpoll::wire::srp::{RawLun, TaskAttribute};

use crate::options::Options;

/// How long an I/O that met a busy logical unit waits, and how often.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const MAX_TRIES: u32 = 5000;
/// The session's own buffers carry only what finds out about the logical unit, and lists of UNMAP.
const OWN_BUFFER_BYTES: u32 = 4096;
/// So many I/Os are sent without waiting for more: the target has work, and a send is paid for.
const ENOUGH: u32 = 16;
/// How many failures are told in words.
const TOLD: u32 = 8;

/// What an I/O does; the numbers are those of `enum srpoll_direction`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read = 0,
    Write = 1,
    /// SYNCHRONIZE CACHE of the whole logical unit.
    Sync = 2,
    /// UNMAP.
    Trim = 3,
}

impl Direction {
    pub(crate) fn of(number: i32) -> Option<Direction> {
        let all = [Direction::Read, Direction::Write, Direction::Sync, Direction::Trim];
        all.into_iter().find(|it| *it as i32 == number)
    }

    /// Whether it has data in the caller's memory.
    fn has_data(self) -> bool {
        matches!(self, Direction::Read | Direction::Write)
    }

    fn name(self) -> &'static str {
        match self {
            Direction::Read => "READ",
            Direction::Write => "WRITE",
            Direction::Sync => "SYNCHRONIZE CACHE",
            Direction::Trim => "UNMAP",
        }
    }
}

/// An I/O that has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// What the caller gave with it.
    pub(crate) user: u64,
    /// Zero or an error number.
    pub(crate) error: i32,
}

/// An I/O on its way.
#[derive(Copy, Clone, Debug)]
struct Io {
    direction: Direction,
    offset: u64,
    /// Where in the lent memory its data are.
    at: usize,
    len_bytes: u64,
    user: u64,
    tries: u32,
    not_before: Time,
}

/// A session that does I/O on one logical unit, over whatever device.
pub(crate) struct Driver<D> {
    session: Session<D>,
    pace: Poll,
    info: LunInfo,
    memory: Option<Region>,
    /// I/Os by the index of their request.
    flying: Vec<Option<Io>>,
    again: VecDeque<Io>,
    done: VecDeque<Done>,
    /// How many I/Os were submitted since the last poll.
    unsent: u32,
    /// How many I/Os were taken since then, and not followed by new ones.
    taken: u32,
    words: VecDeque<String>,
    told: u32,
}

impl<D: Device + Connections> Driver<D> {
    /// Logs in to `target` over `device`; `habits` is the session of its kind.
    pub(crate) fn open(
        options: &Options,
        device: D,
        habits: SessionConfig,
        target: &dyn Display,
    ) -> anyhow::Result<Driver<D>> {
        let config = SessionConfig {
            channels: options.channels,
            depth: options.depth.div_ceil(options.channels),
            max_io_bytes: OWN_BUFFER_BYTES,
            ..habits
        };
        let mut pace = Poll::new(Idle::Spin, &device)?;
        let mut session = Session::new(device, config, fastrand::Rng::new())?;
        session.start(pace.now());
        wait_live(&mut session, &mut pace)
            .with_context(|| format!("cannot log in to {target} as {}", config.initiator))?;
        let info = match scan(&mut session, &mut pace, options.lun) {
            Ok(info) => info,
            Err(why) => {
                close(&mut session, &mut pace);
                return Err(why.into());
            }
        };
        let requests = (config.channels * config.depth) as usize;
        Ok(Driver {
            session,
            pace,
            info,
            memory: None,
            flying: vec![None; requests],
            again: VecDeque::with_capacity(requests),
            done: VecDeque::with_capacity(requests),
            unsent: 0,
            taken: 0,
            words: VecDeque::new(),
            told: 0,
        })
    }

    /// What the logical unit is.
    pub(crate) fn info(&self) -> &LunInfo {
        &self.info
    }

    /// How many channels the session came to have.
    pub(crate) fn channels(&self) -> u32 {
        self.session.channels()
    }

    /// The longest I/O in bytes.
    pub(crate) fn max_io_bytes(&self) -> u32 {
        self.info.max_transfer_blocks.map_or(u32::MAX, |most| most.saturating_mul(self.info.block_bytes))
    }

    /// The longest UNMAP in bytes; 0 if the logical unit has none.
    pub(crate) fn max_trim_bytes(&self) -> u64 {
        u64::from(self.info.max_unmap_blocks) * u64::from(self.info.block_bytes)
    }

    /// Registers memory for data; gives its address.
    pub(crate) fn memory(&mut self, len_bytes: usize) -> anyhow::Result<u64> {
        let region = self.session.lend(len_bytes.max(1))?;
        let addr = region.addr();
        self.memory = Some(region);
        Ok(addr)
    }

    /// Takes an I/O over `len` bytes at address `data`, to be sent by the next poll. The error is a number: EAGAIN without room,
    /// EINVAL for what is no whole blocks, EFAULT for data outside the memory.
    pub(crate) fn submit(
        &mut self,
        direction: Direction,
        offset: u64,
        data: u64,
        len: u64,
        user: u64,
    ) -> Result<(), i32> {
        let most = match direction {
            Direction::Read | Direction::Write => self.max_io_bytes().into(),
            Direction::Trim => self.max_trim_bytes(),
            Direction::Sync => 0,
        };
        let block = u64::from(self.info.block_bytes);
        let whole = len.is_multiple_of(block) && offset.is_multiple_of(block);
        if direction != Direction::Sync && (len == 0 || !whole || len > most) {
            return Err(libc::EINVAL);
        }
        let at = if direction.has_data() {
            let start = self.memory.as_ref().map_or(u64::MAX, Region::addr);
            data.checked_sub(start).ok_or(libc::EFAULT)? as usize
        } else {
            0
        };
        let io = Io { direction, offset, at, len_bytes: len, user, tries: 0, not_before: Time::ZERO };
        if self.session.state() != SessionState::Live {
            return Err(libc::ENOTCONN);
        }
        // Those that wait already go first.
        if !self.again.is_empty() {
            return Err(libc::EAGAIN);
        }
        let Some(slot) = self.session.reserve() else { return Err(libc::EAGAIN) };
        let now = self.pace.now();
        self.post(now, slot, io)
    }

    fn post(&mut self, now: Time, slot: SlotId, io: Io) -> Result<(), i32> {
        let block = u64::from(self.info.block_bytes);
        let (lba, blocks) = (io.offset / block, (io.len_bytes / block) as u32);
        let rw = ReadWrite::plain(lba, blocks);
        let (cdb, transfer) = match io.direction {
            Direction::Read => (Cdb::Read(rw), Transfer::In(io.len_bytes as u32)),
            Direction::Write => (Cdb::Write(rw), Transfer::Out(io.len_bytes as u32)),
            Direction::Trim => {
                let list = unmap::emit_one(UnmapDescriptor { lba, blocks });
                let filled = self.session.fill(slot, list.len(), |bytes| bytes.copy_from_slice(&list));
                filled.map_err(|_| libc::EFAULT)?;
                let list_bytes = list.len() as u16;
                (Cdb::Unmap { anchor: false, list_bytes }, Transfer::Out(list_bytes.into()))
            }
            Direction::Sync => {
                // No blocks: all of them.
                let all = Cdb::SynchronizeCache { sixteen: true, lba: 0, blocks: 0, immed: false };
                (all, Transfer::None)
            }
        };
        let lun = RawLun(self.info.lun.emit());
        let command =
            Command { lun, cdb: cdb.emit(), transfer, attribute: TaskAttribute::Simple, user: io.user };
        let posted = if io.direction.has_data() {
            self.session.post_lent(now, slot, &command, io.at)
        } else {
            self.session.post(now, slot, &command)
        };
        match posted {
            Ok(()) => {
                self.flying[slot.index()] = Some(io);
                self.unsent += 1;
                self.taken = self.taken.saturating_sub(1);
                Ok(())
            }
            Err(why) => {
                self.session.release(slot);
                Err(match why {
                    PostError::Full => libc::EAGAIN,
                    PostError::TooLong => libc::EFAULT,
                    PostError::Gone => libc::ENOTCONN,
                })
            }
        }
    }

    /// Sends what was submitted, unless more of it is about to come and leave in the same call: for each I/O
    /// that has ended and waits to be taken, or was taken and had no successor yet.
    pub(crate) fn commit(&mut self) {
        let more = !self.done.is_empty() || self.taken > 0;
        if self.unsent > 0 && (!more || self.unsent >= ENOUGH) {
            self.poll();
        }
    }

    /// Moves everything.
    pub(crate) fn poll(&mut self) {
        (self.unsent, self.taken) = (0, 0);
        let now = self.pace.now();
        self.session.poll(now);
        while let Some(completion) = self.session.next_completion() {
            let slot = completion.slot;
            self.session.release(slot);
            if let Some(io) = self.flying[slot.index()].take() {
                self.ended(now, io, &completion.outcome);
            }
        }
        if !self.again.is_empty() {
            self.send_again(now);
        }
    }

    fn ended(&mut self, now: Time, io: Io, outcome: &Outcome) {
        if outcome.is_good() {
            self.done.push_back(Done { user: io.user, error: 0 });
            return;
        }
        let (error, words) = match outcome {
            Outcome::Status { status, sense, .. } => match judge(*status, sense.as_ref()) {
                Verdict::Again if io.tries < MAX_TRIES => return self.retry(io, now),
                Verdict::Later if io.tries < MAX_TRIES => return self.retry(io, now + BUSY_PAUSE),
                Verdict::Good => (libc::EIO, "transferred another length than asked for".to_owned()),
                _ => (errno_of(sense.as_ref()), format!("failed with {}", failure(*status, sense.as_ref()))),
            },
            Outcome::Aborted => (libc::ETIMEDOUT, "took too long and was aborted".to_owned()),
            Outcome::Lost => {
                let why = self.session.why_lost().map_or(String::new(), |why| format!(": {why}"));
                (libc::ENOTCONN, format!("went with the session{why}"))
            }
        };
        self.done.push_back(Done { user: io.user, error });
        if self.told < TOLD {
            self.told += 1;
            let (lun, what) = (self.info.lun, io.direction.name());
            self.words.push_back(format!("LUN {lun}: {what} at offset {} {words}", io.offset));
        }
    }

    fn retry(&mut self, io: Io, not_before: Time) {
        self.again.push_back(Io { tries: io.tries + 1, not_before, ..io });
    }

    fn send_again(&mut self, now: Time) {
        for _ in 0..self.again.len() {
            let Some(io) = self.again.pop_front() else { return };
            let live = self.session.state() == SessionState::Live;
            let slot = if live && io.not_before <= now { self.session.reserve() } else { None };
            let posted = match slot {
                Some(slot) => self.post(now, slot, io),
                None if live => Err(libc::EAGAIN),
                None => Err(libc::ENOTCONN),
            };
            match posted {
                Ok(()) => {}
                Err(libc::EAGAIN) => self.again.push_back(io),
                Err(error) => self.done.push_back(Done { user: io.user, error }),
            }
        }
    }

    /// The next I/O that has ended.
    pub(crate) fn next_done(&mut self) -> Option<Done> {
        let done = self.done.pop_front()?;
        self.taken += 1;
        Some(done)
    }

    /// The next failure in words, of the first few.
    pub(crate) fn next_word(&mut self) -> Option<String> {
        self.words.pop_front()
    }

    /// Logs out.
    pub(crate) fn close(mut self) {
        close(&mut self.session, &mut self.pace);
    }
}

/// The error number that a program would see on a block device.
fn errno_of(sense: Option<&Sense>) -> i32 {
    match sense {
        Some(Sense { asc: Asc::LBA_OUT_OF_RANGE, .. }) => libc::ENOSPC,
        Some(Sense { key: SenseKey::DataProtect, .. }) => libc::EROFS,
        Some(Sense { key: SenseKey::IllegalRequest, .. }) => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests;
