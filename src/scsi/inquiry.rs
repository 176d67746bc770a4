//! INQUIRY (SPC-4, 6.6) and the vital product data pages.

use super::device::{Call, Unit, invalid_field};
use super::plan::Plan;
use super::rw::mismatch;
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::inquiry::{Peripheral, StandardInquiry, VERSION_SPC4, ascii_field};
use crate::wire::scsi::vpd::{self, Designator, page};

/// The pages of a disk, ascending.
const DISK_PAGES: [u8; 6] = [
    page::SUPPORTED,
    page::SERIAL_NUMBER,
    page::DEVICE_IDENTIFICATION,
    page::BLOCK_LIMITS,
    page::BLOCK_DEVICE_CHARACTERISTICS,
    page::LOGICAL_BLOCK_PROVISIONING,
];
/// The pages of the well known logical unit.
const WELL_KNOWN_PAGES: [u8; 2] = [page::SUPPORTED, page::DEVICE_IDENTIFICATION];
/// The pages where no logical unit is.
const ABSENT_PAGES: [u8; 1] = [page::SUPPORTED];

pub(super) fn inquiry(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let &Cdb::Inquiry { evpd, page, allocation } = cdb else { return mismatch() };
    let available = if evpd {
        let Some(available) = vital_product_data(call, page) else { return invalid_field(2, None) };
        available
    } else {
        // PAGE CODE means something only with EVPD (SPC-4, 6.6.1).
        if page != 0 {
            return invalid_field(2, None);
        }
        standard(call)
    };
    call.answer(available, usize::from(allocation))
}

fn peripheral(unit: Unit<'_>) -> Peripheral {
    match unit {
        Unit::Disk(_) => Peripheral::Disk,
        Unit::ReportLuns => Peripheral::WellKnown,
        Unit::Absent => Peripheral::Absent,
    }
}

fn standard(call: &mut Call<'_>) -> usize {
    let product = match call.unit {
        Unit::Disk(lun) => lun.product,
        Unit::ReportLuns => ascii_field("REPORT LUNS"),
        Unit::Absent => ascii_field(""),
    };
    let data = StandardInquiry {
        peripheral: peripheral(call.unit) as u8,
        version: VERSION_SPC4,
        tpgs: 0,
        third_party_copy: false,
        multi_port: false,
        vendor: call.target.vendor,
        product,
        revision: call.target.revision,
    };
    data.emit(call.data)
}

/// Writes the page, if the addressed unit has it.
fn vital_product_data(call: &mut Call<'_>, code: u8) -> Option<usize> {
    let pages: &[u8] = match call.unit {
        Unit::Disk(_) => &DISK_PAGES,
        Unit::ReportLuns => &WELL_KNOWN_PAGES,
        Unit::Absent => &ABSENT_PAGES,
    };
    if !pages.contains(&code) {
        return None;
    }
    let head = peripheral(call.unit) as u8;
    let out = &mut *call.data;
    Some(match (code, call.unit) {
        (page::SUPPORTED, _) => vpd::emit_supported(out, head, pages),
        (page::DEVICE_IDENTIFICATION, _) => device_identification(call, head),
        (page::SERIAL_NUMBER, Unit::Disk(lun)) => vpd::emit_serial_number(out, head, lun.serial_bytes()),
        (page::BLOCK_LIMITS, Unit::Disk(lun)) => lun.block_limits().emit(out, head),
        (page::BLOCK_DEVICE_CHARACTERISTICS, Unit::Disk(lun)) => {
            vpd::emit_block_device_characteristics(out, head, lun.rotational)
        }
        (page::LOGICAL_BLOCK_PROVISIONING, Unit::Disk(lun)) => lun.provisioning().emit(out, head),
        _ => return None,
    })
}

/// The names of the logical unit, then those of the port that the command came through.
fn device_identification(call: &mut Call<'_>, head: u8) -> usize {
    let port = [
        Designator::SrpTargetPort(call.target.port_id),
        Designator::RelativeTargetPort(call.target.relative_port),
    ];
    let Unit::Disk(lun) = call.unit else {
        return vpd::emit_device_identification(call.data, head, &port);
    };
    let list = [
        Designator::Naa(lun.naa.as_bytes()),
        Designator::T10Vendor { vendor: call.target.vendor, id: lun.serial_bytes() },
        port[0],
        port[1],
    ];
    vpd::emit_device_identification(call.data, head, &list)
}
