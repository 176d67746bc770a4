//! A whole target on a virtual clock, in a world of initiators; all on this thread, all from one seed.
//!
//! Time stands still while anybody has something to do and jumps to the next deadline when
//! nobody has. The books of every shard are audited as often as the test wants.
//!
//! There are two worlds: [`net`], hosts on a simulated network, and [`scripted`], the far ends of an
//! adapter that misbehaves as told.

#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod answer;
pub mod cdb;
pub mod command;
pub mod disk;
pub mod net;
pub mod raw;
pub mod scripted;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bdev::Bdev;
use reactors::arena::HugePages;
use reactors::poller::Poller;
use reactors::ring::{Mailbox, Sender};
use reactors::stats::ReactorStats;
use reactors::time::Time;
use reactors::wake::Waker;
use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::sim::net::Faults;
use srpoll::target::access::AccessList;
use srpoll::target::fabric::Fabric;
use srpoll::target::handle::{Command, Reply, ReplySlot, Request, ShardStats};
use srpoll::target::limits::{INBOX_DEPTH, Limits, Wishes};
use srpoll::target::message::{Message, Peers};
use srpoll::target::shard::{Shard, ShardSeed};
use srpoll::target::snapshot::{Identity, LunEntry, Snapshot};
use srpoll::wire::srp::PortId;

use self::net::Net;

pub const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub const PORT: u16 = 5555;
pub const IDENTITY: Identity = Identity { id_ext: 0x1122_3344_5566_7788, ioc_guid: 0x0202_03ff_fe04_0506 };

/// The address of initiator host `number`.
pub fn host(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 10 + number))
}

/// The initiator port id of host `number`.
pub fn port_id(number: u8) -> PortId {
    PortId::new(0, 0x5054_00ff_fe00_0000 | u64::from(number))
}

pub fn target_id() -> PortId {
    PortId::new(IDENTITY.id_ext, IDENTITY.ioc_guid)
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a rig is made of.
pub struct Setup {
    pub seed: u64,
    pub shards: usize,
    pub faults: Faults,
    pub limits: Limits,
    pub luns: Vec<LunEntry>,
    pub access: Vec<&'static str>,
    pub engine: EngineConfig,
}

impl Setup {
    /// Two shards of 4 MiB (256 receive slots, three chunks) on a good network.
    pub fn new(luns: Vec<LunEntry>) -> Setup {
        Setup {
            seed: 1,
            shards: 2,
            faults: Faults::NONE,
            limits: limits(|_| {}),
            luns,
            access: vec!["any"],
            engine: EngineConfig::default(),
        }
    }
}

/// The smallest limits, changed.
pub fn limits(change: impl FnOnce(&mut Wishes)) -> Limits {
    let mut wishes =
        Wishes { memory_bytes: 4 << 20, max_channels: 64, max_sessions: 32, ..Wishes::default() };
    change(&mut wishes);
    Limits::new(&wishes).unwrap()
}

/// A logical unit on `bdev`.
pub fn lun(number: u16, bdev: Arc<dyn Bdev>) -> LunEntry {
    let uuid = bdev.uuid();
    LunEntry {
        lun: number,
        bdev,
        naa: 0x3001_0203_0405_0600 | u64::from(number),
        serial: format!("serial{number:02}"),
        uuid,
        read_only: false,
        fences: Arc::default(),
    }
}

/// What is around a target.
pub trait World {
    /// What the target runs on.
    type Fabric: Fabric;

    /// A turn of everybody but the target; gives how much there was to do.
    fn poll(&mut self, now: Time) -> usize;

    /// When somebody has something to do.
    fn next_deadline(&self) -> Time;
}

/// A target and its world, which it is used like.
pub struct Rig<W: World = Net> {
    pub world: W,
    pub now: Time,
    pub shards: Vec<Shard<W::Fabric>>,
    inboxes: Vec<Sender<Message>>,
    pub snapshot: Arc<Snapshot>,
    pub rng: fastrand::Rng,
    /// Audit the books after every turn.
    pub audits: bool,
    turns: u64,
}

impl<W: World> Deref for Rig<W> {
    type Target = W;
    fn deref(&self) -> &W {
        &self.world
    }
}

impl<W: World> DerefMut for Rig<W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.world
    }
}

impl<W: World> Rig<W> {
    /// A target on `devices`, without a listener.
    pub fn without_port(setup: &Setup, world: W, devices: Vec<W::Fabric>, mut rng: fastrand::Rng) -> Rig<W> {
        let rules = setup.access.iter().map(|rule| rule.parse().unwrap()).collect();
        let snapshot = Arc::new(Snapshot {
            epoch: 1,
            identity: Some(IDENTITY),
            luns: setup.luns.clone(),
            access: AccessList::new(rules),
            limits: setup.limits,
        });
        let waker = Waker::new().unwrap();
        let rings: Vec<_> = devices.iter().map(|_| Mailbox::new(INBOX_DEPTH, &waker)).collect();
        let inboxes: Vec<Sender<Message>> = rings.iter().map(|(sender, _)| sender.clone()).collect();
        let backlog = setup.limits.tasks as usize + 4 * setup.limits.max_channels as usize;
        let shards = rings.into_iter().zip(devices).enumerate().map(|(index, ((_, inbox), device))| {
            let seed = ShardSeed {
                index,
                core: None,
                snapshot: Arc::clone(&snapshot),
                hugepages: HugePages::Off,
                inbox,
                peers: Peers::new(inboxes.clone(), backlog),
                seatings: Arc::default(),
                stats: Arc::new(ReactorStats::default()),
                clock: None,
            };
            Shard::new(seed, device, rng.fork()).unwrap()
        });
        let shards = shards.collect();
        Rig { world, now: Time::from_nanos(1), shards, inboxes, snapshot, rng, audits: true, turns: 0 }
    }

    /// Serves the target's address on all shards.
    pub fn listen(&mut self) {
        for shard in 0..self.shards.len() {
            let reply = self.ask(shard, Request::AddListener(SocketAddr::new(TARGET, PORT).into()));
            assert!(matches!(reply, Reply::Done), "{reply:?}");
        }
    }

    /// Everybody works until nobody has anything to do now.
    fn settle_now(&mut self) {
        for _ in 0..100_000 {
            let mut busy = 0;
            for shard in &mut self.shards {
                busy += shard.poll(self.now).0;
            }
            busy += self.world.poll(self.now);
            self.turns += 1;
            if self.audits && self.turns.is_multiple_of(8) {
                self.audit();
            }
            if busy == 0 {
                return;
            }
        }
        panic!("somebody is busy for ever at {:?}", self.now);
    }

    fn next_deadline(&self) -> Time {
        let shards = self.shards.iter().map(Poller::next_deadline);
        shards.chain([self.world.next_deadline()]).min().unwrap_or(Time::NEVER)
    }

    /// One step: everything at this time, then on to the next thing, at most to `limit`.
    pub fn step(&mut self, limit: Time) {
        self.settle_now();
        let next = self.next_deadline().max(self.now + Duration::from_micros(1));
        self.now = next.min(limit).max(self.now);
    }

    /// Lets `time` pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step(end);
        }
        self.settle_now();
    }

    /// Runs until `done`, for a minute at most.
    pub fn until(&mut self, what: &str, done: impl FnMut(&mut Self) -> bool) {
        self.until_within(what, secs(60), done);
    }

    pub fn until_within(&mut self, what: &str, time: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + time;
        loop {
            self.settle_now();
            if done(self) {
                return;
            }
            assert!(
                self.now < end,
                "never: {what}; {:?}",
                self.shards.iter().map(|s| s.counts()).collect::<Vec<_>>()
            );
            self.step(end);
        }
    }

    /// Asks a shard; the answer comes out of the other end.
    pub fn post_request(&mut self, shard: usize, request: Request) -> mpsc::Receiver<(usize, Reply)> {
        let (to, answer) = mpsc::channel();
        let command = Command { request, reply: ReplySlot::new(shard, to) };
        self.inboxes[shard].send(Message::Control(command)).unwrap();
        answer
    }

    /// Asks a shard and waits.
    pub fn ask(&mut self, shard: usize, request: Request) -> Reply {
        let answer = self.post_request(shard, request);
        let mut reply = None;
        self.until("an answer of a shard", |_| {
            reply = answer.try_recv().ok().or(reply.take());
            reply.is_some()
        });
        reply.unwrap().1
    }

    /// Asks all shards at once and waits for all.
    pub fn ask_all(&mut self, request: &Request) -> Vec<Reply> {
        let answers: Vec<_> =
            (0..self.shards.len()).map(|shard| self.post_request(shard, request.clone())).collect();
        answers
            .into_iter()
            .map(|answer| {
                let mut reply = None;
                self.until("an answer of a shard", |_| {
                    reply = answer.try_recv().ok().or(reply.take());
                    reply.is_some()
                });
                reply.unwrap().1
            })
            .collect()
    }

    /// A new configuration for all shards, as the control plane sends it; waits.
    pub fn apply(&mut self, change: impl FnOnce(&mut Snapshot)) {
        let mut snapshot = Snapshot::clone(&self.snapshot);
        snapshot.epoch += 1;
        change(&mut snapshot);
        self.snapshot = Arc::new(snapshot);
        let request = Request::Apply(Arc::clone(&self.snapshot));
        for reply in self.ask_all(&request) {
            assert!(matches!(reply, Reply::Done), "{reply:?}");
        }
    }

    pub fn stats(&mut self, shard: usize) -> ShardStats {
        match self.ask(shard, Request::Stats) {
            Reply::Stats(stats) => *stats,
            other => panic!("{other:?}"),
        }
    }

    /// The sum over all shards of what is counted by this name.
    pub fn counter(&mut self, name: &str) -> u64 {
        let stats: Vec<_> = (0..self.shards.len()).map(|shard| self.stats(shard)).collect();
        let named = stats.iter().flat_map(|stats| &stats.counters).filter(|(other, _)| *other == name);
        named.map(|(_, count)| count).sum()
    }

    /// The books agree with what they count.
    pub fn audit(&self) {
        for (index, shard) in self.shards.iter().enumerate() {
            assert_eq!(shard.audit(), Vec::<String>::new(), "shard {index} at {:?}", self.now);
        }
    }

    /// Waits until nothing is left of any work, and says what is if it stays.
    pub fn clean(&mut self) {
        let end = self.now + secs(40);
        loop {
            self.settle_now();
            let left: Vec<_> = self.shards.iter().map(Shard::leftovers).collect();
            if left.iter().all(Vec::is_empty) {
                return;
            }
            assert!(self.now < end, "left over: {left:#?}");
            self.step(end);
        }
    }
}
