//! A verified load of reads and writes over UDP, for tests that count what a side allocates.

use std::net::IpAddr;
use std::time::Duration;

use reactors::clock::Clock;
use reactors::time::Time;
use srpoll::initiator::load::{Load, Pattern, Stop, Watch, Workload};
use srpoll::initiator::scan::{Pace, close, scan, wait_live};
use srpoll::initiator::{Session, SessionConfig};
use srpoll::rdma::soft::{self, DeviceConfig};
use srpoll::rdma::verbs::{Path, PathMtu, Service};
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::PortId;

/// The service that the target listens on.
pub(crate) const PORT: u16 = 5555;
/// Operations of the load.
pub(crate) const IOS: u64 = 30_000;
/// Turns of the initiator after which nothing is new to either side.
pub(crate) const WARM_TURNS: u32 = 1000;

struct Wall(Clock);

impl Pace for Wall {
    fn now(&mut self) -> Time {
        self.0.now()
    }

    fn rest(&mut self, _: Time) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Two channels, 16 operations of 8 KiB at a time, half of them reads; `watch` sees its turns.
pub(crate) fn run(local: IpAddr, remote: IpAddr, watch: &mut impl Watch) {
    let mut device = soft::Device::new(DeviceConfig::new(7));
    device.open_port(local).unwrap();
    let path = Path { local, remote, scope_id: 0 };
    let config = SessionConfig {
        channels: 2,
        depth: 8,
        path_mtu: PathMtu::B4096,
        ..SessionConfig::new(path, Service::RdmaCm { port: PORT }, PortId::new(1, 2))
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
        stop: Stop::Ios(IOS),
        verify: true,
        seed: 1,
        run: 2,
    };
    let report = Load::new(workload, &info, 16).unwrap().run(&mut session, &mut pace, watch).unwrap();
    close(&mut session, &mut pace);
    assert_eq!((report.errors, report.ios), (0, IOS), "{:?}", report.told);
}
