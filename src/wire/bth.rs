//! The base transport header, first in every RoCEv2 packet after UDP (IBTA vol. 1, 9.2).

use super::be;
use super::error::{ParseError, first};
use super::num::{Psn, Qpn};

/// The default partition, full member: the only one on RoCE.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// What a packet is (IBTA vol. 1, table 38): all of reliable connection, and the unreliable
/// datagrams of QP1.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RC SEND, first packet.
    SendFirst = 0x00,
    /// RC SEND, middle packet.
    SendMiddle = 0x01,
    /// RC SEND, last packet.
    SendLast = 0x02,
    /// RC SEND, last packet, with immediate.
    SendLastImm = 0x03,
    /// RC SEND in one packet.
    SendOnly = 0x04,
    /// RC SEND in one packet, with immediate.
    SendOnlyImm = 0x05,
    /// RC RDMA WRITE, first packet.
    WriteFirst = 0x06,
    /// RC RDMA WRITE, middle packet.
    WriteMiddle = 0x07,
    /// RC RDMA WRITE, last packet.
    WriteLast = 0x08,
    /// RC RDMA WRITE, last packet, with immediate.
    WriteLastImm = 0x09,
    /// RC RDMA WRITE in one packet.
    WriteOnly = 0x0a,
    /// RC RDMA WRITE in one packet, with immediate.
    WriteOnlyImm = 0x0b,
    /// RC RDMA READ request.
    ReadRequest = 0x0c,
    /// RC RDMA READ response, first packet.
    ReadResponseFirst = 0x0d,
    /// RC RDMA READ response, middle packet: the one response without AETH.
    ReadResponseMiddle = 0x0e,
    /// RC RDMA READ response, last packet.
    ReadResponseLast = 0x0f,
    /// RC RDMA READ response in one packet.
    ReadResponseOnly = 0x10,
    /// RC acknowledge: ACK, NAK or RNR NAK.
    Acknowledge = 0x11,
    /// RC atomic acknowledge.
    AtomicAcknowledge = 0x12,
    /// RC atomic compare and swap.
    CompareSwap = 0x13,
    /// RC atomic fetch and add.
    FetchAdd = 0x14,
    /// RC SEND, last packet, with invalidate.
    SendLastInvalidate = 0x16,
    /// RC SEND in one packet, with invalidate.
    SendOnlyInvalidate = 0x17,
    /// UD SEND: what carries MADs.
    UdSendOnly = 0x64,
    /// UD SEND with immediate.
    UdSendOnlyImm = 0x65,
}

/// What a packet's message does, whatever part of it the packet is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// ACK, NAK, RNR NAK.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
    /// Either atomic request.
    Atomic,
    /// Unreliable datagram.
    Datagram,
}

/// Which part of its message a packet is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// All of it.
    Only,
}

impl Position {
    /// Whether a message begins here.
    #[inline]
    pub const fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

impl Opcode {
    /// Every opcode, in the order of its value.
    pub const ALL: [Opcode; 25] = [
        Opcode::SendFirst,
        Opcode::SendMiddle,
        Opcode::SendLast,
        Opcode::SendLastImm,
        Opcode::SendOnly,
        Opcode::SendOnlyImm,
        Opcode::WriteFirst,
        Opcode::WriteMiddle,
        Opcode::WriteLast,
        Opcode::WriteLastImm,
        Opcode::WriteOnly,
        Opcode::WriteOnlyImm,
        Opcode::ReadRequest,
        Opcode::ReadResponseFirst,
        Opcode::ReadResponseMiddle,
        Opcode::ReadResponseLast,
        Opcode::ReadResponseOnly,
        Opcode::Acknowledge,
        Opcode::AtomicAcknowledge,
        Opcode::CompareSwap,
        Opcode::FetchAdd,
        Opcode::SendLastInvalidate,
        Opcode::SendOnlyInvalidate,
        Opcode::UdSendOnly,
        Opcode::UdSendOnlyImm,
    ];

    /// The opcode of a wire value.
    #[inline]
    pub const fn from_wire(value: u8) -> Option<Self> {
        use Opcode as O;
        Some(match value {
            0x00 => O::SendFirst,
            0x01 => O::SendMiddle,
            0x02 => O::SendLast,
            0x03 => O::SendLastImm,
            0x04 => O::SendOnly,
            0x05 => O::SendOnlyImm,
            0x06 => O::WriteFirst,
            0x07 => O::WriteMiddle,
            0x08 => O::WriteLast,
            0x09 => O::WriteLastImm,
            0x0a => O::WriteOnly,
            0x0b => O::WriteOnlyImm,
            0x0c => O::ReadRequest,
            0x0d => O::ReadResponseFirst,
            0x0e => O::ReadResponseMiddle,
            0x0f => O::ReadResponseLast,
            0x10 => O::ReadResponseOnly,
            0x11 => O::Acknowledge,
            0x12 => O::AtomicAcknowledge,
            0x13 => O::CompareSwap,
            0x14 => O::FetchAdd,
            0x16 => O::SendLastInvalidate,
            0x17 => O::SendOnlyInvalidate,
            0x64 => O::UdSendOnly,
            0x65 => O::UdSendOnlyImm,
            _ => return None,
        })
    }

    /// What the message does.
    #[inline]
    pub const fn operation(self) -> Operation {
        use Opcode as O;
        match self {
            O::SendFirst
            | O::SendMiddle
            | O::SendLast
            | O::SendLastImm
            | O::SendOnly
            | O::SendOnlyImm
            | O::SendLastInvalidate
            | O::SendOnlyInvalidate => Operation::Send,
            O::WriteFirst
            | O::WriteMiddle
            | O::WriteLast
            | O::WriteLastImm
            | O::WriteOnly
            | O::WriteOnlyImm => Operation::Write,
            O::ReadRequest => Operation::ReadRequest,
            O::ReadResponseFirst | O::ReadResponseMiddle | O::ReadResponseLast | O::ReadResponseOnly => {
                Operation::ReadResponse
            }
            O::Acknowledge => Operation::Acknowledge,
            O::AtomicAcknowledge => Operation::AtomicAcknowledge,
            O::CompareSwap | O::FetchAdd => Operation::Atomic,
            O::UdSendOnly | O::UdSendOnlyImm => Operation::Datagram,
        }
    }

    /// Which part of its message the packet is.
    #[inline]
    pub const fn position(self) -> Position {
        use Opcode as O;
        match self {
            O::SendFirst | O::WriteFirst | O::ReadResponseFirst => Position::First,
            O::SendMiddle | O::WriteMiddle | O::ReadResponseMiddle => Position::Middle,
            O::SendLast
            | O::SendLastImm
            | O::SendLastInvalidate
            | O::WriteLast
            | O::WriteLastImm
            | O::ReadResponseLast => Position::Last,
            _ => Position::Only,
        }
    }

    /// Whether this goes from requester to responder of a reliable connection.
    #[inline]
    pub const fn is_rc_request(self) -> bool {
        use Operation as P;
        matches!(self.operation(), P::Send | P::Write | P::ReadRequest | P::Atomic)
    }

    /// Whether this goes from responder to requester of a reliable connection.
    #[inline]
    pub const fn is_rc_response(self) -> bool {
        use Operation as P;
        matches!(self.operation(), P::ReadResponse | P::Acknowledge | P::AtomicAcknowledge)
    }

    /// Whether a RETH follows.
    #[inline]
    pub const fn has_reth(self) -> bool {
        use Opcode as O;
        matches!(self, O::WriteFirst | O::WriteOnly | O::WriteOnlyImm | O::ReadRequest)
    }

    /// Whether an AETH follows.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        use Opcode as O;
        matches!(
            self,
            O::ReadResponseFirst
                | O::ReadResponseLast
                | O::ReadResponseOnly
                | O::Acknowledge
                | O::AtomicAcknowledge
        )
    }

    /// Whether immediate data follow (last of the extension headers).
    #[inline]
    pub const fn has_imm(self) -> bool {
        use Opcode as O;
        matches!(self, O::SendLastImm | O::SendOnlyImm | O::WriteLastImm | O::WriteOnlyImm | O::UdSendOnlyImm)
    }

    /// Bytes of all extension headers after the BTH.
    #[inline]
    pub const fn ext_len_bytes(self) -> usize {
        use Opcode as O;
        match self {
            O::SendFirst
            | O::SendMiddle
            | O::SendLast
            | O::SendOnly
            | O::WriteMiddle
            | O::WriteLast
            | O::ReadResponseMiddle => 0,
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => 4,
            O::SendLastInvalidate | O::SendOnlyInvalidate => 4,
            O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly | O::Acknowledge => 4,
            O::UdSendOnly => 8,
            O::UdSendOnlyImm | O::AtomicAcknowledge => 12,
            O::WriteFirst | O::WriteOnly | O::ReadRequest => 16,
            O::WriteOnlyImm => 20,
            O::CompareSwap | O::FetchAdd => 28,
        }
    }
}

/// The base transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the receive completion raises an event.
    pub solicited: bool,
    /// MigReq: path migration state "migrated"; Linux's rxe sets it on nothing, adapters do.
    pub mig_req: bool,
    /// Pad bytes between payload and ICRC, 0..=3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN 0x80, BECN 0x40 and six reserved bits. Not covered by the ICRC.
    pub congestion: u8,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// The responder is asked to acknowledge at once.
    pub ack_req: bool,
    /// Seven reserved bits beside `ack_req`; zero from everybody known.
    pub reserved: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// The header of a packet with nothing special about it: default partition, no bits set.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            pkey: DEFAULT_PKEY,
            congestion: 0,
            dest_qpn,
            ack_req: false,
            reserved: 0,
            psn,
        }
    }

    /// The pad that `payload_bytes` of payload need.
    #[inline]
    pub const fn pad_for(payload_bytes: usize) -> u8 {
        (payload_bytes.wrapping_neg() & 3) as u8
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// Too short, an opcode that is not in [`Opcode`], or a transport version other than 0
    /// (such packets are dropped in silence, IBTA vol. 1, 9.6.1.1).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Bth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "BTH")?;
        let Some(opcode) = Opcode::from_wire(b[0]) else {
            return Err(ParseError::Unknown { field: "BTH opcode", value: u64::from(b[0]) });
        };
        if b[1] & 0x0f != 0 {
            return Err(ParseError::Unknown {
                field: "BTH transport version",
                value: u64::from(b[1] & 0x0f),
            });
        }
        Ok(Bth {
            opcode,
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            pkey: be::u16_at(b, 2),
            congestion: b[4],
            dest_qpn: Qpn::new(be::u24_at(b, 5)),
            ack_req: b[8] & 0x80 != 0,
            reserved: b[8] & 0x7f,
            psn: Psn::new(be::u24_at(b, 9)),
        })
    }

    /// The opcode byte, destination QPN and PSN of a packet whose opcode may be unknown: what a
    /// responder needs to answer a reserved opcode with NAK "invalid request".
    #[inline]
    pub fn peek(bytes: &[u8]) -> Result<(u8, Qpn, Psn), ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "BTH")?;
        Ok((b[0], Qpn::new(be::u24_at(b, 5)), Psn::new(be::u24_at(b, 9))))
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        out[0] = self.opcode as u8;
        out[1] = u8::from(self.solicited) << 7 | u8::from(self.mig_req) << 6 | (self.pad & 3) << 4;
        be::put_u16(out, 2, self.pkey);
        out[4] = self.congestion;
        be::put_u24(out, 5, self.dest_qpn.get());
        out[8] = u8::from(self.ack_req) << 7 | self.reserved & 0x7f;
        be::put_u24(out, 9, self.psn.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_is_its_own_wire_value() {
        for value in 0..=u8::MAX {
            match Opcode::from_wire(value) {
                Some(opcode) => {
                    assert_eq!(opcode as u8, value);
                    assert!(Opcode::ALL.contains(&opcode));
                }
                None => assert!(!Opcode::ALL.iter().any(|opcode| *opcode as u8 == value)),
            }
        }
    }

    /// The extension headers add up: IBTA vol. 1, table 38.
    #[test]
    fn extension_lengths_follow_the_headers() {
        for opcode in Opcode::ALL {
            let mut sum = 0;
            sum += if opcode.has_reth() { 16 } else { 0 };
            sum += if opcode.has_aeth() { 4 } else { 0 };
            sum += if opcode.has_imm() { 4 } else { 0 };
            sum += match opcode {
                Opcode::AtomicAcknowledge => 8,
                Opcode::CompareSwap | Opcode::FetchAdd => 28,
                Opcode::SendLastInvalidate | Opcode::SendOnlyInvalidate => 4,
                Opcode::UdSendOnly | Opcode::UdSendOnlyImm => 8,
                _ => 0,
            };
            assert_eq!(opcode.ext_len_bytes(), sum, "{opcode:?}");
            assert!(!(opcode.is_rc_request() && opcode.is_rc_response()));
        }
    }

    #[test]
    fn pad_fills_to_four() {
        assert_eq!([0, 1, 2, 3, 4, 8260].map(Bth::pad_for), [0, 3, 2, 1, 0, 0]);
    }

    #[test]
    fn what_is_not_a_bth_is_an_error_value() {
        assert_eq!(
            Bth::parse(&[4; 11]),
            Err(ParseError::Short { what: "BTH", needed_bytes: 12, got_bytes: 11 })
        );
        assert_eq!(
            Bth::parse(&[0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err(ParseError::Unknown { field: "BTH opcode", value: 0x15 })
        );
        assert_eq!(
            Bth::parse(&[0x04, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err(ParseError::Unknown { field: "BTH transport version", value: 1 })
        );
        assert_eq!(
            Bth::peek(&[0x15, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4]),
            Ok((0x15, Qpn::new(0x102), Psn::new(0x304)))
        );
    }
}
