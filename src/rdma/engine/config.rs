//! Sizes and habits of an engine, fixed at start.

use std::time::Duration;

use crate::rdma::verbs::{DeviceCaps, Recycling, TIME_WAIT};

/// How many objects a device has room for, fixed at start.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most protection domains.
    pub max_pd: u32,
    /// Most memory regions, at most 2^16.
    pub max_mr: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most queue pairs. No more than a quarter of the QPNs that the bits of the shard leave.
    pub max_qp: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes { max_pd: 16, max_mr: 256, max_cq: 64, max_srq: 16, max_qp: 512 }
    }
}

/// Sizes and habits of an [`Engine`](super::Engine), fixed at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The index of this shard: the low `shard_bits` bits of every QPN that it gives out.
    pub shard: u32,
    /// How many low bits of a QPN tell the shard, 0..=8.
    pub shard_bits: u32,
    /// How much of everything there may be.
    pub sizes: Sizes,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most posted receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Most posted sends of a queue pair.
    pub max_send_wr: u32,
    /// Most posted receives of a queue pair without a shared receive queue.
    pub max_recv_wr: u32,
    /// Most RDMA READs of a peer that a queue pair answers at a time.
    pub max_rd_atomic: u8,
    /// Longest message in bytes.
    pub max_message_bytes: u32,
    /// Packets that may come without AckReq before an ACK goes out by itself.
    pub ack_every_packets: u32,
    /// How long a packet that came without AckReq waits for others to be acknowledged with it, or for a
    /// SEND of ours, which answers it.
    pub ack_owed_for: Duration,
    /// A SEND does not ask for its ACK, but leaves it to the peer to send one for several: for who learns by
    /// an answer of the peer that its SEND has arrived, and [says so](super::Engine::confirm_send). After
    /// twice [`ack_owed_for`](Self::ack_owed_for) without an ACK one asks, for peers that answer nothing else.
    pub patient_sends: bool,
    /// Unacknowledged SEND and WRITE packets that a new connection may have in flight.
    pub window_start_packets: u32,
    /// To how many packets the window grows.
    pub window_max_packets: u32,
    /// A long WRITE goes out as many WRITE ONLYs of one size, each with its own RETH, behind one
    /// work request, so that its packets share segmented sends; if not, as FIRST, MIDDLE, LAST.
    pub write_only_segmentation: bool,
    /// A long READ asks for this much at a time, in bytes.
    pub read_chunk_bytes: u32,
    /// READ data on the way to all queue pairs together, in bytes: what the provider's socket can
    /// hold. Queue pairs that want more wait, and are served in turn.
    pub read_budget_bytes: u64,
    /// How long the number of a destroyed queue pair rests.
    pub qpn_rest: Duration,
    /// The oldest unacknowledged packet goes out again after a round trip and four times its
    /// deviation, but not before this (32 times this until a round trip was measured), if the ACK
    /// timeout has not passed yet; then after twice that, and so on. Zero: never.
    pub early_retry: Duration,
    /// How many packets a queue pair sends before the next one has its turn.
    pub turn_packets: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            shard: 0,
            shard_bits: 0,
            sizes: Sizes::default(),
            max_cqe: 1 << 17,
            max_srq_wr: 1 << 15,
            max_send_wr: 1 << 12,
            max_recv_wr: 1 << 12,
            max_rd_atomic: 128,
            max_message_bytes: 16 << 20,
            ack_every_packets: 64,
            ack_owed_for: Duration::from_micros(200),
            patient_sends: false,
            window_start_packets: 32,
            window_max_packets: 128,
            write_only_segmentation: true,
            read_chunk_bytes: 64 << 10,
            read_budget_bytes: 1 << 20,
            qpn_rest: TIME_WAIT,
            early_retry: Duration::from_micros(500),
            turn_packets: 16,
        }
    }
}

impl EngineConfig {
    /// What a device with this engine says that it can do.
    pub fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            max_qp: self.sizes.max_qp,
            max_cqe: self.max_cqe,
            max_srq_wr: self.max_srq_wr,
            max_send_wr: self.max_send_wr,
            max_rd_atomic: self.max_rd_atomic,
            max_message_bytes: self.max_message_bytes,
            last_wqe_event: true,
            recycling: Recycling::NewNumber,
        }
    }
}
