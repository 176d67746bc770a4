//! Sizes and timers of the connection manager, and what it counts.

use std::time::Duration;

use crate::rdma::verbs::TIME_WAIT;

/// What a connection manager is made of. The timers are IBTA time codes, 4.096 us * 2^code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// GUID of our channel adapter, in every REQ and REP.
    pub guid: u64,
    /// Most connections, those in time wait included. When it is reached the oldest time wait
    /// ends early; when none is left a REQ is answered "no resources".
    pub max_connections: usize,
    /// Most passive connections that the peer has not confirmed; the oldest goes first.
    pub max_half_open: usize,
    /// How long we wait before a REQ goes out again, and the answering time that we claim for
    /// ourselves in it, by which the peer times its REP. Linux has 20 (4.3 s), because an
    /// InfiniBand subnet may be slow; over IP one second is ample, and lost messages cost less.
    /// On the passive side the REQ's own field counts, whatever it says.
    pub cm_timeout_code: u8,
    /// How long we wait before a DREQ goes out again. 16 of them take 8.6 s: a peer whose
    /// network comes back within that time still learns that it was given up.
    pub disconnect_timeout_code: u8,
    /// How often a REQ or DREQ goes out again, 0..=15; the field has 4 bits.
    pub max_cm_retries: u8,
    /// Local ACK timeout that we ask both queue pairs to use on connections that we open: 17 is
    /// 0.54 s, as Linux 6.12 has it.
    pub ack_timeout_code: u8,
    /// How long our queue pairs may take to acknowledge; 15 is 134 ms, as rxe says.
    pub ack_delay_code: u8,
    /// How long ids rest after the end.
    pub time_wait: Duration,
}

impl CmConfig {
    /// The usual sizes and timers.
    pub const fn new(guid: u64) -> CmConfig {
        CmConfig {
            guid,
            max_connections: 4_096,
            max_half_open: 128,
            cm_timeout_code: 18,
            disconnect_timeout_code: 17,
            max_cm_retries: 15,
            ack_timeout_code: 17,
            ack_delay_code: 15,
            time_wait: TIME_WAIT,
        }
    }
}

/// What has been counted since the start.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct CmStats {
    /// Datagrams that came.
    pub received: u64,
    /// Of these: not a message that we know.
    pub malformed: u64,
    /// Of these: naming a connection of another peer, or a queue pair that is not the connection's.
    pub wrong_peer: u64,
    /// Of these: did not fit the state of its connection, or named none.
    pub unexpected: u64,
    /// Of these: REQs that came again.
    pub duplicate_requests: u64,
    /// REQs that we refused by ourselves, without asking the consumer.
    pub refused: u64,
    /// REQs that were dropped because the consumer does not take its events.
    pub overrun: u64,
    /// Half-open connections that made room for newer ones.
    pub evicted: u64,
    /// Connections that a new REQ of the same queue pair replaced.
    pub replaced: u64,
    /// Messages that went out again after a timer.
    pub resent: u64,
    /// Messages that were dropped because nobody took them for sending.
    pub transmit_overrun: u64,
}

impl CmStats {
    /// All of them, by name.
    pub fn named(&self) -> [(&'static str, u64); 11] {
        [
            ("cm_received", self.received),
            ("cm_malformed", self.malformed),
            ("cm_wrong_peer", self.wrong_peer),
            ("cm_unexpected", self.unexpected),
            ("cm_duplicate_requests", self.duplicate_requests),
            ("cm_refused", self.refused),
            ("cm_overrun", self.overrun),
            ("cm_evicted", self.evicted),
            ("cm_replaced", self.replaced),
            ("cm_resent", self.resent),
            ("cm_transmit_overrun", self.transmit_overrun),
        ]
    }
}
