//! What one I/O costs on shared memory, both sides together: `cargo bench --bench shm`.
//!
//! One thread drives the initiator's and the target's device in turn, so that it is instructions which
//! are counted and no cache line travels between cores. Each I/O is a SEND of 64 bytes, a WRITE of 4 KiB
//! or of nothing, and a SEND of 36 bytes, as an SRP READ that its memory answers at once. The
//! difference is the copy. Figures are of this run; compare them with each other.

mod common;

use std::time::{Duration, Instant};

use common::{BLOCK_BYTES, COMMAND_BYTES, EMPTY, Node, RESPONSE_BYTES};
use reactors::time::Time;
use srpoll::rdma::shm::{Device, DeviceConfig, Hub, SOCKET};
use srpoll::rdma::verbs::Device as _;
use srpoll::rdma::verbs::*;
use srpoll::unix::OwnedSocket;
use srpoll::wire::num::{Psn, Qpn};

const MOST: usize = 64;

/// A side and its time.
struct Side {
    node: Node<Device>,
    now: u64,
}

impl Side {
    fn new(config: DeviceConfig) -> Side {
        Side { node: Node::new(Device::new(config).expect("descriptors"), MOST, 3 * MOST), now: 0 }
    }

    fn post(&mut self, op: SendOp, block: u64, len: usize) {
        self.node.post(Time::from_nanos(self.now), op, block, len);
    }

    /// One turn; what was received.
    fn turn(&mut self, received: &mut Vec<u64>) {
        // Ten nanoseconds a turn: sockets are looked at as rarely as by the clock.
        self.now += 10;
        let node = &mut self.node;
        node.device.progress(Time::from_nanos(self.now));
        let mut wcs = [EMPTY; 64];
        let count = node.device.poll_cq(node.cq, &mut wcs);
        for wc in &wcs[..count] {
            assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv));
            received.push(wc.wr_id);
            node.post_receive(wc.wr_id);
        }
    }
}

/// A target and an initiator, connected over a socket in `folder`.
fn pair(folder: &std::path::Path) -> (Side, Side) {
    let socket = folder.join("socket");
    let config =
        || DeviceConfig { hub: Hub::new().expect("an eventfd"), ..DeviceConfig::new(1).expect("an eventfd") };
    let mut target = Side::new(config());
    target.node.device.open(OwnedSocket::bind(&socket, SOCKET).expect("a socket")).unwrap();
    target.node.device.listen(None, Service::Shm).unwrap();
    let mut initiator = Side::new(DeviceConfig { target: Some(socket), ..config() });
    let attr = ConnectAttr {
        service: Service::Shm,
        path: Path::NONE,
        qpn: Qpn::new(1),
        starting_psn: Psn::new(0),
        path_mtu: PathMtu::B4096,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry: 7,
        private_data: PrivateData::EMPTY,
    };
    initiator.node.device.connect(Time::ZERO, &attr).expect("a listener");
    // Sockets are looked at once a millisecond: one turn accepts, the next one reads.
    let settle = |side: &mut Side| {
        for _ in 0..4 {
            side.now += 2_000_000;
            side.node.device.progress(Time::from_nanos(side.now));
        }
    };
    settle(&mut target);
    let Some(ConnEvent::Request { conn, request, .. }) = target.node.device.poll_conn() else {
        panic!("a request")
    };
    target.node.connect(Path::NONE, request.remote_qpn);
    let reply = ConnReply {
        qpn: Qpn::new(1),
        starting_psn: Psn::new(0),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry: 7,
    };
    target.node.device.accept(Time::ZERO, conn, &reply, &[]).unwrap();
    settle(&mut initiator);
    let Some(ConnEvent::Reply { reply, .. }) = initiator.node.device.poll_conn() else { panic!("a reply") };
    initiator.node.connect(Path::NONE, reply.qpn);
    (target, initiator)
}

/// The fastest of many rounds, in nanoseconds an I/O.
fn cost(target: &mut Side, initiator: &mut Side, depth: usize, bytes: usize) -> f64 {
    let data = initiator.node.remote(2 * MOST as u64);
    let mut received = Vec::with_capacity(MOST);
    let mut best = Duration::MAX;
    for _ in 0..20_000 {
        let started = Instant::now();
        for place in 0..depth as u64 {
            initiator.post(SendOp::Send { solicited: false }, MOST as u64 + place, COMMAND_BYTES);
        }
        target.turn(&mut received);
        assert_eq!(received.len(), depth);
        for (place, _) in (0..).zip(received.drain(..)) {
            let remote = Remote { addr: data.addr + place * BLOCK_BYTES as u64, ..data };
            if bytes > 0 {
                target.post(SendOp::Write(remote), 2 * MOST as u64 + place, bytes);
            }
            target.post(SendOp::Send { solicited: false }, MOST as u64 + place, RESPONSE_BYTES);
        }
        initiator.turn(&mut received);
        assert_eq!(received.len(), depth);
        received.clear();
        best = best.min(started.elapsed());
    }
    best.as_nanos() as f64 / depth as f64
}

fn main() {
    // `cargo test --benches` only asks whether it starts.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (mut target, mut initiator) = pair(folder.path());
    for depth in [1, 8, 32, 64] {
        let [none, block] = [0, BLOCK_BYTES].map(|bytes| cost(&mut target, &mut initiator, depth, bytes));
        println!("depth {depth:3}: {none:5.0} ns an I/O for both sides, {block:5.0} ns with 4 KiB of data");
    }
}
