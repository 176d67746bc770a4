//! Floor 4: the SRP target: joins verbs, SRP, SCSI and block devices, and owns them, one shard a core.
//!
//! The control plane above it makes a [`snapshot::Snapshot`] and hands it down through
//! [`handle::TargetHandle`]; nothing here knows how the operator said what it says.
//!
//! * what the control plane sees: [`handle`], [`snapshot`], [`access`], [`identity`], [`limits`]
//! * the loop: [`shard`]; a task's way: `intake`, `pipeline`, `transfer`, `respond`, `abort`; its values: [`task`],
//!   [`channel`], [`wr`]
//! * what a shard owns: [`slots`] (receive memory), [`pool`] (data memory), [`luns`]
//! * what shards share, off the fast path: [`nexus`] (unit attentions), [`fence`]
//! * logins on shard 0: [`accept`]; between shards: [`message`]
//! * ends: [`drain`] (table and waits), `reaper`; task management: [`manage`]
//! * how it starts: [`mod@start`]; what it runs on: [`fabric`]; whether its books agree: [`audit`]

mod abort;
pub mod accept;
pub mod access;
mod admin;
pub mod audit;
pub mod channel;
mod credits;
pub mod drain;
pub mod fabric;
pub mod fence;
pub mod handle;
pub mod identity;
mod intake;
pub mod limits;
pub mod luns;
pub mod manage;
pub mod message;
pub mod nexus;
mod pipeline;
pub mod pool;
mod quiet;
mod reaper;
mod respond;
pub mod shard;
pub mod slots;
pub mod snapshot;
pub mod stages;
pub mod start;
pub mod task;
mod transfer;
pub mod wr;

pub use start::{TargetError, start};
