//! READ CAPACITY parameter data (SBC-3, 5.15.2 and 5.16.2).

use crate::wire::be::{u32_at, u64_at};

/// What both forms of READ CAPACITY tell.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Capacity {
    /// How many logical blocks; the wire has the last block's address.
    pub blocks: u64,
    /// LOGICAL BLOCK LENGTH IN BYTES.
    pub block_bytes: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT, 0..=15.
    pub physical_block_exponent: u8,
    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS, 0..=16383.
    pub lowest_aligned_lba: u16,
    /// LBPME: UNMAP or WRITE SAME can unmap.
    pub provisioning: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub unmapped_zeroes: bool,
}

impl Capacity {
    /// Bytes of READ CAPACITY(10) data.
    pub const TEN_BYTES: usize = 8;
    /// Bytes of READ CAPACITY(16) data.
    pub const SIXTEEN_BYTES: usize = 32;

    /// READ CAPACITY(10) data: FFFF_FFFFh tells to ask with the 16-byte form.
    pub fn emit_10(&self) -> [u8; Self::TEN_BYTES] {
        let mut out = [0; Self::TEN_BYTES];
        let last = u32::try_from(self.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
        out[..4].copy_from_slice(&last.to_be_bytes());
        out[4..].copy_from_slice(&self.block_bytes.to_be_bytes());
        out
    }

    /// READ CAPACITY(16) data.
    pub fn emit_16(&self) -> [u8; Self::SIXTEEN_BYTES] {
        let mut out = [0; Self::SIXTEEN_BYTES];
        out[..8].copy_from_slice(&self.blocks.saturating_sub(1).to_be_bytes());
        out[8..12].copy_from_slice(&self.block_bytes.to_be_bytes());
        out[13] = self.physical_block_exponent & 0xf;
        let flags = u16::from(self.provisioning) << 15 | u16::from(self.unmapped_zeroes) << 14;
        out[14..16].copy_from_slice(&(flags | (self.lowest_aligned_lba & 0x3fff)).to_be_bytes());
        out
    }

    /// Reads READ CAPACITY(10) data; `None` if short, or if the medium is too large for it.
    pub fn parse_10(bytes: &[u8]) -> Option<Capacity> {
        let bytes = bytes.get(..Self::TEN_BYTES)?;
        let last = u32_at(bytes, 0);
        (last != u32::MAX).then(|| Capacity {
            blocks: u64::from(last) + 1,
            block_bytes: u32_at(bytes, 4),
            physical_block_exponent: 0,
            lowest_aligned_lba: 0,
            provisioning: false,
            unmapped_zeroes: false,
        })
    }

    /// Reads READ CAPACITY(16) data; `None` if short of the fields up to byte 15, or if the
    /// count of blocks overflows.
    pub fn parse_16(bytes: &[u8]) -> Option<Capacity> {
        let bytes = bytes.get(..16)?;
        Some(Capacity {
            blocks: u64_at(bytes, 0).checked_add(1)?,
            block_bytes: u32_at(bytes, 8),
            physical_block_exponent: bytes[13] & 0xf,
            lowest_aligned_lba: u16::from_be_bytes([bytes[14] & 0x3f, bytes[15]]),
            provisioning: bytes[14] & 0x80 != 0,
            unmapped_zeroes: bytes[14] & 0x40 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tests/captures/lio-612-login-io.pcap, LUN 0: 64 MiB ramdisk.
    const LIO: [u8; 32] = [
        0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn lio_answer() {
        let capacity = Capacity::parse_16(&LIO).expect("whole");
        assert_eq!((capacity.blocks, capacity.block_bytes), (131_072, 512));
        assert_eq!(capacity.emit_16(), LIO);
        assert_eq!(Capacity::parse_10(&capacity.emit_10()), Some(capacity));
    }

    #[test]
    fn large_media_and_flags() {
        let capacity = Capacity {
            blocks: 1 << 32,
            block_bytes: 4096,
            physical_block_exponent: 3,
            lowest_aligned_lba: 7,
            provisioning: true,
            unmapped_zeroes: true,
        };
        assert_eq!(capacity.emit_10(), [0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0]);
        assert_eq!(Capacity::parse_10(&capacity.emit_10()), None);
        assert_eq!(capacity.emit_16()[12..16], [0, 3, 0xc0, 7]);
        assert_eq!(Capacity::parse_16(&capacity.emit_16()), Some(capacity));
        assert_eq!(Capacity::parse_16(&[0xff; 32]), None);
        assert_eq!(Capacity::parse_16(&LIO[..15]), None);
    }
}
