//! A queue pair: its states, its work requests, and what comes out of its ring.
//!
//! A work request is done when it is posted: RDMA is a copy, a SEND is a record in the ring. So the send
//! queue holds only what found no room in the ring, and what stands behind it.

use std::collections::VecDeque;

use reactors::slab::Key;
use reactors::time::Time;

use super::hub::Hub;
use super::link::Link;
use super::ring::{Kind, Lie, MAX_RECORD_BYTES, Record, Source};
use super::tables::Tables;
use crate::rdma::engine::srq::RecvQueue;
use crate::rdma::engine::state;
use crate::rdma::verbs::{
    AsyncEvent, QpId, QpInit, QpModify, QpState, RecvWr, Remote, RtrAttr, SendOp, SendWr, Sge, VerbsError,
    Wc, WcOpcode, WcStatus,
};
use crate::wire::num::Qpn;

/// Records taken from one ring in a turn, so that no queue pair starves the others.
const RECORDS_A_TURN: usize = 64;

/// Why a work request was not taken: a few bytes, where a [`VerbsError`] is many and is moved about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    State(QpState),
    TooLong,
    Full,
}

impl From<Refused> for VerbsError {
    #[cold]
    fn from(refused: Refused) -> VerbsError {
        match refused {
            Refused::State(state) => VerbsError::State(state),
            Refused::TooLong => VerbsError::Invalid("a SEND longer than the ring takes"),
            Refused::Full => VerbsError::QueueFull,
        }
    }
}

/// A queue pair.
pub(super) struct Qp {
    key: Key,
    pub(super) qpn: Qpn,
    pub(super) init: QpInit,
    pub(super) state: QpState,
    /// From RTR on, until the state is ERR.
    pub(super) link: Option<Box<Link>>,
    /// The receive queue, if it has one of its own.
    recv: Option<RecvQueue>,
    /// What waits for room in the ring, and what stands behind it.
    sends: VecDeque<SendWr>,
    /// When the peer last did something; counts while there is no link.
    last_heard: Time,
    /// The first record in RTR is an event.
    announces_peer: bool,
    /// It has written to the ring, or copied, since the last [`end_turn`](Self::end_turn).
    pub(super) was_busy: bool,
}

impl Qp {
    pub(super) fn new(key: Key, qpn: Qpn, init: QpInit) -> Qp {
        Qp {
            key,
            qpn,
            init,
            state: QpState::Reset,
            link: None,
            recv: init.srq.is_none().then(|| RecvQueue::new(init.max_recv_wr)),
            sends: VecDeque::new(),
            last_heard: Time::ZERO,
            announces_peer: false,
            was_busy: false,
        }
    }

    /// Bytes of an idle queue pair on a shared receive queue. The shared segment is the peer's.
    pub(super) const fn idle_bytes() -> usize {
        size_of::<Qp>() + size_of::<Link>()
    }

    pub(super) fn last_heard(&self) -> Time {
        self.link.as_ref().map_or(self.last_heard, |link| link.last_heard)
    }

    /// Whether work requests wait for room in the ring.
    pub(super) fn is_stalled(&self) -> bool {
        !self.sends.is_empty() && self.state == QpState::Rts
    }

    /// Moves along one edge of the state table.
    pub(super) fn modify(
        &mut self,
        tables: &mut Tables,
        hub: &Hub,
        now: Time,
        change: &QpModify,
    ) -> Result<(), VerbsError> {
        let to = state::after(self.state, change)?;
        match change {
            QpModify::Reset => self.wipe(),
            QpModify::Rtr(attr) => self.connect(tables, hub, now, attr)?,
            QpModify::Err => {
                self.enter_error(tables, WcStatus::WrFlush);
                return Ok(());
            }
            // Nothing is ever half done: who drains has drained.
            QpModify::Drain { notify: true } => {
                tables.objects.events.push_back(AsyncEvent::SqDrained(QpId(self.key)))
            }
            QpModify::Init | QpModify::Rts(_) | QpModify::Drain { notify: false } | QpModify::Resume => {}
        }
        self.state = to;
        if *change == QpModify::Resume {
            self.run_sends(tables);
        }
        Ok(())
    }

    /// Takes the link that the connection manager parked, and shows the peer our memory.
    fn connect(
        &mut self,
        tables: &mut Tables,
        hub: &Hub,
        now: Time,
        attr: &RtrAttr,
    ) -> Result<(), VerbsError> {
        let mut link =
            hub.unpark(attr.dest_qpn.get()).ok_or(VerbsError::NotFound("connection of that queue pair"))?;
        if self.init.remote_access {
            for (keys, region, access) in tables.objects.mrs.of(self.init.pd) {
                if !link.export(keys, region, access) {
                    return Err(VerbsError::System {
                        what: "show memory to the peer".to_owned(),
                        why: "it does not read its messages".to_owned(),
                    });
                }
            }
        }
        link.last_heard = now;
        self.link = Some(link);
        self.announces_peer = true;
        Ok(())
    }

    /// To RESET: both queues are wiped without completions, and the peer sees a hang-up.
    fn wipe(&mut self) {
        self.unlink();
        self.sends.clear();
        if let Some(recv) = &mut self.recv {
            recv.clear();
        }
        self.announces_peer = false;
        self.last_heard = Time::ZERO;
    }

    /// Lets go of the connection; from now on the peer touches no memory of ours.
    fn unlink(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        link.end_copies();
        if self.init.remote_access {
            link.close_memory();
        }
        self.last_heard = link.last_heard;
    }

    /// To ERR, as rdmavt's `rvt_error_qp` does it. `status` is for the oldest work request that waits.
    pub(super) fn enter_error(&mut self, tables: &mut Tables, status: WcStatus) {
        if matches!(self.state, QpState::Err | QpState::Reset) {
            return;
        }
        self.state = QpState::Err;
        let mut status = status;
        while let Some(wr) = self.sends.pop_front() {
            self.complete_send(tables, &wr, status);
            status = WcStatus::WrFlush;
        }
        self.unlink();
        match self.recv.is_some() {
            true => self.flush_recvs(tables),
            // A shared queue keeps its receives; this queue pair takes no more of them.
            false => tables.objects.events.push_back(AsyncEvent::LastWqeReached(QpId(self.key))),
        }
    }

    fn flush_recvs(&mut self, tables: &mut Tables) {
        while let Some(wr) = self.recv.as_mut().and_then(RecvQueue::take) {
            self.complete_recv(tables, &wr, WcStatus::WrFlush, 0);
        }
    }

    #[inline]
    fn complete_recv(&self, tables: &mut Tables, wr: &RecvWr, status: WcStatus, len_bytes: usize) {
        let len_bytes = len_bytes as u32;
        let wc = Wc { wr_id: wr.wr_id, status, opcode: WcOpcode::Recv, len_bytes, qpn: self.qpn };
        tables.complete(self.init.recv_cq, wc);
    }

    /// The end of a send work request; success is told only if that was asked for.
    #[inline]
    fn complete_send(&self, tables: &mut Tables, wr: &SendWr, status: WcStatus) {
        if status == WcStatus::Success && !wr.signaled {
            return;
        }
        let wc = Wc { wr_id: wr.wr_id, status, opcode: wr.op.opcode(), len_bytes: 0, qpn: self.qpn };
        tables.complete(self.init.send_cq, wc);
    }

    /// Takes a receive for its own queue; in ERR it is flushed at once.
    pub(super) fn post_recv(&mut self, tables: &mut Tables, wr: &RecvWr) -> Result<(), VerbsError> {
        if RecvQueue::post_in(self.recv.as_mut(), self.state, wr)? {
            self.flush_recvs(tables);
        }
        Ok(())
    }

    /// Does a work request, or puts it behind those that wait; in ERR it is flushed.
    #[inline]
    pub(super) fn post_send(&mut self, tables: &mut Tables, wr: &SendWr) -> Result<(), Refused> {
        let rules = state::rules(self.state);
        if !rules.post_send {
            return Err(Refused::State(self.state));
        }
        if wr.sges.len_bytes() > MAX_RECORD_BYTES as u64 && matches!(wr.op, SendOp::Send { .. }) {
            return Err(Refused::TooLong);
        }
        if rules.flush {
            self.complete_send(tables, wr, WcStatus::WrFlush);
            return Ok(());
        }
        if self.sends.is_empty() && self.state == QpState::Rts && self.perform(tables, wr) {
            return Ok(());
        }
        // A work request that failed has ended the queue pair, and is done with as well.
        if self.sends.len() >= self.init.max_send_wr as usize {
            return Err(Refused::Full);
        }
        tables.counters.ring_waits += 1;
        self.sends.push_back(*wr);
        Ok(())
    }

    /// Does what waits, as far as there is room; gives how many work requests ended.
    pub(super) fn run_sends(&mut self, tables: &mut Tables) -> usize {
        let mut ended = 0;
        while self.state == QpState::Rts
            && let Some(wr) = self.sends.pop_front()
        {
            if !self.perform(tables, &wr) {
                self.sends.push_front(wr);
                break;
            }
            ended += 1;
        }
        ended
    }

    /// Does a work request and completes it, with an error if need be. False if it has to wait.
    #[inline]
    fn perform(&mut self, tables: &mut Tables, wr: &SendWr) -> bool {
        let status = match wr.op {
            SendOp::Send { .. } => self.send(tables, wr),
            SendOp::Write(remote) => self.copy(tables, wr, remote, true),
            SendOp::Read(remote) => self.copy(tables, wr, remote, false),
        };
        match status {
            Ok(Some(status)) => {
                self.complete_send(tables, wr, status);
                if status != WcStatus::Success {
                    self.enter_error(tables, WcStatus::WrFlush);
                }
                true
            }
            Ok(None) => false,
            Err(lie) => {
                self.complete_send(tables, wr, WcStatus::BadResponse);
                self.distrust(tables, lie);
                true
            }
        }
    }

    /// The peer broke the rules: the queue pair ends.
    #[cold]
    fn distrust(&mut self, tables: &mut Tables, lie: Lie) {
        if let Some(link) = &self.link {
            tracing::warn!(peer = %link.peer, qpn = %self.qpn, "a connection ends: {lie}");
        }
        tables.counters.liars += 1;
        tables.objects.events.push_back(AsyncEvent::QpRequestError(QpId(self.key)));
        self.enter_error(tables, WcStatus::WrFlush);
    }

    /// A SEND; `None` if there is no room in the ring.
    #[inline]
    fn send(&mut self, tables: &mut Tables, wr: &SendWr) -> Result<Option<WcStatus>, Lie> {
        let Some(link) = &mut self.link else { return Ok(Some(WcStatus::LocalQpOperation)) };
        let source = |sge: &Sge| {
            let len_bytes = sge.len_bytes as usize;
            let place = tables.objects.mrs.local(self.init.pd, sge.lkey, sge.addr, len_bytes, false)?;
            Some(Source { region: place.region, offset: place.offset, len_bytes })
        };
        let pushed = match wr.sges.as_slice() {
            [] => link.writer.push(Kind::Send, &[])?,
            [one] => match source(one) {
                Some(one) => link.writer.push(Kind::Send, &[one])?,
                None => return Ok(Some(WcStatus::LocalProtection)),
            },
            [first, second] => match (source(first), source(second)) {
                (Some(first), Some(second)) => link.writer.push(Kind::Send, &[first, second])?,
                _ => return Ok(Some(WcStatus::LocalProtection)),
            },
            _ => return Ok(Some(WcStatus::LocalProtection)),
        };
        tables.counters.records_out += u64::from(pushed);
        self.was_busy |= pushed;
        Ok(pushed.then_some(WcStatus::Success))
    }

    /// RDMA: a copy to the peer's memory (`write`) or from it. One of nothing needs no key, and asks
    /// the peer for a sign of life.
    #[inline]
    fn copy(
        &mut self,
        tables: &mut Tables,
        wr: &SendWr,
        remote: Remote,
        write: bool,
    ) -> Result<Option<WcStatus>, Lie> {
        let Some(link) = &mut self.link else { return Ok(Some(WcStatus::LocalQpOperation)) };
        let total = wr.sges.len_bytes();
        self.was_busy = true;
        if total == 0 {
            let pushed = link.writer.push(Kind::Probe, &[])?;
            tables.counters.records_out += u64::from(pushed);
            return Ok(pushed.then_some(WcStatus::Success));
        }
        if !link.begin_copy() {
            // It is on its way out and says so: the hang-up comes.
            return Ok(Some(WcStatus::RetryExceeded));
        }
        // All of it is checked before any of it is touched. What the socket brings may be the region
        // that is named.
        let len_bytes = total as usize;
        if link.memory.place(remote.rkey, remote.addr, len_bytes, write).is_none() {
            link.pump();
        }
        let Some(place) = link.memory.place(remote.rkey, remote.addr, len_bytes, write) else {
            tables.counters.bad_access += 1;
            return Ok(Some(WcStatus::RemoteAccess));
        };
        let mut at = place.offset;
        for sge in wr.sges.as_slice() {
            let bytes = sge.len_bytes as usize;
            let Some(local) = tables.objects.mrs.local(self.init.pd, sge.lkey, sge.addr, bytes, !write)
            else {
                return Ok(Some(WcStatus::LocalProtection));
            };
            let copied = match write {
                true => local.region.copy_to(local.offset, place.region, at, bytes),
                false => place.region.copy_to(at, local.region, local.offset, bytes),
            };
            copied.expect("both places were checked");
            at += bytes;
        }
        tables.counters.rdma_bytes += total;
        Ok(Some(WcStatus::Success))
    }

    /// Takes what is in the ring, as long as there are receives for it; gives how many records.
    #[inline]
    pub(super) fn take_in(&mut self, tables: &mut Tables, now: Time) -> usize {
        let mut taken = 0;
        while taken < RECORDS_A_TURN
            && let Some(link) = &mut self.link
        {
            let record = match link.reader.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(lie) => {
                    self.distrust(tables, lie);
                    break;
                }
            };
            link.last_heard = now;
            if record.kind == Kind::Probe {
                link.reader.pass(record);
            } else if !self.receive(tables, record) {
                break;
            }
            tables.counters.records_in += 1;
            taken += 1;
            if self.announces_peer {
                self.announces_peer = false;
                if self.state == QpState::Rtr {
                    tables.objects.events.push_back(AsyncEvent::CommEstablished(QpId(self.key)));
                }
            }
        }
        if taken > 0
            && let Some(link) = &mut self.link
        {
            link.reader.say();
        }
        taken
    }

    /// Lands a SEND in the next receive; false if there is none, and the record has to wait.
    #[inline]
    fn receive(&mut self, tables: &mut Tables, record: Record) -> bool {
        let Some(link) = &mut self.link else { return false };
        let (pd, wr) = match (&mut self.recv, self.init.srq) {
            (Some(own), _) => (self.init.pd, own.take()),
            (None, Some(srq)) => {
                let Some(shared) = tables.objects.srqs.get_mut(srq.0) else { return false };
                let (wr, limit) = shared.take();
                if limit {
                    tables.objects.events.push_back(AsyncEvent::SrqLimit(srq));
                }
                (shared.pd, wr)
            }
            (None, None) => return false,
        };
        let Some(wr) = wr else { return false };
        let len_bytes = record.len_bytes;
        let place = tables.objects.mrs.local(pd, wr.sge.lkey, wr.sge.addr, len_bytes, true);
        let status = match place {
            _ if len_bytes > wr.sge.len_bytes as usize => WcStatus::LocalLength,
            None => WcStatus::LocalProtection,
            Some(place) => {
                link.reader.copy_out(record, place.region, place.offset);
                WcStatus::Success
            }
        };
        link.reader.pass(record);
        self.complete_recv(tables, &wr, status, len_bytes);
        if status != WcStatus::Success {
            self.enter_error(tables, WcStatus::WrFlush);
        }
        true
    }

    /// Looks whether the peer has taken something, which is a sign of life.
    pub(super) fn look_alive(&mut self, tables: &mut Tables, now: Time) {
        let Some(link) = &mut self.link else { return };
        match link.writer.look() {
            Ok(true) => link.last_heard = now,
            Ok(false) => {}
            Err(lie) => self.distrust(tables, lie),
        }
    }

    /// The copies of a turn are done, and a peer that sleeps is woken.
    #[inline]
    pub(super) fn end_turn(&mut self, tables: &mut Tables) {
        self.was_busy = false;
        if let Some(link) = &mut self.link {
            link.end_copies();
            tables.counters.bells_rung += u64::from(link.ring_bell());
        }
    }
}
