//! Many connections between two engines on a bad network, cut and made anew all the time: every
//! work request ends exactly once and in order, no receive is lost, the books are right after
//! every step.

use std::collections::VecDeque;
use std::time::Duration;

use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::sim::net::Faults;
use srpoll::rdma::verbs::*;
use srpoll::wire::num::Psn;

use crate::support::*;

const CONNS: usize = 6;
const RECVS: usize = 48;

/// One end of a connection.
struct End {
    qp: QpId,
    /// Sequence number and mark of what was posted and has not ended.
    posted: VecDeque<(u64, bool)>,
    failed: bool,
}

struct Conn {
    ends: [End; 2],
}

struct Churn {
    pair: Pair,
    rng: fastrand::Rng,
    conns: Vec<Conn>,
    recvs_posted: [usize; 2],
    next_id: u64,
    completed: u64,
    flushed: u64,
    remade: u64,
}

impl Churn {
    fn new(seed: u64) -> Churn {
        let config =
            EngineConfig { read_budget_bytes: 16 << 10, read_chunk_bytes: 4096, ..Default::default() };
        let setup = Setup { config, max_send_wr: 8, timeout_code: 8, min_rnr_timer: 2, ..Setup::default() };
        let faults = Faults { loss: 0.05, duplicate: 0.05, reorder: 0.1, ..Faults::NONE };
        let mut churn = Churn {
            pair: Pair::new(faults, seed, &setup, &setup),
            rng: fastrand::Rng::with_seed(seed),
            conns: Vec::new(),
            recvs_posted: [0; 2],
            next_id: 0,
            completed: 0,
            flushed: 0,
            remade: 0,
        };
        for _ in 0..CONNS {
            let conn = churn.connect();
            churn.conns.push(conn);
        }
        churn
    }

    fn connect(&mut self) -> Conn {
        let now = self.pair.world.now();
        let psns = [self.rng.u32(0..1 << 24), self.rng.u32(0..1 << 24)];
        let mut qps = Vec::new();
        for side in 0..2 {
            let init = self.pair.sides[side].qp_init();
            qps.push(self.pair.engine(side).create_qp(&init).unwrap());
        }
        for (me, peer) in [(0, 1), (1, 0)] {
            let ends = [A, B];
            let path = Path { local: ends[me], remote: ends[peer], scope_id: 0 };
            let dest = self.pair.engine(peer).qpn(qps[peer]).unwrap();
            let QpModify::Rts(rts) = self.pair.sides[me].rts() else { unreachable!() };
            let rtr = self.pair.sides[me].rtr(path, dest, psns[peer]);
            let rts = QpModify::Rts(RtsAttr { sq_psn: Psn::new(psns[me]), ..rts });
            for change in [QpModify::Init, rtr, rts] {
                self.pair.engine(me).modify_qp(now, qps[me], &change).unwrap();
            }
        }
        let end = |qp| End { qp, posted: VecDeque::new(), failed: false };
        Conn { ends: [end(qps[0]), end(qps[1])] }
    }

    fn post(&mut self) {
        let (conn, side) = (self.rng.usize(0..CONNS), self.rng.usize(0..2));
        let len = self.rng.usize(0..9000);
        let offset = self.rng.usize(0..60_000);
        let remote = self.pair.sides[1 - side].remote(self.rng.usize(0..60_000));
        let op = [SEND, SendOp::Write(remote), SendOp::Read(remote)][self.rng.usize(0..3)];
        let signaled = self.rng.bool();
        let id = self.next_id;
        let request = wr((conn as u64) << 48 | id, op, self.pair.sides[side].list(offset, len), signaled);
        let end = &mut self.conns[conn].ends[side];
        let now = self.pair.world.now();
        match self.pair.world.endpoints[side].1.post_send(now, end.qp, &request) {
            Ok(()) => {
                end.posted.push_back((id, signaled));
                self.next_id += 1;
            }
            Err(VerbsError::QueueFull) => assert!(end.posted.len() >= 8),
            Err(other) => panic!("{other}"),
        }
    }

    fn refill(&mut self) {
        for side in 0..2 {
            while self.recvs_posted[side] < RECVS {
                self.pair.post_recv(side, 7, 100_000 + self.recvs_posted[side] * 16_384, 9000);
                self.recvs_posted[side] += 1;
            }
        }
    }

    fn collect(&mut self) {
        for side in 0..2 {
            for wc in self.pair.send_wcs(side) {
                let (conn, id) = ((wc.wr_id >> 48) as usize, wc.wr_id & 0xffff_ffff_ffff);
                let end = &mut self.conns[conn].ends[side];
                // Unsignaled ones before it ended in silence; a signaled one may not be left out.
                loop {
                    let (oldest, signaled) = end.posted.pop_front().expect("it was posted");
                    if oldest == id {
                        assert!(signaled || wc.status != WcStatus::Success, "success of an unsignaled one");
                        break;
                    }
                    assert!(!signaled && oldest < id, "{oldest} has no completion, {id} has");
                }
                match wc.status {
                    WcStatus::Success => {
                        assert!(!end.failed, "success after a failure");
                        self.completed += 1;
                    }
                    WcStatus::WrFlush => {
                        end.failed = true;
                        self.flushed += 1;
                    }
                    WcStatus::RetryExceeded => {
                        assert!(!end.failed, "one failure, then flushes");
                        end.failed = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
            let received = self.pair.recv_wcs(side);
            self.recvs_posted[side] -= received.len();
            for wc in received {
                assert!(matches!(wc.status, WcStatus::Success | WcStatus::WrFlush), "{:?}", wc.status);
            }
            events(self.pair.engine(side));
        }
    }

    fn audit(&self) {
        for (address, engine) in &self.pair.world.endpoints {
            engine.audit().unwrap_or_else(|what| panic!("{address}: {what}"));
        }
    }

    /// ERR, and behind it the marker whose flush tells that all before it has ended. Room for it
    /// is there once the rest is flushed.
    fn mark_end(&mut self, conn: usize, side: usize) {
        let now = self.pair.world.now();
        let qp = self.conns[conn].ends[side].qp;
        self.pair.engine(side).modify_qp(now, qp, &QpModify::Err).unwrap();
        self.pair.world.step(now);
        let id = self.next_id;
        self.next_id += 1;
        let marker = wr((conn as u64) << 48 | id, SendOp::Write(Remote::default()), SgeList::EMPTY, true);
        self.pair.engine(side).post_send(now, qp, &marker).unwrap();
        self.conns[conn].ends[side].posted.push_back((id, true));
    }

    /// Cuts a connection at one end, at both, or destroys it as it is.
    fn cut(&mut self) {
        let now = self.pair.world.now();
        let conn = self.rng.usize(0..CONNS);
        for side in 0..2 {
            if self.rng.bool() {
                let qp = self.conns[conn].ends[side].qp;
                self.pair.engine(side).modify_qp(now, qp, &QpModify::Err).unwrap();
            }
        }
        if self.rng.bool() {
            // Gracefully: a marker behind everything, then its flush, then the end.
            for side in 0..2 {
                self.mark_end(conn, side);
            }
            let limit = now + Duration::from_millis(1);
            while self.pair.world.step(limit) {
                self.collect();
                self.audit();
            }
            for end in &self.conns[conn].ends {
                assert!(end.posted.is_empty(), "all that was posted before the marker has ended");
            }
        }
        for side in 0..2 {
            let qp = self.conns[conn].ends[side].qp;
            let now = self.pair.world.now();
            // A receive that is half used comes back only by ERR, so that none is lost here.
            self.pair.engine(side).modify_qp(now, qp, &QpModify::Err).unwrap();
            self.pair.engine(side).destroy_qp(now, qp).unwrap();
        }
        // Completions that were queued before the end still come.
        self.collect();
        self.conns[conn] = self.connect();
        self.remade += 1;
    }

    fn finish(mut self) {
        for conn in 0..CONNS {
            for side in 0..2 {
                self.mark_end(conn, side);
            }
        }
        self.pair.settle_1s();
        self.collect();
        self.audit();
        for conn in &self.conns {
            assert!(conn.ends.iter().all(|end| end.posted.is_empty()));
        }
        for side in 0..2 {
            let srq = self.pair.sides[side].srq.unwrap();
            let left = self.recvs_posted[side] as u32;
            let engine = self.pair.engine(side);
            assert_eq!(engine.read_bytes_in_flight(), 0);
            // The limit event counts them: exactly as many as were not completed are still posted.
            engine.arm_srq_limit(srq, left).unwrap();
            assert!(events(engine).is_empty(), "no fewer than {left}");
            engine.arm_srq_limit(srq, left + 1).unwrap();
            assert_eq!(events(engine), [AsyncEvent::SrqLimit(srq)], "no more than {left}");
        }
    }
}

#[test]
fn connections_come_and_go_and_the_books_stay_right() {
    let (mut completed, mut flushed, mut remade) = (0, 0, 0);
    for seed in 0..12 {
        let mut churn = Churn::new(seed);
        for _ in 0..1500 {
            churn.post();
            if churn.rng.u8(0..4) == 0 {
                churn.refill();
            }
            if churn.rng.u8(0..60) == 0 {
                churn.cut();
            }
            let limit = churn.pair.world.now() + Duration::from_micros(churn.rng.u64(0..200));
            while churn.pair.world.step(limit) {
                churn.audit();
            }
            churn.collect();
        }
        completed += churn.completed;
        flushed += churn.flushed;
        remade += churn.remade;
        churn.finish();
    }
    assert!(completed > 1_000 && flushed > 100 && remade > 100, "{completed} {flushed} {remade}");
}
