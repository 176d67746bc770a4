//! Only the peer counts: addresses, numbers, partition, form. And no bytes make the engine panic.

use std::time::Duration;

use proptest::prelude::*;
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::{Bth, Opcode};

use crate::support::*;

const GOOD: Path = Path { local: A, remote: B, scope_id: 0 };

#[test]
fn packets_of_others_are_dropped_and_prove_nothing() {
    let mut lone = Lone::new(&Setup::default());
    lone.post_recv(1, 0, 64);
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.sent();
    let heard = lone.engine.last_heard(lone.side.qp).unwrap();
    lone.wait(Duration::from_micros(50));
    let stranger = "10.0.0.99".parse().unwrap();
    for path in [Path { remote: stranger, ..GOOD }, Path { local: stranger, ..GOOD }] {
        let request = lone.bth(Opcode::SendOnly, 0);
        lone.hear_from(path, request, &[], b"spoofed");
        let ack =
            Bth::new(Opcode::Acknowledge, lone.side.qpn, srpoll::wire::num::Psn::new(lone.side.setup.psn));
        lone.hear_from(path, ack, &[0x1f, 0, 0, 0], &[]);
    }
    assert_eq!(lone.engine.counters().dropped_wrong_peer, 4);
    assert!(lone.recv_wcs().is_empty() && lone.send_wcs().is_empty() && lone.replies().is_empty());
    assert_eq!(lone.engine.last_heard(lone.side.qp).unwrap(), heard);
    lone.ack(0);
    assert_eq!(lone.engine.last_heard(lone.side.qp).unwrap(), lone.now);
}

#[test]
fn unknown_numbers_partitions_and_forms_are_counted_apart() {
    let mut lone = Lone::new(&Setup::default());
    let good = lone.bth(Opcode::WriteOnly, 0);
    let reth = [0; 16];
    lone.hear(
        Bth { dest_qpn: srpoll::wire::num::Qpn::new(lone.side.qpn.get() ^ 1 << 20), ..good },
        &reth,
        &[],
    );
    assert_eq!(lone.engine.counters().dropped_unknown_qpn, 1);
    lone.hear(Bth { pkey: 0x1234, ..good }, &reth, &[]);
    assert_eq!(lone.engine.counters().dropped_pkey, 1);
    // Too short for its header, for its RETH, for its pad; version 1; not RC.
    let mut bytes = vec![0; 28];
    good.emit(&mut bytes);
    for len in [0, 11, 12, 27] {
        lone.engine.receive(lone.now, GOOD, &bytes[..len]);
    }
    Bth { pad: 3, ..good }.emit(&mut bytes);
    lone.engine.receive(lone.now, GOOD, &bytes);
    good.emit(&mut bytes);
    bytes[1] |= 1;
    lone.engine.receive(lone.now, GOOD, &bytes);
    bytes[1] = 0;
    for opcode in [0x64, 0x20, 0x81, 0xff] {
        bytes[0] = opcode;
        lone.engine.receive(lone.now, GOOD, &bytes);
    }
    assert_eq!(lone.engine.counters().dropped_malformed, 10);
    assert!(lone.replies().is_empty());
    // A limited member of the default partition is one of us.
    lone.hear(Bth { pkey: 0x7fff, ack_req: true, ..good }, &reth, &[]);
    assert_eq!(lone.replies().len(), 1);
    assert_eq!(lone.state(), QpState::Rts);
}

#[test]
fn a_reserved_syndrome_is_dropped() {
    let mut lone = Lone::new(&Setup::default());
    lone.post(&wr(1, SEND, lone.side.list(0, 10), true));
    lone.sent();
    let psn = srpoll::wire::num::Psn::new(lone.side.setup.psn);
    for syndrome in [0x40, 0x65, 0x80, 0xff] {
        lone.hear(Bth::new(Opcode::Acknowledge, lone.side.qpn, psn), &[syndrome, 0, 0, 0], &[]);
    }
    assert_eq!(lone.engine.counters().dropped_malformed, 4);
    assert_eq!(lone.state(), QpState::Rts);
}

#[test]
fn a_peer_is_heard_from_rtr_on() {
    let mut lone = Lone::unconnected(&Setup::default());
    let qp = lone.side.qp;
    assert_eq!(lone.engine.last_heard(qp).unwrap(), reactors::time::Time::ZERO);
    lone.modify(&QpModify::Init).unwrap();
    lone.now = at_us(77);
    lone.modify(&lone.rtr()).unwrap();
    assert_eq!(lone.engine.last_heard(qp).unwrap(), at_us(77));
}

#[test]
fn every_prefix_and_every_opcode_on_a_busy_queue_pair_is_survived() {
    for opcode in 0..=u8::MAX {
        for len in 0..64 {
            let mut lone = Lone::new(&Setup { region_bytes: 4096, ..Setup::default() });
            lone.post_recv(1, 0, 64);
            lone.post(&wr(1, SendOp::Read(FAR), lone.side.list(0, 100), true));
            lone.sent();
            let mut bytes = vec![0; 64];
            lone.bth(Opcode::SendOnly, 0).emit(&mut bytes);
            bytes[0] = opcode;
            lone.engine.receive(lone.now, GOOD, &bytes[..len]);
            lone.replies();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Random packets with a header that finds the queue pair: any opcode, PSNs around those that
    /// are expected, keys and addresses that are right, nearly right, or random.
    #[test]
    fn random_packets_do_no_harm(seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        // The region is named to the peer from 4,096 on by a key of its own.
        let setup = Setup { region_bytes: 3 * 4096, access: Access::LOCAL, mtu: PathMtu::B256, ..Setup::default() };
        let mut lone = Lone::new(&setup);
        let open = reactors::memory::Region::heap(4096);
        let keys = lone.engine.register(lone.side.pd, &open, Access::REMOTE).unwrap();
        lone.side.region.fill(8192, 4096, 0xcc).unwrap();
        for round in 0..60 {
            match rng.u8(0..6) {
                0 => lone.post_recv(round, 0, 2048),
                1 if lone.state() != QpState::Reset => {
                    let op = [SEND, SendOp::Write(FAR), SendOp::Read(FAR)][rng.usize(0..3)];
                    let _ = lone.engine.post_send(lone.now, lone.side.qp, &wr(round, op, lone.side.list(2048, 1500), true));
                }
                2 => lone.wait(Duration::from_micros(rng.u64(0..100_000))),
                _ => {}
            }
            let toward_us = rng.bool();
            let base = if toward_us { PEER_PSN } else { lone.side.setup.psn };
            let psn = srpoll::wire::num::Psn::new(base.wrapping_add(rng.u32(0..12)).wrapping_sub(3));
            let mut bytes = vec![0; 12];
            Bth::new(Opcode::SendOnly, lone.side.qpn, psn).emit(&mut bytes);
            bytes[0] = rng.u8(0..0x20);
            if toward_us && rng.bool() {
                bytes[0] = [0x04, 0x06, 0x0a, 0x0c][rng.usize(0..4)];
            }
            bytes[1] = rng.u8(0..4) << 4;
            bytes[8] = if rng.bool() { 0x80 } else { 0 };
            let addr = open.addr().wrapping_add(rng.u64(0..5000)).wrapping_sub(rng.u64(0..100));
            let rkey = if rng.u8(0..8) == 0 { rng.u32(..) } else { keys.rkey.0 };
            if rng.bool() {
                bytes.extend_from_slice(&addr.to_be_bytes());
                bytes.extend_from_slice(&rkey.to_be_bytes());
                bytes.extend_from_slice(&[256, rng.u32(0..5000)][rng.usize(0..2)].to_be_bytes());
            } else {
                bytes.push([0x1f, 0x60, 0x20, rng.u8(..)][rng.usize(0..4)]);
                bytes.extend_from_slice(&[0; 3]);
            }
            let payload = [0, 256, rng.usize(0..300)][rng.usize(0..3)];
            bytes.resize(bytes.len() + payload, 0x5a);
            lone.engine.receive(lone.now, GOOD, &bytes);
            if rng.bool() {
                lone.replies();
            }
        }
        lone.replies();
        prop_assert_eq!(lone.side.bytes(8192, 4096), vec![0xcc; 4096], "nothing wrote where nobody may");
        if lone.state() == QpState::Err {
            prop_assert_eq!(lone.engine.read_bytes_in_flight(), 0);
        }
    }
}
