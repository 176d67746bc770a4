//! Ends of channels: each way to go, with work in flight, leaves nothing behind and lets a new login in.

use srpoll::rdma::verbs::{ConnEnd, Connections, Device, QpModify};
use srpoll::target::access::InitiatorId;
use srpoll::target::handle::{Reply, Request, SessionId};
use srpoll::target::why::Why;
use srpoll::wire::srp::{Cmd, DataBuffer, Tag};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::rig::command::{cmd, pattern};
use crate::rig::disk::Hang;
use crate::rig::raw::{Link, Login};
use crate::rig::{PORT, Rig, Setup, TARGET, cdb, disk, host, lun, ms, port_id, secs, target_id};

const MIB: usize = 1 << 20;

/// Channels that ended because their peer was silent.
fn silent(rig: &Rig) -> u64 {
    let why = Why::Silent(std::time::Duration::ZERO);
    rig.shards.iter().map(|shard| shard.counts().exits.of(&why)).sum()
}

/// Two shards, a hanging disk, and a neighbour with a channel on each shard.
struct Scene {
    rig: Rig,
    medium: Arc<Hang>,
    neighbour: (usize, [usize; 2]),
}

fn scene() -> Scene {
    let medium = Hang::new(32);
    let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone()), lun(1, disk::malloc(8))]));
    let raw = rig.raw(9);
    let channels = [rig.login_multi(raw), rig.login_multi(raw)];
    rig.ready(raw, channels[0], 0);
    rig.ready(raw, channels[0], 1);
    Scene { rig, medium, neighbour: (raw, channels) }
}

impl Scene {
    /// A victim with work in every stage: at the hanging disk, on the wire, in line.
    fn victim(&mut self, number: u8) -> (usize, usize) {
        let rig = &mut self.rig;
        let raw = rig.raw(number);
        let channel = rig.login(raw);
        rig.ready(raw, channel, 0);
        rig.ready(raw, channel, 1);
        self.medium.hang(0..MIB as u64);
        for n in 0..6 {
            self.write(raw, channel, 0, n * 8, 4096, 1);
            self.read(raw, channel, 0, n * 8, 4096);
        }
        for n in 0..8 {
            self.write(raw, channel, 1, n * 1024, MIB / 2, 2);
            self.read(raw, channel, 1, n * 1024, MIB / 2);
        }
        self.rig.run(std::time::Duration::from_micros(60));
        (raw, channel)
    }

    fn write(&mut self, raw: usize, channel: usize, lun: u16, lba: usize, len: usize, seed: u64) -> Tag {
        let at = 8 * MIB + lba * 512;
        self.rig.raws[raw].fill(at, len, seed);
        let tag = self.rig.raws[raw].tag();
        let data_out = DataBuffer::Direct(self.rig.raws[raw].piece(at, len));
        let cdb = cdb::write_16(lba as u64, (len / 512) as u32);
        self.rig.post(raw, channel, &Cmd { data_out, ..cmd(tag, lun, cdb) })
    }

    fn read(&mut self, raw: usize, channel: usize, lun: u16, lba: usize, len: usize) -> Tag {
        let tag = self.rig.raws[raw].tag();
        let data_in = DataBuffer::Direct(self.rig.raws[raw].piece(32 * MIB + lba * 512, len));
        let cdb = cdb::read_16(lba as u64, (len / 512) as u32);
        self.rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, lun, cdb) })
    }

    /// The victim is gone although its disk still hangs; the neighbour is well; when the disk is back
    /// nothing is left of anything.
    fn check(mut self, what: &str) {
        let (raw, channels) = self.neighbour;
        self.rig.until_within("the victim is gone", secs(20), |rig| {
            rig.shards.iter().map(|shard| shard.counts().channels_ended()).sum::<u64>() >= 1
        });
        self.rig.run(ms(400));
        let left: u32 = (0..2).map(|shard| self.rig.stats(shard).channels).sum();
        assert_eq!(left, 2, "{what}: only the neighbour is left, whatever hangs");
        for channel in channels {
            let answer = self.rig.read_in(raw, channel, 1, cdb::read_10(0, 64), 0, 32_768);
            assert!(answer.is_good(), "{what}: {answer:?}");
        }
        // A write of the neighbour to the blocks that an orphan may still change waits for it.
        let newer = self.write(raw, channels[1], 0, 0, 4096, 77);
        self.rig.run(secs(1));
        assert_eq!(self.rig.answered(raw, channels[1], newer), None, "{what}");
        self.rig.audit();
        self.medium.release();
        assert!(self.rig.answer(raw, channels[1], newer).is_good(), "{what}");
        assert_eq!(disk::read(self.medium.medium(), 0, 4096), pattern(4096, 77), "{what}");
        for channel in channels {
            let now = self.rig.now;
            let conn = self.rig.raws[raw].channels[channel].conn.unwrap();
            self.rig.raws[raw].device.disconnect(now, conn).unwrap();
        }
        self.rig.clean();
        let overdue: u64 = self.rig.shards.iter().map(|shard| shard.counts().drains_overdue).sum();
        assert_eq!(overdue, 0, "{what}");
    }
}

#[test]
fn the_initiator_disconnects() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    let now = scene.rig.now;
    let conn = scene.rig.raws[raw].channels[channel].conn.unwrap();
    scene.rig.raws[raw].device.disconnect(now, conn).unwrap();
    scene.check("DREQ");
}

#[test]
fn the_initiator_falls_silent() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    scene.rig.wire.with_net(|net| net.part(host(0), TARGET));
    let since = scene.rig.now;
    scene.rig.until("the target gives it up", |rig| silent(rig) == 1);
    let silence = scene.rig.now.since(since);
    assert!(silence >= secs(9) && silence <= secs(12), "--dead-after is 10 s: {silence:?}");
    // It comes back within the retries of our DREQ and learns that it was given up.
    scene.rig.run(secs(3));
    scene.rig.wire.with_net(|net| net.heal(host(0), TARGET));
    scene
        .rig
        .until("it learns of its end", |rig| matches!(rig.raws[raw].channels[channel].link, Link::Ended(_)));
    scene.check("silence");
}

#[test]
fn an_idle_peer_is_probed_and_stays_if_it_lives() {
    let mut scene = scene();
    let raw = scene.rig.raw(0);
    let channel = scene.rig.login(raw);
    scene.rig.run(secs(60));
    assert!(matches!(scene.rig.raws[raw].channels[channel].link, Link::Live(_)));
    // One that dies idle is noticed, too.
    scene.rig.wire.with_net(|net| net.part(host(0), TARGET));
    scene.rig.run(secs(16));
    assert_eq!(silent(&scene.rig), 1);
    scene.rig.run(secs(10));
    let (neighbour, channels) = scene.neighbour;
    for channel in channels {
        assert!(matches!(scene.rig.raws[neighbour].channels[channel].link, Link::Live(_)));
    }
    assert_eq!(scene.rig.stats(0).channels + scene.rig.stats(1).channels, 2);
}

#[test]
fn the_queue_pair_of_the_initiator_fails() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    // Its side goes to ERR without a word: the next packet that it does not answer tells nothing, the
    // silence does.
    let now = scene.rig.now;
    let qp = scene.rig.raws[raw].channels[channel].qp;
    scene.rig.raws[raw].device.modify_qp(now, qp, &QpModify::Err).unwrap();
    scene.check("ERR at the initiator");
}

#[test]
fn a_wrong_key_amid_other_work() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    let tag = scene.rig.raws[raw].tag();
    let data_in = DataBuffer::Direct(scene.rig.raws[raw].wrong_piece(0, 4096));
    scene.rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 1, cdb::read_10(0, 8)) });
    scene.check("a wrong key");
}

#[test]
fn a_logout_amid_other_work() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    let logout = srpoll::wire::srp::InitiatorLogout { tag: Tag(*b"good bye") };
    scene.rig.send(raw, channel, &logout.emit());
    scene.check("I_LOGOUT");
}

#[test]
fn an_administrator_ends_the_session() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    let session = SessionId { initiator: InitiatorId(port_id(0).0), target: target_id().0 };
    let told: usize = scene
        .rig
        .ask_all(&Request::Disconnect(session))
        .into_iter()
        .map(|reply| match reply {
            Reply::Count(count) => count,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(told, 1);
    scene.rig.until("a DREQ", |rig| {
        rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected)
    });
    scene.check("an administrator");
}

#[test]
fn a_new_login_replaces_a_channel_whose_write_hangs() {
    let mut scene = scene();
    let (raw, old) = scene.victim(0);
    let asked = scene.rig.now;
    let new = scene.rig.login(raw);
    assert!(scene.rig.now.since(asked) < secs(1), "the hanging disk holds up nobody");
    let answer = scene.rig.plain(raw, new, 0, cdb::TEST_UNIT_READY);
    assert_eq!(answer.sense, Some((6, 0x29, 7)));
    scene.rig.until("the old one is told", |rig| {
        rig.raws[raw].channels[old].link == Link::Ended(ConnEnd::PeerDisconnected)
    });
    // What the old channel wrote may still land; what the new one writes there comes after it.
    let newer = scene.write(raw, new, 0, 0, 4096, 50);
    let beside = scene.write(raw, new, 0, 4096, 4096, 51);
    assert!(scene.rig.answer(raw, new, beside).is_good());
    scene.rig.run(secs(5));
    assert_eq!(scene.rig.answered(raw, new, newer), None);
    scene.medium.release();
    assert!(scene.rig.answer(raw, new, newer).is_good());
    assert_eq!(disk::read(scene.medium.medium(), 0, 4096), pattern(4096, 50));
    scene.medium.hang(0..MIB as u64);
    scene.write(raw, new, 0, 0, 4096, 1);
    scene.rig.run(ms(1));
    let now = scene.rig.now;
    let conn = scene.rig.raws[raw].channels[new].conn.unwrap();
    scene.rig.raws[raw].device.disconnect(now, conn).unwrap();
    scene.check("a new login");
}

#[test]
fn a_drain_waits_for_work_and_cuts_off_what_hangs() {
    let mut scene = scene();
    let (raw, channel) = scene.victim(0);
    let asked = scene.rig.now;
    let cut: usize = scene
        .rig
        .ask_all(&Request::Drain(secs(8)))
        .into_iter()
        .map(|reply| match reply {
            Reply::Count(count) => count,
            other => panic!("{other:?}"),
        })
        .sum();
    let took = scene.rig.now.since(asked);
    assert!(took >= secs(8) && took < secs(9), "{took:?}");
    assert_eq!(cut, 12, "what hangs at the disk; the rest was done");
    scene.rig.until("a DREQ", |rig| {
        rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected)
    });
    scene.medium.release();
    scene.rig.clean();
}

#[test]
fn a_drain_of_idle_sessions_is_done_at_once() {
    let mut scene = scene();
    let asked = scene.rig.now;
    for reply in scene.rig.ask_all(&Request::Drain(secs(8))) {
        assert!(matches!(reply, Reply::Count(0)), "{reply:?}");
    }
    assert!(scene.rig.now.since(asked) < secs(1), "{:?}", scene.rig.now.since(asked));
    let (raw, channels) = scene.neighbour;
    for channel in channels {
        assert_eq!(scene.rig.raws[raw].channels[channel].link, Link::Ended(ConnEnd::PeerDisconnected));
    }
    scene.rig.clean();
}

#[test]
fn sessions_outlive_their_listener_and_its_port_goes_with_the_last() {
    let mut scene = scene();
    let address = SocketAddr::new(TARGET, PORT);
    for reply in scene.rig.ask_all(&Request::RemoveListener(address.into())) {
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    }
    scene.rig.run(secs(1));
    let (raw, channels) = scene.neighbour;
    for channel in channels {
        assert!(scene.rig.read_in(raw, channel, 1, cdb::read_10(0, 8), 0, 4096).is_good());
    }
    // No new login, although somebody still receives there.
    let stranger = scene.rig.raw(0);
    let channel = scene.rig.try_login(stranger, &Login::new(0));
    let link = &scene.rig.raws[stranger].channels[channel].link;
    assert!(matches!(link, Link::Ended(ConnEnd::Rejected { reason: 8, .. })), "{link:?}");
    for channel in channels {
        let now = scene.rig.now;
        let conn = scene.rig.raws[raw].channels[channel].conn.unwrap();
        scene.rig.raws[raw].device.disconnect(now, conn).unwrap();
    }
    scene.rig.clean();
    scene.rig.run(secs(2));
    let before = scene.rig.wire.unclaimed();
    let now = scene.rig.now;
    scene.rig.raws[stranger].connect(now, &Login::new(0));
    scene.rig.run(secs(1));
    assert!(scene.rig.wire.unclaimed() > before, "nobody receives any more");
    // And the address can be served again.
    for shard in 0..2 {
        let reply = scene.rig.ask(shard, Request::AddListener(address.into()));
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    }
    let channel = scene.rig.login(raw);
    scene.rig.ready(raw, channel, 1);
}

#[test]
fn a_thousand_logins_that_come_and_go_leave_nothing() {
    let mut scene = scene();
    scene.rig.audits = false;
    let raws: Vec<usize> = (0..8).map(|number| scene.rig.raw(number)).collect();
    for round in 0..60 {
        let now = scene.rig.now;
        for &raw in &raws {
            let login = Login::new(scene.rig.raws[raw].number);
            scene.rig.raws[raw].connect(now, &login);
        }
        // Cut at some moment of the login, or after it.
        scene.rig.run(std::time::Duration::from_micros(15 * (round % 9)));
        let now = scene.rig.now;
        for (n, &raw) in raws.iter().enumerate() {
            let device = &mut scene.rig.raws[raw];
            let channel = device.channels.last().unwrap();
            let (conn, qp) = (channel.conn, channel.qp);
            if let (Some(conn), true) = (conn, n % 2 == 0) {
                let _ = device.device.disconnect(now, conn);
            }
            let _ = device.device.destroy_qp(now, qp);
        }
    }
    scene.rig.audit();
    scene.rig.run(secs(30));
    let (raw, channels) = scene.neighbour;
    for channel in channels {
        assert!(scene.rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
        let now = scene.rig.now;
        let conn = scene.rig.raws[raw].channels[channel].conn.unwrap();
        scene.rig.raws[raw].device.disconnect(now, conn).unwrap();
    }
    scene.rig.clean();
}
