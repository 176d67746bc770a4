//! The requester's way out: work requests to packets.

use std::collections::VecDeque;

use reactors::time::Time;

use super::mr::MrTable;
use super::qp::Qp;
use super::retry::Retry;
use super::shared::Shared;
use super::state;
use super::transmit::{Class, Outgoing, Piece, Sink};
use super::window::Window;
use crate::rdma::verbs::{PdId, QpState, Remote, RtsAttr, SendOp, SendWr, SgeList, VerbsError, WcStatus};
use crate::wire::bth::{Bth, Opcode};
use crate::wire::ext::Reth;
use crate::wire::num::Psn;

/// How many PSNs may lie between the oldest unacknowledged one and the newest: a quarter of the
/// circle, so that old and new are never mistaken for each other.
const PSN_SPAN: u32 = 1 << 22;
/// Least packets in flight, whatever is lost.
const LEAST_WINDOW: u32 = 4;
/// READ requests in flight at the start, until the window of responses grows.
const READS_AT_START: u32 = 4;

/// A work request on the send queue.
pub(super) struct SendWqe {
    pub(super) wr: SendWr,
    pub(super) len_bytes: u32,
    /// Its first PSN, once it has begun.
    pub(super) first: Psn,
    /// How many PSNs it takes.
    pub(super) packets: u32,
    pub(super) begun: bool,
    /// Cannot be carried out: it fails when all before it is done.
    pub(super) failed: Option<WcStatus>,
}

impl SendWqe {
    pub(super) fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read(_))
    }

    /// The PSN after its last.
    pub(super) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}

/// A READ request on its way.
pub(super) struct AskedRead {
    /// The PSN after the last response.
    pub(super) end: Psn,
    /// What it holds of the budget.
    pub(super) bytes: u32,
}

/// The requester half of a queue pair.
pub(super) struct Requester {
    /// Posted and not completed, oldest first.
    pub(super) queue: VecDeque<SendWqe>,
    depth: usize,
    /// Which of them `next` lies in.
    pub(super) cursor: usize,
    /// Oldest unacknowledged PSN.
    pub(super) una: Psn,
    /// All SENDs and WRITEs before this are acknowledged; `una` stays behind it where READ data is
    /// missing.
    pub(super) acked: Psn,
    /// Next PSN to send; between `una` and `high`.
    pub(super) next: Psn,
    /// One after the highest PSN ever used.
    pub(super) high: Psn,
    /// How many PSNs from `una` to `next` are READ responses.
    pub(super) read_psns: u32,
    /// READ requests sent and not answered in full.
    pub(super) asked: VecDeque<AskedRead>,
    max_reads: usize,
    /// For SENDs and WRITEs.
    pub(super) window: Window,
    /// For READ responses.
    pub(super) read_window: Window,
    /// Packets sent since the last AckReq.
    pub(super) since_ask: u32,
    /// When the last AckReq left, or the last ACK came.
    pub(super) heard_at: Time,
    pub(super) retry: Retry,
}

impl Requester {
    pub(super) fn new(depth: u32) -> Self {
        Requester {
            queue: VecDeque::with_capacity(depth as usize),
            depth: depth as usize,
            cursor: 0,
            una: Psn::default(),
            acked: Psn::default(),
            next: Psn::default(),
            high: Psn::default(),
            read_psns: 0,
            asked: VecDeque::new(),
            max_reads: 0,
            window: Window::new(1, 1, 1),
            read_window: Window::new(1, 1, 1),
            since_ask: 0,
            heard_at: Time::ZERO,
            retry: Retry::new(),
        }
    }

    /// Bytes on the heap of a send queue of `depth` with `reads` READs in flight at most.
    pub(super) const fn heap_bytes(depth: u32, reads: u8) -> usize {
        depth as usize * size_of::<SendWqe>() + reads as usize * size_of::<AskedRead>()
    }

    /// RTR to RTS.
    pub(super) fn start(&mut self, sh: &Shared, attr: &RtsAttr, mtu_bytes: u32) {
        self.una = attr.sq_psn;
        self.acked = attr.sq_psn;
        self.next = attr.sq_psn;
        self.high = attr.sq_psn;
        self.max_reads = usize::from(attr.max_rd_atomic);
        // A recycled queue pair has the room already.
        self.asked.clear();
        self.asked.reserve(self.max_reads);
        self.retry.configure(attr);
        let config = &sh.config;
        self.window = Window::new(config.window_start_packets, LEAST_WINDOW, config.window_max_packets);
        let chunk = read_chunk_packets(config.read_chunk_bytes, mtu_bytes);
        let most = chunk * u32::from(attr.max_rd_atomic).max(1);
        self.read_window = Window::new(chunk * READS_AT_START, chunk, most);
    }

    /// Back to nothing posted; for RESET.
    pub(super) fn wipe(&mut self) {
        self.queue.clear();
        self.cursor = 0;
        self.since_ask = 0;
        self.retry = Retry::new();
    }

    /// Nothing came for a timeout.
    pub(super) fn silence(&mut self) {
        self.window.silence();
        self.read_window.silence();
    }

    /// Sending again, it steps over SENDs and WRITEs that the peer has acknowledged although READ
    /// data before them is missing.
    pub(super) fn skip_acknowledged(&mut self) {
        while let Some(wqe) = self.queue.get(self.cursor)
            && wqe.begun
            && !wqe.is_read()
            && self.next.is_before(self.acked)
        {
            let end = wqe.end();
            if self.acked.is_before(end) {
                self.next = self.acked;
                break;
            }
            self.next = end;
            self.cursor += 1;
        }
    }

    /// SEND and WRITE packets in flight.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.next.distance_from(self.una) as u32 - self.read_psns
    }

    /// Most READ requests in flight.
    pub(super) fn max_reads(&self) -> usize {
        self.max_reads
    }

    /// Whether anything that was begun is not completed.
    pub(super) fn has_begun(&self) -> bool {
        self.queue.front().is_some_and(|wqe| wqe.begun)
    }
}

/// Packets of a READ request's answer, at most.
#[inline]
pub(super) fn read_chunk_packets(chunk_bytes: u32, mtu_bytes: u32) -> u32 {
    (chunk_bytes / mtu_bytes).max(1)
}

/// Packets that `len_bytes` take: one at least.
#[inline]
pub(super) fn packets_of(len_bytes: u32, mtu_bytes: u32) -> u32 {
    len_bytes.div_ceil(mtu_bytes).max(1)
}

/// Where `len_bytes` from `offset` of a gather list lie: up to two pieces. `None` if a key, right
/// or bound is wrong.
#[inline]
pub(super) fn pieces<'a>(
    mrs: &'a MrTable,
    pd: PdId,
    sges: &SgeList,
    offset: u32,
    len_bytes: u32,
    write: bool,
) -> Option<(Option<Piece<'a>>, Option<Piece<'a>>)> {
    let mut found = (None, None);
    let (mut skip, mut left) = (offset, len_bytes);
    for sge in sges.as_slice() {
        if left == 0 {
            break;
        }
        if skip >= sge.len_bytes {
            skip -= sge.len_bytes;
            continue;
        }
        let here = left.min(sge.len_bytes - skip);
        let place = mrs.local(pd, sge.lkey, sge.addr.wrapping_add(u64::from(skip)), here as usize, write)?;
        let piece = Piece { region: place.region, offset: place.offset, len_bytes: here as usize };
        if found.0.is_none() {
            found.0 = Some(piece);
        } else {
            found.1 = Some(piece);
        }
        left -= here;
        skip = 0;
    }
    (left == 0).then_some(found)
}

impl Qp {
    /// Takes a work request.
    pub(super) fn post_send(&mut self, sh: &mut Shared, wr: &SendWr) -> Result<(), VerbsError> {
        let rules = state::rules(self.state);
        if !rules.post_send {
            return Err(VerbsError::State(self.state));
        }
        if self.req.queue.len() == self.req.depth {
            return Err(VerbsError::QueueFull);
        }
        let len_bytes = match u32::try_from(wr.sges.len_bytes()) {
            Ok(len) if len <= sh.config.max_message_bytes => len,
            _ => return Err(VerbsError::Invalid("message longer than the device takes")),
        };
        let is_read = matches!(wr.op, SendOp::Read(_));
        if is_read && self.req.max_reads == 0 && !rules.flush {
            return Err(VerbsError::Invalid("the peer answers no READs"));
        }
        let legal = pieces(&sh.objects.mrs, self.init.pd, &wr.sges, 0, len_bytes, is_read).is_some();
        self.req.queue.push_back(SendWqe {
            wr: *wr,
            len_bytes,
            first: Psn::default(),
            packets: packets_of(len_bytes, self.mtu_bytes()),
            begun: false,
            failed: (!legal).then_some(WcStatus::LocalProtection),
        });
        if rules.flush {
            self.schedule_flush(sh);
        } else {
            self.schedule(sh);
        }
        Ok(())
    }

    /// What the requester would send next, if it may send at all.
    #[inline]
    pub(super) fn next_request(&self, sh: &Shared) -> Option<Class> {
        let req = &self.req;
        if !state::rules(self.state).send || req.retry.rnr_waiting() {
            return None;
        }
        if req.retry.probe_due() {
            return Some(Class::Send);
        }
        let wqe = req.queue.get(req.cursor)?;
        if !wqe.begun {
            let span = req.next.distance_from(req.una) as u32;
            if self.state == QpState::Sqd || span + wqe.packets > PSN_SPAN {
                return None;
            }
        }
        if wqe.failed.is_some() {
            return (req.cursor == 0).then_some(Class::Send);
        }
        match wqe.wr.op {
            SendOp::Read(_) => {
                let chunk = read_chunk_packets(sh.config.read_chunk_bytes, self.mtu_bytes());
                let index = if wqe.begun { req.next.distance_from(wqe.first) as u32 } else { 0 };
                let asks = chunk_end(index, wqe.packets, chunk) - index;
                let fits = req.read_psns == 0 || req.read_psns + asks <= req.read_window.size();
                (fits && req.asked.len() < req.max_reads && !self.waits_for_budget).then_some(Class::Read)
            }
            SendOp::Write(_) => (req.in_flight() < req.window.size()).then_some(Class::Bulk),
            SendOp::Send { .. } => (req.in_flight() < req.window.size()).then_some(Class::Send),
        }
    }

    /// Sends what [`next_request`](Self::next_request) promised. `false` if it came to nothing.
    pub(super) fn send_request(&mut self, sh: &mut Shared, now: Time, sink: &mut impl Sink) -> bool {
        if self.req.retry.probe_due() {
            return self.send_probe(sh, now, sink);
        }
        let req = &mut self.req;
        let wqe = &mut req.queue[req.cursor];
        if let Some(status) = wqe.failed {
            self.fail_front(sh, now, status);
            return false;
        }
        if !wqe.begun {
            wqe.begun = true;
            wqe.first = req.next;
        }
        match wqe.wr.op {
            SendOp::Read(remote) => self.send_read(sh, now, remote, sink),
            _ => self.send_data(sh, now, sink),
        }
    }

    /// One packet of a SEND or WRITE.
    pub(super) fn send_data(&mut self, sh: &mut Shared, now: Time, sink: &mut impl Sink) -> bool {
        let mtu = self.mtu_bytes();
        let req = &mut self.req;
        let conn = self.conn.as_ref().expect("sends only when connected");
        let wqe = &req.queue[req.cursor];
        let index = req.next.distance_from(wqe.first) as u32;
        let offset = index * mtu;
        let len = (wqe.len_bytes - offset).min(mtu);
        let ends = index + 1 == wqe.packets;
        let Some(found) = pieces(&sh.objects.mrs, self.init.pd, &wqe.wr.sges, offset, len, false) else {
            // The memory went away after the request was posted.
            req.queue[req.cursor].failed = Some(WcStatus::LocalProtection);
            self.go_back(sh);
            return false;
        };
        let opcode = data_opcode(&wqe.wr.op, index == 0, ends, sh.config.write_only_segmentation);
        let stops = match req.queue.get(req.cursor + 1) {
            None => true,
            Some(after) => after.failed.is_some() || (self.state == QpState::Sqd && !after.begun),
        };
        let is_send = matches!(wqe.wr.op, SendOp::Send { .. });
        let window = req.window.size();
        let (wants_ack, most_without) = if is_send && sh.config.patient_sends {
            (now.since(req.heard_at) >= 2 * sh.config.ack_owed_for, req.depth as u32 / 4)
        } else {
            (is_send || wqe.wr.signaled || stops, u32::MAX)
        };
        let ask = ends && wants_ack
            || req.since_ask + 1 >= (window / 2).min(most_without).max(1)
            || req.in_flight() + 1 >= window;
        let retransmission = req.next.is_before(req.high);
        let bth = Bth {
            solicited: ends && matches!(wqe.wr.op, SendOp::Send { solicited: true }),
            pad: Bth::pad_for(len as usize),
            ack_req: ask,
            ..Bth::new(opcode, conn.dest_qpn, req.next)
        };
        let mut header = [0; Bth::LEN + Reth::LEN];
        bth.emit(&mut header);
        let mut header_len = Bth::LEN;
        if let (true, SendOp::Write(remote)) = (opcode.has_reth(), wqe.wr.op) {
            let whole = if opcode == Opcode::WriteOnly { len } else { wqe.len_bytes };
            let addr = remote.addr.wrapping_add(u64::from(offset));
            Reth { addr, rkey: remote.rkey, len_bytes: whole }.emit(&mut header[Bth::LEN..]);
            header_len += Reth::LEN;
        }
        let (one, two);
        let payload: &[Piece<'_>] = match found {
            (Some(first), Some(second)) => {
                two = [first, second];
                &two
            }
            (Some(first), None) => {
                one = [first];
                &one
            }
            _ => &[],
        };
        sink.packet(&Outgoing {
            path: &conn.path,
            dest_qpn: conn.dest_qpn,
            header: &header[..header_len],
            payload,
            pad: bth.pad,
            retransmission,
        });
        sh.counters.sent(u64::from(len), retransmission);

        if ask {
            (req.since_ask, req.heard_at) = (0, now);
        } else {
            req.since_ask += 1;
        }
        req.next = req.next.plus(1);
        if req.high.is_before(req.next) {
            req.high = req.next;
        }
        if ends {
            req.cursor += 1;
        }
        if ends && is_send {
            self.resp.has_answered();
        }
        self.sent_request(sh, now, (ask && !retransmission).then_some(bth.psn));
        true
    }

    /// A READ request for the rest of the chunk that `next` lies in.
    fn send_read(&mut self, sh: &mut Shared, now: Time, remote: Remote, sink: &mut impl Sink) -> bool {
        let mtu = self.mtu_bytes();
        let req = &mut self.req;
        let conn = self.conn.as_ref().expect("sends only when connected");
        let wqe = &req.queue[req.cursor];
        let index = req.next.distance_from(wqe.first) as u32;
        let end = chunk_end(index, wqe.packets, read_chunk_packets(sh.config.read_chunk_bytes, mtu));
        let offset = index * mtu;
        let len = wqe.len_bytes.min(end * mtu) - offset;
        if !sh.read_budget.take(len) {
            self.waits_for_budget = true;
            sh.read_budget.waiting.push_back(self.key.slot);
            return false;
        }
        let retransmission = req.next.is_before(req.high);
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::ReadRequest, conn.dest_qpn, req.next) };
        let mut header = [0; Bth::LEN + Reth::LEN];
        bth.emit(&mut header);
        let addr = remote.addr.wrapping_add(u64::from(offset));
        Reth { addr, rkey: remote.rkey, len_bytes: len }.emit(&mut header[Bth::LEN..]);
        sink.packet(&Outgoing {
            path: &conn.path,
            dest_qpn: conn.dest_qpn,
            header: &header,
            payload: &[],
            pad: 0,
            retransmission,
        });
        sh.counters.sent(0, retransmission);

        let packets = end - index;
        req.since_ask = 0;
        req.next = req.next.plus(packets);
        if req.high.is_before(req.next) {
            req.high = req.next;
        }
        req.read_psns += packets;
        req.asked.push_back(AskedRead { end: req.next, bytes: len });
        if end == wqe.packets {
            req.cursor += 1;
            req.skip_acknowledged();
        }
        self.sent_request(sh, now, (!retransmission).then_some(bth.psn));
        true
    }

    /// Gives back what READs in flight hold of the budget, from the first unanswered on.
    pub(super) fn release_reads(&mut self, sh: &mut Shared) {
        for read in self.req.asked.drain(..) {
            sh.read_budget.give_back(read.bytes);
        }
        self.req.read_psns = 0;
    }
}

/// Where the chunk of a READ ends that packet `index` lies in.
#[inline]
pub(super) fn chunk_end(index: u32, packets: u32, chunk: u32) -> u32 {
    ((index / chunk + 1) * chunk).min(packets)
}

#[inline]
fn data_opcode(op: &SendOp, begins: bool, ends: bool, write_only: bool) -> Opcode {
    match (op, begins, ends) {
        (SendOp::Send { .. }, true, true) => Opcode::SendOnly,
        (SendOp::Send { .. }, true, false) => Opcode::SendFirst,
        (SendOp::Send { .. }, false, false) => Opcode::SendMiddle,
        (SendOp::Send { .. }, false, true) => Opcode::SendLast,
        (_, true, true) => Opcode::WriteOnly,
        _ if write_only => Opcode::WriteOnly,
        (_, true, false) => Opcode::WriteFirst,
        (_, false, false) => Opcode::WriteMiddle,
        (_, false, true) => Opcode::WriteLast,
    }
}
