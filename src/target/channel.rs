//! A channel on its shard: a queue pair, what SRP agreed on for it, and its place in life.

use std::collections::VecDeque;
use std::sync::Arc;

use reactors::slab::Key;
use reactors::time::Time;

use super::drain::Drain;
use super::life::Life;
use super::limits::QUIESCE_WITHIN;
use super::nexus::Nexus;
use super::why::Why;
use crate::rdma::verbs::{ConnId, Path, Peer, QpId, Service};
use crate::srp;
use crate::wire::num::Qpn;

/// Most work requests without a completion of their own, if half of the send queue holds as many, after which one is signaled all the same, so
/// that the provider can free send queue entries (IBTA vol. 1, 10.8.6). Each asks for an ACK, which is a
/// system call on either side; the responses behind a turn's WRITEs are signaled anyway.
const SIGNAL_EVERY: u32 = 64;

/// The tasks of a channel, so that its end need not look at all tasks of the shard. A task knows its
/// place here.
#[derive(Debug, Default)]
pub struct Roll {
    tasks: Vec<Key>,
}

impl Roll {
    /// Room for `tasks` without an allocation.
    pub fn new(tasks: u32) -> Roll {
        Roll { tasks: Vec::with_capacity(tasks as usize) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The task at a place.
    pub fn get(&self, place: usize) -> Option<Key> {
        self.tasks.get(place).copied()
    }

    /// The last one.
    pub fn last(&self) -> Option<Key> {
        self.tasks.last().copied()
    }

    /// Takes a task in; gives its place.
    pub fn enter(&mut self, task: Key) -> u32 {
        self.tasks.push(task);
        self.tasks.len() as u32 - 1
    }

    /// Lets the task at `place` go; gives the one that has its place now, if any.
    pub fn leave(&mut self, place: u32) -> Option<Key> {
        self.tasks.swap_remove(place as usize);
        self.get(place as usize)
    }
}

/// Why a channel ends, and how far its end is.
#[derive(Debug)]
pub struct Exit {
    /// Why.
    pub why: Why,
    /// What it waits for.
    pub drain: Drain,
    /// Tasks at the beginning of the roll that have not been told to end.
    pub untold: usize,
    /// Logins that wait until they all have.
    pub logins: Vec<ConnId>,
}

impl Exit {
    /// An end that begins now.
    pub fn new(now: Time, why: Why) -> Exit {
        Exit { why, drain: Drain::new(now, QUIESCE_WITHIN), untold: 0, logins: Vec::new() }
    }
}

/// One channel.
pub struct Channel {
    /// Its connection, known to shard 0.
    pub conn: ConnId,
    /// Its queue pair.
    pub qp: QpId,
    /// The number of its queue pair.
    pub qpn: Qpn,
    /// Room of its queue pair's send queue.
    pub max_send_wr: u32,
    /// The addresses.
    pub path: Path,
    /// The service that it asked for.
    pub service: Service,
    /// Who is at the other end.
    pub peer: Peer,
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
    /// Its end, once that has begun.
    pub exit: Option<Box<Exit>>,
    /// LAST_WQE_REACHED came, before its end began maybe.
    pub last_wqe: bool,
    /// Tasks that belong to it.
    pub roll: Roll,
    /// Tasks that it has forgotten and that keep the promise of a receive slot until they end.
    pub backed: u32,
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
    /// Room of its queue pair's send queue.
    pub max_send_wr: u32,
    /// The life of its queue pair so far.
    pub life: Life,
    /// The addresses.
    pub path: Path,
    /// The service that it asked for.
    pub service: Service,
    /// Who is at the other end.
    pub peer: Peer,
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
            service: seed.service,
            peer: seed.peer,
            nexus: seed.nexus,
            index: seed.index,
            srp: srp::channel::Channel::new(seed.params),
            slots: seed.slots,
            max_send_wr: seed.max_send_wr,
            life: seed.life,
            exit: None,
            last_wqe: false,
            roll: Roll::new(seed.slots),
            backed: 0,
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

    /// Whether the next work request, which needs no completion itself, should have one so that
    /// the send queue's entries are freed.
    pub fn wants_signal(&self) -> bool {
        self.unsignaled + 1 >= (self.max_send_wr / 2).clamp(1, SIGNAL_EVERY)
    }

    /// A work request was posted.
    pub fn posted(&mut self, signaled: bool) {
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
    }
}
