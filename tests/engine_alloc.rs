//! After start no packet costs an allocation: a counting allocator says so for every kind of work.

#[path = "common/counting.rs"]
mod counting;
#[path = "engine_support/mod.rs"]
mod support;

use std::time::Duration;

use counting::allocations;
use srpoll::rdma::engine::{Engine, Outgoing, Sink};
use srpoll::rdma::verbs::*;

use support::*;

/// A wire of fixed size that loses a packet now and then.
struct Wire {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    number: u32,
}

impl Sink for Wire {
    fn has_room(&self) -> bool {
        self.ends.len() < 256
    }

    fn packet(&mut self, out: &Outgoing<'_>) {
        self.number += 1;
        if self.number.is_multiple_of(37) {
            return;
        }
        let start = self.bytes.len();
        self.bytes.resize(start + out.len_bytes(), 0);
        out.copy_to(&mut self.bytes[start..]);
        self.ends.push(self.bytes.len());
    }
}

impl Wire {
    fn carry(&mut self, now: reactors::time::Time, path: Path, from: &mut Engine, to: &mut Engine) {
        self.bytes.clear();
        self.ends.clear();
        from.handle_timeout(now);
        from.transmit(now, self);
        let mut start = 0;
        for end in &self.ends {
            to.receive(now, path, &self.bytes[start..*end]);
            start = *end;
        }
        to.end_batch(now);
    }
}

#[test]
fn no_packet_completion_retry_or_wait_allocates() {
    let setup = Setup { mtu: PathMtu::B1024, timeout_code: 10, ..Setup::default() };
    let mut pair = Pair::good(&setup);
    let mut now = pair.world.now();
    let [(_, a), (_, b)] = &mut pair.world.endpoints[..] else { unreachable!() };
    let [side_a, side_b] = &pair.sides;
    let to_a = Path { local: A, remote: B, scope_id: 0 };
    let to_b = Path { local: B, remote: A, scope_id: 0 };
    let data = side_a.list(0, 20_000);
    let requests = [
        wr(1, SendOp::Write(side_b.remote(0)), data, false),
        wr(2, SendOp::Read(side_b.remote(0)), data, false),
        wr(3, SEND, side_a.list(0, 3000), true),
    ];
    let recv = RecvWr { wr_id: 4, sge: side_b.sge(100_000, 4096) };
    let blank =
        Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: side_a.qpn };
    let mut wcs = [blank; 8];
    let mut wire = Wire { bytes: Vec::with_capacity(1 << 20), ends: Vec::with_capacity(256), number: 0 };
    let (mut posted, mut done) = (0, 0);

    let before = allocations();
    for round in 0..20_000u32 {
        if posted < done + 20 {
            posted += 1;
            for request in &requests {
                a.post_send(now, side_a.qp, request).unwrap();
            }
        }
        if round % 16 == 0 {
            // Too few at times, so that RNR waits happen too.
            b.post_srq_recv(side_b.srq.unwrap(), &recv).ok();
        }
        wire.carry(now, to_b, a, b);
        wire.carry(now, to_a, b, a);
        let polled = a.poll_cq(side_a.send_cq, &mut wcs);
        done += wcs[..polled].iter().filter(|wc| wc.status == WcStatus::Success).count();
        b.poll_cq(side_b.recv_cq, &mut wcs);
        now += Duration::from_micros(20);
    }
    assert_eq!(allocations() - before, 0);
    let counters = a.counters();
    assert!(done > 300 && counters.retransmissions > 100, "{done} {counters:?}");
    assert!(counters.early_retries + counters.timeouts > 0 && counters.rnr_naks_in > 0, "{counters:?}");

    let before = allocations();
    a.modify_qp(now, side_a.qp, &QpModify::Err).unwrap();
    wire.carry(now, to_b, a, b);
    assert_eq!(allocations() - before, 0, "nor does the flush");
}
