//! One shard's context: the verbs, as the target calls them.

use std::net::IpAddr;
use std::os::fd::RawFd;

use reactors::memory::Region;
use reactors::time::Time;

use super::adapter::{Adapter, Inner, Step};
use super::qp::{Qp, QpRef};
use super::script::{Connecting, ToErr};
use crate::rdma::engine::cq::Cq;
use crate::rdma::engine::srq::Srq;
use crate::rdma::engine::state;
use crate::rdma::verbs::{
    Access, AsyncEvent, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, CqId, Device, DeviceCaps,
    ListenerId, MrKeys, PdId, QpId, QpInit, QpModify, QpState, RecvWr, Recycling, Retire, SendWr, Service,
    SrqId, VerbsError, Wc,
};
use crate::wire::num::{LKey, Qpn};

const NO_QP: VerbsError = VerbsError::NotFound("queue pair");

/// One shard's context on a scripted adapter.
pub struct Context {
    adapter: Adapter,
    shard: usize,
}

impl Context {
    pub(super) fn new(adapter: Adapter, shard: usize) -> Context {
        Context { adapter, shard }
    }

    fn with<R>(&self, call: impl FnOnce(&mut Inner, usize) -> R) -> R {
        call(&mut self.adapter.inner.borrow_mut(), self.shard)
    }

    /// The same for verbs that need a device which is alive.
    fn alive<R>(
        &self,
        call: impl FnOnce(&mut Inner, usize) -> Result<R, VerbsError>,
    ) -> Result<R, VerbsError> {
        self.with(|inner, shard| if inner.dead { Err(gone()) } else { call(inner, shard) })
    }

    /// Takes part in receiving for an address: any will do.
    pub fn open_port(&mut self, _: IpAddr) -> Result<(), VerbsError> {
        self.alive(|_, _| Ok(()))
    }

    /// Receives no more for an address; shard 0 forgets what waits for an answer there.
    pub fn close_port(&mut self, address: IpAddr) {
        self.with(|inner, shard| {
            if shard == 0 {
                inner.close_port(address);
            }
        });
    }

    /// Bytes that a queue pair takes, as far as it can be said of this one.
    pub const fn queue_pair_bytes(max_send_wr: u32) -> usize {
        size_of::<Qp>() + max_send_wr as usize * size_of::<SendWr>()
    }
}

/// What verbs say when the device is gone.
fn gone() -> VerbsError {
    VerbsError::System { what: "a verb".to_owned(), why: "the device is gone (EIO)".to_owned() }
}

impl Inner {
    fn modify(&mut self, now: Time, shard: usize, id: QpId, change: &QpModify) -> Result<(), VerbsError> {
        let now = self.see(now);
        let qp = self.sides[shard].qps.get_mut(id.0).ok_or(NO_QP)?;
        if qp.retiring {
            return Err(VerbsError::Busy("queue pair"));
        }
        let after = state::after(qp.state, change)?;
        let of = QpRef { shard, id, life: qp.life };
        match change {
            QpModify::Err => match qp.script.to_err {
                ToErr::Obeyed => self.break_qp(now, of),
                ToErr::Ignored => {}
                ToErr::Refused => {
                    let why = "the adapter does not answer (ETIMEDOUT)".to_owned();
                    return Err(VerbsError::System { what: "ibv_modify_qp".to_owned(), why });
                }
            },
            QpModify::Reset => {
                self.let_go(now, of);
                if let Some(qp) = self.qp(of) {
                    qp.wipe();
                }
            }
            QpModify::Rtr(attr) => {
                let far = self.far_of(attr.dest_qpn);
                let script = far.map(|far| self.fars[far.0].script.clone());
                let keeps_its_way = self.config.recycling == Recycling::SameNumber;
                let Some(qp) = self.qp(of) else { return Err(NO_QP) };
                let way = *qp.way.get_or_insert(attr.path);
                qp.far = far;
                qp.script = script.unwrap_or_else(|| qp.script.clone());
                qp.heard = now;
                qp.ready_at = now;
                match qp.script.connecting {
                    Connecting::AtOnce => {}
                    Connecting::After(time) => qp.ready_at = now + time,
                    Connecting::Fails(time) => {
                        qp.ready_at = Time::NEVER;
                        self.agenda.enter(now + time, Step::NotConnected(of));
                    }
                    Connecting::Refused => return Err(VerbsError::Invalid("path")),
                }
                if let Some(qp) = self.qp(of) {
                    qp.state = after;
                }
                if let Some(far) = far {
                    self.fars[far.0].near = Some(of);
                    // What it sends goes where it went in its life before.
                    self.fars[far.0].silent |= keeps_its_way && way != attr.path;
                }
            }
            QpModify::Init | QpModify::Rts(_) | QpModify::Drain { .. } | QpModify::Resume => qp.state = after,
        }
        Ok(())
    }

    /// Another life of a queue pair, in INIT.
    pub(super) fn recycle(&mut self, now: Time, of: QpRef) {
        let renumbers = self.config.recycling == Recycling::NewNumber;
        let side = &mut self.sides[of.shard];
        let Some(qp) = side.qps.get_mut(of.id.0) else { return };
        qp.wipe();
        qp.state = QpState::Init;
        if renumbers {
            side.qpns.free(now, qp.qpn);
            qp.qpn = side.qpns.assign(now, of.id.0, &mut self.rng);
        }
    }

    /// The end of a queue pair.
    pub(super) fn forget(&mut self, now: Time, of: QpRef) {
        let side = &mut self.sides[of.shard];
        if let Some(qp) = side.qps.remove(of.id.0) {
            side.qpns.free(now, qp.qpn);
        }
    }

    fn retire(&mut self, now: Time, shard: usize, id: QpId, how: Retire) -> Result<(), VerbsError> {
        let now = self.see(now);
        let recycles = self.config.recycling != Recycling::Never;
        let Some(qp) = self.sides[shard].qps.get_mut(id.0) else {
            self.misuse.push(format!("{now:?}: a queue pair that is gone is retired"));
            return Err(NO_QP);
        };
        if qp.retiring {
            self.misuse.push(format!("{now:?}: {} is retired twice", qp.qpn));
            return Err(VerbsError::Busy("queue pair"));
        }
        if how == Retire::Recycle && !recycles {
            return Err(VerbsError::Invalid("recycling"));
        }
        qp.retiring = true;
        let of = QpRef { shard, id, life: qp.life };
        let after = qp.script.retiring.after;
        self.agenda.enter(now + after, Step::Retired(of, how));
        Ok(())
    }

    fn destroy(&mut self, now: Time, shard: usize, id: QpId) -> Result<(), VerbsError> {
        let now = self.see(now);
        let Some(qp) = self.sides[shard].qps.get_mut(id.0) else {
            self.misuse.push(format!("{now:?}: a queue pair is destroyed twice"));
            return Err(NO_QP);
        };
        if qp.retiring || qp.failures < qp.script.retiring.failures {
            qp.failures += 1;
            return Err(VerbsError::Busy("queue pair"));
        }
        let of = QpRef { shard, id, life: qp.life };
        self.let_go(now, of);
        self.forget(now, of);
        Ok(())
    }
}

impl Device for Context {
    fn caps(&self) -> DeviceCaps {
        self.with(|inner, _| inner.caps())
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.alive(|inner, shard| {
            inner.sides[shard]
                .pds
                .insert(())
                .map(PdId)
                .map_err(|()| VerbsError::Exhausted("protection domain"))
        })
    }

    fn pins_memory(&self) -> bool {
        true
    }

    fn register(&mut self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError> {
        self.alive(|inner, shard| inner.sides[shard].mrs.register(pd, region, access, &mut inner.rng))
    }

    fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        self.with(|inner, shard| inner.deregister(shard, lkey))
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.alive(|inner, shard| {
            let made = inner.sides[shard].cqs.insert(Cq::new(depth));
            made.map(CqId).map_err(|_| VerbsError::Exhausted("completion queue"))
        })
    }

    fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId, VerbsError> {
        self.alive(|inner, shard| {
            let made = inner.sides[shard].srqs.insert(Srq::new(pd, depth));
            made.map(SrqId).map_err(|_| VerbsError::Exhausted("shared receive queue"))
        })
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.with(|inner, shard| {
            let side = &mut inner.sides[shard];
            if side.qps.iter().any(|(_, qp)| qp.init.send_cq == cq || qp.init.recv_cq == cq) {
                return Err(VerbsError::Busy("completion queue"));
            }
            side.cqs.remove(cq.0).map(drop).ok_or(VerbsError::NotFound("completion queue"))
        })
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.with(|inner, shard| {
            let side = &mut inner.sides[shard];
            if side.qps.iter().any(|(_, qp)| qp.init.srq == Some(srq)) {
                return Err(VerbsError::Busy("shared receive queue"));
            }
            // What it had fetched and lost goes with it. A shard has one such queue, but for the moment
            // in which another takes its place.
            side.srqs.remove(srq.0).ok_or(VerbsError::NotFound("shared receive queue"))?;
            side.receives.clear();
            Ok(())
        })
    }

    fn posted_srq_recvs(&self, srq: SrqId) -> Option<u32> {
        self.with(|inner, shard| {
            let srq = inner.sides[shard].srqs.get(srq.0).filter(|_| inner.config.counts_receives);
            srq.map(|srq| srq.len() as u32)
        })
    }

    fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.alive(|inner, shard| {
            let side = &mut inner.sides[shard];
            let queue = side.srqs.get_mut(srq.0).ok_or(VerbsError::NotFound("shared receive queue"))?;
            if queue.arm(limit)? {
                side.events.push_back(AsyncEvent::SrqLimit(srq));
            }
            Ok(())
        })
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<QpId, VerbsError> {
        self.alive(|inner, shard| {
            let (now, side) = (inner.now, &mut inner.sides[shard]);
            let key = side.qps.next_key().filter(|_| !inner.stock_empty);
            let key = key.ok_or(VerbsError::Exhausted("queue pair"))?;
            let qpn = side.qpns.assign(now, key, &mut inner.rng);
            let made = side.qps.insert(Qp::new(qpn, *init));
            made.map(QpId).map_err(|_| VerbsError::Exhausted("queue pair"))
        })
    }

    fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError> {
        self.with(|inner, shard| inner.sides[shard].qps.get(qp.0).map(|qp| qp.qpn).ok_or(NO_QP))
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.with(|inner, shard| inner.sides[shard].qps.get(qp.0).map(|qp| qp.state).ok_or(NO_QP))
    }

    fn modify_qp(&mut self, now: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError> {
        self.alive(|inner, shard| inner.modify(now, shard, qp, change))
    }

    fn retire_qp(&mut self, now: Time, qp: QpId, how: Retire) -> Result<(), VerbsError> {
        self.with(|inner, shard| inner.retire(now, shard, qp, how))
    }

    fn destroy_qp(&mut self, now: Time, qp: QpId) -> Result<(), VerbsError> {
        self.with(|inner, shard| inner.destroy(now, shard, qp))
    }

    fn post_send(&mut self, now: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        self.alive(|inner, shard| {
            let now = inner.see(now);
            inner.post(now, shard, qp, wr)
        })
    }

    fn post_recv(&mut self, _: QpId, _: &RecvWr) -> Result<(), VerbsError> {
        Err(VerbsError::Invalid("receives of a queue pair's own: this adapter serves targets only"))
    }

    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), VerbsError> {
        self.alive(|inner, shard| {
            let (now, side) = (inner.now, &mut inner.sides[shard]);
            side.srqs.get_mut(srq.0).ok_or(VerbsError::NotFound("shared receive queue"))?.post(wr)?;
            if !side.receives.insert(wr.sge.addr) {
                inner.misuse.push(format!("{now:?}: a receive is posted that the adapter has already"));
            }
            Ok(())
        })
    }

    fn poll_cq(&mut self, cq: CqId, into: &mut [Wc]) -> usize {
        self.with(|inner, shard| inner.sides[shard].cqs.get_mut(cq.0).map_or(0, |cq| cq.poll(into)))
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.with(|inner, shard| inner.sides[shard].events.pop_front())
    }

    fn last_heard(&self, qp: QpId) -> Result<Time, VerbsError> {
        self.with(|inner, shard| inner.sides[shard].qps.get(qp.0).map(|qp| qp.heard).ok_or(NO_QP))
    }

    fn progress(&mut self, now: Time) -> usize {
        self.with(|inner, _| inner.run(now))
    }

    fn next_deadline(&self) -> Time {
        self.with(|inner, shard| {
            let side = &inner.sides[shard];
            let waits = !side.events.is_empty()
                || side.cqs.iter().any(|(_, cq)| cq.len() > 0)
                || (shard == 0 && !inner.conn_events.is_empty());
            if waits { Time::ZERO } else { inner.agenda.next_time() }
        })
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Connections for Context {
    fn listen(&mut self, local: Option<IpAddr>, service: Service) -> Result<ListenerId, VerbsError> {
        self.alive(|inner, _| inner.listen(local, service))
    }

    fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError> {
        self.with(|inner, _| inner.unlisten(listener))
    }

    fn connect(&mut self, _: Time, _: &ConnectAttr) -> Result<ConnId, VerbsError> {
        Err(VerbsError::Invalid("asking for a connection: this adapter serves targets only"))
    }

    fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        reply: &ConnReply,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        self.alive(|inner, _| inner.accept(now, conn, reply, private))
    }

    fn reject(&mut self, now: Time, conn: ConnId, reason: u16, private: &[u8]) -> Result<(), VerbsError> {
        self.alive(|inner, _| inner.reject(now, conn, reason, private))
    }

    fn established(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.alive(|inner, _| inner.established(conn))
    }

    fn disconnect(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.alive(|inner, _| inner.disconnect(now, conn))
    }

    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.with(|inner, shard| if shard == 0 { inner.conn_events.pop_front() } else { None })
    }
}
