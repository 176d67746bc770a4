//! What one I/O costs a target on the soft provider: `cargo bench --bench exchange`.
//!
//! Two threads, one core each, over UDP on loopback. The initiator keeps commands in flight, each a
//! SEND of 64 bytes; the target answers each with a 4 KiB WRITE and a SEND of 36 bytes, as an SRP
//! READ that its memory answers at once. No SRP, no SCSI: this is the floor that those stand on.
//! Figures are of this run; compare them with each other, not with another machine.

mod common;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{BLOCK_BYTES, COMMAND_BYTES, EMPTY, RESPONSE_BYTES};
use reactors::clock::Clock;
use srpoll::rdma::soft::{Device, DeviceConfig};
use srpoll::rdma::verbs::Device as _;
use srpoll::rdma::verbs::*;

const MOST_IN_FLIGHT: usize = 256;
/// A turn that took longer was interrupted by another process: it says nothing about us.
const INTERRUPTED: Duration = Duration::from_micros(500);

/// How long each depth runs; EXCHANGE_MS sets it, for machines that others use too.
fn run_time() -> Duration {
    let asked = std::env::var("EXCHANGE_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(asked.unwrap_or(2000))
}

type Node = common::Node<Device>;

fn node(address: IpAddr) -> Node {
    let mut device = Device::new(DeviceConfig::new(7));
    device.open_port(address).expect("a free port");
    Node::new(device, MOST_IN_FLIGHT, 3 * MOST_IN_FLIGHT)
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
                    answers.push((wc.wr_id, node.number(wc.wr_id)));
                }
            }
            if got < wcs.len() {
                break;
            }
        }
        for &(slot, command) in &answers {
            let block = MOST_IN_FLIGHT as u64 + slot;
            let to = Remote { addr: peer.addr + command * BLOCK_BYTES as u64, rkey: peer.rkey };
            node.post(now, SendOp::Write(to), block, BLOCK_BYTES);
        }
        for &(slot, command) in &answers {
            let response = 2 * MOST_IN_FLIGHT as u64 + slot;
            node.set_number(response, command);
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

fn initiator(mut node: Node, clock: Clock, depth: usize, stop: &AtomicBool) -> (u64, Duration, Node) {
    let (start, run) = (Instant::now(), run_time());
    let mut wcs = [EMPTY; 64];
    let mut done = 0;
    let mut send: Vec<u64> = (0..depth as u64).collect();
    while start.elapsed() < run {
        let now = clock.now();
        for command in send.drain(..) {
            let block = MOST_IN_FLIGHT as u64 + command;
            node.set_number(block, command);
            node.post(now, SendOp::Send { solicited: false }, block, COMMAND_BYTES);
        }
        node.device.progress(now);
        loop {
            let got = node.device.poll_cq(node.cq, &mut wcs);
            for wc in &wcs[..got] {
                assert_eq!(wc.status, WcStatus::Success);
                if wc.opcode == WcOpcode::Recv {
                    send.push(node.number(wc.wr_id));
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
    let (mut a, mut b) = (node(address(1)), node(address(2)));
    let path = Path { local: address(1), remote: address(2), scope_id: 0 };
    a.connect(path, b.qpn);
    b.connect(Path { local: path.remote, remote: path.local, scope_id: 0 }, a.qpn);
    // WRITEs land in the last third of the initiator's memory.
    let peer = a.remote(2 * MOST_IN_FLIGHT as u64);
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
