//! What one I/O costs on its whole way, each side apart: `cargo bench --bench path -- [udp] [WORDS]`.
//!
//! One thread drives our initiator and a shard of the target in turn, over shared memory or, with `udp`, over
//! loopback, with the null back end: so no cache line travels between cores, and over shared memory what is
//! counted is instructions. Figures are of this run; compare them with each other. With a number as argument it
//! does so many I/Os, reads or with `write` writes, at depth 32 or `depth=N` over one or `channels=N` channels, on
//! a clock that only counts how often it is read: for callgrind, with `--toggle-collect` of one side's turn.

#[path = "../tests/common/one_shard.rs"]
mod one_shard;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bdev::null::{NullBdev, NullOptions};
use reactors::clock::Clock;
use reactors::poller::Poller;
use reactors::time::Time;
use srpoll::initiator::load::{Load, Pattern, Stop, Workload};
use srpoll::initiator::scan::{LunInfo, Pace, scan, wait_live};
use srpoll::initiator::{Session, SessionConfig};
use srpoll::rdma::verbs::{Connections, Device, Path, PathMtu, Service};
use srpoll::rdma::{shm, soft};
use srpoll::target::fabric::Fabric;
use srpoll::target::limits::Limits;
use srpoll::target::listener::Listener;
use srpoll::target::shard::Shard;
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::PortId;

const BLOCK_BYTES: u32 = 4096;
/// Where the target listens over UDP.
const PORT: u16 = 5555;
const DEPTHS: [u32; 4] = [1, 4, 32, 64];
/// Loads of one kind; the fastest counts.
const LOADS: u32 = 8;
/// I/Os of a load.
const IOS: u64 = 100_000;

/// The clock of the initiator; the target has its turn after each of the initiator's.
struct Turns<F: Fabric> {
    clock: Option<Clock>,
    /// The time, when there is no clock.
    counted: Time,
    shard: Shard<F>,
    /// How long the target's turns took.
    target: Duration,
}

impl<F: Fabric> Pace for Turns<F> {
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

/// Two ends of a transport, and how one finds the other.
struct Ends<F> {
    target: F,
    listener: Listener,
    initiator: F,
    path: Path,
    service: Service,
}

impl Ends<shm::Device> {
    fn shm(folder: &std::path::Path) -> Self {
        let socket = folder.join("socket");
        let device = |config| shm::Device::new(config).expect("descriptors");
        let config = |guid| shm::DeviceConfig::new(guid).expect("an eventfd");
        Ends {
            target: device(shm::DeviceConfig { hub: shm::Hub::new().expect("an eventfd"), ..config(3) }),
            initiator: device(shm::DeviceConfig { target: Some(socket.clone()), ..config(4) }),
            listener: Listener::Shm(socket),
            path: Path::NONE,
            service: Service::Shm,
        }
    }
}

impl Ends<soft::Device> {
    fn udp() -> Self {
        // Addresses of this process, so that two runs do not meet.
        let [.., a, b] = std::process::id().to_be_bytes();
        let address = |host: u8| IpAddr::from([127, 0x40 | host, a, b.max(1)]);
        let device = |guid| {
            soft::Device::new(soft::DeviceConfig { in_process: false, ..soft::DeviceConfig::new(guid) })
        };
        let mut initiator = device(4);
        initiator.open_port(address(2)).expect("a port");
        Ends {
            target: device(3),
            listener: SocketAddr::new(address(1), PORT).into(),
            initiator,
            path: Path { local: address(2), remote: address(1), scope_id: 0 },
            service: Service::RdmaCm { port: PORT },
        }
    }
}

/// One load; nanoseconds of the target and of the initiator an I/O.
fn load<F: Fabric + Device + Connections>(
    session: &mut Session<F>,
    turns: &mut Turns<F>,
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

/// What was asked for on the command line.
struct Asked {
    ios: Option<u64>,
    write: bool,
    depth: u32,
    channels: u32,
}

impl Asked {
    fn of(words: &[String]) -> Asked {
        let number = |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.parse().ok());
        Asked {
            ios: words.iter().find_map(|word| word.parse().ok()),
            write: words.iter().any(|word| word == "write"),
            depth: number("depth=").unwrap_or(32),
            channels: number("channels=").unwrap_or(1),
        }
    }
}

fn measure<F: Fabric + Device + Connections>(ends: Ends<F>, asked: &Asked) {
    let options = NullOptions { len_bytes: 1 << 30, block_bytes: 512, read_only: false, uuid: None };
    let disk = Arc::new(NullBdev::create("disk", &options).expect("a null device"));
    let clock = asked.ios.is_none().then(Clock::get);
    let (shard, _inbox) = one_shard::listening(ends.target, disk, Limits::default(), clock, ends.listener);
    let mut turns = Turns { clock, counted: Time::ZERO, shard, target: Duration::ZERO };
    let config = SessionConfig {
        path_mtu: PathMtu::B4096,
        max_immediate_bytes: 0,
        channels: asked.channels,
        depth: 64 / asked.channels.min(64),
        max_io_bytes: BLOCK_BYTES,
        ..SessionConfig::new(ends.path, ends.service, PortId::new(1, 2))
    };
    let mut session = Session::new(ends.initiator, config, fastrand::Rng::with_seed(2)).expect("memory");
    session.start(turns.now());
    wait_live(&mut session, &mut turns).expect("a target");
    let info = scan(&mut session, &mut turns, Lun::ZERO).expect("a disk");
    if let Some(ios) = asked.ios {
        load(&mut session, &mut turns, &info, !asked.write, asked.depth, ios);
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

fn main() {
    // `cargo test --benches` only asks whether it starts.
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|other| other == word);
    if has("--test") {
        return;
    }
    let asked = Asked::of(&words);
    if has("udp") {
        return measure(Ends::udp(), &asked);
    }
    let folder = tempfile::tempdir().expect("a folder");
    measure(Ends::shm(folder.path()), &asked);
}
