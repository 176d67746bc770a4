//! RDMA READs from both ends: windows, budget, gaps, partial re-reads.

use std::time::Duration;

use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::Opcode;
use srpoll::wire::ext::{NakCode, Reth, Syndrome};

use crate::support::*;

const ACK: Option<Syndrome> = Some(Syndrome::ACK);

fn asked(packets: &[Packet]) -> Vec<(u32, u64, u32)> {
    packets
        .iter()
        .map(|packet| {
            assert_eq!(packet.bth.opcode, Opcode::ReadRequest);
            assert!(packet.payload.is_empty() && packet.bth.ack_req);
            let reth = packet.reth.unwrap();
            (packet.bth.psn.get(), reth.addr - FAR.addr, reth.len_bytes)
        })
        .collect()
}

fn start(setup: &Setup) -> Lone {
    Lone::new(&Setup { psn: 100, ..setup.clone() })
}

fn read(lone: &mut Lone, wr_id: u64, len: usize) {
    let list = lone.side.list(0, len);
    lone.post(&wr(wr_id, SendOp::Read(FAR), list, true));
}

#[test]
fn never_more_in_flight_than_the_peer_answers_and_the_rest_waits_in_order() {
    let mut lone = start(&Setup { max_rd_atomic: 2, ..Setup::default() });
    for id in 0..3 {
        read(&mut lone, id, 2000);
    }
    lone.post(&wr(3, SEND, lone.side.list(0, 10), true));
    assert_eq!(asked(&lone.sent()), [(100, 0, 2000), (102, 0, 2000)]);
    lone.answer(Opcode::ReadResponseFirst, 0, ACK, &[1; 1024]);
    assert!(lone.sent().is_empty());
    lone.answer(Opcode::ReadResponseLast, 1, ACK, &[2; 976]);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success)]);
    let sent = lone.sent();
    assert_eq!(asked(&sent[..1]), [(104, 0, 2000)]);
    assert_eq!(sent[1].brief(), (Opcode::SendOnly, 106, 10), "what stood behind it followed");
}

#[test]
fn as_many_as_were_agreed_are_in_flight_where_they_are_small() {
    // ib_srp offers 4, srpoll's initiator 128.
    for (agreed, mtu) in [(1, PathMtu::B1024), (4, PathMtu::B4096), (128, PathMtu::B1024)] {
        let mut lone = start(&Setup { max_rd_atomic: agreed, mtu, ..Setup::default() });
        for id in 0..200 {
            read(&mut lone, id, 512);
        }
        assert_eq!(lone.sent().len(), usize::from(agreed));
        for index in 0..200 {
            lone.answer(Opcode::ReadResponseOnly, index, ACK, &[1; 512]);
            let next = lone.sent().len();
            assert_eq!(next, usize::from(index + u32::from(agreed) < 200), "one more for each answer");
        }
        assert_eq!(lone.send_wcs().len(), 200);
    }
}

#[test]
fn sends_and_writes_behind_a_read_do_not_wait_for_its_answer() {
    let mut lone = start(&Setup::default());
    read(&mut lone, 0, 2000);
    lone.post(&wr(1, SendOp::Write(FAR), lone.side.list(0, 10), true));
    lone.post(&wr(2, SEND, lone.side.list(0, 10), true));
    assert_eq!(lone.sent().len(), 3);
    lone.answer(Opcode::ReadResponseFirst, 0, ACK, &[1; 1024]);
    lone.answer(Opcode::ReadResponseLast, 1, ACK, &[1; 976]);
    lone.ack(3);
    assert_eq!(lone.send_wcs(), [0, 1, 2].map(|id| (id, WcStatus::Success)));
}

#[test]
fn a_response_acknowledges_what_came_before_the_read() {
    let mut lone = start(&Setup::default());
    lone.post(&wr(0, SEND, lone.side.list(0, 10), true));
    read(&mut lone, 1, 10);
    lone.sent();
    lone.answer(Opcode::ReadResponseOnly, 1, ACK, &[9; 10]);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!(lone.side.bytes(0, 10), [9; 10]);
}

#[test]
fn an_ack_that_leaps_over_an_unanswered_read_means_that_its_data_is_lost() {
    let mut lone = start(&Setup::default());
    read(&mut lone, 0, 2000);
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.sent();
    lone.ack(2);
    assert!(lone.send_wcs().is_empty());
    let again = lone.sent();
    assert_eq!(asked(&again), [(100, 0, 2000)], "the SEND has arrived: it need not go again");
    assert!(again[0].retransmission);
    assert_eq!(lone.engine.counters().read_gaps, 1);
    lone.ack(2);
    assert!(lone.sent().is_empty(), "once a gap");
    lone.answer(Opcode::ReadResponseFirst, 0, ACK, &[1; 1024]);
    lone.answer(Opcode::ReadResponseLast, 1, ACK, &[1; 976]);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
}

#[test]
fn a_gap_is_asked_for_again_from_the_missing_packet() {
    let mut lone = start(&Setup::default());
    read(&mut lone, 0, 5000);
    lone.sent();
    lone.answer(Opcode::ReadResponseFirst, 0, ACK, &[1; 1024]);
    lone.answer(Opcode::ReadResponseMiddle, 1, None, &[2; 1024]);
    // 2 is lost.
    lone.answer(Opcode::ReadResponseMiddle, 3, None, &[4; 1024]);
    lone.answer(Opcode::ReadResponseLast, 4, ACK, &[5; 904]);
    assert_eq!(asked(&lone.sent()), [(102, 2048, 2952)], "VA and length advanced, as rxe does it");
    // Some responders begin again with FIRST, others go on with MIDDLE (rxe).
    lone.answer(Opcode::ReadResponseMiddle, 2, None, &[3; 1024]);
    lone.answer(Opcode::ReadResponseFirst, 3, ACK, &[4; 1024]);
    lone.answer(Opcode::ReadResponseOnly, 4, ACK, &[5; 904]);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success)]);
    for (index, len) in [1024, 1024, 1024, 1024, 904].into_iter().enumerate() {
        assert_eq!(lone.side.bytes(index * 1024, len), vec![index as u8 + 1; len]);
    }
    lone.answer(Opcode::ReadResponseLast, 4, ACK, &[6; 904]);
    assert_eq!(lone.side.bytes(4096, 904), vec![5; 904], "a late copy changes nothing");
}

#[test]
fn a_late_answer_is_taken_although_it_was_about_to_be_asked_for_again() {
    let config = EngineConfig { early_retry: Duration::ZERO, ..EngineConfig::default() };
    let mut lone = start(&Setup { timeout_code: 8, config, ..Setup::default() });
    read(&mut lone, 0, 2048);
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.sent();
    lone.wait(Duration::from_millis(2));
    assert_eq!(lone.engine.counters().timeouts, 1);
    lone.answer(Opcode::ReadResponseFirst, 0, ACK, &[1; 1024]);
    lone.answer(Opcode::ReadResponseLast, 1, ACK, &[1; 1024]);
    assert_eq!(lone.send_wcs(), [(0, WcStatus::Success)]);
    assert_eq!(lone.sent().len(), 1, "only the SEND goes again");
    lone.ack(2);
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
    assert_eq!(lone.engine.read_bytes_in_flight(), 0);
}

#[test]
fn answers_of_a_wrong_length_or_kind_end_the_read() {
    let cases: [(Opcode, u32, usize); 5] = [
        (Opcode::ReadResponseFirst, 0, 1000),
        (Opcode::ReadResponseOnly, 0, 1024),
        (Opcode::ReadResponseMiddle, 0, 1023),
        (Opcode::ReadResponseLast, 0, 1024),
        (Opcode::ReadResponseFirst, 0, 0),
    ];
    for (opcode, index, len) in cases {
        let mut lone = start(&Setup::default());
        read(&mut lone, 0, 2000);
        lone.sent();
        let syndrome = opcode.has_aeth().then_some(Syndrome::ACK);
        lone.answer(opcode, index, syndrome, &vec![7; len]);
        assert_eq!(lone.send_wcs(), [(0, WcStatus::BadResponse)], "{opcode:?} {len}");
        assert_eq!(lone.side.bytes(0, 2000), [0; 2000]);
    }
}

#[test]
fn a_response_to_a_write_is_nobodys() {
    let mut lone = start(&Setup::default());
    lone.post(&wr(0, SendOp::Write(FAR), lone.side.list(0, 10), true));
    lone.sent();
    lone.answer(Opcode::ReadResponseOnly, 0, ACK, &[1; 10]);
    assert_eq!(lone.engine.counters().dropped_stale_responses, 1);
    assert_eq!(lone.state(), QpState::Rts);
    lone.answer(Opcode::AtomicAcknowledge, 0, ACK, &[0; 8]);
    assert_eq!(lone.engine.counters().dropped_malformed, 1);
}

#[test]
fn a_long_read_asks_in_chunks_within_the_common_budget_in_turn() {
    let config = EngineConfig { read_chunk_bytes: 4096, read_budget_bytes: 8192, ..EngineConfig::default() };
    let mut lone = start(&Setup { config, max_rd_atomic: 8, ..Setup::default() });
    let other = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    for change in [QpModify::Init, lone.rtr(), lone.side.rts()] {
        lone.engine.modify_qp(lone.now, other, &change).unwrap();
    }
    read(&mut lone, 0, 10_000);
    let list = lone.side.list(0, 10_000);
    lone.engine.post_send(lone.now, other, &wr(1, SendOp::Read(FAR), list, true)).unwrap();
    let sent = lone.sent();
    assert_eq!(asked(&sent), [(100, 0, 4096), (100, 0, 4096)], "one chunk each");
    assert_eq!(lone.engine.read_bytes_in_flight(), 8192);
    for index in 0..3 {
        let opcode = [Opcode::ReadResponseFirst, Opcode::ReadResponseMiddle][usize::from(index > 0)];
        lone.answer(opcode, index, opcode.has_aeth().then_some(Syndrome::ACK), &[1; 1024]);
    }
    assert!(lone.sent().is_empty(), "the chunk's bytes are given back with its last packet");
    lone.answer(Opcode::ReadResponseLast, 3, ACK, &[1; 1024]);
    // Both wait for the budget; the other one came first.
    let qpn = lone.engine.qpn(other).unwrap();
    assert_eq!(asked(&lone.sent()).len(), 1);
    let psn = srpoll::wire::num::Psn::new(100);
    for index in 0..4 {
        let opcode = match index {
            0 => Opcode::ReadResponseFirst,
            3 => Opcode::ReadResponseLast,
            _ => Opcode::ReadResponseMiddle,
        };
        let ext: &[u8] = if opcode.has_aeth() { &[0x1f, 0, 0, 0] } else { &[] };
        lone.hear(srpoll::wire::bth::Bth::new(opcode, qpn, psn.plus(index)), ext, &[1; 1024]);
    }
    assert_eq!(asked(&lone.sent()).len(), 1);
    assert_eq!(lone.engine.read_bytes_in_flight(), 8192);
    // An error gives everything back at once.
    lone.modify(&QpModify::Err).unwrap();
    lone.engine.modify_qp(lone.now, other, &QpModify::Err).unwrap();
    assert_eq!(lone.engine.read_bytes_in_flight(), 0);
}

#[test]
fn a_read_larger_than_the_budget_still_goes_alone() {
    let mut lone = start(&Setup::default());
    lone.engine.set_read_budget(0);
    read(&mut lone, 0, 100_000);
    assert_eq!(asked(&lone.sent()), [(100, 0, 65_536)]);
}

#[test]
fn many_large_reads_at_once_stay_within_the_budget_and_finish() {
    let config = EngineConfig { read_budget_bytes: 128 << 10, ..EngineConfig::default() };
    let setup = Setup { config, region_bytes: 8 << 20, ..Setup::default() };
    let mut pair = Pair::good(&setup);
    let there = pair.sides[1].fill(0, 1 << 20, 5);
    for id in 0..4 {
        let list = pair.sides[0].list((id as usize) << 20, 1 << 20);
        pair.post_send(0, &wr(id, SendOp::Read(pair.sides[1].remote(0)), list, true));
    }
    let mut most = 0;
    let end = at_us(1_000_000);
    while pair.world.next_event() < end && pair.world.step(end) {
        most = most.max(pair.engine(0).read_bytes_in_flight());
    }
    assert_eq!(most, 128 << 10);
    assert_eq!(pair.send_wcs(0).len(), 4);
    for id in 0..4 {
        assert!(pair.sides[0].bytes(id << 20, 1 << 20) == there);
    }
}

// The responder's half.

fn responses(packets: &[Packet]) -> Vec<(Opcode, u32, usize)> {
    packets.iter().map(Packet::brief).collect()
}

#[test]
fn a_read_is_answered_with_its_psns_and_moves_the_expected_one() {
    let mut lone = Lone::new(&Setup::default());
    let bytes = lone.side.fill(300, 2500, 8);
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(300, 2500)), &[]);
    lone.request(Opcode::WriteOnly, 3, true, Some(lone.reth(0, 0)), &[]);
    let sent = lone.replies();
    assert_eq!(
        responses(&sent),
        [
            (Opcode::ReadResponseFirst, peer_psn(0), 1024),
            (Opcode::ReadResponseMiddle, peer_psn(1), 1024),
            (Opcode::ReadResponseLast, peer_psn(2), 452),
            (Opcode::Acknowledge, peer_psn(3), 0),
        ],
        "and the ACK of what follows comes behind it"
    );
    assert_eq!(sent[..3].iter().flat_map(|packet| packet.payload.clone()).collect::<Vec<_>>(), bytes);
    assert_eq!(sent[3].aeth.unwrap().msn, 2);
    // A zero-length READ is one empty response, and needs no key.
    lone.request(Opcode::ReadRequest, 4, true, Some(Reth { addr: 1, rkey: FAR.rkey, len_bytes: 0 }), &[]);
    assert_eq!(responses(&lone.replies()), [(Opcode::ReadResponseOnly, peer_psn(4), 0)]);
}

#[test]
fn a_duplicate_read_or_a_part_of_it_is_executed_again() {
    let mut lone = Lone::new(&Setup::default());
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 3000)), &[]);
    assert_eq!(lone.replies().len(), 3);
    // With what the memory holds now: it is executed, not replayed.
    let bytes = lone.side.fill(0, 3000, 9);
    lone.request(Opcode::ReadRequest, 1, true, Some(lone.reth(1024, 1976)), &[]);
    let again = lone.replies();
    assert_eq!(
        responses(&again),
        [(Opcode::ReadResponseFirst, peer_psn(1), 1024), (Opcode::ReadResponseLast, peer_psn(2), 952)]
    );
    assert!(again.iter().all(|packet| packet.retransmission));
    assert_eq!(again[0].payload, bytes[1024..2048]);
    // One that names something else gets silence.
    lone.request(Opcode::ReadRequest, 1, true, Some(lone.reth(0, 1976)), &[]);
    assert!(lone.replies().is_empty());
    assert_eq!(lone.engine.counters().duplicate_requests, 2);
    // One that is no longer kept, too.
    for index in 0..4 {
        lone.request(Opcode::ReadRequest, 3 + index, true, Some(lone.reth(0, 4)), &[]);
    }
    assert_eq!(lone.replies().len(), 4);
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 3000)), &[]);
    assert!(lone.replies().is_empty());
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut lone = Lone::new(&Setup { max_dest_rd_atomic: 2, ..Setup::default() });
    for index in 0..3 {
        lone.request(Opcode::ReadRequest, index, true, Some(lone.reth(0, 4)), &[]);
    }
    let sent = lone.replies();
    assert_eq!(sent.len(), 3, "the two before it are answered first");
    assert_eq!(sent[2].syndrome(), Some(Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(sent[2].bth.psn.get(), peer_psn(2));
    assert_eq!(lone.state(), QpState::Err);
    let mut lone = Lone::new(&Setup { max_dest_rd_atomic: 0, ..Setup::default() });
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 4)), &[]);
    assert_eq!(lone.replies()[0].syndrome(), Some(Syndrome::Nak(NakCode::InvalidRequest)));
}

#[test]
fn memory_that_goes_away_under_a_read_ends_the_connection() {
    let mut lone = Lone::new(&Setup::default());
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 5000)), &[]);
    lone.engine.end_batch(lone.now);
    assert_eq!(lone.sent_up_to(2).len(), 2);
    lone.engine.deregister(lone.side.keys.lkey).unwrap();
    lone.sent();
    let sent = lone.replies();
    assert_eq!(sent[0].syndrome(), Some(Syndrome::Nak(NakCode::RemoteAccessError)));
    assert_eq!(lone.state(), QpState::Err);
}

#[test]
fn answers_are_streamed_in_turns_with_other_traffic() {
    let mut lone = Lone::new(&Setup::default());
    let other = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    for change in [QpModify::Init, lone.rtr(), lone.side.rts()] {
        lone.engine.modify_qp(lone.now, other, &change).unwrap();
    }
    lone.request(Opcode::ReadRequest, 0, true, Some(lone.reth(0, 1 << 20)), &[]);
    let list = lone.side.list(0, 16 * 1024);
    lone.engine.post_send(lone.now, other, &wr(1, SendOp::Write(FAR), list, true)).unwrap();
    let sent = lone.sent_up_to(40);
    let writes = sent.iter().filter(|packet| packet.bth.opcode == Opcode::WriteOnly).count();
    assert_eq!((sent.len(), writes), (40, 16), "a READ of a megabyte does not keep others waiting");
    // Nor does it keep SENDs and ACKs, although they come later in the order of kinds.
    let small = lone.side.list(0, 36);
    lone.engine.post_send(lone.now, other, &wr(2, SEND, small, true)).unwrap();
    let qpn = lone.engine.qpn(other).unwrap();
    let bth = srpoll::wire::bth::Bth { dest_qpn: qpn, ack_req: true, ..lone.bth(Opcode::WriteOnly, 0) };
    lone.hear(bth, &[0; 16], &[]);
    lone.engine.end_batch(lone.now);
    let mut sent = Vec::new();
    for _ in 0..8 {
        sent.extend(lone.sent_up_to(40).into_iter().map(|packet| packet.bth.opcode));
    }
    assert!(sent.contains(&Opcode::SendOnly) && sent.contains(&Opcode::Acknowledge), "within 320 packets");
}
