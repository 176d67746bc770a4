//! What an engine counts.

use crate::wire::ext::{NakCode, Syndrome};

/// Plain counters of an [`Engine`](super::Engine) since its start; they only grow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets taken in, whatever became of them.
    pub packets_in: u64,
    /// Packets handed out.
    pub packets_out: u64,
    /// Payload bytes of SENDs, WRITEs and READ responses that landed in memory.
    pub bytes_in: u64,
    /// Payload bytes handed out.
    pub bytes_out: u64,
    /// Packets handed out again: requests, and READ responses.
    pub retransmissions: u64,
    /// Times that the ACK timeout passed and sending went back.
    pub timeouts: u64,
    /// Times that the oldest packet went out again before the ACK timeout, because nothing was
    /// heard for a few round trips.
    pub early_retries: u64,
    /// ACKs sent.
    pub acks_out: u64,
    /// NAKs "PSN sequence error" sent.
    pub sequence_naks_out: u64,
    /// RNR NAKs sent.
    pub rnr_naks_out: u64,
    /// NAKs of other kinds sent: each ends a connection.
    pub fatal_naks_out: u64,
    /// NAKs "PSN sequence error" that came.
    pub sequence_naks_in: u64,
    /// RNR NAKs that came.
    pub rnr_naks_in: u64,
    /// NAKs of other kinds that came.
    pub fatal_naks_in: u64,
    /// Duplicate requests that came.
    pub duplicate_requests: u64,
    /// READ responses that showed a gap: data was lost.
    pub read_gaps: u64,
    /// Packets dropped: too short, a bad length, opcode or header.
    pub dropped_malformed: u64,
    /// Packets dropped: no such QPN.
    pub dropped_unknown_qpn: u64,
    /// Packets dropped: the partition key is not ours.
    pub dropped_pkey: u64,
    /// Packets dropped: not from the peer's address, or not to ours.
    pub dropped_wrong_peer: u64,
    /// Packets dropped: the queue pair's state takes none.
    pub dropped_state: u64,
    /// Requests dropped: they come behind a gap that was already reported.
    pub dropped_out_of_order: u64,
    /// Responses dropped: old, or to nothing that was asked.
    pub dropped_stale_responses: u64,
    /// Completions lost because their queue was full.
    pub completions_lost: u64,
}

impl Counters {
    /// All counters with their names.
    pub fn named(&self) -> [(&'static str, u64); 24] {
        [
            ("packets_in", self.packets_in),
            ("packets_out", self.packets_out),
            ("bytes_in", self.bytes_in),
            ("bytes_out", self.bytes_out),
            ("retransmissions", self.retransmissions),
            ("timeouts", self.timeouts),
            ("early_retries", self.early_retries),
            ("acks_out", self.acks_out),
            ("sequence_naks_out", self.sequence_naks_out),
            ("rnr_naks_out", self.rnr_naks_out),
            ("fatal_naks_out", self.fatal_naks_out),
            ("sequence_naks_in", self.sequence_naks_in),
            ("rnr_naks_in", self.rnr_naks_in),
            ("fatal_naks_in", self.fatal_naks_in),
            ("duplicate_requests", self.duplicate_requests),
            ("read_gaps", self.read_gaps),
            ("dropped_malformed", self.dropped_malformed),
            ("dropped_unknown_qpn", self.dropped_unknown_qpn),
            ("dropped_pkey", self.dropped_pkey),
            ("dropped_wrong_peer", self.dropped_wrong_peer),
            ("dropped_state", self.dropped_state),
            ("dropped_out_of_order", self.dropped_out_of_order),
            ("dropped_stale_responses", self.dropped_stale_responses),
            ("completions_lost", self.completions_lost),
        ]
    }
}

impl Counters {
    #[inline]
    pub(super) fn sent(&mut self, payload_bytes: u64, retransmission: bool) {
        self.packets_out += 1;
        self.bytes_out += payload_bytes;
        self.retransmissions += u64::from(retransmission);
    }

    #[inline]
    pub(super) fn replied(&mut self, syndrome: Syndrome) {
        *match syndrome {
            Syndrome::Ack { .. } => &mut self.acks_out,
            Syndrome::RnrNak { .. } => &mut self.rnr_naks_out,
            Syndrome::Nak(NakCode::PsnSequenceError) => &mut self.sequence_naks_out,
            Syndrome::Nak(_) => &mut self.fatal_naks_out,
        } += 1;
    }
}
