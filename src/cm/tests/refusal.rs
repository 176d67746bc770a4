//! What a REQ must not say, who may replace whom, and what the consumer refuses.

use super::*;
use crate::rdma::verbs::VerbsError;
use crate::wire::cm::{CommId, Req, reason};

fn spoilt_req(pair: &mut Pair, service: Service, spoil: impl FnOnce(&mut Req)) -> CmMad {
    pair.a.connect(pair.now, &connect_attr(service, 0x100)).unwrap();
    let mut mad = pair.sent_by_a().pop().unwrap();
    if let Message::Req(req) = &mut mad.message {
        spoil(req);
    }
    mad
}

#[test]
fn each_check_has_its_reason() {
    type Spoil = fn(&mut Req);
    let cases: [(&str, Service, u16, Spoil); 14] = [
        ("transport UC", PORT, reason::INVALID_TRANSPORT, |req| req.transport = 1),
        ("queue pair 1", PORT, reason::UNSUPPORTED, |req| req.local_qpn = Qpn::new(1)),
        ("path MTU code 6", PORT, reason::INVALID_MTU, |req| req.path_mtu = 6),
        ("path MTU code 0", PORT, reason::INVALID_MTU, |req| req.path_mtu = 0),
        ("another source GID", PORT, reason::INVALID_GID, |req| req.local_gid.0[15] ^= 1),
        ("another destination GID", PORT, reason::INVALID_GID, |req| req.remote_gid.0[15] ^= 1),
        ("another port", PORT, reason::INVALID_SERVICE_ID, |req| req.service_id += 1),
        ("another port space", PORT, reason::INVALID_SERVICE_ID, |req| req.service_id += 0x0b_0000),
        ("RDMA-CM version 1", PORT, reason::INVALID_SERVICE_ID, |req| req.private_data[0] = 1),
        ("IP version 5", PORT, reason::INVALID_SERVICE_ID, |req| req.private_data[1] = 0x50),
        ("IP version 6 around IPv4", PORT, reason::INVALID_SERVICE_ID, |req| req.private_data[1] = 0x60),
        ("another destination", PORT, reason::INVALID_SERVICE_ID, |req| req.private_data[35] ^= 1),
        ("another source", PORT, reason::INVALID_GID, |req| req.private_data[19] ^= 1),
        ("another service id", PLAIN, reason::INVALID_SERVICE_ID, |req| req.service_id ^= 1 << 63),
    ];
    for (what, service, expected, spoil) in cases {
        let mut pair = Pair::new();
        let req = spoilt_req(&mut pair, service, spoil);
        let Message::Req(body) = req.message else { panic!("no REQ") };
        pair.give_b(&req);
        let rej = pair.one_from_b();
        assert_eq!(reason_of(&rej), expected, "{what}");
        let Message::Rej(refusal) = rej.message else { panic!("no REJ") };
        assert_eq!((refusal.local_id, refusal.remote_id), (CommId(0), body.local_id), "{what}");
        assert_eq!(rej.header.tid, req.header.tid, "{what}");
        assert_eq!((pair.b.poll_event(), pair.b.len(), pair.b.stats().refused), (None, 0, 1), "{what}");
        // The asking side takes it.
        pair.give_a(&rej);
        assert!(matches!(pair.ended_a().1, ConnEnd::Rejected { reason, .. } if reason == expected), "{what}");
    }
}

#[test]
fn a_source_that_is_not_the_udp_source_is_refused() {
    let mut pair = Pair::new();
    let req = spoilt_req(&mut pair, PORT, |_| {});
    let spoofed = Path { remote: IpAddr::from([10, 99, 0, 66]), ..b_path() };
    pair.b.handle_mad(pair.now, spoofed, &req.emit());
    let (path, _) = pair.b.poll_transmit().unwrap();
    assert_eq!(path, spoofed, "the answer goes to the UDP source");
    assert_eq!(pair.b.poll_event(), None);
    let elsewhere = Path { local: IpAddr::from([10, 99, 0, 2]), ..b_path() };
    pair.b.handle_mad(pair.now, elsewhere, &req.emit());
    assert_eq!(pair.b.poll_event(), None);
}

#[test]
fn listeners_have_an_address_or_all() {
    let mut pair = Pair::new();
    assert_eq!(pair.b.listen(None, PORT), Err(VerbsError::Busy("service")));
    let exact = pair.b.listen(Some(IpAddr::from(B.0)), PORT).unwrap();
    pair.b.listen(Some(IpAddr::from([10, 99, 0, 2])), Service::RdmaCm { port: 6666 }).unwrap();
    let req = spoilt_req(&mut pair, PORT, |_| {});
    pair.give_b(&req);
    match pair.b.poll_event() {
        Some(ConnEvent::Request { listener, .. }) => assert_eq!(listener, exact),
        other => panic!("no request but {other:?}"),
    }
    let req = spoilt_req(&mut pair, Service::RdmaCm { port: 6666 }, |req| req.local_qpn = Qpn::new(0x101));
    pair.give_b(&req);
    assert_eq!(reason_of(&pair.one_from_b()), reason::INVALID_SERVICE_ID, "listens on another address");
    // Without a listener nothing new comes; what is there stays.
    pair.b.unlisten(exact).unwrap();
    assert_eq!(pair.b.unlisten(exact), Err(VerbsError::NotFound("listener")));
    assert_eq!(pair.b.len(), 1);
}

#[test]
fn the_consumers_refusal_travels_and_is_remembered() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let req = pair.one_from_a();
    pair.give_b(&req);
    let b = requested(&mut pair.b);
    pair.b.reject(pair.now, b, reason::CONSUMER, b"LOGIN_REJ").unwrap();
    let lost = pair.one_from_b();
    pair.give_b(&req);
    assert_eq!(pair.one_from_b(), lost);
    assert_eq!(pair.b.poll_event(), None, "the consumer is asked once");
    pair.give_a(&lost);
    let (conn, ConnEnd::Rejected { reason, private_data }) = pair.ended_a() else { panic!("not rejected") };
    assert_eq!((conn, reason), (a, 28));
    assert_eq!(private_data.as_slice().len(), 148);
    assert_eq!(&private_data.as_slice()[..10], b"LOGIN_REJ\0");
    pair.pass(Duration::from_secs(1));
    assert!(pair.a.is_empty() && pair.b.is_empty());
}

#[test]
fn a_new_req_of_the_same_queue_pair_replaces() {
    for (what, spoil) in [
        ("another id", (|req| req.local_id.0 ^= 1) as fn(&mut Req)),
        ("another PSN", |req| req.starting_psn = Psn::new(5)),
    ] {
        let mut pair = Pair::new();
        let mut first = spoilt_req(&mut pair, PORT, |_| {});
        pair.give_b(&first);
        let old = requested(&mut pair.b);
        pair.b.accept(pair.now, old, &reply(0x200), b"").unwrap();
        pair.b.established(pair.now, old).unwrap();
        pair.sent_by_b();
        let stale = first;
        if let Message::Req(req) = &mut first.message {
            spoil(req);
        }
        pair.give_b(&first);
        assert_eq!(pair.ended_b(), (old, ConnEnd::Replaced), "{what}");
        let new = requested(&mut pair.b);
        assert_ne!(old, new);
        assert_eq!(pair.b.stats().replaced, 1);
        pair.b.accept(pair.now, new, &reply(0x201), b"").unwrap();
        assert_eq!(names(&pair.sent_by_b()), ["REP"], "{what}");
        // A late duplicate of the first REQ does not strike back.
        pair.give_b(&stale);
        assert_eq!((pair.b.poll_event(), pair.sent_by_b().len()), (None, 0), "{what}");
    }
}

#[test]
fn a_req_after_the_end_is_a_new_one() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.settle();
    assert_eq!(pair.ended_b().0, b);
    // Ours rests, but the peer's queue pair may come back at once: no "stale connection".
    let (_, again) = pair.asked(PORT, 0x100);
    assert_ne!(again, b);
    assert_eq!(pair.b.poll_event(), None, "the end was told before");
    pair.pass(Duration::from_millis(700));
    assert_eq!(pair.b.len(), 1, "the time wait of the old one took nothing with it");
    pair.b.accept(pair.now, again, &reply(0x201), b"").unwrap();
}

#[test]
fn nobody_replaces_a_connection_of_another_address() {
    let mut pair = Pair::new();
    let (_, b) = pair.established(0x100);
    let other = IpAddr::from([10, 99, 0, 66]);
    let path = Path { local: other, ..a_path() };
    let mut attacker = Cm::new(CmConfig::new(A.1), fastrand::Rng::with_seed(3));
    attacker.connect(pair.now, &ConnectAttr { path, ..connect_attr(PORT, 0x100) }).unwrap();
    let (_, req) = attacker.poll_transmit().unwrap();
    pair.b.handle_mad(pair.now, swap(path), &req);
    assert_ne!(requested(&mut pair.b), b, "a connection of its own");
    assert_eq!(pair.b.poll_event(), None);
    assert_eq!(pair.b.stats().replaced, 0);
}

#[test]
fn a_malformed_req_does_not_replace() {
    let mut pair = Pair::new();
    pair.established(0x100);
    let req = spoilt_req(&mut pair, PORT, |req| req.path_mtu = 0);
    pair.give_b(&req);
    assert_eq!(reason_of(&pair.one_from_b()), reason::INVALID_MTU);
    assert_eq!(pair.b.poll_event(), None);
}
