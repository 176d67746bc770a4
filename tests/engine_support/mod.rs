//! What the engine's tests stand on: an engine with memory and queues, a pair of them on a
//! simulated network, and an engine whose peer is the test itself.

#![allow(dead_code, unreachable_pub)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use reactors::memory::Region;
use reactors::time::Time;
use srpoll::rdma::engine::{Engine, EngineConfig, Outgoing, Sink};
use srpoll::rdma::sim::net::{Faults, Network, World};
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::ext::{Aeth, NakCode, Reth, Syndrome};
use srpoll::wire::num::{Psn, Qpn, RKey};

pub const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

pub fn at_us(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

/// How a side is made.
#[derive(Clone)]
pub struct Setup {
    pub config: EngineConfig,
    pub seed: u64,
    pub region_bytes: usize,
    pub access: Access,
    pub srq: bool,
    pub cq_depth: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub remote_access: bool,
    pub mtu: PathMtu,
    /// First PSN of this side's requests.
    pub psn: u32,
    pub timeout_code: u8,
    pub retry_count: u8,
    pub retry_forever: bool,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            config: EngineConfig::default(),
            seed: 1,
            region_bytes: 1 << 20,
            access: Access::REMOTE,
            srq: true,
            cq_depth: 4096,
            max_send_wr: 256,
            max_recv_wr: 256,
            remote_access: true,
            mtu: PathMtu::B1024,
            psn: 0xff_fff0,
            timeout_code: 14,
            retry_count: 7,
            retry_forever: false,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
        }
    }
}

/// An engine's things, all in one protection domain.
pub struct Side {
    pub setup: Setup,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub srq: Option<SrqId>,
    pub qp: QpId,
    pub qpn: Qpn,
    pub region: Region,
    pub keys: MrKeys,
}

impl Side {
    pub fn new(setup: &Setup) -> (Engine, Side) {
        let mut engine = Engine::new(setup.config.clone(), fastrand::Rng::with_seed(setup.seed));
        let pd = engine.alloc_pd().unwrap();
        let region = Region::heap(setup.region_bytes);
        let keys = engine.register(pd, &region, setup.access).unwrap();
        let send_cq = engine.create_cq(setup.cq_depth).unwrap();
        let recv_cq = engine.create_cq(setup.cq_depth).unwrap();
        let srq = setup.srq.then(|| engine.create_srq(pd, setup.max_recv_wr).unwrap());
        let side = Side {
            setup: setup.clone(),
            pd,
            send_cq,
            recv_cq,
            srq,
            qp: QpId(reactors::slab::Key { slot: u32::MAX, generation: 0 }),
            qpn: Qpn::GSI,
            region,
            keys,
        };
        let qp = engine.create_qp(&side.qp_init()).unwrap();
        let qpn = engine.qpn(qp).unwrap();
        (engine, Side { qp, qpn, ..side })
    }

    pub fn qp_init(&self) -> QpInit {
        QpInit {
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            max_send_wr: self.setup.max_send_wr,
            max_recv_wr: self.setup.max_recv_wr,
            remote_access: self.setup.remote_access,
        }
    }

    pub fn rtr(&self, path: Path, dest_qpn: Qpn, peer_psn: u32) -> QpModify {
        QpModify::Rtr(RtrAttr {
            path,
            path_mtu: self.setup.mtu,
            dest_qpn,
            rq_psn: Psn::new(peer_psn),
            max_dest_rd_atomic: self.setup.max_dest_rd_atomic,
            min_rnr_timer: self.setup.min_rnr_timer,
        })
    }

    pub fn rts(&self) -> QpModify {
        QpModify::Rts(RtsAttr {
            sq_psn: Psn::new(self.setup.psn),
            timeout_code: self.setup.timeout_code,
            retry_count: self.setup.retry_count,
            retry_forever: self.setup.retry_forever,
            rnr_retry: self.setup.rnr_retry,
            max_rd_atomic: self.setup.max_rd_atomic,
        })
    }

    pub fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, len_bytes: len_bytes as u32, lkey: self.keys.lkey }
    }

    pub fn list(&self, offset: usize, len_bytes: usize) -> SgeList {
        SgeList::one(self.sge(offset, len_bytes))
    }

    /// This side's memory as its peer names it.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.region.addr() + offset as u64, rkey: self.keys.rkey }
    }

    pub fn post_recv(&self, engine: &mut Engine, wr_id: u64, offset: usize, len_bytes: usize) {
        let wr = RecvWr { wr_id, sge: self.sge(offset, len_bytes) };
        match self.srq {
            Some(srq) => engine.post_srq_recv(srq, &wr).unwrap(),
            None => engine.post_recv(self.qp, &wr).unwrap(),
        }
    }

    pub fn bytes(&self, offset: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.region.read(offset, &mut bytes).unwrap();
        bytes
    }

    pub fn fill(&self, offset: usize, len_bytes: usize, seed: u64) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..len_bytes).map(|_| rng.u8(..)).collect();
        self.region.write(offset, &bytes).unwrap();
        bytes
    }

    pub fn send_wcs(&self, engine: &mut Engine) -> Vec<Wc> {
        poll(engine, self.send_cq)
    }

    pub fn recv_wcs(&self, engine: &mut Engine) -> Vec<Wc> {
        poll(engine, self.recv_cq)
    }
}

pub fn poll(engine: &mut Engine, cq: CqId) -> Vec<Wc> {
    let blank =
        Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::default() };
    let mut all = Vec::new();
    let mut some = [blank; 7];
    loop {
        let taken = engine.poll_cq(cq, &mut some);
        all.extend_from_slice(&some[..taken]);
        if taken < some.len() {
            return all;
        }
    }
}

pub fn statuses(wcs: &[Wc]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

pub fn events(engine: &mut Engine) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| engine.poll_event()).collect()
}

/// The signaled or unsignaled work request `wr_id`.
pub fn wr(wr_id: u64, op: SendOp, sges: SgeList, signaled: bool) -> SendWr {
    SendWr { wr_id, op, sges, signaled }
}

pub const SEND: SendOp = SendOp::Send { solicited: false };

/// Two engines, one QP each, connected over a simulated network. Side 0 is A, side 1 is B.
pub struct Pair {
    pub world: World<Engine>,
    pub sides: [Side; 2],
}

impl Pair {
    pub fn new(faults: Faults, seed: u64, a: &Setup, b: &Setup) -> Pair {
        let (engine_a, side_a) = Side::new(&Setup { seed: seed.wrapping_mul(2) + 1, ..a.clone() });
        let (engine_b, side_b) = Side::new(&Setup { seed: seed.wrapping_mul(2) + 2, ..b.clone() });
        let net = Network::new(seed, faults);
        let world = World::new(net, vec![(A, engine_a), (B, engine_b)]);
        let mut pair = Pair { world, sides: [side_a, side_b] };
        pair.connect();
        pair
    }

    pub fn good(setup: &Setup) -> Pair {
        Pair::new(Faults::NONE, 1, setup, setup)
    }

    fn connect(&mut self) {
        let now = self.world.now();
        for (me, peer) in [(0, 1), (1, 0)] {
            let path = match me {
                0 => Path { local: A, remote: B, scope_id: 0 },
                _ => Path { local: B, remote: A, scope_id: 0 },
            };
            let (qpn, psn) = (self.sides[peer].qpn, self.sides[peer].setup.psn);
            let side = &self.sides[me];
            let engine = &mut self.world.endpoints[me].1;
            for change in [QpModify::Init, side.rtr(path, qpn, psn), side.rts()] {
                engine.modify_qp(now, side.qp, &change).unwrap();
            }
        }
    }

    pub fn engine(&mut self, side: usize) -> &mut Engine {
        &mut self.world.endpoints[side].1
    }

    pub fn post_send(&mut self, side: usize, wr: &SendWr) {
        let now = self.world.now();
        let qp = self.sides[side].qp;
        self.engine(side).post_send(now, qp, wr).unwrap();
    }

    pub fn post_recv(&mut self, side: usize, wr_id: u64, offset: usize, len_bytes: usize) {
        self.sides[side].post_recv(&mut self.world.endpoints[side].1, wr_id, offset, len_bytes);
    }

    pub fn send_wcs(&mut self, side: usize) -> Vec<Wc> {
        self.sides[side].send_wcs(&mut self.world.endpoints[side].1)
    }

    pub fn recv_wcs(&mut self, side: usize) -> Vec<Wc> {
        self.sides[side].recv_wcs(&mut self.world.endpoints[side].1)
    }

    /// Lets everything happen until the world is quiet, for `limit` at most.
    pub fn settle(&mut self, limit: Duration) {
        let end = self.world.now() + limit;
        while self.world.next_event() <= end && self.world.step(end) {}
    }

    pub fn settle_1s(&mut self) {
        self.settle(Duration::from_secs(1));
    }
}

/// A packet that an engine sent.
#[derive(Clone, Debug)]
pub struct Packet {
    pub bth: Bth,
    pub reth: Option<Reth>,
    pub aeth: Option<Aeth>,
    pub payload: Vec<u8>,
    pub retransmission: bool,
}

impl Packet {
    /// Opcode, PSN and payload length: enough for most tests.
    pub fn brief(&self) -> (Opcode, u32, usize) {
        (self.bth.opcode, self.bth.psn.get(), self.payload.len())
    }

    pub fn syndrome(&self) -> Option<Syndrome> {
        self.aeth.map(|aeth| aeth.syndrome)
    }
}

/// Takes what an engine sends, up to `room` packets.
pub struct Capture {
    pub packets: Vec<Packet>,
    pub room: usize,
}

impl Sink for Capture {
    fn has_room(&self) -> bool {
        self.packets.len() < self.room
    }

    fn packet(&mut self, out: &Outgoing<'_>) {
        let mut bytes = vec![0xee; out.len_bytes()];
        assert_eq!(out.copy_to(&mut bytes), bytes.len());
        let bth = Bth::parse(&bytes).unwrap();
        assert_eq!(bth.dest_qpn, out.dest_qpn);
        assert_eq!(bth.pad, out.pad);
        assert_eq!(bytes.len() % 4, 0, "padded to words");
        assert_eq!(out.header.len(), Bth::LEN + bth.opcode.ext_len_bytes());
        let ext = &bytes[Bth::LEN..];
        self.packets.push(Packet {
            bth,
            reth: bth.opcode.has_reth().then(|| Reth::parse(ext).unwrap()),
            aeth: bth.opcode.has_aeth().then(|| Aeth::parse(ext).unwrap()),
            payload: bytes[out.header.len()..bytes.len() - usize::from(out.pad)].to_vec(),
            retransmission: out.retransmission,
        });
    }
}

/// The QPN and first PSN of a peer that the test plays.
pub const PEER_QPN: Qpn = Qpn::new(0x4711);
pub const PEER_PSN: u32 = 0xff_fffe;

/// An engine at A whose peer at B is the test.
pub struct Lone {
    pub engine: Engine,
    pub side: Side,
    pub now: Time,
}

impl Lone {
    pub fn new(setup: &Setup) -> Lone {
        let mut lone = Lone::unconnected(setup);
        lone.modify(&QpModify::Init).unwrap();
        lone.modify(&lone.rtr()).unwrap();
        lone.modify(&lone.side.rts()).unwrap();
        lone
    }

    pub fn unconnected(setup: &Setup) -> Lone {
        let (engine, side) = Side::new(setup);
        Lone { engine, side, now: at_us(1) }
    }

    pub fn rtr(&self) -> QpModify {
        self.side.rtr(Path { local: A, remote: B, scope_id: 0 }, PEER_QPN, PEER_PSN)
    }

    pub fn modify(&mut self, change: &QpModify) -> Result<(), VerbsError> {
        self.engine.modify_qp(self.now, self.side.qp, change)
    }

    pub fn state(&self) -> QpState {
        self.engine.qp_state(self.side.qp).unwrap()
    }

    pub fn post(&mut self, wr: &SendWr) {
        self.engine.post_send(self.now, self.side.qp, wr).unwrap();
    }

    /// What it sends now.
    pub fn sent(&mut self) -> Vec<Packet> {
        self.sent_up_to(usize::MAX)
    }

    pub fn sent_up_to(&mut self, room: usize) -> Vec<Packet> {
        let mut capture = Capture { packets: Vec::new(), room };
        let count = self.engine.transmit(self.now, &mut capture);
        assert_eq!(count, capture.packets.len());
        capture.packets
    }

    /// Gives it a packet of the peer, without ending the batch.
    pub fn hear(&mut self, bth: Bth, ext: &[u8], payload: &[u8]) {
        self.hear_from(Path { local: A, remote: B, scope_id: 0 }, bth, ext, payload);
    }

    pub fn hear_from(&mut self, path: Path, mut bth: Bth, ext: &[u8], payload: &[u8]) {
        bth.pad = Bth::pad_for(payload.len());
        let mut bytes = vec![0; Bth::LEN];
        bth.emit(&mut bytes);
        bytes.extend_from_slice(ext);
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(&[0; 3][..usize::from(bth.pad)]);
        self.engine.receive(self.now, path, &bytes);
    }

    /// A BTH to it with the peer's `index`-th PSN.
    pub fn bth(&self, opcode: Opcode, index: u32) -> Bth {
        Bth::new(opcode, self.side.qpn, Psn::new(PEER_PSN).plus(index))
    }

    pub fn request(&mut self, opcode: Opcode, index: u32, ack_req: bool, reth: Option<Reth>, payload: &[u8]) {
        let bth = Bth { ack_req, ..self.bth(opcode, index) };
        let mut ext = [0; Reth::LEN];
        let ext_len = reth.map_or(0, |reth| {
            reth.emit(&mut ext);
            Reth::LEN
        });
        self.hear(bth, &ext[..ext_len], payload);
    }

    /// An answer to its `index`-th PSN.
    pub fn answer(&mut self, opcode: Opcode, index: u32, syndrome: Option<Syndrome>, payload: &[u8]) {
        let psn = Psn::new(self.side.setup.psn).plus(index);
        let mut ext = [0; Aeth::LEN];
        let ext_len = syndrome.map_or(0, |syndrome| {
            Aeth { syndrome, msn: 0 }.emit(&mut ext);
            Aeth::LEN
        });
        self.hear(Bth::new(opcode, self.side.qpn, psn), &ext[..ext_len], payload);
    }

    /// An answer of the peer to a SEND.
    pub fn confirm(&mut self, wr_id: u64) {
        let qp = self.side.qp;
        self.engine.confirm_send(self.now, qp, wr_id);
    }

    pub fn ack(&mut self, index: u32) {
        self.answer(Opcode::Acknowledge, index, Some(Syndrome::ACK), &[]);
    }

    pub fn nak(&mut self, index: u32, code: NakCode) {
        self.answer(Opcode::Acknowledge, index, Some(Syndrome::Nak(code)), &[]);
    }

    /// Ends the batch and gives what it sends.
    pub fn replies(&mut self) -> Vec<Packet> {
        self.engine.end_batch(self.now);
        self.sent()
    }

    pub fn wait(&mut self, how_long: Duration) {
        self.now += how_long;
        self.engine.handle_timeout(self.now);
    }

    pub fn send_wcs(&mut self) -> Vec<(u64, WcStatus)> {
        statuses(&self.side.send_wcs(&mut self.engine))
    }

    pub fn recv_wcs(&mut self) -> Vec<(u64, WcStatus)> {
        statuses(&self.side.recv_wcs(&mut self.engine))
    }

    pub fn events(&mut self) -> Vec<AsyncEvent> {
        events(&mut self.engine)
    }

    pub fn post_recv(&mut self, wr_id: u64, offset: usize, len_bytes: usize) {
        self.side.post_recv(&mut self.engine, wr_id, offset, len_bytes);
    }

    /// Its memory as the peer names it.
    pub fn reth(&self, offset: usize, len_bytes: usize) -> Reth {
        let remote = self.side.remote(offset);
        Reth { addr: remote.addr, rkey: remote.rkey, len_bytes: len_bytes as u32 }
    }
}

/// The PSN `index` after the peer's first.
pub fn peer_psn(index: u32) -> u32 {
    Psn::new(PEER_PSN).plus(index).get()
}

/// Memory of the peer that a scripted test names.
pub const FAR: Remote = Remote { addr: 0xffff_8880_1234_5678, rkey: RKey(0x0042_4242) };
