//! What all queue pairs of a device use: domains, memory regions, queues, events.

use std::collections::VecDeque;

use reactors::slab::Slab;

use super::counters::Counters;
use super::device::DeviceConfig;
use crate::rdma::engine::cq::{Cq, Pushed};
use crate::rdma::engine::mr::MrTable;
use crate::rdma::engine::srq::Srq;
use crate::rdma::verbs::{AsyncEvent, CqId, PdId, VerbsError, Wc};

/// Everything but the queue pairs.
pub(super) struct Tables {
    pub(super) rng: fastrand::Rng,
    pub(super) pds: Slab<()>,
    pub(super) mrs: MrTable,
    pub(super) cqs: Slab<Cq>,
    pub(super) srqs: Slab<Srq>,
    /// Grows beyond its start only if nobody polls.
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) counters: Counters,
    /// Completions that nobody has polled yet.
    pub(super) unpolled: usize,
    /// A completion queue has just run over.
    pub(super) overrun: bool,
}

impl Tables {
    pub(super) fn new(config: &DeviceConfig, rng: fastrand::Rng) -> Tables {
        Tables {
            rng,
            pds: Slab::new(config.max_pd as usize),
            mrs: MrTable::new(config.max_mr),
            cqs: Slab::new(config.max_cq as usize),
            srqs: Slab::new(config.max_srq as usize),
            events: VecDeque::with_capacity(2 * config.max_qp as usize + 16),
            counters: Counters::default(),
            unpolled: 0,
            overrun: false,
        }
    }

    pub(super) fn check_pd(&self, pd: PdId) -> Result<(), VerbsError> {
        self.pds.get(pd.0).copied().ok_or(VerbsError::NotFound("protection domain"))
    }

    /// Queues a completion.
    #[inline]
    pub(super) fn complete(&mut self, cq: CqId, wc: Wc) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        match queue.push(wc) {
            Pushed::Queued => self.unpolled += 1,
            Pushed::Lost => self.counters.completions_lost += 1,
            Pushed::Overrun => {
                self.counters.completions_lost += 1;
                self.events.push_back(AsyncEvent::CqOverrun(cq));
                self.overrun = true;
            }
        }
    }

    /// Whether a completion queue has run over.
    pub(super) fn is_dead(&self, cq: CqId) -> bool {
        self.cqs.get(cq.0).is_none_or(Cq::is_dead)
    }
}
