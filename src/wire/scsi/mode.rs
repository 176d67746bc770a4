//! Mode parameters (SPC-4, 7.5; SBC-3, 6.4): headers, block descriptors, pages 08 and 0A.

use super::params::Params;
use crate::wire::be::u16_at;

/// Page codes.
pub mod page {
    /// Caching (SBC-3, 6.4.5).
    pub const CACHING: u8 = 0x08;
    /// Control (SPC-4, 7.5.8).
    pub const CONTROL: u8 = 0x0a;
    /// All pages.
    pub const ALL: u8 = 0x3f;
    /// Subpage code: all subpages.
    pub const ALL_SUBPAGES: u8 = 0xff;
}

/// DEVICE-SPECIFIC PARAMETER of a disk: WP.
const WP: u8 = 0x80;
/// DEVICE-SPECIFIC PARAMETER of a disk: DPOFUA.
const DPOFUA: u8 = 0x10;

/// The block descriptor (SBC-3, 6.4.2).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlockDescriptor {
    /// NUMBER OF LOGICAL BLOCKS.
    pub blocks: u64,
    /// LOGICAL BLOCK LENGTH, bytes.
    pub block_bytes: u32,
    /// The long form of 16 bytes; else the short one of 8, where too many blocks are FFFF_FFFFh.
    pub long: bool,
}

impl BlockDescriptor {
    const fn len(self) -> u16 {
        if self.long { 16 } else { 8 }
    }

    fn emit(self, page: &mut Params<'_>) {
        if self.long {
            page.be64(self.blocks).be32(0).be32(self.block_bytes);
        } else {
            let blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
            page.be32(blocks).be32(self.block_bytes & 0x00ff_ffff);
        }
    }
}

/// Page 08, caching.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Caching {
    /// WCE: completed writes may be in a volatile cache.
    pub write_cache: bool,
    /// RCD: reads do not come from a cache.
    pub read_cache_disabled: bool,
}

impl Caching {
    /// The page, 20 bytes.
    pub fn emit(&self) -> [u8; 20] {
        let mut out = [0; 20];
        out[0] = page::CACHING;
        out[1] = 18;
        out[2] = u8::from(self.write_cache) << 2 | u8::from(self.read_cache_disabled);
        out
    }

    /// Reads the page from its first byte on.
    pub fn parse(bytes: &[u8]) -> Option<Caching> {
        let bytes = bytes.get(..3)?;
        (bytes[0] & 0x7f == page::CACHING)
            .then_some(Caching { write_cache: bytes[2] & 4 != 0, read_cache_disabled: bytes[2] & 1 != 0 })
    }
}

/// Page 0A, control.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Control {
    /// D_SENSE: sense data come in descriptor format.
    pub descriptor_sense: bool,
    /// GLTSD: log parameters are not saved.
    pub no_log_save: bool,
    /// QUEUE ALGORITHM MODIFIER 1: simple tasks may be reordered without restriction.
    pub unrestricted_reordering: bool,
    /// TAS: tasks aborted by another I_T nexus end with TASK ABORTED status.
    pub task_aborted_status: bool,
    /// SWP: writes are forbidden by software.
    pub software_write_protect: bool,
}

impl Control {
    /// The page, 12 bytes; BUSY TIMEOUT PERIOD unlimited.
    pub fn emit(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[0] = page::CONTROL;
        out[1] = 10;
        out[2] = u8::from(self.descriptor_sense) << 2 | u8::from(self.no_log_save) << 1;
        out[3] = u8::from(self.unrestricted_reordering) << 4;
        out[4] = u8::from(self.software_write_protect) << 3;
        out[5] = u8::from(self.task_aborted_status) << 6;
        out[8..10].copy_from_slice(&[0xff, 0xff]);
        out
    }
}

/// The header's fields that a disk uses.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Header {
    /// WP.
    pub write_protected: bool,
    /// DPOFUA: DPO and FUA are supported.
    pub dpo_fua: bool,
}

/// Writes MODE SENSE data: the header of the 6- or 10-byte command, a block descriptor if given,
/// then `pages`. Returns the available length. A long descriptor wants `ten`.
pub fn emit(
    out: &mut [u8],
    ten: bool,
    header: Header,
    descriptor: Option<BlockDescriptor>,
    pages: &[&[u8]],
) -> usize {
    let mut page = Params::new(out);
    let specific = if header.write_protected { WP } else { 0 } | if header.dpo_fua { DPOFUA } else { 0 };
    let descriptor_bytes = descriptor.map_or(0, BlockDescriptor::len);
    if ten {
        let long = descriptor.is_some_and(|descriptor| descriptor.long);
        page.be16(0).u8(0).u8(specific).u8(u8::from(long)).u8(0).be16(descriptor_bytes);
    } else {
        page.u8(0).u8(0).u8(specific).u8(descriptor_bytes as u8);
    }
    if let Some(descriptor) = descriptor {
        descriptor.emit(&mut page);
    }
    for body in pages {
        page.put(body);
    }
    // MODE DATA LENGTH does not count itself.
    let len = page.len();
    if ten {
        page.patch(0, &((len - 2) as u16).to_be_bytes());
    } else {
        page.patch(0, &[(len - 1) as u8]);
    }
    len
}

/// MODE SENSE data: the header's flags and the mode pages after the block descriptors.
pub fn parse(bytes: &[u8], ten: bool) -> Option<(Header, &[u8])> {
    let header_bytes = if ten { 8 } else { 4 };
    let (header, rest) = bytes.split_at_checked(header_bytes)?;
    let (specific, skip) =
        if ten { (header[3], usize::from(u16_at(header, 6))) } else { (header[2], usize::from(header[3])) };
    let flags = Header { write_protected: specific & WP != 0, dpo_fua: specific & DPOFUA != 0 };
    Some((flags, rest.get(skip..).unwrap_or(&[])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MODE SENSE(6) of page 08 by LIO in tests/captures/lio-612-login-io.pcap, LUN 0.
    const LIO: [u8; 32] = [
        0x1f, 0, 0, 8, 0, 1, 0xff, 0xff, 0, 0, 2, 0, 0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0,
        0, 0, 0, 0,
    ];

    #[test]
    fn lio_answer() {
        let (header, pages) = parse(&LIO, false).expect("header");
        assert_eq!(header, Header::default());
        assert_eq!(Caching::parse(pages), Some(Caching::default()));
        let mut out = [0xff; 40];
        // LIO gives the last block's number where the standard wants their count.
        let descriptor = BlockDescriptor { blocks: 0x1_ffff, block_bytes: 512, long: false };
        let len = emit(&mut out, false, header, Some(descriptor), &[&Caching::default().emit()]);
        assert_eq!(len, 32);
        // LIO sets DRA besides.
        out[24] |= 0x20;
        assert_eq!(out[..32], LIO);
    }

    #[test]
    fn ten_byte_header_and_long_descriptor() {
        let mut out = [0xff; 64];
        let header = Header { write_protected: true, dpo_fua: true };
        let descriptor = BlockDescriptor { blocks: 0x1_0000_0001, block_bytes: 4096, long: true };
        let control = Control {
            no_log_save: true,
            unrestricted_reordering: true,
            task_aborted_status: true,
            ..Control::default()
        };
        let len = emit(&mut out, true, header, Some(descriptor), &[&control.emit()]);
        let expect = [
            0, 34, 0, 0x90, 1, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0, 0x0a, 10, 0x02,
            0x10, 0, 0x40, 0, 0, 0xff, 0xff, 0, 0,
        ];
        assert_eq!(out[..len], expect);
        assert_eq!(parse(&out[..len], true), Some((header, &expect[24..])));
        let short = BlockDescriptor { long: false, ..descriptor };
        assert_eq!(emit(&mut out, false, header, Some(short), &[]), 12);
        assert_eq!(out[..12], [11, 0, 0x90, 8, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0]);
    }
}
