//! An I_T nexus: what all channels between one initiator port and one target port share.
//!
//! State of a nexus is keyed by the two port ids, never by channel or shard (SAM-5 4.6): the
//! channels of one nexus may lie on several shards. What they share is a table of unit
//! attentions; a shard claims one by an atomic exchange, so that it is reported exactly once.

use std::sync::OnceLock;

use super::snapshot::MAX_LUN;
use crate::scsi::{Attention, Condition};
use crate::wire::srp::PortId;

/// Attentions are kept in pages of so many LUNs, made when one of them is first touched.
const PAGE_LUNS: usize = 256;

/// Names a nexus.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct NexusId {
    /// Initiator port id.
    pub initiator: PortId,
    /// Target port id.
    pub target: PortId,
}

/// A nexus, shared by its channels.
pub struct Nexus {
    /// Its name.
    pub id: NexusId,
    pages: Box<[OnceLock<Box<[Attention]>>]>,
}

impl Nexus {
    /// A new nexus without attentions.
    pub fn new(id: NexusId) -> Self {
        let pages = (usize::from(MAX_LUN) + 1) / PAGE_LUNS;
        Nexus { id, pages: (0..pages).map(|_| OnceLock::new()).collect() }
    }

    /// The unit attentions of a LUN for this nexus.
    ///
    /// # Panics
    /// If `lun` is above [`MAX_LUN`].
    #[inline]
    pub fn attention(&self, lun: u16) -> &Attention {
        let page = self.pages[usize::from(lun) / PAGE_LUNS]
            .get_or_init(|| (0..PAGE_LUNS).map(|_| Attention::new()).collect());
        &page[usize::from(lun) % PAGE_LUNS]
    }

    /// The initiator has learnt of `condition` in another way: it is dropped for all LUNs.
    pub fn clear_everywhere(&self, condition: Condition) {
        for attention in self.pages.iter().filter_map(OnceLock::get).flatten() {
            attention.clear(condition);
        }
    }
}

impl std::fmt::Debug for Nexus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nexus({} - {})", self.id.initiator, self.id.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lun_has_its_own_attentions() {
        let port = PortId::new(1, 2);
        let nexus = Nexus::new(NexusId { initiator: port, target: port });
        for lun in [0, 255, 256, MAX_LUN] {
            nexus.attention(lun).raise(Condition::LunsChanged);
        }
        nexus.attention(256).raise(Condition::PowerOn);
        assert!(!nexus.attention(1).is_pending());
        nexus.clear_everywhere(Condition::LunsChanged);
        assert!(!nexus.attention(MAX_LUN).is_pending());
        assert_eq!(nexus.attention(256).claim(), Some(Condition::PowerOn));
    }
}
