//! The engine itself: tables of everything, and the verbs on them.

use reactors::memory::Region;
use reactors::slab::Slab;
use reactors::time::Time;

use super::config::EngineConfig;
use super::counters::Counters;
use super::cq::Cq;
use super::mr::MrTable;
use super::srq::Srq;
use super::transmit::Sink;
use crate::rdma::verbs::{
    Access, AsyncEvent, CqId, DeviceCaps, MrKeys, Path, PdId, QpId, QpInit, QpModify, QpState, RecvWr,
    SendWr, SrqId, VerbsError, Wc,
};
use crate::wire::num::{LKey, Qpn};

/// The RC protocol engine of one shard. See the module for who calls what.
pub struct Engine {
    config: EngineConfig,
    rng: fastrand::Rng,
    pds: Slab<()>,
    mrs: MrTable,
    cqs: Slab<Cq>,
    srqs: Slab<Srq>,
    events: std::collections::VecDeque<AsyncEvent>,
    counters: Counters,
}

impl Engine {
    /// An engine without anything in it. `rng` gives QPNs and keys.
    ///
    /// # Panics
    /// If the configuration contradicts itself.
    pub fn new(config: EngineConfig, rng: fastrand::Rng) -> Self {
        Engine {
            rng,
            pds: Slab::new(config.max_pd as usize),
            mrs: MrTable::new(config.max_mr),
            cqs: Slab::new(config.max_cq as usize),
            srqs: Slab::new(config.max_srq as usize),
            events: std::collections::VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }
}

/// The verbs, as `rdma::verbs::Device` says them.
impl Engine {
    /// What the device can do.
    pub fn caps(&self) -> DeviceCaps {
        self.config.caps()
    }

    /// A new protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.pds.insert(()).map(PdId).map_err(|()| VerbsError::Exhausted("protection domain"))
    }

    fn check_pd(&self, pd: PdId) -> Result<(), VerbsError> {
        self.pds.get(pd.0).copied().ok_or(VerbsError::NotFound("protection domain"))
    }

    /// Registers all of `region`.
    pub fn register(&mut self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError> {
        self.check_pd(pd)?;
        self.mrs.register(pd, region, access, &mut self.rng)
    }

    /// Ends a registration.
    pub fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        self.mrs.deregister(lkey)
    }

    /// A new completion queue.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        if depth == 0 || depth > self.config.max_cqe {
            return Err(VerbsError::Invalid("depth of the completion queue"));
        }
        self.cqs.insert(Cq::new(depth)).map(CqId).map_err(|_| VerbsError::Exhausted("completion queue"))
    }

    /// A new shared receive queue.
    pub fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId, VerbsError> {
        self.check_pd(pd)?;
        if depth == 0 || depth > self.config.max_srq_wr {
            return Err(VerbsError::Invalid("depth of the shared receive queue"));
        }
        let srq = Srq::new(pd, depth);
        self.srqs.insert(srq).map(SrqId).map_err(|_| VerbsError::Exhausted("shared receive queue"))
    }

    /// Arms the limit event.
    pub fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        let queue = self.srqs.get_mut(srq.0).ok_or(VerbsError::NotFound("shared receive queue"))?;
        if queue.arm(limit)? {
            self.events.push_back(AsyncEvent::SrqLimit(srq));
        }
        Ok(())
    }

    /// A new queue pair in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, VerbsError> {
        self.check_pd(init.pd)?;
        Err(VerbsError::Exhausted("queue pair"))
    }

    /// The number of a queue pair.
    pub fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError> {
        let _ = qp;
        Err(VerbsError::NotFound("queue pair"))
    }

    /// The queue pair of a number, if it is one of this engine's.
    pub fn qp_of(&self, qpn: Qpn) -> Option<QpId> {
        let _ = qpn;
        None
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        let _ = qp;
        Err(VerbsError::NotFound("queue pair"))
    }

    /// Moves a queue pair along one edge of the state table.
    pub fn modify_qp(&mut self, now: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError> {
        let _ = (now, qp, change);
        Err(VerbsError::NotFound("queue pair"))
    }

    /// Ends a queue pair.
    pub fn destroy_qp(&mut self, now: Time, qp: QpId) -> Result<(), VerbsError> {
        let _ = (now, qp);
        Err(VerbsError::NotFound("queue pair"))
    }

    /// Posts to the send queue.
    pub fn post_send(&mut self, now: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        let _ = (now, qp, wr);
        Err(VerbsError::NotFound("queue pair"))
    }

    /// Posts to a queue pair's own receive queue.
    pub fn post_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), VerbsError> {
        let _ = (qp, wr);
        Err(VerbsError::NotFound("queue pair"))
    }

    /// Posts to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), VerbsError> {
        self.srqs.get_mut(srq.0).ok_or(VerbsError::NotFound("shared receive queue"))?.post(wr)
    }

    /// Takes completions off a queue; gives how many. An unknown queue has none.
    pub fn poll_cq(&mut self, cq: CqId, into: &mut [Wc]) -> usize {
        self.cqs.get_mut(cq.0).map_or(0, |cq| cq.poll(into))
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// When the peer of a connected queue pair last proved to be alive.
    pub fn last_heard(&self, qp: QpId) -> Result<Time, VerbsError> {
        let _ = qp;
        Err(VerbsError::NotFound("queue pair"))
    }
}

/// What the provider that moves packets calls.
impl Engine {
    /// Takes in one packet: BTH to the end of payload and pad, its ICRC already checked and cut
    /// off. `path.local` is the address that it came to, `path.remote` its UDP source. Packets to
    /// QPN 1 do not belong here.
    pub fn receive(&mut self, now: Time, path: Path, packet: &[u8]) {
        let _ = (now, path, packet);
        self.counters.packets_in += 1;
        self.counters.dropped_unknown_qpn += 1;
    }

    /// After the last packet of a batch: what it asked to be acknowledged is due now.
    pub fn end_batch(&mut self, now: Time) {
        let _ = now;
    }

    /// Hands out packets while `sink` has room; gives how many. Also flushes the send queues of
    /// queue pairs in ERR, which takes no room.
    pub fn transmit(&mut self, now: Time, sink: &mut impl Sink) -> usize {
        let _ = (now, sink.has_room());
        0
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do; [`Time::ZERO`] if
    /// [`transmit`](Self::transmit) has.
    pub fn deadline(&self) -> Time {
        Time::NEVER
    }

    /// Does what is due at `now`: retries and the ends of RNR waits.
    pub fn handle_timeout(&mut self, now: Time) {
        let _ = now;
    }

    /// How much READ data may be on the way to all queue pairs together, in bytes, once the
    /// provider knows its socket's buffer.
    pub fn set_read_budget(&mut self, bytes: u64) {
        self.config.read_budget_bytes = bytes;
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
