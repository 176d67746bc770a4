//! What one I/O costs on shared memory, both sides together: `cargo bench --bench shm`.
//!
//! One thread drives the initiator's and the target's device in turn, so that it is instructions which
//! are counted and no cache line travels between cores. Each I/O is a SEND of 64 bytes, a WRITE of 4 KiB
//! or of nothing, and a SEND of 36 bytes, as an SRP READ that its memory answers at once. The
//! difference is the copy. Figures are of this run; compare them with each other.

use std::time::{Duration, Instant};

use reactors::memory::Region;
use reactors::time::Time;
use srpoll::rdma::shm::{Device, DeviceConfig, Hub, SOCKET};
use srpoll::rdma::verbs::Device as _;
use srpoll::rdma::verbs::*;
use srpoll::unix::OwnedSocket;
use srpoll::wire::num::{Psn, Qpn};

const COMMAND_BYTES: usize = 64;
const RESPONSE_BYTES: usize = 36;
const BLOCK_BYTES: usize = 4096;
const MOST: usize = 64;
const EMPTY: Wc =
    Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::new(0) };

struct Node {
    device: Device,
    region: Region,
    keys: MrKeys,
    cq: CqId,
    srq: SrqId,
    qp: QpId,
    now: u64,
}

impl Node {
    fn new(config: DeviceConfig) -> Node {
        let mut device = Device::new(config).expect("descriptors");
        let pd = device.alloc_pd().unwrap();
        let region = device.allocate(3 * MOST * BLOCK_BYTES, Access::REMOTE).expect("shared memory");
        let keys = device.register(pd, &region, Access::REMOTE).unwrap();
        let cq = device.create_cq(4096).unwrap();
        let srq = device.create_srq(pd, MOST as u32).unwrap();
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: Some(srq),
            max_send_wr: 2 * MOST as u32,
            max_recv_wr: 0,
            remote_access: true,
        };
        let qp = device.create_qp(&init).unwrap();
        device.modify_qp(Time::ZERO, qp, &QpModify::Init).unwrap();
        let mut node = Node { device, region, keys, cq, srq, qp, now: 0 };
        (0..MOST as u64).for_each(|place| node.post_receive(place));
        node
    }

    fn sge(&self, place: u64, len: usize) -> Sge {
        let addr = self.region.addr() + place * BLOCK_BYTES as u64;
        Sge { addr, len_bytes: len as u32, lkey: self.keys.lkey }
    }

    fn post_receive(&mut self, place: u64) {
        let sge = self.sge(place, BLOCK_BYTES);
        self.device.post_srq_recv(self.srq, &RecvWr { wr_id: place, sge }).unwrap();
    }

    fn post(&mut self, op: SendOp, place: u64, len: usize) {
        let wr = SendWr { wr_id: 0, op, sges: SgeList::one(self.sge(place, len)), signaled: false };
        self.device.post_send(Time::from_nanos(self.now), self.qp, &wr).unwrap();
    }

    fn ready(&mut self, dest_qpn: Qpn) {
        let rtr = RtrAttr {
            path: Path::NONE,
            path_mtu: PathMtu::B4096,
            dest_qpn,
            rq_psn: Psn::new(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
        };
        let rts = RtsAttr {
            sq_psn: Psn::new(0),
            timeout_code: 14,
            retry_count: 7,
            retry_forever: false,
            rnr_retry: 7,
            max_rd_atomic: 1,
        };
        self.device.modify_qp(Time::ZERO, self.qp, &QpModify::Rtr(rtr)).unwrap();
        self.device.modify_qp(Time::ZERO, self.qp, &QpModify::Rts(rts)).unwrap();
    }

    /// One turn; what was received.
    fn turn(&mut self, received: &mut Vec<u64>) {
        // Ten nanoseconds a turn: sockets are looked at as rarely as by the clock.
        self.now += 10;
        self.device.progress(Time::from_nanos(self.now));
        let mut wcs = [EMPTY; 64];
        let count = self.device.poll_cq(self.cq, &mut wcs);
        for wc in &wcs[..count] {
            assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv));
            received.push(wc.wr_id);
            self.post_receive(wc.wr_id);
        }
    }
}

/// A target and an initiator, connected over a socket in `folder`.
fn pair(folder: &std::path::Path) -> (Node, Node) {
    let socket = folder.join("socket");
    let config =
        || DeviceConfig { hub: Hub::new().expect("an eventfd"), ..DeviceConfig::new(1).expect("an eventfd") };
    let mut target = Node::new(config());
    target.device.open(OwnedSocket::bind(&socket, SOCKET).expect("a socket")).unwrap();
    target.device.listen(None, Service::Shm).unwrap();
    let mut initiator = Node::new(DeviceConfig { target: Some(socket), ..config() });
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
    initiator.device.connect(Time::ZERO, &attr).expect("a listener");
    // Sockets are looked at once a millisecond: one turn accepts, the next one reads.
    let settle = |node: &mut Node| {
        for _ in 0..4 {
            node.now += 2_000_000;
            node.device.progress(Time::from_nanos(node.now));
        }
    };
    settle(&mut target);
    let Some(ConnEvent::Request { conn, request, .. }) = target.device.poll_conn() else {
        panic!("a request")
    };
    target.ready(request.remote_qpn);
    let reply = ConnReply {
        qpn: Qpn::new(1),
        starting_psn: Psn::new(0),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry: 7,
    };
    target.device.accept(Time::ZERO, conn, &reply, &[]).unwrap();
    settle(&mut initiator);
    let Some(ConnEvent::Reply { reply, .. }) = initiator.device.poll_conn() else { panic!("a reply") };
    initiator.ready(reply.qpn);
    (target, initiator)
}

/// The fastest of many rounds, in nanoseconds an I/O.
fn cost(target: &mut Node, initiator: &mut Node, depth: usize, bytes: usize) -> f64 {
    let data =
        Remote { addr: initiator.region.addr() + (2 * MOST * BLOCK_BYTES) as u64, rkey: initiator.keys.rkey };
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
