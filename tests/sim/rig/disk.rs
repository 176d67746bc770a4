//! Block devices for rigs.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bdev::stats::IoStats;
use bdev::{Bdev, BlockQueue, Completion, Geometry, Io, IoId, OpenError, RegionId, SubmitError};
use reactors::memory::Region;
use reactors::time::Time;
use uuid::Uuid;

use bdev::delay::{DelayBdev, Hold};
use bdev::error::ErrorBdev;
use bdev::malloc::{MallocBdev, MallocOptions};
use bdev::null::{NullBdev, NullOptions};
use bdev::sim::{SimBdev, SimOptions};
use bdev::testing::Driver;

fn name(kind: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{kind}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A disk in memory of that many MiB, blocks of 512 bytes.
pub fn malloc(mib: u64) -> Arc<dyn Bdev> {
    let options = MallocOptions { len_bytes: mib << 20, block_bytes: 512, read_only: false, uuid: None };
    Arc::new(MallocBdev::create(&name("malloc"), &options).unwrap())
}

/// A disk of zeroes of that many MiB.
pub fn null(mib: u64) -> Arc<dyn Bdev> {
    let options = NullOptions { len_bytes: mib << 20, block_bytes: 512, read_only: false, uuid: None };
    Arc::new(NullBdev::create(&name("null"), &options).unwrap())
}

/// A disk in memory whose operations can be made to last.
pub fn delayed(mib: u64, hold: Hold) -> Arc<DelayBdev> {
    Arc::new(DelayBdev::new(&name("delay"), malloc(mib), hold))
}

/// A disk in memory whose operations can be made to fail.
pub fn failing(mib: u64) -> Arc<ErrorBdev> {
    Arc::new(ErrorBdev::new(&name("error"), malloc(mib)))
}

/// A simulated disk.
pub fn sim(options: &SimOptions) -> Arc<SimBdev> {
    Arc::new(SimBdev::create(&name("sim"), options).unwrap())
}

/// What lies on the medium.
pub fn read(bdev: &dyn Bdev, offset: u64, len: usize) -> Vec<u8> {
    Driver::open(bdev, 1).read(offset, len).unwrap()
}

/// Puts bytes on the medium.
pub fn write(bdev: &dyn Bdev, offset: u64, bytes: &[u8]) {
    Driver::open(bdev, 1).write(offset, bytes).unwrap();
}

/// A disk that hangs where it is told to: operations that touch the hung range neither complete nor
/// can be cancelled until it is released; then they are done in reverse order, so that the oldest
/// write wins unless somebody held back the newer ones. Its capacity can be changed.
pub struct Hang {
    base: Arc<dyn Bdev>,
    shared: Arc<HangShared>,
}

#[derive(Default)]
struct HangShared {
    hung: Mutex<Option<Range<u64>>>,
    held: AtomicU64,
    blocks: AtomicU64,
}

impl Hang {
    pub fn new(mib: u64) -> Arc<Hang> {
        let base = malloc(mib);
        let shared = Arc::new(HangShared::default());
        shared.blocks.store(base.geometry().blocks, Ordering::Relaxed);
        Arc::new(Hang { base, shared })
    }

    /// From now on operations hang that touch these bytes.
    pub fn hang(&self, bytes: Range<u64>) {
        *self.shared.hung.lock().unwrap() = Some(bytes);
    }

    /// Everything goes on.
    pub fn release(&self) {
        *self.shared.hung.lock().unwrap() = None;
    }

    /// Operations that hang.
    pub fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }

    pub fn set_blocks(&self, blocks: u64) {
        self.shared.blocks.store(blocks, Ordering::Relaxed);
    }

    pub fn medium(&self) -> &dyn Bdev {
        &*self.base
    }
}

impl Bdev for Hang {
    fn name(&self) -> &str {
        self.base.name()
    }
    fn product(&self) -> &'static str {
        "Hanging disk"
    }
    fn uuid(&self) -> Uuid {
        self.base.uuid()
    }
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.shared.blocks.load(Ordering::Relaxed), ..self.base.geometry() }
    }
    fn stats(&self) -> IoStats {
        self.base.stats()
    }
    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        let base = self.base.open_queue(depth)?;
        Ok(Box::new(HangQueue { base, shared: Arc::clone(&self.shared), held: VecDeque::new() }))
    }
}

struct HangQueue {
    base: Box<dyn BlockQueue>,
    shared: Arc<HangShared>,
    held: VecDeque<Io>,
}

impl HangQueue {
    fn hangs(&self, io: &Io) -> bool {
        let hung = self.shared.hung.lock().unwrap();
        hung.as_ref()
            .is_some_and(|hung| io.offset_bytes < hung.end && hung.start < io.offset_bytes + io.len_bytes)
    }
}

impl BlockQueue for HangQueue {
    fn register(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        self.base.register(region)
    }
    fn submit(&mut self, io: Io) -> Result<(), SubmitError> {
        if !self.hangs(&io) {
            return self.base.submit(io);
        }
        self.held.push_back(io);
        self.shared.held.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn cancel(&mut self, _id: IoId) {}
    fn poll(&mut self, now: Time, completions: &mut Vec<Completion>) {
        if self.shared.hung.lock().unwrap().is_none() {
            while let Some(io) = self.held.pop_back() {
                self.shared.held.fetch_sub(1, Ordering::Relaxed);
                self.base.submit(io).expect("it was valid when it was taken");
            }
        }
        self.base.poll(now, completions);
    }
    fn in_flight(&self) -> usize {
        self.base.in_flight() + self.held.len()
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn next_deadline(&self) -> Time {
        let released = self.shared.hung.lock().unwrap().is_none();
        if released && !self.held.is_empty() { Time::ZERO } else { self.base.next_deadline() }
    }
}
