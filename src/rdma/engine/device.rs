//! The engine itself: the verbs, and the way of a packet to its queue pair.

use reactors::memory::Region;
use reactors::slab::Slab;
use reactors::time::Time;

use super::config::EngineConfig;
use super::counters::Counters;
use super::qp::Qp;
use super::qpn::QpnTable;
use super::shared::Shared;
use super::state;
use super::transmit::Round;
use crate::rdma::verbs::{
    Access, AsyncEvent, CqId, DeviceCaps, MrKeys, Path, PdId, QpId, QpInit, QpModify, QpState, RecvWr,
    Retire, Retired, SendWr, SrqId, VerbsError, Wc, WcStatus,
};
use crate::wire::bth::{Bth, Opcode};
use crate::wire::error::ParseError;
use crate::wire::num::{LKey, Qpn};

const NO_QP: VerbsError = VerbsError::NotFound("queue pair");

/// The RC protocol engine of one shard. See the module for who calls what.
pub struct Engine {
    pub(super) shared: Shared,
    pub(super) qps: Slab<Qp>,
    pub(super) round: Round,
    qpns: QpnTable,
    /// The latest time that was seen.
    now: Time,
}

impl Engine {
    /// An engine without anything in it. `rng` gives QPNs and keys.
    ///
    /// # Panics
    /// If the configuration contradicts itself.
    pub fn new(config: EngineConfig, rng: fastrand::Rng) -> Self {
        Engine {
            qps: Slab::new(config.sizes.max_qp as usize),
            qpns: QpnTable::new(config.shard, config.shard_bits, config.sizes.max_qp, config.qpn_rest),
            now: Time::ZERO,
            round: Round::START,
            shared: Shared::new(config, rng),
        }
    }

    fn qp(&self, qp: QpId) -> Result<&Qp, VerbsError> {
        self.qps.get(qp.0).ok_or(NO_QP)
    }
}

/// The verbs, as `rdma::verbs::Device` says them.
impl Engine {
    /// Bytes that an idle queue pair on a shared receive queue takes, for sizing.
    pub const fn queue_pair_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize {
        Qp::idle_bytes(max_send_wr, max_rd_atomic)
    }
}

impl Engine {
    /// What the device can do.
    pub fn caps(&self) -> DeviceCaps {
        self.shared.config.caps()
    }

    /// A new protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.shared.objects.alloc_pd()
    }

    /// Registers all of `region`.
    pub fn register(&mut self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError> {
        let objects = &mut self.shared.objects;
        objects.check_pd(pd)?;
        objects.mrs.register(pd, region, access, &mut objects.rng)
    }

    /// Ends a registration.
    pub fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        self.shared.objects.mrs.deregister(lkey)
    }

    /// A new completion queue.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.shared.objects.create_cq(depth, self.shared.config.max_cqe)
    }

    /// A new shared receive queue.
    pub fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId, VerbsError> {
        self.shared.objects.create_srq(pd, depth, self.shared.config.max_srq_wr)
    }

    /// Ends a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.shared.objects.destroy_cq(cq, self.qps.iter().map(|(_, qp)| &qp.init)).map(drop)
    }

    /// Ends a shared receive queue that no queue pair uses, with what is posted there.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.shared.objects.destroy_srq(srq, self.qps.iter().map(|(_, qp)| &qp.init))
    }

    /// Forgets `count` receives of every shared receive queue, for simulated devices that do what
    /// this one does not.
    pub fn lose_srq_recvs(&mut self, count: usize) {
        for (_, srq) in self.shared.objects.srqs.iter_mut() {
            for _ in 0..count {
                srq.take();
            }
        }
    }

    /// How many receives lie in a shared receive queue; an unknown one has none.
    pub fn posted_srq_recvs(&self, srq: SrqId) -> Option<u32> {
        Some(self.shared.objects.posted_srq_recvs(srq))
    }

    /// Arms the limit event.
    pub fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.shared.objects.arm_srq_limit(srq, limit)
    }

    /// A new queue pair in RESET, with a random number that nobody had for a while.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, VerbsError> {
        self.shared.objects.check(init)?;
        let config = &self.shared.config;
        if init.max_send_wr == 0 || init.max_send_wr > config.max_send_wr {
            return Err(VerbsError::Invalid("max_send_wr"));
        }
        if init.srq.is_none() && init.max_recv_wr > config.max_recv_wr {
            return Err(VerbsError::Invalid("max_recv_wr"));
        }
        let key = self.qps.next_key().ok_or(VerbsError::Exhausted("queue pair"))?;
        let qpn = self.qpns.assign(self.now, key, &mut self.shared.objects.rng);
        let inserted = self.qps.insert(Qp::new(key, qpn, *init));
        inserted.map(QpId).map_err(|_| VerbsError::Exhausted("queue pair"))
    }

    /// The number of a queue pair.
    pub fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError> {
        Ok(self.qp(qp)?.qpn)
    }

    /// The queue pair of a number, if it is one of this engine's.
    pub fn qp_of(&self, qpn: Qpn) -> Option<QpId> {
        self.qpns.get(qpn).map(QpId)
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        Ok(self.qp(qp)?.state)
    }

    /// Moves a queue pair along one edge of the state table.
    pub fn modify_qp(&mut self, now: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError> {
        self.saw(now);
        let moved = self.qps.get_mut(qp.0).ok_or(NO_QP)?.modify(&mut self.shared, now, change);
        self.settle();
        moved
    }

    /// Ends a queue pair in any state; what it had posted ends without completions. Its number
    /// rests for the time wait.
    pub fn destroy_qp(&mut self, now: Time, qp: QpId) -> Result<(), VerbsError> {
        self.saw(now);
        self.qps.get_mut(qp.0).ok_or(NO_QP)?.modify(&mut self.shared, now, &QpModify::Reset)?;
        let ended = self.qps.remove(qp.0).ok_or(NO_QP)?;
        self.qpns.free(now, ended.qpn);
        self.settle();
        Ok(())
    }

    /// Ends a queue pair's connection in any state, without completions, and the queue pair with it
    /// or not: a recycled one keeps its id and its memory, and stands in INIT under a new number. The
    /// old number rests for the time wait. The answer is an event, and there at once.
    pub fn retire_qp(&mut self, now: Time, qp: QpId, how: Retire) -> Result<(), VerbsError> {
        let outcome = match how {
            Retire::Destroy => {
                self.destroy_qp(now, qp)?;
                Retired::Destroyed
            }
            Retire::Recycle => {
                self.modify_qp(now, qp, &QpModify::Reset)?;
                let ended = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
                self.qpns.free(now, ended.qpn);
                ended.qpn = self.qpns.assign(now, qp.0, &mut self.shared.objects.rng);
                ended.modify(&mut self.shared, now, &QpModify::Init)?;
                Retired::Recycled
            }
        };
        self.shared.objects.events.push_back(AsyncEvent::QpRetired { qp, outcome });
        Ok(())
    }

    /// Posts to the send queue. In ERR it is taken, and flushed by the next
    /// [`transmit`](Self::transmit).
    pub fn post_send(&mut self, now: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        self.saw(now);
        self.qps.get_mut(qp.0).ok_or(NO_QP)?.post_send(&mut self.shared, wr)
    }

    /// The peer has answered the SEND `wr_id`: it has arrived, and all before it.
    pub fn confirm_send(&mut self, now: Time, qp: QpId, wr_id: u64) {
        self.saw(now);
        if let Some(qp) = self.qps.get_mut(qp.0) {
            qp.confirm_send(&mut self.shared, now, wr_id);
        }
        self.settle();
    }

    /// Posts to a queue pair's own receive queue.
    pub fn post_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), VerbsError> {
        let posted = self.qps.get_mut(qp.0).ok_or(NO_QP)?.post_recv(&mut self.shared, wr);
        self.settle();
        posted
    }

    /// Posts to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), VerbsError> {
        self.shared.objects.srq(srq)?.post(wr)
    }

    /// Takes completions off a queue; gives how many. An unknown queue has none.
    pub fn poll_cq(&mut self, cq: CqId, into: &mut [Wc]) -> usize {
        self.shared.objects.cqs.get_mut(cq.0).map_or(0, |cq| cq.poll(into))
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.shared.objects.events.pop_front()
    }

    /// When the peer of a connected queue pair last proved to be alive: a packet of it was taken,
    /// or the queue pair became ready to receive. Before that [`Time::ZERO`].
    pub fn last_heard(&self, qp: QpId) -> Result<Time, VerbsError> {
        Ok(self.qp(qp)?.last_heard)
    }
}

/// What the provider that moves packets calls; [`transmit`](Engine::transmit) stands with the
/// packets.
impl Engine {
    /// Takes in one packet: BTH to the end of payload and pad, its ICRC already checked and cut
    /// off. `path.local` is the address that it came to, `path.remote` its UDP source. Packets to
    /// QPN 1 do not belong here.
    pub fn receive(&mut self, now: Time, path: Path, packet: &[u8]) {
        self.saw(now);
        let counters = &mut self.shared.counters;
        counters.packets_in += 1;
        let Some(bth) = parse_bth(packet) else {
            counters.dropped_malformed += 1;
            return;
        };
        let Some(qp) = self.qpns.get(bth.dest_qpn).and_then(|key| self.qps.get_mut(key)) else {
            counters.dropped_unknown_qpn += 1;
            return;
        };
        let rest = &packet[Bth::LEN..];
        let (ext_len, pad) = (bth.opcode.ext_len_bytes(), usize::from(bth.pad));
        let Some(payload_end) = rest.len().checked_sub(pad).filter(|end| *end >= ext_len) else {
            counters.dropped_malformed += 1;
            return;
        };
        // Members of the default partition, full or limited.
        if bth.pkey & 0x7fff != 0x7fff {
            counters.dropped_pkey += 1;
            return;
        }
        let rules = state::rules(qp.state);
        let is_request = bth.opcode.is_rc_request();
        let Some(conn) =
            qp.conn.as_ref().filter(|_| if is_request { rules.take_requests } else { rules.send })
        else {
            counters.dropped_state += 1;
            return;
        };
        if !same_ends(&conn.path, &path) {
            counters.dropped_wrong_peer += 1;
            return;
        }
        qp.last_heard = qp.last_heard.max(now);
        let payload = &rest[ext_len..payload_end];
        if is_request {
            qp.on_request(&mut self.shared, &bth, rest, payload);
        } else if bth.opcode.is_rc_response() {
            qp.on_response(&mut self.shared, now, &bth, rest, payload);
        } else {
            self.shared.counters.dropped_malformed += 1;
        }
        self.settle();
    }

    /// After the last packet of a batch: what it asked to be acknowledged is due now.
    pub fn end_batch(&mut self, now: Time) {
        self.saw(now);
        while let Some(slot) = self.shared.replies.pop() {
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            qp.replies_later = false;
            qp.schedule(&mut self.shared);
        }
        if !self.shared.owing.is_empty() && self.shared.owing_until == Time::NEVER {
            self.shared.owing_until = now + self.shared.config.ack_owed_for;
        }
    }

    /// Who owes an ACK has waited for more packets long enough.
    fn pay_acks(&mut self, now: Time) -> usize {
        if now < self.shared.owing_until {
            return 0;
        }
        self.shared.owing_until = Time::NEVER;
        let mut paid = 0;
        while let Some(slot) = self.shared.owing.pop() {
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            paid += usize::from(qp.pay_acks(&mut self.shared));
        }
        paid
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, at the earliest;
    /// [`Time::ZERO`] if [`transmit`](Self::transmit) has something now.
    pub fn deadline(&self) -> Time {
        if self.shared.ready.is_empty() && self.shared.flushes.is_empty() {
            self.shared.timers.earliest().min(self.shared.owing_until)
        } else {
            Time::ZERO
        }
    }

    /// Does what is due at `now`: retries and the ends of RNR waits. Gives how many timers came
    /// up. Cheap enough to be called every turn, whatever [`deadline`](Self::deadline) says.
    pub fn handle_timeout(&mut self, now: Time) -> usize {
        self.saw(now);
        let mut came_up = self.pay_acks(now);
        while let Some(slot) = self.shared.timers.pop(now) {
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            qp.on_deadline(&mut self.shared, now);
            came_up += 1;
        }
        self.settle();
        came_up
    }

    /// How much READ data may be on the way to all queue pairs together, in bytes, once the
    /// provider knows its socket's buffer.
    pub fn set_read_budget(&mut self, bytes: u64) {
        self.shared.read_budget.limit_bytes = bytes;
    }

    /// READ data that is on the way now, in bytes.
    pub fn read_bytes_in_flight(&self) -> u64 {
        self.shared.read_budget.used_bytes()
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    fn saw(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// What a call left to be done on other queue pairs than its own.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.shared.read_budget.freed {
            self.wake_readers();
        }
        while std::mem::take(&mut self.shared.objects.overrun) {
            self.fail_users_of_overrun_queues();
        }
    }

    /// READ budget came free: those who wait may try again, in their order.
    fn wake_readers(&mut self) {
        self.shared.read_budget.freed = false;
        while let Some(slot) = self.shared.read_budget.waiting.pop_front() {
            let Some(qp) = self.qps.key_at(slot).and_then(|key| self.qps.get_mut(key)) else { continue };
            qp.waits_for_budget = false;
            qp.schedule(&mut self.shared);
        }
    }

    /// A completion queue ran over: who completes there cannot go on (IBTA vol. 1, 10.10.2.5).
    fn fail_users_of_overrun_queues(&mut self) {
        for (key, qp) in self.qps.iter_mut() {
            let dead = |cq: CqId| self.shared.objects.is_dead(cq);
            let live = !matches!(qp.state, QpState::Reset | QpState::Err);
            if live && (dead(qp.init.send_cq) || dead(qp.init.recv_cq)) {
                self.shared.objects.events.push_back(AsyncEvent::QpFatal(QpId(key)));
                qp.enter_error(&mut self.shared, WcStatus::WrFlush);
            }
        }
    }
}

/// Whether a packet that came by `seen` belongs to the connection over `path`.
#[inline]
fn same_ends(path: &Path, seen: &Path) -> bool {
    let other_link = path.scope_id != 0 && seen.scope_id != 0 && path.scope_id != seen.scope_id;
    path.local == seen.local && path.remote == seen.remote && !other_link
}

/// The header of a packet. A reserved RC opcode is given as one that no responder of ours takes,
/// so that it is answered as they are.
fn parse_bth(packet: &[u8]) -> Option<Bth> {
    match Bth::parse(packet) {
        Ok(bth) => Some(bth),
        Err(ParseError::Unknown { field: "BTH opcode", value: 0x00..=0x1f }) => {
            let mut header: [u8; Bth::LEN] = packet[..Bth::LEN].try_into().ok()?;
            header[0] = Opcode::SendOnlyInvalidate as u8;
            Bth::parse(&header).ok()
        }
        Err(_) => None,
    }
}
