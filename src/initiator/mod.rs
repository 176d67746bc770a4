//! Floor 4: an SRP initiator in user space: what `perf`, benches and the end-to-end tests drive.
//!
//! It knows verbs (any provider behind `rdma::verbs`), the SRP core and the SCSI wire formats. It
//! must not know a provider by name, the target, or the command line. It runs on the thread of
//! its caller: [`Session::poll`] moves everything, nothing blocks, and after the session is up
//! nothing is allocated.
//!
//! * [`config`]: what a session is made of
//! * [`session`]: the life of a session; `connect`: its channels, SINGLE first, then MULTI
//! * `channel`: one queue pair from REQ to DREQ; [`slot`]: one request from reservation to
//!   release; `memory`: the registered buffers behind them
//! * `submit`, `inbound`: sending commands, reading answers
//! * `recovery`: time limits: ABORT TASK, LUN RESET, reconnect, as ib_srp's error handler does
//! * [`scan`]: single commands: what a logical unit is
//! * [`load`]: a workload on one logical unit, `schedule`: at a rate of its own; [`stamp`] and [`ledger`]: its verification

mod channel;
pub mod config;
mod connect;
mod inbound;
pub mod ledger;
pub mod load;
mod memory;
mod recovery;
pub mod scan;
mod schedule;
pub mod session;
pub mod slot;
pub mod stamp;
mod submit;

pub use config::{DescriptorForm, SessionConfig};
pub use session::{Session, SessionError, SessionState};
pub use slot::{Completion, Outcome, SlotId};
pub use submit::{Command, PostError, Transfer};

#[cfg(test)]
mod tests;
