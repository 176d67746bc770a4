//! Task management: the functions, and what each of them asks of the target (SRP r16a, 6.7;
//! SAM-5 7).
//!
//! An answer is a promise: it is given only when no task that the function ended has posted RDMA
//! or a block write left. Keeping the promise is the target's; here is what is to be ended.

use super::tags::TagTable;
use crate::wire::srp::{RawLun, Rsp, Tag, TaskMgmt};

/// A task management function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum TmfFunction {
    /// One task of this channel.
    AbortTask,
    /// All tasks of this nexus on a logical unit.
    AbortTaskSet,
    /// All tasks of all nexuses on a logical unit.
    ClearTaskSet,
    /// All tasks on a logical unit, and its state.
    LunReset,
    /// An auto contingent allegiance.
    ClearAca,
}

impl TmfFunction {
    /// The function of a code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => TmfFunction::AbortTask,
            0x02 => TmfFunction::AbortTaskSet,
            0x04 => TmfFunction::ClearTaskSet,
            0x08 => TmfFunction::LunReset,
            0x40 => TmfFunction::ClearAca,
            _ => return None,
        })
    }

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            TmfFunction::AbortTask => 0x01,
            TmfFunction::AbortTaskSet => 0x02,
            TmfFunction::ClearTaskSet => 0x04,
            TmfFunction::LunReset => 0x08,
            TmfFunction::ClearAca => 0x40,
        }
    }
}

/// How a task management function went: the RSP_CODE.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum TmfStatus {
    /// No failure, function complete (0).
    Complete,
    /// Request fields invalid (2).
    InvalidFields,
    /// Function not supported (4).
    NotSupported,
    /// Function failed (5).
    Failed,
    /// Another code.
    Reserved(u8),
}

impl TmfStatus {
    /// The status of a code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => TmfStatus::Complete,
            2 => TmfStatus::InvalidFields,
            4 => TmfStatus::NotSupported,
            5 => TmfStatus::Failed,
            other => TmfStatus::Reserved(other),
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            TmfStatus::Complete => 0,
            TmfStatus::InvalidFields => 2,
            TmfStatus::NotSupported => 4,
            TmfStatus::Failed => 5,
            TmfStatus::Reserved(code) => code,
        }
    }

    /// The status in a response; `None` if it is no answer to task management.
    pub fn of(rsp: &Rsp<'_>) -> Option<Self> {
        rsp.response.get(3).map(|&code| Self::from_code(code))
    }
}

/// What the target has to do for a task management request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TmfAction {
    /// End this task, if it is on that logical unit, then answer. Without a response of its own.
    AbortTask {
        /// The task's number, as it was registered with its tag.
        task: u32,
        /// The logical unit of the request.
        lun: RawLun,
    },
    /// End all tasks of this nexus on the logical unit, on all its channels, then answer.
    AbortTaskSet {
        /// The logical unit.
        lun: RawLun,
    },
    /// End all tasks of all nexuses on the logical unit, then answer.
    ClearTaskSet {
        /// The logical unit.
        lun: RawLun,
    },
    /// End all tasks of all nexuses on the logical unit and reset it, then answer.
    LunReset {
        /// The logical unit.
        lun: RawLun,
    },
    /// Answer at once.
    Answer(TmfStatus),
}

/// Decides what `request` asks for; `tags` are those in use on its channel.
pub fn decide(request: &TaskMgmt, tags: &TagTable) -> TmfAction {
    let lun = request.lun;
    match TmfFunction::from_code(request.function) {
        Some(TmfFunction::AbortTask) => match tags.get(request.task_tag) {
            Some(task) => TmfAction::AbortTask { task, lun },
            // A task that has ended, or never came, is not in the task set: complete (SAM-5 7.2).
            None => TmfAction::Answer(TmfStatus::Complete),
        },
        Some(TmfFunction::AbortTaskSet) => TmfAction::AbortTaskSet { lun },
        Some(TmfFunction::ClearTaskSet) => TmfAction::ClearTaskSet { lun },
        Some(TmfFunction::LunReset) => TmfAction::LunReset { lun },
        // NormACA is never set in our INQUIRY data, so there is no ACA to clear.
        Some(TmfFunction::ClearAca) | None => TmfAction::Answer(TmfStatus::NotSupported),
    }
}

/// The task tag of a request that names no task, as ib_srp writes it: a host-order -1 in 32 bits.
pub const NO_TASK_TAG: Tag = Tag([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
