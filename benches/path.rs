//! What one I/O costs on its whole way, each side apart: `cargo bench --bench path`.
//!
//! One thread drives our initiator and a shard of the target in turn, over shared memory, with the null
//! back end: so no cache line travels between cores, and what is counted is instructions. Figures are of
//! this run; compare them with each other. With a number as argument it does so many I/Os at depth 32 on a
//! clock that only counts how often it is read: for callgrind, with `--toggle-collect` of one side's turn.

#[path = "../tests/common/one_shard.rs"]
mod one_shard;

use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::Duration;

use bdev::null::{NullBdev, NullOptions};
use reactors::clock::Clock;
use reactors::poller::Poller;
use reactors::ring::Sender;
use reactors::time::Time;
use srpoll::initiator::load::{Load, Pattern, Stop, Workload};
use srpoll::initiator::scan::{LunInfo, Pace, scan, wait_live};
use srpoll::initiator::{Session, SessionConfig};
use srpoll::rdma::shm::{Device, DeviceConfig, Hub};
use srpoll::rdma::verbs::{Path, PathMtu, Service};
use srpoll::target::limits::Limits;
use srpoll::target::listener::Listener;
use srpoll::target::message::Message;
use srpoll::target::shard::Shard;
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::PortId;

const BLOCK_BYTES: u32 = 4096;
const DEPTHS: [u32; 4] = [1, 4, 32, 64];
/// Loads of one kind; the fastest counts.
const LOADS: u32 = 8;
/// I/Os of a load.
const IOS: u64 = 100_000;

/// The clock of the initiator; the target has its turn after each of the initiator's.
struct Turns {
    clock: Option<Clock>,
    /// The time, when there is no clock.
    counted: Time,
    shard: Shard<Device>,
    /// How long the target's turns took.
    target: Duration,
}

impl Pace for Turns {
    fn now(&mut self) -> Time {
        self.counted += Duration::from_nanos(20);
        self.clock.map_or(self.counted, |clock| clock.now())
    }

    fn turn(&mut self, _: bool, _: Time) {
        let began = self.now();
        self.shard.poll(began);
        let ended = self.now();
        self.target += ended.since(began);
    }
}

fn shard(socket: &FsPath, clock: Option<Clock>) -> (Shard<Device>, Sender<Message>) {
    let options = NullOptions { len_bytes: 1 << 30, block_bytes: 512, read_only: false, uuid: None };
    let disk = Arc::new(NullBdev::create("disk", &options).expect("a null device"));
    let config =
        DeviceConfig { hub: Hub::new().expect("an eventfd"), ..DeviceConfig::new(3).expect("an eventfd") };
    let device = Device::new(config).expect("descriptors");
    one_shard::listening(device, disk, Limits::default(), clock, Listener::Shm(socket.to_owned()))
}

fn session(socket: &FsPath) -> Session<Device> {
    let config =
        DeviceConfig { target: Some(socket.to_owned()), ..DeviceConfig::new(4).expect("an eventfd") };
    let device = Device::new(config).expect("descriptors");
    let config = SessionConfig {
        path_mtu: PathMtu::B4096,
        max_immediate_bytes: 0,
        depth: 64,
        max_io_bytes: BLOCK_BYTES,
        ..SessionConfig::new(Path::NONE, Service::Shm, PortId::new(1, 2))
    };
    Session::new(device, config, fastrand::Rng::with_seed(2)).expect("memory")
}

/// One load; nanoseconds of the target and of the initiator an I/O.
fn load(
    session: &mut Session<Device>,
    turns: &mut Turns,
    info: &LunInfo,
    read: bool,
    depth: u32,
    ios: u64,
) -> [f64; 2] {
    let workload = Workload {
        pattern: Pattern::Random,
        read_percent: if read { 100 } else { 0 },
        io_bytes: BLOCK_BYTES,
        depth,
        stop: Stop::Ios(ios),
        verify: false,
        seed: 1,
        run: 2,
    };
    turns.target = Duration::ZERO;
    let report =
        Load::new(workload, info, 64).expect("it fits").run(session, turns, &mut ()).expect("a session");
    assert_eq!((report.errors, report.ios), (0, ios), "{:?}", report.told);
    [turns.target, report.elapsed - turns.target].map(|side| side.as_nanos() as f64 / ios as f64)
}

fn main() {
    // `cargo test --benches` only asks whether it starts.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let asked = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let clock = asked.is_none().then(Clock::get);
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let (shard, _inbox) = shard(&socket, clock);
    let mut turns = Turns { clock, counted: Time::ZERO, shard, target: Duration::ZERO };
    let mut session = session(&socket);
    session.start(turns.now());
    wait_live(&mut session, &mut turns).expect("a target");
    let info = scan(&mut session, &mut turns, Lun::ZERO).expect("a disk");
    if let Some(ios) = asked {
        load(&mut session, &mut turns, &info, true, 32, ios);
        return;
    }
    for (name, read) in [("reads", true), ("writes", false)] {
        for depth in DEPTHS {
            let mut best = [f64::MAX; 2];
            for _ in 0..LOADS {
                let took = load(&mut session, &mut turns, &info, read, depth, IOS);
                best = [best[0].min(took[0]), best[1].min(took[1])];
            }
            let [target, initiator] = best;
            println!(
                "4k {name}, depth {depth:2}: {target:4.0} ns an I/O for the target, {initiator:4.0} ns for the initiator"
            );
        }
    }
}
