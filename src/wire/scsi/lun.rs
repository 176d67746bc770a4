//! The 8-byte LUN field of SAM-5, 4.7.

use std::fmt;

/// A logical unit number as srpoll names its own: 0..=16383, one level.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Lun(u16);

impl Lun {
    /// LUN 0.
    pub const ZERO: Lun = Lun(0);
    /// The largest number that flat space addressing holds.
    pub const MAX: Lun = Lun(0x3fff);

    /// The LUN of this number, if it can be addressed.
    pub const fn new(number: u16) -> Option<Lun> {
        if number <= Self::MAX.0 { Some(Lun(number)) } else { None }
    }

    /// Its number, 0..=16383.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The field: peripheral device addressing below 256 (SAM-5, 4.7.7.2), flat space addressing
    /// from there (4.7.7.3). Linux and LIO choose the same way.
    pub const fn emit(self) -> [u8; 8] {
        let [high, low] = self.0.to_be_bytes();
        let method = if self.0 < 256 { 0 } else { FLAT << 6 };
        [method | high, low, 0, 0, 0, 0, 0, 0]
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lun({})", self.0)
    }
}

const PERIPHERAL: u8 = 0b00;
const FLAT: u8 = 0b01;
const EXTENDED: u8 = 0b11;

/// What a LUN field addresses.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum LunField {
    /// A logical unit of ours, whether it exists or not.
    Unit(Lun),
    /// The REPORT LUNS well known logical unit, C1 01 (SPC-4, clause 8).
    ReportLuns,
    /// A form that addresses nothing here: another bus, a second level, a logical unit behind
    /// others, another well known logical unit.
    Elsewhere,
}

impl LunField {
    /// The field of the REPORT LUNS well known logical unit.
    pub const REPORT_LUNS: [u8; 8] = [0xc1, 0x01, 0, 0, 0, 0, 0, 0];

    /// Reads the field. Accepted are peripheral device addressing on bus 0, flat space
    /// addressing, and extended flat space addressing (SAM-5, 4.7.7.5.3, the two-byte length
    /// D2h, whose number must be one of ours).
    pub fn parse(field: &[u8; 8]) -> LunField {
        let below = &field[2..];
        let one_level = below.iter().all(|byte| *byte == 0);
        match field[0] >> 6 {
            PERIPHERAL if one_level && field[0] == 0 => LunField::Unit(Lun(u16::from(field[1]))),
            FLAT if one_level => LunField::Unit(Lun(u16::from_be_bytes([field[0] & 0x3f, field[1]]))),
            EXTENDED if *field == Self::REPORT_LUNS => LunField::ReportLuns,
            // Extended flat: method 11b, length 01b (three bytes of address), extended method 2h.
            EXTENDED if field[0] == 0xd2 && field[4..].iter().all(|byte| *byte == 0) => {
                let number = u32::from_be_bytes([0, field[1], field[2], field[3]]);
                match u16::try_from(number).ok().and_then(Lun::new) {
                    Some(lun) => LunField::Unit(lun),
                    None => LunField::Elsewhere,
                }
            }
            _ => LunField::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(number: u16) -> LunField {
        LunField::Unit(Lun::new(number).expect("in range"))
    }

    #[test]
    fn every_form_that_sam_gives() {
        // The first two as ib_srp sends them: tests/captures/lio-612-login-io.pcap.
        assert_eq!(LunField::parse(&[0; 8]), unit(0));
        assert_eq!(LunField::parse(&[0, 1, 0, 0, 0, 0, 0, 0]), unit(1));
        assert_eq!(LunField::parse(&[0x40, 0, 0, 0, 0, 0, 0, 0]), unit(0));
        assert_eq!(LunField::parse(&[0x41, 0, 0, 0, 0, 0, 0, 0]), unit(256));
        assert_eq!(LunField::parse(&[0x7f, 0xff, 0, 0, 0, 0, 0, 0]), unit(16383));
        assert_eq!(LunField::parse(&[0xd2, 0, 0x3f, 0xff, 0, 0, 0, 0]), unit(16383));
        assert_eq!(LunField::parse(&LunField::REPORT_LUNS), LunField::ReportLuns);
    }

    #[test]
    fn what_addresses_nothing_here() {
        for field in [
            [0x01, 0, 0, 0, 0, 0, 0, 0],          // bus 1
            [0x00, 0, 0, 1, 0, 0, 0, 0],          // second level
            [0x80, 0, 0, 0, 0, 0, 0, 0],          // logical unit addressing
            [0xc1, 0x02, 0, 0, 0, 0, 0, 0],       // another well known logical unit
            [0xd2, 0, 0x40, 0, 0, 0, 0, 0],       // 16384
            [0xd2, 0, 0, 1, 0, 0, 0, 1],          // extended flat with a second level
            [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], // not specified
        ] {
            assert_eq!(LunField::parse(&field), LunField::Elsewhere, "{field:02x?}");
        }
    }

    #[test]
    fn the_form_follows_the_size() {
        assert_eq!(Lun::new(255).map(Lun::emit), Some([0, 255, 0, 0, 0, 0, 0, 0]));
        assert_eq!(Lun::new(256).map(Lun::emit), Some([0x41, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(Lun::new(16384), None);
        for number in 0..=16383 {
            let lun = Lun::new(number).expect("in range");
            assert_eq!(LunField::parse(&lun.emit()), LunField::Unit(lun));
        }
    }
}
