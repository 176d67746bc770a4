//! After start no I/O of the initiator costs an allocation, from the command's IU to the report:
//! a counting allocator says so. The target is another process.

#[path = "common/counting.rs"]
mod counting;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use counting::allocations;
use reactors::clock::Clock;
use reactors::time::Time;
use srpoll::initiator::load::{Load, Pattern, Stop, Watch, Workload};
use srpoll::initiator::scan::{Pace, close, scan, wait_live};
use srpoll::initiator::{Session, SessionConfig};
use srpoll::rdma::soft::{self, DeviceConfig};
use srpoll::rdma::verbs::{Path, PathMtu, Service};
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::PortId;

struct Wall(Clock);

impl Pace for Wall {
    fn now(&mut self) -> Time {
        self.0.now()
    }

    fn rest(&mut self, _: Time) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Looks at the counter once the run is warm, and at its end.
#[derive(Default)]
struct Count {
    turns: u32,
    warm: Option<u64>,
    end: Option<u64>,
}

impl Watch for Count {
    fn interrupted(&mut self) -> bool {
        self.turns += 1;
        if self.turns == 1000 {
            self.warm = Some(allocations());
        }
        false
    }

    fn measured(&mut self) {
        self.end = Some(allocations());
    }
}

#[test]
fn an_io_allocates_nothing() {
    let pid = std::process::id();
    let address = |last| IpAddr::from([127, 0x20 | (pid >> 8 & 0x1f) as u8, pid as u8, last]);
    let folder = tempfile::tempdir().unwrap();
    let mut target = Command::new(env!("CARGO_BIN_EXE_srpoll"))
        .args(["serve", "--soft", &address(1).to_string(), "--lun", "malloc:16M", "--memory", "4M"])
        .arg("--rpc")
        .arg(folder.path().join("rpc"))
        .arg("--state")
        .arg(folder.path().join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(target.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));

    let mut device = soft::Device::new(DeviceConfig::new(7));
    device.open_port(address(2)).unwrap();
    let path = Path { local: address(2), remote: address(1), scope_id: 0 };
    let config = SessionConfig {
        channels: 2,
        depth: 8,
        path_mtu: PathMtu::B4096,
        ..SessionConfig::new(path, Service::RdmaCm { port: 5555 }, PortId::new(1, 2))
    };
    let mut session = Session::new(device, config, fastrand::Rng::new()).unwrap();
    let mut pace = Wall(Clock::get());
    session.start(pace.now());
    wait_live(&mut session, &mut pace).unwrap();
    let info = scan(&mut session, &mut pace, Lun::ZERO).unwrap();
    let workload = Workload {
        pattern: Pattern::Random,
        read_percent: 50,
        io_bytes: 8192,
        depth: 16,
        stop: Stop::Ios(30_000),
        verify: true,
        seed: 1,
        run: 2,
    };
    let mut counted = Count::default();
    let report = Load::new(workload, &info, 16).unwrap().run(&mut session, &mut pace, &mut counted).unwrap();
    close(&mut session, &mut pace);
    target.kill().unwrap();
    target.wait().unwrap();
    assert_eq!((report.errors, report.ios), (0, 30_000), "{:?}", report.told);
    assert_eq!(counted.end.unwrap() - counted.warm.expect("a thousand turns"), 0);
}
