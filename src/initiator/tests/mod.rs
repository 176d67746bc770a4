//! Tests of the initiator against a scripted device: no engine, no packets, no clock.

mod fake;
mod load;
mod session;
mod states;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use reactors::time::Time;

use self::fake::FakeDevice;
use crate::initiator::scan::Pace;
use crate::initiator::{Session, SessionConfig};
use crate::rdma::verbs::{Path, Service};
use crate::wire::srp::PortId;

/// A clock that goes on by a microsecond a look, and jumps where there is nothing to do.
struct Jumping(Time);

impl Pace for Jumping {
    fn now(&mut self) -> Time {
        self.0 += Duration::from_micros(1);
        self.0
    }

    fn rest(&mut self, until: Time) {
        if until != Time::NEVER && until > self.0 {
            self.0 = until;
        }
    }
}

fn pace() -> Jumping {
    Jumping(Time::from_nanos(1_000_000_000))
}

fn config() -> SessionConfig {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    let path = Path { local: ip(2), remote: ip(1), scope_id: 0 };
    SessionConfig {
        depth: 8,
        max_io_bytes: 64 << 10,
        ..SessionConfig::new(path, Service::RdmaCm { port: 5555 }, PortId::new(7, 8))
    }
}

fn session(config: SessionConfig) -> Session<FakeDevice> {
    Session::new(FakeDevice::new(), config, fastrand::Rng::with_seed(1)).unwrap()
}
