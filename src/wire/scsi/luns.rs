//! REPORT LUNS parameter data (SPC-4, 6.33).

use super::lun::LunField;
use super::params::Params;
use crate::wire::be::u32_at;

/// Bytes before the list.
pub const HEADER_BYTES: usize = 8;
/// Bytes of an entry of the list.
pub const ENTRY_BYTES: usize = 8;

/// Writes header and list; returns the exact available length, which may exceed `out`: what does
/// not fit is left out.
pub fn emit(out: &mut [u8], fields: impl Iterator<Item = [u8; 8]>) -> usize {
    let mut page = Params::new(out);
    page.zeroes(HEADER_BYTES);
    for field in fields {
        page.put(&field);
    }
    let list_bytes = (page.len() - HEADER_BYTES) as u32;
    page.patch(0, &list_bytes.to_be_bytes()).len()
}

/// A REPORT LUNS answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct LunList<'a> {
    /// LUN LIST LENGTH, bytes: more than came if the allocation length was too small.
    pub list_bytes: u32,
    entries: &'a [u8],
}

impl<'a> LunList<'a> {
    /// Reads an answer; `None` without a whole header.
    pub fn parse(bytes: &'a [u8]) -> Option<LunList<'a>> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let list_bytes = u32_at(header, 0);
        let have = rest.len().min(usize::try_from(list_bytes).unwrap_or(usize::MAX));
        Some(LunList { list_bytes, entries: &rest[..have] })
    }

    /// What came whole, in order.
    pub fn iter(&self) -> impl Iterator<Item = LunField> + 'a {
        self.entries.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
            let field: [u8; 8] = entry.try_into().ok()?;
            Some(LunField::parse(&field))
        })
    }

    /// Whether the list did not fit in the allocation length.
    pub fn is_cut(&self) -> bool {
        (self.entries.len() as u64) < u64::from(self.list_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::scsi::lun::Lun;

    /// tests/captures/lio-612-login-io.pcap: two LUNs.
    const LIO: [u8; 24] = [0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];

    #[test]
    fn lio_answer() {
        let mut out = [0xff; 32];
        let luns = [Lun::ZERO, Lun::new(1).expect("in range")];
        assert_eq!(emit(&mut out, luns.iter().map(|lun| lun.emit())), 24);
        assert_eq!(out[..24], LIO);
        let list = LunList::parse(&LIO).expect("header");
        assert!(list.iter().eq(luns.map(LunField::Unit)));
        assert!(!list.is_cut());
    }

    #[test]
    fn a_short_buffer_keeps_the_length_exact() {
        let mut out = [0xff; 20];
        let all = (0..300).map(|number| Lun::new(number).expect("in range").emit());
        assert_eq!(emit(&mut out, all), 8 + 300 * 8);
        assert_eq!(out[..4], (300u32 * 8).to_be_bytes());
        let list = LunList::parse(&out).expect("header");
        assert_eq!(list.iter().count(), 1);
        assert!(list.is_cut());
        assert_eq!(LunList::parse(&out[..7]), None);
    }
}
