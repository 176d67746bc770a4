//! UNMAP (SBC-3, 5.28): the initiator does not need these blocks any more.
//!
//! The command comes with a list of extents as data-out. All of it is checked before the first is
//! unmapped, so that a command that is refused has changed nothing.

use super::device::{Call, Unit, invalid_field, invalid_opcode};
use super::info::LunInfo;
use super::plan::{BlockOp, Extent, Outcome, Plan};
use super::rw::{check_range, mismatch};
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::sense::{Asc, SenseKey};
use crate::wire::scsi::unmap::{HEADER_BYTES, UnmapList};

/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT, said in VPD page B0: a list of one page.
pub(super) const MAX_DESCRIPTORS: u32 = 255;
/// MAXIMUM UNMAP LBA COUNT in bytes, said in VPD page B0: what a file system punches out of a file
/// in well under the time that an initiator waits for a command.
pub(super) const MAX_UNMAP_BYTES: u64 = 4 << 30;

pub(super) fn unmap(call: &mut Call<'_>, cdb: &Cdb) -> Plan {
    let (Unit::Disk(lun), &Cdb::Unmap { anchor, list_bytes }) = (call.unit, cdb) else { return mismatch() };
    if !lun.unmap {
        return invalid_opcode(call.cdb);
    }
    // No anchored state: ANC_SUP is zero.
    if anchor {
        return invalid_field(1, Some(0));
    }
    match usize::from(list_bytes) {
        0 => Plan::Done(Outcome::GOOD),
        1..HEADER_BYTES => Plan::Done(PARAMETER_LIST_LENGTH),
        _ => Plan::List { len_bytes: u32::from(list_bytes) },
    }
}

const PARAMETER_LIST_LENGTH: Outcome =
    Outcome::fail(SenseKey::IllegalRequest, Asc::PARAMETER_LIST_LENGTH_ERROR);

/// Checks all of a list against the logical unit as it is now. An error is the answer.
pub fn check_unmap(lun: &LunInfo, bytes: &[u8]) -> Result<(), Outcome> {
    let list = UnmapList::parse(bytes).ok_or(PARAMETER_LIST_LENGTH)?;
    let too_much = Outcome::fail(SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    if list.len() > MAX_DESCRIPTORS as usize {
        return Err(too_much);
    }
    let mut blocks = 0;
    for descriptor in list.iter() {
        check_range(lun, descriptor.lba, u64::from(descriptor.blocks))?;
        blocks += u64::from(descriptor.blocks);
    }
    if blocks > u64::from(lun.max_unmap_blocks()) { Err(too_much) } else { Ok(()) }
}

/// The first operation of a checked list from its descriptor `from` on, and where to go on after it.
pub fn next_unmap(lun: &LunInfo, bytes: &[u8], from: u16) -> Option<(BlockOp, u16)> {
    let mut rest = UnmapList::parse(bytes)?.iter().zip(1..).skip(usize::from(from));
    let (descriptor, next) = rest.find(|(descriptor, _)| descriptor.blocks > 0)?;
    let extent =
        Extent { lba: descriptor.lba, blocks: u64::from(descriptor.blocks), block_bytes: lun.block_bytes };
    Some((BlockOp::Unmap { extent }, next))
}

#[cfg(test)]
mod tests {
    use super::super::device::{SCRATCH_BYTES, start};
    use super::super::info::{Naa, TargetInfo};
    use super::*;
    use crate::wire::scsi::unmap::DESCRIPTOR_BYTES;

    fn thin() -> LunInfo {
        LunInfo {
            block_bytes: 512,
            blocks: 1 << 30,
            physical_block_exponent: 3,
            read_only: false,
            write_cache: false,
            unmap: true,
            unmap_reads_zeroes: true,
            rotational: false,
            max_transfer_bytes: 1 << 20,
            optimal_transfer_bytes: 0,
            product: [b' '; 16],
            serial: String::new(),
            naa: Naa::locally_assigned(1),
        }
    }

    fn send(lun: &LunInfo, cdb: &[u8]) -> (Plan, Vec<u8>) {
        let target =
            TargetInfo { vendor: *b"SRPOLL  ", revision: *b"0.1 ", port_id: [0; 16], relative_port: 1 };
        let mut data = vec![0; SCRATCH_BYTES];
        let call = Call {
            unit: Unit::Disk(lun),
            target: &target,
            luns: &mut std::iter::empty(),
            attention: None,
            cdb,
            data: &mut data,
        };
        (start(call), data)
    }

    /// A list by hand from SBC-3, 5.28.2.
    fn list(descriptors: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        let len = (descriptors.len() * DESCRIPTOR_BYTES) as u16;
        bytes[0..2].copy_from_slice(&(len + 6).to_be_bytes());
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        for (lba, blocks) in descriptors {
            bytes.extend(lba.to_be_bytes());
            bytes.extend(blocks.to_be_bytes());
            bytes.extend([0; 4]);
        }
        bytes
    }

    fn words(result: Result<(), Outcome>) -> String {
        result.map_or_else(|outcome| outcome.sense.expect("a refusal").to_string(), |()| "good".into())
    }

    #[test]
    fn what_a_thin_disk_says_of_itself() {
        let (_, limits) = send(&thin(), &[0x12, 1, 0xb0, 0, 64, 0]);
        // MAXIMUM UNMAP LBA COUNT, DESCRIPTOR COUNT, OPTIMAL UNMAP GRANULARITY, no alignment.
        assert_eq!(limits[20..36], [0, 0x80, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 8, 0, 0, 0, 0]);
        let (_, page) = send(&thin(), &[0x12, 1, 0xb2, 0, 64, 0]);
        assert_eq!(page[..8], [0, 0xb2, 0, 4, 0, 0x84, 2, 0]);
        let (_, capacity) = send(&thin(), &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]);
        assert_eq!(capacity[14], 0xc0, "LBPME and LBPRZ");
    }

    #[test]
    fn cdbs() {
        let thick = LunInfo { unmap: false, ..thin() };
        let plan =
            |lun: &LunInfo, anchor: u8, len: u8| send(lun, &[0x42, anchor, 0, 0, 0, 0, 0, 0, len, 0]).0;
        assert_eq!(plan(&thin(), 0, 24), Plan::List { len_bytes: 24 });
        assert_eq!(plan(&thin(), 0, 0), Plan::Done(Outcome::GOOD));
        assert_eq!(plan(&thin(), 0, 7), Plan::Done(PARAMETER_LIST_LENGTH));
        assert_eq!(plan(&thin(), 1, 24), Plan::Done(Outcome::invalid_field(1, Some(0))));
        let Plan::Done(refused) = plan(&thick, 0, 24) else { panic!("a thick disk unmaps") };
        assert_eq!(refused.sense.expect("a refusal").asc, Asc::INVALID_OPCODE);
        let locked = LunInfo { read_only: true, ..thin() };
        assert_eq!(
            plan(&locked, 0, 24),
            Plan::Done(Outcome::fail(SenseKey::DataProtect, Asc::WRITE_PROTECTED))
        );
    }

    #[test]
    fn lists_are_checked_before_anything_is_unmapped() {
        let lun = thin();
        let most = lun.max_unmap_blocks();
        let check = |descriptors: &[(u64, u32)]| words(check_unmap(&lun, &list(descriptors)));
        assert_eq!(check(&[]), "good");
        assert_eq!(check(&[(0, most)]), "good");
        assert_eq!(check(&[(lun.blocks - 1, 1), (lun.blocks, 0)]), "good");
        let too_much = "ILLEGAL REQUEST: invalid field in parameter list (26/00)";
        assert_eq!(check(&[(0, most), (0, 1)]), too_much);
        assert_eq!(check(&[(0, 0); 255]), "good");
        assert_eq!(check(&[(0, 0); 256]), too_much);
        let beyond = "ILLEGAL REQUEST: logical block address out of range (21/00)";
        assert_eq!(check(&[(0, 1), (lun.blocks, 1)]), beyond);
        assert_eq!(check(&[(u64::MAX, u32::MAX)]), beyond);
        let cut = "ILLEGAL REQUEST: parameter list length error (1a/00)";
        assert_eq!(words(check_unmap(&lun, &list(&[(0, 1)])[..23])), cut);
    }

    #[test]
    fn operations_come_in_order_and_empty_ones_are_left_out() {
        let bytes = list(&[(5, 0), (10, 2), (20, 0), (30, 3), (40, 0)]);
        let mut from = 0;
        let mut seen = Vec::new();
        while let Some((op, next)) = next_unmap(&thin(), &bytes, from) {
            let extent = op.extent();
            seen.push((extent.lba, extent.blocks, next));
            from = next;
        }
        assert_eq!(seen, [(10, 2, 2), (30, 3, 4)]);
        assert_eq!(next_unmap(&thin(), &list(&[]), 0), None);
    }
}
