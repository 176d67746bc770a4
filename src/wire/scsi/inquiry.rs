//! Standard INQUIRY data (SPC-4, 6.6.2).

use super::params::Params;

/// PERIPHERAL DEVICE TYPE with its qualifier, byte 0 (SPC-4, tables 176 and 177).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Peripheral {
    /// A direct access block device, connected.
    Disk = 0x00,
    /// A well known logical unit.
    WellKnown = 0x1e,
    /// Qualifier 011b, type 1Fh: no logical unit can be at this LUN.
    Absent = 0x7f,
}

/// VERSION: SPC-4.
pub const VERSION_SPC4: u8 = 0x06;
/// Bytes of the data that srpoll sends: through the version descriptors and what follows them.
pub const STANDARD_BYTES: usize = 96;

/// Version descriptors (SPC-4, table 182), no version claimed: SAM-5, SRP, SPC-4, SBC-3.
pub const VERSION_DESCRIPTORS: [u16; 4] = [0x00a0, 0x0940, 0x0460, 0x04c0];

/// Standard INQUIRY data.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct StandardInquiry {
    /// Byte 0: peripheral qualifier and device type.
    pub peripheral: u8,
    /// VERSION.
    pub version: u8,
    /// TPGS: 0 none, 1 implicit, 2 explicit, 3 both.
    pub tpgs: u8,
    /// 3PC: EXTENDED COPY is supported.
    pub third_party_copy: bool,
    /// MULTIP: the device has several ports.
    pub multi_port: bool,
    /// T10 VENDOR IDENTIFICATION, ASCII, padded with spaces.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION, padded with spaces.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL, padded with spaces.
    pub revision: [u8; 4],
}

impl StandardInquiry {
    /// Writes the data, with HISUP, CMDQUE and the version descriptors; returns
    /// [`STANDARD_BYTES`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut page = Params::new(out);
        page.u8(self.peripheral)
            .u8(0)
            .u8(self.version)
            .u8(0x12) // HISUP, RESPONSE DATA FORMAT 2
            .u8((STANDARD_BYTES - 5) as u8)
            .u8((self.tpgs & 3) << 4 | u8::from(self.third_party_copy) << 3)
            .u8(u8::from(self.multi_port) << 4)
            .u8(0x02) // CMDQUE
            .put(&self.vendor)
            .put(&self.product)
            .put(&self.revision)
            .zeroes(58 - 36);
        for descriptor in VERSION_DESCRIPTORS {
            page.be16(descriptor);
        }
        let rest = STANDARD_BYTES - page.len();
        page.zeroes(rest).len()
    }

    /// Reads the data; `None` if it is shorter than the 36 bytes that every device sends.
    pub fn parse(bytes: &[u8]) -> Option<StandardInquiry> {
        let bytes = bytes.get(..36)?;
        let mut inquiry = StandardInquiry {
            peripheral: bytes[0],
            version: bytes[2],
            tpgs: bytes[5] >> 4 & 3,
            third_party_copy: bytes[5] & 8 != 0,
            multi_port: bytes[6] & 0x10 != 0,
            vendor: [0; 8],
            product: [0; 16],
            revision: [0; 4],
        };
        inquiry.vendor.copy_from_slice(&bytes[8..16]);
        inquiry.product.copy_from_slice(&bytes[16..32]);
        inquiry.revision.copy_from_slice(&bytes[32..36]);
        Some(inquiry)
    }

    /// Whether a logical unit is there: qualifier 000b.
    pub const fn is_connected(&self) -> bool {
        self.peripheral >> 5 == 0
    }

    /// PERIPHERAL DEVICE TYPE; 0 is a disk.
    pub const fn device_type(&self) -> u8 {
        self.peripheral & 0x1f
    }
}

/// `text` as a field of `N` bytes: ASCII, cut or padded with spaces; what is not printable
/// becomes a space (SPC-4, 4.3.1).
pub fn ascii_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (slot, byte) in field.iter_mut().zip(text.bytes()) {
        if (0x20..0x7f).contains(&byte) {
            *slot = byte;
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 36 bytes of LIO's answer in tests/captures/lio-612-login-io.pcap.
    const LIO: &[u8; 36] = b"\x00\x00\x06\x02\x5b\xb8\x00\x02LIO-ORG RAMDISK-MCP     4.0 ";

    #[test]
    fn lio_answer() {
        let inquiry = StandardInquiry::parse(LIO).expect("36 bytes");
        assert!(inquiry.is_connected());
        assert_eq!((inquiry.device_type(), inquiry.version, inquiry.tpgs), (0, VERSION_SPC4, 3));
        assert!(inquiry.third_party_copy);
        assert_eq!(&inquiry.vendor, b"LIO-ORG ");
        assert_eq!(&inquiry.product, b"RAMDISK-MCP     ");
        assert_eq!(&inquiry.revision, b"4.0 ");
    }

    #[test]
    fn our_data_reads_back() {
        let inquiry = StandardInquiry {
            peripheral: Peripheral::Disk as u8,
            version: VERSION_SPC4,
            tpgs: 0,
            third_party_copy: false,
            multi_port: false,
            vendor: ascii_field("SRPOLL"),
            product: ascii_field("malloc"),
            revision: ascii_field("0.1"),
        };
        let mut out = [0xff; 128];
        assert_eq!(inquiry.emit(&mut out), 96);
        assert_eq!(out[..8], [0, 0, 6, 0x12, 0x5b, 0, 0, 2]);
        assert_eq!(&out[8..36], b"SRPOLL  malloc          0.1 ");
        // The same four descriptors at the same place as LIO's in lio-612-login-io.pcap.
        assert_eq!(out[58..66], [0x00, 0xa0, 0x09, 0x40, 0x04, 0x60, 0x04, 0xc0]);
        assert!(out[66..96].iter().all(|byte| *byte == 0));
        assert_eq!(out[96], 0xff);
        assert_eq!(StandardInquiry::parse(&out), Some(inquiry));
        assert_eq!(StandardInquiry::parse(&out[..35]), None);
    }

    #[test]
    fn text_fields_are_ascii() {
        assert_eq!(&ascii_field::<4>("abcdef"), b"abcd");
        assert_eq!(&ascii_field::<6>("a\tb\u{e9}"), b"a b   ");
    }
}
