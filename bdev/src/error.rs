//! A device that fails on demand: another device, some of whose operations fail, hang, meet a full
//! queue or get a wrong byte. The words are those of SPDK's `bdev_error_inject_error`.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactors::memory::Region;
use reactors::time::Time;
use uuid::Uuid;

use crate::check::{Below, admit};
use crate::device::{Bdev, BlockQueue, Geometry};
use crate::io::{Completion, Io, IoError, IoId, Op, OpKind, OpenError, RegionId, SubmitError};
use crate::stats::{DeviceStats, IoStats, QueueStats};

/// What happens to an operation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It fails without reaching the device (SPDK: `failure`).
    Fail(IoError),
    /// It hangs (SPDK: `pending`) until faults of its kind are cleared; then it goes on.
    Pending {
        /// Cancelling it does not help either.
        stubborn: bool,
    },
    /// The queue says that it is full (SPDK: `nomem`).
    NoMemory,
    /// A byte of its buffer is wrong: of what is written, before; of what is read, afterwards
    /// (SPDK: `corrupt_data`).
    Corrupt {
        /// Which byte of the buffer; counted modulo its length.
        offset: u32,
        /// What that byte becomes.
        value: u8,
    },
}

type Faults = [Option<(Fault, u64)>; OpKind::COUNT];

struct Shared {
    /// Whether there is any fault: all that the fast path looks at.
    armed: AtomicBool,
    faults: Mutex<Faults>,
    /// By kind: how often what hangs was let go.
    released: [AtomicU64; OpKind::COUNT],
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of the next operation of `kind`, used up by one.
    fn take(&self, kind: OpKind) -> Option<Fault> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        let mut faults = self.lock();
        let place = &mut faults[kind.index()];
        let (fault, left) = (*place)?;
        *place = left.checked_sub(1).filter(|&left| left > 0).map(|left| (fault, left));
        self.armed.store(faults.iter().any(Option::is_some), Ordering::Relaxed);
        Some(fault)
    }
}

/// A device that fails on demand.
pub struct ErrorBdev {
    name: String,
    uuid: Uuid,
    base: Arc<dyn Bdev>,
    shared: Arc<Shared>,
    stats: DeviceStats,
}

impl ErrorBdev {
    /// A device over `base` that does not fail yet.
    pub fn new(name: &str, base: Arc<dyn Bdev>) -> ErrorBdev {
        let shared = Shared {
            armed: AtomicBool::new(false),
            faults: Mutex::new([None; OpKind::COUNT]),
            released: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        ErrorBdev {
            name: name.to_owned(),
            uuid: Uuid::new_v5(&base.uuid(), b"error"),
            base,
            shared: Arc::new(shared),
            stats: DeviceStats::default(),
        }
    }

    /// The same device with another identity than the one derived from its base.
    pub fn with_uuid(self, uuid: Uuid) -> ErrorBdev {
        ErrorBdev { uuid, ..self }
    }

    /// The next `count` operations of `kind` have `fault`, in place of what was said before.
    pub fn inject(&self, kind: OpKind, fault: Fault, count: u64) {
        let mut faults = self.shared.lock();
        faults[kind.index()] = (count > 0).then_some((fault, count));
        self.shared.armed.store(faults.iter().any(Option::is_some), Ordering::Relaxed);
    }

    /// As [`inject`](Self::inject), for each kind of operation.
    pub fn inject_all(&self, fault: Fault, count: u64) {
        OpKind::ALL.into_iter().for_each(|kind| self.inject(kind, fault, count));
    }

    /// No more faults for operations of `kind`; those that hang go on.
    pub fn clear(&self, kind: OpKind) {
        self.inject(kind, Fault::NoMemory, 0);
        self.shared.released[kind.index()].fetch_add(1, Ordering::Release);
    }

    /// No more faults at all; what hangs goes on.
    pub fn clear_all(&self) {
        OpKind::ALL.into_iter().for_each(|kind| self.clear(kind));
    }
}

impl Bdev for ErrorBdev {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> &'static str {
        "Error disk"
    }

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn base(&self) -> Option<&dyn Bdev> {
        Some(&*self.base)
    }

    /// What the device below did, for anybody, and the failures that were injected here.
    fn stats(&self) -> IoStats {
        let mut stats = self.base.stats();
        stats.merge(&self.stats.read());
        stats
    }

    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        Ok(Box::new(ErrorQueue {
            base: self.base.open_queue(depth)?,
            device: Arc::clone(&self.base),
            shared: Arc::clone(&self.shared),
            regions: Below::new(),
            depth,
            done: VecDeque::with_capacity(depth),
            hanging: VecDeque::with_capacity(depth),
            corrupting: Vec::with_capacity(depth),
            stats: self.stats.open_queue(),
        }))
    }
}

struct Hanging {
    io: Io,
    stubborn: bool,
    /// How often its kind had been let go when it began to hang.
    released: u64,
}

/// A read whose buffer gets a wrong byte when it is done.
struct Corrupting {
    id: IoId,
    region: RegionId,
    at: usize,
    value: u8,
}

struct ErrorQueue {
    base: Box<dyn BlockQueue>,
    device: Arc<dyn Bdev>,
    shared: Arc<Shared>,
    regions: Below,
    depth: usize,
    /// Ends that the next poll tells.
    done: VecDeque<(Io, IoError)>,
    hanging: VecDeque<Hanging>,
    corrupting: Vec<Corrupting>,
    stats: QueueStats,
}

impl ErrorQueue {
    fn hand_down(&mut self, io: &Io) -> Result<(), SubmitError> {
        self.base.submit(Io { region: self.regions.below(io.region), ..*io })
    }

    fn corrupt(&mut self, io: &Io, offset: u32, value: u8) -> Result<(), SubmitError> {
        if !io.op.has_buffer() || io.len_bytes == 0 {
            return self.hand_down(io);
        }
        let at = io.region_offset + (u64::from(offset) % io.len_bytes) as usize;
        if io.op == Op::Read {
            self.hand_down(io)?;
            self.corrupting.push(Corrupting { id: io.id, region: io.region, at, value });
            return Ok(());
        }
        if let Some(region) = self.regions.regions().get(io.region) {
            region.write(at, &[value]).map_err(|_| SubmitError::Invalid)?;
        }
        self.hand_down(io)
    }

    /// Lets go what hangs and was cleared; the device below may have no room yet.
    fn let_go(&mut self) {
        for _ in 0..self.hanging.len() {
            let Some(hanging) = self.hanging.pop_front() else { return };
            let released = self.shared.released[hanging.io.op.kind().index()].load(Ordering::Acquire);
            if released == hanging.released {
                self.hanging.push_back(hanging);
                continue;
            }
            match self.hand_down(&hanging.io) {
                Ok(()) => {}
                Err(SubmitError::Full) => self.hanging.push_back(hanging),
                Err(SubmitError::Invalid) => self.done.push_back((hanging.io, IoError::Truncated)),
            }
        }
    }
}

impl BlockQueue for ErrorQueue {
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.regions.register(&mut *self.base, region)
    }

    fn submit(&mut self, io: Io) -> Result<(), SubmitError> {
        if self.in_flight() >= self.depth {
            return Err(SubmitError::Full);
        }
        let valid = admit(&io, &self.device.geometry(), self.regions.regions())?;
        let fault = valid.ok().and_then(|()| self.shared.take(io.op.kind()));
        match fault {
            None => self.hand_down(&io),
            Some(Fault::NoMemory) => Err(SubmitError::Full),
            Some(Fault::Corrupt { offset, value }) => self.corrupt(&io, offset, value),
            Some(Fault::Fail(error)) => {
                self.done.push_back((io, error));
                Ok(())
            }
            Some(Fault::Pending { stubborn }) => {
                let released = self.shared.released[io.op.kind().index()].load(Ordering::Acquire);
                self.hanging.push_back(Hanging { io, stubborn, released });
                Ok(())
            }
        }
    }

    fn cancel(&mut self, id: IoId) {
        match self.hanging.iter().position(|hanging| hanging.io.id == id) {
            Some(at) if self.hanging[at].stubborn => {}
            Some(at) => {
                if let Some(hanging) = self.hanging.remove(at) {
                    self.done.push_back((hanging.io, IoError::Cancelled));
                }
            }
            None => self.base.cancel(id),
        }
    }

    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        self.let_go();
        while completions.len() < completions.capacity()
            && let Some((io, error)) = self.done.pop_front()
        {
            self.stats.count(io.op.kind(), io.len_bytes, now, now, Err(error));
            completions.push(Completion { id: io.id, result: Err(error) });
        }
        let first = completions.len();
        self.base.poll(now, completions);
        for completion in completions.iter().skip(first) {
            let Some(at) = self.corrupting.iter().position(|corrupting| corrupting.id == completion.id)
            else {
                continue;
            };
            let Corrupting { region, at, value, .. } = self.corrupting.swap_remove(at);
            if let Some(region) = self.regions.regions().get(region) {
                let written = region.write(at, &[value]);
                debug_assert!(written.is_ok(), "checked when it was taken");
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.done.len() + self.hanging.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.base.wait_fd()
    }

    fn next_deadline(&self) -> Time {
        if self.done.is_empty() { self.base.next_deadline() } else { Time::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::malloc::{MallocBdev, MallocOptions};
    use crate::testing::Driver;

    const WRITE: Op = Op::Write { fua: false };

    fn device() -> ErrorBdev {
        let options = MallocOptions { len_bytes: 1 << 20, block_bytes: 512, read_only: false, uuid: None };
        ErrorBdev::new("e0", Arc::new(MallocBdev::create("m0", &options).unwrap()))
    }

    #[test]
    fn as_many_fail_as_were_asked_for() {
        let device = device();
        let mut driver = Driver::open(&device, 4);
        device.inject(OpKind::Write, Fault::Fail(IoError::Medium(5)), 2);
        assert_eq!(driver.write(0, &[1; 512]), Err(IoError::Medium(5)));
        assert_eq!(driver.read(0, 512).unwrap(), [0; 512], "other kinds do not fail");
        assert_eq!(driver.write(0, &[1; 512]), Err(IoError::Medium(5)));
        assert_eq!(driver.write(0, &[1; 512]), Ok(()));
        let writes = *device.stats().of(OpKind::Write);
        assert_eq!((writes.ops, writes.errors), (1, 2));
        assert_eq!(driver.try_submit(Op::Read, 1 << 20, 512), Err(SubmitError::Invalid));
    }

    #[test]
    fn what_hangs_can_be_cancelled_or_let_go() {
        let device = device();
        let mut driver = Driver::open(&device, 4);
        device.inject(OpKind::Write, Fault::Pending { stubborn: false }, 1);
        let write = driver.try_submit(WRITE, 0, 512).unwrap();
        assert!((0..100).all(|_| driver.poll().is_empty()));
        driver.queue().cancel(write);
        assert_eq!(driver.wait(write), Err(IoError::Cancelled));

        device.inject(OpKind::Write, Fault::Pending { stubborn: true }, 1);
        driver.region().fill(0, 512, 4).unwrap();
        let write = driver.try_submit(WRITE, 0, 512).unwrap();
        driver.queue().cancel(write);
        assert!((0..100).all(|_| driver.poll().is_empty()), "it is stubborn");
        assert_eq!(driver.queue().in_flight(), 1);
        device.clear(OpKind::Read);
        assert!(driver.poll().is_empty(), "another kind was cleared");
        device.clear(OpKind::Write);
        assert_eq!(driver.wait(write), Ok(()));
        assert_eq!(driver.read(0, 512).unwrap(), [4; 512]);
    }

    #[test]
    fn one_byte_is_wrong_and_only_that() {
        let device = device();
        let mut driver = Driver::open(&device, 4);
        driver.write(0, &[1; 512]).unwrap();
        device.inject(OpKind::Read, Fault::Corrupt { offset: 515, value: 0xff }, 1);
        let mut expect = vec![1; 512];
        assert_eq!(driver.read(0, 512).unwrap(), {
            expect[3] = 0xff;
            expect.clone()
        });
        assert_eq!(driver.read(0, 512).unwrap(), [1; 512]);
        device.inject(OpKind::Write, Fault::Corrupt { offset: 3, value: 0xff }, 1);
        driver.write(0, &[1; 512]).unwrap();
        assert_eq!(driver.read(0, 512).unwrap(), expect);
    }

    #[test]
    fn no_memory_is_a_full_queue_once() {
        let device = device();
        let mut driver = Driver::open(&device, 4);
        device.inject_all(Fault::NoMemory, 1);
        assert_eq!(driver.try_submit(Op::Read, 0, 512), Err(SubmitError::Full));
        assert!(driver.read(0, 512).is_ok());
        device.clear_all();
        assert!(driver.write(0, &[0; 512]).is_ok());
    }
}
