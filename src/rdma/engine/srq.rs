//! Receive queues: a queue pair's own, or shared with the one-shot limit event.

use std::collections::VecDeque;

use super::state::rules;
use crate::rdma::verbs::{PdId, QpState, RecvWr, VerbsError};

/// Posted receives, first in, first out.
pub(crate) struct RecvQueue {
    depth: usize,
    ring: VecDeque<RecvWr>,
}

impl RecvQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        RecvQueue { depth, ring: VecDeque::with_capacity(depth) }
    }

    #[inline]
    fn post(&mut self, wr: &RecvWr) -> Result<(), VerbsError> {
        if self.ring.len() == self.depth {
            return Err(VerbsError::QueueFull);
        }
        self.ring.push_back(*wr);
        Ok(())
    }

    /// Posts to the queue that a queue pair in `state` has of its own, if it has one; whether all of it is to
    /// be flushed at once.
    pub(crate) fn post_in(
        queue: Option<&mut RecvQueue>,
        state: QpState,
        wr: &RecvWr,
    ) -> Result<bool, VerbsError> {
        let rules = rules(state);
        if !rules.post_recv {
            return Err(VerbsError::State(state));
        }
        queue.ok_or(VerbsError::Invalid("the queue pair uses a shared receive queue"))?.post(wr)?;
        Ok(rules.flush)
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<RecvWr> {
        self.ring.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }
}

/// A shared receive queue: a pile, not a line. The order in which its receives are used is nobody's
/// concern (IBTA vol. 1, 10.2.9), and the one that was posted last lies in a cache, while a line as
/// long as a shard's would lead through all of its memory again and again. Its limit fires once when fewer receives are posted than it says, and
/// is zero until armed again (IBTA vol. 1, 10.2.9).
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    depth: usize,
    pile: Vec<RecvWr>,
    limit: usize,
}

impl Srq {
    pub(crate) fn new(pd: PdId, depth: u32) -> Self {
        let depth = depth as usize;
        Srq { pd, depth, pile: Vec::with_capacity(depth), limit: 0 }
    }

    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr) -> Result<(), VerbsError> {
        if self.pile.len() == self.depth {
            return Err(VerbsError::QueueFull);
        }
        self.pile.push(*wr);
        Ok(())
    }

    /// The next receive, and whether the limit fires.
    #[inline]
    pub(crate) fn take(&mut self) -> (Option<RecvWr>, bool) {
        let taken = self.pile.pop();
        (taken, self.limit_fires())
    }

    /// How many receives are posted.
    pub(crate) fn len(&self) -> usize {
        self.pile.len()
    }

    /// Arms the limit; says whether it fires at once.
    pub(crate) fn arm(&mut self, limit: u32) -> Result<bool, VerbsError> {
        if limit as usize > self.depth {
            return Err(VerbsError::Invalid("limit above the depth of the queue"));
        }
        self.limit = limit as usize;
        Ok(self.limit_fires())
    }

    fn limit_fires(&mut self) -> bool {
        let fires = self.pile.len() < self.limit;
        if fires {
            self.limit = 0;
        }
        fires
    }
}
