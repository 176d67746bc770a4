//! Floor 2, sans-io: the SCSI device server: logical units, CDBs in, sense data and block
//! operations (as values) out.
//!
//! It knows commands (SPC-4, SBC-3) and what a logical unit shares with all who use it. It must
//! not know SRP, RDMA or block devices: a [`BlockOp`] is a value that somebody else carries out,
//! data-in goes into a buffer of the caller's, and a parameter list comes from one.
//!
//! * [`start`]: one command in, one [`Plan`] out
//! * [`check_unmap`], [`next_unmap`]: a parameter list in, block operations out
//! * [`LunInfo`], [`TargetInfo`]: what the answers are made of
//! * [`Attention`]: pending unit attention conditions of one I_T nexus at one logical unit
//! * [`opcode`]: the table of commands; the one place where a command is added
//! * [`BlockFault`], [`outcome_of_fault`]: how a failed block operation is told

mod attention;
mod device;
mod fault;
mod info;
mod inquiry;
mod mode;
pub mod opcode;
mod plan;
mod report;
mod rw;
mod unmap;

pub use attention::{Attention, Condition};
pub use device::{Call, SCRATCH_BYTES, Unit, scratch_bytes, start};
pub use fault::{BlockFault, outcome_of_fault};
pub use info::{LunInfo, Naa, TargetInfo};
pub use plan::{BlockOp, Demand, Extent, Outcome, Plan};
pub use unmap::{check_unmap, next_unmap};
