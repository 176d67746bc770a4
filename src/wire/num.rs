//! Newtypes of the numbers on the wire, so that a PSN is never added to a QPN.

use std::fmt;

const MASK_24: u32 = 0x00ff_ffff;

/// A 24-bit packet sequence number; arithmetic wraps, comparison is by signed 24-bit distance
/// (IBTA vol. 1, 9.7.3).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The PSN of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & MASK_24)
    }

    /// The value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` after this one.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Psn(self.0.wrapping_add(packets) & MASK_24)
    }

    /// The PSN `packets` before this one.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Psn(self.0.wrapping_sub(packets) & MASK_24)
    }

    /// The signed distance from `base` to this PSN, in packets, -2^23..2^23.
    pub const fn distance_from(self, base: Psn) -> i32 {
        ((self.0.wrapping_sub(base.0) << 8) as i32) >> 8
    }

    /// Whether this PSN comes before `other` on the circle.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

/// A 24-bit queue pair number.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, where connection management lives.
    pub const GSI: Qpn = Qpn(1);

    /// The QPN of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Qpn(value & MASK_24)
    }

    /// The value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The remote key of a memory region ("memory handle" in SRP's words).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct RKey(pub u32);

impl fmt::Debug for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RKey({:#x})", self.0)
    }
}

/// The local key of a memory region.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct LKey(pub u32);

impl fmt::Debug for LKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LKey({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(2).distance_from(Psn::new(0xff_fffe)), 4);
        assert_eq!(Psn::new(0xff_fffe).distance_from(Psn::new(2)), -4);
        assert!(Psn::new(0xff_ffff).is_before(Psn::new(0)));
        assert!(!Psn::new(7).is_before(Psn::new(7)));
    }
}
