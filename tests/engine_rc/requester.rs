//! What a requester sends: segmentation, RETH, AckReq, windows, order; and what answers do to it.

use std::time::Duration;

use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::Opcode;
use srpoll::wire::ext::{NakCode, Reth, Syndrome};

use crate::support::*;

/// PSN `index` after the first of ours.
fn psn(index: u32) -> u32 {
    (0xff_fff0 + index) & 0xff_ffff
}

fn briefs(packets: &[Packet]) -> Vec<(Opcode, u32, usize)> {
    packets.iter().map(Packet::brief).collect()
}

fn with_config(change: impl FnOnce(&mut EngineConfig)) -> Setup {
    let mut setup = Setup::default();
    change(&mut setup.config);
    setup
}

#[test]
fn a_send_is_first_middle_last_and_wraps_its_psn() {
    let mut lone = Lone::new(&Setup { psn: 0xff_fffe, ..Setup::default() });
    let bytes = lone.side.fill(0, 3001, 3);
    lone.post(&wr(1, SendOp::Send { solicited: true }, lone.side.list(0, 3001), true));
    let sent = lone.sent();
    assert_eq!(
        briefs(&sent),
        [
            (Opcode::SendFirst, 0xff_fffe, 1024),
            (Opcode::SendMiddle, 0xff_ffff, 1024),
            (Opcode::SendLast, 0, 953)
        ]
    );
    assert_eq!(sent.iter().flat_map(|packet| packet.payload.clone()).collect::<Vec<_>>(), bytes);
    assert_eq!(sent.iter().map(|packet| packet.bth.pad).collect::<Vec<_>>(), [0, 0, 3]);
    assert_eq!(sent.iter().map(|packet| packet.bth.solicited).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(sent.iter().map(|packet| packet.bth.ack_req).collect::<Vec<_>>(), [false, false, true]);
    assert!(sent.iter().all(|packet| packet.bth.dest_qpn == PEER_QPN && !packet.retransmission));
}

#[test]
fn a_long_write_is_write_onlys_of_one_size_each_with_its_reth() {
    let mut lone = Lone::new(&Setup::default());
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 2500), true));
    let sent = lone.sent();
    assert_eq!(
        briefs(&sent),
        [
            (Opcode::WriteOnly, psn(0), 1024),
            (Opcode::WriteOnly, psn(1), 1024),
            (Opcode::WriteOnly, psn(2), 452)
        ]
    );
    let reths: Vec<_> = sent.iter().map(|packet| packet.reth.unwrap()).collect();
    let part = |skip, len_bytes| Reth { addr: FAR.addr + skip, rkey: FAR.rkey, len_bytes };
    assert_eq!(reths, [part(0, 1024), part(1024, 1024), part(2048, 452)]);
}

#[test]
fn or_first_middle_last_with_one_reth() {
    let mut lone = Lone::new(&with_config(|config| config.write_only_segmentation = false));
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 2500), true));
    let sent = lone.sent();
    assert_eq!(
        briefs(&sent),
        [
            (Opcode::WriteFirst, psn(0), 1024),
            (Opcode::WriteMiddle, psn(1), 1024),
            (Opcode::WriteLast, psn(2), 452)
        ]
    );
    let whole = Reth { addr: FAR.addr, rkey: FAR.rkey, len_bytes: 2500 };
    assert_eq!(sent.iter().map(|packet| packet.reth).collect::<Vec<_>>(), [Some(whole), None, None]);
    // After a NAK it goes on with MIDDLE, without a RETH.
    lone.nak(1, NakCode::PsnSequenceError);
    let again = lone.sent();
    assert_eq!(briefs(&again), [(Opcode::WriteMiddle, psn(1), 1024), (Opcode::WriteLast, psn(2), 452)]);
    assert!(again.iter().all(|packet| packet.retransmission && packet.reth.is_none()));
}

#[test]
fn a_zero_length_write_is_one_packet_with_an_empty_reth() {
    // As LIO sends it after the RTU: VA 0, R_Key 0, AckReq, one PSN (spec section 10).
    let mut lone = Lone::new(&Setup::default());
    lone.post(&wr(1, SendOp::Write(Remote::default()), SgeList::EMPTY, true));
    let sent = lone.sent();
    assert_eq!(briefs(&sent), [(Opcode::WriteOnly, psn(0), 0)]);
    assert_eq!(sent[0].reth, Some(Reth { addr: 0, rkey: Remote::default().rkey, len_bytes: 0 }));
    assert!(sent[0].bth.ack_req);
    lone.ack(0);
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
}

#[test]
fn ack_req_stands_on_sends_signaled_ends_reads_and_where_sending_stops() {
    let mut lone = Lone::new(&Setup::default());
    let (write, two) = (SendOp::Write(FAR), lone.side.list(0, 2048));
    lone.post(&wr(1, write, two, false));
    lone.post(&wr(2, write, two, true));
    lone.post(&wr(3, SendOp::Read(FAR), two, false));
    lone.post(&wr(4, SEND, two, false));
    lone.post(&wr(5, write, two, false));
    let asks: Vec<_> = lone.sent().iter().map(|packet| (packet.bth.opcode, packet.bth.ack_req)).collect();
    use Opcode::{ReadRequest, SendFirst, SendLast, WriteOnly};
    assert_eq!(
        asks,
        [
            (WriteOnly, false),
            (WriteOnly, false),
            (WriteOnly, false),
            (WriteOnly, true),
            (ReadRequest, true),
            (SendFirst, false),
            (SendLast, true),
            (WriteOnly, false),
            (WriteOnly, true)
        ]
    );
}

/// A requester whose SENDs leave it to the peer when to acknowledge.
fn patient() -> Setup {
    Setup { config: EngineConfig { patient_sends: true, ..EngineConfig::default() }, ..Setup::default() }
}

#[test]
fn an_answer_stands_for_the_ack_of_a_patient_send() {
    let mut lone = Lone::new(&patient());
    let short = lone.side.list(0, 64);
    lone.wait(2 * patient().config.ack_owed_for);
    lone.post(&wr(1, SEND, short, true));
    assert!(lone.sent()[0].bth.ack_req, "nothing was heard of the peer for a while");
    lone.ack(0);
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
    lone.post(&wr(2, SEND, short, true));
    lone.post(&wr(3, SEND, short, true));
    assert!(lone.sent().iter().all(|packet| !packet.bth.ack_req));
    lone.confirm(9);
    assert_eq!(lone.send_wcs(), [], "there is none of that name");
    lone.confirm(3);
    assert_eq!(
        lone.send_wcs(),
        [(2, WcStatus::Success)],
        "what came before it completes, it itself silently"
    );
    lone.ack(2);
    assert_eq!(lone.send_wcs(), []);
    lone.wait(Duration::from_secs(10));
    assert!(lone.sent().is_empty(), "nothing is left to be sent again");
    // What has not left cannot have been answered.
    lone.post(&wr(4, SEND, short, true));
    lone.confirm(4);
    assert_eq!((lone.send_wcs(), lone.sent().len()), (vec![], 1));
    lone.modify(&QpModify::Err).unwrap();
    lone.confirm(4);
    lone.sent();
    assert_eq!(lone.send_wcs(), [(4, WcStatus::WrFlush)], "a flush is a flush");
}

#[test]
fn patient_sends_ask_before_the_send_queue_is_full() {
    let setup = patient();
    let mut lone = Lone::new(&setup);
    let mut since = 0;
    for index in 0..100 {
        lone.post(&wr(index.into(), SEND, lone.side.list(0, 64), true));
        let sent = lone.sent();
        since = if sent[0].bth.ack_req { 0 } else { since + 1 };
        assert!(since < setup.max_send_wr / 4, "after {index}");
        if sent[0].bth.ack_req {
            lone.ack(index);
        }
    }
}

#[test]
fn a_window_never_stalls_a_peer_that_answers_only_ack_req() {
    // Linux's rxe acknowledges nothing else (spec section 5).
    let mut lone = Lone::new(&with_config(|config| config.window_start_packets = 8));
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 100 * 1024), true));
    let mut index = 0;
    let mut rounds = 0;
    while index < 100 {
        let sent = lone.sent();
        assert!(!sent.is_empty(), "stalled at {index}");
        index += sent.len() as u32;
        let asked = sent.iter().rposition(|packet| packet.bth.ack_req).expect("one of them asks");
        assert_eq!(asked, sent.len() - 1, "the one that fills the window");
        let asks = sent.iter().filter(|packet| packet.bth.ack_req).count();
        assert!(sent.len() < 8 || asks == 2, "and one in its middle: {asks}");
        lone.ack(index - 1);
        rounds += 1;
    }
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
    assert!(rounds <= 5, "the window grew on ACKs: {rounds}");
}

#[test]
fn the_window_halves_on_a_gap() {
    let mut lone = Lone::new(&Setup::default());
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 200 * 1024), true));
    assert_eq!(lone.sent().len(), 32);
    lone.nak(0, NakCode::PsnSequenceError);
    assert_eq!(lone.sent().len(), 16);
    lone.nak(0, NakCode::PsnSequenceError);
    assert_eq!(lone.sent().len(), 8);
    assert!(lone.sent().is_empty());
}

#[test]
fn one_ack_acknowledges_all_before_it() {
    let mut lone = Lone::new(&Setup::default());
    for id in 0..10 {
        lone.post(&wr(id, SEND, lone.side.list(0, 10), id % 3 == 0));
    }
    lone.sent();
    lone.ack(6);
    assert_eq!(lone.send_wcs(), [0, 3, 6].map(|id| (id, WcStatus::Success)));
    lone.ack(6);
    lone.ack(2);
    assert_eq!(lone.engine.counters().dropped_stale_responses, 2);
    lone.ack(10);
    assert_eq!(lone.engine.counters().dropped_stale_responses, 3, "nobody asked for this one");
    lone.ack(9);
    assert_eq!(lone.send_wcs(), [(9, WcStatus::Success)]);
}

#[test]
fn a_nak_resends_from_the_missing_packet() {
    let mut lone = Lone::new(&Setup::default());
    for id in 0..4 {
        lone.post(&wr(id, SEND, lone.side.list(0, 10), true));
    }
    lone.sent();
    lone.nak(2, NakCode::PsnSequenceError);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    let again = lone.sent();
    assert_eq!(briefs(&again), [(Opcode::SendOnly, psn(2), 10), (Opcode::SendOnly, psn(3), 10)]);
    assert!(again.iter().all(|packet| packet.retransmission));
    assert_eq!(lone.engine.counters().retransmissions, 2);
}

#[test]
fn an_unknown_code_or_a_nak_of_the_future_is_dropped() {
    let mut lone = Lone::new(&Setup::default());
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.sent();
    lone.nak(2, NakCode::PsnSequenceError);
    lone.nak(5, NakCode::InvalidRequest);
    assert_eq!(lone.engine.counters().dropped_stale_responses, 2);
    lone.nak(1, NakCode::PsnSequenceError);
    assert!(lone.sent().is_empty(), "it expects what was never sent: all is well");
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
    assert_eq!(lone.state(), QpState::Rts);
}

#[test]
fn each_nak_ends_the_request_with_its_status() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccessError, WcStatus::RemoteAccess),
        (NakCode::RemoteOperationalError, WcStatus::RemoteOperation),
        (NakCode::InvalidRdRequest, WcStatus::RemoteInvalidRequest),
    ] {
        for op in [SEND, SendOp::Write(FAR), SendOp::Read(FAR)] {
            let mut lone = Lone::new(&Setup::default());
            lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
            lone.post(&wr(2, op, lone.side.list(0, 10), false));
            lone.post(&wr(3, SEND, lone.side.list(0, 10), true));
            lone.sent();
            lone.nak(1, code);
            lone.sent();
            let expected = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlush)];
            assert_eq!(lone.send_wcs(), expected, "{code:?} {op:?}");
            assert_eq!(lone.state(), QpState::Err);
            assert_eq!(lone.engine.read_bytes_in_flight(), 0);
        }
    }
}

#[test]
fn a_local_key_error_fails_in_its_turn() {
    let cases: [fn(&Lone) -> Sge; 4] = [
        |lone| Sge { lkey: srpoll::wire::num::LKey(lone.side.keys.lkey.0 ^ 1 << 20), ..lone.side.sge(0, 10) },
        |lone| Sge { addr: lone.side.region.addr() - 1, ..lone.side.sge(0, 10) },
        |lone| Sge { addr: u64::MAX - 3, ..lone.side.sge(0, 10) },
        |lone| lone.side.sge((1 << 20) - 9, 10),
    ];
    for bad in cases {
        for op in [SEND, SendOp::Write(FAR), SendOp::Read(FAR)] {
            let mut lone = Lone::new(&Setup::default());
            lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 10), false));
            let bad = SgeList::one(bad(&lone));
            lone.post(&wr(2, op, bad, false));
            lone.post(&wr(3, SEND, lone.side.list(0, 10), true));
            let sent = lone.sent();
            assert_eq!(sent.len(), 1);
            assert!(sent[0].bth.ack_req, "what stands before the bad one must be acknowledged");
            assert!(lone.send_wcs().is_empty());
            lone.ack(0);
            lone.sent();
            lone.sent();
            assert_eq!(lone.send_wcs(), [(2, WcStatus::LocalProtection), (3, WcStatus::WrFlush)]);
            assert_eq!(lone.state(), QpState::Err);
        }
    }
}

#[test]
fn the_domain_and_the_right_of_local_memory_count() {
    let read_only = Access { local_write: false, remote_write: false, remote_read: true };
    let mut lone = Lone::new(&Setup { access: read_only, ..Setup::default() });
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.post(&wr(2, SendOp::Read(FAR), lone.side.list(0, 10), true));
    lone.sent();
    lone.ack(0);
    lone.sent();
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);

    let mut lone = Lone::new(&Setup::default());
    let other_pd = lone.engine.alloc_pd().unwrap();
    let keys = lone.engine.register(other_pd, &lone.side.region, Access::REMOTE).unwrap();
    let sge = Sge { lkey: keys.lkey, ..lone.side.sge(0, 10) };
    lone.post(&wr(1, SEND, SgeList::one(sge), true));
    lone.sent();
    assert_eq!(lone.send_wcs(), [(1, WcStatus::LocalProtection)]);
}

#[test]
fn memory_that_goes_away_under_a_request_fails_it_and_no_other() {
    let mut lone = Lone::new(&Setup::default());
    let region = reactors::memory::Region::heap(8192);
    let keys = lone.engine.register(lone.side.pd, &region, Access::LOCAL).unwrap();
    let sge = Sge { addr: region.addr(), len_bytes: 8192, lkey: keys.lkey };
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 10), false));
    lone.post(&wr(2, SendOp::Write(FAR), SgeList::one(sge), true));
    assert_eq!(lone.sent_up_to(3).len(), 3);
    lone.engine.deregister(keys.lkey).unwrap();
    let again = lone.sent();
    assert_eq!(briefs(&again), [(Opcode::WriteOnly, psn(0), 10)]);
    assert!(again[0].bth.ack_req);
    lone.ack(0);
    lone.sent();
    assert_eq!(lone.send_wcs(), [(2, WcStatus::LocalProtection)]);
}

#[test]
fn what_does_not_fit_is_refused_at_once() {
    let mut lone = Lone::new(&Setup { max_send_wr: 2, max_rd_atomic: 0, ..Setup::default() });
    let qp = lone.side.qp;
    let list = lone.side.list(0, 10);
    let long = SgeList::one(Sge { len_bytes: (16 << 20) + 1, ..lone.side.sge(0, 10) });
    let refused = lone.engine.post_send(lone.now, qp, &wr(1, SEND, long, true));
    assert!(matches!(refused, Err(VerbsError::Invalid(_))));
    let refused = lone.engine.post_send(lone.now, qp, &wr(1, SendOp::Read(FAR), list, true));
    assert!(matches!(refused, Err(VerbsError::Invalid(_))), "the peer answers no READs");
    lone.post(&wr(1, SEND, list, true));
    lone.post(&wr(2, SEND, list, true));
    assert_eq!(lone.engine.post_send(lone.now, qp, &wr(3, SEND, list, true)), Err(VerbsError::QueueFull));
    lone.sent();
    assert_eq!(lone.engine.post_send(lone.now, qp, &wr(3, SEND, list, true)), Err(VerbsError::QueueFull));
    lone.ack(0);
    lone.post(&wr(3, SEND, list, true));
}

#[test]
fn the_ack_timeout_resends_and_runs_out() {
    // Code 10: 4.096 us * 1,024 = 4.194304 ms. Without early tries.
    let config = EngineConfig { early_retry: Duration::ZERO, ..EngineConfig::default() };
    let mut lone = Lone::new(&Setup { timeout_code: 10, retry_count: 3, config, ..Setup::default() });
    let timeout = Duration::from_nanos(4_096 << 10);
    lone.post(&wr(1, SEND, lone.side.list(0, 10), false));
    lone.post(&wr(2, SEND, lone.side.list(0, 10), true));
    lone.sent();
    assert_eq!(lone.engine.deadline(), lone.now + timeout);
    lone.wait(timeout - Duration::from_nanos(1));
    assert!(lone.sent().is_empty());
    for _ in 0..3 {
        lone.wait(Duration::from_nanos(1));
        assert_eq!(briefs(&lone.sent()), [(Opcode::SendOnly, psn(0), 10), (Opcode::SendOnly, psn(1), 10)]);
        lone.wait(timeout - Duration::from_nanos(1));
        assert!(lone.sent().is_empty());
    }
    lone.wait(Duration::from_nanos(1));
    assert!(lone.sent().is_empty());
    assert_eq!(lone.send_wcs(), [(1, WcStatus::RetryExceeded), (2, WcStatus::WrFlush)]);
    assert_eq!(lone.engine.counters().timeouts, 4);
}

#[test]
fn progress_restarts_the_timeout_and_gives_all_retries_back() {
    let config = EngineConfig { early_retry: Duration::ZERO, ..EngineConfig::default() };
    let mut lone = Lone::new(&Setup { timeout_code: 10, retry_count: 1, config, ..Setup::default() });
    let timeout = Duration::from_nanos(4_096 << 10);
    for id in 0..4 {
        lone.post(&wr(id, SEND, lone.side.list(0, 10), true));
    }
    lone.sent();
    for index in 0..3 {
        lone.wait(timeout - Duration::from_nanos(1));
        assert!(lone.sent().is_empty(), "it started anew");
        lone.wait(Duration::from_nanos(1));
        assert_eq!(lone.sent().len(), 4 - index as usize, "a retry");
        lone.wait(timeout - Duration::from_nanos(1));
        lone.ack(index);
    }
    lone.ack(3);
    assert_eq!(lone.send_wcs().len(), 4);
    lone.wait(Duration::from_secs(10));
    assert!(lone.sent().is_empty());
    assert_eq!(lone.state(), QpState::Rts);
}

#[test]
fn seven_means_seven_unless_for_ever() {
    let config = EngineConfig { early_retry: Duration::ZERO, ..EngineConfig::default() };
    for (retry_count, retry_forever, ends) in [(7, false, true), (7, true, false), (6, true, true)] {
        let setup = Setup {
            timeout_code: 10,
            retry_count,
            retry_forever,
            config: config.clone(),
            ..Setup::default()
        };
        let mut lone = Lone::new(&setup);
        lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
        let mut times = 0;
        for _ in 0..50 {
            times += lone.sent().len();
            lone.wait(Duration::from_millis(5));
        }
        let expected = if ends { usize::from(retry_count) + 1 } else { 50 };
        assert_eq!(times, expected, "{retry_count} {retry_forever}");
        assert_eq!(lone.state() == QpState::Err, ends);
    }
}

#[test]
fn what_waits_for_room_to_be_sent_uses_up_no_retries() {
    let config = EngineConfig { early_retry: Duration::ZERO, ..EngineConfig::default() };
    let mut lone = Lone::new(&Setup { timeout_code: 10, retry_count: 1, config, ..Setup::default() });
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    assert_eq!(lone.sent().len(), 1);
    lone.nak(0, NakCode::PsnSequenceError);
    for _ in 0..20 {
        lone.wait(Duration::from_millis(10));
        assert!(lone.sent_up_to(0).is_empty(), "the socket is full");
    }
    assert_eq!(lone.sent().len(), 1);
    lone.ack(0);
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
}

#[test]
fn timeout_code_zero_waits_for_ever() {
    let mut lone = Lone::new(&Setup { timeout_code: 0, ..Setup::default() });
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.sent();
    assert_eq!(lone.engine.deadline(), reactors::time::Time::NEVER);
}

#[test]
fn an_early_try_is_one_packet_and_costs_no_retry() {
    let mut lone = Lone::new(&Setup { timeout_code: 20, retry_count: 0, ..Setup::default() });
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 20 * 1024), false));
    assert_eq!(lone.sent().len(), 20);
    // No round trip was measured yet, so it is patient.
    lone.wait(Duration::from_millis(15));
    assert!(lone.sent().is_empty());
    lone.wait(Duration::from_millis(1));
    let probe = lone.sent();
    assert_eq!(briefs(&probe), [(Opcode::WriteOnly, psn(0), 1024)]);
    assert!(probe[0].bth.ack_req && probe[0].retransmission);
    // A peer that was slow has everything: nothing more is repeated.
    lone.ack(19);
    assert!(lone.sent().is_empty());
    lone.wait(Duration::from_secs(100));
    assert!(lone.sent().is_empty());
    assert_eq!(lone.engine.counters().retransmissions, 1);
    assert_eq!(lone.engine.deadline(), reactors::time::Time::NEVER);
}

#[test]
fn a_peer_that_had_only_the_probe_gets_the_rest_again() {
    let mut lone = Lone::new(&Setup { timeout_code: 20, ..Setup::default() });
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 20 * 1024), true));
    assert_eq!(lone.sent().len(), 20);
    lone.wait(Duration::from_millis(16));
    assert_eq!(lone.sent().len(), 1);
    lone.ack(0);
    let again = lone.sent();
    assert_eq!(briefs(&again)[0], (Opcode::WriteOnly, psn(1), 1024));
    assert_eq!(again.len(), 16, "with half the window");
}

#[test]
fn an_rnr_nak_makes_it_wait_as_long_as_the_peer_says() {
    // Code 12 is 640 us (IBTA vol. 1, table 46).
    let mut lone = Lone::new(&Setup::default());
    for id in 0..3 {
        lone.post(&wr(id, SEND, lone.side.list(0, 10), true));
    }
    lone.sent();
    lone.answer(Opcode::Acknowledge, 1, Some(Syndrome::RnrNak { timer: 12 }), &[]);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success)]);
    assert!(lone.sent().is_empty());
    assert_eq!(lone.engine.deadline(), lone.now + Duration::from_micros(640));
    // A repeated NAK and a new request do not shorten or lengthen it.
    lone.wait(Duration::from_micros(300));
    lone.answer(Opcode::Acknowledge, 1, Some(Syndrome::RnrNak { timer: 12 }), &[]);
    lone.post(&wr(3, SEND, lone.side.list(0, 10), true));
    assert!(lone.sent().is_empty());
    lone.wait(Duration::from_micros(340));
    assert_eq!(lone.sent().len(), 3);
    assert_eq!(lone.engine.counters().rnr_naks_in, 2);
}

#[test]
fn rnr_retries_run_out_unless_seven() {
    for (rnr_retry, ends_after) in [(0, Some(1)), (3, Some(4)), (7, None)] {
        let mut lone = Lone::new(&Setup { rnr_retry, ..Setup::default() });
        lone.post(&wr(1, SEND, lone.side.list(0, 10), false));
        let mut naks = 0;
        for _ in 0..20 {
            if lone.sent().is_empty() {
                break;
            }
            lone.answer(Opcode::Acknowledge, 0, Some(Syndrome::RnrNak { timer: 1 }), &[]);
            naks += 1;
            lone.wait(Duration::from_micros(10));
        }
        lone.sent();
        match ends_after {
            Some(after) => {
                assert_eq!(naks, after);
                assert_eq!(lone.send_wcs(), [(1, WcStatus::RnrRetryExceeded)]);
            }
            None => assert_eq!((naks, lone.state()), (20, QpState::Rts)),
        }
    }
}

#[test]
fn kinds_leave_together_across_queue_pairs() {
    let mut lone = Lone::new(&Setup::default());
    let other = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    for change in [QpModify::Init, lone.rtr(), lone.side.rts()] {
        lone.engine.modify_qp(lone.now, other, &change).unwrap();
    }
    let (small, data) = (lone.side.list(0, 36), lone.side.list(0, 2048));
    for qp in [lone.side.qp, other] {
        lone.engine.post_send(lone.now, qp, &wr(1, SendOp::Read(FAR), data, false)).unwrap();
        lone.engine.post_send(lone.now, qp, &wr(2, SendOp::Write(FAR), data, false)).unwrap();
        lone.engine.post_send(lone.now, qp, &wr(3, SEND, small, true)).unwrap();
    }
    lone.post_recv(1, 0, 64);
    lone.request(Opcode::SendOnly, 0, true, None, &[]);
    let opcodes: Vec<_> = lone.replies().iter().map(|packet| packet.bth.opcode).collect();
    use Opcode::{Acknowledge, ReadRequest, SendOnly, WriteOnly};
    let expected = [
        ReadRequest,
        ReadRequest,
        WriteOnly,
        WriteOnly,
        WriteOnly,
        WriteOnly,
        SendOnly,
        SendOnly,
        Acknowledge,
    ];
    assert_eq!(opcodes, expected);
}

#[test]
fn a_sink_without_room_stops_and_nothing_is_lost() {
    let mut lone = Lone::new(&Setup::default());
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 10 * 1024), true));
    let mut sent = Vec::new();
    for room in [0, 1, 3, 2, 100] {
        sent.extend(lone.sent_up_to(room));
    }
    let psns: Vec<_> = sent.iter().map(|packet| packet.bth.psn.get()).collect();
    assert_eq!(psns, (0..10).map(psn).collect::<Vec<_>>());
    assert!(lone.engine.deadline() > reactors::time::Time::ZERO);
}
