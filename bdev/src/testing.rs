//! A blocking way to drive a queue, one operation after the other or many: for tests and tools,
//! not for a reactor.
//!
//! Its time is virtual. When nothing has completed it jumps to the queue's next deadline, so a
//! delayed or simulated device is driven as fast as the machine allows.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use reactors::memory::Region;
use reactors::time::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::{Bdev, BlockQueue};
use crate::io::{Completion, Io, IoError, IoId, Op, RegionId, SubmitError};

/// Bytes of the driver's buffer.
pub const BUFFER_BYTES: usize = 1 << 20;

/// How often a wait looks for a completion that never comes, before it gives up.
const MAX_TURNS: usize = 100_000;

/// One queue, a registered buffer and a clock.
pub struct Driver {
    queue: Box<dyn BlockQueue>,
    region: Region,
    region_id: RegionId,
    now: Time,
    next_id: u64,
    completions: Vec<Completion>,
}

impl Driver {
    /// Opens a queue of `device`.
    ///
    /// # Panics
    /// If the queue cannot be opened.
    pub fn open(device: &dyn Bdev, depth: usize) -> Driver {
        let mut queue = device.open_queue(depth).expect("a queue");
        let region = Region::heap(BUFFER_BYTES);
        let region_id = queue.register(&region).expect("a known region");
        Driver {
            queue,
            region,
            region_id,
            now: Time::ZERO,
            next_id: 0,
            completions: Vec::with_capacity(depth + 1),
        }
    }

    /// The buffer.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The buffer's name in the queue.
    pub fn region_id(&self) -> RegionId {
        self.region_id
    }

    /// The queue itself.
    pub fn queue(&mut self) -> &mut dyn BlockQueue {
        &mut *self.queue
    }

    /// The present virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Lets virtual time pass.
    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    /// Submits with the buffer's first bytes.
    pub fn try_submit(&mut self, op: Op, offset_bytes: u64, len_bytes: u64) -> Result<IoId, SubmitError> {
        self.try_submit_at(op, offset_bytes, len_bytes, 0)
    }

    /// Submits with the bytes at `region_offset` of the buffer.
    pub fn try_submit_at(
        &mut self,
        op: Op,
        offset_bytes: u64,
        len_bytes: u64,
        region_offset: usize,
    ) -> Result<IoId, SubmitError> {
        let id = IoId(self.next_id);
        self.queue.submit(Io { id, op, offset_bytes, len_bytes, region: self.region_id, region_offset })?;
        self.next_id += 1;
        Ok(id)
    }

    /// Polls once; gives what has completed.
    pub fn poll(&mut self) -> &[Completion] {
        self.now += Duration::from_micros(1);
        self.completions.clear();
        self.queue.poll(self.now, &mut self.completions);
        &self.completions
    }

    /// Polls until something completes; in between sleeps on the queue's descriptor, or moves
    /// time on to its next deadline.
    ///
    /// # Panics
    /// If nothing completes in a long time.
    pub fn wait_some(&mut self) -> Vec<Completion> {
        for _ in 0..MAX_TURNS {
            let completions = self.poll().to_vec();
            if !completions.is_empty() {
                return completions;
            }
            let deadline = self.queue.next_deadline();
            if deadline != Time::NEVER {
                self.now = self.now.max(deadline);
            } else if let Some(fd) = self.queue.wait_fd() {
                wait_readable(fd, Duration::from_millis(1));
            }
        }
        panic!("no completion in {MAX_TURNS} polls, {} in flight", self.queue.in_flight());
    }

    /// Polls until the operation `id` completes. Other completions on the way are dropped.
    ///
    /// # Panics
    /// As [`wait_some`](Self::wait_some).
    pub fn wait(&mut self, id: IoId) -> Result<(), IoError> {
        loop {
            if let Some(completion) = self.wait_some().iter().find(|completion| completion.id == id) {
                return completion.result;
            }
        }
    }

    /// Does one operation and waits for it.
    ///
    /// # Panics
    /// If the queue does not take it.
    pub fn run(&mut self, op: Op, offset_bytes: u64, len_bytes: u64) -> Result<(), IoError> {
        let id = self.try_submit(op, offset_bytes, len_bytes).expect("a valid operation and room for it");
        self.wait(id)
    }

    /// Reads `len_bytes` at `offset_bytes`.
    pub fn read(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, IoError> {
        self.run(Op::Read, offset_bytes, len_bytes as u64)?;
        let mut bytes = vec![0; len_bytes];
        self.region.read(0, &mut bytes).expect("within the buffer");
        Ok(bytes)
    }

    /// Writes `bytes` at `offset_bytes`.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.region.write(0, bytes).expect("within the buffer");
        self.run(Op::Write { fua: false }, offset_bytes, bytes.len() as u64)
    }
}

/// Sleeps until `fd` is readable; whether it is.
pub fn wait_readable(fd: BorrowedFd<'_>, at_most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at_most.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(1))
}
