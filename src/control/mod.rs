//! Floor 5: the control plane, on ordinary threads: JSON-RPC, configuration, metrics, logs.
//!
//! It speaks to the shards in `Command` and `Reply` values over bounded rings, never by reaching
//! into them.

pub mod framing;
pub mod jsonrpc;
pub mod server;
pub mod socket;
