//! RDMA for a task's data: READs that fetch a chunk, WRITEs that deliver one, and the channel's
//! line of tasks that wait for the READ window or the send queue.

use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::limits::READ_BYTES;
use super::pipeline::{Step, chunk_done, fetched, wait};
use super::probe::empty_write;
use super::shard::Shard;
use super::slots::Slots;
use super::task::{Phase, Source, Task, Transfer};
use super::why::Why;
use super::wr::Tag;
use crate::rdma::verbs::{Remote, SendOp, SendWr, SgeList, VerbsError};
use crate::srp::descriptors::{BufferRef, Piece, Table};
use crate::srp::task::{Owner, TaskEvent};
use crate::wire::srp::DescTable;

impl<F: Fabric> Shard<F> {
    /// Brings the chunk's data here.
    pub(super) fn fetch(&mut self, now: Time, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        if let BufferRef::Immediate { offset, .. } = task.buffer {
            if let (Source::Pool, Some(piece), Some(slot)) =
                (task.transfer.source, task.transfer.piece, task.slot)
            {
                let (from, to) = (Slots::offset(slot) + usize::from(offset), piece.offset());
                let len = task.transfer.chunk as usize;
                self.slots
                    .region()
                    .copy_to(from, self.pool.region(), to, len)
                    .expect("immediate data lie in their slot and fit a chunk");
                // Nothing else of the information unit is needed.
                task.slot = None;
                self.slots.put(slot);
                self.counts.slots_rescued += 1;
            }
            task.phase = fetched(task);
            return Step::On;
        }
        while let Some(task) = self.tasks.get_mut(key) {
            let transfer = task.transfer;
            if transfer.posted == transfer.chunk {
                if transfer.reads_in_flight > 0 {
                    return Step::Wait;
                }
                task.phase = fetched(task);
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
        let Some(task) = self.tasks.get(key) else { return Err(VerbsError::NotFound("task")) };
        let Transfer { mut cursor, piece: memory, chunk_at, posted, .. } = task.transfer;
        let posted = posted as usize;
        let piece = self.with_table(task, |table| cursor.next(table, max_bytes)).flatten();
        // The descriptors were checked to cover the buffer; an external table may have been
        // changed by nobody, since it lies in our memory.
        let sge = piece.and_then(|piece| match (&task.in_place, memory) {
            (Some(place), _) => Some(place.sge(posted, piece.len_bytes)),
            (None, Some(memory)) => Some(self.pool.sge(memory, chunk_at + posted, piece.len_bytes)),
            (None, None) => None,
        });
        let (Some(piece), Some(sge)) = (piece, sge) else {
            return Err(VerbsError::Invalid("descriptors that end before the data"));
        };
        let wr = wr(piece, sge);
        let Some(task) = self.tasks.get_mut(key) else { return Err(VerbsError::NotFound("task")) };
        let Some(channel) = self.channels.get_mut(task.channel) else {
            return Err(VerbsError::NotFound("channel"));
        };
        self.fabric.post_send(now, channel.qp, &wr)?;
        channel.posted(wr.signaled);
        task.transfer.cursor = cursor;
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
                let at = task.transfer.piece?.offset();
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
    pub(super) fn read_is_back(&mut self, now: Time, key: Key) -> bool {
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

    /// Writes the chunk to the initiator's memory.
    pub(super) fn deliver(&mut self, now: Time, key: Key) -> Step {
        loop {
            let Some(task) = self.tasks.get(key) else { return Step::Wait };
            let transfer = &task.transfer;
            let left = transfer.chunk - transfer.posted;
            let last_chunk = transfer.done + transfer.chunk == transfer.total;
            let channel = task.channel;
            if left == 0 {
                return self.delivered(key);
            }
            if !self.has_turn(key) {
                return self.wait_for_window(key);
            }
            let wants_signal = self.channels.get(channel).is_some_and(|channel| channel.wants_signal());
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
    pub(super) fn flush_writes(&mut self, now: Time, key: Key) -> Step {
        let Some(task) = self.tasks.get_mut(key) else { return Step::Wait };
        // It may have stood in its channel's line already, and comes again when its turn comes.
        if task.transfer.signal_in_flight {
            return Step::Wait;
        }
        let Some(channel) = self.channels.get_mut(task.channel) else { return Step::Wait };
        match self.fabric.post_send(now, channel.qp, &empty_write(Tag::ChunkSent.bits(key))) {
            Ok(()) => {
                channel.posted(true);
                task.transfer.signal_in_flight = true;
                Step::Wait
            }
            Err(error) => self.cannot_post(now, key, &error),
        }
    }

    /// Whether nobody in the channel's line is before this task.
    pub(super) fn has_turn(&self, key: Key) -> bool {
        let Some(task) = self.tasks.get(key) else { return false };
        let Some(channel) = self.channels.get(task.channel) else { return false };
        channel.waiting.front().is_none_or(|first| *first == key)
    }

    /// Puts the task into its channel's line, if it is not there yet.
    pub(super) fn wait_for_window(&mut self, key: Key) -> Step {
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

    pub(super) fn cannot_post(&mut self, now: Time, key: Key, error: &VerbsError) -> Step {
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
}
