//! Floor 5: the control plane, on ordinary threads: JSON-RPC, configuration, metrics, logs.
//!
//! It speaks to the shards in `Command` and `Reply` values over bounded rings, never by reaching
//! into them.
//!
//! * bytes to calls and back: [`framing`], [`jsonrpc`], [`server`], [`socket`]
//! * what there is: [`model`], owned by one thread
//! * what can be asked: [`methods`]
//! * what changes without being asked: [`watch`]; what a killed target leaves to its successor: [`farewells`]

#[cfg(test)]
pub(crate) mod fake;
pub mod farewells;
pub mod framing;
pub mod jsonrpc;
pub mod login;
pub mod methods;
pub mod model;
pub mod server;
pub mod socket;
pub mod watch;
