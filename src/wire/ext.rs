//! The extended transport headers that follow the BTH (IBTA vol. 1, 9.3).

use std::time::Duration;

use super::be;
use super::error::{ParseError, first};
use super::num::{Qpn, RKey};

/// RDMA extended transport header: the peer's memory that a WRITE or READ names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address; all 64 bits count (Linux names kernel addresses).
    pub addr: u64,
    /// Remote key.
    pub rkey: RKey,
    /// Bytes of the whole operation.
    pub len_bytes: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Reth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "RETH")?;
        Ok(Reth { addr: be::u64_at(b, 0), rkey: RKey(be::u32_at(b, 8)), len_bytes: be::u32_at(b, 12) })
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        be::put_u64(out, 0, self.addr);
        be::put_u32(out, 8, self.rkey.0);
        be::put_u32(out, 12, self.len_bytes);
    }
}

/// Why a responder refuses a request (IBTA vol. 1, table 47).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// Packets are missing before this one.
    PsnSequenceError = 0,
    /// Malformed, or not supported.
    InvalidRequest = 1,
    /// Key, bound or access right wrong.
    RemoteAccessError = 2,
    /// The responder failed.
    RemoteOperationalError = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

/// What an AETH says.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to this PSN is acknowledged.
    Ack {
        /// End-to-end flow control credit code, 0..=31.
        credits: u8,
    },
    /// Receiver not ready: no receive was posted.
    RnrNak {
        /// Timer code, 0..=31; [`rnr_delay`] gives the time.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

impl Syndrome {
    /// The credit code that means "no limit"; what Linux's rxe always sends.
    pub const UNLIMITED_CREDITS: u8 = 0x1f;
    /// Acknowledge without flow control.
    pub const ACK: Syndrome = Syndrome::Ack { credits: Self::UNLIMITED_CREDITS };

    /// The syndrome of a wire value; reserved kinds and NAK codes are `None`.
    #[inline]
    pub const fn from_wire(value: u8) -> Option<Self> {
        let low = value & 0x1f;
        Some(match value >> 5 {
            0b000 => Syndrome::Ack { credits: low },
            0b001 => Syndrome::RnrNak { timer: low },
            0b011 => Syndrome::Nak(match low {
                0 => NakCode::PsnSequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccessError,
                3 => NakCode::RemoteOperationalError,
                4 => NakCode::InvalidRdRequest,
                _ => return None,
            }),
            _ => return None,
        })
    }

    /// The wire value.
    #[inline]
    pub const fn to_wire(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code as u8,
        }
    }
}

/// RNR NAK timer codes in microseconds (IBTA vol. 1, table 46).
const RNR_MICROS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120,
    7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680,
    491_520,
];

/// How long a requester waits after an RNR NAK with this timer code (low 5 bits). Code 0 is the
/// longest: 655.36 ms.
#[inline]
pub const fn rnr_delay(timer: u8) -> Duration {
    Duration::from_micros(RNR_MICROS[(timer & 0x1f) as usize] as u64)
}

/// ACK extended transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Acknowledged, refused, or not ready.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages that the responder has completed.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header at the start of `bytes`; a reserved syndrome is an error.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Aeth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "AETH")?;
        let Some(syndrome) = Syndrome::from_wire(b[0]) else {
            return Err(ParseError::Unknown { field: "AETH syndrome", value: u64::from(b[0]) });
        };
        Ok(Aeth { syndrome, msn: be::u24_at(b, 1) })
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        out[0] = self.syndrome.to_wire();
        be::put_u24(out, 1, self.msn);
    }
}

/// Datagram extended transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// A reserved byte.
    pub reserved: u8,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;
    /// The well-known queue key of QP1.
    pub const GSI_QKEY: u32 = 0x8001_0000;
    /// From QP1 to QP1.
    pub const GSI: Deth = Deth { qkey: Self::GSI_QKEY, reserved: 0, src_qpn: Qpn::GSI };

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Deth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "DETH")?;
        Ok(Deth { qkey: be::u32_at(b, 0), reserved: b[4], src_qpn: Qpn::new(be::u24_at(b, 5)) })
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        be::put_u32(out, 0, self.qkey);
        out[4] = self.reserved;
        be::put_u24(out, 5, self.src_qpn.get());
    }
}

/// Immediate data: four opaque bytes for the receiver's completion.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<ImmDt, ParseError> {
        Ok(ImmDt(*first(bytes, "ImmDt")?))
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        out[..Self::LEN].copy_from_slice(&self.0);
    }
}

/// Invalidate extended transport header: the key that the receiver shall end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// Key to invalidate.
    pub rkey: RKey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Ieth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "IETH")?;
        Ok(Ieth { rkey: RKey(be::u32_at(b, 0)) })
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        be::put_u32(&mut out[..Self::LEN], 0, self.rkey.0);
    }
}

/// Atomic extended transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of the 8 bytes.
    pub addr: u64,
    /// Remote key.
    pub rkey: RKey,
    /// What to swap in, or to add.
    pub swap_or_add: u64,
    /// What to compare with.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<AtomicEth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "AtomicETH")?;
        Ok(AtomicEth {
            addr: be::u64_at(b, 0),
            rkey: RKey(be::u32_at(b, 8)),
            swap_or_add: be::u64_at(b, 12),
            compare: be::u64_at(b, 20),
        })
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..Self::LEN];
        be::put_u64(out, 0, self.addr);
        be::put_u32(out, 8, self.rkey.0);
        be::put_u64(out, 12, self.swap_or_add);
        be::put_u64(out, 20, self.compare);
    }
}

/// Atomic ACK extended transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// What the 8 bytes held before.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<AtomicAckEth, ParseError> {
        let b: &[u8; Self::LEN] = first(bytes, "AtomicAckETH")?;
        Ok(AtomicAckEth { original: u64::from_be_bytes(*b) })
    }

    /// Writes the header to the first [`LEN`](Self::LEN) bytes of `out`; panics if it is shorter.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        be::put_u64(&mut out[..Self::LEN], 0, self.original);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_round_trip_and_the_rest_is_reserved() {
        let known = (0..=u8::MAX).filter(|value| match Syndrome::from_wire(*value) {
            Some(syndrome) => {
                assert_eq!(syndrome.to_wire(), *value);
                true
            }
            None => false,
        });
        assert_eq!(known.count(), 32 + 32 + 5);
        assert_eq!(Syndrome::ACK.to_wire(), 0x1f);
        assert_eq!(Syndrome::Nak(NakCode::PsnSequenceError).to_wire(), 0x60);
        assert_eq!(Syndrome::Nak(NakCode::RemoteAccessError).to_wire(), 0x62);
    }

    #[test]
    fn rnr_code_zero_is_the_longest() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert!((1..31).all(|code| rnr_delay(code) < rnr_delay(code + 1)));
        assert_eq!(rnr_delay(32), rnr_delay(0));
    }
}
