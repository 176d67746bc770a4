//! Floor 2, sans-io: the InfiniBand connection manager on QP1, with the RDMA-CM header.
//!
//! It knows MADs, communication ids, timers of connections. It must not know queue pairs
//! beyond their numbers, nor SRP: private data are opaque bytes.
//!
//! [`Cm`] is the connection manager of one channel adapter, for both sides and both service
//! forms. Its consumer drives it through [`Connections`](crate::rdma::verbs::Connections);
//! a provider carries its datagrams: [`Cm::handle_mad`], [`Cm::poll_transmit`],
//! [`Cm::deadline`], [`Cm::handle_timeout`].
//!
//! * `table`: states, inputs, and which input leads where
//! * `config`: sizes and timers, with their reasons; counters
//! * `conn`: what is kept of one connection
//! * `core`: all connections, their indices, queues and timers
//! * `active`, `passive`, `retry`, `ending`: the parts of a connection's life
//! * `build`: the messages that we send
//!
//! Rules that differ from Linux's `ib_cm`, each for a reason:
//! * A REQ from the GUID and queue pair of a live connection, from the same address, replaces
//!   that connection. Linux answers "stale connection", and an initiator that was power-cycled
//!   then cannot log in until its old connection has died.
//! * A REQ that comes again after our REP is answered with the same REP at once.
//! * A refused REQ is remembered for the time wait, so that its duplicate gets the same answer
//!   and the consumer is asked once.
//! * A REP for a request that we have given up is answered with a REJ, so that the peer need
//!   not wait through its retries.

mod active;
mod build;
mod config;
mod conn;
mod core;
mod ending;
mod passive;
mod retry;
mod table;
#[cfg(test)]
mod tests;

pub use config::{CmConfig, CmStats};
pub use core::Cm;
