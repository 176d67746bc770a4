//! What is not done: commands in progress and given up, and queue pairs that are on their way out. What
//! an operator asks for when something hangs.

use std::time::Duration;

use reactors::time::Time;

use super::admin::session_id;
use super::fabric::Fabric;
use super::handle::SessionId;
use super::shard::Shard;
use super::task::Task;
use crate::scsi::BlockOp;

/// A command (or task management function) in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingTask {
    /// The session it came by; `None` if that is over.
    pub session: Option<SessionId>,
    /// The shard it is on.
    pub shard: usize,
    /// Its tag in hexadecimal digits, as the initiator chose it.
    pub tag: String,
    /// The logical unit that it was addressed to.
    pub lun: Option<u16>,
    /// What the block device does for it: `read`, `write`, `flush`, `unmap`; else `management` or `other`.
    pub operation: &'static str,
    /// First block of that.
    pub lba: Option<u64>,
    /// How many blocks.
    pub blocks: Option<u64>,
    /// Where it is, in a word: the names of the task states.
    pub state: String,
    /// Milliseconds since it came.
    pub age_ms: u64,
    /// It was given up, and only its memory is still out.
    pub orphan: bool,
    /// Later writes to its blocks wait for it.
    pub fence: bool,
}

/// A queue pair whose channel is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingQp {
    /// Its number.
    pub qpn: u32,
    /// The shard it is on.
    pub shard: usize,
    /// Its state in a word.
    pub state: &'static str,
    /// Why its channel ended, in words.
    pub why: Option<String>,
    /// What it waits for, in words.
    pub waits_for: &'static str,
    /// Milliseconds since its channel was over.
    pub since_ms: u64,
    /// Commands whose memory is held until it is gone.
    pub held: usize,
}

/// Everything that is not done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Commands, the oldest first.
    pub tasks: Vec<PendingTask>,
    /// How many more commands there are than are listed.
    pub more: usize,
    /// Queue pairs, in no order.
    pub queue_pairs: Vec<PendingQp>,
}

impl Pending {
    /// Adds what another shard says; keeps the `most` oldest commands.
    pub fn merge(&mut self, other: Pending, most: usize) {
        self.tasks.extend(other.tasks);
        self.more += other.more;
        self.queue_pairs.extend(other.queue_pairs);
        self.cut(most);
    }

    fn cut(&mut self, most: usize) {
        self.tasks.sort_by_key(|task| (std::cmp::Reverse(task.age_ms), task.shard));
        self.more += self.tasks.len().saturating_sub(most);
        self.tasks.truncate(most);
    }
}

impl<F: Fabric> Shard<F> {
    /// What is not done here: the `most` oldest commands of at least `min_age`, and all queue pairs.
    pub(super) fn pending(&self, now: Time, min_age: Duration, most: usize) -> Pending {
        let tasks = self.tasks.iter().map(|(_, task)| task).filter(|task| now.since(task.since) >= min_age);
        let queue_pairs = self.retirements.iter().map(|retiring| PendingQp {
            qpn: retiring.qpn.get(),
            shard: self.index,
            state: retiring.life.word(),
            why: retiring.why.as_ref().map(ToString::to_string),
            waits_for: retiring.waits_for(),
            since_ms: now.since(retiring.since).as_millis() as u64,
            held: retiring.held.len(),
        });
        let mut pending = Pending {
            tasks: tasks.map(|task| self.pending_task(now, task)).collect(),
            more: 0,
            queue_pairs: queue_pairs.collect(),
        };
        pending.cut(most);
        pending
    }

    fn pending_task(&self, now: Time, task: &Task) -> PendingTask {
        let extent = task.op.as_ref().map(BlockOp::extent);
        PendingTask {
            session: self.channels.get(task.channel).map(|channel| session_id(&channel.nexus.id)),
            shard: self.index,
            tag: format!("{:016x}", u64::from_be_bytes(task.tag.0)),
            lun: task.lun_number,
            operation: match task.op {
                Some(BlockOp::Read { .. }) => "read",
                Some(BlockOp::Write { .. }) => "write",
                Some(BlockOp::Flush { .. }) => "flush",
                Some(BlockOp::Unmap { .. }) => "unmap",
                None if task.management.is_some() => "management",
                None => "other",
            },
            lba: extent.map(|extent| extent.lba),
            blocks: extent.map(|extent| extent.blocks),
            state: task.state.to_string(),
            age_ms: now.since(task.since).as_millis() as u64,
            orphan: !task.attached,
            fence: task.fence.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tag: &str, age_ms: u64) -> PendingTask {
        PendingTask {
            session: None,
            shard: 0,
            tag: tag.to_owned(),
            lun: Some(0),
            operation: "write",
            lba: Some(8),
            blocks: Some(1),
            state: "in_block".to_owned(),
            age_ms,
            orphan: true,
            fence: true,
        }
    }

    #[test]
    fn the_oldest_are_kept_and_the_rest_is_counted() {
        let mut all = Pending::default();
        all.merge(Pending { tasks: vec![task("1", 10), task("2", 300)], more: 5, ..Pending::default() }, 3);
        all.merge(Pending { tasks: vec![task("3", 200), task("4", 100)], ..Pending::default() }, 3);
        assert_eq!(all.tasks.iter().map(|task| task.tag.as_str()).collect::<Vec<_>>(), ["2", "3", "4"]);
        assert_eq!(all.more, 6);
    }
}
