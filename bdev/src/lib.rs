//! Block devices, each behind one polled queue a core.
//!
//! A device ([`Bdev`]) is shared and knows its geometry; a queue ([`BlockQueue`]) belongs to one
//! thread, takes operations by value and gives completions when polled. This crate knows offsets
//! in bytes and blocks. It knows no SCSI and no network.
//!
//! * the interface: [`device`], [`io`]; devices by name: [`registry`]; their counters: [`stats`]
//! * devices: [`uring`] (file or block device), [`malloc`], [`null`], [`sim`] (virtual time)
//! * wrappers around any device: [`delay`], [`error`]
//! * a blocking driver for tests and tools: [`testing`]
//!
//! A queue allocates when it is opened and not after.

pub mod delay;
pub mod device;
pub mod error;
pub mod io;
pub mod malloc;
pub mod null;
pub mod registry;
pub mod sim;
pub mod stats;
pub mod testing;
pub mod uring;

mod check;
mod instant;

pub use device::{Bdev, BlockQueue, Geometry};
pub use io::{Completion, Io, IoError, IoId, Op, OpKind, OpenError, RegionId, SubmitError};
