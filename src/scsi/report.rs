//! Commands that tell and touch nothing: TEST UNIT READY, REQUEST SENSE, READ CAPACITY, REPORT
//! LUNS.

use super::attention::Condition;
use super::device::{Call, Unit, claim, invalid_field};
use super::plan::{Outcome, Plan};
use super::rw::mismatch;
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::lun::{Lun, LunField};
use crate::wire::scsi::luns;
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};

/// TEST UNIT READY (SPC-4, 6.47): what exists is ready.
pub(super) fn test_unit_ready(_: &mut Call<'_>, _: &Cdb) -> Plan {
    Plan::Done(Outcome::GOOD)
}

/// REQUEST SENSE (SPC-4, 6.39): a pending unit attention, which is thereby cleared, or that no
/// logical unit is there, or nothing; always as data, always GOOD.
pub(super) fn request_sense(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let &Cdb::RequestSense { descriptor, allocation } = cdb else { return mismatch() };
    let sense = match call.unit {
        Unit::Absent => Sense::new(SenseKey::IllegalRequest, Asc::LUN_NOT_SUPPORTED),
        // Without room for the data nothing is told, and nothing is cleared.
        _ if allocation == 0 => Sense::new(SenseKey::NoSense, Asc::NONE),
        _ => claim(call.attention)
            .map_or(Sense::new(SenseKey::NoSense, Asc::NONE), |condition| condition.sense()),
    };
    let available = if descriptor {
        sense.emit_descriptor(call.data)
    } else {
        let fixed = sense.emit_fixed();
        let len = fixed.len().min(call.data.len());
        call.data[..len].copy_from_slice(&fixed[..len]);
        fixed.len()
    };
    call.answer(available, usize::from(allocation))
}

/// READ CAPACITY(10), (16) (SBC-3, 5.15 and 5.16). LOGICAL BLOCK ADDRESS may be set only with PMI
/// (SBC-2, 5.10.1; obsolete since), which changes nothing for a medium without delays.
pub(super) fn read_capacity(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let Unit::Disk(lun) = call.unit else { return mismatch() };
    let (lba, partial, allocation) = match *cdb {
        Cdb::ReadCapacity10 { lba, partial } => (u64::from(lba), partial, u32::MAX),
        Cdb::ReadCapacity16 { lba, partial, allocation } => (lba, partial, allocation),
        _ => return mismatch(),
    };
    if lba != 0 && !partial {
        return invalid_field(2, None);
    }
    let (ten, sixteen) = (lun.capacity().emit_10(), lun.capacity().emit_16());
    let data: &[u8] = if matches!(cdb, Cdb::ReadCapacity10 { .. }) { &ten } else { &sixteen };
    let len = data.len().min(call.data.len());
    call.data[..len].copy_from_slice(&data[..len]);
    call.answer(data.len(), usize::try_from(allocation).unwrap_or(usize::MAX))
}

/// SELECT REPORT (SPC-4, table 294).
mod select {
    pub(super) const UNITS: u8 = 0;
    pub(super) const WELL_KNOWN: u8 = 1;
    pub(super) const ALL: u8 = 2;
}

/// REPORT LUNS (SPC-4, 6.33), at any LUN.
pub(super) fn report_luns(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let &Cdb::ReportLuns { select, allocation } = cdb else { return mismatch() };
    let units = (&mut *call.luns).map(Lun::emit);
    let well_known = std::iter::once(LunField::REPORT_LUNS);
    let available = match select {
        select::UNITS => luns::emit(call.data, units),
        select::WELL_KNOWN => luns::emit(call.data, well_known),
        select::ALL => luns::emit(call.data, well_known.chain(units)),
        _ => return invalid_field(2, None),
    };
    let plan = call.answer(available, usize::try_from(allocation).unwrap_or(usize::MAX));
    let Plan::Done(outcome) = plan else { return plan };
    if select == select::WELL_KNOWN || outcome.data_len == 0 {
        return plan;
    }
    // The change is known now: here at once, at the other logical units by the caller.
    if let Some(attention) = call.attention {
        attention.clear(Condition::LunsChanged);
    }
    Plan::Done(Outcome { luns_reported: true, ..outcome })
}
