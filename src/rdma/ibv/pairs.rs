//! A shard's queue pairs: where they come from, their way to RTS, what becomes of them.

use std::sync::Arc;

use rdma_core_sys as raw;
use reactors::time::Time;

use super::device::{Device, NO_CQ, NO_PD, NO_QP, NO_SRQ, failed};
use super::janitor::Job;
use super::probe::INIT_MASK;
use super::sys::{Attr, Qp, QpParts};
use crate::rdma::verbs::{AsyncEvent, QpId, QpInit, QpState, Retired, RtrAttr, RtsAttr, VerbsError};
use crate::wire::num::Qpn;

/// Queue pairs that the janitor keeps ready for a shard, so that a login waits for no firmware.
const STOCK: usize = 4;
/// What RTR -> RTS says besides the first PSN.
const RTS_MASK: u32 = raw::ibv_qp_attr_mask::IBV_QP_TIMEOUT.0
    | raw::ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0
    | raw::ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0
    | raw::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;

/// A queue pair of a shard.
pub(super) struct QpSlot {
    /// None while the janitor has it.
    pub(super) qp: Option<Qp>,
    pub(super) qpn: Qpn,
    pub(super) state: QpState,
    /// Attributes of RESET -> INIT.
    pub(super) init: Attr,
    /// Attributes of RTR -> RTS, between the two moves.
    pub(super) rts: Option<(Attr, u32)>,
    /// When its peer last proved to be alive.
    pub(super) heard: Time,
}

impl QpSlot {
    /// Work of it failed: the device has moved it to ERR by itself. A late flush says nothing of a
    /// queue pair's next life: only work of one that is connected can fail.
    pub(super) fn work_failed(&mut self) {
        if matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            self.state = QpState::Err;
        }
    }
}

impl Device {
    pub(super) fn parts(&self, init: &QpInit) -> Result<QpParts, VerbsError> {
        let abilities = &self.seat.adapter.abilities;
        if init.max_send_wr > abilities.caps.max_send_wr {
            return Err(VerbsError::Invalid("more sends than the device's queue pairs have"));
        }
        Ok(QpParts {
            pd: Arc::clone(self.pds.get(init.pd.0).ok_or(NO_PD)?),
            send_cq: Arc::clone(&self.cqs.get(init.send_cq.0).ok_or(NO_CQ)?.cq),
            recv_cq: Arc::clone(&self.cqs.get(init.recv_cq.0).ok_or(NO_CQ)?.cq),
            srq: match init.srq {
                Some(srq) => Some(Arc::clone(self.srqs.get(srq.0).ok_or(NO_SRQ)?)),
                None => None,
            },
            max_send_wr: init.max_send_wr,
            max_recv_wr: if init.srq.is_some() { 0 } else { init.max_recv_wr },
            max_inline_bytes: abilities.inline_bytes,
        })
    }

    /// One of the stock, or a new one: only a login that finds the stock empty waits for the device.
    pub(super) fn fetch(&mut self, parts: &QpParts) -> Result<Qp, VerbsError> {
        let ready = self.stock.iter().position(|(made_of, _)| made_of.same_as(parts));
        let qp = match ready {
            Some(place) => {
                self.counts.qps_from_stock += 1;
                self.stock.swap_remove(place).1
            }
            None => {
                self.counts.qps_fresh += 1;
                Qp::new(parts).map_err(|why| failed("a queue pair", &why))?
            }
        };
        // As many logins of an initiator come together as it has channels.
        while self.stock.len() + self.ordered < STOCK {
            self.ordered += 1;
            self.job(Job::Make { shard: self.seat.shard, parts: Box::new(parts.clone()) });
        }
        Ok(qp)
    }

    pub(super) fn slot(&mut self, qp: QpId) -> Result<&mut QpSlot, VerbsError> {
        self.qps.get_mut(qp.0).ok_or(NO_QP)
    }

    pub(super) fn ready_to_receive(&mut self, qp: QpId, rtr: &RtrAttr) -> Result<(), VerbsError> {
        let remote = rtr.path.remote.to_canonical();
        let way = self.seat.book.way(rtr.dest_qpn, remote).ok_or(VerbsError::NotFound("connection"))?;
        let reads = self.seat.adapter.abilities.caps.max_rd_atomic;
        let slot = self.slot(qp)?;
        let held = slot.qp.as_ref().ok_or(VerbsError::Busy("queue pair"))?;
        // INIT was made before anybody knew the connection: its partition and port may be others.
        let (pkey, port) = (way.init.pkey_index, way.init.port_num);
        if (pkey, port) != (slot.init.pkey_index, slot.init.port_num) {
            slot.init.pkey_index = pkey;
            slot.init.port_num = port;
            held.modify(&slot.init, INIT_MASK).map_err(|why| failed("INIT of a queue pair", &why))?;
        }
        // Way, numbers and PSNs are the connection manager's, which has told them to the peer.
        let mut attr = way.rtr;
        attr.max_dest_rd_atomic = rtr.max_dest_rd_atomic.min(reads);
        attr.min_rnr_timer = rtr.min_rnr_timer;
        let mask = way.rtr_mask
            | raw::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | raw::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
        held.modify(&attr, mask).map_err(|why| failed("RTR of a queue pair", &why))?;
        slot.rts = Some((way.rts, way.rts_mask));
        Ok(())
    }

    pub(super) fn ready_to_send(&mut self, qp: QpId, rts: &RtsAttr) -> Result<(), VerbsError> {
        let reads = self.seat.adapter.abilities.max_reads;
        let slot = self.slot(qp)?;
        let held = slot.qp.as_ref().ok_or(VerbsError::Busy("queue pair"))?;
        let (mut attr, mask) = slot.rts.take().ok_or(VerbsError::State(slot.state))?;
        attr.timeout = rts.timeout_code;
        attr.retry_cnt = rts.retry_count.min(7);
        attr.rnr_retry = rts.rnr_retry.min(7);
        attr.max_rd_atomic = rts.max_rd_atomic.min(reads);
        held.modify(&attr, mask | RTS_MASK).map_err(|why| failed("RTS of a queue pair", &why))
    }

    /// The janitor has done with a queue pair.
    pub(super) fn on_retired(&mut self, id: QpId, qp: Option<Qp>, outcome: Retired) {
        match (outcome, self.qps.get_mut(id.0)) {
            (Retired::Recycled, Some(slot)) => {
                self.counts.qps_recycled += 1;
                slot.state = QpState::Init;
                slot.qp = qp;
            }
            (Retired::Failed, Some(slot)) => {
                self.counts.qps_stuck += 1;
                slot.state = QpState::Err;
                slot.qp = qp;
            }
            (Retired::Destroyed, Some(slot)) => {
                self.counts.qps_destroyed += 1;
                self.by_qpn.remove(&slot.qpn);
                self.qps.remove(id.0);
            }
            (_, None) => {}
        }
        self.events.push_back(AsyncEvent::QpRetired { qp: id, outcome });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_flush_says_nothing_of_a_recycled_queue_pair() {
        let after = |state| {
            let (qpn, init) = (Qpn::new(17), Attr::none());
            let mut slot = QpSlot { qp: None, qpn, state, init, rts: None, heard: Time::ZERO };
            slot.work_failed();
            slot.state
        };
        for connected in [QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
            assert_eq!(after(connected), QpState::Err);
        }
        for idle in [QpState::Reset, QpState::Init] {
            assert_eq!(after(idle), idle);
        }
    }
}
