//! Communication management messages (IBTA vol. 1, chapter 12) and the RDMA-CM's addition.
//!
//! It knows where each field stands and keeps every bit, reserved ones too. It knows no order
//! of messages and no timer: that is `crate::cm`.
//!
//! * [`CmMad`]: header and message of one management datagram
//! * `req`, `rep`, `rej`: the messages of a connection; `other`: those that are only recognised
//! * [`rdma_cm`]: service ids of IP ports, and the header in a REQ's private data

mod fields;
mod other;
pub mod rdma_cm;
mod rej;
mod rep;
mod req;

pub use fields::{CommId, Gid, about, timeout};
pub use other::{Apr, Lap, SidrRep, SidrReq};
pub use rdma_cm::CmaHeader;
pub use rej::{Drep, Dreq, Rej, reason};
pub use rep::{Mra, Rep, Rtu};
pub use req::Req;

use super::error::ParseError;
use super::mad::{self, BODY_LEN, MAD_LEN, MadHeader};

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident = $attribute:literal,)*) => {
        /// The body of a communication management datagram.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$meta])* $name($name),)*
        }

        impl Message {
            /// Reads the body of the message that the header's attribute names.
            ///
            /// # Errors
            /// If there is no such message.
            pub fn parse(attribute: u16, body: &[u8; BODY_LEN]) -> Result<Message, ParseError> {
                match attribute {
                    $($attribute => Ok(Message::$name($name::parse(body))),)*
                    _ => Err(ParseError::Unknown { field: "CM attribute", value: u64::from(attribute) }),
                }
            }

            /// The attribute that names the message in its header.
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Message::$name(_) => $attribute,)*
                }
            }

            /// Writes the body.
            pub fn emit(&self, body: &mut [u8; BODY_LEN]) {
                match self {
                    $(Message::$name(message) => message.emit(body),)*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}
messages! {
    /// Request for communication.
    Req = 0x10,
    /// Message receipt acknowledgement.
    Mra = 0x11,
    /// Reject.
    Rej = 0x12,
    /// Reply.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Disconnect request.
    Dreq = 0x15,
    /// Disconnect reply.
    Drep = 0x16,
    /// Service id resolution request.
    SidrReq = 0x17,
    /// Service id resolution response.
    SidrRep = 0x18,
    /// Load alternate path.
    Lap = 0x19,
    /// Alternate path response.
    Apr = 0x1a,
}

/// One communication management datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// The header; its attribute is that of the message.
    pub header: MadHeader,
    /// The message.
    pub message: Message,
}

impl CmMad {
    /// A message with the header that it needs.
    pub fn new(tid: u64, message: impl Into<Message>) -> CmMad {
        let message = message.into();
        CmMad { header: MadHeader::cm(tid, message.attribute()), message }
    }

    /// Takes a datagram apart.
    ///
    /// # Errors
    /// If it has not 256 bytes, is not of class 7 in version 2 with method Send (its base
    /// version 1), or if there is no such message.
    pub fn parse(bytes: &[u8]) -> Result<CmMad, ParseError> {
        let (header, body) = mad::split(bytes)?;
        for (field, value, expected) in [
            ("MAD base version", header.base_version, 1),
            ("MAD class", header.class, MadHeader::CLASS_CM),
            ("CM class version", header.class_version, MadHeader::CM_VERSION),
            ("CM method", header.method, MadHeader::METHOD_SEND),
        ] {
            if value != expected {
                return Err(ParseError::Unknown { field, value: u64::from(value) });
            }
        }
        Ok(CmMad { header, message: Message::parse(header.attribute, body)? })
    }

    /// The datagram.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut body = [0; BODY_LEN];
        self.message.emit(&mut body);
        mad::join(&self.header, &body)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_message_covers_its_bits() {
        Req::assert_layout();
        Mra::assert_layout();
        Rej::assert_layout();
        Rep::assert_layout();
        Rtu::assert_layout();
        Dreq::assert_layout();
        Drep::assert_layout();
        SidrReq::assert_layout();
        SidrRep::assert_layout();
        Lap::assert_layout();
        Apr::assert_layout();
        CmaHeader::assert_layout();
    }

    #[test]
    fn a_foreign_class_is_an_error_value() {
        let mut mad = CmMad::new(1, Rtu::default()).emit();
        assert!(CmMad::parse(&mad).is_ok());
        mad[1] = 4;
        assert_eq!(CmMad::parse(&mad), Err(ParseError::Unknown { field: "MAD class", value: 4 }));
        mad[1] = 7;
        mad[17] = 0x1b;
        assert_eq!(CmMad::parse(&mad), Err(ParseError::Unknown { field: "CM attribute", value: 0x1b }));
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_again(
            mut bytes in proptest::collection::vec(any::<u8>(), 240..=260),
            attribute in 0x0eu8..0x1d,
            real: bool,
        ) {
            if real {
                bytes.resize(MAD_LEN, 0x5a);
                bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
                bytes[16..18].copy_from_slice(&[0, attribute]);
            }
            match CmMad::parse(&bytes) {
                Ok(mad) => prop_assert_eq!(&mad.emit()[..], &bytes[..]),
                Err(_) => prop_assert!(!real || !(0x10..=0x1a).contains(&attribute)),
            }
        }
    }
}
