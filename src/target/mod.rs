//! Floor 4: the SRP target: joins verbs, SRP, SCSI and block devices, and owns them, one shard a core.
//!
//! The control plane above it makes a [`snapshot::Snapshot`] and hands it down through
//! [`handle::TargetHandle`]; nothing here knows how the operator said what it says.

pub mod access;
pub mod handle;
pub mod identity;
pub mod limits;
pub mod snapshot;
