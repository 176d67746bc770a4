//! What comes out of the device server: an answer, or a block operation to carry out first.

use crate::wire::scsi::sense::{Asc, Sense, SenseKey};
use crate::wire::scsi::status::Status;

/// What to do with a command.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Answer now.
    Done(Outcome),
    /// Carry this out, then answer [`Outcome::GOOD`] or what
    /// [`outcome_of_fault`](super::outcome_of_fault) says.
    Block(BlockOp),
    /// Fetch a parameter list of so many bytes and ask [`check_unmap`](super::check_unmap) of it.
    List {
        /// PARAMETER LIST LENGTH.
        len_bytes: u32,
    },
}

impl Plan {
    /// What the command itself demands to be transferred, for residuals: what the transfer
    /// buffer has more is underflow, what it has less is overflow (SRP, 6.9).
    pub const fn demand(&self) -> Demand {
        match self {
            Plan::Done(Outcome { data_len: 0, .. }) => Demand::Nothing,
            Plan::Done(outcome) => Demand::In(outcome.data_len as u64),
            Plan::Block(op) => op.demand(),
            Plan::List { len_bytes } => Demand::Out(*len_bytes as u64),
        }
    }
}

/// Which way data go, and how many bytes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Demand {
    /// No data.
    Nothing,
    /// Target to initiator.
    In(u64),
    /// Initiator to target.
    Out(u64),
}

/// The answer to a command.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Status.
    pub status: Status,
    /// Sense data, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Bytes of data-in in the caller's buffer: the available length cut to the allocation
    /// length, exactly.
    pub data_len: usize,
    /// The initiator has seen the list of logical units: for this I_T nexus
    /// [`Condition::LunsChanged`](super::Condition::LunsChanged) is to be cleared at all of them
    /// (SPC-4, 6.33).
    pub luns_reported: bool,
}

impl Outcome {
    /// GOOD without data.
    pub const GOOD: Outcome = Outcome::status(Status::Good);

    /// This status, without sense data.
    pub const fn status(status: Status) -> Outcome {
        Outcome { status, sense: None, data_len: 0, luns_reported: false }
    }

    /// GOOD with so many bytes of data-in.
    pub const fn data(data_len: usize) -> Outcome {
        Outcome { data_len, ..Outcome::GOOD }
    }

    /// CHECK CONDITION with this sense data.
    pub const fn check(sense: Sense) -> Outcome {
        Outcome { sense: Some(sense), ..Outcome::status(Status::CheckCondition) }
    }

    /// CHECK CONDITION with this key and code.
    pub const fn fail(key: SenseKey, asc: Asc) -> Outcome {
        Outcome::check(Sense::new(key, asc))
    }

    /// INVALID FIELD IN CDB; the field begins at `byte`, and at `bit` if it is not whole bytes.
    pub const fn invalid_field(byte: u16, bit: Option<u8>) -> Outcome {
        Outcome::check(
            Sense::new(SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB).with_cdb_field(byte, bit),
        )
    }
}

/// A run of logical blocks inside the medium.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The first block.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl Extent {
    /// Where it begins on the medium, in bytes.
    pub const fn offset_bytes(&self) -> u64 {
        self.lba * self.block_bytes as u64
    }

    /// How long it is, in bytes.
    pub const fn len_bytes(&self) -> u64 {
        self.blocks * self.block_bytes as u64
    }
}

/// What is to be done on the medium. Extents lie inside the medium and are not empty, except a
/// flush's at the very end.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum BlockOp {
    /// Medium to initiator.
    Read {
        /// Which blocks; at most the longest transfer.
        extent: Extent,
        /// What a volatile cache holds of them goes to the medium first (SBC-3, 5.11).
        fua: bool,
    },
    /// Initiator to medium.
    Write {
        /// Which blocks; at most the longest transfer.
        extent: Extent,
        /// On the medium before the answer.
        fua: bool,
    },
    /// Volatile cache to medium.
    Flush {
        /// Which blocks.
        extent: Extent,
        /// The answer may come before it is done.
        immed: bool,
    },
    /// What the medium holds of them is not needed any more.
    Unmap {
        /// Which blocks.
        extent: Extent,
    },
}

impl BlockOp {
    /// Which blocks it touches.
    pub const fn extent(&self) -> Extent {
        match self {
            BlockOp::Read { extent, .. }
            | BlockOp::Write { extent, .. }
            | BlockOp::Flush { extent, .. }
            | BlockOp::Unmap { extent } => *extent,
        }
    }

    /// Whether it changes the medium.
    pub const fn is_write(&self) -> bool {
        matches!(self, BlockOp::Write { .. } | BlockOp::Unmap { .. })
    }

    /// What it demands to be transferred.
    pub const fn demand(&self) -> Demand {
        match self {
            BlockOp::Read { extent, .. } => Demand::In(extent.len_bytes()),
            BlockOp::Write { extent, .. } => Demand::Out(extent.len_bytes()),
            BlockOp::Flush { .. } | BlockOp::Unmap { .. } => Demand::Nothing,
        }
    }
}
