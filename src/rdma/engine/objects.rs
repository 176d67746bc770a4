//! What queue pairs stand on: protection domains, memory regions, completion and shared receive queues,
//! and the events of all of them. Providers without packets have them, too.

use std::collections::VecDeque;

use reactors::slab::Slab;

use super::config::Sizes;
use super::cq::{Cq, Pushed};
use super::mr::MrTable;
use super::srq::Srq;
use crate::rdma::verbs::{AsyncEvent, CqId, PdId, QpInit, SrqId, VerbsError, Wc};

const NO_CQ: VerbsError = VerbsError::NotFound("completion queue");
const NO_SRQ: VerbsError = VerbsError::NotFound("shared receive queue");

/// Everything of a device that is not a queue pair.
pub(crate) struct Objects {
    /// Gives keys and numbers.
    pub(crate) rng: fastrand::Rng,
    pds: Slab<()>,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    /// Grows beyond its start only if nobody polls.
    pub(crate) events: VecDeque<AsyncEvent>,
    /// A completion queue has just run over.
    pub(crate) overrun: bool,
}

impl Objects {
    pub(crate) fn new(most: &Sizes, rng: fastrand::Rng) -> Objects {
        Objects {
            rng,
            pds: Slab::new(most.max_pd as usize),
            mrs: MrTable::new(most.max_mr),
            cqs: Slab::new(most.max_cq as usize),
            srqs: Slab::new(most.max_srq as usize),
            events: VecDeque::with_capacity(2 * most.max_qp as usize + 16),
            overrun: false,
        }
    }

    pub(crate) fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.pds.insert(()).map(PdId).map_err(|()| VerbsError::Exhausted("protection domain"))
    }

    pub(crate) fn check_pd(&self, pd: PdId) -> Result<(), VerbsError> {
        self.pds.get(pd.0).copied().ok_or(VerbsError::NotFound("protection domain"))
    }

    /// A new completion queue of 1 to `most` entries.
    pub(crate) fn create_cq(&mut self, depth: u32, most: u32) -> Result<CqId, VerbsError> {
        if depth == 0 || depth > most {
            return Err(VerbsError::Invalid("depth of the completion queue"));
        }
        self.cqs.insert(Cq::new(depth)).map(CqId).map_err(|_| VerbsError::Exhausted("completion queue"))
    }

    /// A new shared receive queue of 1 to `most` receives.
    pub(crate) fn create_srq(&mut self, pd: PdId, depth: u32, most: u32) -> Result<SrqId, VerbsError> {
        self.check_pd(pd)?;
        if depth == 0 || depth > most {
            return Err(VerbsError::Invalid("depth of the shared receive queue"));
        }
        let made = self.srqs.insert(Srq::new(pd, depth));
        made.map(SrqId).map_err(|_| VerbsError::Exhausted("shared receive queue"))
    }

    /// Ends a completion queue that none of these queue pairs uses.
    pub(crate) fn destroy_cq<'a>(
        &mut self,
        cq: CqId,
        mut users: impl Iterator<Item = &'a QpInit>,
    ) -> Result<Cq, VerbsError> {
        if users.any(|init| init.send_cq == cq || init.recv_cq == cq) {
            return Err(VerbsError::Busy("completion queue"));
        }
        self.cqs.remove(cq.0).ok_or(NO_CQ)
    }

    /// Ends a shared receive queue that none of these queue pairs uses, with what is posted there.
    pub(crate) fn destroy_srq<'a>(
        &mut self,
        srq: SrqId,
        mut users: impl Iterator<Item = &'a QpInit>,
    ) -> Result<(), VerbsError> {
        if users.any(|init| init.srq == Some(srq)) {
            return Err(VerbsError::Busy("shared receive queue"));
        }
        self.srqs.remove(srq.0).map(drop).ok_or(NO_SRQ)
    }

    /// How many receives lie in a shared receive queue; an unknown one has none.
    pub(crate) fn posted_srq_recvs(&self, srq: SrqId) -> u32 {
        self.srqs.get(srq.0).map_or(0, |srq| srq.len() as u32)
    }

    /// The queue that receives are posted to.
    pub(crate) fn srq(&mut self, srq: SrqId) -> Result<&mut Srq, VerbsError> {
        self.srqs.get_mut(srq.0).ok_or(NO_SRQ)
    }

    /// Arms the limit event.
    pub(crate) fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        if self.srq(srq)?.arm(limit)? {
            self.events.push_back(AsyncEvent::SrqLimit(srq));
        }
        Ok(())
    }

    /// Whether what a queue pair is to stand on is there.
    pub(crate) fn check(&self, init: &QpInit) -> Result<(), VerbsError> {
        self.check_pd(init.pd)?;
        for cq in [init.send_cq, init.recv_cq] {
            self.cqs.get(cq.0).ok_or(NO_CQ)?;
        }
        match init.srq {
            Some(srq) => self.srqs.get(srq.0).map(drop).ok_or(NO_SRQ),
            None => Ok(()),
        }
    }

    /// Queues a completion; what became of it, if there is such a queue.
    #[inline]
    pub(crate) fn complete(&mut self, cq: CqId, wc: Wc) -> Option<Pushed> {
        let pushed = self.cqs.get_mut(cq.0)?.push(wc);
        if pushed == Pushed::Overrun {
            self.events.push_back(AsyncEvent::CqOverrun(cq));
            self.overrun = true;
        }
        Some(pushed)
    }

    /// Whether a completion queue has run over or is gone.
    pub(crate) fn is_dead(&self, cq: CqId) -> bool {
        self.cqs.get(cq.0).is_none_or(Cq::is_dead)
    }
}
