//! The requester's way back: what the peer answers, and the completions that come of it.

use reactors::time::Time;

use super::qp::Qp;
use super::requester::{SendWqe, chunk_end, pieces, read_chunk_packets};
use super::shared::Shared;
use super::state;
use crate::rdma::verbs::{SendOp, Wc, WcStatus};
use crate::wire::bth::{Bth, Operation};
use crate::wire::ext::{Aeth, NakCode, Syndrome};
use crate::wire::num::Psn;

impl Qp {
    /// A response of the peer: `rest` is what follows the BTH, `payload` what follows the
    /// extension headers.
    pub(super) fn on_response(&mut self, sh: &mut Shared, now: Time, bth: &Bth, rest: &[u8], payload: &[u8]) {
        let aeth = if bth.opcode.has_aeth() {
            match Aeth::parse(rest) {
                Ok(aeth) => Some(aeth),
                Err(_) => {
                    sh.counters.dropped_malformed += 1;
                    return;
                }
            }
        } else {
            None
        };
        match (bth.opcode.operation(), aeth) {
            (Operation::Acknowledge, Some(aeth)) => self.on_acknowledge(sh, now, bth.psn, aeth.syndrome),
            (Operation::ReadResponse, aeth)
                if aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. })) =>
            {
                self.on_read_response(sh, now, bth, payload);
            }
            _ => sh.counters.dropped_malformed += 1,
        }
    }

    /// ACK, NAK or RNR NAK.
    fn on_acknowledge(&mut self, sh: &mut Shared, now: Time, psn: Psn, syndrome: Syndrome) {
        let refused = !matches!(syndrome, Syndrome::Ack { .. });
        // An ACK names the last PSN taken, a NAK the one expected, which may not be sent yet.
        let beyond = psn.distance_from(self.req.high);
        if psn.is_before(self.req.una) || beyond > 0 || beyond == 0 && !refused {
            sh.counters.dropped_stale_responses += 1;
            return;
        }
        let taken = if refused { psn } else { psn.plus(1) };
        let reached = self.advance(sh, now, taken);
        match syndrome {
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak { timer } => {
                sh.counters.rnr_naks_in += 1;
                if reached && self.req.has_begun() {
                    return self.retry_rnr(sh, now, timer);
                }
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                sh.counters.sequence_naks_in += 1;
                if reached {
                    if self.req.next != self.req.una {
                        self.req.window.gap();
                        self.retry_gap(sh, now);
                    }
                    return;
                }
            }
            Syndrome::Nak(code) => {
                sh.counters.fatal_naks_in += 1;
                if reached && self.req.has_begun() {
                    let status = match code {
                        NakCode::RemoteAccessError => WcStatus::RemoteAccess,
                        NakCode::RemoteOperationalError => WcStatus::RemoteOperation,
                        _ => WcStatus::RemoteInvalidRequest,
                    };
                    return self.fail_front(sh, now, status);
                }
            }
        }
        if !reached {
            self.on_read_gap(sh, now);
        }
    }

    /// An answer shows that a SEND has arrived: what an ACK would have said. It completes silently, since
    /// who says so knows. One that has not left in full is none of which anybody could know.
    pub(super) fn confirm_send(&mut self, sh: &mut Shared, now: Time, wr_id: u64) {
        let is_it = |wqe: &&mut SendWqe| matches!(wqe.wr.op, SendOp::Send { .. }) && wqe.wr.wr_id == wr_id;
        let mut begun = self.req.queue.iter_mut().take_while(|wqe| wqe.begun);
        let Some(wqe) = begun.find(is_it).filter(|_| state::rules(self.state).send) else { return };
        let end = wqe.end();
        if !self.req.high.is_before(end) {
            wqe.wr.signaled = false;
            self.advance(sh, now, end);
            // What has arrived needs no AckReq behind it.
            self.req.since_ask = self.req.since_ask.min(self.req.in_flight());
        }
    }

    /// READ responses are missing before something that came: they are lost. Asked for again
    /// once a gap.
    fn on_read_gap(&mut self, sh: &mut Shared, now: Time) {
        if self.req.retry.read_gap == Some(self.req.una) {
            sh.counters.dropped_stale_responses += 1;
            return;
        }
        sh.counters.read_gaps += 1;
        self.req.read_window.gap();
        self.req.retry.read_gap = Some(self.req.una);
        self.retry_gap(sh, now);
    }

    /// All before `to` is acknowledged. `false` if READ responses before it are missing: an
    /// acknowledgement may not leap over them (IBTA vol. 1, 9.7.5.1.6).
    fn advance(&mut self, sh: &mut Shared, now: Time, to: Psn) -> bool {
        if self.req.acked.is_before(to) {
            self.req.acked = to;
        }
        let start = self.req.una;
        let mut reached = true;
        while self.req.una != to {
            let Some(front) = self.req.queue.front() else { break };
            debug_assert!(front.begun, "only what was sent is acknowledged");
            if front.is_read() {
                reached = false;
                break;
            }
            let end = front.end();
            if to.is_before(end) {
                self.req.una = to;
                break;
            }
            self.req.una = end;
            self.complete_front(sh, now);
        }
        let packets = self.req.una.distance_from(start) as u32;
        if packets > 0 {
            self.req.window.acknowledged(packets);
            self.catch_up(sh);
            self.progressed(sh, now);
            self.schedule_unsent(sh);
        }
        reached
    }

    /// After a late answer to what was about to be sent again: that need not be sent any more.
    fn catch_up(&mut self, sh: &mut Shared) {
        if self.req.next.is_before(self.req.una) {
            self.req.next = self.req.una;
            self.req.cursor = 0;
            self.release_reads(sh);
        }
    }

    fn on_read_response(&mut self, sh: &mut Shared, now: Time, bth: &Bth, payload: &[u8]) {
        let psn = bth.psn;
        if psn.is_before(self.req.una) || !psn.is_before(self.req.high) {
            sh.counters.dropped_stale_responses += 1;
            return;
        }
        // A response acknowledges the SENDs and WRITEs before it.
        if !self.advance(sh, now, psn) {
            return self.on_read_gap(sh, now);
        }
        let mtu = self.mtu_bytes();
        let Some(front) = self.req.queue.front().filter(|front| front.begun && front.is_read()) else {
            sh.counters.dropped_stale_responses += 1;
            return;
        };
        let index = psn.distance_from(front.first) as u32;
        let chunk = read_chunk_packets(sh.config.read_chunk_bytes, mtu);
        let last = index + 1 == chunk_end(index, front.packets, chunk);
        let offset = index * mtu;
        let len = (front.len_bytes - offset).min(mtu);
        // A partial answer may begin with any position; where it ends is ours to know.
        if payload.len() != len as usize || bth.opcode.position().ends() != last {
            return self.fail_front(sh, now, WcStatus::BadResponse);
        }
        let Some((first, second)) = pieces(&sh.objects.mrs, self.init.pd, &front.wr.sges, offset, len, true)
        else {
            return self.fail_front(sh, now, WcStatus::LocalProtection);
        };
        let mut left = payload;
        for piece in [first, second].into_iter().flatten() {
            let (here, after) = left.split_at(piece.len_bytes);
            piece.region.write(piece.offset, here).expect("the place was checked");
            left = after;
        }
        sh.counters.bytes_in += u64::from(len);

        let done = index + 1 == front.packets;
        if psn.is_before(self.req.next) {
            self.req.read_psns -= 1;
        }
        self.req.una = psn.plus(1);
        if let Some(read) = self.req.asked.front()
            && !self.req.una.is_before(read.end)
        {
            sh.read_budget.give_back(read.bytes);
            self.req.asked.pop_front();
        }
        if self.req.acked.is_before(self.req.una) {
            self.req.acked = self.req.una;
        }
        if done {
            self.complete_front(sh, now);
            // What was acknowledged behind it is done now, too.
            self.advance(sh, now, self.req.acked);
        }
        self.req.read_window.acknowledged(1);
        self.catch_up(sh);
        self.progressed(sh, now);
        self.schedule_unsent(sh);
    }

    /// Room was made: what could not be sent may go now.
    #[inline]
    fn schedule_unsent(&mut self, sh: &mut Shared) {
        if self.req.cursor < self.req.queue.len() {
            self.schedule(sh);
        }
    }

    /// The oldest work request is done.
    fn complete_front(&mut self, sh: &mut Shared, _now: Time) {
        let Some(wqe) = self.req.queue.pop_front() else { return };
        self.req.cursor = self.req.cursor.saturating_sub(1);
        if wqe.wr.signaled {
            sh.complete(self.init.send_cq, self.send_wc(wqe.wr.wr_id, &wqe.wr.op, WcStatus::Success));
        }
        self.check_drained(sh);
    }

    /// The oldest work request fails with a status of its own; everything else is flushed.
    pub(super) fn fail_front(&mut self, sh: &mut Shared, _now: Time, status: WcStatus) {
        if let Some(wqe) = self.req.queue.pop_front() {
            self.req.cursor = self.req.cursor.saturating_sub(1);
            sh.complete(self.init.send_cq, self.send_wc(wqe.wr.wr_id, &wqe.wr.op, status));
        }
        self.enter_error(sh, WcStatus::WrFlush);
    }

    /// Completes everything on the send queue as flushed: the send engine's part of ERR.
    pub(super) fn flush_sends(&mut self, sh: &mut Shared) {
        while let Some(wqe) = self.req.queue.pop_front() {
            sh.complete(self.init.send_cq, self.send_wc(wqe.wr.wr_id, &wqe.wr.op, WcStatus::WrFlush));
        }
        self.req.cursor = 0;
    }

    fn send_wc(&self, wr_id: u64, op: &SendOp, status: WcStatus) -> Wc {
        Wc { wr_id, status, opcode: op.opcode(), len_bytes: 0, qpn: self.qpn }
    }
}
