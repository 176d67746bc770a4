//! Floor 4: the SRP target: joins verbs, SRP, SCSI and block devices, and owns them, one shard a core.
//!
//! The control plane above it makes a [`snapshot::Snapshot`] and hands it down through
//! [`handle::TargetHandle`]; nothing here knows how the operator said what it says.
//!
//! * what the control plane sees: [`handle`], [`snapshot`], [`access`], [`identity`], [`limits`],
//!   [`listener`]
//! * the loop: [`shard`]; a task's way: `intake`, `pipeline`, `transfer`, `respond`, `abort`; its values: [`task`],
//!   [`channel`], [`wr`]
//! * what a shard owns: [`slots`] (receive memory), [`pool`] (data memory), [`luns`], [`lent`] (memory of
//!   block devices)
//! * what shards share, off the fast path: [`nexus`] (unit attentions), [`fence`]
//! * logins on shard 0: [`accept`]; between shards: [`message`]
//! * the life of a queue pair: [`life`] (its table), `admit`, `probe`, [`why`] it ends, `dying` (who, and how fast), [`drain`]
//!   (the waits), `reaper`, `retire`, [`spares`], `queues`, `events`; what the log tells of it: `epilogue`
//! * task management: [`manage`]; what is counted: [`counts`]; what hangs: [`pending`]
//! * how it starts: [`mod@start`]; what it runs on: [`fabric`]; whether its books agree: [`audit`]

mod abort;
pub mod accept;
pub mod access;
mod admin;
mod admit;
pub mod audit;
pub mod channel;
pub mod counts;
mod credits;
pub mod drain;
mod dying;
mod epilogue;
mod events;
pub mod fabric;
pub mod fence;
pub mod handle;
pub mod identity;
mod intake;
pub mod lent;
pub mod life;
pub mod limits;
pub mod listener;
pub mod luns;
pub mod manage;
pub mod message;
pub mod nexus;
pub mod pending;
mod pipeline;
pub mod pool;
mod probe;
mod queues;
mod quiet;
mod reaper;
mod respond;
mod retire;
pub mod shard;
pub mod slots;
pub mod snapshot;
pub mod spares;
pub mod stages;
pub mod start;
pub mod task;
mod transfer;
pub mod why;
pub mod wr;

pub use start::{TargetError, start};
