//! Receive queues: a queue pair's own, or shared with the one-shot limit event.

use std::collections::VecDeque;

use crate::rdma::verbs::{PdId, RecvWr, VerbsError};

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
    pub(crate) fn post(&mut self, wr: &RecvWr) -> Result<(), VerbsError> {
        if self.ring.len() == self.depth {
            return Err(VerbsError::QueueFull);
        }
        self.ring.push_back(*wr);
        Ok(())
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<RecvWr> {
        self.ring.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }
}

/// A shared receive queue. Its limit fires once when fewer receives are posted than it says, and
/// is zero until armed again (IBTA vol. 1, 10.2.9).
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    queue: RecvQueue,
    limit: usize,
}

impl Srq {
    pub(crate) fn new(pd: PdId, depth: u32) -> Self {
        Srq { pd, queue: RecvQueue::new(depth), limit: 0 }
    }

    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr) -> Result<(), VerbsError> {
        self.queue.post(wr)
    }

    /// The next receive, and whether the limit fires.
    #[inline]
    pub(crate) fn take(&mut self) -> (Option<RecvWr>, bool) {
        let taken = self.queue.take();
        (taken, self.limit_fires())
    }

    /// How many receives are posted.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Arms the limit; says whether it fires at once.
    pub(crate) fn arm(&mut self, limit: u32) -> Result<bool, VerbsError> {
        if limit as usize > self.queue.depth {
            return Err(VerbsError::Invalid("limit above the depth of the queue"));
        }
        self.limit = limit as usize;
        Ok(self.limit_fires())
    }

    fn limit_fires(&mut self) -> bool {
        let fires = self.queue.len() < self.limit;
        if fires {
            self.limit = 0;
        }
        fires
    }
}
