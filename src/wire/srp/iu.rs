//! Opcodes, and the IUs that are short: task management, logout, credits, asynchronous events.

use super::{IuError, RawLun, Tag, chunk, fixed, put, room, u32_at};

/// Byte 0 of an IU. Bit 7 says that it goes from target to initiator.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// SRP_LOGIN_REQ
    LoginReq,
    /// SRP_TSK_MGMT
    TaskMgmt,
    /// SRP_CMD
    Cmd,
    /// SRP_I_LOGOUT
    InitiatorLogout,
    /// SRP_CRED_RSP
    CredRsp,
    /// SRP_AER_RSP
    AerRsp,
    /// SRP_T_LOGOUT
    TargetLogout,
    /// SRP_CRED_REQ
    CredReq,
    /// SRP_AER_REQ
    AerReq,
    /// SRP_LOGIN_RSP
    LoginRsp,
    /// SRP_RSP
    Rsp,
    /// SRP_LOGIN_REJ
    LoginRej,
}

impl Opcode {
    /// SRP_LOGIN_REQ
    pub const LOGIN_REQ: u8 = 0x00;
    /// SRP_TSK_MGMT
    pub const TSK_MGMT: u8 = 0x01;
    /// SRP_CMD
    pub const CMD: u8 = 0x02;
    /// SRP_I_LOGOUT
    pub const I_LOGOUT: u8 = 0x03;
    /// SRP_CRED_RSP
    pub const CRED_RSP: u8 = 0x41;
    /// SRP_AER_RSP
    pub const AER_RSP: u8 = 0x42;
    /// SRP_T_LOGOUT
    pub const T_LOGOUT: u8 = 0x80;
    /// SRP_CRED_REQ
    pub const CRED_REQ: u8 = 0x81;
    /// SRP_AER_REQ
    pub const AER_REQ: u8 = 0x82;
    /// SRP_LOGIN_RSP
    pub const LOGIN_RSP: u8 = 0xc0;
    /// SRP_RSP
    pub const RSP: u8 = 0xc1;
    /// SRP_LOGIN_REJ
    pub const LOGIN_REJ: u8 = 0xc2;

    /// The opcode of a byte.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            Self::LOGIN_REQ => Opcode::LoginReq,
            Self::TSK_MGMT => Opcode::TaskMgmt,
            Self::CMD => Opcode::Cmd,
            Self::I_LOGOUT => Opcode::InitiatorLogout,
            Self::CRED_RSP => Opcode::CredRsp,
            Self::AER_RSP => Opcode::AerRsp,
            Self::T_LOGOUT => Opcode::TargetLogout,
            Self::CRED_REQ => Opcode::CredReq,
            Self::AER_REQ => Opcode::AerReq,
            Self::LOGIN_RSP => Opcode::LoginRsp,
            Self::RSP => Opcode::Rsp,
            Self::LOGIN_REJ => Opcode::LoginRej,
            _ => return None,
        })
    }
}

fn check(byte: u8, opcode: u8) -> Result<(), IuError> {
    if byte == opcode { Ok(()) } else { Err(IuError::Opcode(byte)) }
}

/// SRP_TSK_MGMT.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct TaskMgmt {
    /// As in [`super::Cmd::sol_not`].
    pub sol_not: u8,
    /// Echoed in the response.
    pub tag: Tag,
    /// The logical unit.
    pub lun: RawLun,
    /// The function; see `srp::tmf`.
    pub function: u8,
    /// The tag of the task to manage (ABORT TASK).
    pub task_tag: Tag,
}

impl TaskMgmt {
    /// Bytes of the IU.
    pub const BYTES: usize = 48;

    /// Reads a task management request.
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::BYTES }>(bytes)?;
        check(iu[0], Opcode::TSK_MGMT)?;
        Ok(TaskMgmt {
            sol_not: iu[1],
            tag: Tag(chunk(iu, 8)),
            lun: RawLun(chunk(iu, 20)),
            function: iu[30],
            task_tag: Tag(chunk(iu, 32)),
        })
    }

    /// The bytes of the request.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut iu = [0; Self::BYTES];
        iu[0] = Opcode::TSK_MGMT;
        iu[1] = self.sol_not;
        put(&mut iu, 8, &self.tag.0);
        put(&mut iu, 20, &self.lun.0);
        iu[30] = self.function;
        put(&mut iu, 32, &self.task_tag.0);
        iu
    }
}

macro_rules! tag_only {
    ($(#[$doc:meta])* $name:ident, $opcode:expr) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
        pub struct $name {
            /// The tag.
            pub tag: Tag,
        }

        impl $name {
            /// Bytes of the IU.
            pub const BYTES: usize = 16;

            /// Reads the IU.
            pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
                let iu = fixed::<{ Self::BYTES }>(bytes)?;
                check(iu[0], $opcode)?;
                Ok($name { tag: Tag(chunk(iu, 8)) })
            }

            /// The bytes of the IU.
            pub fn emit(&self) -> [u8; Self::BYTES] {
                let mut iu = [0; Self::BYTES];
                iu[0] = $opcode;
                put(&mut iu, 8, &self.tag.0);
                iu
            }
        }
    };
}
tag_only!(
    /// SRP_I_LOGOUT: the initiator ends the channel.
    InitiatorLogout,
    Opcode::I_LOGOUT
);
tag_only!(
    /// SRP_CRED_RSP: the answer to SRP_CRED_REQ.
    CredRsp,
    Opcode::CRED_RSP
);
tag_only!(
    /// SRP_AER_RSP: the answer to SRP_AER_REQ.
    AerRsp,
    Opcode::AER_RSP
);

/// SRP_T_LOGOUT: the target ends the channel.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct TargetLogout {
    /// The IU is a solicited event.
    pub solicited: bool,
    /// Why; see the constants.
    pub reason: u32,
    /// The tag.
    pub tag: Tag,
}

impl TargetLogout {
    /// Bytes of the IU.
    pub const BYTES: usize = 16;
    /// No reason given.
    pub const NO_REASON: u32 = 0;
    /// The channel was inactive.
    pub const INACTIVE: u32 = 1;
    /// An IU of an invalid type came.
    pub const INVALID_IU_TYPE: u32 = 2;
    /// A response came to which there was no request.
    pub const RESPONSE_WITHOUT_REQUEST: u32 = 3;
    /// The MULTI-CHANNEL ACTION of a new login.
    pub const NEW_LOGIN: u32 = 4;
    /// A data-OUT descriptor format that is not supported.
    pub const OUT_FORMAT: u32 = 6;
    /// A data-IN descriptor format that is not supported.
    pub const IN_FORMAT: u32 = 7;
    /// An invalid data-OUT descriptor count.
    pub const OUT_COUNT: u32 = 8;
    /// An invalid data-IN descriptor count.
    pub const IN_COUNT: u32 = 9;

    /// Reads the IU.
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::BYTES }>(bytes)?;
        check(iu[0], Opcode::T_LOGOUT)?;
        Ok(TargetLogout { solicited: iu[1] & 0x01 != 0, reason: u32_at(iu, 4), tag: Tag(chunk(iu, 8)) })
    }

    /// The bytes of the IU.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut iu = [0; Self::BYTES];
        iu[0] = Opcode::T_LOGOUT;
        iu[1] = u8::from(self.solicited);
        put(&mut iu, 4, &self.reason.to_be_bytes());
        put(&mut iu, 8, &self.tag.0);
        iu
    }
}

/// SRP_CRED_REQ: the target changes the request limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct CredReq {
    /// The IU is a solicited event.
    pub solicited: bool,
    /// Credits given, or taken if negative.
    pub request_limit_delta: i32,
    /// Echoed in the answer.
    pub tag: Tag,
}

impl CredReq {
    /// Bytes of the IU.
    pub const BYTES: usize = 16;

    /// Reads the IU.
    pub fn parse(bytes: &[u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Self::BYTES }>(bytes)?;
        check(iu[0], Opcode::CRED_REQ)?;
        Ok(CredReq {
            solicited: iu[1] & 0x01 != 0,
            request_limit_delta: u32_at(iu, 4) as i32,
            tag: Tag(chunk(iu, 8)),
        })
    }

    /// The bytes of the IU.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut iu = [0; Self::BYTES];
        iu[0] = Opcode::CRED_REQ;
        iu[1] = u8::from(self.solicited);
        put(&mut iu, 4, &self.request_limit_delta.to_be_bytes());
        put(&mut iu, 8, &self.tag.0);
        iu
    }
}

/// SRP_AER_REQ: the target reports an asynchronous event of a logical unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct AerReq<'a> {
    /// The IU is a solicited event.
    pub solicited: bool,
    /// Credits given, or taken if negative.
    pub request_limit_delta: i32,
    /// Echoed in the answer.
    pub tag: Tag,
    /// The logical unit.
    pub lun: RawLun,
    /// Sense data.
    pub sense: &'a [u8],
}

impl<'a> AerReq<'a> {
    /// Bytes of the fixed part.
    pub const FIXED_BYTES: usize = 36;

    /// Reads the IU.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ AerReq::FIXED_BYTES }>(bytes)?;
        check(iu[0], Opcode::AER_REQ)?;
        let end = Self::FIXED_BYTES.saturating_add(u32_at(iu, 28) as usize);
        let sense =
            bytes.get(Self::FIXED_BYTES..end).ok_or(IuError::Short { needed: end, got: bytes.len() })?;
        Ok(AerReq {
            solicited: iu[1] & 0x01 != 0,
            request_limit_delta: u32_at(iu, 4) as i32,
            tag: Tag(chunk(iu, 8)),
            lun: RawLun(chunk(iu, 20)),
            sense,
        })
    }

    /// Writes the IU to the front of `buf`; gives its length in bytes.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, IuError> {
        let len = Self::FIXED_BYTES + self.sense.len();
        let iu = room(buf, len)?;
        iu[..Self::FIXED_BYTES].fill(0);
        iu[0] = Opcode::AER_REQ;
        iu[1] = u8::from(self.solicited);
        put(iu, 4, &self.request_limit_delta.to_be_bytes());
        put(iu, 8, &self.tag.0);
        put(iu, 20, &self.lun.0);
        put(iu, 28, &(self.sense.len() as u32).to_be_bytes());
        put(iu, Self::FIXED_BYTES, self.sense);
        Ok(len)
    }
}
