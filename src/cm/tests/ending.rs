//! DREQ, DREP, time wait.

use super::*;
use crate::rdma::verbs::{Farewell, VerbsError};
use crate::wire::cm::{CommId, Dreq, Lap, SidrReq, timeout};

#[test]
fn either_side_ends_it() {
    for active_ends in [true, false] {
        let mut pair = Pair::new();
        let (a, b) = pair.established(0x100);
        if active_ends {
            pair.a.disconnect(pair.now, a).unwrap();
        } else {
            pair.b.disconnect(pair.now, b).unwrap();
        }
        pair.settle();
        let ours = if active_ends { pair.ended_a() } else { pair.ended_b() };
        let theirs = if active_ends { pair.ended_b() } else { pair.ended_a() };
        assert_eq!(ours, (if active_ends { a } else { b }, ConnEnd::Disconnected));
        assert_eq!(theirs, (if active_ends { b } else { a }, ConnEnd::PeerDisconnected));
        assert_eq!(pair.a.disconnect(pair.now, a), Err(VerbsError::NotFound("connection")), "it is over");
        // The ids rest, and then nothing is left.
        assert_eq!((pair.a.len(), pair.b.len()), (1, 1));
        assert_eq!(pair.a.deadline(), pair.now + Duration::from_millis(600));
        pair.pass(Duration::from_millis(600));
        assert!(pair.a.is_empty() && pair.b.is_empty());
        assert_eq!((pair.a.poll_event(), pair.b.poll_event()), (None, None));
    }
}

#[test]
fn a_lost_drep_is_repeated_and_the_end_is_told_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.a.disconnect(pair.now, a).unwrap();
    let dreq = pair.one_from_a();
    pair.give_b(&dreq);
    let drep = pair.one_from_b();
    assert_eq!(pair.ended_b(), (b, ConnEnd::PeerDisconnected));
    pair.pass(timeout(17));
    assert_eq!(pair.one_from_a(), dreq);
    pair.give_b(&dreq);
    assert_eq!(pair.one_from_b(), drep);
    assert_eq!(pair.b.poll_event(), None);
    // Long after the time wait, still.
    pair.pass(Duration::from_secs(2));
    assert!(pair.b.is_empty());
    pair.give_b(&dreq);
    assert_eq!(pair.one_from_b(), drep);
    pair.give_a(&drep);
    pair.give_a(&drep);
    assert_eq!(pair.ended_a(), (a, ConnEnd::Disconnected));
    assert_eq!(pair.a.poll_event(), None);
}

#[test]
fn a_dead_peer_is_told_through_all_retries() {
    let mut pair = Pair::new();
    let (a, _) = pair.established(0x100);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.pass(timeout(17) * 16 - Duration::from_millis(1));
    let told = pair.sent_by_a();
    assert_eq!(names(&told), ["DREQ"; 16]);
    assert_eq!(pair.a.poll_event(), None);
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.ended_a(), (a, ConnEnd::Disconnected));
    pair.pass(Duration::from_secs(1));
    assert!(pair.a.is_empty());
}

#[test]
fn both_sides_may_end_it_at_once() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.b.disconnect(pair.now, b).unwrap();
    let (from_a, from_b) = (pair.one_from_a(), pair.one_from_b());
    pair.give_a(&from_b);
    pair.give_b(&from_a);
    pair.settle();
    assert_eq!(pair.ended_a(), (a, ConnEnd::Disconnected));
    assert_eq!(pair.ended_b(), (b, ConnEnd::Disconnected));
    assert_eq!((pair.a.poll_event(), pair.b.poll_event()), (None, None));
}

#[test]
fn a_dreq_for_another_queue_pair_or_from_another_peer_is_ignored() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    pair.a.disconnect(pair.now, a).unwrap();
    let dreq = pair.one_from_a();
    let Message::Dreq(body) = dreq.message else { panic!("no DREQ") };
    assert_eq!(body.remote_qpn, Qpn::new(0x200));
    pair.give_b(&CmMad::new(1, Dreq { remote_qpn: Qpn::new(0x201), ..body }));
    let stranger = Path { remote: IpAddr::from([10, 99, 0, 66]), ..b_path() };
    pair.b.handle_mad(pair.now, stranger, &dreq.emit());
    assert_eq!((pair.b.poll_event(), pair.sent_by_b().len()), (None, 0));
    assert_eq!(pair.b.stats().wrong_peer, 2);
    // With an id of the peer that is not the connection's it is unknown: answered, nothing ends.
    pair.give_b(&CmMad::new(1, Dreq { local_id: CommId(7), ..body }));
    assert_eq!(names(&pair.sent_by_b()), ["DREP"]);
    assert_eq!(pair.b.poll_event(), None);
    pair.give_b(&dreq);
    assert_eq!(pair.ended_b().0, b);
}

#[test]
fn a_dreq_for_nothing_is_answered_with_its_own_numbers() {
    let mut pair = Pair::new();
    let dreq = Dreq { local_id: CommId(0x11), remote_id: CommId(0x22), ..Dreq::default() };
    pair.give_b(&CmMad::new(0x77, dreq));
    let drep = pair.one_from_b();
    assert_eq!(drep.header.tid, 0x77);
    let Message::Drep(body) = drep.message else { panic!("no DREP") };
    assert_eq!((body.local_id, body.remote_id), (CommId(0x22), CommId(0x11)));
}

#[test]
fn a_dreq_before_the_rtu_ends_it() {
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    pair.settle();
    pair.a.poll_event();
    pair.a.established(pair.now, a).unwrap();
    pair.sent_by_a();
    pair.a.disconnect(pair.now, a).unwrap();
    pair.settle();
    assert_eq!(pair.ended_b(), (b, ConnEnd::PeerDisconnected));
    assert_eq!(pair.ended_a(), (a, ConnEnd::Disconnected));
}

#[test]
fn a_half_open_connection_can_be_ended_by_who_accepted_it() {
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    pair.settle();
    assert!(matches!(pair.a.poll_event(), Some(ConnEvent::Reply { .. })));
    pair.b.disconnect(pair.now, b).unwrap();
    pair.settle();
    assert_eq!(pair.ended_b(), (b, ConnEnd::Disconnected));
    assert_eq!(pair.ended_a(), (a, ConnEnd::PeerDisconnected));
}

#[test]
fn who_asked_may_change_its_mind() {
    // Before the answer.
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.settle();
    assert_eq!(pair.ended_a(), (a, ConnEnd::Disconnected));
    assert!(matches!(pair.ended_b(), (conn, ConnEnd::Rejected { .. }) if conn == b));
    // After it: as REJ of the REP, which is remembered.
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    pair.b.accept(pair.now, b, &reply(0x200), b"").unwrap();
    let rep = pair.one_from_b();
    pair.give_a(&rep);
    pair.a.poll_event();
    pair.a.reject(pair.now, a, 28, b"no queue pair").unwrap();
    let rej = pair.one_from_a();
    pair.give_a(&rep);
    assert_eq!(pair.one_from_a(), rej);
    pair.give_b(&rej);
    let (conn, ConnEnd::Rejected { reason, private_data }) = pair.ended_b() else { panic!("not rejected") };
    assert_eq!((conn, reason), (b, 28));
    assert_eq!(&private_data.as_slice()[..13], b"no queue pair");
    assert_eq!(pair.a.poll_event(), None);
}

#[test]
fn what_we_do_not_offer_is_refused() {
    let mut pair = Pair::new();
    let (_, b) = pair.established(0x100);
    pair.b.disconnect(pair.now, b).unwrap();
    let Message::Dreq(ids) = pair.one_from_b().message else { panic!("no DREQ") };
    let lap = Lap { local_id: ids.local_id, remote_id: ids.remote_id, ..Lap::default() };
    pair.give_a(&CmMad::new(5, lap));
    assert!(matches!(pair.one_from_a().message, Message::Apr(apr) if apr.status == 2));
    pair.give_a(&CmMad::new(5, Lap { remote_id: CommId(1), ..lap }));
    assert!(pair.sent_by_a().is_empty());
    pair.give_a(&CmMad::new(6, SidrReq { request_id: CommId(3), service_id: 9, ..SidrReq::default() }));
    let Message::SidrRep(sidr) = pair.one_from_a().message else { panic!("no SIDR_REP") };
    assert_eq!((sidr.request_id, sidr.service_id, sidr.status), (CommId(3), 9, 1));
}

/// A process that was killed and the one after it, which knows what the first left: B's place is
/// taken by `Cm::new`.
fn successor(pair: &mut Pair) -> Cm {
    std::mem::replace(&mut pair.b, Cm::new(CmConfig::new(B.1), fastrand::Rng::with_seed(3)))
}

#[test]
fn who_takes_a_dead_ones_place_ends_its_connections() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    let farewell = pair.b.farewell_of(b).unwrap();
    assert_eq!(
        (farewell.path, farewell.local_qpn, farewell.remote_qpn),
        (b_path(), Qpn::new(0x200), Qpn::new(0x100))
    );
    drop(successor(&mut pair));
    pair.b.say_farewell(pair.now, &farewell).unwrap();
    pair.settle();
    assert_eq!(pair.ended_a(), (a, ConnEnd::PeerDisconnected));
    assert_eq!(pair.ended_b().1, ConnEnd::Disconnected, "which no consumer knows");
    assert_eq!(pair.b.stats().resent, 0, "the DREP was understood");
    pair.pass(Duration::from_secs(1));
    assert!(pair.b.is_empty());
}

#[test]
fn a_farewell_goes_through_all_retries_and_answers_a_dreq_that_crosses_it() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    let farewell = pair.b.farewell_of(b).unwrap();
    drop(successor(&mut pair));
    pair.b.say_farewell(pair.now, &farewell).unwrap();
    assert_eq!(pair.b.say_farewell(pair.now, &farewell), Err(VerbsError::Busy("communication id")), "once");
    pair.pass(timeout(17) * 3);
    assert_eq!(names(&pair.sent_by_b()), ["DREQ"; 4]);
    pair.a.disconnect(pair.now, a).unwrap();
    let dreq = pair.one_from_a();
    pair.give_b(&dreq);
    assert_eq!(name(&pair.one_from_b()), "DREP");
    pair.pass(Duration::from_secs(20));
    assert!(pair.sent_by_b().is_empty() && pair.b.is_empty());
}

#[test]
fn a_farewell_to_who_has_forgotten_is_answered_and_harms_no_new_connection() {
    let mut pair = Pair::new();
    let (a, b) = pair.established(0x100);
    let farewell = pair.b.farewell_of(b).unwrap();
    pair.a.disconnect(pair.now, a).unwrap();
    drop(successor(&mut pair));
    pair.b.listen(None, PORT).unwrap();
    pair.pass(Duration::from_secs(20));
    assert!(!pair.sent_by_a().is_empty());
    assert_eq!(pair.ended_a().0, a);
    let (again, _) = pair.established(0x100);
    pair.b.say_farewell(pair.now, &farewell).unwrap();
    pair.settle();
    assert_eq!(pair.a.poll_event(), None);
    assert!(pair.a.farewell_of(again).is_some(), "the new one lives");
    let old: Farewell = farewell;
    assert_eq!(pair.ended_b().1, ConnEnd::Disconnected);
    assert_eq!(pair.a.farewell_of(again).map(|new| new.remote_id == old.local_id), Some(false));
}

#[test]
fn what_is_not_established_leaves_nothing_to_say() {
    let mut pair = Pair::new();
    let (a, b) = pair.asked(PORT, 0x100);
    assert_eq!((pair.a.farewell_of(a), pair.b.farewell_of(b)), (None, None));
    let (a, b) = pair.established(0x101);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.settle();
    assert_eq!((pair.a.farewell_of(a), pair.b.farewell_of(b)), (None, None), "it is over");
}
