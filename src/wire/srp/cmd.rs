//! SRP_CMD: a SCSI command with its data buffer descriptors (SRP r16a, 6.8).

use super::desc::{DataBuffer, DescTable, Descriptor};
use super::{IuError, Opcode, RawLun, Tag, chunk, put, room, u32_at};

/// Why an SRP_CMD of at least 48 bytes cannot be executed. Its tag and LUN can be read.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmdError {
    /// Additional CDB or descriptors reach beyond the IU.
    #[error("additional CDB and descriptors take {needed} bytes, the information unit has {got}")]
    Truncated {
        /// Bytes that the IU would have.
        needed: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A descriptor format code that does not exist or is not allowed in this direction.
    #[error("data-{direction} buffer descriptor format {code} is not supported")]
    Format {
        /// `OUT` or `IN`.
        direction: &'static str,
        /// The nibble.
        code: u8,
    },
    /// An indirect table's length is no multiple of 16.
    #[error("descriptor table length {0} is not a multiple of 16")]
    TableLength(u32),
    /// An indirect table is shorter than the part of it in the IU.
    #[error("{inline} descriptors in the information unit, {table} in the table")]
    TableShort {
        /// Descriptors in the IU.
        inline: usize,
        /// Descriptors of the table.
        table: usize,
    },
    /// All descriptors together are shorter than the data buffer.
    #[error("descriptors cover {covered} bytes of a buffer of {total}")]
    Uncovered {
        /// Sum of the descriptors' lengths in bytes.
        covered: u64,
        /// The length that the table claims, in bytes.
        total: u32,
    },
    /// Immediate data on a channel that did not negotiate it.
    #[error("immediate data were not negotiated")]
    ImmediateNotNegotiated,
    /// Immediate data that begin inside the header or end beyond the IU.
    #[error("immediate data of {len_bytes} bytes at {offset} do not lie in the information unit")]
    ImmediateBounds {
        /// Where they would begin, in bytes.
        offset: usize,
        /// Their length in bytes.
        len_bytes: u32,
    },
}

/// The task attribute: how a command is ordered among others (SAM-5 8.6).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum TaskAttribute {
    /// SIMPLE (0).
    #[default]
    Simple,
    /// HEAD OF QUEUE (1).
    HeadOfQueue,
    /// ORDERED (2).
    Ordered,
    /// ACA (4).
    Aca,
    /// A code without a meaning: 3, 5, 6 or 7.
    Reserved(u8),
}

impl TaskAttribute {
    /// The attribute of the low three bits of `code`.
    pub const fn from_code(code: u8) -> Self {
        match code & 0x07 {
            0 => TaskAttribute::Simple,
            1 => TaskAttribute::HeadOfQueue,
            2 => TaskAttribute::Ordered,
            4 => TaskAttribute::Aca,
            other => TaskAttribute::Reserved(other),
        }
    }

    /// The three bits.
    pub const fn code(self) -> u8 {
        match self {
            TaskAttribute::Simple => 0,
            TaskAttribute::HeadOfQueue => 1,
            TaskAttribute::Ordered => 2,
            TaskAttribute::Aca => 4,
            TaskAttribute::Reserved(code) => code & 0x07,
        }
    }
}

/// SRP_CMD: the fixed part as values, the variable part as a checked view.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Cmd<'a> {
    /// [`Cmd::SCSOLNT`], [`Cmd::UCSOLNT`].
    pub sol_not: u8,
    /// Echoed in the response.
    pub tag: Tag,
    /// The logical unit.
    pub lun: RawLun,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The first 16 bytes of the CDB.
    pub cdb: [u8; 16],
    /// What the CDB has beyond 16 bytes; a multiple of 4, at most 252.
    pub additional_cdb: &'a [u8],
    /// Data to the target.
    pub data_out: DataBuffer<'a>,
    /// Data from the target.
    pub data_in: DataBuffer<'a>,
}

impl<'a> Cmd<'a> {
    /// Bytes of the fixed part.
    pub const FIXED_BYTES: usize = 48;
    /// Bytes of an indirect descriptor before its table entries: table descriptor and length.
    pub const INDIRECT_BYTES: usize = 20;
    /// `sol_not`: the response shall be a solicited event if the command succeeds.
    pub const SCSOLNT: u8 = 0x02;
    /// `sol_not`: the response shall be a solicited event if the command fails.
    pub const UCSOLNT: u8 = 0x04;

    /// Reads a command. `immediate_offset` is what the login negotiated.
    ///
    /// The outer error is of IUs that are no SRP_CMD at all; the inner one of commands that can
    /// be answered.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8], immediate_offset: Option<u16>) -> Result<Result<Self, CmdError>, IuError> {
        let Some(fixed) = bytes.first_chunk::<{ Cmd::FIXED_BYTES }>() else {
            return Err(IuError::Short { needed: Self::FIXED_BYTES, got: bytes.len() });
        };
        if fixed[0] != Opcode::CMD {
            return Err(IuError::Opcode(fixed[0]));
        }
        Ok(Self::parse_rest(fixed, bytes, immediate_offset))
    }

    #[inline(always)]
    fn parse_rest(
        fixed: &[u8; Cmd::FIXED_BYTES],
        bytes: &'a [u8],
        immediate_offset: Option<u16>,
    ) -> Result<Self, CmdError> {
        let mut reader = Reader { bytes, at: Self::FIXED_BYTES };
        let additional_cdb = reader.take(usize::from(fixed[31] & !3))?;
        let data_out = reader.buffer("OUT", fixed[5] >> 4, fixed[6])?;
        let data_in = reader.buffer("IN", fixed[5] & 0x0f, fixed[7])?;
        let data_out = match data_out {
            Found::Immediate(len_bytes) => immediate(bytes, reader.at, immediate_offset, len_bytes)?,
            Found::Buffer(buffer) => buffer,
        };
        let Found::Buffer(data_in) = data_in else {
            return Err(CmdError::Format { direction: "IN", code: 3 });
        };
        Ok(Cmd {
            sol_not: fixed[1],
            tag: Tag(chunk(fixed, 8)),
            lun: RawLun(chunk(fixed, 20)),
            attribute: TaskAttribute::from_code(fixed[29]),
            cdb: chunk(fixed, 32),
            additional_cdb,
            data_out,
            data_in,
        })
    }

    /// Tag and LUN of an SRP_CMD that has at least its fixed part, be it malformed or not.
    pub fn tag_and_lun(bytes: &[u8]) -> Option<(Tag, RawLun)> {
        let fixed = bytes.first_chunk::<{ Cmd::FIXED_BYTES }>()?;
        Some((Tag(chunk(fixed, 8)), RawLun(chunk(fixed, 20))))
    }

    /// Bytes of the IU before immediate data: fixed part, additional CDB, descriptors.
    pub fn header_bytes(&self) -> usize {
        let variable = |buffer: &DataBuffer<'_>| match buffer {
            DataBuffer::None => 0,
            DataBuffer::Direct(_) => Descriptor::BYTES,
            DataBuffer::Indirect { inline, .. } => Self::INDIRECT_BYTES + inline.as_bytes().len(),
            DataBuffer::Immediate { .. } => 4,
        };
        Self::FIXED_BYTES + self.additional_cdb.len() + variable(&self.data_out) + variable(&self.data_in)
    }

    /// Bytes of the whole IU.
    pub fn len_bytes(&self) -> usize {
        match self.data_out {
            DataBuffer::Immediate { data, offset } => offset + data.len(),
            _ => self.header_bytes(),
        }
    }

    /// Writes the IU to the front of `buf`; gives its length in bytes. What lies between the
    /// descriptors and immediate data is zeroed.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, IuError> {
        let len = self.len_bytes();
        let iu = room(buf, len.max(self.header_bytes()))?;
        let at = self.emit_header(iu)?;
        if let DataBuffer::Immediate { data, offset } = self.data_out {
            let gap = iu.get_mut(at..offset).ok_or(IuError::NoRoom { needed: at, room: offset })?;
            gap.fill(0);
            put(iu, offset, data);
        }
        Ok(len)
    }

    /// Writes all but immediate data (and the gap before them); gives the bytes written. An
    /// initiator that gathers immediate data from elsewhere sends them behind.
    ///
    /// # Panics
    /// If the additional CDB is no whole number of dwords, or more than 255 descriptors are to be
    /// in the IU: neither has a way to be said.
    pub fn emit_header(&self, buf: &mut [u8]) -> Result<usize, IuError> {
        let len = self.header_bytes();
        let iu = room(buf, len)?;
        iu[..Self::FIXED_BYTES].fill(0);
        iu[0] = Opcode::CMD;
        iu[1] = self.sol_not;
        iu[5] = self.data_out.code() << 4 | self.data_in.code();
        put(iu, 8, &self.tag.0);
        put(iu, 20, &self.lun.0);
        iu[29] = self.attribute.code();
        assert!(self.additional_cdb.len() <= 252 && self.additional_cdb.len().is_multiple_of(4));
        iu[31] = self.additional_cdb.len() as u8;
        put(iu, 32, &self.cdb);
        put(iu, Self::FIXED_BYTES, self.additional_cdb);
        let mut at = Self::FIXED_BYTES + self.additional_cdb.len();
        for (buffer, count) in [(&self.data_out, 6), (&self.data_in, 7)] {
            match buffer {
                DataBuffer::None => {}
                DataBuffer::Direct(descriptor) => {
                    put(iu, at, &descriptor.emit());
                    at += Descriptor::BYTES;
                }
                DataBuffer::Indirect { table, total_bytes, inline } => {
                    iu[count] = u8::try_from(inline.len()).expect("at most 255 descriptors in an IU");
                    put(iu, at, &table.emit());
                    put(iu, at + Descriptor::BYTES, &total_bytes.to_be_bytes());
                    put(iu, at + Self::INDIRECT_BYTES, inline.as_bytes());
                    at += Self::INDIRECT_BYTES + inline.as_bytes().len();
                }
                DataBuffer::Immediate { data, .. } => {
                    put(iu, at, &(data.len() as u32).to_be_bytes());
                    at += 4;
                }
            }
        }
        Ok(at)
    }
}

/// What the descriptor area says of one direction.
enum Found<'a> {
    Buffer(DataBuffer<'a>),
    /// Immediate data of this many bytes; where they are is known after all descriptors.
    Immediate(u32),
}

/// Walks over the variable part of an IU.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    fn take(&mut self, len: usize) -> Result<&'a [u8], CmdError> {
        // `len` is at most 16 * 255, so this does not overflow.
        let needed = self.at + len;
        let found =
            self.bytes.get(self.at..needed).ok_or(CmdError::Truncated { needed, got: self.bytes.len() })?;
        self.at = needed;
        Ok(found)
    }

    #[inline(always)]
    fn descriptor(&mut self) -> Result<Descriptor, CmdError> {
        Ok(Descriptor::parse(&chunk(self.take(Descriptor::BYTES)?, 0)))
    }

    #[inline(always)]
    fn buffer(&mut self, direction: &'static str, code: u8, count: u8) -> Result<Found<'a>, CmdError> {
        Ok(Found::Buffer(match code {
            0 => DataBuffer::None,
            1 => DataBuffer::Direct(self.descriptor()?),
            2 => self.indirect(usize::from(count))?,
            3 => return Ok(Found::Immediate(u32_at(self.take(4)?, 0))),
            _ => return Err(CmdError::Format { direction, code }),
        }))
    }

    fn indirect(&mut self, count: usize) -> Result<DataBuffer<'a>, CmdError> {
        let table = self.descriptor()?;
        let total_bytes = u32_at(self.take(4)?, 0);
        let bytes = self.take(count * Descriptor::BYTES)?;
        let entries = table.len_bytes as usize / Descriptor::BYTES;
        let inline = DescTable::new(bytes).ok_or(CmdError::TableLength(table.len_bytes))?;
        if !(table.len_bytes as usize).is_multiple_of(Descriptor::BYTES) {
            return Err(CmdError::TableLength(table.len_bytes));
        }
        if entries < count {
            return Err(CmdError::TableShort { inline: count, table: entries });
        }
        if entries == count {
            let covered = inline.total_bytes();
            if covered < u64::from(total_bytes) {
                return Err(CmdError::Uncovered { covered, total: total_bytes });
            }
        }
        Ok(DataBuffer::Indirect { table, total_bytes, inline })
    }
}

fn immediate(
    bytes: &[u8],
    header: usize,
    negotiated: Option<u16>,
    len_bytes: u32,
) -> Result<DataBuffer<'_>, CmdError> {
    let offset = usize::from(negotiated.ok_or(CmdError::ImmediateNotNegotiated)?);
    let outside = CmdError::ImmediateBounds { offset, len_bytes };
    // 64 bits: a sum in 32 bits could wrap and let a length near 2^32 pass.
    let end = offset as u64 + u64::from(len_bytes);
    if offset < header || end > bytes.len() as u64 {
        return Err(outside);
    }
    let data = bytes.get(offset..end as usize).ok_or(outside)?;
    Ok(DataBuffer::Immediate { data, offset })
}
