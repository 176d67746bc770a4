//! The queue of one device: a place in its thread's ring.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use reactors::memory::Region;
use reactors::time::Time;

use super::file::File;
use super::ring::Ring;
use crate::check::admit;
use crate::device::BlockQueue;
use crate::io::{Completion, Io, IoError, IoId, Op, OpenError, RegionId, SubmitError};

pub(super) struct UringQueue {
    file: Arc<File>,
    ring: Rc<RefCell<Ring>>,
    place: u16,
    event: OwnedFd,
}

impl UringQueue {
    pub(super) fn open(file: &Arc<File>, depth: usize) -> Result<UringQueue, OpenError> {
        let (ring, place) = Ring::join(file, depth)?;
        let event = ring.borrow().wait_fd();
        let event = event.inspect_err(|_| ring.borrow_mut().part(place))?;
        Ok(UringQueue { file: Arc::clone(file), ring, place, event })
    }

    /// Whether the range is there; a file that was seen too short is looked at again.
    fn is_there(&self, io: &Io) -> bool {
        let end = io.offset_bytes + io.len_bytes;
        io.op == Op::Flush || self.file.has(end)
    }
}

impl BlockQueue for UringQueue {
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.ring.borrow_mut().register(region)
    }

    fn submit(&mut self, io: Io) -> Result<(), SubmitError> {
        let mut ring = self.ring.borrow_mut();
        ring.has_room(self.place)?;
        match admit(&io, &self.file.geometry(), &ring.buffers().regions)? {
            Ok(()) if !self.is_there(&io) => ring.submit_done(self.place, &io, Err(IoError::Truncated)),
            // Nothing to move: the kernel would call it the end of the file, or invalid.
            Ok(()) if io.len_bytes == 0 && io.op != Op::Flush => ring.submit_done(self.place, &io, Ok(())),
            Ok(()) => return ring.submit(self.place, io),
            Err(error) => ring.submit_done(self.place, &io, Err(error)),
        }
        Ok(())
    }

    fn cancel(&mut self, id: IoId) {
        self.ring.borrow_mut().cancel(self.place, id);
    }

    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        self.ring.borrow_mut().turn(self.place, now, completions);
    }

    fn in_flight(&self) -> usize {
        self.ring.borrow().in_flight(self.place)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn next_deadline(&self) -> Time {
        if self.ring.borrow_mut().may_sleep(self.place) { Time::NEVER } else { Time::ZERO }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        self.ring.borrow_mut().part(self.place);
    }
}
