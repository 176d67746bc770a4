//! What a shard needs of an RDMA provider beyond the verbs: ports that come and go.

use std::net::IpAddr;

use crate::rdma::engine::Engine;
#[cfg(feature = "ibv")]
use crate::rdma::ibv;
use crate::rdma::sim::device::SimDevice;
use crate::rdma::sim::scripted;
use crate::rdma::soft;
use crate::rdma::verbs::{Connections, Device, VerbsError};

/// A provider's context of one shard.
pub trait Fabric: Device + Connections {
    /// Takes part in receiving for `address`. Shard 0 is asked first and opens for all; the others
    /// join in their order.
    fn open_port(&mut self, address: IpAddr) -> Result<(), VerbsError>;

    /// Receives for `address` no more.
    fn close_port(&mut self, address: IpAddr);

    /// Changes whenever [`Device::wait_fds`] would answer differently.
    fn wait_fds_epoch(&self) -> u64;

    /// What the provider counted, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Bytes of host memory that an idle queue pair takes with this send queue and so many RDMA
    /// READs in flight; as far as the provider knows.
    fn queue_pair_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize;
}

impl Fabric for SimDevice {
    fn open_port(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        SimDevice::open_port(self, address)
    }

    fn close_port(&mut self, address: IpAddr) {
        SimDevice::close_port(self, address);
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
    fn open_port(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        scripted::Context::open_port(self, address)
    }

    fn close_port(&mut self, address: IpAddr) {
        scripted::Context::close_port(self, address);
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
    fn open_port(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        soft::Device::open_port(self, address).map_err(|error| VerbsError::System {
            what: format!("listen on {address}"),
            why: error.to_string(),
        })
    }

    fn close_port(&mut self, address: IpAddr) {
        soft::Device::close_port(self, address);
    }

    fn wait_fds_epoch(&self) -> u64 {
        soft::Device::wait_fds_epoch(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.named_counters()
    }

    fn queue_pair_bytes(max_send_wr: u32, max_rd_atomic: u8) -> usize {
        Engine::queue_pair_bytes(max_send_wr, max_rd_atomic)
    }
}

#[cfg(feature = "ibv")]
impl Fabric for ibv::Device {
    /// The device is open already; shard 0 looks whether the address is one of it.
    fn open_port(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        if self.shard() == 0 { self.owns(address) } else { Ok(()) }
    }

    fn close_port(&mut self, _: IpAddr) {}

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
