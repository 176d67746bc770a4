//! A turn of the ring: what waits goes to the kernel, what is done comes back; and what must hold
//! before its thread sleeps.

#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{EnterFlags, opcode};
use reactors::handle::Handle;
use reactors::slab::Key;
use reactors::time::Time;

use super::op::Next;
use super::ring::{OPERATIONS, Ring, Tenant};
use super::segment::{self, Obstacle};
use crate::io::{Completion, IoError, Op};

/// What an entry of the ring is for; stands in its handle.
const KIND_OPERATION: u8 = 1;
const KIND_CANCEL: u8 = 2;
const KIND_WATCH: u8 = 3;

/// Most bytes of files in memory that one turn copies, some 100 us; the rest waits for the next.
const COPIED_A_TURN: u64 = 512 << 10;

/// Most completions that one turn takes. A device that says at once that all of its work is done has
/// nothing to do until new work comes, and that waits until a turn is through with what it took.
const REAPED_A_TURN: usize = 8;

impl Ring {
    /// Whether the queue at `place` may sleep until its descriptor is readable: if so, the
    /// descriptor speaks from now until the next turn. A queue that has nothing in flight need
    /// not be polled, so it does not make the descriptor speak either.
    pub(super) fn may_sleep(&mut self, place: u16) -> bool {
        // A signal that was on its way when it was switched off may have come since; unread, it
        // would wake us for ever. One queue's asking is enough for all.
        let asks = |tenant: &Option<Tenant>| tenant.as_ref().is_some_and(|tenant| !tenant.abandoned);
        if !self.armed && self.tenants.iter().position(asks) == Some(usize::from(place)) {
            self.silence();
        }
        let tenant = self.tenant(place);
        let (pending, done) = (tenant.pending, tenant.done.len());
        done == 0 && (pending == 0 || (self.is_handed_over() && self.arm()))
    }

    /// Whether the kernel has all that it can have.
    pub(super) fn is_handed_over(&self) -> bool {
        self.waiting.is_empty() && self.to_cancel.is_empty() && !self.left_over
    }

    /// Lets completions signal the eventfd; false if some came before that.
    pub(super) fn arm(&mut self) -> bool {
        if !self.armed {
            self.armed = true;
            self.uring.completion().enable_eventfd();
            // Work that was deferred before this point made no signal, and would keep later work
            // from making one: run it.
            let (to_submit, to_wait, get_events) = (0, 0, EnterFlags::GETEVENTS.bits());
            let submitter = self.uring.submitter();
            // SAFETY: no argument is passed.
            let entered = unsafe { submitter.enter::<libc::sigset_t>(to_submit, to_wait, get_events, None) };
            if entered.is_err() {
                return false;
            }
        }
        self.uring.completion().is_empty()
    }

    pub(super) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.uring.completion().disable_eventfd();
            self.silence();
        }
    }

    fn silence(&self) {
        // An error says that there was no signal.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Hands over what waits and takes back what is done: one system call at most, one more to
    /// silence the eventfd after a sleep, and one for each read of a file in memory.
    pub(super) fn turn(&mut self, place: u16, now: Time, completions: &mut Vec<Completion>) {
        self.disarm();
        self.watch(place, now);
        self.exchange(now);
        let tenant = self.tenant_mut(place);
        while completions.len() < completions.capacity() {
            let Some(completion) = tenant.done.pop_front() else { return };
            completions.push(completion);
        }
    }

    /// Feeds the kernel and takes what it has.
    pub(super) fn exchange(&mut self, now: Time) {
        self.feed(now);
        self.enter();
        self.reap(now);
    }

    /// Asks how large the file is now, from time to time.
    fn watch(&mut self, place: u16, now: Time) {
        let tenant = self.tenant(place);
        if tenant.pending == 0 || !tenant.file.is_watch_due(now) {
            return;
        }
        let at = usize::from(place);
        if self.watching[at].is_some() || self.uring.submission().is_full() {
            return;
        }
        if let Ok(answer) = self.buffers.answer(place) {
            // By number, since this operation takes no registered file.
            let file = &self.tenant(place).file;
            let (fd, generation) = (Fd(file.fd.as_raw_fd()), file.generation());
            let handle = Handle::new(KIND_WATCH, u32::from(place), 0);
            self.push(&segment::watch(fd, answer).user_data(handle.to_bits()));
            self.watching[at] = Some(generation);
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
        let mut copied = 0;
        while room > 0 {
            let Some(key) = self.waiting.pop_front() else { break };
            if copied >= COPIED_A_TURN {
                // Later ones do not overtake it, and the thread does not sleep meanwhile.
                self.waiting.push_front(key);
                break;
            }
            if let Some(bytes) = self.read_memory(key, now) {
                copied += bytes;
                continue;
            }
            if let Some(entry) = self.next_entry(key, now) {
                self.push(&entry);
                room -= 1;
            }
        }
    }

    /// A read of a file that is in memory is done here and now: handing it over would cost a worker
    /// thread of the kernel, which takes its time. Gives the bytes that were asked for; none if it is
    /// something else.
    fn read_memory(&mut self, key: Key, now: Time) -> Option<u64> {
        let op = self.operations.get_mut(key)?;
        let tenant = self.tenants[usize::from(op.tenant)].as_ref()?;
        if !tenant.file.in_memory || op.io.op != Op::Read || op.cancelled || op.must_bounce {
            return None;
        }
        let (at, bytes) = (op.io.region_offset + op.done_bytes as usize, op.remaining().min(COPIED_A_TURN));
        let place = self.buffers.place(op.io.region, at, bytes as usize)?;
        op.began.get_or_insert(now);
        op.segment_bytes = bytes;
        let offset = (op.io.offset_bytes + op.done_bytes) as libc::off_t;
        let (fd, to) = (tenant.file.fd.as_raw_fd(), place.address.as_ptr().cast());
        // SAFETY: `to` is the start of `bytes` bytes of a region that `self.buffers` keeps; they belong to
        // the operation until it completes.
        let read = unsafe { libc::pread(fd, to, bytes as usize, offset) };
        let result = match read {
            0.. => read as i32,
            _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        };
        self.complete(key, result, now);
        Some(bytes)
    }

    fn push(&mut self, entry: &Entry) {
        // SAFETY: buffers belong to regions that `self.buffers` keeps (and leaks rather than
        // frees while the kernel has operations), descriptors to files that tenants keep.
        let pushed = unsafe { self.uring.submission().push(entry) };
        debug_assert!(pushed.is_ok(), "room was counted before");
    }

    /// The entry for what is next of an operation; none if it was parked or is over.
    fn next_entry(&mut self, key: Key, now: Time) -> Option<Entry> {
        let op = self.operations.get_mut(key)?;
        if op.cancelled && op.is_without_effect() {
            self.finish(key, Err(IoError::Cancelled), now);
            return None;
        }
        let tenant = self.tenants[usize::from(op.tenant)].as_ref()?;
        let fd = if tenant.registered {
            (Fd(i32::from(op.tenant)), Flags::FIXED_FILE)
        } else {
            (Fd(tenant.file.fd.as_raw_fd()), Flags::empty())
        };
        match segment::entry(op, &tenant.file, fd, &mut self.buffers) {
            Ok(entry) => {
                op.in_kernel = true;
                op.began.get_or_insert(now);
                Some(entry.user_data(key.handle(KIND_OPERATION).to_bits()))
            }
            Err(Obstacle::NoBounce) => {
                self.bounce_waiting.push_back(key);
                None
            }
            Err(Obstacle::OutOfBounds) => {
                debug_assert!(false, "checked when it was taken");
                self.finish(key, Err(IoError::Medium(libc::EFAULT)), now);
                None
            }
        }
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
        for _ in 0..REAPED_A_TURN {
            let Some(entry) = ({ self.uring.completion().next() }) else { return };
            let handle = Handle::from_bits(entry.user_data());
            match handle.kind() {
                KIND_OPERATION => self.complete(Key::from(handle), entry.result(), now),
                KIND_WATCH => self.watched(handle.slot() as usize, entry.result()),
                _ => self.cancels_in_kernel -= 1,
            }
        }
    }

    /// Takes the kernel's result for the last segment of an operation.
    fn complete(&mut self, key: Key, result: i32, now: Time) {
        let Some(op) = self.operations.get_mut(key) else { return };
        op.in_kernel = false;
        let Some(tenant) = self.tenants[usize::from(op.tenant)].as_ref() else { return };
        let (io, before, file) = (op.io, op.done_bytes, &tenant.file);
        let next = op.judge(result, file.block_bytes(), file.direct.is_some());
        if let (Some(bounce), Op::Read) = (op.bounce, io.op) {
            let (at, moved) = (io.region_offset + before as usize, (op.done_bytes - before) as usize);
            let copied = self.buffers.copy_bounce(bounce, io.region, at, moved, true);
            debug_assert!(copied.is_some(), "checked when it was taken");
        }
        match next {
            Next::Finish(result) => return self.finish(key, result, now),
            Next::Ended => {
                file.look();
                return self.finish(key, Err(IoError::Truncated), now);
            }
            Next::Again => {}
            Next::OtherZeroing => file.zeroing_fell_back(op.zeroing),
            Next::Bounce => op.must_bounce = true,
        }
        self.waiting.push_back(key);
    }

    /// Takes the answer to [`watch`](Self::watch).
    fn watched(&mut self, place: usize, result: i32) {
        let asked_in = self.watching[place].take();
        if let (0, Some(tenant), Some(asked_in)) = (result, &self.tenants[place], asked_in)
            && let Ok(len_bytes) = self.buffers.answered_len(place as u16)
        {
            tenant.file.found(len_bytes, asked_in);
        }
    }

    pub(super) fn finish(&mut self, key: Key, result: Result<(), IoError>, now: Time) {
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
}
