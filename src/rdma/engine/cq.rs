//! Completion queues: a ring of fixed depth that dies when it runs over.

use std::collections::VecDeque;

use crate::rdma::verbs::Wc;
use crate::wire::num::Qpn;

/// What became of a pushed completion.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Queued,
    /// The queue just ran over.
    Overrun,
    /// It had run over before.
    Lost,
}

/// A completion queue. One that has run over takes nothing any more (as in rdmavt); what it held
/// can still be polled.
pub(crate) struct Cq {
    depth: usize,
    ring: VecDeque<Wc>,
    overrun: bool,
}

impl Cq {
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Cq { depth, ring: VecDeque::with_capacity(depth), overrun: false }
    }

    #[inline]
    pub(crate) fn push(&mut self, wc: Wc) -> Pushed {
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

    /// It has run over for reasons of its own.
    pub(crate) fn run_over(&mut self) {
        self.overrun = true;
    }

    /// How many completions wait.
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Takes out what a queue pair has left.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.ring.retain(|wc| wc.qpn != qpn);
    }

    /// Whether it has run over.
    pub(crate) fn is_dead(&self) -> bool {
        self.overrun
    }

    #[inline]
    pub(crate) fn poll(&mut self, into: &mut [Wc]) -> usize {
        let taken = into.len().min(self.ring.len());
        for (place, wc) in into.iter_mut().zip(self.ring.drain(..taken)) {
            *place = wc;
        }
        taken
    }
}
