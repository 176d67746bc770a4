//! Data: every descriptor form, all sizes, residuals, and descriptors that lie.

use srpoll::rdma::verbs::ConnEnd;
use srpoll::wire::srp::{Cmd, DataBuffer, DescTable, Descriptor};

use crate::rig::answer::Answer;
use crate::rig::command::{cmd, pattern};
use crate::rig::raw::{Link, Login};
use crate::rig::{Rig, Setup, cdb, disk, lun, ms};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Where external tables lie in the initiator's memory.
const TABLE_AT: usize = 70 * MIB;

/// How a test describes a buffer.
#[derive(Copy, Clone, Debug)]
enum Form {
    Direct,
    /// All descriptors in the IU.
    Inline(usize),
    /// So many descriptors, of which so many are in the IU.
    External(usize, usize),
}

/// `len` bytes at `at` in `count` pieces of different lengths, some of them empty.
fn pieces(rig: &Rig, raw: usize, at: usize, len: usize, count: usize) -> Vec<Descriptor> {
    let mut rng = fastrand::Rng::with_seed((at + len + count) as u64);
    let mut cuts: Vec<usize> = (1..count).map(|_| rng.usize(0..=len)).collect();
    cuts.push(len);
    cuts.sort_unstable();
    let mut from = 0;
    let pieces = cuts.into_iter().map(|to| {
        let piece = rig.raws[raw].piece(at + from, to - from);
        from = to;
        piece
    });
    pieces.collect()
}

fn bytes_of(pieces: &[Descriptor]) -> Vec<u8> {
    pieces.iter().flat_map(Descriptor::emit).collect()
}

/// A command with `len` bytes of data at `at`.
fn with_data(
    rig: &mut Rig,
    raw: usize,
    channel: usize,
    form: Form,
    write: bool,
    cdb: [u8; 16],
    (at, len): (usize, usize),
) -> Answer {
    let tag = rig.raws[raw].tag();
    let table;
    let buffer = match form {
        Form::Direct => DataBuffer::Direct(rig.raws[raw].piece(at, len)),
        Form::Inline(count) => {
            table = bytes_of(&pieces(rig, raw, at, len, count));
            let inline = DescTable::new(&table).unwrap();
            DataBuffer::Indirect {
                table: rig.raws[raw].piece(TABLE_AT, table.len()),
                total_bytes: len as u32,
                inline,
            }
        }
        Form::External(count, inline) => {
            table = bytes_of(&pieces(rig, raw, at, len, count));
            rig.raws[raw].memory.write(TABLE_AT, &table).unwrap();
            let inline = DescTable::new(&table[..inline * Descriptor::BYTES]).unwrap();
            DataBuffer::Indirect {
                table: rig.raws[raw].piece(TABLE_AT, table.len()),
                total_bytes: len as u32,
                inline,
            }
        }
    };
    let base = cmd(tag, 0, cdb);
    let command = if write { Cmd { data_out: buffer, ..base } } else { Cmd { data_in: buffer, ..base } };
    rig.command(raw, channel, &command)
}

fn write_and_read_back(rig: &mut Rig, raw: usize, channel: usize, form: Form, len: usize) {
    let (lba, blocks) = (7, (len / 512) as u32);
    let written = rig.raws[raw].fill(3, len, len as u64 ^ 0x5eed);
    let answer = with_data(rig, raw, channel, form, true, cdb::write_16(lba, blocks), (3, len));
    assert!(answer.is_good(), "WRITE of {len} bytes, {form:?}: {answer:?}");
    let answer = with_data(rig, raw, channel, form, false, cdb::read_16(lba, blocks), (40 * MIB, len));
    assert!(answer.is_good(), "READ of {len} bytes, {form:?}: {answer:?}");
    assert!(rig.raws[raw].bytes(40 * MIB, len) == written, "{len} bytes, {form:?}");
    // What lies behind was not touched.
    assert_eq!(rig.raws[raw].bytes(40 * MIB + len, 64), [0; 64], "{len} bytes, {form:?}");
    rig.raws[raw].memory.fill(40 * MIB, len, 0).unwrap();
}

fn ready_rig() -> (Rig, usize, usize) {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    (rig, raw, channel)
}

#[test]
fn every_form_of_descriptors_moves_the_right_bytes() {
    let (mut rig, raw, channel) = ready_rig();
    let forms = [
        Form::Direct,
        Form::Inline(1),
        Form::Inline(2),
        Form::Inline(16),
        Form::Inline(255),
        Form::External(2, 0),
        Form::External(17, 16),
        Form::External(300, 12),
        Form::External(2048, 0),
    ];
    for form in forms {
        for len in [512, 4 * KIB, 64 * KIB, 256 * KIB, 256 * KIB + 512, MIB - 512] {
            write_and_read_back(&mut rig, raw, channel, form, len);
        }
    }
    rig.audit();
}

#[test]
fn the_longest_transfer_is_16_mib_in_every_form() {
    let (mut rig, raw, channel) = ready_rig();
    rig.audits = false;
    for form in [Form::Direct, Form::Inline(64), Form::External(2048, 100)] {
        write_and_read_back(&mut rig, raw, channel, form, 16 * MIB);
    }
    let answer =
        with_data(&mut rig, raw, channel, Form::Direct, false, cdb::read_16(0, 32_769), (0, 17 * MIB));
    assert_eq!(answer.sense, Some((5, 0x24, 0)), "one block more");
    rig.audit();
}

#[test]
fn more_descriptors_than_the_initiator_answers_reads_at_a_time() {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let login = Login { responder_resources: 1, ..Login::new(0) };
    let channel = rig.login_with(raw, &login);
    rig.ready(raw, channel, 0);
    // Eight commands that together want 1,200 READs, one of which may be in flight.
    let tags: Vec<_> = (0..8)
        .map(|n| {
            let (at, len) = (n * MIB, 75 * 512);
            rig.raws[raw].fill(at, len, n as u64);
            let table = bytes_of(&pieces(&rig, raw, at, len, 150));
            let tag = rig.raws[raw].tag();
            let data_out = DataBuffer::Indirect {
                table: rig.raws[raw].piece(TABLE_AT, table.len()),
                total_bytes: len as u32,
                inline: DescTable::new(&table).unwrap(),
            };
            rig.post(raw, channel, &Cmd { data_out, ..cmd(tag, 0, cdb::write_16(n as u64 * 75, 75)) })
        })
        .collect();
    for tag in tags {
        assert!(rig.answer(raw, channel, tag).is_good());
    }
    let answer = rig.read_in(raw, channel, 0, cdb::read_16(0, 600), 40 * MIB, 600 * 512);
    assert!(answer.is_good());
    for n in 0..8 {
        let bytes = rig.raws[raw].bytes(40 * MIB + n * 75 * 512, 75 * 512);
        assert!(bytes == pattern(75 * 512, n as u64), "command {n}");
    }
    assert!(rig.shards.iter().map(|shard| shard.counts().window_waits).sum::<u64>() >= 8);
}

#[test]
fn immediate_data_at_any_granted_offset() {
    for offset in [68, 100, 52, 1000] {
        let medium = disk::malloc(1);
        let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
        let raw = rig.raw(0);
        let mut login = Login::new(0);
        login.request.immediate_offset = offset;
        let channel = rig.login_with(raw, &login);
        rig.ready(raw, channel, 0);
        for len in [512, 4096, 7168] {
            let data = pattern(len, len as u64 + u64::from(offset));
            let tag = rig.raws[raw].tag();
            let data_out = DataBuffer::Immediate { data: &data, offset: offset.into() };
            let write = Cmd { data_out, ..cmd(tag, 0, cdb::write_10(3, (len / 512) as u16)) };
            assert!(rig.command(raw, channel, &write).is_good(), "{len} bytes at {offset}");
            assert_eq!(disk::read(&*medium, 3 * 512, len), data, "{len} bytes at {offset}");
        }
        rig.audit();
    }
}

#[test]
fn residuals_say_how_buffer_and_command_differ() {
    let (mut rig, raw, channel) = ready_rig();
    let rest = |answer: &Answer| (answer.residual_flags, answer.data_in_residual, answer.data_out_residual);
    // READ: less than the buffer holds, more than it holds, none of either.
    rig.raws[raw].fill(0, 8192, 1);
    assert!(rig.write_out(raw, channel, 0, cdb::write_10(0, 16), 0, 8192).is_good());
    let under = rig.read_in(raw, channel, 0, cdb::read_10(0, 2), 1 << 20, 4096);
    assert_eq!((under.status, rest(&under)), (0, (0x20, 3072, 0)), "data-in underflow");
    assert_eq!(rig.raws[raw].bytes(1 << 20, 1024), pattern(8192, 1)[..1024]);
    assert_eq!(rig.raws[raw].bytes((1 << 20) + 1024, 3072), [0; 3072]);
    let over = rig.read_in(raw, channel, 0, cdb::read_10(0, 16), 2 << 20, 700);
    assert_eq!((over.status, rest(&over)), (0, (0x10, 8192 - 700, 0)), "data-in overflow");
    assert_eq!(rig.raws[raw].bytes(2 << 20, 700), pattern(8192, 1)[..700]);
    assert_eq!(rig.raws[raw].bytes((2 << 20) + 700, 324), [0; 324], "nothing behind the buffer");
    // WRITE: less than the buffer holds; more is refused, since blocks would be undefined.
    let under = rig.write_out(raw, channel, 0, cdb::write_10(100, 1), 0, 4096);
    assert_eq!((under.status, rest(&under)), (0, (0x08, 0, 3584)), "data-out underflow");
    let over = rig.write_out(raw, channel, 0, cdb::write_10(100, 2), 0, 512);
    assert_eq!((over.status, over.sense), (2, Some((5, 0x0e, 3))));
    // Nothing to transfer.
    let none = rig.read_in(raw, channel, 0, cdb::read_10(5, 0), 0, 512);
    assert_eq!((none.status, rest(&none)), (0, (0x20, 512, 0)));
    assert!(rig.plain(raw, channel, 0, cdb::read_10(5, 0)).is_good());
    let zero = rig.read_in(raw, channel, 0, cdb::read_10(5, 1), 0, 0);
    assert_eq!((zero.status, rest(&zero)), (0, (0x10, 512, 0)));
    // Data and no buffer, or one of the wrong direction.
    assert_eq!(rig.plain(raw, channel, 0, cdb::read_10(5, 1)).sense, Some((5, 0x0e, 3)));
    assert_eq!(rig.write_out(raw, channel, 0, cdb::read_10(5, 1), 0, 512).sense, Some((5, 0x0e, 3)));
    assert_eq!(rig.read_in(raw, channel, 0, cdb::write_10(5, 1), 0, 512).sense, Some((5, 0x0e, 3)));
    rig.audit();
}

#[test]
fn what_a_disk_says_of_itself() {
    let (mut rig, raw, channel) = ready_rig();
    assert!(rig.read_in(raw, channel, 0, cdb::read_capacity_10(), 0, 8).is_good());
    assert_eq!(rig.raws[raw].bytes(0, 8), [0, 0, 0xff, 0xff, 0, 0, 2, 0], "32 MiB in blocks of 512 bytes");
    let luns = rig.read_in(raw, channel, 0, cdb::report_luns(64), 0, 64);
    assert_eq!((luns.residual_flags, luns.data_in_residual), (0x20, 48));
    assert_eq!(rig.raws[raw].bytes(0, 16), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A LUN that does not exist: INQUIRY says so, everything else fails.
    assert!(rig.read_in(raw, channel, 9, cdb::inquiry(36), 0, 36).is_good());
    assert_eq!(rig.raws[raw].bytes(0, 1), [0x7f]);
    assert_eq!(rig.plain(raw, channel, 9, cdb::TEST_UNIT_READY).sense, Some((5, 0x25, 0)));
    assert_eq!(rig.plain(raw, channel, 0, [0xee; 16]).sense, Some((5, 0x20, 0)));
    let beyond = rig.read_in(raw, channel, 0, cdb::read_10(65_535, 2), 0, 1024);
    assert_eq!(beyond.sense, Some((5, 0x21, 0)));
    assert_eq!((beyond.residual_flags, beyond.data_in_residual), (0x20, 1024));
    assert!(rig.plain(raw, channel, 0, cdb::synchronize_cache()).is_good());
}

/// An SRP_CMD, byte by byte: format, descriptor counts, and what follows the fixed part.
fn hostile(tag: u64, format: u8, counts: [u8; 2], rest: &[u8]) -> Vec<u8> {
    let mut iu = vec![0; 48];
    iu[0] = 0x02;
    iu[5] = format;
    iu[6..8].copy_from_slice(&counts);
    iu[8..16].copy_from_slice(&tag.to_le_bytes());
    iu[32] = 0x28;
    iu[40] = 1;
    iu.extend_from_slice(rest);
    iu
}

#[test]
fn descriptors_that_lie_are_answered_and_nothing_else_happens() {
    let (mut rig, raw, channel) = ready_rig();
    let piece = rig.raws[raw].piece(0, 512).emit();
    let table = |len: u32, total: u32, inline: &[[u8; 16]]| -> Vec<u8> {
        let mut descriptor = piece;
        descriptor[12..].copy_from_slice(&len.to_be_bytes());
        let mut bytes = descriptor.to_vec();
        bytes.extend_from_slice(&total.to_be_bytes());
        bytes.extend(inline.iter().flatten());
        bytes
    };
    let cases = [
        ("a direct descriptor that is not there", 0x01, [0, 0], vec![]),
        ("a direct descriptor cut off", 0x01, [0, 0], piece[..15].to_vec()),
        ("a format that does not exist", 0x04, [0, 0], piece.to_vec()),
        ("immediate data-IN", 0x03, [0, 0], vec![0, 0, 2, 0]),
        ("a table that is not there", 0x02, [0, 1], vec![]),
        ("descriptors of a table cut off", 0x02, [0, 2], table(32, 512, &[piece])),
        ("a table length that is no multiple of 16", 0x02, [0, 1], table(17, 512, &[piece])),
        ("a table shorter than its part in the IU", 0x02, [0, 1], table(0, 512, &[piece])),
        ("descriptors that cover less than the total", 0x02, [0, 1], table(16, 513, &[piece])),
        ("a table of 2,049 descriptors", 0x02, [0, 0], table(2049 * 16, 512, &[])),
        ("data in both directions", 0x11, [0, 0], [piece, piece].concat()),
        ("immediate data beyond the IU", 0x30, [0, 0], vec![0, 1, 0, 0]),
        ("immediate data that wrap around", 0x30, [0, 0], vec![0xff, 0xff, 0xff, 0xff]),
    ];
    for (number, (what, format, counts, rest)) in cases.iter().enumerate() {
        let tag = srpoll::wire::srp::Tag((1000 + number as u64).to_le_bytes());
        rig.send(raw, channel, &hostile(1000 + number as u64, *format, *counts, rest));
        let answer = rig.answer(raw, channel, tag);
        assert_eq!((answer.status, answer.sense), (2, Some((5, 0x24, 0))), "{what}");
        assert_eq!(answer.delta, 1, "{what}");
    }
    // A table in the initiator's memory that covers too little is known only when it was read.
    rig.raws[raw].memory.write(TABLE_AT, &[piece, piece].concat()).unwrap();
    let external = {
        let mut bytes = rig.raws[raw].piece(TABLE_AT, 32).emit().to_vec();
        bytes.extend_from_slice(&1025u32.to_be_bytes());
        bytes
    };
    rig.send(raw, channel, &hostile(2000, 0x02, [0, 0], &external));
    let answer = rig.answer(raw, channel, srpoll::wire::srp::Tag(2000u64.to_le_bytes()));
    assert_eq!(answer.sense, Some((5, 0x24, 0)));
    assert_eq!(rig.shards.iter().map(|shard| shard.counts().malformed).sum::<u64>(), 14);
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    rig.audit();
}

#[test]
fn a_wrong_key_ends_its_channel_and_the_neighbour_notices_nothing() {
    let mut rig = Rig::simple();
    let neighbour = rig.raw(9);
    // One neighbour on each shard.
    let beside: Vec<usize> = (0..2).map(|_| rig.login_multi(neighbour)).collect();
    rig.ready(neighbour, beside[0], 0);
    for case in 0..4 {
        let raw = rig.raw(case);
        let channel = rig.login(raw);
        rig.ready(raw, channel, 0);
        let tag = rig.raws[raw].tag();
        let wrong = rig.raws[raw].wrong_piece(0, 4096);
        let base = cmd(tag, 0, cdb::read_10(0, 8));
        let table =
            [rig.raws[raw].piece(0, 2048).emit(), rig.raws[raw].wrong_piece(2048, 2048).emit()].concat();
        let command = match case {
            0 => Cmd { data_in: DataBuffer::Direct(wrong), ..base },
            1 => Cmd { data_out: DataBuffer::Direct(wrong), cdb: cdb::write_10(0, 8), ..base },
            // An external table under a wrong key.
            2 => {
                let table = rig.raws[raw].wrong_piece(TABLE_AT, 32);
                let inline = DescTable::default();
                Cmd { data_in: DataBuffer::Indirect { table, total_bytes: 4096, inline }, ..base }
            }
            // The second of two pieces.
            _ => {
                let inline = DescTable::new(&table).unwrap();
                let table = rig.raws[raw].piece(TABLE_AT, 32);
                Cmd { data_in: DataBuffer::Indirect { table, total_bytes: 4096, inline }, ..base }
            }
        };
        // Others of the same channel are in flight meanwhile.
        for n in 0..8 {
            let tag = rig.raws[raw].tag();
            let data_in = DataBuffer::Direct(rig.raws[raw].piece(MIB + n * MIB, MIB));
            rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_16(0, 2048)) });
        }
        rig.post(raw, channel, &command);
        for &channel in &beside {
            assert!(rig.read_in(neighbour, channel, 0, cdb::read_10(0, 128), 0, 65_536).is_good());
        }
        rig.until("the target ends the channel", |rig| {
            rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected)
        });
        assert_eq!(rig.answered(raw, channel, tag), None, "case {case}");
        rig.run(ms(300));
        assert_eq!(rig.stats(0).channels + rig.stats(1).channels, 2, "case {case}");
    }
    for &channel in &beside {
        assert!(rig.plain(neighbour, channel, 0, cdb::TEST_UNIT_READY).is_good());
    }
    rig.audit();
}
