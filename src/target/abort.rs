//! The end of a task before its time: abort, orphans of the block device, and giving back all
//! that a task holds.

use bdev::IoId;
use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::limits::ORPHANS_AT_MOST;
use super::message::Message;
use super::shard::Shard;
use super::task::{Ending, Phase, Source};
use super::wr::Tag;
use crate::scsi::Outcome;
use crate::srp::task::{Owner, TaskEvent, TaskState};
use crate::wire::scsi::status::Status;

impl<F: Fabric> Shard<F> {
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
            // What was to hear TASK ABORTED hears nothing: it may wait for room in the send queue, or
            // for a read of the block device that nobody needs any more.
            let reads = task.changed_range().is_none();
            match task.state {
                _ if task.ending != Ending::Silent => {}
                TaskState::Aborted => self.end_aborted(now, key),
                TaskState::AbortedInBlock if reads => self.orphan(key),
                _ => {}
            }
            return;
        }
        self.counts.aborted += 1;
        if task.state == TaskState::WaitMemory {
            self.pool.forget(key);
        }
        let unsignaled = task.has_unsignaled_writes();
        task.advance(TaskEvent::Abort);
        match task.state.owner() {
            Owner::Shard => self.end_aborted(now, key),
            Owner::Device if unsignaled => {
                task.phase = Phase::Flush;
                self.run(now, key);
            }
            // All its READs may be back, and it stands in its channel's line for the next one.
            Owner::Device => self.device_released(now, key),
            Owner::Nobody => {}
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
    pub(super) fn device_released(&mut self, now: Time, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.transfer.reads_in_flight > 0 || task.transfer.signal_in_flight {
            return;
        }
        task.advance(TaskEvent::DeviceReleased);
        self.end_aborted(now, key);
    }

    /// An aborted task that nobody else owns any more ends.
    pub(super) fn end_aborted(&mut self, now: Time, key: Key) {
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

    /// Lets go of a task while the block device still has its memory: a write leaves a fence around
    /// the blocks that it may still change.
    ///
    /// Its channel forgets it, unless its nexus is to hear TASK ABORTED: that answer waits for the
    /// device, however long it takes.
    pub(super) fn orphan(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let (Some(range), None) = (task.changed_range(), task.fence)
            && let Some(lun) = task.lun.and_then(|lun| self.luns.get(lun))
        {
            task.fence = Some(lun.entry.fences.raise(range));
        }
        if !task.attached || task.ending != Ending::Silent {
            return;
        }
        self.counts.orphans += 1;
        // Its information unit is not needed any more, unless its data lie there: then the slot stays,
        // and with it the credit that stands for the slot. So it is, too, where orphans have taken all
        // places that they may have beside the tasks of living channels.
        let in_slot = task.transfer.source == Source::Slot && task.op.is_some_and(|op| op.is_write());
        let keeps_slot = in_slot || self.loose >= ORPHANS_AT_MOST;
        self.detach(key, keeps_slot);
        if !keeps_slot {
            self.loose += 1;
            self.return_credit(key);
            if let Some(slot) = self.tasks.get_mut(key).and_then(|task| task.slot.take()) {
                self.slots.put(slot);
            }
        }
    }

    /// The channel counts the task no more; its tag is free. The promise of its receive slot goes
    /// back to the channel, or stays with the task.
    pub(super) fn detach(&mut self, key: Key, keeps_slot: bool) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if !std::mem::take(&mut task.attached) {
            return;
        }
        task.backed = keeps_slot;
        let (tagged, tag, place) = (std::mem::take(&mut task.tagged), task.tag, task.place);
        let Some(channel) = self.channels.get_mut(task.channel) else { return };
        channel.backed += u32::from(keeps_slot);
        self.draining.woken |= channel.exit.is_some();
        if tagged {
            channel.srp.end(tag);
        }
        if let Some(moved) = channel.roll.leave(place).and_then(|moved| self.tasks.get_mut(moved)) {
            moved.place = place;
        }
    }

    /// A task that was not answered gives its credit back, with the next answer on its channel.
    fn return_credit(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if std::mem::take(&mut task.credited)
            && let Some(channel) = self.channels.get_mut(task.channel)
        {
            let channel_key = task.channel;
            channel.srp.end_silently();
            self.credit_withheld(channel_key);
        }
    }

    /// A task is over: everything it holds goes back.
    pub(super) fn free(&mut self, key: Key) {
        let was_attached = self.tasks.get(key).is_some_and(|task| task.attached);
        self.detach(key, false);
        self.return_credit(key);
        self.leave_lun(key);
        let Some(task) = self.tasks.get(key) else { return };
        let (piece, slot, backed, channel) = (task.transfer.piece, task.slot, task.backed, task.channel);
        self.tasks.discard(key);
        if let Some(piece) = piece {
            self.pool.put(piece);
        }
        if let Some(slot) = slot {
            self.slots.put(slot);
        }
        if backed {
            self.promise_is_back(channel);
        } else if !was_attached {
            self.loose -= 1;
        }
    }

    /// A task that kept the promise of a receive slot has ended: the promise is its channel's again,
    /// or nobody's if that is gone.
    fn promise_is_back(&mut self, channel: Key) {
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.backed -= 1;
        } else {
            self.slots.ungrant(1);
            self.peers.send(0, Message::SlotsBack { shard: self.index, slots: 1 });
        }
    }

    /// A task that the block device has nothing of any more needs its logical unit no longer. So a
    /// peer that does not acknowledge its responses holds up no change of the configuration.
    pub(super) fn leave_lun(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Some(lun) = task.lun.take().and_then(|lun| self.luns.get_mut(lun)) {
            lun.tasks -= 1;
            if let Some(fence) = task.fence.take() {
                lun.entry.fences.lower(fence);
            }
        }
    }
}
