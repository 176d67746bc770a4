//! Answers, as tests look at them.

use reactors::time::Time;
use srpoll::wire::scsi::sense::Sense;
use srpoll::wire::srp::Rsp;

/// An SRP_RSP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u8,
    /// Sense key, additional sense code, qualifier.
    pub sense: Option<(u8, u8, u8)>,
    pub residual_flags: u8,
    pub data_in_residual: u32,
    pub data_out_residual: u32,
    pub delta: i32,
    /// The RSP_CODE of task management.
    pub code: Option<u8>,
    pub at: Time,
}

impl Answer {
    /// The answer that an information unit is, and the tag that it is for.
    pub fn parse(iu: &[u8], at: Time) -> Option<([u8; 8], Answer)> {
        let rsp = Rsp::parse(iu).ok()?;
        let answer = Answer {
            status: rsp.header.status,
            sense: Sense::parse(rsp.sense).map(|sense| (sense.key as u8, sense.asc.0, sense.asc.1)),
            residual_flags: rsp.header.residual_flags,
            data_in_residual: rsp.header.data_in_residual,
            data_out_residual: rsp.header.data_out_residual,
            delta: rsp.header.request_limit_delta,
            code: rsp.response.get(3).copied(),
            at,
        };
        Some((rsp.header.tag.0, answer))
    }

    pub fn is_good(&self) -> bool {
        self.status == 0 && self.sense.is_none() && self.residual_flags == 0
    }
}
