//! RDMA: the verbs interface, the sans-io RC engine, and the providers.
//!
//! * [`verbs`] (floor 1): traits and plain types that providers implement.
//! * [`engine`] (floor 2, sans-io): the RC protocol engine.
//! * `soft`, `sim` (floor 3): providers on top of the engine.
//! * `ibv` (floor 3, with the cargo feature of that name): RDMA adapters by libibverbs.

pub mod engine;
mod forward;
#[cfg(feature = "ibv")]
pub mod ibv;
pub mod sim;
pub mod soft;
pub mod verbs;
