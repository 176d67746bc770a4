//! Completion queues: a ring of fixed depth that dies when it runs over.

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
    /// What has come. Who polls takes all of it nearly every time, and then the memory is used from its
    /// beginning again, which lies in a cache; a ring as long as the queue is deep would not.
    queue: Vec<Wc>,
    /// How much of it has been polled.
    taken: usize,
    overrun: bool,
}

impl Cq {
    pub(crate) fn new(depth: u32) -> Self {
        let depth = depth as usize;
        Cq { depth, queue: Vec::with_capacity(depth), taken: 0, overrun: false }
    }

    #[inline]
    pub(crate) fn push(&mut self, wc: Wc) -> Pushed {
        if self.overrun {
            return Pushed::Lost;
        }
        if self.queue.len() == self.depth {
            if self.taken == 0 {
                self.overrun = true;
                return Pushed::Overrun;
            }
            self.forget_taken();
        }
        self.queue.push(wc);
        Pushed::Queued
    }

    /// It has run over for reasons of its own.
    pub(crate) fn run_over(&mut self) {
        self.overrun = true;
    }

    /// How many completions wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() - self.taken
    }

    /// Takes out what a queue pair has left.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        self.forget_taken();
        self.queue.retain(|wc| wc.qpn != qpn);
    }

    /// Whether it has run over.
    pub(crate) fn is_dead(&self) -> bool {
        self.overrun
    }

    #[inline]
    pub(crate) fn poll(&mut self, into: &mut [Wc]) -> usize {
        let count = into.len().min(self.len());
        into[..count].copy_from_slice(&self.queue[self.taken..][..count]);
        self.taken += count;
        if self.taken == self.queue.len() {
            self.queue.clear();
            self.taken = 0;
        }
        count
    }

    #[cold]
    fn forget_taken(&mut self) {
        self.queue.drain(..self.taken);
        self.taken = 0;
    }
}
