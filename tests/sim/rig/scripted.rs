//! The world of a scripted adapter: initiators that are far ends of its queue pairs. They keep their
//! credits, answer SRP_CRED_REQ, and go when they are told or when their retries are over.

use std::collections::BTreeMap;

use reactors::memory::Region;
use reactors::time::Time;
use srpoll::rdma::sim::scripted::{Adapter, AdapterConfig, Asking, Context, FarId, Link, Script};
use srpoll::rdma::verbs::{ConnEnd, ConnRequest, Path, PrivateData, Service};
use srpoll::srp::initiator::login_request;
use srpoll::srp::tmf::TmfFunction;
use srpoll::target::access::InitiatorId;
use srpoll::target::handle::{Request, SessionId};
use srpoll::target::shard::Shard;
use srpoll::wire::num::Qpn;
use srpoll::wire::srp::{
    Cmd, CredReq, CredRsp, DataBuffer, Descriptor, InitiatorLogout, LoginRej, LoginRsp, Tag, TaskMgmt,
};

use super::answer::Answer;
use super::command::{cmd, raw_lun};
use super::{PORT, Rig, Setup, TARGET, World, cdb, host, port_id, secs, target_id};

/// Bytes of the memory that all initiators share.
const MEMORY_BYTES: usize = 4 << 20;

pub struct Hosts {
    pub adapter: Adapter,
    pub memory: Region,
    pub channels: Vec<Channel>,
    next_tag: u64,
}

/// A channel of an initiator, from its request on.
pub struct Channel {
    pub far: FarId,
    pub number: u8,
    /// Request limit: login, minus requests, plus deltas.
    pub credits: i32,
    /// The request limit of the login.
    pub granted: i32,
    /// Commands and functions without an answer.
    pub pending: BTreeMap<[u8; 8], Time>,
    pub answers: BTreeMap<[u8; 8], Answer>,
    /// It has been told to go, or went by itself.
    pub left: bool,
}

impl World for Hosts {
    type Fabric = Context;

    fn poll(&mut self, now: Time) -> usize {
        self.channels.iter_mut().map(|channel| channel.poll(now, &self.adapter)).sum()
    }

    fn next_deadline(&self) -> Time {
        // The shards run the adapter.
        Time::NEVER
    }
}

impl Channel {
    pub fn is_live(&self, adapter: &Adapter) -> bool {
        !self.left && self.granted > 0 && matches!(adapter.link(self.far), Link::Up(_))
    }

    fn poll(&mut self, now: Time, adapter: &Adapter) -> usize {
        let mut busy = 0;
        if self.granted == 0
            && let Link::Up(private) = adapter.link(self.far)
        {
            self.granted = LoginRsp::parse(private.as_slice()).unwrap().request_limit_delta;
            self.credits = self.granted;
        }
        while let Some(iu) = adapter.receive(self.far) {
            busy += 1;
            if let Ok(request) = CredReq::parse(&iu) {
                self.credits += request.request_limit_delta;
                adapter.send(now, self.far, &CredRsp { tag: request.tag }.emit());
            } else {
                let (tag, answer) = Answer::parse(&iu, now).unwrap();
                self.credits += answer.delta;
                assert!(self.credits <= self.granted, "credits out of nothing");
                assert!(self.pending.remove(&tag).is_some(), "an answer to {tag:?}, which nobody asked");
                assert!(self.answers.insert(tag, answer).is_none(), "answered twice");
            }
        }
        if adapter.has_failed(self.far) && !std::mem::replace(&mut self.left, true) {
            adapter.disconnect(now, self.far);
            busy += 1;
        }
        busy
    }
}

impl Rig<Hosts> {
    /// A target that listens on an adapter.
    pub fn on_adapter(setup: &Setup, config: AdapterConfig) -> Rig<Hosts> {
        let mut rig = Rig::on_closed_adapter(setup, config);
        rig.listen();
        rig
    }

    /// The same without a listener.
    pub fn on_closed_adapter(setup: &Setup, config: AdapterConfig) -> Rig<Hosts> {
        let rng = fastrand::Rng::with_seed(config.seed);
        let adapter = Adapter::new(config);
        let devices = adapter.contexts();
        let memory = Region::anonymous(MEMORY_BYTES).unwrap();
        let world = Hosts { adapter, memory, channels: Vec::new(), next_tag: 0 };
        Rig::without_port(setup, world, devices, rng)
    }

    fn asking(number: u8, multi: bool, rtu: bool) -> Asking {
        let mut login = login_request(port_id(number), target_id(), Tag(*b"login000"), 8260, false, true);
        login.flags |= u8::from(multi);
        Asking {
            service: Service::RdmaCm { port: PORT },
            path: Path { local: TARGET, remote: host(number), scope_id: 0 },
            guid: 0xa000 + u64::from(number),
            private_data: PrivateData::new(&login.emit_compact()).unwrap(),
            responder_resources: 4,
            rtu,
        }
    }

    /// What the connection manager says of a login of host `number` that is not on its way.
    pub fn request(&self, number: u8) -> (ConnRequest, PrivateData) {
        let asking = Self::asking(number, true, true);
        (asking.request(Qpn::new(2)), asking.private_data)
    }

    /// A login of host `number`, beside its other channels if `multi`; gives its channel.
    pub fn ask_login(&mut self, number: u8, multi: bool, rtu: bool, script: Script) -> usize {
        let asking = Self::asking(number, multi, rtu);
        let far = self.adapter.far(&self.memory, script);
        self.adapter.ask(self.now, far, asking);
        self.channels.push(Channel {
            far,
            number,
            credits: 0,
            granted: 0,
            pending: BTreeMap::new(),
            answers: BTreeMap::new(),
            left: false,
        });
        self.channels.len() - 1
    }

    /// A channel of host `number` whose queue pair behaves as `script` says; logged in, and beyond the
    /// unit attention of a new nexus.
    pub fn login_on(&mut self, number: u8, script: Script) -> usize {
        let channel = self.ask_login(number, true, true, script);
        self.until("a login", |rig| rig.is_live(channel));
        self.hear_attentions(channel);
        channel
    }

    /// Takes the unit attentions of LUN 0.
    pub fn hear_attentions(&mut self, channel: usize) {
        while let Some((key, ..)) = self.plain(channel, cdb::TEST_UNIT_READY).sense {
            assert_eq!(key, 6, "UNIT ATTENTION");
        }
    }

    pub fn is_live(&self, channel: usize) -> bool {
        self.channels[channel].is_live(&self.adapter)
    }

    pub fn far(&self, channel: usize) -> FarId {
        self.channels[channel].far
    }

    pub fn link(&self, channel: usize) -> Link {
        self.adapter.link(self.far(channel))
    }

    /// What a login was refused with.
    pub fn refusal(&self, channel: usize) -> Option<LoginRej> {
        match self.link(channel) {
            Link::Ended(ConnEnd::Rejected { private_data, .. }) => {
                LoginRej::parse(private_data.as_slice()).ok()
            }
            _ => None,
        }
    }

    /// Disconnects a channel.
    pub fn leave(&mut self, channel: usize) {
        self.channels[channel].left = true;
        self.adapter.disconnect(self.now, self.far(channel));
    }

    /// Sends any bytes.
    pub fn send_on(&mut self, channel: usize, iu: &[u8]) {
        self.adapter.send(self.now, self.far(channel), iu);
    }

    pub fn log_out(&mut self, channel: usize) {
        self.channels[channel].left = true;
        self.send_on(channel, &InitiatorLogout { tag: Tag(*b"good bye") }.emit());
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag.to_le_bytes())
    }

    /// Sends a command; gives its tag.
    pub fn post(&mut self, channel: usize, cmd: &Cmd<'_>) -> Tag {
        let mut iu = vec![0; 8260];
        let len = cmd.emit(&mut iu).unwrap();
        let now = self.now;
        let entry = &mut self.channels[channel];
        entry.credits -= 1;
        entry.pending.insert(cmd.tag.0, now);
        self.send_on(channel, &iu[..len]);
        cmd.tag
    }

    /// A task management function; gives its tag.
    pub fn manage(&mut self, channel: usize, function: TmfFunction, lun: u16, task: Tag) -> Tag {
        let tag = self.tag();
        let request =
            TaskMgmt { sol_not: 0, tag, lun: raw_lun(lun), function: function.code(), task_tag: task };
        let now = self.now;
        let entry = &mut self.channels[channel];
        entry.credits -= 1;
        entry.pending.insert(tag.0, now);
        self.send_on(channel, &request.emit());
        tag
    }

    /// A piece of the initiators' memory, under this channel's key.
    pub fn piece(&self, channel: usize, at: usize, len: usize) -> Descriptor {
        let rkey = self.adapter.rkey(self.far(channel));
        Descriptor { addr: self.memory.addr() + at as u64, rkey, len_bytes: len as u32 }
    }

    /// Sends a WRITE of `len` bytes from `at` of our memory.
    pub fn write(&mut self, channel: usize, lun: u16, lba: u64, at: usize, len: usize) -> Tag {
        let data_out = DataBuffer::Direct(self.piece(channel, at, len));
        let tag = self.tag();
        self.post(channel, &Cmd { data_out, ..cmd(tag, lun, cdb::write_16(lba, (len / 512) as u32)) })
    }

    /// Sends a WRITE whose data are in the command.
    pub fn write_immediate(&mut self, channel: usize, lun: u16, lba: u64, data: &[u8]) -> Tag {
        let data_out = DataBuffer::Immediate { data, offset: 68 };
        let tag = self.tag();
        self.post(channel, &Cmd { data_out, ..cmd(tag, lun, cdb::write_16(lba, (data.len() / 512) as u32)) })
    }

    /// Sends a READ of `len` bytes to `at` of our memory.
    pub fn read(&mut self, channel: usize, lun: u16, lba: u64, at: usize, len: usize) -> Tag {
        let data_in = DataBuffer::Direct(self.piece(channel, at, len));
        let tag = self.tag();
        self.post(channel, &Cmd { data_in, ..cmd(tag, lun, cdb::read_16(lba, (len / 512) as u32)) })
    }

    /// Waits for the answer to a tag.
    pub fn answer(&mut self, channel: usize, tag: Tag) -> Answer {
        self.until("an answer", |rig| rig.channels[channel].answers.contains_key(&tag.0));
        self.channels[channel].answers[&tag.0].clone()
    }

    /// A command without data, and its answer.
    pub fn plain(&mut self, channel: usize, cdb: [u8; 16]) -> Answer {
        let tag = self.tag();
        let tag = self.post(channel, &cmd(tag, 0, cdb));
        self.answer(channel, tag)
    }

    /// The channel still works, and all its credits come back.
    pub fn serves(&mut self, channel: usize) {
        assert!(self.plain(channel, cdb::TEST_UNIT_READY).is_good());
        let tag = self.read(channel, 0, 0, 0, 4096);
        assert!(self.answer(channel, tag).is_good());
        let entry = &self.channels[channel];
        assert_eq!(entry.credits, entry.granted, "credits of a channel without commands");
    }

    /// An administrator ends the session of host `number`.
    pub fn kick(&mut self, number: u8) {
        let session = SessionId { initiator: InitiatorId(port_id(number).0), target: target_id().0 };
        self.ask_all(&Request::Disconnect(session));
    }

    /// How many channels a shard has.
    pub fn channels_on(&self, shard: usize) -> usize {
        self.shards[shard].channel_count()
    }

    /// Sum over all shards of something that they count.
    pub fn count(&self, what: impl Fn(&srpoll::target::counts::Counts) -> u64) -> u64 {
        self.shards.iter().map(|shard| what(&shard.counts())).sum()
    }

    /// Everybody leaves; in the end the target's books are empty and agree with the adapter's.
    pub fn settle(&mut self) {
        for channel in 0..self.channels.len() {
            if !self.channels[channel].left {
                self.leave(channel);
            }
        }
        self.settled();
    }

    /// Nothing is left of any work: every slot, buffer and credit is back, every queue pair was
    /// recycled or destroyed, once, and the adapter has the same in its books.
    pub fn settled(&mut self) {
        let end = self.now + secs(60);
        loop {
            self.run(super::ms(50));
            let mut left: Vec<String> = self.shards.iter().flat_map(Shard::leftovers).collect();
            for shard in 0..self.shards.len() {
                let books = self.adapter.books(shard);
                let total = self.snapshot.limits.recv_slots as usize;
                if (books.receives, books.taken, books.completions) != (total, 0, 0) {
                    left.push(format!("the adapter's books of shard {shard}: {books:?} of {total} receives"));
                }
            }
            // What was recycled lies ready for the next login; all else is destroyed.
            let queue_pairs: usize =
                (0..self.shards.len()).map(|shard| self.adapter.books(shard).queue_pairs).sum();
            let spares = self.counter("qps_spare");
            if queue_pairs as u64 != spares {
                left.push(format!("{queue_pairs} queue pairs at the adapter, {spares} spares"));
            }
            if left.is_empty() {
                break;
            }
            assert!(self.now < end, "left over: {left:#?}");
        }
        assert_eq!(self.adapter.misuse(), Vec::<String>::new());
    }
}
