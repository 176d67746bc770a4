//! The responder: requests of the peer, and what it is told.

use super::qp::Qp;
use super::reads::ReadQueue;
use super::requester::packets_of;
use super::shared::Shared;
use super::state;
use super::transmit::{Outgoing, Piece, Sink};
use crate::rdma::verbs::{AsyncEvent, QpId, QpState, RecvWr, RtrAttr, Wc, WcOpcode, WcStatus};
use crate::wire::bth::{Bth, Opcode, Operation, Position};
use crate::wire::ext::{Aeth, NakCode, Reth, Syndrome};
use crate::wire::num::{Psn, RKey};

/// A message of several packets that is being received.
#[derive(Copy, Clone, Debug)]
pub(super) enum Message {
    /// None is.
    None,
    /// A SEND, into a receive.
    Send {
        /// The receive.
        recv: RecvWr,
        /// Bytes so far.
        len_bytes: u32,
    },
    /// An RDMA WRITE.
    Write {
        /// Where the next byte goes.
        addr: u64,
        /// The key.
        rkey: RKey,
        /// Bytes to come.
        left_bytes: u32,
    },
}

/// What ends the connection once its NAK is out.
#[derive(Copy, Clone, Debug)]
struct Fatal {
    /// For the half-used receive, if there is one.
    status: WcStatus,
    event: fn(QpId) -> AsyncEvent,
}

/// The responder half of a queue pair.
pub(super) struct Responder {
    /// The PSN that must come next.
    expected: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    min_rnr_timer: u8,
    /// The peer knows that `expected` is missing, or was not taken; what comes behind it is
    /// dropped in silence.
    gap_reported: bool,
    pub(super) message: Message,
    pub(super) reads: ReadQueue,
    /// Packets taken since the last ACK.
    unacknowledged: u32,
    /// In `Shared::owing`.
    owes: bool,
    /// An ACK is due.
    ack_due: bool,
    /// A NAK is due.
    nak: Option<Syndrome>,
    fatal: Option<Fatal>,
}

impl Responder {
    pub(super) fn new() -> Self {
        Responder {
            expected: Psn::default(),
            msn: 0,
            min_rnr_timer: 0,
            gap_reported: false,
            message: Message::None,
            reads: ReadQueue::new(0),
            unacknowledged: 0,
            owes: false,
            ack_due: false,
            nak: None,
            fatal: None,
        }
    }

    /// INIT to RTR.
    pub(super) fn start(&mut self, attr: &RtrAttr) {
        *self = Responder {
            expected: attr.rq_psn,
            min_rnr_timer: attr.min_rnr_timer,
            reads: ReadQueue::new(attr.max_dest_rd_atomic),
            ..Responder::new()
        };
    }

    /// Forgets what was to be answered (clauses 5 and 7 of `rvt_error_qp`).
    pub(super) fn silence(&mut self) {
        self.reads.clear();
        self.ack_due = false;
        self.nak = None;
        self.fatal = None;
    }

    /// A SEND has left: to a peer that asks for no ACK it says that what came before has arrived.
    #[inline]
    pub(super) fn has_answered(&mut self) {
        if !self.ack_due {
            self.unacknowledged = 0;
        }
    }

    /// Whether an ACK or NAK is due.
    #[inline]
    pub(super) fn reply_due(&self) -> bool {
        self.ack_due || self.nak.is_some()
    }
}

impl Qp {
    /// A request of the peer: `rest` is what follows the BTH, `payload` what follows the
    /// extension headers.
    pub(super) fn on_request(&mut self, sh: &mut Shared, bth: &Bth, rest: &[u8], payload: &[u8]) {
        if self.state == QpState::Rtr && std::mem::take(&mut self.announces_peer) {
            sh.objects.events.push_back(AsyncEvent::CommEstablished(QpId(self.key)));
        }
        if self.resp.fatal.is_some() {
            sh.counters.dropped_state += 1;
            return;
        }
        let distance = bth.psn.distance_from(self.resp.expected);
        if distance > 0 {
            if self.resp.gap_reported {
                sh.counters.dropped_out_of_order += 1;
            } else {
                self.resp.gap_reported = true;
                self.resp.nak = Some(Syndrome::Nak(NakCode::PsnSequenceError));
                self.schedule_reply(sh);
            }
            return;
        }
        if distance < 0 {
            return self.on_duplicate(sh, bth, rest);
        }
        // The missing packet came by itself before the NAK left: no need for it any more.
        if std::mem::take(&mut self.resp.gap_reported) && self.resp.nak.take().is_some() {
            self.resp.ack_due = true;
            self.schedule_reply(sh);
        }
        let position = bth.opcode.position();
        match bth.opcode {
            Opcode::SendFirst | Opcode::SendMiddle | Opcode::SendLast | Opcode::SendOnly => {
                self.on_send(sh, bth, position, payload);
            }
            Opcode::WriteFirst | Opcode::WriteMiddle | Opcode::WriteLast | Opcode::WriteOnly => {
                self.on_write(sh, bth, position, rest, payload);
            }
            Opcode::ReadRequest => self.on_read(sh, bth, rest, payload),
            // Immediate, invalidate, atomics: nothing of ours asks for them.
            _ => self.refuse_malformed(sh),
        }
    }

    /// A SEND or WRITE seen before is acknowledged again, a READ executed again.
    fn on_duplicate(&mut self, sh: &mut Shared, bth: &Bth, rest: &[u8]) {
        sh.counters.duplicate_requests += 1;
        match bth.opcode.operation() {
            Operation::ReadRequest => {
                let mtu = self.mtu_bytes();
                if let Ok(reth) = Reth::parse(rest)
                    && self.resp.reads.again(bth.psn, packets_of(reth.len_bytes, mtu), &reth, mtu)
                {
                    self.schedule(sh);
                }
            }
            _ => {
                self.resp.ack_due = true;
                self.schedule_reply(sh);
            }
        }
    }

    fn on_send(&mut self, sh: &mut Shared, bth: &Bth, position: Position, payload: &[u8]) {
        let (recv, len_before) = match (self.resp.message, position.begins()) {
            (Message::None, true) => match self.take_recv(sh) {
                Some(recv) => (recv, 0),
                None => {
                    self.resp.nak = Some(Syndrome::RnrNak { timer: self.resp.min_rnr_timer });
                    self.resp.gap_reported = true;
                    return self.schedule_reply(sh);
                }
            },
            (Message::Send { recv, len_bytes }, false) => (recv, len_bytes),
            _ => return self.refuse_malformed(sh),
        };
        self.resp.message = Message::Send { recv, len_bytes: len_before };
        if !self.length_fits(position, payload.len()) {
            return self.refuse_malformed(sh);
        }
        let len_bytes = len_before + payload.len() as u32;
        if len_bytes > recv.sge.len_bytes {
            return self.refuse(
                sh,
                NakCode::InvalidRequest,
                WcStatus::LocalLength,
                AsyncEvent::QpRequestError,
            );
        }
        if !payload.is_empty() {
            let pd = match self.init.srq {
                Some(srq) => sh.objects.srqs.get(srq.0).map_or(self.init.pd, |srq| srq.pd),
                None => self.init.pd,
            };
            let addr = recv.sge.addr.wrapping_add(u64::from(len_before));
            let Some(place) = sh.objects.mrs.local(pd, recv.sge.lkey, addr, payload.len(), true) else {
                let status = WcStatus::LocalProtection;
                return self.refuse(sh, NakCode::RemoteOperationalError, status, AsyncEvent::QpFatal);
            };
            place.region.write(place.offset, payload).expect("the place was checked");
            sh.counters.bytes_in += payload.len() as u64;
        }
        self.resp.message = Message::Send { recv, len_bytes };
        if position.ends() {
            self.resp.message = Message::None;
            let opcode = WcOpcode::Recv;
            let wc = Wc { wr_id: recv.wr_id, status: WcStatus::Success, opcode, len_bytes, qpn: self.qpn };
            sh.complete(self.init.recv_cq, wc);
        }
        self.accepted(sh, bth, position.ends());
    }

    fn on_write(&mut self, sh: &mut Shared, bth: &Bth, position: Position, rest: &[u8], payload: &[u8]) {
        let (addr, rkey, left_bytes) = match (self.resp.message, position.begins()) {
            (Message::None, true) => match Reth::parse(rest) {
                Ok(reth) => (reth.addr, reth.rkey, reth.len_bytes),
                Err(_) => return self.refuse_malformed(sh),
            },
            (Message::Write { addr, rkey, left_bytes }, false) => (addr, rkey, left_bytes),
            _ => return self.refuse_malformed(sh),
        };
        let len = payload.len() as u32;
        let length_agrees = if position.ends() { len == left_bytes } else { len < left_bytes };
        if !self.length_fits(position, payload.len()) || !length_agrees {
            return self.refuse_malformed(sh);
        }
        // The whole of it is checked with its first packet; a zero length needs no key.
        let check_bytes = if position.begins() { left_bytes } else { len };
        if check_bytes > 0 {
            let allowed = self.init.remote_access;
            let place = sh.objects.mrs.remote(self.init.pd, rkey, addr, check_bytes as usize, true);
            let Some(place) = place.filter(|_| allowed) else { return self.refuse_access(sh) };
            place.region.write(place.offset, payload).expect("the place was checked");
            sh.counters.bytes_in += u64::from(len);
        }
        self.resp.message = if position.ends() {
            Message::None
        } else {
            let addr = addr.wrapping_add(u64::from(len));
            Message::Write { addr, rkey, left_bytes: left_bytes - len }
        };
        self.accepted(sh, bth, position.ends());
    }

    fn on_read(&mut self, sh: &mut Shared, bth: &Bth, rest: &[u8], payload: &[u8]) {
        let Ok(reth) = Reth::parse(rest) else { return self.refuse_malformed(sh) };
        let too_long = reth.len_bytes > sh.config.max_message_bytes;
        if !matches!(self.resp.message, Message::None) || !payload.is_empty() || too_long {
            return self.refuse_malformed(sh);
        }
        if reth.len_bytes > 0 {
            let len = reth.len_bytes as usize;
            let place = sh.objects.mrs.remote(self.init.pd, reth.rkey, reth.addr, len, false);
            if place.is_none() || !self.init.remote_access {
                return self.refuse_access(sh);
            }
        }
        let packets = packets_of(reth.len_bytes, self.mtu_bytes());
        if !self.resp.reads.push(bth.psn, packets, reth) {
            return self.refuse_malformed(sh);
        }
        self.resp.expected = bth.psn.plus(packets);
        self.resp.msn = (self.resp.msn + 1) & 0xff_ffff;
        // The answer acknowledges everything before it.
        self.resp.unacknowledged = 0;
        self.schedule(sh);
    }

    /// FIRST and MIDDLE carry exactly the path MTU, LAST 1 to that, ONLY 0 to that.
    fn length_fits(&self, position: Position, len: usize) -> bool {
        let mtu = self.mtu_bytes() as usize;
        match position {
            Position::First | Position::Middle => len == mtu,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        }
    }

    fn take_recv(&mut self, sh: &mut Shared) -> Option<RecvWr> {
        let Some(id) = self.init.srq else { return self.recv.as_mut()?.take() };
        let (taken, limit_fires) = sh.objects.srqs.get_mut(id.0)?.take();
        if limit_fires {
            sh.objects.events.push_back(AsyncEvent::SrqLimit(id));
        }
        taken
    }

    /// A SEND or WRITE packet was taken: owe an ACK.
    #[inline]
    fn accepted(&mut self, sh: &mut Shared, bth: &Bth, ends: bool) {
        let resp = &mut self.resp;
        resp.expected = bth.psn.plus(1);
        resp.msn = (resp.msn + u32::from(ends)) & 0xff_ffff;
        resp.unacknowledged += 1;
        if bth.ack_req || resp.unacknowledged >= sh.config.ack_every_packets {
            resp.ack_due = true;
            self.schedule_reply(sh);
        } else if !std::mem::replace(&mut resp.owes, true) {
            sh.owing.push(self.key.slot);
        }
    }

    /// What it owes an ACK for has waited long enough. Whether it still owes one.
    pub(super) fn pay_acks(&mut self, sh: &mut Shared) -> bool {
        self.resp.owes = false;
        let owes = self.resp.unacknowledged > 0 && state::rules(self.state).take_requests;
        if owes {
            self.resp.ack_due = true;
            self.schedule(sh);
        }
        owes
    }

    fn refuse_malformed(&mut self, sh: &mut Shared) {
        let status = WcStatus::RemoteInvalidRequest;
        self.refuse(sh, NakCode::InvalidRequest, status, AsyncEvent::QpRequestError);
    }

    fn refuse_access(&mut self, sh: &mut Shared) {
        let status = WcStatus::RemoteAccess;
        self.refuse(sh, NakCode::RemoteAccessError, status, AsyncEvent::QpAccessError);
    }

    /// The connection ends with this NAK, which goes out behind the READ responses before it.
    fn refuse(&mut self, sh: &mut Shared, code: NakCode, status: WcStatus, event: fn(QpId) -> AsyncEvent) {
        self.resp.nak = Some(Syndrome::Nak(code));
        self.resp.fatal = Some(Fatal { status, event });
        self.schedule_reply(sh);
    }

    /// One packet of a READ response. `false` if it came to nothing.
    pub(super) fn send_read_response(&mut self, sh: &mut Shared, sink: &mut impl Sink) -> bool {
        let conn = self.conn.as_ref().expect("answers only when connected");
        let Some(packet) = self.resp.reads.peek(conn.mtu_bytes) else { return false };
        let len = packet.at.len_bytes as usize;
        let (one, payload): ([Piece<'_>; 1], &[Piece<'_>]);
        if len > 0 {
            let place = sh.objects.mrs.remote(self.init.pd, packet.at.rkey, packet.at.addr, len, false);
            let Some(place) = place else {
                // The memory went away; the rest of the answers cannot be given.
                self.resp.reads.clear();
                self.refuse_access(sh);
                return false;
            };
            one = [Piece { region: place.region, offset: place.offset, len_bytes: len }];
            payload = &one;
        } else {
            payload = &[];
        }
        let opcode = match (packet.begins, packet.ends) {
            (true, true) => Opcode::ReadResponseOnly,
            (true, false) => Opcode::ReadResponseFirst,
            (false, false) => Opcode::ReadResponseMiddle,
            (false, true) => Opcode::ReadResponseLast,
        };
        let bth = Bth { pad: Bth::pad_for(len), ..Bth::new(opcode, conn.dest_qpn, packet.psn) };
        let mut header = [0; Bth::LEN + Aeth::LEN];
        bth.emit(&mut header);
        let mut header_len = Bth::LEN;
        if opcode.has_aeth() {
            Aeth { syndrome: Syndrome::ACK, msn: self.resp.msn }.emit(&mut header[Bth::LEN..]);
            header_len += Aeth::LEN;
        }
        sink.packet(&Outgoing {
            path: &conn.path,
            dest_qpn: conn.dest_qpn,
            header: &header[..header_len],
            payload,
            pad: bth.pad,
            retransmission: packet.again,
        });
        sh.counters.sent(len as u64, packet.again);
        self.resp.reads.advance();
        true
    }

    /// The ACK or NAK that is due.
    pub(super) fn send_reply(&mut self, sh: &mut Shared, sink: &mut impl Sink) -> bool {
        let conn = self.conn.as_ref().expect("answers only when connected");
        let resp = &mut self.resp;
        let (syndrome, psn) = match resp.nak.take() {
            Some(nak) => (nak, resp.expected),
            None => (Syndrome::ACK, resp.expected.minus(1)),
        };
        resp.ack_due = false;
        resp.unacknowledged = 0;
        let bth = Bth::new(Opcode::Acknowledge, conn.dest_qpn, psn);
        let mut header = [0; Bth::LEN + Aeth::LEN];
        bth.emit(&mut header);
        Aeth { syndrome, msn: resp.msn }.emit(&mut header[Bth::LEN..]);
        sink.packet(&Outgoing {
            path: &conn.path,
            dest_qpn: conn.dest_qpn,
            header: &header,
            payload: &[],
            pad: 0,
            retransmission: false,
        });
        sh.counters.sent(0, false);
        sh.counters.replied(syndrome);
        if let Some(fatal) = resp.fatal.take() {
            sh.objects.events.push_back((fatal.event)(QpId(self.key)));
            self.enter_error(sh, fatal.status);
        }
        true
    }
}
