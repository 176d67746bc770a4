//! A channel on its shard: a queue pair, what SRP agreed on for it, and its place in life.

use std::collections::VecDeque;
use std::sync::Arc;

use reactors::slab::Key;
use reactors::time::Time;

use super::drain::{Drain, Life, LifeEvent, Why};
use super::nexus::Nexus;
use crate::rdma::verbs::{ConnId, Path, QpId};
use crate::srp;
use crate::wire::num::Qpn;

/// Work requests without a completion of their own, after which one is signaled all the same, so
/// that the provider can free send queue entries (IBTA vol. 1, 10.8.6).
const SIGNAL_EVERY: u32 = 16;

/// One channel.
pub struct Channel {
    /// Its connection, known to shard 0.
    pub conn: ConnId,
    /// Its queue pair.
    pub qp: QpId,
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The addresses.
    pub path: Path,
    /// The nexus it belongs to.
    pub nexus: Arc<Nexus>,
    /// Its number in the nexus's order of logins.
    pub index: u32,
    /// Credits, tags and rules of SRP.
    pub srp: srp::channel::Channel,
    /// Receive slots promised to it.
    pub slots: u32,
    /// Where its queue pair is in its life.
    pub life: Life,
    /// The waits of its end, and why it ends.
    pub drain: Option<(Drain, Why)>,
    /// Tasks that belong to it.
    pub tasks: u32,
    /// RDMA READs in flight.
    pub reads_in_flight: u8,
    /// RDMA READs that the peer answers at a time.
    pub max_reads: u8,
    /// Tasks that wait for a place among the READs or in the send queue, oldest first. Stale keys
    /// are of tasks that ended while waiting.
    pub waiting: VecDeque<Key>,
    /// Work requests posted since the last signaled one.
    unsignaled: u32,
    /// A probe is in flight.
    pub probing: bool,
    /// When it was made.
    pub since: Time,
    /// Bytes that the initiator has read.
    pub read_bytes: u64,
    /// Bytes that the initiator has written.
    pub written_bytes: u64,
}

/// What makes a channel.
pub struct ChannelSeed {
    /// Its connection.
    pub conn: ConnId,
    /// Its queue pair.
    pub qp: QpId,
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// The addresses.
    pub path: Path,
    /// The nexus it belongs to.
    pub nexus: Arc<Nexus>,
    /// Its number in the nexus's order of logins.
    pub index: u32,
    /// What the login agreed on.
    pub params: srp::login::ChannelParams,
    /// Receive slots promised to it.
    pub slots: u32,
    /// RDMA READs that the peer answers at a time.
    pub max_reads: u8,
}

impl Channel {
    /// A channel that waits for its first sign of life.
    pub fn new(seed: ChannelSeed, now: Time) -> Self {
        Channel {
            conn: seed.conn,
            qp: seed.qp,
            qpn: seed.qpn,
            path: seed.path,
            nexus: seed.nexus,
            index: seed.index,
            srp: srp::channel::Channel::new(seed.params),
            slots: seed.slots,
            life: Life::Connecting,
            drain: None,
            tasks: 0,
            reads_in_flight: 0,
            max_reads: seed.max_reads.max(1),
            waiting: VecDeque::new(),
            unsignaled: 0,
            probing: false,
            since: now,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// Moves the life along; an illegal move is a bug of ours, is logged and changes nothing.
    pub fn advance(&mut self, event: LifeEvent) -> bool {
        match self.life.next(event) {
            Ok(next) => {
                let moved = next != self.life;
                self.life = next;
                moved
            }
            Err(illegal) => {
                tracing::error!(qpn = %self.qpn, %illegal, "a channel was moved against its table");
                debug_assert!(false, "{illegal}");
                false
            }
        }
    }

    /// Whether the next work request, which needs no completion itself, should have one so that
    /// the send queue's entries are freed.
    pub fn wants_signal(&self) -> bool {
        self.unsignaled + 1 >= SIGNAL_EVERY
    }

    /// A work request was posted.
    pub fn posted(&mut self, signaled: bool) {
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
    }
}
