//! An initiator without manners of its own: the test says every byte. It keeps no credits, checks
//! no answers, and its memory is one region that the peer may read and write.

use std::collections::HashMap;

use reactors::memory::Region;
use reactors::time::Time;
use srpoll::rdma::sim::device::SimDevice;
use srpoll::rdma::verbs::{
    Access, ConnEnd, ConnEvent, ConnId, ConnectAttr, Connections, CqId, Device, MrKeys, Path, PathMtu, PdId,
    PrivateData, QpId, QpInit, QpModify, RecvWr, RtrAttr, RtsAttr, SendOp, SendWr, Service, Sge, SgeList, Wc,
    WcOpcode, WcStatus,
};
use srpoll::srp::initiator::login_request;
use srpoll::wire::num::{Psn, Qpn, RKey};
use srpoll::wire::srp::{Descriptor, LoginRej, LoginReq, LoginRsp, Tag};

use super::answer::Answer;
use super::command::pattern;
use super::{PORT, TARGET, host, port_id, target_id};

/// Bytes of the memory that the peer may reach.
pub const MEMORY_BYTES: usize = 80 << 20;
const IU_BYTES: usize = 256;
const RECEIVES: usize = 192;
pub const SEND_BYTES: usize = 16 << 10;
const SENDS: usize = 256;

/// Where a channel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    Connecting,
    Live(LoginRsp),
    /// The login was refused by the target.
    Refused(LoginRej),
    /// The connection has ended or was never made.
    Ended(ConnEnd),
}

/// A channel of a raw initiator.
pub struct RawChannel {
    pub qp: QpId,
    pub qpn: Qpn,
    pub conn: Option<ConnId>,
    pub link: Link,
    starting_psn: Psn,
    /// Do not answer the REP by RTU: the first data tell.
    pub silent_rtu: bool,
    /// RDMA READs that we say we answer at a time.
    pub responder_resources: u8,
    receives: Region,
    receive_keys: MrKeys,
    /// Information units that came and were not taken.
    pub inbox: Vec<Vec<u8>>,
    /// Answers by tag.
    pub answers: HashMap<[u8; 8], Answer>,
    /// Tags that were answered more than once.
    pub twice: Vec<[u8; 8]>,
    /// Request limit: login, minus requests, plus deltas.
    pub credits: i32,
    /// Statuses of failed work requests.
    pub failures: Vec<WcStatus>,
}

/// A login as a test asks for it.
#[derive(Clone)]
pub struct Login {
    pub request: LoginReq,
    pub service: Service,
    pub private: Option<Vec<u8>>,
    pub silent_rtu: bool,
    pub responder_resources: u8,
    pub timeout_code: u8,
}

impl Login {
    /// A compact login of host `number`: SINGLE, IUs of 8,260 bytes, immediate data at 68.
    pub fn new(number: u8) -> Login {
        let tag = Tag(*b"login000");
        Login {
            request: login_request(port_id(number), target_id(), tag, 8260, false, true),
            service: Service::RdmaCm { port: PORT },
            private: None,
            silent_rtu: false,
            responder_resources: 4,
            timeout_code: 14,
        }
    }

    pub fn multi(mut self) -> Login {
        self.request.flags |= 1;
        self
    }
}

pub struct Raw {
    pub device: SimDevice,
    pub number: u8,
    pub pd: PdId,
    pub cq: CqId,
    pub memory: Region,
    pub keys: MrKeys,
    sends: Region,
    send_keys: MrKeys,
    next_send: usize,
    next_tag: u64,
    pub channels: Vec<RawChannel>,
}

impl Raw {
    pub fn new(mut device: SimDevice, number: u8) -> Raw {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1 << 14).unwrap();
        let memory = Region::anonymous(MEMORY_BYTES).unwrap();
        let keys = device.register(pd, &memory, Access::REMOTE).unwrap();
        let sends = Region::heap(SENDS * SEND_BYTES);
        let send_keys = device.register(pd, &sends, Access::LOCAL).unwrap();
        Raw {
            device,
            number,
            pd,
            cq,
            memory,
            keys,
            sends,
            send_keys,
            next_send: 0,
            next_tag: 1,
            channels: Vec::new(),
        }
    }

    /// Asks for a channel; gives its index.
    pub fn connect(&mut self, now: Time, login: &Login) -> usize {
        let init = QpInit {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            max_send_wr: 512,
            max_recv_wr: RECEIVES as u32,
            remote_access: true,
        };
        let qp = self.device.create_qp(&init).unwrap();
        self.device.modify_qp(now, qp, &QpModify::Init).unwrap();
        let qpn = self.device.qpn(qp).unwrap();
        let receives = Region::heap(RECEIVES * IU_BYTES);
        let receive_keys = self.device.register(self.pd, &receives, Access::LOCAL).unwrap();
        let starting_psn = Psn::new(0xff_fff0 + self.channels.len() as u32);
        let index = self.channels.len();
        let private = match (&login.private, login.service) {
            (Some(bytes), _) => PrivateData::new(bytes),
            (None, Service::RdmaCm { .. }) => PrivateData::new(&login.request.emit_compact()),
            (None, Service::IbCm { .. } | Service::Shm) => PrivateData::new(&login.request.emit_full()),
        };
        let attr = ConnectAttr {
            service: login.service,
            path: Path { local: host(self.number), remote: TARGET, scope_id: 0 },
            qpn,
            starting_psn,
            path_mtu: PathMtu::B4096,
            responder_resources: login.responder_resources,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry: 7,
            private_data: private.unwrap(),
        };
        let conn = self.device.connect(now, &attr).unwrap();
        self.channels.push(RawChannel {
            qp,
            qpn,
            conn: Some(conn),
            link: Link::Connecting,
            starting_psn,
            silent_rtu: login.silent_rtu,
            responder_resources: login.responder_resources,
            receives,
            receive_keys,
            inbox: Vec::new(),
            answers: HashMap::new(),
            twice: Vec::new(),
            credits: 0,
            failures: Vec::new(),
        });
        for slot in 0..RECEIVES {
            self.post_receive(index, slot);
        }
        index
    }

    fn post_receive(&mut self, index: usize, slot: usize) {
        let channel = &self.channels[index];
        let sge = Sge {
            addr: channel.receives.addr() + (slot * IU_BYTES) as u64,
            len_bytes: IU_BYTES as u32,
            lkey: channel.receive_keys.lkey,
        };
        let wr = RecvWr { wr_id: (index << 16 | slot) as u64, sge };
        let _ = self.device.post_recv(channel.qp, &wr);
    }

    pub fn next_deadline(&self) -> Time {
        self.device.next_deadline()
    }

    pub fn poll(&mut self, now: Time) -> usize {
        let mut busy = self.device.progress(now);
        while let Some(event) = self.device.poll_conn() {
            busy += 1;
            self.on_connection(now, event);
        }
        while self.device.poll_event().is_some() {
            busy += 1;
        }
        let blank =
            Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::GSI };
        let mut batch = [blank; 32];
        loop {
            let count = self.device.poll_cq(self.cq, &mut batch);
            for wc in &batch[..count] {
                self.on_completion(now, wc);
            }
            busy += count;
            if count < batch.len() {
                return busy;
            }
        }
    }

    fn by_conn(&mut self, conn: ConnId) -> Option<usize> {
        self.channels.iter().position(|channel| channel.conn == Some(conn))
    }

    fn on_connection(&mut self, now: Time, event: ConnEvent) {
        match event {
            ConnEvent::Reply { conn, reply, timeout_code, private_data } => {
                let Some(index) = self.by_conn(conn) else { return };
                let response = LoginRsp::parse(private_data.as_slice()).unwrap();
                let channel = &mut self.channels[index];
                channel.credits = response.request_limit_delta;
                channel.link = Link::Live(response);
                let (qp, silent) = (channel.qp, channel.silent_rtu);
                let rtr = RtrAttr {
                    path: Path { local: host(self.number), remote: TARGET, scope_id: 0 },
                    path_mtu: PathMtu::B4096,
                    dest_qpn: reply.qpn,
                    rq_psn: channel.starting_psn,
                    max_dest_rd_atomic: channel.responder_resources.max(1),
                    min_rnr_timer: 12,
                };
                let rts = RtsAttr {
                    sq_psn: reply.starting_psn,
                    timeout_code,
                    retry_count: 7,
                    retry_forever: false,
                    rnr_retry: 7,
                    max_rd_atomic: 4,
                };
                // A test may have cut it meanwhile.
                if self.device.modify_qp(now, qp, &QpModify::Rtr(rtr)).is_err() {
                    return;
                }
                self.device.modify_qp(now, qp, &QpModify::Rts(rts)).unwrap();
                if !silent {
                    self.device.established(now, conn).unwrap();
                }
            }
            ConnEvent::Ended { conn, why } => {
                let Some(index) = self.by_conn(conn) else { return };
                let channel = &mut self.channels[index];
                channel.link = match why {
                    ConnEnd::Rejected { reason: LoginRej::CM_REASON, private_data } => {
                        Link::Refused(LoginRej::parse(private_data.as_slice()).unwrap())
                    }
                    other => Link::Ended(other),
                };
                channel.conn = None;
                let _ = self.device.modify_qp(now, channel.qp, &QpModify::Err);
            }
            ConnEvent::Established { .. } | ConnEvent::Request { .. } => {}
        }
    }

    fn on_completion(&mut self, now: Time, wc: &Wc) {
        let Some(index) = self.channels.iter().position(|channel| channel.qpn == wc.qpn) else { return };
        if wc.status != WcStatus::Success {
            self.channels[index].failures.push(wc.status);
            return;
        }
        if wc.opcode != WcOpcode::Recv {
            return;
        }
        let slot = (wc.wr_id & 0xffff) as usize;
        let mut iu = vec![0; wc.len_bytes as usize];
        let channel = &mut self.channels[index];
        channel.receives.read(slot * IU_BYTES, &mut iu).unwrap();
        if let Some((tag, answer)) = Answer::parse(&iu, now) {
            channel.credits += answer.delta;
            if channel.answers.insert(tag, answer).is_some() {
                channel.twice.push(tag);
            }
        }
        channel.inbox.push(iu);
        self.post_receive(index, slot);
    }

    /// A tag that was not used before.
    pub fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag.to_le_bytes())
    }

    /// Sends any bytes as an information unit.
    pub fn send(&mut self, now: Time, channel: usize, iu: &[u8]) {
        let at = self.next_send % SENDS * SEND_BYTES;
        self.next_send += 1;
        self.sends.write(at, iu).unwrap();
        let sge = Sge {
            addr: self.sends.addr() + at as u64,
            len_bytes: iu.len() as u32,
            lkey: self.send_keys.lkey,
        };
        let wr = SendWr {
            wr_id: u64::MAX,
            op: SendOp::Send { solicited: false },
            sges: SgeList::one(sge),
            signaled: true,
        };
        self.device.post_send(now, self.channels[channel].qp, &wr).unwrap();
        let counts = matches!(iu.first(), Some(1 | 2));
        self.channels[channel].credits -= i32::from(counts);
    }

    /// A piece of our memory.
    pub fn piece(&self, offset: usize, len: usize) -> Descriptor {
        Descriptor { addr: self.memory.addr() + offset as u64, rkey: self.keys.rkey, len_bytes: len as u32 }
    }

    /// The same with a key that nobody gave out.
    pub fn wrong_piece(&self, offset: usize, len: usize) -> Descriptor {
        Descriptor { rkey: RKey(self.keys.rkey.0 ^ 0x4000_0000), ..self.piece(offset, len) }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Fills a part of our memory with bytes that follow from `seed`.
    pub fn fill(&self, offset: usize, len: usize, seed: u64) -> Vec<u8> {
        let bytes = pattern(len, seed);
        self.memory.write(offset, &bytes).unwrap();
        bytes
    }
}
