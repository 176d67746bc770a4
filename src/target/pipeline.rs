//! A task's way: memory, descriptor table, data, block device, response.
//!
//! [`Shard::run`] takes a task as far as it can go and returns when somebody else owns it (the
//! RDMA device, the block queue) or when it has to wait in a line. The completion, or its turn in
//! the line, calls `run` again. [`Phase`] says what comes next, the task's state who owns it.

use bdev::{Completion, Io, IoError, IoId, Op, SubmitError};
use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::shard::Shard;
use super::stages::Stage;
use super::task::{Phase, Source, Task};
use super::wr::Tag;
use crate::rdma::verbs::{Remote, SendOp, SendWr, SgeList};
use crate::scsi::{BlockFault, BlockOp, Outcome, check_unmap, next_unmap, outcome_of_fault};
use crate::srp::descriptors::{BufferRef, check_table};
use crate::srp::task::{TaskEvent, TaskState};
use crate::srp::{Direction, SenseCode};
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};

/// What a step led to.
pub(super) enum Step {
    /// The next phase can begin.
    On,
    /// The task waits, or somebody else owns it.
    Wait,
}

impl<F: Fabric> Shard<F> {
    /// Takes a task as far as it goes now.
    pub(super) fn run(&mut self, now: Time, key: Key) {
        loop {
            let Some(task) = self.tasks.get_mut(key) else { return };
            task.blocked = false;
            if let Some(stage) = task.phase.stage() {
                task.laps.enter(stage, &mut self.stage_clock);
            }
            let step = match task.phase {
                Phase::Memory => self.take_memory(key),
                Phase::Table => self.read_table(now, key),
                Phase::Chunk => self.begin_chunk(key),
                Phase::Fetch => self.fetch(now, key),
                Phase::List => self.take_from_list(key),
                Phase::Block => self.submit_block(key),
                Phase::Deliver => self.deliver(now, key),
                Phase::Flush => self.flush_writes(now, key),
                Phase::Respond => {
                    self.responses.push(key);
                    Step::Wait
                }
            };
            if let Step::Wait = step {
                return;
            }
        }
    }

    /// The task ends with this result; what it has transferred so far does not count.
    pub(super) fn fail(&mut self, key: Key, outcome: Outcome) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.outcome = outcome;
        task.command_bytes = 0;
        task.phase = Phase::Respond;
        task.laps.enter(Stage::Response, &mut self.stage_clock);
        self.responses.push(key);
    }

    fn take_memory(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let transfer = &mut task.transfer;
        if transfer.need > 0 && transfer.piece.is_none() {
            transfer.piece = self.pool.take(transfer.need);
            if transfer.piece.is_none() {
                self.counts.memory_waits += 1;
                self.pool.wait(key, transfer.need);
                task.laps.enter(Stage::Buffer, &mut self.stage_clock);
                task.advance(TaskEvent::NeedMemory);
                return Step::Wait;
            }
        }
        task.phase = match task.buffer {
            BufferRef::External { .. } => Phase::Table,
            _ => Phase::Chunk,
        };
        Step::On
    }

    /// Serves those who wait for memory, in their order, as far as there is some. Gives how many.
    pub(super) fn serve_memory(&mut self, now: Time) -> usize {
        let mut served = 0;
        while let Some((key, piece)) = self.pool.serve() {
            served += 1;
            match self.tasks.get_mut(key) {
                Some(task) if task.state == TaskState::WaitMemory => {
                    task.transfer.piece = Some(piece);
                    self.run(now, key);
                }
                // It has ended while it waited.
                _ => self.pool.put(piece),
            }
        }
        served
    }

    fn read_table(&mut self, now: Time, key: Key) -> Step {
        if !self.has_turn(key) {
            return self.wait_for_window(key);
        }
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let Some(channel) = self.channels.get_mut(task.channel) else { return Step::Wait };
        let (BufferRef::External { table, .. }, Some(piece)) = (task.buffer, task.transfer.piece) else {
            return Step::Wait;
        };
        if channel.reads_in_flight >= channel.max_reads {
            return self.wait_for_window(key);
        }
        let wr = SendWr {
            wr_id: Tag::TableRead.bits(key),
            op: SendOp::Read(Remote { addr: table.addr, rkey: table.rkey }),
            sges: SgeList::one(self.pool.sge(piece, 0, table.len_bytes)),
            signaled: true,
        };
        match self.fabric.post_send(now, channel.qp, &wr) {
            Ok(()) => {
                channel.posted(true);
                channel.reads_in_flight += 1;
                task.transfer.reads_in_flight = 1;
                task.advance(TaskEvent::PostTableRead);
                Step::Wait
            }
            Err(error) => self.cannot_post(now, key, &error),
        }
    }

    /// The READ of a descriptor table is back.
    pub(super) fn on_table_read(&mut self, now: Time, key: Key, ok: bool) {
        if !self.read_is_back(now, key) || !ok {
            return;
        }
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (BufferRef::External { table, total_bytes }, Some(piece)) = (task.buffer, task.transfer.piece)
        else {
            return;
        };
        let checked = self
            .pool
            .region()
            .with_bytes(piece.offset(), table.len_bytes as usize, |bytes| {
                check_table(bytes, total_bytes).map(drop)
            })
            .expect("the table lies in the task's memory");
        if let Err(why) = checked {
            self.counts.malformed += 1;
            tracing::debug!(shard = self.index, %why, "a descriptor table is malformed");
            let code = SenseCode::INVALID_FIELD;
            let sense = Sense::new(SenseKey::from_low_bits(code.key), Asc(code.asc, code.ascq));
            self.fail(key, Outcome::check(sense));
            return;
        }
        task.phase = Phase::Chunk;
        self.run(now, key);
    }

    fn begin_chunk(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let transfer = &mut task.transfer;
        transfer.chunk = (transfer.total - transfer.done).min(transfer.chunk_room);
        transfer.posted = 0;
        task.phase = match (task.direction, &task.parameters) {
            (Direction::Out, _) => Phase::Fetch,
            (_, None) => Phase::Block,
            (_, Some(parameters)) => {
                // The chunk of parameter data is its first bytes: they never fill one.
                let (piece, len) = (transfer.piece, transfer.chunk as usize);
                if let Some(piece) = piece {
                    let at = piece.offset() + transfer.chunk_at;
                    self.pool
                        .region()
                        .write(at, &parameters[transfer.done as usize..][..len])
                        .expect("a chunk lies in the task's memory");
                }
                Phase::Deliver
            }
        };
        Step::On
    }

    /// The next block operation of a parameter list, after all of it was checked; the response
    /// when there is none left.
    fn take_from_list(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let (Some(from), Some(lun)) = (task.list_next, task.lun.and_then(|lun| self.luns.get(lun))) else {
            return Step::Wait;
        };
        let (source, at) = task.chunk_place();
        let memory = match source {
            Source::Slot => self.slots.region(),
            Source::Pool => self.pool.region(),
        };
        let look = |list: &[u8]| {
            if task.op.is_none() {
                check_unmap(&lun.info, list)?;
            }
            Ok(next_unmap(&lun.info, list, from))
        };
        match memory.with_bytes(at, task.transfer.total as usize, look).expect("a list lies in one chunk") {
            Ok(Some((op, next))) => {
                task.op = Some(op);
                task.list_next = Some(next);
                task.phase = Phase::Block;
                Step::On
            }
            Ok(None) => {
                task.phase = Phase::Respond;
                Step::On
            }
            Err(outcome) => {
                self.fail(key, outcome);
                Step::Wait
            }
        }
    }

    fn submit_block(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        if task.in_place.is_some() {
            task.phase = Phase::Deliver;
            return Step::On;
        }
        let (Some(op), Some(lun)) = (task.op, task.lun.and_then(|lun| self.luns.get_to_submit(lun))) else {
            return Step::Wait;
        };
        if let Some(range) = task.changed_range()
            && lun.entry.fences.blocks(&range)
        {
            lun.held.push_back(key);
            wait(task);
            return Step::Wait;
        }
        let (extent, transfer) = (op.extent(), &task.transfer);
        let (kind, offset_bytes, len_bytes) = match op {
            BlockOp::Flush { .. } => (Op::Flush, extent.offset_bytes(), extent.len_bytes()),
            BlockOp::Unmap { .. } => (Op::Unmap, extent.offset_bytes(), extent.len_bytes()),
            BlockOp::Read { .. } | BlockOp::Write { .. } => {
                // A buffer may end within a block; the device reads all of it.
                let whole = u64::from(transfer.chunk).next_multiple_of(u64::from(extent.block_bytes));
                let kind = match op {
                    BlockOp::Write { fua, .. } => Op::Write { fua },
                    _ => Op::Read,
                };
                (kind, extent.offset_bytes() + u64::from(transfer.done), whole)
            }
        };
        let (source, region_offset) = task.chunk_place();
        let region = match source {
            Source::Slot => lun.slot_region,
            Source::Pool => lun.pool_region,
        };
        let id = IoId(Tag::Block.bits(key));
        match lun.queue.submit(Io { id, op: kind, offset_bytes, len_bytes, region, region_offset }) {
            Ok(()) => {
                task.advance(TaskEvent::SubmitBlock);
                Step::Wait
            }
            Err(SubmitError::Full) => {
                lun.waiting.push_back(key);
                wait(task);
                Step::Wait
            }
            // The device has shrunk since SCSI checked the extent.
            Err(SubmitError::Invalid) => {
                let outcome = outcome_of_fault(BlockFault::Truncated, &op);
                self.counts.block_errors += 1;
                self.fail(key, outcome);
                Step::Wait
            }
        }
    }

    /// Tasks that waited for this LUN's queue or for a fence go on as far as they can.
    pub(super) fn resume_lun(&mut self, now: Time, lun: Key) {
        let Some(open) = self.luns.get_mut(lun) else { return };
        let (waiting, held) = (open.waiting.len(), open.held.len());
        for _ in 0..waiting {
            let Some(key) = self.luns.get_mut(lun).and_then(|open| open.waiting.pop_front()) else { break };
            let before = self.luns.get(lun).map_or(0, |open| open.waiting.len());
            self.go_on_at_block(now, key);
            if self.luns.get(lun).is_some_and(|open| open.waiting.len() > before) {
                // Still full. It went to the end; the others keep their order before it.
                if let Some(open) = self.luns.get_mut(lun) {
                    open.waiting.rotate_right(1);
                }
                break;
            }
        }
        for _ in 0..held {
            let Some(key) = self.luns.get_mut(lun).and_then(|open| open.held.pop_front()) else { break };
            self.go_on_at_block(now, key);
        }
    }

    fn go_on_at_block(&mut self, now: Time, key: Key) {
        let goes_on =
            self.tasks.get(key).is_some_and(|task| task.phase == Phase::Block && !task.state.is_aborted());
        if goes_on {
            self.run(now, key);
        }
    }

    /// A block operation is back, and the task's memory with it.
    pub(super) fn on_block_completion(&mut self, now: Time, completion: Completion) {
        let Some((Tag::Block, key)) = Tag::parse(completion.id.0) else {
            self.counts.stale_completions += 1;
            return;
        };
        let Some(task) = self.tasks.get_mut(key) else {
            self.counts.stale_completions += 1;
            return;
        };
        task.advance(TaskEvent::BlockReleased);
        if task.state.is_aborted() {
            self.end_aborted(now, key);
            return;
        }
        if let Err(error) = completion.result {
            self.block_failed(now, key, error);
            return;
        }
        task.phase = match task.op {
            Some(BlockOp::Read { .. }) => Phase::Deliver,
            Some(BlockOp::Write { .. }) => chunk_done(task),
            Some(BlockOp::Unmap { .. }) => Phase::List,
            Some(BlockOp::Flush { .. }) | None => Phase::Respond,
        };
        if task.phase == Phase::Respond
            && let Some(channel) = self.channels.get_mut(task.channel)
        {
            channel.written_bytes += u64::from(task.transfer.total);
        }
        self.run(now, key);
    }

    fn block_failed(&mut self, now: Time, key: Key, error: IoError) {
        self.counts.block_errors += 1;
        let Some(task) = self.tasks.get(key) else { return };
        let Some(op) = task.op else { return };
        let name = task.lun.and_then(|lun| self.luns.get(lun)).map_or("?", |lun| lun.entry.bdev.name());
        if let Some(untold) = self.block_log.tell(now) {
            let lba = op.extent().lba;
            tracing::warn!(shard = self.index, bdev = name, lba, untold, %error, "a block operation failed");
        }
        let fault = match error {
            IoError::Medium(_) => BlockFault::Medium,
            IoError::NoSpace => BlockFault::NoSpace,
            IoError::Truncated => BlockFault::Truncated,
            IoError::Unsupported => BlockFault::Unsupported,
            IoError::ReadOnly => BlockFault::ReadOnly,
            IoError::Cancelled => BlockFault::Cancelled,
            IoError::Gone => BlockFault::Gone,
        };
        self.fail(key, outcome_of_fault(fault, &op));
    }

    /// The SEND of a task's response has completed: everything before it on the queue pair, too.
    pub(super) fn on_response_sent(&mut self, now: Time, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else {
            self.counts.stale_completions += 1;
            return;
        };
        let channel = task.channel;
        task.advance(TaskEvent::ResponseSent);
        self.free(key);
        self.resume(now, channel);
    }
}

/// The next phase when data-OUT of a chunk are here.
pub(super) fn fetched(task: &Task) -> Phase {
    if task.list_next.is_some() { Phase::List } else { Phase::Block }
}

/// The next phase after a chunk, or after all.
pub(super) fn chunk_done(task: &mut Task) -> Phase {
    task.transfer.done += task.transfer.chunk;
    if task.transfer.done < task.transfer.total { Phase::Chunk } else { Phase::Respond }
}

/// The task waits in a line, owned by the shard.
pub(super) fn wait(task: &mut Task) {
    if task.state != TaskState::WaitWindow {
        task.advance(TaskEvent::NeedWindow);
    }
}
