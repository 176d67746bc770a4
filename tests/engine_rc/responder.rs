//! What a responder answers: ACKs and how it saves them, NAKs, RNR NAKs, duplicates, refusals.

use std::time::Duration;

use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::ext::{NakCode, Reth, Syndrome};

use crate::support::*;

fn zero_write(lone: &mut Lone, index: u32, ack_req: bool) {
    lone.request(Opcode::WriteOnly, index, ack_req, Some(lone.reth(0, 0)), &[]);
}

/// PSN and syndrome of every reply; nothing else was sent.
fn replies(lone: &mut Lone) -> Vec<(u32, Syndrome)> {
    let sent = lone.replies();
    sent.iter()
        .map(|packet| {
            assert_eq!(packet.bth.opcode, Opcode::Acknowledge);
            assert_eq!(packet.bth.dest_qpn, PEER_QPN);
            (packet.bth.psn.get(), packet.syndrome().unwrap())
        })
        .collect()
}

#[test]
fn ack_req_is_answered_once_at_the_end_of_the_batch() {
    let mut lone = Lone::new(&Setup::default());
    zero_write(&mut lone, 0, false);
    zero_write(&mut lone, 1, true);
    assert!(lone.sent().is_empty(), "not within the batch");
    zero_write(&mut lone, 2, true);
    zero_write(&mut lone, 3, false);
    assert_eq!(replies(&mut lone), [(peer_psn(3), Syndrome::ACK)], "one for all that came");
    assert!(replies(&mut lone).is_empty());
}

#[test]
fn without_ack_req_an_ack_is_owed_until_many_packets() {
    let mut lone = Lone::new(&Setup::default());
    let many = EngineConfig::default().ack_every_packets;
    for index in 0..many - 1 {
        zero_write(&mut lone, index, false);
    }
    assert!(replies(&mut lone).is_empty());
    zero_write(&mut lone, many - 1, false);
    assert_eq!(replies(&mut lone), [(peer_psn(many - 1), Syndrome::ACK)]);
    for index in many..2 * many - 1 {
        zero_write(&mut lone, index, false);
    }
    assert!(replies(&mut lone).is_empty(), "it counts anew");
    let config = EngineConfig { ack_every_packets: 1, ..EngineConfig::default() };
    let mut lone = Lone::new(&Setup { config, ..Setup::default() });
    zero_write(&mut lone, 0, false);
    assert_eq!(replies(&mut lone).len(), 1);
}

#[test]
fn an_ack_that_is_owed_is_paid_in_time_unless_a_send_has_answered() {
    let config = EngineConfig::default();
    let mut lone = Lone::new(&Setup::default());
    zero_write(&mut lone, 0, false);
    zero_write(&mut lone, 1, false);
    assert!(replies(&mut lone).is_empty());
    lone.wait(config.ack_owed_for - Duration::from_nanos(1));
    assert!(lone.sent().is_empty());
    lone.wait(Duration::from_nanos(1));
    assert_eq!(replies(&mut lone), [(peer_psn(1), Syndrome::ACK)]);
    lone.wait(10 * config.ack_owed_for);
    assert!(lone.sent().is_empty(), "it owes nothing any more");
    zero_write(&mut lone, 2, false);
    assert!(replies(&mut lone).is_empty());
    lone.post(&wr(1, SEND, lone.side.list(0, 36), true));
    assert_eq!(lone.sent().len(), 1);
    lone.ack(0);
    lone.wait(10 * config.ack_owed_for);
    assert!(lone.sent().is_empty(), "the SEND has said as much");
    zero_write(&mut lone, 3, true);
    lone.post(&wr(2, SEND, lone.side.list(0, 36), true));
    let sent: Vec<_> = lone.replies().iter().map(|packet| packet.bth.opcode).collect();
    assert_eq!(sent, [Opcode::SendOnly, Opcode::Acknowledge], "who asks for an ACK gets one all the same");
}

#[test]
fn the_msn_counts_messages() {
    let mut lone = Lone::new(&Setup::default());
    lone.post_recv(1, 0, 8192);
    lone.request(Opcode::SendFirst, 0, true, None, &[1; 1024]);
    assert_eq!(lone.replies()[0].aeth.unwrap().msn, 0);
    lone.request(Opcode::SendLast, 1, true, None, &[1; 8]);
    assert_eq!(lone.replies()[0].aeth.unwrap().msn, 1);
    lone.request(Opcode::ReadRequest, 2, true, Some(lone.reth(0, 3000)), &[]);
    let sent = lone.replies();
    assert!(sent[1].aeth.is_none(), "the middle has none");
    assert_eq!((sent[0].aeth.unwrap().msn, sent[2].aeth.unwrap().msn), (2, 2), "at its acceptance");
    zero_write(&mut lone, 5, true);
    assert_eq!(lone.replies()[0].aeth.unwrap().msn, 3);
}

#[test]
fn a_gap_is_reported_once_with_the_expected_psn() {
    let mut lone = Lone::new(&Setup::default());
    zero_write(&mut lone, 0, false);
    let sequence = Syndrome::Nak(NakCode::PsnSequenceError);
    zero_write(&mut lone, 2, true);
    zero_write(&mut lone, 3, true);
    assert_eq!(replies(&mut lone), [(peer_psn(1), sequence)]);
    zero_write(&mut lone, 4, true);
    assert!(replies(&mut lone).is_empty(), "silent until it arrives");
    assert_eq!(lone.engine.counters().dropped_out_of_order, 2);
    zero_write(&mut lone, 1, true);
    assert_eq!(replies(&mut lone), [(peer_psn(1), Syndrome::ACK)]);
    zero_write(&mut lone, 4, true);
    assert_eq!(replies(&mut lone), [(peer_psn(2), sequence)], "the next gap is another one");
}

#[test]
fn packets_that_overtook_each_other_within_a_batch_make_no_nak() {
    let mut lone = Lone::new(&Setup::default());
    zero_write(&mut lone, 1, true);
    zero_write(&mut lone, 0, true);
    zero_write(&mut lone, 1, true);
    assert_eq!(replies(&mut lone), [(peer_psn(1), Syndrome::ACK)]);
}

#[test]
fn duplicates_are_acknowledged_again_and_change_nothing() {
    let mut lone = Lone::new(&Setup::default());
    lone.post_recv(2, 64, 64);
    lone.post_recv(1, 0, 64);
    lone.request(Opcode::SendOnly, 0, true, None, b"first");
    lone.request(Opcode::WriteOnly, 1, true, Some(lone.reth(4096, 4)), b"good");
    assert_eq!(replies(&mut lone).len(), 1);
    assert_eq!(lone.recv_wcs(), [(1, WcStatus::Success)]);
    lone.request(Opcode::SendOnly, 0, true, None, b"again");
    assert_eq!(replies(&mut lone), [(peer_psn(1), Syndrome::ACK)], "with the last good PSN");
    lone.request(Opcode::WriteOnly, 1, false, Some(lone.reth(4096, 4)), b"evil");
    assert_eq!(replies(&mut lone), [(peer_psn(1), Syndrome::ACK)], "asked or not");
    assert!(lone.recv_wcs().is_empty());
    assert_eq!(lone.side.bytes(0, 5), b"first");
    assert_eq!(lone.side.bytes(4096, 4), b"good");
    assert_eq!(lone.engine.counters().duplicate_requests, 2);
}

#[test]
fn no_receive_posted_is_an_rnr_nak_with_our_timer() {
    for srq in [true, false] {
        let mut lone = Lone::new(&Setup { srq, min_rnr_timer: 21, ..Setup::default() });
        lone.request(Opcode::SendOnly, 0, true, None, b"hello");
        zero_write(&mut lone, 1, true);
        assert_eq!(replies(&mut lone), [(peer_psn(0), Syndrome::RnrNak { timer: 21 })]);
        // Still none.
        lone.request(Opcode::SendOnly, 0, true, None, b"hello");
        assert_eq!(replies(&mut lone), [(peer_psn(0), Syndrome::RnrNak { timer: 21 })]);
        lone.post_recv(1, 0, 64);
        lone.request(Opcode::SendOnly, 0, true, None, b"hello");
        zero_write(&mut lone, 1, true);
        assert_eq!(replies(&mut lone), [(peer_psn(1), Syndrome::ACK)]);
        assert_eq!(lone.recv_wcs(), [(1, WcStatus::Success)]);
        assert_eq!(lone.engine.counters().rnr_naks_out, 2);
    }
}

#[test]
fn both_ways_of_segmenting_are_taken_even_in_one_write() {
    let mut lone = Lone::new(&Setup::default());
    let whole = lone.reth(100, 2500);
    lone.request(Opcode::WriteFirst, 0, false, Some(whole), &[1; 1024]);
    lone.request(Opcode::WriteMiddle, 1, false, None, &[2; 1024]);
    lone.request(Opcode::WriteLast, 2, true, None, &[3; 452]);
    lone.request(Opcode::WriteOnly, 3, true, Some(lone.reth(2600, 1024)), &[4; 1024]);
    lone.request(Opcode::WriteOnly, 4, true, Some(lone.reth(3624, 3)), &[5; 3]);
    assert_eq!(replies(&mut lone), [(peer_psn(4), Syndrome::ACK)]);
    let expected =
        [vec![0; 100], vec![1; 1024], vec![2; 1024], vec![3; 452], vec![4; 1024], vec![5; 3], vec![0; 9]];
    assert_eq!(lone.side.bytes(0, 3636), expected.concat());
}

#[test]
fn a_write_resumed_after_a_nak_comes_without_its_reth() {
    let mut lone = Lone::new(&Setup::default());
    lone.request(Opcode::WriteFirst, 0, false, Some(lone.reth(0, 3072)), &[1; 1024]);
    lone.request(Opcode::WriteLast, 2, true, None, &[3; 1024]);
    assert_eq!(replies(&mut lone)[0].0, peer_psn(1));
    lone.request(Opcode::WriteMiddle, 1, false, None, &[2; 1024]);
    lone.request(Opcode::WriteLast, 2, true, None, &[3; 1024]);
    assert_eq!(replies(&mut lone), [(peer_psn(2), Syndrome::ACK)]);
    assert_eq!(lone.side.bytes(0, 3072), [vec![1; 1024], vec![2; 1024], vec![3; 1024]].concat());
}

/// A refusal: the NAK's code, the event, the state.
fn refused(lone: &mut Lone, code: NakCode, event: fn(QpId) -> AsyncEvent, index: u32, what: &str) {
    assert_eq!(lone.state(), QpState::Rts, "until the NAK is out: {what}");
    // What comes behind a refused request is not looked at.
    lone.request(Opcode::WriteOnly, index + 1, true, Some(lone.reth(0, 1)), &[0xbb]);
    assert_eq!(replies(lone), [(peer_psn(index), Syndrome::Nak(code))], "{what}");
    assert_eq!(lone.state(), QpState::Err, "{what}");
    let qp = lone.side.qp;
    assert_eq!(lone.events()[0], event(qp), "{what}");
    assert_eq!(lone.engine.counters().fatal_naks_out, 1);
    assert!(lone.replies().is_empty());
}

#[test]
fn wrong_keys_bounds_and_rights_are_access_errors() {
    type Named = fn(&Lone) -> Reth;
    let end = 1 << 20;
    let cases: [(&str, Named); 6] = [
        ("key", |lone| Reth {
            rkey: srpoll::wire::num::RKey(lone.side.keys.rkey.0 ^ 1 << 24),
            ..lone.reth(0, 4)
        }),
        ("the local key", |lone| Reth {
            rkey: srpoll::wire::num::RKey(lone.side.keys.lkey.0),
            ..lone.reth(0, 4)
        }),
        ("before", |lone| Reth { addr: lone.side.region.addr() - 1, ..lone.reth(0, 4) }),
        ("behind", |lone| lone.reth((1 << 20) - 3, 4)),
        ("around the end of the address space", |lone| Reth { addr: u64::MAX - 1, ..lone.reth(0, 4) }),
        ("no slot", |lone| Reth { rkey: srpoll::wire::num::RKey(0xffff_ffff), ..lone.reth(0, 4) }),
    ];
    for (what, reth) in cases {
        let mut lone = Lone::new(&Setup::default());
        let wrong = reth(&lone);
        lone.request(Opcode::WriteOnly, 0, true, Some(wrong), &[0xaa; 4]);
        refused(&mut lone, NakCode::RemoteAccessError, AsyncEvent::QpAccessError, 0, what);
        assert!(lone.side.bytes(0, end).iter().all(|byte| *byte == 0), "{what}: nothing landed");
        let mut lone = Lone::new(&Setup::default());
        let wrong = reth(&lone);
        lone.request(Opcode::ReadRequest, 0, true, Some(wrong), &[]);
        refused(&mut lone, NakCode::RemoteAccessError, AsyncEvent::QpAccessError, 0, what);
    }
}

#[test]
fn a_long_write_is_checked_as_a_whole_with_its_first_packet() {
    let mut lone = Lone::new(&Setup::default());
    let reth = lone.reth((1 << 20) - 2048, 2049);
    lone.request(Opcode::WriteFirst, 0, false, Some(reth), &[0xaa; 1024]);
    refused(&mut lone, NakCode::RemoteAccessError, AsyncEvent::QpAccessError, 0, "bound");
    assert!(lone.side.bytes((1 << 20) - 2048, 2048).iter().all(|byte| *byte == 0));
}

#[test]
fn rights_of_the_region_the_domain_and_the_queue_pair_count() {
    let only = |remote_write, remote_read| Access { local_write: true, remote_write, remote_read };
    for (access, remote_access, write_fits, read_fits) in [
        (only(true, false), true, true, false),
        (only(false, true), true, false, true),
        (only(true, true), false, false, false),
    ] {
        for (opcode, fits) in [(Opcode::WriteOnly, write_fits), (Opcode::ReadRequest, read_fits)] {
            let mut lone = Lone::new(&Setup { access, remote_access, ..Setup::default() });
            let payload: &[u8] = if opcode == Opcode::WriteOnly { &[1; 4] } else { &[] };
            lone.request(opcode, 0, true, Some(lone.reth(0, 4)), payload);
            let nak = lone.replies()[0].syndrome() == Some(Syndrome::Nak(NakCode::RemoteAccessError));
            assert_eq!(nak, !fits, "{access:?} {remote_access} {opcode:?}");
        }
    }
    let mut lone = Lone::new(&Setup::default());
    let other_pd = lone.engine.alloc_pd().unwrap();
    let keys = lone.engine.register(other_pd, &lone.side.region, Access::REMOTE).unwrap();
    let reth = Reth { rkey: keys.rkey, ..lone.reth(0, 4) };
    lone.request(Opcode::WriteOnly, 0, true, Some(reth), &[1; 4]);
    refused(&mut lone, NakCode::RemoteAccessError, AsyncEvent::QpAccessError, 0, "domain");
    let mut lone = Lone::new(&Setup::default());
    lone.engine.deregister(lone.side.keys.lkey).unwrap();
    lone.request(Opcode::WriteOnly, 0, true, Some(lone.reth(0, 4)), &[1; 4]);
    assert_eq!(lone.replies()[0].syndrome(), Some(Syndrome::Nak(NakCode::RemoteAccessError)));
}

#[test]
fn zero_length_needs_no_key() {
    let mut lone = Lone::new(&Setup { remote_access: false, ..Setup::default() });
    let nowhere = Reth { addr: 0, rkey: srpoll::wire::num::RKey(0), len_bytes: 0 };
    lone.request(Opcode::WriteOnly, 0, true, Some(nowhere), &[]);
    lone.request(Opcode::ReadRequest, 1, true, Some(nowhere), &[]);
    let sent = lone.replies();
    assert_eq!(sent[0].brief(), (Opcode::ReadResponseOnly, peer_psn(1), 0));
    assert_eq!(lone.state(), QpState::Rts);
}

#[test]
fn what_is_out_of_sequence_or_of_a_wrong_length_is_an_invalid_request() {
    type Step = (Opcode, Option<u32>, usize);
    let cases: [(&str, &[Step]); 19] = [
        ("middle first", &[(Opcode::SendMiddle, None, 1024)]),
        ("last first", &[(Opcode::SendLast, None, 10)]),
        ("write middle first", &[(Opcode::WriteMiddle, None, 1024)]),
        ("write last first", &[(Opcode::WriteLast, None, 10)]),
        ("first twice", &[(Opcode::SendFirst, None, 1024), (Opcode::SendFirst, None, 1024)]),
        ("only within", &[(Opcode::SendFirst, None, 1024), (Opcode::SendOnly, None, 10)]),
        ("write within", &[(Opcode::SendFirst, None, 1024), (Opcode::WriteOnly, Some(10), 10)]),
        ("read within", &[(Opcode::SendFirst, None, 1024), (Opcode::ReadRequest, Some(10), 0)]),
        ("send within", &[(Opcode::WriteFirst, Some(2000), 1024), (Opcode::SendMiddle, None, 976)]),
        ("short first", &[(Opcode::SendFirst, None, 1023)]),
        ("short middle", &[(Opcode::SendFirst, None, 1024), (Opcode::SendMiddle, None, 1000)]),
        ("empty last", &[(Opcode::SendFirst, None, 1024), (Opcode::SendLast, None, 0)]),
        ("long only", &[(Opcode::SendOnly, None, 1025)]),
        ("write longer than its RETH", &[(Opcode::WriteOnly, Some(9), 10)]),
        ("write shorter than its RETH", &[(Opcode::WriteOnly, Some(11), 10)]),
        ("first that is all", &[(Opcode::WriteFirst, Some(1024), 1024)]),
        ("last too short", &[(Opcode::WriteFirst, Some(2000), 1024), (Opcode::WriteLast, None, 975)]),
        ("last too long", &[(Opcode::WriteFirst, Some(2000), 1024), (Opcode::WriteLast, None, 977)]),
        ("read with a payload", &[(Opcode::ReadRequest, Some(10), 10)]),
    ];
    for (what, steps) in cases {
        let mut lone = Lone::new(&Setup { srq: false, ..Setup::default() });
        lone.post_recv(5, 4096, 65_536);
        for (index, (opcode, reth_len, len)) in steps.iter().enumerate() {
            let reth = reth_len.map(|len| lone.reth(0, len as usize));
            lone.request(*opcode, index as u32, false, reth, &vec![0x77; *len]);
        }
        let last = steps.len() as u32 - 1;
        refused(&mut lone, NakCode::InvalidRequest, AsyncEvent::QpRequestError, last, what);
        let used = match steps[0].0 {
            Opcode::SendFirst | Opcode::SendOnly => WcStatus::RemoteInvalidRequest,
            _ => WcStatus::WrFlush,
        };
        assert_eq!(lone.recv_wcs(), [(5, used)], "{what}");
    }
}

#[test]
fn unneeded_and_reserved_opcodes_are_an_invalid_request() {
    for opcode in [
        Opcode::SendLastImm,
        Opcode::SendOnlyImm,
        Opcode::WriteLastImm,
        Opcode::WriteOnlyImm,
        Opcode::CompareSwap,
        Opcode::FetchAdd,
        Opcode::SendLastInvalidate,
        Opcode::SendOnlyInvalidate,
    ] {
        let mut lone = Lone::new(&Setup::default());
        lone.post_recv(5, 0, 64);
        let bth = Bth { ack_req: true, ..lone.bth(opcode, 0) };
        lone.hear(bth, &vec![0; opcode.ext_len_bytes()], &[]);
        refused(&mut lone, NakCode::InvalidRequest, AsyncEvent::QpRequestError, 0, &format!("{opcode:?}"));
    }
    for reserved in [0x15, 0x18, 0x1f] {
        let mut lone = Lone::new(&Setup::default());
        let mut bytes = vec![0; 16];
        lone.bth(Opcode::SendOnly, 0).emit(&mut bytes);
        bytes[0] = reserved;
        let path = Path { local: A, remote: B, scope_id: 0 };
        lone.engine.receive(lone.now, path, &bytes);
        refused(&mut lone, NakCode::InvalidRequest, AsyncEvent::QpRequestError, 0, "reserved");
    }
}

#[test]
fn a_send_longer_than_its_receive_is_a_local_length_error() {
    for (steps, lands) in
        [(vec![(Opcode::SendOnly, 101)], 0), (vec![(Opcode::SendFirst, 1024), (Opcode::SendLast, 1)], 0)]
    {
        let mut lone = Lone::new(&Setup { srq: false, ..Setup::default() });
        let room = if steps.len() == 1 { 100 } else { 1024 };
        lone.post_recv(5, 0, room);
        lone.post_recv(6, 0, 64);
        for (index, (opcode, len)) in steps.iter().enumerate() {
            lone.request(*opcode, index as u32, false, None, &vec![0x77; *len]);
        }
        let last = steps.len() as u32 - 1;
        refused(&mut lone, NakCode::InvalidRequest, AsyncEvent::QpRequestError, last, "length");
        assert_eq!(lone.recv_wcs(), [(5, WcStatus::LocalLength), (6, WcStatus::WrFlush)]);
        assert_eq!(lone.side.bytes(room, 64), [lands; 64], "nothing beyond it");
    }
}

#[test]
fn a_receive_with_a_bad_key_is_our_failure() {
    let mut lone = Lone::new(&Setup { srq: false, ..Setup::default() });
    let sge = Sge { lkey: srpoll::wire::num::LKey(1), ..lone.side.sge(0, 64) };
    lone.engine.post_recv(lone.side.qp, &RecvWr { wr_id: 5, sge }).unwrap();
    lone.request(Opcode::SendOnly, 0, true, None, b"hello");
    refused(&mut lone, NakCode::RemoteOperationalError, AsyncEvent::QpFatal, 0, "key");
    assert_eq!(lone.recv_wcs(), [(5, WcStatus::LocalProtection)]);
    // An empty SEND touches no memory.
    let mut lone = Lone::new(&Setup { srq: false, ..Setup::default() });
    lone.engine.post_recv(lone.side.qp, &RecvWr { wr_id: 5, sge }).unwrap();
    lone.request(Opcode::SendOnly, 0, true, None, &[]);
    assert_eq!(lone.recv_wcs(), [(5, WcStatus::Success)]);
}

#[test]
fn refusals_reach_the_requester_of_a_pair() {
    for (code, expected) in
        [(0, WcStatus::RemoteAccess), (1, WcStatus::RemoteInvalidRequest), (2, WcStatus::RemoteOperation)]
    {
        let mut pair = Pair::good(&Setup::default());
        let list = pair.sides[0].list(0, 100);
        let op = match code {
            0 => SendOp::Write(Remote { rkey: FAR.rkey, ..pair.sides[1].remote(0) }),
            _ => SEND,
        };
        let sge = match code {
            1 => pair.sides[1].sge(0, 99),
            _ => Sge { lkey: srpoll::wire::num::LKey(7), ..pair.sides[1].sge(0, 100) },
        };
        let srq = pair.sides[1].srq.unwrap();
        pair.engine(1).post_srq_recv(srq, &RecvWr { wr_id: 1, sge }).unwrap();
        pair.post_send(0, &wr(1, op, list, false));
        pair.post_send(0, &wr(2, SEND, list, false));
        pair.settle_1s();
        assert_eq!(statuses(&pair.send_wcs(0)), [(1, expected), (2, WcStatus::WrFlush)]);
        for side in 0..2 {
            let qp = pair.sides[side].qp;
            assert_eq!(pair.engine(side).qp_state(qp).unwrap(), QpState::Err);
        }
    }
}

#[test]
fn rnr_both_ways_in_a_pair() {
    let mut pair = Pair::good(&Setup::default());
    for side in 0..2 {
        pair.post_send(side, &wr(1, SEND, pair.sides[side].list(0, 3000), true));
    }
    pair.settle(std::time::Duration::from_millis(5));
    for side in 0..2 {
        assert!(pair.send_wcs(side).is_empty());
        let counters = *pair.engine(side).counters();
        assert!(counters.rnr_naks_in >= 5 && counters.rnr_naks_in <= 8, "one every 640 us: {counters:?}");
        pair.post_recv(side, 9, 8192, 4096);
    }
    pair.settle(std::time::Duration::from_millis(5));
    for side in 0..2 {
        assert_eq!(statuses(&pair.send_wcs(side)), [(1, WcStatus::Success)]);
        assert_eq!(statuses(&pair.recv_wcs(side)), [(9, WcStatus::Success)]);
    }
}
