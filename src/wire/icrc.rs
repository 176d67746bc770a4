//! The invariant CRC at the end of every RoCEv2 packet (IBTA vol. 1, 7.8.1 and annex A17.3.3).
//!
//! It is the Ethernet CRC-32 over eight bytes of ones (in place of the LRH), the IP header, the
//! UDP header and the packet from BTH to pad, with the fields that routers may change set to
//! ones; it travels least significant byte first.
//!
//! A CRC is linear: what a field contributes does not depend on the other bytes, only on how
//! many bytes follow. Two things here stand on that:
//! * [`Prefix`] keeps the CRC over addresses and ports, and adds length and identification,
//!   which change with each packet, by table.
//! * A plain UDP socket does not show the IPv4 identification of a received packet, which the
//!   ICRC covers. [`Prefix::solve_id`] computes the one value that would make the ICRC right;
//!   whether that value fits 16 bits is the check. It passes 1 in 65,536 random packets; a
//!   caller that knows about which value to expect gets the lost bits back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use super::bth::Bth;
use super::error::ParseError;

/// Bytes of an ICRC.
pub const ICRC_LEN: usize = 4;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header without extension headers.
const IPV6_LEN: usize = 40;
/// Protocol number of UDP.
const UDP_PROTOCOL: u8 = 17;

/// The CRC-32 polynomial, bit-reversed: bit 31 is x^0.
const POLY: u32 = 0xedb8_8320;

/// One byte of zeros goes through the CRC register.
const fn shift_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        register = if register & 1 != 0 { register >> 1 ^ POLY } else { register >> 1 };
        bit += 1;
    }
    register
}

/// What a byte contributes to the register when `after` bytes follow it.
const fn byte_table(after: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        let mut register = shift_byte(value as u32);
        let mut left = after;
        while left > 0 {
            register = shift_byte(register);
            left -= 1;
        }
        table[value] = register;
        value += 1;
    }
    table
}

/// What a 16-bit field contributes: by its high byte, by its low byte.
struct FieldTable {
    high: [u32; 256],
    low: [u32; 256],
}

impl FieldTable {
    /// A field at offset `at` of a prefix of `prefix_bytes`.
    const fn new(at: usize, prefix_bytes: usize) -> Self {
        FieldTable { high: byte_table(prefix_bytes - at - 1), low: byte_table(prefix_bytes - at - 2) }
    }

    #[inline]
    fn of(&self, value: u16) -> u32 {
        self.high[usize::from(value >> 8)] ^ self.low[usize::from(value & 0xff)]
    }
}

static V4_TOTAL_LENGTH: FieldTable = FieldTable::new(2, IPV4_LEN + UDP_LEN);
static V4_ID: FieldTable = FieldTable::new(4, IPV4_LEN + UDP_LEN);
static V6_PAYLOAD_LENGTH: FieldTable = FieldTable::new(4, IPV6_LEN + UDP_LEN);
/// The UDP length stands four bytes before the end of the UDP header under both.
static UDP_LENGTH: FieldTable = FieldTable::new(4, UDP_LEN);

/// Product of two polynomials modulo the CRC's, both bit-reversed.
#[inline]
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & 0u32.wrapping_sub(a >> bit & 1);
        b = b >> 1 ^ POLY & 0u32.wrapping_sub(b & 1);
    }
    product
}

/// x^-8: undoes [`shift_byte`].
const UNSHIFT_BYTE: u32 = {
    // x^-1 = (P + 1) / x: the polynomial without its x^0, one power lower.
    let inverse_of_x = POLY << 1 | 1;
    let two = multiply(inverse_of_x, inverse_of_x);
    let four = multiply(two, two);
    multiply(four, four)
};

/// Words of the longest packet whose identification is solved for: path MTU 4,096, the longest
/// headers, and some room.
const SOLVE_WORDS: usize = (4096 + 64) / 4;

/// By packet length in words (BTH to pad): the factor that takes a difference of two ICRCs back
/// to before the identification field.
static BACK_TO_ID: [u32; SOLVE_WORDS + 1] = {
    let mut factors = [0; SOLVE_WORDS + 1];
    let word = {
        let two = multiply(UNSHIFT_BYTE, UNSHIFT_BYTE);
        multiply(two, two)
    };
    // Identification (2), then flags, TTL, protocol, checksum, addresses (14), then UDP (8).
    let mut factor = multiply(word, multiply(word, word));
    factor = multiply(factor, factor);
    let mut words = 0;
    while words <= SOLVE_WORDS {
        factors[words] = factor;
        factor = multiply(factor, word);
        words += 1;
    }
    factors
};

/// The CRC over everything before the BTH, for one pair of addresses and ports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// With lengths and identification zero, in the form of a finished CRC.
    crc: u32,
    v4: bool,
}

impl Prefix {
    /// The prefix of packets between these addresses and ports.
    ///
    /// On IPv4 the packets have no options and the don't-fragment bit, as RoCEv2 asks for.
    /// IPv4-mapped IPv6 addresses count as IPv4. `None` if the two are of different families.
    pub fn new(source: IpAddr, destination: IpAddr, source_port: u16, dest_port: u16) -> Option<Prefix> {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; 8]);
        let v4 = match (source.to_canonical(), destination.to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                hasher.update(&ipv4_header(source, destination));
                true
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                hasher.update(&ipv6_header(source, destination));
                false
            }
            _ => return None,
        };
        let mut udp = [0, 0, 0, 0, 0, 0, 0xff, 0xff];
        udp[..2].copy_from_slice(&source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&dest_port.to_be_bytes());
        hasher.update(&udp);
        Some(Prefix { crc: hasher.finalize(), v4 })
    }

    /// Whether the packets are IPv4, so that the identification counts.
    #[inline]
    pub const fn is_v4(&self) -> bool {
        self.v4
    }

    /// Begins the ICRC of a packet of `ib_bytes` (BTH to pad, without ICRC). `ip_id` is the IPv4
    /// identification; IPv6 has none and ignores it.
    #[inline]
    pub fn begin(&self, ib_bytes: usize, ip_id: u16) -> Icrc {
        let udp_length = (UDP_LEN + ib_bytes + ICRC_LEN) as u16;
        let mut crc = self.crc ^ UDP_LENGTH.of(udp_length);
        crc ^= if self.v4 {
            V4_TOTAL_LENGTH.of(udp_length.wrapping_add(IPV4_LEN as u16)) ^ V4_ID.of(ip_id)
        } else {
            V6_PAYLOAD_LENGTH.of(udp_length)
        };
        Icrc { hasher: Hasher::new_with_initial(crc) }
    }

    /// The ICRC of a whole packet, BTH to pad.
    ///
    /// # Panics
    /// If `ib` is shorter than a BTH.
    #[inline]
    pub fn icrc(&self, ib: &[u8], ip_id: u16) -> [u8; ICRC_LEN] {
        let mut icrc = self.begin(ib.len(), ip_id);
        icrc.headers(&ib[..Bth::LEN]);
        icrc.update(&ib[Bth::LEN..]);
        icrc.finish()
    }

    /// Whether a UDP payload (BTH to ICRC) has the right ICRC, `ip_id` being known. In full, for
    /// IPv6 and for whoever sees IPv4 headers.
    #[inline]
    pub fn check(&self, udp_payload: &[u8], ip_id: u16) -> bool {
        match split(udp_payload) {
            Some((ib, received)) => self.icrc(ib, ip_id) == *received,
            None => false,
        }
    }

    /// The IPv4 identification with which a UDP payload (BTH to ICRC) has the right ICRC, if
    /// there is one. `likely` is tried first and costs nothing more than the CRC; any other
    /// value costs one multiplication (some 30 ns).
    ///
    /// On IPv6 it checks in full and gives `likely`.
    #[inline]
    pub fn solve_id(&self, udp_payload: &[u8], likely: u16) -> Option<u16> {
        let (ib, received) = split(udp_payload)?;
        let difference = u32::from_le_bytes(self.icrc(ib, likely)) ^ u32::from_le_bytes(*received);
        if difference == 0 {
            return Some(likely);
        }
        if !self.v4 || !ib.len().is_multiple_of(4) {
            return None;
        }
        // Back before the two bytes of the field, the register differs in just these bytes.
        let before = multiply(difference, *BACK_TO_ID.get(ib.len() / 4)?);
        let field = u16::try_from(before).ok()?;
        Some(likely ^ field.swap_bytes())
    }
}

/// An ICRC being computed.
#[derive(Clone)]
pub struct Icrc {
    hasher: Hasher,
}

impl Icrc {
    /// Adds BTH and extension headers; must come first. The BTH's congestion byte is masked.
    ///
    /// # Panics
    /// If `headers` is shorter than a BTH or longer than [`MAX_HEADER_BYTES`](super::packet::MAX_HEADER_BYTES).
    #[inline]
    pub fn headers(&mut self, headers: &[u8]) {
        let mut masked = [0; super::packet::MAX_HEADER_BYTES];
        let masked = &mut masked[..headers.len()];
        masked.copy_from_slice(headers);
        masked[4] = 0xff;
        self.hasher.update(masked);
    }

    /// Adds payload and pad, piece by piece.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The ICRC as it travels.
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.hasher.finalize().to_le_bytes()
    }
}

/// A UDP payload as (BTH to pad, ICRC); `None` if it is too short to be a packet.
#[inline]
pub fn split(udp_payload: &[u8]) -> Option<(&[u8], &[u8; ICRC_LEN])> {
    let (ib, icrc) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
    if ib.len() < Bth::LEN { None } else { Some((ib, icrc)) }
}

/// The ICRC that a whole IP packet ought to have, and the one that it has: for raw sockets and
/// captures, where every field is seen.
///
/// # Errors
/// If it is not UDP over IPv4 or IPv6 (extension headers are not followed), or too short.
pub fn of_ip_packet(ip: &[u8]) -> Result<([u8; ICRC_LEN], [u8; ICRC_LEN]), ParseError> {
    let short = |needed_bytes| ParseError::Short { what: "IP packet", needed_bytes, got_bytes: ip.len() };
    let version = ip.first().ok_or(short(1))? >> 4;
    let (header_bytes, total_bytes) = match version {
        4 if ip.len() >= IPV4_LEN => {
            (usize::from(ip[0] & 0x0f) * 4, usize::from(u16::from_be_bytes([ip[2], ip[3]])))
        }
        6 if ip.len() >= IPV6_LEN => (IPV6_LEN, IPV6_LEN + usize::from(u16::from_be_bytes([ip[4], ip[5]]))),
        4 | 6 => return Err(short(IPV4_LEN)),
        other => return Err(ParseError::Unknown { field: "IP version", value: u64::from(other) }),
    };
    let least = header_bytes + UDP_LEN + Bth::LEN + ICRC_LEN;
    if header_bytes < IPV4_LEN || total_bytes < least {
        return Err(ParseError::Contradiction("IP lengths leave no room for a RoCEv2 packet"));
    }
    let ip = ip.get(..total_bytes).ok_or(short(total_bytes))?;
    let mut header = [0; 60];
    let header = &mut header[..header_bytes];
    header.copy_from_slice(&ip[..header_bytes]);
    let protocol = if version == 4 {
        for masked in [1, 8, 10, 11] {
            header[masked] = 0xff;
        }
        header[9]
    } else {
        header[0] |= 0x0f;
        for masked in [1, 2, 3, 7] {
            header[masked] = 0xff;
        }
        header[6]
    };
    if protocol != UDP_PROTOCOL {
        return Err(ParseError::Unknown { field: "IP protocol", value: u64::from(protocol) });
    }
    let (udp, payload) = ip[header_bytes..].split_at(UDP_LEN);
    let Some((ib, received)) = split(payload) else { return Err(short(least)) };
    let mut hasher = Hasher::new();
    hasher.update(&[0xff; 8]);
    hasher.update(header);
    hasher.update(&udp[..6]);
    hasher.update(&[0xff; 2]);
    let mut icrc = Icrc { hasher };
    icrc.headers(&ib[..Bth::LEN]);
    icrc.update(&ib[Bth::LEN..]);
    Ok((icrc.finish(), *received))
}

/// An IPv4 header with ones in the variant fields, zero length and identification.
fn ipv4_header(source: Ipv4Addr, destination: Ipv4Addr) -> [u8; IPV4_LEN] {
    let mut header =
        [0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, UDP_PROTOCOL, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    header[12..16].copy_from_slice(&source.octets());
    header[16..].copy_from_slice(&destination.octets());
    header
}

/// An IPv6 header with ones in the variant fields and zero length.
fn ipv6_header(source: Ipv6Addr, destination: Ipv6Addr) -> [u8; IPV6_LEN] {
    let mut header = [0; IPV6_LEN];
    header[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, UDP_PROTOCOL, 0xff]);
    header[8..24].copy_from_slice(&source.octets());
    header[24..].copy_from_slice(&destination.octets());
    header
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// scapy, test/contrib/roce.uts, "RoCE packet UC": 192.168.0.7 to itself, id 1144, sport 49152.
    const SCAPY_UC: [u8; 68] = [
        0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xb4, 0xd5, 192, 168, 0, 7, 192, 168, 0,
        7, // IPv4
        0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0x00, 0x00, // UDP
        0x24, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10, // BTH
        0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe, 0x88, 0x5e,
        0x50, 0x00, 0x00, // payload and pad
        0x78, 0xf3, 0x53, 0xf3, // ICRC
        0, 0, 0, 0, // beyond the IP packet: must not count
    ];

    /// scapy, test/contrib/roce.uts: a ConnectX-4 congestion notification, from a capture.
    const CONNECTX_CNP: [u8; 60] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a,
        0x00, 0x12, 0x01, // IPv4
        0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, // UDP
        0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00, // BTH
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // reserved
        0x82, 0xfd, 0x00, 0x2a, // ICRC
    ];

    #[test]
    fn vectors_from_outside() {
        assert_eq!(of_ip_packet(&SCAPY_UC), Ok(([0x78, 0xf3, 0x53, 0xf3], [0x78, 0xf3, 0x53, 0xf3])));
        assert_eq!(of_ip_packet(&CONNECTX_CNP), Ok(([0x82, 0xfd, 0x00, 0x2a], [0x82, 0xfd, 0x00, 0x2a])));
    }

    #[test]
    fn the_prefix_agrees_with_the_vectors_and_finds_their_id() {
        let ip = |a, b, c, d| IpAddr::from([a, b, c, d]);
        let scapy = Prefix::new(ip(192, 168, 0, 7), ip(192, 168, 0, 7), 0xc000, 4791).unwrap();
        assert!(scapy.check(&SCAPY_UC[28..64], 1144));
        assert!(!scapy.check(&SCAPY_UC[28..64], 1145));
        assert_eq!(scapy.solve_id(&SCAPY_UC[28..64], 0), Some(1144));
        let cnp = Prefix::new(ip(10, 0, 17, 1), ip(10, 0, 18, 1), 0, 4791).unwrap();
        assert_eq!(cnp.solve_id(&CONNECTX_CNP[28..], 0x7000), Some(0x718c));
    }

    #[test]
    fn eight_ones_leave_the_register_that_rxe_starts_from() {
        assert_eq!(!crc32fast::hash(&[0xff; 8]), 0xdebb_20e3);
    }

    #[test]
    fn unshift_undoes_shift() {
        for register in [1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            assert_eq!(multiply(shift_byte(register), UNSHIFT_BYTE), register);
        }
    }

    #[test]
    fn mixed_families_have_no_prefix() {
        assert_eq!(Prefix::new(IpAddr::from([127, 0, 0, 1]), IpAddr::from([0u16; 8]), 1, 2), None);
        let mapped = Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped();
        assert_eq!(
            Prefix::new(mapped.into(), mapped.into(), 1, 2),
            Prefix::new(IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 1]), 1, 2)
        );
    }

    /// A whole IP packet with the variant fields as a sender might have them.
    fn ip_packet(source: IpAddr, destination: IpAddr, ports: (u16, u16), id: u16, ib: &[u8]) -> Vec<u8> {
        let udp_length = (UDP_LEN + ib.len() + ICRC_LEN) as u16;
        let mut packet = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = ipv4_header(source, destination).to_vec();
                header[2..4].copy_from_slice(&(udp_length + 20).to_be_bytes());
                header[4..6].copy_from_slice(&id.to_be_bytes());
                (header[1], header[8], header[10], header[11]) = (0x10, 64, 0xab, 0xcd);
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut header = ipv6_header(source, destination).to_vec();
                header[4..6].copy_from_slice(&udp_length.to_be_bytes());
                (header[0], header[1], header[2], header[7]) = (0x61, 0x23, 0x45, 64);
                header
            }
            _ => unreachable!("tests use one family"),
        };
        packet.extend(ports.0.to_be_bytes());
        packet.extend(ports.1.to_be_bytes());
        packet.extend(udp_length.to_be_bytes());
        packet.extend([0x12, 0x34]);
        packet.extend(ib);
        packet.extend([0; 4]);
        packet
    }

    fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
            (any::<[u16; 7]>(), any::<[u16; 7]>()).prop_map(|(a, b)| {
                let v6 = |tail: [u16; 7]| {
                    let mut words = [0xfd00; 8];
                    words[1..].copy_from_slice(&tail);
                    IpAddr::from(words)
                };
                (v6(a), v6(b))
            }),
        ]
    }

    proptest! {
        /// The incremental way agrees with the direct one, however the payload is cut.
        #[test]
        fn prefix_and_whole_packet_agree(
            (source, destination) in addresses(),
            ports: (u16, u16),
            id: u16,
            ib in proptest::collection::vec(any::<u8>(), 12..600),
            cut: prop::sample::Index,
        ) {
            let prefix = Prefix::new(source, destination, ports.0, ports.1).unwrap();
            let (direct, _) = of_ip_packet(&ip_packet(source, destination, ports, id, &ib)).unwrap();
            prop_assert_eq!(prefix.icrc(&ib, id), direct);
            let headers = 12 + cut.index((ib.len() - 11).min(28));
            let mut pieces = prefix.begin(ib.len(), id);
            pieces.headers(&ib[..headers]);
            let cut = headers + cut.index(ib.len() - headers + 1);
            pieces.update(&ib[headers..cut]);
            pieces.update(&ib[cut..]);
            prop_assert_eq!(pieces.finish(), direct);
        }

        /// The identification is found for every length, whatever was guessed.
        #[test]
        fn the_id_is_found(id: u16, likely: u16, words in 3usize..=1040, seed: u64) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut payload: Vec<u8> = (0..words * 4).map(|_| rng.u8(..)).collect();
            let here = IpAddr::from([10, 0, 0, 1]);
            let prefix = Prefix::new(here, IpAddr::from([10, 0, 0, 2]), 50_000, 4791).unwrap();
            let icrc = prefix.icrc(&payload, id);
            payload.extend(icrc);
            prop_assert_eq!(prefix.solve_id(&payload, likely), Some(id));
            // With a wrong bit it is some other value, or (nearly always) none.
            let bit = rng.usize(..words * 32);
            if bit / 8 != 4 {
                payload[bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(prefix.solve_id(&payload, likely), Some(id));
            }
        }

        /// No bytes make the checks panic.
        #[test]
        fn any_bytes_are_checked(bytes in proptest::collection::vec(any::<u8>(), 0..200), v6: bool) {
            let address = if v6 { IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1]) } else { IpAddr::from([127, 0, 0, 1]) };
            let prefix = Prefix::new(address, address, 1, 4791).unwrap();
            let _ = prefix.check(&bytes, 0);
            let _ = prefix.solve_id(&bytes, 0);
            let _ = of_ip_packet(&bytes);
        }
    }

    /// Random ICRCs pass as often as 16 bits let them: about 3 of 200,000.
    #[test]
    fn a_random_icrc_rarely_has_an_id() {
        let mut rng = fastrand::Rng::with_seed(1);
        let here = IpAddr::from([10, 0, 0, 1]);
        let prefix = Prefix::new(here, IpAddr::from([10, 0, 0, 2]), 50_000, 4791).unwrap();
        let mut payload = [0x5a; 76 + ICRC_LEN];
        let passed = (0..200_000).filter(|_| {
            payload[76..].copy_from_slice(&rng.u32(..).to_le_bytes());
            prefix.solve_id(&payload, 0).is_some()
        });
        assert!((1..=12).contains(&passed.count()));
    }

    #[test]
    fn ipv6_is_checked_in_full() {
        let address = IpAddr::from([0xfd00u16, 0, 0, 0, 0, 0, 0, 1]);
        let prefix = Prefix::new(address, address, 50_000, 4791).unwrap();
        let mut payload = [0x5a; 80];
        let icrc = prefix.icrc(&payload[..76], 0);
        payload[76..].copy_from_slice(&icrc);
        assert_eq!(prefix.solve_id(&payload, 7), Some(7));
        payload[79] ^= 1;
        assert_eq!(prefix.solve_id(&payload, 7), None);
    }
}
