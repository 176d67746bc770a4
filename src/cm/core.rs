//! All connections of a channel adapter: indices, queues, timers, and the calls of a provider.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use reactors::slab::{Key, Slab};
use reactors::time::Time;

use super::config::{CmConfig, CmStats};
use super::conn::{Conn, PeerKey};
use super::table::{Illegal, Input, State, next};
use crate::rdma::verbs::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, Farewell, ListenerId, Path, Service,
    VerbsError,
};
use crate::wire::cm::{CmMad, CommId, Message};
use crate::wire::mad::MAD_LEN;
use crate::wire::num::Qpn;

/// Most listeners: addresses and services of one device.
const MAX_LISTENERS: usize = 256;
/// Most datagrams that wait for the provider; what is beyond is lost, as on the network.
const MAX_TRANSMIT: usize = 1_024;

/// Shared memory is a matter of processes, not of addresses.
pub(super) const NO_SHM: VerbsError =
    VerbsError::Invalid("service: shared memory has no messages of the IB CM");

/// An address and service that accepts requests.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) local: Option<IpAddr>,
    pub(super) service: Service,
}

/// Why a message belongs to no connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// We know no such connection (any more).
    Unknown,
    /// We do, but with a peer at another address.
    WrongPeer,
}

/// The connection manager of one channel adapter.
pub struct Cm {
    pub(super) config: CmConfig,
    pub(super) rng: fastrand::Rng,
    pub(super) conns: Slab<Conn>,
    pub(super) listeners: Slab<Listener>,
    by_id: BTreeMap<CommId, Key>,
    by_peer: BTreeMap<PeerKey, Key>,
    /// Half-open connections by age.
    pub(super) half_open: BTreeMap<u64, Key>,
    /// Connections in time wait, oldest first. A key may be stale.
    resting: VecDeque<Key>,
    timers: BTreeSet<(Time, u32)>,
    events: VecDeque<ConnEvent>,
    transmit: VecDeque<(Path, [u8; MAD_LEN])>,
    born: u64,
    pub(super) stats: CmStats,
}

impl Cm {
    /// A connection manager without listeners and connections. Communication ids, transaction
    /// ids and flow labels come out of `rng`.
    pub fn new(config: CmConfig, rng: fastrand::Rng) -> Cm {
        Cm {
            config,
            rng,
            conns: Slab::new(config.max_connections),
            listeners: Slab::new(MAX_LISTENERS),
            by_id: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            half_open: BTreeMap::new(),
            resting: VecDeque::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            transmit: VecDeque::new(),
            born: 0,
            stats: CmStats::default(),
        }
    }

    /// Takes the payload of a datagram to QP1. `from.remote` is its UDP source, `from.local` the
    /// address that it came to; the provider has checked its Q_Key and ICRC.
    pub fn handle_mad(&mut self, now: Time, from: Path, mad: &[u8]) {
        self.stats.received += 1;
        let from = canonical(from);
        let Ok(CmMad { header, message }) = CmMad::parse(mad) else {
            self.stats.malformed += 1;
            return;
        };
        match message {
            Message::Req(req) => self.on_req(now, from, header.tid, &req),
            Message::Rep(rep) => self.on_rep(now, from, header.tid, &rep),
            Message::Rtu(rtu) => self.on_rtu(now, from, &rtu),
            Message::Mra(mra) => self.on_mra(now, from, &mra),
            Message::Rej(rej) => self.on_rej(now, from, &rej),
            Message::Dreq(dreq) => self.on_dreq(now, from, header.tid, &dreq),
            Message::Drep(drep) => self.on_drep(now, from, &drep),
            Message::Lap(lap) => self.on_lap(from, header.tid, &lap),
            Message::SidrReq(sidr) => self.on_sidr_req(from, header.tid, &sidr),
            Message::Apr(_) | Message::SidrRep(_) => self.stats.unexpected += 1,
        }
    }

    /// The next datagram to send, from `local` to `remote` of its path.
    pub fn poll_transmit(&mut self) -> Option<(Path, [u8; MAD_LEN])> {
        self.transmit.pop_front()
    }

    /// The next event for the consumer.
    pub fn poll_event(&mut self) -> Option<ConnEvent> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn deadline(&self) -> Time {
        self.timers.first().map_or(Time::NEVER, |(time, _)| *time)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(time, slot)) = self.timers.first() {
            if time > now {
                return;
            }
            self.timers.pop_first();
            let Some(key) = self.conns.key_at(slot) else { continue };
            let conn = self.conn(key);
            conn.deadline = Time::NEVER;
            match conn.state {
                State::TimeWait => self.forget(key),
                State::ReqSent | State::RepSent | State::DreqSent if conn.retries_left > 0 => {
                    self.resend(now, key);
                }
                _ => self.give_up(now, key),
            }
        }
    }

    /// What has been counted.
    pub fn stats(&self) -> CmStats {
        self.stats
    }

    /// Connections, those in time wait included.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there is no connection, not even in time wait.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Passive connections that the peer has not confirmed.
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }
}

/// What the three parts of a connection's life share.
impl Cm {
    /// A connection by its consumer's id, if it is not over.
    pub(super) fn live(&mut self, conn: ConnId) -> Result<(Key, &mut Conn), VerbsError> {
        match self.conns.get_mut(conn.0) {
            Some(found) if found.state != State::TimeWait => Ok((conn.0, found)),
            _ => Err(VerbsError::NotFound("connection")),
        }
    }

    /// A connection by a key that was just looked up.
    pub(super) fn conn(&mut self, key: Key) -> &mut Conn {
        self.conns.get_mut(key).expect("the key was just looked up")
    }

    /// The connection that a peer's message means: by our id, and by the peer's own if `theirs` is
    /// given. What is not found is counted here.
    pub(super) fn find(&mut self, ours: CommId, theirs: Option<CommId>, from: Path) -> Result<Key, Stranger> {
        let Some(&key) = self.by_id.get(&ours) else {
            self.stats.unexpected += 1;
            return Err(Stranger::Unknown);
        };
        let conn = self.conn(key);
        if conn.path != from {
            self.stats.wrong_peer += 1;
            return Err(Stranger::WrongPeer);
        }
        if theirs.is_some() && conn.remote_id != theirs {
            self.stats.unexpected += 1;
            return Err(Stranger::Unknown);
        }
        Ok(key)
    }

    /// The connection of a peer's queue pair.
    pub(super) fn by_peer(&self, peer: &PeerKey) -> Option<Key> {
        self.by_peer.get(peer).copied()
    }

    /// Makes `key` the connection of a peer's queue pair.
    pub(super) fn set_peer(&mut self, key: Key, peer: PeerKey) {
        self.conn(key).peer = Some(peer);
        self.by_peer.insert(peer, key);
    }

    /// Whether a communication id is one of ours at present.
    pub(super) fn is_taken(&self, id: CommId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A random communication id that is not in use.
    pub(super) fn new_local_id(&mut self) -> CommId {
        loop {
            let id = CommId(self.rng.u32(1..));
            if !self.is_taken(id) {
                return id;
            }
        }
    }

    /// Takes a new connection in; makes room by ending the oldest time wait.
    pub(super) fn insert(&mut self, mut conn: Conn) -> Option<Key> {
        while self.conns.is_full() {
            let oldest = self.resting.pop_front()?;
            self.forget(oldest);
        }
        self.born += 1;
        conn.born = self.born;
        let (local_id, half_open) = (conn.local_id, conn.state.is_half_open());
        let key = self.conns.insert(conn).ok()?;
        self.by_id.insert(local_id, key);
        if half_open {
            self.half_open.insert(self.born, key);
        }
        Some(key)
    }

    /// Moves a connection along the table; on its way into time wait, lets go of what is not
    /// needed there.
    pub(super) fn step(&mut self, now: Time, key: Key, input: Input) -> Result<State, Illegal> {
        let time_wait = self.config.time_wait;
        let conn = self.conn(key);
        let from = conn.state;
        let to = next(from, input)?;
        conn.state = to;
        let born = conn.born;
        if from.is_half_open() && !to.is_half_open() {
            self.half_open.remove(&born);
        }
        if from != State::TimeWait && to == State::TimeWait {
            self.conn(key).sent = None;
            self.resting.push_back(key);
            self.arm(key, now + time_wait);
        }
        Ok(to)
    }

    /// Sets the one timer of a connection.
    pub(super) fn arm(&mut self, key: Key, deadline: Time) {
        let conn = self.conn(key);
        let before = std::mem::replace(&mut conn.deadline, deadline);
        if before != Time::NEVER {
            self.timers.remove(&(before, key.slot));
        }
        if deadline != Time::NEVER {
            self.timers.insert((deadline, key.slot));
        }
    }

    /// Forgets a connection altogether. A stale key is nothing.
    fn forget(&mut self, key: Key) {
        if self.conns.get(key).is_none() {
            return;
        }
        self.arm(key, Time::NEVER);
        let Some(conn) = self.conns.remove(key) else { return };
        self.by_id.remove(&conn.local_id);
        self.half_open.remove(&conn.born);
        if let Some(peer) = conn.peer
            && self.by_peer(&peer) == Some(key)
        {
            self.by_peer.remove(&peer);
        }
        while self.resting.front().is_some_and(|key| self.conns.get(*key).is_none()) {
            self.resting.pop_front();
        }
    }

    /// Queues a message.
    pub(super) fn send(&mut self, path: Path, tid: u64, message: impl Into<Message>) {
        self.send_bytes(path, CmMad::new(tid, message).emit());
    }

    /// Queues a message that may have to go out again, and keeps it.
    pub(super) fn send_and_keep(&mut self, key: Key, message: impl Into<Message>) {
        let conn = self.conn(key);
        let bytes = CmMad::new(conn.tid, message).emit();
        let path = conn.path;
        conn.sent = Some(Box::new(bytes));
        self.send_bytes(path, bytes);
    }

    /// Queues again what was kept, if anything.
    pub(super) fn send_again(&mut self, key: Key) {
        let conn = self.conn(key);
        let path = conn.path;
        if let Some(bytes) = conn.sent.as_deref().copied() {
            self.send_bytes(path, bytes);
        }
    }

    fn send_bytes(&mut self, path: Path, bytes: [u8; MAD_LEN]) {
        if self.transmit.len() >= MAX_TRANSMIT {
            self.stats.transmit_overrun += 1;
            return;
        }
        self.transmit.push_back((path, bytes));
    }

    /// Whether the consumer has so many events to take that a peer must wait. Each connection
    /// adds at most two more (established, ended), so the queue is bounded.
    pub(super) fn events_full(&self) -> bool {
        self.events.len() >= 2 * self.config.max_connections
    }

    pub(super) fn event(&mut self, event: ConnEvent) {
        self.events.push_back(event);
    }

    /// Tells the consumer that a connection is over.
    pub(super) fn ended(&mut self, key: Key, why: ConnEnd) {
        self.event(ConnEvent::Ended { conn: ConnId(key), why });
    }
}

impl Connections for Cm {
    fn listen(&mut self, local: Option<IpAddr>, service: Service) -> Result<ListenerId, VerbsError> {
        if service == Service::Shm {
            return Err(NO_SHM);
        }
        let listener = Listener { local: local.map(|address| address.to_canonical()), service };
        if self.listeners.iter().any(|(_, other)| *other == listener) {
            return Err(VerbsError::Busy("service"));
        }
        self.listeners.insert(listener).map(ListenerId).map_err(|_| VerbsError::Exhausted("listener"))
    }

    fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError> {
        self.listeners.remove(listener.0).map(drop).ok_or(VerbsError::NotFound("listener"))
    }

    fn connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        self.start_connect(now, attr)
    }

    fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        reply: &ConnReply,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        self.answer_with_rep(now, conn, reply, private)
    }

    fn reject(&mut self, now: Time, conn: ConnId, reason: u16, private: &[u8]) -> Result<(), VerbsError> {
        self.answer_with_rej(now, conn, reason, private)
    }

    fn established(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.confirm(now, conn)
    }

    fn disconnect(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.start_disconnect(now, conn)
    }

    fn farewell_of(&mut self, conn: ConnId) -> Option<Farewell> {
        let conn = self.live(conn).ok()?.1;
        Some(Farewell {
            path: conn.path,
            local_id: conn.local_id,
            remote_id: conn.remote_id?,
            local_qpn: Some(conn.local_qpn).filter(|qpn| *qpn != Qpn::default())?,
            remote_qpn: conn.peer?.qpn,
        })
    }

    fn say_farewell(&mut self, now: Time, farewell: &Farewell) -> Result<(), VerbsError> {
        self.end_foreign(now, farewell)
    }

    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.poll_event()
    }
}

/// A path with IPv4-mapped addresses as IPv4, so that paths compare.
pub(super) fn canonical(path: Path) -> Path {
    Path { local: path.local.to_canonical(), remote: path.remote.to_canonical(), ..path }
}
