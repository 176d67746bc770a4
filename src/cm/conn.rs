//! What is kept of one connection.

use std::net::IpAddr;
use std::time::Duration;

use reactors::time::Time;

use super::table::State;
use crate::rdma::verbs::Path;
use crate::wire::cm::CommId;
use crate::wire::mad::MAD_LEN;
use crate::wire::num::{Psn, Qpn};

/// Who the peer's queue pair is. A queue pair has one connection at a time, so two REQs with the
/// same key are duplicates, or the second one replaces the first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerKey {
    /// The address that the peer sends from; without it one host could end another's connection.
    pub(super) address: IpAddr,
    /// Interface of a link-local address, else 0.
    pub(super) scope_id: u32,
    pub(super) guid: u64,
    pub(super) qpn: Qpn,
}

impl PeerKey {
    /// The queue pair `qpn` of the adapter `guid` at the far end of `path`.
    pub(super) fn new(path: Path, guid: u64, qpn: Qpn) -> PeerKey {
        PeerKey { address: path.remote, scope_id: path.scope_id, guid, qpn }
    }
}

/// What tells one REQ of a queue pair from the next one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ReqMark {
    pub(super) remote_id: CommId,
    pub(super) psn: Psn,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    /// In canonical form.
    pub(super) path: Path,
    pub(super) local_id: CommId,
    /// Known from the peer's first message on.
    pub(super) remote_id: Option<CommId>,
    pub(super) tid: u64,
    /// Passive: known once accepted, 0 before.
    pub(super) local_qpn: Qpn,
    /// Known from the peer's first message on.
    pub(super) peer: Option<PeerKey>,
    /// Passive: the REQ.
    pub(super) req: Option<ReqMark>,
    /// Passive: the REQ that this one replaced; a late duplicate of it is not a new request.
    pub(super) replaced: Option<ReqMark>,
    /// What goes out again: by timer (REQ, REP, DREQ) or for a duplicate (REP, REJ).
    pub(super) sent: Option<Box<[u8; MAD_LEN]>>,
    pub(super) retries_left: u8,
    /// Passive: what the REQ allows.
    pub(super) max_retries: u8,
    /// Between two retries.
    pub(super) interval: Duration,
    /// When the timer runs out.
    pub(super) deadline: Time,
    /// In which order connections began.
    pub(super) born: u64,
}
