//! A target and its initiators: devices with queues and memory, and a virtual clock.

use std::time::Duration;

use reactors::memory::Region;
use reactors::time::Time;

use crate::rdma::shm::{Device, DeviceConfig, Hub, SOCKET};
use crate::rdma::verbs::{
    Access, AsyncEvent, ConnEnd, ConnEvent, ConnId, ConnReply, ConnRequest, ConnectAttr, Connections, CqId,
    Device as _, MrKeys, Path, PathMtu, PdId, PrivateData, QpId, QpInit, QpModify, RecvWr, Remote, RtrAttr,
    RtsAttr, SendOp, SendWr, Service, Sge, SgeList, SrqId, Wc, WcStatus,
};
use crate::unix::OwnedSocket;
use crate::wire::num::{Psn, Qpn};

/// Registered memory of a node; the upper half is receive buffers.
pub(super) const MEMORY_BYTES: usize = 1 << 20;
pub(super) const RECEIVES: usize = 64;
pub(super) const RECEIVE_BYTES: usize = MEMORY_BYTES / 2 / RECEIVES;
/// Most work requests that wait in a send queue.
pub(super) const SENDS: u32 = 16;

/// A device with queues and memory.
pub(super) struct Node {
    pub(super) device: Device,
    pub(super) region: Region,
    pub(super) keys: MrKeys,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    srq: SrqId,
    /// What was heard of connections.
    pub(super) heard: Vec<ConnEvent>,
    pub(super) events: Vec<AsyncEvent>,
    pub(super) completions: Vec<Wc>,
}

impl Node {
    fn new(config: DeviceConfig) -> Node {
        let mut device = Device::new(config).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let srq = device.create_srq(pd, RECEIVES as u32).unwrap();
        let region = device.allocate(MEMORY_BYTES, Access::REMOTE).unwrap();
        let keys = device.register(pd, &region, Access::REMOTE).unwrap();
        let (heard, events, completions) = (Vec::new(), Vec::new(), Vec::new());
        Node { device, region, keys, pd, cq, srq, heard, events, completions }
    }

    pub(super) fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, len_bytes: len_bytes as u32, lkey: self.keys.lkey }
    }

    pub(super) fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.region.addr() + offset as u64, rkey: self.keys.rkey }
    }

    pub(super) fn receive_at(number: u64) -> usize {
        MEMORY_BYTES / 2 + number as usize * RECEIVE_BYTES
    }

    pub(super) fn post_receive(&mut self, number: u64) {
        let sge = self.sge(Node::receive_at(number), RECEIVE_BYTES);
        self.device.post_srq_recv(self.srq, &RecvWr { wr_id: number, sge }).unwrap();
    }

    pub(super) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.region.with_bytes(offset, len, <[u8]>::to_vec).unwrap()
    }

    pub(super) fn create_qp(&mut self) -> QpId {
        let init = QpInit {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: Some(self.srq),
            max_send_wr: SENDS,
            max_recv_wr: 0,
            remote_access: true,
        };
        self.device.create_qp(&init).unwrap()
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        self.device.named_counters().iter().find(|(other, _)| *other == name).unwrap().1
    }

    fn poll(&mut self, now: Time) {
        self.device.progress(now);
        let empty = Wc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: crate::rdma::verbs::WcOpcode::Send,
            len_bytes: 0,
            qpn: Qpn::GSI,
        };
        let mut batch = [empty; 32];
        loop {
            let count = self.device.poll_cq(self.cq, &mut batch);
            self.completions.extend_from_slice(&batch[..count]);
            if count == 0 {
                break;
            }
        }
        self.events.extend(std::iter::from_fn(|| self.device.poll_event()));
        self.heard.extend(std::iter::from_fn(|| self.device.poll_conn()));
    }
}

/// A queue pair of a node.
#[derive(Copy, Clone, Debug)]
pub(super) struct End {
    pub(super) node: usize,
    pub(super) qp: QpId,
    pub(super) conn: ConnId,
}

/// The nodes: the target's shards first.
pub(super) struct Rig {
    pub(super) folder: tempfile::TempDir,
    pub(super) nodes: Vec<Node>,
    pub(super) now: Time,
}

impl Rig {
    /// A target of so many shards that listens.
    pub(super) fn new(shards: usize) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::new().unwrap();
        let target = |shard: usize| DeviceConfig {
            shard: shard as u32,
            shard_bits: crate::rdma::shard_bits(shards),
            guid: (shard == 0).then_some(1),
            hub: hub.clone(),
            seed: 7,
            ..DeviceConfig::new(1).unwrap()
        };
        let mut nodes: Vec<Node> = (0..shards).map(|shard| Node::new(target(shard))).collect();
        nodes[0].device.open(OwnedSocket::bind(&folder.path().join("s"), SOCKET).unwrap()).unwrap();
        nodes[0].device.listen(None, Service::Shm).unwrap();
        Rig { folder, nodes, now: Time::from_nanos(1) }
    }

    /// One more initiator; gives its number.
    pub(super) fn initiator(&mut self) -> usize {
        self.initiator_with(|config| config)
    }

    pub(super) fn initiator_with(&mut self, change: impl FnOnce(DeviceConfig) -> DeviceConfig) -> usize {
        let target = Some(self.folder.path().join("s"));
        let config = DeviceConfig { target, ..DeviceConfig::new(2).unwrap() };
        self.nodes.push(Node::new(change(config)));
        self.nodes.len() - 1
    }

    /// Some turns of everybody; sockets are looked at.
    pub(super) fn turns(&mut self) {
        for _ in 0..4 {
            self.now += Duration::from_millis(2);
            for node in &mut self.nodes {
                node.poll(self.now);
            }
        }
    }

    /// Asks for a connection; gives our end.
    pub(super) fn ask(&mut self, node: usize, private: &[u8]) -> End {
        let qp = self.nodes[node].create_qp();
        let device = &mut self.nodes[node].device;
        device.modify_qp(self.now, qp, &QpModify::Init).unwrap();
        let attr = ConnectAttr {
            service: Service::Shm,
            path: Path::NONE,
            qpn: device.qpn(qp).unwrap(),
            starting_psn: Psn::new(0x77),
            path_mtu: PathMtu::B4096,
            responder_resources: 5,
            initiator_depth: 6,
            retry_count: 7,
            rnr_retry: 7,
            private_data: PrivateData::new(private).unwrap(),
        };
        let conn = device.connect(self.now, &attr).unwrap();
        End { node, qp, conn }
    }

    /// The request that came to the target.
    pub(super) fn asked(&mut self) -> (ConnId, ConnRequest, PrivateData) {
        self.turns();
        match self.nodes[0].heard.pop() {
            Some(ConnEvent::Request { conn, request, private_data, .. }) => (conn, request, private_data),
            other => panic!("a request, not {other:?}"),
        }
    }

    /// Moves a queue pair of a node to RTS, connected with `dest_qpn`.
    pub(super) fn ready(&mut self, node: usize, qp: QpId, dest_qpn: Qpn) {
        let rtr = RtrAttr {
            path: Path::NONE,
            path_mtu: PathMtu::B4096,
            dest_qpn,
            rq_psn: Psn::new(1),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        };
        let rts = RtsAttr {
            sq_psn: Psn::new(1),
            timeout_code: 14,
            retry_count: 7,
            retry_forever: false,
            rnr_retry: 7,
            max_rd_atomic: 1,
        };
        let device = &mut self.nodes[node].device;
        device.modify_qp(self.now, qp, &QpModify::Rtr(rtr)).unwrap();
        device.modify_qp(self.now, qp, &QpModify::Rts(rts)).unwrap();
    }

    /// Connects an initiator with the target's `shard`; gives both ends, the initiator's first.
    pub(super) fn connected(&mut self, node: usize, shard: usize) -> (End, End) {
        let ours = self.ask(node, b"login");
        let (conn, request, private) = self.asked();
        assert_eq!(private.as_slice(), b"login");
        let theirs = self.nodes[shard].create_qp();
        self.nodes[shard].device.modify_qp(self.now, theirs, &QpModify::Init).unwrap();
        self.ready(shard, theirs, request.remote_qpn);
        let reply = ConnReply {
            qpn: self.nodes[shard].device.qpn(theirs).unwrap(),
            starting_psn: Psn::new(0x99),
            responder_resources: 4,
            initiator_depth: 3,
            rnr_retry: 7,
        };
        self.nodes[0].device.accept(self.now, conn, &reply, b"welcome").unwrap();
        self.turns();
        let Some(ConnEvent::Reply { reply, private_data, .. }) = self.nodes[node].heard.pop() else {
            panic!("a reply");
        };
        assert_eq!(private_data.as_slice(), b"welcome");
        assert_eq!((reply.responder_resources, reply.starting_psn), (4, Psn::new(0x99)));
        self.ready(node, ours.qp, reply.qpn);
        self.nodes[node].device.established(self.now, ours.conn).unwrap();
        self.turns();
        assert_eq!(self.nodes[0].heard.pop(), Some(ConnEvent::Established { conn }));
        (ours, End { node: shard, qp: theirs, conn })
    }

    pub(super) fn post(&mut self, end: End, wr_id: u64, op: SendOp, sges: SgeList) {
        let wr = SendWr { wr_id, op, sges, signaled: true };
        self.nodes[end.node].device.post_send(self.now, end.qp, &wr).unwrap();
    }

    pub(super) fn send(&mut self, end: End, wr_id: u64, offset: usize, len: usize) {
        let sge = self.nodes[end.node].sge(offset, len);
        self.post(end, wr_id, SendOp::Send { solicited: false }, SgeList::one(sge));
    }

    /// What completed at a node, by work request and status.
    pub(super) fn done(&mut self, node: usize) -> Vec<(u64, WcStatus)> {
        self.turns();
        let completions = std::mem::take(&mut self.nodes[node].completions);
        completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// How connections of a node ended.
    pub(super) fn ended(&mut self, node: usize) -> Vec<ConnEnd> {
        self.turns();
        let ends = std::mem::take(&mut self.nodes[node].heard).into_iter().filter_map(|event| match event {
            ConnEvent::Ended { why, .. } => Some(why),
            _ => None,
        });
        ends.collect()
    }
}
