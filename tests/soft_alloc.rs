//! After start no packet costs an allocation on the soft provider either: sockets, trains and checks
//! of real datagrams on loopback, counted by an allocator.

#[path = "common/counting.rs"]
mod counting;

use std::net::IpAddr;

use counting::allocations;
use reactors::clock::Clock;
use reactors::memory::Region;
use srpoll::rdma::soft::{self, DeviceConfig};
use srpoll::rdma::verbs::*;
use srpoll::wire::num::{Psn, Qpn};

const SEND_BYTES: usize = 8260;
const WRITE_BYTES: usize = 64 << 10;
const RECEIVES: u64 = 16;

struct Node {
    device: soft::Device,
    region: Region,
    keys: MrKeys,
    cq: CqId,
    srq: SrqId,
    qp: QpId,
}

impl Node {
    fn new(address: IpAddr, clock: Clock) -> Node {
        let mut device = soft::Device::new(DeviceConfig::new(1));
        device.open_port(address).unwrap();
        let pd = device.alloc_pd().unwrap();
        let region = Region::heap(1 << 20);
        let keys = device.register(pd, &region, Access::REMOTE).unwrap();
        let (cq, srq) = (device.create_cq(256).unwrap(), device.create_srq(pd, RECEIVES as u32).unwrap());
        let (max_send_wr, max_recv_wr) = (64, 0);
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: Some(srq),
            max_send_wr,
            max_recv_wr,
            remote_access: true,
        };
        let qp = device.create_qp(&init).unwrap();
        device.modify_qp(clock.now(), qp, &QpModify::Init).unwrap();
        let mut node = Node { device, region, keys, cq, srq, qp };
        (0..RECEIVES).for_each(|slot| node.post_receive(slot));
        node
    }

    fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        let addr = self.region.addr() + offset as u64;
        Sge { addr, len_bytes: len_bytes as u32, lkey: self.keys.lkey }
    }

    fn post_receive(&mut self, slot: u64) {
        let sge = self.sge((512 << 10) + slot as usize * 16_384, 16_384);
        self.device.post_srq_recv(self.srq, &RecvWr { wr_id: slot, sge }).unwrap();
    }

    fn connect(&mut self, clock: Clock, path: Path, dest_qpn: Qpn) {
        let psn = Psn::new(0xff_ff00);
        let rtr = RtrAttr {
            path,
            path_mtu: PathMtu::B4096,
            dest_qpn,
            rq_psn: psn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
        };
        let rts = RtsAttr {
            sq_psn: psn,
            timeout_code: 14,
            retry_count: 7,
            retry_forever: true,
            rnr_retry: 7,
            max_rd_atomic: 4,
        };
        self.device.modify_qp(clock.now(), self.qp, &QpModify::Rtr(rtr)).unwrap();
        self.device.modify_qp(clock.now(), self.qp, &QpModify::Rts(rts)).unwrap();
    }

    fn post(&mut self, clock: Clock, op: SendOp, len_bytes: usize) {
        let sges = SgeList::one(self.sge(0, len_bytes));
        self.device.post_send(clock.now(), self.qp, &SendWr { wr_id: 99, op, sges, signaled: true }).unwrap();
    }
}

/// Some of every operation, until all are complete on both sides.
fn round(clock: Clock, nodes: &mut [Node; 2]) {
    const OPERATIONS: usize = 3;
    let keys = nodes[1].keys;
    let remote = Remote { addr: nodes[1].region.addr(), rkey: keys.rkey };
    for (op, len_bytes) in [
        (SendOp::Write(remote), WRITE_BYTES),
        (SendOp::Read(remote), WRITE_BYTES),
        (SendOp::Send { solicited: false }, SEND_BYTES),
    ] {
        nodes[0].post(clock, op, len_bytes);
    }
    let mut left = OPERATIONS + 1;
    let empty =
        Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::new(0) };
    while left > 0 {
        for node in nodes.iter_mut() {
            node.device.progress(clock.now());
            let _ = node.device.next_deadline();
            let mut wcs = [empty; 8];
            let got = node.device.poll_cq(node.cq, &mut wcs);
            left -= got;
            for wc in &wcs[..got] {
                assert_eq!(wc.status, WcStatus::Success);
                if wc.opcode == WcOpcode::Recv {
                    node.post_receive(wc.wr_id);
                }
            }
        }
    }
}

#[test]
fn traffic_allocates_nothing() {
    let clock = Clock::get();
    let pid = std::process::id();
    let address = |last| IpAddr::from([127, 32 + (pid >> 8 & 31) as u8, pid as u8, last]);
    let mut nodes = [Node::new(address(1), clock), Node::new(address(2), clock)];
    let qpns = [0, 1].map(|n: usize| nodes[n].device.qpn(nodes[n].qp).unwrap());
    for (n, node) in nodes.iter_mut().enumerate() {
        let path = Path { local: address(1 + n as u8), remote: address(2 - n as u8), scope_id: 0 };
        node.connect(clock, path, qpns[1 - n]);
    }
    // Peers become known and tables get their first entries.
    (0..20).for_each(|_| round(clock, &mut nodes));
    let before = allocations();
    (0..100).for_each(|_| round(clock, &mut nodes));
    assert_eq!(allocations() - before, 0);
    let counters = nodes[0].device.counters();
    assert!(counters.sent_trains > 0 && counters.recv_packets > counters.recv_datagrams, "{counters:?}");
}
