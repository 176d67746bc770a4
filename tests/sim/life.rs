//! The life of a queue pair as the target leads it: every exit ends the same way, flushed queue pairs
//! serve the next login, and what hangs or was lost is found.

use std::net::SocketAddr;

use srpoll::rdma::verbs::{Connections, Device, QpModify, Remote, SendOp, SendWr, Sge, SgeList};
use srpoll::target::access::InitiatorId;
use srpoll::target::handle::{Reply, Request, SessionId};
use srpoll::target::life::Life;
use srpoll::target::limits::{ORPHANS_AT_MOST, SPARE_QUEUE_PAIRS};
use srpoll::target::pending::Pending;
use srpoll::target::why::Exits;
use srpoll::wire::num::RKey;
use srpoll::wire::srp::{Cmd, DataBuffer, InitiatorLogout, Tag};

use crate::rig::command::cmd;
use crate::rig::disk::{Hang, malloc};
use crate::rig::raw::Link;
use crate::rig::{PORT, Rig, Setup, TARGET, cdb, host, lun, ms, port_id, secs, target_id};

fn rig() -> Rig {
    Rig::new(Setup { shards: 1, ..Setup::new(vec![lun(0, malloc(8))]) })
}

fn disconnect(rig: &mut Rig, raw: usize, channel: usize) {
    let now = rig.now;
    let conn = rig.raws[raw].channels[channel].conn.unwrap();
    rig.raws[raw].device.disconnect(now, conn).unwrap();
}

/// A read whose data the target sends for a while.
fn long_read(rig: &mut Rig, raw: usize, channel: usize) {
    let tag = rig.raws[raw].tag();
    let data_in = DataBuffer::Direct(rig.raws[raw].piece(0, 1 << 20));
    rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_16(0, 2048)) });
}

fn pending(rig: &mut Rig) -> Pending {
    match rig.ask(0, Request::Pending { min_age: secs(0), most: 100 }) {
        Reply::Pending(pending) => *pending,
        other => panic!("{other:?}"),
    }
}

/// Every exit with its counter, each with commands on the way: one channel ends, its queue pair is a
/// spare, nothing is left, and the next login has that queue pair under another number.
#[test]
fn every_exit_leads_to_the_spares() {
    type Exit = fn(&mut Rig, usize, usize);
    let exits: [(&str, Exit); 9] = [
        ("ended_disconnected", disconnect),
        ("ended_logged_out", |rig, raw, channel| {
            rig.send(raw, channel, &InitiatorLogout { tag: Tag([1; 8]) }.emit());
        }),
        ("ended_violation", |rig, raw, channel| rig.send(raw, channel, &[0x77; 40])),
        ("ended_remote_access", |rig, raw, channel| {
            let tag = rig.raws[raw].tag();
            let data_in = DataBuffer::Direct(rig.raws[raw].wrong_piece(0, 4096));
            rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_10(0, 8)) });
        }),
        ("ended_silent", |rig, raw, channel| {
            let (now, qp) = (rig.now, rig.raws[raw].channels[channel].qp);
            rig.raws[raw].device.modify_qp(now, qp, &QpModify::Err).unwrap();
        }),
        ("ended_kicked", |rig, _, _| {
            let session = SessionId { initiator: InitiatorId(port_id(0).0), target: target_id().0 };
            rig.ask(0, Request::Disconnect(session));
        }),
        ("ended_listener_removed", |rig, _, _| {
            let listener = SocketAddr::new(TARGET, PORT);
            assert!(matches!(
                rig.ask(0, Request::EndSessionsOf(SocketAddr::new(TARGET, PORT + 1).into())),
                Reply::Count(0)
            ));
            assert!(matches!(rig.ask(0, Request::EndSessionsOf(listener.into())), Reply::Count(1)));
        }),
        ("ended_replaced", |rig, raw, _| {
            let channel = rig.login(raw);
            rig.run(secs(1));
            disconnect(rig, raw, channel);
        }),
        ("ended_bad_request", |rig, raw, channel| {
            // A target has no memory for anybody.
            let now = rig.now;
            let raw = &mut rig.raws[raw];
            let sge = Sge { addr: raw.memory.addr(), len_bytes: 64, lkey: raw.keys.lkey };
            let op = SendOp::Write(Remote { addr: 4096, rkey: RKey(7) });
            let wr = SendWr { wr_id: u64::MAX, op, sges: SgeList::one(sge), signaled: false };
            let qp = raw.channels[channel].qp;
            raw.device.post_send(now, qp, &wr).unwrap();
        }),
    ];
    assert!(exits.iter().all(|(name, _)| Exits::NAMES.contains(name)));
    for (name, exit) in exits {
        let mut rig = rig();
        let raw = rig.raw(0);
        let channel = rig.login(raw);
        rig.ready(raw, channel, 0);
        for _ in 0..4 {
            long_read(&mut rig, raw, channel);
        }
        rig.run(std::time::Duration::from_micros(40));
        exit(&mut rig, raw, channel);
        rig.until(name, |rig| rig.counter(name) == 1);
        // What came instead of the old one goes, too.
        for number in 0..rig.raws[raw].channels.len() {
            if matches!(rig.raws[raw].channels[number].link, Link::Live(_)) && number != channel {
                disconnect(&mut rig, raw, number);
            }
        }
        rig.clean();
        assert_eq!(rig.counter("drains_overdue"), 0, "{name}");
        let (made, spare) = (rig.counter("qps_made"), rig.counter("qps_spare"));
        assert_eq!((made, spare), (made, made), "{name}: every queue pair is a spare");
        let raw = rig.raw(1);
        let channel = rig.login(raw);
        rig.ready(raw, channel, 0);
        assert_eq!(rig.counter("qps_made"), made, "{name}: no new one");
        assert!(rig.counter("qps_reused") >= 1, "{name}");
        disconnect(&mut rig, raw, channel);
        rig.clean();
    }
}

/// What `srpt_ch_qp_err` and its callers do, spec "channel life cycle": two who end a channel are one
/// end, the queue pair is in ERR at once, and it goes only after the marker's flush and with its last
/// command.
#[test]
fn a_channel_ends_as_ib_srpt_ends_one() {
    let medium = Hang::new(8);
    let mut rig = Rig::new(Setup { shards: 1, ..Setup::new(vec![lun(0, medium.clone())]) });
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    medium.hang(0..8 << 20);
    for _ in 0..3 {
        long_read(&mut rig, raw, channel);
    }
    rig.run(ms(1));
    let session = SessionId { initiator: InitiatorId(port_id(0).0), target: target_id().0 };
    // The administrator, the initiator and a violation, all in one moment: the first one counts.
    let asked = rig.post_request(0, Request::Disconnect(session));
    rig.send(raw, channel, &[0x77; 40]);
    disconnect(&mut rig, raw, channel);
    rig.run(ms(200));
    assert!(matches!(asked.try_recv(), Ok((0, Reply::Count(1)))));
    assert_eq!(rig.counter("channels_ended"), 1);
    assert_eq!(rig.counter("ended_kicked"), 1);
    // The disk hangs, and no session does.
    assert_eq!(rig.stats(0).channels, 0);
    assert_eq!(rig.counter("qps_spare"), 1);
    let left = pending(&mut rig);
    assert_eq!(left.tasks.len(), 3, "{left:?}");
    for task in &left.tasks {
        assert_eq!((task.operation, task.state.as_str()), ("read", "aborted_in_block"), "{task:?}");
        assert!(task.orphan && task.session.is_none() && task.lun == Some(0), "{task:?}");
    }
    assert!(left.queue_pairs.is_empty());
    medium.release();
    rig.clean();
}

#[test]
fn spares_are_bounded() {
    let limits = crate::rig::limits(|wishes| {
        wishes.memory_bytes = 128 << 20;
        wishes.max_channels = 200;
        wishes.max_sessions = 200;
    });
    let mut rig = Rig::new(Setup { shards: 1, limits, ..Setup::new(vec![lun(0, malloc(1))]) });
    rig.audits = false;
    let raw = rig.raw(0);
    let many = 60;
    for round in 0..2 {
        let channels: Vec<usize> = (0..many).map(|_| rig.login_multi(raw)).collect();
        assert_eq!(rig.counter("qps_made"), many, "round {round}");
        for channel in channels {
            disconnect(&mut rig, raw, channel);
        }
        rig.clean();
        assert_eq!(rig.counter("qps_spare"), many);
    }
    assert!((many as usize) < SPARE_QUEUE_PAIRS);
    let others: Vec<usize> = (1..3).map(|number| rig.raw(number)).collect();
    for &raw in &others {
        let channels: Vec<usize> = (0..40).map(|_| rig.login_multi(raw)).collect();
        rig.ready(raw, channels[0], 0);
    }
    assert_eq!(rig.counter("qps_made"), 80);
    for &raw in &others {
        for channel in 0..40 {
            disconnect(&mut rig, raw, channel);
        }
    }
    rig.clean();
    assert_eq!(rig.counter("qps_spare"), SPARE_QUEUE_PAIRS as u64);
    assert_eq!(rig.counter("qps_destroyed"), 80 - SPARE_QUEUE_PAIRS as u64);
}

/// An adapter that keeps receives of a queue pair that died: nobody can tell while others live; the
/// last one's end brings it to light, and all slots are posted again.
#[test]
fn lost_receives_are_found_and_made_up_for() {
    let mut rig = rig();
    let (first, second) = (rig.raw(0), rig.raw(1));
    let channels = [rig.login(first), rig.login(second)];
    rig.ready(first, channels[0], 0);
    rig.ready(second, channels[1], 0);
    rig.shards[0].fabric_mut().lose_receives(100);
    disconnect(&mut rig, first, channels[0]);
    rig.run(secs(2));
    assert_eq!((rig.counter("recv_lost"), rig.counter("queues_renewed")), (0, 0), "one lives");
    assert!(rig.plain(second, channels[1], 0, cdb::TEST_UNIT_READY).is_good());
    disconnect(&mut rig, second, channels[1]);
    rig.until("the receives are counted", |rig| rig.counter("queues_renewed") == 1);
    assert_eq!(rig.counter("recv_lost"), 100);
    rig.clean();
    // The spares were bound to the old queue; a new one works with the new queue.
    assert_eq!(rig.counter("qps_spare"), 0);
    let channel = rig.login(first);
    rig.ready(first, channel, 0);
    // More commands than slots were left, so that the new queue is used.
    for _ in 0..300 {
        assert!(rig.plain(first, channel, 0, cdb::TEST_UNIT_READY).is_good());
    }
    disconnect(&mut rig, first, channel);
    rig.clean();
    rig.run(secs(2));
    assert_eq!(rig.counter("queues_renewed"), 1, "nothing is missing now");
}

/// More commands are given up at hung disks than there are places beside those of living ones.
#[test]
fn orphans_of_hung_disks_leave_the_living_their_places() {
    let hung = [Hang::new(8), Hang::new(8)];
    let luns = vec![lun(0, hung[0].clone()), lun(1, hung[1].clone()), lun(2, malloc(8))];
    // 512 receive slots; a command's data take a page of 1.8 MiB.
    let limits = crate::rig::limits(|wishes| wishes.memory_bytes = 8 << 20);
    let mut rig = Rig::new(Setup { shards: 1, limits, ..Setup::new(luns) });
    rig.audits = false;
    let raw = rig.raw(0);
    hung.iter().for_each(|disk| disk.hang(0..8 << 20));
    for round in 0..6 {
        let channel = rig.login(raw);
        let at = if round < 4 { 0 } else { 1 };
        for lun in 0..3 {
            rig.ready(raw, channel, lun);
        }
        for _ in 0..60 {
            let tag = rig.raws[raw].tag();
            let data_in = DataBuffer::Direct(rig.raws[raw].piece(0, 512));
            rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, at, cdb::read_10(0, 1)) });
        }
        rig.run(ms(5));
        disconnect(&mut rig, raw, channel);
        rig.until("it is gone", |rig| rig.stats(0).channels == 0);
        rig.audit();
    }
    assert_eq!(rig.counter("orphans_now"), 360);
    assert!(rig.stats(0).counters.contains(&("recv_granted", 360 - ORPHANS_AT_MOST as u64)));
    let channel = rig.login(raw);
    rig.ready(raw, channel, 2);
    for _ in 0..100 {
        assert!(rig.plain(raw, channel, 2, cdb::TEST_UNIT_READY).is_good());
    }
    rig.run(ms(5));
    let left = pending(&mut rig);
    assert_eq!((left.tasks.len(), left.more), (100, 260), "the oldest hundred, as was asked");
    disconnect(&mut rig, raw, channel);
    hung.iter().for_each(|disk| disk.release());
    rig.clean();
}

#[test]
fn a_silent_peer_is_told_through_all_retries() {
    let mut rig = rig();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    rig.wire.with_net(|net| net.part(host(0), TARGET));
    rig.until("the target gives it up", |rig| rig.counter("ended_silent") == 1);
    // Fifteen retries of half a second: it hears of it just before the last one.
    rig.run(secs(8));
    rig.wire.with_net(|net| net.heal(host(0), TARGET));
    rig.until_within("it learns of its end", secs(2), |rig| {
        matches!(rig.raws[raw].channels[channel].link, Link::Ended(_))
    });
    rig.clean();
}

#[test]
fn words_of_lives_are_those_of_the_interface() {
    let words: Vec<_> = Life::ALL.iter().map(|life| life.word()).collect();
    assert_eq!(
        words,
        [
            "connecting",
            "live",
            "draining",
            "quiescing",
            "flushed",
            "condemned",
            "cooling",
            "recycled",
            "destroyed"
        ]
    );
}
