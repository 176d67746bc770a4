//! One request, from its reservation to its release.

use std::fmt;

use reactors::time::Time;

use crate::srp::residual::Residual;
use crate::wire::scsi::sense::Sense;
use crate::wire::scsi::status::Status;
use crate::wire::srp::{RawLun, Tag};

/// Where a request is. Its buffers belong to the device from `Posted` until the target has answered,
/// which shows that it has the SEND, too. A request that ended by task management is done when its SEND
/// has completed as well: it may not have arrived yet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// The caller's: to be filled and posted, or released.
    Held,
    /// Posted; neither the SEND has completed nor the answer come.
    Posted,
    /// The SEND has completed; the answer has not come.
    Sent,
    /// The answer has come and is the caller's; the SEND has not completed.
    Answered,
    /// Both; the caller's to look at.
    Done,
    /// The caller has released it; the SEND has not completed.
    Released,
}

/// What happens to a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SlotEvent {
    /// The caller takes it.
    Reserve,
    /// The command is posted.
    Post,
    /// The completion of its SEND.
    SendDone,
    /// The response, or the end by task management.
    Answer,
    /// The caller gives it back.
    Release,
    /// Its channel's QP is gone.
    Lost,
}

/// A move that the table does not have.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request in state {state} cannot take {event:?}")]
pub struct IllegalMove {
    /// Where the request was, and still is.
    pub state: SlotState,
    /// What was to happen.
    pub event: SlotEvent,
}

impl SlotState {
    /// All states.
    pub const ALL: [SlotState; 7] = [
        SlotState::Free,
        SlotState::Held,
        SlotState::Posted,
        SlotState::Sent,
        SlotState::Answered,
        SlotState::Done,
        SlotState::Released,
    ];

    /// The state after `event`.
    pub const fn after(self, event: SlotEvent) -> Result<SlotState, IllegalMove> {
        use SlotEvent as E;
        use SlotState as S;
        Ok(match (self, event) {
            (S::Free, E::Reserve) => S::Held,
            (S::Held, E::Post) => S::Posted,
            (S::Held | S::Done, E::Release) => S::Free,
            (S::Posted, E::SendDone) => S::Sent,
            (S::Posted, E::Answer) => S::Answered,
            (S::Sent, E::Answer) | (S::Answered, E::SendDone) => S::Done,
            (S::Answered, E::Release) => S::Released,
            (S::Released, E::SendDone) => S::Free,
            (S::Posted | S::Sent | S::Answered, E::Lost) => S::Done,
            (S::Released, E::Lost) => S::Free,
            (S::Free | S::Held | S::Done, E::Lost) => self,
            _ => return Err(IllegalMove { state: self, event }),
        })
    }

    /// Whether the answer is still to come.
    pub const fn is_waiting(self) -> bool {
        matches!(self, SlotState::Posted | SlotState::Sent)
    }
}

impl SlotEvent {
    /// All events.
    pub const ALL: [SlotEvent; 6] = [
        SlotEvent::Reserve,
        SlotEvent::Post,
        SlotEvent::SendDone,
        SlotEvent::Answer,
        SlotEvent::Release,
        SlotEvent::Lost,
    ];
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SlotState::Free => "free",
            SlotState::Held => "held",
            SlotState::Posted => "posted",
            SlotState::Sent => "sent",
            SlotState::Answered => "answered",
            SlotState::Done => "done",
            SlotState::Released => "released",
        })
    }
}

/// A reserved request. Using it after its release is a programmer's error.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub(super) u32);

impl SlotId {
    /// A number from 0 to channels times depth, for tables of the caller.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a request ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target answered.
    Status {
        /// SCSI status; `None` is a code that SAM-5 does not have.
        status: Option<Status>,
        /// Sense data, if there were any that can be read.
        sense: Option<Sense>,
        /// How far the buffer and the data differ.
        residual: Residual,
    },
    /// It took too long and was aborted. What it did is unknown; it does nothing more.
    Aborted,
    /// Its session was lost. What it did, and will yet do, is unknown.
    Lost,
}

impl Outcome {
    /// Whether the target answered GOOD and transferred the whole buffer.
    pub fn is_good(&self) -> bool {
        matches!(self, Outcome::Status { status: Some(Status::Good), residual: Residual::NONE, .. })
    }
}

/// A request that has ended. Its slot is the caller's until it is released.
#[derive(Copy, Clone, Debug)]
pub struct Completion {
    /// The request.
    pub slot: SlotId,
    /// What the caller gave with the command.
    pub user: u64,
    /// When it was posted.
    pub posted: Time,
    /// How it ended.
    pub outcome: Outcome,
}

/// A request's entry.
#[derive(Copy, Clone, Debug)]
pub(super) struct Slot {
    pub(super) state: SlotState,
    /// How often it was posted: part of its tag, so that a late answer finds nothing.
    pub(super) generation: u32,
    pub(super) channel: u32,
    /// The channel's epoch when the request was reserved.
    pub(super) epoch: u32,
    pub(super) user: u64,
    pub(super) lun: RawLun,
    pub(super) posted: Time,
    /// When it is to be aborted; NEVER once task management has it.
    pub(super) deadline: Time,
}

impl Slot {
    pub(super) fn new(channel: u32) -> Self {
        Slot {
            state: SlotState::Free,
            generation: 0,
            channel,
            epoch: 0,
            user: 0,
            lun: RawLun::default(),
            posted: Time::ZERO,
            deadline: Time::NEVER,
        }
    }

    /// Moves on; a move that is not in the table is a bug of this module.
    pub(super) fn apply(&mut self, event: SlotEvent) {
        match self.state.after(event) {
            Ok(next) => self.state = next,
            Err(illegal) => panic!("{illegal}"),
        }
    }

    pub(super) fn tag(&self, index: u32) -> Tag {
        tag(index, self.generation)
    }
}

/// Marks tags of task management, as ib_srp does.
pub(super) const TMF_MARK: u32 = 0x8000_0000;

/// A tag of ours: index and generation, in host order as ib_srp's are.
pub(super) fn tag(index: u32, generation: u32) -> Tag {
    Tag((u64::from(generation) << 32 | u64::from(index)).to_le_bytes())
}

/// Index and generation of a tag.
pub(super) fn untag(tag: Tag) -> (u32, u32) {
    let value = u64::from_le_bytes(tag.0);
    (value as u32, (value >> 32) as u32)
}
