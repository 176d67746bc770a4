//! Task management: what is ended, when it is answered, and that an answer is a promise.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use srpoll::rdma::sim::device::Moment;
use srpoll::rdma::verbs::ConnEnd;
use srpoll::srp::task::TaskState;
use srpoll::srp::tmf::{NO_TASK_TAG, TmfFunction};
use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::ext::Reth;
use srpoll::wire::srp::{Cmd, CredRsp, DataBuffer, DescTable, Tag};

use crate::rig::command::{cmd, pattern, raw_lun};
use crate::rig::raw::{Link, Login};
use crate::rig::{Rig, Setup, TARGET, cdb, disk, lun, ms, secs};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What the wire does for a test: drops some kinds of packets, and notes which RDMA of the target names
/// which memory.
#[derive(Default)]
struct Watch {
    drop: Vec<Opcode>,
    /// Memory that the target has no business with any more.
    forbidden: Vec<Range<u64>>,
    touched: Vec<String>,
}

fn watch(rig: &Rig) -> Rc<RefCell<Watch>> {
    let watch = Rc::new(RefCell::new(Watch::default()));
    let seen = Rc::clone(&watch);
    rig.wire.tap(Some(Box::new(move |now, moment, path, bytes| {
        let Ok(bth) = Bth::parse(bytes) else { return true };
        if moment == Moment::Arrived {
            return true;
        }
        let mut seen = seen.borrow_mut();
        if path.local == TARGET && bth.opcode.has_reth() {
            let reth = Reth::parse(&bytes[Bth::LEN..]).unwrap();
            let end = reth.addr + u64::from(reth.len_bytes);
            let touches = |range: &Range<u64>| reth.addr < range.end && range.start < end;
            if seen.forbidden.iter().any(touches) {
                seen.touched.push(format!("{now:?} {:?} {reth:?}", bth.opcode));
            }
        }
        path.remote != TARGET || !seen.drop.contains(&bth.opcode)
    })));
    watch
}

const READ_RESPONSES: [Opcode; 4] = [
    Opcode::ReadResponseFirst,
    Opcode::ReadResponseMiddle,
    Opcode::ReadResponseLast,
    Opcode::ReadResponseOnly,
];

/// How a victim is brought into a state, and kept there.
struct Case {
    state: TaskState,
    /// Packets of the initiator that get lost until the abort has been asked for.
    drop: &'static [Opcode],
    /// The disk hangs.
    hangs: bool,
    write: bool,
    external: bool,
    len: usize,
    /// Commands before the victim.
    before: usize,
}

fn shard_states(rig: &Rig) -> Vec<TaskState> {
    let all = rig.shards.iter().flat_map(|shard| shard.tasks_by_state());
    all.map(|(state, _)| state).collect()
}

fn run_case(case: &Case) {
    let medium = disk::Hang::new(32);
    let mut setup = Setup::new(vec![lun(0, medium.clone())]);
    setup.limits.data_bytes = 2 * 256 * KIB;
    let mut rig = Rig::new(setup);
    let raw = rig.raw(0);
    let channel = rig.login_with(raw, &Login { responder_resources: 1, ..Login::new(0) });
    rig.ready(raw, channel, 0);
    let watch = watch(&rig);
    watch.borrow_mut().drop = case.drop.to_vec();
    if case.hangs {
        medium.hang(0..32 << 20);
    }
    let mut tags = Vec::new();
    for n in 0..=case.before {
        let tag = rig.raws[raw].tag();
        let (at, blocks) = (n * MIB, (case.len / 512) as u32);
        let piece = rig.raws[raw].piece(at, case.len);
        let mut buffer = DataBuffer::Direct(piece);
        if case.external {
            rig.raws[raw].memory.write(60 * MIB, &piece.emit()).unwrap();
            let table = rig.raws[raw].piece(60 * MIB, 16);
            let inline = DescTable::default();
            buffer = DataBuffer::Indirect { table, total_bytes: case.len as u32, inline };
        }
        let lba = (n * case.len / 512) as u64;
        let command = if case.write {
            Cmd { data_out: buffer, ..cmd(tag, 0, cdb::write_16(lba, blocks)) }
        } else {
            Cmd { data_in: buffer, ..cmd(tag, 0, cdb::read_16(lba, blocks)) }
        };
        tags.push(rig.post(raw, channel, &command));
    }
    rig.run(ms(2));
    let victim = *tags.last().unwrap();
    assert!(shard_states(&rig).contains(&case.state), "{}: {:?}", case.state, shard_states(&rig));
    let tmf = rig.manage(raw, channel, TmfFunction::AbortTask, 0, victim);
    rig.run(ms(1));
    watch.borrow_mut().drop.clear();
    if case.write && case.hangs {
        // A write can only be awaited.
        rig.run(secs(2));
        assert_eq!(rig.answered(raw, channel, tmf), None, "{}", case.state);
        medium.release();
    }
    let answer = rig.answer(raw, channel, tmf);
    assert_eq!(answer.code, Some(0), "{}", case.state);
    assert_eq!(rig.answered(raw, channel, victim), None, "{}", case.state);

    // From here on nothing touches the victim's buffer.
    let (at, len) = (case.before * MIB, case.len);
    let start = rig.raws[raw].memory.addr() + at as u64;
    watch.borrow_mut().forbidden.push(start..start + len as u64);
    let sentinel = rig.raws[raw].fill(at, len, 99);
    medium.release();
    for tag in &tags[..case.before] {
        assert!(rig.answer(raw, channel, *tag).is_good(), "{}", case.state);
    }
    rig.run(secs(2));
    assert_eq!(watch.borrow().touched, Vec::<String>::new(), "{}", case.state);
    assert!(rig.raws[raw].bytes(at, len) == sentinel, "{}", case.state);
    assert_eq!(rig.answered(raw, channel, victim), None, "{}", case.state);
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    rig.audit();
    assert_eq!(rig.raws[raw].channels[channel].credits, 64, "{}", case.state);
}

#[test]
fn abort_while_waiting_for_memory() {
    let (state, drop) = (TaskState::WaitMemory, &[][..]);
    run_case(&Case { state, drop, hangs: true, write: false, external: false, len: 256 * KIB, before: 3 });
}

#[test]
fn abort_while_waiting_for_the_read_window() {
    let (state, drop) = (TaskState::WaitWindow, &READ_RESPONSES[..]);
    run_case(&Case { state, drop, hangs: false, write: true, external: false, len: 4 * KIB, before: 3 });
}

#[test]
fn abort_while_its_descriptor_table_is_read() {
    let (state, drop) = (TaskState::ReadingTable, &READ_RESPONSES[..]);
    run_case(&Case { state, drop, hangs: false, write: false, external: true, len: 64 * KIB, before: 0 });
}

#[test]
fn abort_while_its_data_are_read() {
    let (state, drop) = (TaskState::ReadingData, &READ_RESPONSES[..]);
    run_case(&Case { state, drop, hangs: false, write: true, external: false, len: 256 * KIB, before: 0 });
}

#[test]
fn abort_while_the_disk_reads() {
    let (state, drop) = (TaskState::InBlock, &[][..]);
    run_case(&Case { state, drop, hangs: true, write: false, external: false, len: 64 * KIB, before: 0 });
}

#[test]
fn abort_while_the_disk_writes() {
    let (state, drop) = (TaskState::InBlock, &[][..]);
    run_case(&Case { state, drop, hangs: true, write: true, external: false, len: 64 * KIB, before: 0 });
}

#[test]
fn abort_while_data_are_delivered() {
    let (state, drop) = (TaskState::WritingData, &[Opcode::Acknowledge][..]);
    run_case(&Case { state, drop, hangs: false, write: false, external: false, len: MIB, before: 0 });
}

/// Whatever the moment: on a slow link with a READ window of one, a victim amid others.
#[test]
fn abort_at_any_moment_of_a_long_write_or_read() {
    for write in [true, false] {
        for moment in 0..40 {
            let mut rig = Rig::simple();
            let raw = rig.raw(0);
            let channel = rig.login_with(raw, &Login { responder_resources: 1, ..Login::new(0) });
            rig.ready(raw, channel, 0);
            let tags: Vec<Tag> = (0..5)
                .map(|n| {
                    let tag = rig.raws[raw].tag();
                    let buffer = DataBuffer::Direct(rig.raws[raw].piece(n * MIB, MIB));
                    let base = cmd(tag, 0, [0; 16]);
                    let lba = n as u64 * 2048;
                    let command = if write {
                        Cmd { data_out: buffer, cdb: cdb::write_16(lba, 2048), ..base }
                    } else {
                        Cmd { data_in: buffer, cdb: cdb::read_16(lba, 2048), ..base }
                    };
                    rig.post(raw, channel, &command)
                })
                .collect();
            rig.run(std::time::Duration::from_micros(5 + 37 * moment));
            let early: Vec<bool> =
                tags.iter().map(|tag| rig.answered(raw, channel, *tag).is_some()).collect();
            let tmf = rig.manage(raw, channel, TmfFunction::AbortTask, 0, tags[2]);
            let answer = rig.answer(raw, channel, tmf);
            assert_eq!(answer.code, Some(0), "moment {moment}");
            assert!(answer.at.as_nanos() < rig.now.as_nanos() + 1);
            let sentinel = rig.raws[raw].fill(2 * MIB, MIB, moment);
            let done = rig.answered(raw, channel, tags[2]).is_some();
            assert!(done || !early[2], "moment {moment}");
            for n in [0, 1, 3, 4] {
                assert!(rig.answer(raw, channel, tags[n]).is_good(), "moment {moment}");
            }
            rig.run(ms(100));
            assert_eq!(rig.answered(raw, channel, tags[2]).is_some(), done, "no answer after the promise");
            assert!(rig.raws[raw].bytes(2 * MIB, MIB) == sentinel, "moment {moment}");
            rig.audit();
        }
    }
}

#[test]
fn functions_that_find_nothing_to_end() {
    let (medium, mut rig) = hanging();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    let nobody = Tag(*b"no such ");
    let tmf = rig.manage(raw, channel, TmfFunction::AbortTask, 0, nobody);
    assert_eq!(rig.answer(raw, channel, tmf).code, Some(0), "what is not there is not in the task set");
    let tmf = rig.manage(raw, channel, TmfFunction::ClearAca, 0, NO_TASK_TAG);
    assert_eq!(rig.answer(raw, channel, tmf).code, Some(4), "there is no ACA");
    let tmf = rig.manage(raw, channel, TmfFunction::LunReset, 5, NO_TASK_TAG);
    assert_eq!(rig.answer(raw, channel, tmf).code, Some(5), "no such logical unit");
    for function in [TmfFunction::AbortTaskSet, TmfFunction::ClearTaskSet, TmfFunction::LunReset] {
        let tmf = rig.manage(raw, channel, function, 0, NO_TASK_TAG);
        assert_eq!(rig.answer(raw, channel, tmf).code, Some(0), "{function:?}");
    }
    // A task of another logical unit than the request names stays.
    medium.hang(0..512);
    let tag = rig.raws[raw].tag();
    let data_in = DataBuffer::Direct(rig.raws[raw].piece(0, 512));
    rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_10(0, 1)) });
    rig.run(ms(1));
    let tmf = rig.manage(raw, channel, TmfFunction::AbortTask, 1, tag);
    assert_eq!(rig.answer(raw, channel, tmf).code, Some(0));
    medium.release();
    assert!(rig.answer(raw, channel, tag).is_good());
    rig.audit();
}

fn hanging() -> (std::sync::Arc<disk::Hang>, Rig) {
    let medium = disk::Hang::new(32);
    let rig = Rig::new(Setup::new(vec![lun(0, medium.clone()), lun(1, disk::malloc(1))]));
    (medium, rig)
}

/// Posts a WRITE of the pattern `seed` to `lba`; its buffer is at `at`.
fn post_write(rig: &mut Rig, raw: usize, channel: usize, lba: u64, len: usize, at: usize, seed: u64) -> Tag {
    rig.raws[raw].fill(at, len, seed);
    let tag = rig.raws[raw].tag();
    let data_out = DataBuffer::Direct(rig.raws[raw].piece(at, len));
    rig.post(raw, channel, &Cmd { data_out, ..cmd(tag, 0, cdb::write_16(lba, (len / 512) as u32)) })
}

fn post_read(rig: &mut Rig, raw: usize, channel: usize, lba: u64, len: usize, at: usize) -> Tag {
    let tag = rig.raws[raw].tag();
    let data_in = DataBuffer::Direct(rig.raws[raw].piece(at, len));
    rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_16(lba, (len / 512) as u32)) })
}

#[test]
fn a_reset_ends_the_tasks_of_all_channels_on_both_shards() {
    let (medium, mut rig) = hanging();
    let raws = [rig.raw(0), rig.raw(1)];
    let mut channels = Vec::new();
    for &raw in &raws {
        for _ in 0..2 {
            channels.push((raw, rig.login_multi(raw)));
        }
        for lun in 0..2 {
            let channel = channels.last().unwrap().1;
            rig.ready(raw, channel, lun);
        }
    }
    assert_eq!([rig.stats(0).channels, rig.stats(1).channels], [2, 2], "both nexuses on both shards");
    medium.hang(0..16 << 20);
    let mut own = Vec::new();
    let mut others = Vec::new();
    for &(raw, channel) in &channels {
        for n in 0..10 {
            let tag = post_read(&mut rig, raw, channel, n * 8, 4096, n as usize * 4096);
            if raw == raws[0] { own.push((raw, channel, tag)) } else { others.push((raw, channel, tag)) }
        }
    }
    rig.run(ms(2));
    assert_eq!(medium.held(), 40);
    let (raw, channel) = channels[0];
    let tmf = rig.manage(raw, channel, TmfFunction::LunReset, 0, NO_TASK_TAG);
    rig.run(ms(100));
    // Reads of the nexus that asked are let go; those of the other one are awaited, since they are
    // answered.
    assert_eq!(rig.answered(raw, channel, tmf), None);
    medium.release();
    assert_eq!(rig.answer(raw, channel, tmf).code, Some(0));
    for (raw, channel, tag) in others {
        let answer = rig.answer(raw, channel, tag);
        assert_eq!((answer.status, answer.sense), (0x40, None), "TASK ABORTED");
        assert_eq!((answer.residual_flags, answer.data_in_residual), (0x20, 4096));
    }
    rig.run(ms(100));
    for (raw, channel, tag) in own {
        assert_eq!(rig.answered(raw, channel, tag), None, "its own end in silence");
    }
    // Unit attention for the other nexus, once, whichever channel asks first; none for the one that reset.
    let (other, last) = channels[3];
    assert_eq!(rig.plain(other, last, 0, cdb::TEST_UNIT_READY).sense, Some((6, 0x29, 3)));
    for &(raw, channel) in &channels {
        for lun in 0..2 {
            assert!(rig.plain(raw, channel, lun, cdb::TEST_UNIT_READY).is_good());
        }
        assert_eq!(rig.raws[raw].channels[channel].credits, 64);
    }
    rig.audit();
}

/// Commands that come right behind a function, on its channel, are not in the task set that it ends.
#[test]
fn what_comes_behind_a_function_is_not_ended_by_it() {
    let (medium, mut rig) = hanging();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    for function in [TmfFunction::AbortTaskSet, TmfFunction::ClearTaskSet, TmfFunction::LunReset] {
        medium.hang(0..512);
        let before = post_read(&mut rig, raw, channel, 0, 512, 0);
        rig.run(ms(1));
        let tmf = rig.manage(raw, channel, function, 0, NO_TASK_TAG);
        let behind = post_read(&mut rig, raw, channel, 0, 512, 512);
        assert_eq!(rig.answer(raw, channel, tmf).code, Some(0), "{function:?}");
        medium.release();
        assert!(rig.answer(raw, channel, behind).is_good(), "{function:?}");
        assert_eq!(rig.answered(raw, channel, before), None, "{function:?}");
        rig.audit();
    }
}

#[test]
fn credits_of_silently_ended_commands_come_back_by_a_request() {
    let (medium, mut rig) = hanging();
    let raw = rig.raw(0);
    let channels = [rig.login_multi(raw), rig.login_multi(raw)];
    rig.ready(raw, channels[0], 0);
    medium.hang(0..512);
    for _ in 0..63 {
        post_read(&mut rig, raw, channels[1], 0, 512, 0);
    }
    rig.run(ms(1));
    assert_eq!(rig.raws[raw].channels[channels[1]].credits, 1);
    let tmf = rig.manage(raw, channels[0], TmfFunction::LunReset, 0, NO_TASK_TAG);
    assert_eq!(rig.answer(raw, channels[0], tmf).code, Some(0));
    rig.run(ms(10));
    let inbox = &rig.raws[raw].channels[channels[1]].inbox;
    let request = inbox.last().unwrap();
    assert_eq!((request[0], &request[4..8]), (0x81, &[0, 0, 0, 63][..]), "SRP_CRED_REQ");
    let answer = CredRsp { tag: Tag(request[8..16].try_into().unwrap()) };
    rig.send(raw, channels[1], &answer.emit());
    assert!(rig.plain(raw, channels[1], 0, cdb::TEST_UNIT_READY).is_good());
    medium.release();
    rig.run(ms(10));
    rig.audit();
}

#[test]
fn what_does_not_come_back_in_time_is_told_and_fenced() {
    let (medium, mut rig) = hanging();
    let raw = rig.raw(0);
    let channels = [rig.login_multi(raw), rig.login_multi(raw)];
    rig.ready(raw, channels[0], 0);
    let other = rig.raw(1);
    let beside = rig.login(other);
    rig.ready(other, beside, 0);
    medium.hang(0..4096);
    let old = post_write(&mut rig, raw, channels[0], 0, 4096, 0, 1);
    rig.run(ms(1));
    let asked = rig.now;
    let tmf = rig.manage(raw, channels[0], TmfFunction::AbortTask, 0, old);
    let answer = rig.answer(raw, channels[0], tmf);
    assert_eq!(answer.code, Some(5), "FUNCTION FAILED");
    let waited = answer.at.since(asked);
    assert!(waited >= secs(4) && waited < ms(4_100), "{waited:?}");

    // Later writes to those blocks wait, from whichever channel, shard or nexus.
    let newer = post_write(&mut rig, raw, channels[1], 4, 2048, MIB, 2);
    let newest = post_write(&mut rig, other, beside, 7, 512, 0, 3);
    rig.run(secs(10));
    assert_eq!(medium.held(), 1, "only the old one is at the disk");
    assert_eq!(rig.answered(raw, channels[1], newer), None);
    // Others do not.
    let elsewhere = post_write(&mut rig, other, beside, 8, 4096, MIB, 4);
    assert!(rig.answer(other, beside, elsewhere).is_good());
    medium.release();
    assert!(rig.answer(raw, channels[1], newer).is_good());
    assert!(rig.answer(other, beside, newest).is_good());
    let data = disk::read(medium.medium(), 0, 8192);
    assert_eq!(data[..2048], pattern(4096, 1)[..2048], "the old write");
    assert_eq!(data[2048..3584], pattern(2048, 2)[..1536], "the newer one over it");
    assert_eq!(data[4096..], pattern(4096, 4));
    rig.run(ms(10));
    rig.audit();
    assert_eq!(rig.raws[raw].channels[channels[0]].credits, 64);
}

#[test]
fn a_reset_that_fails_still_answers_the_other_nexus_in_the_end() {
    let (medium, mut rig) = hanging();
    let raws = [rig.raw(0), rig.raw(1)];
    let channels = [rig.login(raws[0]), rig.login(raws[1])];
    for n in 0..2 {
        rig.ready(raws[n], channels[n], 0);
    }
    medium.hang(0..4096);
    let victim = post_write(&mut rig, raws[1], channels[1], 0, 4096, 0, 1);
    rig.run(ms(1));
    let tmf = rig.manage(raws[0], channels[0], TmfFunction::LunReset, 0, NO_TASK_TAG);
    assert_eq!(rig.answer(raws[0], channels[0], tmf).code, Some(5));
    let newer = post_write(&mut rig, raws[0], channels[0], 0, 4096, 0, 2);
    rig.run(secs(3));
    assert_eq!(rig.answered(raws[1], channels[1], victim), None);
    medium.release();
    assert_eq!(rig.answer(raws[1], channels[1], victim).status, 0x40, "TASK ABORTED");
    assert!(rig.answer(raws[0], channels[0], newer).is_good());
    assert_eq!(disk::read(medium.medium(), 0, 4096), pattern(4096, 2));
    rig.run(ms(10));
    rig.audit();
    assert_eq!(rig.raws[raws[1]].channels[channels[1]].credits, 64);
}

/// ib_srp uses a tag again after any answer to task management, so nothing may be answered under it.
#[test]
fn who_ends_a_task_that_another_nexus_has_reset_hears_no_more_of_it() {
    let (medium, mut rig) = hanging();
    let raws = [rig.raw(0), rig.raw(1)];
    let channels = [rig.login(raws[0]), rig.login(raws[1])];
    for n in 0..2 {
        rig.ready(raws[n], channels[n], 0);
    }
    medium.hang(0..4096);
    let write = post_write(&mut rig, raws[1], channels[1], 0, 4096, 0, 1);
    let read = post_read(&mut rig, raws[1], channels[1], 0, 4096, MIB);
    rig.run(ms(1));
    let reset = rig.manage(raws[0], channels[0], TmfFunction::LunReset, 0, NO_TASK_TAG);
    rig.run(ms(1));
    let clear = rig.manage(raws[1], channels[1], TmfFunction::ClearTaskSet, 0, NO_TASK_TAG);
    assert_eq!(rig.answer(raws[1], channels[1], clear).code, Some(5));
    assert_eq!(rig.answer(raws[0], channels[0], reset).code, Some(5));
    medium.release();
    rig.run(secs(1));
    assert_eq!(rig.answered(raws[1], channels[1], write), None);
    assert_eq!(rig.answered(raws[1], channels[1], read), None);
    rig.audit();
}

#[test]
fn immediate_data_keep_slot_and_credit_while_the_disk_has_them() {
    let (medium, mut rig) = hanging();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    medium.hang(0..512);
    let data = pattern(512, 5);
    let tag = rig.raws[raw].tag();
    let data_out = DataBuffer::Immediate { data: &data, offset: 68 };
    rig.post(raw, channel, &Cmd { data_out, ..cmd(tag, 0, cdb::write_10(0, 1)) });
    rig.run(ms(1));
    let tmf = rig.manage(raw, channel, TmfFunction::AbortTask, 0, tag);
    assert_eq!(rig.answer(raw, channel, tmf).code, Some(5));
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    assert_eq!(rig.raws[raw].channels[channel].credits, 63, "the slot is still out");
    rig.audit();
    medium.release();
    rig.run(ms(10));
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    assert_eq!(rig.raws[raw].channels[channel].credits, 64);
    rig.audit();
}

#[test]
fn a_tag_in_use_ends_the_older_command_and_is_answered_once() {
    let (medium, mut rig) = hanging();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    medium.hang(0..512);
    let tag = post_read(&mut rig, raw, channel, 0, 512, 0);
    rig.run(ms(1));
    rig.post(raw, channel, &cmd(tag, 0, cdb::TEST_UNIT_READY));
    let answer = rig.answer(raw, channel, tag);
    assert_eq!(answer.sense, Some((0x0b, 0x4e, 0)), "OVERLAPPED COMMANDS ATTEMPTED");
    medium.release();
    rig.run(ms(100));
    assert!(rig.raws[raw].channels[channel].twice.is_empty());
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    assert_eq!(rig.raws[raw].channels[channel].credits, 64);
    rig.audit();
}

#[test]
fn who_breaks_the_rules_is_disconnected_alone() {
    let (medium, mut rig) = hanging();
    let good = rig.raw(7);
    let beside = [rig.login_multi(good), rig.login_multi(good)];
    rig.ready(good, beside[0], 0);
    let mut short = vec![0; 47];
    short[0] = 0x02;
    let bad: [(&str, Vec<u8>); 9] = [
        ("a command of 47 bytes", short),
        ("nothing", vec![]),
        ("a response", vec![0xc1; 36]),
        ("a login", vec![0x00; 64]),
        ("an opcode that does not exist", vec![0x77; 64]),
        ("a credit response that nobody asked for", CredRsp { tag: Tag(*b"whatever") }.emit().to_vec()),
        ("task management of 47 bytes", vec![0x01; 47]),
        ("a logout of 15 bytes", vec![0x03; 15]),
        ("random bytes", pattern(300, 4).into_iter().map(|byte| byte | 0x20).collect()),
    ];
    for (number, (what, iu)) in bad.iter().enumerate() {
        let raw = rig.raw(20 + number as u8);
        let channel = rig.login(raw);
        rig.ready(raw, channel, 0);
        rig.send(raw, channel, iu);
        rig.until(what, |rig| rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected));
    }
    // An IU longer than was negotiated (here: than any receive slot) ends the queue pair.
    let raw = rig.raw(40);
    let channel = rig.login(raw);
    rig.send(raw, channel, &[2; 8261]);
    rig.until("the end", |rig| matches!(rig.raws[raw].channels[channel].link, Link::Ended(_)));
    // More requests than credits.
    let raw = rig.raw(41);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    medium.hang(0..512);
    for _ in 0..65 {
        post_read(&mut rig, raw, channel, 0, 512, 0);
    }
    rig.until("the end", |rig| {
        rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected)
    });
    medium.release();
    for channel in beside {
        assert!(rig.plain(good, channel, 0, cdb::TEST_UNIT_READY).is_good(), "the neighbour");
    }
    rig.run(ms(500));
    assert_eq!(rig.stats(0).channels + rig.stats(1).channels, 2);
    assert_eq!(rig.shards.iter().map(|shard| shard.counts().violations).sum::<u64>(), 10);
    rig.audit();
    assert_eq!(raw_lun(0).0, [0; 8]);
}
