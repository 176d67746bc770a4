//! Block devices for rigs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bdev::Bdev;
use bdev::delay::{DelayBdev, Hold};
use bdev::error::ErrorBdev;
use bdev::malloc::{MallocBdev, MallocOptions};
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
