//! Single commands, one after the other, and what they tell of a logical unit.

use std::time::Duration;

use reactors::time::Time;

use super::session::{Session, SessionError, SessionState};
use super::slot::Outcome;
use super::submit::{Command, PostError, Transfer};
use crate::rdma::verbs::{Connections, Device};
use crate::srp::residual::ResidualKind;
use crate::wire::scsi::capacity::Capacity;
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::inquiry::{Peripheral, StandardInquiry};
use crate::wire::scsi::lun::Lun;
use crate::wire::scsi::sense::{Sense, SenseKey};
use crate::wire::scsi::status::Status;
use crate::wire::scsi::vpd::BlockLimits;
use crate::wire::srp::{RawLun, TaskAttribute};

/// How often a command is sent again because of a unit attention or a busy logical unit.
const MAX_TRIES: u32 = 64;
/// How long a busy logical unit is left alone.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Bytes asked for of INQUIRY data.
const INQUIRY_BYTES: u16 = 252;

/// The clock of a caller that has nothing else to do than to drive a session.
pub trait Pace {
    /// The time. Called once a turn; whoever drives other parts on the same thread does it here.
    fn now(&mut self) -> Time;

    /// Called when a turn found nothing to do: may wait until `until`, or until something
    /// arrives. Need not.
    fn rest(&mut self, until: Time) {
        let _ = until;
    }

    /// Called when a turn found something to do.
    fn worked(&mut self) {}

    /// After a turn.
    fn turn(&mut self, busy: bool, until: Time) {
        if busy { self.worked() } else { self.rest(until) }
    }
}

/// What a logical unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunInfo {
    /// Its number.
    pub lun: Lun,
    /// Vendor, product and revision of the INQUIRY data.
    pub name: String,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest transfer of one command in blocks; `None` if it does not say.
    pub max_transfer_blocks: Option<u32>,
    /// Most blocks that one UNMAP may name; 0 if it cannot unmap.
    pub max_unmap_blocks: u32,
}

impl LunInfo {
    /// Its size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes.into())
    }
}

/// Why a command did not work out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The session was lost.
    #[error("{0}")]
    Lost(SessionError),
    /// It took too long and was aborted.
    #[error("{what} took too long and was aborted")]
    Aborted {
        /// Which command.
        what: &'static str,
    },
    /// The target answered with a failure.
    #[error("{what} failed with {}", failure(*.status, sense.as_ref()))]
    Failed {
        /// Which command.
        what: &'static str,
        /// SCSI status.
        status: Option<Status>,
        /// Why.
        sense: Option<Sense>,
    },
    /// There is no such disk.
    #[error("LUN {0} does not exist or is not a disk")]
    NoDisk(Lun),
    /// It answered with data that make no sense.
    #[error("{0} gave data that make no sense")]
    Nonsense(&'static str),
}

/// Status and sense data in words.
pub fn failure(status: Option<Status>, sense: Option<&Sense>) -> String {
    match (status, sense) {
        (_, Some(sense)) => format!("{:?}, {}", sense.key, sense.asc),
        (Some(status), None) => format!("status {status:?}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// What to do about a status.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Good,
    /// A unit attention: something happened to the logical unit, the command can be repeated.
    Again,
    /// The logical unit has no room now.
    Later,
    /// It failed.
    Failed,
}

/// What to do about a command that the target answered.
pub fn judge(status: Option<Status>, sense: Option<&Sense>) -> Verdict {
    match (status, sense.map(|sense| sense.key)) {
        (Some(Status::Good), _) => Verdict::Good,
        (Some(Status::CheckCondition), Some(SenseKey::UnitAttention)) => Verdict::Again,
        (Some(Status::Busy | Status::TaskSetFull), _) => Verdict::Later,
        _ => Verdict::Failed,
    }
}

/// Waits until the session has logged in.
pub fn wait_live<D: Device + Connections>(
    session: &mut Session<D>,
    pace: &mut impl Pace,
) -> Result<(), SessionError> {
    loop {
        let busy = session.poll(pace.now());
        match session.state() {
            SessionState::Live => return Ok(()),
            SessionState::Connecting => {}
            _ => return Err(session.why_lost().cloned().unwrap_or(SessionError::Disconnected)),
        }
        pace.turn(busy > 0, session.next_deadline());
    }
}

/// Logs out and waits for the end. Of a session that was lost the target is told once.
pub fn close<D: Device + Connections>(session: &mut Session<D>, pace: &mut impl Pace) {
    session.close(pace.now());
    loop {
        let busy = session.poll(pace.now());
        if session.state() == SessionState::Closed {
            return;
        }
        pace.turn(busy > 0, session.next_deadline());
    }
}

/// Sends one command and waits for its end; unit attentions are cleared and busy units asked
/// again. Gives how many bytes of `data` came; no other command may be on its way.
pub fn execute<D: Device + Connections>(
    session: &mut Session<D>,
    pace: &mut impl Pace,
    what: &'static str,
    lun: Lun,
    cdb: &Cdb,
    data: &mut [u8],
) -> Result<usize, CommandError> {
    let command = Command {
        lun: RawLun(lun.emit()),
        cdb: cdb.emit(),
        transfer: if data.is_empty() { Transfer::None } else { Transfer::In(data.len() as u32) },
        attribute: TaskAttribute::Simple,
        user: 0,
    };
    let mut tries = 0;
    loop {
        let (status, sense, residual) = match once(session, pace, &command, data)? {
            Outcome::Status { status, sense, residual } => (status, sense, residual),
            Outcome::Aborted => return Err(CommandError::Aborted { what }),
            Outcome::Lost => return Err(lost(session)),
        };
        tries += 1;
        match judge(status, sense.as_ref()) {
            Verdict::Good => {
                let missing = if residual.kind == ResidualKind::Under { residual.len_bytes } else { 0 };
                return Ok(data.len().saturating_sub(missing as usize));
            }
            Verdict::Again if tries < MAX_TRIES => {}
            Verdict::Later if tries < MAX_TRIES => {
                let until = pace.now() + BUSY_PAUSE;
                while pace.now() < until {
                    session.poll(pace.now());
                    pace.rest(until);
                }
            }
            _ => return Err(CommandError::Failed { what, status, sense }),
        }
    }
}

fn lost<D: Device + Connections>(session: &Session<D>) -> CommandError {
    CommandError::Lost(session.why_lost().cloned().unwrap_or(SessionError::Disconnected))
}

fn once<D: Device + Connections>(
    session: &mut Session<D>,
    pace: &mut impl Pace,
    command: &Command,
    data: &mut [u8],
) -> Result<Outcome, CommandError> {
    loop {
        let now = pace.now();
        if session.state() != SessionState::Live {
            return Err(lost(session));
        }
        if let Some(slot) = session.reserve() {
            match session.post(now, slot, command) {
                Ok(()) => break,
                Err(PostError::TooLong) => {
                    session.release(slot);
                    return Err(CommandError::Nonsense("a transfer longer than the session's buffers"));
                }
                Err(PostError::Full | PostError::Gone) => session.release(slot),
            }
        }
        let busy = session.poll(now);
        pace.turn(busy > 0, session.next_deadline());
    }
    loop {
        if let Some(done) = session.next_completion() {
            if !data.is_empty() {
                let copied = session.look(done.slot, data.len(), |bytes| data.copy_from_slice(bytes));
                copied.expect("a transfer fits its buffer");
            }
            session.release(done.slot);
            return Ok(done.outcome);
        }
        let busy = session.poll(pace.now());
        pace.turn(busy > 0, session.next_deadline());
    }
}

/// Finds out what a logical unit is.
pub fn scan<D: Device + Connections>(
    session: &mut Session<D>,
    pace: &mut impl Pace,
    lun: Lun,
) -> Result<LunInfo, CommandError> {
    let mut data = [0; INQUIRY_BYTES as usize];
    let inquiry = Cdb::Inquiry { evpd: false, page: 0, allocation: INQUIRY_BYTES };
    let len = execute(session, pace, "INQUIRY", lun, &inquiry, &mut data)?;
    let inquiry = StandardInquiry::parse(&data[..len]).ok_or(CommandError::Nonsense("INQUIRY"))?;
    if inquiry.peripheral != Peripheral::Disk as u8 {
        return Err(CommandError::NoDisk(lun));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let name = [text(&inquiry.vendor), text(&inquiry.product), text(&inquiry.revision)].join(" ");

    execute(session, pace, "TEST UNIT READY", lun, &Cdb::TestUnitReady, &mut [])?;

    let mut data = [0; Capacity::SIXTEEN_BYTES];
    let capacity = Cdb::ReadCapacity16 { lba: 0, allocation: Capacity::SIXTEEN_BYTES as u32, partial: false };
    let len = execute(session, pace, "READ CAPACITY(16)", lun, &capacity, &mut data)?;
    let capacity = Capacity::parse_16(&data[..len]).ok_or(CommandError::Nonsense("READ CAPACITY(16)"))?;
    if capacity.block_bytes == 0 || capacity.blocks == 0 {
        return Err(CommandError::Nonsense("READ CAPACITY(16)"));
    }

    // Not every target has the page; then it names no limit.
    let mut data = [0; 64];
    let limits = Cdb::Inquiry { evpd: true, page: 0xb0, allocation: 64 };
    let limits = match execute(session, pace, "INQUIRY", lun, &limits, &mut data) {
        Ok(len) => BlockLimits::parse(&data[..len]),
        Err(CommandError::Failed { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(LunInfo {
        lun,
        name,
        blocks: capacity.blocks,
        block_bytes: capacity.block_bytes,
        max_transfer_blocks: limits.map(|limits| limits.max_transfer).filter(|&blocks| blocks > 0),
        max_unmap_blocks: limits.map_or(0, |limits| limits.max_unmap),
    })
}
