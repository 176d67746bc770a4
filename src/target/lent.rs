//! Memory that block devices lend: reads in place go from there to the initiator, without a chunk and
//! without a copy of ours.
//!
//! It is registered once a shard, when a logical unit on it is opened. The unit holds it, and so does each
//! task that has WRITEs posted from there: a unit may go while they are in flight, or sent again. When
//! nobody holds it any more it is deregistered, in the slow lane; the device keeps the memory itself
//! until then.
//!
//! A WRITE sends what lies there when its packets are made: a write of others to the same blocks that
//! comes between command and response is seen, in whole or in part, as two shards that copied at the same
//! time would have it. SAM promises no more to commands that overlap. Over UDP a packet whose bytes change
//! between checksum and kernel is sent again.

use std::fmt;
use std::rc::Rc;

use reactors::memory::Region;

use super::limits::PINNED_BYTES;
use crate::rdma::verbs::{Access, Device, PdId, Sge, VerbsError};
use crate::wire::num::LKey;

/// Memory of a block device, as the RDMA device knows it.
#[derive(Debug)]
pub struct Lent {
    region: Region,
    lkey: LKey,
}

/// Where a task's data lie in such memory.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// The memory, which stays registered as long as this lives.
    pub memory: Rc<Lent>,
    /// Where in it the data begin, in bytes.
    pub offset: usize,
}

impl InPlace {
    /// `len_bytes` at `at` of the data, for a work request.
    #[inline]
    pub fn sge(&self, at: usize, len_bytes: u32) -> Sge {
        let Lent { region, lkey } = &*self.memory;
        Sge { addr: region.addr() + (self.offset + at) as u64, len_bytes, lkey: *lkey }
    }
}

/// Why reads have to be copied although their data lie in memory.
#[derive(Debug, PartialEq, Eq)]
pub enum Copied {
    /// It is too much to be pinned.
    TooMuch(usize),
    /// The device does not register it.
    Refused(VerbsError),
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Copied::TooMuch(bytes) => {
                write!(f, "an adapter would pin all of its {bytes} bytes; {PINNED_BYTES} are the most")
            }
            Copied::Refused(error) => error.fmt(f),
        }
    }
}

/// What a shard has registered of such memory.
#[derive(Default)]
pub struct Loans {
    lent: Vec<Rc<Lent>>,
}

impl Loans {
    /// Registers `region`, unless that was done before.
    pub fn take<D: Device>(&mut self, device: &mut D, pd: PdId, region: &Region) -> Result<Rc<Lent>, Copied> {
        if let Some(known) = self.lent.iter().find(|lent| lent.region.same_as(region)) {
            return Ok(Rc::clone(known));
        }
        if device.pins_memory() && region.len_bytes() > PINNED_BYTES {
            return Err(Copied::TooMuch(region.len_bytes()));
        }
        let keys = device.register(pd, region, Access::SOURCE).map_err(Copied::Refused)?;
        let lent = Rc::new(Lent { region: region.clone(), lkey: keys.lkey });
        self.lent.push(Rc::clone(&lent));
        Ok(lent)
    }

    /// Deregisters what nobody holds any more.
    pub fn sweep<D: Device>(&mut self, device: &mut D) {
        self.lent.retain(|lent| {
            let held = Rc::strong_count(lent) > 1;
            if !held && let Err(error) = device.deregister(lent.lkey) {
                tracing::debug!(%error, "memory of a block device was not registered any more");
            }
            held
        });
    }

    /// What is registered, and how many hold it.
    pub fn holders(&self) -> impl Iterator<Item = (&Rc<Lent>, usize)> {
        self.lent.iter().map(|lent| (lent, Rc::strong_count(lent) - 1))
    }
}
