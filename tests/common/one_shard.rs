//! One shard of a target on the thread of a test or a bench, with one disk.

use std::sync::{Arc, mpsc};

use bdev::Bdev;
use reactors::arena::HugePages;
use reactors::clock::Clock;
use reactors::poller::Poller;
use reactors::ring::{Mailbox, Sender};
use reactors::stats::ReactorStats;
use reactors::time::Time;
use reactors::wake::Waker;
use srpoll::target::access::AccessList;
use srpoll::target::fabric::Fabric;
use srpoll::target::handle::{Command, ReplySlot, Request};
use srpoll::target::limits::Limits;
use srpoll::target::listener::Listener;
use srpoll::target::message::{Message, Peers};
use srpoll::target::shard::{Shard, ShardSeed};
use srpoll::target::snapshot::{Identity, LunEntry, Snapshot};

/// A shard with `disk` as LUN 0 that listens; its inbox must stay.
pub(crate) fn listening<F: Fabric>(
    device: F,
    disk: Arc<dyn Bdev>,
    limits: Limits,
    clock: Option<Clock>,
    listener: Listener,
) -> (Shard<F>, Sender<Message>) {
    let waker = Waker::new().expect("an eventfd");
    let (sender, inbox) = Mailbox::new(64, &waker);
    let lun = LunEntry {
        lun: 0,
        uuid: disk.uuid(),
        bdev: disk,
        naa: 0x3000_0000_0000_0001,
        serial: "1".to_owned(),
        read_only: false,
        fences: Arc::default(),
    };
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
        clock,
    };
    let mut shard = Shard::new(seed, device, fastrand::Rng::with_seed(1)).expect("memory");
    let (to, _answers) = mpsc::channel();
    let command = Command { request: Request::AddListener(listener), reply: ReplySlot::new(0, to) };
    sender.send(Message::Control(command)).expect("room");
    // The listener is there before anybody asks.
    let now = || clock.map_or(Time::ZERO, |clock| clock.now());
    for _ in 0..10 {
        shard.poll(now());
    }
    (shard, sender)
}
