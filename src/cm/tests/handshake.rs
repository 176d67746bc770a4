//! REQ, REP, RTU: both service forms, every duplicate, every loss.

use super::*;
use crate::rdma::verbs::VerbsError;
use crate::wire::cm::{CommId, Mra, Rep, about, reason, timeout};

#[test]
fn rdma_cm_carries_everything_across() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let req = pair.one_from_a();
    pair.give_b(&req);
    let Some(ConnEvent::Request { conn: b, request, private_data, .. }) = pair.b.poll_event() else {
        panic!("no request");
    };
    assert_eq!(request.service, PORT);
    assert_eq!(request.path, b_path());
    assert_eq!(request.remote_guid, A.1);
    assert_eq!(request.remote_qpn, Qpn::new(0x100));
    assert_eq!(request.send_psn, Psn::new(0x00_1111));
    assert_eq!(request.path_mtu, PathMtu::B4096);
    assert_eq!((request.responder_resources, request.initiator_depth), (128, 2));
    assert_eq!((request.timeout_code, request.retry_count, request.rnr_retry), (17, 6, 7));
    assert_eq!(private_data.as_slice().len(), 56);
    assert_eq!(&private_data.as_slice()[..7], b"may I?\0");

    pair.b.accept(pair.now, b, &reply(0x200), b"yes").unwrap();
    let rep = pair.one_from_b();
    pair.give_a(&rep);
    let Some(ConnEvent::Reply { conn, reply: told, timeout_code, private_data }) = pair.a.poll_event() else {
        panic!("no reply");
    };
    assert_eq!((conn, told, timeout_code), (a, reply(0x200), 17));
    assert_eq!(private_data.as_slice().len(), 196);
    assert_eq!(&private_data.as_slice()[..4], b"yes\0");

    assert!(pair.sent_by_a().is_empty(), "no RTU before the consumer's queue pair is up");
    pair.a.established(pair.now, a).unwrap();
    let rtu = pair.one_from_a();
    assert_eq!([req, rep, rtu].map(|mad| mad.header.tid), [req.header.tid; 3]);
    pair.give_b(&rtu);
    assert_eq!(pair.b.poll_event(), Some(ConnEvent::Established { conn: b }));
    assert_eq!(pair.b.half_open(), 0);
    assert_eq!((pair.a.deadline(), pair.b.deadline()), (Time::NEVER, Time::NEVER), "no timer is left");
}

#[test]
fn plain_ib_cm_has_no_header() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &connect_attr(PLAIN, 0x100)).unwrap();
    let req = pair.one_from_a();
    let Message::Req(body) = req.message else { panic!("no REQ") };
    assert_eq!(&body.private_data[..7], b"may I?\0");
    pair.give_b(&req);
    match pair.b.poll_event() {
        Some(ConnEvent::Request { request, private_data, .. }) => {
            assert_eq!(request.service, PLAIN);
            assert_eq!(private_data.as_slice().len(), 92);
            assert_eq!(&private_data.as_slice()[..7], b"may I?\0");
        }
        other => panic!("no request but {other:?}"),
    }
}

#[test]
fn ipv6_paths_work_alike() {
    let mut pair = Pair::new();
    let v6 = |last| IpAddr::from([0xfd00u16, 0, 0, 0, 0, 0, 0, last]);
    let path = Path { local: v6(2), remote: v6(1), scope_id: 0 };
    pair.a.connect(pair.now, &ConnectAttr { path, ..connect_attr(PORT, 0x100) }).unwrap();
    let (sent_on, req) = pair.a.poll_transmit().unwrap();
    assert_eq!(sent_on, path);
    pair.b.handle_mad(pair.now, swap(path), &req);
    requested(&mut pair.b);
    // An IPv4-mapped source, as a dual-stack socket shows it, is the IPv4 address.
    let mapped = |address: [u8; 4]| IpAddr::V6(std::net::Ipv4Addr::from(address).to_ipv6_mapped());
    pair.a.connect(pair.now, &connect_attr(PORT, 0x101)).unwrap();
    let (_, req) = pair.a.poll_transmit().unwrap();
    let from = Path { local: mapped(B.0), remote: mapped(A.0), scope_id: 0 };
    pair.b.handle_mad(pair.now, from, &req);
    requested(&mut pair.b);
}

#[test]
fn a_req_that_comes_again_while_we_decide_is_answered_with_mra() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let req = pair.one_from_a();
    pair.give_b(&req);
    requested(&mut pair.b);
    pair.give_b(&req);
    let mra = pair.one_from_b();
    assert!(matches!(mra.message, Message::Mra(Mra { about: about::REQ, service_timeout: 21, .. })));
    assert_eq!(pair.b.poll_event(), None, "the consumer is asked once");
    // And the asking side waits as long before it asks again: 8.6 s and its own 1.07 s.
    let before = pair.a.deadline();
    pair.give_a(&mra);
    let after = pair.now + timeout(21) + timeout(18);
    assert!(before < after);
    assert_eq!(pair.a.deadline(), after);
    pair.pass(Duration::from_secs(9));
    assert!(pair.sent_by_a().is_empty());
    pair.pass(Duration::from_secs(1));
    assert_eq!(names(&pair.sent_by_a()), ["REQ"]);
}

#[test]
fn an_mra_cannot_put_us_off_for_hours() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let Message::Req(req) = pair.one_from_a().message else { panic!("no REQ") };
    let mra = Mra { local_id: CommId(9), remote_id: req.local_id, service_timeout: 31, ..Mra::default() };
    pair.give_a(&CmMad::new(0, mra));
    assert_eq!(pair.a.deadline(), pair.now + Duration::from_secs(60) + timeout(18));
}

#[test]
fn a_req_that_comes_again_after_the_rep_gets_the_same_rep_at_once() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let req = pair.one_from_a();
    pair.give_b(&req);
    let b = requested(&mut pair.b);
    pair.b.accept(pair.now, b, &reply(0x200), b"yes").unwrap();
    let lost = pair.one_from_b();
    pair.give_b(&req);
    assert_eq!(pair.one_from_b(), lost);
    assert_eq!(pair.b.stats().duplicate_requests, 1);
}

#[test]
fn a_rep_that_comes_again_gets_mra_and_then_rtu() {
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"yes").unwrap();
    let rep = pair.one_from_b();
    pair.give_a(&rep);
    assert!(matches!(pair.a.poll_event(), Some(ConnEvent::Reply { .. })));
    pair.give_a(&rep);
    let mra = pair.one_from_a();
    assert!(matches!(mra.message, Message::Mra(Mra { about: about::REP, .. })));
    pair.give_b(&mra);
    assert_eq!(pair.b.deadline(), pair.now + timeout(21) + timeout(18));
    pair.a.established(pair.now, a).unwrap();
    let lost = pair.one_from_a();
    pair.give_a(&rep);
    assert_eq!(pair.one_from_a(), lost);
    assert_eq!(pair.a.poll_event(), None, "the consumer is told once");
}

#[test]
fn the_rtu_may_be_lost_when_data_come() {
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"yes").unwrap();
    pair.settle();
    pair.a.established(pair.now, a).unwrap();
    let late = pair.one_from_a();
    pair.b.established(pair.now, b).unwrap();
    assert_eq!(pair.b.deadline(), Time::NEVER, "the REP is not sent again");
    assert_eq!(pair.b.half_open(), 0);
    // The RTU was only late; and the consumer may say it twice.
    pair.give_b(&late);
    pair.b.established(pair.now, b).unwrap();
    assert_eq!(pair.b.poll_event(), None);
}

#[test]
fn a_rep_goes_out_again_until_its_retries_are_over() {
    let mut pair = Pair::new();
    let (_, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"yes").unwrap();
    let rep = pair.one_from_b();
    // The REQ allows 15 retries and says that the asking side answers within code 18.
    for _ in 0..15 {
        pair.pass(timeout(18));
        assert_eq!(pair.one_from_b(), rep);
    }
    pair.pass(timeout(18));
    let rej = pair.one_from_b();
    assert_eq!(reason_of(&rej), reason::TIMEOUT);
    assert_eq!(pair.ended_b(), (b, ConnEnd::Timeout));
    assert_eq!(pair.b.half_open(), 0);
    pair.pass(Duration::from_secs(1));
    assert!(pair.b.is_empty());
    assert_eq!((pair.b.poll_event(), pair.sent_by_b().len()), (None, 0));
}

#[test]
fn the_intervals_are_those_of_the_req() {
    // Linux names code 20 in its REQs: 4.29 s.
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let mut req = pair.one_from_a();
    if let Message::Req(body) = &mut req.message {
        (body.local_cm_timeout, body.max_cm_retries) = (20, 2);
    }
    pair.give_b(&req);
    let b = requested(&mut pair.b);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    assert_eq!(pair.b.deadline(), pair.now + timeout(20));
    pair.sent_by_b();
    pair.pass(timeout(20) * 3);
    assert_eq!(names(&pair.sent_by_b()), ["REP", "REP", "REJ"]);
}

#[test]
fn a_req_goes_out_again_and_then_gives_up() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    let first = pair.one_from_a();
    pair.pass(timeout(18) * 16);
    let again = pair.sent_by_a();
    assert_eq!(again.len(), 16);
    assert!(again[..15].iter().all(|mad| *mad == first));
    assert_eq!(reason_of(&again[15]), reason::TIMEOUT);
    assert_eq!(pair.ended_a(), (a, ConnEnd::Timeout));
    assert_eq!(pair.a.stats().resent, 15);
    pair.pass(Duration::from_secs(1));
    assert!(pair.a.is_empty());
}

#[test]
fn who_gives_up_tells_a_peer_whose_rep_never_came() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &connect_attr(PORT, 0x100)).unwrap();
    pair.pass(Duration::from_secs(5));
    let req = pair.sent_by_a().remove(0);
    pair.give_b(&req);
    let b = requested(&mut pair.b);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    let rej = loop {
        pair.pass(timeout(18));
        if let Some(mad) = pair.sent_by_a().into_iter().find(|mad| name(mad) == "REJ") {
            break mad;
        }
    };
    pair.sent_by_b();
    // It knows no id of B's, but its GUID and its own id find the connection.
    pair.give_b(&rej);
    assert!(matches!(pair.ended_b(), (conn, ConnEnd::Rejected { reason: reason::TIMEOUT, .. }) if conn == b));
}

#[test]
fn a_rep_that_comes_too_late_is_refused() {
    let mut pair = Pair::new();
    let (_, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    let rep = pair.one_from_b();
    pair.a.handle_timeout(pair.now);
    pair.pass(timeout(18) * 16 - Duration::from_millis(1));
    pair.sent_by_b();
    pair.a.handle_timeout(pair.now + Duration::from_millis(1));
    pair.sent_by_a();
    pair.give_a(&rep);
    let rej = pair.one_from_a();
    assert_eq!(reason_of(&rej), reason::INVALID_COMM_ID);
    pair.give_b(&rej);
    assert_eq!(pair.ended_b().0, b);
}

#[test]
fn a_consumer_that_never_answers_is_not_waited_for_forever() {
    let mut pair = Pair::new();
    let (_, b) = pair.asked(PORT, 0x100);
    // The asking side waits 16 times code 18.
    pair.pass(timeout(18) * 16 + Duration::from_millis(1));
    assert_eq!(reason_of(&pair.one_from_b()), reason::TIMEOUT);
    assert_eq!(pair.ended_b(), (b, ConnEnd::Timeout));
    assert_eq!(
        pair.b.accept(pair.now, b, &reply(0x200), b""),
        Err(VerbsError::NotFound("connection")),
        "too late"
    );
}

#[test]
fn answers_that_do_not_fit_are_errors() {
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    let too_long = [0; 197];
    assert!(matches!(pair.b.accept(pair.now, b, &reply(1), &too_long), Err(VerbsError::Invalid(_))));
    assert!(matches!(pair.b.reject(pair.now, b, 28, &too_long[..149]), Err(VerbsError::Invalid(_))));
    assert!(matches!(pair.b.established(pair.now, b), Err(VerbsError::Invalid(_))));
    assert!(matches!(pair.b.disconnect(pair.now, b), Err(VerbsError::Invalid(_))));
    assert!(matches!(pair.a.accept(pair.now, a, &reply(1), b""), Err(VerbsError::Invalid(_))));
    pair.b.accept(pair.now, b, &reply(0x200), &too_long[..196]).unwrap();
    assert!(matches!(pair.b.accept(pair.now, b, &reply(1), b""), Err(VerbsError::Invalid(_))));
    assert!(matches!(pair.b.reject(pair.now, b, 28, b""), Err(VerbsError::Invalid(_))));
    let attr = connect_attr(PORT, 1);
    let data = PrivateData::new(&too_long[..57]).unwrap();
    let long = ConnectAttr { private_data: data, ..attr };
    assert!(matches!(pair.a.connect(pair.now, &long), Err(VerbsError::Invalid(_))));
    assert!(pair.a.connect(pair.now, &ConnectAttr { service: PLAIN, ..long }).is_ok());
    let mixed = Path { remote: IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1]), ..a_path() };
    assert!(pair.a.connect(pair.now, &ConnectAttr { path: mixed, ..attr }).is_err());
}

#[test]
fn messages_from_another_address_do_not_count() {
    let mut pair = Pair::new();
    let (_, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    let rep = pair.one_from_b();
    let stranger = Path { remote: IpAddr::from([10, 99, 0, 66]), ..a_path() };
    pair.a.handle_mad(pair.now, stranger, &rep.emit());
    assert_eq!(pair.a.poll_event(), None);
    assert_eq!(pair.a.stats().wrong_peer, 1);
    assert_eq!(pair.a.poll_transmit(), None, "and are not answered");
    // A REP of another connection of the right peer neither.
    let Message::Rep(body) = rep.message else { panic!("no REP") };
    pair.give_a(&rep);
    assert!(matches!(pair.a.poll_event(), Some(ConnEvent::Reply { .. })));
    pair.give_a(&CmMad::new(0, Rep { local_id: CommId(1), ..body }));
    assert_eq!((pair.a.poll_event(), pair.sent_by_a().len()), (None, 0));
}
