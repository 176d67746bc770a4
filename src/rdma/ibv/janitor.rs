//! The janitor: one thread for all shards that does what may block, and reads what comes unasked.
//!
//! It owns every connection id, so that ids are made, used and destroyed in one order, and reads
//! the events of device and connections and sends each to the shard that it is about. Shards give it
//! jobs on an unbounded queue; what can be in it is bounded by their queue pairs and connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys::rdma_cm_event_type as kind;
use reactors::handle::{Handle, MAX_SLOT};
use reactors::slab::Key;
use rustix::event::{PollFd, PollFlags, poll};

use super::bell::Bell;
use super::cm::{Attributes, Event, EventChannel, Id, Params};
use super::conn::{Do, Input, Phase, Why};
use super::convert::{self, EventKind};
use super::sys::{Attr, Context, Mr, Qp, QpParts};
use crate::rdma::verbs::{
    AsyncEvent, ConnEnd, ConnEvent, ConnId, ConnReply, ConnRequest, ConnectAttr, CqId, ListenerId, Path,
    PrivateData, QpId, QpState, Retire, Retired, Service, SrqId,
};
use crate::wire::num::{Psn, Qpn};

/// What the janitor is asked to do.
pub(super) enum Job {
    /// Keep a listener.
    Listen(u64, Id),
    /// End a listener.
    Unlisten(u64),
    /// Ask a peer for a connection.
    Connect(u64, Box<ConnectAttr>),
    /// Go on with a connection.
    Conn(u64, Wish),
    /// Recycle or destroy a queue pair, and say so to its shard.
    Retire {
        /// Its shard.
        shard: usize,
        /// Its id there.
        id: QpId,
        /// It.
        qp: Qp,
        /// The attributes of RESET -> INIT.
        init: Box<Attr>,
        /// Which.
        how: Retire,
    },
    /// Make a queue pair for a shard's stock.
    Make {
        /// The shard.
        shard: usize,
        /// Of what.
        parts: Box<QpParts>,
    },
    /// End a registration.
    Deregister(Mr),
}

/// What a consumer wants of a connection.
pub(super) enum Wish {
    /// Accept it.
    Accept(ConnReply, PrivateData),
    /// Refuse it.
    Refuse(PrivateData),
    /// Our queue pair is ready.
    Ready,
    /// End it.
    Disconnect,
}

/// What a shard hears.
pub(super) enum News {
    /// Of the device.
    Async(AsyncEvent),
    /// Of a connection; to shard 0.
    Conn(ConnEvent),
    /// A queue pair that was retired, with it if it is still there.
    Retired(QpId, Option<Qp>, Retired),
    /// A queue pair for the stock; none if it could not be made.
    Made(Box<QpParts>, Option<Qp>),
}

/// The way to one shard.
pub(super) struct Post {
    pub(super) to: Sender<News>,
    pub(super) bell: Arc<Bell>,
}

impl Post {
    fn send(&self, news: News) {
        // A shard that is gone hears nothing.
        let _ = self.to.send(news);
        self.bell.ring();
    }
}

/// What shards and janitor share of connections: their numbers, and the way of each to its peer.
#[derive(Default)]
pub(super) struct Book {
    next: AtomicU64,
    /// By the peer's queue pair and address. Taken at logins only.
    ways: Mutex<HashMap<(Qpn, IpAddr), (u64, Attributes)>>,
}

impl Book {
    /// A number that no other connection or listener has.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The way to a peer.
    pub(super) fn way(&self, qpn: Qpn, address: IpAddr) -> Option<Attributes> {
        self.lock().get(&(qpn, address)).map(|(_, attributes)| attributes.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(Qpn, IpAddr), (u64, Attributes)>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of a connection or listener by its number.
pub(super) fn key_of(number: u64) -> Key {
    let slots = u64::from(MAX_SLOT) + 1;
    Key { slot: (number % slots) as u32, generation: (number / slots) as u32 }
}

/// The number of a connection or listener.
pub(super) fn number_of(key: Key) -> u64 {
    u64::from(key.generation) * (u64::from(MAX_SLOT) + 1) + u64::from(key.slot)
}

/// A connection.
struct Conn {
    id: Id,
    phase: Phase,
    /// What we ask for, if we ask.
    asks: Option<Box<ConnectAttr>>,
    /// Where its attributes are in the book.
    way: Option<(Qpn, IpAddr)>,
}

/// The janitor's state.
pub(super) struct Janitor {
    pub(super) context: Arc<Context>,
    pub(super) channel: Arc<EventChannel>,
    pub(super) port: u8,
    pub(super) jobs: Receiver<Job>,
    pub(super) bell: Arc<Bell>,
    pub(super) shards: Vec<Post>,
    pub(super) book: Arc<Book>,
    state: State,
}

#[derive(Default)]
struct State {
    listeners: HashMap<u64, Id>,
    conns: HashMap<u64, Conn>,
    /// The device is gone, and everybody knows.
    gone: bool,
}

impl Janitor {
    pub(super) fn new(
        context: Arc<Context>,
        port: u8,
        channel: Arc<EventChannel>,
        jobs: Receiver<Job>,
        bell: Arc<Bell>,
        shards: Vec<Post>,
        book: Arc<Book>,
    ) -> Janitor {
        Janitor { context, channel, port, jobs, bell, shards, book, state: State::default() }
    }

    /// Works until no shard is left.
    pub(super) fn run(mut self) {
        loop {
            let ready = {
                let (device, cm) = (self.context.event_fd(), self.channel.fd());
                let mut fds = [
                    PollFd::new(&*self.bell, PollFlags::IN),
                    PollFd::new(&cm, PollFlags::IN),
                    // A device that is gone is readable for ever.
                    PollFd::new(&device, if self.state.gone { PollFlags::empty() } else { PollFlags::IN }),
                ];
                poll(&mut fds, None)
            };
            if let Err(errno) = ready
                && errno != rustix::io::Errno::INTR
            {
                tracing::error!(%errno, "the janitor of the RDMA device cannot wait, and ends");
                return;
            }
            self.bell.answer();
            loop {
                match self.jobs.try_recv() {
                    Ok(job) => self.job(job),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.connection_events();
            self.device_events();
        }
    }

    fn job(&mut self, job: Job) {
        match job {
            Job::Listen(number, id) => {
                self.state.listeners.insert(number, id);
            }
            Job::Unlisten(number) => {
                self.state.listeners.remove(&number);
            }
            Job::Connect(number, attr) => self.ask(number, attr),
            Job::Conn(number, wish) => self.wish(number, wish),
            Job::Retire { shard, id, qp, init, how } => {
                let news = retire(id, qp, &init, how);
                self.shards[shard].send(news);
            }
            Job::Make { shard, parts } => {
                let qp = Qp::new(&parts);
                if let Err(error) = &qp {
                    tracing::debug!(shard, %error, "no queue pair for the stock");
                }
                self.shards[shard].send(News::Made(parts, qp.ok()));
            }
            Job::Deregister(mr) => drop(mr),
        }
    }

    // --- connections

    fn ask(&mut self, number: u64, attr: Box<ConnectAttr>) {
        let from = SocketAddr::new(attr.path.local, 0);
        let Service::RdmaCm { port } = attr.service else {
            return self.tell(ended(number, ConnEnd::Timeout));
        };
        let mut to = SocketAddr::new(attr.path.remote, port);
        if let SocketAddr::V6(v6) = &mut to {
            v6.set_scope_id(attr.path.scope_id);
        }
        let id = Id::new(&self.channel, number).and_then(|id| id.resolve_address(from, to).map(|()| id));
        match id {
            Ok(id) => {
                let conn = Conn { id, phase: Phase::Resolving, asks: Some(attr), way: None };
                self.state.conns.insert(number, conn);
            }
            Err(error) => {
                tracing::warn!(%to, %error, "cannot look for the way to a target");
                self.tell(ended(number, ConnEnd::Timeout));
            }
        }
    }

    fn wish(&mut self, number: u64, wish: Wish) {
        let input = match &wish {
            Wish::Accept(..) => Input::Accept,
            Wish::Refuse(_) => Input::Refuse,
            Wish::Ready => Input::Ready,
            Wish::Disconnect => Input::Disconnect,
        };
        let Some(does) = self.advance(number, input) else { return };
        let Some(conn) = self.state.conns.get(&number) else { return };
        let done = match (does, &wish) {
            (Do::Accept, Wish::Accept(reply, private)) => {
                let params = Params {
                    qpn: reply.qpn.get(),
                    responder_resources: reply.responder_resources,
                    initiator_depth: reply.initiator_depth,
                    retry_count: 7,
                    rnr_retry: reply.rnr_retry,
                };
                conn.id.accept(&params, true, private.as_slice())
            }
            (Do::Refuse, Wish::Refuse(private)) => {
                if let Err(error) = conn.id.reject(private.as_slice()) {
                    tracing::debug!(%error, "a refusal could not be sent");
                }
                return self.forget(number);
            }
            (Do::Establish, _) => conn.id.establish(),
            (Do::SendDreq, _) => conn.id.disconnect(),
            (other, _) => return self.act(number, other, None),
        };
        if let Err(error) = done {
            tracing::debug!(?does, %error, "the connection manager refuses, the connection is over");
            let why = if does == Do::SendDreq { Why::Disconnected } else { Why::Timeout };
            self.act(number, Do::End(why), None);
        }
    }

    fn connection_events(&mut self) {
        loop {
            match self.channel.next() {
                Ok(Some(event)) => self.connection_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the connection manager's events cannot be read");
                    return;
                }
            }
        }
    }

    fn connection_event(&mut self, mut event: Event) {
        tracing::debug!(kind = event.kind, status = event.status, token = event.token, "connection event");
        if let Some(asker) = event.asker.take() {
            return self.request(asker, &event);
        }
        let input = match event.kind {
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => Input::AddressResolved,
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => Input::RouteResolved,
            kind::RDMA_CM_EVENT_CONNECT_RESPONSE => Input::Response,
            kind::RDMA_CM_EVENT_ESTABLISHED => Input::Established,
            kind::RDMA_CM_EVENT_REJECTED => Input::Rejected,
            kind::RDMA_CM_EVENT_ADDR_ERROR
            | kind::RDMA_CM_EVENT_ROUTE_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE => Input::Failed,
            kind::RDMA_CM_EVENT_DISCONNECTED => Input::Disconnected,
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => return self.device_is_gone(),
            // Time wait and changes of addresses concern nobody: ids go before, connections stay.
            _ => return,
        };
        if let Some(does) = self.advance(event.token, input) {
            self.act(event.token, does, Some(&event));
        }
    }

    /// Moves a connection along; none if there is no such connection or nothing to do.
    fn advance(&mut self, number: u64, input: Input) -> Option<Do> {
        let conn = self.state.conns.get_mut(&number)?;
        let (next, does) = conn.phase.next(input);
        conn.phase = next;
        (does != Do::Nothing).then_some(does)
    }

    fn act(&mut self, number: u64, does: Do, event: Option<&Event>) {
        let Some(conn) = self.state.conns.get_mut(&number) else { return };
        let done = match does {
            Do::ResolveRoute => conn.id.resolve_route(),
            Do::Connect => {
                let Some(asks) = &conn.asks else { return };
                let params = Params {
                    qpn: asks.qpn.get(),
                    responder_resources: asks.responder_resources,
                    initiator_depth: asks.initiator_depth,
                    retry_count: asks.retry_count,
                    rnr_retry: asks.rnr_retry,
                };
                conn.id.connect(&params, false, asks.private_data.as_slice())
            }
            Do::TellReply => match (conn.id.attributes(), event) {
                (Ok(attributes), Some(event)) => {
                    let (reply, timeout_code) = (reply(event, &attributes), attributes.rts.timeout);
                    // By the address that the consumer knows the peer by.
                    let remote = conn.asks.as_ref().map(|asks| asks.path.remote.to_canonical());
                    let way = remote.map(|remote| (reply.qpn, remote));
                    conn.way = way;
                    if let Some(way) = way {
                        self.book.lock().insert(way, (number, attributes));
                    }
                    self.tell(ConnEvent::Reply {
                        conn: ConnId(key_of(number)),
                        reply,
                        timeout_code,
                        private_data: event.private,
                    });
                    Ok(())
                }
                (Err(error), _) => Err(error),
                (_, None) => Ok(()),
            },
            Do::TellEstablished => {
                self.tell(ConnEvent::Established { conn: ConnId(key_of(number)) });
                Ok(())
            }
            Do::AnswerDreq => {
                // Sends the DREP; if the connection is past that, nothing is owed.
                let _ = conn.id.disconnect();
                return self.end(number, ConnEnd::PeerDisconnected);
            }
            Do::End(why) => {
                let why = match (why, event) {
                    (Why::Rejected, Some(event)) => ConnEnd::Rejected {
                        reason: u16::try_from(event.status).unwrap_or_default(),
                        private_data: event.private,
                    },
                    (Why::Rejected | Why::Timeout, _) => ConnEnd::Timeout,
                    (Why::Disconnected, _) => ConnEnd::Disconnected,
                    (Why::Removed, _) => ConnEnd::PeerDisconnected,
                };
                return self.end(number, why);
            }
            Do::Nothing | Do::Accept | Do::Refuse | Do::Establish | Do::SendDreq => Ok(()),
        };
        if let Err(error) = done {
            tracing::warn!(?does, %error, "a connection cannot be made");
            self.end(number, ConnEnd::Timeout);
        }
    }

    fn request(&mut self, mut id: Id, event: &Event) {
        let known = id.ends().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable));
        let known = known.and_then(|ends| id.attributes().map(|attributes| (ends, attributes)));
        let (ends, attributes) = match known {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "a connection request without a way back is refused");
                let _ = id.reject(&[]);
                return;
            }
        };
        let number = self.book.number();
        id.set_token(number);
        let scope_id = match ends.remote {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let path = Path { local: ends.local.ip(), remote: ends.remote.ip(), scope_id };
        let request = request(event, &attributes, path, ends.local.port());
        let way = (request.remote_qpn, path.remote);
        self.book.lock().insert(way, (number, attributes));
        let conn = Conn { id, phase: Phase::Requested, asks: None, way: Some(way) };
        self.state.conns.insert(number, conn);
        self.tell(ConnEvent::Request {
            conn: ConnId(key_of(number)),
            listener: ListenerId(key_of(event.token)),
            request,
            private_data: event.private,
        });
    }

    fn end(&mut self, number: u64, why: ConnEnd) {
        self.forget(number);
        self.tell(ended(number, why));
    }

    /// The id goes, and its way unless a later connection has it.
    fn forget(&mut self, number: u64) {
        let Some(conn) = self.state.conns.remove(&number) else { return };
        if let Some(way) = conn.way {
            let mut ways = self.book.lock();
            if ways.get(&way).is_some_and(|(owner, _)| *owner == number) {
                ways.remove(&way);
            }
        }
    }

    /// Connections are shard 0's.
    fn tell(&self, event: ConnEvent) {
        if let Some(shard) = self.shards.first() {
            shard.send(News::Conn(event));
        }
    }

    // --- the device

    fn device_events(&mut self) {
        while !self.state.gone {
            match self.context.next_event() {
                Ok(Some((number, about))) => self.device_event(number, about),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "the RDMA device's events cannot be read");
                    self.device_is_gone();
                }
            }
        }
    }

    fn device_event(&mut self, number: u32, about: u64) {
        let event = match convert::event_kind(number) {
            EventKind::DeviceFatal => return self.device_is_gone(),
            EventKind::Port { up } => {
                // One line for the device: shard 0 says it.
                if about == u64::from(self.port)
                    && let Some(shard) = self.shards.first()
                {
                    shard.send(News::Async(AsyncEvent::PortState { up }));
                }
                return;
            }
            kind => sort(kind, Handle::from_bits(about)),
        };
        if let Some((shard, event)) = event
            && let Some(post) = self.shards.get(shard)
        {
            post.send(News::Async(event));
        }
    }

    /// Ends all connections and listeners, as the kernel waits for, and tells every shard.
    fn device_is_gone(&mut self) {
        if std::mem::replace(&mut self.state.gone, true) {
            return;
        }
        let numbers: Vec<u64> = self.state.conns.keys().copied().collect();
        for number in numbers {
            if let Some(does) = self.advance(number, Input::Removed) {
                self.act(number, does, None);
            }
        }
        self.state.listeners.clear();
        for shard in &self.shards {
            shard.send(News::Async(AsyncEvent::DeviceFatal));
        }
    }
}

/// Which shard an event is for, and the event. The handle was given when the object was made: its kind
/// is the shard.
fn sort(kind: EventKind, handle: Handle) -> Option<(usize, AsyncEvent)> {
    let key = Key::from(handle);
    let event = match kind {
        EventKind::CqError => AsyncEvent::CqOverrun(CqId(key)),
        EventKind::QpFatal => AsyncEvent::QpFatal(QpId(key)),
        EventKind::QpRequestError => AsyncEvent::QpRequestError(QpId(key)),
        EventKind::QpAccessError => AsyncEvent::QpAccessError(QpId(key)),
        EventKind::CommEstablished => AsyncEvent::CommEstablished(QpId(key)),
        EventKind::SqDrained => AsyncEvent::SqDrained(QpId(key)),
        EventKind::LastWqeReached => AsyncEvent::LastWqeReached(QpId(key)),
        EventKind::SrqLimit => AsyncEvent::SrqLimit(SrqId(key)),
        // No receive completes any more: all that stands on it fails, as with the device.
        EventKind::SrqError => AsyncEvent::DeviceFatal,
        EventKind::Port { .. } | EventKind::DeviceFatal | EventKind::Other => return None,
    };
    Some((usize::from(handle.kind()), event))
}

fn retire(id: QpId, qp: Qp, init: &Attr, how: Retire) -> News {
    let recycled = match how {
        Retire::Recycle => qp
            .set_state(QpState::Reset)
            .and_then(|()| qp.modify(init, super::probe::INIT_MASK))
            .inspect_err(|error| tracing::warn!(qpn = %qp.qpn(), %error, "a queue pair cannot be recycled"))
            .is_ok(),
        Retire::Destroy => false,
    };
    if recycled {
        return News::Retired(id, Some(qp), Retired::Recycled);
    }
    match qp.destroy() {
        Ok(()) => News::Retired(id, None, Retired::Destroyed),
        Err((qp, error)) => {
            tracing::warn!(qpn = %qp.qpn(), %error, "the device does not let go of a queue pair");
            News::Retired(id, Some(qp), Retired::Failed)
        }
    }
}

fn ended(number: u64, why: ConnEnd) -> ConnEvent {
    ConnEvent::Ended { conn: ConnId(key_of(number)), why }
}

/// A peer's request. What the library does not tell of the REQ is taken from what the kernel would
/// give our queue pair.
fn request(event: &Event, attributes: &Attributes, path: Path, port: u16) -> ConnRequest {
    ConnRequest {
        service: Service::RdmaCm { port },
        path,
        process: None,
        remote_guid: attributes.rtr.peer_interface_id(),
        remote_qpn: Qpn::new(event.params.qpn),
        send_psn: Psn::new(attributes.rts.sq_psn),
        path_mtu: convert::path_mtu(attributes.rtr.path_mtu),
        // The library has turned both round: they are ours there, the peer's here.
        responder_resources: event.params.initiator_depth,
        initiator_depth: event.params.responder_resources,
        timeout_code: attributes.rts.timeout,
        retry_count: event.params.retry_count,
        rnr_retry: event.params.rnr_retry,
    }
}

/// A peer's reply.
fn reply(event: &Event, attributes: &Attributes) -> ConnReply {
    ConnReply {
        qpn: Qpn::new(event.params.qpn),
        starting_psn: Psn::new(attributes.rts.sq_psn),
        responder_resources: event.params.initiator_depth,
        initiator_depth: event.params.responder_resources,
        rnr_retry: event.params.rnr_retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_keys_go_there_and_back() {
        for number in [1, 77, u64::from(MAX_SLOT), u64::from(MAX_SLOT) + 1, 1 << 40] {
            assert_eq!(number_of(key_of(number)), number);
        }
        assert_ne!(key_of(5), key_of(5 + u64::from(MAX_SLOT) + 1));
    }

    #[test]
    fn events_find_their_shard_and_object() {
        let handle = Handle::new(3, 17, 9);
        let key = Key { slot: 17, generation: 9 };
        assert_eq!(sort(EventKind::QpFatal, handle), Some((3, AsyncEvent::QpFatal(QpId(key)))));
        assert_eq!(sort(EventKind::LastWqeReached, handle), Some((3, AsyncEvent::LastWqeReached(QpId(key)))));
        assert_eq!(sort(EventKind::CqError, handle), Some((3, AsyncEvent::CqOverrun(CqId(key)))));
        assert_eq!(sort(EventKind::SrqLimit, handle), Some((3, AsyncEvent::SrqLimit(SrqId(key)))));
        assert_eq!(sort(EventKind::SrqError, handle), Some((3, AsyncEvent::DeviceFatal)));
        assert_eq!(sort(EventKind::Other, handle), None);
    }
}
