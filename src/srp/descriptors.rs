//! Which pieces of the initiator's memory cover a range of a command's data buffer.
//!
//! A command keeps a [`BufferRef`], a few plain numbers; its descriptors stay where they came (in
//! the IU, or in memory that an external table was read into) and are looked at when needed.

use super::Direction;
use crate::wire::num::RKey;
use crate::wire::srp::{Cmd, DataBuffer, DescTable, Descriptor};

/// Most descriptors of a command: SG_MAX_SEGMENTS of Linux, which is the most that ib_srp's
/// `indirect_sg_entries` can ask for. A table of that many takes 32 KiB.
pub const MAX_DESCRIPTORS: usize = 2048;

/// A data buffer without its descriptors: fits a task that outlives the IU's view.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum BufferRef {
    /// No data.
    #[default]
    None,
    /// One piece.
    Direct(Descriptor),
    /// Descriptors in the IU.
    Inline {
        /// Where the first begins, in bytes from the IU's start.
        offset: u16,
        /// How many there are.
        count: u16,
        /// Length of the data in bytes.
        total_bytes: u32,
    },
    /// Descriptors in the initiator's memory: RDMA READ all of `table`, then [`check_table`].
    External {
        /// The table; at most [`MAX_DESCRIPTORS`] long.
        table: Descriptor,
        /// Length of the data in bytes.
        total_bytes: u32,
    },
    /// The data are in the IU.
    Immediate {
        /// Where they begin, in bytes from the IU's start.
        offset: u16,
        /// Their length in bytes.
        len_bytes: u32,
    },
}

impl BufferRef {
    /// Length of the data buffer in bytes.
    pub fn len_bytes(&self) -> u32 {
        match *self {
            BufferRef::None => 0,
            BufferRef::Direct(descriptor) => descriptor.len_bytes,
            BufferRef::Inline { total_bytes, .. } | BufferRef::External { total_bytes, .. } => total_bytes,
            BufferRef::Immediate { len_bytes, .. } => len_bytes,
        }
    }

    /// The pieces of a direct or inline buffer, given the IU. `None` for the other forms, and if
    /// `iu` is not the IU that this came from.
    pub fn table<'a>(&self, iu: &'a [u8]) -> Option<Table<'a>> {
        match *self {
            BufferRef::Direct(descriptor) => Some(Table::One(descriptor)),
            BufferRef::Inline { offset, count, .. } => {
                let from = usize::from(offset);
                let bytes = iu.get(from..from + usize::from(count) * Descriptor::BYTES)?;
                DescTable::new(bytes).map(Table::Many)
            }
            BufferRef::None | BufferRef::External { .. } | BufferRef::Immediate { .. } => None,
        }
    }
}

/// What is wrong with a command's data buffers although each one is well formed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// Data in both directions.
    #[error("data in both directions")]
    Bidirectional,
    /// More descriptors than [`MAX_DESCRIPTORS`].
    #[error("{0} descriptors, at most {MAX_DESCRIPTORS} are supported")]
    TooMany(usize),
    /// An external table that is shorter than the data buffer.
    #[error("descriptors cover {covered} bytes of a buffer of {total}")]
    Uncovered {
        /// Sum of the descriptors' lengths in bytes.
        covered: u64,
        /// The length that the command claims, in bytes.
        total: u32,
    },
    /// An external table of other length than the command said.
    #[error("a descriptor table of {0} bytes")]
    TableLength(usize),
}

/// Direction and buffer of a command.
#[inline(always)]
pub fn data_of(cmd: &Cmd<'_>) -> Result<(Direction, BufferRef), BufferError> {
    let out_at = Cmd::FIXED_BYTES + cmd.additional_cdb.len();
    // With no data-OUT buffer the data-IN descriptors begin at the same place.
    match (cmd.data_out.is_none(), cmd.data_in.is_none()) {
        (true, true) => Ok((Direction::None, BufferRef::None)),
        (false, true) => Ok((Direction::Out, buffer_ref(&cmd.data_out, out_at)?)),
        (true, false) => Ok((Direction::In, buffer_ref(&cmd.data_in, out_at)?)),
        (false, false) => Err(BufferError::Bidirectional),
    }
}

#[inline(always)]
fn buffer_ref(buffer: &DataBuffer<'_>, at: usize) -> Result<BufferRef, BufferError> {
    Ok(match *buffer {
        DataBuffer::None => BufferRef::None,
        DataBuffer::Direct(descriptor) => BufferRef::Direct(descriptor),
        DataBuffer::Indirect { table, total_bytes, inline } => {
            let entries = table.len_bytes as usize / Descriptor::BYTES;
            if entries > MAX_DESCRIPTORS {
                return Err(BufferError::TooMany(entries));
            }
            if entries > inline.len() {
                return Ok(BufferRef::External { table, total_bytes });
            }
            // At most 48 + 252 + 20 + 255 * 16: fits 16 bits.
            let offset = (at + Cmd::INDIRECT_BYTES) as u16;
            BufferRef::Inline { offset, count: inline.len() as u16, total_bytes }
        }
        DataBuffer::Immediate { data, offset } => {
            BufferRef::Immediate { offset: offset as u16, len_bytes: data.len() as u32 }
        }
    })
}

/// Checks an external table that has been read into memory.
pub fn check_table(bytes: &[u8], total_bytes: u32) -> Result<DescTable<'_>, BufferError> {
    let table = DescTable::new(bytes).ok_or(BufferError::TableLength(bytes.len()))?;
    if table.len() > MAX_DESCRIPTORS {
        return Err(BufferError::TooMany(table.len()));
    }
    let covered = table.total_bytes();
    if covered < u64::from(total_bytes) {
        return Err(BufferError::Uncovered { covered, total: total_bytes });
    }
    Ok(table)
}

/// Descriptors in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Table<'a> {
    /// A direct descriptor.
    One(Descriptor),
    /// An inline table, or an external one that has been read.
    Many(DescTable<'a>),
}

impl Table<'_> {
    fn get(&self, index: usize) -> Option<Descriptor> {
        match self {
            Table::One(descriptor) => (index == 0).then_some(*descriptor),
            Table::Many(table) => table.get(index),
        }
    }
}

/// A piece of the initiator's memory, never empty.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Virtual address.
    pub addr: u64,
    /// Memory handle.
    pub rkey: RKey,
    /// Length in bytes.
    pub len_bytes: u32,
}

/// A place in a data buffer. Going on from a cursor costs nothing for what lies before it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Cursor {
    index: u32,
    within: u32,
}

impl Cursor {
    /// The begin of the buffer.
    pub const START: Cursor = Cursor { index: 0, within: 0 };

    /// The place `offset` bytes from the begin; beyond the last descriptor it is the end.
    pub fn at(table: &Table<'_>, offset: u64) -> Self {
        let mut left = offset;
        let mut index = 0;
        while let Some(descriptor) = table.get(index as usize) {
            let len = u64::from(descriptor.len_bytes);
            if left < len {
                return Cursor { index, within: left as u32 };
            }
            left -= len;
            index += 1;
        }
        Cursor { index, within: 0 }
    }

    /// The next piece, of at most `max_bytes`, and moves behind it. `None` at the end of the
    /// table or for `max_bytes` zero.
    #[inline]
    pub fn next(&mut self, table: &Table<'_>, max_bytes: u32) -> Option<Piece> {
        if max_bytes == 0 {
            return None;
        }
        loop {
            let descriptor = table.get(self.index as usize)?;
            let rest = descriptor.len_bytes.saturating_sub(self.within);
            if rest == 0 {
                self.index += 1;
                self.within = 0;
                continue;
            }
            let len_bytes = rest.min(max_bytes);
            // A wrapping address is the initiator's lie; the peer's bounds check finds it.
            let addr = descriptor.addr.wrapping_add(u64::from(self.within));
            self.within += len_bytes;
            return Some(Piece { addr, rkey: descriptor.rkey, len_bytes });
        }
    }
}

/// The pieces that cover `len_bytes` from a cursor on; see [`pieces`].
#[derive(Copy, Clone, Debug)]
pub struct Pieces<'a> {
    table: Table<'a>,
    cursor: Cursor,
    left_bytes: u32,
}

impl Pieces<'_> {
    /// Behind the pieces given so far.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Bytes that the pieces to come will cover, if the table reaches that far.
    pub fn left_bytes(&self) -> u32 {
        self.left_bytes
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;
    fn next(&mut self) -> Option<Piece> {
        let piece = self.cursor.next(&self.table, self.left_bytes)?;
        self.left_bytes -= piece.len_bytes;
        Some(piece)
    }
}

/// The pieces that cover `len_bytes` from `from` on.
pub fn pieces(table: Table<'_>, from: Cursor, len_bytes: u32) -> Pieces<'_> {
    Pieces { table, cursor: from, left_bytes: len_bytes }
}
