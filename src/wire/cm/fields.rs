//! The small types that communication management messages are made of.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::wire::layout::{Field, get_bits, put_bits};

/// A communication id: each side names a connection by one of its own.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommId(pub u32);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({:#010x})", self.0)
    }
}

impl Field for CommId {
    fn read(bytes: &[u8], at: usize, width: usize) -> Self {
        CommId(get_bits(bytes, at, width) as u32)
    }
    fn write(&self, bytes: &mut [u8], at: usize, width: usize) {
        put_bits(bytes, at, width, u64::from(self.0));
    }
}

/// A global id; with RoCEv2 it is an IP address, IPv4 in its mapped form.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        Gid(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(gid.0)).to_canonical()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", IpAddr::from(*self))
    }
}

impl Field for Gid {
    fn read(bytes: &[u8], at: usize, width: usize) -> Self {
        Gid(<[u8; 16]>::read(bytes, at, width))
    }
    fn write(&self, bytes: &mut [u8], at: usize, width: usize) {
        self.0.write(bytes, at, width);
    }
}

/// Which message a REJ or an MRA is about, two bits.
pub mod about {
    /// A REQ.
    pub const REQ: u8 = 0;
    /// A REP.
    pub const REP: u8 = 1;
    /// REJ: none of them. MRA: a LAP.
    pub const OTHER: u8 = 2;
}

/// The time of a 5-bit timeout code: 4.096 us * 2^code.
pub const fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4_096 << (code & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_20_is_about_four_seconds() {
        assert_eq!(timeout(20), Duration::from_micros(4_294_967) + Duration::from_nanos(296));
        assert_eq!(timeout(0), Duration::from_nanos(4_096));
        assert_eq!(timeout(31).as_secs(), 8_796);
    }

    #[test]
    fn a_gid_is_an_address() {
        let v4 = IpAddr::from([10, 99, 0, 2]);
        assert_eq!(Gid::from(v4).0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 0, 2]);
        assert_eq!(IpAddr::from(Gid::from(v4)), v4);
        let v6 = IpAddr::from([0xfe80u16, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(IpAddr::from(Gid::from(v6)), v6);
    }
}
