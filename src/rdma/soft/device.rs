//! One shard's soft device: verbs on an engine, an engine on ports.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use reactors::time::Time;

use super::counters::Counters;
use super::fault::{Fault, Injector};
use super::gsi::Gsi;
use super::looped::Looped;
use super::port::{PortConfig, PortError, PortSocket, open_port};
use super::receive::Inbound;
use super::steer::{ShardLinks, is_link_local, reversed, shard_of};
use super::transmit::{Faults, Outbound, Transmitter};
use crate::cm::{CmConfig, CmStats};
use crate::rdma::engine::{self, Engine, EngineConfig};
use crate::rdma::verbs::{Device as Verbs, Path};
use crate::wire::bth::Bth;
use crate::wire::num::Qpn;

/// What a device is made of.
#[derive(Debug)]
pub struct DeviceConfig {
    /// Sizes of the engine, and which shard of how many this is.
    pub engine: EngineConfig,
    /// On shard 0: the connection manager of the addresses.
    pub cm: Option<CmConfig>,
    /// The rings to the other shards, if there are any.
    pub links: Option<ShardLinks>,
    /// Whether packets to our own addresses stay in the process where they can.
    pub in_process: bool,
    /// What to do to packets, both ways.
    pub fault: Option<Fault>,
    /// Seed of queue pair numbers, keys and communication ids: random for anybody but a test.
    pub seed: u64,
}

impl DeviceConfig {
    /// A device of one shard with a connection manager, and a random seed.
    pub fn new(guid: u64) -> DeviceConfig {
        DeviceConfig {
            engine: EngineConfig::default(),
            cm: Some(CmConfig::new(guid)),
            links: None,
            in_process: true,
            fault: None,
            seed: fastrand::u64(..),
        }
    }
}

/// One shard's device on the ports that it was given.
pub struct Device {
    pub(super) engine: Engine,
    pub(super) gsi: Option<Gsi>,
    links: Option<ShardLinks>,
    /// Slots keep their numbers; a removed port leaves `None`.
    ports: Vec<Option<PortSocket>>,
    ports_epoch: u64,
    inbound: Inbound,
    outbound: Outbound,
    looped: Option<Looped>,
    counters: Counters,
    route: Route,
    port_config: PortConfig,
}

/// Which packets stay here.
#[derive(Copy, Clone)]
struct Route {
    shard: usize,
    shard_bits: u32,
}

impl Device {
    /// A device without ports.
    pub fn new(config: DeviceConfig) -> Device {
        let DeviceConfig { engine, cm, links, in_process, fault, seed } = config;
        let route = Route { shard: engine.shard as usize, shard_bits: engine.shard_bits };
        let mut rng = fastrand::Rng::with_seed(seed ^ u64::from(engine.shard) << 56);
        let shards = links.as_ref().map_or(1, ShardLinks::shards);
        let injector = |way: u64| fault.map(|fault| Injector::new(fault, 2 * route.shard as u64 + way));
        Device {
            gsi: cm.map(|cm| Gsi::new(cm, rng.fork())),
            engine: Engine::new(engine, rng),
            links,
            ports: Vec::with_capacity(16),
            ports_epoch: 0,
            inbound: Inbound::new(injector(0)),
            outbound: Outbound::new(route.shard, route.shard_bits, injector(1).map(Faults::new)),
            looped: in_process.then(Looped::new),
            counters: Counters::default(),
            route,
            port_config: PortConfig::new(shards).with(fault),
        }
    }

    /// Takes part in serving `address`: shard 0 opens the sockets for all shards and is to be
    /// asked first; the others take theirs.
    pub fn open_port(&mut self, address: IpAddr) -> Result<(), PortError> {
        let address = address.to_canonical();
        if self.addresses().any(|open| open == address) {
            return Ok(());
        }
        let taken = match &self.links {
            Some(links) if self.route.shard > 0 => links.collect(address),
            Some(links) => links.distribute(open_port(address, &self.port_config)?),
            None => open_port(address, &self.port_config)?.pop(),
        };
        self.add_port(taken.ok_or(PortError::NotOpened(address))?);
        Ok(())
    }

    /// Takes part in serving an address. The sockets come from [`open_port()`],
    /// each for the shard of its place.
    pub fn add_port(&mut self, port: PortSocket) {
        match self.ports.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(port),
            None => self.ports.push(Some(port)),
        }
        self.ports_changed();
    }

    /// Stops serving an address; closes its sockets. Queue pairs on it fall silent and end by
    /// their retries. False if it was not served.
    pub fn close_port(&mut self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_on = |port: &PortSocket| port.address == address;
        let slot = self.ports.iter_mut().find(|port| port.as_ref().is_some_and(is_on));
        let Some(slot) = slot else { return false };
        *slot = None;
        self.ports_changed();
        true
    }

    fn ports_changed(&mut self) {
        self.ports_epoch += 1;
        self.inbound.forget_peers();
        self.outbound.forget_peers();
        // What one socket can hold bounds the READ data that may come to it. Half of what the
        // kernel gave is for its own overhead.
        let smallest = self.ports.iter().flatten().map(PortSocket::recv_buffer_bytes).min();
        if let Some(bytes) = smallest {
            self.engine.set_read_budget(bytes as u64 / 2);
        }
    }

    /// The addresses served.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ports.iter().flatten().map(PortSocket::address)
    }

    /// A path whose link-local addresses have the interface of our port, if none was named.
    pub(super) fn scoped(&self, path: &Path) -> Path {
        let local = path.local.to_canonical();
        let port = self.ports.iter().flatten().find(|port| port.address == local);
        match port {
            Some(port) if path.scope_id == 0 && is_link_local(local) => {
                Path { scope_id: port.scope_id, ..*path }
            }
            _ => *path,
        }
    }

    /// Changes whenever [`wait_fds`](Verbs::wait_fds) would answer differently.
    pub fn wait_fds_epoch(&self) -> u64 {
        self.ports_epoch
    }

    /// What the datagram floor counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What all floors of this device counted, by name.
    pub fn named_counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.counters.named();
        all.extend(self.engine.counters().named());
        if let Some(gsi) = &self.gsi {
            all.push(("connections", gsi.cm.len() as u64));
            all.push(("half_open", gsi.cm.half_open() as u64));
            all.extend(gsi.cm.stats().named());
        }
        all
    }

    /// What the engine counted.
    pub fn engine_counters(&self) -> &engine::Counters {
        self.engine.counters()
    }

    /// What the connection manager counted, on the shard that has it.
    pub fn cm_stats(&self) -> Option<CmStats> {
        self.gsi.as_ref().map(|gsi| gsi.cm.stats())
    }

    /// Whether several packets of this way can leave in one send: the kernel can, and the peer was not found
    /// to lose what comes so.
    pub fn segments_on(&self, path: &Path) -> bool {
        let is_from = |port: &&PortSocket| port.is_for(path.local.to_canonical(), path.scope_id);
        let port = self.ports.iter().flatten().find(is_from);
        port.is_some_and(|port| port.segmenting.max_segments > 1)
            && !self.outbound.unsegmented().any(|remote| remote == path.remote.to_canonical())
    }

    /// Sends what is due; gives the number of packets.
    fn transmit(&mut self, now: Time) -> usize {
        if self.outbound.is_full(now) {
            return 0;
        }
        let Device { ports, outbound, looped, counters, engine, gsi, .. } = self;
        let mut transmitter = Transmitter::new(outbound, ports, looped.as_mut(), counters, now);
        let mads = gsi.as_mut().map_or(0, |gsi| gsi.transmit(&mut transmitter));
        mads + engine.transmit(now, &mut transmitter)
    }

    /// Takes in what has come; gives the number of packets.
    fn receive(&mut self, now: Time) -> usize {
        let Device { ports, inbound, looped, counters, engine, gsi, links, route, .. } = self;
        let links = links.as_ref();
        let mut packets = 0;
        let mut take = |path: Path, ib: &[u8], counters: &mut Counters| {
            packets += 1;
            let Ok((_, qpn, _)) = Bth::peek(ib) else { return };
            let home = shard_of(qpn, route.shard_bits);
            if home != route.shard {
                let gone = links.is_some_and(|links| links.hand_over(home, path, ib));
                counters.handed_over += u64::from(gone);
                counters.handover_lost += u64::from(!gone);
            } else if qpn == Qpn::GSI {
                counters.gsi_packets += 1;
                let understood = gsi.as_mut().is_some_and(|gsi| gsi.receive(now, path, ib));
                counters.bad_gsi += u64::from(!understood);
            } else {
                engine.receive(now, path, ib);
            }
        };
        if let Some(links) = links {
            links.take_over(|stray| {
                counters.taken_over += 1;
                take(stray.path, &stray.bytes, counters);
            });
        }
        if let Some(looped) = looped {
            for _ in 0..looped.len() {
                looped.pop(|path, ib| take(reversed(&path), ib, counters));
            }
        }
        for (slot, port) in ports.iter().enumerate() {
            if let Some(port) = port {
                inbound.receive(now, slot, port, counters, &mut take);
            }
        }
        inbound.release(now, false, counters, &mut take);
        if packets > 0 {
            engine.end_batch(now);
        }
        packets
    }
}

impl Verbs for Device {
    crate::rdma::forward::verbs_of_engine!(engine);

    /// Sends first, then receives: what was posted since the last turn leaves together with the
    /// acknowledgements of the last batch, in one train where they fit.
    fn progress(&mut self, now: Time) -> usize {
        let mut work = 0;
        if let Some(gsi) = &mut self.gsi {
            work += usize::from(gsi.handle_timeout(now));
        }
        work += self.engine.handle_timeout(now);
        work += self.transmit(now);
        work + self.receive(now)
    }

    fn next_deadline(&self) -> Time {
        let own = self.inbound.deadline().min(self.outbound.deadline());
        if self.looped.as_ref().is_some_and(|looped| looped.len() > 0) {
            return Time::ZERO;
        }
        let gsi = self.gsi.as_ref().map_or(Time::NEVER, Gsi::deadline);
        let protocols = self.engine.deadline().min(gsi);
        // While the send buffer is full, what is due must wait.
        match self.outbound.full_until() {
            Some(until) if protocols < until => until,
            _ => protocols.min(own),
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let ports = self.ports.iter().flatten().map(|port| port.recv.as_raw_fd());
        ports.chain(self.links.as_ref().map(ShardLinks::wait_fd)).collect()
    }
}
