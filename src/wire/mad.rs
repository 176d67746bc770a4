//! Management datagrams (IBTA vol. 1, 13.4): 256 bytes in a UD SEND to QP1.

use super::error::ParseError;
use super::layout::layout;

/// Bytes of every management datagram.
pub const MAD_LEN: usize = 256;
/// Bytes after the header.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

layout! {
    /// The common header.
    MadHeader: 24 bytes
    /// Version of this header: 1.
    base_version: u8 = 0, 0, 8;
    /// Management class: 7 is communication management.
    class: u8 = 1, 0, 8;
    /// Version of the class: 2.
    class_version: u8 = 2, 0, 8;
    /// Method: 3 is Send.
    method: u8 = 3, 0, 8;
    /// Status, 0 from everybody known.
    status: u16 = 4, 0, 16;
    /// What the class makes of it.
    class_specific: u16 = 6, 0, 16;
    /// Transaction id: an answer carries that of its request.
    tid: u64 = 8, 0, 64;
    /// Which message the body is.
    attribute: u16 = 16, 0, 16;
    /// Reserved.
    reserved: u16 = 18, 0, 16;
    /// Attribute modifier, 0 for communication management.
    modifier: u32 = 20, 0, 32;
}

impl MadHeader {
    /// Communication management.
    pub const CLASS_CM: u8 = 0x07;
    /// The only version of that class.
    pub const CM_VERSION: u8 = 2;
    /// The only method of that class.
    pub const METHOD_SEND: u8 = 0x03;

    /// The header of a communication management message.
    pub const fn cm(tid: u64, attribute: u16) -> MadHeader {
        MadHeader {
            base_version: 1,
            class: Self::CLASS_CM,
            class_version: Self::CM_VERSION,
            method: Self::METHOD_SEND,
            status: 0,
            class_specific: 0,
            tid,
            attribute,
            reserved: 0,
            modifier: 0,
        }
    }
}

/// Takes a datagram apart into header and body.
///
/// # Errors
/// If it does not have [`MAD_LEN`] bytes.
pub fn split(mad: &[u8]) -> Result<(MadHeader, &[u8; BODY_LEN]), ParseError> {
    if mad.len() > MAD_LEN {
        return Err(ParseError::Long { what: "MAD", most_bytes: MAD_LEN, got_bytes: mad.len() });
    }
    let short = ParseError::Short { what: "MAD", needed_bytes: MAD_LEN, got_bytes: mad.len() };
    let (header, body) = mad.split_first_chunk::<{ MadHeader::LEN }>().ok_or(short)?;
    Ok((MadHeader::parse(header), body.first_chunk::<BODY_LEN>().ok_or(short)?))
}

/// Puts header and body together.
pub fn join(header: &MadHeader, body: &[u8; BODY_LEN]) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    if let Some((head, rest)) = mad.split_first_chunk_mut::<{ MadHeader::LEN }>() {
        header.emit(head);
        rest.copy_from_slice(body);
    }
    mad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_covers_its_bits() {
        MadHeader::assert_layout();
    }

    #[test]
    fn a_mad_has_256_bytes() {
        assert!(matches!(split(&[0; 255]), Err(ParseError::Short { got_bytes: 255, .. })));
        assert!(matches!(split(&[0; 10]), Err(ParseError::Short { got_bytes: 10, .. })));
        assert!(matches!(split(&[0; 257]), Err(ParseError::Long { got_bytes: 257, .. })));
        let (header, body) = split(&[0x5a; 256]).unwrap();
        assert_eq!(join(&header, body), [0x5a; 256]);
    }
}
