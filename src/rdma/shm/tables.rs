//! What all queue pairs of a device use: the objects that they stand on, and counters.

use super::counters::Counters;
use super::device::DeviceConfig;
use crate::rdma::engine::cq::Pushed;
use crate::rdma::engine::objects::Objects;
use crate::rdma::verbs::{CqId, Wc};

/// Everything but the queue pairs.
pub(super) struct Tables {
    pub(super) objects: Objects,
    pub(super) counters: Counters,
    /// Completions that nobody has polled yet.
    pub(super) unpolled: usize,
}

impl Tables {
    pub(super) fn new(config: &DeviceConfig, rng: fastrand::Rng) -> Tables {
        Tables { objects: Objects::new(&config.sizes, rng), counters: Counters::default(), unpolled: 0 }
    }

    /// Queues a completion.
    #[inline]
    pub(super) fn complete(&mut self, cq: CqId, wc: Wc) {
        match self.objects.complete(cq, wc) {
            Some(Pushed::Queued) => self.unpolled += 1,
            Some(Pushed::Lost | Pushed::Overrun) => self.counters.completions_lost += 1,
            None => {}
        }
    }
}
