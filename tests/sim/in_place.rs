//! Reads that go straight from the memory of their block device, and those that cannot.

use std::sync::Arc;

use bdev::delay::Hold;
use bdev::{Bdev, OpKind};
use srpoll::rdma::engine::{EngineConfig, Sizes};
use srpoll::rdma::sim::scripted::{AdapterConfig, Script};
use srpoll::target::limits::PINNED_BYTES;
use srpoll::wire::srp::{Cmd, DataBuffer, DescTable, Descriptor, Tag};

use crate::rig::command::{cmd, pattern};
use crate::rig::{Rig, Setup, cdb, disk, lun, ms};

const KIB: usize = 1 << 10;
const CHUNK: usize = 256 * KIB;

fn ready(setup: Setup) -> (Rig, usize, usize) {
    let luns: Vec<u16> = setup.luns.iter().map(|entry| entry.lun).collect();
    let mut rig = Rig::new(setup);
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    for lun in luns {
        rig.ready(raw, channel, lun);
    }
    (rig, raw, channel)
}

fn post_read(
    rig: &mut Rig,
    (raw, channel): (usize, usize),
    lun: u16,
    lba: u32,
    at: usize,
    len: usize,
) -> Tag {
    let tag = rig.raws[raw].tag();
    let data_in = DataBuffer::Direct(rig.raws[raw].piece(at, len));
    rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, lun, cdb::read_10(lba, (len / 512) as u16)) })
}

/// Reads so many bytes of that LUN, and whether that went in place.
fn read(rig: &mut Rig, peer: (usize, usize), lun: u16, len: usize, expect: &[u8]) -> bool {
    let before = rig.counter("reads_in_place");
    rig.raws[peer.0].memory.fill(0, len, 0x55).unwrap();
    let tag = post_read(rig, peer, lun, 0, 0, len);
    assert!(rig.answer(peer.0, peer.1, tag).is_good());
    assert!(rig.raws[peer.0].bytes(0, len) == expect[..len], "{len} bytes of LUN {lun}");
    rig.counter("reads_in_place") > before
}

#[test]
fn no_chunk_is_taken_by_reads_of_what_lies_in_memory() {
    let (malloc, null) = (disk::malloc(2), disk::null(2));
    let data = pattern(CHUNK, 7);
    disk::write(&*malloc, 0, &data);
    let reads_before = malloc.stats().of(OpKind::Read).ops;
    let (mut rig, raw, channel) = ready(Setup::new(vec![lun(0, malloc.clone()), lun(1, null.clone())]));
    rig.raws[raw].memory.fill(0, 20 * CHUNK, 0x55).unwrap();
    // A shard has three chunks.
    let tags: Vec<_> =
        (0..20).map(|n| post_read(&mut rig, (raw, channel), (n % 2) as u16, 0, n * CHUNK, CHUNK)).collect();
    for (n, tag) in tags.into_iter().enumerate() {
        assert!(rig.answer(raw, channel, tag).is_good());
        let bytes = rig.raws[raw].bytes(n * CHUNK, CHUNK);
        assert!(if n % 2 == 0 { bytes == data } else { bytes == [0; CHUNK] }, "read {n}");
    }
    assert_eq!((rig.counter("memory_waits"), rig.counter("reads_in_place")), (0, 20));
    for device in [malloc, null] {
        let stats = device.stats();
        let reads = stats.of(OpKind::Read);
        assert_eq!((reads.ops - reads_before, reads.bytes, stats.errors()), (10, 10 * CHUNK as u64, 0));
    }
}

#[test]
fn all_else_keeps_its_way() {
    let malloc = disk::malloc(2);
    let data = pattern(2 * CHUNK, 8);
    disk::write(&*malloc, 0, &data);
    let delayed = disk::delayed(2, Hold::Before);
    disk::write(&*delayed, 0, &data);
    let (mut rig, raw, channel) = ready(Setup::new(vec![lun(0, malloc), lun(1, delayed)]));
    let peer = (raw, channel);
    assert!(read(&mut rig, peer, 0, 512, &data));
    assert!(read(&mut rig, peer, 0, CHUNK, &data));
    assert!(!read(&mut rig, peer, 0, CHUNK + 512, &data), "longer than a chunk");
    assert!(!read(&mut rig, peer, 1, 512, &data), "of a device that takes its time");
    // A buffer in pieces, whose table is in the command or beside it.
    for inline in [2, 0] {
        let before = rig.counter("reads_in_place");
        let pieces = [rig.raws[raw].piece(9000, 300), rig.raws[raw].piece(5000, 724)];
        let table: Vec<u8> = pieces.iter().flat_map(Descriptor::emit).collect();
        rig.raws[raw].memory.write(CHUNK, &table).unwrap();
        let data_in = DataBuffer::Indirect {
            table: rig.raws[raw].piece(CHUNK, table.len()),
            total_bytes: 1024,
            inline: DescTable::new(&table[..inline * Descriptor::BYTES]).unwrap(),
        };
        let tag = rig.raws[raw].tag();
        assert!(rig.command(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_10(0, 2)) }).is_good());
        assert_eq!(rig.raws[raw].bytes(9000, 300), data[..300]);
        assert_eq!(rig.raws[raw].bytes(5000, 724), data[300..1024]);
        rig.raws[raw].memory.fill(5000, 5000, 0).unwrap();
        assert_eq!(rig.counter("reads_in_place") - before, u64::from(inline > 0));
    }
}

#[test]
fn reads_are_copied_where_memory_cannot_be_registered() {
    let data = pattern(CHUNK, 9);
    let disks: Vec<Arc<dyn Bdev>> = (0..3).map(|_| disk::malloc(1)).collect();
    disks.iter().for_each(|disk| disk::write(&**disk, 0, &data));
    // A shard has four regions of its own, and the third disk has none of this room.
    let engine = EngineConfig { sizes: Sizes { max_mr: 6, ..Sizes::default() }, ..EngineConfig::default() };
    let luns = disks.iter().zip(0..).map(|(disk, number)| lun(number, disk.clone())).collect();
    let (mut rig, raw, channel) = ready(Setup { engine, ..Setup::new(luns) });
    let ways = [0, 1, 2].map(|number| read(&mut rig, (raw, channel), number, CHUNK, &data));
    assert_eq!(ways, [true, true, false]);
    // The place of one that goes is free for the next one.
    rig.apply(|snapshot| snapshot.luns.retain(|entry| entry.lun == 1));
    rig.run(ms(1000));
    rig.apply(|snapshot| snapshot.luns.push(lun(2, disks[2].clone())));
    for number in [1, 2] {
        while !rig.plain(raw, channel, number, cdb::TEST_UNIT_READY).is_good() {}
        assert!(read(&mut rig, (raw, channel), number, CHUNK, &data), "LUN {number}");
    }
}

#[test]
fn an_adapter_is_given_no_more_to_pin_than_is_good() {
    let (small, large) = (disk::malloc(1), disk::malloc((PINNED_BYTES >> 20) as u64 + 1));
    let setup = Setup::new(vec![lun(0, large), lun(1, small)]);
    let mut rig = Rig::on_adapter(&setup, AdapterConfig::new(1, 2));
    let channel = rig.login_on(0, Script::soft());
    for (number, expect) in [(0, 0), (1, 1)] {
        // The first one hears a unit attention.
        let tags = [(); 2].map(|()| rig.read(channel, number, 0, 0, 4096));
        assert!(tags.map(|tag| rig.answer(channel, tag).is_good())[1]);
        assert_eq!(rig.count(|counts| counts.reads_in_place), expect, "LUN {number}");
    }
    rig.settle();
}

/// The adapter tells if memory is deregistered that a WRITE in progress names.
#[test]
fn memory_outlives_its_device_as_long_as_it_is_sent() {
    let data = pattern(64 * KIB, 10);
    let gone = disk::malloc(1);
    disk::write(&*gone, 0, &data);
    let setup = Setup::new(vec![lun(0, disk::malloc(1)), lun(1, gone)]);
    let mut rig = Rig::on_adapter(&setup, AdapterConfig::new(1, 2));
    drop(setup);
    let channel = rig.login_on(0, Script { work: ms(900), ..Script::soft() });
    let attention = rig.read(channel, 1, 0, 0, 512);
    assert!(!rig.answer(channel, attention).is_good());
    let tag = rig.read(channel, 1, 0, 0, data.len());
    rig.until("it is taken", |rig| rig.count(|counts| counts.reads_in_place) == 1);
    // This is done although the WRITE is not: the command needs its LUN no longer.
    rig.apply(|snapshot| snapshot.luns.truncate(1));
    assert!(!rig.channels[channel].answers.contains_key(&tag.0));
    assert!(rig.answer(channel, tag).is_good());
    assert_eq!(rig.memory.with_bytes(0, data.len(), <[u8]>::to_vec).unwrap(), data);
    rig.run(ms(2000));
    rig.settle();
}
