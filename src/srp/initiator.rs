//! A channel on the initiator's side: what a login got, what may be sent, what the target says.

use super::credit::InitiatorCredit;
use crate::wire::srp::{
    AerReq, AerRsp, BufferFormats, Cmd, CredReq, CredRsp, DataBuffer, IuError, LoginReq, LoginRsp, Opcode,
    PortId, RawLun, Rsp, Tag, TargetLogout,
};

/// Where we put immediate data, as ib_srp does: fixed part, 16 bytes of additional CDB, length.
pub const IMMEDIATE_OFFSET: u16 = 68;

/// A login request with our usual flags.
pub fn login_request(
    initiator: PortId,
    target: PortId,
    tag: Tag,
    max_it_iu_bytes: u32,
    multi: bool,
    immediate: bool,
) -> LoginReq {
    LoginReq {
        tag,
        max_it_iu_bytes,
        formats: BufferFormats::BOTH,
        flags: u8::from(multi) | if immediate { LoginReq::IMMEDIATE } else { 0 },
        immediate_offset: if immediate { IMMEDIATE_OFFSET } else { 0 },
        initiator,
        target,
    }
}

/// What is wrong with a login response.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLogin {
    /// It is none.
    #[error(transparent)]
    Iu(#[from] IuError),
    /// It allows less than was asked for.
    #[error("asked for information units of {asked} bytes, was given {given}")]
    IuLength {
        /// What was asked for, in bytes.
        asked: u32,
        /// What was given, in bytes.
        given: u32,
    },
    /// Too few credits to send a command and still be able to abort it.
    #[error("{0} credits are too few: one is kept for task management")]
    Credits(i32),
    /// It cannot even carry a response.
    #[error("information units of {0} bytes cannot carry a response")]
    TargetIuLength(u32),
}

/// A channel on the initiator's side.
#[derive(Copy, Clone, Debug)]
pub struct InitiatorChannel {
    credit: InitiatorCredit,
    /// Longest IU that we may send, in bytes.
    pub max_it_iu_bytes: u32,
    /// Longest IU that the target sends, in bytes.
    pub max_ti_iu_bytes: u32,
    /// Where immediate data begin, if they were granted.
    pub immediate_offset: Option<u16>,
    /// What became of the session's other channels: the response's MULTI-CHANNEL RESULT.
    pub multi_result: u8,
}

/// What the target sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FromTarget<'a> {
    /// An answer; its delta has been added.
    Rsp(Rsp<'a>),
    /// Send this back; the delta has been added.
    CredReq {
        /// The CRED_RSP.
        answer: [u8; CredRsp::BYTES],
    },
    /// Send this back; the delta has been added.
    AerReq {
        /// The AER_RSP.
        answer: [u8; AerRsp::BYTES],
        /// The logical unit of the event.
        lun: RawLun,
        /// Its sense data.
        sense: &'a [u8],
    },
    /// The target ends the channel.
    TargetLogout {
        /// Why.
        reason: u32,
    },
}

impl InitiatorChannel {
    /// The channel that the answer to `request` makes.
    pub fn new(request: &LoginReq, response: &[u8]) -> Result<Self, BadLogin> {
        let response = LoginRsp::parse(response)?;
        if response.max_it_iu_bytes < request.max_it_iu_bytes {
            return Err(BadLogin::IuLength {
                asked: request.max_it_iu_bytes,
                given: response.max_it_iu_bytes,
            });
        }
        if response.request_limit_delta < 2 {
            return Err(BadLogin::Credits(response.request_limit_delta));
        }
        if (response.max_ti_iu_bytes as usize) < Rsp::FIXED_BYTES {
            return Err(BadLogin::TargetIuLength(response.max_ti_iu_bytes));
        }
        let granted = response.flags & request.flags & LoginRsp::IMMEDIATE != 0;
        Ok(InitiatorChannel {
            credit: InitiatorCredit::new(response.request_limit_delta),
            max_it_iu_bytes: request.max_it_iu_bytes,
            max_ti_iu_bytes: response.max_ti_iu_bytes,
            immediate_offset: granted.then_some(request.immediate_offset),
            multi_result: response.flags & LoginRsp::RESULT_MASK,
        })
    }

    /// The credits.
    pub fn credit(&mut self) -> &mut InitiatorCredit {
        &mut self.credit
    }

    /// Most bytes of immediate data that a command may carry; zero if not granted.
    pub fn max_immediate_bytes(&self) -> u32 {
        self.immediate_offset.map_or(0, |offset| self.max_it_iu_bytes.saturating_sub(u32::from(offset)))
    }

    /// Whether `cmd` may be sent: its length and its immediate data fit what was agreed on.
    pub fn may_send(&self, cmd: &Cmd<'_>) -> bool {
        let offset_fits = match cmd.data_out {
            DataBuffer::Immediate { offset, .. } => self.immediate_offset.map(usize::from) == Some(offset),
            _ => true,
        };
        offset_fits && cmd.len_bytes() <= self.max_it_iu_bytes as usize
    }

    /// Reads what the target sent, and adds its credits.
    #[inline]
    pub fn on_iu<'a>(&mut self, bytes: &'a [u8]) -> Result<FromTarget<'a>, IuError> {
        let &byte = bytes.first().ok_or(IuError::Short { needed: 1, got: 0 })?;
        match Opcode::from_byte(byte) {
            Some(Opcode::Rsp) => {
                let rsp = Rsp::parse(bytes)?;
                self.credit.add(rsp.header.request_limit_delta);
                Ok(FromTarget::Rsp(rsp))
            }
            Some(Opcode::CredReq) => {
                let request = CredReq::parse(bytes)?;
                self.credit.add(request.request_limit_delta);
                Ok(FromTarget::CredReq { answer: CredRsp { tag: request.tag }.emit() })
            }
            Some(Opcode::AerReq) => {
                let request = AerReq::parse(bytes)?;
                self.credit.add(request.request_limit_delta);
                let answer = AerRsp { tag: request.tag }.emit();
                Ok(FromTarget::AerReq { answer, lun: request.lun, sense: request.sense })
            }
            Some(Opcode::TargetLogout) => {
                let logout = TargetLogout::parse(bytes)?;
                Ok(FromTarget::TargetLogout { reason: logout.reason })
            }
            _ => Err(IuError::Opcode(byte)),
        }
    }
}
