//! The queue of devices whose operations are done as soon as they are taken.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use reactors::memory::{OutOfBounds, Region};
use reactors::time::Time;

use crate::check::{Regions, admit, is_within};
use crate::device::{BlockQueue, Geometry};
use crate::io::{Completion, Io, IoError, IoId, OpKind, OpenError, RegionId, SubmitError};
use crate::stats::QueueStats;

/// What holds the data of such a device, or pretends to.
pub(crate) trait Medium {
    /// The device's geometry at this moment.
    fn geometry(&self) -> Geometry;

    /// The memory that reads in place find what they ask for in.
    fn memory(&self) -> Option<&Region>;

    /// Where in that memory the byte at `offset_bytes` of the device lies.
    fn place(&self, offset_bytes: u64) -> usize;

    /// Does what was found to lie within the device and, if the operation has one, the buffer.
    fn execute(&self, io: &Io, buffer: Option<&Region>) -> Result<(), OutOfBounds>;
}

struct Done {
    completion: Completion,
    kind: OpKind,
    len_bytes: u64,
}

/// A queue over a medium. Results wait for the next poll; they are at most as many as the queue
/// is deep.
pub(crate) struct InstantQueue<M> {
    medium: M,
    regions: Regions,
    done: VecDeque<Done>,
    depth: usize,
    stats: QueueStats,
}

impl<M: Medium> InstantQueue<M> {
    pub(crate) fn new(medium: M, depth: usize, stats: QueueStats) -> InstantQueue<M> {
        InstantQueue { medium, regions: Regions::new(), done: VecDeque::with_capacity(depth), depth, stats }
    }
}

impl<M: Medium> BlockQueue for InstantQueue<M> {
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.regions.add(region)
    }

    fn memory(&self) -> Option<&Region> {
        self.medium.memory()
    }

    #[inline]
    fn read_in_place(&mut self, offset_bytes: u64, len_bytes: u64) -> Option<usize> {
        let place = self.medium.place(offset_bytes);
        let lies = self.medium.memory()?.raw(place, usize::try_from(len_bytes).ok()?).is_ok();
        (lies && is_within(&self.medium.geometry(), offset_bytes, len_bytes)).then(|| {
            // As an operation, it takes no time.
            self.stats.count(OpKind::Read, len_bytes, Time::ZERO, Time::ZERO, Ok(()));
            place
        })
    }

    #[inline]
    fn submit(&mut self, io: Io) -> Result<(), SubmitError> {
        if self.done.len() >= self.depth {
            return Err(SubmitError::Full);
        }
        let result = admit(&io, &self.medium.geometry(), &self.regions)?.and_then(|()| {
            let buffer = self.regions.get(io.region).filter(|_| io.op.has_buffer());
            self.medium.execute(&io, buffer).map_err(|OutOfBounds { .. }| IoError::Truncated)
        });
        let completion = Completion { id: io.id, result };
        self.done.push_back(Done { completion, kind: io.op.kind(), len_bytes: io.len_bytes });
        Ok(())
    }

    /// What was taken is done.
    fn cancel(&mut self, _id: IoId) {}

    #[inline]
    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        while completions.len() < completions.capacity() {
            let Some(done) = self.done.pop_front() else { return };
            self.stats.count(done.kind, done.len_bytes, now, now, done.completion.result);
            completions.push(done.completion);
        }
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Results that wait are a reason not to sleep.
    fn next_deadline(&self) -> Time {
        if self.done.is_empty() { Time::NEVER } else { Time::ZERO }
    }
}
