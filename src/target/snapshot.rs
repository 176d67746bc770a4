//! What the shards know of the configuration: one immutable value, replaced as a whole.
//!
//! The control plane builds it and sends it to every shard; a shard keeps the one it has until
//! the next comes, and answers when no command admitted under the old one conflicts with the new.

use std::fmt;
use std::sync::Arc;

use bdev::Bdev;
use uuid::Uuid;

use super::access::AccessList;
use super::fence::Fences;
use super::limits::Limits;

/// Who the target is on the wire.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Identifier extension: the upper half of the target port id.
    pub id_ext: u64,
    /// GUID of the I/O controller: the lower half of the target port id.
    pub ioc_guid: u64,
}

impl Identity {
    /// The target port id of a login: `id_ext`, `ioc_guid` (SRP r16a).
    pub fn port_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.id_ext.to_be_bytes());
        id[8..].copy_from_slice(&self.ioc_guid.to_be_bytes());
        id
    }
}

impl fmt::Display for Identity {
    /// As the kernel's `add_target` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id_ext={:016x},ioc_guid={:016x}", self.id_ext, self.ioc_guid)
    }
}

/// One logical unit.
#[derive(Clone)]
pub struct LunEntry {
    /// Its number, 0..=[`MAX_LUN`].
    pub lun: u16,
    /// What is behind it.
    pub bdev: Arc<dyn Bdev>,
    /// Its world-wide name, NAA 3 (locally assigned): 8 bytes, for VPD page 83.
    pub naa: u64,
    /// Its serial number for VPD page 80, ASCII.
    pub serial: String,
    /// The identity that NAA and serial were made from.
    pub uuid: Uuid,
    /// Writes are refused, whatever the device would do.
    pub read_only: bool,
    /// Ranges where an abandoned write may still land; the same for every shard.
    pub fences: Arc<Fences>,
}

/// Highest LUN: what the flat space addressing of 14 bits can say (SAM-5, 4.7.7.3).
pub const MAX_LUN: u16 = 16_383;

impl fmt::Debug for LunEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LunEntry")
            .field("lun", &self.lun)
            .field("bdev", &self.bdev.name())
            .field("naa", &format_args!("{:016x}", self.naa))
            .field("serial", &self.serial)
            .field("uuid", &self.uuid)
            .field("read_only", &self.read_only)
            .finish()
    }
}

/// The configuration at one epoch.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Grows by one with every change.
    pub epoch: u64,
    /// Who the target is; `None` while there is no target: every login is refused.
    pub identity: Option<Identity>,
    /// The logical units, sorted by number, no number twice.
    pub luns: Vec<LunEntry>,
    /// Who may log in.
    pub access: AccessList,
    /// Sizes and times. The same in every snapshot of a run, but for what logins are given:
    /// channels and sessions may be fewer than at start, see [`Limits::lowered`].
    pub limits: Limits,
}

impl Snapshot {
    /// No target yet.
    pub fn empty(limits: Limits) -> Snapshot {
        Snapshot { epoch: 0, identity: None, luns: Vec::new(), access: AccessList::default(), limits }
    }

    /// The logical unit of this number.
    pub fn lun(&self, lun: u16) -> Option<&LunEntry> {
        let at = self.luns.binary_search_by_key(&lun, |entry| entry.lun).ok()?;
        Some(&self.luns[at])
    }
}
