//! The device server through its public interface: every command with literal answers, every bit of
//! every CDB, unit attentions, and what random CDBs may never bring about.

use std::fmt::Write as _;

use proptest::prelude::*;
use srpoll::scsi::opcode::{AttentionRule, COMMANDS, Reach};
use srpoll::scsi::{
    Attention, BlockOp, Call, Condition, Demand, LunInfo, Naa, Outcome, Plan, SCRATCH_BYTES, TargetInfo,
    Unit, scratch_bytes, start,
};
use srpoll::wire::scsi::inquiry::ascii_field;
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::scsi::status::Status;

fn target() -> TargetInfo {
    TargetInfo {
        vendor: ascii_field("SRPOLL"),
        revision: ascii_field("0.1"),
        port_id: [0x10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        relative_port: 1,
    }
}

/// 64 MiB of 512-byte blocks, as LUN 0 of tests/captures/lio-612-login-io.pcap.
fn disk() -> LunInfo {
    LunInfo {
        block_bytes: 512,
        blocks: 131_072,
        physical_block_exponent: 3,
        read_only: false,
        write_cache: true,
        unmap: false,
        unmap_reads_zeroes: false,
        rotational: false,
        max_transfer_bytes: 16 << 20,
        optimal_transfer_bytes: 256 << 10,
        product: ascii_field("malloc"),
        serial: "0123456789abcdef".into(),
        naa: Naa::registered_extended([0xaa; 16]),
    }
}

fn lun(number: u16) -> Lun {
    Lun::new(number).expect("a LUN")
}

/// What came of one command: the plan, and the data-in.
struct Answer {
    plan: Plan,
    data: Vec<u8>,
}

impl Answer {
    /// In words: status or sense data, or the block operation; then the data's length.
    fn words(&self) -> String {
        match self.plan {
            Plan::Done(Outcome { sense: Some(sense), .. }) => sense.to_string(),
            Plan::Done(outcome) if outcome.data_len > 0 => format!("{} {}", outcome.status, outcome.data_len),
            Plan::Done(outcome) => outcome.status.to_string(),
            Plan::Block(BlockOp::Read { extent, fua }) => {
                format!("read {}+{} fua {fua}", extent.lba, extent.blocks)
            }
            Plan::Block(BlockOp::Write { extent, fua }) => {
                format!("write {}+{} fua {fua}", extent.lba, extent.blocks)
            }
            Plan::Block(BlockOp::Flush { extent, immed }) => {
                format!("flush {}+{} immed {immed}", extent.lba, extent.blocks)
            }
            Plan::Block(BlockOp::Unmap { extent }) => format!("unmap {}+{}", extent.lba, extent.blocks),
            Plan::List { len_bytes } => format!("list {len_bytes}"),
        }
    }
}

fn send_with(unit: Unit<'_>, attention: Option<&Attention>, luns: &[u16], cdb: &[u8]) -> Answer {
    let mut padded = [0; 16];
    padded[..cdb.len()].copy_from_slice(cdb);
    let mut data = vec![0xee; scratch_bytes(luns.len())];
    let mut numbers = luns.iter().map(|number| lun(*number));
    let target = target();
    let call = Call { unit, target: &target, luns: &mut numbers, attention, cdb: &padded, data: &mut data };
    let plan = start(call);
    if let Plan::Done(outcome) = plan {
        data.truncate(outcome.data_len);
    }
    Answer { plan, data }
}

fn send(lun: &LunInfo, cdb: &[u8]) -> Answer {
    send_with(Unit::Disk(lun), None, &[0, 1], cdb)
}

fn check(lun: &LunInfo, cdb: &[u8], words: &str) {
    assert_eq!(send(lun, cdb).words(), words, "{cdb:02x?}");
}

/// What Linux asks at login, as in tests/captures/lio-612-login-io.pcap; where LIO's answer differs the
/// comment says how.
#[test]
fn the_commands_of_a_linux_login() {
    let disk = disk();
    check(&disk, &[0x12, 0, 0, 0, 0x24], "GOOD 36");
    check(&disk, &[0x12, 0, 0, 0, 0x60], "GOOD 96");
    check(&disk, &[0x12, 1, 0, 0, 4], "GOOD 4");
    check(&disk, &[0x00], "GOOD");
    check(&disk, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0], "GOOD 24");
    check(&disk, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20], "GOOD 32");
    check(&disk, &[0x1a, 0, 0x3f, 0, 4], "GOOD 4");
    check(&disk, &[0x1a, 0, 0x08, 0, 4], "GOOD 4");
    check(&disk, &[0x1a, 0, 0x08, 0, 0x20], "GOOD 32");
    // LIO: 24/00 without a field pointer.
    check(
        &disk,
        &[0x5a, 0x08, 0x0a, 0x05, 0, 0, 0, 2, 0],
        "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 3",
    );
    // LIO has REPORT SUPPORTED OPERATION CODES; Linux goes on without.
    check(
        &disk,
        &[0xa3, 0x0c, 1, 0x12, 0, 0, 0, 0, 0, 0x0a],
        "ILLEGAL REQUEST: invalid command operation code (20/00), at CDB byte 0",
    );
    check(&disk, &[0x28, 0, 0, 0, 0, 0x80, 0, 0, 0x60], "read 128+96 fua false");
    check(&disk, &[0x2a, 0, 0, 0, 0, 0xe0, 0, 0, 0x20], "write 224+32 fua false");
    check(&disk, &[0x35], "flush 0+131072 immed false");
    check(
        &disk,
        &[0x28, 0, 0, 2, 0, 0, 0, 0, 8],
        "ILLEGAL REQUEST: logical block address out of range (21/00)",
    );
}

#[test]
fn answers_byte_for_byte() {
    let disk = disk();
    // LIO's bytes: tests/captures/lio-612-login-io.pcap, LUN 0; here with 8 blocks a physical block.
    let mut capacity = [0; 32];
    capacity[5..12].copy_from_slice(&[1, 0xff, 0xff, 0, 0, 2, 0]);
    capacity[13] = 3;
    assert_eq!(send(&disk, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20]).data, capacity);
    assert_eq!(send(&disk, &[0x25]).data, [0, 1, 0xff, 0xff, 0, 0, 2, 0]);
    assert_eq!(
        send(&disk, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]).data,
        [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    );
    // SPC-4, 6.39: nothing to tell, in both formats.
    assert_eq!(
        send(&disk, &[0x03, 0, 0, 0, 0xfc]).data,
        [0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(send(&disk, &[0x03, 1, 0, 0, 0xfc]).data, [0x72, 0, 0, 0, 0, 0, 0, 0]);
    // SPC-4, 6.6.2 and 7.8.
    let standard = send(&disk, &[0x12, 0, 0, 0, 0xff]).data;
    assert_eq!(standard.len(), 96);
    assert_eq!(&standard[..36], b"\0\0\x06\x12\x5b\0\0\x02SRPOLL  malloc          0.1 ");
    assert_eq!(send(&disk, &[0x12, 1, 0, 0, 0xff]).data, [0, 0, 0, 6, 0, 0x80, 0x83, 0xb0, 0xb1, 0xb2]);
    assert_eq!(send(&disk, &[0x12, 1, 0x80, 0, 0xff]).data, b"\0\x80\0\x100123456789abcdef");
    let identification = [
        &b"\0\x83\0\x4c\x01\x03\0\x10\x6a"[..],
        &[0xaa; 15],
        b"\x02\x01\0\x18SRPOLL  0123456789abcdef",
        b"\x41\x92\0\x10\x10\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f",
        b"\x41\x94\0\x04\0\0\0\x01",
    ]
    .concat();
    assert_eq!(send(&disk, &[0x12, 1, 0x83, 0, 0xff]).data, identification);
    let limits = send(&disk, &[0x12, 1, 0xb0, 0, 0xff]).data;
    assert_eq!(limits[..16], [0, 0xb0, 0, 0x3c, 0, 0, 0, 8, 0, 0, 0x80, 0, 0, 0, 2, 0]);
    assert_eq!((limits.len(), &limits[16..]), (64, &[0; 48][..]));
    let characteristics = send(&disk, &[0x12, 1, 0xb1, 0, 0xff]).data;
    assert_eq!(
        (characteristics.len(), &characteristics[..10]),
        (64, &[0, 0xb1, 0, 0x3c, 0, 1, 0, 0, 2, 0][..])
    );
    assert_eq!(send(&disk, &[0x12, 1, 0xb2, 0, 0xff]).data, [0, 0xb2, 0, 4, 0, 0, 0, 0]);
}

#[test]
fn mode_sense() {
    let disk = disk();
    let caching = [8, 18, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let control = [10, 10, 2, 0x10, 0, 0x40, 0, 0, 0xff, 0xff, 0, 0];
    let short = [0, 2, 0, 0, 0, 0, 2, 0];
    let all = [&[43, 0, 0x10, 8][..], &short, &caching, &control].concat();
    assert_eq!(send(&disk, &[0x1a, 0, 0x3f, 0, 0xff]).data, all);
    // Default values are the current ones; with subpage FFh nothing comes to it.
    assert_eq!(send(&disk, &[0x1a, 0, 0xbf, 0, 0xff]).data, all);
    assert_eq!(send(&disk, &[0x1a, 0, 0x3f, 0xff, 0xff]).data, all);
    // DBD.
    let bare = [&[15, 0, 0x10, 0][..], &control].concat();
    assert_eq!(send(&disk, &[0x1a, 8, 0x0a, 0, 0xff]).data, bare);
    // Nothing is changeable: page codes and lengths stay.
    let mut masks = vec![43, 0, 0x10, 8];
    masks.extend_from_slice(&short);
    masks.extend_from_slice(&[8, 18]);
    masks.extend_from_slice(&[0; 18]);
    masks.extend_from_slice(&[10, 10]);
    masks.extend_from_slice(&[0; 10]);
    assert_eq!(send(&disk, &[0x1a, 0, 0x7f, 0, 0xff]).data, masks);
    // Ten bytes, long block descriptor.
    let long =
        [&[0, 42, 0, 0x10, 1, 0, 0, 16][..], &[0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0], &caching]
            .concat();
    assert_eq!(send(&disk, &[0x5a, 0x10, 0x08, 0, 0, 0, 0, 0, 0xff]).data, long);
    // A read-only disk without cache: WP, no WCE.
    let locked = LunInfo { read_only: true, write_cache: false, ..disk.clone() };
    let header = send(&locked, &[0x1a, 8, 0x08, 0, 7]).data;
    assert_eq!(header, [23, 0, 0x90, 0, 8, 18, 0]);

    check(&disk, &[0x1a, 0, 0xc8, 0, 0xff], "ILLEGAL REQUEST: saving parameters not supported (39/00)");
    check(
        &disk,
        &[0x1a, 0, 0x1c, 0, 0xff],
        "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 2 bit 5",
    );
    check(&disk, &[0x1a, 0, 0x3f, 1, 0xff], "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 3");
    check(&disk, &[0x1a, 0, 0x08, 1, 0xff], "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 3");
    // LLBAA is a bit of the ten-byte form only.
    check(
        &disk,
        &[0x1a, 0x10, 0x08, 0, 0xff],
        "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 1 bit 4",
    );
}

#[test]
fn reads_and_writes() {
    let disk = disk();
    let range = "ILLEGAL REQUEST: logical block address out of range (21/00)";
    check(&disk, &[0x08, 0x01, 0xff, 0xff, 1], "read 131071+1 fua false");
    check(&disk, &[0x0a, 0, 0, 0, 0], "write 0+256 fua false");
    check(&disk, &[0x08, 0x01, 0xff, 0xff, 2], range);
    check(&disk, &[0xa8, 0x18, 0, 0, 0, 1, 0, 0, 0x80, 0], "read 1+32768 fua true");
    check(&disk, &[0xaa, 0x08, 0, 0, 0, 1, 0, 0, 0, 1], "write 1+1 fua true");
    check(&disk, &[0x88, 0x10, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3], "read 9+3 fua false");
    check(&disk, &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3], "write 9+3 fua false");
    check(&disk, &[0x88, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1], range);
    // No blocks is no error, up to the very end and not beyond (SBC-3, 5.11).
    check(&disk, &[0x28, 0, 0, 2, 0, 0, 0, 0, 0], "GOOD");
    check(&disk, &[0x28, 0, 0, 2, 0, 1, 0, 0, 0], range);
    // More than 16 MiB: the pointer is at the length.
    let long = |byte| format!("ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte {byte}");
    check(&disk, &[0x28, 0, 0, 0, 0, 0, 0, 0x80, 1], &long(7));
    check(&disk, &[0x28, 0, 0, 0, 0, 0, 0, 0x80, 0], "read 0+32768 fua false");
    check(&disk, &[0xaa, 0, 0, 0, 0, 0, 0, 0, 0x80, 1], &long(6));
    check(&disk, &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 1], &long(10));
    let narrow = LunInfo { max_transfer_bytes: 64 << 10, ..disk.clone() };
    check(&narrow, &[0x08, 0, 0, 0, 0], &long(4));
    // RDPROTECT, WRPROTECT.
    let protect = "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 1 bit 7";
    for protect_field in 1..8 {
        check(&disk, &[0x28, protect_field << 5, 0, 0, 0, 0, 0, 0, 1], protect);
        check(&disk, &[0x8a, protect_field << 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], protect);
    }
    // GROUP NUMBER and the vendor's bits of CONTROL mean nothing.
    check(&disk, &[0x28, 0, 0, 0, 0, 0, 0x3f, 0, 1, 0xc0], "read 0+1 fua false");

    check(&disk, &[0x35, 0x02, 0, 0, 0, 5, 0, 0, 9], "flush 5+9 immed true");
    check(&disk, &[0x91, 0, 0, 0, 0, 0, 0, 0, 0, 5], "flush 5+131067 immed false");
    check(&disk, &[0x91, 0, 0, 0, 0, 0, 0, 2, 0, 1], range);
    check(&disk, &[0x35, 0, 0, 2, 0, 0, 0, 0, 0], "GOOD");
    check(&disk, &[0x1b, 0, 0, 0, 1], "GOOD");
    check(&disk, &[0x1b, 1, 0, 0, 0], "flush 0+131072 immed true");
    check(&disk, &[0x1b, 0, 0, 0, 4], "GOOD");
    check(&disk, &[0x1b, 0, 0, 0, 2], "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 4 bit 1");
    check(
        &disk,
        &[0x1b, 0, 0, 0, 0x31],
        "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 4 bit 7",
    );
    check(&disk, &[0x1b, 0, 0, 1, 1], "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 3 bit 3");
    let through = LunInfo { write_cache: false, ..disk };
    check(&through, &[0x35], "GOOD");
}

#[test]
fn read_only_disks() {
    let disk = LunInfo { read_only: true, ..disk() };
    let protected = "DATA PROTECT: write protected (27/00)";
    check(&disk, &[0x0a, 0, 0, 0, 1], protected);
    check(&disk, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], protected);
    check(&disk, &[0xaa, 0, 0, 0, 0, 0, 0, 0, 0, 1], protected);
    check(&disk, &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], protected);
    check(&disk, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1], "read 0+1 fua false");
    check(&disk, &[0x35], "GOOD");
}

#[test]
fn read_capacity_fields() {
    let disk = disk();
    let pointer = "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 2";
    check(&disk, &[0x25, 0, 0, 0, 0, 1], pointer);
    check(&disk, &[0x25, 0, 0, 0, 0, 1, 0, 0, 1], "GOOD 8");
    check(&disk, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x20], pointer);
    check(&disk, &[0x9e, 0x10], "GOOD");
    check(&disk, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12], "GOOD 12");
    check(
        &disk,
        &[0x9e, 0x12],
        "ILLEGAL REQUEST: invalid command operation code (20/00), at CDB byte 1 bit 4",
    );
    let large = LunInfo { blocks: 1 << 40, ..disk };
    assert_eq!(send(&large, &[0x25]).data, [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
}

#[test]
fn where_nothing_is() {
    let ask = |cdb: &[u8]| send_with(Unit::Absent, None, &[1, 300], cdb);
    let standard = ask(&[0x12, 0, 0, 0, 0x60]);
    assert_eq!(standard.words(), "GOOD 96");
    // Qualifier 011b, type 1Fh; VERSION stays, since Linux takes the level of the whole target from it.
    assert_eq!(standard.data[..3], [0x7f, 0, 6]);
    assert_eq!(ask(&[0x12, 1, 0, 0, 0xff]).data, [0x7f, 0, 0, 1, 0]);
    assert_eq!(
        ask(&[0x12, 1, 0x83, 0, 0xff]).words(),
        "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 2"
    );
    let sense = ask(&[0x03, 0, 0, 0, 18]);
    assert_eq!(sense.data, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0]);
    assert_eq!(
        ask(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0]).data,
        [0, 0, 0, 16, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x41, 0x2c, 0, 0, 0, 0, 0, 0]
    );
    for code in (0..=255).filter(|code| ![0x03, 0x12, 0xa0].contains(code)) {
        assert_eq!(ask(&[code]).words(), "ILLEGAL REQUEST: logical unit not supported (25/00)", "{code:02x}");
    }
}

#[test]
fn the_well_known_logical_unit() {
    let ask = |cdb: &[u8]| send_with(Unit::ReportLuns, None, &[7], cdb);
    let standard = ask(&[0x12, 0, 0, 0, 0x24]);
    assert_eq!(&standard.data[..], b"\x1e\0\x06\x12\x5b\0\0\x02SRPOLL  REPORT LUNS     0.1 ");
    assert_eq!(ask(&[0x12, 1, 0, 0, 0xff]).data, [0x1e, 0, 0, 2, 0, 0x83]);
    assert_eq!(ask(&[0x12, 1, 0x83, 0, 4]).data, [0x1e, 0x83, 0, 28]);
    assert_eq!(ask(&[0x00]).words(), "GOOD");
    assert_eq!(ask(&[0x03, 0, 0, 0, 18]).words(), "GOOD 18");
    // SELECT REPORT: units, well known ones, both.
    assert_eq!(ask(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0]).data[8..], [0, 7, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(&[0xa0, 0, 1, 0, 0, 0, 0, 0, 1, 0]).data[8..], [0xc1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        ask(&[0xa0, 0, 2, 0, 0, 0, 0, 0, 1, 0]).data[8..],
        [0xc1, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        ask(&[0xa0, 0, 3, 0, 0, 0, 0, 0, 1, 0]).words(),
        "ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte 2"
    );
    assert_eq!(
        ask(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1]).words(),
        "ILLEGAL REQUEST: invalid command operation code (20/00), at CDB byte 0"
    );
}

#[test]
fn report_luns_of_many() {
    let numbers: Vec<u16> = (0..256).collect();
    let all = send_with(Unit::Absent, None, &numbers, &[0xa0, 0, 2, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(all.words(), "GOOD 2064");
    assert!(all.data.len() <= SCRATCH_BYTES);
    // A short allocation length cuts the data and not the length that is told.
    let cut = send_with(Unit::Absent, None, &numbers, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
    assert_eq!(cut.data, [0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(send_with(Unit::Absent, None, &[], &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16]).data, [0; 8]);
}

/// SAM-5, 5.14: which commands report a unit attention, which leave it, which take it as data.
#[test]
fn unit_attentions() {
    let disk = disk();
    let attention = Attention::at_login();
    let ask = |cdb: &[u8]| send_with(Unit::Disk(&disk), Some(&attention), &[0], cdb);
    assert_eq!(ask(&[0x12, 0, 0, 0, 0x24]).words(), "GOOD 36");
    assert_eq!(ask(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0]).words(), "GOOD 16");
    assert!(attention.is_pending());
    assert_eq!(ask(&[0x00]).words(), "UNIT ATTENTION: power on, reset, or bus device reset occurred (29/00)");
    assert_eq!(ask(&[0x00]).words(), "GOOD");

    // REQUEST SENSE takes it as data, but not without room.
    attention.raise(Condition::CapacityChanged);
    assert_eq!(ask(&[0x03, 0, 0, 0, 0]).words(), "GOOD");
    assert!(attention.is_pending());
    assert_eq!(ask(&[0x03, 0, 0, 0, 18]).data, [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 9, 0, 0, 0, 0]);
    assert!(!attention.is_pending());

    // REPORT LUNS clears what it makes known, and nothing else.
    attention.raise(Condition::LunsChanged);
    attention.raise(Condition::Reset);
    let answer = ask(&[0xa0, 0, 1, 0, 0, 0, 0, 0, 1, 0]);
    assert!(matches!(answer.plan, Plan::Done(Outcome { luns_reported: false, .. })));
    let answer = ask(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert!(matches!(answer.plan, Plan::Done(Outcome { luns_reported: true, .. })));
    assert_eq!(ask(&[0x00]).words(), "UNIT ATTENTION: bus device reset function occurred (29/03)");
    assert!(!attention.is_pending());

    // Every operation code but the three reports, even unknown ones.
    for code in (0..=255u8).filter(|code| ![0x03, 0x12, 0xa0].contains(code)) {
        attention.raise(Condition::LunsChanged);
        assert_eq!(
            ask(&[code, 0x1f]).words(),
            "UNIT ATTENTION: reported luns data has changed (3f/0e)",
            "{code:02x}"
        );
        assert!(!attention.is_pending());
    }
}

#[test]
fn unknown_operation_codes() {
    let disk = disk();
    for code in 0..=255u8 {
        if COMMANDS.iter().any(|command| command.opcode == code) {
            continue;
        }
        check(&disk, &[code], "ILLEGAL REQUEST: invalid command operation code (20/00), at CDB byte 0");
    }
}

/// Every single bit of every CDB that the table neither evaluates nor ignores is INVALID FIELD IN CDB
/// with a pointer at that bit; every ignored bit changes nothing.
#[test]
fn every_bit_of_every_command() {
    let disk = disk();
    let mut checked = 0;
    for command in &COMMANDS {
        let mut base = vec![0; command.usage.len()];
        base[0] = command.opcode;
        if let Some(action) = command.service_action {
            base[1] = action;
        }
        let last = base.len() - 1;
        let plain = send(&disk, &base).words();
        for at in 1..base.len() {
            for bit in (0..8).filter(|bit| command.usage[at] & 1 << bit == 0) {
                let ignored = command
                    .ignored
                    .iter()
                    .any(|(byte, mask)| usize::from(*byte) == at && mask & 1 << bit != 0)
                    || (at == last && bit >= 6);
                let mut cdb = base.clone();
                cdb[at] |= 1 << bit;
                let expect = if ignored {
                    plain.clone()
                } else {
                    format!("ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte {at} bit {bit}")
                };
                assert_eq!(send(&disk, &cdb).words(), expect, "{} {cdb:02x?}", command.name);
                checked += 1;
            }
        }
        // NACA (SAM-5, 5.2).
        base[last] = 0x04;
        let naca = format!("ILLEGAL REQUEST: invalid field in CDB (24/00), at CDB byte {last} bit 2");
        assert_eq!(send(&disk, &base).words(), naca, "{}", command.name);
    }
    assert!(checked > 400, "{checked} bits");
}

/// A CDB that ends early is refused at the first missing byte.
#[test]
fn short_cdbs() {
    let (disk, target) = (disk(), target());
    for command in &COMMANDS {
        let mut cdb = vec![0; command.usage.len()];
        cdb[0] = command.opcode;
        cdb[1] = command.service_action.unwrap_or(0);
        for len in 2..cdb.len() {
            let plan = start(Call {
                unit: Unit::Disk(&disk),
                target: &target,
                luns: &mut std::iter::empty(),
                attention: None,
                cdb: &cdb[..len],
                data: &mut [0; SCRATCH_BYTES],
            });
            assert_eq!(plan, Plan::Done(Outcome::invalid_field(len as u16, None)), "{}", command.name);
        }
    }
}

#[test]
fn the_table_of_commands() {
    let mut table = String::new();
    for command in &COMMANDS {
        let action = command.service_action.map_or("--".into(), |action| format!("{action:02x}"));
        let usage: Vec<String> = command.usage.iter().map(|byte| format!("{byte:02x}")).collect();
        let attention = match command.attention {
            AttentionRule::Report => "report",
            AttentionRule::Ignore => "ignore",
            AttentionRule::Take => "take",
        };
        let reach = match command.reach {
            Reach::Disk => "disk",
            Reach::Units => "units",
            Reach::Everywhere => "everywhere",
        };
        let writes = if command.writes { " writes" } else { "" };
        let ignored: String =
            command.ignored.iter().map(|(byte, mask)| format!(" ignores {byte}:{mask:02x}")).collect();
        writeln!(
            table,
            "{:02x} {action} {:<22} {} {attention} {reach}{writes}{ignored}",
            command.opcode,
            command.name,
            usage.concat()
        )
        .expect("a string grows");
    }
    assert_eq!(table, TABLE);
    assert!(COMMANDS.is_sorted_by_key(|command| (command.opcode, command.service_action)));
}

/// Operation code, service action, name, CDB usage data, manners; from SPC-4 and SBC-3 by hand.
const TABLE: &str = "\
00 -- TEST UNIT READY        000000000000 report units
03 -- REQUEST SENSE          03010000ff00 take everywhere
08 -- READ(6)                081fffffff00 report disk
0a -- WRITE(6)               0a1fffffff00 report disk writes
12 -- INQUIRY                1201ffffff00 ignore everywhere
1a -- MODE SENSE(6)          1a08ffffff00 report disk
1b -- START STOP UNIT        1b01000ff700 report disk
25 -- READ CAPACITY(10)      2500ffffffff00000100 report disk
28 -- READ(10)               28f8ffffffff00ffff00 report disk ignores 1:06 ignores 6:3f
2a -- WRITE(10)              2af8ffffffff00ffff00 report disk writes ignores 1:02 ignores 6:3f
35 -- SYNCHRONIZE CACHE(10)  3502ffffffff00ffff00 report disk ignores 1:04 ignores 6:3f
42 -- UNMAP                  42010000000000ffff00 report disk writes ignores 6:3f
5a -- MODE SENSE(10)         5a18ffff000000ffff00 report disk
88 -- READ(16)               88f8ffffffffffffffffffffffff0000 report disk ignores 1:06 ignores 14:3f
8a -- WRITE(16)              8af8ffffffffffffffffffffffff0000 report disk writes ignores 1:02 ignores 14:3f
91 -- SYNCHRONIZE CACHE(16)  9102ffffffffffffffffffffffff0000 report disk ignores 1:04 ignores 14:3f
9e 10 READ CAPACITY(16)      9e1fffffffffffffffffffffffff0100 report disk
a0 -- REPORT LUNS            a000ff000000ffffffff0000 ignore everywhere
a8 -- READ(12)               a8f8ffffffffffffffff0000 report disk ignores 1:06 ignores 10:3f
aa -- WRITE(12)              aaf8ffffffffffffffff0000 report disk writes ignores 1:02 ignores 10:3f
";

fn any_unit() -> impl Strategy<Value = u8> {
    0..4u8
}

/// Random CDBs, most of them with an operation code of the table.
fn any_cdb() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![
        4 => (0..COMMANDS.len()).prop_map(|at| (COMMANDS[at].opcode, COMMANDS[at].service_action)),
        1 => any::<u8>().prop_map(|code| (code, None)),
    ];
    // Sparse bytes, so that many pass the checks of the table.
    let byte = prop_oneof![3 => Just(0u8), 1 => any::<u8>()];
    (code, proptest::collection::vec(byte, 0..18)).prop_map(|((code, action), mut cdb)| {
        if let Some(first) = cdb.first_mut() {
            *first = code;
        }
        if let (Some(action), Some(second)) = (action, cdb.get_mut(1)) {
            *second = action;
        }
        cdb
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No CDB panics; a block operation lies inside the medium and is no longer than allowed; sense data
    /// come with CHECK CONDITION only; data stay within buffer and allocation.
    #[test]
    fn random_cdbs(
        cdb in any_cdb(),
        unit in any_unit(),
        blocks in prop_oneof![1..300u64, 1..1_000_000u64, Just(u64::MAX / 4096)],
        four_k in any::<bool>(),
        read_only in any::<bool>(),
        unmap in any::<bool>(),
        pending in any::<bool>(),
        scratch in 0..SCRATCH_BYTES,
    ) {
        let block_bytes = if four_k { 4096 } else { 512 };
        let disk = LunInfo { blocks, block_bytes, read_only, unmap, ..disk() };
        let unit = match unit {
            0 => Unit::Absent,
            1 => Unit::ReportLuns,
            _ => Unit::Disk(&disk),
        };
        let attention = Attention::new();
        if pending {
            attention.raise(Condition::CapacityChanged);
        }
        let mut data = vec![0; scratch];
        let target = target();
        let plan = start(Call {
            unit,
            target: &target,
            luns: &mut (0..40).map(lun),
            attention: Some(&attention),
            cdb: &cdb,
            data: &mut data,
        });
        match plan {
            Plan::Done(outcome) => {
                prop_assert!(outcome.data_len <= data.len());
                prop_assert_eq!(outcome.sense.is_some(), outcome.status == Status::CheckCondition);
                prop_assert!(outcome.sense.is_none() || outcome.data_len == 0);
            }
            Plan::Block(op) => {
                let extent = op.extent();
                prop_assert!(matches!(unit, Unit::Disk(_)));
                prop_assert!(extent.blocks > 0);
                prop_assert!(extent.lba.checked_add(extent.blocks).is_some_and(|end| end <= blocks));
                let reads = matches!(op, BlockOp::Read { .. });
                prop_assert!(reads || !read_only);
                if let Demand::In(bytes) | Demand::Out(bytes) = op.demand() {
                    prop_assert!(bytes <= u64::from(disk.max_transfer_bytes));
                    prop_assert_eq!(bytes, extent.blocks * u64::from(block_bytes));
                }
                prop_assert!(!pending, "a unit attention was passed over");
            }
            Plan::List { len_bytes } => {
                prop_assert!(matches!(unit, Unit::Disk(disk) if disk.unmap && !disk.read_only));
                prop_assert!(len_bytes >= 8 && !pending);
            }
        }
    }
}
