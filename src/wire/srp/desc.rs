//! Data buffer descriptors: where in the initiator's memory a command's data are.

use super::{put, u32_at, u64_at};
use crate::wire::num::RKey;

/// A memory descriptor of 16 bytes: a piece of the initiator's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Virtual address.
    pub addr: u64,
    /// Memory handle.
    pub rkey: RKey,
    /// Length in bytes; zero is allowed.
    pub len_bytes: u32,
}

impl Descriptor {
    /// Bytes of a descriptor.
    pub const BYTES: usize = 16;

    /// Reads a descriptor.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Descriptor { addr: u64_at(bytes, 0), rkey: RKey(u32_at(bytes, 8)), len_bytes: u32_at(bytes, 12) }
    }

    /// The bytes of the descriptor.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, &self.addr.to_be_bytes());
        put(&mut bytes, 8, &self.rkey.0.to_be_bytes());
        put(&mut bytes, 12, &self.len_bytes.to_be_bytes());
        bytes
    }
}

/// A table of descriptors in memory, read one by one as asked: nothing is copied.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
pub struct DescTable<'a> {
    /// A whole number of descriptors.
    bytes: &'a [u8],
}

impl<'a> DescTable<'a> {
    /// The table of these bytes; `None` if they are no whole number of descriptors.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.len().is_multiple_of(Descriptor::BYTES).then_some(DescTable { bytes })
    }

    /// How many descriptors there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / Descriptor::BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of the table.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The descriptor number `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Descriptor> {
        let at = index.checked_mul(Descriptor::BYTES)?;
        self.bytes.get(at..)?.first_chunk().map(Descriptor::parse)
    }

    /// All descriptors in order.
    pub fn iter(&self) -> impl Iterator<Item = Descriptor> + 'a {
        self.bytes.as_chunks::<{ Descriptor::BYTES }>().0.iter().map(Descriptor::parse)
    }

    /// The sum of all lengths, in bytes; cannot overflow.
    pub fn total_bytes(&self) -> u64 {
        self.iter().map(|descriptor| u64::from(descriptor.len_bytes)).sum()
    }
}

impl std::fmt::Debug for DescTable<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Where the data of one direction of a command are.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum DataBuffer<'a> {
    /// There are none (format 0).
    #[default]
    None,
    /// In one piece of the initiator's memory (format 1).
    Direct(Descriptor),
    /// In several pieces (format 2).
    Indirect {
        /// Where the whole table of descriptors lies in the initiator's memory. Its length is a
        /// multiple of 16 and not shorter than `inline`.
        table: Descriptor,
        /// Length of the data in bytes.
        total_bytes: u32,
        /// The first descriptors of the table. If all are here, their lengths sum up to
        /// `total_bytes` at least.
        inline: DescTable<'a>,
    },
    /// In the IU itself (format 3, Linux, data-OUT only).
    Immediate {
        /// The data.
        data: &'a [u8],
        /// Where in the IU they begin, in bytes.
        offset: usize,
    },
}

impl DataBuffer<'_> {
    /// Length of the data buffer in bytes.
    pub fn len_bytes(&self) -> u32 {
        match self {
            DataBuffer::None => 0,
            DataBuffer::Direct(descriptor) => descriptor.len_bytes,
            DataBuffer::Indirect { total_bytes, .. } => *total_bytes,
            DataBuffer::Immediate { data, .. } => data.len() as u32,
        }
    }

    /// Whether the direction is absent.
    pub fn is_none(&self) -> bool {
        matches!(self, DataBuffer::None)
    }

    /// The format code, a nibble.
    pub const fn code(&self) -> u8 {
        match self {
            DataBuffer::None => 0,
            DataBuffer::Direct(_) => 1,
            DataBuffer::Indirect { .. } => 2,
            DataBuffer::Immediate { .. } => 3,
        }
    }
}
