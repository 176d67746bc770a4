//! The states of a task: where a command is on its way, and who owns it.
//!
//! A task is in exactly one state and has exactly one owner. The shard moves it; an event that
//! the table does not have is an error value.

use std::fmt;

/// Who may touch a task's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The shard: it may end the task at once.
    Shard,
    /// The RDMA device: posted work requests name the task's memory.
    Device,
    /// The block queue: a submitted operation names the task's memory.
    Block,
    /// The task is over.
    Nobody,
}

/// Where a task is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Its IU was parsed, or its block operation is done: the shard decides on the next step.
    Received,
    /// It waits for arena memory.
    WaitMemory,
    /// It waits for a place among the READs in flight, or in the send queue.
    WaitWindow,
    /// Its external descriptor table is being read.
    ReadingTable,
    /// Its data-OUT are being read.
    ReadingData,
    /// A block operation runs.
    InBlock,
    /// Data-IN are being written, with more to come before the response.
    WritingData,
    /// The response is posted (with the last data-IN before it).
    Responding,
    /// Aborted; the device still has its memory.
    AbortedInDevice,
    /// Aborted; the block queue still has its memory.
    AbortedInBlock,
    /// Aborted; nobody has its memory any more.
    Aborted,
    /// Over: the slot is free.
    Done,
}

/// What happens to a task.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaskEvent {
    /// It has to wait for memory.
    NeedMemory,
    /// It has to wait for the READ window or the send queue.
    NeedWindow,
    /// The READ of its descriptor table is posted.
    PostTableRead,
    /// READs of its data are posted.
    PostDataRead,
    /// A block operation is submitted.
    SubmitBlock,
    /// Data-IN WRITEs are posted, without the response.
    PostDataWrite,
    /// The response is posted.
    PostResponse,
    /// The SEND of the response completed, with success or not.
    ResponseSent,
    /// Task management or the end of the channel takes it.
    Abort,
    /// All its posted work requests have completed.
    DeviceReleased,
    /// Its block operation has completed or is proven cancelled.
    BlockReleased,
    /// It ends without a response.
    EndSilently,
}

/// A move that the table does not have.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task in state {state} cannot take {event:?}")]
pub struct IllegalMove {
    /// Where the task was, and still is.
    pub state: TaskState,
    /// What was to happen.
    pub event: TaskEvent,
}

impl TaskState {
    /// All states, in the order of the way.
    pub const ALL: [TaskState; 12] = [
        TaskState::Received,
        TaskState::WaitMemory,
        TaskState::WaitWindow,
        TaskState::ReadingTable,
        TaskState::ReadingData,
        TaskState::InBlock,
        TaskState::WritingData,
        TaskState::Responding,
        TaskState::AbortedInDevice,
        TaskState::AbortedInBlock,
        TaskState::Aborted,
        TaskState::Done,
    ];

    /// Who owns a task in this state.
    pub const fn owner(self) -> Owner {
        use TaskState as S;
        match self {
            S::Received | S::WaitMemory | S::WaitWindow | S::Aborted => Owner::Shard,
            S::ReadingTable | S::ReadingData | S::WritingData | S::Responding | S::AbortedInDevice => {
                Owner::Device
            }
            S::InBlock | S::AbortedInBlock => Owner::Block,
            S::Done => Owner::Nobody,
        }
    }

    /// Whether the task was aborted and must not move data any more.
    pub const fn is_aborted(self) -> bool {
        matches!(self, TaskState::AbortedInDevice | TaskState::AbortedInBlock | TaskState::Aborted)
    }

    /// The state after `event`.
    pub const fn after(self, event: TaskEvent) -> Result<TaskState, IllegalMove> {
        use TaskEvent as E;
        use TaskState as S;
        Ok(match (self, event) {
            // On its way: a completion makes the shard decide on the next step, which is the event.
            (
                S::Received
                | S::WaitMemory
                | S::WaitWindow
                | S::ReadingTable
                | S::ReadingData
                | S::WritingData,
                step,
            ) => match (self, step) {
                (S::ReadingTable | S::ReadingData | S::WritingData, E::PostTableRead) => {
                    return Err(IllegalMove { state: self, event });
                }
                (S::WaitMemory, E::NeedMemory) | (S::WaitWindow, E::NeedWindow) => {
                    return Err(IllegalMove { state: self, event });
                }
                (_, E::NeedMemory) => S::WaitMemory,
                (_, E::NeedWindow) => S::WaitWindow,
                (_, E::PostTableRead) => S::ReadingTable,
                (_, E::PostDataRead) => S::ReadingData,
                (_, E::SubmitBlock) => S::InBlock,
                (_, E::PostDataWrite) => S::WritingData,
                (_, E::PostResponse) => S::Responding,
                (S::ReadingTable | S::ReadingData | S::WritingData, E::Abort) => S::AbortedInDevice,
                (_, E::Abort) => S::Aborted,
                _ => return Err(IllegalMove { state: self, event }),
            },
            // The shard has it back before anything else happens to it: an abort in the middle of its
            // next step finds no block operation to wait for.
            (S::InBlock, E::BlockReleased) => S::Received,
            (S::InBlock, E::Abort) => S::AbortedInBlock,
            (S::Responding, E::ResponseSent) => S::Done,
            // Its answer is on the way, behind all its data: there is nothing left to abort.
            (S::Responding, E::Abort) => S::Responding,
            (S::AbortedInDevice, E::DeviceReleased) | (S::AbortedInBlock, E::BlockReleased) => S::Aborted,
            (S::AbortedInDevice | S::AbortedInBlock | S::Aborted, E::Abort) => self,
            // With TAS another nexus's command ends with TASK ABORTED status.
            (S::Aborted, E::PostResponse) => S::Responding,
            (S::Aborted, E::EndSilently) => S::Done,
            _ => return Err(IllegalMove { state: self, event }),
        })
    }

    /// Moves on.
    pub fn apply(&mut self, event: TaskEvent) -> Result<(), IllegalMove> {
        *self = self.after(event)?;
        Ok(())
    }
}

impl TaskEvent {
    /// All events.
    pub const ALL: [TaskEvent; 12] = [
        TaskEvent::NeedMemory,
        TaskEvent::NeedWindow,
        TaskEvent::PostTableRead,
        TaskEvent::PostDataRead,
        TaskEvent::SubmitBlock,
        TaskEvent::PostDataWrite,
        TaskEvent::PostResponse,
        TaskEvent::ResponseSent,
        TaskEvent::Abort,
        TaskEvent::DeviceReleased,
        TaskEvent::BlockReleased,
        TaskEvent::EndSilently,
    ];
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TaskState::Received => "received",
            TaskState::WaitMemory => "wait_memory",
            TaskState::WaitWindow => "wait_window",
            TaskState::ReadingTable => "reading_table",
            TaskState::ReadingData => "reading_data",
            TaskState::InBlock => "in_block",
            TaskState::WritingData => "writing_data",
            TaskState::Responding => "responding",
            TaskState::AbortedInDevice => "aborted_in_device",
            TaskState::AbortedInBlock => "aborted_in_block",
            TaskState::Aborted => "aborted",
            TaskState::Done => "done",
        })
    }
}
