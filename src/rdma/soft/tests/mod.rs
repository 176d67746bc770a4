//! The soft provider over real sockets on loopback addresses, and over one that is not loopback
//! in a network namespace.

mod faults;
mod namespace;
mod ports;
mod rig;
mod shards;
mod traffic;
