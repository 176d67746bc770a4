//! What there is: block devices, the target, its logical units, access list and listeners.
//!
//! One thread owns the [`Model`]. A change makes a new snapshot, which every shard has taken
//! before the change is answered; one that a shard refuses leaves everything as it was.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bdev::Bdev;
use uuid::Uuid;

use super::jsonrpc::{Call, RpcError};
use crate::target::access::{AccessList, Rule};
use crate::target::fence::Fences;
use crate::target::handle::{HandleError, TargetHandle};
use crate::target::identity::{Keeper, lun_names};
use crate::target::limits::Limits;
use crate::target::snapshot::{Identity, LunEntry, MAX_LUN, Snapshot};

/// Name of the target if nobody gives it one.
pub const DEFAULT_TARGET: &str = "srpoll";

/// A block device and the call that made it, for `save_config`.
#[derive(Clone)]
pub struct Device {
    /// The device.
    pub bdev: Arc<dyn Bdev>,
    /// The call that makes it again.
    pub made_by: Call,
    /// Ranges where an abandoned write may still land. They belong to the device, so that a logical
    /// unit that goes and comes back meets them again.
    pub fences: Arc<Fences>,
}

/// A logical unit of the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lun {
    /// Name of its device.
    pub bdev: String,
    /// What its names are made from.
    pub uuid: Uuid,
    /// Writes are refused.
    pub read_only: bool,
}

/// The target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Its name in the control plane; initiators do not see it.
    pub name: String,
    /// Who it is on the wire.
    pub identity: Identity,
    /// Its logical units.
    pub luns: BTreeMap<u16, Lun>,
    /// Who may log in, in the order given.
    pub rules: Vec<Rule>,
    /// Where it listens, in the order given.
    pub listeners: Vec<SocketAddr>,
}

/// Everything that the control plane knows, and the running target it tells.
pub struct Model {
    handle: TargetHandle,
    keeper: Keeper,
    limits: Limits,
    epoch: u64,
    devices: BTreeMap<String, Device>,
    target: Option<Target>,
}

impl Model {
    /// Nothing yet; `handle` runs with [`Snapshot::empty`].
    pub fn new(handle: TargetHandle, keeper: Keeper, limits: Limits) -> Model {
        Model { handle, keeper, limits, epoch: 0, devices: BTreeMap::new(), target: None }
    }

    /// The running target.
    pub fn handle(&self) -> &TargetHandle {
        &self.handle
    }

    /// Where identities come from.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The block devices by name.
    pub fn devices(&self) -> &BTreeMap<String, Device> {
        &self.devices
    }

    /// The device of that name.
    pub fn device(&self, name: &str) -> Result<&Device, RpcError> {
        self.devices.get(name).ok_or_else(|| RpcError::missing(format!("there is no bdev \"{name}\"")))
    }

    /// The target, if there is one.
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// The target of that name, or the one there is.
    pub fn target_named(&self, name: Option<&str>) -> Result<&Target, RpcError> {
        match (&self.target, name) {
            (Some(target), None) => Ok(target),
            (Some(target), Some(name)) if target.name == name => Ok(target),
            (_, Some(name)) => Err(RpcError::missing(format!("there is no target \"{name}\""))),
            (None, None) => Err(RpcError::missing("there is no target; make one with srp_create_target")),
        }
    }

    /// The lowest number that no logical unit has.
    pub fn lowest_free_lun(&self) -> Option<u16> {
        let luns = self.target.as_ref().map(|target| &target.luns);
        (0..=MAX_LUN).find(|lun| luns.is_none_or(|luns| !luns.contains_key(lun)))
    }

    /// The LUN that uses the device.
    pub fn user_of(&self, device: &str) -> Option<u16> {
        let target = self.target.as_ref()?;
        target.luns.iter().find(|(_, lun)| lun.bdev == device).map(|(&number, _)| number)
    }

    /// That a device may get this name.
    pub fn check_device_name(&self, name: &str) -> Result<(), RpcError> {
        check_name("name", name)?;
        match self.devices.contains_key(name) {
            true => Err(RpcError::exists(format!("there is a bdev \"{name}\" already"))),
            false => Ok(()),
        }
    }

    /// Takes a new device in.
    pub fn add_device(&mut self, device: Device) -> Result<(), RpcError> {
        let name = device.bdev.name().to_owned();
        self.check_device_name(&name)?;
        self.devices.insert(name, device);
        Ok(())
    }

    /// Lets go of a device that no LUN uses and that is of this kind.
    pub fn remove_device(&mut self, name: &str, product: &str) -> Result<(), RpcError> {
        let device = self.device(name)?;
        if device.bdev.product() != product {
            let kind = device.bdev.product();
            return Err(RpcError::missing(format!("bdev \"{name}\" is a {kind}, not a {product}")));
        }
        if let Some(lun) = self.user_of(name) {
            return Err(RpcError::busy(format!("bdev \"{name}\" is in use by LUN {lun}; remove that first")));
        }
        self.devices.remove(name);
        Ok(())
    }

    /// Makes the target.
    pub fn create_target(&mut self, name: &str, identity: Identity) -> Result<(), RpcError> {
        check_name("name", name)?;
        if let Some(there) = &self.target {
            let message = format!("there is a target \"{}\" already; srpoll serves one", there.name);
            return Err(RpcError::exists(message));
        }
        self.publish(Some(Target {
            name: name.to_owned(),
            identity,
            luns: BTreeMap::new(),
            rules: Vec::new(),
            listeners: Vec::new(),
        }))
    }

    /// Ends the target with its listeners and sessions.
    pub fn delete_target(&mut self, name: &str) -> Result<(), RpcError> {
        let mut next = self.target_named(Some(name))?.clone();
        for listener in std::mem::take(&mut next.listeners) {
            self.handle.remove_listener(listener)?;
        }
        // Without a target every login is refused, so that no session comes after the last.
        self.publish(None)?;
        for session in self.handle.sessions()? {
            self.handle.disconnect_session(session.id)?;
        }
        Ok(())
    }

    /// Adds a logical unit; without a number it gets the lowest free one, which is given back.
    pub fn add_lun(&mut self, target: Option<&str>, number: Option<u64>, lun: Lun) -> Result<u16, RpcError> {
        let mut next = self.target_named(target)?.clone();
        let number = match number {
            Some(number) => u16::try_from(number)
                .ok()
                .filter(|&number| number <= MAX_LUN)
                .ok_or_else(|| RpcError::params(format!("LUN {number} is out of range: 0 to {MAX_LUN}")))?,
            None => self.lowest_free_lun().ok_or_else(|| RpcError::busy("every LUN is taken"))?,
        };
        if let Some(there) = next.luns.get(&number) {
            let message = format!("LUN {number} is taken already, by bdev \"{}\"", there.bdev);
            return Err(RpcError::exists(message));
        }
        self.device(&lun.bdev)?;
        if let Some(user) = self.user_of(&lun.bdev) {
            return Err(RpcError::busy(format!("bdev \"{}\" is in use by LUN {user}", lun.bdev)));
        }
        next.luns.insert(number, lun);
        self.publish(Some(next))?;
        Ok(number)
    }

    /// Removes a logical unit.
    pub fn remove_lun(&mut self, target: Option<&str>, number: u64) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        let gone = u16::try_from(number).ok().and_then(|number| next.luns.remove(&number));
        if gone.is_none() {
            return Err(RpcError::missing(format!("there is no LUN {number}")));
        }
        self.publish(Some(next))
    }

    /// Lets somebody in.
    pub fn add_initiator(&mut self, target: Option<&str>, rule: Rule) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        if next.rules.contains(&rule) {
            return Err(RpcError::exists(format!("{rule} is on the access list already")));
        }
        next.rules.push(rule);
        self.publish(Some(next))
    }

    /// Lets somebody in no more; sessions that there are stay.
    pub fn remove_initiator(&mut self, target: Option<&str>, rule: Rule) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        let Some(at) = next.rules.iter().position(|there| *there == rule) else {
            return Err(RpcError::missing(format!("{rule} is not on the access list")));
        };
        next.rules.remove(at);
        self.publish(Some(next))
    }

    /// Listens at one more address.
    pub fn add_listener(&mut self, target: Option<&str>, listener: SocketAddr) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        if next.listeners.contains(&listener) {
            return Err(RpcError::exists(format!("the target listens at {listener} already")));
        }
        self.handle.add_listener(listener)?;
        next.listeners.push(listener);
        self.target = Some(next);
        Ok(())
    }

    /// Listens there no more; sessions that came that way stay.
    pub fn remove_listener(&mut self, target: Option<&str>, listener: SocketAddr) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        let Some(at) = next.listeners.iter().position(|there| *there == listener) else {
            return Err(RpcError::missing(format!("the target does not listen at {listener}")));
        };
        self.handle.remove_listener(listener)?;
        next.listeners.remove(at);
        self.target = Some(next);
        Ok(())
    }

    /// Has every shard work by `next`, or nothing changed.
    fn publish(&mut self, next: Option<Target>) -> Result<(), RpcError> {
        let snapshot = self.snapshot(next.as_ref())?;
        if let Err(error) = self.handle.apply(&Arc::new(snapshot)) {
            // Some shards may have taken it: all go back to what there was.
            self.epoch += 1;
            let before = self.snapshot(self.target.as_ref())?;
            if let Err(again) = self.handle.apply(&Arc::new(before)) {
                tracing::error!("the shards did not go back to the configuration before: {again}");
            }
            self.epoch += 1;
            return Err(error.into());
        }
        self.epoch += 1;
        self.target = next;
        Ok(())
    }

    /// What the shards are told of `target`.
    fn snapshot(&self, target: Option<&Target>) -> Result<Snapshot, RpcError> {
        let mut snapshot = Snapshot { epoch: self.epoch + 1, ..Snapshot::empty(self.limits) };
        let Some(target) = target else { return Ok(snapshot) };
        snapshot.identity = Some(target.identity);
        snapshot.access = AccessList::new(target.rules.clone());
        for (&number, lun) in &target.luns {
            let device = self.device(&lun.bdev)?;
            let bdev = Arc::clone(&device.bdev);
            let names = lun_names(&target.identity, lun.uuid);
            let read_only = lun.read_only || bdev.geometry().read_only;
            snapshot.luns.push(LunEntry {
                lun: number,
                bdev,
                naa: names.naa,
                serial: names.serial,
                uuid: lun.uuid,
                read_only,
                fences: Arc::clone(&device.fences),
            });
        }
        Ok(snapshot)
    }
}

impl From<HandleError> for RpcError {
    fn from(error: HandleError) -> RpcError {
        RpcError::failed(error.to_string())
    }
}

fn check_name(what: &str, name: &str) -> Result<(), RpcError> {
    if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
        return Err(RpcError::params(format!(
            "{what}: {name:?} is no name: 1 to 255 bytes without control characters"
        )));
    }
    Ok(())
}
