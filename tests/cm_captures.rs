//! What Linux said on QP1, replayed to our connection manager: its REQs become the right
//! requests, and our answers are those of LIO where the two can be compared.

#[path = "common/pcap.rs"]
mod pcap;

use std::net::IpAddr;
use std::time::Duration;

use reactors::time::Time;
use srpoll::cm::{Cm, CmConfig};
use srpoll::rdma::verbs::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ConnRequest, ConnectAttr, Connections, Path, PathMtu, PrivateData,
    Service,
};
use srpoll::wire::bth::Opcode;
use srpoll::wire::cm::{CmMad, CommId, Drep, Message, Rej, Rep, Req, Rtu, about};
use srpoll::wire::num::{Psn, Qpn};
use srpoll::wire::packet::Packet;

const SRP: Service = Service::RdmaCm { port: 5555 };

/// The management datagrams of a capture: the path that their receiver sees, and the message.
fn mads(name: &str) -> Vec<(Path, CmMad)> {
    let frames = pcap::roce_frames(name);
    let datagrams = frames.iter().filter_map(|frame| {
        let packet = Packet::parse(frame.ib()).expect("captures parse");
        let path = Path { local: frame.destination(), remote: frame.source(), scope_id: 0 };
        (packet.bth.opcode == Opcode::UdSendOnly)
            .then(|| (path, CmMad::parse(packet.payload).expect("captures parse")))
    });
    datagrams.collect()
}

fn now(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn target(seed: u64) -> Cm {
    let mut cm = Cm::new(CmConfig::new(0x5054_00ff_fe00_000b), fastrand::Rng::with_seed(seed));
    cm.listen(None, SRP).unwrap();
    cm
}

fn request(cm: &mut Cm) -> (ConnId, ConnRequest, PrivateData) {
    match cm.poll_event() {
        Some(ConnEvent::Request { conn, request, private_data, .. }) => (conn, request, private_data),
        other => panic!("no request but {other:?}"),
    }
}

fn sent(cm: &mut Cm) -> (Path, CmMad) {
    let (path, bytes) = cm.poll_transmit().expect("something to send");
    (path, CmMad::parse(&bytes).unwrap())
}

fn swap(path: Path) -> Path {
    Path { local: path.remote, remote: path.local, ..path }
}

fn req(mad: &CmMad) -> &Req {
    match &mad.message {
        Message::Req(req) => req,
        other => panic!("no REQ but {other:?}"),
    }
}

/// lio-612-login-io.pcap and lio-61-login-io.pcap: REQ, REP, RTU, ..., DREQ, DREP, with our
/// connection manager in LIO's place.
#[test]
fn in_lios_place() {
    for (name, timeout_code) in [("lio-612-login-io.pcap", 17), ("lio-61-login-io.pcap", 19)] {
        let talk = mads(name);
        assert_eq!(talk.len(), 5, "{name}");
        let mut cm = target(1);
        let (from, asked) = talk[0];
        cm.handle_mad(now(1), from, &asked.emit());
        let (conn, request, login) = request(&mut cm);
        assert_eq!(
            request,
            ConnRequest {
                service: SRP,
                process: None,
                path: Path {
                    local: IpAddr::from([10, 99, 0, 12]),
                    remote: IpAddr::from([10, 99, 0, 11]),
                    scope_id: 0
                },
                remote_guid: 0x5054_00ff_fe00_000a,
                remote_qpn: req(&asked).local_qpn,
                send_psn: req(&asked).starting_psn,
                path_mtu: PathMtu::B1024,
                responder_resources: 4,
                initiator_depth: 0,
                timeout_code,
                retry_count: 7,
                rnr_retry: 7,
            },
            "{name}"
        );
        // The compact login: formats 6, flags 0x80, opcode 0.
        assert_eq!(login.as_slice().len(), 56, "{name}");
        assert_eq!(login.as_slice()[8..12], [0, 6, 0x80, 0], "{name}");

        // With LIO's numbers the REP is LIO's but for the id, which is ours.
        let (_, replied) = talk[1];
        let Message::Rep(lio) = replied.message else { panic!("{name}: no REP") };
        let reply = ConnReply {
            qpn: lio.local_qpn,
            starting_psn: lio.starting_psn,
            responder_resources: 4,
            initiator_depth: 4,
            rnr_retry: 7,
        };
        cm.accept(now(1), conn, &reply, &lio.private_data).unwrap();
        let (to, ours) = sent(&mut cm);
        assert_eq!(to, from, "{name}");
        let Message::Rep(rep) = ours.message else { panic!("{name}: no REP") };
        assert_eq!(ours.header, replied.header, "{name}");
        assert_eq!(Rep { local_id: lio.local_id, ..rep }, lio, "{name}");

        // The initiator's RTU and DREQ, with the id that it would have learnt from us.
        let (from, ready) = talk[2];
        let Message::Rtu(rtu) = ready.message else { panic!("{name}: no RTU") };
        let rtu = Rtu { remote_id: rep.local_id, ..rtu };
        cm.handle_mad(now(1), from, &CmMad::new(ready.header.tid, rtu).emit());
        assert_eq!(cm.poll_event(), Some(ConnEvent::Established { conn }), "{name}");
        let (from, over) = talk[3];
        let Message::Dreq(mut dreq) = over.message else { panic!("{name}: no DREQ") };
        dreq.remote_id = rep.local_id;
        cm.handle_mad(now(2), from, &CmMad::new(over.header.tid, dreq).emit());
        assert_eq!(
            cm.poll_event(),
            Some(ConnEvent::Ended { conn, why: ConnEnd::PeerDisconnected }),
            "{name}"
        );
        let (_, ours) = sent(&mut cm);
        let (_, theirs) = talk[4];
        let (Message::Drep(drep), Message::Drep(lio)) = (ours.message, theirs.message) else {
            panic!("{name}: no DREP")
        };
        assert_eq!(ours.header, theirs.header, "{name}");
        assert_eq!(Drep { local_id: lio.local_id, ..drep }, lio, "{name}");
        cm.handle_timeout(now(3));
        assert!(cm.is_empty(), "{name}");
    }
}

/// lio-*-login-REJ-noacl.pcap: a refused login. Ours is byte for byte what LIO sent.
#[test]
fn our_rej_is_lios() {
    for name in ["lio-612-login-REJ-noacl.pcap", "lio-61-login-REJ-noacl.pcap"] {
        let talk = mads(name);
        let mut cm = target(1);
        let (from, asked) = talk[0];
        cm.handle_mad(now(1), from, &asked.emit());
        let (conn, ..) = request(&mut cm);
        let Message::Rej(lio) = talk[1].1.message else { panic!("{name}: no REJ") };
        assert_eq!((lio.local_id, lio.about, lio.reason), (CommId(0), about::REQ, 28), "{name}");
        cm.reject(now(1), conn, 28, &lio.private_data).unwrap();
        assert_eq!(sent(&mut cm), (from, talk[1].1), "{name}");
    }
}

/// The same, with our connection manager in the initiator's place: its REQ differs from Linux's
/// in what is random and in the timers, and LIO's answers are understood.
#[test]
fn in_ib_srps_place() {
    let talk = mads("lio-612-login-io.pcap");
    let (at_target, asked) = talk[0];
    let linux = *req(&asked);
    let mut cm = Cm::new(CmConfig::new(linux.local_ca_guid), fastrand::Rng::with_seed(1));
    let attr = ConnectAttr {
        service: SRP,
        path: swap(at_target),
        qpn: linux.local_qpn,
        starting_psn: linux.starting_psn,
        path_mtu: PathMtu::B1024,
        responder_resources: 4,
        initiator_depth: 0,
        retry_count: 7,
        rnr_retry: 7,
        private_data: PrivateData::new(&linux.private_data[36..]).unwrap(),
    };
    let conn = cm.connect(now(1), &attr).unwrap();
    let (_, ours) = sent(&mut cm);
    let ours = *req(&ours);
    let mut private_data = ours.private_data;
    private_data[2..4].copy_from_slice(&linux.private_data[2..4]); // the source port, random
    let same = Req {
        local_id: linux.local_id,
        flow_label: linux.flow_label,
        local_cm_timeout: 20,
        remote_cm_timeout: 20,
        private_data,
        ..ours
    };
    assert_eq!(same, linux);

    let Message::Rep(mut rep) = talk[1].1.message else { panic!("no REP") };
    rep.remote_id = ours.local_id;
    cm.handle_mad(now(1), attr.path, &CmMad::new(1, rep).emit());
    let Some(ConnEvent::Reply { conn: told, reply, timeout_code, private_data }) = cm.poll_event() else {
        panic!("no reply")
    };
    assert_eq!((told, timeout_code), (conn, 17));
    assert_eq!((reply.qpn, reply.starting_psn), (Qpn::new(0x11), Psn::new(0xbb2b28)));
    assert_eq!((reply.responder_resources, reply.initiator_depth, reply.rnr_retry), (4, 4, 7));
    assert_eq!(private_data.as_slice()[0], 0xc0, "SRP_LOGIN_RSP");
    cm.established(now(1), conn).unwrap();
    let (_, ready) = sent(&mut cm);
    let (Message::Rtu(rtu), Message::Rtu(theirs)) = (ready.message, talk[2].1.message) else {
        panic!("no RTU")
    };
    assert_eq!(Rtu { local_id: theirs.local_id, ..rtu }, theirs);
}

/// host-peer-REJ.pcap: SRP_LOGIN_REJ in a REJ reaches the consumer of who asked.
#[test]
fn a_captured_rej_ends_our_request() {
    let talk = mads("host-peer-REJ.pcap");
    let linux = *req(&talk[0].1);
    let mut cm = Cm::new(CmConfig::new(linux.local_ca_guid), fastrand::Rng::with_seed(1));
    let path = talk[2].0;
    let attr = ConnectAttr {
        service: SRP,
        path,
        qpn: linux.local_qpn,
        starting_psn: linux.starting_psn,
        path_mtu: PathMtu::B1024,
        responder_resources: 4,
        initiator_depth: 0,
        retry_count: 7,
        rnr_retry: 7,
        private_data: PrivateData::EMPTY,
    };
    let conn = cm.connect(now(1), &attr).unwrap();
    let (_, ours) = sent(&mut cm);
    let Message::Rej(rej) = talk[2].1.message else { panic!("no REJ") };
    cm.handle_mad(now(1), path, &CmMad::new(1, Rej { remote_id: req(&ours).local_id, ..rej }).emit());
    match cm.poll_event() {
        Some(ConnEvent::Ended { conn: told, why: ConnEnd::Rejected { reason: 28, private_data } }) => {
            assert_eq!(told, conn);
            assert_eq!(private_data.as_slice()[..8], [0xc2, 0, 0, 0, 0, 1, 0, 3]);
        }
        other => panic!("not rejected but {other:?}"),
    }
}

/// noone-listening.pcap: sixteen REQs 4.9 s apart are one request; the last fifteen get MRA.
#[test]
fn sixteen_reqs_of_linux_are_one_request() {
    let talk = mads("noone-listening.pcap");
    assert_eq!(talk.len(), 16);
    let mut cm = target(1);
    for (at, (from, mad)) in talk.iter().enumerate() {
        cm.handle_timeout(now(1 + 4 * at as u64));
        cm.handle_mad(now(1 + 4 * at as u64), *from, &mad.emit());
    }
    let (conn, ..) = request(&mut cm);
    assert_eq!(cm.poll_event(), None);
    let answers: Vec<CmMad> =
        std::iter::from_fn(|| cm.poll_transmit()).map(|(_, mad)| CmMad::parse(&mad).unwrap()).collect();
    assert_eq!(answers.len(), 15);
    assert!(answers.iter().all(|mad| matches!(mad.message, Message::Mra(_))));
    cm.reject(now(62), conn, 28, b"").unwrap();
    // And with nobody listening each is refused, without any state.
    let mut cm = Cm::new(CmConfig::new(1), fastrand::Rng::with_seed(1));
    for (from, mad) in &talk {
        cm.handle_mad(now(1), *from, &mad.emit());
        let (_, answer) = sent(&mut cm);
        assert!(matches!(answer.message, Message::Rej(rej) if rej.reason == 8));
    }
    assert!(cm.is_empty());
}

/// host-minitarget-death-reconnect.pcap: the target dies, a new one is reconnected to with a new
/// queue pair; var-ch2.pcap: two channels. Every REQ becomes a connection of its own.
#[test]
fn each_queue_pair_of_linux_is_a_connection() {
    for (name, connections) in [("host-minitarget-death-reconnect.pcap", 2), ("var-ch2.pcap", 2)] {
        let mut cm = target(1);
        for (from, mad) in mads(name).iter().filter(|(_, mad)| matches!(mad.message, Message::Req(_))) {
            cm.handle_mad(now(1), *from, &mad.emit());
        }
        let requests: Vec<ConnEvent> = std::iter::from_fn(|| cm.poll_event()).collect();
        assert_eq!(requests.len(), connections, "{name}");
        assert!(requests.iter().all(|event| matches!(event, ConnEvent::Request { .. })), "{name}");
        assert_eq!(cm.len(), connections, "{name}");
    }
}
