//! The ring of a thread, shared by the queues that the thread opens.
//!
//! Operations wait here for a place in the submission queue, go to the kernel with the next poll
//! of any queue, and come back into the list of the queue that they belong to. Everything is
//! allocated when the ring is made or a queue opened.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{EnterFlags, IoUring, opcode};
use reactors::handle::Handle;
use reactors::memory::Region;
use reactors::slab::{Key, Slab};
use reactors::time::Time;
use rustix::event::{EventfdFlags, eventfd};

use super::buffers::{BOUNCE_BYTES, Buffers, Place};
use super::file::{File, Zeroing};
use super::op::{Next, Pending};
use super::params;
use crate::io::{Completion, Io, IoError, IoId, Op, OpenError, RegionId, SubmitError};
use crate::stats::QueueStats;
use crate::testing::wait_readable;

/// Operations that a ring holds at once; a thread that wants more gets another ring.
const OPERATIONS: usize = 4096;

/// Queues that share a ring.
const TENANTS: usize = 64;

/// The most that one segment moves, in bytes: `MAX_RW_COUNT` of the kernel is a page below 2 GiB.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// How long a queue that is dropped with operations in flight waits for them.
const PARTING_WAIT: Duration = Duration::from_secs(1);

const KIND_OPERATION: u8 = 1;
const KIND_CANCEL: u8 = 2;

thread_local! {
    static RINGS: RefCell<Vec<Weak<RefCell<Ring>>>> = const { RefCell::new(Vec::new()) };
}

/// One queue's part of the ring.
struct Tenant {
    file: Arc<File>,
    stats: QueueStats,
    depth: usize,
    /// Operations that are not done.
    pending: usize,
    done: VecDeque<Completion>,
    /// Whether `file` stands in the kernel's table at this tenant's place.
    registered: bool,
    /// Its queue was dropped; what comes back belongs to nobody.
    abandoned: bool,
}

/// A ring and what is on its way through it.
pub(super) struct Ring {
    uring: IoUring,
    /// Written by the kernel when something completes while `armed`.
    event: OwnedFd,
    armed: bool,
    has_file_table: bool,
    buffers: Buffers,
    operations: Slab<Pending>,
    /// Sum of the depths of the tenants.
    promised: usize,
    tenants: Vec<Option<Tenant>>,
    /// What waits for a place in the submission queue.
    waiting: VecDeque<Key>,
    /// What waits for a bounce buffer.
    bounce_waiting: VecDeque<Key>,
    /// What the kernel shall be asked to cancel.
    to_cancel: VecDeque<Key>,
    cancels_in_kernel: usize,
    /// Entries lie in the submission queue that the kernel has not taken.
    left_over: bool,
    enter_failed: bool,
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

    fn admit(&mut self, file: &Arc<File>, depth: usize) -> Option<u16> {
        let place = self.tenants.iter().position(Option::is_none)?;
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

    fn tenant(&self, place: u16) -> &Tenant {
        self.tenants[usize::from(place)]
            .as_ref()
            .expect("a place is held until its queue and operations are gone")
    }

    fn tenant_mut(&mut self, place: u16) -> &mut Tenant {
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

    /// Whether the queue at `place` may sleep until its descriptor is readable: if so, the
    /// descriptor speaks from now until the next turn.
    pub(super) fn may_sleep(&mut self, place: u16) -> bool {
        let handed_over = self.waiting.is_empty() && self.to_cancel.is_empty() && !self.left_over;
        handed_over && self.tenant(place).done.is_empty() && self.arm()
    }

    /// Lets completions signal the eventfd; false if some came before that.
    fn arm(&mut self) -> bool {
        if self.operations.is_empty() {
            return true;
        }
        if !self.armed {
            self.armed = true;
            self.uring.completion().enable_eventfd();
            // Work that was deferred before this point made no signal, and would keep later work
            // from making one: run it.
            let (to_submit, to_wait, get_events) = (0, 0, EnterFlags::GETEVENTS.bits());
            // SAFETY: no argument is passed.
            let entered = unsafe {
                self.uring.submitter().enter::<libc::sigset_t>(to_submit, to_wait, get_events, None)
            };
            if entered.is_err() {
                return false;
            }
        }
        self.uring.completion().is_empty()
    }

    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.uring.completion().disable_eventfd();
            // An error says that there was no signal.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Hands over what waits and takes back what is done: one system call at most.
    pub(super) fn turn(&mut self, place: u16, now: Time, completions: &mut Vec<Completion>) {
        self.disarm();
        self.feed(now);
        self.enter();
        self.reap(now);
        let tenant = self.tenant_mut(place);
        if tenant.pending > 0 || !tenant.file.is_whole() {
            tenant.file.look_sometimes(now);
        }
        while completions.len() < completions.capacity() {
            let Some(completion) = tenant.done.pop_front() else { return };
            completions.push(completion);
        }
    }

    /// Moves what waits into the submission queue, as far as there is room.
    fn feed(&mut self, now: Time) {
        let mut room = {
            let queue = self.uring.submission();
            queue.capacity() - queue.len()
        };
        while room > 0 && self.cancels_in_kernel < OPERATIONS {
            let Some(key) = self.to_cancel.pop_front() else { break };
            if self.operations.get(key).is_some_and(|op| op.in_kernel) {
                let entry = opcode::AsyncCancel::new(key.handle(KIND_OPERATION).to_bits());
                self.push(&entry.build().user_data(key.handle(KIND_CANCEL).to_bits()));
                self.cancels_in_kernel += 1;
                room -= 1;
            }
        }
        while room > 0 {
            let Some(key) = self.waiting.pop_front() else { break };
            if let Some(entry) = self.next_segment(key, now) {
                self.push(&entry);
                room -= 1;
            }
        }
    }

    fn push(&mut self, entry: &Entry) {
        // SAFETY: buffers belong to regions that `self.buffers` keeps (and leaks rather than
        // frees while the kernel has operations), descriptors to files that tenants keep.
        let pushed = unsafe { self.uring.submission().push(entry) };
        debug_assert!(pushed.is_ok(), "room was counted before");
    }

    /// The entry for what is next of an operation; none if it was parked or is over.
    fn next_segment(&mut self, key: Key, now: Time) -> Option<Entry> {
        let op = self.operations.get_mut(key)?;
        if op.cancelled && op.is_without_effect() {
            self.finish(key, Err(IoError::Cancelled), now);
            return None;
        }
        let tenant = self.tenants[usize::from(op.tenant)].as_ref()?;
        let (fd, flags) = if tenant.registered {
            (Fd(i32::from(op.tenant)), Flags::FIXED_FILE)
        } else {
            (Fd(tenant.file.fd.as_raw_fd()), Flags::empty())
        };
        let (io, remaining) = (op.io, op.remaining());
        let offset = io.offset_bytes + op.done_bytes;
        op.segment_bytes = remaining;
        let entry = match io.op {
            Op::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Op::Unmap => punch(fd, offset, remaining),
            Op::WriteZeroes => {
                op.zeroing = tenant.file.zeroing();
                match op.zeroing {
                    Zeroing::ZeroRange => {
                        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                        opcode::Fallocate::new(fd, remaining).offset(offset).mode(mode).build()
                    }
                    Zeroing::PunchHole => punch(fd, offset, remaining),
                    Zeroing::Write => {
                        op.segment_bytes = remaining.min(BOUNCE_BYTES as u64);
                        write(fd, self.buffers.zeroes().ok()?, op.segment_bytes, offset, false)
                    }
                }
            }
            Op::Read | Op::Write { .. } => {
                let at = io.region_offset + op.done_bytes as usize;
                op.segment_bytes = remaining.min(MAX_SEGMENT_BYTES);
                let mut buffer = self.buffers.place(io.region, at, op.segment_bytes as usize)?;
                let mask = u64::from(tenant.file.direct.map_or(1, |direct| direct.memory_align)) - 1;
                if op.must_bounce || buffer.address.as_ptr() as u64 & mask != 0 {
                    op.bounce = op.bounce.or_else(|| self.buffers.take_bounce());
                    let Some(bounce) = op.bounce else {
                        self.bounce_waiting.push_back(key);
                        return None;
                    };
                    op.segment_bytes = remaining.min(BOUNCE_BYTES as u64);
                    buffer = self.buffers.bounce_place(bounce).ok()?;
                    if io.op.is_write() {
                        self.buffers.copy_bounce(bounce, io.region, at, op.segment_bytes as usize, false)?;
                    }
                }
                match io.op {
                    Op::Write { fua } => write(fd, buffer, op.segment_bytes, offset, fua),
                    _ => read(fd, buffer, op.segment_bytes, offset),
                }
            }
        };
        op.in_kernel = true;
        op.began.get_or_insert(now);
        Some(entry.flags(flags).user_data(key.handle(KIND_OPERATION).to_bits()))
    }

    /// The one system call of a turn, if it is needed: something to hand over, or task work that
    /// nobody else runs and no completion in memory to look at first.
    fn enter(&mut self) {
        let (submitter, submission, completion) = self.uring.split();
        let due = submission.taskrun() || submission.cq_overflow();
        if submission.is_empty() && !(due && completion.is_empty()) {
            return;
        }
        drop((submission, completion));
        // Sets GETEVENTS by itself when task work is flagged.
        match submitter.submit() {
            Ok(_) => self.enter_failed = false,
            // Try again in the next turn: a signal, or the kernel is short of memory.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(error) if self.enter_failed => tracing::trace!("io_uring: {error}"),
            Err(error) => {
                tracing::error!("io_uring: entering the kernel failed ({error}); trying on");
                self.enter_failed = true;
            }
        }
        self.left_over = !self.uring.submission().is_empty();
    }

    fn reap(&mut self, now: Time) {
        while let Some(entry) = { self.uring.completion().next() } {
            let handle = Handle::from_bits(entry.user_data());
            if handle.kind() == KIND_CANCEL {
                self.cancels_in_kernel -= 1;
                continue;
            }
            self.complete(Key::from(handle), entry.result(), now);
        }
    }

    /// Takes the kernel's result for the last segment of an operation.
    fn complete(&mut self, key: Key, result: i32, now: Time) {
        let Some(op) = self.operations.get_mut(key) else { return };
        op.in_kernel = false;
        let Some(tenant) = self.tenants[usize::from(op.tenant)].as_ref() else { return };
        let file = Arc::clone(&tenant.file);
        let (io, before, zeroing) = (op.io, op.done_bytes, op.zeroing);
        let next = op.judge(result, file.geometry().block_bytes, file.direct.is_some());
        let moved = (op.done_bytes - before) as usize;
        if let (Some(bounce), Op::Read) = (op.bounce, io.op) {
            let at = io.region_offset + before as usize;
            let copied = self.buffers.copy_bounce(bounce, io.region, at, moved, true);
            debug_assert!(copied.is_some());
        }
        match next {
            Next::Finish(result) => self.finish(key, result, now),
            Next::Ended => {
                file.look();
                self.finish(key, Err(IoError::Truncated), now);
            }
            Next::Again => self.waiting.push_back(key),
            Next::OtherZeroing => {
                file.zeroing_fell_back(zeroing);
                self.waiting.push_back(key);
            }
            Next::Bounce => {
                op.must_bounce = true;
                self.waiting.push_back(key);
            }
        }
    }

    fn finish(&mut self, key: Key, result: Result<(), IoError>, now: Time) {
        let Some(op) = self.operations.remove(key) else { return };
        if let Some(bounce) = op.bounce {
            self.buffers.give_bounce(bounce);
            self.waiting.extend(self.bounce_waiting.pop_front());
        }
        let tenant = self.tenant_mut(op.tenant);
        tenant.pending -= 1;
        tenant.stats.count(op.io.op.kind(), op.io.len_bytes, op.began.unwrap_or(now), now, result);
        if !tenant.abandoned {
            tenant.done.push_back(Completion { id: op.io.id, result });
        } else if tenant.pending == 0 {
            self.vacate(op.tenant);
        }
    }

    fn vacate(&mut self, place: u16) {
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
        let start = std::time::Instant::now();
        while self.operations.iter().any(|(_, op)| mine(op)) && start.elapsed() < PARTING_WAIT {
            self.disarm();
            self.feed(Time::ZERO);
            self.enter();
            self.reap(Time::ZERO);
            if self.waiting.is_empty() && self.to_cancel.is_empty() && !self.left_over && self.arm() {
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
        if left > 0 {
            tracing::warn!(
                "io_uring: {left} operations outlive their thread's ring; their memory is never freed"
            );
            self.buffers.leak();
        }
    }
}

fn punch(fd: Fd, offset: u64, len_bytes: u64) -> Entry {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    opcode::Fallocate::new(fd, len_bytes).offset(offset).mode(mode).build()
}

fn read(fd: Fd, from: Place, len_bytes: u64, offset: u64) -> Entry {
    // Segments are at most `MAX_SEGMENT_BYTES`.
    let (address, len_bytes) = (from.address.as_ptr(), len_bytes as u32);
    match from.fixed {
        Some(index) => opcode::ReadFixed::new(fd, address, len_bytes, index).offset(offset).build(),
        None => opcode::Read::new(fd, address, len_bytes).offset(offset).build(),
    }
}

fn write(fd: Fd, to: Place, len_bytes: u64, offset: u64, fua: bool) -> Entry {
    let (address, len_bytes) = (to.address.as_ptr().cast_const(), len_bytes as u32);
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    match to.fixed {
        Some(index) => {
            opcode::WriteFixed::new(fd, address, len_bytes, index).offset(offset).rw_flags(flags).build()
        }
        None => opcode::Write::new(fd, address, len_bytes).offset(offset).rw_flags(flags).build(),
    }
}
