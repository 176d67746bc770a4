//! One operation on its way through the kernel: values only, no ring and no memory.
//!
//! An operation goes to the kernel in segments: usually one, more if the kernel did less than was
//! asked, if a bounce buffer is smaller than the transfer, or if zeroes are written by hand.

use reactors::time::Time;

use super::file::Zeroing;
use crate::io::{Io, IoError, Op};

/// An operation that the ring holds.
pub(super) struct Pending {
    pub(super) io: Io,
    /// Which of the ring's queues it belongs to.
    pub(super) tenant: u16,
    /// When it was first handed to the kernel.
    pub(super) began: Option<Time>,
    /// How many of its bytes are done.
    pub(super) done_bytes: u64,
    /// How many bytes the kernel was asked for last.
    pub(super) segment_bytes: u64,
    /// How the zeroes of that segment are written.
    pub(super) zeroing: Zeroing,
    /// The bounce buffer that it holds.
    pub(super) bounce: Option<u16>,
    /// The kernel refused its buffer, wrongly or not.
    pub(super) must_bounce: bool,
    /// Somebody asked for its end.
    pub(super) cancelled: bool,
    /// The kernel has it.
    pub(super) in_kernel: bool,
}

/// What to do after a result.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It is over.
    Finish(Result<(), IoError>),
    /// The file ended before the range: it is over, and the file is to be looked at.
    Ended,
    /// Hand the rest to the kernel.
    Again,
    /// Write zeroes another way.
    OtherZeroing,
    /// Do it through a bounce buffer.
    Bounce,
}

impl Pending {
    pub(super) fn new(io: Io, tenant: u16) -> Pending {
        Pending {
            io,
            tenant,
            began: None,
            done_bytes: 0,
            segment_bytes: 0,
            zeroing: Zeroing::ZeroRange,
            bounce: None,
            must_bounce: false,
            cancelled: false,
            in_kernel: false,
        }
    }

    /// Bytes that are not done.
    pub(super) fn remaining(&self) -> u64 {
        self.io.len_bytes - self.done_bytes
    }

    /// Whether ending it now would leave the device as if it had never been.
    pub(super) fn is_without_effect(&self) -> bool {
        !self.io.op.is_write() || self.done_bytes == 0
    }

    /// Whether the segment is a plain transfer of bytes.
    fn moves_bytes(&self) -> bool {
        self.io.op.has_buffer() || (self.io.op == Op::WriteZeroes && self.zeroing == Zeroing::Write)
    }

    /// Takes the kernel's `result` for the last segment: its length in bytes or a negative errno.
    /// Segments begin on blocks; of a part of a block the kernel did nothing that counts.
    pub(super) fn judge(&mut self, result: i32, block_bytes: u32, direct: bool) -> Next {
        if result < 0 {
            return self.judge_errno(-result, direct);
        }
        if !self.moves_bytes() {
            self.done_bytes = self.io.len_bytes;
            return Next::Finish(Ok(()));
        }
        let moved = result.unsigned_abs();
        let whole = u64::from(moved - moved % block_bytes).min(self.segment_bytes);
        self.done_bytes += whole;
        if self.remaining() == 0 {
            return Next::Finish(Ok(()));
        }
        match (whole, self.io.op) {
            (1.., _) => Next::Again,
            (0, Op::Read) => Next::Ended,
            // A write that moves nothing and says no error: nobody would end this otherwise.
            (0, _) => Next::Finish(Err(IoError::Medium(libc::EIO))),
        }
    }

    fn judge_errno(&mut self, errno: i32, direct: bool) -> Next {
        // A punched or zeroed range may be half done when a signal ends it; bytes are not.
        let untouched = self.is_without_effect()
            && (errno == libc::ECANCELED || self.moves_bytes() || !self.io.op.is_write());
        match errno {
            libc::ECANCELED | libc::EINTR if self.cancelled && untouched => {
                Next::Finish(Err(IoError::Cancelled))
            }
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => Next::Again,
            libc::EOPNOTSUPP | libc::ENOSYS
                if self.io.op == Op::WriteZeroes && self.zeroing != Zeroing::Write =>
            {
                Next::OtherZeroing
            }
            libc::EINVAL if direct && self.moves_bytes() && !self.must_bounce => Next::Bounce,
            libc::EOPNOTSUPP | libc::ENOSYS => Next::Finish(Err(IoError::Unsupported)),
            libc::ENOSPC | libc::EDQUOT => Next::Finish(Err(IoError::NoSpace)),
            libc::EROFS => Next::Finish(Err(IoError::ReadOnly)),
            libc::ENODEV | libc::ENXIO => Next::Finish(Err(IoError::Gone)),
            errno => Next::Finish(Err(IoError::Medium(errno))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{IoId, RegionId};

    fn pending(op: Op, len_bytes: u64) -> Pending {
        let io = Io { id: IoId(1), op, offset_bytes: 0, len_bytes, region: RegionId(0), region_offset: 0 };
        Pending { segment_bytes: len_bytes, in_kernel: true, ..Pending::new(io, 0) }
    }

    const WRITE: Op = Op::Write { fua: false };

    #[test]
    fn short_transfers_go_on_from_the_last_whole_block() {
        let mut read = pending(Op::Read, 4096);
        assert_eq!(read.judge(1000, 512, true), Next::Again);
        assert_eq!(read.done_bytes, 512);
        assert_eq!(read.judge(3584, 512, true), Next::Finish(Ok(())));
    }

    #[test]
    fn a_read_that_moves_no_block_met_the_end_of_the_file() {
        assert_eq!(pending(Op::Read, 4096).judge(0, 512, true), Next::Ended);
        assert_eq!(pending(Op::Read, 4096).judge(511, 512, false), Next::Ended);
        assert_eq!(pending(WRITE, 512).judge(0, 512, true), Next::Finish(Err(IoError::Medium(libc::EIO))));
    }

    #[test]
    fn errors_by_their_names() {
        let of = |op, errno: i32| pending(op, 512).judge(-errno, 512, false);
        assert_eq!(of(WRITE, libc::ENOSPC), Next::Finish(Err(IoError::NoSpace)));
        assert_eq!(of(WRITE, libc::EDQUOT), Next::Finish(Err(IoError::NoSpace)));
        assert_eq!(of(Op::Read, libc::EIO), Next::Finish(Err(IoError::Medium(libc::EIO))));
        assert_eq!(of(Op::Read, libc::EAGAIN), Next::Again);
        assert_eq!(of(Op::Read, libc::EINTR), Next::Again);
        assert_eq!(of(Op::Unmap, libc::EOPNOTSUPP), Next::Finish(Err(IoError::Unsupported)));
        assert_eq!(of(Op::WriteZeroes, libc::EOPNOTSUPP), Next::OtherZeroing);
        assert_eq!(of(Op::Read, libc::ENODEV), Next::Finish(Err(IoError::Gone)));
        assert_eq!(pending(WRITE, 512).judge(-libc::EINVAL, 512, true), Next::Bounce);
        assert_eq!(of(WRITE, libc::EINVAL), Next::Finish(Err(IoError::Medium(libc::EINVAL))));
    }

    #[test]
    fn a_cancelled_write_that_began_is_finished() {
        let mut write = pending(WRITE, 4096);
        write.cancelled = true;
        assert_eq!(write.judge(-libc::ECANCELED, 512, true), Next::Finish(Err(IoError::Cancelled)));
        let mut begun = pending(WRITE, 4096);
        begun.cancelled = true;
        assert_eq!(begun.judge(512, 512, true), Next::Again);
        assert_eq!(begun.judge(-libc::ECANCELED, 512, true), Next::Again);
        let mut punch = pending(Op::Unmap, 4096);
        punch.cancelled = true;
        assert_eq!(punch.judge(-libc::EINTR, 512, true), Next::Again, "may be half done");
        assert_eq!(punch.judge(-libc::ECANCELED, 512, true), Next::Finish(Err(IoError::Cancelled)));
        let mut flush = pending(Op::Flush, 0);
        flush.cancelled = true;
        assert_eq!(flush.judge(-libc::EINTR, 512, true), Next::Finish(Err(IoError::Cancelled)));
    }
}
