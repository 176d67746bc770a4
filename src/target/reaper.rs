//! The end of a channel: from the first sign of its death until it is gone and its queue pair goes
//! its own way (`retire`). See `life` for the states, `drain` for the waits and their reasons.
//!
//! Many may die at once, beside others that live: [`Shard::end_channel`] only puts its channel down as
//! a dying one, which takes nothing any more. The rest is done in the slow lane, step by step, and
//! one step in every few turns: a command of a living channel waits for one short step now and then,
//! however many die.

use std::collections::VecDeque;
use std::net::SocketAddr;

use reactors::slab::Key;
use reactors::time::Time;

use super::admin::session_id;
use super::channel::{Channel, Exit};
use super::drain::Step;
use super::fabric::Fabric;
use super::handle::{Reply, ReplySlot, SessionId};
use super::life::{Life, LifeEvent};
use super::limits::QUIESCE_WITHIN;
use super::message::{ChannelRef, Message, Tally};
use super::probe::empty_write;
use super::retire::Retiring;
use super::shard::Shard;
use super::task::Ending;
use super::why::Why;
use super::wr::Tag;
use crate::rdma::verbs::{ConnId, QpId, QpModify, Service, VerbsError, Wc, WcStatus};
use crate::srp::task::Owner;

/// Turns from one step (a task is told, a marker is posted) to the next. A step takes as long as a turn
/// without work or two; a command takes some dozen turns.
const TURNS_A_STEP: u32 = 4;
/// Turns from a long step to the next one: a queue pair goes to ERR and its peer is told, or a channel is
/// buried and its queue pair recycled.
const TURNS_A_LONG_STEP: u32 = 8;
/// The first long steps after a while without any find everything cold and take several times as long:
/// the pause after the first is 2 to the power of this times as long, after each further one half as long.
const COLD_PAUSES: u32 = 3;
/// For each so many dying channels there is one step at a time: so many of them are gone after a few
/// milliseconds, and ten times as many, too.
const CROWD: usize = 64;
/// Dying channels that are looked at for each step. Most of those that wait for their device or their
/// tasks still do.
const LOOKS_A_STEP: usize = 4;

/// Places of channels that are looked at in a turn for those that an administrator wants to end.
const PLACES_A_TURN: u32 = 4;

/// Which channels an administrator wants to end.
pub(super) enum Meant {
    /// Those of a session.
    Session(SessionId),
    /// Those that came by a listener at an address. IB CM has no port: its service is the address's.
    Listener(SocketAddr),
}

impl Meant {
    fn is(&self, channel: &Channel) -> bool {
        match self {
            Meant::Session(session) => session_id(&channel.nexus.id) == *session,
            Meant::Listener(address) => {
                channel.path.local == address.ip()
                    && match channel.service {
                        Service::RdmaCm { port } => port == address.port(),
                        Service::IbCm { .. } => true,
                        Service::Shm => false,
                    }
            }
        }
    }
}

/// A look through all channels for those that are to end.
struct Sweep {
    meant: Meant,
    why: Why,
    reply: ReplySlot,
    /// The next place.
    slot: u32,
    /// How many there were so far.
    found: usize,
}

/// The dying channels of a shard.
pub(super) struct Draining {
    /// What an administrator wants to end.
    sweeps: VecDeque<Sweep>,
    /// Those that many at a time are to end, and why.
    verdicts: VecDeque<(Key, Why)>,
    /// Those whose queue pairs are to go to ERR, in the order in which they were put down.
    sentenced: VecDeque<Key>,
    /// The others.
    keys: Vec<Key>,
    /// Where the next look goes.
    cursor: usize,
    /// How many looks are left of the present round through all of them.
    unlooked: usize,
    /// Turns until the next step.
    turns: u32,
    /// Long steps until everything counts as warm.
    cold: u32,
    /// One of them may go on now.
    pub(super) woken: bool,
    /// At the latest then one of them goes on.
    next: Time,
}

impl Draining {
    /// Room for so many.
    pub(super) fn new(channels: usize) -> Draining {
        Draining {
            sweeps: VecDeque::new(),
            verdicts: VecDeque::with_capacity(channels),
            sentenced: VecDeque::with_capacity(channels),
            keys: Vec::with_capacity(channels),
            cursor: 0,
            unlooked: 0,
            turns: 0,
            cold: COLD_PAUSES,
            woken: false,
            next: Time::NEVER,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sentenced.len() + self.keys.len()
    }

    /// When one of them goes on.
    pub(super) fn next(&self) -> Time {
        let waits = !self.sweeps.is_empty() || !self.verdicts.is_empty() || !self.sentenced.is_empty();
        if self.woken || self.unlooked > 0 || waits { Time::ZERO } else { self.next }
    }

    /// Begins another round, if it is time.
    fn begin_round(&mut self, now: Time) {
        let woken = std::mem::take(&mut self.woken);
        if self.unlooked == 0 && (woken || now >= self.next) {
            self.next = Time::NEVER;
            self.unlooked = self.keys.len();
        } else if woken {
            self.unlooked = self.keys.len();
        }
    }

    /// Something may have happened to any of them.
    pub(super) fn wake(&mut self) {
        self.woken |= !self.keys.is_empty();
    }

    /// The next one that is to be looked at in this round.
    fn look(&mut self) -> Option<Key> {
        self.unlooked = self.unlooked.checked_sub(1)?;
        if self.cursor >= self.keys.len() {
            self.cursor = 0;
        }
        self.keys.get(self.cursor).copied()
    }

    /// The one that was just looked at waits until then.
    fn waits(&mut self, until: Time) {
        self.next = self.next.min(until);
        self.cursor += 1;
    }

    /// The one that was just looked at goes on in the next turn.
    fn goes_on(&mut self) {
        self.unlooked += 1;
    }

    /// A long step was taken.
    fn pause_long(&mut self) {
        self.turns = TURNS_A_LONG_STEP << self.cold;
        self.cold = self.cold.saturating_sub(1);
    }

    /// If none dies, and none is to, then the next end will find everything cold.
    fn cool_down(&mut self) {
        if self.sweeps.is_empty() && self.verdicts.is_empty() && self.len() == 0 {
            self.cold = COLD_PAUSES;
            self.turns = TURNS_A_LONG_STEP << COLD_PAUSES;
        }
    }

    /// The one that was just looked at is over.
    fn is_over(&mut self) {
        self.keys.swap_remove(self.cursor);
    }
}

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
    fn sweep(&mut self) {
        let Some(sweep) = self.draining.sweeps.front_mut() else { return };
        let places = self.channels.capacity() as u32;
        for _ in 0..PLACES_A_TURN.min(places - sweep.slot) {
            let key = self.channels.key_at(sweep.slot);
            sweep.slot += 1;
            let Some((key, channel)) = key.and_then(|key| Some((key, self.channels.get(key)?))) else {
                continue;
            };
            if channel.life.takes_ius() && sweep.meant.is(channel) {
                sweep.found += 1;
                self.draining.verdicts.push_back((key, sweep.why.clone()));
            }
        }
        if sweep.slot == places
            && let Some(sweep) = self.draining.sweeps.pop_front()
        {
            sweep.reply.send(Reply::Count(sweep.found));
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

    /// Moves dying channels on, a few steps; gives how many.
    pub(super) fn step_drains(&mut self, now: Time) -> usize {
        self.sweep();
        self.draining.turns = self.draining.turns.saturating_sub(1);
        if self.draining.turns > 0 {
            return 0;
        }
        let steps = (self.draining.verdicts.len() + self.draining.len()).div_ceil(CROWD);
        let mut left = steps;
        while left > 0 {
            // Some other end may have been faster.
            if self.draining.sentenced.is_empty()
                && let Some((key, why)) = self.draining.verdicts.pop_front()
            {
                self.end_channel(now, key, why);
            }
            let Some(key) = self.draining.sentenced.pop_front() else { break };
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
        self.draining.turns = self.draining.turns.max(TURNS_A_STEP);
        self.draining.cool_down();
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
