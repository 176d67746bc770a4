//! What a shard needs of an RDMA provider beyond the verbs: ports that come and go.

use super::listener::Port;
use crate::rdma::engine::Engine;
#[cfg(feature = "ibv")]
use crate::rdma::ibv;
use crate::rdma::sim::device::SimDevice;
use crate::rdma::sim::scripted;
use crate::rdma::verbs::{ConnId, Connections, Device, Path, VerbsError};
use crate::rdma::{shm, soft};
use crate::unix::OwnedSocket;

/// A provider's context of one shard.
pub trait Fabric: Device + Connections {
    /// Takes part in receiving for `port`. Shard 0 is asked first and opens for all; the others
    /// join in their order.
    fn open_port(&mut self, port: &Port) -> Result<(), VerbsError>;

    /// Receives for `port` no more.
    fn close_port(&mut self, port: &Port);

    /// Whether a connection came by this UNIX socket, on shard 0; those of a network never did.
    fn came_by(&self, _conn: ConnId, _socket: &std::path::Path) -> bool {
        false
    }

    /// Changes whenever [`Device::wait_fds`] would answer differently.
    fn wait_fds_epoch(&self) -> u64;

    /// What the provider counted, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Whether several packets of this way can leave in one call; `None` where no packets are made here.
    fn segments_on(&self, path: &Path) -> Option<bool> {
        let _ = path;
        None
    }

    /// Bytes of host memory that an idle queue pair takes with this send queue and so many RDMA
    /// READs in flight; as far as the provider knows.
    fn queue_pair_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize;
}

/// What to say to a port of another provider's kind.
fn not_served(port: &Port) -> VerbsError {
    let (what, why) = match port {
        Port::Ip(address) => (address.to_string(), "this srpoll serves shared memory (--shm) only"),
        Port::Shm(path) => (path.display().to_string(), "this srpoll was not started with --shm"),
    };
    VerbsError::System { what: format!("listen on {what}"), why: why.to_owned() }
}

impl Fabric for shm::Device {
    /// The socket belongs to shard 0, which manages connections; the others have no part in it.
    fn open_port(&mut self, port: &Port) -> Result<(), VerbsError> {
        let Port::Shm(path) = port else { return Err(not_served(port)) };
        if !self.manages_connections() {
            return Ok(());
        }
        let socket = OwnedSocket::bind(path, shm::SOCKET).map_err(|error| VerbsError::System {
            what: "shared memory".to_owned(),
            why: error.to_string(),
        })?;
        self.open(socket)
    }

    fn close_port(&mut self, port: &Port) {
        if let Port::Shm(path) = port {
            self.close(path);
        }
    }

    fn came_by(&self, conn: ConnId, socket: &std::path::Path) -> bool {
        shm::Device::came_by(self, conn, socket)
    }

    fn wait_fds_epoch(&self) -> u64 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.named_counters()
    }

    fn queue_pair_bytes(_: u32, _: u8) -> usize {
        shm::Device::queue_pair_bytes()
    }
}

impl Fabric for SimDevice {
    fn open_port(&mut self, port: &Port) -> Result<(), VerbsError> {
        match port {
            Port::Ip(address) => SimDevice::open_port(self, *address),
            Port::Shm(_) => Err(not_served(port)),
        }
    }

    fn close_port(&mut self, port: &Port) {
        if let Port::Ip(address) = port {
            SimDevice::close_port(self, *address);
        }
    }

    fn wait_fds_epoch(&self) -> u64 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        SimDevice::counters(self)
    }

    fn queue_pair_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize {
        Engine::queue_pair_bytes(max_send_wr, max_rd_atomic)
    }
}

impl Fabric for scripted::Context {
    fn open_port(&mut self, port: &Port) -> Result<(), VerbsError> {
        match port {
            Port::Ip(address) => scripted::Context::open_port(self, *address),
            Port::Shm(_) => Err(not_served(port)),
        }
    }

    fn close_port(&mut self, port: &Port) {
        if let Port::Ip(address) = port {
            scripted::Context::close_port(self, *address);
        }
    }

    fn wait_fds_epoch(&self) -> u64 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn queue_pair_bytes(max_send_wr: u32, _: u8) -> usize {
        scripted::Context::queue_pair_bytes(max_send_wr)
    }
}

impl Fabric for soft::Device {
    fn open_port(&mut self, port: &Port) -> Result<(), VerbsError> {
        let Port::Ip(address) = port else { return Err(not_served(port)) };
        soft::Device::open_port(self, *address).map_err(|error| VerbsError::System {
            what: format!("listen on {address}"),
            why: error.to_string(),
        })
    }

    fn close_port(&mut self, port: &Port) {
        if let Port::Ip(address) = port {
            soft::Device::close_port(self, *address);
        }
    }

    fn wait_fds_epoch(&self) -> u64 {
        soft::Device::wait_fds_epoch(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.named_counters()
    }

    fn segments_on(&self, path: &Path) -> Option<bool> {
        Some(soft::Device::segments_on(self, path))
    }

    fn queue_pair_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize {
        Engine::queue_pair_bytes(max_send_wr, max_rd_atomic)
    }
}

#[cfg(feature = "ibv")]
impl Fabric for ibv::Device {
    /// The device is open already; shard 0 looks whether the address is one of it.
    fn open_port(&mut self, port: &Port) -> Result<(), VerbsError> {
        let Port::Ip(address) = port else { return Err(not_served(port)) };
        if self.shard() == 0 { self.owns(*address) } else { Ok(()) }
    }

    fn close_port(&mut self, _: &Port) {}

    fn wait_fds_epoch(&self) -> u64 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.named_counters()
    }

    fn queue_pair_bytes(max_send_wr: u32, _: u8) -> usize {
        ibv::Device::queue_pair_bytes(max_send_wr)
    }
}
