//! SRP_RSP: the answer to a command or a task management function (SRP r16a, 6.9).

use super::{IuError, Opcode, Tag, chunk, fixed, put, room, u32_at};

/// The fixed part of an SRP_RSP but for the lengths, which come from what follows it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct RspHeader {
    /// The IU is a solicited event.
    pub solicited: bool,
    /// Credits that the initiator gets with this IU; negative takes some away.
    pub request_limit_delta: i32,
    /// The tag of the request.
    pub tag: Tag,
    /// The residual flags of [`Rsp`] (`DOOVER`, ...). The two `VALID` flags follow from the data.
    pub residual_flags: u8,
    /// SCSI status.
    pub status: u8,
    /// Data-OUT residual count in bytes.
    pub data_out_residual: u32,
    /// Data-IN residual count in bytes.
    pub data_in_residual: u32,
}

/// SRP_RSP as a checked view.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rsp<'a> {
    /// The fixed part.
    pub header: RspHeader,
    /// Response data; empty without RSPVALID. Of a task management answer: four bytes, the last
    /// of which is the code.
    pub response: &'a [u8],
    /// Sense data; empty without SNSVALID.
    pub sense: &'a [u8],
}

impl<'a> Rsp<'a> {
    /// Bytes of the fixed part.
    pub const FIXED_BYTES: usize = 36;
    /// Flag: response data are there.
    pub const RSPVALID: u8 = 0x01;
    /// Flag: sense data are there.
    pub const SNSVALID: u8 = 0x02;
    /// Flag: the command wanted more data-OUT than the buffer has.
    pub const DOOVER: u8 = 0x04;
    /// Flag: the command wanted less data-OUT than the buffer has.
    pub const DOUNDER: u8 = 0x08;
    /// Flag: the command had more data-IN than fit the buffer.
    pub const DIOVER: u8 = 0x10;
    /// Flag: the command had less data-IN than fit the buffer.
    pub const DIUNDER: u8 = 0x20;
    /// The four residual flags.
    pub const RESIDUAL_FLAGS: u8 = 0x3c;

    /// Reads a response. Lengths whose `VALID` flag is not set do not count.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, IuError> {
        let iu = fixed::<{ Rsp::FIXED_BYTES }>(bytes)?;
        if iu[0] != Opcode::RSP {
            return Err(IuError::Opcode(iu[0]));
        }
        let flags = iu[18];
        let length = |flag: u8, at: usize| if flags & flag != 0 { u32_at(iu, at) as usize } else { 0 };
        let response_len = length(Self::RSPVALID, 32);
        let sense_len = length(Self::SNSVALID, 28);
        let sense_at = Self::FIXED_BYTES.saturating_add(response_len);
        let end = sense_at.saturating_add(sense_len);
        let (Some(response), Some(sense)) =
            (bytes.get(Self::FIXED_BYTES..sense_at), bytes.get(sense_at..end))
        else {
            return Err(IuError::Short { needed: end, got: bytes.len() });
        };
        Ok(Rsp {
            header: RspHeader {
                solicited: iu[1] & 0x01 != 0,
                request_limit_delta: u32_at(iu, 4) as i32,
                tag: Tag(chunk(iu, 8)),
                residual_flags: flags & Self::RESIDUAL_FLAGS,
                status: iu[19],
                data_out_residual: u32_at(iu, 20),
                data_in_residual: u32_at(iu, 24),
            },
            response,
            sense,
        })
    }

    /// Bytes of the IU.
    pub fn len_bytes(&self) -> usize {
        Self::FIXED_BYTES + self.response.len() + self.sense.len()
    }

    /// Writes the IU to the front of `buf`; gives its length in bytes. Data that are not empty
    /// are marked valid.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, IuError> {
        let len = self.len_bytes();
        let iu = room(buf, len)?;
        let header = &self.header;
        let valid = |flag, data: &[u8]| if data.is_empty() { 0 } else { flag };
        iu[..Self::FIXED_BYTES].fill(0);
        iu[0] = Opcode::RSP;
        iu[1] = u8::from(header.solicited);
        put(iu, 4, &header.request_limit_delta.to_be_bytes());
        put(iu, 8, &header.tag.0);
        iu[18] = header.residual_flags & Self::RESIDUAL_FLAGS
            | valid(Self::RSPVALID, self.response)
            | valid(Self::SNSVALID, self.sense);
        iu[19] = header.status;
        put(iu, 20, &header.data_out_residual.to_be_bytes());
        put(iu, 24, &header.data_in_residual.to_be_bytes());
        put(iu, 28, &(self.sense.len() as u32).to_be_bytes());
        put(iu, 32, &(self.response.len() as u32).to_be_bytes());
        put(iu, Self::FIXED_BYTES, self.response);
        put(iu, Self::FIXED_BYTES + self.response.len(), self.sense);
        Ok(len)
    }
}
