//! UNMAP parameter list (SBC-3, 5.28.2).

use crate::wire::be::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Bytes before the block descriptors.
pub const HEADER_BYTES: usize = 8;
/// Bytes of a block descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

/// An UNMAP block descriptor.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct UnmapDescriptor {
    /// UNMAP LOGICAL BLOCK ADDRESS.
    pub lba: u64,
    /// NUMBER OF LOGICAL BLOCKS; none is no error.
    pub blocks: u32,
}

impl UnmapDescriptor {
    fn parse(bytes: &[u8]) -> UnmapDescriptor {
        UnmapDescriptor { lba: u64_at(bytes, 0), blocks: u32_at(bytes, 8) }
    }
}

/// A parameter list whose descriptors are all there.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct UnmapList<'a> {
    descriptors: &'a [u8],
}

impl<'a> UnmapList<'a> {
    /// Reads a list; `None` if it is shorter than its header or than its header says. A last
    /// descriptor that UNMAP BLOCK DESCRIPTOR DATA LENGTH cuts is none.
    pub fn parse(bytes: &'a [u8]) -> Option<UnmapList<'a>> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        Some(UnmapList { descriptors: rest.get(..usize::from(u16_at(header, 2)))? })
    }

    /// How many descriptors there are.
    pub fn len(&self) -> usize {
        self.descriptors.len() / DESCRIPTOR_BYTES
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The descriptors, in order.
    pub fn iter(&self) -> impl Iterator<Item = UnmapDescriptor> + 'a {
        self.descriptors.chunks_exact(DESCRIPTOR_BYTES).map(UnmapDescriptor::parse)
    }
}

/// The bytes of a list of one descriptor.
pub fn emit_one(descriptor: UnmapDescriptor) -> [u8; HEADER_BYTES + DESCRIPTOR_BYTES] {
    let mut out = [0; HEADER_BYTES + DESCRIPTOR_BYTES];
    // UNMAP DATA LENGTH does not count itself.
    put_u16(&mut out, 0, (HEADER_BYTES + DESCRIPTOR_BYTES - 2) as u16);
    put_u16(&mut out, 2, DESCRIPTOR_BYTES as u16);
    put_u64(&mut out, HEADER_BYTES, descriptor.lba);
    put_u32(&mut out, HEADER_BYTES + 8, descriptor.blocks);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand from SBC-3, table 70 and 71.
    const LIST: [u8; 40] = [
        0, 38, 0, 32, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 8, 0, 0, 0, 0, //
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0,
    ];

    #[test]
    fn descriptors_in_order() {
        let list = UnmapList::parse(&LIST).unwrap();
        let expected = [
            UnmapDescriptor { lba: 0x102, blocks: 8 },
            UnmapDescriptor { lba: 0x0102_0304_0506_0708, blocks: 0x090a_0b0c },
        ];
        assert_eq!(list.iter().collect::<Vec<_>>(), expected);
        assert_eq!(list.len(), 2);
        let one = emit_one(expected[0]);
        assert_eq!(one[2..], [&[0, 16, 0, 0, 0, 0], &LIST[8..24]].concat());
        assert_eq!(one[..2], [0, 22]);
    }

    #[test]
    fn lists_that_are_cut() {
        assert_eq!(UnmapList::parse(&LIST[..7]), None);
        assert_eq!(UnmapList::parse(&LIST[..39]), None);
        let mut cut = LIST;
        cut[3] = 31;
        assert_eq!(UnmapList::parse(&cut).unwrap().len(), 1);
        cut[3] = 0;
        assert!(UnmapList::parse(&cut).unwrap().is_empty());
    }
}
