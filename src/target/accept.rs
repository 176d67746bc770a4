//! Logins, on shard 0: from a connection request to a channel on some shard, and back to nothing.
//!
//! Shard 0 owns the connection manager, so it also keeps the books of all nexuses: which channels
//! a nexus has, on which shard they are, and how many receive slots of each shard are promised.
//! A login is decided here, its channel is made on the shard that has the fewest, and the answer
//! goes out when that shard has said which queue pair it is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactors::time::Time;

use super::access::InitiatorId;
use super::epilogue::Epilogue;
use super::limits::{CONTROL_SLOTS, MAX_CREDITS, MAX_IT_IU_BYTES, MAX_TI_IU_BYTES, MIN_CREDITS};
use super::message::{Admission, Admitted, ChannelRef, Message, Peers, Tally};
use super::nexus::{Nexus, NexusId};
use super::snapshot::Snapshot;
use super::why::Why;
use crate::rdma::verbs::{
    ConnEnd, ConnId, ConnReply, ConnRequest, Connections, Farewell, Path, Peer, PrivateData, Service,
};
use crate::scsi::Condition;
use crate::srp::login::{Accepted, LoginContext, LoginLimits, Refusal, decide, resolved};
use crate::wire::srp::{LoginForm, LoginRej, LoginReq, MultiChannel, PortId, RejReason, Tag};

/// RDMA READs and atomics that we answer: none are allowed on an SRP target, and LIO says 4.
const RESPONDER_RESOURCES: u8 = 4;
/// RNR retry count for the initiator's queue pair: for ever.
const RNR_RETRY: u8 = 7;

/// A nexus and its channels.
struct Membership {
    nexus: Arc<Nexus>,
    channels: Vec<(ConnId, ChannelRef)>,
    logins: u32,
    next_index: u32,
    epilogue: Epilogue,
}

impl Membership {
    /// Tells of channels that have ended, if it is time.
    fn tell(&mut self, now: Time, id: &NexusId) {
        let left = self.channels.len();
        if let Some(told) = self.epilogue.due(now, left) {
            told.log(id, left);
        }
    }
}

/// A login in progress.
#[derive(Clone)]
struct Login {
    request: ConnRequest,
    tag: Tag,
    accepted: Accepted,
    nexus: NexusId,
    shard: usize,
    index: u32,
    /// Channels whose end it waits for.
    waits: u32,
}

/// What a connection is to us.
enum Seat {
    /// A login that waits for older channels to end.
    Waiting(Box<Login>),
    /// A login whose channel is being made.
    Admitting(Box<Login>),
    /// The same, but the connection has ended meanwhile.
    Abandoned(Box<Login>),
    /// A channel.
    Seated {
        /// Its nexus.
        nexus: NexusId,
        /// Where it lives.
        channel: ChannelRef,
        /// The addresses.
        path: Path,
        /// Who is at the other end.
        peer: Peer,
    },
}

/// What was counted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptCounts {
    /// Logins that led to a channel.
    pub accepted: u64,
    /// Logins that were refused.
    pub refused: u64,
    /// Logins whose connection ended before they were answered.
    pub abandoned: u64,
}

/// What the registry holds.
#[derive(Copy, Clone, Debug)]
pub struct Books<'a> {
    /// Connections that are logins or channels.
    pub seats: usize,
    /// Connections whose peers are being told of the end.
    pub leaving: usize,
    /// Receive slots of each shard that no channel has been promised.
    pub slots_left: &'a [u32],
    /// Channels of each shard, logins in progress included.
    pub channels: &'a [u32],
}

/// What a login is decided and answered with.
pub struct Desk<'a, N: Connections> {
    /// When.
    pub now: Time,
    /// The configuration.
    pub snapshot: &'a Snapshot,
    /// The connection manager.
    pub net: &'a mut N,
    /// The way to the shards.
    pub peers: &'a mut Peers,
}

/// The registry of nexuses and logins.
pub struct Acceptor {
    nexuses: HashMap<NexusId, Membership>,
    seats: HashMap<ConnId, Seat>,
    /// Receive slots of each shard that no channel has been promised.
    slots_left: Vec<u32>,
    /// Channels of each shard, logins in progress included.
    channels: Vec<u32>,
    /// Connections whose peers are being told of the end by DREQ.
    leaving: HashMap<ConnId, IpAddr>,
    /// No new logins: the target is stopping.
    closed: bool,
    /// Counts up whenever a connection came or went, for the control plane.
    seatings: Arc<AtomicU64>,
    /// What was counted.
    pub counts: AcceptCounts,
}

impl Acceptor {
    /// For `shards` shards with `slots` receive slots each; counts in `seatings` whenever a connection
    /// came or went.
    pub fn new(shards: usize, slots: u32, seatings: Arc<AtomicU64>) -> Self {
        Acceptor {
            nexuses: HashMap::new(),
            seats: HashMap::new(),
            slots_left: vec![slots; shards],
            channels: vec![0; shards],
            leaving: HashMap::new(),
            closed: false,
            seatings,
            counts: AcceptCounts::default(),
        }
    }

    /// Refuses all logins from now on.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether every channel is gone and every peer has been told, or does not answer.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty() && self.leaving.is_empty()
    }

    /// The end of a channel begins.
    pub fn on_ending(&mut self, conn: ConnId, why: Why, cut: u32) {
        if let Some(Seat::Seated { nexus, peer, .. }) = self.seats.get(&conn)
            && let Some(members) = self.nexuses.get_mut(nexus)
        {
            members.epilogue.begins(conn, why, *peer, cut);
        }
    }

    /// The peer of a channel is being told of the end.
    pub fn on_leaving(&mut self, conn: ConnId) {
        if let Some(Seat::Seated { path, .. }) = self.seats.get(&conn) {
            self.leaving.insert(conn, path.local);
        }
    }

    /// What would end the connections of all channels, those on their way out included.
    pub fn farewells(&self, net: &mut impl Connections) -> Vec<Farewell> {
        let seated = self.seats.iter().filter(|(_, seat)| matches!(seat, Seat::Seated { .. }));
        seated.filter_map(|(conn, _)| net.farewell_of(*conn)).collect()
    }

    /// A connection came or went.
    fn count_seating(&self) {
        self.seatings.fetch_add(1, Ordering::Release);
    }

    /// Whether a connection, be it a login, a channel or one on its way out, uses our `address`.
    pub fn uses(&self, address: IpAddr) -> bool {
        let seated = self.seats.values().any(|seat| match seat {
            Seat::Waiting(login) | Seat::Admitting(login) | Seat::Abandoned(login) => {
                login.request.path.local == address
            }
            Seat::Seated { path, .. } => path.local == address,
        });
        seated || self.leaving.values().any(|local| *local == address)
    }

    /// What it holds.
    pub fn books(&self) -> Books<'_> {
        Books {
            seats: self.seats.len(),
            leaving: self.leaving.len(),
            slots_left: &self.slots_left,
            channels: &self.channels,
        }
    }

    /// How many nexuses have a channel or a login.
    pub fn nexuses(&self) -> usize {
        self.nexuses.len()
    }

    /// Raises a unit attention on `lun` for every nexus but `except`.
    pub fn raise(&self, lun: u16, condition: Condition, except: Option<&NexusId>) {
        for (id, membership) in &self.nexuses {
            if except != Some(id) {
                membership.nexus.attention(lun).raise(condition);
            }
        }
    }

    /// Raises a unit attention on all of `luns` for every nexus.
    pub fn raise_all(&self, luns: impl Iterator<Item = u16> + Clone, condition: Condition) {
        for lun in luns {
            self.raise(lun, condition, None);
        }
    }

    /// A peer asks for a connection.
    pub fn on_request(
        &mut self,
        conn: ConnId,
        request: ConnRequest,
        private: &PrivateData,
        desk: &mut Desk<'_, impl Connections>,
    ) {
        let form = match request.service {
            Service::RdmaCm { .. } => LoginForm::Compact,
            Service::IbCm { .. } | Service::Shm => LoginForm::Full,
        };
        let login = match LoginReq::parse(form, private.as_slice()) {
            Ok(login) => login,
            Err(error) => {
                let peer = request.peer();
                tracing::warn!(%peer, %error, "a connection request is no SRP login, it is refused");
                self.reject(conn, RejReason::NO_REASON, Tag::default(), desk);
                return;
            }
        };
        // An initiator that is given an address only leaves the target open.
        let target = desk.snapshot.identity.map(|identity| PortId(identity.port_id())).unwrap_or_default();
        let login = resolved(&login, target);
        let shard = self.emptiest_shard();
        match self.decide(&login, &request, desk.snapshot, shard) {
            Ok(accepted) => self.begin(conn, request, &login, accepted, shard, desk),
            Err((refusal, words)) => {
                let peer = request.peer();
                tracing::warn!(%peer, initiator = %login.initiator, "login refused: {words}");
                self.reject(conn, refusal.reason(), login.tag, desk);
            }
        }
    }

    fn decide(
        &self,
        login: &LoginReq,
        request: &ConnRequest,
        snapshot: &Snapshot,
        shard: usize,
    ) -> Result<Accepted, (Refusal, String)> {
        let id = NexusId { initiator: login.initiator, target: login.target };
        let target = snapshot.identity.map(|identity| PortId(identity.port_id())).unwrap_or_default();
        let access = snapshot.access.check(InitiatorId(login.initiator.0), request.peer());
        let members = self.nexuses.get(&id);
        let limits = LoginLimits {
            max_it_iu_bytes: MAX_IT_IU_BYTES,
            max_ti_iu_bytes: MAX_TI_IU_BYTES,
            credits: MAX_CREDITS,
            min_credits: MIN_CREDITS,
            control_slots: CONTROL_SLOTS,
            multi_channel: true,
            max_channels_per_nexus: snapshot.limits.max_channels_per_session,
            immediate: true,
        };
        let sessions = self.nexuses.len() as u32;
        let nexus_channels = members.map_or(0, |members| members.channels.len() as u32 + members.logins);
        // Those that this login ends make room for it.
        let freed = if login.multi_channel() == MultiChannel::Single { nexus_channels } else { 0 };
        let in_use = (self.seats.len() as u32).saturating_sub(freed);
        let context = LoginContext {
            target,
            enabled: !self.closed && snapshot.identity.is_some(),
            allowed: access.is_ok(),
            nexus_channels,
            channels_left: snapshot.limits.max_channels.saturating_sub(in_use),
            sessions_left: snapshot.limits.max_sessions.saturating_sub(sessions),
            slots_left: self.slots_left[shard],
        };
        decide(login, &limits, &context).map_err(|refusal| {
            let words = match (&refusal, access, snapshot.identity) {
                (Refusal::NotAllowed(_), Err(words), _) => words.to_string(),
                (Refusal::UnknownTarget(asked), _, Some(identity)) => format!(
                    "it asks for id_ext={:016x},ioc_guid={:016x}; this target is {identity}",
                    asked.extension(),
                    asked.guid()
                ),
                (Refusal::Sessions, ..) => {
                    let most = snapshot.limits.max_sessions;
                    format!("all of --max-sessions or srp_target_set_limits max_sessions {most} are in use")
                }
                (Refusal::Channels, ..) => {
                    let most = snapshot.limits.max_channels;
                    format!("all of --max-channels or srp_target_set_limits max_channels {most} are in use")
                }
                _ => refusal.to_string(),
            };
            (refusal, words)
        })
    }

    /// The login is accepted as far as shard 0 can say: reserve, end older channels, admit.
    fn begin(
        &mut self,
        conn: ConnId,
        request: ConnRequest,
        login: &LoginReq,
        accepted: Accepted,
        shard: usize,
        desk: &mut Desk<'_, impl Connections>,
    ) {
        let id = NexusId { initiator: login.initiator, target: login.target };
        if accepted.terminate_others {
            self.give_up_logins(&id, desk);
        }
        self.slots_left[shard] -= accepted.slots;
        self.channels[shard] += 1;
        let members = self.nexuses.entry(id).or_insert_with(|| {
            let nexus = Nexus::new(id);
            for entry in &desk.snapshot.luns {
                nexus.attention(entry.lun).raise(Condition::PowerOn);
            }
            Membership {
                nexus: Arc::new(nexus),
                channels: Vec::new(),
                logins: 0,
                next_index: 0,
                epilogue: Epilogue::default(),
            }
        });
        members.logins += 1;
        let mut waits = 0;
        if accepted.terminate_others {
            members.next_index = 0;
            for entry in &desk.snapshot.luns {
                members.nexus.attention(entry.lun).raise(Condition::NexusLoss);
            }
            for (other, channel) in &members.channels {
                members.epilogue.begins(*other, Why::Replaced, request.peer(), 0);
                let end = Message::End { channel: channel.key, why: Why::Replaced, for_login: Some(conn) };
                desk.peers.send(channel.shard, end);
                waits += 1;
            }
        }
        let index = members.next_index;
        members.next_index += 1;
        let login = Box::new(Login { request, tag: login.tag, accepted, nexus: id, shard, index, waits });
        if waits > 0 {
            self.seats.insert(conn, Seat::Waiting(login));
        } else {
            self.admit(conn, login, desk.peers);
        }
    }

    /// Logins of a nexus that have not come to an end give way to a newer one, as its channels do.
    fn give_up_logins(&mut self, id: &NexusId, desk: &mut Desk<'_, impl Connections>) {
        let of_nexus = |seat: &Seat| match seat {
            Seat::Waiting(login) | Seat::Admitting(login) => login.nexus == *id,
            Seat::Abandoned(_) | Seat::Seated { .. } => false,
        };
        let older: Vec<ConnId> =
            self.seats.iter().filter(|(_, seat)| of_nexus(seat)).map(|(conn, _)| *conn).collect();
        for conn in older {
            let (login, seat) = match self.seats.remove(&conn) {
                Some(Seat::Waiting(login)) => {
                    self.forget_login(&login);
                    (login, None)
                }
                Some(Seat::Admitting(login)) => (login.clone(), Some(Seat::Abandoned(login))),
                _ => continue,
            };
            tracing::info!(initiator = %id.initiator, "a login gives way to a newer one");
            self.reject(conn, RejReason::NO_REASON, login.tag, desk);
            if let Some(seat) = seat {
                self.seats.insert(conn, seat);
            }
        }
    }

    fn admit(&mut self, conn: ConnId, login: Box<Login>, peers: &mut Peers) {
        let Some(members) = self.nexuses.get(&login.nexus) else {
            debug_assert!(false, "a login keeps its nexus");
            return;
        };
        let admission = Admission {
            conn,
            request: login.request,
            params: login.accepted.params,
            slots: login.accepted.slots,
            nexus: Arc::clone(&members.nexus),
            index: login.index,
        };
        peers.send(login.shard, Message::Admit(Box::new(admission)));
        self.seats.insert(conn, Seat::Admitting(login));
    }

    /// One of the channels that a login waited for has ended.
    pub fn on_other_ended(&mut self, for_login: ConnId, peers: &mut Peers) {
        match self.seats.remove(&for_login) {
            Some(Seat::Waiting(mut login)) => {
                login.waits -= 1;
                if login.waits == 0 {
                    self.admit(for_login, login, peers);
                } else {
                    self.seats.insert(for_login, Seat::Waiting(login));
                }
            }
            // The connection of the waiting login has ended meanwhile.
            Some(other) => {
                self.seats.insert(for_login, other);
            }
            None => {}
        }
    }

    /// A shard has made the channel of a login, or could not.
    pub fn on_admitted(
        &mut self,
        conn: ConnId,
        result: Result<Admitted, String>,
        desk: &mut Desk<'_, impl Connections>,
    ) {
        let (login, abandoned) = match self.seats.remove(&conn) {
            Some(Seat::Admitting(login)) => (login, false),
            Some(Seat::Abandoned(login)) => (login, true),
            _ => {
                debug_assert!(false, "an admission that nobody asked for");
                return;
            }
        };
        let Some(members) = self.nexuses.get_mut(&login.nexus) else { return };
        let admitted = match result {
            Ok(admitted) => admitted,
            Err(words) => {
                let peer = login.request.peer();
                tracing::warn!(%peer, initiator = %login.nexus.initiator, "login refused: {words}");
                if !abandoned {
                    self.reject(conn, RejReason::NO_RESOURCES, login.tag, desk);
                }
                self.forget_login(&login);
                return;
            }
        };
        members.logins -= 1;
        members.channels.push((conn, admitted.channel));
        let path = login.request.path;
        let peer = login.request.peer();
        self.seats.insert(conn, Seat::Seated { nexus: login.nexus, channel: admitted.channel, path, peer });
        let reply = ConnReply {
            qpn: admitted.qpn,
            starting_psn: admitted.starting_psn,
            responder_resources: RESPONDER_RESOURCES,
            initiator_depth: admitted.max_rd_atomic,
            rnr_retry: RNR_RETRY,
        };
        let accepted = !abandoned && {
            let response = login.accepted.response.emit();
            desk.net.accept(desk.now, conn, &reply, &response).is_ok()
        };
        if accepted {
            self.counts.accepted += 1;
            self.count_seating();
        } else {
            self.counts.abandoned += 1;
            let end =
                Message::End { channel: admitted.channel.key, why: Why::NotEstablished, for_login: None };
            desk.peers.send(admitted.channel.shard, end);
        }
    }

    /// Ends those channels whose connections are `meant`, on whatever shard they are; gives how many.
    pub fn end_channels(&self, why: &Why, meant: impl Fn(ConnId) -> bool, peers: &mut Peers) -> usize {
        let mut ended = 0;
        for (conn, seat) in &self.seats {
            if let Seat::Seated { channel, .. } = seat
                && meant(*conn)
            {
                ended += 1;
                let end = Message::End { channel: channel.key, why: why.clone(), for_login: None };
                peers.send(channel.shard, end);
            }
        }
        ended
    }

    /// The connection manager says that a connection is over.
    pub fn on_ended(&mut self, conn: ConnId, why: ConnEnd, peers: &mut Peers) {
        self.leaving.remove(&conn);
        self.count_seating();
        match self.seats.remove(&conn) {
            Some(Seat::Waiting(login)) => {
                self.counts.abandoned += 1;
                self.forget_login(&login);
            }
            Some(Seat::Admitting(login)) => {
                self.seats.insert(conn, Seat::Abandoned(login));
            }
            Some(Seat::Seated { nexus, channel, path, peer }) => {
                let why = match why {
                    ConnEnd::PeerDisconnected | ConnEnd::Disconnected => Why::PeerGone,
                    ConnEnd::Replaced => Why::Forgotten,
                    ConnEnd::Timeout | ConnEnd::Rejected { .. } => Why::NotEstablished,
                };
                peers.send(channel.shard, Message::End { channel: channel.key, why, for_login: None });
                self.seats.insert(conn, Seat::Seated { nexus, channel, path, peer });
            }
            Some(abandoned @ Seat::Abandoned(_)) => {
                self.seats.insert(conn, abandoned);
            }
            None => {}
        }
    }

    /// The peer's RTU came.
    pub fn on_established(&mut self, conn: ConnId, peers: &mut Peers) {
        if let Some(Seat::Seated { channel, .. }) = self.seats.get(&conn) {
            peers.send(channel.shard, Message::Established { channel: channel.key });
        }
    }

    /// A channel is gone; `slots` of its receive slots are free again.
    pub fn on_gone(&mut self, now: Time, conn: ConnId, channel: ChannelRef, slots: u32, tally: Tally) {
        self.slots_left[channel.shard] += slots;
        self.channels[channel.shard] -= 1;
        let Some(Seat::Seated { nexus, .. }) = self.seats.remove(&conn) else { return };
        self.count_seating();
        if let Some(members) = self.nexuses.get_mut(&nexus) {
            members.channels.retain(|(other, _)| *other != conn);
            members.epilogue.is_over(now, conn, tally);
            members.tell(now, &nexus);
            self.forget_if_empty(&nexus);
        }
    }

    /// Tells of channels that have ended while their sessions go on.
    pub fn tell_of_ends(&mut self, now: Time) {
        for (id, members) in &mut self.nexuses {
            members.tell(now, id);
        }
    }

    /// Receive slots that an abandoned block operation still held are free again.
    pub fn on_slots_back(&mut self, shard: usize, slots: u32) {
        self.slots_left[shard] += slots;
    }

    fn forget_login(&mut self, login: &Login) {
        self.slots_left[login.shard] += login.accepted.slots;
        self.channels[login.shard] -= 1;
        if let Some(members) = self.nexuses.get_mut(&login.nexus) {
            members.logins -= 1;
        }
        self.forget_if_empty(&login.nexus);
    }

    fn forget_if_empty(&mut self, id: &NexusId) {
        if self.nexuses.get(id).is_some_and(|members| members.channels.is_empty() && members.logins == 0) {
            self.nexuses.remove(id);
        }
    }

    fn reject(&mut self, conn: ConnId, reason: RejReason, tag: Tag, desk: &mut Desk<'_, impl Connections>) {
        self.counts.refused += 1;
        let formats = crate::wire::srp::BufferFormats::BOTH;
        let rej = LoginRej { reason, tag, formats }.emit();
        if let Err(error) = desk.net.reject(desk.now, conn, LoginRej::CM_REASON, &rej) {
            tracing::debug!(?conn, %error, "the refusal could not be sent");
        }
    }

    /// The shard with the fewest channels among those that have slots; the first of them.
    fn emptiest_shard(&self) -> usize {
        let needed = MIN_CREDITS + CONTROL_SLOTS;
        let shards = 0..self.channels.len();
        let with_room = shards.clone().filter(|&shard| self.slots_left[shard] >= needed);
        with_room.min_by_key(|&shard| self.channels[shard]).unwrap_or(0)
    }
}
