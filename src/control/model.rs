//! What there is: block devices, the target, its logical units, access list and listeners.
//!
//! One thread owns the [`Model`]. A change makes a new snapshot, which every shard has taken
//! before the change is answered; one that a shard refuses leaves everything as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use bdev::Bdev;
use bdev::registry::{Claim, Registered, Registry, RegistryError, Sharing};
use serde_json::Value;
use uuid::Uuid;

use super::jsonrpc::{Call, RpcError};
use crate::target::access::{AccessList, Rule};
use crate::target::fence::Fences;
use crate::target::handle::{HandleError, TargetHandle};
use crate::target::identity::{Keeper, lun_names};
use crate::target::limits::{Admission, Limits};
use crate::target::listener::Listener;
use crate::target::snapshot::{Identity, LunEntry, MAX_LUN, Snapshot};

/// Name of the target if nobody gives it one.
pub const DEFAULT_TARGET: &str = "srpoll";

/// What the control plane keeps of a device beside the registry.
pub struct Made {
    /// The call that makes it again, for `save_config`.
    pub by: Call,
    /// Counts the devices as they were made: a base comes before what lies over it.
    number: u64,
    /// Ranges where an abandoned write may still land. They belong to the medium, so that a logical
    /// unit that goes and comes back meets them again, over this device or over its base.
    fences: Arc<Fences>,
    /// The device below is in use by this one.
    _base: Option<Claim>,
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
    pub listeners: Vec<Listener>,
    /// What logins to come are given, if less than the process was started with.
    pub admission: Admission,
}

/// Everything that the control plane knows, and the running target it tells.
pub struct Model {
    handle: TargetHandle,
    keeper: Keeper,
    limits: Limits,
    epoch: u64,
    registry: Registry,
    /// For every device of the registry, by name.
    made: BTreeMap<String, Made>,
    made_ever: u64,
    target: Option<Target>,
    /// The device of each logical unit is in use by it.
    claims: BTreeMap<u16, Claim>,
    /// By logical unit: the generation of its device that the shards know.
    generations: BTreeMap<u16, u64>,
}

impl Model {
    /// Nothing yet; `handle` runs with [`Snapshot::empty`].
    pub fn new(handle: TargetHandle, keeper: Keeper, limits: Limits) -> Model {
        Model {
            handle,
            keeper,
            limits,
            epoch: 0,
            registry: Registry::new(),
            made: BTreeMap::new(),
            made_ever: 0,
            target: None,
            claims: BTreeMap::new(),
            generations: BTreeMap::new(),
        }
    }

    /// The running target.
    pub fn handle(&self) -> &TargetHandle {
        &self.handle
    }

    /// Where identities come from.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The block devices by name, with their users.
    pub fn devices(&self) -> Vec<Registered> {
        self.registry.list()
    }

    /// The device of that name or uuid.
    pub fn device(&self, name: &str) -> Result<Arc<dyn Bdev>, RpcError> {
        Ok(self.registry.get(name)?)
    }

    /// The registry of block devices, for who watches them.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// The devices with the calls that make them again, by name.
    pub fn made(&self) -> &BTreeMap<String, Made> {
        &self.made
    }

    /// The calls that make the devices again, in an order in which they can be made.
    pub fn calls_that_made(&self) -> Vec<&Call> {
        let mut made: Vec<&Made> = self.made.values().collect();
        made.sort_by_key(|made| made.number);
        made.iter().map(|made| &made.by).collect()
    }

    /// The limits that the process was started with.
    pub fn limits(&self) -> &Limits {
        &self.limits
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

    /// That no device has this name: found before a new one is made.
    pub fn check_device_name(&self, name: &str) -> Result<(), RpcError> {
        match self.made.contains_key(name) {
            true => Err(RegistryError::NameTaken(name.to_owned()).into()),
            false => Ok(()),
        }
    }

    /// Takes a new device in.
    pub fn add_device(&mut self, device: Arc<dyn Bdev>, made_by: Call) -> Result<(), RpcError> {
        self.insert(device, made_by, Arc::default(), None)
    }

    /// Makes a device over the one of the name or uuid `base`, which nobody else may use, and takes
    /// it in.
    pub fn add_wrapper(
        &mut self,
        name: &str,
        base: &str,
        made_by: Call,
        make: impl FnOnce(Arc<dyn Bdev>) -> Arc<dyn Bdev>,
    ) -> Result<(), RpcError> {
        self.check_device_name(name)?;
        let claim = self.registry.claim(base, &format!("bdev {name}"), Sharing::Exclusive)?;
        let fences = self.fences_of(claim.device().name());
        self.insert(make(Arc::clone(claim.device())), made_by, fences, Some(claim))
    }

    fn insert(
        &mut self,
        device: Arc<dyn Bdev>,
        by: Call,
        fences: Arc<Fences>,
        base: Option<Claim>,
    ) -> Result<(), RpcError> {
        let name = device.name().to_owned();
        self.registry.add(device)?;
        self.made.insert(name, Made { by, number: self.made_ever, fences, _base: base });
        self.made_ever += 1;
        Ok(())
    }

    fn fences_of(&self, device: &str) -> Arc<Fences> {
        self.made.get(device).map(|made| Arc::clone(&made.fences)).unwrap_or_default()
    }

    /// Another value of a parameter of the call that makes a device again.
    pub fn remember(&mut self, device: &str, parameter: &str, value: Value) {
        if let Some(made) = self.made.get_mut(device) {
            made.by.params[parameter] = value;
        }
    }

    /// Tells the shards if the medium of a logical unit is not what they know: nexuses hear of it
    /// by a unit attention. Gives whether there was anything to tell.
    pub fn refresh(&mut self) -> Result<bool, RpcError> {
        let changed = self.claims.iter().any(|(number, claim)| {
            self.generations.get(number).is_some_and(|&known| known != claim.device().generation())
        });
        if changed {
            self.publish(self.target.clone())?;
        }
        Ok(changed)
    }

    /// The device of that name or uuid, which must be of this kind.
    pub fn device_of(&self, name: &str, product: &str) -> Result<Arc<dyn Bdev>, RpcError> {
        let device = self.registry.get(name)?;
        let kind = device.product();
        if kind == product {
            return Ok(device);
        }
        let a = |kind: &str| if kind.starts_with('E') { "an" } else { "a" };
        let words = format!("bdev {name} is {} {kind}, not {} {product}", a(kind), a(product));
        Err(RpcError::missing(words))
    }

    /// Lets go of a device that no LUN uses and that is of this kind.
    pub fn remove_device(&mut self, name: &str, product: &str) -> Result<(), RpcError> {
        let device = self.device_of(name, product)?;
        self.registry.remove(device.name())?;
        self.made.remove(device.name());
        Ok(())
    }

    /// Makes the target.
    pub fn create_target(
        &mut self,
        name: &str,
        identity: Identity,
        admission: Admission,
    ) -> Result<(), RpcError> {
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
            admission,
        }))
    }

    /// Sets what logins to come are given; who is logged in keeps what he has.
    pub fn set_admission(&mut self, target: Option<&str>, admission: Admission) -> Result<(), RpcError> {
        let next = Target { admission, ..self.target_named(target)?.clone() };
        self.publish(Some(next))
    }

    /// Ends the target with its listeners and sessions.
    pub fn delete_target(&mut self, name: &str) -> Result<(), RpcError> {
        let mut next = self.target_named(Some(name))?.clone();
        for listener in std::mem::take(&mut next.listeners) {
            self.handle.remove_listener(&listener)?;
        }
        // Without a target every login is refused, so that no session comes after the last.
        self.publish(None)?;
        self.claims.clear();
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
            return Err(RpcError::exists(format!("LUN {number} is taken already, by bdev {}", there.bdev)));
        }
        let claim = self.registry.claim(&lun.bdev, &format!("LUN {number}"), Sharing::Exclusive)?;
        // The caller may have named it by its uuid.
        next.luns.insert(number, Lun { bdev: claim.device().name().to_owned(), ..lun });
        self.publish(Some(next))?;
        self.claims.insert(number, claim);
        Ok(number)
    }

    /// Removes a logical unit.
    pub fn remove_lun(&mut self, target: Option<&str>, number: u64) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        let there = u16::try_from(number).ok().filter(|number| next.luns.remove(number).is_some());
        let number = there.ok_or_else(|| RpcError::missing(format!("there is no LUN {number}")))?;
        self.publish(Some(next))?;
        self.claims.remove(&number);
        Ok(())
    }

    /// Whether the target has this logical unit.
    pub fn has_lun(&self, number: u16) -> bool {
        self.target().is_some_and(|target| target.luns.contains_key(&number))
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
    pub fn add_listener(&mut self, target: Option<&str>, listener: Listener) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        if next.listeners.contains(&listener) {
            return Err(RpcError::exists(format!("the target listens at {listener} already")));
        }
        self.handle.add_listener(&listener)?;
        next.listeners.push(listener);
        self.target = Some(next);
        Ok(())
    }

    /// Listens there no more. Sessions that came that way stay, or end with it.
    pub fn remove_listener(
        &mut self,
        target: Option<&str>,
        listener: Listener,
        end_sessions: bool,
    ) -> Result<(), RpcError> {
        let mut next = self.target_named(target)?.clone();
        let Some(at) = next.listeners.iter().position(|there| *there == listener) else {
            return Err(RpcError::missing(format!("the target does not listen at {listener}")));
        };
        self.handle.remove_listener(&listener)?;
        next.listeners.remove(at);
        self.target = Some(next);
        if end_sessions {
            self.handle.end_sessions_of(listener)?;
        }
        Ok(())
    }

    /// Has every shard work by `next`, or nothing changed.
    fn publish(&mut self, next: Option<Target>) -> Result<(), RpcError> {
        // Read before the shards do: what changes in between is found by the next refresh.
        let mut generations = BTreeMap::new();
        for (&number, lun) in next.iter().flat_map(|next| &next.luns) {
            generations.insert(number, self.registry.get(&lun.bdev)?.generation());
        }
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
        self.generations = generations;
        Ok(())
    }

    /// What the shards are told of `target`.
    fn snapshot(&self, target: Option<&Target>) -> Result<Snapshot, RpcError> {
        let mut snapshot = Snapshot { epoch: self.epoch + 1, ..Snapshot::empty(self.limits) };
        let Some(target) = target else { return Ok(snapshot) };
        snapshot.identity = Some(target.identity);
        snapshot.access = AccessList::new(target.rules.clone());
        let lowered = self.limits.lowered(&target.admission);
        snapshot.limits = lowered.map_err(|error| RpcError::params(error.to_string()))?;
        for (&number, lun) in &target.luns {
            let bdev = self.registry.get(&lun.bdev)?;
            let fences = self.fences_of(&lun.bdev);
            let names = lun_names(&target.identity, lun.uuid);
            let read_only = lun.read_only || bdev.geometry().read_only;
            snapshot.luns.push(LunEntry {
                lun: number,
                bdev,
                naa: names.naa,
                serial: names.serial,
                uuid: lun.uuid,
                read_only,
                fences,
            });
        }
        Ok(snapshot)
    }
}

impl From<RegistryError> for RpcError {
    fn from(error: RegistryError) -> RpcError {
        let message = error.to_string();
        match error {
            RegistryError::NameTaken(_) | RegistryError::UuidTaken { .. } => RpcError::exists(message),
            RegistryError::BadName(_) => RpcError::params(message),
            RegistryError::Unknown(_) => RpcError::missing(message),
            RegistryError::InUse { .. } => RpcError::busy(message),
        }
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
