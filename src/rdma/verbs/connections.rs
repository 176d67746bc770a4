//! The connection management part of the verbs interface: what rdma_cm and the IB CM offer.

use std::net::IpAddr;
use std::time::Duration;

use super::{MAX_PRIVATE_BYTES, Path, PathMtu, Peer, Process, VerbsError};
use crate::wire::cm::CommId;
use crate::wire::num::{Psn, Qpn};
use reactors::slab::Key;
use reactors::time::Time;

id!(
    /// A connection known to the connection manager, from its request to the end of its time wait.
    ConnId
);
id!(
    /// A service that accepts connections.
    ListenerId
);

/// The service that a listener or a connection is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// RDMA-CM, port space TCP: an IP port; the REQ has the RDMA-CM header.
    RdmaCm {
        /// The service port.
        port: u16,
    },
    /// Plain IB-CM: a 64-bit service id; private data begin at once.
    IbCm {
        /// The service id.
        service_id: u64,
    },
    /// Shared memory: the one service behind a socket; private data begin at once.
    Shm,
}

/// Opaque bytes of the consumer in a connection message.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; MAX_PRIVATE_BYTES],
    len: u8,
}

impl PrivateData {
    /// No bytes.
    pub const EMPTY: PrivateData = PrivateData { bytes: [0; MAX_PRIVATE_BYTES], len: 0 };

    /// A copy of `bytes`; `None` if they are more than [`MAX_PRIVATE_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.len = bytes.len() as u8;
        Some(data)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateData({} bytes)", self.len)
    }
}

/// What a peer's connection request says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConnRequest {
    /// Which service it wants.
    pub service: Service,
    /// The addresses: ours, as it addressed us, and the UDP source of the request.
    pub path: Path,
    /// The peer's process, where peers are processes and have no addresses.
    pub process: Option<Process>,
    /// GUID of the peer's channel adapter.
    pub remote_guid: u64,
    /// The peer's QP.
    pub remote_qpn: Qpn,
    /// The PSN with which *we* shall start sending.
    pub send_psn: Psn,
    /// Path MTU asked for.
    pub path_mtu: PathMtu,
    /// RDMA READs that the peer answers at a time: our `max_rd_atomic` at most.
    pub responder_resources: u8,
    /// RDMA READs that the peer wants in flight at us.
    pub initiator_depth: u8,
    /// Local ACK timeout code for our QP.
    pub timeout_code: u8,
    /// Retry count for our QP.
    pub retry_count: u8,
    /// RNR retry count for our QP.
    pub rnr_retry: u8,
}

impl ConnRequest {
    /// Who asks.
    pub fn peer(&self) -> Peer {
        self.process.map_or(Peer::Address(self.path.remote), Peer::Process)
    }
}

/// What we answer to a connection request, or what the peer answered to ours.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConnReply {
    /// The QP of the answering side.
    pub qpn: Qpn,
    /// The PSN with which the side that is *answered to* shall start sending.
    pub starting_psn: Psn,
    /// RDMA READs that the answering side answers at a time.
    pub responder_resources: u8,
    /// RDMA READs that the answering side will have in flight.
    pub initiator_depth: u8,
    /// RNR retry count for the QP of the side that is answered to.
    pub rnr_retry: u8,
}

/// How we ask for a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConnectAttr {
    /// Which service at the peer.
    pub service: Service,
    /// The addresses.
    pub path: Path,
    /// Our QP, in INIT.
    pub qpn: Qpn,
    /// The PSN with which the *peer* shall start sending.
    pub starting_psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// RDMA READs that we answer at a time.
    pub responder_resources: u8,
    /// RDMA READs that we will have in flight.
    pub initiator_depth: u8,
    /// Retry count for the peer's QP.
    pub retry_count: u8,
    /// RNR retry count for the peer's QP.
    pub rnr_retry: u8,
    /// Consumer's bytes; at most 56 with RDMA-CM, 92 with IB-CM.
    pub private_data: PrivateData,
}

/// Why a connection ended or never came to be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ConnEnd {
    /// The peer sent a REJ with this reason (IBTA table 107; 28 = consumer defined).
    Rejected {
        /// The reason code.
        reason: u16,
        /// The consumer's bytes.
        private_data: PrivateData,
    },
    /// The peer did not answer within all retries.
    Timeout,
    /// The peer sent a DREQ.
    PeerDisconnected,
    /// Our DREQ was answered or ran out of retries.
    Disconnected,
    /// A new request came from the same GUID and QPN: the peer has forgotten this connection.
    Replaced,
}

/// What the connection manager tells its consumer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    /// A peer asks; answer with `accept` or `reject`.
    Request {
        /// The new connection.
        conn: ConnId,
        /// The listener that took it.
        listener: ListenerId,
        /// What it says.
        request: ConnRequest,
        /// The consumer's bytes (without the RDMA-CM header).
        private_data: PrivateData,
    },
    /// The peer accepted our request: move the QP to RTS, then call `established`.
    Reply {
        /// The connection.
        conn: ConnId,
        /// What it says.
        reply: ConnReply,
        /// Local ACK timeout code for our QP.
        timeout_code: u8,
        /// The consumer's bytes.
        private_data: PrivateData,
    },
    /// The peer's RTU came: the passive side is established.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is over, its QP is to be drained. Comes once.
    Ended {
        /// The connection.
        conn: ConnId,
        /// Why.
        why: ConnEnd,
    },
}

/// All that it takes to end a connection which nobody here has any more: a process that is killed leaves
/// these to the one that takes its place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The addresses.
    pub path: Path,
    /// The communication id by which we named the connection.
    pub local_id: CommId,
    /// The one by which the peer did.
    pub remote_id: CommId,
    /// Our QP.
    pub local_qpn: Qpn,
    /// The peer's QP.
    pub remote_qpn: Qpn,
}

/// How long a connection's numbers rest after its end, at least (time wait).
pub const TIME_WAIT: Duration = Duration::from_millis(600);

/// Connection management of the addresses of a device.
pub trait Connections {
    /// Accepts requests for `service` on `local` (every address of the device if `None`).
    fn listen(&mut self, local: Option<IpAddr>, service: Service) -> Result<ListenerId, VerbsError>;
    /// Ends a listener; its connections stay.
    fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError>;
    /// Asks a peer for a connection.
    fn connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError>;
    /// Answers a request; `established` or an end follows as event.
    fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        reply: &ConnReply,
        private: &[u8],
    ) -> Result<(), VerbsError>;
    /// Refuses a request with a REJ reason and up to 148 bytes for the peer's consumer.
    fn reject(&mut self, now: Time, conn: ConnId, reason: u16, private: &[u8]) -> Result<(), VerbsError>;
    /// Active side: the QP is ready, send RTU. Passive side: data came before the RTU.
    fn established(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError>;
    /// Tells the peer by DREQ, through all retries; `Ended` follows.
    fn disconnect(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError>;
    /// What would end this connection if we were gone. `None` if it is over or was not answered, and
    /// where the connection manager is not ours.
    fn farewell_of(&mut self, conn: ConnId) -> Option<Farewell> {
        let _ = conn;
        None
    }
    /// Tells the peer of a connection that was another process's that it is over: by DREQ, through all
    /// retries. Where the connection manager is not ours it is an error: that one has told already.
    fn say_farewell(&mut self, now: Time, farewell: &Farewell) -> Result<(), VerbsError> {
        let _ = (now, farewell);
        Err(VerbsError::Invalid("this connection manager ends nobody else's connections"))
    }
    /// The next event.
    fn poll_conn(&mut self) -> Option<ConnEvent>;
}
