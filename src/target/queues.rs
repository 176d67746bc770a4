//! The completion queue and the receive queue of a shard: whether they still hold what they should.
//!
//! A device that drops a queue pair in the middle of a message may keep the receive that it had taken
//! for it, and say nothing: the receive queue grows shorter with every such death. While queue pairs
//! live nobody can tell a slot in use from a lost one. When the last one is gone and the completion
//! queue is empty, every slot that is posted by our books must lie in the device's queue. If not, or
//! if the device cannot say and something ended in disorder, the queues are made anew and all slots
//! are posted again. The same heals a completion queue that ran over.

use reactors::time::Time;

use super::fabric::Fabric;
use super::limits::LAST_WQE_WAIT;
use super::shard::Shard;
use crate::rdma::verbs::{CqId, SrqId, VerbsError};

/// What is known against the queues.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    /// Nothing.
    None,
    /// Queue pairs have ended since the receives were last counted.
    Uncounted,
    /// One of them ended in disorder, or the device says that receives are scarce.
    Disorder,
    /// Receives are missing.
    Deficit,
    /// The completion queue ran over: nobody can be served with it.
    Overrun,
}

/// The queues of one shard.
pub(super) struct Queues {
    /// Where all work completes.
    pub(super) cq: CqId,
    /// Where all channels receive.
    pub(super) srq: SrqId,
    cq_depth: u32,
    doubt: Doubt,
    device_gone: bool,
    /// How often the completion queue was polled empty.
    pub(super) empties: u64,
    /// The same when the last queue pair was seen to be gone, and when that was.
    at_rest: Option<(u64, Time)>,
}

impl Queues {
    pub(super) fn new(cq: CqId, cq_depth: u32, srq: SrqId) -> Queues {
        Queues { cq, srq, cq_depth, doubt: Doubt::None, device_gone: false, empties: 0, at_rest: None }
    }

    /// Why no channel can be made on them now, if none can.
    pub(super) fn unfit(&self) -> Option<&'static str> {
        match self.doubt {
            _ if self.device_gone => Some("its RDMA device is gone"),
            Doubt::Overrun => {
                Some("its completion queue ran over and is made anew as soon as all channels are gone")
            }
            _ => None,
        }
    }

    /// Whether they are to be looked at.
    pub(super) fn are_in_doubt(&self) -> bool {
        self.doubt != Doubt::None && !self.device_gone
    }

    /// The device is gone, and everything on it.
    pub(super) fn device_is_gone(&mut self) {
        self.device_gone = true;
    }

    /// A queue pair has ended; `in_order`: drained in time.
    pub(super) fn one_ended(&mut self, in_order: bool) {
        self.doubt = self.doubt.max(if in_order { Doubt::Uncounted } else { Doubt::Disorder });
    }

    /// The device says that receives are scarce.
    pub(super) fn receives_are_scarce(&mut self) {
        self.doubt = self.doubt.max(Doubt::Disorder);
    }

    /// The completion queue ran over: from now on its completions are lost.
    pub(super) fn ran_over(&mut self) {
        self.doubt = Doubt::Overrun;
    }
}

impl<F: Fabric> Shard<F> {
    /// Counts the receives once the last queue pair is gone, and makes the queues anew if that is
    /// what it takes.
    pub(super) fn settle_queues(&mut self, now: Time) {
        let queues = &mut self.queues;
        let in_use = !self.channels.is_empty() || !self.retirements.is_empty();
        if !queues.are_in_doubt() || in_use {
            queues.at_rest = None;
            return;
        }
        // What the last ones have completed is taken first, and what comes late is waited for.
        let (empties, since) = *queues.at_rest.get_or_insert((queues.empties, now));
        let quiet = queues.empties > empties && now.since(since) >= LAST_WQE_WAIT;
        if !quiet && queues.doubt != Doubt::Overrun {
            return;
        }
        if queues.doubt < Doubt::Deficit {
            let posted = self.slots.counts().posted;
            let there = self.fabric.posted_srq_recvs(queues.srq);
            let lost = there.map_or(0, |there| posted.saturating_sub(there));
            self.counts.recv_lost += u64::from(lost);
            queues.doubt = match there {
                _ if lost > 0 => Doubt::Deficit,
                None if queues.doubt == Doubt::Disorder => Doubt::Deficit,
                _ => Doubt::None,
            };
            if queues.doubt == Doubt::None {
                return;
            }
            tracing::warn!(
                shard = self.index,
                posted,
                lost,
                "dead queue pairs kept receive slots: the receive queue is made anew"
            );
        }
        // A spare is bound to the queues that it was made with.
        match self.spares.give_up_one() {
            Some(spare) => self.retire_spare(now, spare),
            None => self.renew_queues(),
        }
    }

    /// Nothing uses the queues any more.
    fn renew_queues(&mut self) {
        match self.try_renew() {
            Ok(()) => {
                self.counts.queues_renewed += 1;
                self.queues.doubt = Doubt::None;
                self.queues.at_rest = None;
                tracing::info!(shard = self.index, "the queues are made anew");
            }
            // Tried again with the next look: the device may not be done with the last queue pair.
            Err(error) => tracing::warn!(shard = self.index, %error, "the queues cannot be made anew yet"),
        }
    }

    fn try_renew(&mut self) -> Result<(), VerbsError> {
        if self.queues.doubt == Doubt::Overrun {
            let cq = self.fabric.create_cq(self.queues.cq_depth)?;
            let old = std::mem::replace(&mut self.queues.cq, cq);
            self.fabric.destroy_cq(old)?;
        }
        let srq = self.fabric.create_srq(self.pd, self.slots.counts().total)?;
        let old = std::mem::replace(&mut self.queues.srq, srq);
        self.slots.renew(srq);
        self.fabric.destroy_srq(old)?;
        self.slots.post(&mut self.fabric)
    }
}
