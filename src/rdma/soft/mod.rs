//! Floor 3: the soft provider: the RC engine on UDP port 4791, in user space.
//!
//! It knows sockets, datagrams, trains of segments, the ICRC, and which shard a packet is for.
//! It must not know what travels in a SEND. The protocols are below it: the engine of each
//! shard, and on shard 0 the connection manager of its addresses.
//!
//! * [`Device`]: one shard's verbs, and on shard 0 [`Connections`](crate::rdma::verbs::Connections)
//! * [`open_port`] opens the sockets of an address for all shards, [`link_shards`] makes the rings
//!   by which they are given out, and packets that landed on the wrong shard
//! * `receive`: datagrams to packets to the engine; `ident`: which identifications are likely
//! * `transmit`: packets of the engine to `train`s of segments to the kernel
//! * `selftest`: whether this kernel does what our ICRC foresees
//! * `gsi`: QPN 1 and the connection manager; `looped`: packets between two queue pairs of a device
//! * [`fault`]: the shim that loses, doubles, delays and corrupts packets, for tests
//!
//! No packet that the engine sends is copied in user space, except short ones and those between
//! two queue pairs of one device. A received one is copied once, from the datagram to memory.

mod bounded;
mod counters;
mod device;
pub mod fault;
mod gsi;
mod ident;
mod looped;
mod peers;
mod port;
mod receive;
mod selftest;
mod socket;
mod steer;
mod train;
mod transmit;

pub use counters::Counters;
pub use device::{Device, DeviceConfig};
pub use fault::Fault;
pub use port::{PortConfig, PortError, PortSocket, ROCE_PORT, Segmenting, open_port, path_mtu};
pub use steer::{ShardLinks, link_shards};

#[cfg(test)]
mod tests;
