//! Messages of the shared-memory provider, on the UNIX socket of a connection (SOCK_SEQPACKET, so
//! that a message is a datagram). A format of ours: both ends are srpoll, the version says whether
//! they are the same one. Descriptors travel beside CONNECT and EXPORT (SCM_RIGHTS).

use super::ParseError;
use super::be::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use super::num::{Psn, Qpn, RKey};

/// What both ends must agree on: these messages, and the layout of the shared segment.
pub const VERSION: u16 = 2;
/// Longest message in bytes.
pub const MAX_LEN: usize = 256;
/// Most private data of a message in bytes.
pub const MAX_PRIVATE: usize = 224;

/// One side's half of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The PSN with which the *other* side shall start: nothing here counts packets, but the verbs do.
    pub starting_psn: Psn,
    /// RDMA READs that it answers at a time.
    pub responder_resources: u8,
    /// RDMA READs that it will have in flight.
    pub initiator_depth: u8,
}

/// Bits of [`Export::access`].
pub mod access {
    /// The peer may write.
    pub const WRITE: u8 = 1;
    /// The peer may read.
    pub const READ: u8 = 2;
}

/// A memory region that the peer may reach; its memfd travels beside.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The peer's key of it.
    pub rkey: RKey,
    /// The address of its first byte, as work requests and descriptors count.
    pub addr: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// What the peer may do, of [`access`].
    pub access: u8,
}

/// A message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The active side asks; the memfd of the shared segment travels beside.
    Connect {
        /// GUID of its device.
        guid: u64,
        /// Its half.
        offer: Offer,
        /// The consumer's bytes.
        private: &'a [u8],
    },
    /// The passive side accepts.
    Accept {
        /// Its half.
        offer: Offer,
        /// The consumer's bytes.
        private: &'a [u8],
    },
    /// The passive side refuses.
    Reject {
        /// Why (IBTA vol. 1, table 107).
        reason: u16,
        /// The consumer's bytes.
        private: &'a [u8],
    },
    /// The active side is ready.
    Ready,
    /// The sender disconnects.
    Bye,
    /// A memory region of the sender.
    Export(Export),
    /// That region is no more.
    Revoke(RKey),
    /// There is something in the ring.
    Bell,
}

mod kind {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const ACCEPT: u8 = 2;
    pub(super) const REJECT: u8 = 3;
    pub(super) const READY: u8 = 4;
    pub(super) const BYE: u8 = 5;
    pub(super) const EXPORT: u8 = 6;
    pub(super) const REVOKE: u8 = 7;
    pub(super) const BELL: u8 = 8;
}

const WHAT: &str = "shared-memory message";
const OFFER_LEN: usize = 10;

impl Offer {
    fn parse(bytes: &[u8]) -> Offer {
        Offer {
            qpn: Qpn::new(u32_at(bytes, 0)),
            starting_psn: Psn::new(u32_at(bytes, 4)),
            responder_resources: bytes[8],
            initiator_depth: bytes[9],
        }
    }

    fn emit(&self, bytes: &mut [u8]) {
        put_u32(bytes, 0, self.qpn.get());
        put_u32(bytes, 4, self.starting_psn.get());
        bytes[8] = self.responder_resources;
        bytes[9] = self.initiator_depth;
    }
}

impl<'a> Message<'a> {
    /// The message of these bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let (&kind, rest) =
            bytes.split_first().ok_or(ParseError::Short { what: WHAT, needed_bytes: 1, got_bytes: 0 })?;
        let need = |needed_bytes: usize| match rest.len() < needed_bytes {
            true => Err(ParseError::Short { what: WHAT, needed_bytes, got_bytes: rest.len() }),
            false => Ok(()),
        };
        let exact = |most_bytes: usize| match rest.len() > most_bytes {
            true => Err(ParseError::Long { what: WHAT, most_bytes, got_bytes: rest.len() }),
            false => need(most_bytes),
        };
        let private = |at: usize| checked_private(&rest[at..]);
        Ok(match kind {
            kind::CONNECT => {
                need(2)?;
                let version = u16_at(rest, 0);
                if version != VERSION {
                    return Err(ParseError::Unknown {
                        field: "version of shared memory",
                        value: version.into(),
                    });
                }
                need(10 + OFFER_LEN)?;
                Message::Connect {
                    guid: u64_at(rest, 2),
                    offer: Offer::parse(&rest[10..]),
                    private: private(10 + OFFER_LEN)?,
                }
            }
            kind::ACCEPT => {
                need(OFFER_LEN)?;
                Message::Accept { offer: Offer::parse(rest), private: private(OFFER_LEN)? }
            }
            kind::REJECT => {
                need(2)?;
                Message::Reject { reason: u16_at(rest, 0), private: private(2)? }
            }
            kind::READY => exact(0).map(|()| Message::Ready)?,
            kind::BYE => exact(0).map(|()| Message::Bye)?,
            kind::EXPORT => {
                exact(21)?;
                Message::Export(Export {
                    rkey: RKey(u32_at(rest, 0)),
                    addr: u64_at(rest, 4),
                    len_bytes: u64_at(rest, 12),
                    access: rest[20],
                })
            }
            kind::REVOKE => exact(4).map(|()| Message::Revoke(RKey(u32_at(rest, 0))))?,
            kind::BELL => exact(0).map(|()| Message::Bell)?,
            _ => {
                return Err(ParseError::Unknown {
                    field: "kind of shared-memory message",
                    value: kind.into(),
                });
            }
        })
    }

    /// Writes the message; gives its length.
    ///
    /// # Panics
    /// If private data are longer than [`MAX_PRIVATE`].
    pub fn emit(&self, bytes: &mut [u8; MAX_LEN]) -> usize {
        let (kind, rest) = bytes.split_first_mut().expect("a message has a first byte");
        let mut private = |data: &[u8], at: usize| {
            assert!(data.len() <= MAX_PRIVATE, "private data are short");
            rest[at..at + data.len()].copy_from_slice(data);
            at + data.len()
        };
        let len = match *self {
            Message::Connect { guid, offer, private: data } => {
                *kind = kind::CONNECT;
                let len = private(data, 10 + OFFER_LEN);
                put_u16(rest, 0, VERSION);
                put_u64(rest, 2, guid);
                offer.emit(&mut rest[10..]);
                len
            }
            Message::Accept { offer, private: data } => {
                *kind = kind::ACCEPT;
                let len = private(data, OFFER_LEN);
                offer.emit(rest);
                len
            }
            Message::Reject { reason, private: data } => {
                *kind = kind::REJECT;
                let len = private(data, 2);
                put_u16(rest, 0, reason);
                len
            }
            Message::Ready => plain(kind, kind::READY),
            Message::Bye => plain(kind, kind::BYE),
            Message::Export(Export { rkey, addr, len_bytes, access }) => {
                *kind = kind::EXPORT;
                put_u32(rest, 0, rkey.0);
                put_u64(rest, 4, addr);
                put_u64(rest, 12, len_bytes);
                rest[20] = access;
                21
            }
            Message::Revoke(rkey) => {
                *kind = kind::REVOKE;
                put_u32(rest, 0, rkey.0);
                4
            }
            Message::Bell => plain(kind, kind::BELL),
        };
        1 + len
    }
}

/// Private data, if they are no more than there may be.
fn checked_private(bytes: &[u8]) -> Result<&[u8], ParseError> {
    match bytes.len() > MAX_PRIVATE {
        true => Err(ParseError::Long { what: WHAT, most_bytes: MAX_PRIVATE, got_bytes: bytes.len() }),
        false => Ok(bytes),
    }
}

fn plain(kind: &mut u8, value: u8) -> usize {
    *kind = value;
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OFFER: Offer = Offer {
        qpn: Qpn::new(0x01_0203),
        starting_psn: Psn::new(0x04_0506),
        responder_resources: 7,
        initiator_depth: 8,
    };

    #[test]
    fn every_message_comes_back() {
        let most = [0xa5; MAX_PRIVATE];
        let export = Export { rkey: RKey(1), addr: 2, len_bytes: 3, access: access::READ };
        for message in [
            Message::Connect { guid: 9, offer: OFFER, private: &most },
            Message::Connect { guid: 9, offer: OFFER, private: &[] },
            Message::Accept { offer: OFFER, private: b"rsp" },
            Message::Reject { reason: 28, private: b"rej" },
            Message::Ready,
            Message::Bye,
            Message::Export(export),
            Message::Revoke(RKey(5)),
            Message::Bell,
        ] {
            let mut bytes = [0; MAX_LEN];
            let len = message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes[..len]), Ok(message));
            assert!(
                matches!(message, Message::Connect { .. } | Message::Accept { .. } | Message::Reject { .. })
                    || Message::parse(&bytes[..len + 1]).is_err(),
                "a byte too many"
            );
        }
    }

    #[test]
    fn another_version_is_told_from_nonsense() {
        let mut bytes = [0; MAX_LEN];
        let len = Message::Connect { guid: 9, offer: OFFER, private: &[] }.emit(&mut bytes);
        bytes[2] += 1;
        assert_eq!(
            Message::parse(&bytes[..len]),
            Err(ParseError::Unknown { field: "version of shared memory", value: (VERSION + 1).into() })
        );
        assert!(Message::parse(&[]).is_err() && Message::parse(&[99]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_LEN)) {
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = [0; MAX_LEN];
                let len = message.emit(&mut again);
                prop_assert_eq!(Message::parse(&again[..len]), Ok(message));
            }
        }
    }
}
