//! The login IUs: SRP_LOGIN_REQ, SRP_LOGIN_RSP, SRP_LOGIN_REJ (SRP r16a, 6.2 to 6.4).
//!
//! They travel as private data of CM REQ, REP and REJ.

use std::fmt;

use super::{IuError, Opcode, PortId, Tag, fixed, put, u16_at, u32_at};

/// Which layout a login request has. The service that took the request tells.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LoginForm {
    /// 64 bytes, of the standard: private data of an IB-CM request.
    Full,
    /// 56 bytes, of Linux: what the RDMA-CM header leaves of the private data.
    Compact,
}

impl LoginForm {
    /// Bytes of a login request.
    pub const fn len_bytes(self) -> usize {
        match self {
            LoginForm::Full => LoginReq::FULL_BYTES,
            LoginForm::Compact => LoginReq::COMPACT_BYTES,
        }
    }
}

/// Bits of the buffer formats field.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct BufferFormats(pub u16);

impl BufferFormats {
    /// Direct data buffer descriptors.
    pub const DIRECT: BufferFormats = BufferFormats(0x0002);
    /// Indirect data buffer descriptors.
    pub const INDIRECT: BufferFormats = BufferFormats(0x0004);
    /// Both: what Linux asks for and what we support.
    pub const BOTH: BufferFormats = BufferFormats(0x0006);

    /// Whether every format here is in `supported`.
    pub const fn is_subset_of(self, supported: BufferFormats) -> bool {
        self.0 & !supported.0 == 0
    }
}

impl fmt::Debug for BufferFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// MULTI-CHANNEL ACTION of a login request: what becomes of the nexus's other channels.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum MultiChannel {
    /// End them.
    Single,
    /// Keep them.
    Multi,
    /// Codes 2 and 3.
    Reserved,
}

/// SRP_LOGIN_REQ.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoginReq {
    /// Echoed in the answer.
    pub tag: Tag,
    /// Longest IU that the initiator wants to send, in bytes.
    pub max_it_iu_bytes: u32,
    /// Descriptor formats that it wants to use.
    pub formats: BufferFormats,
    /// The request flags as they came; the methods read them.
    pub flags: u8,
    /// Where immediate data would begin in an IU, in bytes; counts with [`LoginReq::IMMEDIATE`].
    pub immediate_offset: u16,
    /// Who asks.
    pub initiator: PortId,
    /// Whom.
    pub target: PortId,
}

impl LoginReq {
    /// Bytes of the full form.
    pub const FULL_BYTES: usize = 64;
    /// Bytes of the compact form.
    pub const COMPACT_BYTES: usize = 56;
    /// Flag: T_LOGOUT shall be a solicited event.
    pub const LOGOUT_SOLICITED: u8 = 0x10;
    /// Flag: CRED_REQ shall be a solicited event.
    pub const CREDIT_SOLICITED: u8 = 0x20;
    /// Flag: AER_REQ shall be a solicited event.
    pub const AER_SOLICITED: u8 = 0x40;
    /// Flag: immediate data wanted (Linux).
    pub const IMMEDIATE: u8 = 0x80;

    /// What shall become of the nexus's other channels.
    pub const fn multi_channel(&self) -> MultiChannel {
        match self.flags & 0x03 {
            0 => MultiChannel::Single,
            1 => MultiChannel::Multi,
            _ => MultiChannel::Reserved,
        }
    }

    /// Reads a request of `form`.
    pub fn parse(form: LoginForm, bytes: &[u8]) -> Result<Self, IuError> {
        match form {
            LoginForm::Full => Self::parse_full(bytes),
            LoginForm::Compact => Self::parse_compact(bytes),
        }
    }

    fn parse_full(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::FULL_BYTES }>(bytes)?;
        if iu[0] != Opcode::LOGIN_REQ {
            return Err(IuError::Opcode(iu[0]));
        }
        Ok(LoginReq {
            tag: Tag(super::chunk(iu, 8)),
            max_it_iu_bytes: u32_at(iu, 16),
            formats: BufferFormats(u16_at(iu, 24)),
            flags: iu[26],
            immediate_offset: u16_at(iu, 28),
            initiator: PortId(super::chunk(iu, 32)),
            target: PortId(super::chunk(iu, 48)),
        })
    }

    fn parse_compact(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::COMPACT_BYTES }>(bytes)?;
        if iu[11] != Opcode::LOGIN_REQ {
            return Err(IuError::Opcode(iu[11]));
        }
        Ok(LoginReq {
            tag: Tag(super::chunk(iu, 0)),
            max_it_iu_bytes: u32_at(iu, 12),
            formats: BufferFormats(u16_at(iu, 8)),
            flags: iu[10],
            immediate_offset: u16_at(iu, 48),
            initiator: PortId(super::chunk(iu, 16)),
            target: PortId(super::chunk(iu, 32)),
        })
    }

    /// The 64 bytes of the full form.
    pub fn emit_full(&self) -> [u8; Self::FULL_BYTES] {
        let mut iu = [0; Self::FULL_BYTES];
        iu[0] = Opcode::LOGIN_REQ;
        put(&mut iu, 8, &self.tag.0);
        put(&mut iu, 16, &self.max_it_iu_bytes.to_be_bytes());
        put(&mut iu, 24, &self.formats.0.to_be_bytes());
        iu[26] = self.flags;
        put(&mut iu, 28, &self.immediate_offset.to_be_bytes());
        put(&mut iu, 32, &self.initiator.0);
        put(&mut iu, 48, &self.target.0);
        iu
    }

    /// The 56 bytes of the compact form.
    pub fn emit_compact(&self) -> [u8; Self::COMPACT_BYTES] {
        let mut iu = [0; Self::COMPACT_BYTES];
        put(&mut iu, 0, &self.tag.0);
        put(&mut iu, 8, &self.formats.0.to_be_bytes());
        iu[10] = self.flags;
        iu[11] = Opcode::LOGIN_REQ;
        put(&mut iu, 12, &self.max_it_iu_bytes.to_be_bytes());
        put(&mut iu, 16, &self.initiator.0);
        put(&mut iu, 32, &self.target.0);
        put(&mut iu, 48, &self.immediate_offset.to_be_bytes());
        iu
    }
}

/// SRP_LOGIN_RSP.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoginRsp {
    /// The first request limit: how many requests the initiator may send.
    pub request_limit_delta: i32,
    /// The tag of the request.
    pub tag: Tag,
    /// Longest IU that the target takes, in bytes.
    pub max_it_iu_bytes: u32,
    /// Longest IU that the target sends, in bytes.
    pub max_ti_iu_bytes: u32,
    /// Descriptor formats that the target takes.
    pub formats: BufferFormats,
    /// The response flags as they came; see the constants.
    pub flags: u8,
}

impl LoginRsp {
    /// Bytes of the IU.
    pub const BYTES: usize = 52;
    /// Bits of the MULTI-CHANNEL RESULT.
    pub const RESULT_MASK: u8 = 0x03;
    /// Result: other channels of the nexus were ended.
    pub const TERMINATED: u8 = 0x01;
    /// Result: other channels of the nexus live on.
    pub const MAINTAINED: u8 = 0x02;
    /// Flag: immediate data granted (Linux).
    pub const IMMEDIATE: u8 = 0x80;

    /// Reads a response.
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::BYTES }>(bytes)?;
        if iu[0] != Opcode::LOGIN_RSP {
            return Err(IuError::Opcode(iu[0]));
        }
        Ok(LoginRsp {
            request_limit_delta: u32_at(iu, 4) as i32,
            tag: Tag(super::chunk(iu, 8)),
            max_it_iu_bytes: u32_at(iu, 16),
            max_ti_iu_bytes: u32_at(iu, 20),
            formats: BufferFormats(u16_at(iu, 24)),
            flags: iu[26],
        })
    }

    /// The bytes of the response.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut iu = [0; Self::BYTES];
        iu[0] = Opcode::LOGIN_RSP;
        put(&mut iu, 4, &self.request_limit_delta.to_be_bytes());
        put(&mut iu, 8, &self.tag.0);
        put(&mut iu, 16, &self.max_it_iu_bytes.to_be_bytes());
        put(&mut iu, 20, &self.max_ti_iu_bytes.to_be_bytes());
        put(&mut iu, 24, &self.formats.0.to_be_bytes());
        iu[26] = self.flags;
        iu
    }
}

/// Why a login is refused (SRP r16a, table of SRP_LOGIN_REJ reasons).
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct RejReason(pub u32);

impl RejReason {
    /// Unable to establish an RDMA channel, no reason given.
    pub const NO_REASON: RejReason = RejReason(0x0001_0000);
    /// Insufficient RDMA channel resources.
    pub const NO_RESOURCES: RejReason = RejReason(0x0001_0001);
    /// The requested initiator-to-target IU length is too large.
    pub const IU_TOO_LARGE: RejReason = RejReason(0x0001_0002);
    /// Unable to associate the channel with an I_T nexus.
    pub const NO_NEXUS: RejReason = RejReason(0x0001_0003);
    /// Unsupported data buffer descriptor format.
    pub const FORMAT: RejReason = RejReason(0x0001_0004);
    /// No support for several channels of one nexus.
    pub const NO_MULTI_CHANNEL: RejReason = RejReason(0x0001_0005);
    /// The limit of channels is reached.
    pub const CHANNEL_LIMIT: RejReason = RejReason(0x0001_0006);

    /// The standard's words for it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NO_REASON => "unable to establish an RDMA channel",
            Self::NO_RESOURCES => "insufficient RDMA channel resources",
            Self::IU_TOO_LARGE => "requested initiator-to-target IU length too large",
            Self::NO_NEXUS => "unable to associate the channel with an I_T nexus",
            Self::FORMAT => "unsupported data buffer descriptor format",
            Self::NO_MULTI_CHANNEL => "no support for multiple channels per I_T nexus",
            Self::CHANNEL_LIMIT => "channel limit reached",
            _ => "unknown reason",
        }
    }
}

impl fmt::Debug for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#010x})", self.words(), self.0)
    }
}

/// SRP_LOGIN_REJ. It must ride in a CM REJ with reason 28, or ib_srp does not look at it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoginRej {
    /// Why.
    pub reason: RejReason,
    /// The tag of the request.
    pub tag: Tag,
    /// Descriptor formats that the target takes.
    pub formats: BufferFormats,
}

impl LoginRej {
    /// Bytes of the IU.
    pub const BYTES: usize = 32;
    /// The CM REJ reason with which it travels: consumer defined.
    pub const CM_REASON: u16 = 28;

    /// Reads a rejection.
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::BYTES }>(bytes)?;
        if iu[0] != Opcode::LOGIN_REJ {
            return Err(IuError::Opcode(iu[0]));
        }
        Ok(LoginRej {
            reason: RejReason(u32_at(iu, 4)),
            tag: Tag(super::chunk(iu, 8)),
            formats: BufferFormats(u16_at(iu, 24)),
        })
    }

    /// The bytes of the rejection.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut iu = [0; Self::BYTES];
        iu[0] = Opcode::LOGIN_REJ;
        put(&mut iu, 4, &self.reason.0.to_be_bytes());
        put(&mut iu, 8, &self.tag.0);
        put(&mut iu, 24, &self.formats.0.to_be_bytes());
        iu
    }
}
