//! Queues on a real reactor that sleeps whenever it can: no completion is slept through.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use bdev::malloc::{MallocBdev, MallocOptions};
use bdev::uring::{UringBdev, UringOptions};
use bdev::{Bdev, BlockQueue, Completion, Io, IoId, Op, OpenError, RegionId};
use reactors::memory::Region;
use reactors::poller::{Busy, Poller};
use reactors::reactor::{Idle, Reactor, ReactorConfig};
use reactors::time::Time;
use reactors::wake::Waker;

/// One operation at a time on each of its queues, until there were enough.
struct Chain {
    queues: Vec<(Box<dyn BlockQueue>, RegionId)>,
    completions: Vec<Completion>,
    left: u64,
}

impl Chain {
    fn open(devices: &[Arc<dyn Bdev>], operations: u64) -> Result<Chain, OpenError> {
        let region = Region::heap(4096);
        let open = |device: &Arc<dyn Bdev>| {
            let mut queue = device.open_queue(1)?;
            let region = queue.register(&region)?;
            Ok((queue, region))
        };
        let queues = devices.iter().map(open).collect::<Result<_, OpenError>>()?;
        Ok(Chain { queues, completions: Vec::with_capacity(1), left: operations })
    }
}

impl Poller for Chain {
    fn poll(&mut self, now: Time) -> Busy {
        let mut busy = 0;
        for (queue, region) in &mut self.queues {
            self.completions.clear();
            queue.poll(now, &mut self.completions);
            for completion in &self.completions {
                assert_eq!(completion.result, Ok(()));
                busy += 1;
            }
            if queue.in_flight() == 0 && self.left > 0 {
                self.left -= 1;
                // A flush always takes the way through a worker of the kernel, a write of the
                // page cache or the disk's interrupt.
                let op = if self.left.is_multiple_of(2) { Op::Flush } else { Op::Write { fua: false } };
                let len_bytes = if op == Op::Flush { 0 } else { 4096 };
                let io = Io {
                    id: IoId(self.left),
                    op,
                    offset_bytes: 0,
                    len_bytes,
                    region: *region,
                    region_offset: 0,
                };
                queue.submit(io).expect("room for one");
                busy += 1;
            }
        }
        Busy(busy)
    }

    fn next_deadline(&self) -> Time {
        self.queues.iter().map(|(queue, _)| queue.next_deadline()).min().unwrap_or(Time::NEVER)
    }

    fn wait_fds(&self, fds: &mut Vec<RawFd>) {
        fds.extend(self.queues.iter().filter_map(|(queue, _)| queue.wait_fd()).map(|fd| fd.as_raw_fd()));
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.queues.iter().all(|(queue, _)| queue.in_flight() == 0)
    }
}

#[test]
fn a_sleeping_reactor_misses_no_completion() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = |name: &str, buffered| {
        let path = folder.path().join(name);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let options = UringOptions { buffered, ..UringOptions::default() };
        Arc::new(UringBdev::open(name, &path, &options).unwrap()) as Arc<dyn Bdev>
    };
    let options = MallocOptions { len_bytes: 1 << 20, block_bytes: 512, read_only: false, uuid: None };
    let memory = Arc::new(MallocBdev::create("m0", &options).unwrap()) as Arc<dyn Bdev>;
    let devices = [open("direct", false), open("buffered", true), open("another", false), memory];
    let config = ReactorConfig {
        name: "bdev-test".into(),
        core: None,
        idle: Idle::Sleep { after: Duration::ZERO },
        waker: Waker::new().unwrap(),
    };
    let opened = devices.clone();
    let reactor = Reactor::spawn(config, move |_| Chain::open(&opened, 1_000)).unwrap();
    // Generous: it takes well under a second, and what is slept through is slept through for ever.
    for _ in 0..2_000 {
        if reactor.is_finished() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let done: u64 = devices
        .iter()
        .map(|device| {
            let stats = device.stats();
            bdev::OpKind::ALL.iter().map(|&kind| stats.of(kind).ops).sum::<u64>()
        })
        .sum();
    assert!(reactor.is_finished(), "it sleeps after {done} of 1000 operations");
    reactor.join().unwrap();
    assert_eq!(done, 1_000);
}
