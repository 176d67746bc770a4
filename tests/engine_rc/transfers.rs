//! Every operation, every MTU, every length: the bytes arrive, and nothing beside them changes.

use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::verbs::*;

use crate::support::*;

const MTUS: [PathMtu; 5] = [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

fn lengths(mtu: PathMtu) -> [usize; 11] {
    let m = mtu.bytes();
    [0, 1, 2, 3, 4, m - 1, m, m + 1, 2 * m, 40 * m - 1, 40 * m + 2]
}

#[test]
fn sends_arrive_with_their_length_for_every_mtu() {
    for mtu in MTUS {
        for srq in [true, false] {
            let mut pair = Pair::good(&Setup { mtu, srq, ..Setup::default() });
            for (number, len) in lengths(mtu).into_iter().enumerate() {
                let number = number as u64;
                let sent = pair.sides[0].fill(0, len, number);
                pair.sides[1].region.fill(0, 200_000, 0xaa).unwrap();
                pair.post_recv(1, 100 + number, 64, 180_000);
                pair.post_send(0, &wr(number, SEND, pair.sides[0].list(0, len), true));
                pair.settle_1s();
                assert_eq!(statuses(&pair.send_wcs(0)), [(number, WcStatus::Success)], "{mtu:?} {len}");
                let received = pair.recv_wcs(1);
                assert_eq!(statuses(&received), [(100 + number, WcStatus::Success)]);
                assert_eq!(
                    (received[0].len_bytes, received[0].opcode, received[0].qpn),
                    (len as u32, WcOpcode::Recv, pair.sides[1].qpn)
                );
                assert_eq!(pair.sides[1].bytes(64, len), sent);
                assert_eq!(pair.sides[1].bytes(0, 64), [0xaa; 64]);
                assert_eq!(pair.sides[1].bytes(64 + len, 100), [0xaa; 100]);
            }
        }
    }
}

#[test]
fn writes_arrive_in_both_ways_of_segmenting() {
    for mtu in MTUS {
        for write_only_segmentation in [true, false] {
            let config = EngineConfig { write_only_segmentation, ..EngineConfig::default() };
            let mut pair = Pair::good(&Setup { mtu, config, ..Setup::default() });
            for len in lengths(mtu) {
                let sent = pair.sides[0].fill(5, len, 77);
                pair.sides[1].region.fill(0, 200_000, 0xaa).unwrap();
                let op = SendOp::Write(pair.sides[1].remote(33));
                pair.post_send(0, &wr(9, op, pair.sides[0].list(5, len), true));
                pair.settle_1s();
                let done = pair.send_wcs(0);
                assert_eq!(statuses(&done), [(9, WcStatus::Success)], "{mtu:?} {len}");
                assert_eq!(done[0].opcode, WcOpcode::Write);
                assert_eq!(pair.sides[1].bytes(33, len), sent);
                assert_eq!(pair.sides[1].bytes(0, 33), [0xaa; 33]);
                assert_eq!(pair.sides[1].bytes(33 + len, 100), [0xaa; 100]);
                assert!(pair.recv_wcs(1).is_empty(), "a WRITE is silent at the peer");
            }
        }
    }
}

#[test]
fn reads_bring_the_bytes() {
    for mtu in MTUS {
        let mut pair = Pair::good(&Setup { mtu, ..Setup::default() });
        for len in lengths(mtu) {
            let there = pair.sides[1].fill(7, len, 78);
            pair.sides[0].region.fill(0, 200_000, 0xaa).unwrap();
            let op = SendOp::Read(pair.sides[1].remote(7));
            pair.post_send(0, &wr(9, op, pair.sides[0].list(50, len), true));
            pair.settle_1s();
            let done = pair.send_wcs(0);
            assert_eq!(statuses(&done), [(9, WcStatus::Success)], "{mtu:?} {len}");
            assert_eq!(done[0].opcode, WcOpcode::Read);
            assert_eq!(pair.sides[0].bytes(50, len), there);
            assert_eq!(pair.sides[0].bytes(0, 50), [0xaa; 50]);
            assert_eq!(pair.sides[0].bytes(50 + len, 100), [0xaa; 100]);
        }
        assert_eq!(pair.engine(0).read_bytes_in_flight(), 0);
    }
}

#[test]
fn two_pieces_are_one_message() {
    let mut pair = Pair::good(&Setup { mtu: PathMtu::B256, ..Setup::default() });
    for (first, second) in [(300, 500), (256, 256), (1, 1), (0, 700), (700, 0), (255, 2)] {
        let whole = pair.sides[0].fill(0, first + second, 5);
        let gather = SgeList::two(pair.sides[0].sge(0, first), pair.sides[0].sge(first, second));
        pair.post_recv(1, 1, 4096, 4096);
        pair.post_send(0, &wr(1, SEND, gather, true));
        pair.post_send(0, &wr(2, SendOp::Write(pair.sides[1].remote(8192)), gather, true));
        let scatter = SgeList::two(pair.sides[0].sge(20_000, second), pair.sides[0].sge(30_000, first));
        pair.post_send(0, &wr(3, SendOp::Read(pair.sides[1].remote(8192)), scatter, true));
        pair.settle_1s();
        assert_eq!(statuses(&pair.send_wcs(0)), [1, 2, 3].map(|id| (id, WcStatus::Success)));
        assert_eq!(pair.sides[1].bytes(4096, first + second), whole);
        assert_eq!(pair.sides[1].bytes(8192, first + second), whole);
        assert_eq!(pair.sides[0].bytes(20_000, second), whole[..second]);
        assert_eq!(pair.sides[0].bytes(30_000, first), whole[second..]);
    }
}

#[test]
fn eight_and_sixteen_megabytes_in_one_request() {
    // Spec section 9: MTU 1024 with 8 MiB; and the longest message at the smallest MTU.
    for (mtu, len) in [(PathMtu::B1024, 8 << 20), (PathMtu::B256, 16 << 20)] {
        let mut pair = Pair::good(&Setup { mtu, region_bytes: 16 << 20, srq: false, ..Setup::default() });
        let there = pair.sides[1].fill(0, len, 1);
        let remote = pair.sides[1].remote(0);
        pair.post_send(0, &wr(1, SendOp::Read(remote), pair.sides[0].list(0, len), true));
        pair.settle_1s();
        assert!(pair.sides[0].bytes(0, len) == there);
        let here = pair.sides[0].fill(0, len, 2);
        pair.post_send(0, &wr(2, SendOp::Write(remote), pair.sides[0].list(0, len), true));
        pair.settle_1s();
        assert!(pair.sides[1].bytes(0, len) == here);
        pair.sides[1].region.fill(0, len, 0).unwrap();
        pair.post_recv(1, 9, 0, len);
        pair.post_send(0, &wr(3, SEND, pair.sides[0].list(0, len), true));
        pair.settle_1s();
        assert!(pair.sides[1].bytes(0, len) == here);
        assert_eq!(statuses(&pair.send_wcs(0)), [1, 2, 3].map(|id| (id, WcStatus::Success)));
        assert_eq!(pair.recv_wcs(1)[0].len_bytes as usize, len);
        assert_eq!(pair.engine(0).counters().retransmissions, 0);
    }
}

#[test]
fn many_operations_of_all_kinds_complete_in_order_across_the_psn_wrap() {
    let setup = Setup { srq: false, ..Setup::default() };
    let mut pair = Pair::good(&setup);
    let mut expected = Vec::new();
    for round in 0..40u64 {
        let base = round * 4;
        pair.post_recv(1, round, (round as usize) * 4096, 4096);
        let list = pair.sides[0].list((round as usize) * 4096, 3000);
        pair.post_send(0, &wr(base, SendOp::Write(pair.sides[1].remote(200_000)), list, false));
        pair.post_send(0, &wr(base + 1, SendOp::Read(pair.sides[1].remote(300_000)), list, true));
        pair.post_send(0, &wr(base + 2, SEND, list, true));
        pair.post_send(0, &wr(base + 3, SendOp::Write(Remote::default()), SgeList::EMPTY, true));
        expected.extend([base + 1, base + 2, base + 3].map(|id| (id, WcStatus::Success)));
    }
    pair.settle_1s();
    assert_eq!(statuses(&pair.send_wcs(0)), expected);
    let received: Vec<_> = (0..40).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(statuses(&pair.recv_wcs(1)), received);
    let counters = *pair.engine(0).counters();
    assert_eq!((counters.retransmissions, counters.timeouts, counters.early_retries), (0, 0, 0));
}
