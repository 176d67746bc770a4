//! The RC engine by itself: no socket, no ICRC, no network.

#![allow(missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use reactors::time::Time;
use srpoll::rdma::engine::{Engine, Outgoing, Sink};
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::ext::Reth;
use srpoll::wire::num::Psn;

#[path = "../tests/engine_support/mod.rs"]
mod support;

use support::*;

/// Packets on the way between two engines, in one buffer that is used again.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Sink for Wire {
    fn has_room(&self) -> bool {
        true
    }

    fn packet(&mut self, out: &Outgoing<'_>) {
        let start = self.bytes.len();
        self.bytes.resize(start + out.len_bytes(), 0);
        out.copy_to(&mut self.bytes[start..]);
        self.ends.push(self.bytes.len());
    }
}

impl Wire {
    /// What `from` has to send arrives at `to`; gives the number of packets.
    fn carry(&mut self, now: Time, path: Path, from: &mut Engine, to: &mut Engine) -> usize {
        self.bytes.clear();
        self.ends.clear();
        from.transmit(now, self);
        let mut start = 0;
        for end in &self.ends {
            to.receive(now, path, &self.bytes[start..*end]);
            start = *end;
        }
        to.end_batch(now);
        self.ends.len()
    }
}

fn setup() -> Setup {
    Setup { mtu: PathMtu::B4096, ..Setup::default() }
}

/// What a target does for a 4 KiB read: WRITE and SEND in one chain, acknowledged and completed.
fn write_and_send(c: &mut Criterion) {
    let mut pair = Pair::good(&setup());
    let now = pair.world.now();
    let [(_, a), (_, b)] = &mut pair.world.endpoints[..] else { unreachable!() };
    let [side_a, side_b] = &pair.sides;
    let to_a = Path { local: A, remote: B, scope_id: 0 };
    let to_b = Path { local: B, remote: A, scope_id: 0 };
    let write = wr(1, SendOp::Write(side_b.remote(8192)), side_a.list(0, 4096), false);
    let send = wr(2, SEND, side_a.list(4096, 36), true);
    let mut wire = Wire::default();
    let blank =
        Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: side_a.qpn };
    let mut wcs = [blank; 4];
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(1));
    group.bench_function("4 KiB WRITE and SEND, there and back", |bencher| {
        bencher.iter(|| {
            side_b.post_recv(b, 3, 0, 64);
            a.post_send(now, side_a.qp, &write).unwrap();
            a.post_send(now, side_a.qp, &send).unwrap();
            assert_eq!(wire.carry(now, to_b, a, b), 2);
            assert_eq!(wire.carry(now, to_a, b, a), 1);
            assert_eq!(a.poll_cq(side_a.send_cq, &mut wcs), 1);
            assert_eq!(b.poll_cq(side_b.recv_cq, &mut wcs), 1);
        });
    });
    group.finish();
}

/// Packets a second into a responder: 4 KiB WRITEs, and 36-byte SENDs into a shared queue.
fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(1));
    let path = Path { local: A, remote: B, scope_id: 0 };
    for (name, opcode, len) in [
        ("receive WRITE ONLY of 4 KiB", Opcode::WriteOnly, 4096),
        ("receive SEND ONLY of 36 bytes", Opcode::SendOnly, 36),
    ] {
        let mut lone = Lone::new(&setup());
        let mut packet = vec![0; Bth::LEN];
        if opcode == Opcode::WriteOnly {
            packet.resize(Bth::LEN + Reth::LEN, 0);
            lone.reth(0, len).emit(&mut packet[Bth::LEN..]);
        }
        packet.resize(packet.len() + len, 0x5a);
        let mut bth = lone.bth(opcode, 0);
        let mut wire = Wire::default();
        let mut psn = Psn::new(PEER_PSN);
        let mut wcs = [Wc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            len_bytes: 0,
            qpn: lone.side.qpn,
        }; 1];
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                bth.psn = psn;
                psn = psn.plus(1);
                bth.emit(&mut packet);
                if opcode == Opcode::SendOnly {
                    lone.side.post_recv(&mut lone.engine, 1, 0, 64);
                }
                lone.engine.receive(lone.now, path, &packet);
                lone.engine.end_batch(lone.now);
                wire.bytes.clear();
                wire.ends.clear();
                lone.engine.transmit(lone.now, &mut wire);
                lone.engine.poll_cq(lone.side.recv_cq, &mut wcs);
            });
        });
        assert_eq!(lone.state(), QpState::Rts);
    }
    group.finish();
}

criterion_group!(benches, write_and_send, receive);
criterion_main!(benches);
