//! One block operation, its completion, and how either can fail: plain values.

use std::fmt;

/// A memory region that a queue knows (see [`BlockQueue::register`](crate::BlockQueue::register)).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct RegionId(pub u16);

/// What the submitter calls an operation; comes back in its completion. Unique among the
/// operations that a queue holds.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct IoId(pub u64);

/// What is to be done.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Device to buffer.
    Read,
    /// Buffer to device; `fua`: durable before it completes.
    Write {
        /// Force unit access: durable before it completes.
        fua: bool,
    },
    /// All completed writes become durable. No buffer; offset and length say which range, zero
    /// length means all of the device.
    Flush,
    /// The range is not needed any more; it reads as zeroes or as anything, as the device's
    /// geometry says. No buffer.
    Unmap,
    /// The range reads as zeroes afterwards. No buffer.
    WriteZeroes,
}

impl Op {
    /// What kind of operation this is.
    pub const fn kind(self) -> OpKind {
        match self {
            Op::Read => OpKind::Read,
            Op::Write { .. } => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Unmap => OpKind::Unmap,
            Op::WriteZeroes => OpKind::WriteZeroes,
        }
    }

    /// Whether this operation has a buffer.
    pub const fn has_buffer(self) -> bool {
        matches!(self, Op::Read | Op::Write { .. })
    }

    /// Whether this operation changes data.
    pub const fn is_write(self) -> bool {
        matches!(self, Op::Write { .. } | Op::Unmap | Op::WriteZeroes)
    }
}

/// Kinds of operation: what statistics, latencies and injected errors are kept by.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum OpKind {
    /// [`Op::Read`].
    Read,
    /// [`Op::Write`].
    Write,
    /// [`Op::Flush`].
    Flush,
    /// [`Op::Unmap`].
    Unmap,
    /// [`Op::WriteZeroes`].
    WriteZeroes,
}

impl OpKind {
    /// How many kinds there are.
    pub const COUNT: usize = 5;

    /// All kinds, in the order of [`index`](Self::index).
    pub const ALL: [OpKind; Self::COUNT] =
        [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Unmap, OpKind::WriteZeroes];

    /// 0..[`COUNT`](Self::COUNT): for tables by kind.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name as SPDK's `io_type`, e.g. `write_zeroes`.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Unmap => "unmap",
            OpKind::WriteZeroes => "write_zeroes",
        }
    }
}

/// One operation. The buffer (if [`Op::has_buffer`]) belongs to the queue from `submit` until its
/// completion.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Io {
    /// Comes back in the completion.
    pub id: IoId,
    /// What to do.
    pub op: Op,
    /// Where on the device, in bytes; a multiple of the block size.
    pub offset_bytes: u64,
    /// How much, in bytes; a multiple of the block size; with a buffer at most `u32::MAX`.
    pub len_bytes: u64,
    /// The region of the buffer.
    pub region: RegionId,
    /// Where in the region the buffer begins, in bytes.
    pub region_offset: usize,
}

/// Why an operation failed, as a user of the device must distinguish it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IoError {
    /// The medium could not be read or written there.
    #[error("medium error (errno {0})")]
    Medium(i32),
    /// No space on what backs the device.
    #[error("no space left on the backing store")]
    NoSpace,
    /// The range lies beyond what backs the device now: truncated while in use.
    #[error("the backing store ended before the range")]
    Truncated,
    /// The device cannot do this operation.
    #[error("operation not supported by the device")]
    Unsupported,
    /// The device does not take writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// It was cancelled before it took effect.
    #[error("cancelled")]
    Cancelled,
    /// The device is gone.
    #[error("the device is gone")]
    Gone,
}

/// The end of one operation. Its buffer belongs to the submitter again.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Of which operation.
    pub id: IoId,
    /// What became of it; all of its bytes or an error, never a part.
    pub result: Result<(), IoError>,
}

/// Why an operation was not taken. It has had no effect and the submitter still owns its buffer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// The queue holds as much as it can; try again after a poll found completions.
    Full,
    /// Offset, length or buffer lie outside the device or region, or are not multiples of the
    /// block size: an error of the caller, or the device has become smaller since it looked.
    Invalid,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "the block queue is full",
            SubmitError::Invalid => "the operation does not fit the device or its buffer",
        })
    }
}

impl std::error::Error for SubmitError {}

/// Why a device or a queue could not be opened: names the thing and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct OpenError {
    /// The file, device or queue.
    pub what: String,
    /// What was wrong with it, with the value found, and what to do.
    pub why: String,
}

impl OpenError {
    /// `what` could not be opened because of `why`.
    pub fn new(what: impl fmt::Display, why: impl fmt::Display) -> OpenError {
        OpenError { what: what.to_string(), why: why.to_string() }
    }
}
