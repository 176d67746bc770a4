//! The end of a channel: from the first sign of its death until it is gone and its queue pair goes
//! its own way (`retire`). See `life` for the states, `drain` for the waits and their reasons.
//!
//! Many may die at once, beside others that live: [`Shard::end_channel`] only puts its channel down as
//! a dying one, which takes nothing any more. The rest is done in the slow lane, step by step, at the pace
//! of `dying`.

use reactors::slab::Key;
use reactors::time::Time;

use super::channel::{Channel, Exit};
use super::drain::Step;
use super::dying::{LOOKS_A_STEP, Meant, PLACES_A_TURN, Sweep};
use super::fabric::Fabric;
use super::handle::{Reply, ReplySlot};
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

/// What a look at a dying channel led to.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Look {
    /// It waits.
    Wait(Time),
    /// It has something to do, and this turn's steps are done.
    Stopped,
    /// It is over, in this way.
    Over(LifeEvent),
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
        // One that drains may wait for room in its send queue.
        self.draining.wake();
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

    /// Ends all channels: nobody is left to be held up.
    pub(super) fn end_all_channels(&mut self, now: Time, why: &Why) {
        let keys: Vec<Key> = self.channels.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.end_channel(now, key, why.clone());
        }
    }

    /// Ends those channels that are `meant`, in the slow lane, and then answers how many there were.
    pub(super) fn end_channels(&mut self, meant: Meant, why: Why, reply: ReplySlot) {
        self.draining.sweeps.push_back(Sweep { meant, why, reply, slot: 0, found: 0 });
    }

    /// Goes on with the look through all channels, by a few places.
    fn sweep(&mut self, now: Time) {
        let Some(mut sweep) = self.draining.sweeps.pop_front() else { return };
        let places = self.channels.capacity() as u32;
        for _ in 0..PLACES_A_TURN.min(places - sweep.slot) {
            let key = self.channels.key_at(sweep.slot);
            sweep.slot += 1;
            let lives = |channel: &&Channel| channel.life.takes_ius() && sweep.meant.is(channel);
            if let Some(key) = key.filter(|key| self.channels.get(*key).filter(lives).is_some()) {
                sweep.found += 1;
                self.end_channel(now, key, sweep.why.clone());
            }
        }
        if sweep.slot == places {
            sweep.reply.send(Reply::Count(sweep.found));
        } else {
            self.draining.sweeps.push_front(sweep);
        }
    }

    /// Ends a channel; idempotent. From now on it takes nothing; its queue pair goes to ERR, and what
    /// follows from that is done, in the slow lane.
    pub(super) fn end_channel(&mut self, now: Time, key: Key, why: Why) {
        let Some(channel) = self.channels.get_mut(key).filter(|channel| channel.life.takes_ius()) else {
            return;
        };
        channel.life.advance(LifeEvent::End);
        self.counts.exits.count(&why);
        channel.exit = Some(Box::new(Exit::new(now, why)));
        self.draining.sentenced.push_back(key);
    }

    /// The queue pair of a channel that ends goes to ERR, and shard 0 is told.
    fn carry_out(&mut self, now: Time, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        let Some(exit) = &mut channel.exit else { return };
        tracing::debug!(
            shard = self.index,
            qpn = %channel.qpn,
            initiator = %channel.nexus.id.initiator,
            peer = %channel.peer,
            channel = channel.index,
            tasks = channel.roll.len(),
            "channel ends: {}", exit.why
        );
        exit.untold = channel.roll.len();
        let (why, cut) = (exit.why.clone(), exit.untold as u32);
        self.peers.send(0, Message::Ending { conn: channel.conn, why, cut });
        if let Err(error) = self.fabric.modify_qp(now, channel.qp, &QpModify::Err) {
            self.counts.err_refused += 1;
            tracing::debug!(shard = self.index, qpn = %channel.qpn, %error, "a queue pair cannot go to ERR");
        }
        self.draining.carried_out(key);
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

    /// Moves dying channels on, a few steps; gives how many.
    pub(super) fn step_drains(&mut self, now: Time) -> usize {
        self.sweep(now);
        let Some(steps) = self.draining.due() else { return 0 };
        let mut left = steps;
        while left > 0
            && let Some(key) = self.draining.sentenced.pop_front()
        {
            left -= 1;
            self.draining.pause_long();
            self.carry_out(now, key);
        }
        self.draining.begin_round(now);
        for _ in 0..left * LOOKS_A_STEP {
            let Some(key) = self.draining.look() else { break };
            match self.look_at(now, key, &mut left) {
                Look::Wait(until) => self.draining.waits(until),
                Look::Stopped => {
                    self.draining.goes_on();
                    break;
                }
                Look::Over(event) => {
                    self.draining.pause_long();
                    self.draining.is_over();
                    if event == LifeEvent::Overdue {
                        self.give_up(key);
                    }
                    self.bury(now, key, event);
                }
            }
        }
        self.draining.pause();
        steps - left
    }

    /// Looks whether a dying channel may go on, and takes its next steps, as far as some are `left`.
    fn look_at(&mut self, now: Time, key: Key, left: &mut usize) -> Look {
        if !self.end_tasks_of(now, key, left) {
            return Look::Stopped;
        }
        let over = LifeEvent::Quiet;
        let Some(channel) = self.channels.get_mut(key) else { return Look::Over(over) };
        let Some(exit) = &mut channel.exit else { return Look::Over(over) };
        if exit.drain.wants_marker() {
            let Some(fewer) = left.checked_sub(1) else { return Look::Stopped };
            *left = fewer;
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
        let event = match exit.drain.step(now, channel.last_wqe, awaited.count(), self.queues.empties) {
            Step::Wait(until) => return Look::Wait(until),
            Step::Quiet => LifeEvent::Quiet,
            Step::Overdue => LifeEvent::Overdue,
        };
        match left.checked_sub(1) {
            Some(fewer) => {
                *left = fewer;
                Look::Over(event)
            }
            None => Look::Stopped,
        }
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
        (retiring.life, retiring.path, retiring.held) = (channel.life, channel.path, held);
        retiring.why = channel.exit.map(|exit| exit.why);
        self.retire(now, retiring);
    }
}
