//! The registered buffers of a session: one IU and one data buffer for each request, a few IUs
//! for answers and task management, receive buffers for each channel.

use reactors::memory::{PAGE_BYTES, Region};

use super::config::SessionConfig;
use crate::rdma::verbs::{Access, Device, MrKeys, PdId, Sge, VerbsError};
use crate::srp::initiator::IMMEDIATE_OFFSET;
use crate::wire::srp::{Cmd, Descriptor};

/// IUs of a channel besides commands: [`TMF_IU`], and answers to the target's requests.
pub(super) const CONTROL_IUS: u32 = 8;
/// The control IU for task management.
pub(super) const TMF_IU: u32 = 0;
/// Bytes of a control IU.
const CONTROL_BYTES: usize = 64;
const CACHE_LINE: usize = 64;

/// A registered piece of memory.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub(super) region: Region,
    pub(super) keys: MrKeys,
}

impl Registered {
    pub(super) fn new<D: Device>(
        device: &mut D,
        pd: PdId,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let region = device.allocate(len_bytes, access)?;
        let keys = device.register(pd, &region, access)?;
        Ok(Registered { region, keys })
    }

    pub(super) fn sge(&self, offset: usize, len_bytes: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, len_bytes: len_bytes as u32, lkey: self.keys.lkey }
    }
}

/// Send and data buffers.
#[derive(Debug)]
pub(super) struct Memory {
    /// Command IUs without immediate data, then control IUs.
    pub(super) ius: Registered,
    /// Data buffers, each followed by its external descriptor table.
    pub(super) data: Registered,
    iu_stride: usize,
    data_stride: usize,
    table_at: usize,
    controls_at: usize,
}

impl Memory {
    pub(super) fn new<D: Device>(
        device: &mut D,
        pd: PdId,
        config: &SessionConfig,
    ) -> Result<Self, VerbsError> {
        let requests = (config.channels * config.depth) as usize;
        let controls = (config.channels * CONTROL_IUS) as usize;
        let iu = Cmd::FIXED_BYTES + Cmd::INDIRECT_BYTES + config.descriptors.inline() * Descriptor::BYTES;
        let iu_stride = iu.max(IMMEDIATE_OFFSET.into()).next_multiple_of(CACHE_LINE);
        let table_at = (config.max_io_bytes as usize).next_multiple_of(PAGE_BYTES);
        let table = (config.descriptors.pieces() * Descriptor::BYTES).next_multiple_of(PAGE_BYTES);
        let external = config.descriptors.pieces() > config.descriptors.inline();
        let data_stride = table_at + if external { table } else { 0 };
        let controls_at = requests * iu_stride;
        let ius_len = controls_at + controls * CONTROL_BYTES;
        Ok(Memory {
            ius: Registered::new(device, pd, ius_len, Access::LOCAL)?,
            data: Registered::new(device, pd, requests * data_stride, Access::REMOTE)?,
            iu_stride,
            data_stride,
            table_at,
            controls_at,
        })
    }

    /// Where the IU of request `slot` is, and how long it may be.
    pub(super) fn iu(&self, slot: u32) -> (usize, usize) {
        (slot as usize * self.iu_stride, self.iu_stride)
    }

    /// Where the data buffer of request `slot` is.
    pub(super) fn data(&self, slot: u32) -> usize {
        slot as usize * self.data_stride
    }

    /// Where the external descriptor table of request `slot` is.
    pub(super) fn table(&self, slot: u32) -> usize {
        self.data(slot) + self.table_at
    }

    /// Where a control IU of a channel is, and how long it may be.
    pub(super) fn control(&self, channel: u32, index: u32) -> (usize, usize) {
        (self.controls_at + (channel * CONTROL_IUS + index) as usize * CONTROL_BYTES, CONTROL_BYTES)
    }
}
