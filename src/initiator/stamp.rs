//! Stamped blocks: what verification writes, and how it knows what it reads.
//!
//! Every block says where it belongs and which writing of which run it is, and all of its bytes
//! follow from that. A block of another place, of an earlier generation, torn, or with one wrong
//! bit, is found.

use std::fmt;

/// Marks a block of ours.
const MAGIC: [u8; 8] = *b"srpoll\x00\x01";
/// Bytes of the header: magic, run, offset, LUN and generation, check.
const HEADER_BYTES: usize = 40;
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a block says about itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which run wrote it.
    pub run: u64,
    /// On which logical unit.
    pub lun: u16,
    /// Where, in bytes.
    pub offset: u64,
    /// The how-manieth writing of this run.
    pub generation: u32,
}

/// What a block holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeros only: never written.
    Zeros,
    /// The header of a stamped block; the rest was not looked at.
    Stamp(Stamp),
    /// Something else.
    Foreign,
}

/// A block that is not what it should be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was written last.
    pub expected: Stamp,
    /// What its header says.
    pub found: Found,
    /// The first wrong byte, if the header is the right one.
    pub at: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stamp { run, offset, generation, .. } = self.expected;
        write!(f, "offset {offset}: generation {generation} was written, ")?;
        match self.found {
            Found::Zeros => write!(f, "zeros were read"),
            Found::Foreign => write!(f, "something without a stamp was read"),
            Found::Stamp(found) if found == self.expected => {
                write!(f, "byte {} of the block is wrong", self.at)
            }
            Found::Stamp(found) => {
                write!(f, "generation {} of offset {} was read", found.generation, found.offset)?;
                if found.run == run { Ok(()) } else { write!(f, ", of another run") }
            }
        }
    }
}

impl Stamp {
    fn seed(&self) -> u64 {
        let mut seed = self.run ^ (u64::from(self.lun) << 32 | u64::from(self.generation));
        for value in [self.offset, GOLDEN] {
            seed = (seed ^ value).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            seed ^= seed >> 29;
        }
        seed
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&self.run.to_le_bytes());
        header[16..24].copy_from_slice(&self.offset.to_le_bytes());
        header[24..28].copy_from_slice(&u32::from(self.lun).to_le_bytes());
        header[28..32].copy_from_slice(&self.generation.to_le_bytes());
        header[32..40].copy_from_slice(&self.seed().to_le_bytes());
        header
    }

    /// Fills a block.
    ///
    /// # Panics
    /// If the block is shorter than a header; the shortest of a disk is 512 bytes.
    pub fn write(&self, block: &mut [u8]) {
        let (header, rest) = block.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.header());
        let mut word = self.seed();
        for chunk in rest.chunks_mut(8) {
            word = word.wrapping_add(GOLDEN);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// Whether a block is what [`write`](Self::write) makes; if not, what it is.
    pub fn check(&self, block: &[u8]) -> Result<(), Mismatch> {
        let (header, rest) = block.split_at(HEADER_BYTES);
        let mismatch = |at| Err(Mismatch { expected: *self, found: look(block), at });
        if header != self.header() {
            return mismatch(0);
        }
        let mut word = self.seed();
        for (index, chunk) in rest.chunks(8).enumerate() {
            word = word.wrapping_add(GOLDEN);
            let expected = word.to_le_bytes();
            if chunk != &expected[..chunk.len()] {
                let within = chunk.iter().zip(expected).position(|(&a, b)| a != b).unwrap_or(0);
                return mismatch(HEADER_BYTES + index * 8 + within);
            }
        }
        Ok(())
    }
}

/// What a block holds, by its header.
pub fn look(block: &[u8]) -> Found {
    let Some(header) = block.first_chunk::<HEADER_BYTES>() else { return Found::Foreign };
    if header[..8] != MAGIC {
        return if block.iter().all(|&byte| byte == 0) { Found::Zeros } else { Found::Foreign };
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| header[at + index]));
    let stamp =
        Stamp { run: word(8), offset: word(16), lun: word(24) as u16, generation: (word(24) >> 32) as u32 };
    if stamp.header() == *header { Found::Stamp(stamp) } else { Found::Foreign }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { run: 0x1234_5678_9abc_def0, lun: 3, offset: 1 << 40, generation: 7 };

    #[test]
    fn every_wrong_bit_is_found() {
        let mut block = [0; 512];
        STAMP.write(&mut block);
        assert_eq!(STAMP.check(&block), Ok(()));
        assert_eq!(look(&block), Found::Stamp(STAMP));
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let mismatch = STAMP.check(&block).expect_err("a wrong bit");
            if bit / 8 >= HEADER_BYTES {
                assert_eq!((mismatch.found, mismatch.at), (Found::Stamp(STAMP), bit / 8));
            }
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn another_block_is_told_from_this_one() {
        let mut block = [0; 520];
        for other in [
            Stamp { run: 1, ..STAMP },
            Stamp { lun: 4, ..STAMP },
            Stamp { offset: 512, ..STAMP },
            Stamp { generation: 6, ..STAMP },
        ] {
            other.write(&mut block);
            assert_eq!(STAMP.check(&block).unwrap_err().found, Found::Stamp(other));
        }
        // Torn: one half of the last writing, one of that before.
        let mut new = [0; 520];
        STAMP.write(&mut new);
        block[..260].copy_from_slice(&new[..260]);
        assert_eq!(
            STAMP.check(&block).unwrap_err().to_string(),
            "offset 1099511627776: generation 7 was written, byte 260 of the block is wrong"
        );
        assert_eq!(look(&[0; 512]), Found::Zeros);
        assert_eq!(look(&[1; 512]), Found::Foreign);
        let mut zeros = [0; 512];
        zeros[511] = 1;
        assert_eq!(look(&zeros), Found::Foreign);
    }
}
