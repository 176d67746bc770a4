//! What one I/O costs a target on the soft provider: `cargo bench --bench exchange`.
//!
//! Two threads, one core each, over UDP on loopback. The initiator keeps commands in flight, each a
//! SEND of 64 bytes; the target answers each with a 4 KiB WRITE and a SEND of 36 bytes, as an SRP
//! READ that its memory answers at once. No SRP, no SCSI: this is the floor that those stand on.
//! Figures are of this run; compare them with each other, not with another machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reactors::clock::Clock;
use reactors::memory::Region;
use reactors::time::Time;
use srpoll::rdma::soft::{Device, DeviceConfig};
use srpoll::rdma::verbs::Device as _;
use srpoll::rdma::verbs::*;
use srpoll::wire::num::{Psn, Qpn};

const COMMAND_BYTES: usize = 64;
const RESPONSE_BYTES: usize = 36;
const BLOCK_BYTES: usize = 4096;
const MOST_IN_FLIGHT: usize = 256;
/// A turn that took longer was interrupted by another process: it says nothing about us.
const INTERRUPTED: Duration = Duration::from_micros(500);

/// How long each depth runs; EXCHANGE_MS sets it, for machines that others use too.
fn run_time() -> Duration {
    let asked = std::env::var("EXCHANGE_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(asked.unwrap_or(2000))
}

struct Node {
    device: Device,
    region: Region,
    keys: MrKeys,
    cq: CqId,
    srq: SrqId,
    qp: QpId,
    qpn: Qpn,
}

impl Node {
    fn new(address: IpAddr) -> Node {
        let mut device = Device::new(DeviceConfig::new(7));
        device.open_port(address).expect("a free port");
        let pd = device.alloc_pd().unwrap();
        let region = Region::heap(MOST_IN_FLIGHT * 3 * BLOCK_BYTES);
        let keys = device.register(pd, &region, Access::REMOTE).unwrap();
        let cq = device.create_cq(4096).unwrap();
        let srq = device.create_srq(pd, MOST_IN_FLIGHT as u32).unwrap();
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: Some(srq),
            max_send_wr: 2048,
            max_recv_wr: 0,
            remote_access: true,
        };
        let qp = device.create_qp(&init).unwrap();
        let qpn = device.qpn(qp).unwrap();
        device.modify_qp(Time::ZERO, qp, &QpModify::Init).unwrap();
        let mut node = Node { device, region, keys, cq, srq, qp, qpn };
        (0..MOST_IN_FLIGHT).for_each(|slot| node.post_receive(slot as u64));
        node
    }

    fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        let addr = self.region.addr() + offset as u64;
        Sge { addr, len_bytes: len_bytes as u32, lkey: self.keys.lkey }
    }

    fn post_receive(&mut self, slot: u64) {
        let sge = self.sge(slot as usize * BLOCK_BYTES, BLOCK_BYTES);
        self.device.post_srq_recv(self.srq, &RecvWr { wr_id: slot, sge }).unwrap();
    }

    fn post(&mut self, now: Time, op: SendOp, offset: usize, len_bytes: usize) {
        let sges = SgeList::one(self.sge(offset, len_bytes));
        self.device.post_send(now, self.qp, &SendWr { wr_id: 0, op, sges, signaled: false }).unwrap();
    }

    fn connect(&mut self, path: Path, peer: Qpn) {
        let rtr = RtrAttr {
            path,
            path_mtu: PathMtu::B4096,
            dest_qpn: peer,
            rq_psn: Psn::new(1),
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
        };
        let rts = RtsAttr {
            sq_psn: Psn::new(1),
            timeout_code: 14,
            retry_count: 7,
            retry_forever: true,
            rnr_retry: 7,
            max_rd_atomic: 16,
        };
        self.device.modify_qp(Time::ZERO, self.qp, &QpModify::Rtr(rtr)).unwrap();
        self.device.modify_qp(Time::ZERO, self.qp, &QpModify::Rts(rts)).unwrap();
    }
}

/// Time of the turns that found something, and commands answered in them.
struct Cost {
    busy: Duration,
    commands: u64,
    node: Node,
}

fn target(mut node: Node, clock: Clock, peer: Remote, stop: &AtomicBool) -> Cost {
    let (mut busy, mut commands) = (Duration::ZERO, 0);
    let mut wcs = [EMPTY; 64];
    let mut answers = Vec::with_capacity(MOST_IN_FLIGHT);
    let mut now = clock.now();
    while !stop.load(Ordering::Relaxed) {
        let mut work = node.device.progress(now);
        loop {
            let got = node.device.poll_cq(node.cq, &mut wcs);
            work += got;
            for wc in &wcs[..got] {
                assert_eq!(wc.status, WcStatus::Success);
                if wc.opcode == WcOpcode::Recv {
                    let mut command = [0; 8];
                    node.region.read(wc.wr_id as usize * BLOCK_BYTES, &mut command).unwrap();
                    answers.push((wc.wr_id, u64::from_le_bytes(command)));
                }
            }
            if got < wcs.len() {
                break;
            }
        }
        for &(slot, command) in &answers {
            let block = (MOST_IN_FLIGHT + slot as usize) * BLOCK_BYTES;
            let to = Remote { addr: peer.addr + command * BLOCK_BYTES as u64, rkey: peer.rkey };
            node.post(now, SendOp::Write(to), block, BLOCK_BYTES);
        }
        for &(slot, command) in &answers {
            let response = (2 * MOST_IN_FLIGHT + slot as usize) * BLOCK_BYTES;
            node.region.write(response, &command.to_le_bytes()).unwrap();
            node.post(now, SendOp::Send { solicited: false }, response, RESPONSE_BYTES);
            node.post_receive(slot);
        }
        let after = clock.now();
        if work > 0 && after.since(now) < INTERRUPTED {
            busy += after.since(now);
            commands += answers.len() as u64;
        }
        answers.clear();
        now = after;
    }
    Cost { busy, commands, node }
}

const EMPTY: Wc =
    Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::new(0) };

fn initiator(mut node: Node, clock: Clock, depth: usize, stop: &AtomicBool) -> (u64, Duration, Node) {
    let (start, run) = (Instant::now(), run_time());
    let mut wcs = [EMPTY; 64];
    let mut done = 0;
    let mut send: Vec<u64> = (0..depth as u64).collect();
    while start.elapsed() < run {
        let now = clock.now();
        for command in send.drain(..) {
            let at = (MOST_IN_FLIGHT + command as usize) * BLOCK_BYTES;
            node.region.write(at, &command.to_le_bytes()).unwrap();
            node.post(now, SendOp::Send { solicited: false }, at, COMMAND_BYTES);
        }
        node.device.progress(now);
        loop {
            let got = node.device.poll_cq(node.cq, &mut wcs);
            for wc in &wcs[..got] {
                assert_eq!(wc.status, WcStatus::Success);
                if wc.opcode == WcOpcode::Recv {
                    let mut command = [0; 8];
                    node.region.read(wc.wr_id as usize * BLOCK_BYTES, &mut command).unwrap();
                    send.push(u64::from_le_bytes(command));
                    node.post_receive(wc.wr_id);
                    done += 1;
                }
            }
            if got < wcs.len() {
                break;
            }
        }
    }
    let took = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    (done, took, node)
}

fn run(depth: usize) {
    let pid = std::process::id();
    let address = |last| IpAddr::from([127, 60, pid as u8, last]);
    let (mut a, mut b) = (Node::new(address(1)), Node::new(address(2)));
    let path = Path { local: address(1), remote: address(2), scope_id: 0 };
    a.connect(path, b.qpn);
    b.connect(Path { local: path.remote, remote: path.local, scope_id: 0 }, a.qpn);
    // WRITEs land in the last third of the initiator's memory.
    let blocks = 2 * MOST_IN_FLIGHT * BLOCK_BYTES;
    let peer = Remote { addr: a.region.addr() + blocks as u64, rkey: a.keys.rkey };
    let clock = Clock::get();
    let stop = Arc::new(AtomicBool::new(false));
    let pin = |n: usize| {
        let cores = reactors::affinity::available();
        let _ = reactors::affinity::pin(cores[n % cores.len()]);
    };
    let (ours, cost) = std::thread::scope(|scope| {
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let target = named("target").spawn_scoped(scope, || {
            pin(1);
            target(b, clock, peer, &stop)
        });
        let initiator = named("initiator").spawn_scoped(scope, || {
            pin(0);
            initiator(a, clock, depth, &stop)
        });
        (initiator.unwrap().join().unwrap(), target.unwrap().join().unwrap())
    });
    let (done, took, _) = ours;
    let sent = *cost.node.device.counters();
    println!(
        "depth {depth:3}: {:8.0} I/Os a second, target {:5.0} ns an I/O; {:4.1} packets a send, {:4.1} a receive, \
         {:.2} sends an I/O, {} lost",
        done as f64 / took.as_secs_f64(),
        cost.busy.as_nanos() as f64 / cost.commands.max(1) as f64,
        sent.sent_packets as f64 / sent.send_calls.max(1) as f64,
        sent.recv_packets as f64 / sent.recv_datagrams.max(1) as f64,
        sent.send_calls as f64 / cost.commands.max(1) as f64,
        cost.node.device.engine_counters().retransmissions,
    );
}

fn main() {
    // `cargo test --benches` only asks whether it starts.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    reactors::affinity::available();
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    for &depth in if asked.is_empty() { &[1, 8, 32, 64, 128][..] } else { &asked } {
        run(depth);
    }
}
