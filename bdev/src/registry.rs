//! Devices by name, and who uses them. For the control plane, off the fast path: a lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::device::Bdev;

/// How a device may be used at the same time.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Beside others that share it, e.g. as a LUN of several targets.
    Shared,
    /// By nobody else, e.g. as the base of another device.
    Exclusive,
}

/// Why a registry refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegistryError {
    /// A device of this name exists.
    #[error("a bdev named {0} exists already; choose another name or delete it first")]
    NameTaken(String),
    /// Names go into commands and files.
    #[error(
        "{0:?} is no name for a bdev: it must not be empty, nor hold blanks, commas or control characters"
    )]
    BadName(String),
    /// A device of this identity exists.
    #[error("bdev {name} cannot have the uuid {uuid}: bdev {other} has it; give another uuid")]
    UuidTaken {
        /// The new device.
        name: String,
        /// Its identity.
        uuid: Uuid,
        /// Who has that identity already.
        other: String,
    },
    /// There is no such device.
    #[error("there is no bdev named {0}")]
    Unknown(String),
    /// The device cannot be removed, or claimed in that way, while it is used.
    #[error("bdev {name} is in use by {users}")]
    InUse {
        /// The device.
        name: String,
        /// Who uses it, in words.
        users: String,
    },
}

struct Entry {
    device: Arc<dyn Bdev>,
    /// Who claimed it, by claim.
    claims: BTreeMap<u64, (String, Sharing)>,
}

impl Entry {
    fn users(&self) -> Vec<String> {
        self.claims.values().map(|(user, _)| user.clone()).collect()
    }

    fn in_use(&self) -> RegistryError {
        RegistryError::InUse { name: self.device.name().to_owned(), users: self.users().join(", ") }
    }
}

#[derive(Default)]
struct Inner {
    devices: BTreeMap<String, Entry>,
    next_claim: u64,
}

/// Devices by name. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    inner: Arc<Mutex<Inner>>,
}

/// A device of the registry as others see it.
#[derive(Clone)]
pub struct Registered {
    /// The device.
    pub device: Arc<dyn Bdev>,
    /// Who uses it, in the order in which they came.
    pub users: Vec<String>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Registry {
        Registry::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change below is one insertion or removal: a panic leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a device under its name. Name and uuid must be new.
    pub fn add(&self, device: Arc<dyn Bdev>) -> Result<(), RegistryError> {
        let (name, uuid) = (device.name().to_owned(), device.uuid());
        check_name(&name)?;
        let mut inner = self.lock();
        if inner.devices.contains_key(&name) {
            return Err(RegistryError::NameTaken(name));
        }
        if let Some(entry) = inner.devices.values().find(|entry| entry.device.uuid() == uuid) {
            return Err(RegistryError::UuidTaken { name, uuid, other: entry.device.name().to_owned() });
        }
        inner.devices.insert(name, Entry { device, claims: BTreeMap::new() });
        Ok(())
    }

    /// The device of that name, without a claim on it. Names and uuids both find one, as in SPDK.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Bdev>, RegistryError> {
        let inner = self.lock();
        let by_uuid = || {
            let uuid = Uuid::try_parse(name).ok()?;
            inner.devices.values().find(|entry| entry.device.uuid() == uuid)
        };
        let entry = inner.devices.get(name).or_else(by_uuid);
        entry.map(|entry| Arc::clone(&entry.device)).ok_or_else(|| RegistryError::Unknown(name.to_owned()))
    }

    /// Claims the device of that name or uuid for `user` (said in words, since it appears in
    /// errors), until the claim is dropped.
    pub fn claim(&self, name: &str, user: &str, sharing: Sharing) -> Result<Claim, RegistryError> {
        let device = self.get(name)?;
        let mut inner = self.lock();
        let number = inner.next_claim;
        let entry =
            inner.devices.get_mut(device.name()).ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
        let exclusive =
            sharing == Sharing::Exclusive || entry.claims.values().any(|claim| claim.1 == Sharing::Exclusive);
        if exclusive && !entry.claims.is_empty() {
            return Err(entry.in_use());
        }
        entry.claims.insert(number, (user.to_owned(), sharing));
        inner.next_claim += 1;
        Ok(Claim { registry: self.clone(), number, device })
    }

    /// Takes the device of that name out, if nobody uses it.
    pub fn remove(&self, name: &str) -> Result<Arc<dyn Bdev>, RegistryError> {
        let mut inner = self.lock();
        let entry = inner.devices.get(name).ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
        if !entry.claims.is_empty() {
            return Err(entry.in_use());
        }
        let entry = inner.devices.remove(name).ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
        Ok(entry.device)
    }

    /// All devices, by name.
    pub fn list(&self) -> Vec<Registered> {
        let inner = self.lock();
        let seen = |entry: &Entry| Registered { device: Arc::clone(&entry.device), users: entry.users() };
        inner.devices.values().map(seen).collect()
    }
}

fn check_name(name: &str) -> Result<(), RegistryError> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
    if name.is_empty() || name.contains(odd) { Err(RegistryError::BadName(name.to_owned())) } else { Ok(()) }
}

/// A device in use; dropping it ends the use.
pub struct Claim {
    registry: Registry,
    number: u64,
    device: Arc<dyn Bdev>,
}

impl Claim {
    /// The device.
    pub fn device(&self) -> &Arc<dyn Bdev> {
        &self.device
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(entry) = self.registry.lock().devices.get_mut(self.device.name()) {
            entry.claims.remove(&self.number);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({} of {})", self.number, self.device.name())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().devices.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::{NullBdev, NullOptions};

    fn null(name: &str, uuid: Option<Uuid>) -> Arc<dyn Bdev> {
        let options = NullOptions { len_bytes: 4096, block_bytes: 512, read_only: false, uuid };
        Arc::new(NullBdev::create(name, &options).unwrap())
    }

    #[test]
    fn names_and_uuids_are_unique_and_both_find_the_device() {
        let registry = Registry::new();
        let uuid = Uuid::from_u128(7);
        registry.add(null("a", Some(uuid))).unwrap();
        let taken = registry.add(null("a", None)).unwrap_err().to_string();
        assert_eq!(taken, "a bdev named a exists already; choose another name or delete it first");
        let taken = registry.add(null("b", Some(uuid))).unwrap_err().to_string();
        assert_eq!(
            taken,
            "bdev b cannot have the uuid 00000000-0000-0000-0000-000000000007: bdev a has it; give another uuid"
        );
        assert!(matches!(registry.add(null("a b", None)), Err(RegistryError::BadName(_))));
        assert!(matches!(registry.add(null("", None)), Err(RegistryError::BadName(_))));
        assert_eq!(registry.get(&uuid.to_string()).unwrap().name(), "a");
        assert_eq!(registry.get("b").err(), Some(RegistryError::Unknown("b".into())));
        assert_eq!(format!("{registry:?}"), r#"["a"]"#);
    }

    #[test]
    fn what_is_used_stays() {
        let registry = Registry::new();
        registry.add(null("a", None)).unwrap();
        let first = registry.claim("a", "LUN 0", Sharing::Shared).unwrap();
        let second = registry.claim("a", "LUN 1 of target t", Sharing::Shared).unwrap();
        let why = registry.remove("a").err().unwrap().to_string();
        assert_eq!(why, "bdev a is in use by LUN 0, LUN 1 of target t");
        assert!(registry.claim("a", "delay d", Sharing::Exclusive).is_err());
        assert_eq!(registry.list()[0].users, ["LUN 0", "LUN 1 of target t"]);
        drop((first, second));
        let alone = registry.claim("a", "delay d", Sharing::Exclusive).unwrap();
        assert!(registry.claim("a", "LUN 0", Sharing::Shared).is_err());
        drop(alone);
        assert_eq!(registry.remove("a").unwrap().name(), "a");
        assert_eq!(registry.remove("a").err(), Some(RegistryError::Unknown("a".into())));
    }

    #[test]
    fn an_old_claim_does_not_touch_a_new_device_of_the_same_name() {
        let registry = Registry::new();
        registry.add(null("a", None)).unwrap();
        let claim = registry.claim("a", "LUN 0", Sharing::Shared).unwrap();
        // By hand what `remove` would refuse.
        registry.lock().devices.clear();
        registry.add(null("a", None)).unwrap();
        let _new = registry.claim("a", "LUN 9", Sharing::Shared).unwrap();
        drop(claim);
        assert_eq!(registry.list()[0].users, ["LUN 9"]);
    }
}
