//! The books of a shard, held against what they are about: for tests, which look after every turn,
//! and for whoever doubts.

use std::rc::Rc;

use super::accept::Acceptor;
use super::fabric::Fabric;
use super::shard::Shard;
use super::task::Task;
use crate::srp::task::TaskState;

/// What is wrong, one sentence each; empty if nothing is.
pub type Findings = Vec<String>;

/// Notes that `what` is `is` and should be `should`.
fn compare<T: PartialEq + std::fmt::Debug>(findings: &mut Findings, what: &str, is: T, should: T) {
    if is != should {
        findings.push(format!("{what}: {is:?}, but {should:?} by count"));
    }
}

impl<F: Fabric> Shard<F> {
    /// Whether all counts agree with what they count. True between any two turns.
    pub fn audit(&self) -> Findings {
        let mut findings = Findings::new();
        let tasks = || self.tasks.iter().map(|(_, task)| task);
        let slots = self.slots.counts();
        let held = tasks().filter(|task| task.slot.is_some()).count() as u32;
        compare(&mut findings, "receive slots held", slots.held, held);
        let out: usize = tasks().filter_map(|task| task.transfer.piece).map(|piece| piece.len_bytes()).sum();
        let used = self.pool.capacity_bytes() - self.pool.free_bytes();
        compare(&mut findings, "bytes of the pool in use", used, out);
        // One that was served, and whose queue pair then took nothing, ends with its channel.
        let in_line = |task: &&Task| task.state == TaskState::WaitMemory && task.transfer.piece.is_none();
        let waiting = tasks().filter(in_line).count();
        compare(&mut findings, "tasks in line for memory", self.pool.waiting(), waiting);
        self.audit_channels(&mut findings);
        for (key, lun) in self.luns.iter() {
            let named = tasks().filter(|task| task.lun == Some(key)).count() as u32;
            compare(&mut findings, &format!("tasks of LUN {}", lun.entry.lun), lun.tasks, named);
        }
        for (lent, holders) in self.loans.holders() {
            let luns = self.luns.iter().filter_map(|(_, lun)| lun.lent.as_ref());
            let readers = tasks().filter_map(|task| task.in_place.as_ref()).map(|place| &place.memory);
            let found = luns.chain(readers).filter(|other| Rc::ptr_eq(lent, other)).count();
            compare(&mut findings, "holders of a block device's memory", holders, found);
        }
        findings
    }

    fn audit_channels(&self, findings: &mut Findings) {
        compare(findings, "entries by QPN", self.by_qpn.len(), self.channels.len());
        let mut granted = 0;
        for (key, channel) in self.channels.iter() {
            let mine = || self.tasks.iter().map(|(_, task)| task).filter(|task| task.channel == key);
            let name = format!("channel {}", channel.qpn);
            granted += channel.slots;
            compare(findings, &format!("{name} by its QPN"), self.by_qpn.get(&channel.qpn), Some(&key));
            let attached = mine().filter(|task| task.attached).count() as u32;
            compare(findings, &format!("tasks of {name}"), channel.roll.len() as u32, attached);
            let places = (0..).map_while(|place| channel.roll.get(place));
            let placed = places.enumerate().filter(|&(place, key)| {
                self.tasks.get(key).is_some_and(|task| task.attached && task.place == place as u32)
            });
            compare(findings, &format!("places in the roll of {name}"), placed.count() as u32, attached);
            let backed = mine().filter(|task| task.backed).count() as u32;
            compare(findings, &format!("promises kept beside {name}"), channel.backed, backed);
            let tagged = mine().filter(|task| task.tagged).count();
            compare(findings, &format!("tags of {name}"), channel.srp.tags().len(), tagged);
            let credited = mine().filter(|task| task.credited).count() as u32;
            compare(findings, &format!("credits of {name}"), channel.srp.credit().outstanding(), credited);
            let reads: u32 = mine().map(|task| u32::from(task.transfer.reads_in_flight)).sum();
            compare(findings, &format!("READs of {name}"), channel.reads_in_flight.into(), reads);
        }
        // What outlives its channel may keep the promise of a slot.
        let orphaned = |task: &Task| task.backed && self.channels.get(task.channel).is_none();
        granted += self.tasks.iter().filter(|(_, task)| orphaned(task)).count() as u32;
        let loose = self.tasks.iter().filter(|(_, task)| !task.attached && !task.backed).count();
        compare(findings, "tasks without a promise", self.loose, loose);
        compare(findings, "receive slots granted", self.slots.counts().granted, granted);
    }

    /// How many channels there are, dying ones too.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// How many tasks are in which state, in the order of a task's way; empty states are left out.
    pub fn tasks_by_state(&self) -> Vec<(TaskState, usize)> {
        let count = |state| self.tasks.iter().filter(|(_, task)| task.state == state).count();
        let counts = TaskState::ALL.into_iter().map(|state| (state, count(state)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// What is left of work although there should be none: no channel, no task, all memory back.
    pub fn leftovers(&self) -> Findings {
        let mut findings = self.audit();
        let mut none = |what: &str, count: usize| {
            if count > 0 {
                findings.push(format!("{count} {what}"));
            }
        };
        let slots = self.slots.counts();
        none("channels", self.channels.len());
        none("tasks", self.tasks.len());
        none("tasks in line for memory", self.pool.waiting());
        none("bytes of the pool in use", self.pool.capacity_bytes() - self.pool.free_bytes());
        none("receive slots not posted", (slots.total - slots.posted) as usize);
        none("receive slots granted", slots.granted as usize);
        none("channels that drain", self.draining.len());
        none("queue pairs that retire", self.retirements.len());
        none("task management functions that wait here", self.endings.len());
        none("task management functions in progress", self.managements.len());
        none("responses that are due", usize::from(!self.responses.is_empty()));
        none("messages not sent", usize::from(self.peers.has_backlog()));
        for (_, lun) in self.luns.iter() {
            none("fences", lun.entry.fences.count());
            none("operations at a block device", lun.queue.in_flight());
            none("tasks in line for a block device", lun.waiting.len() + lun.held.len());
        }
        if let Some(acceptor) = &self.acceptor {
            acceptor.leftovers(slots.total, &mut none);
        }
        findings
    }
}

impl Acceptor {
    fn leftovers(&self, slots: u32, none: &mut impl FnMut(&str, usize)) {
        none("nexuses", self.nexuses());
        let books = self.books();
        none("connections with a seat", books.seats);
        none("peers that are being told", books.leaving);
        none("channels in the registry", books.channels.iter().sum::<u32>() as usize);
        let left: u32 = books.slots_left.iter().sum();
        none(
            "receive slots promised in the registry",
            (slots as usize * books.slots_left.len()) - left as usize,
        );
    }
}
