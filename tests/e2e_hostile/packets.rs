//! Datagrams that are no packets, and packets that are for nobody.

use std::time::Duration;

use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::ext::{Aeth, NakCode, Reth, Syndrome};
use srpoll::wire::num::{Psn, Qpn, RKey};
use srpoll::wire::packet::Ext;

use super::Bout;

#[test]
fn datagrams_that_are_no_packets() {
    let mut bout = Bout::begin(2);
    let wire = bout.wire();
    let qpns = bout.live_qpns();
    let mut rng = fastrand::Rng::with_seed(1);

    // Shorter than BTH and ICRC, or no multiple of four.
    let since = bout.target.stats();
    for len in [0, 1, 3, 4, 12, 15, 17, 29, 1027] {
        wire.send_bytes(&vec![0x5a; len]);
    }
    bout.counted(&since, &["bad_length"], 9);

    // As long as a datagram can be, of the right form but for the ICRC.
    let since = bout.target.stats();
    for _ in 0..20 {
        wire.send_bytes(&vec![0x04; 65_504]);
    }
    bout.counted(&since, &["bad_icrc", "unlikely_id"], 20);

    // A good packet with one bit wrong, any bit of it; and cut off anywhere.
    let since = bout.target.stats();
    let mut good = vec![0; 68];
    Bth::new(Opcode::SendOnly, Qpn::new(qpns[0]), Psn::new(5)).emit(&mut good);
    let icrc = srpoll::wire::icrc::Prefix::new(wire.local, wire.target, 4791, 4791).unwrap().icrc(&good, 0);
    good.extend_from_slice(&icrc);
    let mut sent = 0;
    for bit in 0..good.len() * 8 {
        // FECN and BECN, and the reserved bits beside them, are not covered (IBTA annex A17).
        if !(32..40).contains(&bit) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            wire.send_bytes(&bad);
            sent += 1;
        }
    }
    for len in (16..good.len()).step_by(4) {
        wire.send_bytes(&good[..len]);
        sent += 1;
    }
    bout.counted(&since, &["bad_icrc", "unlikely_id"], sent);
    assert_eq!(bout.target.stats().get("dropped_wrong_peer"), since.get("dropped_wrong_peer"));

    // Anything at all.
    let since = bout.target.stats();
    let total = 3_000;
    for round in 0..total {
        let bytes: Vec<u8> = (0..rng.usize(0..1500)).map(|_| rng.u8(..)).collect();
        wire.send_bytes(&bytes);
        // A receive buffer is finite.
        if round % 100 == 99 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    bout.counted(&since, &["bad_length", "bad_icrc", "unlikely_id"], total);
    assert!(wire.recv(Duration::from_millis(200)).is_none(), "nothing of this is answered");
    bout.end();
}

#[test]
fn packets_for_nobody_and_from_a_stranger() {
    let mut bout = Bout::begin(52);
    let stranger = bout.wire();
    let qpns = bout.live_qpns();
    let mut rng = fastrand::Rng::with_seed(2);
    let reth = Ext::Reth(Reth { addr: 0x1000, rkey: RKey(0xdead_beef), len_bytes: 64 });
    let reply = |syndrome| Ext::Aeth(Aeth { syndrome, msn: 1 });
    let kinds = [
        (Opcode::SendOnly, Ext::None, 48),
        (Opcode::SendFirst, Ext::None, 1024),
        (Opcode::SendLast, Ext::None, 4),
        (Opcode::WriteOnly, reth, 64),
        (Opcode::ReadRequest, reth, 0),
        (Opcode::Acknowledge, reply(Syndrome::ACK), 0),
        (Opcode::Acknowledge, reply(Syndrome::Nak(NakCode::RemoteAccessError)), 0),
        (Opcode::Acknowledge, reply(Syndrome::Nak(NakCode::PsnSequenceError)), 0),
        (Opcode::Acknowledge, reply(Syndrome::RnrNak { timer: 0 }), 0),
        (Opcode::ReadResponseOnly, reply(Syndrome::ACK), 64),
        (Opcode::ReadResponseMiddle, Ext::None, 1024),
    ];

    // Numbers that no queue pair has.
    let since = bout.target.stats();
    let mut sent = 0;
    while sent < 110 {
        let qpn = rng.u32(2..0xff_ffff);
        if !qpns.contains(&qpn) {
            let (opcode, ext, len) = kinds[sent % kinds.len()];
            stranger.send(Bth::new(opcode, Qpn::new(qpn), Psn::new(1)), ext, &vec![0; len]);
            sent += 1;
        }
    }
    bout.counted(&since, &["dropped_unknown_qpn"], 110);

    // Live queue pairs, but not of this sender; whatever PSN it guesses.
    let since = bout.target.stats();
    let mut sent = 0;
    for &qpn in &qpns {
        for (opcode, ext, len) in kinds {
            for _ in 0..8 {
                let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(qpn), Psn::new(rng.u32(..))) };
                stranger.send(bth, ext, &vec![0; len]);
                sent += 1;
            }
        }
    }
    bout.counted(&since, &["dropped_wrong_peer"], sent);

    // Headers that contradict themselves, or are of another protocol.
    let since = bout.target.stats();
    let bth = Bth::new(Opcode::SendOnly, Qpn::new(qpns[0]), Psn::new(1));
    let emit = |change: &dyn Fn(&mut [u8])| {
        let mut ib = [0; 16];
        bth.emit(&mut ib);
        change(&mut ib);
        stranger.send_ib(&ib);
    };
    emit(&|ib| ib[0] = 0xff);
    emit(&|ib| ib[0] = 0x20);
    emit(&|ib| ib[1] |= 0x01);
    emit(&|ib| ib[0] = Opcode::WriteOnly as u8);
    bout.counted(&since, &["dropped_malformed"], 4);
    // Another partition.
    let since = bout.target.stats();
    stranger.send(Bth { pkey: 0x1234, ..bth }, Ext::None, &[]);
    bout.counted(&since, &["dropped_pkey"], 1);

    assert!(stranger.recv(Duration::from_millis(200)).is_none(), "nothing of this is answered");
    bout.end();
}
