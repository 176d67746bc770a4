//! A queue pair as the adapter has it.

use std::collections::VecDeque;

use reactors::time::Time;

use super::far::FarId;
use super::script::{Flush, Script};
use crate::rdma::verbs::{Path, QpId, QpInit, QpState, RecvWr, SendWr, Sge, WcStatus};
use crate::wire::num::Qpn;

/// A queue pair in one of its lives: what was to happen to an earlier one happens no more.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct QpRef {
    pub(super) shard: usize,
    pub(super) id: QpId,
    pub(super) life: u32,
}

/// A work request that has no completion yet.
pub(super) struct Posted {
    pub(super) number: u64,
    pub(super) wr: SendWr,
}

pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) init: QpInit,
    pub(super) state: QpState,
    pub(super) life: u32,
    /// The path of its first connection, as rxe keeps it.
    pub(super) way: Option<Path>,
    pub(super) far: Option<FarId>,
    pub(super) script: Script,
    /// From when on it can send and receive.
    pub(super) ready_at: Time,
    pub(super) posted: VecDeque<Posted>,
    /// Number of the next work request of this life.
    pub(super) next: u64,
    /// When the last of the posted ones completes, or is flushed.
    pub(super) busy_until: Time,
    /// How many have been flushed, or will be.
    pub(super) flushes: u64,
    /// Its work has met a peer that does not answer.
    pub(super) stalled: bool,
    /// The next one fails so.
    pub(super) fail_next: Option<WcStatus>,
    /// Receives taken from the SRQ whose completion has not come.
    pub(super) taken: Vec<RecvWr>,
    pub(super) heard: Time,
    /// The peer's first message has been told.
    pub(super) established: bool,
    pub(super) retiring: bool,
    pub(super) failures: u32,
}

impl Qp {
    pub(super) fn new(qpn: Qpn, init: QpInit) -> Self {
        Qp {
            qpn,
            init,
            state: QpState::Reset,
            life: 0,
            way: None,
            far: None,
            script: Script::soft(),
            ready_at: Time::ZERO,
            posted: VecDeque::new(),
            next: 0,
            busy_until: Time::ZERO,
            flushes: 0,
            stalled: false,
            fail_next: None,
            taken: Vec::new(),
            heard: Time::ZERO,
            established: false,
            retiring: false,
            failures: 0,
        }
    }

    /// Wiped: another life begins, in RESET.
    pub(super) fn wipe(&mut self) {
        let (life, failures, way) = (self.life + 1, self.failures, self.way);
        *self = Qp { life, failures, way, ..Qp::new(self.qpn, self.init) };
    }

    /// Whether a work request that may still be carried out names a byte of this memory. One that is
    /// flushed in any order is not: else no completion would prove anything about those before it.
    pub(super) fn names(&self, from: u64, to: u64) -> bool {
        self.posted_pieces().any(|sge| sge.addr < to && from < sge.addr + u64::from(sge.len_bytes))
    }

    /// The memory of such work requests.
    pub(super) fn posted_pieces(&self) -> impl Iterator<Item = &Sge> {
        let over = self.state == QpState::Err && matches!(self.script.flush, Flush::AnyOrder { .. });
        let posted = self.posted.iter().filter(move |_| !over);
        posted.flat_map(|posted| posted.wr.sges.as_slice())
    }
}
