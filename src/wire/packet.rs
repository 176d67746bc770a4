//! A whole RoCEv2 packet as it lies in a UDP datagram: BTH, extension headers, payload, pad.
//! The ICRC behind it belongs to [`icrc`](super::icrc).

use super::bth::{Bth, Opcode};
use super::error::ParseError;
use super::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth};

/// The extension headers of a packet; which ones is a function of the opcode.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Ext {
    /// None.
    None,
    /// WRITE first or only, READ request.
    Reth(Reth),
    /// WRITE only with immediate.
    RethImm(Reth, ImmDt),
    /// SEND or WRITE last with immediate, SEND only with immediate.
    Imm(ImmDt),
    /// SEND with invalidate.
    Ieth(Ieth),
    /// Acknowledge; READ response but the middle ones.
    Aeth(Aeth),
    /// Atomic acknowledge.
    AtomicAck(Aeth, AtomicAckEth),
    /// Atomic request.
    Atomic(AtomicEth),
    /// Datagram.
    Deth(Deth),
    /// Datagram with immediate.
    DethImm(Deth, ImmDt),
}

impl Ext {
    /// Reads the headers that follow a BTH with `opcode`.
    #[inline]
    pub fn parse(opcode: Opcode, bytes: &[u8]) -> Result<Ext, ParseError> {
        use Opcode as O;
        Ok(match opcode {
            O::SendFirst
            | O::SendMiddle
            | O::SendLast
            | O::SendOnly
            | O::WriteMiddle
            | O::WriteLast
            | O::ReadResponseMiddle => Ext::None,
            O::WriteFirst | O::WriteOnly | O::ReadRequest => Ext::Reth(Reth::parse(bytes)?),
            O::WriteOnlyImm => {
                Ext::RethImm(Reth::parse(bytes)?, ImmDt::parse(bytes.get(Reth::LEN..).unwrap_or_default())?)
            }
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => Ext::Imm(ImmDt::parse(bytes)?),
            O::SendLastInvalidate | O::SendOnlyInvalidate => Ext::Ieth(Ieth::parse(bytes)?),
            O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly | O::Acknowledge => {
                Ext::Aeth(Aeth::parse(bytes)?)
            }
            O::AtomicAcknowledge => Ext::AtomicAck(
                Aeth::parse(bytes)?,
                AtomicAckEth::parse(bytes.get(Aeth::LEN..).unwrap_or_default())?,
            ),
            O::CompareSwap | O::FetchAdd => Ext::Atomic(AtomicEth::parse(bytes)?),
            O::UdSendOnly => Ext::Deth(Deth::parse(bytes)?),
            O::UdSendOnlyImm => {
                Ext::DethImm(Deth::parse(bytes)?, ImmDt::parse(bytes.get(Deth::LEN..).unwrap_or_default())?)
            }
        })
    }

    /// Writes the headers to the start of `out`; gives their length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`Opcode::ext_len_bytes`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match self {
            Ext::None => 0,
            Ext::Reth(reth) => {
                reth.emit(out);
                Reth::LEN
            }
            Ext::RethImm(reth, imm) => {
                reth.emit(out);
                imm.emit(&mut out[Reth::LEN..]);
                Reth::LEN + ImmDt::LEN
            }
            Ext::Imm(imm) => {
                imm.emit(out);
                ImmDt::LEN
            }
            Ext::Ieth(ieth) => {
                ieth.emit(out);
                Ieth::LEN
            }
            Ext::Aeth(aeth) => {
                aeth.emit(out);
                Aeth::LEN
            }
            Ext::AtomicAck(aeth, ack) => {
                aeth.emit(out);
                ack.emit(&mut out[Aeth::LEN..]);
                Aeth::LEN + AtomicAckEth::LEN
            }
            Ext::Atomic(atomic) => {
                atomic.emit(out);
                AtomicEth::LEN
            }
            Ext::Deth(deth) => {
                deth.emit(out);
                Deth::LEN
            }
            Ext::DethImm(deth, imm) => {
                deth.emit(out);
                imm.emit(&mut out[Deth::LEN..]);
                Deth::LEN + ImmDt::LEN
            }
        }
    }
}

/// Most bytes that the headers of one packet take (BTH and an atomic's).
pub const MAX_HEADER_BYTES: usize = Bth::LEN + AtomicEth::LEN;

/// A packet without its ICRC.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Ext,
    /// The payload, without pad.
    pub payload: &'a [u8],
    /// The pad bytes; zero from everybody known, checked by nobody.
    pub pad: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Takes a UDP payload apart, ICRC already cut off.
    ///
    /// # Errors
    /// Those of the headers, a pad that is longer than what is there, and a length that is no
    /// multiple of four.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let bth = Bth::parse(bytes)?;
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::Contradiction("packet length is no multiple of four"));
        }
        let ext = Ext::parse(bth.opcode, &bytes[Bth::LEN..])?;
        let body = &bytes[Bth::LEN + bth.opcode.ext_len_bytes()..];
        let Some(payload_bytes) = body.len().checked_sub(usize::from(bth.pad)) else {
            return Err(ParseError::Contradiction("pad is longer than the payload"));
        };
        let (payload, pad) = body.split_at(payload_bytes);
        Ok(Packet { bth, ext, payload, pad })
    }

    /// Bytes of the whole packet, without ICRC.
    pub fn len_bytes(&self) -> usize {
        Bth::LEN + self.bth.opcode.ext_len_bytes() + self.payload.len() + self.pad.len()
    }

    /// Writes the packet to the start of `out`; gives its length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`len_bytes`](Self::len_bytes).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        self.bth.emit(out);
        let mut at = Bth::LEN;
        at += self.ext.emit(&mut out[at..]);
        for part in [self.payload, self.pad] {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_that_lie_are_errors() {
        let mut bytes = [0u8; 16];
        Bth { pad: 3, ..Bth::new(Opcode::Acknowledge, Default::default(), Default::default()) }
            .emit(&mut bytes);
        assert!(matches!(Packet::parse(&bytes), Err(ParseError::Contradiction(_))), "pad without payload");
        assert!(matches!(Packet::parse(&bytes[..12]), Err(ParseError::Short { what: "AETH", .. })));
        assert!(matches!(Packet::parse(&bytes[..15]), Err(ParseError::Contradiction(_))));
    }

    proptest! {
        /// Any bytes, with a likely opcode in front: no panic, and what parses comes out again.
        #[test]
        fn what_parses_is_emitted_again(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..96),
            opcode in 0usize..30,
            whole_words: bool,
        ) {
            if let (Some(first), Some(known)) = (bytes.first_mut(), Opcode::ALL.get(opcode)) {
                *first = *known as u8;
            }
            if let Some(flags) = bytes.get_mut(1) {
                *flags &= 0xf1;
            }
            if whole_words {
                bytes.truncate(bytes.len() & !3);
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let mut out = [0u8; 96];
                let len = packet.emit(&mut out);
                prop_assert_eq!(&out[..len], &bytes[..]);
                prop_assert_eq!(len, packet.len_bytes());
            }
        }
    }
}
