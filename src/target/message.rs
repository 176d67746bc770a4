//! What shards say to each other, and how: bounded rings, nothing that waits.
//!
//! Shard 0 owns the connection manager and the registry of nexuses; the shard of a channel owns
//! its queue pair and everything of its commands. So a login goes from shard 0 to the channel's
//! shard and back, and an end goes either way.

use std::sync::Arc;

use reactors::ring::{Outbox, Sender};
use reactors::slab::Key;

use super::handle::Command;
use super::listener::Port;
use super::nexus::Nexus;
use super::why::Why;
use crate::rdma::verbs::{ConnId, ConnRequest};
use crate::srp::login::ChannelParams;
use crate::wire::num::{Psn, Qpn};

/// A channel, anywhere in the target.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelRef {
    /// The shard it lives on.
    pub shard: usize,
    /// Its place there.
    pub key: Key,
}

/// A login that shard 0 has decided to admit, on its way to the channel's shard.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The connection that asks.
    pub conn: ConnId,
    /// What its request says.
    pub request: ConnRequest,
    /// What the login negotiated.
    pub params: ChannelParams,
    /// Receive slots that are promised to it.
    pub slots: u32,
    /// The nexus it belongs to.
    pub nexus: Arc<Nexus>,
    /// Its number in the nexus's order of logins.
    pub index: u32,
}

/// A channel that its shard has made for a login.
#[derive(Copy, Clone, Debug)]
pub struct Admitted {
    /// The channel.
    pub channel: ChannelRef,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The PSN with which the peer shall start.
    pub starting_psn: Psn,
    /// RDMA READs that the channel will have in flight.
    pub max_rd_atomic: u8,
}

/// What a channel did in its life.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands taken.
    pub commands: u64,
    /// Bytes read by the initiator.
    pub read_bytes: u64,
    /// Bytes written by the initiator.
    pub written_bytes: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.commands += other.commands;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// From one shard to another.
#[derive(Debug)]
pub enum Message {
    /// From the control plane.
    Control(Command),
    /// To a channel's shard: make a channel for this login.
    Admit(Box<Admission>),
    /// To shard 0: the channel, or in words why there is none.
    Admitted {
        /// The connection of the login.
        conn: ConnId,
        /// The outcome.
        result: Result<Admitted, String>,
    },
    /// To a channel's shard: end it. If a login waits for that, say `Ended` to shard 0 as soon as
    /// nothing of the channel can reach the medium unfenced.
    End {
        /// The channel.
        channel: Key,
        /// Why.
        why: Why,
        /// The login that waits.
        for_login: Option<ConnId>,
    },
    /// To shard 0: a channel that stood in the way of this login has ended.
    Ended {
        /// The connection of the waiting login.
        for_login: ConnId,
    },
    /// To a channel's shard: the RTU came.
    Established {
        /// The channel.
        channel: Key,
    },
    /// To shard 0: data came before the RTU.
    DataFirst {
        /// The connection.
        conn: ConnId,
    },
    /// To shard 0: the end of a channel begins. The peer is to be told, unless it knows.
    Ending {
        /// The connection.
        conn: ConnId,
        /// Why.
        why: Why,
        /// Commands in progress that are cut off.
        cut: u32,
    },
    /// To shard 0: the channel is gone.
    Gone {
        /// The connection.
        conn: ConnId,
        /// The channel that it was.
        channel: ChannelRef,
        /// Its receive slots that are free again.
        slots: u32,
        /// What it did in its life.
        tally: Tally,
    },
    /// To shard 0: receive slots that abandoned block operations held are free again.
    SlotsBack {
        /// Of which shard.
        shard: usize,
        /// How many.
        slots: u32,
    },
    /// To every other shard: end the tasks of this LUN.
    EndTasks {
        /// The LUN.
        lun: u16,
        /// Whose task management asked for it.
        nexus: Arc<Nexus>,
        /// Which tasks.
        scope: Scope,
        /// Where to answer.
        from: TmfRef,
    },
    /// To every shard: nothing uses this port any more.
    ClosePort(Port),
    /// To the shard that asked: all those tasks have ended here, or they did not in time.
    TasksEnded {
        /// Who asked.
        to: Key,
        /// Whether all have ended.
        complete: bool,
    },
}

/// Which tasks of a LUN a task management function ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the nexus that asks: ABORT TASK SET.
    Nexus,
    /// Those of all nexuses: CLEAR TASK SET.
    All,
    /// Those of all nexuses, and the LUN is reset: LOGICAL UNIT RESET.
    Reset,
}

/// A task management function in progress, anywhere in the target.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TmfRef {
    /// The shard it is on.
    pub shard: usize,
    /// Its task there.
    pub task: Key,
}

/// The way from one shard to all shards. A message to oneself goes round by the same ring, so
/// that order does not depend on who is where.
pub struct Peers {
    outboxes: Vec<Outbox<Message>>,
}

impl Peers {
    /// Senders to all shards, in their order; `backlog` messages to each are kept when its ring
    /// is full.
    pub fn new(senders: Vec<Sender<Message>>, backlog: usize) -> Self {
        Peers { outboxes: senders.into_iter().map(|sender| Outbox::new(sender, backlog)).collect() }
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.outboxes.len()
    }

    /// Sends now, or with a later [`flush`](Self::flush).
    pub fn send(&mut self, shard: usize, message: Message) {
        // The backlog is sized by what a shard can have to say (channels and tasks); beyond that
        // something is broken, and saying so beats losing an answer in silence.
        if let Err(lost) = self.outboxes[shard].send(message) {
            tracing::error!(shard, ?lost, "a message between shards was lost: its ring and backlog are full");
        }
    }

    /// Sends what did not fit, as far as it fits now; gives how many went.
    pub fn flush(&mut self) -> usize {
        self.outboxes.iter_mut().map(Outbox::flush).sum()
    }

    /// Whether something waits to be sent.
    pub fn has_backlog(&self) -> bool {
        self.outboxes.iter().any(|outbox| outbox.backlog() > 0)
    }
}
