//! Both ends of a session of our initiator, and the clock it runs by: what `perf` and the fio engine
//! have in common.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use reactors::clock::Clock;
use reactors::reactor::Idle;
use reactors::time::Time;
use reactors::wake::{Bed, Waker};

use crate::initiator::SessionConfig;
use crate::initiator::scan::Pace;
use crate::rdma::shm;
use crate::rdma::soft::{self, Fault, PortConfig, open_port};
use crate::rdma::verbs::{Device, Path, PathMtu, Service};
use crate::wire::srp::PortId;

/// The service port of a target that is named without one.
pub const DEFAULT_PORT: u16 = 5555;
/// The first half of our initiator port ids: "srpoll" and a version.
const INITIATOR_EXTENSION: u64 = 0x7372_706f_6c6c_0001;
/// Initiators of a user over shared memory at a time, at most.
const MAX_CLAIMS: u16 = 1024;

/// Who talks to whom.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// The target's address and service port.
    pub target: SocketAddr,
    /// Our own address.
    pub local: SocketAddr,
    /// The target port; [`PortId::UNSPECIFIED`] for whoever listens there.
    pub port: PortId,
    /// Faults to inject into our packets.
    pub fault: Option<Fault>,
    /// Whether our packets go and come one by one: see [`PortConfig::singly`].
    pub singly: bool,
}

impl Endpoint {
    /// A session of one channel between the two, with the habits of [`SessionConfig::new`].
    pub fn session(&self) -> anyhow::Result<SessionConfig> {
        let (target, local) = (self.target.ip(), self.local.ip());
        ensure!(target.is_ipv4() == local.is_ipv4(), "{target} and {local} are not addresses of one family");
        let path = Path { local, remote: target, scope_id: self.scope_id() };
        let service = Service::RdmaCm { port: self.target.port() };
        let initiator = PortId::new(INITIATOR_EXTENSION, guid_of(local));
        Ok(SessionConfig {
            path_mtu: soft::path_mtu(local, target, self.scope_id())
                .with_context(|| format!("there is no way from {local} to {target}"))?,
            target: self.port,
            ..SessionConfig::new(path, service, initiator)
        })
    }

    /// The device of our side; needs UDP port 4791 of our address.
    pub fn device(&self) -> anyhow::Result<soft::Device> {
        let mut config = soft::DeviceConfig::new(guid_of(self.local.ip()));
        config.fault = self.fault;
        // An SRP_RSP says that its command has arrived.
        config.engine.patient_sends = true;
        let mut device = soft::Device::new(config);
        let port = PortConfig {
            scope_id: self.scope_id(),
            singly: self.singly,
            ..PortConfig::new(1).with(self.fault)
        };
        for socket in open_port(self.local.ip(), &port)? {
            device.add_port(socket);
        }
        Ok(device)
    }

    fn scope_id(&self) -> u32 {
        match (self.local, self.target) {
            (SocketAddr::V6(local), SocketAddr::V6(target)) => local.scope_id().max(target.scope_id()),
            _ => 0,
        }
    }
}

/// Our side of a session over shared memory. Its port id is ours as long as this, or a clone, lives: keep
/// it for as long as the session.
#[derive(Clone, Debug)]
pub struct ShmEndpoint {
    /// The target's socket.
    pub socket: PathBuf,
    /// The target port; [`PortId::UNSPECIFIED`] for whoever listens there.
    pub port: PortId,
    /// What the thread that drives the session does without work.
    pub idle: Idle,
    who: Arc<Claim>,
}

impl ShmEndpoint {
    /// One more initiator of our user.
    pub fn new(socket: PathBuf, port: PortId, idle: Idle) -> io::Result<ShmEndpoint> {
        Ok(ShmEndpoint { socket, port, idle, who: Arc::new(Claim::new("srpoll-initiator")?) })
    }

    /// A session of one channel. All data go by RDMA: one copy, where immediate data take two.
    pub fn session(&self) -> SessionConfig {
        let initiator = PortId::new(INITIATOR_EXTENSION, self.who.guid());
        SessionConfig {
            path_mtu: PathMtu::B4096,
            target: self.port,
            max_immediate_bytes: 0,
            ..SessionConfig::new(Path::NONE, Service::Shm, initiator)
        }
    }

    /// The device of our side.
    pub fn device(&self) -> anyhow::Result<shm::Device> {
        let config = shm::DeviceConfig::new(self.who.guid()).and_then(|config| {
            shm::Device::new(shm::DeviceConfig {
                target: Some(self.socket.clone()),
                sleeps_after: match self.idle {
                    Idle::Spin => None,
                    Idle::Sleep { after } => Some(after),
                },
                ..config
            })
        });
        config.context("cannot make the descriptors for shared memory")
    }
}

/// A number that no other initiator of our user has at present: the least that is free, so that the first
/// one, and who is alone, is always the same to an access list. What marks it as taken is a name in the
/// abstract namespace, which the kernel takes back however we end.
#[derive(Debug)]
struct Claim {
    number: u16,
    uid: u32,
    _mark: UnixListener,
}

impl Claim {
    fn new(what: &str) -> io::Result<Claim> {
        let uid = rustix::process::geteuid().as_raw();
        for number in 0..MAX_CLAIMS {
            let name = UnixAddr::from_abstract_name(format!("{what}-{uid}-{number}"))?;
            match UnixListener::bind_addr(&name) {
                Ok(mark) => return Ok(Claim { number, uid, _mark: mark }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!("{MAX_CLAIMS} initiators of this user are there already")))
    }

    /// A GUID: ours, and locally administered; the number, then the user.
    fn guid(&self) -> u64 {
        0x02 << 56 | u64::from(self.number) << 32 | u64::from(self.uid)
    }
}

/// A GUID that stays the same for an address: ours, and locally administered.
fn guid_of(ip: IpAddr) -> u64 {
    let value = match ip.to_canonical() {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    let folded = (value >> 64) as u64 ^ (value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (folded & 0x00ff_ffff_ffff_ffff) | 0x0200_0000_0000_0000
}

/// The clock of a thread that drives a session, and its sleep.
pub struct Poll {
    clock: Clock,
    idle: Idle,
    bed: Bed,
    idle_since: Option<Time>,
}

impl Poll {
    /// A clock; a sleep ends when `device` hears something.
    pub fn new(idle: Idle, device: &impl Device) -> io::Result<Self> {
        let mut bed = Bed::new(Waker::new()?)?;
        bed.set_fds(|fds| fds.extend(device.wait_fds()))?;
        Ok(Poll { clock: Clock::get(), idle, bed, idle_since: None })
    }
}

impl Pace for Poll {
    #[inline]
    fn now(&mut self) -> Time {
        self.clock.now()
    }

    fn worked(&mut self) {
        self.idle_since = None;
    }

    fn rest(&mut self, until: Time) {
        let Idle::Sleep { after } = self.idle else { return std::hint::spin_loop() };
        let now = self.clock.now();
        let since = *self.idle_since.get_or_insert(now);
        if now.since(since) >= after && until > now {
            let at_most = (until != Time::NEVER).then(|| until.since(now));
            // What goes wrong here would go wrong again: then this is spinning.
            let _ = self.bed.wait(at_most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_differ_and_stay() {
        let guid = |text: &str| guid_of(text.parse().unwrap());
        assert_eq!(guid("127.0.0.1"), guid("::ffff:127.0.0.1"));
        assert_ne!(guid("127.0.0.1"), guid("127.0.0.2"));
        assert_ne!(guid("fd00::1"), guid("fd01::1"));
    }

    #[test]
    fn who_is_alone_on_a_host_is_always_the_same() {
        let what = format!("srpoll-test-{}", std::process::id());
        let claim = || Claim::new(&what).unwrap();
        let (first, second) = (claim(), claim());
        let alone = first.guid();
        assert_eq!(alone, 0x0200_0000_0000_0000 | u64::from(rustix::process::geteuid().as_raw()));
        assert_eq!(second.guid(), alone | 1 << 32);
        drop(first);
        assert_eq!(claim().guid(), alone);
    }
}
