//! Random operations against a model: a vector of bytes. Whatever the device, its queue depth and
//! the alignment of buffers, reads give what was written.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bdev::delay::{DelayBdev, Hold};
use bdev::malloc::{MallocBdev, MallocOptions};
use bdev::sim::{SimBdev, SimOptions};
use bdev::testing::Driver;
use bdev::uring::{UringBdev, UringOptions};
use bdev::{Bdev, IoError, IoId, Op, SubmitError};
use proptest::prelude::*;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 512;
/// Bytes of the driver's buffer that one operation has for itself.
const SLOT: usize = 64 << 10;
const DEPTH: usize = 8;

#[derive(Clone, Debug)]
struct Step {
    op: Op,
    block: u64,
    blocks: u64,
    shift: usize,
    /// Wait for something, or cancel one, before this step.
    settle: bool,
    cancel: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        4 => Just(Op::Read),
        4 => any::<bool>().prop_map(|fua| Op::Write { fua }),
        1 => Just(Op::Flush),
        1 => Just(Op::Unmap),
        1 => Just(Op::WriteZeroes),
    ];
    let shift = prop_oneof![Just(0_usize), Just(512), Just(4096 - 68), 0..4096_usize];
    let step = (op, 0..BLOCKS, 1..=64_u64, shift, prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    let step = step.prop_map(|(op, block, blocks, shift, settle, cancel)| {
        let blocks = blocks.min(BLOCKS - block);
        Step { op, block, blocks, shift, settle, cancel }
    });
    prop::collection::vec(step, 1..60)
}

/// What is in flight: two operations on one block at a time have no defined order, unless both
/// read.
struct Flight {
    step: Step,
    slot: usize,
    fill: u8,
}

struct Run {
    driver: Driver,
    model: Vec<u8>,
    in_flight: BTreeMap<u64, Flight>,
    free: Vec<usize>,
    /// Unmapped blocks read as zeroes.
    unmaps: bool,
}

impl Run {
    fn new(device: &dyn Bdev) -> Run {
        Run {
            driver: Driver::open(device, DEPTH),
            model: vec![0; (BLOCKS * BLOCK) as usize],
            in_flight: BTreeMap::new(),
            free: (0..DEPTH).collect(),
            unmaps: device.geometry().unmap,
        }
    }

    fn settle(&mut self) {
        for completion in self.driver.wait_some() {
            let flight = self.in_flight.remove(&completion.id.0).expect("each operation ends once");
            self.free.push(flight.slot);
            self.check(&flight, completion.result);
        }
    }

    fn check(&mut self, flight: &Flight, result: Result<(), IoError>) {
        let Flight { step, slot, fill } = flight;
        let (at, len) = ((step.block * BLOCK) as usize, (step.blocks * BLOCK) as usize);
        let model = &mut self.model[at..at + len];
        let buffer = *slot * SLOT + step.shift;
        match (step.op, result) {
            (Op::Unmap, Err(IoError::Unsupported)) if !self.unmaps => {}
            (_, Err(IoError::Cancelled)) => {}
            (_, Err(error)) => panic!("{step:?}: {error}"),
            (Op::Read, Ok(())) => {
                let same = self.driver.region().with_bytes(buffer, len, |bytes| bytes == model).unwrap();
                assert!(same, "{step:?} read something else");
            }
            (Op::Write { .. }, Ok(())) => model.fill(*fill),
            (Op::Unmap | Op::WriteZeroes, Ok(())) => model.fill(0),
            (Op::Flush, Ok(())) => {}
        }
    }

    fn conflicts(&self, step: &Step) -> bool {
        let overlaps =
            |other: &Step| step.block < other.block + other.blocks && other.block < step.block + step.blocks;
        let touches = |op: Op| op != Op::Flush;
        let changes = |op: Op| op.is_write();
        self.in_flight.values().map(|flight| &flight.step).any(|other| {
            touches(step.op)
                && touches(other.op)
                && (changes(step.op) || changes(other.op))
                && overlaps(other)
        })
    }

    fn step(&mut self, step: &Step, fill: u8) {
        if step.settle && !self.in_flight.is_empty() {
            self.settle();
        }
        while self.free.is_empty() || self.conflicts(step) {
            self.settle();
        }
        let slot = self.free.pop().expect("a free slot");
        let buffer = slot * SLOT + step.shift;
        let len = step.blocks * BLOCK;
        self.driver.region().fill(buffer, len as usize, fill).unwrap();
        let (offset, len) = if step.op == Op::Flush { (0, 0) } else { (step.block * BLOCK, len) };
        let id = loop {
            match self.driver.try_submit_at(step.op, offset, len, buffer) {
                Ok(id) => break id,
                Err(SubmitError::Full) => self.settle(),
                Err(error) => panic!("{step:?}: {error}"),
            }
        };
        self.in_flight.insert(id.0, Flight { step: step.clone(), slot, fill });
        if step.cancel {
            let oldest = self.in_flight.keys().next().copied();
            oldest.into_iter().for_each(|id| self.driver.queue().cancel(IoId(id)));
        }
    }

    fn finish(mut self) {
        while !self.in_flight.is_empty() {
            self.settle();
        }
        assert_eq!(self.driver.queue().in_flight(), 0);
        let all = self.driver.read(0, self.model.len()).unwrap();
        let differs = all.iter().zip(&self.model).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "the device differs from the model");
    }
}

fn check(device: &dyn Bdev, steps: &[Step]) {
    let mut run = Run::new(device);
    for (n, step) in steps.iter().enumerate() {
        run.step(step, n as u8 + 1);
    }
    run.finish();
}

fn malloc() -> MallocBdev {
    let options = MallocOptions { len_bytes: BLOCKS * BLOCK, block_bytes: 512, read_only: false, uuid: None };
    MallocBdev::create("m0", &options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory(steps in steps()) {
        check(&malloc(), &steps);
    }

    #[test]
    fn delayed_memory(steps in steps(), before in any::<bool>()) {
        let device = DelayBdev::new("d0", Arc::new(malloc()), if before { Hold::Before } else { Hold::After });
        device.set_latencies_us(500);
        check(&device, &steps);
    }

    #[test]
    fn file(steps in steps(), buffered in any::<bool>()) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(BLOCKS * BLOCK).unwrap();
        let options = UringOptions { buffered, ..UringOptions::default() };
        check(&UringBdev::open("u0", &path, &options).unwrap(), &steps);
    }

    #[test]
    fn file_in_memory(steps in steps()) {
        // tmpfs: no alignment is told, and zeroes are written by punching holes.
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return Ok(()) };
        let path = folder.path().join("disk");
        File::create(&path).unwrap().set_len(BLOCKS * BLOCK).unwrap();
        check(&UringBdev::open("u0", &path, &UringOptions::default()).unwrap(), &steps);
    }

    #[test]
    fn simulated(steps in steps(), seed in any::<u64>()) {
        let options = SimOptions {
            stalls: 500,
            stall: Duration::from_secs(1),
            full: 1_000,
            ..SimOptions::faultless(BLOCKS * BLOCK, seed)
        };
        check(&SimBdev::create("s0", &options).unwrap(), &steps);
    }
}
