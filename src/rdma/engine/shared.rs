//! What all queue pairs of an engine use: tables, queues of work, counters.

use std::collections::VecDeque;

use reactors::time::Time;

use super::config::EngineConfig;
use super::counters::Counters;
use super::cq::Pushed;
use super::objects::Objects;
use super::timers::Timers;
use super::transmit::Ready;
use crate::rdma::verbs::{CqId, Wc};

/// READ data on the way to all queue pairs together.
pub(super) struct ReadBudget {
    pub(super) limit_bytes: u64,
    used_bytes: u64,
    /// Slots of queue pairs that wait, first come first served.
    pub(super) waiting: VecDeque<u32>,
    /// Something was given back since the waiting ones were last looked at.
    pub(super) freed: bool,
}

impl ReadBudget {
    /// Takes `bytes` if they fit, or if nothing at all is on the way.
    #[inline]
    pub(super) fn take(&mut self, bytes: u32) -> bool {
        let fits = self.used_bytes == 0 || self.used_bytes + u64::from(bytes) <= self.limit_bytes;
        if fits {
            self.used_bytes += u64::from(bytes);
        }
        fits
    }

    #[inline]
    pub(super) fn give_back(&mut self, bytes: u32) {
        self.used_bytes -= u64::from(bytes);
        self.freed = true;
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

/// Everything but the queue pairs.
pub(super) struct Shared {
    pub(super) config: EngineConfig,
    pub(super) objects: Objects,
    pub(super) counters: Counters,
    pub(super) timers: Timers,
    /// Who has something to send.
    pub(super) ready: Ready,
    /// Slots of queue pairs that have something to answer when the batch ends.
    pub(super) replies: Vec<u32>,
    /// Slots of queue pairs that took packets which asked for no ACK.
    pub(super) owing: Vec<u32>,
    /// When they send one; never if there are none.
    pub(super) owing_until: Time,
    /// Slots of queue pairs in ERR whose send queue is to be flushed.
    pub(super) flushes: Vec<u32>,
    pub(super) read_budget: ReadBudget,
}

impl Shared {
    pub(super) fn new(config: EngineConfig, rng: fastrand::Rng) -> Self {
        let qps = config.sizes.max_qp as usize;
        Shared {
            objects: Objects::new(&config.sizes, rng),
            counters: Counters::default(),
            timers: Timers::new(config.sizes.max_qp),
            ready: Ready::new(qps),
            replies: Vec::with_capacity(qps),
            owing: Vec::with_capacity(qps),
            owing_until: Time::NEVER,
            flushes: Vec::with_capacity(qps),
            read_budget: ReadBudget {
                limit_bytes: config.read_budget_bytes,
                used_bytes: 0,
                waiting: VecDeque::with_capacity(qps),
                freed: false,
            },
            config,
        }
    }

    /// Queues a completion.
    #[inline]
    pub(super) fn complete(&mut self, cq: CqId, wc: Wc) {
        if let Some(Pushed::Lost | Pushed::Overrun) = self.objects.complete(cq, wc) {
            self.counters.completions_lost += 1;
        }
    }

    /// Takes a slot out of all queues of work.
    pub(super) fn forget(&mut self, slot: u32) {
        self.ready.forget(slot);
        self.replies.retain(|other| *other != slot);
        self.owing.retain(|other| *other != slot);
        self.flushes.retain(|other| *other != slot);
        self.read_budget.waiting.retain(|other| *other != slot);
        self.timers.remove(slot);
    }
}
