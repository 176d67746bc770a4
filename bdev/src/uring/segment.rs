//! What the kernel is asked for next on behalf of an operation.

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, types};
use reactors::memory::OutOfBounds;

use super::buffers::{BOUNCE_BYTES, Buffers, Place};
use super::file::{File, Zeroing};
use super::op::Pending;
use crate::io::Op;

/// The most that one segment moves, in bytes: `MAX_RW_COUNT` of the kernel is a page below 2 GiB.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Why there is no entry.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// All bounce buffers are in use.
    NoBounce,
    /// The buffer is not where it was said to be.
    OutOfBounds,
}

impl From<OutOfBounds> for Obstacle {
    fn from(_: OutOfBounds) -> Obstacle {
        Obstacle::OutOfBounds
    }
}

/// The entry for what is next of `op` on `file`, which is `fd` with `flags`.
pub(super) fn entry(
    op: &mut Pending,
    file: &File,
    (fd, flags): (Fd, Flags),
    buffers: &mut Buffers,
) -> Result<Entry, Obstacle> {
    let (io, remaining) = (op.io, op.remaining());
    let offset = io.offset_bytes + op.done_bytes;
    op.segment_bytes = remaining;
    let entry = match io.op {
        Op::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        Op::Unmap => allocate(fd, offset, remaining, libc::FALLOC_FL_PUNCH_HOLE),
        Op::WriteZeroes => {
            op.zeroing = file.zeroing();
            match op.zeroing {
                Zeroing::ZeroRange => allocate(fd, offset, remaining, libc::FALLOC_FL_ZERO_RANGE),
                Zeroing::PunchHole => allocate(fd, offset, remaining, libc::FALLOC_FL_PUNCH_HOLE),
                Zeroing::Write => {
                    op.segment_bytes = remaining.min(BOUNCE_BYTES as u64);
                    write(fd, buffers.zeroes()?, op.segment_bytes, offset, false)
                }
            }
        }
        Op::Read => {
            let place = place(op, file, buffers)?;
            read(fd, place, op.segment_bytes, offset)
        }
        Op::Write { fua } => {
            let place = place(op, file, buffers)?;
            write(fd, place, op.segment_bytes, offset, fua)
        }
    };
    Ok(entry.flags(flags))
}

/// Where the next segment's bytes are: in the operation's buffer, or copied to a bounce buffer if
/// O_DIRECT would not take them from there.
fn place(op: &mut Pending, file: &File, buffers: &mut Buffers) -> Result<Place, Obstacle> {
    let (io, remaining) = (op.io, op.remaining());
    let at = io.region_offset + op.done_bytes as usize;
    op.segment_bytes = remaining.min(MAX_SEGMENT_BYTES);
    let own = buffers.place(io.region, at, op.segment_bytes as usize).ok_or(Obstacle::OutOfBounds)?;
    let mask = u64::from(file.direct.map_or(1, |direct| direct.memory_align)) - 1;
    if !op.must_bounce && own.address.as_ptr() as u64 & mask == 0 {
        return Ok(own);
    }
    op.bounce = op.bounce.or_else(|| buffers.take_bounce());
    let bounce = op.bounce.ok_or(Obstacle::NoBounce)?;
    op.segment_bytes = remaining.min(BOUNCE_BYTES as u64);
    if io.op.is_write() {
        buffers
            .copy_bounce(bounce, io.region, at, op.segment_bytes as usize, false)
            .ok_or(Obstacle::OutOfBounds)?;
    }
    Ok(buffers.bounce_place(bounce)?)
}

/// Asks for the size of the file behind `fd`, which is told at `answer`: room for a
/// `struct statx`.
pub(super) fn watch(fd: Fd, answer: Place) -> Entry {
    let answer = answer.address.as_ptr().cast::<types::statx>();
    opcode::Statx::new(fd, c"".as_ptr(), answer).flags(libc::AT_EMPTY_PATH).mask(libc::STATX_SIZE).build()
}

/// Changes what the file has allocated, and never its size.
fn allocate(fd: Fd, offset: u64, len_bytes: u64, how: i32) -> Entry {
    opcode::Fallocate::new(fd, len_bytes).offset(offset).mode(how | libc::FALLOC_FL_KEEP_SIZE).build()
}

fn read(fd: Fd, to: Place, len_bytes: u64, offset: u64) -> Entry {
    // Segments are at most `MAX_SEGMENT_BYTES`.
    let (address, len_bytes) = (to.address.as_ptr(), len_bytes as u32);
    match to.fixed {
        Some(index) => opcode::ReadFixed::new(fd, address, len_bytes, index).offset(offset).build(),
        None => opcode::Read::new(fd, address, len_bytes).offset(offset).build(),
    }
}

fn write(fd: Fd, from: Place, len_bytes: u64, offset: u64, fua: bool) -> Entry {
    let (address, len_bytes) = (from.address.as_ptr().cast_const(), len_bytes as u32);
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    match from.fixed {
        Some(index) => {
            opcode::WriteFixed::new(fd, address, len_bytes, index).offset(offset).rw_flags(flags).build()
        }
        None => opcode::Write::new(fd, address, len_bytes).offset(offset).rw_flags(flags).build(),
    }
}
