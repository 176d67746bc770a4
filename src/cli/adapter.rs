//! `--ibv`: which RDMA adapter is meant. Without the cargo feature `ibv` it says how to build with it.

use std::net::SocketAddr;

use super::units;

/// What a build without the feature says.
#[cfg(not(feature = "ibv"))]
const NOT_BUILT: &str = "this srpoll was built without support for RDMA adapters; build it with: \
                         scripts/setup ibv && cargo build --release --features ibv";

/// A value of `--ibv`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    /// An address of an adapter, with a service port.
    Address(SocketAddr),
    /// An adapter by its name, and maybe one of its ports.
    Device(String, Option<u8>),
}

/// Reads DEVICE, DEVICE/HCAPORT, or an address as `--soft` has it.
fn named(text: &str, port: u16) -> Result<Named, String> {
    let (name, hca_port) = match text.split_once('/') {
        Some((name, digits)) => (name, Some(digits)),
        None => (text, None),
    };
    // Names of devices begin with a letter and have neither dots nor colons; addresses have.
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !is_name {
        return units::address_port(text, port).map(Named::Address);
    }
    let hca_port = hca_port.map(|digits| {
        let number = digits.parse::<u8>().ok().filter(|&number| number > 0);
        number.ok_or_else(|| format!("\"{digits}\" is no port of an adapter: 1 to 255"))
    });
    Ok(Named::Device(name.to_owned(), hca_port.transpose()?))
}

/// What several values name together: addresses, or one device.
fn together(texts: &[String], port: u16) -> Result<Vec<Named>, String> {
    let mut all: Vec<Named> = Vec::new();
    for text in texts {
        let one = named(text, port).map_err(|why| format!("{text}: {why}"))?;
        if all.contains(&one) {
            return Err(format!("{text}: given twice"));
        }
        all.push(one);
    }
    if all.len() > 1 && all.iter().any(|one| matches!(one, Named::Device(..))) {
        return Err("name one device, or addresses of one device".to_owned());
    }
    Ok(all)
}

/// The adapter that the values of `--ibv` name, and the listeners on it.
#[cfg(feature = "ibv")]
pub(super) fn find(
    texts: &[String],
    port: u16,
) -> anyhow::Result<(crate::target::handle::Provider, Vec<SocketAddr>)> {
    use crate::rdma::ibv::{Adapter, Wanted};
    use anyhow::{Context, anyhow};

    let named = together(texts, port).map_err(|why| anyhow!("--ibv {why}"))?;
    let mut listeners = Vec::new();
    let mut wanted = Wanted::Addresses(Vec::new());
    for one in named {
        match (one, &mut wanted) {
            (Named::Address(listener), Wanted::Addresses(addresses)) => {
                listeners.push(listener);
                addresses.push(SocketAddr::new(listener.ip(), 0));
            }
            (Named::Device(name, port), wanted) => *wanted = Wanted::Device { name, port },
            (Named::Address(_), Wanted::Device { .. }) => {}
        }
    }
    let adapter = Adapter::find(&wanted).with_context(|| format!("--ibv {}", texts.join(" ")))?;
    if listeners.is_empty() {
        listeners = adapter.addresses().iter().map(|address| SocketAddr::new(address.ip(), port)).collect();
    }
    Ok((crate::target::handle::Provider::Ibv(adapter), listeners))
}

/// As above, in a build that has no adapters.
#[cfg(not(feature = "ibv"))]
pub(super) fn find(
    texts: &[String],
    port: u16,
) -> anyhow::Result<(crate::target::handle::Provider, Vec<SocketAddr>)> {
    together(texts, port).map_err(|why| anyhow::anyhow!("--ibv {why}"))?;
    Err(anyhow::anyhow!("--ibv {}: {NOT_BUILT}", texts.join(" ")))
}

/// Queue pairs of an initiator: 256 channels, and those of the session before that are on their way out.
#[cfg(feature = "ibv")]
const MAX_QP: u32 = 1024;

/// An initiator's device on the adapter that has this address.
#[cfg(feature = "ibv")]
pub(super) fn device(local: SocketAddr, sleeps: bool) -> anyhow::Result<crate::rdma::ibv::Device> {
    use crate::rdma::ibv::{Adapter, Device, Wanted, link};
    use anyhow::Context;

    let address = SocketAddr::new(local.ip(), 0);
    let adapter =
        Adapter::find(&Wanted::Addresses(vec![address])).with_context(|| format!("--ibv {}", local.ip()))?;
    let seat = link(&adapter, 1, MAX_QP, sleeps).context("cannot start on the adapter")?.pop();
    Ok(Device::new(seat.context("no seat for one shard")?)?)
}

/// As above, in a build that has no adapters.
#[cfg(not(feature = "ibv"))]
pub(super) fn device(local: SocketAddr, _sleeps: bool) -> anyhow::Result<crate::rdma::soft::Device> {
    Err(anyhow::anyhow!("--ibv {}: {NOT_BUILT}", local.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_addresses_are_told_apart() {
        let address = |text: &str| Ok(Named::Address(text.parse().unwrap()));
        let device = |name: &str, port| Ok(Named::Device(name.to_owned(), port));
        assert_eq!(named("mlx5_0", 5555), device("mlx5_0", None));
        assert_eq!(named("rxe0/2", 5555), device("rxe0", Some(2)));
        assert_eq!(named("10.0.0.1", 5555), address("10.0.0.1:5555"));
        assert_eq!(named("10.0.0.1:7", 5555), address("10.0.0.1:7"));
        assert_eq!(named("fd00::1", 5555), address("[fd00::1]:5555"));
        assert_eq!(named("[fd00::1]:7", 5555), address("[fd00::1]:7"));
        assert_eq!(named("rxe0/0", 1).unwrap_err(), "\"0\" is no port of an adapter: 1 to 255");
        assert_eq!(named("10.0.0", 1).unwrap_err(), "\"10.0.0\" is no IP address");
        assert!(named("", 1).is_err());
    }

    #[test]
    fn one_device_or_several_addresses() {
        let all = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
            together(&texts, 5555).map(|all| all.len())
        };
        assert_eq!(all(&["10.0.0.1", "10.0.0.2"]), Ok(2));
        assert_eq!(all(&["rxe0"]), Ok(1));
        assert_eq!(all(&["rxe0", "rxe1"]).unwrap_err(), "name one device, or addresses of one device");
        assert_eq!(all(&["rxe0", "10.0.0.1"]).unwrap_err(), "name one device, or addresses of one device");
        assert_eq!(all(&["10.0.0.1", "10.0.0.1:5555"]).unwrap_err(), "10.0.0.1:5555: given twice");
    }
}
