//! How a failed block operation is told to the initiator.

use super::plan::{BlockOp, Outcome};
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};
use crate::wire::scsi::status::Status;

/// Why a block operation failed, as sense data must distinguish it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum BlockFault {
    /// The medium could not be read or written there.
    Medium,
    /// No space on what backs the logical unit.
    NoSpace,
    /// What backs the logical unit ended before the extent.
    Truncated,
    /// The back end cannot do this operation.
    Unsupported,
    /// The back end takes no writes.
    ReadOnly,
    /// Ended by task management.
    Cancelled,
    /// What backs the logical unit is gone.
    Gone,
}

/// The answer to a command whose block operation failed. INFORMATION of a medium error is the
/// first block of the command (SBC-3, 4.18.1: the first in error is not known better), so that
/// the initiator takes none of the data as good.
pub fn outcome_of_fault(fault: BlockFault, op: &BlockOp) -> Outcome {
    let (key, asc) = match fault {
        BlockFault::Medium | BlockFault::Truncated => {
            let asc = match op {
                BlockOp::Read { .. } => Asc::UNRECOVERED_READ_ERROR,
                BlockOp::Write { .. } | BlockOp::Flush { .. } | BlockOp::Unmap { .. } => Asc::WRITE_ERROR,
            };
            let sense = Sense::new(SenseKey::MediumError, asc);
            return Outcome::check(sense.with_information(op.extent().lba));
        }
        // SBC-3, 4.7.3.6: no space for a thin medium.
        BlockFault::NoSpace => (SenseKey::DataProtect, Asc::SPACE_ALLOCATION_FAILED),
        BlockFault::ReadOnly => (SenseKey::DataProtect, Asc::WRITE_PROTECTED),
        BlockFault::Unsupported => (SenseKey::HardwareError, Asc::INTERNAL_TARGET_FAILURE),
        BlockFault::Gone => (SenseKey::NotReady, Asc::NOT_READY),
        // Only who reads of it did not ask for the abort: TAS is set (SAM-5, 5.6).
        BlockFault::Cancelled => return Outcome::status(Status::TaskAborted),
    };
    Outcome::fail(key, asc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::plan::Extent;

    #[test]
    fn the_whole_table() {
        let extent = Extent { lba: 77, blocks: 8, block_bytes: 512 };
        let ops = [
            BlockOp::Read { extent, fua: false },
            BlockOp::Write { extent, fua: false },
            BlockOp::Flush { extent, immed: false },
        ];
        let faults = [
            BlockFault::Medium,
            BlockFault::NoSpace,
            BlockFault::Truncated,
            BlockFault::Unsupported,
            BlockFault::ReadOnly,
            BlockFault::Cancelled,
            BlockFault::Gone,
        ];
        let mut table = String::new();
        for fault in faults {
            for (name, op) in ["read", "write", "flush"].iter().zip(&ops) {
                let outcome = outcome_of_fault(fault, op);
                let words = outcome.sense.map_or(outcome.status.to_string(), |sense| sense.to_string());
                table += &format!("{fault:?} {name}: {words}\n");
            }
        }
        assert_eq!(
            table,
            "\
Medium read: MEDIUM ERROR: unrecovered read error (11/00), block 77
Medium write: MEDIUM ERROR: write error (0c/00), block 77
Medium flush: MEDIUM ERROR: write error (0c/00), block 77
NoSpace read: DATA PROTECT: space allocation failed write protect (27/07)
NoSpace write: DATA PROTECT: space allocation failed write protect (27/07)
NoSpace flush: DATA PROTECT: space allocation failed write protect (27/07)
Truncated read: MEDIUM ERROR: unrecovered read error (11/00), block 77
Truncated write: MEDIUM ERROR: write error (0c/00), block 77
Truncated flush: MEDIUM ERROR: write error (0c/00), block 77
Unsupported read: HARDWARE ERROR: internal target failure (44/00)
Unsupported write: HARDWARE ERROR: internal target failure (44/00)
Unsupported flush: HARDWARE ERROR: internal target failure (44/00)
ReadOnly read: DATA PROTECT: write protected (27/00)
ReadOnly write: DATA PROTECT: write protected (27/00)
ReadOnly flush: DATA PROTECT: write protected (27/00)
Cancelled read: TASK ABORTED
Cancelled write: TASK ABORTED
Cancelled flush: TASK ABORTED
Gone read: NOT READY: logical unit not ready, cause not reportable (04/00)
Gone write: NOT READY: logical unit not ready, cause not reportable (04/00)
Gone flush: NOT READY: logical unit not ready, cause not reportable (04/00)
"
        );
    }
}
