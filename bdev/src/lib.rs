//! Block devices, each behind one polled queue a core.
//!
//! A device ([`Bdev`]) is shared and knows its geometry; a queue ([`BlockQueue`]) belongs to one
//! thread, takes operations by value and gives completions when polled. This crate knows offsets
//! in bytes and blocks. It knows no SCSI and no network.

pub mod device;
pub mod io;

pub use device::{Bdev, BlockQueue, Geometry};
pub use io::{Completion, Io, IoError, IoId, Op, OpenError, RegionId, SubmitError};
