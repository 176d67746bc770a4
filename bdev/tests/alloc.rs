//! After start nothing allocates: a counting allocator says so for every device and wrapper.

#[path = "../../tests/common/counting.rs"]
mod counting;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bdev::delay::{DelayBdev, Hold};
use bdev::error::{ErrorBdev, Fault};
use bdev::malloc::{MallocBdev, MallocOptions};
use bdev::null::{NullBdev, NullOptions};
use bdev::sim::{SimBdev, SimOptions};
use bdev::testing::wait_readable;
use bdev::uring::{UringBdev, UringOptions};
use bdev::{Bdev, BlockQueue, Completion, Io, IoError, IoId, Op, OpKind};
use counting::allocations;
use reactors::memory::Region;
use reactors::time::Time;

const DEPTH: usize = 32;
const DISK_BYTES: u64 = 4 << 20;

/// Rounds of operations of every kind, some of them cancelled, with buffers aligned or not.
fn rounds(
    queue: &mut dyn BlockQueue,
    region: bdev::RegionId,
    completions: &mut Vec<Completion>,
    rounds: u64,
) {
    let ops =
        [Op::Read, Op::Write { fua: false }, Op::Write { fua: true }, Op::Flush, Op::Unmap, Op::WriteZeroes];
    let mut now = Time::ZERO;
    for round in 0..rounds {
        for n in 0..DEPTH as u64 {
            let op = ops[((n + round) % 6) as usize];
            let len_bytes = if op == Op::Flush { 0 } else { 4096 };
            let region_offset = n as usize * 8192 + if n % 4 == 0 { 4096 - 68 } else { 0 };
            let io = Io { id: IoId(n), op, offset_bytes: n * 4096, len_bytes, region, region_offset };
            assert_eq!(queue.submit(io), Ok(()));
        }
        queue.cancel(IoId(round % DEPTH as u64));
        while queue.in_flight() > 0 {
            now += Duration::from_micros(50);
            completions.clear();
            queue.poll(now, completions);
            assert!(
                completions
                    .iter()
                    .all(|done| matches!(done.result, Ok(()) | Err(IoError::Cancelled | IoError::Medium(_))))
            );
            let deadline = queue.next_deadline();
            if deadline != Time::NEVER {
                now = now.max(deadline);
            } else if let Some(fd) = queue.wait_fd().filter(|_| completions.is_empty()) {
                wait_readable(fd, Duration::from_millis(1));
            }
        }
    }
}

fn allocates_nothing(device: &dyn Bdev) {
    let mut queue = device.open_queue(DEPTH).unwrap();
    let region = queue.register(&Region::heap(DEPTH * 8192)).unwrap();
    let mut completions = Vec::with_capacity(DEPTH);
    rounds(&mut *queue, region, &mut completions, 1);
    let before = allocations();
    rounds(&mut *queue, region, &mut completions, 20);
    assert_eq!(allocations() - before, 0, "{} allocated on the fast path", device.product());
    assert!(device.stats().of(OpKind::Read).ops > 0);
}

fn malloc() -> Arc<dyn Bdev> {
    let options = MallocOptions { len_bytes: DISK_BYTES, block_bytes: 512, read_only: false, uuid: None };
    Arc::new(MallocBdev::create("m0", &options).unwrap())
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations() - before, 1);
}

#[test]
fn memory_devices() {
    allocates_nothing(&*malloc());
    let options = NullOptions { len_bytes: DISK_BYTES, block_bytes: 512, read_only: false, uuid: None };
    allocates_nothing(&NullBdev::create("n0", &options).unwrap());
}

#[test]
fn wrappers() {
    for hold in [Hold::Before, Hold::After] {
        let delay = DelayBdev::new("d0", malloc(), hold);
        delay.set_latencies_us(100);
        allocates_nothing(&delay);
    }
    let error = ErrorBdev::new("e0", malloc());
    error.inject(OpKind::Write, Fault::Fail(IoError::Medium(5)), 100);
    error.inject(OpKind::Read, Fault::Corrupt { offset: 1, value: 1 }, 20);
    allocates_nothing(&error);
}

#[test]
fn files_by_uring() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(DISK_BYTES).unwrap();
    for buffered in [false, true] {
        let options = UringOptions { buffered, ..UringOptions::default() };
        allocates_nothing(&UringBdev::open("u0", &path, &options).unwrap());
    }
}

/// The simulated disk keeps a set of dirty blocks, which is no fast path; it still runs.
#[test]
fn the_simulated_disk_runs_the_same_rounds() {
    let device = SimBdev::create("s0", &SimOptions::faultless(DISK_BYTES, 1)).unwrap();
    let mut queue = device.open_queue(DEPTH).unwrap();
    let region = queue.register(&Region::heap(DEPTH * 8192)).unwrap();
    rounds(&mut *queue, region, &mut Vec::with_capacity(DEPTH), 20);
    let total: u64 =
        OpKind::ALL.iter().map(|&kind| device.stats().of(kind).ops + device.stats().of(kind).cancelled).sum();
    assert_eq!(total, 20 * DEPTH as u64);
}
