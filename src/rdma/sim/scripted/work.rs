//! Work requests and receives: how they are done, fail, and are flushed.

use std::time::Duration;

use reactors::memory::Region;
use reactors::time::Time;

use super::adapter::{Inner, Side, Step};
use super::far::FarId;
use super::qp::{Posted, Qp, QpRef};
use super::script::{Flush, PostsInErr, Remains};
use crate::rdma::verbs::{
    AsyncEvent, PdId, QpId, QpState, RecvWr, Remote, Retire, Retired, SendOp, SendWr, Sge, VerbsError, Wc,
    WcOpcode, WcStatus,
};
use crate::wire::num::{LKey, Qpn};

/// How long the peer of an empty receive queue waits before it sends again (RNR timer code 12).
const RNR_WAIT: Duration = Duration::from_micros(640);

impl Inner {
    /// A completion without success. What else it says means nothing, and says so: verbs over rxe
    /// give zeroes, other drivers what was there before.
    fn failed(&mut self, wr_id: u64, qpn: Qpn, status: WcStatus) -> Wc {
        let blank = Wc { wr_id, status, opcode: WcOpcode::Send, len_bytes: 0, qpn };
        if self.rng.bool() {
            return blank;
        }
        let opcodes = [WcOpcode::Send, WcOpcode::Write, WcOpcode::Read, WcOpcode::Recv];
        let opcode = self.rng.choice(opcodes).unwrap_or(WcOpcode::Recv);
        Wc { opcode, len_bytes: self.rng.u32(..), ..blank }
    }

    /// Posts to the send queue.
    pub(super) fn post(&mut self, now: Time, shard: usize, id: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        let pd = self.sides[shard].qps.get(id.0).ok_or(VerbsError::NotFound("queue pair"))?.init.pd;
        self.check_memory(shard, pd, wr);
        let side = &mut self.sides[shard];
        let qp = side.qps.get_mut(id.0).ok_or(VerbsError::NotFound("queue pair"))?;
        let of = QpRef { shard, id, life: qp.life };
        if qp.state == QpState::Rts && now < qp.ready_at {
            return Err(VerbsError::QueueFull);
        }
        if qp.script.broken_at_post.is_some_and(|number| number <= qp.next) && qp.state == QpState::Rts {
            self.break_qp(now, of);
        }
        let Some(qp) = self.qp(of) else { return Err(VerbsError::NotFound("queue pair")) };
        match qp.state {
            QpState::Rts | QpState::Sqd => {}
            QpState::Err if qp.script.posts_in_err == PostsInErr::Flushed => {}
            state => return Err(VerbsError::State(state)),
        }
        if qp.posted.len() >= qp.init.max_send_wr as usize {
            return Err(VerbsError::QueueFull);
        }
        let number = qp.next;
        qp.next += 1;
        qp.posted.push_back(Posted { number, wr: *wr });
        if qp.state != QpState::Err {
            qp.busy_until = qp.busy_until.max(now + qp.script.work);
            let due = qp.busy_until;
            self.agenda.enter(due, Step::Work(of, number));
            return Ok(());
        }
        let tells = qp.script.last_wqe.on_posts && qp.init.srq.is_some();
        self.plan_flush(now, of, number);
        if tells {
            self.agenda.enter(now, Step::Told(of, AsyncEvent::LastWqeReached(id)));
        }
        Ok(())
    }

    /// No two work requests in progress may name the same memory: whoever posts the second has
    /// forgotten the first. Memory that is only ever sent from may be sent any number of times.
    fn check_memory(&mut self, shard: usize, pd: PdId, wr: &SendWr) {
        let Side { qps, mrs, .. } = &self.sides[shard];
        let is_written = |sge: &&Sge| {
            sge.len_bytes > 0 && mrs.local(pd, sge.lkey, sge.addr, sge.len_bytes as usize, true).is_some()
        };
        let clash =
            wr.sges.as_slice().iter().filter(is_written).find(|sge| {
                qps.iter().any(|(_, qp)| qp.names(sge.addr, sge.addr + u64::from(sge.len_bytes)))
            });
        if let Some(sge) = clash {
            let words = format!("{:?}: {wr:?} is posted with memory at {:#x} in use", self.now, sge.addr);
            self.misuse.push(words);
        }
    }

    /// Ends a registration, whose memory no work request in progress may name.
    pub(super) fn deregister(&mut self, shard: usize, lkey: LKey) -> Result<(), VerbsError> {
        let side = &mut self.sides[shard];
        if side.qps.iter().any(|(_, qp)| qp.posted_pieces().any(|sge| sge.lkey == lkey)) {
            self.misuse.push(format!("{:?}: memory in use is deregistered", self.now));
        }
        side.mrs.deregister(lkey)
    }

    /// Work requests up to `number` are due.
    pub(super) fn work(&mut self, now: Time, of: QpRef, number: u64) {
        loop {
            let Some(qp) = self.qp(of).filter(|qp| matches!(qp.state, QpState::Rts | QpState::Sqd)) else {
                return;
            };
            let Some(first) = qp.posted.front().filter(|first| first.number <= number) else { return };
            let (first, wr) = (first.number, first.wr);
            let (far, retries, pd) = (qp.far, qp.script.retries, qp.init.pd);
            let scripted = qp.script.fails.filter(|(number, _)| *number == first).map(|(_, status)| status);
            if let Some(status) = qp.fail_next.take().or(scripted) {
                return self.fail(now, of, status);
            }
            let Some(far) = far.filter(|far| self.answers(*far)) else {
                let Some(qp) = self.qp(of) else { return };
                if !std::mem::replace(&mut qp.stalled, true)
                    && let Some(retries) = retries
                {
                    self.agenda.enter(now + retries, Step::GiveUp(of, first));
                }
                return;
            };
            if let Err(status) = self.perform(of.shard, pd, far, &wr) {
                return self.fail(now, of, status);
            }
            let Some(qp) = self.qp(of) else { return };
            qp.posted.pop_front();
            qp.heard = now;
            let opcode = wr.op.opcode();
            let wc = Wc { wr_id: wr.wr_id, status: WcStatus::Success, opcode, len_bytes: 0, qpn: qp.qpn };
            let cq = qp.init.send_cq;
            if wr.signaled {
                self.complete(of.shard, cq, wc);
            }
        }
    }

    /// Does what a work request asks for.
    fn perform(&mut self, shard: usize, pd: PdId, far: FarId, wr: &SendWr) -> Result<(), WcStatus> {
        let (mrs, far) = (&self.sides[shard].mrs, &mut self.fars[far.0]);
        let local = |sge: &Sge, write: bool| {
            let place = mrs.local(pd, sge.lkey, sge.addr, sge.len_bytes as usize, write);
            place.map(|place| (place.region, place.offset)).ok_or(WcStatus::LocalProtection)
        };
        let remote = |at: &Remote| -> Result<usize, WcStatus> {
            let offset = at.addr.checked_sub(far.memory.addr()).map(|offset| offset as usize);
            let end = offset.and_then(|offset| offset.checked_add(wr.sges.len_bytes() as usize));
            let fits = at.rkey == far.rkey && end.is_some_and(|end| end <= far.memory.len_bytes());
            offset.filter(|_| fits).ok_or(WcStatus::RemoteAccess)
        };
        let copy = |from: (&Region, usize), to: (&Region, usize), len: u32| {
            from.0.copy_to(from.1, to.0, to.1, len as usize).map_err(|_| WcStatus::LocalProtection)
        };
        match wr.op {
            SendOp::Send { .. } => {
                let mut bytes = Vec::with_capacity(wr.sges.len_bytes() as usize);
                for sge in wr.sges.as_slice() {
                    let (region, offset) = local(sge, false)?;
                    let show = |piece: &[u8]| bytes.extend_from_slice(piece);
                    let shown = region.with_bytes(offset, sge.len_bytes as usize, show);
                    shown.map_err(|_| WcStatus::LocalProtection)?;
                }
                far.inbox.push_back(bytes);
            }
            SendOp::Write(_) if wr.sges.len_bytes() == 0 => {}
            SendOp::Write(at) => {
                let mut to = remote(&at)?;
                for sge in wr.sges.as_slice() {
                    copy(local(sge, false)?, (&far.memory, to), sge.len_bytes)?;
                    to += sge.len_bytes as usize;
                }
            }
            SendOp::Read(at) => {
                let mut from = remote(&at)?;
                for sge in wr.sges.as_slice() {
                    copy((&far.memory, from), local(sge, true)?, sge.len_bytes)?;
                    from += sge.len_bytes as usize;
                }
            }
        }
        Ok(())
    }

    /// The oldest work request fails; the queue pair is in ERR.
    pub(super) fn fail(&mut self, now: Time, of: QpRef, status: WcStatus) {
        let Some(qp) = self.qp(of) else { return };
        let (qpn, cq) = (qp.qpn, qp.init.send_cq);
        if let Some(first) = qp.posted.pop_front() {
            let wc = self.failed(first.wr.wr_id, qpn, status);
            self.complete(of.shard, cq, wc);
        }
        self.break_qp(now, of);
    }

    /// The same at a test's word.
    pub(super) fn fail_oldest(&mut self, now: Time, of: QpRef, status: WcStatus) {
        let Some(qp) = self.qp(of).filter(|qp| qp.state == QpState::Rts) else { return };
        if qp.posted.is_empty() {
            qp.fail_next = Some(status);
        } else {
            self.fail(now, of, status);
        }
    }

    /// The retries of work request `number` are over, if it is still not done.
    pub(super) fn give_up(&mut self, now: Time, of: QpRef, number: u64) {
        let Some(qp) = self.qp(of).filter(|qp| qp.state == QpState::Rts && qp.stalled) else { return };
        if qp.posted.front().is_some_and(|first| first.number == number) {
            self.fail(now, of, WcStatus::RetryExceeded);
        }
    }

    /// Peers answer that did not: what stalled goes on.
    pub(super) fn go_on(&mut self, now: Time) {
        for shard in 0..self.sides.len() {
            for (key, qp) in self.sides[shard].qps.iter_mut() {
                let last = qp.posted.back().map(|last| last.number);
                if let (true, Some(last)) = (std::mem::take(&mut qp.stalled), last) {
                    let of = QpRef { shard, id: QpId(key), life: qp.life };
                    self.agenda.enter(now + qp.script.work, Step::Work(of, last));
                }
            }
        }
        for far in 0..self.fars.len() {
            for _ in 0..self.fars[far].outbox.len() {
                self.agenda.enter(now + self.fars[far].script.work, Step::Arrival(FarId(far)));
            }
        }
    }

    /// A queue pair goes to ERR, by itself or because it was told to.
    pub(super) fn break_qp(&mut self, now: Time, of: QpRef) {
        let Some(qp) = self.qp(of).filter(|qp| !matches!(qp.state, QpState::Reset | QpState::Err)) else {
            return;
        };
        qp.state = QpState::Err;
        qp.busy_until = now;
        let (script, srq) = (qp.script.clone(), qp.init.srq);
        let numbers: Vec<u64> = qp.posted.iter().map(|posted| posted.number).collect();
        for number in numbers {
            self.plan_flush(now, of, number);
        }
        if let Some(srq) = srq {
            for _ in 0..script.taken.count {
                let Some(wr) = self.take_receive(of.shard, srq) else { break };
                let Some(qp) = self.qp(of) else { break };
                qp.taken.push(wr);
                let qpn = qp.qpn;
                if let Some(back) = script.taken.back {
                    let wc = self.failed(wr.wr_id, qpn, WcStatus::WrFlush);
                    self.agenda.enter(now + back, Step::Received(of, wc));
                }
            }
            for after in script.last_wqe.after {
                self.agenda.enter(now + after, Step::Told(of, AsyncEvent::LastWqeReached(of.id)));
            }
        }
    }

    fn plan_flush(&mut self, now: Time, of: QpRef, number: u64) {
        let chance = self.rng.f64();
        let Some(qp) = self.qp(of) else { return };
        qp.flushes += 1;
        let due = match qp.script.flush {
            Flush::InOrder { first, every } => {
                let due = if qp.flushes == 1 { now + first } else { qp.busy_until.max(now) + every };
                qp.busy_until = due;
                due
            }
            Flush::AnyOrder { within } => now + within.mul_f64(chance),
            Flush::Stuck { after } if qp.flushes > after => return,
            Flush::Stuck { .. } => now,
        };
        self.agenda.enter(due, Step::Flush(of, number));
    }

    /// This work request is flushed.
    pub(super) fn flush(&mut self, of: QpRef, number: u64) {
        let Some(qp) = self.qp(of) else { return };
        let (qpn, cq) = (qp.qpn, qp.init.send_cq);
        let Some(at) = qp.posted.iter().position(|posted| posted.number == number) else { return };
        let Some(posted) = qp.posted.remove(at) else { return };
        let wc = self.failed(posted.wr.wr_id, qpn, WcStatus::WrFlush);
        self.complete(of.shard, cq, wc);
    }

    /// The next receive of an SRQ; tells if its limit is reached.
    fn take_receive(&mut self, shard: usize, srq: crate::rdma::verbs::SrqId) -> Option<RecvWr> {
        let side = &mut self.sides[shard];
        let (taken, limit) = side.srqs.get_mut(srq.0)?.take();
        if limit {
            side.events.push_back(AsyncEvent::SrqLimit(srq));
        }
        taken
    }

    /// The peer's next message arrives.
    pub(super) fn arrival(&mut self, now: Time, far: FarId) {
        if self.fars[far.0].outbox.is_empty() || !self.reaches(far) {
            return;
        }
        let near = self.fars[far.0].near;
        let alive = near.and_then(|of| self.qp(of).map(|qp| (of, qp.state, qp.ready_at)));
        let (of, ready_at) = match alive {
            Some((of, QpState::Rtr | QpState::Rts | QpState::Sqd, ready_at)) => (of, ready_at),
            _ => {
                self.fars[far.0].outbox.clear();
                self.fars[far.0].failed = true;
                return;
            }
        };
        if now < ready_at {
            return self.agenda.enter(ready_at, Step::Arrival(far));
        }
        let Some(srq) = self.qp(of).and_then(|qp| qp.init.srq) else { return };
        let Some(wr) = self.take_receive(of.shard, srq) else {
            return self.agenda.enter(now + RNR_WAIT, Step::Arrival(far));
        };
        let Some(bytes) = self.fars[far.0].outbox.pop_front() else { return };
        let Some(qp) = self.qp(of) else { return };
        let Qp { qpn, init, .. } = *qp;
        qp.heard = now;
        qp.taken.push(wr);
        let (after, first) = (qp.script.receive, !std::mem::replace(&mut qp.established, true));
        let place = self.sides[of.shard].mrs.local(init.pd, wr.sge.lkey, wr.sge.addr, bytes.len(), true);
        let fits = bytes.len() <= wr.sge.len_bytes as usize;
        let written =
            place.filter(|_| fits).is_some_and(|place| place.region.write(place.offset, &bytes).is_ok());
        if !written {
            let wc = self.failed(wr.wr_id, qpn, WcStatus::LocalLength);
            self.received(of, wc);
            return self.break_qp(now, of);
        }
        let len_bytes = bytes.len() as u32;
        let wc = Wc { wr_id: wr.wr_id, status: WcStatus::Success, opcode: WcOpcode::Recv, len_bytes, qpn };
        if first {
            self.sides[of.shard].events.push_back(AsyncEvent::CommEstablished(of.id));
        }
        if after.is_zero() {
            self.received(of, wc);
        } else {
            self.agenda.enter(now + after, Step::Received(of, wc));
        }
    }

    /// A receive that a queue pair has taken completes.
    pub(super) fn received(&mut self, of: QpRef, wc: Wc) {
        let Some(qp) = self.qp(of) else { return };
        let cq = qp.init.recv_cq;
        let Some(at) = qp.taken.iter().position(|wr| wr.wr_id == wc.wr_id) else { return };
        let wr = qp.taken.remove(at);
        self.sides[of.shard].receives.remove(&wr.sge.addr);
        self.complete(of.shard, cq, wc);
    }

    /// What began to connect has failed.
    pub(super) fn not_connected(&mut self, now: Time, of: QpRef) {
        if self.qp(of).is_some_and(|qp| qp.state != QpState::Err) {
            self.break_qp(now, of);
            self.sides[of.shard].events.push_back(AsyncEvent::QpFatal(of.id));
        }
    }

    /// The device lets go of all that a queue pair has posted or taken.
    pub(super) fn let_go(&mut self, now: Time, of: QpRef) {
        let Some(qp) = self.qp(of) else { return };
        let (qpn, init, remains) = (qp.qpn, qp.init, qp.script.remains);
        let posted = std::mem::take(&mut qp.posted);
        let taken = std::mem::take(&mut qp.taken);
        for wr in &taken {
            self.sides[of.shard].receives.remove(&wr.sge.addr);
        }
        match remains {
            Remains::Queued => {}
            Remains::Purged => {
                for cq in [init.send_cq, init.recv_cq] {
                    if let Some(cq) = self.sides[of.shard].cqs.get_mut(cq.0) {
                        cq.forget(qpn);
                    }
                }
            }
            Remains::Late(after) => {
                let sends = posted.iter().map(|posted| (init.send_cq, posted.wr.wr_id));
                let receives = taken.iter().map(|wr| (init.recv_cq, wr.wr_id));
                let late: Vec<_> = sends.chain(receives).collect();
                for (cq, wr_id) in late {
                    let wc = self.failed(wr_id, qpn, WcStatus::WrFlush);
                    self.agenda.enter(now + after, Step::Late(of.shard, cq, wc));
                }
            }
        }
    }

    /// The end of a retirement, which its script delays and makes fail.
    pub(super) fn retired(&mut self, now: Time, of: QpRef, how: Retire) {
        let Some(qp) = self.qp(of) else { return };
        let retiring = qp.script.retiring;
        qp.retiring = false;
        let outcome = if qp.failures < retiring.failures {
            qp.failures += 1;
            Retired::Failed
        } else if how == Retire::Recycle && retiring.no_recycling {
            Retired::Failed
        } else if how == Retire::Recycle {
            self.let_go(now, of);
            self.recycle(now, of);
            Retired::Recycled
        } else {
            self.let_go(now, of);
            self.forget(now, of);
            Retired::Destroyed
        };
        self.sides[of.shard].events.push_back(AsyncEvent::QpRetired { qp: of.id, outcome });
    }
}
