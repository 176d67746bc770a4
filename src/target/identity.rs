//! Who this target is, over restarts: kept in a locked file, or derived where none can be kept.
//!
//! An instance keeps its identity in a folder of its own. The lock on the file shows that no
//! other instance uses it, so that two on a host never share one. Where no folder can be made
//! the identity follows from machine id, first listener address and port, which no other
//! instance on the host can have at the same time.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::snapshot::Identity;

/// The name space of everything that srpoll derives: v5 of the DNS name space and `srpoll`.
pub const NAMESPACE: Uuid = Uuid::from_u128(0x1de8_b108_b39a_552a_ba35_0c5a_7cc0_645a);

/// The file in the state folder.
const FILE: &str = "identity.json";

/// Why the state folder cannot be used; one line that names it.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another instance holds the lock.
    #[error("the state folder {0} is in use by another srpoll; give each instance its own --state")]
    InUse(PathBuf),
    /// The file is not what we write.
    #[error("{path}: {why}; repair it, or remove it to get a new identity")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The folder or file cannot be read or written.
    #[error("the state folder {path} cannot be used: {why}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
}

/// What the file holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    id_ext: String,
    ioc_guid: String,
}

/// The identity of this instance, and the lock that keeps it from others while this lives.
#[derive(Debug)]
pub struct Keeper {
    identity: Identity,
    from: Origin,
}

/// Where an identity comes from.
#[derive(Debug)]
pub enum Origin {
    /// The file in this folder, held locked.
    Kept {
        /// The folder.
        folder: PathBuf,
        /// Keeps the lock.
        _lock: File,
    },
    /// Computed; the text says from what.
    Derived(String),
}

impl Keeper {
    /// The identity in `folder`, which is made if need be.
    pub fn in_folder(folder: &Path) -> Result<Keeper, StateError> {
        let failed = |why| StateError::Io { path: folder.to_owned(), why };
        fs::create_dir_all(folder).map_err(failed)?;
        let path = folder.join(FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StateError::InUse(folder.to_owned())),
            Err(errno) => return Err(failed(errno.into())),
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        // An empty file is one whose first writer did not come to its end.
        let identity = if text.is_empty() {
            let identity = random();
            store(&mut file, &identity).map_err(failed)?;
            identity
        } else {
            parse(&text).map_err(|why| StateError::Corrupt { path, why })?
        };
        Ok(Keeper { identity, from: Origin::Kept { folder: folder.to_owned(), _lock: file } })
    }

    /// The identity that follows from this machine and the first address that is served; or, for
    /// an instance that serves none yet, from `instance`, a name that no other on the host has.
    pub fn derived(first_listener: Option<SocketAddr>, instance: &str) -> Keeper {
        derived_from(&machine_id(), first_listener, instance)
    }

    /// The identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where it comes from.
    pub fn origin(&self) -> &Origin {
        &self.from
    }

    /// The name space of this instance, for whatever must differ between instances.
    pub fn namespace(&self) -> Uuid {
        namespace_of(&self.identity)
    }
}

fn derived_from(machine_id: &str, first_listener: Option<SocketAddr>, instance: &str) -> Keeper {
    let seed = match first_listener {
        Some(address) => format!("machine {machine_id} address {address}"),
        None => format!("machine {machine_id} instance {instance}"),
    };
    let identity = from_uuid(Uuid::new_v5(&NAMESPACE, seed.as_bytes()));
    let from = match first_listener {
        Some(address) => format!("the machine id and the first address served, {address}"),
        None => format!("the machine id and the name of this instance, {instance}"),
    };
    Keeper { identity, from: Origin::Derived(from) }
}

/// World-wide name and serial number of a logical unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunNames {
    /// NAA 3 (locally assigned) and 60 bits (SPC-5, 7.8.6.6.5): no company id is needed.
    pub naa: u64,
    /// 32 hexadecimal digits.
    pub serial: String,
}

/// The names of the logical unit with this uuid at the target with this identity.
pub fn lun_names(identity: &Identity, lun: Uuid) -> LunNames {
    let name = Uuid::new_v5(&namespace_of(identity), lun.as_bytes());
    let naa = 0x3 << 60 | (name.as_u64_pair().0 ^ name.as_u64_pair().1) >> 4;
    LunNames { naa, serial: name.simple().to_string() }
}

fn namespace_of(identity: &Identity) -> Uuid {
    Uuid::new_v5(&NAMESPACE, &identity.port_id())
}

/// The folder of the instance called `instance`: under `/var/lib/srpoll` for those who may write
/// there, else under `$XDG_STATE_HOME/srpoll` or `~/.local/state/srpoll`.
pub fn default_folders(instance: &str) -> Vec<PathBuf> {
    let mut bases = vec![PathBuf::from("/var/lib")];
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(state) = absolute("XDG_STATE_HOME") {
        bases.push(state);
    } else if let Some(home) = absolute("HOME") {
        bases.push(home.join(".local/state"));
    }
    bases.into_iter().map(|base| base.join("srpoll").join(instance)).collect()
}

fn random() -> Identity {
    from_uuid(Uuid::new_v4())
}

/// Both halves; the GUID is marked as locally administered and as no group (IEEE EUI-64).
fn from_uuid(uuid: Uuid) -> Identity {
    let (id_ext, guid) = uuid.as_u64_pair();
    Identity { id_ext, ioc_guid: guid & !(0x03 << 56) | 0x02 << 56 }
}

fn store(file: &mut File, identity: &Identity) -> std::io::Result<()> {
    let stored = Stored {
        id_ext: format!("{:016x}", identity.id_ext),
        ioc_guid: format!("{:016x}", identity.ioc_guid),
    };
    let mut text = serde_json::to_string_pretty(&stored)?;
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn parse(text: &str) -> Result<Identity, String> {
    let stored: Stored = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let hex = |name: &str, digits: &str| match u64::from_str_radix(digits, 16) {
        Ok(value) if digits.len() == 16 => Ok(value),
        _ => Err(format!("{name} is not 16 hexadecimal digits")),
    };
    Ok(Identity { id_ext: hex("id_ext", &stored.id_ext)?, ioc_guid: hex("ioc_guid", &stored.ioc_guid)? })
}

/// What systemd or D-Bus call this machine; its name where there is neither.
fn machine_id() -> String {
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        match fs::read_to_string(path) {
            Ok(text) if text.trim().len() == 32 => return text.trim().to_owned(),
            _ => {}
        }
    }
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_space_is_what_it_says() {
        assert_eq!(NAMESPACE, Uuid::new_v5(&Uuid::NAMESPACE_DNS, b"srpoll"));
    }

    #[test]
    fn a_restart_keeps_the_identity_and_another_folder_has_another() {
        let base = tempfile::tempdir().unwrap();
        let first = Keeper::in_folder(&base.path().join("deep/a")).unwrap().identity();
        let again = Keeper::in_folder(&base.path().join("deep/a")).unwrap().identity();
        let other = Keeper::in_folder(&base.path().join("b")).unwrap().identity();
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert_eq!(first.ioc_guid >> 56 & 0x03, 0x02);
    }

    #[test]
    fn a_folder_in_use_is_refused_and_named() {
        let base = tempfile::tempdir().unwrap();
        let keeper = Keeper::in_folder(base.path()).unwrap();
        let error = Keeper::in_folder(base.path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the state folder {} is in use by another srpoll; give each instance its own --state",
                base.path().display()
            )
        );
        drop(keeper);
        Keeper::in_folder(base.path()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_an_error_and_stays_as_it_is() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join(FILE);
        for (text, why) in [
            ("{", "EOF while parsing an object at line 1 column 1"),
            (r#"{"id_ext":"0000000000000001"}"#, "missing field `ioc_guid` at line 1 column 29"),
            (r#"{"id_ext":"1","ioc_guid":"0000000000000002"}"#, "id_ext is not 16 hexadecimal digits"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Keeper::in_folder(base.path()).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{}: {why}; repair it, or remove it to get a new identity", path.display())
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Keeper::in_folder(&file.join("state")).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("the state folder {} cannot be used: ", file.join("state").display()))
        );
    }

    #[test]
    fn derived_identities_differ_by_machine_address_and_instance() {
        let at = |text: &str| Some(text.parse().unwrap());
        let all = [
            derived_from("m", at("127.0.0.1:5555"), "a"),
            derived_from("m", at("127.0.0.1:5556"), "a"),
            derived_from("m", at("127.0.0.2:5555"), "a"),
            derived_from("n", at("127.0.0.1:5555"), "a"),
            derived_from("m", None, "a"),
            derived_from("m", None, "b"),
        ];
        for (n, one) in all.iter().enumerate() {
            for other in &all[..n] {
                assert_ne!(one.identity(), other.identity());
            }
        }
        // The instance's name does not count where an address is known.
        assert_eq!(derived_from("m", at("127.0.0.1:5555"), "z").identity(), all[0].identity());
    }

    #[test]
    fn names_of_a_lun_are_stable_and_of_the_right_form() {
        let identity = Identity { id_ext: 1, ioc_guid: 2 };
        let uuid = Uuid::from_u128(7);
        let names = lun_names(&identity, uuid);
        assert_eq!(names, lun_names(&identity, uuid));
        assert_eq!(names.naa >> 60, 3);
        assert_eq!(names.serial.len(), 32);
        assert_ne!(names, lun_names(&Identity { id_ext: 1, ioc_guid: 3 }, uuid));
        assert_ne!(names.naa, lun_names(&identity, Uuid::from_u128(8)).naa);
        // What is on initiators' disks must not change with a new version.
        assert_eq!(
            format!("{:016x} {}", names.naa, names.serial),
            "3019ca76c0559e4e 867a5f3f31ca5df987e6f8533493b91b"
        );
    }
}
