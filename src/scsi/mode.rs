//! MODE SENSE(6) and (10) (SPC-4, 6.13 and 6.14). There is no MODE SELECT: nothing is changeable,
//! defaults are what is, nothing is saved.

use super::device::{Call, Unit, invalid_field};
use super::info::LunInfo;
use super::plan::{Outcome, Plan};
use super::rw::mismatch;
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::mode::{self, BlockDescriptor, Caching, Control, Header, page};
use crate::wire::scsi::sense::{Asc, SenseKey};

/// PC.
mod control {
    pub(super) const CHANGEABLE: u8 = 1;
    pub(super) const SAVED: u8 = 3;
}

pub(super) fn mode_sense(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let (
        Unit::Disk(lun),
        &Cdb::ModeSense { ten, long_lba, disable_block_descriptors, control, page, subpage, allocation },
    ) = (call.unit, cdb)
    else {
        return mismatch();
    };
    if control == control::SAVED {
        return Plan::Done(Outcome::fail(SenseKey::IllegalRequest, Asc::SAVING_NOT_SUPPORTED));
    }
    let (mut caching, mut control_page) = (caching_page(lun), control_page());
    let both: [&mut [u8]; 2] = [&mut caching, &mut control_page];
    if control == control::CHANGEABLE {
        for body in both {
            body[2..].fill(0);
        }
    }
    let pages: &[&[u8]] = match page {
        page::CACHING => &[&caching],
        page::CONTROL => &[&control_page],
        page::ALL => &[&caching, &control_page],
        _ => return invalid_field(2, Some(5)),
    };
    // None of the pages has subpages; all of them are then the page itself.
    if subpage != 0 && subpage != page::ALL_SUBPAGES {
        return invalid_field(3, None);
    }
    let descriptor = (!disable_block_descriptors).then_some(BlockDescriptor {
        blocks: lun.blocks,
        block_bytes: lun.block_bytes,
        long: long_lba,
    });
    let header = Header { write_protected: lun.read_only, dpo_fua: true };
    let available = mode::emit(call.data, ten, header, descriptor, pages);
    call.answer(available, usize::from(allocation))
}

fn caching_page(lun: &LunInfo) -> [u8; 20] {
    Caching { write_cache: lun.write_cache, read_cache_disabled: false }.emit()
}

fn control_page() -> [u8; 12] {
    Control {
        no_log_save: true,
        unrestricted_reordering: true,
        task_aborted_status: true,
        ..Control::default()
    }
    .emit()
}
