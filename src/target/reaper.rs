//! The end of a channel: from the first sign of its death until its queue pair is gone and all
//! that it held is back. See `drain` for the waits and their reasons.

use reactors::slab::Key;
use reactors::time::Time;

use super::channel::{Channel, ChannelSeed};
use super::drain::{Drain, Life, LifeEvent, Step, Why};
use super::fabric::Fabric;
use super::limits::{MAX_CREDITS, MAX_READS_A_QP, QUIESCE_WITHIN};
use super::message::{Admission, Admitted, ChannelRef, Message};
use super::shard::Shard;
use super::task::Ending;
use super::wr::Tag;
use crate::rdma::verbs::{
    ConnId, ConnRequest, QpId, QpInit, QpModify, Remote, RtrAttr, RtsAttr, SendOp, SendWr, SgeList,
    VerbsError, Wc, WcStatus,
};
use crate::srp::channel::ChannelEvent;
use crate::srp::task::{Owner, TaskEvent};
use crate::wire::num::{Psn, Qpn};

/// Work requests of a queue pair: a response and a WRITE for each credit, and a few for marker and
/// probe; what does not fit waits in the channel's line. The completion queue is sized by it, and
/// most of an idle channel's memory is this.
const fn send_queue(credits: u32) -> u32 {
    2 * credits + 8
}
/// RDMA READs that Linux's ib_srp answers at a time.
const IB_SRP_READS: u8 = 4;
/// RNR NAK timer that we name: receives are always posted, so that it hardly matters (0.64 ms).
const MIN_RNR_TIMER: u8 = 12;
/// Longest local ACK timeout that we use, as a code (134 ms): initiators ask for up to 2 s, and a
/// lost last packet is noticed only by it.
const MAX_TIMEOUT_CODE: u8 = 15;

impl<F: Fabric> Shard<F> {
    /// Makes a channel for a login that shard 0 has decided to admit.
    pub(super) fn on_admission(&mut self, now: Time, admission: Admission) {
        let conn = admission.conn;
        let result = self
            .make_channel(now, admission)
            .map_err(|error| format!("shard {} cannot make another channel: {error}", self.index));
        self.peers.send(0, Message::Admitted { conn, result });
    }

    fn make_channel(&mut self, now: Time, admission: Admission) -> Result<Admitted, VerbsError> {
        if self.channels.is_full() {
            return Err(VerbsError::Exhausted("channel"));
        }
        let init = QpInit {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: Some(self.srq),
            max_send_wr: send_queue(admission.params.credits).min(self.fabric.caps().max_send_wr),
            max_recv_wr: 0,
            remote_access: false,
        };
        let qp = self.fabric.create_qp(&init)?;
        let starting_psn = Psn::new(self.rng.u32(..));
        let max_rd_atomic = admission.request.responder_resources.clamp(1, MAX_READS_A_QP);
        let connected = self.connect(now, qp, &admission.request, starting_psn, max_rd_atomic);
        let qpn = match connected {
            Ok(qpn) => qpn,
            Err(error) => {
                let _ = self.fabric.destroy_qp(now, qp);
                return Err(error);
            }
        };
        let seed = ChannelSeed {
            conn: admission.conn,
            qp,
            qpn,
            path: admission.request.path,
            nexus: admission.nexus,
            index: admission.index,
            params: admission.params,
            slots: admission.slots,
            max_reads: max_rd_atomic,
        };
        let Ok(key) = self.channels.insert(Channel::new(seed, now)) else {
            let _ = self.fabric.destroy_qp(now, qp);
            return Err(VerbsError::Exhausted("channel"));
        };
        self.slots.grant(admission.slots);
        self.by_qpn.insert(qpn, key);
        let channel = ChannelRef { shard: self.index, key };
        Ok(Admitted { channel, qpn, starting_psn, max_rd_atomic })
    }

    /// Brings a new queue pair to RTS at once: an SRP target sends nothing before the first
    /// command, and that command is the proof that the initiator is ready, RTU or not.
    fn connect(
        &mut self,
        now: Time,
        qp: QpId,
        request: &ConnRequest,
        starting_psn: Psn,
        max_rd_atomic: u8,
    ) -> Result<Qpn, VerbsError> {
        let rtr = RtrAttr {
            path: request.path,
            path_mtu: request.path_mtu,
            dest_qpn: request.remote_qpn,
            rq_psn: starting_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: MIN_RNR_TIMER,
        };
        let rts = RtsAttr {
            sq_psn: request.send_psn,
            timeout_code: request.timeout_code.clamp(1, MAX_TIMEOUT_CODE),
            // Whether the peer is dead is decided by `--dead-after`, not by counting retries.
            retry_count: 7,
            retry_forever: true,
            rnr_retry: 7,
            max_rd_atomic,
        };
        self.fabric.modify_qp(now, qp, &QpModify::Init)?;
        self.fabric.modify_qp(now, qp, &QpModify::Rtr(rtr))?;
        self.fabric.modify_qp(now, qp, &QpModify::Rts(rts))?;
        self.fabric.qpn(qp)
    }

    /// Bytes of host memory that an idle channel of ib_srp takes: queue pair, tags, books.
    pub(super) fn idle_channel_bytes() -> usize {
        let tags = crate::srp::tags::TagTable::new(MAX_CREDITS as usize).heap_bytes();
        F::queue_pair_bytes(send_queue(MAX_CREDITS), IB_SRP_READS) + size_of::<Channel>() + tags
    }

    /// The channel of a queue pair.
    pub(super) fn channel_of(&self, qp: QpId) -> Option<Key> {
        self.by_qpn.get(&self.fabric.qpn(qp).ok()?).copied()
    }

    /// A work request failed: the first failure of a queue pair ends its channel, the flushes
    /// that follow are expected.
    #[cold]
    pub(super) fn on_failed_work(&mut self, now: Time, wc: &Wc) {
        let key = self.by_qpn.get(&wc.qpn).copied();
        if let Some(key) = key
            && self.channels.get(key).is_some_and(|channel| channel.life.takes_ius())
        {
            let why = match wc.status {
                WcStatus::WrFlush => Why::QueuePair,
                status => Why::WorkRequest(status),
            };
            self.end_channel(now, key, why);
        }
    }

    /// Shard 0 asks to end a channel.
    pub(super) fn on_end_asked(&mut self, now: Time, key: Key, why: Why, for_login: Option<ConnId>) {
        self.end_channel(now, key, why);
        // Whatever the old channel wrote is fenced by now, or back.
        if let Some(for_login) = for_login {
            self.peers.send(0, Message::Ended { for_login });
        }
    }

    /// Ends all channels.
    pub(super) fn end_all_channels(&mut self, now: Time, why: &Why) {
        let keys: Vec<Key> = self.channels.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.end_channel(now, key, why.clone());
        }
    }

    /// Ends a channel; idempotent. Its queue pair goes to ERR, its tasks are aborted, and it is
    /// drained in the slow lane.
    pub(super) fn end_channel(&mut self, now: Time, key: Key, why: Why) {
        let Some(channel) = self.channels.get_mut(key).filter(|channel| channel.life.takes_ius()) else {
            return;
        };
        channel.advance(LifeEvent::End);
        let (qp, conn) = (channel.qp, channel.conn);
        tracing::info!(
            shard = self.index,
            qpn = %channel.qpn,
            initiator = %channel.nexus.id.initiator,
            peer = %channel.path.remote,
            channel = channel.index,
            tasks = channel.tasks,
            "channel ends: {why}"
        );
        self.counts.channels_ended += 1;
        if matches!(why, Why::Silent(_)) {
            self.counts.silent_peers += 1;
        }
        // Ours to tell, unless the connection manager told us.
        if why.is_ours() {
            self.peers.send(0, Message::Dying { conn });
        }
        if let Err(illegal) = channel.srp.apply(ChannelEvent::Close) {
            tracing::error!(%illegal, "an SRP channel was moved against its table");
        }
        let mut drain = Drain::new(now, QUIESCE_WITHIN);
        if let Err(error) = self.fabric.modify_qp(now, qp, &QpModify::Err) {
            tracing::debug!(shard = self.index, %error, "a queue pair cannot go to ERR");
        }
        let marker = SendWr {
            wr_id: Tag::Marker.bits(key),
            op: SendOp::Write(Remote::default()),
            sges: SgeList::EMPTY,
            signaled: true,
        };
        let posted = self.fabric.post_send(now, qp, &marker);
        match posted {
            Ok(()) => {}
            // The completions of what fills the queue come first; then it is tried again.
            Err(VerbsError::QueueFull) => drain.marker_wanted(),
            Err(_) => drain.marker_back(now),
        }
        if let Some(channel) = self.channels.get_mut(key) {
            channel.drain = Some((drain, why));
            channel.advance(LifeEvent::MarkerPosted);
        }
        self.draining.push(key);
        self.abort_tasks_of(now, key);
        self.wake_slow_lane();
    }

    /// Aborts all tasks of a channel. What the block device has is let go at once, with a fence
    /// around writes, so that no back end can hold up the end of a session.
    fn abort_tasks_of(&mut self, now: Time, channel: Key) {
        for key in self.tasks_of(channel) {
            self.abort(now, key, Ending::Silent);
            if self.tasks.get(key).is_some_and(|task| task.attached && task.state.owner() == Owner::Block) {
                self.orphan(key);
            }
        }
    }

    fn tasks_of(&self, channel: Key) -> Vec<Key> {
        let of_channel = self.tasks.iter().filter(|(_, task)| task.channel == channel);
        of_channel.map(|(key, _)| key).collect()
    }

    /// The marker's flush: what was posted before it has completed.
    pub(super) fn on_marker(&mut self, now: Time, key: Key) {
        if let Some((drain, _)) = self.channels.get_mut(key).and_then(|channel| channel.drain.as_mut()) {
            drain.marker_back(now);
        }
        self.wake_slow_lane();
    }

    /// LAST_WQE_REACHED: a hint.
    pub(super) fn on_last_wqe(&mut self, qp: QpId) {
        let Some(key) = self.channel_of(qp) else { return };
        if let Some((drain, _)) = self.channels.get_mut(key).and_then(|channel| channel.drain.as_mut()) {
            drain.last_wqe();
        }
        self.wake_slow_lane();
    }

    /// Moves all dying channels on.
    pub(super) fn step_drains(&mut self, now: Time) {
        let mut index = 0;
        while let Some(&key) = self.draining.get(index) {
            let step = self.step_drain(now, key);
            match step {
                Step::Wait(_) => index += 1,
                Step::Quiet => {
                    self.draining.swap_remove(index);
                    self.bury(now, key, LifeEvent::Quiet);
                }
                Step::Overdue => {
                    self.draining.swap_remove(index);
                    self.give_up(now, key);
                }
            }
        }
    }

    fn step_drain(&mut self, now: Time, key: Key) -> Step {
        let Some(channel) = self.channels.get_mut(key) else { return Step::Quiet };
        let (qp, tasks) = (channel.qp, channel.tasks as usize);
        let Some((drain, _)) = &mut channel.drain else { return Step::Quiet };
        if drain.wants_marker() {
            let marker = SendWr {
                wr_id: Tag::Marker.bits(key),
                op: SendOp::Write(Remote::default()),
                sges: SgeList::EMPTY,
                signaled: true,
            };
            match self.fabric.post_send(now, qp, &marker) {
                Ok(()) => drain.marker_posted(),
                Err(VerbsError::QueueFull) => {}
                Err(_) => drain.marker_back(now),
            }
        }
        drain.step(now, tasks)
    }

    /// The deadline passed: says what is missing, lets go of what the device still has.
    fn give_up(&mut self, now: Time, key: Key) {
        self.counts.drains_overdue += 1;
        let Some(channel) = self.channels.get(key) else { return };
        if let Some((drain, why)) = &channel.drain {
            tracing::warn!(
                shard = self.index,
                qpn = %channel.qpn,
                missing = drain.missing(channel.tasks as usize),
                "channel that ended ({why}) could not be drained in {QUIESCE_WITHIN:?}, its queue pair is destroyed"
            );
        }
        self.bury(now, key, LifeEvent::Overdue);
    }

    /// Destroys the queue pair and gives back all that the channel held.
    fn bury(&mut self, now: Time, key: Key, event: LifeEvent) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        channel.advance(event);
        let (qp, qpn, conn, granted) = (channel.qp, channel.qpn, channel.conn, channel.slots);
        if let Err(error) = self.fabric.destroy_qp(now, qp) {
            tracing::error!(shard = self.index, %qpn, %error, "a queue pair cannot be destroyed");
        }
        self.by_qpn.remove(&qpn);
        // A destroyed queue pair touches nothing any more.
        for task in self.tasks_of(key) {
            self.release_from_device(task);
        }
        // Slots that the block device still has (immediate data) stay promised until they are back.
        let holds_slot = |task: &Key| self.tasks.get(*task).is_some_and(|task| task.slot.is_some());
        let kept = self.tasks_of(key).iter().filter(|task| holds_slot(task)).count() as u32;
        if let Some(channel) = self.channels.get_mut(key) {
            channel.advance(LifeEvent::Destroyed);
            debug_assert_eq!(channel.life, Life::Destroyed);
        }
        self.channels.remove(key);
        let slots = granted.saturating_sub(kept);
        self.slots.ungrant(slots);
        let channel = ChannelRef { shard: self.index, key };
        self.peers.send(0, Message::Gone { conn, channel, slots });
    }

    /// A task whose queue pair is gone: it ends, unless the block device has its memory.
    fn release_from_device(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        match task.state.owner() {
            Owner::Block => {}
            Owner::Device if task.state.is_aborted() => {
                task.advance(TaskEvent::DeviceReleased);
                task.advance(TaskEvent::EndSilently);
                self.free(key);
            }
            Owner::Device => {
                task.advance(TaskEvent::ResponseSent);
                self.free(key);
            }
            Owner::Shard | Owner::Nobody => self.free(key),
        }
    }

    /// A receive slot of a task came back after its channel was buried.
    pub(super) fn slot_is_back(&mut self, was_attached: bool, channel: Key) {
        if !was_attached && self.channels.get(channel).is_none() {
            self.slots.ungrant(1);
            self.peers.send(0, Message::SlotsBack { shard: self.index, slots: 1 });
        }
    }

    /// Probes idle channels with an empty WRITE, since SRP has no keep-alive, and ends those whose
    /// peer is silent.
    pub(super) fn probe_channels(&mut self, now: Time) {
        let limits = self.snapshot.limits;
        let mut silent = Vec::new();
        for (key, channel) in self.channels.iter_mut() {
            // One that waits for its RTU is not probed: the peer may not be ready to receive. It is
            // given twice the time, whatever the peer's connection manager asks for.
            let (patience, probes) = match channel.life {
                Life::Live => (limits.dead_after, true),
                Life::Connecting => (2 * limits.dead_after, false),
                _ => continue,
            };
            let heard = self.fabric.last_heard(channel.qp).unwrap_or(channel.since).max(channel.since);
            let silence = now.since(heard);
            if silence >= patience {
                silent.push((key, silence));
            } else if probes && silence >= limits.probe_interval() && !channel.probing {
                let probe = SendWr {
                    wr_id: Tag::Probe.bits(key),
                    op: SendOp::Write(Remote::default()),
                    sges: SgeList::EMPTY,
                    signaled: true,
                };
                // A full send queue waits for the peer already.
                if self.fabric.post_send(now, channel.qp, &probe).is_ok() {
                    channel.posted(true);
                    channel.probing = true;
                }
            }
        }
        for (key, silence) in silent {
            self.end_channel(now, key, Why::Silent(silence));
        }
    }

    /// The peer has acknowledged a probe, or the probe was flushed.
    pub(super) fn on_probe_back(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.probing = false;
        }
    }
}
