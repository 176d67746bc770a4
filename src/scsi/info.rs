//! What the answers are made of: snapshots of a logical unit and of the target, as values.

use super::unmap::{MAX_DESCRIPTORS, MAX_UNMAP_BYTES};
use crate::wire::scsi::capacity::Capacity;
use crate::wire::scsi::vpd::{BlockLimits, Provisioning};

/// An NAA name of a logical unit (SPC-4, 7.8.6.6).
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Naa {
    bytes: [u8; 16],
    len: u8,
}

impl Naa {
    /// NAA 3h, locally assigned (7.8.6.6.4): 60 bits of `value`.
    pub const fn locally_assigned(value: u64) -> Naa {
        let eight = ((3 << 60) | (value & (u64::MAX >> 4))).to_be_bytes();
        let mut bytes = [0; 16];
        let mut i = 0;
        while i < 8 {
            bytes[i] = eight[i];
            i += 1;
        }
        Naa { bytes, len: 8 }
    }

    /// NAA 6h, IEEE registered extended (7.8.6.6.6): the first four bits of `name` are set to 6,
    /// the next 24 are the company's.
    pub const fn registered_extended(mut name: [u8; 16]) -> Naa {
        name[0] = 0x60 | (name[0] & 0x0f);
        Naa { bytes: name, len: 16 }
    }

    /// The name, 8 or 16 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Display for Naa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Naa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Naa({self})")
    }
}

/// What all logical units of a target say alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetInfo {
    /// T10 VENDOR IDENTIFICATION, padded with spaces
    /// ([`ascii_field`](crate::wire::scsi::inquiry::ascii_field) makes one).
    pub vendor: [u8; 8],
    /// PRODUCT REVISION LEVEL, padded with spaces.
    pub revision: [u8; 4],
    /// The SRP target port identifier: identifier extension, then I/O controller GUID.
    pub port_id: [u8; 16],
    /// RELATIVE TARGET PORT IDENTIFIER, from 1.
    pub relative_port: u16,
}

/// A logical unit as it is now: a disk. A new snapshot takes its place when it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunInfo {
    /// Bytes of a logical block: a power of two.
    pub block_bytes: u32,
    /// How many logical blocks, at least 1.
    pub blocks: u64,
    /// Logical blocks of a physical block, as a power of two, 0..=15.
    pub physical_block_exponent: u8,
    /// Writes end with WRITE PROTECTED, and WP is set.
    pub read_only: bool,
    /// Completed writes may be lost until flushed: WCE.
    pub write_cache: bool,
    /// Blocks can be unmapped.
    pub unmap: bool,
    /// Unmapped blocks read as zeroes.
    pub unmap_reads_zeroes: bool,
    /// The medium spins.
    pub rotational: bool,
    /// The longest transfer of one command, bytes; said in VPD B0.
    pub max_transfer_bytes: u32,
    /// The transfer that suits best, bytes; 0 if there is none.
    pub optimal_transfer_bytes: u32,
    /// PRODUCT IDENTIFICATION, padded with spaces.
    pub product: [u8; 16],
    /// PRODUCT SERIAL NUMBER, printable ASCII, at most 128 bytes.
    pub serial: String,
    /// The name that is the same on every path.
    pub naa: Naa,
}

impl LunInfo {
    /// The longest serial number that is sent.
    pub const SERIAL_MAX_BYTES: usize = 128;

    /// The longest transfer in blocks; at least 1.
    pub fn max_transfer_blocks(&self) -> u32 {
        (self.max_transfer_bytes / self.block_bytes.max(1)).max(1)
    }

    /// What READ CAPACITY says.
    pub fn capacity(&self) -> Capacity {
        Capacity {
            blocks: self.blocks,
            block_bytes: self.block_bytes,
            physical_block_exponent: self.physical_block_exponent,
            lowest_aligned_lba: 0,
            provisioning: self.unmap,
            unmapped_zeroes: self.unmap && self.unmap_reads_zeroes,
        }
    }

    /// The most blocks that one UNMAP may name.
    pub fn max_unmap_blocks(&self) -> u32 {
        u32::try_from(MAX_UNMAP_BYTES / u64::from(self.block_bytes.max(1))).unwrap_or(u32::MAX)
    }

    /// What VPD page B2 says. What can be unmapped is called thin: nothing is promised about space.
    pub fn provisioning(&self) -> Provisioning {
        if !self.unmap {
            return Provisioning::default();
        }
        let reads_zeroes = self.unmap_reads_zeroes;
        Provisioning { unmap: true, reads_zeroes, kind: Provisioning::THIN, ..Provisioning::default() }
    }

    /// What VPD page B0 says.
    pub fn block_limits(&self) -> BlockLimits {
        let physical_blocks = 1 << self.physical_block_exponent.min(15);
        let if_unmap = |value: u32| if self.unmap { value } else { 0 };
        BlockLimits {
            transfer_granularity: physical_blocks,
            max_unmap: if_unmap(self.max_unmap_blocks()),
            max_unmap_descriptors: if_unmap(MAX_DESCRIPTORS),
            unmap_granularity: if_unmap(u32::from(physical_blocks)),
            max_transfer: self.max_transfer_blocks(),
            optimal_transfer: self.optimal_transfer_bytes.min(self.max_transfer_bytes)
                / self.block_bytes.max(1),
            ..BlockLimits::default()
        }
    }

    /// The serial number's bytes as they are sent.
    pub fn serial_bytes(&self) -> &[u8] {
        let bytes = self.serial.as_bytes();
        &bytes[..bytes.len().min(Self::SERIAL_MAX_BYTES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naa_forms() {
        assert_eq!(Naa::locally_assigned(0xfedc_ba98_7654_3210).to_string(), "3edcba9876543210");
        assert_eq!(Naa::registered_extended([0xff; 16]).to_string(), "6fffffffffffffffffffffffffffffff");
    }
}
