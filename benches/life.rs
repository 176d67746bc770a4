//! What the ends of channels cost those that live, and what a spare queue pair saves a login:
//! `cargo bench --bench life`.
//!
//! One shard on a simulated network, one thread. A latency here is the time that the shard's turns take
//! from the moment a command is handed to the network until its answer is there: what the target adds,
//! without system calls and without other threads, so that nothing hides what it adds. A turn that was
//! interrupted by another process says nothing about us and is left out, and counted.
//!
//! * `storm`: 64 channels die in one moment, each with commands at a disk that hangs; meanwhile one
//!   channel on the same shard reads 4 KiB at a time.
//! * `login`: from the request for a connection to the first answer, with a new queue pair and with a
//!   spare one. What a spare saves is memory that nobody has touched, so look at the mean, too; an
//!   adapter's queue pair costs more, and is not made here.
//!
//! Figures are of this run; compare them with each other, not with another machine.

#[path = "../tests/common/counting.rs"]
mod counting;
#[path = "../tests/sim/rig/mod.rs"]
mod rig;

use std::time::{Duration, Instant};

use reactors::poller::Poller;
use rig::command::cmd;
use rig::disk::{Hang, malloc};
use rig::raw::{Link, Login};
use rig::{Rig, Setup, cdb, lun, port_id, target_id};
use srpoll::rdma::verbs::Connections;
use srpoll::target::access::InitiatorId;
use srpoll::target::handle::{Request, SessionId};
use srpoll::wire::srp::{Cmd, DataBuffer};

const DYING: usize = 64;
/// Commands of each dying channel that hang at its disk.
const HANGING: usize = 4;
const ROUNDS: usize = 40;
/// Commands of the healthy channel before each storm.
const QUIET: usize = 200;
/// A turn that took longer was interrupted by another process.
const INTERRUPTED: Duration = Duration::from_micros(500);

fn main() {
    storm();
    login();
}

/// Time of the shard's turns, those that were interrupted, and what they allocated.
#[derive(Default)]
struct Stopwatch {
    interrupted: u64,
    allocations: u64,
}

impl Stopwatch {
    /// Everybody has a turn; gives what the shard's took, `None` if it was interrupted. Virtual time goes
    /// on by as much, and by a microsecond at least, so that packets travel while the shard works.
    fn turn(&mut self, rig: &mut Rig) -> Option<Duration> {
        let now = rig.now;
        let allocated = counting::allocations();
        let started = Instant::now();
        rig.shards[0].poll(now);
        let took = started.elapsed();
        self.allocations += counting::allocations() - allocated;
        for raw in &mut rig.raws {
            raw.poll(now);
        }
        rig.now += took.clamp(Duration::from_micros(1), INTERRUPTED);
        self.interrupted += u64::from(took > INTERRUPTED);
        (took <= INTERRUPTED).then_some(took)
    }

    /// A read of the healthy channel; `None` if a turn of it was interrupted.
    fn read(&mut self, rig: &mut Rig, raw: usize, channel: usize) -> Option<Duration> {
        let tag = rig.raws[raw].tag();
        let data_in = DataBuffer::Direct(rig.raws[raw].piece(0, 4096));
        rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_10(0, 8)) });
        let mut sum = Some(Duration::ZERO);
        while rig.answered(raw, channel, tag).is_none() {
            let took = self.turn(rig);
            sum = sum.and_then(|sum| Some(sum + took?));
        }
        sum
    }
}

fn percentile(latencies: &mut [Duration], percent: f64) -> f64 {
    latencies.sort();
    let at = ((latencies.len() - 1) as f64 * percent / 100.0).round() as usize;
    latencies[at].as_nanos() as f64 / 1000.0
}

/// In microseconds.
fn mean(latencies: &[Duration]) -> f64 {
    latencies.iter().sum::<Duration>().as_nanos() as f64 / latencies.len() as f64 / 1000.0
}

/// Slots for 64 channels with four credits and more.
fn big_rig(luns: Vec<srpoll::target::snapshot::LunEntry>) -> Rig {
    let limits = rig::limits(|wishes| {
        wishes.memory_bytes = 128 << 20;
        wishes.max_channels = 128;
        wishes.max_sessions = 128;
    });
    let mut rig = Rig::new(Setup { shards: 1, limits, ..Setup::new(luns) });
    rig.audits = false;
    rig
}

fn storm() {
    let disk = Hang::new(8);
    let mut rig = big_rig(vec![lun(0, malloc(8)), lun(1, disk.clone())]);
    let mut watch = Stopwatch::default();
    let healthy = rig.raw(0);
    let channel = rig.login(healthy);
    rig.ready(healthy, channel, 0);
    let (mut quiet, mut stormy, mut longest) = (Vec::new(), Vec::new(), 0);
    for round in 0..ROUNDS {
        // Another host each time: what a host has registered for its channels stays with it.
        let number = 1 + round as u8;
        let dying = rig.raw(number);
        let channels: Vec<usize> = (0..DYING).map(|_| rig.login_multi(dying)).collect();
        rig.ready(dying, channels[0], 1);
        disk.hang(0..8 << 20);
        for &channel in &channels {
            for _ in 0..HANGING {
                let tag = rig.raws[dying].tag();
                let data_in = DataBuffer::Direct(rig.raws[dying].piece(1 << 20, 512));
                rig.post(dying, channel, &Cmd { data_in, ..cmd(tag, 1, cdb::read_10(0, 1)) });
            }
        }
        rig.run(Duration::from_millis(5));
        quiet.extend((0..QUIET).filter_map(|_| watch.read(&mut rig, healthy, channel)));
        let before = rig.shards[0].counts();
        let session = SessionId { initiator: InitiatorId(port_id(number).0), target: target_id().0 };
        let _answer = rig.post_request(0, Request::Disconnect(session));
        let mut reads = 0;
        // Until the last queue pair is a spare, or destroyed because there are spares enough.
        let over = |rig: &Rig| {
            let now = rig.shards[0].counts();
            now.qps_recycled + now.qps_destroyed >= before.qps_recycled + before.qps_destroyed + DYING as u64
        };
        while !over(&rig) {
            stormy.extend(watch.read(&mut rig, healthy, channel));
            reads += 1;
        }
        longest = longest.max(reads);
        disk.release();
        rig.run(Duration::from_secs(2));
    }
    assert_eq!(rig.counter("ended_kicked"), (ROUNDS * DYING) as u64);
    println!(
        "storm: {DYING} channels of {HANGING} commands each die at once, {ROUNDS} times; one channel reads 4 KiB"
    );
    for (name, latencies) in [("quiet", &mut quiet), ("storm", &mut stormy)] {
        println!(
            "  {name}  {:6} reads  p50 {:7.2} us  p99 {:7.2} us  most {:7.2} us",
            latencies.len(),
            percentile(latencies, 50.0),
            percentile(latencies, 99.0),
            percentile(latencies, 100.0)
        );
    }
    let ratio = percentile(&mut stormy, 99.0) / percentile(&mut quiet, 99.0);
    println!("  p99 in the storm / p99 in the quiet: {ratio:.2} (goal: 2 at most)");
    println!("  {longest} reads in the longest storm; {} turns interrupted and left out", watch.interrupted);
}

fn login() {
    let mut watch = Stopwatch::default();
    let (mut fresh, mut spare) = (Vec::new(), Vec::new());
    let (mut allocated_fresh, mut allocated_spare) = (0, 0);
    for _ in 0..ROUNDS / 4 {
        // A target that nobody has logged in to has no spares.
        let mut rig = big_rig(vec![lun(0, malloc(8))]);
        let raw = rig.raw(0);
        for (latencies, allocated) in [(&mut fresh, &mut allocated_fresh), (&mut spare, &mut allocated_spare)]
        {
            let before = watch.allocations;
            for _ in 0..DYING {
                latencies.extend(log_in(&mut watch, &mut rig, raw));
            }
            *allocated += watch.allocations - before;
            for channel in 0..DYING {
                let now = rig.now;
                let conn = rig.raws[raw].channels[channel].conn.expect("it is live");
                rig.raws[raw].device.disconnect(now, conn).expect("it is connected");
            }
            rig.clean();
            rig.raws[raw].channels.clear();
        }
        assert_eq!((rig.counter("qps_made"), rig.counter("qps_reused")), (DYING as u64, DYING as u64));
    }
    println!("login: from the request for a connection to the first answer");
    let logins = (ROUNDS / 4 * DYING) as f64;
    for (name, latencies, allocated) in
        [("new queue pair", &mut fresh, allocated_fresh), ("spare", &mut spare, allocated_spare)]
    {
        println!(
            "  {name:14}  {:6} logins  mean {:7.2} us  p50 {:7.2} us  p99 {:7.2} us  {:.1} allocations each",
            latencies.len(),
            mean(latencies),
            percentile(latencies, 50.0),
            percentile(latencies, 99.0),
            allocated as f64 / logins
        );
    }
    let ratio = mean(&fresh) / mean(&spare);
    println!(
        "  mean of new / mean of spare: {ratio:.2}; {} turns interrupted and left out",
        watch.interrupted
    );
}

/// One more channel and its first command; `None` if a turn of it was interrupted.
fn log_in(watch: &mut Stopwatch, rig: &mut Rig, raw: usize) -> Option<Duration> {
    let now = rig.now;
    let channel = rig.raws[raw].connect(now, &Login::new(0).multi());
    let mut sum = Some(Duration::ZERO);
    while !matches!(rig.raws[raw].channels[channel].link, Link::Live(_)) {
        let took = watch.turn(rig);
        sum = sum.and_then(|sum| Some(sum + took?));
    }
    let first = watch.read(rig, raw, channel);
    Some(sum? + first?)
}
