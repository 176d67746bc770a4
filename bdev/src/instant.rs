//! The bookkeeping of queues whose operations are done as soon as they are taken.

use std::collections::VecDeque;

use reactors::time::Time;

use crate::io::{Completion, Io, IoError, OpKind, SubmitError};
use crate::stats::QueueStats;

struct Done {
    completion: Completion,
    kind: OpKind,
    len_bytes: u64,
}

/// Results that wait for the next poll; at most as many as the queue is deep.
pub(crate) struct Instant {
    done: VecDeque<Done>,
    depth: usize,
    stats: QueueStats,
}

impl Instant {
    pub(crate) fn new(depth: usize, stats: QueueStats) -> Instant {
        Instant { done: VecDeque::with_capacity(depth), depth, stats }
    }

    /// Asked before an operation has its effect.
    #[inline]
    pub(crate) fn has_room(&self) -> Result<(), SubmitError> {
        if self.done.len() < self.depth { Ok(()) } else { Err(SubmitError::Full) }
    }

    #[inline]
    pub(crate) fn push(&mut self, io: &Io, result: Result<(), IoError>) {
        let completion = Completion { id: io.id, result };
        self.done.push_back(Done { completion, kind: io.op.kind(), len_bytes: io.len_bytes });
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        while completions.len() < completions.capacity() {
            let Some(done) = self.done.pop_front() else { return };
            self.stats.count(done.kind, done.len_bytes, now, now, done.completion.result);
            completions.push(done.completion);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.done.len()
    }

    /// Results that wait are a reason not to sleep.
    pub(crate) fn next_deadline(&self) -> Time {
        if self.done.is_empty() { Time::NEVER } else { Time::ZERO }
    }
}
