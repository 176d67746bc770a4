//! How long commands are in which stage: on a virtual clock the figures are exact.

use std::time::Duration;

use bdev::delay::Hold;
use srpoll::initiator::{Command, Transfer};
use srpoll::target::handle::{Reply, Request};
use srpoll::target::stages::{Stage, StageReading};
use srpoll::wire::srp::{Cmd, DataBuffer, TaskAttribute};

use crate::rig::command::{cmd, raw_lun};
use crate::rig::{Rig, Setup, cdb, disk, lun};

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// What all shards recorded for one LUN, and from now on anew.
fn take_stages(rig: &mut Rig, lun: u16) -> Vec<StageReading> {
    let replies = rig.ask_all(&Request::Stages { lun: Some(lun), reset: true });
    StageReading::merged(replies.into_iter().flat_map(|reply| match reply {
        Reply::Stages(readings) => readings,
        other => panic!("{other:?}"),
    }))
}

/// The longest time in each stage, and the longest total.
fn longest(reading: &StageReading) -> [Duration; Stage::COUNT + 1] {
    let max: Vec<_> = reading.named().map(|(_, spread)| Duration::from_nanos(spread.max_ns())).collect();
    max.try_into().unwrap()
}

#[test]
fn reads_wait_for_the_device_and_writes_for_the_network_too() {
    let device = disk::delayed(1, Hold::After);
    let mut rig = Rig::new(Setup::new(vec![lun(0, device.clone()), lun(1, disk::malloc(1))]));
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    take_stages(&mut rig, 0);
    device.set_latencies_us(700);
    assert!(rig.read_in(raw, channel, 0, cdb::read_10(0, 8), 0, 4096).is_good());
    assert!(rig.write_out(raw, channel, 0, cdb::write_10(0, 16), 0, 8192).is_good());
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    let readings = take_stages(&mut rig, 0);
    let classes: Vec<_> = readings
        .iter()
        .map(|reading| (reading.class.operation(), reading.class.size(), reading.total().count()))
        .collect();
    assert_eq!(classes, [("read", "<=4k", 1), ("write", "<=16k", 1), ("other", "any", 1)]);
    let zero = us(0);
    assert_eq!(longest(&readings[0]), [zero, zero, zero, us(700), zero, us(700)]);
    // The READ request and its answer are 10 us each way.
    assert_eq!(longest(&readings[1]), [zero, zero, us(20), us(700), zero, us(720)]);
    assert_eq!(longest(&readings[2]), [zero; 6]);
    assert_eq!(take_stages(&mut rig, 0), [], "it was reset");
    assert_eq!(take_stages(&mut rig, 1), [], "another LUN had no command");
}

#[test]
fn who_waits_for_memory_is_seen_to() {
    let device = disk::delayed(2, Hold::After);
    let mut rig = Rig::new(Setup::new(vec![lun(0, device.clone())]));
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    take_stages(&mut rig, 0);
    device.set_latencies_us(700);
    // A shard has three chunks of 256 KiB: the fourth waits for one of them.
    let tags: Vec<_> = (0..4)
        .map(|n| {
            let tag = rig.raws[raw].tag();
            let data_in = DataBuffer::Direct(rig.raws[raw].piece(n << 18, 1 << 18));
            rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_10(0, 512)) })
        })
        .collect();
    for tag in tags {
        assert!(rig.answer(raw, channel, tag).is_good());
    }
    let readings = take_stages(&mut rig, 0);
    let [reading] = &readings[..] else { panic!("{readings:?}") };
    let buffer = reading.stage(Stage::Buffer);
    assert_eq!(buffer.quantile_ns(0.75), 0, "three of four have memory at once");
    assert!(Duration::from_nanos(buffer.max_ns()) > us(700), "{reading:?}");
    assert_eq!(Duration::from_nanos(reading.stage(Stage::Backend).max_ns()), us(700));
    let means: f64 = Stage::ALL.iter().map(|&stage| reading.stage(stage).mean_ns()).sum();
    assert_eq!(means, reading.total().mean_ns(), "the stages add up");
}

/// Posts that many writes of 4 KiB at once over a session of ours, and waits for all.
fn write_at_once(rig: &mut Rig, session: usize, count: usize) {
    for _ in 0..count {
        let now = rig.now;
        let session = &mut rig.sessions[session];
        let slot = session.reserve().expect("a request and a credit for it");
        let command = Command {
            lun: raw_lun(0),
            cdb: cdb::write_10(0, 8),
            transfer: Transfer::Out(4096),
            attribute: TaskAttribute::Simple,
            user: 0,
        };
        session.post(now, slot, &command).unwrap();
    }
    let mut ended = 0;
    rig.until("all writes have ended", |rig| {
        let session = &mut rig.sessions[session];
        while let Some(completion) = session.next_completion() {
            session.release(completion.slot);
            ended += 1;
        }
        ended == count
    });
}

#[test]
fn data_go_along_with_few_commands_and_are_read_with_many() {
    let mut rig = Rig::new(Setup::new(vec![lun(0, disk::malloc(1))]));
    let session = rig.live_session(0, Rig::session_config(0));
    // Takes the unit attention.
    write_at_once(&mut rig, session, 1);
    take_stages(&mut rig, 0);
    let reads = |rig: &mut Rig| {
        let readings = take_stages(rig, 0);
        let [writes] = &readings[..] else { panic!("{readings:?}") };
        let spread = writes.stage(Stage::Read);
        let quantile = |part: f64| Duration::from_nanos(spread.quantile_ns(part / 16.0));
        (spread.count(), quantile(4.0), quantile(5.0) >= us(20))
    };
    for _ in 0..16 {
        write_at_once(&mut rig, session, 1);
    }
    assert_eq!(reads(&mut rig), (16, us(0), false), "one by one none waits for a READ");
    write_at_once(&mut rig, session, 16);
    assert_eq!(reads(&mut rig), (16, us(0), true), "of sixteen at once all but the first four do");
}
