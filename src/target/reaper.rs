//! The end of a channel: from the first sign of its death until it is gone and its queue pair goes
//! its own way (`retire`). See `life` for the states, `drain` for the waits and their reasons.
//!
//! Many may die at once, beside others that live: [`Shard::end_channel`] does only what cannot wait,
//! and the rest is done in the slow lane, a few tasks and channels in each turn.

use reactors::slab::Key;
use reactors::time::Time;

use super::channel::{Channel, Exit};
use super::drain::Step;
use super::fabric::Fabric;
use super::life::{Life, LifeEvent};
use super::limits::QUIESCE_WITHIN;
use super::message::{ChannelRef, Message, Tally};
use super::probe::empty_write;
use super::retire::Retiring;
use super::shard::Shard;
use super::task::Ending;
use super::why::Why;
use super::wr::Tag;
use crate::rdma::verbs::{ConnId, QpId, QpModify, VerbsError, Wc, WcStatus};
use crate::srp::task::Owner;

/// Tasks of dying channels that are ended in one turn, so that a living channel on the same shard is
/// not held up by many dying ones.
const TASKS_A_TURN: usize = 32;
/// Channels that are buried in one turn.
const BURIALS_A_TURN: usize = 4;

/// The dying channels of a shard.
pub(super) struct Draining {
    keys: Vec<Key>,
    /// One of them may go on now.
    pub(super) woken: bool,
    /// At the latest then one of them goes on.
    pub(super) next: Time,
}

impl Default for Draining {
    fn default() -> Draining {
        Draining { keys: Vec::new(), woken: false, next: Time::NEVER }
    }
}

impl Draining {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

impl<F: Fabric> Shard<F> {
    /// The channel of a queue pair.
    pub(super) fn channel_of(&self, qp: QpId) -> Option<Key> {
        let key = self.by_qpn.get(&self.fabric.qpn(qp).ok()?).copied()?;
        self.channels.get(key).filter(|channel| channel.qp == qp).map(|_| key)
    }

    /// A work request failed: the first failure of a queue pair ends its channel, the flushes
    /// that follow are expected.
    #[cold]
    pub(super) fn on_failed_work(&mut self, now: Time, wc: &Wc) {
        tracing::debug!(shard = self.index, qpn = %wc.qpn, work = ?Tag::parse(wc.wr_id), status = ?wc.status,
            "a work request failed");
        let Some(&key) = self.by_qpn.get(&wc.qpn) else { return };
        let why = match wc.status {
            WcStatus::WrFlush => Why::QueuePair,
            status => Why::WorkRequest(status),
        };
        self.end_channel(now, key, why);
    }

    /// Shard 0 asks to end a channel.
    pub(super) fn on_end_asked(&mut self, now: Time, key: Key, why: Why, for_login: Option<ConnId>) {
        self.end_channel(now, key, why);
        let Some(for_login) = for_login else { return };
        // What it wrote is fenced when its tasks have been told to end, and not before.
        let draining = |channel: &&mut Channel| channel.life == Life::Draining;
        match self.channels.get_mut(key).filter(draining).and_then(|channel| channel.exit.as_mut()) {
            Some(exit) => exit.logins.push(for_login),
            None => self.peers.send(0, Message::Ended { for_login }),
        }
    }

    /// Ends all channels.
    pub(super) fn end_all_channels(&mut self, now: Time, why: &Why) {
        self.end_channels(now, why, |_| true);
    }

    /// Ends those channels that are `meant`; gives how many there were.
    pub(super) fn end_channels(&mut self, now: Time, why: &Why, meant: impl Fn(&Channel) -> bool) -> usize {
        let living = self.channels.iter().filter(|(_, channel)| channel.life.takes_ius());
        let keys: Vec<Key> = living.filter(|(_, channel)| meant(channel)).map(|(key, _)| key).collect();
        for &key in &keys {
            self.end_channel(now, key, why.clone());
        }
        keys.len()
    }

    /// Ends a channel; idempotent. Its queue pair goes to ERR; the rest follows in the slow lane.
    pub(super) fn end_channel(&mut self, now: Time, key: Key, why: Why) {
        let Some(channel) = self.channels.get_mut(key).filter(|channel| channel.life.takes_ius()) else {
            return;
        };
        channel.life.advance(LifeEvent::End);
        tracing::debug!(
            shard = self.index,
            qpn = %channel.qpn,
            initiator = %channel.nexus.id.initiator,
            peer = %channel.peer,
            channel = channel.index,
            tasks = channel.roll.len(),
            "channel ends: {why}"
        );
        self.counts.exits.count(&why);
        let cut = channel.roll.len() as u32;
        self.peers.send(0, Message::Ending { conn: channel.conn, why: why.clone(), cut });
        channel.exit = Some(Box::new(Exit::new(now, why, channel.roll.len())));
        if let Err(error) = self.fabric.modify_qp(now, channel.qp, &QpModify::Err) {
            self.counts.err_refused += 1;
            tracing::debug!(shard = self.index, qpn = %channel.qpn, %error, "a queue pair cannot go to ERR");
        }
        self.draining.keys.push(key);
        self.draining.woken = true;
    }

    /// The marker is back: what was posted before it has completed.
    pub(super) fn on_marker(&mut self, now: Time, key: Key, wc: &Wc) {
        let Some(channel) = self.channels.get_mut(key) else {
            self.counts.stale_completions += 1;
            return;
        };
        let Some(exit) = &mut channel.exit else { return };
        if wc.status != WcStatus::Success {
            exit.drain.marker_back(now);
        } else if exit.drain.marker_succeeded(now) {
            self.counts.err_ignored += 1;
            tracing::warn!(shard = self.index, qpn = %channel.qpn, "a queue pair stays out of ERR, and is moved there again");
            if self.fabric.modify_qp(now, channel.qp, &QpModify::Err).is_err() {
                self.counts.err_refused += 1;
            }
        }
        self.draining.woken = true;
    }

    /// LAST_WQE_REACHED: a hint, however often and whenever it comes.
    pub(super) fn on_last_wqe(&mut self, qp: QpId) {
        let Some(key) = self.channel_of(qp) else { return };
        if let Some(channel) = self.channels.get_mut(key) {
            channel.last_wqe = true;
            self.draining.woken |= channel.exit.is_some();
        }
    }

    /// Moves dying channels on.
    pub(super) fn step_drains(&mut self, now: Time) {
        self.draining.woken = false;
        self.draining.next = Time::NEVER;
        let (mut tasks, mut burials) = (TASKS_A_TURN, BURIALS_A_TURN);
        let mut index = 0;
        while let Some(&key) = self.draining.keys.get(index) {
            let step = self.step_drain(now, key, &mut tasks);
            if let Step::Wait(until) = step {
                self.draining.next = self.draining.next.min(until);
                index += 1;
                continue;
            }
            if burials == 0 {
                self.draining.woken = true;
                return;
            }
            burials -= 1;
            self.draining.keys.swap_remove(index);
            if step == Step::Overdue {
                self.give_up(key);
            }
            let event = if step == Step::Quiet { LifeEvent::Quiet } else { LifeEvent::Overdue };
            self.bury(now, key, event);
        }
    }

    fn step_drain(&mut self, now: Time, key: Key, tasks: &mut usize) -> Step {
        if !self.end_tasks_of(now, key, tasks) {
            return Step::Wait(now);
        }
        let Some(channel) = self.channels.get_mut(key) else { return Step::Quiet };
        let Some(exit) = &mut channel.exit else { return Step::Quiet };
        if exit.drain.wants_marker() {
            match self.fabric.post_send(now, channel.qp, &empty_write(Tag::Marker.bits(key))) {
                Ok(()) => exit.drain.marker_posted(),
                // The completions of what fills the queue come first; then it is tried again.
                Err(VerbsError::QueueFull) => {}
                // Nothing can be posted, so nothing is.
                Err(_) => exit.drain.marker_back(now),
            }
        }
        if channel.life == Life::Draining {
            channel.life.advance(LifeEvent::Quiesce);
            for for_login in exit.logins.drain(..) {
                self.peers.send(0, Message::Ended { for_login });
            }
        }
        let roll = &channel.roll;
        let awaited = (0..roll.len())
            .filter_map(|place| roll.get(place))
            .filter(|key| self.tasks.get(*key).is_none_or(|task| !task.is_stranded()));
        exit.drain.step(now, channel.last_wqe, awaited.count(), self.queues.empties)
    }

    /// Ends tasks of a channel, `left` at most; whether all have been told. What the block device has
    /// is let go at once, with a fence around writes, so that no back end can hold up the end of a
    /// session.
    fn end_tasks_of(&mut self, now: Time, channel: Key, left: &mut usize) -> bool {
        loop {
            let Some(dying) = self.channels.get_mut(channel) else { return true };
            let Some(exit) = &mut dying.exit else { return true };
            // From the last to the first: who leaves meanwhile is replaced by one that was told.
            exit.untold = exit.untold.min(dying.roll.len());
            let Some(next) = exit.untold.checked_sub(1) else { return true };
            if *left == 0 {
                return false;
            }
            *left -= 1;
            exit.untold = next;
            let Some(key) = dying.roll.get(next) else { return true };
            self.abort(now, key, Ending::Silent);
            if self.tasks.get(key).is_some_and(|task| task.attached && task.state.owner() == Owner::Block) {
                self.orphan(key);
            }
        }
    }

    /// The deadline passed: says what is missing.
    fn give_up(&mut self, key: Key) {
        self.counts.drains_overdue += 1;
        let Some(channel) = self.channels.get(key) else { return };
        if let Some(exit) = &channel.exit {
            tracing::warn!(
                shard = self.index,
                qpn = %channel.qpn,
                initiator = %channel.nexus.id.initiator,
                missing = exit.drain.missing(channel.last_wqe, channel.roll.len()),
                "a channel that ended ({}) could not be drained in {QUIESCE_WITHIN:?}, its queue pair is destroyed",
                exit.why
            );
        }
    }

    /// The channel is over: what it held goes back, its queue pair goes on alone, and with it those
    /// tasks whose memory it may still touch.
    fn bury(&mut self, now: Time, key: Key, event: LifeEvent) {
        let mut held = Vec::new();
        while let Some(task) = self.channels.get(key).and_then(|channel| channel.roll.last()) {
            match self.tasks.get(task).map(|task| task.state.owner()) {
                Some(Owner::Device | Owner::Block) => {
                    self.detach(task, true);
                    held.push(task);
                }
                // It waits for nobody but this channel.
                Some(Owner::Shard | Owner::Nobody) => self.free(task),
                None => {
                    debug_assert!(false, "a channel's roll names a task that is gone");
                    break;
                }
            }
        }
        let Some(mut channel) = self.channels.remove(key) else { return };
        channel.life.advance(event);
        self.by_qpn.remove(&channel.qpn);
        // What outlives the channel keeps the promise of its receive slot until it ends.
        let slots = channel.slots.saturating_sub(channel.backed);
        self.slots.ungrant(slots);
        let tally = Tally {
            commands: channel.srp.counts().commands,
            read_bytes: channel.read_bytes,
            written_bytes: channel.written_bytes,
        };
        let at = ChannelRef { shard: self.index, key };
        self.peers.send(0, Message::Gone { conn: channel.conn, channel: at, slots, tally });
        self.queues.one_ended(event == LifeEvent::Quiet);
        let mut retiring = Retiring::new(now, channel.qp, channel.qpn, channel.max_send_wr);
        (retiring.life, retiring.held) = (channel.life, held);
        retiring.why = channel.exit.map(|exit| exit.why);
        self.retire(now, retiring);
    }
}
