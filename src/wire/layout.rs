//! Messages with many odd-sized fields, written as the table that a standard prints: field,
//! type, byte, bit (0 is the most significant), width in bits. Parsing and emitting come out of
//! the one table, and a test holds every table to cover each bit just once, reserved bits too,
//! so that whatever is parsed can be emitted again unchanged.
//!
//! For management messages. They are off the fast path, but many connections may come or end at a time
//! beside others at work, so that a field is moved in whole bytes; where it stands is known to the compiler.

use super::num::{Psn, Qpn};

/// A type that a field of a table may have.
pub(crate) trait Field: Sized {
    /// Reads `width` bits that begin at bit `at`.
    fn read(bytes: &[u8], at: usize, width: usize) -> Self;
    /// Writes `width` bits that begin at bit `at`.
    fn write(&self, bytes: &mut [u8], at: usize, width: usize);
}

/// The `width` (1 to 64) bits that begin at bit `at`.
#[inline]
pub(crate) fn get_bits(bytes: &[u8], at: usize, width: usize) -> u64 {
    let (first, end) = (at / 8, (at + width).div_ceil(8));
    let whole = bytes[first..end].iter().fold(0u128, |whole, byte| whole << 8 | u128::from(*byte));
    (whole >> (8 * end - (at + width))) as u64 & (u64::MAX >> (64 - width))
}

/// Writes the low `width` (1 to 64) bits of `value` from bit `at` on.
#[inline]
pub(crate) fn put_bits(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    let (first, end) = (at / 8, (at + width).div_ceil(8));
    let below = 8 * end - (at + width);
    let mut value = u128::from(value) << below;
    let mut mask = u128::from(u64::MAX >> (64 - width)) << below;
    for byte in bytes[first..end].iter_mut().rev() {
        *byte = *byte & !(mask as u8) | value as u8 & mask as u8;
        value >>= 8;
        mask >>= 8;
    }
}

macro_rules! number_field {
    ($($ty:ty: $value:ident => $from:expr, $this:ident => $into:expr;)*) => {
        $(impl Field for $ty {
            #[inline]
            fn read(bytes: &[u8], at: usize, width: usize) -> Self {
                let $value = get_bits(bytes, at, width);
                $from
            }
            #[inline]
            fn write(&self, bytes: &mut [u8], at: usize, width: usize) {
                let $this = *self;
                put_bits(bytes, at, width, $into);
            }
        })*
    };
}
number_field! {
    bool: value => value != 0, this => u64::from(this);
    u8: value => value as u8, this => u64::from(this);
    u16: value => value as u16, this => u64::from(this);
    u32: value => value as u32, this => u64::from(this);
    u64: value => value, this => this;
    Qpn: value => Qpn::new(value as u32), this => u64::from(this.get());
    Psn: value => Psn::new(value as u32), this => u64::from(this.get());
}

impl<const N: usize> Field for [u8; N] {
    #[inline]
    fn read(bytes: &[u8], at: usize, width: usize) -> Self {
        debug_assert!(at.is_multiple_of(8) && width == N * 8);
        let mut read = [0; N];
        read.copy_from_slice(&bytes[at / 8..at / 8 + N]);
        read
    }
    #[inline]
    fn write(&self, bytes: &mut [u8], at: usize, width: usize) {
        debug_assert!(at.is_multiple_of(8) && width == N * 8);
        bytes[at / 8..at / 8 + N].copy_from_slice(self);
    }
}

/// A struct from a table of fields; see the module's comment.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident: $len:literal bytes
        $(
            $(#[$field_meta:meta])*
            $field:ident: $ty:ty = $byte:literal, $bit:literal, $width:literal;
        )*
    ) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// Takes the bytes apart; any bytes are a value.
            pub fn parse(bytes: &[u8; $len]) -> Self {
                use $crate::wire::layout::Field;
                $name { $($field: <$ty as Field>::read(bytes, $byte * 8 + $bit, $width),)* }
            }

            /// Writes the fields. Bits of a number beyond its field's width are lost.
            pub fn emit(&self, bytes: &mut [u8; $len]) {
                use $crate::wire::layout::Field;
                $(Field::write(&self.$field, bytes, $byte * 8 + $bit, $width);)*
            }
        }

        impl Default for $name {
            /// All zero.
            fn default() -> Self {
                Self::parse(&[0; $len])
            }
        }

        #[cfg(test)]
        impl $name {
            /// Asserts that the table covers each bit once, and what is said follows.
            pub(crate) fn assert_layout() {
                let mut covered = vec![None; $len * 8];
                $(for bit in $byte * 8 + $bit..$byte * 8 + $bit + $width {
                    let before = covered[bit].replace(stringify!($field));
                    assert_eq!(before, None, "bit {bit} of {} is in two fields", stringify!($name));
                })*
                let hole = covered.iter().position(Option::is_none);
                assert_eq!(hole, None, "a bit of {} is in no field", stringify!($name));
                let mut rng = fastrand::Rng::with_seed(7);
                for _ in 0..20 {
                    let bytes: [u8; $len] = std::array::from_fn(|_| rng.u8(..));
                    let mut again = [0xa5; $len];
                    Self::parse(&bytes).emit(&mut again);
                    assert_eq!(bytes, again, "{}", stringify!($name));
                }
            }
        }
    };
}
pub(crate) use layout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_count_from_the_most_significant() {
        let bytes = [0b1010_0000, 0b0000_0111];
        assert_eq!(get_bits(&bytes, 0, 3), 0b101);
        assert_eq!(get_bits(&bytes, 13, 3), 0b111);
        assert_eq!(get_bits(&bytes, 0, 16), 0xa007);
        let mut out = [0xff; 2];
        put_bits(&mut out, 4, 8, 0x5a);
        assert_eq!(out, [0xf5, 0xaf]);
        put_bits(&mut out, 6, 1, u64::MAX - 1);
        assert_eq!(out, [0xf5, 0xaf]);
        // 64 bits in nine bytes.
        let mut out = [0; 9];
        put_bits(&mut out, 3, 64, 0x8000_0000_0000_0001);
        assert_eq!((out[0], out[8], get_bits(&out, 3, 64)), (0x10, 0x20, 0x8000_0000_0000_0001));
    }
}
