//! Configuration under way: logical units come, go and change while commands run.

use std::sync::Arc;

use srpoll::target::handle::{Reply, Request};
use srpoll::wire::srp::{Cmd, DataBuffer};

use crate::rig::command::{cmd, pattern};
use crate::rig::{Rig, Setup, cdb, disk, lun, ms, secs};

/// Two nexuses, each with a channel on both shards.
fn two_nexuses(rig: &mut Rig, luns: &[u16]) -> Vec<(usize, [usize; 2])> {
    (0..2)
        .map(|number| {
            let raw = rig.raw(number);
            let channels = [rig.login_multi(raw), rig.login_multi(raw)];
            for &lun in luns {
                rig.ready(raw, channels[0], lun);
            }
            (raw, channels)
        })
        .collect()
}

/// The unit attentions that a nexus gets on a LUN, asked on its channels in turn.
fn attentions(rig: &mut Rig, raw: usize, channels: [usize; 2], lun: u16) -> Vec<(u8, u8, u8)> {
    let mut found = Vec::new();
    for turn in 0..8 {
        let answer = rig.plain(raw, channels[turn % 2], lun, cdb::TEST_UNIT_READY);
        found.extend(answer.sense);
    }
    found
}

#[test]
fn a_lun_comes_and_every_nexus_hears_of_it_once() {
    let mut rig = Rig::new(Setup::new(vec![lun(0, disk::malloc(1)), lun(3, disk::malloc(1))]));
    let nexuses = two_nexuses(&mut rig, &[0, 3]);
    let new = disk::malloc(2);
    rig.apply(|snapshot| snapshot.luns.insert(1, lun(1, new.clone())));
    for &(raw, channels) in &nexuses {
        for number in [0, 1, 3] {
            assert_eq!(attentions(&mut rig, raw, channels, number), [(6, 0x3f, 0x0e)], "LUN {number}");
        }
        rig.raws[raw].fill(0, 4096, 5);
        assert!(rig.write_out(raw, channels[1], 1, cdb::write_10(0, 8), 0, 4096).is_good());
    }
    assert_eq!(disk::read(&*new, 0, 4096), pattern(4096, 5));
    // Who reads the list has learnt of it.
    rig.apply(|snapshot| snapshot.luns.retain(|entry| entry.lun != 3));
    let (raw, channels) = nexuses[0];
    let list = rig.read_in(raw, channels[1], 0, cdb::report_luns(64), 0, 64);
    assert_eq!((list.status, list.data_in_residual), (0, 40));
    assert_eq!(rig.raws[raw].bytes(8, 16), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(attentions(&mut rig, raw, channels, 0), []);
    assert_eq!(attentions(&mut rig, raw, channels, 1), []);
    let (raw, channels) = nexuses[1];
    assert_eq!(attentions(&mut rig, raw, channels, 1), [(6, 0x3f, 0x0e)]);
    assert_eq!(rig.plain(raw, channels[0], 3, cdb::TEST_UNIT_READY).sense, Some((5, 0x25, 0)));
    rig.audit();
}

#[test]
fn a_lun_goes_when_its_commands_are_done() {
    let medium = disk::Hang::new(4);
    let mut rig = Rig::new(Setup::new(vec![lun(0, disk::malloc(1)), lun(1, medium.clone())]));
    let nexuses = two_nexuses(&mut rig, &[0, 1]);
    medium.hang(0..512);
    let (raw, channels) = nexuses[0];
    let tags: Vec<_> = channels
        .iter()
        .map(|&channel| {
            let tag = rig.raws[raw].tag();
            let data_in = DataBuffer::Direct(rig.raws[raw].piece(0, 512));
            rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 1, cdb::read_10(0, 1)) })
        })
        .collect();
    rig.run(ms(1));
    let mut snapshot = srpoll::target::snapshot::Snapshot::clone(&rig.snapshot);
    let removed = snapshot.luns.pop().unwrap();
    snapshot.epoch += 1;
    let request = Request::Apply(Arc::new(snapshot));
    let answers: Vec<_> = (0..2).map(|shard| rig.post_request(shard, request.clone())).collect();
    rig.run(secs(3));
    assert!(answers.iter().all(|answer| answer.try_recv().is_err()), "commands of the old LUN are running");
    // New commands do not find it any more.
    let answer = rig.plain(raw, channels[0], 1, cdb::TEST_UNIT_READY);
    assert_eq!(answer.sense, Some((5, 0x25, 0)));
    medium.release();
    for (tag, channel) in tags.into_iter().zip(channels) {
        assert!(rig.answer(raw, channel, tag).is_good());
    }
    rig.run(ms(10));
    for answer in answers {
        assert!(matches!(answer.try_recv(), Ok((_, Reply::Done))));
    }
    // It can come back under the same number.
    rig.apply(|snapshot| {
        snapshot.luns.truncate(1);
        snapshot.luns.push(removed);
    });
    assert_eq!(attentions(&mut rig, raw, channels, 1), [(6, 0x3f, 0x0e)]);
    rig.audit();
}

#[test]
fn a_changed_capacity_is_told_to_every_nexus_once() {
    let medium = disk::Hang::new(4);
    let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
    let nexuses = two_nexuses(&mut rig, &[0]);
    medium.set_blocks(4096);
    rig.apply(|_| {});
    for &(raw, channels) in &nexuses {
        assert_eq!(attentions(&mut rig, raw, channels, 0), [(6, 0x2a, 9)]);
        assert!(rig.read_in(raw, channels[1], 0, cdb::read_capacity_10(), 0, 8).is_good());
        assert_eq!(rig.raws[raw].bytes(0, 8), [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
        let beyond = rig.read_in(raw, channels[0], 0, cdb::read_10(4096, 1), 0, 512);
        assert_eq!(beyond.sense, Some((5, 0x21, 0)));
    }
    rig.audit();
}

#[test]
fn an_access_list_counts_for_logins_to_come() {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    rig.apply(|snapshot| {
        snapshot.access = srpoll::target::access::AccessList::new(vec!["10.9.9.9".parse().unwrap()]);
    });
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good(), "who is in stays in");
    let again = rig.try_login(raw, &crate::rig::raw::Login::new(0).multi());
    let link = &rig.raws[raw].channels[again].link;
    assert!(matches!(link, crate::rig::raw::Link::Refused(rej) if rej.reason.0 == 0x0001_0006), "{link:?}");
}

#[test]
fn errors_of_the_disk_become_sense_data() {
    use bdev::error::Fault;
    use bdev::{IoError, OpKind};
    let medium = disk::failing(4);
    let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    let big = 1 << 20;
    medium.inject(OpKind::Read, Fault::Fail(IoError::Medium(5)), 1);
    let answer = rig.read_in(raw, channel, 0, cdb::read_16(0, 2048), 0, big);
    assert_eq!(
        (answer.status, answer.sense),
        (2, Some((3, 0x11, 0))),
        "MEDIUM ERROR, UNRECOVERED READ ERROR"
    );
    medium.inject(OpKind::Write, Fault::Fail(IoError::Medium(5)), 1);
    let answer = rig.write_out(raw, channel, 0, cdb::write_16(0, 2048), 0, big);
    assert_eq!((answer.status, answer.sense), (2, Some((3, 0x0c, 0))), "MEDIUM ERROR, WRITE ERROR");
    assert!(rig.write_out(raw, channel, 0, cdb::write_16(0, 2048), 0, big).is_good(), "and only once");
    assert_eq!(rig.shards.iter().map(|shard| shard.counts().block_errors).sum::<u64>(), 2);
    rig.audit();
}
