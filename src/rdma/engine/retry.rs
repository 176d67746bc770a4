//! When to send again: the ACK timeout with its retries, RNR waits, and an early try between.
//!
//! The ACK timeout that a connection negotiates is long (0.5 to 2 s with Linux) because the peer
//! may take its time. A lost last packet leaves nothing behind it that would show a gap, so it
//! would cost all of that. Therefore an early try comes after a round trip and a bit, and then ever
//! less often: the oldest unacknowledged packet alone goes out again and asks for an ACK. A peer
//! that was only slow answers with an ACK of everything, and nothing more is repeated; one that
//! lost the rest acknowledges just this packet, or reports the gap. After two such tries sending
//! goes back with a small window. READs, whose answers are long, are tried again more patiently.
//! Early tries do not count as retries; only the ACK timeout does.

use std::time::Duration;

use reactors::time::Time;

use super::qp::Qp;
use super::requester::SendWqe;
use super::shared::Shared;
use super::transmit::Sink;
use crate::rdma::verbs::{RtsAttr, WcStatus};
use crate::wire::ext::rnr_delay;
use crate::wire::num::Psn;

/// Early tries that send one packet; later ones go back.
const PROBES: u32 = 2;
/// How much more patient an early try is where it asks for READ data again.
const READ_PATIENCE: u32 = 4;

/// Retry state of a requester.
pub(super) struct Retry {
    /// The ACK timeout; `None`: never.
    timeout: Option<Duration>,
    retry_count: u8,
    retry_forever: bool,
    rnr_retry: u8,
    retries_left: u8,
    rnr_left: u8,
    /// End of the ACK timeout.
    ack_deadline: Time,
    /// When to try early.
    early_deadline: Time,
    /// Early tries since the last progress.
    early_tries: u32,
    /// The oldest packet is to be sent again.
    probe_due: bool,
    /// It was sent again: its PSN.
    probed: Option<Psn>,
    /// End of an RNR wait.
    rnr_until: Time,
    /// A packet whose round trip is being measured, and when it left.
    timed: Option<(Psn, Time)>,
    /// Smoothed round trip and its mean deviation, once one was measured.
    round_trip: Option<(Duration, Duration)>,
    /// READ responses were missing at this PSN, and it was asked for again.
    pub(super) read_gap: Option<Psn>,
}

impl Retry {
    pub(super) fn new() -> Self {
        Retry {
            timeout: None,
            retry_count: 0,
            retry_forever: false,
            rnr_retry: 0,
            retries_left: 0,
            rnr_left: 0,
            ack_deadline: Time::NEVER,
            early_deadline: Time::NEVER,
            early_tries: 0,
            probe_due: false,
            probed: None,
            rnr_until: Time::NEVER,
            timed: None,
            round_trip: None,
            read_gap: None,
        }
    }

    pub(super) fn configure(&mut self, attr: &RtsAttr) {
        *self = Retry::new();
        // 4.096 us * 2^code (IBTA vol. 1, 9.7.6.1.3).
        let timeout = Duration::from_nanos(4_096 << attr.timeout_code);
        self.timeout = (attr.timeout_code != 0).then_some(timeout);
        self.retry_count = attr.retry_count;
        self.retry_forever = attr.retry_forever && attr.retry_count == 7;
        self.rnr_retry = attr.rnr_retry;
        self.refill();
    }

    fn refill(&mut self) {
        self.retries_left = self.retry_count;
        self.rnr_left = self.rnr_retry;
    }

    /// Stops every timer (clause 3 of `rvt_error_qp`).
    pub(super) fn stop(&mut self) {
        self.ack_deadline = Time::NEVER;
        self.early_deadline = Time::NEVER;
        self.rnr_until = Time::NEVER;
        self.timed = None;
        self.probe_due = false;
        self.probed = None;
    }

    /// Whether the oldest packet is to be sent again by itself.
    #[inline]
    pub(super) fn probe_due(&self) -> bool {
        self.probe_due
    }

    /// Whether there is an ACK timeout at all.
    pub(super) fn has_timeout(&self) -> bool {
        self.timeout.is_some()
    }

    /// Whether the peer asked us to wait.
    #[inline]
    pub(super) fn rnr_waiting(&self) -> bool {
        self.rnr_until != Time::NEVER
    }

    /// The next time that anything is due.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        self.ack_deadline.min(self.early_deadline).min(self.rnr_until)
    }

    /// Takes one retry; `false` if none is left.
    fn spend(&mut self) -> bool {
        if self.retry_forever {
            return true;
        }
        let left = self.retries_left > 0;
        self.retries_left = self.retries_left.saturating_sub(1);
        left
    }

    fn early_delay(&self, least: Duration) -> Duration {
        let delay = match self.round_trip {
            // Not measured yet: be patient.
            None => least * 32,
            // As TCP reckons (RFC 6298).
            Some((smooth, deviation)) => (smooth + deviation * 4).max(least),
        };
        delay.saturating_mul(1 << self.early_tries.min(16))
    }
}

impl Qp {
    /// A request packet left: something is unacknowledged now.
    #[inline]
    pub(super) fn sent_request(&mut self, sh: &mut Shared, now: Time, measure: Option<Psn>) {
        let retry = &mut self.req.retry;
        if let (Some(psn), None) = (measure, retry.timed) {
            retry.timed = Some((psn, now));
        }
        if retry.early_deadline == Time::NEVER {
            self.arm(sh, now);
        }
    }

    /// Starts what is not running of the two timers.
    fn arm(&mut self, sh: &mut Shared, now: Time) {
        let retry = &mut self.req.retry;
        let Some(timeout) = retry.timeout else { return };
        if retry.ack_deadline == Time::NEVER {
            retry.ack_deadline = now + timeout;
        }
        retry.early_deadline = match sh.config.early_retry {
            Duration::ZERO => retry.ack_deadline,
            least if self.req.queue.front().is_some_and(SendWqe::is_read) => {
                (now + retry.early_delay(least * READ_PATIENCE)).min(retry.ack_deadline)
            }
            least => (now + retry.early_delay(least)).min(retry.ack_deadline),
        };
        sh.timers.wake_by(self.key.slot, retry.deadline());
    }

    /// More is acknowledged: all retries are there again, timers start anew.
    pub(super) fn progressed(&mut self, sh: &mut Shared, now: Time) {
        self.req.heard_at = now;
        let retry = &mut self.req.retry;
        retry.refill();
        retry.early_tries = 0;
        retry.read_gap = None;
        if let Some((psn, left)) = retry.timed
            && psn.is_before(self.req.una)
        {
            retry.timed = None;
            let sample = now.since(left);
            retry.round_trip = Some(match retry.round_trip {
                None => (sample, sample / 2),
                Some((smooth, deviation)) => {
                    ((smooth * 7 + sample) / 8, (deviation * 3 + smooth.abs_diff(sample)) / 4)
                }
            });
        }
        retry.ack_deadline = Time::NEVER;
        retry.early_deadline = Time::NEVER;
        retry.probe_due = false;
        // Nothing but the probe was new to the peer: what followed it the first time is lost.
        if retry.probed.take().is_some_and(|probe| probe.plus(1) == self.req.una)
            && self.req.una != self.req.next
        {
            self.req.window.gap();
            self.go_back(sh);
        }
        if self.req.una != self.req.next && !self.req.retry.rnr_waiting() {
            self.arm(sh, now);
        }
    }

    /// Sending goes back to the oldest unacknowledged packet. What READs have not brought yet
    /// will be asked for again.
    pub(super) fn go_back(&mut self, sh: &mut Shared) {
        self.req.next = self.req.una;
        self.req.cursor = 0;
        self.req.since_ask = 0;
        self.req.retry.timed = None;
        self.req.retry.probe_due = false;
        self.req.retry.probed = None;
        self.release_reads(sh);
        self.schedule(sh);
    }

    /// Sends the oldest unacknowledged packet again, alone.
    pub(super) fn send_probe(&mut self, sh: &mut Shared, now: Time, sink: &mut impl Sink) -> bool {
        self.req.retry.probe_due = false;
        let (next, cursor) = (self.req.next, self.req.cursor);
        let psn = self.req.una;
        self.req.retry.timed = None;
        (self.req.next, self.req.cursor) = (psn, 0);
        // So that this packet asks for an ACK, whatever it is.
        self.req.since_ask = u32::MAX / 2;
        if !self.send_data(sh, now, sink) {
            return false;
        }
        (self.req.next, self.req.cursor) = (next, cursor);
        self.req.retry.probed = Some(psn);
        true
    }

    /// A gap showed (NAK, or READ responses missing): one retry, go back.
    pub(super) fn retry_gap(&mut self, sh: &mut Shared, now: Time) {
        if !self.req.retry.spend() {
            return self.fail_front(sh, now, WcStatus::RetryExceeded);
        }
        self.go_back(sh);
    }

    /// The peer has no receive: wait as long as it says.
    pub(super) fn retry_rnr(&mut self, sh: &mut Shared, now: Time, timer: u8) {
        let retry = &mut self.req.retry;
        if retry.rnr_waiting() {
            return;
        }
        // 7 means for ever (IBTA vol. 1, 9.7.5.2.8).
        if retry.rnr_retry != 7 {
            if retry.rnr_left == 0 {
                return self.fail_front(sh, now, WcStatus::RnrRetryExceeded);
            }
            retry.rnr_left -= 1;
        }
        retry.stop();
        retry.rnr_until = now + rnr_delay(timer);
        sh.timers.remove(self.key.slot);
        sh.timers.wake_by(self.key.slot, retry.rnr_until);
        self.go_back(sh);
    }

    /// The slot's timer came up.
    pub(super) fn on_deadline(&mut self, sh: &mut Shared, now: Time) {
        let retry = &mut self.req.retry;
        if retry.rnr_until <= now {
            retry.rnr_until = Time::NEVER;
            self.schedule(sh);
        } else if self.req.una == self.req.next {
            // Nothing is out there: it waits for room or budget to be sent again, not for the peer.
            retry.ack_deadline = Time::NEVER;
            retry.early_deadline = Time::NEVER;
            self.schedule(sh);
        } else if retry.ack_deadline <= now {
            retry.ack_deadline = Time::NEVER;
            retry.early_deadline = Time::NEVER;
            retry.early_tries = 0;
            retry.read_gap = None;
            sh.counters.timeouts += 1;
            if !retry.spend() {
                return self.fail_front(sh, now, WcStatus::RetryExceeded);
            }
            self.req.silence();
            self.go_back(sh);
        } else if retry.early_deadline <= now {
            retry.early_deadline = Time::NEVER;
            retry.early_tries += 1;
            retry.read_gap = None;
            sh.counters.early_retries += 1;
            if self.req.queue.front().is_none_or(SendWqe::is_read) {
                // READs are asked for again as they are; the peer knows what it has answered.
                self.req.read_window.gap();
                self.go_back(sh);
            } else if retry.early_tries > PROBES {
                self.req.silence();
                self.go_back(sh);
            } else {
                retry.probe_due = true;
                self.schedule(sh);
            }
        }
        sh.timers.wake_by(self.key.slot, self.req.retry.deadline());
    }
}
