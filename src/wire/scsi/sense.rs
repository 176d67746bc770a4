//! Sense data (SPC-4, 4.5): what a CHECK CONDITION says, fixed and descriptor format.

use std::fmt;

use super::params::Params;
use crate::wire::be::{u32_at, u64_at};

/// Bytes of fixed format sense data as srpoll sends it: through the sense-key specific field.
pub const FIXED_BYTES: usize = 18;

/// Response codes (SPC-4, table 27).
const CURRENT_FIXED: u8 = 0x70;
const DEFERRED_FIXED: u8 = 0x71;
const CURRENT_DESCRIPTOR: u8 = 0x72;
const DEFERRED_DESCRIPTOR: u8 = 0x73;

/// SENSE KEY (SPC-4, table 47).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum SenseKey {
    /// Nothing to tell.
    NoSense = 0x0,
    /// Done, with recovery.
    RecoveredError = 0x1,
    /// Not accessible.
    NotReady = 0x2,
    /// The medium is flawed.
    MediumError = 0x3,
    /// The device failed.
    HardwareError = 0x4,
    /// The command cannot be taken as it is.
    IllegalRequest = 0x5,
    /// Something has changed since the last command of this I_T nexus.
    UnitAttention = 0x6,
    /// Writing or reading is forbidden.
    DataProtect = 0x7,
    /// Blank medium.
    BlankCheck = 0x8,
    /// Vendor specific.
    VendorSpecific = 0x9,
    /// EXTENDED COPY failed.
    CopyAborted = 0xa,
    /// The device aborted the command; it may be tried again.
    AbortedCommand = 0xb,
    /// Reserved.
    Reserved = 0xc,
    /// The buffered medium is full.
    VolumeOverflow = 0xd,
    /// Data differ.
    Miscompare = 0xe,
    /// Completed, with something to tell.
    Completed = 0xf,
}

impl SenseKey {
    /// The key in the low four bits of `value`.
    pub const fn from_low_bits(value: u8) -> SenseKey {
        match value & 0xf {
            0x0 => SenseKey::NoSense,
            0x1 => SenseKey::RecoveredError,
            0x2 => SenseKey::NotReady,
            0x3 => SenseKey::MediumError,
            0x4 => SenseKey::HardwareError,
            0x5 => SenseKey::IllegalRequest,
            0x6 => SenseKey::UnitAttention,
            0x7 => SenseKey::DataProtect,
            0x8 => SenseKey::BlankCheck,
            0x9 => SenseKey::VendorSpecific,
            0xa => SenseKey::CopyAborted,
            0xb => SenseKey::AbortedCommand,
            0xc => SenseKey::Reserved,
            0xd => SenseKey::VolumeOverflow,
            0xe => SenseKey::Miscompare,
            _ => SenseKey::Completed,
        }
    }
}

impl fmt::Display for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SenseKey::NoSense => "NO SENSE",
            SenseKey::RecoveredError => "RECOVERED ERROR",
            SenseKey::NotReady => "NOT READY",
            SenseKey::MediumError => "MEDIUM ERROR",
            SenseKey::HardwareError => "HARDWARE ERROR",
            SenseKey::IllegalRequest => "ILLEGAL REQUEST",
            SenseKey::UnitAttention => "UNIT ATTENTION",
            SenseKey::DataProtect => "DATA PROTECT",
            SenseKey::BlankCheck => "BLANK CHECK",
            SenseKey::VendorSpecific => "VENDOR SPECIFIC",
            SenseKey::CopyAborted => "COPY ABORTED",
            SenseKey::AbortedCommand => "ABORTED COMMAND",
            SenseKey::Reserved => "RESERVED",
            SenseKey::VolumeOverflow => "VOLUME OVERFLOW",
            SenseKey::Miscompare => "MISCOMPARE",
            SenseKey::Completed => "COMPLETED",
        })
    }
}

/// ADDITIONAL SENSE CODE and its QUALIFIER.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Asc(pub u8, pub u8);

macro_rules! codes {
    ($($name:ident = $asc:literal / $ascq:literal, $words:literal;)*) => {
        impl Asc {
            $(#[doc = $words] pub const $name: Asc = Asc($asc, $ascq);)*

            /// The words of SPC-4's table of codes, for the codes that srpoll sends or that an
            /// initiator often meets.
            pub const fn words(self) -> Option<&'static str> {
                match (self.0, self.1) {
                    $(($asc, $ascq) => Some($words),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    NONE = 0x00 / 0x00, "no additional sense information";
    NOT_READY = 0x04 / 0x00, "logical unit not ready, cause not reportable";
    BECOMING_READY = 0x04 / 0x01, "logical unit is in process of becoming ready";
    ALUA_TRANSITION = 0x04 / 0x0a, "logical unit not accessible, asymmetric access state transition";
    ALUA_STANDBY = 0x04 / 0x0b, "logical unit not accessible, target port in standby state";
    ALUA_UNAVAILABLE = 0x04 / 0x0c, "logical unit not accessible, target port in unavailable state";
    COMMUNICATION_FAILURE = 0x08 / 0x00, "logical unit communication failure";
    WRITE_ERROR = 0x0c / 0x00, "write error";
    UNEXPECTED_UNSOLICITED_DATA = 0x0c / 0x0c, "write error, unexpected unsolicited data";
    UNRECOVERED_READ_ERROR = 0x11 / 0x00, "unrecovered read error";
    PARAMETER_LIST_LENGTH_ERROR = 0x1a / 0x00, "parameter list length error";
    MISCOMPARE_DURING_VERIFY = 0x1d / 0x00, "miscompare during verify operation";
    INVALID_OPCODE = 0x20 / 0x00, "invalid command operation code";
    LBA_OUT_OF_RANGE = 0x21 / 0x00, "logical block address out of range";
    INVALID_FIELD_IN_CDB = 0x24 / 0x00, "invalid field in CDB";
    LUN_NOT_SUPPORTED = 0x25 / 0x00, "logical unit not supported";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x26 / 0x00, "invalid field in parameter list";
    WRITE_PROTECTED = 0x27 / 0x00, "write protected";
    SPACE_ALLOCATION_FAILED = 0x27 / 0x07, "space allocation failed write protect";
    POWER_ON_OR_RESET = 0x29 / 0x00, "power on, reset, or bus device reset occurred";
    POWER_ON = 0x29 / 0x01, "power on occurred";
    BUS_RESET = 0x29 / 0x02, "SCSI bus reset occurred";
    DEVICE_RESET = 0x29 / 0x03, "bus device reset function occurred";
    INTERNAL_RESET = 0x29 / 0x04, "device internal reset";
    NEXUS_LOSS = 0x29 / 0x07, "I_T nexus loss occurred";
    MODE_PARAMETERS_CHANGED = 0x2a / 0x01, "mode parameters changed";
    RESERVATIONS_PREEMPTED = 0x2a / 0x03, "reservations preempted";
    RESERVATIONS_RELEASED = 0x2a / 0x04, "reservations released";
    REGISTRATIONS_PREEMPTED = 0x2a / 0x05, "registrations preempted";
    ALUA_STATE_CHANGED = 0x2a / 0x06, "asymmetric access state changed";
    CAPACITY_CHANGED = 0x2a / 0x09, "capacity data has changed";
    COMMANDS_CLEARED = 0x2f / 0x00, "commands cleared by another initiator";
    SAVING_NOT_SUPPORTED = 0x39 / 0x00, "saving parameters not supported";
    MEDIUM_NOT_PRESENT = 0x3a / 0x00, "medium not present";
    INQUIRY_CHANGED = 0x3f / 0x03, "inquiry data has changed";
    REPORTED_LUNS_CHANGED = 0x3f / 0x0e, "reported luns data has changed";
    INTERNAL_TARGET_FAILURE = 0x44 / 0x00, "internal target failure";
    DATA_PHASE_ERROR = 0x4b / 0x00, "data phase error";
    INSUFFICIENT_RESOURCES = 0x55 / 0x03, "insufficient resources";
}

impl fmt::Debug for Asc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Asc({:02x}/{:02x})", self.0, self.1)
    }
}

impl fmt::Display for Asc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} ({:02x}/{:02x})", self.0, self.1),
            None => write!(f, "{:02x}/{:02x}", self.0, self.1),
        }
    }
}

/// The field pointer of the sense-key specific bytes (SPC-4, 4.5.2.4.2).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct FieldPointer {
    /// In the CDB (C/D one), or in the data-out parameters.
    pub in_cdb: bool,
    /// The first byte of the field in error.
    pub byte: u16,
    /// The left-most bit of the field in error, 7..=0; none if the field is whole bytes.
    pub bit: Option<u8>,
}

/// Sense data as a value.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sense {
    /// What kind of thing happened.
    pub key: SenseKey,
    /// What exactly.
    pub asc: Asc,
    /// It tells of an earlier command.
    pub deferred: bool,
    /// INFORMATION, for block commands the LBA of the first block in error.
    pub information: Option<u64>,
    /// Which field is in error, with ILLEGAL REQUEST.
    pub field: Option<FieldPointer>,
}

impl Sense {
    /// Sense data of this key and code, without more.
    pub const fn new(key: SenseKey, asc: Asc) -> Sense {
        Sense { key, asc, deferred: false, information: None, field: None }
    }

    /// With INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Sense {
        self.information = Some(information);
        self
    }

    /// With a pointer to the field of the CDB that begins at `byte`; `bit` is its left-most bit
    /// if it is not whole bytes.
    #[must_use]
    pub const fn with_cdb_field(mut self, byte: u16, bit: Option<u8>) -> Sense {
        self.field = Some(FieldPointer { in_cdb: true, byte, bit });
        self
    }

    /// SENSE KEY SPECIFIC, with SKSV.
    fn key_specific(&self) -> [u8; 3] {
        let Some(field) = self.field else { return [0; 3] };
        let bit = field.bit.map_or(0, |bit| 0x08 | (bit & 7));
        let [high, low] = field.byte.to_be_bytes();
        [0x80 | u8::from(field.in_cdb) << 6 | bit, high, low]
    }

    fn parse_key_specific(key: SenseKey, bytes: &[u8]) -> Option<FieldPointer> {
        let &[flags, high, low] = bytes else { return None };
        (flags & 0x80 != 0 && key == SenseKey::IllegalRequest).then(|| FieldPointer {
            in_cdb: flags & 0x40 != 0,
            byte: u16::from_be_bytes([high, low]),
            bit: (flags & 0x08 != 0).then_some(flags & 7),
        })
    }

    /// Fixed format (SPC-4, 4.5.3). INFORMATION is valid only if it fits in 32 bits.
    pub fn emit_fixed(&self) -> [u8; FIXED_BYTES] {
        let mut out = [0; FIXED_BYTES];
        out[0] = if self.deferred { DEFERRED_FIXED } else { CURRENT_FIXED };
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            out[0] |= 0x80;
            out[3..7].copy_from_slice(&information.to_be_bytes());
        }
        out[2] = self.key as u8;
        out[7] = (FIXED_BYTES - 8) as u8;
        out[12] = self.asc.0;
        out[13] = self.asc.1;
        out[15..18].copy_from_slice(&self.key_specific());
        out
    }

    /// Descriptor format (SPC-4, 4.5.2) into `out`; returns its length, at most 28 bytes.
    pub fn emit_descriptor(&self, out: &mut [u8]) -> usize {
        let mut page = Params::new(out);
        page.u8(if self.deferred { DEFERRED_DESCRIPTOR } else { CURRENT_DESCRIPTOR })
            .u8(self.key as u8)
            .u8(self.asc.0)
            .u8(self.asc.1)
            .zeroes(4);
        if let Some(information) = self.information {
            page.put(&[0x00, 0x0a, 0x80, 0]).be64(information);
        }
        if self.field.is_some() {
            page.put(&[0x02, 0x06, 0, 0]).put(&self.key_specific()).u8(0);
        }
        let additional = (page.len() - 8) as u8;
        page.patch(7, &[additional]).len()
    }

    /// Reads either format; `None` if `bytes` are too short to hold a code, or no sense data.
    pub fn parse(bytes: &[u8]) -> Option<Sense> {
        match bytes.first()? & 0x7f {
            code @ (CURRENT_FIXED | DEFERRED_FIXED) => Self::parse_fixed(code, bytes),
            code @ (CURRENT_DESCRIPTOR | DEFERRED_DESCRIPTOR) => Self::parse_descriptor(code, bytes),
            _ => None,
        }
    }

    fn parse_fixed(code: u8, bytes: &[u8]) -> Option<Sense> {
        let key = SenseKey::from_low_bits(*bytes.get(2)?);
        let end = bytes.len().min(8 + usize::from(*bytes.get(7)?));
        let bytes = &bytes[..end];
        Some(Sense {
            key,
            // A sender may leave the code out: it is then zero (SPC-4, 4.5.3).
            asc: Asc(bytes.get(12).copied().unwrap_or(0), bytes.get(13).copied().unwrap_or(0)),
            deferred: code == DEFERRED_FIXED,
            information: (bytes[0] & 0x80 != 0).then(|| u64::from(u32_at(bytes, 3))),
            field: bytes.get(15..18).and_then(|specific| Self::parse_key_specific(key, specific)),
        })
    }

    fn parse_descriptor(code: u8, bytes: &[u8]) -> Option<Sense> {
        let header = bytes.get(..8)?;
        let key = SenseKey::from_low_bits(header[1]);
        let mut sense = Sense::new(key, Asc(header[2], header[3]));
        sense.deferred = code == DEFERRED_DESCRIPTOR;
        let end = bytes.len().min(8 + usize::from(header[7]));
        let mut rest = &bytes[8..end];
        while let [kind, len, ..] = *rest {
            let Some(descriptor) = rest.get(..2 + usize::from(len)) else { break };
            match (kind, descriptor.len()) {
                (0x00, 12) if descriptor[2] & 0x80 != 0 => sense.information = Some(u64_at(descriptor, 4)),
                (0x02, 8) => sense.field = Self::parse_key_specific(key, &descriptor[4..7]),
                _ => {}
            }
            rest = &rest[descriptor.len()..];
        }
        Some(sense)
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.asc)?;
        if let Some(information) = self.information {
            write!(f, ", block {information}")?;
        }
        if let Some(field) = self.field {
            let place = if field.in_cdb { "CDB" } else { "parameter list" };
            write!(f, ", at {place} byte {}", field.byte)?;
            if let Some(bit) = field.bit {
                write!(f, " bit {bit}")?;
            }
        }
        if self.deferred {
            f.write_str(", of an earlier command")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first 18 of LIO's 96 bytes, tests/captures/lio-612-login-io.pcap.
    const LIO_LUNS_CHANGED: [u8; 18] = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 0x0e, 0, 0, 0, 0];
    const LIO_INVALID_FIELD: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];
    const LIO_OUT_OF_RANGE: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];

    #[test]
    fn lio_sense_reads_and_is_emitted_again() {
        for (bytes, words) in [
            (LIO_LUNS_CHANGED, "UNIT ATTENTION: reported luns data has changed (3f/0e)"),
            (LIO_INVALID_FIELD, "ILLEGAL REQUEST: invalid field in CDB (24/00)"),
            (LIO_OUT_OF_RANGE, "ILLEGAL REQUEST: logical block address out of range (21/00)"),
        ] {
            let sense = Sense::parse(&bytes).expect("sense data");
            assert_eq!(sense.to_string(), words);
            assert_eq!(sense.emit_fixed(), bytes);
            // As LIO sends it: padded to 96 bytes.
            let mut padded = [0; 96];
            padded[..18].copy_from_slice(&bytes);
            assert_eq!(Sense::parse(&padded), Some(sense));
        }
    }

    #[test]
    fn field_pointer_and_information() {
        // SPC-4, 4.5.3 and 4.5.2.4.2: SKSV, C/D, BPV, bit 5 of byte 2; INFORMATION 0x01020304.
        let sense = Sense::new(SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB)
            .with_cdb_field(2, Some(5))
            .with_information(0x0102_0304);
        let expect = [0xf0, 0, 5, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 2];
        assert_eq!(sense.emit_fixed(), expect);
        assert_eq!(Sense::parse(&expect), Some(sense));
        assert_eq!(
            sense.to_string(),
            "ILLEGAL REQUEST: invalid field in CDB (24/00), block 16909060, at CDB byte 2 bit 5"
        );
        let whole = Sense { field: Some(FieldPointer { in_cdb: false, byte: 0x102, bit: None }), ..sense };
        assert_eq!(whole.emit_fixed()[15..], [0x80, 1, 2]);
        assert_eq!(Sense::parse(&whole.emit_fixed()), Some(whole));
    }

    #[test]
    fn descriptor_format() {
        let mut out = [0xff; 32];
        let plain = Sense::new(SenseKey::NoSense, Asc::NONE);
        assert_eq!(plain.emit_descriptor(&mut out), 8);
        assert_eq!(out[..8], [0x72, 0, 0, 0, 0, 0, 0, 0]);
        let sense = Sense {
            deferred: true,
            ..Sense::new(SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE)
                .with_information(0x1_0000_0000)
                .with_cdb_field(10, None)
        };
        let expect = [
            0x73, 5, 0x21, 0, 0, 0, 0, 20, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 6, 0, 0, 0xc0, 0, 10, 0,
        ];
        assert_eq!(sense.emit_descriptor(&mut out), 28);
        assert_eq!(out[..28], expect);
        assert_eq!(Sense::parse(&expect), Some(sense));
        // In fixed format INFORMATION of more than 32 bits is not valid.
        assert_eq!(Sense::parse(&sense.emit_fixed()), Some(Sense { information: None, ..sense }));
    }

    #[test]
    fn short_and_foreign_bytes() {
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&LIO_LUNS_CHANGED[..7]), None);
        assert_eq!(Sense::parse(&[0x72, 6, 0x29, 0]), None);
        assert_eq!(Sense::parse(&[0x7f; 18]), None);
        // Eight bytes hold the key and no code.
        let short = Sense::parse(&LIO_LUNS_CHANGED[..8]).expect("key");
        assert_eq!((short.key, short.asc), (SenseKey::UnitAttention, Asc::NONE));
        assert_eq!(Asc(0x5d, 0x10).to_string(), "5d/10");
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            if let Some(sense) = Sense::parse(&bytes) {
                let _words = sense.to_string();
                let mut out = [0; 28];
                let len = sense.emit_descriptor(&mut out);
                proptest::prop_assert_eq!(Sense::parse(&out[..len]), Some(sense));
            }
        }
    }
}
