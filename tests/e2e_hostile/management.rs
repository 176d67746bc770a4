//! Messages of the connection manager that lie.

use std::net::IpAddr;
use std::time::Duration;

use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::cm::{CmMad, CmaHeader, CommId, Dreq, Gid, Message, Req, Rtu, rdma_cm, reason};
use srpoll::wire::ext::Deth;
use srpoll::wire::num::{Psn, Qpn};
use srpoll::wire::packet::Ext;
use srpoll::wire::srp::{BufferFormats, LoginRej, LoginReq, PortId, RejReason};

use super::Bout;
use super::raw::{PATIENCE, PORT, Peer, Wire, login, req};

#[test]
fn requests_that_lie_are_refused_with_the_reason() {
    let mut bout = Bout::begin(2);
    let wire = bout.wire();
    let good = req(&wire, 1, &login(1));
    let elsewhere = IpAddr::from([127, 9, 9, 9]);
    let header = |source, destination| {
        let mut private_data = good.private_data;
        let mut head = [0; 36];
        CmaHeader::new(source, destination, 1).unwrap().emit(&mut head);
        private_data[..36].copy_from_slice(&head);
        private_data
    };
    let mut no_version = good.private_data;
    no_version[0] = 1;
    let wrong: [(&str, Req, u16); 12] = [
        (
            "a source GID of somebody else",
            Req { local_gid: Gid::from(elsewhere), ..good },
            reason::INVALID_GID,
        ),
        ("a GID that is not ours", Req { remote_gid: Gid::from(elsewhere), ..good }, reason::INVALID_GID),
        ("a GID that is nobody's", Req { local_gid: Gid([0; 16]), ..good }, reason::INVALID_GID),
        (
            "an RDMA-CM source that lies",
            Req { private_data: header(elsewhere, wire.target), ..good },
            reason::INVALID_GID,
        ),
        (
            "an RDMA-CM destination that lies",
            Req { private_data: header(wire.local, elsewhere), ..good },
            reason::INVALID_SERVICE_ID,
        ),
        ("an RDMA-CM version", Req { private_data: no_version, ..good }, reason::INVALID_SERVICE_ID),
        (
            "a port where nobody listens",
            Req { service_id: rdma_cm::service_id(PORT + 1), ..good },
            reason::INVALID_SERVICE_ID,
        ),
        (
            "a service that nobody has",
            Req { service_id: 0x1234_5678_9abc, ..good },
            reason::INVALID_SERVICE_ID,
        ),
        ("a datagram transport", Req { transport: 2, ..good }, reason::INVALID_TRANSPORT),
        ("a reserved path MTU", Req { path_mtu: 9, ..good }, reason::INVALID_MTU),
        ("queue pair 0", Req { local_qpn: Qpn::new(0), ..good }, reason::UNSUPPORTED),
        ("queue pair 1", Req { local_qpn: Qpn::GSI, ..good }, reason::UNSUPPORTED),
    ];
    let since = bout.target.stats();
    for (what, request, reason) in wrong {
        wire.send_mad(&CmMad::new(77, request));
        let rej = wire.expect_rej(what);
        assert_eq!((rej.reason, rej.remote_id, rej.local_id), (reason, good.local_id, CommId(0)), "{what}");
    }
    bout.counted(&since, &["cm_refused"], 12);

    // The connection is in order, the login is not: consumer defined, and SRP_LOGIN_REJ says why.
    let base = login(1);
    let logins: [(&str, LoginReq, RejReason); 6] = [
        ("units longer than slots", LoginReq { max_it_iu_bytes: 8261, ..base }, RejReason::IU_TOO_LARGE),
        ("units shorter than a command", LoginReq { max_it_iu_bytes: 63, ..base }, RejReason::IU_TOO_LARGE),
        ("a format there is not", LoginReq { formats: BufferFormats(0x0008), ..base }, RejReason::FORMAT),
        ("a reserved channel action", LoginReq { flags: 0x02, ..base }, RejReason::NO_REASON),
        ("another target", LoginReq { target: PortId::new(1, 2), ..base }, RejReason::NO_NEXUS),
        ("units of four gigabytes", LoginReq { max_it_iu_bytes: u32::MAX, ..base }, RejReason::IU_TOO_LARGE),
    ];
    let since = bout.target.stats();
    let expect = |what: &str, number: u32, reason: RejReason| {
        let rej = wire.expect_rej(what);
        assert_eq!((rej.reason, rej.remote_id), (LoginRej::CM_REASON, CommId(0x1000 + number)), "{what}");
        assert_eq!(LoginRej::parse(&rej.private_data).unwrap().reason, reason, "{what}");
    };
    for (number, (what, login, reason)) in (10..).zip(logins) {
        wire.send_mad(&CmMad::new(78, req(&wire, number, &login)));
        expect(what, number, reason);
    }
    // Private data that are no login at all.
    for (number, byte) in [(30, 0xff), (31, 0x5a)] {
        let mut request = req(&wire, number, &base);
        request.private_data[36..].fill(byte);
        wire.send_mad(&CmMad::new(79, request));
        expect("private data of one byte", number, RejReason::NO_REASON);
    }
    // The 64-byte login at the plain IB-CM service, with the same errors.
    let ioc_guid = bout.target.rpc("srp_get_targets", &serde_json::json!({}))[0]["ioc_guid"].clone();
    let service_id = u64::from_str_radix(ioc_guid.as_str().unwrap(), 16).unwrap();
    let mut request = Req { service_id, ..req(&wire, 40, &base) };
    request.private_data = [0; 92];
    request.private_data[..64].copy_from_slice(&LoginReq { max_it_iu_bytes: 9000, ..base }.emit_full());
    wire.send_mad(&CmMad::new(80, request));
    expect("a full login for long units", 40, RejReason::IU_TOO_LARGE);
    let mut request = Req { service_id, ..req(&wire, 41, &base) };
    request.private_data.fill(0xc1);
    wire.send_mad(&CmMad::new(80, request));
    expect("no full login at all", 41, RejReason::NO_REASON);
    bout.counted(&since, &["logins_refused"], 10);
    bout.end();
}

#[test]
fn noise_at_the_connection_manager() {
    let mut bout = Bout::begin(52);
    let wire = bout.wire();
    let mut rng = fastrand::Rng::with_seed(3);

    // No management datagrams: another Q_Key, another length, another transport.
    let since = bout.target.stats();
    let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(1));
    wire.send(bth, Ext::Deth(Deth { qkey: 1, ..Deth::GSI }), &[0; 256]);
    wire.send(bth, Ext::Deth(Deth::GSI), &[0; 255]);
    wire.send(bth, Ext::Deth(Deth::GSI), &[0; 512]);
    wire.send(bth, Ext::Deth(Deth::GSI), &[]);
    wire.send(Bth { opcode: Opcode::SendOnly, ..bth }, Ext::None, &[0; 256]);
    bout.counted(&since, &["bad_gsi"], 5);

    // Of 256 bytes, and nonsense.
    let since = bout.target.stats();
    let mut subnet = CmMad::new(1, Rtu::default()).emit();
    subnet[1] = 0x81;
    let mut no_attribute = CmMad::new(1, Rtu::default()).emit();
    no_attribute[17] = 0x77;
    wire.send_mad_bytes(&subnet);
    wire.send_mad_bytes(&no_attribute);
    for _ in 0..198 {
        let mad: Vec<u8> = (0..256).map(|_| rng.u8(..)).collect();
        wire.send_mad_bytes(&mad);
    }
    bout.counted(&since, &["cm_malformed"], 200);

    // Messages of every kind about connections that there are not. DREQ is answered always, so that
    // the peer can stop; LAP and SIDR_REQ are refused; the others are dropped.
    let since = bout.target.stats();
    let mut body = [0; 232];
    for attribute in 0x11..=0x1a {
        for _ in 0..20 {
            body.iter_mut().for_each(|byte| *byte = rng.u8(..));
            // A REJ that names no id of ours means the connection of the peer's GUID and id.
            let message = Message::parse(attribute, &body).unwrap();
            wire.send_mad(&CmMad { header: srpoll::wire::mad::MadHeader::cm(5, attribute), message });
        }
    }
    bout.counted(&since, &["cm_unexpected"], 200);
    let mut answers = [0; 3];
    while let Some(mad) = wire.recv_mad(Duration::from_millis(300)) {
        match mad.message {
            Message::Drep(_) => answers[0] += 1,
            Message::SidrRep(_) => answers[1] += 1,
            // A REP of a connection that we do not want is refused.
            Message::Rej(_) => answers[2] += 1,
            other => panic!("answered with {other:?}"),
        }
    }
    assert_eq!(answers, [20, 20, 20], "DREP, SIDR_REP, REJ");
    bout.end();
}

#[test]
fn requests_twice_and_disconnects_by_strangers() {
    let mut bout = Bout::begin(102);

    // The same REQ again and again: one connection, the same REP.
    let wire = bout.wire();
    let request = CmMad::new(9, req(&wire, 1, &login(1)));
    let since = bout.target.stats();
    let mut reps = Vec::new();
    for _ in 0..5 {
        wire.send_mad(&request);
        let answer = wire.recv_mad(PATIENCE).expect("a REP");
        assert!(matches!(answer.message, Message::Rep(_)), "{answer:?}");
        reps.push(answer);
    }
    assert!(reps.iter().all(|rep| *rep == reps[0]));
    bout.counted(&since, &["cm_duplicate_requests"], 4);
    bout.counted(&since, &["logins_accepted"], 1);

    // A connection of our own, which others try to end.
    let mut peer = Peer::connect(bout.wire(), 2, &login(2)).unwrap();
    let good = peer.good_dreq();
    let since = bout.target.stats();
    // With the wrong queue pair: not answered.
    peer.wire.send_mad(&CmMad::new(10, Dreq { remote_qpn: Qpn::new(5), ..good }));
    // From somebody else, all ids right.
    let stranger = bout.wire();
    stranger.send_mad(&CmMad::new(10, good));
    bout.counted(&since, &["cm_wrong_peer"], 2);
    assert!(stranger.recv_mad(Duration::from_millis(200)).is_none());
    // With a wrong id of its own: nothing that is known, so that it is answered, and nothing ends.
    let since = bout.target.stats();
    peer.wire.send_mad(&CmMad::new(11, Dreq { local_id: CommId(1), ..good }));
    bout.counted(&since, &["cm_unexpected"], 1);
    assert_eq!(bout.target.sessions().len(), 3, "the healthy one, the half-open one and ours");

    // Guesses at the healthy session's ids, by its queue pairs' numbers.
    let since = bout.target.stats();
    let guesser: Wire = bout.wire();
    for &qpn in &bout.live_qpns() {
        for id in 0..50 {
            let guess = Dreq {
                local_id: CommId(id),
                remote_id: CommId(id),
                remote_qpn: Qpn::new(qpn),
                ..Dreq::default()
            };
            guesser.send_mad(&CmMad::new(12, guess));
        }
    }
    bout.counted(&since, &["cm_unexpected", "cm_wrong_peer"], 200);
    assert_eq!(bout.live_qpns().len(), 4);

    // A new REQ of the same GUID and queue pair replaces the connection: its owner has forgotten it.
    let since = bout.target.stats();
    let mut other = req(&peer.wire, 2, &login(2));
    other.local_id = CommId(0x7777);
    peer.wire.send_mad(&CmMad::new(13, other));
    peer.until("a REP of the new one", |seen| match seen {
        super::raw::Seen::Cm(Message::Rep(rep)) if rep.remote_id == CommId(0x7777) => Some(()),
        _ => None,
    });
    bout.counted(&since, &["cm_replaced"], 1);
    bout.end();
}
