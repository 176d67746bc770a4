//! The engine's options as text, and what they mean for one job.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail, ensure};
use reactors::reactor::Idle;
use srpoll::cli::endpoint::{DEFAULT_PORT, Endpoint, ShmEndpoint};
use srpoll::cli::units;
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::PortId;

/// What a target's socket is marked with.
const SHM: &str = "shm:";

/// The way to the target.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// Over the network.
    Udp(Endpoint),
    /// Over shared memory of this host.
    Shm(ShmEndpoint),
}

/// What one job asks for.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Who talks to whom.
    pub(crate) way: Way,
    /// The logical unit.
    pub(crate) lun: Lun,
    /// Channels of the session.
    pub(crate) channels: u32,
    /// I/Os at a time, over all channels.
    pub(crate) depth: u32,
}

impl Options {
    /// The options of the job with number `job`, counted from zero over all jobs of the run.
    pub(crate) fn new(
        target: Option<&str>,
        local: Option<&str>,
        lun: u32,
        channels: u32,
        depth: u32,
        job: u32,
    ) -> anyhow::Result<Options> {
        let target = target
            .ok_or_else(|| anyhow!("target= is missing: ADDRESS[:PORT] of the target, or {SHM}SOCKET"))?;
        let number = u16::try_from(lun).ok().and_then(Lun::new);
        ensure!((1..=256).contains(&channels), "channels={channels}: a session has 1 to 256");
        Ok(Options {
            way: way(target, local, job)?,
            lun: number.ok_or_else(|| anyhow!("lun={lun} is no logical unit number: 0 to {}", Lun::MAX))?,
            // More channels than I/Os would be idle.
            channels: channels.min(depth.max(1)),
            depth: depth.max(1),
        })
    }
}

fn way(target: &str, local: Option<&str>, job: u32) -> anyhow::Result<Way> {
    if let Some(socket) = target.strip_prefix(SHM) {
        ensure!(!socket.is_empty(), "target={SHM} names no socket");
        ensure!(local.is_none(), "local= is for targets on a network, and target={target} is none");
        let endpoint = ShmEndpoint::new(PathBuf::from(socket), PortId::UNSPECIFIED, Idle::Spin);
        return Ok(Way::Shm(endpoint.context("no name for an initiator over shared memory")?));
    }
    let local = local
        .ok_or_else(|| anyhow!("local= is missing: an address of this machine, or FIRST..LAST, one a job"))?;
    let target = units::address_port(target, DEFAULT_PORT).map_err(|error| anyhow!(error));
    Ok(Way::Udp(Endpoint {
        target: target.context("target=")?,
        local: address_of(local, job).context("local=")?,
        port: PortId::UNSPECIFIED,
        fault: None,
        singly: false,
    }))
}

/// The address of a job: `ADDRESS`, or one of `FIRST..LAST` in turn.
fn address_of(text: &str, job: u32) -> anyhow::Result<SocketAddr> {
    let Some((first, last)) = text.split_once("..") else {
        return units::address(text, 0).map_err(|error| anyhow!(error));
    };
    let parse = |text: &str| units::address(text, 0).map_err(|error| anyhow!(error));
    let (first, last) = (parse(first)?, parse(last)?);
    let (from, to) = match (first.ip(), last.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (u128::from(u32::from(from)), u128::from(u32::from(to))),
        (IpAddr::V6(from), IpAddr::V6(to)) => (u128::from(from), u128::from(to)),
        _ => bail!("{text}: one end is IPv4 and the other IPv6"),
    };
    ensure!(from <= to, "{text} ends before it begins");
    let mine = from + u128::from(job) % (to - from + 1);
    let mut address = first;
    address.set_ip(match first.ip() {
        IpAddr::V4(_) => IpAddr::V4((mine as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(mine.into()),
    });
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(options: &Options) -> Endpoint {
        match &options.way {
            Way::Udp(endpoint) => *endpoint,
            Way::Shm(_) => panic!("{options:?}"),
        }
    }

    fn new(target: &str, local: &str, job: u32) -> anyhow::Result<Options> {
        Options::new(Some(target), Some(local), 3, 2, 32, job)
    }

    #[test]
    fn a_job_is_told_by_its_options() {
        let options = new("127.0.0.1", "127.0.0.2", 7).unwrap();
        assert_eq!(udp(&options).target.to_string(), "127.0.0.1:5555");
        assert_eq!(udp(&options).local.to_string(), "127.0.0.2:0");
        assert_eq!((options.lun.get(), options.channels, options.depth), (3, 2, 32));
        let six = new("[fd00::1]:99", "fd00::2", 0).unwrap();
        assert_eq!(udp(&six).target.to_string(), "[fd00::1]:99");
        let few = Options::new(Some("127.0.0.1"), Some("127.0.0.2"), 0, 8, 4, 0).unwrap();
        assert_eq!(few.channels, 4);
    }

    #[test]
    fn a_socket_takes_the_place_of_addresses() {
        let shm = Options::new(Some("shm:/run/s"), None, 0, 1, 4, 0).unwrap();
        assert!(matches!(shm.way, Way::Shm(end) if end.socket == std::path::Path::new("/run/s")));
        let both = new("shm:/run/s", "127.0.0.2", 0).unwrap_err().to_string();
        assert!(both.starts_with("local= is for targets on a network"), "{both}");
        assert!(Options::new(Some("shm:"), None, 0, 1, 4, 0).is_err());
    }

    #[test]
    fn every_job_takes_the_next_address() {
        let local = |text: &str, job| udp(&new("127.0.0.1", text, job).unwrap()).local.ip().to_string();
        let all: Vec<_> = (0..4).map(|job| local("127.0.0.254..127.0.1.0", job)).collect();
        assert_eq!(all, ["127.0.0.254", "127.0.0.255", "127.0.1.0", "127.0.0.254"]);
        assert_eq!(local("fd00::1..fd00::ff", 15), "fd00::10");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (target, local, words) in [
            ("127.0.0.1:x", "127.0.0.2", "target=: \"x\" is no port"),
            ("127.0.0.1", "0.0.0.0", "local=: 0.0.0.0 is a wildcard"),
            ("127.0.0.1", "127.0.0.9..127.0.0.2", "ends before it begins"),
            ("127.0.0.1", "127.0.0.9..::1", "one end is IPv4"),
        ] {
            let error = format!("{:#}", new(target, local, 0).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        let no_local = Options::new(Some("127.0.0.1"), None, 0, 1, 1, 0).unwrap_err().to_string();
        assert!(no_local.starts_with("local= is missing"), "{no_local}");
        let lun = Options::new(Some("127.0.0.1"), Some("127.0.0.2"), 70_000, 1, 1, 0).unwrap_err();
        assert_eq!(lun.to_string(), "lun=70000 is no logical unit number: 0 to 16383");
        assert!(Options::new(Some("127.0.0.1"), Some("127.0.0.2"), 0, 0, 1, 0).is_err());
    }
}
