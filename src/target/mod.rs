//! Floor 4: the SRP target: joins verbs, SRP, SCSI and block devices, and owns them, one shard a core.
//!
//! The control plane above it makes a [`snapshot::Snapshot`] and hands it down through
//! [`handle::TargetHandle`]; nothing here knows how the operator said what it says.

pub mod access;
pub mod handle;
pub mod identity;
pub mod limits;
pub mod snapshot;

/// Why a target did not start; one line that names what was wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// Starts the shards, one a core, with the first snapshot. Returns when all of them run.
pub fn start(config: handle::StartConfig) -> Result<handle::TargetHandle, StartError> {
    let shards = config.cores.len();
    Err(StartError(format!("this build has no shards yet, {shards} were asked for")))
}
