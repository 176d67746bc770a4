//! Where a target can be logged in to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Where initiators log in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Listener {
    /// At an address, by a service port.
    Ip(SocketAddr),
    /// At a UNIX socket, for processes of this host.
    Shm(PathBuf),
}

/// What a listener needs of the provider; several may need the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// An address.
    Ip(IpAddr),
    /// A UNIX socket.
    Shm(PathBuf),
}

impl Listener {
    /// What it needs of the provider.
    pub fn port(&self) -> Port {
        match self {
            Listener::Ip(address) => Port::Ip(address.ip()),
            Listener::Shm(path) => Port::Shm(path.clone()),
        }
    }
}

impl From<SocketAddr> for Listener {
    fn from(address: SocketAddr) -> Listener {
        Listener::Ip(address)
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Ip(address) => address.fmt(f),
            Listener::Shm(path) => path.display().fmt(f),
        }
    }
}
