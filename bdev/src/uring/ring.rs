//! The ring of a thread, shared by the queues that the thread opens.
//!
//! Operations wait here for a place in the submission queue, go to the kernel with the next poll
//! of any queue, and come back into the list of the queue that they belong to. Everything is
//! allocated when the ring is made or a queue opened.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use reactors::memory::Region;
use reactors::slab::{Key, Slab};
use reactors::time::Time;
use rustix::event::{EventfdFlags, eventfd};

use super::buffers::Buffers;
use super::file::File;
use super::op::Pending;
use super::params;
use crate::io::{Completion, Io, IoError, IoId, OpenError, RegionId, SubmitError};
use crate::stats::QueueStats;
use crate::testing::wait_readable;

/// Operations that a ring holds at once; a thread that wants more gets another ring.
pub(super) const OPERATIONS: usize = 4096;

/// Queues that share a ring.
pub(super) const TENANTS: usize = 64;

/// How long a queue that is dropped with operations in flight waits for them.
const PARTING_WAIT: Duration = Duration::from_secs(1);

thread_local! {
    static RINGS: RefCell<Vec<Weak<RefCell<Ring>>>> = const { RefCell::new(Vec::new()) };
}

/// One queue's part of the ring.
pub(super) struct Tenant {
    pub(super) file: Arc<File>,
    pub(super) stats: QueueStats,
    depth: usize,
    /// Operations that are not done.
    pub(super) pending: usize,
    pub(super) done: VecDeque<Completion>,
    /// Whether `file` stands in the kernel's table at this tenant's place.
    pub(super) registered: bool,
    /// Its queue was dropped; what comes back belongs to nobody.
    pub(super) abandoned: bool,
}

/// A ring and what is on its way through it.
pub(super) struct Ring {
    pub(super) uring: IoUring,
    /// Written by the kernel when something completes while `armed`.
    pub(super) event: OwnedFd,
    pub(super) armed: bool,
    has_file_table: bool,
    pub(super) buffers: Buffers,
    pub(super) operations: Slab<Pending>,
    /// Sum of the depths of the tenants.
    promised: usize,
    pub(super) tenants: Vec<Option<Tenant>>,
    /// By place: in which generation of its device the kernel was asked for the size of the file
    /// there. The place is not given away until the answer is here.
    pub(super) watching: [Option<u64>; TENANTS],
    /// What waits for a place in the submission queue.
    pub(super) waiting: VecDeque<Key>,
    /// What waits for a bounce buffer.
    pub(super) bounce_waiting: VecDeque<Key>,
    /// What the kernel shall be asked to cancel.
    pub(super) to_cancel: VecDeque<Key>,
    pub(super) cancels_in_kernel: usize,
    /// Entries lie in the submission queue that the kernel has not taken.
    pub(super) left_over: bool,
    pub(super) enter_failed: bool,
}

impl Ring {
    fn new() -> Result<Ring, OpenError> {
        let (mut uring, _) = params::build(OPERATIONS)?;
        let no_event = |error: std::io::Error| {
            OpenError::new(
                "io_uring",
                format_args!("no eventfd ({error}); raise the limit of open files (ulimit -n)"),
            )
        };
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| no_event(errno.into()))?;
        uring.completion().disable_eventfd();
        uring.submitter().register_eventfd(event.as_raw_fd()).map_err(no_event)?;
        let has_file_table = uring.submitter().register_files_sparse(TENANTS as u32).is_ok();
        Ok(Ring {
            buffers: Buffers::new(&uring)?,
            uring,
            event,
            armed: false,
            has_file_table,
            operations: Slab::new(OPERATIONS),
            promised: 0,
            tenants: (0..TENANTS).map(|_| None).collect(),
            watching: [None; TENANTS],
            waiting: VecDeque::with_capacity(OPERATIONS),
            bounce_waiting: VecDeque::with_capacity(OPERATIONS),
            to_cancel: VecDeque::with_capacity(OPERATIONS),
            cancels_in_kernel: 0,
            left_over: false,
            enter_failed: false,
        })
    }

    /// A place for `file` in a ring of this thread, with room for `depth` operations.
    pub(super) fn join(file: &Arc<File>, depth: usize) -> Result<(Rc<RefCell<Ring>>, u16), OpenError> {
        if depth == 0 || depth > OPERATIONS {
            let why = format!("a queue of {depth} operations; 1 to {OPERATIONS} are possible");
            return Err(OpenError::new(&file.name, why));
        }
        RINGS.with_borrow_mut(|rings| {
            rings.retain(|ring| ring.strong_count() > 0);
            for ring in rings.iter().filter_map(Weak::upgrade) {
                let place = ring.borrow_mut().admit(file, depth);
                if let Some(place) = place {
                    return Ok((ring, place));
                }
            }
            let mut ring = Ring::new()?;
            let place = ring.admit(file, depth).expect("a new ring has room");
            let ring = Rc::new(RefCell::new(ring));
            rings.push(Rc::downgrade(&ring));
            Ok((ring, place))
        })
    }

    /// The eventfd of the one ring of this thread.
    #[cfg(test)]
    pub(super) fn signal_of_this_thread() -> OwnedFd {
        let ring = RINGS.with_borrow(|rings| rings.iter().find_map(Weak::upgrade)).expect("a ring");
        ring.borrow().event.try_clone().expect("a descriptor")
    }

    fn admit(&mut self, file: &Arc<File>, depth: usize) -> Option<u16> {
        let place =
            (0..TENANTS).find(|&place| self.tenants[place].is_none() && self.watching[place].is_none())?;
        if self.promised + depth > OPERATIONS {
            return None;
        }
        let fd = file.fd.as_raw_fd();
        let registered =
            self.has_file_table && self.uring.submitter().register_files_update(place as u32, &[fd]).is_ok();
        self.promised += depth;
        self.tenants[place] = Some(Tenant {
            file: Arc::clone(file),
            stats: file.stats.open_queue(),
            depth,
            pending: 0,
            done: VecDeque::with_capacity(depth),
            registered,
            abandoned: false,
        });
        Some(place as u16)
    }

    pub(super) fn tenant(&self, place: u16) -> &Tenant {
        self.tenants[usize::from(place)]
            .as_ref()
            .expect("a place is held until its queue and operations are gone")
    }

    pub(super) fn tenant_mut(&mut self, place: u16) -> &mut Tenant {
        self.tenants[usize::from(place)]
            .as_mut()
            .expect("a place is held until its queue and operations are gone")
    }

    /// The regions of the ring.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(super) fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.buffers.add(&self.uring, region)
    }

    /// Readable when something completes after [`may_sleep`](Self::may_sleep). Each queue has a
    /// descriptor of its own for it, since an epoll takes none twice.
    pub(super) fn wait_fd(&self) -> Result<OwnedFd, OpenError> {
        self.event.try_clone().map_err(|error| {
            OpenError::new(
                "io_uring",
                format_args!("no descriptor ({error}); raise the limit of open files (ulimit -n)"),
            )
        })
    }

    pub(super) fn in_flight(&self, place: u16) -> usize {
        let tenant = self.tenant(place);
        tenant.pending + tenant.done.len()
    }

    /// Whether the queue at `place` takes another operation.
    #[inline]
    pub(super) fn has_room(&self, place: u16) -> Result<(), SubmitError> {
        if self.in_flight(place) < self.tenant(place).depth { Ok(()) } else { Err(SubmitError::Full) }
    }

    /// Takes a valid operation of the queue at `place`, which has room.
    #[inline]
    pub(super) fn submit(&mut self, place: u16, io: Io) -> Result<(), SubmitError> {
        let key = self.operations.insert(Pending::new(io, place)).map_err(|_| SubmitError::Full)?;
        self.tenant_mut(place).pending += 1;
        self.waiting.push_back(key);
        Ok(())
    }

    /// Takes an operation whose result is known already.
    pub(super) fn submit_done(&mut self, place: u16, io: &Io, result: Result<(), IoError>) {
        let tenant = self.tenant_mut(place);
        tenant.stats.count(io.op.kind(), io.len_bytes, Time::ZERO, Time::ZERO, result);
        tenant.done.push_back(Completion { id: io.id, result });
    }

    /// Asks for the end of the operation `id` of the queue at `place`.
    pub(super) fn cancel(&mut self, place: u16, id: IoId) {
        let found =
            self.operations.iter().find(|(_, op)| op.tenant == place && op.io.id == id && !op.cancelled);
        if let Some((key, _)) = found {
            self.cancel_key(key);
        }
    }

    fn cancel_key(&mut self, key: Key) {
        let Some(op) = self.operations.get_mut(key) else { return };
        op.cancelled = true;
        if op.in_kernel {
            self.to_cancel.push_back(key);
        } else if let Some(at) = self.bounce_waiting.iter().position(|&waiting| waiting == key) {
            // Those that wait for a place are found when their turn comes; this one's may not.
            self.bounce_waiting.remove(at);
            self.waiting.push_back(key);
        }
    }

    pub(super) fn vacate(&mut self, place: u16) {
        if let Some(tenant) = self.tenants[usize::from(place)].take() {
            self.promised -= tenant.depth;
            if tenant.registered {
                // Fails only if there were no table, and then there is nothing to take out.
                let _ = self.uring.submitter().register_files_update(u32::from(place), &[-1]);
            }
        }
    }

    /// The queue at `place` goes. Cancels what it has in flight and waits a bounded time; the
    /// rest stays with the ring until the kernel is done with it.
    pub(super) fn part(&mut self, place: u16) {
        self.tenant_mut(place).abandoned = true;
        if self.tenant(place).pending == 0 {
            return self.vacate(place);
        }
        self.drain(Some(place));
        if let Some(tenant) = &self.tenants[usize::from(place)] {
            tracing::warn!(
                "{}: {} operations are still in the kernel after {PARTING_WAIT:?}; their memory is kept",
                tenant.file.name,
                tenant.pending
            );
        }
    }

    /// Cancels everything (of one queue) and waits for it, a bounded time.
    fn drain(&mut self, only: Option<u16>) {
        let mine = |op: &Pending| only.is_none_or(|place| op.tenant == place);
        let slots = self.operations.capacity() as u32;
        for key in (0..slots).filter_map(|slot| self.operations.key_at(slot)).collect::<Vec<_>>() {
            if self.operations.get(key).is_some_and(|op| mine(op) && !op.cancelled) {
                self.cancel_key(key);
            }
        }
        let start = Instant::now();
        while self.operations.iter().any(|(_, op)| mine(op)) && start.elapsed() < PARTING_WAIT {
            self.disarm();
            self.exchange(Time::ZERO);
            if self.is_handed_over() && self.arm() {
                wait_readable(self.event.as_fd(), Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.operations.is_empty() {
            self.drain(None);
        }
        let left = self.operations.iter().filter(|(_, op)| op.in_kernel).count();
        let watched = self.watching.iter().any(Option::is_some);
        if left > 0 {
            tracing::warn!(
                "io_uring: {left} operations outlive their thread's ring; their memory is never freed"
            );
            self.buffers.leak();
        } else if watched {
            self.buffers.leak_answers();
        }
    }
}
