//! After start no command costs the target an allocation, from the datagram to the response: one
//! shard on the soft provider, on this thread, while an initiator on another one reads and writes.

#[path = "common/counting.rs"]
mod counting;
#[path = "common/verified_load.rs"]
mod verified_load;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use bdev::malloc::{MallocBdev, MallocOptions};
use counting::allocations;
use reactors::arena::HugePages;
use reactors::clock::Clock;
use reactors::poller::Poller;
use reactors::ring::{Mailbox, Sender};
use reactors::stats::ReactorStats;
use reactors::wake::Waker;
use srpoll::initiator::load::Watch;
use srpoll::rdma::soft::{self, DeviceConfig};
use srpoll::target::access::AccessList;
use srpoll::target::handle::{Command, ReplySlot, Request};
use srpoll::target::limits::{Limits, Wishes};
use srpoll::target::message::{Message, Peers};
use srpoll::target::shard::{Shard, ShardSeed};
use srpoll::target::snapshot::{Identity, LunEntry, Snapshot};
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
    let waker = Waker::new().unwrap();
    let (sender, inbox) = Mailbox::new(64, &waker);
    let options = MallocOptions { len_bytes: 16 << 20, block_bytes: 512, read_only: false, uuid: None };
    let disk = Arc::new(MallocBdev::create("disk", &options).unwrap());
    let lun = LunEntry {
        lun: 0,
        uuid: bdev::Bdev::uuid(&*disk),
        bdev: disk,
        naa: 0x3000_0000_0000_0001,
        serial: "1".to_owned(),
        read_only: false,
        fences: Arc::default(),
    };
    let limits = Limits::new(&Wishes { memory_bytes: 8 << 20, ..Wishes::default() }).unwrap();
    let snapshot = Arc::new(Snapshot {
        epoch: 1,
        identity: Some(Identity { id_ext: 1, ioc_guid: 2 }),
        luns: vec![lun],
        access: AccessList::default(),
        limits,
    });
    let seed = ShardSeed {
        index: 0,
        core: None,
        snapshot,
        hugepages: HugePages::Off,
        inbox,
        peers: Peers::new(vec![sender.clone()], limits.tasks as usize),
        seatings: Arc::default(),
        stats: Arc::new(ReactorStats::default()),
        clock: Some(Clock::get()),
    };
    let mut device = DeviceConfig::new(3);
    device.in_process = false;
    let shard = Shard::new(seed, soft::Device::new(device), fastrand::Rng::new()).unwrap();
    let (to, _answers) = mpsc::channel();
    let request = Request::AddListener(SocketAddr::new(address, PORT).into());
    let command = Command { request, reply: ReplySlot::new(0, to) };
    sender.send(Message::Control(command)).unwrap();
    (shard, sender)
}

#[test]
fn a_command_allocates_nothing() {
    let pid = std::process::id();
    let address = move |last| IpAddr::from([127, 0x60 | (pid >> 8 & 0x1f) as u8, pid as u8, last]);
    let (mut shard, _inbox) = shard(address(1));
    let clock = Clock::get();
    // The listener is there before anybody asks.
    for _ in 0..10 {
        shard.poll(clock.now());
    }
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
