//! The world of a simulated network: hosts that speak as the test says, sessions of our own initiator.

use reactors::time::Time;
use srpoll::cm::CmConfig;
use srpoll::initiator::{Session, SessionConfig, SessionState};
use srpoll::rdma::sim::device::{HostConfig, SimDevice, Wire};
use srpoll::rdma::verbs::{Path, PathMtu, Service};

use super::raw::Raw;
use super::{PORT, Rig, Setup, TARGET, World, disk, host, lun, port_id};

pub struct Net {
    pub wire: Wire,
    pub raws: Vec<Raw>,
    pub sessions: Vec<Session<SimDevice>>,
}

impl World for Net {
    type Fabric = SimDevice;

    fn poll(&mut self, now: Time) -> usize {
        let raws: usize = self.raws.iter_mut().map(|raw| raw.poll(now)).sum();
        let sessions: usize = self.sessions.iter_mut().map(|session| session.poll(now)).sum();
        raws + sessions
    }

    fn next_deadline(&self) -> Time {
        let raws = self.raws.iter().map(Raw::next_deadline);
        raws.chain(self.sessions.iter().map(Session::next_deadline)).min().unwrap_or(Time::NEVER)
    }
}

impl Rig {
    /// One LUN 0 of that many MiB in memory.
    pub fn simple() -> Rig {
        Rig::new(Setup::new(vec![lun(0, disk::malloc(32))]))
    }

    pub fn new(setup: Setup) -> Rig {
        let mut rng = fastrand::Rng::with_seed(setup.seed);
        let wire = Wire::new(rng.u64(..), setup.faults);
        let host = HostConfig {
            addresses: vec![TARGET],
            shards: setup.shards as u32,
            engine: setup.engine.clone(),
            cm: CmConfig::new(0x0200_0000_0000_0001),
        };
        let devices = SimDevice::host(&wire, &host, &mut rng);
        let world = Net { wire, raws: Vec::new(), sessions: Vec::new() };
        let mut rig = Rig::without_port(&setup, world, devices, rng);
        rig.listen();
        rig
    }

    /// A host that speaks SRP as the test says.
    pub fn raw(&mut self, number: u8) -> usize {
        let device =
            SimDevice::alone(&self.world.wire, host(number), 0xa000 + u64::from(number), &mut self.rng);
        self.raws.push(Raw::new(device, number));
        self.raws.len() - 1
    }

    /// The configuration of a session of host `number`.
    pub fn session_config(number: u8) -> SessionConfig {
        let path = Path { local: host(number), remote: TARGET, scope_id: 0 };
        SessionConfig {
            path_mtu: PathMtu::B4096,
            ..SessionConfig::new(path, Service::RdmaCm { port: PORT }, port_id(number))
        }
    }

    /// A session of our own initiator, started.
    pub fn session(&mut self, number: u8, config: SessionConfig) -> usize {
        let device =
            SimDevice::alone(&self.world.wire, host(number), 0xa000 + u64::from(number), &mut self.rng);
        let mut session = Session::new(device, config, self.rng.fork()).unwrap();
        session.start(self.now);
        self.sessions.push(session);
        self.sessions.len() - 1
    }

    /// The same, and waits until it is live.
    pub fn live_session(&mut self, number: u8, config: SessionConfig) -> usize {
        let index = self.session(number, config);
        self.until("the session is live", |rig| rig.sessions[index].state() == SessionState::Live);
        index
    }
}
