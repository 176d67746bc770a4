//! After start no command costs the target an allocation, from the datagram to the response: one
//! shard on the soft provider, on this thread, while an initiator on another one reads and writes.

#[path = "common/counting.rs"]
mod counting;
#[path = "common/one_shard.rs"]
mod one_shard;
#[path = "common/verified_load.rs"]
mod verified_load;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bdev::malloc::{MallocBdev, MallocOptions};
use counting::allocations;
use reactors::clock::Clock;
use reactors::poller::Poller;
use reactors::ring::Sender;
use srpoll::initiator::load::Watch;
use srpoll::rdma::soft::{self, DeviceConfig};
use srpoll::target::limits::{Limits, Wishes};
use srpoll::target::message::Message;
use srpoll::target::shard::Shard;
use verified_load::{IOS, PORT, WARM_TURNS};

/// Tells the target's thread when the initiator is warm and when its load has ended.
struct Marks {
    turns: u32,
    warm: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Watch for Marks {
    fn interrupted(&mut self) -> bool {
        self.turns += 1;
        self.warm.fetch_or(self.turns == WARM_TURNS, Ordering::AcqRel);
        false
    }

    fn measured(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

fn shard(address: IpAddr) -> (Shard<soft::Device>, Sender<Message>) {
    let options = MallocOptions { len_bytes: 16 << 20, block_bytes: 512, read_only: false, uuid: None };
    let disk = Arc::new(MallocBdev::create("disk", &options).unwrap());
    let limits = Limits::new(&Wishes { memory_bytes: 8 << 20, ..Wishes::default() }).unwrap();
    let mut device = DeviceConfig::new(3);
    device.in_process = false;
    let listener = SocketAddr::new(address, PORT).into();
    one_shard::listening(soft::Device::new(device), disk, limits, Some(Clock::get()), listener)
}

#[test]
fn a_command_allocates_nothing() {
    let pid = std::process::id();
    let address = move |last| IpAddr::from([127, 0x60 | (pid >> 8 & 0x1f) as u8, pid as u8, last]);
    let (mut shard, _inbox) = shard(address(1));
    let clock = Clock::get();
    let (warm, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut marks = Marks { turns: 0, warm: Arc::clone(&warm), over: Arc::clone(&over) };
    let initiator = std::thread::spawn(move || verified_load::run(address(2), address(1), &mut marks));
    let (mut before, mut counted) = (None, None);
    while !initiator.is_finished() {
        shard.poll(clock.now());
        if before.is_none() && warm.load(Ordering::Acquire) {
            before = Some(allocations());
        }
        if counted.is_none() && over.load(Ordering::Acquire) {
            counted = before.map(|before| allocations() - before);
        }
    }
    initiator.join().unwrap();
    assert!(shard.counts().commands > IOS);
    assert_eq!(counted, Some(0), "allocations between the warm turn and the end");
}
