//! Moving a queue pair to ERR does what the description of rdmavt's `rvt_error_qp` says (spec
//! section 8): one test a clause, by its number.

use std::time::Duration;

use reactors::time::Time;
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::Opcode;
use srpoll::wire::ext::{NakCode, Syndrome};

use crate::support::*;

fn own_queue() -> Setup {
    Setup { srq: false, ..Setup::default() }
}

/// A first packet of a long SEND: a receive is half used.
fn half_used(lone: &mut Lone) {
    lone.post_recv(70, 0, 8192);
    lone.request(Opcode::SendFirst, 0, false, None, &[1; 1024]);
}

#[test]
fn clause_1_in_err_or_reset_nothing_happens_and_no_event_comes() {
    let mut lone = Lone::new(&Setup::default());
    lone.modify(&QpModify::Err).unwrap();
    assert_eq!(lone.events(), [AsyncEvent::LastWqeReached(lone.side.qp)]);
    lone.modify(&QpModify::Err).unwrap();
    assert!(lone.events().is_empty(), "a second time gives no second event");
    lone.modify(&QpModify::Reset).unwrap();
    assert_eq!(lone.modify(&QpModify::Err), Err(VerbsError::State(QpState::Reset)));
    assert!(lone.events().is_empty());
}

#[test]
fn clause_2_the_state_is_err_and_packets_meet_silence() {
    let mut lone = Lone::new(&Setup::default());
    lone.post_recv(1, 0, 64);
    lone.modify(&QpModify::Err).unwrap();
    assert_eq!(lone.state(), QpState::Err);
    let before = lone.now;
    lone.wait(Duration::from_millis(1));
    lone.request(Opcode::SendOnly, 0, true, None, b"hello");
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 10)), &[]);
    lone.ack(0);
    assert!(lone.replies().is_empty());
    assert_eq!(lone.engine.counters().dropped_state, 3);
    assert!(lone.recv_wcs().is_empty(), "the shared receive was not touched");
    assert_eq!(lone.engine.last_heard(lone.side.qp).unwrap(), before);
}

#[test]
fn clause_3_retry_and_rnr_timers_stop() {
    for rnr in [false, true] {
        let mut lone = Lone::new(&Setup::default());
        lone.post(&wr(1, SEND, lone.side.list(0, 8), true));
        assert_eq!(lone.sent().len(), 1);
        if rnr {
            lone.answer(Opcode::Acknowledge, 0, Some(Syndrome::RnrNak { timer: 14 }), &[]);
        }
        lone.sent();
        assert!(lone.engine.deadline() < Time::NEVER && lone.engine.deadline() > Time::ZERO);
        lone.modify(&QpModify::Err).unwrap();
        lone.sent();
        assert_eq!(lone.engine.deadline(), Time::NEVER);
        lone.wait(Duration::from_secs(100));
        assert!(lone.sent().is_empty());
        assert_eq!(lone.send_wcs(), [(1, WcStatus::WrFlush)]);
    }
}

#[test]
fn clause_4_nothing_on_the_send_side_waits_for_ever() {
    // Waits for a READ to end, behind it for its turn, and for the window.
    let mut lone = Lone::new(&Setup { max_rd_atomic: 1, ..Setup::default() });
    for id in 0..4 {
        lone.post(&wr(id, SendOp::Read(FAR), lone.side.list(0, 100), false));
    }
    assert_eq!(lone.sent().len(), 1);
    lone.modify(&QpModify::Err).unwrap();
    lone.sent();
    let flushed: Vec<_> = (0..4).map(|id| (id, WcStatus::WrFlush)).collect();
    assert_eq!(lone.send_wcs(), flushed);
}

#[test]
fn clause_5_it_leaves_the_lists_of_those_who_wait() {
    let mut lone = Lone::new(&Setup::default());
    let other = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    for change in [QpModify::Init, lone.rtr(), lone.side.rts()] {
        lone.engine.modify_qp(lone.now, other, &change).unwrap();
    }
    lone.engine.set_read_budget(1000);
    lone.post(&wr(1, SendOp::Read(FAR), lone.side.list(0, 1000), false));
    assert_eq!(lone.sent().len(), 1);
    lone.engine
        .post_send(lone.now, other, &wr(2, SendOp::Read(FAR), lone.side.list(0, 1000), false))
        .unwrap();
    assert!(lone.sent().is_empty(), "the budget is used up");
    // The one that waits goes to ERR, then the one that holds the budget ends: nobody is woken.
    lone.engine.modify_qp(lone.now, other, &QpModify::Err).unwrap();
    lone.modify(&QpModify::Err).unwrap();
    assert_eq!(lone.engine.read_bytes_in_flight(), 0);
    assert!(lone.sent().is_empty());
    assert_eq!(lone.send_wcs().len(), 2);
    assert_eq!(lone.engine.deadline(), Time::NEVER);
}

#[test]
fn clause_6_the_send_engine_flushes_sends_in_order_and_in_its_own_time() {
    let mut lone = Lone::new(&Setup::default());
    for id in 0..5 {
        lone.post(&wr(id, SEND, lone.side.list(0, 8), id % 2 == 0));
    }
    assert_eq!(lone.sent_up_to(3).len(), 3);
    lone.modify(&QpModify::Err).unwrap();
    assert!(lone.send_wcs().is_empty(), "no sends are completed by the move itself");
    assert_eq!(lone.engine.deadline(), Time::ZERO, "the send engine is due");
    assert!(lone.sent_up_to(0).is_empty(), "flushing needs no room");
    let flushed: Vec<_> = (0..5).map(|id| (id, WcStatus::WrFlush)).collect();
    assert_eq!(lone.send_wcs(), flushed, "signaled or not, in posting order");
    // The drain marker: posted afterwards, it proves that all before it have completed.
    lone.post(&wr(99, SendOp::Write(Remote::default()), SgeList::EMPTY, true));
    lone.sent();
    assert_eq!(lone.send_wcs(), [(99, WcStatus::WrFlush)]);
}

#[test]
fn clause_7_the_responder_drops_the_memory_it_was_reading() {
    let mut lone = Lone::new(&Setup::default());
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 100_000)), &[]);
    lone.engine.end_batch(lone.now);
    assert_eq!(lone.sent_up_to(10).len(), 10);
    lone.request(Opcode::WriteOnly, 98, true, Some(lone.reth(0, 0)), &[]);
    lone.modify(&QpModify::Err).unwrap();
    assert!(lone.replies().is_empty(), "no READ response and no ACK leaves any more");
    // The memory can be taken away.
    lone.engine.deregister(lone.side.keys.lkey).unwrap();
    assert!(lone.replies().is_empty());
}

#[test]
fn clause_8_a_half_used_receive_completes_with_the_given_status() {
    // Moved by hand: flushed.
    let mut lone = Lone::new(&Setup::default());
    half_used(&mut lone);
    lone.modify(&QpModify::Err).unwrap();
    assert_eq!(lone.recv_wcs(), [(70, WcStatus::WrFlush)]);
    // Moved by an error of the peer's: that error, then the rest flushed behind it.
    let mut lone = Lone::new(&own_queue());
    half_used(&mut lone);
    lone.post_recv(71, 0, 64);
    lone.request(Opcode::SendOnly, 1, true, None, &[]);
    let replies = lone.replies();
    assert_eq!(replies[0].syndrome(), Some(Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(lone.recv_wcs(), [(70, WcStatus::RemoteInvalidRequest), (71, WcStatus::WrFlush)]);
    assert_eq!(lone.state(), QpState::Err);
}

#[test]
fn clause_9_its_own_receives_are_flushed_in_order_without_an_event() {
    let mut lone = Lone::new(&own_queue());
    half_used(&mut lone);
    for id in 0..4 {
        lone.post_recv(id, 0, 64);
    }
    lone.post(&wr(9, SEND, lone.side.list(0, 8), true));
    lone.modify(&QpModify::Err).unwrap();
    assert_eq!(
        lone.recv_wcs(),
        [70, 0, 1, 2, 3].map(|id| (id, WcStatus::WrFlush)),
        "the half-used one first, and all before any send"
    );
    assert!(lone.send_wcs().is_empty());
    assert!(lone.events().is_empty(), "no last-WQE event for a queue of its own");
    lone.post_recv(5, 0, 64);
    assert_eq!(lone.recv_wcs(), [(5, WcStatus::WrFlush)], "a later one is flushed at once");
}

#[test]
fn clause_10_with_a_shared_queue_nothing_is_flushed_and_the_event_comes_last() {
    let mut lone = Lone::new(&Setup::default());
    half_used(&mut lone);
    lone.post_recv(1, 0, 64);
    lone.modify(&QpModify::Err).unwrap();
    assert_eq!(lone.recv_wcs(), [(70, WcStatus::WrFlush)], "only the one it had taken");
    assert_eq!(lone.events(), [AsyncEvent::LastWqeReached(lone.side.qp)]);
    // The receive that was left serves another queue pair.
    let other = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    for change in [QpModify::Init, lone.rtr(), lone.side.rts()] {
        lone.engine.modify_qp(lone.now, other, &change).unwrap();
    }
    let qpn = lone.engine.qpn(other).unwrap();
    let bth = srpoll::wire::bth::Bth { dest_qpn: qpn, ..lone.bth(Opcode::SendOnly, 0) };
    lone.hear(bth, &[], b"still good");
    assert_eq!(lone.recv_wcs(), [(1, WcStatus::Success)]);
}

#[test]
fn the_event_of_an_error_comes_before_the_last_wqe() {
    let mut lone = Lone::new(&Setup::default());
    half_used(&mut lone);
    lone.request(Opcode::WriteMiddle, 1, false, None, &[0; 1024]);
    lone.replies();
    let qp = lone.side.qp;
    assert_eq!(lone.events(), [AsyncEvent::QpRequestError(qp), AsyncEvent::LastWqeReached(qp)]);
}

#[test]
fn the_request_that_failed_keeps_its_own_status_and_the_rest_is_flushed() {
    let mut lone = Lone::new(&Setup::default());
    for id in 0..4 {
        lone.post(&wr(id, SEND, lone.side.list(0, 8), false));
    }
    assert_eq!(lone.sent().len(), 4);
    lone.nak(1, NakCode::RemoteOperationalError);
    assert_eq!(lone.send_wcs(), [(1, WcStatus::RemoteOperation)], "0 was acknowledged by it, silently");
    lone.sent();
    assert_eq!(lone.send_wcs(), [(2, WcStatus::WrFlush), (3, WcStatus::WrFlush)]);
    assert_eq!(lone.events(), [AsyncEvent::LastWqeReached(lone.side.qp)]);
}

#[test]
fn after_the_flush_no_read_response_lands() {
    let mut lone = Lone::new(&Setup::default());
    lone.side.region.fill(0, 4096, 0x11).unwrap();
    lone.post(&wr(1, SendOp::Read(FAR), lone.side.list(0, 2048), true));
    assert_eq!(lone.sent().len(), 1);
    lone.answer(Opcode::ReadResponseFirst, 0, Some(Syndrome::ACK), &[0x22; 1024]);
    lone.modify(&QpModify::Err).unwrap();
    lone.sent();
    assert_eq!(lone.send_wcs(), [(1, WcStatus::WrFlush)]);
    lone.answer(Opcode::ReadResponseLast, 1, Some(Syndrome::ACK), &[0x22; 1024]);
    assert_eq!(lone.side.bytes(0, 1024), [0x22; 1024]);
    assert_eq!(lone.side.bytes(1024, 1024), [0x11; 1024]);
}
