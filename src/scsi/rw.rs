//! Commands that touch the medium (SBC-3): READ, WRITE, SYNCHRONIZE CACHE, START STOP UNIT.

use super::device::{Call, Unit, invalid_field};
use super::info::LunInfo;
use super::plan::{BlockOp, Extent, Outcome, Plan};
use crate::wire::scsi::cdb::{Cdb, Form, ReadWrite};
use crate::wire::scsi::sense::{Asc, SenseKey};

/// READ(6), (10), (12), (16).
pub(super) fn read(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let (Unit::Disk(lun), Cdb::Read(fields)) = (call.unit, cdb) else { return mismatch() };
    transfer(lun, fields, |extent, fua| BlockOp::Read { extent, fua })
}

/// WRITE(6), (10), (12), (16).
pub(super) fn write(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let (Unit::Disk(lun), Cdb::Write(fields)) = (call.unit, cdb) else { return mismatch() };
    transfer(lun, fields, |extent, fua| BlockOp::Write { extent, fua })
}

/// A handler got what its entry in the table does not give: an error of ours, told as such.
pub(super) fn mismatch() -> Plan {
    debug_assert!(false, "a handler stands at the wrong command");
    Plan::Done(Outcome::fail(SenseKey::HardwareError, Asc::INTERNAL_TARGET_FAILURE))
}

fn transfer(lun: &LunInfo, fields: &ReadWrite, op: impl Fn(Extent, bool) -> BlockOp) -> Plan {
    // No protection information: any RDPROTECT, WRPROTECT is an error (SBC-3, 4.22.2.1).
    if fields.protect != 0 {
        return invalid_field(1, Some(7));
    }
    if let Err(outcome) = check_range(lun, fields.lba, u64::from(fields.blocks)) {
        return Plan::Done(outcome);
    }
    if fields.blocks > lun.max_transfer_blocks() {
        return invalid_field(length_field(fields.form), None);
    }
    if fields.blocks == 0 {
        return Plan::Done(Outcome::GOOD);
    }
    let extent = Extent { lba: fields.lba, blocks: u64::from(fields.blocks), block_bytes: lun.block_bytes };
    Plan::Block(op(extent, fields.fua))
}

/// Where TRANSFER LENGTH begins.
const fn length_field(form: Form) -> u16 {
    match form {
        Form::Six => 4,
        Form::Ten => 7,
        Form::Twelve => 6,
        Form::Sixteen => 10,
    }
}

/// LOGICAL BLOCK ADDRESS OUT OF RANGE if address plus length exceeds the capacity (SBC-3, 4.5). No
/// blocks at the very end are in range.
pub(super) fn check_range(lun: &LunInfo, lba: u64, blocks: u64) -> Result<(), Outcome> {
    if lba > lun.blocks || blocks > lun.blocks - lba {
        return Err(Outcome::fail(SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE));
    }
    Ok(())
}

/// SYNCHRONIZE CACHE(10), (16): no blocks means to the end of the medium.
pub(super) fn synchronize_cache(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let (Unit::Disk(lun), &Cdb::SynchronizeCache { lba, blocks, immed, .. }) = (call.unit, cdb) else {
        return mismatch();
    };
    if let Err(outcome) = check_range(lun, lba, u64::from(blocks)) {
        return Plan::Done(outcome);
    }
    let blocks = if blocks == 0 { lun.blocks - lba } else { u64::from(blocks) };
    flush(lun, Extent { lba, blocks, block_bytes: lun.block_bytes }, immed)
}

/// Without a volatile cache there is nothing to flush.
fn flush(lun: &LunInfo, extent: Extent, immed: bool) -> Plan {
    if !lun.write_cache || lun.read_only || extent.blocks == 0 {
        return Plan::Done(Outcome::GOOD);
    }
    Plan::Block(BlockOp::Flush { extent, immed })
}

/// START STOP UNIT (SBC-3, 5.25). The medium neither spins nor leaves: START is done at once, a
/// stop writes the cache as the clause wants and the logical unit stays ready for everyone else.
pub(super) fn start_stop_unit(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let (
        Unit::Disk(lun),
        &Cdb::StartStopUnit { immed, modifier, power_condition, no_flush, load_eject, start },
    ) = (call.unit, cdb)
    else {
        return mismatch();
    };
    if modifier != 0 {
        return invalid_field(3, Some(3));
    }
    if power_condition != 0 {
        return invalid_field(4, Some(7));
    }
    if load_eject {
        return invalid_field(4, Some(1));
    }
    if start || no_flush {
        return Plan::Done(Outcome::GOOD);
    }
    flush(lun, Extent { lba: 0, blocks: lun.blocks, block_bytes: lun.block_bytes }, immed)
}
