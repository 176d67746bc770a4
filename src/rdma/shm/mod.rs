//! Floor 3: the shared-memory provider: the verbs between processes of one host.
//!
//! It knows rings in shared memory, UNIX sockets, and who is at their other end. It must not know what
//! travels in a SEND. There is no wire, so there is no engine: a SEND is a record in a ring, RDMA is a
//! copy that the requester makes, once, to or from memory that its peer has shown it.
//!
//! * [`Device`]: one shard's verbs; on shard 0 also [`Connections`](crate::rdma::verbs::Connections)
//! * `segment` and `ring`: what two processes share, and how they speak through it
//! * `memory`: what a peer has shown us; `link`: our end of one connection; `qp`: a queue pair on it
//! * `socket` and `connector`: the UNIX socket of a connection, and how connections come and go
//! * `hub`: where the shards of a device meet; `doze`: when peers must ring the bell
//!
//! **Whom we trust.** A connection is one of our own user, or of root: the socket's file says so (mode
//! 0600), and the kernel says who has connected. Beyond that a peer may do what it likes, and harms its
//! own connection only: all that it writes is read once, checked, and used from our copy; memory that
//! it hands us can neither shrink nor grow (`reactors::shared`); no call waits for it; and its death,
//! however sudden, is the hang-up of its socket. What it may reach is what we registered for remote
//! access; there it can write at any time, as any peer of RDMA can.
//!
//! The active side brings the memory of a connection, so that an idle one costs the target two small
//! structures.

mod connector;
mod counters;
mod device;
mod doze;
mod hub;
mod link;
mod memory;
mod qp;
mod ring;
mod segment;
mod socket;
mod tables;

use socket2::Type;

use crate::unix::Purpose;

/// The socket at which a target is connected to.
pub const SOCKET: Purpose = Purpose { what: "socket", flag: "--shm", kind: Type::SEQPACKET };

pub use counters::Counters;
pub use device::{Device, DeviceConfig};
pub use hub::Hub;

#[cfg(test)]
mod tests;
