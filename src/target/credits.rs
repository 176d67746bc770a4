//! SRP_CRED_REQ: the credits of commands that ended without an answer.
//!
//! Such a credit goes back with the next answer on its channel. If so many of them wait that there
//! may be none (a LUN RESET on another channel can end all commands of this one, and ib_srp sends no
//! command with its last credit), they go back by a request of their own.

use reactors::memory::Region;
use reactors::slab::Key;
use reactors::time::Time;

use super::channel::Channel;
use super::fabric::Fabric;
use super::shard::Shard;
use super::wr::Tag;
use crate::rdma::verbs::{SendOp, SendWr, Sge, SgeList};
use crate::wire::num::LKey;
use crate::wire::srp::{self, CredReq};

/// A buffer for each channel.
pub(super) struct CreditRequests {
    region: Region,
    lkey: LKey,
}

impl CreditRequests {
    /// Bytes for so many channels.
    pub(super) const fn bytes(channels: usize) -> usize {
        (channels * CredReq::BYTES).next_multiple_of(reactors::memory::PAGE_BYTES)
    }

    pub(super) fn new(region: Region, lkey: LKey) -> Self {
        CreditRequests { region, lkey }
    }
}

/// Whether a channel is to get its withheld credits now.
fn is_owed(channel: &Channel) -> bool {
    let credit = channel.srp.credit();
    let scarce = credit.left() <= 1 || 2 * credit.withheld() >= credit.granted();
    credit.withheld() > 0 && scarce && channel.life.takes_ius() && channel.srp.unanswered() == 0
}

impl<F: Fabric> Shard<F> {
    /// A credit was withheld; looks whether that is one too many.
    pub(super) fn credit_withheld(&mut self, channel: Key) {
        if self.channels.get(channel).is_some_and(is_owed) {
            self.wake_slow_lane();
        }
    }

    /// Gives withheld credits back where they are scarce.
    pub(super) fn return_credits(&mut self, now: Time) {
        for (key, channel) in self.channels.iter_mut().filter(|(_, channel)| is_owed(channel)) {
            let at = key.slot as usize * CredReq::BYTES;
            let solicited = channel.srp.params().credit_solicited();
            let request = CredReq {
                solicited,
                request_limit_delta: channel.srp.credit().withheld() as i32,
                tag: srp::Tag::default(),
            };
            let written = self.credit_requests.region.write(at, &request.emit());
            written.expect("a buffer for each channel");
            let sge = Sge {
                addr: self.credit_requests.region.addr() + at as u64,
                len_bytes: CredReq::BYTES as u32,
                lkey: self.credit_requests.lkey,
            };
            let wr = SendWr {
                wr_id: Tag::Housekeeping.bits(key),
                op: SendOp::Send { solicited },
                sges: SgeList::one(sge),
                signaled: true,
            };
            // A full send queue means that answers are on their way, with credits.
            if self.fabric.post_send(now, channel.qp, &wr).is_ok() {
                channel.posted(true);
                channel.srp.give_withheld();
                self.counts.credit_requests += 1;
            }
        }
    }
}
