//! The provider for RDMA adapters: libibverbs and librdmacm behind the verbs interface.
//!
//! It knows both libraries, through the crate `rdma-core-sys` and nobody else does: the crate can be
//! exchanged by changing this folder. It must not know SRP, the target or the command line. Built only
//! with the cargo feature `ibv`; the libraries are loaded when the process starts, and a machine
//! without them gets words ([`AdapterError`]), not a binary that does not run.
//!
//! * `adapter`: finding a device by its name or by one of its addresses; `probe`: what it can do
//! * `sys`: owned verbs objects (context, protection domain, memory region, queues), each ended by
//!   `Drop` after all that stand on it
//! * `convert`: our words for the library's numbers, and back; plain code
//! * `device`: one shard's [`Device`]; `pairs`: its queue pairs
//! * `janitor`: the thread that does what may block, and reads the events of device and connections
//! * `cm`, `conn`: connection ids, and the table of their life
//! * `bell`: how the janitor wakes a shard
//!
//! All shards share one device context; protection domain, completion queue, receive queue and memory
//! regions are each shard's own, so that no two of them take the same lock in the driver.

mod adapter;
mod addresses;
mod bell;
mod cm;
mod conn;
mod connections;
mod convert;
mod device;
mod janitor;
mod pairs;
mod probe;
mod sys;

pub use adapter::{Adapter, AdapterError, Wanted};
pub use device::{Device, Seat, link};
pub use probe::Abilities;

#[cfg(test)]
mod abi_tests;
