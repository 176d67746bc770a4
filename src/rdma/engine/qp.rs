//! A queue pair: its states, and what moving between them does.

use reactors::slab::Key;
use reactors::time::Time;

use super::requester::Requester;
use super::responder::{Message, Responder};
use super::shared::Shared;
use super::srq::RecvQueue;
use super::state;
use super::transmit::{Class, Sink};
use crate::rdma::verbs::{
    AsyncEvent, Path, PathMtu, QpId, QpInit, QpModify, QpState, RecvWr, RtrAttr, RtsAttr, VerbsError, Wc,
    WcOpcode, WcStatus,
};
use crate::wire::num::Qpn;

/// The peer of a connected queue pair.
pub(super) struct Conn {
    pub(super) path: Path,
    pub(super) dest_qpn: Qpn,
    pub(super) mtu_bytes: u32,
}

/// A queue pair.
pub(super) struct Qp {
    pub(super) key: Key,
    pub(super) qpn: Qpn,
    pub(super) init: QpInit,
    pub(super) state: QpState,
    /// From RTR on.
    pub(super) conn: Option<Conn>,
    /// When a packet of the peer was last taken.
    pub(super) last_heard: Time,
    /// The receive queue, if it has one of its own.
    pub(super) recv: Option<RecvQueue>,
    pub(super) req: Requester,
    pub(super) resp: Responder,
    /// The first packet in RTR is an event.
    pub(super) announces_peer: bool,
    /// The end of draining is an event.
    notify_drained: bool,
    /// The other of requester and responder has its turn next.
    responder_turn: bool,
    /// In `Shared::ready`.
    pub(super) is_ready: bool,
    /// In `Shared::replies`: its ACK or NAK waits for the end of the batch.
    pub(super) replies_later: bool,
    /// In `Shared::flushes`.
    pub(super) flush_due: bool,
    /// In the waiting list of the READ budget.
    pub(super) waits_for_budget: bool,
}

/// What a queue pair sends next.
enum Output {
    Request,
    ReadResponse,
    Reply,
}

/// What a queue pair could send.
#[derive(Default)]
pub(super) struct Offers {
    /// A request, and of which class.
    request: Option<Class>,
    /// A READ response.
    answers: bool,
    /// An ACK or NAK.
    replies: bool,
}

impl Offers {
    /// The first class that allows any of it.
    #[inline]
    pub(super) fn class(&self) -> Option<Class> {
        match self.request {
            Some(class) if self.answers => Some(class.min(Class::Bulk)),
            None if self.answers => Some(Class::Bulk),
            None if self.replies => Some(Class::Reply),
            request => request,
        }
    }

    /// What is sent of what `class` and those before it allow.
    #[inline]
    fn choose(&self, class: Class, responder_turn: bool) -> Option<Output> {
        let answers = self.answers && class >= Class::Bulk;
        let request = self.request.is_some_and(|next| next <= class);
        if answers && (responder_turn || !request) {
            return Some(Output::ReadResponse);
        }
        if request {
            return Some(Output::Request);
        }
        (self.replies && class == Class::Reply).then_some(Output::Reply)
    }
}

impl Qp {
    pub(super) fn new(key: Key, qpn: Qpn, init: QpInit) -> Self {
        Qp {
            key,
            qpn,
            init,
            state: QpState::Reset,
            conn: None,
            last_heard: Time::ZERO,
            recv: init.srq.is_none().then(|| RecvQueue::new(init.max_recv_wr)),
            req: Requester::new(init.max_send_wr),
            resp: Responder::new(),
            announces_peer: false,
            notify_drained: false,
            responder_turn: false,
            is_ready: false,
            replies_later: false,
            flush_due: false,
            waits_for_budget: false,
        }
    }

    /// Bytes of an idle queue pair on a shared receive queue: itself, its send queue, the READs that
    /// it has in flight at most.
    pub(super) const fn idle_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize {
        size_of::<Qp>() + Requester::heap_bytes(max_send_wr, max_rd_atomic)
    }

    /// Payload bytes of a packet.
    #[inline]
    pub(super) fn mtu_bytes(&self) -> u32 {
        self.conn.as_ref().map_or(PathMtu::B4096.bytes() as u32, |conn| conn.mtu_bytes)
    }

    /// Moves along one edge of the state table.
    pub(super) fn modify(&mut self, sh: &mut Shared, now: Time, change: &QpModify) -> Result<(), VerbsError> {
        let to = state::after(self.state, change)?;
        match change {
            QpModify::Reset => self.wipe(sh),
            QpModify::Init => {}
            QpModify::Rtr(attr) => {
                check_rtr(sh, attr)?;
                self.resp.start(attr);
                let mtu_bytes = attr.path_mtu.bytes() as u32;
                self.conn = Some(Conn { path: attr.path, dest_qpn: attr.dest_qpn, mtu_bytes });
                self.last_heard = now;
                self.announces_peer = true;
            }
            QpModify::Rts(attr) => {
                check_rts(sh, attr)?;
                let mtu_bytes = self.mtu_bytes();
                self.req.start(sh, attr, mtu_bytes);
            }
            QpModify::Drain { notify } => self.notify_drained = *notify,
            QpModify::Resume => self.notify_drained = false,
            QpModify::Err => {
                self.enter_error(sh, WcStatus::WrFlush);
                return Ok(());
            }
        }
        self.state = to;
        match change {
            QpModify::Drain { .. } => self.check_drained(sh),
            QpModify::Resume => self.schedule(sh),
            _ => {}
        }
        Ok(())
    }

    /// To RESET: both queues are wiped without completions.
    fn wipe(&mut self, sh: &mut Shared) {
        self.release_reads(sh);
        sh.forget(self.key.slot);
        self.is_ready = false;
        self.replies_later = false;
        self.flush_due = false;
        self.waits_for_budget = false;
        self.req.wipe();
        self.resp = Responder::new();
        if let Some(recv) = &mut self.recv {
            recv.clear();
        }
        self.conn = None;
        self.last_heard = Time::ZERO;
        self.announces_peer = false;
        self.notify_drained = false;
    }

    /// To ERR, as rdmavt's `rvt_error_qp` does it; the numbers are the clauses of its
    /// description. `status` is for a receive that is half used. The event comes last.
    pub(super) fn enter_error(&mut self, sh: &mut Shared, status: WcStatus) {
        // 1. Once only.
        if matches!(self.state, QpState::Err | QpState::Reset) {
            return;
        }
        // 2.
        self.state = QpState::Err;
        // 3. No retry, no RNR wait, no timer.
        self.req.retry.stop();
        sh.timers.remove(self.key.slot);
        // 4., 5. It waits for nothing, and stands in no list of those who wait. READs in flight
        // are forgotten, so that nothing lands in their buffers any more.
        self.release_reads(sh);
        sh.forget(self.key.slot);
        self.is_ready = false;
        self.replies_later = false;
        self.waits_for_budget = false;
        // 6. The send engine flushes what is on the send queue, in its own time.
        if !self.req.queue.is_empty() {
            self.schedule_flush(sh);
        }
        // 7. The responder holds no memory of ours.
        self.resp.silence();
        // 8. A receive that is half used ends with the given status.
        if let Message::Send { recv, .. } = std::mem::replace(&mut self.resp.message, Message::None) {
            self.complete_recv(sh, &recv, status);
        }
        match self.recv.is_some() {
            // 9. Its own receives are flushed, oldest first.
            true => self.flush_recvs(sh),
            // 10. A shared queue keeps its receives; this queue pair takes no more of them.
            false => sh.objects.events.push_back(AsyncEvent::LastWqeReached(QpId(self.key))),
        }
    }

    fn flush_recvs(&mut self, sh: &mut Shared) {
        while let Some(wr) = self.recv.as_mut().and_then(RecvQueue::take) {
            self.complete_recv(sh, &wr, WcStatus::WrFlush);
        }
    }

    fn complete_recv(&self, sh: &mut Shared, wr: &RecvWr, status: WcStatus) {
        let wc = Wc { wr_id: wr.wr_id, status, opcode: WcOpcode::Recv, len_bytes: 0, qpn: self.qpn };
        sh.complete(self.init.recv_cq, wc);
    }

    /// Takes a receive for its own queue; in ERR it is flushed at once.
    pub(super) fn post_recv(&mut self, sh: &mut Shared, wr: &RecvWr) -> Result<(), VerbsError> {
        if RecvQueue::post_in(self.recv.as_mut(), self.state, wr)? {
            self.flush_recvs(sh);
        }
        Ok(())
    }

    /// SQD: raises the event once nothing is in flight.
    pub(super) fn check_drained(&mut self, sh: &mut Shared) {
        if self.state == QpState::Sqd && self.notify_drained && !self.req.has_begun() {
            self.notify_drained = false;
            sh.objects.events.push_back(AsyncEvent::SqDrained(QpId(self.key)));
        }
    }

    /// It may have something to send.
    #[inline]
    pub(super) fn schedule(&mut self, sh: &mut Shared) {
        if !self.is_ready {
            self.is_ready = true;
            sh.ready.push(self.key.slot);
        }
    }

    /// It has something to answer when the batch ends.
    #[inline]
    pub(super) fn schedule_reply(&mut self, sh: &mut Shared) {
        if !self.replies_later {
            self.replies_later = true;
            sh.replies.push(self.key.slot);
        }
    }

    /// The send engine is to flush its send queue.
    pub(super) fn schedule_flush(&mut self, sh: &mut Shared) {
        if !self.flush_due {
            self.flush_due = true;
            sh.flushes.push(self.key.slot);
        }
    }

    /// What it could send now.
    #[inline]
    pub(super) fn offers(&self, sh: &Shared) -> Offers {
        if !state::rules(self.state).take_requests {
            return Offers::default();
        }
        let answers = self.resp.reads.is_active();
        Offers {
            request: self.next_request(sh),
            answers,
            replies: !answers && self.resp.reply_due() && !self.replies_later,
        }
    }

    /// Sends what `class` and those before it allow, a turn's worth and `most` at most; gives the number of
    /// packets, and the class of what it has left.
    pub(super) fn turn(
        &mut self,
        sh: &mut Shared,
        now: Time,
        class: Class,
        most: usize,
        sink: &mut impl Sink,
    ) -> (usize, Option<Class>) {
        // READ requests take from the common budget, so everybody gets one at a time.
        let quota = if class == Class::Read { 1 } else { most.min(sh.config.turn_packets as usize) };
        self.responder_turn = !self.responder_turn;
        let mut sent = 0;
        loop {
            let offers = self.offers(sh);
            let more = sent < quota && sink.has_room();
            let went_out = match offers.choose(class, self.responder_turn).filter(|_| more) {
                None => return (sent, offers.class()),
                Some(Output::Request) => self.send_request(sh, now, sink),
                Some(Output::ReadResponse) => self.send_read_response(sh, sink),
                Some(Output::Reply) => self.send_reply(sh, sink),
            };
            sent += usize::from(went_out);
        }
    }
}

fn check_rtr(sh: &Shared, attr: &RtrAttr) -> Result<(), VerbsError> {
    if attr.min_rnr_timer > 31 {
        return Err(VerbsError::Invalid("min_rnr_timer above 31"));
    }
    if attr.max_dest_rd_atomic > sh.config.max_rd_atomic {
        return Err(VerbsError::Invalid("max_dest_rd_atomic above what the device answers"));
    }
    if attr.path.local.is_ipv4() != attr.path.remote.is_ipv4() {
        return Err(VerbsError::Invalid("path between address families"));
    }
    Ok(())
}

fn check_rts(sh: &Shared, attr: &RtsAttr) -> Result<(), VerbsError> {
    if attr.timeout_code > 31 {
        return Err(VerbsError::Invalid("timeout_code above 31"));
    }
    if attr.retry_count > 7 || attr.rnr_retry > 7 {
        return Err(VerbsError::Invalid("retry count above 7"));
    }
    if attr.max_rd_atomic > sh.config.max_rd_atomic {
        return Err(VerbsError::Invalid("max_rd_atomic above what the device keeps in flight"));
    }
    Ok(())
}
