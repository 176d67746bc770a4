//! Completion queues: a ring of fixed depth that dies when it runs over.

use std::collections::VecDeque;

use crate::rdma::verbs::Wc;

/// What became of a pushed completion.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Queued,
    /// The queue just ran over.
    Overrun,
    /// It had run over before.
    Lost,
}

/// A completion queue. One that has run over takes nothing any more (as in rdmavt); what it held
/// can still be polled.
pub(super) struct Cq {
    depth: usize,
    ring: VecDeque<Wc>,
    overrun: bool,
}

impl Cq {
    pub(super) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Cq { depth, ring: VecDeque::with_capacity(depth), overrun: false }
    }

    #[inline]
    pub(super) fn push(&mut self, wc: Wc) -> Pushed {
        if self.overrun {
            return Pushed::Lost;
        }
        if self.ring.len() == self.depth {
            self.overrun = true;
            return Pushed::Overrun;
        }
        self.ring.push_back(wc);
        Pushed::Queued
    }

    /// Whether it has run over.
    pub(super) fn is_dead(&self) -> bool {
        self.overrun
    }

    #[inline]
    pub(super) fn poll(&mut self, into: &mut [Wc]) -> usize {
        let taken = into.len().min(self.ring.len());
        for (place, wc) in into.iter_mut().zip(self.ring.drain(..taken)) {
            *place = wc;
        }
        taken
    }
}
