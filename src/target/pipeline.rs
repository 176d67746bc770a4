//! A task's way: memory, descriptor table, data, block device, response.
//!
//! [`Shard::run`] takes a task as far as it can go and returns when somebody else owns it (the
//! RDMA device, the block queue) or when it has to wait in a line. The completion, or its turn in
//! the line, calls `run` again. [`Phase`] says what comes next, the task's state who owns it.

use bdev::{Completion, Io, IoError, IoId, Op, SubmitError};
use reactors::slab::Key;
use reactors::time::Time;

use super::drain::Why;
use super::fabric::Fabric;
use super::limits::READ_BYTES;
use super::shard::Shard;
use super::slots::Slots;
use super::task::{Ending, Phase, Source, Task};
use super::wr::Tag;
use crate::rdma::verbs::{Remote, SendOp, SendWr, SgeList, VerbsError};
use crate::scsi::{BlockFault, BlockOp, Outcome, outcome_of_fault};
use crate::srp::descriptors::{BufferRef, Piece, Table, check_table};
use crate::srp::task::{Owner, TaskEvent, TaskState};
use crate::srp::{Direction, SenseCode};
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};
use crate::wire::scsi::status::Status;
use crate::wire::srp::DescTable;

/// What a step led to.
enum Step {
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
            let step = match task.phase {
                Phase::Memory => self.take_memory(key),
                Phase::Table => self.read_table(now, key),
                Phase::Chunk => self.begin_chunk(key),
                Phase::Fetch => self.fetch(now, key),
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
            .with_bytes(piece.offset, table.len_bytes as usize, |bytes| {
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
                    let at = piece.offset + transfer.chunk_at;
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

    /// Brings the chunk's data here.
    fn fetch(&mut self, now: Time, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        if let BufferRef::Immediate { offset, .. } = task.buffer {
            if let (Source::Pool, Some(piece), Some(slot)) =
                (task.transfer.source, task.transfer.piece, task.slot)
            {
                let (from, to) = (Slots::offset(slot) + usize::from(offset), piece.offset);
                let len = task.transfer.chunk as usize;
                self.slots
                    .region()
                    .copy_to(from, self.pool.region(), to, len)
                    .expect("immediate data lie in their slot and fit a chunk");
            }
            task.phase = Phase::Block;
            return Step::On;
        }
        while let Some(task) = self.tasks.get_mut(key) {
            let transfer = task.transfer;
            if transfer.posted == transfer.chunk {
                if transfer.reads_in_flight > 0 {
                    return Step::Wait;
                }
                task.phase = Phase::Block;
                return Step::On;
            }
            let window = self.channels.get(task.channel).is_some_and(|c| c.reads_in_flight < c.max_reads);
            if !window || !self.has_turn(key) {
                return self.wait_for_window(key);
            }
            let want = (transfer.chunk - transfer.posted).min(READ_BYTES);
            if let Err(error) = self.post_piece(now, key, want, |piece, sge| SendWr {
                wr_id: Tag::DataRead.bits(key),
                op: SendOp::Read(Remote { addr: piece.addr, rkey: piece.rkey }),
                sges: SgeList::one(sge),
                signaled: true,
            }) {
                return self.cannot_post(now, key, &error);
            }
            let Some(task) = self.tasks.get_mut(key) else { break };
            task.transfer.reads_in_flight += 1;
            task.advance(TaskEvent::PostDataRead);
            if let Some(channel) = self.channels.get_mut(task.channel) {
                channel.reads_in_flight += 1;
            }
        }
        Step::Wait
    }

    /// Posts RDMA for the next piece of the chunk, of at most `max_bytes`.
    fn post_piece(
        &mut self,
        now: Time,
        key: Key,
        max_bytes: u32,
        wr: impl FnOnce(Piece, crate::rdma::verbs::Sge) -> SendWr,
    ) -> Result<(), VerbsError> {
        let gone = VerbsError::NotFound("task");
        let task = self.tasks.get(key).ok_or(gone.clone())?;
        let mut transfer = task.transfer;
        let piece = self.with_table(task, |table| transfer.cursor.next(table, max_bytes)).flatten();
        // The descriptors were checked to cover the buffer; an external table may have been
        // changed by nobody, since it lies in our memory.
        let (Some(piece), Some(memory)) = (piece, transfer.piece) else {
            return Err(VerbsError::Invalid("descriptors that end before the data"));
        };
        let at = transfer.chunk_at + transfer.posted as usize;
        let wr = wr(piece, self.pool.sge(memory, at, piece.len_bytes));
        let task = self.tasks.get_mut(key).ok_or(gone.clone())?;
        let channel = self.channels.get_mut(task.channel).ok_or(gone)?;
        self.fabric.post_send(now, channel.qp, &wr)?;
        channel.posted(wr.signaled);
        task.transfer.cursor = transfer.cursor;
        task.transfer.posted += piece.len_bytes;
        Ok(())
    }

    /// Shows a task's descriptors, wherever they lie.
    fn with_table<R>(&self, task: &Task, look: impl FnOnce(&Table<'_>) -> R) -> Option<R> {
        match task.buffer {
            BufferRef::Direct(descriptor) => Some(look(&Table::One(descriptor))),
            BufferRef::Inline { .. } => {
                let at = Slots::offset(task.slot?);
                let show = |iu: &[u8]| task.buffer.table(iu).map(|table| look(&table));
                self.slots.region().with_bytes(at, task.iu_bytes as usize, show).ok()?
            }
            BufferRef::External { table, .. } => {
                let at = task.transfer.piece?.offset;
                let show = |bytes: &[u8]| DescTable::new(bytes).map(|table| look(&Table::Many(table)));
                self.pool.region().with_bytes(at, table.len_bytes as usize, show).ok()?
            }
            BufferRef::None | BufferRef::Immediate { .. } => None,
        }
    }

    /// An RDMA READ of a task's data is back.
    pub(super) fn on_data_read(&mut self, now: Time, key: Key, ok: bool) {
        if self.read_is_back(now, key) && ok {
            self.run(now, key);
        }
    }

    /// Books a READ as back. Whether its task goes on by itself: it is not aborted, it has no READ
    /// in flight any more, and does not stand in line.
    fn read_is_back(&mut self, now: Time, key: Key) -> bool {
        let Some(task) = self.tasks.get_mut(key) else {
            self.counts.stale_completions += 1;
            return false;
        };
        task.transfer.reads_in_flight -= 1;
        let (channel, aborted) = (task.channel, task.state.is_aborted());
        let goes_on = task.transfer.reads_in_flight == 0 && !aborted && !task.queued;
        if aborted {
            self.device_released(now, key);
        }
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.reads_in_flight -= 1;
        }
        self.resume(now, channel);
        goes_on
    }

    fn submit_block(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let (Some(op), Some(lun)) = (task.op, task.lun.and_then(|lun| self.luns.get_mut(lun))) else {
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
        let (region, region_offset) = match (transfer.source, task.buffer, task.slot) {
            (Source::Slot, BufferRef::Immediate { offset, .. }, Some(slot)) => {
                (lun.slot_region, Slots::offset(slot) + usize::from(offset))
            }
            _ => (lun.pool_region, transfer.piece.map_or(0, |piece| piece.offset + transfer.chunk_at)),
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
        if task.state.is_aborted() {
            task.advance(TaskEvent::BlockReleased);
            self.end_aborted(now, key);
            return;
        }
        if let Err(error) = completion.result {
            self.block_failed(key, error);
            return;
        }
        task.phase = match task.op {
            Some(BlockOp::Read { .. }) => Phase::Deliver,
            Some(BlockOp::Write { .. }) => chunk_done(task),
            Some(BlockOp::Flush { .. }) | None => Phase::Respond,
        };
        if task.phase == Phase::Respond
            && let Some(channel) = self.channels.get_mut(task.channel)
        {
            channel.written_bytes += u64::from(task.transfer.total);
        }
        self.run(now, key);
    }

    fn block_failed(&mut self, key: Key, error: IoError) {
        self.counts.block_errors += 1;
        let Some(task) = self.tasks.get(key) else { return };
        let Some(op) = task.op else { return };
        let name = task.lun.and_then(|lun| self.luns.get(lun)).map_or("?", |lun| lun.entry.bdev.name());
        tracing::warn!(shard = self.index, bdev = name, lba = op.extent().lba, %error, "a block operation failed");
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

    /// Writes the chunk to the initiator's memory.
    fn deliver(&mut self, now: Time, key: Key) -> Step {
        loop {
            let Some(task) = self.tasks.get(key) else { return Step::Wait };
            let transfer = task.transfer;
            if transfer.posted == transfer.chunk {
                return self.delivered(key);
            }
            if !self.has_turn(key) {
                return self.wait_for_window(key);
            }
            let last_chunk = transfer.done + transfer.chunk == transfer.total;
            let channel = task.channel;
            let wants_signal = self.channels.get(channel).is_some_and(|channel| channel.wants_signal());
            let left = transfer.chunk - transfer.posted;
            let posted = self.post_piece(now, key, left, |piece, sge| {
                let ends_chunk = piece.len_bytes == left && !last_chunk;
                SendWr {
                    wr_id: if ends_chunk {
                        Tag::ChunkSent.bits(key)
                    } else {
                        Tag::Housekeeping.bits(channel)
                    },
                    op: SendOp::Write(Remote { addr: piece.addr, rkey: piece.rkey }),
                    sges: SgeList::one(sge),
                    signaled: ends_chunk || wants_signal,
                }
            });
            if let Err(error) = posted {
                return self.cannot_post(now, key, &error);
            }
            if let Some(task) = self.tasks.get_mut(key) {
                task.advance(TaskEvent::PostDataWrite);
            }
        }
    }

    fn delivered(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let transfer = &mut task.transfer;
        if transfer.done + transfer.chunk < transfer.total {
            transfer.signal_in_flight = true;
            return Step::Wait;
        }
        // What was posted keeps its memory until the response, which follows on the same queue
        // pair, has completed.
        transfer.done = transfer.total;
        task.phase = Phase::Respond;
        if let Some(channel) = self.channels.get_mut(task.channel) {
            channel.read_bytes += u64::from(transfer.total);
        }
        Step::On
    }

    /// The initiator has all of a chunk: its memory serves the next one.
    pub(super) fn on_chunk_sent(&mut self, now: Time, key: Key, ok: bool) {
        let Some(task) = self.tasks.get_mut(key) else {
            self.counts.stale_completions += 1;
            return;
        };
        task.transfer.signal_in_flight = false;
        let channel = task.channel;
        if task.state.is_aborted() {
            self.device_released(now, key);
        } else if ok {
            task.phase = chunk_done(task);
            self.run(now, key);
        }
        self.resume(now, channel);
    }

    /// An aborted task whose WRITEs have no completion of their own: an empty WRITE behind them
    /// has one.
    fn flush_writes(&mut self, now: Time, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        let Some(channel) = self.channels.get_mut(task.channel) else { return Step::Wait };
        let wr = SendWr {
            wr_id: Tag::ChunkSent.bits(key),
            op: SendOp::Write(Remote::default()),
            sges: SgeList::EMPTY,
            signaled: true,
        };
        match self.fabric.post_send(now, channel.qp, &wr) {
            Ok(()) => {
                channel.posted(true);
                task.transfer.signal_in_flight = true;
                Step::Wait
            }
            Err(error) => self.cannot_post(now, key, &error),
        }
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

    /// Whether nobody in the channel's line is before this task.
    fn has_turn(&self, key: Key) -> bool {
        let Some(task) = self.tasks.get(key) else { return false };
        let Some(channel) = self.channels.get(task.channel) else { return false };
        channel.waiting.front().is_none_or(|first| *first == key)
    }

    /// Puts the task into its channel's line, if it is not there yet.
    fn wait_for_window(&mut self, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        task.blocked = true;
        if !task.queued {
            task.queued = true;
            self.counts.window_waits += 1;
            if let Some(channel) = self.channels.get_mut(task.channel) {
                channel.waiting.push_back(key);
            }
        }
        if task.state.owner() != Owner::Device {
            wait(task);
        }
        Step::Wait
    }

    /// The channel's line moves on: a READ came back, or the send queue has room.
    pub(super) fn resume(&mut self, now: Time, channel: Key) {
        while let Some(&key) = self.channels.get(channel).and_then(|channel| channel.waiting.front()) {
            let lives = |task: &&mut Task| !task.state.is_aborted() || task.phase == Phase::Flush;
            if self.tasks.get_mut(key).filter(lives).is_some() {
                self.run(now, key);
                if self.tasks.get(key).is_some_and(|task| task.blocked) {
                    return;
                }
            }
            if let Some(channel) = self.channels.get_mut(channel)
                && channel.waiting.front() == Some(&key)
            {
                channel.waiting.pop_front();
            }
            if let Some(task) = self.tasks.get_mut(key) {
                task.queued = false;
            }
        }
    }

    fn cannot_post(&mut self, now: Time, key: Key, error: &VerbsError) -> Step {
        if *error == VerbsError::QueueFull {
            return self.wait_for_window(key);
        }
        if let Some(channel) = self.tasks.get(key).map(|task| task.channel) {
            self.on_refused_post(now, channel, error);
        }
        Step::Wait
    }

    /// A post was refused for another reason than a full queue: the queue pair is of no use.
    pub(super) fn on_refused_post(&mut self, now: Time, channel: Key, error: &VerbsError) {
        tracing::debug!(shard = self.index, %error, "a work request was refused");
        self.end_channel(now, channel, Why::QueuePair);
    }

    /// Ends a task as far as it is possible now; `ending` says what its initiator hears.
    ///
    /// What the RDMA device has is awaited. A block operation is cancelled and awaited, except a
    /// read's: its memory is let go, the task itself is over.
    pub(super) fn abort(&mut self, now: Time, key: Key, ending: Ending) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if matches!(task.state, TaskState::Responding | TaskState::Done) {
            return;
        }
        if task.ending != Ending::Silent {
            task.ending = ending;
        }
        if task.state.is_aborted() {
            return;
        }
        self.counts.aborted += 1;
        let unsignaled = task.has_unsignaled_writes();
        task.advance(TaskEvent::Abort);
        match task.state.owner() {
            Owner::Shard => self.end_aborted(now, key),
            Owner::Device if unsignaled => {
                task.phase = Phase::Flush;
                self.run(now, key);
            }
            Owner::Device | Owner::Nobody => {}
            Owner::Block => {
                let reads = task.changed_range().is_none();
                if let Some(lun) = task.lun.and_then(|lun| self.luns.get_mut(lun)) {
                    lun.queue.cancel(IoId(Tag::Block.bits(key)));
                }
                if reads && task.ending == Ending::Silent {
                    self.orphan(key);
                }
            }
        }
    }

    /// The RDMA device has let go of (a part of) an aborted task's memory.
    fn device_released(&mut self, now: Time, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.transfer.reads_in_flight > 0 || task.transfer.signal_in_flight {
            return;
        }
        task.advance(TaskEvent::DeviceReleased);
        self.end_aborted(now, key);
    }

    /// An aborted task that nobody else owns any more ends.
    fn end_aborted(&mut self, now: Time, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let answers = task.ending == Ending::TaskAborted
            && self.channels.get(task.channel).is_some_and(|channel| channel.life.takes_ius());
        if answers {
            task.outcome = Outcome::status(Status::TaskAborted);
            task.command_bytes = 0;
            task.phase = Phase::Respond;
            self.run(now, key);
        } else {
            task.advance(TaskEvent::EndSilently);
            self.free(key);
        }
    }

    /// Detaches a task from its channel while the block device still has its memory. A write
    /// leaves a fence around the blocks that it may still change.
    pub(super) fn orphan(&mut self, key: Key) {
        self.detach(key);
        let Some(task) = self.tasks.get_mut(key) else { return };
        self.counts.orphans += 1;
        if let (Some(range), None) = (task.changed_range(), task.fence)
            && let Some(lun) = task.lun.and_then(|lun| self.luns.get(lun))
        {
            task.fence = Some(lun.entry.fences.raise(range));
        }
        // A read's information unit is not needed any more; a write's may be its data.
        if task.fence.is_none()
            && let Some(slot) = task.slot.take()
        {
            self.slots.put(slot);
        }
    }

    /// The channel counts the task no more; its tag is free, its credit goes back silently.
    fn detach(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if !std::mem::take(&mut task.attached) {
            return;
        }
        let (tagged, credited) = (std::mem::take(&mut task.tagged), std::mem::take(&mut task.credited));
        let Some(channel) = self.channels.get_mut(task.channel) else { return };
        channel.tasks -= 1;
        if tagged {
            channel.srp.end(task.tag);
        }
        if credited {
            channel.srp.end_silently();
        }
    }

    /// A task is over: everything it holds goes back.
    pub(super) fn free(&mut self, key: Key) {
        let was_attached = self.tasks.get(key).is_some_and(|task| task.attached);
        self.detach(key);
        let Some(task) = self.tasks.remove(key) else { return };
        if let Some(piece) = task.transfer.piece {
            self.pool.put(piece);
        }
        if let Some(slot) = task.slot {
            self.slots.put(slot);
            self.slot_is_back(was_attached, task.channel);
        }
        if let Some(lun) = task.lun.and_then(|lun| self.luns.get_mut(lun)) {
            lun.tasks -= 1;
            if let Some(fence) = task.fence {
                lun.entry.fences.lower(fence);
            }
        }
    }
}

/// The next phase after a chunk, or after all.
fn chunk_done(task: &mut Task) -> Phase {
    task.transfer.done += task.transfer.chunk;
    if task.transfer.done < task.transfer.total { Phase::Chunk } else { Phase::Respond }
}

/// The task waits in a line, owned by the shard.
fn wait(task: &mut Task) {
    if task.state != TaskState::WaitWindow {
        task.advance(TaskEvent::NeedWindow);
    }
}
