//! The verbs interface: what every RDMA provider offers to one shard.
//!
//! A [`Device`] value is one shard's context on an RDMA device: its queue pairs, memory regions,
//! completion queues, shared receive queues. It belongs to one thread and is driven by
//! [`Device::progress`]. Connection management ([`Connections`]) works on the shard that owns the
//! listener (shard 0). Words and rules are those of the InfiniBand Architecture Specification,
//! volume 1 (chapters 9 to 11), as libibverbs spells them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use reactors::memory::{PAGE_BYTES, Region};
use reactors::slab::Key;
use reactors::time::Time;

use crate::wire::num::{LKey, Psn, Qpn, RKey};

/// Most scatter-gather entries of one work request.
pub const MAX_SGE: usize = 2;
/// Most private data that any connection message carries to a consumer, in bytes (CM REP).
pub const MAX_PRIVATE_BYTES: usize = 224;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub Key);
    };
}

pub mod connections;

pub use connections::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ConnRequest, ConnectAttr, Connections, Farewell, ListenerId,
    PrivateData, Service, TIME_WAIT,
};

id!(
    /// A protection domain of one device.
    PdId
);
id!(
    /// A completion queue of one device.
    CqId
);
id!(
    /// A shared receive queue of one device.
    SrqId
);
id!(
    /// A queue pair of one device. A stale id is an error of the call, never another QP.
    QpId
);

/// What a device can do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeviceCaps {
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most posted receives of a shared receive queue.
    pub max_srq_wr: u32,
    /// Most send work requests of a queue pair.
    pub max_send_wr: u32,
    /// Most RDMA READs that a queue pair answers at a time.
    pub max_rd_atomic: u8,
    /// Longest message in bytes.
    pub max_message_bytes: u32,
    /// Whether `LastWqeReached` comes; if not, waiting for it is useless.
    pub last_wqe_event: bool,
    /// What [`Device::retire_qp`] can make of a queue pair.
    pub recycling: Recycling,
}

/// Whether a queue pair can be used for a second connection, and under which number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Recycling {
    /// It cannot: [`Retire::Recycle`] is refused as invalid, only [`Retire::Destroy`] is left.
    Never,
    /// It keeps its number. Late packets of its old connection may still come, so it has to rest
    /// for [`TIME_WAIT`] before it is connected again (IBTA vol. 1, 12.9.8.4). It may have kept more: rdma_rxe
    /// looks a route up once in the life of a queue pair, whose RESET does not forget it (Linux 6.1 and 6.12,
    /// rxe_net.c, `rxe_find_route`), and what it sends to another peer gets lost. So it is
    /// connected over the same path again, or not at all.
    SameNumber,
    /// It gets another number, and the old one rests without it: it can be connected at once.
    NewNumber,
}

/// What may be done to a memory region besides reading it locally.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Access {
    /// The device may write it for local work requests.
    pub local_write: bool,
    /// A peer may RDMA WRITE it.
    pub remote_write: bool,
    /// A peer may RDMA READ it.
    pub remote_read: bool,
}

impl Access {
    /// For memory that is sent from, and that the device writes nothing to.
    pub const SOURCE: Access = Access { local_write: false, remote_write: false, remote_read: false };
    /// For receive buffers and targets of our own RDMA READs.
    pub const LOCAL: Access = Access { local_write: true, remote_write: false, remote_read: false };
    /// For memory that a peer reads and writes.
    pub const REMOTE: Access = Access { local_write: true, remote_write: true, remote_read: true };
}

/// The keys of a registered memory region.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// For our own work requests.
    pub lkey: LKey,
    /// For the peer.
    pub rkey: RKey,
}

/// A piece of local memory in a work request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Virtual address of the first byte, as [`Region::addr`] counts.
    pub addr: u64,
    /// Length in bytes.
    pub len_bytes: u32,
    /// The region's local key.
    pub lkey: LKey,
}

/// Up to [`MAX_SGE`] pieces of local memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct SgeList {
    entries: [Sge; MAX_SGE],
    used: u8,
}

impl SgeList {
    /// No memory: a zero-length operation.
    pub const EMPTY: SgeList =
        SgeList { entries: [Sge { addr: 0, len_bytes: 0, lkey: LKey(0) }; MAX_SGE], used: 0 };

    /// One piece.
    pub fn one(sge: Sge) -> Self {
        let mut list = Self::EMPTY;
        list.entries[0] = sge;
        list.used = 1;
        list
    }

    /// Two pieces, sent one after the other.
    pub fn two(first: Sge, second: Sge) -> Self {
        SgeList { entries: [first, second], used: 2 }
    }

    /// The pieces.
    pub fn as_slice(&self) -> &[Sge] {
        &self.entries[..usize::from(self.used)]
    }

    /// The sum of the lengths, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.as_slice().iter().map(|sge| u64::from(sge.len_bytes)).sum()
    }
}

/// Memory of the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Remote {
    /// Virtual address in the peer's region.
    pub addr: u64,
    /// The peer's key of it.
    pub rkey: RKey,
}

/// What a send work request does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND to the peer's receive queue. `solicited` asks for an event there.
    Send {
        /// Sets the solicited event bit.
        solicited: bool,
    },
    /// RDMA WRITE to the peer's memory; zero length needs no key.
    Write(Remote),
    /// RDMA READ from the peer's memory.
    Read(Remote),
}

impl SendOp {
    /// What its completion says that it was.
    #[inline]
    pub const fn opcode(&self) -> WcOpcode {
        match self {
            SendOp::Send { .. } => WcOpcode::Send,
            SendOp::Write(_) => WcOpcode::Write,
            SendOp::Read(_) => WcOpcode::Read,
        }
    }
}

/// A request for the send queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// From where (SEND, WRITE) or to where (READ).
    pub sges: SgeList,
    /// Whether success makes a completion; failure always does.
    pub signaled: bool,
}

/// A request for a receive queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where an incoming SEND goes.
    pub sge: Sge,
}

/// How a work request ended (IBTA vol. 1, 11.6.2; libibverbs' `ibv_wc_status`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// Done.
    Success,
    /// A local piece of memory was too short for the data.
    LocalLength,
    /// A failure inside the QP.
    LocalQpOperation,
    /// A local key or bound was wrong.
    LocalProtection,
    /// The QP was in the error state: flushed.
    WrFlush,
    /// The peer sent what does not fit.
    BadResponse,
    /// The peer found the request malformed.
    RemoteInvalidRequest,
    /// The peer's key, bound or access right was wrong.
    RemoteAccess,
    /// The peer failed to do it.
    RemoteOperation,
    /// The peer did not acknowledge within all retries.
    RetryExceeded,
    /// The peer had no receive posted for all retries.
    RnrRetryExceeded,
}

/// What kind of work request completed. Valid only with [`WcStatus::Success`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// A SEND of ours.
    Send,
    /// An RDMA WRITE of ours.
    Write,
    /// An RDMA READ of ours.
    Read,
    /// A receive took a SEND of the peer.
    Recv,
}

/// A work completion.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Of which work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was; valid only on success.
    pub opcode: WcOpcode,
    /// Bytes received; valid only for a successful receive.
    pub len_bytes: u32,
    /// On which QP.
    pub qpn: Qpn,
}

/// States of a queue pair (IBTA vol. 1, 10.3.1). SQE does not exist for RC.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// New or wiped.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue draining.
    Sqd,
    /// Error: everything flushes.
    Err,
}

/// What a queue pair is made of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// The shared receive queue, or `None` for a queue of its own.
    pub srq: Option<SrqId>,
    /// Most posted sends.
    pub max_send_wr: u32,
    /// Most posted receives; without an SRQ only.
    pub max_recv_wr: u32,
    /// Whether peers may RDMA READ or WRITE through this QP at all.
    pub remote_access: bool,
}

/// Path MTU of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1,024 bytes.
    B1024 = 3,
    /// 2,048 bytes.
    B2048 = 4,
    /// 4,096 bytes.
    B4096 = 5,
}

impl PathMtu {
    /// The MTU of an IBTA code 1..=5.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => PathMtu::B256,
            2 => PathMtu::B512,
            3 => PathMtu::B1024,
            4 => PathMtu::B2048,
            5 => PathMtu::B4096,
            _ => return None,
        })
    }

    /// The IBTA code, 1..=5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload bytes of a packet.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }
}

/// Where the peer of a QP is reached: the two addresses of the path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Our address (the source GID).
    pub local: IpAddr,
    /// The peer's address (the destination GID).
    pub remote: IpAddr,
    /// For a link-local IPv6 address: its interface index; else 0.
    pub scope_id: u32,
}

impl Path {
    /// No addresses: the path of a provider that has none (shared memory).
    pub const NONE: Path = Path {
        local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        remote: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        scope_id: 0,
    };
}

/// A process of this host, as the kernel names it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Its id, in our namespace; 0 if it has none there.
    pub pid: u32,
    /// The user that it runs as.
    pub uid: u32,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} uid {}", self.pid, self.uid)
    }
}

/// Who is at the other end of a connection, as far as it can be believed: for logs and access lists.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// Whoever sends from this address.
    Address(IpAddr),
    /// A process of this host.
    Process(Process),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::Process(process) => process.fmt(f),
        }
    }
}

/// INIT -> RTR: what it takes to receive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The path to the peer.
    pub path: Path,
    /// Payload bytes of a packet.
    pub path_mtu: PathMtu,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// The first PSN that the peer sends: the starting PSN that *we* named to it.
    pub rq_psn: Psn,
    /// Most RDMA READs that the peer may have in flight at us.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code that we name, 0..=31.
    pub min_rnr_timer: u8,
}

/// RTR -> RTS: what it takes to send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// Our first PSN: the starting PSN that the *peer* named to us.
    pub sq_psn: Psn,
    /// Local ACK timeout code: 4.096 us * 2^code; 0 means never.
    pub timeout_code: u8,
    /// Retries after timeouts and sequence errors, 0..=7; 7 means 7 unless `retry_forever`.
    pub retry_count: u8,
    /// Take `retry_count` 7 as rxe does: for ever.
    pub retry_forever: bool,
    /// Retries after RNR NAK, 0..=7; 7 means for ever.
    pub rnr_retry: u8,
    /// Most RDMA READs that we may have in flight at the peer.
    pub max_rd_atomic: u8,
}

/// A state change of a queue pair; every edge that is not in the table is an error.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum QpModify {
    /// Any -> RESET: wipes both queues without completions.
    Reset,
    /// RESET -> INIT.
    Init,
    /// INIT -> RTR.
    Rtr(RtrAttr),
    /// RTR -> RTS.
    Rts(RtsAttr),
    /// RTS -> SQD; `notify` raises `SqDrained` when what was in flight has ended.
    Drain {
        /// Raise the event.
        notify: bool,
    },
    /// SQD -> RTS.
    Resume,
    /// Any but RESET -> ERR: flushes. Idempotent, and done when the call returns.
    Err,
}

/// Why a verb was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// The id or key names nothing (any more).
    #[error("no such {0}")]
    NotFound(&'static str),
    /// No room for one more.
    #[error("no room for another {0}")]
    Exhausted(&'static str),
    /// The QP's state does not allow it.
    #[error("not allowed for a queue pair in state {0:?}")]
    State(QpState),
    /// An attribute is out of range.
    #[error("bad attribute: {0}")]
    Invalid(&'static str),
    /// The queue has no room; try again after completions.
    #[error("the queue is full")]
    QueueFull,
    /// Still in use by something else.
    #[error("{0} still in use")]
    Busy(&'static str),
    /// The operating system refused.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said, and what to do.
        why: String,
    },
}

/// What becomes of a queue pair whose connection is over.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Retire {
    /// It goes to RESET and to INIT, to be connected again.
    Recycle,
    /// It goes for good.
    Destroy,
}

/// What became of a queue pair that was retired.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Retired {
    /// It is in INIT under the same id; [`Device::qpn`] tells its number, which may be another.
    Recycled,
    /// It is gone; its id names nothing any more.
    Destroyed,
    /// The device did not let go of it: it is of no use, and memory that its work requests name
    /// may still be touched. It may be retired once more.
    Failed,
}

/// Something that happened to a resource by itself (IBTA vol. 1, 11.6.3), or the answer to a verb
/// that takes its time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The first packet came to a QP in RTR: the peer is up although its RTU has not come.
    CommEstablished(QpId),
    /// SQD: what was in flight has ended.
    SqDrained(QpId),
    /// ERR with an SRQ: no more receives are taken for this QP. A hint: bound the wait.
    LastWqeReached(QpId),
    /// Fewer receives are posted than the armed limit; the limit is disarmed.
    SrqLimit(SrqId),
    /// Failure of a QP that belongs to no work request.
    QpFatal(QpId),
    /// The peer sent a malformed request.
    QpRequestError(QpId),
    /// The peer's request had a wrong key or bound.
    QpAccessError(QpId),
    /// A completion queue ran over; its completions are lost.
    CqOverrun(CqId),
    /// The port came up or went down.
    PortState {
        /// Whether it is up.
        up: bool,
    },
    /// The device is gone.
    DeviceFatal,
    /// The answer to [`Device::retire_qp`]. No other event of the queue pair's old life follows.
    QpRetired {
        /// Which; a stale id if it was destroyed.
        qp: QpId,
        /// How it ended.
        outcome: Retired,
    },
}

/// One shard's context on an RDMA device.
///
/// No call blocks. Where the verb behind it does (an adapter's driver waits for its firmware), the
/// provider hands it to a thread of its own, in the order of the calls, and answers by an event. This
/// concerns the way of a queue pair:
///
/// * [`create_qp`](Self::create_qp) answers at once. A provider may take the queue pair from a stock
///   that its thread keeps filled, and be [exhausted](VerbsError::Exhausted) while that is empty.
/// * [`modify_qp`](Self::modify_qp) to RTR and RTS may return before it is done; what fails later is
///   [`AsyncEvent::QpFatal`], and until RTS the send queue may be [full](VerbsError::QueueFull). A
///   connection that is accepted afterwards hears so after these moves.
/// * `modify_qp` to ERR is done when it returns, whatever else is under way: a reactor that has seen
///   a queue pair die may not go on serving it.
/// * [`retire_qp`](Self::retire_qp) is answered by [`AsyncEvent::QpRetired`].
pub trait Device {
    /// What it can do.
    fn caps(&self) -> DeviceCaps;

    /// A new protection domain.
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError>;
    /// Memory of `len_bytes` or a little more that can be registered for `access`. A device whose peers
    /// map what they reach can register no other memory for them.
    fn allocate(&mut self, len_bytes: usize, access: Access) -> Result<Region, VerbsError> {
        let _ = access;
        Ok(Region::heap(len_bytes.max(1).next_multiple_of(PAGE_BYTES)))
    }
    /// Whether memory that is registered is locked, so that all of it is taken, at once.
    fn pins_memory(&self) -> bool {
        false
    }
    /// Registers all of `region`; the device keeps it alive until `deregister`.
    fn register(&mut self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError>;
    /// Ends a registration: from now on both keys are unknown.
    fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError>;
    /// A new completion queue of `depth` entries.
    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError>;
    /// Ends a completion queue.
    ///
    /// # Errors
    /// `Busy` while a queue pair completes there.
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError>;
    /// A new shared receive queue of `depth` entries.
    fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId, VerbsError>;
    /// Ends a shared receive queue; what is posted there ends without completions, and its memory is
    /// not touched any more. It may block: no queue pair is served while a queue has none.
    ///
    /// # Errors
    /// `Busy` while a queue pair receives there.
    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError>;
    /// How many receives are posted to a shared receive queue and not taken; `None` if the device
    /// cannot say.
    fn posted_srq_recvs(&self, srq: SrqId) -> Option<u32>;
    /// Arms the limit event: fires once when fewer than `limit` receives are posted; 0 disarms.
    fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError>;
    /// A new queue pair in RESET with a random, unused QPN.
    fn create_qp(&mut self, init: &QpInit) -> Result<QpId, VerbsError>;
    /// The number of a QP.
    fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError>;
    /// The state of a QP.
    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError>;
    /// Moves a QP along one edge of the state table.
    fn modify_qp(&mut self, now: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError>;
    /// Gives a QP back, in any state, to be used again or to go. What it had posted ends without
    /// completions; those that lie in a completion queue already may still come out, until
    /// [`AsyncEvent::QpRetired`] and after it. From that event on nothing that it had posted touches
    /// memory. Its number rests for the time wait, with it or without it ([`DeviceCaps::recycling`]).
    ///
    /// # Errors
    /// `Busy` while an earlier retirement is under way, `Invalid` for what the device cannot do.
    fn retire_qp(&mut self, now: Time, qp: QpId, how: Retire) -> Result<(), VerbsError>;
    /// Ends a QP in any state and waits for it: for who made it and has not connected it yet, for
    /// tests, and for the end of the process. On a reactor at work it is [`retire_qp`](Self::retire_qp).
    fn destroy_qp(&mut self, now: Time, qp: QpId) -> Result<(), VerbsError>;

    /// Posts to the send queue. In ERR it is taken and flushed.
    fn post_send(&mut self, now: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError>;
    /// Says that the peer has answered a SEND, so that it must have arrived, and all before it: as good as an
    /// ACK. A provider that makes use of it completes that SEND silently; no other need.
    fn confirm_send(&mut self, _now: Time, _qp: QpId, _wr_id: u64) {}
    /// Posts to a QP's own receive queue.
    fn post_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), VerbsError>;
    /// Posts to a shared receive queue.
    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), VerbsError>;
    /// Takes up to `into.len()` completions off a queue; gives how many.
    fn poll_cq(&mut self, cq: CqId, into: &mut [Wc]) -> usize;
    /// The next asynchronous event.
    fn poll_event(&mut self) -> Option<AsyncEvent>;
    /// When the peer of a connected QP last proved to be alive (a packet of it was accepted).
    fn last_heard(&self, qp: QpId) -> Result<Time, VerbsError>;

    /// Moves packets and timers: receives what has come, sends what is due. Gives the number of
    /// packets (or other events) handled: zero means idle.
    fn progress(&mut self, now: Time) -> usize;
    /// When `progress` has something to do although nothing arrives.
    fn next_deadline(&self) -> Time;
    /// Descriptors that become readable when something arrives, for sleeping reactors.
    fn wait_fds(&self) -> Vec<std::os::fd::RawFd>;
}
