//! Vital product data pages (SPC-4, 7.8; SBC-3, 6.6).

use super::params::Params;
use crate::wire::be::{u16_at, u32_at, u64_at};

/// Page codes.
pub mod page {
    /// Supported VPD pages (SPC-4, 7.8.14).
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number (SPC-4, 7.8.15).
    pub const SERIAL_NUMBER: u8 = 0x80;
    /// Device identification (SPC-4, 7.8.6).
    pub const DEVICE_IDENTIFICATION: u8 = 0x83;
    /// Block limits (SBC-3, 6.6.4).
    pub const BLOCK_LIMITS: u8 = 0xb0;
    /// Block device characteristics (SBC-3, 6.6.2).
    pub const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
    /// Logical block provisioning (SBC-3, 6.6.5).
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
}

/// Bytes of a page's header.
pub const HEADER_BYTES: usize = 4;

/// PROTOCOL IDENTIFIER of SRP (SPC-4, table 441).
const PROTOCOL_SRP: u8 = 4;

/// Begins a page: header with length 0, closed by [`close`].
fn open(out: &mut [u8], peripheral: u8, code: u8) -> Params<'_> {
    let mut page = Params::new(out);
    page.u8(peripheral).u8(code).be16(0);
    page
}

fn close(mut page: Params<'_>) -> usize {
    let len = (page.len() - HEADER_BYTES) as u16;
    page.patch(2, &len.to_be_bytes()).len()
}

/// Writes page 00: `codes`, ascending. Returns the available length, as all writers here do.
pub fn emit_supported(out: &mut [u8], peripheral: u8, codes: &[u8]) -> usize {
    let mut page = open(out, peripheral, page::SUPPORTED);
    page.put(codes);
    close(page)
}

/// Writes page 80.
pub fn emit_serial_number(out: &mut [u8], peripheral: u8, serial: &[u8]) -> usize {
    let mut page = open(out, peripheral, page::SERIAL_NUMBER);
    page.put(serial);
    close(page)
}

/// A name of a logical unit or port (SPC-4, 7.8.6.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Designator<'a> {
    /// NAA name of the logical unit, 8 or 16 bytes.
    Naa(&'a [u8]),
    /// T10 vendor ID and what the vendor calls the logical unit.
    T10Vendor {
        /// T10 VENDOR IDENTIFICATION.
        vendor: [u8; 8],
        /// VENDOR SPECIFIC IDENTIFIER, ASCII.
        id: &'a [u8],
    },
    /// EUI-64-based 16-byte name of the SRP target port: identifier extension, then the I/O
    /// controller's GUID (SPC-4, 7.8.6.5.4), which is the order of the port identifier of SRP.
    SrpTargetPort([u8; 16]),
    /// RELATIVE TARGET PORT IDENTIFIER, from 1.
    RelativeTargetPort(u16),
    /// TARGET PORT GROUP.
    TargetPortGroup(u16),
}

impl Designator<'_> {
    fn emit(&self, page: &mut Params<'_>) {
        const BINARY: u8 = 1;
        const ASCII: u8 = 2;
        const PORT: u8 = 0x80 | 1 << 4; // PIV, association 01b
        let head = |page: &mut Params<'_>, code_set: u8, kind: u8, len: usize| {
            let protocol = if kind & 0x80 != 0 { PROTOCOL_SRP << 4 } else { 0 };
            page.u8(protocol | code_set).u8(kind).u8(0).u8(len as u8);
        };
        match *self {
            Designator::Naa(name) => {
                head(page, BINARY, 3, name.len());
                page.put(name);
            }
            Designator::T10Vendor { vendor, id } => {
                head(page, ASCII, 1, 8 + id.len());
                page.put(&vendor).put(id);
            }
            Designator::SrpTargetPort(id) => {
                head(page, BINARY, PORT | 2, id.len());
                page.put(&id);
            }
            Designator::RelativeTargetPort(port) => {
                head(page, BINARY, PORT | 4, 4);
                page.be16(0).be16(port);
            }
            Designator::TargetPortGroup(group) => {
                head(page, BINARY, PORT | 5, 4);
                page.be16(0).be16(group);
            }
        }
    }
}

/// Writes page 83.
pub fn emit_device_identification(out: &mut [u8], peripheral: u8, designators: &[Designator<'_>]) -> usize {
    let mut page = open(out, peripheral, page::DEVICE_IDENTIFICATION);
    for designator in designators {
        designator.emit(&mut page);
    }
    close(page)
}

/// The longest NAA name of a logical unit in a page 83, for matching paths; `None` if there is
/// none or the page is cut inside a designator.
pub fn parse_naa(bytes: &[u8]) -> Option<&[u8]> {
    let (code, body) = parse_header(bytes)?;
    let mut rest = (code == page::DEVICE_IDENTIFICATION).then_some(body)?;
    let mut found: Option<&[u8]> = None;
    while let Some(len) = rest.get(3) {
        let designator = rest.get(..4 + usize::from(*len))?;
        // Association 00b (logical unit), type 3h.
        if designator[1] & 0x3f == 0x03 && found.is_none_or(|best| best.len() < designator.len() - 4) {
            found = Some(&designator[4..]);
        }
        rest = &rest[designator.len()..];
    }
    found
}

/// The page code of any page and its body, cut at the page's or the buffer's end.
pub fn parse_header(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (header, body) = bytes.split_at_checked(HEADER_BYTES)?;
    let len = usize::from(u16_at(header, 2)).min(body.len());
    Some((header[1], &body[..len]))
}

/// Page B0, block limits; 0 in a limit means unsupported or not reported, as the clause says.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME of zero blocks is refused.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH, blocks.
    pub max_compare_and_write: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY, blocks.
    pub transfer_granularity: u16,
    /// MAXIMUM TRANSFER LENGTH, blocks.
    pub max_transfer: u32,
    /// OPTIMAL TRANSFER LENGTH, blocks.
    pub optimal_transfer: u32,
    /// MAXIMUM UNMAP LBA COUNT.
    pub max_unmap: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub max_unmap_descriptors: u32,
    /// OPTIMAL UNMAP GRANULARITY, blocks.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, blocks, if UGAVALID.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH, blocks.
    pub max_write_same: u64,
}

impl BlockLimits {
    /// PAGE LENGTH.
    const BODY_BYTES: usize = 0x3c;

    /// Writes page B0.
    pub fn emit(&self, out: &mut [u8], peripheral: u8) -> usize {
        let mut page = open(out, peripheral, page::BLOCK_LIMITS);
        let alignment = self.unmap_alignment.map_or(0, |blocks| 0x8000_0000 | blocks);
        page.u8(u8::from(self.write_same_non_zero))
            .u8(self.max_compare_and_write)
            .be16(self.transfer_granularity)
            .be32(self.max_transfer)
            .be32(self.optimal_transfer)
            .be32(0) // MAXIMUM PREFETCH LENGTH
            .be32(self.max_unmap)
            .be32(self.max_unmap_descriptors)
            .be32(self.unmap_granularity)
            .be32(alignment)
            .be64(self.max_write_same);
        let rest = HEADER_BYTES + Self::BODY_BYTES - page.len();
        page.zeroes(rest);
        close(page)
    }

    /// Reads page B0; `None` if it is another page or too short for SBC-3's fields. (SBC-2's
    /// page of 12 bytes reads with the later limits zero.)
    pub fn parse(bytes: &[u8]) -> Option<BlockLimits> {
        let (code, body) = parse_header(bytes)?;
        if code != page::BLOCK_LIMITS || body.len() < 12 {
            return None;
        }
        let mut b = [0; Self::BODY_BYTES];
        let len = body.len().min(b.len());
        b[..len].copy_from_slice(&body[..len]);
        let alignment = u32_at(&b, 28);
        Some(BlockLimits {
            write_same_non_zero: b[0] & 1 != 0,
            max_compare_and_write: b[1],
            transfer_granularity: u16_at(&b, 2),
            max_transfer: u32_at(&b, 4),
            optimal_transfer: u32_at(&b, 8),
            max_unmap: u32_at(&b, 16),
            max_unmap_descriptors: u32_at(&b, 20),
            unmap_granularity: u32_at(&b, 24),
            unmap_alignment: (alignment >> 31 != 0).then_some(alignment & 0x7fff_ffff),
            max_write_same: u64_at(&b, 32),
        })
    }
}

/// Writes page B1: MEDIUM ROTATION RATE 1 (no rotation) or 0 (not reported), and FUAB:
/// FUA and SYNCHRONIZE CACHE act as SBC-3 says, not as SBC-2 did.
pub fn emit_block_device_characteristics(out: &mut [u8], peripheral: u8, rotational: bool) -> usize {
    let mut page = open(out, peripheral, page::BLOCK_DEVICE_CHARACTERISTICS);
    page.be16(u16::from(!rotational)).u8(0).u8(0).u8(0x02).zeroes(0x3c - 5);
    close(page)
}

/// Page B2, logical block provisioning.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Provisioning {
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) can unmap.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME(10) can unmap.
    pub write_same_10: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub reads_zeroes: bool,
    /// PROVISIONING TYPE: 0 fully provisioned, 1 resource, 2 thin.
    pub kind: u8,
}

impl Provisioning {
    /// PROVISIONING TYPE of a thin medium.
    pub const THIN: u8 = 2;

    /// Writes page B2.
    pub fn emit(&self, out: &mut [u8], peripheral: u8) -> usize {
        let mut page = open(out, peripheral, page::LOGICAL_BLOCK_PROVISIONING);
        let flags = u8::from(self.unmap) << 7
            | u8::from(self.write_same_16) << 6
            | u8::from(self.write_same_10) << 5
            | u8::from(self.reads_zeroes) << 2;
        page.u8(0).u8(flags).u8(self.kind & 7).u8(0);
        close(page)
    }

    /// Reads page B2.
    pub fn parse(bytes: &[u8]) -> Option<Provisioning> {
        let (code, body) = parse_header(bytes)?;
        if code != page::LOGICAL_BLOCK_PROVISIONING || body.len() < 4 {
            return None;
        }
        Some(Provisioning {
            unmap: body[1] & 0x80 != 0,
            write_same_16: body[1] & 0x40 != 0,
            write_same_10: body[1] & 0x20 != 0,
            reads_zeroes: body[1] & 0x1c != 0,
            kind: body[2] & 7,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_00_and_80() {
        let mut out = [0xff; 16];
        // LIO without a serial: 00 00 00 00 in tests/captures/lio-612-login-io.pcap.
        assert_eq!(emit_supported(&mut out, 0, &[]), 4);
        assert_eq!(out[..4], [0; 4]);
        assert_eq!(emit_supported(&mut out, 0, &[0x00, 0x80, 0xb0]), 7);
        assert_eq!(out[..7], [0, 0, 0, 3, 0x00, 0x80, 0xb0]);
        assert_eq!(emit_serial_number(&mut out, 0x1e, b"abc"), 7);
        assert_eq!(&out[..7], b"\x1e\x80\x00\x03abc");
        assert_eq!(parse_header(&out[..7]), Some((0x80, &b"abc"[..])));
    }

    #[test]
    fn page_83_byte_for_byte() {
        let mut out = [0xff; 128];
        let naa = [0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let port = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let list = [
            Designator::Naa(&naa),
            Designator::T10Vendor { vendor: *b"SRPOLL  ", id: b"x1" },
            Designator::SrpTargetPort(port),
            Designator::RelativeTargetPort(1),
            Designator::TargetPortGroup(0x102),
        ];
        let len = emit_device_identification(&mut out, 0, &list);
        // SPC-4, 7.8.6: code set and type of each designator, by hand.
        let expect = [
            &[0x00, 0x83, 0x00, 70][..],
            &[0x01, 0x03, 0x00, 16],
            &naa,
            &[0x02, 0x01, 0x00, 10],
            b"SRPOLL  x1",
            &[0x41, 0x92, 0x00, 16],
            &port,
            &[0x41, 0x94, 0x00, 4, 0, 0, 0, 1],
            &[0x41, 0x95, 0x00, 4, 0, 0, 1, 2],
        ]
        .concat();
        assert_eq!(out[..len], expect[..]);
        assert_eq!(parse_naa(&out[..len]), Some(&naa[..]));
        assert_eq!(parse_naa(&out[..10]), None);
    }

    #[test]
    fn page_b0_places() {
        let limits = BlockLimits {
            write_same_non_zero: true,
            max_compare_and_write: 1,
            transfer_granularity: 8,
            max_transfer: 0x8000,
            optimal_transfer: 0x400,
            max_unmap: 0x1_0000,
            max_unmap_descriptors: 32,
            unmap_granularity: 16,
            unmap_alignment: Some(4),
            max_write_same: 0x1_0000_0000,
        };
        let mut out = [0xff; 65];
        assert_eq!(limits.emit(&mut out, 0), 64);
        let expect = [
            0, 0xb0, 0, 0x3c, 1, 1, 0, 8, 0, 0, 0x80, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 32, 0,
            0, 0, 16, 0x80, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        assert_eq!(out[..44], expect);
        assert!(out[44..64].iter().all(|byte| *byte == 0));
        assert_eq!(out[64], 0xff);
        assert_eq!(BlockLimits::parse(&out), Some(limits));
        assert_eq!(BlockLimits::parse(&out[..15]), None);
    }

    #[test]
    fn pages_b1_and_b2() {
        let mut out = [0xff; 65];
        assert_eq!(emit_block_device_characteristics(&mut out, 0, false), 64);
        assert_eq!(out[..10], [0, 0xb1, 0, 0x3c, 0, 1, 0, 0, 2, 0]);
        emit_block_device_characteristics(&mut out, 0, true);
        assert_eq!(out[4..6], [0, 0]);
        let thin = Provisioning { unmap: true, reads_zeroes: true, kind: 2, ..Provisioning::default() };
        assert_eq!(thin.emit(&mut out, 0), 8);
        assert_eq!(out[..8], [0, 0xb2, 0, 4, 0, 0x84, 2, 0]);
        assert_eq!(Provisioning::parse(&out[..8]), Some(thin));
    }
}
