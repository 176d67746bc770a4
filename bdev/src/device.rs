//! What a block device is, and the queue that one thread drives it by.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::Path;

use reactors::memory::Region;
use reactors::time::Time;
use uuid::Uuid;

use crate::OpenError;
use crate::io::{Completion, Io, IoId, Op, RegionId, SubmitError};
use crate::stats::IoStats;

/// Size and manners of a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// How many logical blocks.
    pub blocks: u64,
    /// Logical blocks of a physical block, as a power of two.
    pub physical_block_exponent: u8,
    /// Alignment that buffers need for the fast way, in bytes (1: none).
    pub buffer_align_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Completed writes may be lost on power failure until flushed.
    pub write_cache: bool,
    /// Unmap is supported.
    pub unmap: bool,
    /// Unmapped blocks read as zeroes.
    pub unmap_reads_zeroes: bool,
    /// Write zeroes is supported.
    pub write_zeroes: bool,
    /// The medium spins.
    pub rotational: bool,
}

impl Geometry {
    /// The size of the device in bytes.
    pub const fn len_bytes(&self) -> u64 {
        self.blocks * self.block_bytes as u64
    }

    /// Whether the device does operations of this kind.
    pub const fn supports(&self, op: Op) -> bool {
        match op {
            Op::Read | Op::Flush => true,
            Op::Write { .. } => !self.read_only,
            Op::Unmap => self.unmap && !self.read_only,
            Op::WriteZeroes => self.write_zeroes && !self.read_only,
        }
    }
}

/// A block device: shared between threads, each of which opens a queue of its own. Whoever must
/// know which one it is upcasts to [`Any`].
pub trait Bdev: Any + Send + Sync {
    /// Its name in the registry.
    fn name(&self) -> &str;
    /// Its kind as SPDK's `bdev_get_bdevs` would call it, e.g. `URING disk`.
    fn product(&self) -> &'static str;
    /// Its identity; stays the same over restarts where the medium does.
    fn uuid(&self) -> Uuid;
    /// Its present geometry. The number of blocks may change while it is in use.
    fn geometry(&self) -> Geometry;

    /// The device that this one wraps, if it does: what the methods below say is then what that
    /// one says.
    fn base(&self) -> Option<&dyn Bdev> {
        None
    }

    /// Counts up with every change of the geometry, and whenever less or more of the medium is
    /// really there than before, so that a cached copy knows it is old.
    fn generation(&self) -> u64 {
        self.base().map_or(0, Bdev::generation)
    }

    /// The file or device that holds the data, if there is one.
    fn backing(&self) -> Option<&Path> {
        self.base().and_then(Bdev::backing)
    }

    /// Looks whether the backing store is still what it was. What is wrong with it goes to the log
    /// once, and a size that is another counts the [`generation`](Self::generation) up. May block
    /// as long as the file system does, so it is for a thread of its own; a second apart will do.
    /// A device that wraps another has no backing store of its own to look at.
    fn check_backing(&self) {}

    /// Looks again how large the backing store is, and takes that over. Devices without one
    /// answer what they are.
    fn rescan(&self) -> Result<Geometry, OpenError> {
        self.base().map_or_else(|| Ok(self.geometry()), Bdev::rescan)
    }

    /// Changes the size to `blocks`. Operations beyond a new end that are under way still
    /// complete.
    fn resize(&self, blocks: u64) -> Result<Geometry, OpenError> {
        let fixed = || OpenError::new(self.name(), format_args!("a {} cannot be resized", self.product()));
        self.base().ok_or_else(fixed)?.resize(blocks)
    }

    /// What all queues of this device have done so far.
    fn stats(&self) -> IoStats;

    /// Opens a queue of at most `depth` operations for the calling thread, which alone may use
    /// it.
    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError>;
}

/// One thread's way to one device.
///
/// Before a queue is dropped its operations are to be cancelled and polled until
/// [`in_flight`](Self::in_flight) is zero. A queue that is dropped earlier gives up its memory to
/// whatever the kernel still does with it, rather than free it: correct, and wasteful.
pub trait BlockQueue {
    /// Makes `region` known for buffers; the queue keeps it alive. Registers it with the kernel
    /// where that helps and is allowed. The same region again gives the same id.
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError>;

    /// The memory that the medium lies in, of a device some of whose reads need no operation: see
    /// [`read_in_place`](Self::read_in_place). It is the same as long as the queue is open.
    fn memory(&self) -> Option<&Region> {
        None
    }

    /// A read without an operation: where in [`memory`](Self::memory) the bytes lie that it asks for. It
    /// counts as done. `None` if it has to be submitted, which says so, too, if it does not fit the device.
    ///
    /// Nothing is promised of the bytes beyond what memory gives: what is written, by anybody, before
    /// they are looked at is seen, whole or in part, as with operations that overlap. They stay where
    /// they are as long as a clone of the region lives; to write there is not for the reader.
    fn read_in_place(&mut self, _offset_bytes: u64, _len_bytes: u64) -> Option<usize> {
        None
    }

    /// Takes `io`; it starts at the latest with the next [`poll`](Self::poll). What the device
    /// cannot do (a write where it is read-only) is taken and completes with an error.
    fn submit(&mut self, io: Io) -> Result<(), SubmitError>;

    /// Asks that the operation end soon. It still completes exactly once, as `Cancelled` if it
    /// had no effect, else with its own result. Unknown ids are ignored.
    fn cancel(&mut self, id: IoId);

    /// Drives the device: hands what was submitted to the kernel (one system call at most,
    /// one to silence [`wait_fd`](Self::wait_fd) after a sleep, and for a file that is in memory one for
    /// each read) and appends what has completed to
    /// `completions`, up to its spare capacity. A queue with nothing in flight need not be polled.
    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>);

    /// How many operations were taken and have not completed.
    fn in_flight(&self) -> usize;

    /// A descriptor that becomes readable when completions wait, for sleeping reactors. It speaks
    /// between [`next_deadline`](Self::next_deadline) and the next poll only, so that a reactor
    /// that is awake need not pay for it. It is this queue's own until the queue is dropped.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// When the next poll has something to do without any descriptor becoming ready. To be asked
    /// last, after the poll that found nothing, by who then sleeps on
    /// [`wait_fd`](Self::wait_fd), and no longer than until this time.
    fn next_deadline(&self) -> Time {
        Time::NEVER
    }
}
