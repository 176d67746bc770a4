//! Devices on addresses of their own, all driven by the test's thread.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use reactors::clock::Clock;
use reactors::memory::Region;
use reactors::time::Time;

use crate::rdma::engine::EngineConfig;
use crate::rdma::soft::{Device, DeviceConfig, Fault, PortConfig, PortSocket, link_shards, open_port};
use crate::rdma::verbs::{
    Access, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, CqId, Device as _, MrKeys, PathMtu, PdId,
    PrivateData, QpId, QpInit, QpModify, RecvWr, Remote, RtrAttr, RtsAttr, SendOp, SendWr, Service, Sge,
    SgeList, SrqId, Wc, WcStatus,
};
use crate::wire::num::{Psn, Qpn};

/// A loopback address that no other test of this run or another has.
pub(super) fn own_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::from([127, 64 + (pid >> 8 & 0x3f) as u8, pid as u8, last])
}

/// Registered memory of a node.
pub(super) const MEMORY_BYTES: usize = 4 << 20;
const RECEIVES: usize = 128;
const RECEIVE_BYTES: usize = 16 << 10;
const PORT: u16 = 5555;

/// A device with queues and memory. The upper half of the memory is receive buffers.
pub(super) struct Node {
    pub(super) device: Device,
    pub(super) region: Region,
    pub(super) keys: MrKeys,
    pub(super) cq: CqId,
    pd: PdId,
    srq: SrqId,
}

/// A queue pair of a node.
#[derive(Copy, Clone, Debug)]
pub(super) struct End {
    pub(super) node: usize,
    pub(super) qp: QpId,
    pub(super) qpn: Qpn,
    pub(super) conn: ConnId,
}

/// How a rig's devices are made.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) fault: Option<Fault>,
    pub(super) in_process: bool,
    pub(super) mtu: PathMtu,
    pub(super) recv_buffer_bytes: usize,
    pub(super) engine: EngineConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            fault: None,
            in_process: true,
            mtu: PathMtu::B4096,
            recv_buffer_bytes: 4 << 20,
            engine: EngineConfig::default(),
        }
    }
}

pub(super) struct Rig {
    pub(super) clock: Clock,
    pub(super) nodes: Vec<Node>,
    pub(super) setup: Setup,
    pub(super) completions: Vec<(usize, Wc)>,
}

impl Rig {
    pub(super) fn new(setup: Setup) -> Rig {
        Rig { clock: Clock::get(), nodes: Vec::new(), setup, completions: Vec::new() }
    }

    /// Adds a host with so many shards on `address`; gives the number of its first node.
    pub(super) fn host(&mut self, address: IpAddr, shards: usize) -> usize {
        let recv_buffer_bytes = self.setup.recv_buffer_bytes;
        let config = PortConfig { recv_buffer_bytes, ..PortConfig::new(shards) };
        self.host_on(open_port(address, &config).unwrap())
    }

    /// Adds a host with a shard for each of the sockets.
    pub(super) fn host_on(&mut self, ports: Vec<PortSocket>) -> usize {
        let (first, shards) = (self.nodes.len(), ports.len());
        let links = link_shards(shards).unwrap();
        for (shard, (port, links)) in ports.into_iter().zip(links).enumerate() {
            let mut config = DeviceConfig::new(0x1000 + first as u64);
            config.engine = EngineConfig {
                shard: shard as u32,
                shard_bits: crate::rdma::shard_bits(shards),
                ..self.setup.engine.clone()
            };
            if shard > 0 {
                config.cm = None;
            }
            config.links = (shards > 1).then_some(links);
            config.fault = self.setup.fault;
            config.in_process = self.setup.in_process;
            let mut device = Device::new(config);
            device.add_port(port);
            self.nodes.push(Node::new(device));
        }
        first
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// One turn of every device; completions are kept.
    pub(super) fn turn(&mut self) -> usize {
        let mut work = 0;
        for (number, node) in self.nodes.iter_mut().enumerate() {
            work += node.device.progress(self.clock.now());
            let mut wcs = [Wc {
                wr_id: 0,
                status: WcStatus::Success,
                opcode: crate::rdma::verbs::WcOpcode::Send,
                len_bytes: 0,
                qpn: Qpn::new(0),
            }; 32];
            loop {
                let got = node.device.poll_cq(node.cq, &mut wcs);
                self.completions.extend(wcs[..got].iter().map(|wc| (number, *wc)));
                if got == 0 {
                    break;
                }
            }
        }
        work
    }

    /// Turns until `done` gives something. The limit only ends a test that would hang.
    pub(super) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Rig) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            if self.turn() == 0 {
                std::thread::yield_now();
            }
            if start.elapsed() > Duration::from_secs(60) {
                for (number, node) in self.nodes.iter().enumerate() {
                    eprintln!("{number}: {:?}\n{:?}", node.device.counters(), node.device.engine_counters());
                }
                panic!("never happened: {what}");
            }
        }
    }

    /// The completion of `wr_id` on a node.
    pub(super) fn completion(&mut self, node: usize, wr_id: u64) -> Wc {
        self.until("a completion", |rig| {
            let at = rig.completions.iter().position(|(at, wc)| *at == node && wc.wr_id == wr_id)?;
            Some(rig.completions.swap_remove(at).1)
        })
    }

    /// A connection from node `from` to node `to`, whose connection managers are on `from_cm` and
    /// `to_cm`: the first nodes of their hosts.
    pub(super) fn connect(
        &mut self,
        (from_cm, from): (usize, usize),
        (to_cm, to): (usize, usize),
    ) -> (End, End) {
        let service = Service::RdmaCm { port: PORT };
        // A second connection finds the listener there.
        let listener = self.nodes[to_cm].device.listen(None, service).ok();
        let (qp, qpn) = self.nodes[from].new_qp(self.clock.now());
        let local = self.nodes[from_cm].device.addresses().next().unwrap();
        let remote = self.nodes[to_cm].device.addresses().next().unwrap();
        let our_psn = Psn::new(0xff_fff0);
        let attr = ConnectAttr {
            service,
            path: crate::rdma::verbs::Path { local, remote, scope_id: 0 },
            qpn,
            starting_psn: our_psn,
            path_mtu: self.setup.mtu,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry: 7,
            private_data: PrivateData::new(b"hello").unwrap(),
        };
        let now = self.now();
        let conn = self.nodes[from_cm].device.connect(now, &attr).unwrap();

        let (their_conn, request) = self.until("a request", |rig| {
            loop {
                match rig.nodes[to_cm].device.poll_conn()? {
                    ConnEvent::Request { conn, request, private_data, .. } => {
                        assert_eq!(private_data.as_slice()[..5], *b"hello");
                        return Some((conn, request));
                    }
                    _ => continue,
                }
            }
        });
        assert_eq!((request.remote_qpn, request.path.remote), (qpn, local));
        let now = self.now();
        let their_psn = Psn::new(0x12_3456);
        let (their_qp, their_qpn) = self.nodes[to].new_qp(now);
        let rtr = |path, dest_qpn, rq_psn| RtrAttr {
            path,
            path_mtu: attr.path_mtu,
            dest_qpn,
            rq_psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
        };
        let rts = |sq_psn| RtsAttr {
            sq_psn,
            timeout_code: 14,
            retry_count: 7,
            retry_forever: true,
            rnr_retry: 7,
            max_rd_atomic: 16,
        };
        let there = &mut self.nodes[to].device;
        there.modify_qp(now, their_qp, &QpModify::Rtr(rtr(request.path, qpn, their_psn))).unwrap();
        there.modify_qp(now, their_qp, &QpModify::Rts(rts(request.send_psn))).unwrap();
        let reply = ConnReply {
            qpn: their_qpn,
            starting_psn: their_psn,
            responder_resources: 16,
            initiator_depth: 16,
            rnr_retry: 7,
        };
        self.nodes[to_cm].device.accept(now, their_conn, &reply, b"welcome").unwrap();

        let reply = self.until("a reply", |rig| {
            loop {
                match rig.nodes[from_cm].device.poll_conn()? {
                    ConnEvent::Reply { reply, private_data, .. } => {
                        assert_eq!(private_data.as_slice()[..7], *b"welcome");
                        return Some(reply);
                    }
                    _ => continue,
                }
            }
        });
        let now = self.now();
        let here = &mut self.nodes[from].device;
        here.modify_qp(now, qp, &QpModify::Rtr(rtr(attr.path, reply.qpn, our_psn))).unwrap();
        here.modify_qp(now, qp, &QpModify::Rts(rts(reply.starting_psn))).unwrap();
        self.nodes[from_cm].device.established(now, conn).unwrap();
        let _ = listener;
        (End { node: from, qp, qpn, conn }, End { node: to, qp: their_qp, qpn: their_qpn, conn: their_conn })
    }

    /// Posts a work request on `end` with memory at `offset`; `wr_id` comes back.
    pub(super) fn post(&mut self, end: End, wr_id: u64, op: SendOp, offset: usize, len_bytes: usize) {
        let now = self.now();
        let node = &mut self.nodes[end.node];
        let sge = Sge {
            addr: node.region.addr() + offset as u64,
            len_bytes: len_bytes as u32,
            lkey: node.keys.lkey,
        };
        let wr = SendWr { wr_id, op, sges: SgeList::one(sge), signaled: true };
        node.device.post_send(now, end.qp, &wr).unwrap();
    }

    /// Memory of a node as its peer names it.
    pub(super) fn remote(&self, node: usize, offset: usize) -> Remote {
        let node = &self.nodes[node];
        Remote { addr: node.region.addr() + offset as u64, rkey: node.keys.rkey }
    }
}

impl Node {
    fn new(mut device: Device) -> Node {
        let pd = device.alloc_pd().unwrap();
        let region = Region::heap(MEMORY_BYTES + RECEIVES * RECEIVE_BYTES);
        let keys = device.register(pd, &region, Access::REMOTE).unwrap();
        let cq = device.create_cq(8192).unwrap();
        let srq = device.create_srq(pd, RECEIVES as u32).unwrap();
        let mut node = Node { device, region, keys, cq, pd, srq };
        for slot in 0..RECEIVES {
            node.post_receive(slot as u64);
        }
        node
    }

    /// Offset of a receive buffer, by its work request.
    pub(super) fn received_at(wr_id: u64) -> usize {
        MEMORY_BYTES + (wr_id & 0xffff) as usize * RECEIVE_BYTES
    }

    pub(super) fn post_receive(&mut self, slot: u64) {
        let addr = self.region.addr() + Self::received_at(slot) as u64;
        let sge = Sge { addr, len_bytes: RECEIVE_BYTES as u32, lkey: self.keys.lkey };
        self.device.post_srq_recv(self.srq, &RecvWr { wr_id: 1 << 32 | slot, sge }).unwrap();
    }

    fn new_qp(&mut self, now: Time) -> (QpId, Qpn) {
        let init = QpInit {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: Some(self.srq),
            max_send_wr: 256,
            max_recv_wr: 0,
            remote_access: true,
        };
        let qp = self.device.create_qp(&init).unwrap();
        self.device.modify_qp(now, qp, &QpModify::Init).unwrap();
        (qp, self.device.qpn(qp).unwrap())
    }

    /// Fills memory with a pattern that depends on place and `seed`.
    pub(super) fn fill(&self, offset: usize, len_bytes: usize, seed: u64) {
        self.region.write(offset, &pattern(offset, len_bytes, seed)).unwrap();
    }

    pub(super) fn bytes(&self, offset: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.region.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// What [`Node::fill`] writes.
pub(super) fn pattern(offset: usize, len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed ^ (offset as u64) << 20);
    let mut bytes = vec![0; len_bytes];
    rng.fill(&mut bytes);
    bytes
}
