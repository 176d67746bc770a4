//! Connection management: requests, answers and ends as messages on the UNIX socket of each connection.
//!
//! A request is the first message of a connection, and carries the shared segment. The link that is
//! made of it is parked at the [`Hub`] until a queue pair asks for it; from then on the owner of that
//! queue pair reads the socket, and tells us what concerns us. An end needs no handshake: the kernel
//! delivers the word, or the hang-up of who died.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reactors::slab::{Key, Slab};
use reactors::time::Time;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use super::hub::{Hub, Notice};
use super::link::Link;
use super::segment::{SEGMENT_BYTES, Side};
use super::socket::{self, Look};
use crate::rdma::verbs::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ConnRequest, ConnectAttr, ListenerId, Path, PathMtu, PrivateData,
    Process, Service, VerbsError,
};
use crate::unix::OwnedSocket;
use crate::wire::num::Qpn;
use crate::wire::shm::{MAX_LEN, MAX_PRIVATE, Message, Offer};

/// Most connections, those that are being made included.
const MAX_CONNS: usize = 4096;
/// Most connections that have not said what they want.
const MAX_SILENT: usize = 64;
/// How long a new connection may take to say what it wants.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// How long we wait for the answer to a request, and for our consumer's.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Most listeners: any of them lets peers in, by whichever socket.
const MAX_LISTENERS: usize = 64;
/// Connections accepted in one turn.
const ACCEPTS_A_TURN: usize = 16;
/// IBTA reason codes of a REJ (vol. 1, table 107).
const NO_RESOURCES: u16 = 4;
const INVALID_SERVICE: u16 = 8;

/// Where a connection is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    /// A peer has connected and said nothing yet.
    Silent,
    /// A peer asks; our consumer has not answered.
    Asked,
    /// We asked; the peer has not answered.
    Asking,
    /// Accepted, by either side.
    Open,
}

#[derive(Debug)]
struct Conn {
    number: u32,
    socket: Arc<OwnedFd>,
    peer: Process,
    /// The socket of ours that it came by; none for our own requests.
    by: Option<PathBuf>,
    state: State,
    deadline: Time,
}

/// Who an event of our epoll is about: connections by number, which has 24 bits.
const LISTENER: u64 = 1 << 32;
const HUB: u64 = 1 << 33;

/// The connection manager of a device.
pub(super) struct Connector {
    guid: u64,
    /// Where our own requests go.
    target: Option<PathBuf>,
    hub: Hub,
    epoll: OwnedFd,
    sockets: Vec<OwnedSocket>,
    listeners: Slab<()>,
    conns: Slab<Conn>,
    by_number: HashMap<u32, Key>,
    next_number: u32,
    events: VecDeque<ConnEvent>,
}

impl Connector {
    pub(super) fn new(guid: u64, target: Option<PathBuf>, hub: Hub, first: u32) -> io::Result<Connector> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, hub.event(), EventData::new_u64(HUB), EventFlags::IN)?;
        Ok(Connector {
            guid,
            target,
            hub,
            epoll,
            sockets: Vec::new(),
            listeners: Slab::new(MAX_LISTENERS),
            conns: Slab::new(MAX_CONNS),
            by_number: HashMap::new(),
            next_number: first,
            events: VecDeque::new(),
        })
    }

    pub(super) fn wait_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }

    /// Connections that are being made.
    pub(super) fn half_open(&self) -> usize {
        self.conns.iter().filter(|(_, conn)| conn.state != State::Open).count()
    }

    /// Takes requests at this socket, as soon as somebody listens.
    pub(super) fn open(&mut self, socket: OwnedSocket) -> io::Result<()> {
        socket.listener().set_nonblocking(true)?;
        epoll::add(&self.epoll, socket.listener(), EventData::new_u64(LISTENER), EventFlags::IN)?;
        self.sockets.push(socket);
        Ok(())
    }

    /// Takes no more requests there; its file goes.
    pub(super) fn close(&mut self, path: &FilePath) {
        // A closed descriptor has left the epoll.
        self.sockets.retain(|socket| socket.path() != path);
    }

    /// Whether a connection came by the socket at `path`.
    pub(super) fn came_by(&self, conn: ConnId, path: &FilePath) -> bool {
        self.conns.get(conn.0).is_some_and(|conn| conn.by.as_deref() == Some(path))
    }

    pub(super) fn listen(&mut self, service: Service) -> Result<ListenerId, VerbsError> {
        if service != Service::Shm {
            return Err(VerbsError::Invalid("service: shared memory has one, and no numbers"));
        }
        self.listeners.insert(()).map(ListenerId).map_err(|()| VerbsError::Exhausted("listener"))
    }

    pub(super) fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError> {
        self.listeners.remove(listener.0).ok_or(VerbsError::NotFound("listener"))
    }

    pub(super) fn next_event(&mut self) -> Option<ConnEvent> {
        self.events.pop_front()
    }

    /// Whether something is to be done although nothing arrives: at once, or then.
    pub(super) fn deadline(&self) -> Time {
        if !self.events.is_empty() || self.hub.has_news() {
            return Time::ZERO;
        }
        self.conns.iter().map(|(_, conn)| conn.deadline).min().unwrap_or(Time::NEVER)
    }

    /// Whether [`look`](Self::look) is worth a system call before its time.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.hub.has_news()
    }

    /// Takes what has come; gives how much it was.
    pub(super) fn look(&mut self, now: Time) -> usize {
        let before = self.events.len();
        while let Some((number, notice)) = self.hub.hear() {
            self.on_notice(number, notice);
        }
        let mut ready = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut ready[..], Some(&at_once)).unwrap_or(0);
        for event in &ready[..count] {
            match event.data.u64() {
                HUB => {}
                LISTENER => self.accept_all(now),
                number => self.on_ready(now, number as u32),
            }
        }
        self.give_up_late(now);
        count + self.events.len() - before
    }

    fn on_notice(&mut self, number: u32, notice: Notice) {
        let Some(&key) = self.by_number.get(&number) else { return };
        match notice {
            Notice::Ready => self.events.push_back(ConnEvent::Established { conn: ConnId(key) }),
            Notice::Bye | Notice::Gone => self.end(key, ConnEnd::PeerDisconnected),
        }
    }

    fn give_up_late(&mut self, now: Time) {
        let late: Vec<Key> =
            self.conns.iter().filter(|(_, c)| c.deadline <= now).map(|(key, _)| key).collect();
        for key in late {
            self.end(key, ConnEnd::Timeout);
        }
    }

    fn accept_all(&mut self, now: Time) {
        for at in 0..self.sockets.len() {
            for _ in 0..ACCEPTS_A_TURN {
                match socket::accept(self.sockets[at].listener().as_fd()) {
                    Ok(Some(socket)) => {
                        let by = self.sockets[at].path().to_owned();
                        self.greet(now, socket, by);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(%error, "a connection cannot be accepted");
                        break;
                    }
                }
            }
        }
    }

    /// A process has connected.
    fn greet(&mut self, now: Time, socket: OwnedFd, by: PathBuf) {
        let peer = match socket::peer_of(&socket) {
            Ok(peer) => peer,
            Err(who) => return tracing::warn!("a connection is refused: {who}"),
        };
        let refuse = |reason| {
            let _ = socket::send(&socket, &Message::Reject { reason, private: &[] }, None);
        };
        if self.listeners.is_empty() {
            return refuse(INVALID_SERVICE);
        }
        let silent = self.conns.iter().filter(|(_, conn)| conn.state == State::Silent).count();
        if silent >= MAX_SILENT {
            return refuse(NO_RESOURCES);
        }
        // One that does not fit is hung up upon.
        if let Some(key) = self.insert(socket, peer, State::Silent, now + HELLO_WITHIN)
            && let Some(conn) = self.conns.get_mut(key)
        {
            conn.by = Some(by);
        }
    }

    fn insert(&mut self, socket: OwnedFd, peer: Process, state: State, deadline: Time) -> Option<Key> {
        let number = self.free_number();
        epoll::add(&self.epoll, &socket, EventData::new_u64(number.into()), EventFlags::IN).ok()?;
        let conn = Conn { number, socket: Arc::new(socket), peer, by: None, state, deadline };
        let key = self.conns.insert(conn).ok()?;
        self.by_number.insert(number, key);
        Some(key)
    }

    /// A number that no connection has.
    fn free_number(&mut self) -> u32 {
        loop {
            self.next_number = (self.next_number + 1) & 0xff_ffff;
            if self.next_number != 0 && !self.by_number.contains_key(&self.next_number) {
                return self.next_number;
            }
        }
    }

    fn conn(&self, conn: ConnId) -> Result<&Conn, VerbsError> {
        self.conns.get(conn.0).ok_or(VerbsError::NotFound("connection"))
    }

    /// Forgets a connection. The socket closes when its queue pair has let go of it, too.
    fn forget(&mut self, key: Key) -> Option<Conn> {
        let conn = self.conns.remove(key)?;
        self.by_number.remove(&conn.number);
        self.hub.unpark(conn.number);
        let _ = epoll::delete(&self.epoll, &*conn.socket);
        Some(conn)
    }

    fn end(&mut self, key: Key, why: ConnEnd) {
        let Some(conn) = self.forget(key) else { return };
        // Nobody has heard of one that never said what it wants.
        if conn.state != State::Silent {
            self.events.push_back(ConnEvent::Ended { conn: ConnId(key), why });
        }
    }

    /// The socket of a connection has something that is for us: the first message, or the hang-up.
    fn on_ready(&mut self, now: Time, number: u32) {
        let Some(&key) = self.by_number.get(&number) else { return };
        let Some(conn) = self.conns.get(key) else { return };
        let (state, socket, peer) = (conn.state, Arc::clone(&conn.socket), conn.peer);
        let mut bytes = [0; MAX_LEN];
        if matches!(state, State::Asked | State::Open) {
            return self.end(key, ConnEnd::PeerDisconnected);
        }
        let mut received = match socket::receive(&socket, &mut bytes) {
            Look::Nothing => return,
            Look::Gone => return self.end(key, ConnEnd::Timeout),
            Look::Message(received) => received,
        };
        match (state, Message::parse(&bytes[..received.len_bytes])) {
            (State::Silent, Ok(Message::Connect { guid, offer, private })) => {
                let Some(memfd) = received.descriptor else {
                    tracing::warn!(%peer, "a connection request without a shared segment");
                    return self.end(key, ConnEnd::Timeout);
                };
                match reactors::shared::adopt(memfd, SEGMENT_BYTES) {
                    Ok(segment) => {
                        let link = Link::new(number, Side::Passive, segment, socket, peer, now);
                        self.asked(now, key, link, (guid, offer), private);
                    }
                    Err(error) => {
                        tracing::warn!(%peer, "a connection request is not taken: {error}");
                        self.end(key, ConnEnd::Timeout);
                    }
                }
            }
            (State::Asking, Ok(Message::Accept { offer, private })) => {
                let reply = ConnReply {
                    qpn: Qpn::new(number),
                    starting_psn: offer.starting_psn,
                    responder_resources: offer.responder_resources,
                    initiator_depth: offer.initiator_depth,
                    rnr_retry: 7,
                };
                let private_data = PrivateData::new(private).unwrap_or(PrivateData::EMPTY);
                self.leave_to_owner(key, State::Open, Time::NEVER);
                self.events.push_back(ConnEvent::Reply {
                    conn: ConnId(key),
                    reply,
                    timeout_code: 0,
                    private_data,
                });
            }
            (State::Asking, Ok(Message::Reject { reason, private })) => {
                let private_data = PrivateData::new(private).unwrap_or(PrivateData::EMPTY);
                self.end(key, ConnEnd::Rejected { reason, private_data });
            }
            // The peer's queue pair may be ready before its consumer has accepted.
            (State::Asking, Ok(Message::Export(_) | Message::Revoke(_) | Message::Bell)) => {
                self.hub.with_parked(number, |link| link.on_message(&bytes, &mut received));
            }
            (_, wrong) => {
                let error = wrong.err();
                tracing::warn!(%peer, ?error, "a message that has no place here; the connection ends");
                self.end(key, ConnEnd::Timeout);
            }
        }
    }

    /// A peer asks for a connection, and all is well with its request.
    fn asked(&mut self, now: Time, key: Key, link: Link, (guid, offer): (u64, Offer), private: &[u8]) {
        let first = self.listeners.iter().next().map(|(key, _)| key);
        let (Some(listener), number) = (first, link.number) else {
            self.end(key, ConnEnd::Timeout);
            return;
        };
        let process = Some(link.peer);
        self.hub.park(Box::new(link));
        self.leave_to_owner(key, State::Asked, now + ANSWER_WITHIN);
        let request = ConnRequest {
            service: Service::Shm,
            path: Path::NONE,
            process,
            remote_guid: guid,
            remote_qpn: Qpn::new(number),
            send_psn: offer.starting_psn,
            path_mtu: PathMtu::B4096,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            timeout_code: 0,
            retry_count: 7,
            rnr_retry: 7,
        };
        let private_data = PrivateData::new(private).unwrap_or(PrivateData::EMPTY);
        self.events.push_back(ConnEvent::Request {
            conn: ConnId(key),
            listener: ListenerId(listener),
            request,
            private_data,
        });
    }

    /// From now on only the hang-up is for us; messages are for the owner of the queue pair.
    fn leave_to_owner(&mut self, key: Key, state: State, deadline: Time) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        (conn.state, conn.deadline) = (state, deadline);
        let data = EventData::new_u64(conn.number.into());
        if let Err(errno) = epoll::modify(&self.epoll, &*conn.socket, data, EventFlags::empty()) {
            tracing::error!(%errno, "a connection cannot be watched");
        }
    }

    pub(super) fn connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        let target = self.target.clone().ok_or(VerbsError::Invalid("no socket to connect to"))?;
        let failed =
            |why: String| VerbsError::System { what: format!("connect to {}", target.display()), why };
        let socket = socket::connect(&target).map_err(|error| failed(in_words(&error)))?;
        let peer = socket::peer_of(&socket).map_err(failed)?;
        let segment = reactors::shared::create("srpoll-rings", SEGMENT_BYTES)
            .map_err(|error| failed(format!("no shared memory: {error}")))?;
        let offer = Offer {
            qpn: attr.qpn,
            starting_psn: attr.starting_psn,
            responder_resources: attr.responder_resources,
            initiator_depth: attr.initiator_depth,
        };
        let private = attr.private_data.as_slice();
        socket::send(&socket, &Message::Connect { guid: self.guid, offer, private }, segment.memfd())
            .map_err(|error| failed(error.to_string()))?;
        let key = self
            .insert(socket, peer, State::Asking, now + ANSWER_WITHIN)
            .ok_or(VerbsError::Exhausted("connection"))?;
        let conn = &self.conns.get(key).expect("just made");
        let link = Link::new(conn.number, Side::Active, segment, Arc::clone(&conn.socket), peer, now);
        self.hub.park(Box::new(link));
        Ok(ConnId(key))
    }

    pub(super) fn accept(
        &mut self,
        conn: ConnId,
        reply: &ConnReply,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        let entry = self.conn(conn)?;
        check(entry.state == State::Asked, private)?;
        let offer = Offer {
            qpn: reply.qpn,
            starting_psn: reply.starting_psn,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
        };
        if socket::send(&entry.socket, &Message::Accept { offer, private }, None).is_err() {
            // It is gone; its hang-up is on the way to us as well, and ends the connection once.
            self.end(conn.0, ConnEnd::PeerDisconnected);
            return Ok(());
        }
        if let Some(entry) = self.conns.get_mut(conn.0) {
            (entry.state, entry.deadline) = (State::Open, Time::NEVER);
        }
        Ok(())
    }

    pub(super) fn reject(&mut self, conn: ConnId, reason: u16, private: &[u8]) -> Result<(), VerbsError> {
        check(self.conn(conn)?.state == State::Asked, private)?;
        if let Some(entry) = self.forget(conn.0) {
            let _ = socket::send(&entry.socket, &Message::Reject { reason, private }, None);
        }
        Ok(())
    }

    /// Active side: we are ready. Passive side: data have come, which says the same.
    pub(super) fn established(&mut self, conn: ConnId) -> Result<(), VerbsError> {
        let _ = socket::send(&self.conn(conn)?.socket, &Message::Ready, None);
        Ok(())
    }

    pub(super) fn disconnect(&mut self, conn: ConnId) -> Result<(), VerbsError> {
        let _ = socket::send(&self.conn(conn)?.socket, &Message::Bye, None);
        self.end(conn.0, ConnEnd::Disconnected);
        Ok(())
    }
}

fn check(in_state: bool, private: &[u8]) -> Result<(), VerbsError> {
    if !in_state {
        Err(VerbsError::Invalid("answer: that connection does not wait for one"))
    } else if private.len() > MAX_PRIVATE {
        Err(VerbsError::Invalid("private data too long"))
    } else {
        Ok(())
    }
}

/// Why a socket cannot be connected to, and what to do.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such socket; does srpoll serve --shm run?".to_owned(),
        io::ErrorKind::ConnectionRefused => {
            "nobody listens there; the srpoll that made this socket is gone".to_owned()
        }
        io::ErrorKind::PermissionDenied => "the socket is another user's".to_owned(),
        io::ErrorKind::WouldBlock => "too many others connect at the same time".to_owned(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) => {
            "that is a socket of another kind, such as --rpc makes".to_owned()
        }
        _ => error.to_string(),
    }
}
