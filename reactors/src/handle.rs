//! Handles: (kind, slot, generation) in 64 bits, in place of pointers.
//!
//! A handle survives a round trip through hardware or a kernel as `wr_id` or `user_data`. Once
//! its slot has been given to somebody else, the generation no longer fits and the handle finds
//! nothing: a late completion is an orphan by construction.

use std::fmt;

/// Highest slot number of a handle, inclusive.
pub const MAX_SLOT: u32 = 0x00ff_ffff;

/// Kind (8 bits), slot (24 bits) and generation (32 bits).
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Handle(u64);

impl Handle {
    /// A handle to `slot` in its `generation`, marked with `kind`.
    ///
    /// # Panics
    /// If `slot` is above [`MAX_SLOT`].
    pub const fn new(kind: u8, slot: u32, generation: u32) -> Self {
        assert!(slot <= MAX_SLOT);
        Handle((kind as u64) << 56 | (slot as u64) << 32 | generation as u64)
    }

    /// What the owner said this handle stands for.
    pub const fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The slot, 0..=[`MAX_SLOT`].
    pub const fn slot(self) -> u32 {
        (self.0 >> 32) as u32 & MAX_SLOT
    }

    /// The generation of the slot.
    pub const fn generation(self) -> u32 {
        self.0 as u32
    }

    /// The 64 bits to hand to hardware.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The handle that these 64 bits are.
    pub const fn from_bits(bits: u64) -> Self {
        Handle(bits)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}:{}.{})", self.kind(), self.slot(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_keeps_all_parts() {
        let handle = Handle::new(7, MAX_SLOT, u32::MAX);
        let back = Handle::from_bits(handle.to_bits());
        assert_eq!((back.kind(), back.slot(), back.generation()), (7, MAX_SLOT, u32::MAX));
    }
}
