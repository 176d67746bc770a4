//! Logins: both forms, every refusal, SINGLE and MULTI, credits against receive slots, limits.

use srpoll::rdma::verbs::{ConnEnd, Connections, Service};
use srpoll::target::handle::{Reply, Request};
use srpoll::wire::srp::{BufferFormats, InitiatorLogout, LoginReq, LoginRsp, PortId, Tag};

use crate::rig::raw::{Link, Login};
use crate::rig::{IDENTITY, Rig, Setup, TARGET, cdb, disk, host, limits, lun, ms, secs, target_id};

/// What a login was granted.
fn granted(rig: &Rig, raw: usize, channel: usize) -> LoginRsp {
    match &rig.raws[raw].channels[channel].link {
        Link::Live(response) => *response,
        other => panic!("{other:?}"),
    }
}

/// The reason of a refusal.
fn refused(rig: &mut Rig, raw: usize, login: &Login) -> u32 {
    let channel = rig.try_login(raw, login);
    match &rig.raws[raw].channels[channel].link {
        Link::Refused(rej) => {
            assert_eq!(rej.tag, login.request.tag);
            assert_eq!(rej.formats, BufferFormats::BOTH);
            rej.reason.0
        }
        other => panic!("{other:?}"),
    }
}

fn changed(change: impl FnOnce(&mut LoginReq)) -> Login {
    let mut login = Login::new(0);
    change(&mut login.request);
    login
}

fn disconnect(rig: &mut Rig, raw: usize, channel: usize) {
    let now = rig.now;
    let conn = rig.raws[raw].channels[channel].conn.unwrap();
    rig.raws[raw].device.disconnect(now, conn).unwrap();
}

#[test]
fn both_forms_are_granted_the_same() {
    let mut rig = Rig::simple();
    let full = Login { service: Service::IbCm { service_id: IDENTITY.ioc_guid }, ..Login::new(0) };
    for login in [full, Login::new(1)] {
        let raw = rig.raw(rig.raws.len() as u8);
        let channel = rig.login_with(raw, &login);
        assert_eq!(
            granted(&rig, raw, channel),
            LoginRsp {
                request_limit_delta: 64,
                tag: Tag(*b"login000"),
                max_it_iu_bytes: 8260,
                max_ti_iu_bytes: 132,
                formats: BufferFormats(6),
                flags: 0x80,
            }
        );
        rig.ready(raw, channel, 0);
    }
    // Who asks for no immediate data is granted none.
    let raw = rig.raw(2);
    let mut login = Login::new(2);
    login.request.flags &= !LoginReq::IMMEDIATE;
    let channel = rig.login_with(raw, &login);
    assert_eq!(granted(&rig, raw, channel).flags, 0);
    for raw in 0..3 {
        disconnect(&mut rig, raw, 0);
    }
    rig.clean();
}

#[test]
fn every_refusal_has_its_reason() {
    let mut setup = Setup::new(vec![lun(0, disk::malloc(1))]);
    setup.access = vec!["10.0.0.10", "10.0.0.12"];
    let mut rig = Rig::new(setup);
    let raw = rig.raw(0);
    let mut opcode = LoginReq::emit_compact(&Login::new(0).request);
    opcode[11] = 0x02;
    let no_login = Login { private: Some(opcode.to_vec()), ..Login::new(0) };
    assert_eq!(refused_quietly(&mut rig, raw, &no_login), 0x0001_0000, "an opcode that is no login's");
    for (login, reason, what) in [
        (changed(|request| request.flags |= 2), 0x0001_0000, "reserved multi-channel action 2"),
        (changed(|request| request.flags |= 3), 0x0001_0000, "reserved multi-channel action 3"),
        (changed(|request| request.max_it_iu_bytes = 8261), 0x0001_0002, "longer than a receive slot"),
        (changed(|request| request.max_it_iu_bytes = 63), 0x0001_0002, "shorter than a command"),
        (changed(|request| request.target = PortId::new(1, 2)), 0x0001_0003, "another target"),
        (changed(|request| request.formats = BufferFormats(7)), 0x0001_0004, "a format of its own"),
    ] {
        assert_eq!(refused(&mut rig, raw, &login), reason, "{what}");
    }
    let stranger = rig.raw(1);
    assert_eq!(refused(&mut rig, stranger, &Login::new(1)), 0x0001_0006, "not on the access list");

    // Nobody listens at another port: the connection manager refuses by itself.
    let elsewhere = Login { service: Service::RdmaCm { port: 5556 }, ..Login::new(0) };
    let channel = rig.try_login(raw, &elsewhere);
    let link = rig.raws[raw].channels[channel].link.clone();
    assert!(matches!(link, Link::Ended(ConnEnd::Rejected { reason: 8, .. })), "{link:?}");

    // Who is stopping takes no logins.
    for reply in rig.ask_all(&Request::Drain(ms(100))) {
        assert!(matches!(reply, Reply::Count(0)), "{reply:?}");
    }
    assert_eq!(refused(&mut rig, raw, &Login::new(0)), 0x0001_0001, "the target is stopping");
    rig.clean();
}

/// As `refused`, for a request whose tag cannot be read.
fn refused_quietly(rig: &mut Rig, raw: usize, login: &Login) -> u32 {
    let channel = rig.try_login(raw, login);
    match &rig.raws[raw].channels[channel].link {
        Link::Refused(rej) => rej.reason.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_target_is_there_until_one_is_configured() {
    let mut rig = Rig::simple();
    rig.apply(|snapshot| snapshot.identity = None);
    let raw = rig.raw(0);
    assert_eq!(refused(&mut rig, raw, &changed(|request| request.target = PortId::UNSPECIFIED)), 0x0001_0001);
    rig.apply(|snapshot| snapshot.identity = Some(IDENTITY));
    // An initiator that is given an address only names no target.
    let channel = rig.login_with(raw, &changed(|request| request.target = PortId::UNSPECIFIED));
    rig.ready(raw, channel, 0);
}

#[test]
fn credits_never_exceed_the_receive_slots() {
    // 256 slots a shard: three channels of 64 credits and a control slot, one of what is left.
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let mut credits = Vec::new();
    for _ in 0..8 {
        let channel = rig.login_multi(raw);
        credits.push(granted(&rig, raw, channel).request_limit_delta);
    }
    assert_eq!(credits, [64, 64, 64, 64, 64, 64, 60, 60]);
    for shard in 0..2 {
        let stats = rig.stats(shard);
        assert!(stats.counters.contains(&("recv_granted", 256)), "{stats:?}");
        assert!(stats.counters.contains(&("recv_total", 256)), "{stats:?}");
        assert_eq!(stats.channels, 4);
    }
    assert_eq!(refused(&mut rig, raw, &Login::new(0).multi()), 0x0001_0001, "no slot is left");
    // A channel that goes makes room for another one at once.
    disconnect(&mut rig, raw, 3);
    rig.run(ms(200));
    let channel = rig.login_multi(raw);
    assert_eq!(granted(&rig, raw, channel).request_limit_delta, 64);
    for channel in [0, 1, 2, 4, 5, 6, 7, 9] {
        disconnect(&mut rig, raw, channel);
    }
    rig.clean();
}

#[test]
fn limits_of_channels_and_sessions_hold() {
    let mut setup = Setup::new(vec![lun(0, disk::malloc(1))]);
    setup.limits = limits(|wishes| (wishes.max_channels, wishes.max_sessions) = (3, 2));
    let mut rig = Rig::new(setup);
    let raws: Vec<usize> = (0..3).map(|number| rig.raw(number)).collect();
    rig.login(raws[0]);
    rig.login(raws[1]);
    assert_eq!(refused(&mut rig, raws[2], &Login::new(2)), 0x0001_0006, "a third session");
    rig.login_multi(raws[0]);
    assert_eq!(refused(&mut rig, raws[0], &Login::new(0).multi()), 0x0001_0001, "a fourth channel");
    // One that replaces an older one needs no new room.
    let again = rig.login(raws[1]);
    rig.run(ms(200));
    disconnect(&mut rig, raws[1], again);
    rig.run(ms(200));
    rig.login(raws[2]);
}

#[test]
fn a_nexus_has_as_many_channels_as_the_target_may_have() {
    let mut setup = Setup::new(vec![lun(0, disk::malloc(1))]);
    setup.limits = limits(|wishes| wishes.max_channels = 1);
    let mut rig = Rig::new(setup);
    let raw = rig.raw(0);
    rig.login(raw);
    assert_eq!(refused(&mut rig, raw, &Login::new(0).multi()), 0x0001_0006);
}

#[test]
fn single_replaces_and_multi_adds() {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let first = rig.login(raw);
    rig.ready(raw, first, 0);
    let second = rig.login_multi(raw);
    assert_eq!(granted(&rig, raw, second).flags, 0x80 | LoginRsp::MAINTAINED);
    // The nexus is not new: no unit attention on its second channel, on the other shard.
    assert!(rig.plain(raw, second, 0, cdb::TEST_UNIT_READY).is_good());
    let other = rig.raw(1);
    let beside = rig.login(other);
    rig.ready(other, beside, 0);

    let third = rig.login(raw);
    assert_eq!(granted(&rig, raw, third).flags, 0x80 | LoginRsp::TERMINATED);
    rig.until("the older channels are told", |rig| {
        [first, second]
            .iter()
            .all(|&old| rig.raws[raw].channels[old].link == Link::Ended(ConnEnd::PeerDisconnected))
    });
    let answer = rig.plain(raw, third, 0, cdb::TEST_UNIT_READY);
    assert_eq!(answer.sense, Some((6, 0x29, 7)), "I_T nexus loss");
    assert!(rig.plain(raw, third, 0, cdb::TEST_UNIT_READY).is_good());
    assert!(rig.plain(other, beside, 0, cdb::TEST_UNIT_READY).is_good(), "others notice nothing");
    rig.run(secs(1));
    let stats: Vec<u32> = (0..2).map(|shard| rig.stats(shard).channels).collect();
    assert_eq!(stats.iter().sum::<u32>(), 2);
}

#[test]
fn of_two_logins_at_once_the_newer_one_stays() {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let now = rig.now;
    let channels: Vec<usize> = (0..3).map(|_| rig.raws[raw].connect(now, &Login::new(0))).collect();
    rig.until("answers to all", |rig| {
        rig.raws[raw].channels.iter().all(|channel| channel.link != Link::Connecting)
    });
    rig.run(secs(1));
    let live: Vec<usize> = channels
        .into_iter()
        .filter(|&channel| matches!(rig.raws[raw].channels[channel].link, Link::Live(_)))
        .collect();
    assert_eq!(live, [2]);
    assert!(rig.plain(raw, 2, 0, cdb::TEST_UNIT_READY).sense.is_some());
    assert!(rig.plain(raw, 2, 0, cdb::TEST_UNIT_READY).is_good());
    disconnect(&mut rig, raw, 2);
    rig.clean();
}

#[test]
fn the_first_command_stands_for_a_lost_rtu() {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let channel = rig.login_with(raw, &Login { silent_rtu: true, ..Login::new(0) });
    rig.ready(raw, channel, 0);
    rig.run(secs(20));
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good(), "it is established");
}

#[test]
fn a_login_that_is_never_completed_ends_whether_the_peer_asks_for_time_or_is_gone() {
    for gone in [false, true] {
        let mut rig = Rig::simple();
        let raw = rig.raw(0);
        rig.login_with(raw, &Login { silent_rtu: true, ..Login::new(0) });
        assert_eq!(rig.stats(0).channels + rig.stats(1).channels, 1);
        if gone {
            rig.wire.with_net(|net| net.part(host(0), TARGET));
        }
        rig.run(secs(15));
        assert_eq!(rig.stats(0).channels + rig.stats(1).channels, 1);
        rig.run(secs(6));
        assert_eq!(rig.stats(0).channels + rig.stats(1).channels, 0, "twice --dead-after");
        rig.clean();
    }
}

#[test]
fn a_logout_ends_the_channel_and_leaves_nothing() {
    let mut rig = Rig::simple();
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    let logout = InitiatorLogout { tag: Tag(*b"good bye") };
    rig.send(raw, channel, &logout.emit());
    rig.until("a DREQ", |rig| rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected));
    rig.clean();
    // And a new login works at once.
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    assert_eq!(target_id(), PortId::new(0x1122_3344_5566_7788, 0x0202_03ff_fe04_0506));
}
