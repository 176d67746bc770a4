//! Block devices, each behind one polled queue a core.
//!
//! A device ([`Bdev`]) is shared and knows its geometry; a queue ([`BlockQueue`]) belongs to one
//! thread, takes operations by value and gives completions when polled. This crate knows offsets
//! in bytes and blocks. It knows no SCSI and no network.
//!
//! * the interface: [`device`], [`io`]; their counters: [`stats`]
//! * devices: [`uring`] (file or block device), [`malloc`], [`null`]
//! * a blocking driver for tests and tools: [`testing`]
//!
//! A queue allocates when it is opened and not after.

pub mod device;
pub mod io;
pub mod malloc;
pub mod null;
pub mod stats;
pub mod testing;
pub mod uring;

mod check;
mod instant;

pub use device::{Bdev, BlockQueue, Geometry};
pub use io::{Completion, Io, IoError, IoId, Op, OpKind, OpenError, RegionId, SubmitError};
