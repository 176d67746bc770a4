//! Task management: ends tasks, here or on every shard, and answers when the promise of the answer
//! is true.
//!
//! An answer promises that no task which the function ended touches the initiator's memory or the
//! medium any more. So it waits until each of them is gone from its shard: its RDMA completed, its
//! block write back or proven cancelled. ib_srp waits 5 s; what takes longer than
//! [`TMF_ANSWER_WITHIN`] is answered FUNCTION FAILED, and the writes that are still out leave
//! fences.

use std::sync::Arc;

use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::limits::TMF_ANSWER_WITHIN;
use super::message::{Message, Scope, TmfRef};
use super::nexus::Nexus;
use super::shard::Shard;
use super::task::{Ending as TaskEnding, Phase};
use crate::scsi::Condition;
use crate::srp::task::Owner;
use crate::srp::tmf::{TmfAction, TmfStatus};
use crate::wire::scsi::lun::LunField;
use crate::wire::srp::{RawLun, TaskMgmt};

/// The tasks of this shard that a task management function has ended and that are not back yet.
pub struct Ending {
    /// Who waits.
    from: TmfRef,
    waits: Vec<Key>,
    deadline: Time,
}

/// A task management function of this shard that waits for shards to answer.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pending {
    task: Key,
    /// Shards that have not answered.
    shards: usize,
    complete: bool,
}

/// The functions in progress that came by this shard's channels.
#[derive(Default)]
pub(super) struct Managements {
    pending: Vec<Pending>,
}

impl Managements {
    /// How many are in progress.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }
}

impl<F: Fabric> Shard<F> {
    /// A task management function has come.
    pub(super) fn start_management(&mut self, now: Time, key: Key, request: &TaskMgmt, action: &TmfAction) {
        let Some(nexus) = self.nexus_of(key) else { return };
        tracing::info!(
            shard = self.index,
            initiator = %nexus.id.initiator,
            function = ?crate::srp::tmf::TmfFunction::from_code(request.function),
            lun = %lun_words(&request.lun),
            "task management"
        );
        match *action {
            TmfAction::Answer(status) => self.answer_management(key, status),
            TmfAction::AbortTask { task, lun } => {
                let from = TmfRef { shard: self.index, task: key };
                let victim = self.tasks.key_at(task).filter(|&victim| {
                    // A task elsewhere is not in this LUN's task set.
                    self.tasks.get(victim).is_some_and(|task| task.lun_number == lun_number(&lun))
                });
                self.managements.pending.push(Pending { task: key, shards: 1, complete: true });
                self.end_tasks(now, victim.into_iter().collect(), Vec::new(), from);
            }
            TmfAction::AbortTaskSet { lun } => self.manage_lun(now, key, &lun, nexus, Scope::Nexus),
            TmfAction::ClearTaskSet { lun } => self.manage_lun(now, key, &lun, nexus, Scope::All),
            TmfAction::LunReset { lun } => self.manage_lun(now, key, &lun, nexus, Scope::Reset),
        }
    }

    fn nexus_of(&self, task: Key) -> Option<Arc<Nexus>> {
        let channel = self.tasks.get(task)?.channel;
        Some(Arc::clone(&self.channels.get(channel)?.nexus))
    }

    /// Ends the tasks of a LUN, here and on every other shard.
    fn manage_lun(&mut self, now: Time, key: Key, lun: &RawLun, nexus: Arc<Nexus>, scope: Scope) {
        let Some(lun) = lun_number(lun).filter(|&lun| self.luns.find(lun).is_some()) else {
            // LIO's answer for a LUN that does not exist, too.
            self.answer_management(key, TmfStatus::Failed);
            return;
        };
        let shards = self.peers.shards();
        self.managements.pending.push(Pending { task: key, shards, complete: true });
        let from = TmfRef { shard: self.index, task: key };
        for shard in (0..shards).filter(|&shard| shard != self.index) {
            let nexus = Arc::clone(&nexus);
            self.peers.send(shard, Message::EndTasks { lun, nexus, scope, from });
        }
        // At once, since commands that come behind the function on its channel are not meant.
        self.on_end_tasks(now, lun, &nexus, scope, from);
    }

    /// A shard asks to end tasks of a LUN.
    pub(super) fn on_end_tasks(
        &mut self,
        now: Time,
        lun: u16,
        nexus: &Arc<Nexus>,
        scope: Scope,
        from: TmfRef,
    ) {
        if scope == Scope::Reset
            && let Some(acceptor) = &self.acceptor
        {
            acceptor.raise(lun, Condition::Reset, Some(&nexus.id));
        }
        let mut own = Vec::new();
        let mut others = Vec::new();
        for (key, task) in self.tasks.iter() {
            if task.lun_number != Some(lun) || task.management.is_some() || !task.attached {
                continue;
            }
            let Some(channel) = self.channels.get(task.channel) else { continue };
            if channel.nexus.id == nexus.id {
                own.push(key);
            } else if scope != Scope::Nexus {
                others.push(key);
            }
        }
        self.end_tasks(now, own, others, from);
    }

    /// Ends tasks and waits for them on behalf of `from`: those of its own nexus in silence, for good,
    /// since whoever hears the function's answer uses their tags again; the others with TASK ABORTED.
    fn end_tasks(&mut self, now: Time, own: Vec<Key>, others: Vec<Key>, from: TmfRef) {
        for &key in &own {
            self.abort(now, key, TaskEnding::Silent);
        }
        for &key in &others {
            self.abort(now, key, TaskEnding::TaskAborted);
        }
        let waits = [own, others].concat();
        self.endings.push(Ending { from, waits, deadline: now + TMF_ANSWER_WITHIN });
        self.wake_slow_lane();
    }

    /// Looks whether ended tasks are back, and answers those who wait.
    pub(super) fn step_endings(&mut self, now: Time) {
        if self.endings.is_empty() {
            return;
        }
        let mut endings = std::mem::take(&mut self.endings);
        endings.retain_mut(|ending| {
            // An orphaned read is over although its memory is still out. An orphaned write is not:
            // it may be another function, or the end of its channel, that let it go.
            let is_out = |task: &super::task::Task| task.attached || task.fence.is_some();
            ending.waits.retain(|&key| self.tasks.get(key).is_some_and(is_out));
            let complete = ending.waits.is_empty();
            if !complete && now < ending.deadline {
                return true;
            }
            for &key in &ending.waits {
                let in_block = |task: &&super::task::Task| task.state.owner() == Owner::Block;
                if self.tasks.get(key).filter(in_block).is_some() {
                    self.orphan(key);
                }
            }
            let from = ending.from;
            self.peers.send(from.shard, Message::TasksEnded { to: from.task, complete });
            false
        });
        self.endings.append(&mut endings);
    }

    /// A shard has ended its tasks, or could not in time.
    pub(super) fn on_tasks_ended(&mut self, task: Key, complete: bool) {
        let Some(at) = self.managements.pending.iter().position(|pending| pending.task == task) else {
            return;
        };
        let pending = &mut self.managements.pending[at];
        pending.shards -= 1;
        pending.complete &= complete;
        if pending.shards > 0 {
            return;
        }
        let pending = self.managements.pending.swap_remove(at);
        let status = if pending.complete { TmfStatus::Complete } else { TmfStatus::Failed };
        self.answer_management(task, status);
    }

    fn answer_management(&mut self, key: Key, status: TmfStatus) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| !task.state.is_aborted()) else { return };
        if status == TmfStatus::Failed {
            self.counts.tmf_failed += 1;
            tracing::warn!(shard = self.index, "task management failed: not all tasks ended in time");
        }
        task.management = Some(status);
        task.phase = Phase::Respond;
        self.responses.push(key);
    }
}

fn lun_number(lun: &RawLun) -> Option<u16> {
    match LunField::parse(&lun.0) {
        LunField::Unit(lun) => Some(lun.get()),
        LunField::ReportLuns | LunField::Elsewhere => None,
    }
}

fn lun_words(lun: &RawLun) -> String {
    lun_number(lun).map_or_else(|| format!("{lun:?}"), |lun| lun.to_string())
}
