//! A device without a wire. What is posted reaches, at the next `progress`, a small target on the
//! other side of a table of rkeys: the SRP core with a disk in memory. Its knobs make it behave
//! as badly as a test wants.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;

use reactors::memory::Region;
use reactors::slab::{Key, Slab};
use reactors::time::Time;

use crate::rdma::verbs::{
    Access, AsyncEvent, ConnEnd, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, CqId, Device,
    DeviceCaps, ListenerId, MrKeys, PdId, PrivateData, QpId, QpInit, QpModify, QpState, RecvWr, Recycling,
    Retire, SendOp, SendWr, Service, SrqId, VerbsError, Wc, WcOpcode, WcStatus,
};
use crate::srp::Direction;
use crate::srp::answer::{CommandAnswer, TmfAnswer};
use crate::srp::channel::{Channel, Command, Inbound};
use crate::srp::descriptors::{BufferRef, Cursor, Piece, Table, check_table, pieces};
use crate::srp::login::{LoginContext, LoginLimits, decide};
use crate::srp::residual::Residual;
use crate::srp::tmf::{TmfAction, TmfStatus};
use crate::wire::num::{LKey, Psn, Qpn, RKey};
use crate::wire::scsi::capacity::Capacity;
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::inquiry::StandardInquiry;
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};
use crate::wire::srp::{LoginForm, LoginReq, PortId, RawLun, Tag};

pub(super) const BLOCK_BYTES: usize = 512;
const TARGET: PortId = PortId::new(0xaaaa, 0xbbbb);
const KEY: Key = Key { slot: 0, generation: 0 };

/// How the target behaves.
pub(super) struct Knobs {
    pub(super) credits: u32,
    pub(super) channels: u32,
    /// Unit attentions still to be reported.
    pub(super) attentions: u32,
    /// READs and WRITEs are taken and never answered.
    pub(super) stall: bool,
    /// How task management is answered; `None`: not at all.
    pub(super) tmf: Option<TmfStatus>,
    /// The answer to ABORT TASK, if it is another one.
    pub(super) abort: Option<Option<TmfStatus>>,
    /// Nothing comes back any more.
    pub(super) dead: bool,
    /// WRITEs that are answered and not done.
    pub(super) forget_writes: u32,
    /// Commands that are answered BUSY.
    pub(super) busy: u32,
    /// After so many commands the target disconnects; zero: it does not.
    pub(super) leave_after: u32,
    /// An IU that the target sends by itself next.
    pub(super) unsolicited: Option<Vec<u8>>,
}

struct Qp {
    state: QpState,
    recvs: VecDeque<RecvWr>,
    /// The target's end; `None` before the login and after the logout.
    channel: Option<Channel>,
}

struct Posted {
    qp: QpId,
    wr: SendWr,
    iu: Vec<u8>,
}

struct Waiting {
    conn: ConnId,
    attr: ConnectAttr,
}

pub(super) struct FakeDevice {
    pub(super) knobs: Knobs,
    pub(super) disk: Vec<u8>,
    /// IUs that reached the target, by opcode.
    pub(super) seen: Vec<u8>,
    /// Which kinds of data buffer came.
    pub(super) buffers: Vec<BufferRef>,
    regions: Vec<(MrKeys, Region, Access)>,
    next_key: u32,
    qps: Slab<Qp>,
    conns: Slab<u32>,
    posted: VecDeque<Posted>,
    waiting: VecDeque<Waiting>,
    events: VecDeque<ConnEvent>,
    completions: VecDeque<Wc>,
    pub(super) now: Time,
}

impl FakeDevice {
    pub(super) fn new() -> Self {
        FakeDevice {
            knobs: Knobs {
                credits: 64,
                channels: 8,
                attentions: 1,
                stall: false,
                tmf: Some(TmfStatus::Complete),
                abort: None,
                dead: false,
                forget_writes: 0,
                busy: 0,
                leave_after: 0,
                unsolicited: None,
            },
            disk: vec![0; 1 << 20],
            seen: Vec::new(),
            buffers: Vec::new(),
            regions: Vec::new(),
            next_key: 0x100,
            qps: Slab::new(64),
            conns: Slab::new(64),
            posted: VecDeque::new(),
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            completions: VecDeque::new(),
            now: Time::ZERO,
        }
    }

    /// How many QPs and regions there are.
    pub(super) fn in_use(&self) -> (usize, usize) {
        (self.qps.len(), self.regions.len())
    }

    /// The target disconnects every channel.
    pub(super) fn target_leaves(&mut self) {
        let conns: Vec<_> = self.conns.iter().map(|(key, _)| key).collect();
        for key in conns {
            self.conns.remove(key);
            self.events.push_back(ConnEvent::Ended { conn: ConnId(key), why: ConnEnd::PeerDisconnected });
        }
    }

    fn local(&self, lkey: LKey) -> &Region {
        &self.regions.iter().find(|(keys, ..)| keys.lkey == lkey).expect("a known lkey").1
    }

    fn gather(&self, wr: &SendWr) -> Vec<u8> {
        let mut iu = Vec::new();
        for sge in wr.sges.as_slice() {
            let region = self.local(sge.lkey);
            let mut part = vec![0; sge.len_bytes as usize];
            region.read((sge.addr - region.addr()) as usize, &mut part).unwrap();
            iu.extend(part);
        }
        iu
    }

    fn remote(&self, piece: &Piece) -> (&Region, usize) {
        let (_, region, access) =
            self.regions.iter().find(|(keys, ..)| keys.rkey == piece.rkey).expect("a known rkey");
        assert_eq!(*access, Access::REMOTE);
        (region, (piece.addr - region.addr()) as usize)
    }

    fn complete(&mut self, wr_id: u64, status: WcStatus, opcode: WcOpcode, len_bytes: u32) {
        self.completions.push_back(Wc { wr_id, status, opcode, len_bytes, qpn: Qpn::GSI });
    }

    fn send(&mut self, qp: QpId, iu: &[u8]) {
        let Some(entry) = self.qps.get_mut(qp.0) else { return };
        let recv = entry.recvs.pop_front().expect("the initiator always has a receive posted");
        assert!(iu.len() <= recv.sge.len_bytes as usize);
        let region = self.local(recv.sge.lkey);
        region.write((recv.sge.addr - region.addr()) as usize, iu).unwrap();
        self.complete(recv.wr_id, WcStatus::Success, WcOpcode::Recv, iu.len() as u32);
    }

    fn login(&mut self, Waiting { conn, attr }: Waiting) {
        if self.conns.get(conn.0).is_none() {
            return;
        }
        let request = LoginReq::parse(LoginForm::Compact, attr.private_data.as_slice()).unwrap();
        let limits = LoginLimits {
            max_it_iu_bytes: 8260,
            max_ti_iu_bytes: 300,
            credits: self.knobs.credits,
            min_credits: 2,
            control_slots: 1,
            multi_channel: true,
            max_channels_per_nexus: self.knobs.channels,
            immediate: true,
        };
        let live = self.qps.iter().filter(|(_, qp)| qp.channel.is_some()).count() as u32;
        let context = LoginContext {
            target: TARGET,
            enabled: true,
            allowed: true,
            nexus_channels: live,
            channels_left: 100,
            sessions_left: 1,
            slots_left: 10_000,
        };
        match decide(&request, &limits, &context) {
            Ok(accepted) => {
                let qp = self.qps.key_at(attr.qpn.get() - 100).expect("the QP of the request");
                self.qps.get_mut(qp).unwrap().channel = Some(Channel::new(accepted.params));
                let reply = ConnReply {
                    qpn: Qpn::new(0x77),
                    starting_psn: Psn::new(5),
                    responder_resources: 4,
                    initiator_depth: 4,
                    rnr_retry: 7,
                };
                let private_data = PrivateData::new(&accepted.response.emit()).unwrap();
                self.events.push_back(ConnEvent::Reply { conn, reply, timeout_code: 14, private_data });
            }
            Err(refusal) => {
                self.conns.remove(conn.0);
                let private_data = PrivateData::new(&refusal.rej(&request).emit()).unwrap();
                let why = ConnEnd::Rejected { reason: 28, private_data };
                self.events.push_back(ConnEvent::Ended { conn, why });
            }
        }
    }

    fn deliver(&mut self, Posted { qp, wr, iu }: Posted) {
        if self.knobs.dead || self.qps.get(qp.0).is_none() {
            return;
        }
        let opcode = if matches!(wr.op, SendOp::Write(_)) { WcOpcode::Write } else { WcOpcode::Send };
        self.complete(wr.wr_id, WcStatus::Success, opcode, 0);
        if opcode == WcOpcode::Write {
            return;
        }
        self.seen.push(iu[0]);
        if self.knobs.leave_after > 0 {
            self.knobs.leave_after -= 1;
            if self.knobs.leave_after == 0 {
                self.target_leaves();
            }
        }
        let Some(mut channel) = self.qps.get_mut(qp.0).unwrap().channel.take() else { return };
        self.answer(qp, &mut channel, &iu);
        self.qps.get_mut(qp.0).unwrap().channel = Some(channel);
    }

    fn answer(&mut self, qp: QpId, channel: &mut Channel, iu: &[u8]) {
        let mut buf = [0; 300];
        match channel.on_iu(iu) {
            Inbound::Command(command) => {
                if let Some((status, sense, residual)) = self.execute(&command, iu) {
                    let delta = channel.answer_delta(false);
                    let sense = sense.map(|sense| sense.emit_fixed());
                    let answer = CommandAnswer {
                        tag: command.tag,
                        sol_not: command.sol_not,
                        delta,
                        status,
                        residual,
                        sense: sense.as_ref().map_or(&[], |sense| &sense[..]),
                    };
                    let len = answer.emit(300, &mut buf).unwrap().len_bytes;
                    self.send(qp, &buf[..len]);
                } else {
                    channel.begin(command.tag, 1).unwrap();
                }
            }
            Inbound::TaskManagement { request, action } => {
                let status = match action {
                    TmfAction::AbortTask { .. } => self.knobs.abort.unwrap_or(self.knobs.tmf),
                    _ => self.knobs.tmf,
                };
                let Some(status) = status else { return };
                let stalled: Vec<Tag> = match action {
                    TmfAction::AbortTask { .. } => vec![request.task_tag],
                    _ => channel.tags().iter().map(|(tag, _)| tag).collect(),
                };
                if status == TmfStatus::Complete {
                    for tag in stalled {
                        if channel.end(tag).is_some() {
                            channel.end_silently();
                        }
                    }
                }
                let delta = channel.answer_delta(false);
                let answer = TmfAnswer { tag: request.tag, sol_not: 0, delta, status };
                let len = answer.emit(&mut buf).unwrap().len_bytes;
                self.send(qp, &buf[..len]);
            }
            Inbound::Expected => {}
            other => panic!("the initiator sent {other:?}"),
        }
    }

    /// Status, sense and residual; `None` for a command that is never answered.
    fn execute(&mut self, command: &Command<'_>, iu: &[u8]) -> Option<(u8, Option<Sense>, Residual)> {
        self.buffers.push(command.buffer);
        let failed = |key, asc| Some((2, Some(Sense::new(key, asc)), Residual::NONE));
        let cdb = Cdb::parse(&command.cdb).expect("a known command");
        let len = command.buffer.len_bytes();
        let data = match cdb {
            Cdb::Inquiry { evpd: false, .. } => {
                let mut data = vec![0; 96];
                let inquiry = StandardInquiry {
                    peripheral: if command.lun == RawLun::default() { 0 } else { 0x7f },
                    version: 6,
                    tpgs: 0,
                    third_party_copy: false,
                    multi_port: false,
                    vendor: *b"srpoll  ",
                    product: *b"fake            ",
                    revision: *b"1   ",
                };
                inquiry.emit(&mut data);
                data
            }
            Cdb::Inquiry { .. } => return failed(SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB),
            _ if self.knobs.attentions > 0 => {
                self.knobs.attentions -= 1;
                return failed(SenseKey::UnitAttention, Asc::POWER_ON);
            }
            _ if self.knobs.busy > 0 => {
                self.knobs.busy -= 1;
                return Some((8, None, Residual::NONE));
            }
            Cdb::TestUnitReady => Vec::new(),
            Cdb::ReadCapacity16 { .. } => {
                let capacity = Capacity {
                    blocks: (self.disk.len() / BLOCK_BYTES) as u64,
                    block_bytes: BLOCK_BYTES as u32,
                    physical_block_exponent: 0,
                    lowest_aligned_lba: 0,
                    provisioning: false,
                    unmapped_zeroes: false,
                };
                capacity.emit_16().to_vec()
            }
            Cdb::Read(_) | Cdb::Write(_) if self.knobs.stall => return None,
            Cdb::Read(rw) => {
                let from = rw.lba as usize * BLOCK_BYTES;
                self.disk[from..from + rw.blocks as usize * BLOCK_BYTES].to_vec()
            }
            Cdb::Write(rw) => {
                assert_eq!((command.direction, len), (Direction::Out, rw.blocks * BLOCK_BYTES as u32));
                let data = self.data_out(command, iu);
                let from = rw.lba as usize * BLOCK_BYTES;
                if self.knobs.forget_writes > 0 {
                    self.knobs.forget_writes -= 1;
                } else {
                    self.disk[from..from + data.len()].copy_from_slice(&data);
                }
                return Some((0, None, Residual::NONE));
            }
            other => panic!("{other:?}"),
        };
        if command.direction == Direction::In {
            self.data_in(command, iu, &data[..data.len().min(len as usize)]);
        }
        Some((0, None, Residual::new(command.direction, len, data.len() as u64)))
    }

    /// The descriptors of a command, in bytes of this side.
    fn table_bytes(&self, command: &Command<'_>, iu: &[u8]) -> Vec<u8> {
        match command.buffer {
            BufferRef::Direct(descriptor) => descriptor.emit().to_vec(),
            BufferRef::Inline { .. } => match command.buffer.table(iu) {
                Some(Table::Many(table)) => table.as_bytes().to_vec(),
                _ => panic!("an inline table"),
            },
            BufferRef::External { table, .. } => {
                let piece = Piece { addr: table.addr, rkey: table.rkey, len_bytes: table.len_bytes };
                let mut bytes = vec![0; table.len_bytes as usize];
                let (region, offset) = self.remote(&piece);
                region.read(offset, &mut bytes).unwrap();
                bytes
            }
            other => panic!("{other:?} has no table"),
        }
    }

    fn data_out(&self, command: &Command<'_>, iu: &[u8]) -> Vec<u8> {
        if let BufferRef::Immediate { offset, len_bytes } = command.buffer {
            return iu[usize::from(offset)..][..len_bytes as usize].to_vec();
        }
        let bytes = self.table_bytes(command, iu);
        let len = command.buffer.len_bytes();
        let table = Table::Many(check_table(&bytes, len).unwrap());
        let mut data = Vec::new();
        for piece in pieces(table, Cursor::START, len) {
            let (region, offset) = self.remote(&piece);
            let mut part = vec![0; piece.len_bytes as usize];
            region.read(offset, &mut part).unwrap();
            data.extend(part);
        }
        data
    }

    fn data_in(&self, command: &Command<'_>, iu: &[u8], data: &[u8]) {
        let bytes = self.table_bytes(command, iu);
        let table = Table::Many(check_table(&bytes, data.len() as u32).unwrap());
        let mut rest = data;
        for piece in pieces(table, Cursor::START, data.len() as u32) {
            let (part, behind) = rest.split_at(piece.len_bytes as usize);
            let (region, offset) = self.remote(&piece);
            region.write(offset, part).unwrap();
            rest = behind;
        }
        assert!(rest.is_empty());
    }
}

impl Device for FakeDevice {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            max_qp: 64,
            max_cqe: 1 << 20,
            max_srq_wr: 0,
            max_send_wr: 1 << 16,
            max_rd_atomic: 128,
            max_message_bytes: 1 << 24,
            last_wqe_event: false,
            recycling: Recycling::Never,
        }
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        Ok(PdId(KEY))
    }

    fn register(&mut self, _: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError> {
        self.next_key += 1;
        let keys = MrKeys { lkey: LKey(self.next_key), rkey: RKey(!self.next_key) };
        self.regions.push((keys, region.clone(), access));
        Ok(keys)
    }

    fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        self.regions.retain(|(keys, ..)| keys.lkey != lkey);
        Ok(())
    }

    fn create_cq(&mut self, _: u32) -> Result<CqId, VerbsError> {
        Ok(CqId(KEY))
    }

    fn destroy_cq(&mut self, _: CqId) -> Result<(), VerbsError> {
        Ok(())
    }

    fn destroy_srq(&mut self, _: SrqId) -> Result<(), VerbsError> {
        Err(VerbsError::NotFound("shared receive queue"))
    }

    fn posted_srq_recvs(&self, _: SrqId) -> Option<u32> {
        None
    }

    fn create_srq(&mut self, _: PdId, _: u32) -> Result<SrqId, VerbsError> {
        Err(VerbsError::Exhausted("shared receive queue"))
    }

    fn arm_srq_limit(&mut self, _: SrqId, _: u32) -> Result<(), VerbsError> {
        Err(VerbsError::NotFound("shared receive queue"))
    }

    fn create_qp(&mut self, _: &QpInit) -> Result<QpId, VerbsError> {
        let qp = Qp { state: QpState::Reset, recvs: VecDeque::new(), channel: None };
        self.qps.insert(qp).map(QpId).map_err(|_| VerbsError::Exhausted("queue pair"))
    }

    fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError> {
        Ok(Qpn::new(100 + qp.0.slot))
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.qps.get(qp.0).map(|qp| qp.state).ok_or(VerbsError::NotFound("queue pair"))
    }

    fn modify_qp(&mut self, _: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError> {
        let qp = self.qps.get_mut(qp.0).ok_or(VerbsError::NotFound("queue pair"))?;
        qp.state = match (qp.state, change) {
            (QpState::Reset, QpModify::Init) => QpState::Init,
            (QpState::Init, QpModify::Rtr(_)) => QpState::Rtr,
            (QpState::Rtr, QpModify::Rts(_)) => QpState::Rts,
            (state, _) => return Err(VerbsError::State(state)),
        };
        Ok(())
    }

    fn retire_qp(&mut self, _: Time, _: QpId, _: Retire) -> Result<(), VerbsError> {
        Err(VerbsError::Invalid("retirement: an initiator destroys"))
    }

    fn destroy_qp(&mut self, _: Time, qp: QpId) -> Result<(), VerbsError> {
        self.qps.remove(qp.0).map(|_| ()).ok_or(VerbsError::NotFound("queue pair"))
    }

    fn post_send(&mut self, _: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        let state = self.qp_state(qp)?;
        if state != QpState::Rts {
            return Err(VerbsError::State(state));
        }
        let iu = self.gather(wr);
        self.posted.push_back(Posted { qp, wr: *wr, iu });
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), VerbsError> {
        let qp = self.qps.get_mut(qp.0).ok_or(VerbsError::NotFound("queue pair"))?;
        qp.recvs.push_back(*wr);
        Ok(())
    }

    fn post_srq_recv(&mut self, _: SrqId, _: &RecvWr) -> Result<(), VerbsError> {
        Err(VerbsError::NotFound("shared receive queue"))
    }

    fn poll_cq(&mut self, _: CqId, into: &mut [Wc]) -> usize {
        let count = into.len().min(self.completions.len());
        for (place, wc) in into.iter_mut().zip(self.completions.drain(..count)) {
            *place = wc;
        }
        count
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        None
    }

    fn last_heard(&self, _: QpId) -> Result<Time, VerbsError> {
        Ok(if self.knobs.dead { Time::ZERO } else { self.now })
    }

    fn progress(&mut self, now: Time) -> usize {
        self.now = now;
        let logins = std::mem::take(&mut self.waiting);
        let posted = std::mem::take(&mut self.posted);
        let busy = logins.len() + posted.len();
        if !self.knobs.dead {
            logins.into_iter().for_each(|waiting| self.login(waiting));
        }
        posted.into_iter().for_each(|posted| self.deliver(posted));
        if let Some(iu) = self.knobs.unsolicited.take() {
            let (key, _) = self.qps.iter().next().expect("a QP");
            let waiting = self.qps.get_mut(key).and_then(|qp| qp.channel.as_mut());
            waiting.expect("a channel").expect_response();
            self.send(QpId(key), &iu);
        }
        busy
    }

    fn next_deadline(&self) -> Time {
        if self.posted.is_empty() && self.waiting.is_empty() { Time::NEVER } else { Time::ZERO }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Connections for FakeDevice {
    fn listen(&mut self, _: Option<IpAddr>, _: Service) -> Result<ListenerId, VerbsError> {
        Err(VerbsError::Exhausted("listener"))
    }

    fn unlisten(&mut self, _: ListenerId) -> Result<(), VerbsError> {
        Err(VerbsError::NotFound("listener"))
    }

    fn connect(&mut self, _: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        let conn = self.conns.insert(0).map(ConnId).map_err(|_| VerbsError::Exhausted("connection"))?;
        self.waiting.push_back(Waiting { conn, attr: *attr });
        Ok(conn)
    }

    fn accept(&mut self, _: Time, _: ConnId, _: &ConnReply, _: &[u8]) -> Result<(), VerbsError> {
        Err(VerbsError::NotFound("connection"))
    }

    fn reject(&mut self, _: Time, _: ConnId, _: u16, _: &[u8]) -> Result<(), VerbsError> {
        Err(VerbsError::NotFound("connection"))
    }

    fn established(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.conns.get(conn.0).map(|_| ()).ok_or(VerbsError::NotFound("connection"))
    }

    fn disconnect(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.conns.remove(conn.0).ok_or(VerbsError::NotFound("connection"))?;
        self.events.push_back(ConnEvent::Ended { conn, why: ConnEnd::Disconnected });
        Ok(())
    }

    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.events.pop_front()
    }
}
