//! A provider on the simulated network: the engine and the connection manager as every other
//! provider has them, and a [`Wire`] instead of sockets.
//!
//! A host has one context a shard ([`SimDevice::host`]). Packets for QPN 1 go to shard 0, which owns the
//! connection manager; others to the shard that the low bits of their QPN name, as the kernel
//! steers them on a real host. Everything runs on the thread of the caller, on his clock.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::rc::Rc;

use reactors::time::Time;

use super::net::{Datagram, Faults, NetCounters, Network};
use crate::cm::{Cm, CmConfig};
use crate::rdma::engine::{Engine, EngineConfig, Outgoing, Sink};
use crate::rdma::verbs::{ConnEvent, ConnId, ConnectAttr, Connections, Device, Path, VerbsError};
use crate::wire::bth::{Bth, Opcode};
use crate::wire::ext::Deth;
use crate::wire::mad::MAD_LEN;
use crate::wire::num::{Psn, Qpn};
use crate::wire::packet::{Ext, Packet};

/// Bytes of a datagram to QPN 1: BTH, DETH, MAD.
const GSI_BYTES: usize = Bth::LEN + Deth::LEN + MAD_LEN;

/// Where a datagram is seen by a [`Tap`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It is handed to the network; `local` of its path is the sender.
    Sent,
    /// It has arrived; `local` of its path is the receiver.
    Arrived,
}

/// Sees every datagram: when, where, on which path, and its bytes from the BTH on, without ICRC. The
/// answer says whether the datagram goes on.
pub type Tap = Box<dyn FnMut(Time, Moment, &Path, &[u8]) -> bool>;

/// An address in use: a queue of arrived datagrams for each shard of its host.
struct Port {
    address: IpAddr,
    queues: Vec<Option<VecDeque<Datagram>>>,
    shard_mask: u32,
}

struct Air {
    net: Network,
    ports: Vec<Port>,
    tap: Option<Tap>,
    unclaimed: u64,
}

impl Air {
    fn send(&mut self, now: Time, path: &Path, bytes: Vec<u8>) {
        if self.tap.as_mut().is_some_and(|tap| !tap(now, Moment::Sent, path, &bytes)) {
            return;
        }
        self.net.send(now, path, bytes);
    }

    /// Sorts what has arrived into the queues of its ports.
    fn deliver(&mut self, now: Time) {
        while let Some(datagram) = self.net.arrive(now) {
            let Datagram { path, bytes } = &datagram;
            if self.tap.as_mut().is_some_and(|tap| !tap(now, Moment::Arrived, path, bytes)) {
                continue;
            }
            let queue =
                self.ports.iter_mut().find(|port| port.address == datagram.path.local).and_then(|port| {
                    let shard = steer(&datagram.bytes, port.shard_mask);
                    port.queues.get_mut(shard)?.as_mut()
                });
            match queue {
                Some(queue) => queue.push_back(datagram),
                None => self.unclaimed += 1,
            }
        }
    }

    fn port(&mut self, address: IpAddr) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.address == address)
    }
}

/// The shard that a datagram is for, by payload bytes 5 to 7, as a filter in the kernel reads them.
fn steer(bytes: &[u8], shard_mask: u32) -> usize {
    match bytes.get(5..8) {
        Some(&[a, b, c]) => {
            let qpn = u32::from_be_bytes([0, a, b, c]);
            if qpn == Qpn::GSI.get() { 0 } else { (qpn & shard_mask) as usize }
        }
        _ => 0,
    }
}

/// The network between the hosts of one simulation. Clones are the same network.
#[derive(Clone)]
pub struct Wire {
    air: Rc<RefCell<Air>>,
}

impl Wire {
    /// A network whose every chance follows from `seed`.
    pub fn new(seed: u64, faults: Faults) -> Wire {
        let air = Air { net: Network::new(seed, faults), ports: Vec::new(), tap: None, unclaimed: 0 };
        Wire { air: Rc::new(RefCell::new(air)) }
    }

    /// Shows the network to `change`: its faults, partitions and counters.
    pub fn with_net<R>(&self, change: impl FnOnce(&mut Network) -> R) -> R {
        change(&mut self.air.borrow_mut().net)
    }

    /// What became of all datagrams so far.
    pub fn counters(&self) -> NetCounters {
        *self.air.borrow().net.counters()
    }

    /// Datagrams that arrived where nobody receives.
    pub fn unclaimed(&self) -> u64 {
        self.air.borrow().unclaimed
    }

    /// Puts in a tap, or takes it out. It must not use this wire itself.
    pub fn tap(&self, tap: Option<Tap>) {
        self.air.borrow_mut().tap = tap;
    }

    /// Sends any bytes from `path.local` to `path.remote`, as a host does that is no friend.
    pub fn inject(&self, now: Time, path: &Path, bytes: Vec<u8>) {
        self.air.borrow_mut().send(now, path, bytes);
    }

    /// When the next datagram arrives.
    pub fn next_arrival(&self) -> Time {
        self.air.borrow().net.next_arrival()
    }
}

/// What a host is made of.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The addresses that it has.
    pub addresses: Vec<IpAddr>,
    /// How many shards share them.
    pub shards: u32,
    /// Sizes and habits of its engines.
    pub engine: EngineConfig,
    /// Its connection manager, with the GUID of its adapter.
    pub cm: CmConfig,
}

/// One shard's context on a simulated host.
pub struct SimDevice {
    wire: Wire,
    addresses: Vec<IpAddr>,
    shards: u32,
    shard: u32,
    open: Vec<IpAddr>,
    engine: Engine,
    cm: Option<Cm>,
    /// PSN of the next datagram from QPN 1.
    gsi_psn: Psn,
    bad_gsi: u64,
    batch: VecDeque<Datagram>,
}

impl SimDevice {
    /// The contexts of all shards of a host, in their order.
    pub fn host(wire: &Wire, config: &HostConfig, rng: &mut fastrand::Rng) -> Vec<SimDevice> {
        let shard_bits = config.shards.next_power_of_two().trailing_zeros();
        (0..config.shards)
            .map(|shard| SimDevice {
                wire: wire.clone(),
                addresses: config.addresses.clone(),
                shards: config.shards,
                shard,
                open: Vec::new(),
                engine: Engine::new(EngineConfig { shard, shard_bits, ..config.engine.clone() }, rng.fork()),
                cm: (shard == 0).then(|| Cm::new(config.cm, rng.fork())),
                gsi_psn: Psn::new(rng.u32(..)),
                bad_gsi: 0,
                batch: VecDeque::new(),
            })
            .collect()
    }

    /// A host of one shard at `address`, ready to be used.
    pub fn alone(wire: &Wire, address: IpAddr, guid: u64, rng: &mut fastrand::Rng) -> SimDevice {
        let config = HostConfig {
            addresses: vec![address],
            shards: 1,
            engine: EngineConfig::default(),
            cm: CmConfig::new(guid),
        };
        let mut device = SimDevice::host(wire, &config, rng).swap_remove(0);
        device.open_port(address).expect("an address of the host");
        device
    }

    /// Takes part in receiving for `address`; shard 0 first.
    pub fn open_port(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        if self.open.contains(&address) {
            return Ok(());
        }
        if !self.addresses.contains(&address) {
            let what = format!("a socket on {address}");
            return Err(VerbsError::System { what, why: "no such address on this host".to_owned() });
        }
        let mut air = self.wire.air.borrow_mut();
        if air.port(address).is_none() {
            let queues = (0..self.shards).map(|_| None).collect();
            let shard_mask = self.shards.next_power_of_two() - 1;
            air.ports.push(Port { address, queues, shard_mask });
        }
        let place = air.port(address).and_then(|port| port.queues.get_mut(self.shard as usize));
        match place {
            Some(place @ None) => *place = Some(VecDeque::new()),
            _ => {
                let what = format!("a socket on {address}");
                return Err(VerbsError::System { what, why: "another host has that address".to_owned() });
            }
        }
        self.open.push(address);
        Ok(())
    }

    /// Receives for `address` no more.
    pub fn close_port(&mut self, address: IpAddr) {
        if !self.open.contains(&address) {
            return;
        }
        self.open.retain(|open| *open != address);
        let mut air = self.wire.air.borrow_mut();
        if let Some(port) = air.port(address) {
            port.queues[self.shard as usize] = None;
            if port.queues.iter().all(Option::is_none) {
                air.ports.retain(|port| port.address != address);
            }
        }
    }

    /// What the engine and the connection manager counted, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let engine = self.engine.counters();
        let mut counters = vec![
            ("packets_in", engine.packets_in),
            ("packets_out", engine.packets_out),
            ("retransmissions", engine.retransmissions),
            ("dropped_malformed", engine.dropped_malformed),
            ("dropped_unknown_qpn", engine.dropped_unknown_qpn),
            ("dropped_wrong_peer", engine.dropped_wrong_peer),
            ("completions_lost", engine.completions_lost),
            ("bad_gsi", self.bad_gsi),
        ];
        if let Some(cm) = &self.cm {
            counters.push(("connections", cm.len() as u64));
            counters.push(("half_open", cm.half_open() as u64));
        }
        counters
    }

    /// Loses receives of every shared receive queue, as an adapter does that had fetched them for a
    /// queue pair that died.
    pub fn lose_receives(&mut self, count: usize) {
        self.engine.lose_srq_recvs(count);
    }

    /// The engine, for what only tests look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn cm(&mut self) -> Result<&mut Cm, VerbsError> {
        self.cm.as_mut().ok_or(VerbsError::NotFound("connection manager on this shard"))
    }

    fn receive(&mut self, now: Time) -> usize {
        let mut air = self.wire.air.borrow_mut();
        air.deliver(now);
        let shard = self.shard as usize;
        for address in &self.open {
            if let Some(queue) = air.port(*address).and_then(|port| port.queues[shard].as_mut()) {
                self.batch.append(queue);
            }
        }
        drop(air);
        let count = self.batch.len();
        while let Some(datagram) = self.batch.pop_front() {
            self.take(now, &datagram);
        }
        self.engine.end_batch(now);
        count
    }

    fn take(&mut self, now: Time, datagram: &Datagram) {
        let is_gsi = datagram.bytes.get(5..8) == Some(&[0, 0, 1]);
        let Some(cm) = self.cm.as_mut().filter(|_| is_gsi) else {
            return self.engine.receive(now, datagram.path, &datagram.bytes);
        };
        match Packet::parse(&datagram.bytes) {
            Ok(Packet { bth, ext: Ext::Deth(deth), payload, .. })
                if bth.opcode == Opcode::UdSendOnly && deth.qkey == Deth::GSI_QKEY =>
            {
                cm.handle_mad(now, datagram.path, payload);
            }
            _ => self.bad_gsi += 1,
        }
    }

    fn transmit(&mut self, now: Time) -> usize {
        let mut air = self.wire.air.borrow_mut();
        let mut sent = 0;
        while let Some((path, mad)) = self.cm.as_mut().and_then(Cm::poll_transmit) {
            self.gsi_psn = self.gsi_psn.plus(1);
            let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, self.gsi_psn);
            let packet = Packet { bth, ext: Ext::Deth(Deth::GSI), payload: &mad, pad: &[] };
            let mut bytes = vec![0; GSI_BYTES];
            packet.emit(&mut bytes);
            air.send(now, &path, bytes);
            sent += 1;
        }
        sent + self.engine.transmit(now, &mut Antenna { air: &mut air, now })
    }
}

/// Where the engine's packets go.
struct Antenna<'a> {
    air: &'a mut Air,
    now: Time,
}

impl Sink for Antenna<'_> {
    fn has_room(&self) -> bool {
        true
    }

    fn packet(&mut self, out: &Outgoing<'_>) {
        let mut bytes = vec![0; out.len_bytes()];
        out.copy_to(&mut bytes);
        self.air.send(self.now, out.path, bytes);
    }
}

impl Device for SimDevice {
    crate::rdma::forward::verbs_of_engine!(engine);

    fn progress(&mut self, now: Time) -> usize {
        let received = self.receive(now);
        if let Some(cm) = &mut self.cm {
            cm.handle_timeout(now);
        }
        self.engine.handle_timeout(now);
        received + self.transmit(now)
    }

    fn next_deadline(&self) -> Time {
        let air = self.wire.air.borrow();
        let shard = self.shard as usize;
        let waits = air.ports.iter().any(|port| {
            self.open.contains(&port.address)
                && port.queues[shard].as_ref().is_some_and(|queue| !queue.is_empty())
        });
        if waits {
            return Time::ZERO;
        }
        let cm = self.cm.as_ref().map_or(Time::NEVER, Cm::deadline);
        self.engine.deadline().min(cm).min(air.net.next_arrival())
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Connections for SimDevice {
    crate::rdma::forward::connections_of_cm!(cm);

    fn connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        self.cm()?.connect(now, attr)
    }
    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.cm.as_mut().and_then(Connections::poll_conn)
    }
}
