//! The end of a task before its time: abort, orphans of the block device, and giving back all
//! that a task holds.

use bdev::IoId;
use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::shard::Shard;
use super::task::{Ending, Phase};
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
