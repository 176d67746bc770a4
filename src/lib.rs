//! srpoll: a polled-mode, user-space SRP storage target, and the RoCEv2 provider it runs on.
//!
//! `ARCHITECTURE.md` tells how the floors below stand on each other; each `mod.rs` opens with
//! what its floor knows and what it must not know.

pub mod cli;
pub mod cm;
pub mod control;
pub mod initiator;
pub mod rdma;
pub mod scsi;
pub mod srp;
pub mod target;
pub mod unix;
pub mod wire;
