//! Mixed I/O whose every byte is known beforehand, over our own initiator.
//!
//! The disk is cut into stripes; one command at a time works on a stripe, so what a READ must
//! give is what the last completed WRITE left there. A WRITE that was aborted or lost leaves either
//! the old or the new bytes of each block, until the stripe is written again.

use std::collections::HashMap;

use reactors::time::Time;
use srpoll::initiator::{Command, Outcome, Session, SessionState, SlotId, Transfer};
use srpoll::rdma::sim::device::SimDevice;
use srpoll::wire::scsi::status::Status;
use srpoll::wire::srp::TaskAttribute;

use crate::rig::cdb;
use crate::rig::command::{pattern, raw_lun};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// The pattern of this seed (zero: zeroes).
    Known(u64),
    /// A write came to no known end: nothing is known.
    Open,
}

struct Job {
    slot: SlotId,
    stripe: usize,
    /// Seed of what is written; `None` is a READ.
    writes: Option<u64>,
    len: usize,
}

/// One session's work on its own stripes of one LUN.
pub struct Worker {
    pub session: usize,
    pub lun: u16,
    stripe_bytes: usize,
    first_stripe: usize,
    contents: Vec<Content>,
    busy: Vec<bool>,
    jobs: HashMap<u64, Job>,
    next_job: u64,
    rng: fastrand::Rng,
    /// Commands that came to a good end, with their bytes right.
    pub done: u64,
    /// Commands that ended with CHECK CONDITION or another status.
    pub failed: u64,
    /// Commands that were aborted or lost.
    pub lost: u64,
    /// How many may be started yet.
    pub budget: u64,
}

impl Worker {
    pub fn new(
        session: usize,
        lun: u16,
        stripes: std::ops::Range<usize>,
        stripe_bytes: usize,
        seed: u64,
    ) -> Worker {
        Worker {
            session,
            lun,
            stripe_bytes,
            first_stripe: stripes.start,
            contents: vec![Content::Known(0); stripes.len()],
            busy: vec![false; stripes.len()],
            jobs: HashMap::new(),
            next_job: 0,
            rng: fastrand::Rng::with_seed(seed),
            done: 0,
            failed: 0,
            lost: 0,
            budget: 0,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    fn expected(content: u64, len: usize) -> Vec<u8> {
        if content == 0 { vec![0; len] } else { pattern(len, content) }
    }

    /// Takes what has ended, checks it, and starts what is possible.
    pub fn work(&mut self, now: Time, session: &mut Session<SimDevice>) {
        while let Some(completion) = session.next_completion() {
            let job = self.jobs.remove(&completion.user).expect("a job of ours");
            self.busy[job.stripe] = false;
            match (completion.outcome, job.writes) {
                (Outcome::Status { status: Some(Status::Good), .. }, Some(seed)) => {
                    assert!(completion.outcome.is_good(), "{:?}", completion.outcome);
                    // A shorter WRITE leaves the rest of the stripe: only whole ones are done.
                    self.contents[job.stripe] = Content::Known(seed);
                    self.done += 1;
                }
                (Outcome::Status { status: Some(Status::Good), .. }, None) => {
                    assert!(completion.outcome.is_good(), "{:?}", completion.outcome);
                    if let Content::Known(seed) = self.contents[job.stripe] {
                        let right = Self::expected(seed, self.stripe_bytes);
                        let same =
                            session.look(job.slot, job.len, |bytes| bytes == &right[..job.len]).unwrap();
                        assert!(same, "stripe {} of {} bytes at {now:?}", job.stripe, job.len);
                    }
                    self.done += 1;
                }
                (Outcome::Status { .. }, writes) => {
                    self.failed += 1;
                    if writes.is_some() {
                        self.contents[job.stripe] = Content::Open;
                    }
                }
                (Outcome::Aborted | Outcome::Lost, writes) => {
                    self.lost += 1;
                    if writes.is_some() {
                        self.contents[job.stripe] = Content::Open;
                    }
                }
            }
            session.release(job.slot);
        }
        while self.budget > 0 && session.state() == SessionState::Live {
            let free: Vec<usize> = (0..self.busy.len()).filter(|stripe| !self.busy[*stripe]).collect();
            let Some(&stripe) = self.rng.choice(&free) else { break };
            let Some(slot) = session.reserve() else { break };
            let block = (self.first_stripe + stripe) * self.stripe_bytes / 512;
            let write = self.rng.bool();
            let seed = self.rng.u64(1..);
            // READs may be shorter, and ask for parts of the stripe's begin.
            let len =
                if write { self.stripe_bytes } else { self.rng.usize(1..=self.stripe_bytes / 512) * 512 };
            let blocks = (len / 512) as u32;
            let (cdb, transfer) = if write {
                let bytes = pattern(len, seed);
                session.fill(slot, len, |buffer| buffer.copy_from_slice(&bytes)).unwrap();
                (cdb::write_16(block as u64, blocks), Transfer::Out(len as u32))
            } else {
                session.fill(slot, len, |buffer| buffer.fill(0xee)).unwrap();
                (cdb::read_16(block as u64, blocks), Transfer::In(len as u32))
            };
            let user = self.next_job;
            let command =
                Command { lun: raw_lun(self.lun), cdb, transfer, attribute: TaskAttribute::Simple, user };
            if session.post(now, slot, &command).is_err() {
                session.release(slot);
                break;
            }
            self.next_job += 1;
            self.busy[stripe] = true;
            self.jobs.insert(user, Job { slot, stripe, writes: write.then_some(seed), len });
            self.budget -= 1;
        }
    }
}
