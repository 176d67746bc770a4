//! Finding an RDMA device, and what it can do.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use super::addresses;
use super::cm::{self, EventChannel};
use super::probe::{self, Abilities};
use super::sys::{self, Context};

/// Which device is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// By its name, as `ibv_devices` lists it, and one of its ports, from 1.
    Device {
        /// The name.
        name: String,
        /// The port; any that has addresses if none is named.
        port: Option<u8>,
    },
    /// The device of these IP addresses.
    Addresses(Vec<SocketAddr>),
}

/// Why there is no adapter, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A library is not installed.
    #[error("{library} cannot be loaded: install Debian's package {package} ({why})")]
    Library {
        /// The file.
        library: &'static str,
        /// The package that has it.
        package: &'static str,
        /// What the loader said.
        why: String,
    },
    /// There is no RDMA device, or none that user space can reach.
    #[error("no RDMA device: {0}")]
    NoDevice(&'static str),
    /// There is none of that name.
    #[error("no RDMA device is called {name}; there are: {known}")]
    NoSuchDevice {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The device has no address, which RDMA-CM needs.
    #[error(
        "{device} has no IP address{}: give its network interface one (ip addr add ... dev ...), and \
         bring it up", .port.map(|port| format!(" on port {port}")).unwrap_or_default()
    )]
    NoAddress {
        /// The device.
        device: String,
        /// The port that was named.
        port: Option<u8>,
    },
    /// The address is not one of an RDMA device.
    #[error("{address} is no address of an RDMA device ({why}); those of RDMA devices are: {known}")]
    NotRdma {
        /// The address.
        address: IpAddr,
        /// What the connection manager said.
        why: String,
        /// The addresses of RDMA devices.
        known: String,
    },
    /// The addresses belong to different devices.
    #[error("{0} is on {1}, {2} on {3}: one srpoll serves one device")]
    Different(IpAddr, String, IpAddr, String),
    /// The connection manager of the kernel cannot be reached.
    #[error("the RDMA connection manager cannot be used: {0}")]
    Cm(String),
    /// The device cannot do what a target needs.
    #[error("{device} will not do: {why}")]
    Unfit {
        /// The device.
        device: String,
        /// What is missing.
        why: String,
    },
    /// The system refused something.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        why: io::Error,
    },
}

/// An RDMA device, opened and probed.
#[derive(Clone)]
pub struct Adapter {
    pub(super) context: Arc<Context>,
    pub(super) name: Arc<str>,
    /// The port that queue pairs are on until their connection says otherwise, from 1.
    pub(super) port: u8,
    pub(super) abilities: Abilities,
    addresses: Arc<[SocketAddr]>,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter")
            .field("name", &self.name)
            .field("port", &self.port)
            .field("abilities", &self.abilities)
            .finish_non_exhaustive()
    }
}

impl Adapter {
    /// Looks for a device, opens it and finds out what it can do, which takes some milliseconds.
    ///
    /// # Errors
    /// With words that say which package, kernel module or address is missing.
    pub fn find(wanted: &Wanted) -> Result<Adapter, AdapterError> {
        load()?;
        let names = match sys::device_names() {
            Ok(names) if !names.is_empty() => names,
            _ => return Err(AdapterError::NoDevice(advice(&Surroundings::look()))),
        };
        if let Wanted::Device { name, .. } = wanted
            && !names.contains(name)
        {
            return Err(AdapterError::NoSuchDevice { name: name.clone(), known: names.join(", ") });
        }
        let channel = EventChannel::new().map_err(|why| AdapterError::Cm(cm_advice(&why)))?;
        let (name, port, addresses) = match wanted {
            Wanted::Device { name, port } => on_device(&channel, name, *port)?,
            Wanted::Addresses(addresses) => of_addresses(&channel, addresses)?,
        };
        let failed = |what: String| move |why| AdapterError::System { what, why };
        let context = Context::open(&name)
            .map_err(failed(format!("cannot open {name}")))?
            .ok_or_else(|| AdapterError::NoSuchDevice { name: name.clone(), known: names.join(", ") })?;
        let abilities =
            probe::probe(&context, port).map_err(failed(format!("cannot ask {name} what it can do")))?;
        abilities.check().map_err(|why| AdapterError::Unfit { device: name.clone(), why })?;
        tracing::info!(device = %name, port, ?abilities, "RDMA device");
        Ok(Adapter { context, name: name.into(), port, abilities, addresses: addresses.into() })
    }

    /// The device's addresses that were asked for, or all of a device (and port) that was named.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The addresses of a device, and the port of the first one.
fn on_device(
    channel: &Arc<EventChannel>,
    name: &str,
    port: Option<u8>,
) -> Result<(String, u8, Vec<SocketAddr>), AdapterError> {
    let mut at = None;
    let mut found = Vec::new();
    for (address, device, its_port) in rdma_addresses(channel) {
        if device == name && port.is_none_or(|port| port == its_port) {
            at.get_or_insert(its_port);
            found.push(address);
        }
    }
    let at = at.ok_or_else(|| AdapterError::NoAddress { device: name.to_owned(), port })?;
    Ok((name.to_owned(), at, found))
}

/// The one device of these addresses.
fn of_addresses(
    channel: &Arc<EventChannel>,
    addresses: &[SocketAddr],
) -> Result<(String, u8, Vec<SocketAddr>), AdapterError> {
    let mut at: Option<(SocketAddr, String, u8)> = None;
    for &address in addresses {
        let (name, port) = cm::device_of(channel, address).map_err(|why| {
            let known: Vec<String> =
                rdma_addresses(channel).map(|(ip, name, _)| format!("{} ({name})", ip.ip())).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            AdapterError::NotRdma { address: address.ip(), why: why.to_string(), known }
        })?;
        match &at {
            None => at = Some((address, name, port)),
            Some((first, other, _)) if *other != name => {
                return Err(AdapterError::Different(first.ip(), other.clone(), address.ip(), name));
            }
            Some(_) => {}
        }
    }
    let (_, name, port) = at.ok_or_else(|| AdapterError::Cm("no address was named".to_owned()))?;
    Ok((name, port, addresses.to_vec()))
}

/// The addresses of this machine that are on RDMA devices, by the connection manager's word. Those
/// that mean nothing elsewhere are left out.
fn rdma_addresses(channel: &Arc<EventChannel>) -> impl Iterator<Item = (SocketAddr, String, u8)> {
    let usable = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    addresses::local().into_iter().filter(usable).filter_map(|address| {
        let (name, port) = cm::device_of(channel, address).ok()?;
        Some((address, name, port))
    })
}

/// Says which library is missing, before calls into nothing say less.
fn load() -> Result<(), AdapterError> {
    for (library, package) in [("libibverbs.so.1", "libibverbs1"), ("librdmacm.so.1", "librdmacm1")] {
        cm::loadable(library).map_err(|why| AdapterError::Library { library, package, why })?;
    }
    Ok(())
}

/// What there is of RDMA around us.
struct Surroundings {
    /// The kernel has RDMA devices.
    devices: bool,
    /// User space can reach them.
    nodes: bool,
    /// There are user space drivers.
    drivers: bool,
}

impl Surroundings {
    fn look() -> Surroundings {
        let has = |folder: &str, prefix: &str| {
            std::fs::read_dir(folder).is_ok_and(|entries| {
                entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            })
        };
        Surroundings {
            devices: has("/sys/class/infiniband", ""),
            nodes: has("/dev/infiniband", "uverbs"),
            drivers: Path::new("/etc/libibverbs.d").is_dir(),
        }
    }
}

/// What is missing if the library lists no device.
fn advice(seen: &Surroundings) -> &'static str {
    match seen {
        Surroundings { devices: false, .. } => {
            "load the kernel module of the adapter (mlx5_ib, irdma, bnxt_re, ...), or make one of any \
             network interface: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
        }
        Surroundings { nodes: false, .. } => {
            "the kernel has one, but user space cannot reach it: load the kernel module ib_uverbs"
        }
        Surroundings { drivers: false, .. } => {
            "the kernel has one, but libibverbs has no driver for it: install Debian's package \
             ibverbs-providers"
        }
        _ => {
            "the kernel has one, but libibverbs does not list it: look at `ibv_devices`, and at the rights \
             of /dev/infiniband/uverbs*"
        }
    }
}

/// What to do when the connection manager's device cannot be opened.
fn cm_advice(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound => format!("{why}: load the kernel module rdma_ucm"),
        io::ErrorKind::PermissionDenied => {
            format!("{why}: it needs the right to open /dev/infiniband/rdma_cm")
        }
        _ => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_is_missing() {
        let seen = |devices, nodes, drivers| advice(&Surroundings { devices, nodes, drivers });
        assert!(seen(false, false, true).contains("modprobe rdma_rxe"));
        assert!(seen(true, false, true).contains("ib_uverbs"));
        assert!(seen(true, true, false).contains("ibverbs-providers"));
        assert!(seen(true, true, true).contains("ibv_devices"));
        assert!(cm_advice(&io::ErrorKind::NotFound.into()).contains("rdma_ucm"));
        assert!(cm_advice(&io::ErrorKind::PermissionDenied.into()).contains("/dev/infiniband/rdma_cm"));
    }

    #[test]
    fn errors_say_which_and_what_to_do() {
        let error = AdapterError::NoAddress { device: "mlx5_0".to_owned(), port: Some(2) };
        assert!(error.to_string().starts_with("mlx5_0 has no IP address on port 2: give"), "{error}");
        let error = AdapterError::Library {
            library: "librdmacm.so.1",
            package: "librdmacm1",
            why: "not found".to_owned(),
        };
        assert!(error.to_string().contains("Debian's package librdmacm1"), "{error}");
    }
}
