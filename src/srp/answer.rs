//! Building SRP_RSP into a caller's buffer.

use super::residual::Residual;
use super::tmf::TmfStatus;
use crate::wire::srp::{Cmd, IuError, Rsp, RspHeader, Tag};

/// An IU that lies in the buffer it was built in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Its length in bytes.
    pub len_bytes: usize,
    /// Post the SEND with the solicited event bit.
    pub solicited: bool,
}

/// SCSI status GOOD.
pub const STATUS_GOOD: u8 = 0x00;

/// The answer to a command.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CommandAnswer<'a> {
    /// The command's tag.
    pub tag: Tag,
    /// The command's `sol_not`.
    pub sol_not: u8,
    /// Credits to give: what [`TargetCredit::answer`](super::credit::TargetCredit::answer) says.
    pub delta: i32,
    /// SCSI status.
    pub status: u8,
    /// What was not transferred.
    pub residual: Residual,
    /// Sense data; cut to what the initiator takes.
    pub sense: &'a [u8],
}

impl CommandAnswer<'_> {
    /// Writes the IU to the front of `buf`, at most `max_ti_iu_bytes` long.
    #[inline]
    pub fn emit(&self, max_ti_iu_bytes: u32, buf: &mut [u8]) -> Result<Built, IuError> {
        let wanted = if self.status == STATUS_GOOD { Cmd::SCSOLNT } else { Cmd::UCSOLNT };
        let solicited = self.sol_not & wanted != 0;
        let mut header = RspHeader {
            solicited,
            request_limit_delta: self.delta,
            tag: self.tag,
            status: self.status,
            ..RspHeader::default()
        };
        self.residual.apply(&mut header);
        let room = (max_ti_iu_bytes as usize).saturating_sub(Rsp::FIXED_BYTES);
        let sense = &self.sense[..self.sense.len().min(room)];
        let len_bytes = Rsp { header, response: &[], sense }.emit(buf)?;
        Ok(Built { len_bytes, solicited })
    }
}

/// The answer to a task management request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TmfAnswer {
    /// The request's tag.
    pub tag: Tag,
    /// The request's `sol_not`.
    pub sol_not: u8,
    /// Credits to give.
    pub delta: i32,
    /// How it went.
    pub status: TmfStatus,
}

impl TmfAnswer {
    /// Bytes of the IU.
    pub const BYTES: usize = Rsp::FIXED_BYTES + 4;

    /// Writes the IU to the front of `buf`.
    pub fn emit(&self, buf: &mut [u8]) -> Result<Built, IuError> {
        let wanted = if self.status == TmfStatus::Complete { Cmd::SCSOLNT } else { Cmd::UCSOLNT };
        let solicited = self.sol_not & wanted != 0;
        let header =
            RspHeader { solicited, request_limit_delta: self.delta, tag: self.tag, ..RspHeader::default() };
        let response = [0, 0, 0, self.status.code()];
        let len_bytes = Rsp { header, response: &response, sense: &[] }.emit(buf)?;
        Ok(Built { len_bytes, solicited })
    }
}
