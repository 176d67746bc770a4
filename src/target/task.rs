//! A task: one SRP command (or task management function) from its information unit to its
//! response.

use reactors::buddy::Piece;
use reactors::slab::Key;
use reactors::time::Time;

use super::fence::{FenceId, Range};
use super::lent::InPlace;
use super::slots::Slots;
use super::stages::{Class, Kind, Laps, Stage};
use crate::scsi::{BlockOp, Outcome};
use crate::srp::Direction;
use crate::srp::descriptors::{BufferRef, Cursor};
use crate::srp::task::{TaskEvent, TaskState};
use crate::wire::srp::Tag;

/// What a task does next. The state ([`TaskState`]) says who owns it meanwhile.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Gets memory for its data.
    Memory,
    /// Reads its external descriptor table.
    Table,
    /// Begins with the next chunk of its data.
    Chunk,
    /// RDMA READs the chunk from the initiator.
    Fetch,
    /// Takes the next operation from its parameter list.
    List,
    /// Hands the chunk (or an operation without data) to the block device.
    Block,
    /// RDMA WRITEs the chunk to the initiator.
    Deliver,
    /// Aborted amid its WRITEs: one more, empty and signaled, tells when they are done.
    Flush,
    /// Responds.
    Respond,
}

/// How a task ends once nobody else owns its memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With the response it earned.
    Normal,
    /// Without a response: its initiator aborted it, or its channel is gone.
    Silent,
    /// With TASK ABORTED status: another nexus ended it (SAM-5 5.3.1, the TAS bit).
    TaskAborted,
}

/// Where the bytes of a transfer lie on our side.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the task's piece of the data pool.
    Pool,
    /// In its receive slot: immediate data, aligned as the block device needs it.
    Slot,
}

/// The data of a task as they move, a chunk at a time.
#[derive(Copy, Clone, Debug)]
pub struct Transfer {
    /// Bytes that move in all: the shorter of what the command has and what the buffer holds.
    pub total: u32,
    /// Bytes of finished chunks.
    pub done: u32,
    /// Most bytes of a chunk: what its memory holds.
    pub chunk_room: u32,
    /// Bytes of the chunk in progress.
    pub chunk: u32,
    /// Bytes of the chunk for which RDMA has been posted.
    pub posted: u32,
    /// Where in the descriptors the next posted byte goes.
    pub cursor: Cursor,
    /// RDMA READs in flight.
    pub reads_in_flight: u8,
    /// The signaled WRITE that ends the chunk is in flight.
    pub signal_in_flight: bool,
    /// Bytes of pool memory that it needs.
    pub need: usize,
    /// Memory of the pool, for chunk and external table.
    pub piece: Option<Piece>,
    /// Where in the piece the chunk begins: behind the external table.
    pub chunk_at: usize,
    /// Where the chunk's bytes are.
    pub source: Source,
}

impl Default for Transfer {
    fn default() -> Self {
        Transfer {
            total: 0,
            done: 0,
            chunk_room: 0,
            chunk: 0,
            posted: 0,
            cursor: Cursor::START,
            reads_in_flight: 0,
            signal_in_flight: false,
            need: 0,
            piece: None,
            chunk_at: 0,
            source: Source::Pool,
        }
    }
}

/// A task.
#[derive(Debug)]
pub struct Task {
    /// The channel it came by. Stale once the channel is gone.
    pub channel: Key,
    /// Who owns it.
    pub state: TaskState,
    /// What it does next.
    pub phase: Phase,
    /// How it ends.
    pub ending: Ending,
    /// The channel counts it among its tasks.
    pub attached: bool,
    /// Its place in the channel's roll, while it is attached.
    pub place: u32,
    /// The channel has forgotten it, and it keeps the promise of a receive slot until it ends.
    pub backed: bool,
    /// Its tag is registered with the channel.
    pub tagged: bool,
    /// Its credit has not gone back to the initiator.
    pub credited: bool,
    /// It stands in its channel's line for READ window or send queue.
    pub queued: bool,
    /// It cannot go on until its turn in that line comes.
    pub blocked: bool,
    /// Its tag.
    pub tag: Tag,
    /// What its command says about solicited events.
    pub sol_not: u8,
    /// The number of its logical unit, as it was addressed.
    pub lun_number: Option<u16>,
    /// Its logical unit, if there is one.
    pub lun: Option<Key>,
    /// The receive slot that holds its information unit.
    pub slot: Option<u32>,
    /// Length of the information unit in bytes.
    pub iu_bytes: u32,
    /// Which way its data go.
    pub direction: Direction,
    /// Where the initiator's data buffer is.
    pub buffer: BufferRef,
    /// Bytes that the CDB asks to transfer, be the buffer longer or shorter.
    pub command_bytes: u64,
    /// What the block device does for it.
    pub op: Option<BlockOp>,
    /// Its data-OUT are a parameter list of operations; the next one is this.
    pub list_next: Option<u16>,
    /// Parameter data that wait for memory.
    pub parameters: Option<Box<[u8]>>,
    /// How its data move.
    pub transfer: Transfer,
    /// Its data-IN lie in memory of the block device, and go from there: it has no chunk.
    pub in_place: Option<InPlace>,
    /// Its result so far.
    pub outcome: Outcome,
    /// It is a task management function; this is its result.
    pub management: Option<crate::srp::tmf::TmfStatus>,
    /// Fences its abandoned block write.
    pub fence: Option<FenceId>,
    /// When its information unit was taken.
    pub since: Time,
    /// In which stage of its way it was how long.
    pub laps: Laps,
}

impl Phase {
    /// The stage of a task that does this next; none if it stays where it is.
    #[inline]
    pub fn stage(self) -> Option<Stage> {
        match self {
            Phase::Memory | Phase::Chunk | Phase::List => None,
            Phase::Table | Phase::Fetch => Some(Stage::Read),
            Phase::Block => Some(Stage::Backend),
            Phase::Deliver | Phase::Flush | Phase::Respond => Some(Stage::Response),
        }
    }
}

impl Task {
    /// The class it is measured in.
    #[inline]
    pub fn class(&self) -> Class {
        let kind = match self.op {
            Some(BlockOp::Read { .. }) => Kind::Read,
            Some(BlockOp::Write { .. }) => Kind::Write,
            Some(BlockOp::Flush { .. } | BlockOp::Unmap { .. }) | None => Kind::Other,
        };
        Class::of(kind, self.transfer.total)
    }

    /// Moves the state along; an illegal move is a bug of ours, is logged and changes nothing.
    #[inline]
    pub fn advance(&mut self, event: TaskEvent) {
        if let Err(illegal) = self.state.apply(event) {
            tracing::error!(tag = ?self.tag, %illegal, "a task was moved against its table");
            debug_assert!(false, "{illegal}");
        }
    }

    /// Where the bytes of the chunk lie: in which memory, and at which offset in bytes.
    pub fn chunk_place(&self) -> (Source, usize) {
        match (self.transfer.source, self.buffer, self.slot) {
            (Source::Slot, BufferRef::Immediate { offset, .. }, Some(slot)) => {
                (Source::Slot, Slots::offset(slot) + usize::from(offset))
            }
            _ => {
                (Source::Pool, self.transfer.piece.map_or(0, |piece| piece.offset() + self.transfer.chunk_at))
            }
        }
    }

    /// The range of the medium that its block operation changes.
    pub fn changed_range(&self) -> Option<Range> {
        match self.op? {
            BlockOp::Write { extent, .. } | BlockOp::Unmap { extent } => {
                Some(Range { offset_bytes: extent.offset_bytes(), len_bytes: extent.len_bytes() })
            }
            BlockOp::Read { .. } | BlockOp::Flush { .. } => None,
        }
    }

    /// The device may still touch its memory, and nothing will say when that is over but the end of the
    /// queue pair: the empty WRITE behind its data was refused.
    pub fn is_stranded(&self) -> bool {
        self.state == TaskState::AbortedInDevice
            && self.phase == Phase::Flush
            && !self.transfer.signal_in_flight
            && !self.queued
    }

    /// The device may still touch its memory although nothing of it will complete by itself.
    pub fn has_unsignaled_writes(&self) -> bool {
        matches!(self.phase, Phase::Deliver | Phase::Respond)
            && self.transfer.posted > 0
            && self.direction == Direction::In
            && !self.transfer.signal_in_flight
    }
}

/// What every task begins with.
pub struct TaskSeed {
    /// The channel it came by.
    pub channel: Key,
    /// Its tag.
    pub tag: Tag,
    /// What its command says about solicited events.
    pub sol_not: u8,
    /// The receive slot that holds its information unit.
    pub slot: u32,
    /// Length of the information unit in bytes.
    pub iu_bytes: u32,
}

impl Task {
    /// A task that has just been received.
    pub fn new(seed: TaskSeed, now: Time) -> Self {
        Task {
            channel: seed.channel,
            state: TaskState::Received,
            phase: Phase::Respond,
            ending: Ending::Normal,
            attached: true,
            place: 0,
            backed: false,
            tagged: false,
            credited: true,
            queued: false,
            blocked: false,
            tag: seed.tag,
            sol_not: seed.sol_not,
            lun_number: None,
            lun: None,
            slot: Some(seed.slot),
            iu_bytes: seed.iu_bytes,
            direction: Direction::None,
            buffer: BufferRef::None,
            command_bytes: 0,
            op: None,
            list_next: None,
            parameters: None,
            transfer: Transfer::default(),
            in_place: None,
            outcome: Outcome::GOOD,
            management: None,
            fence: None,
            since: now,
            laps: Laps::new(now),
        }
    }
}
