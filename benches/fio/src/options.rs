//! The engine's options as text, and what they mean for one job.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, anyhow, bail, ensure};
use srpoll::cli::endpoint::{DEFAULT_PORT, Endpoint};
use srpoll::cli::units;
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::PortId;

/// What one job asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// Who talks to whom.
    pub(crate) endpoint: Endpoint,
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
        let target = target.ok_or_else(|| anyhow!("target= is missing: ADDRESS[:PORT] of the target"))?;
        let local = local.ok_or_else(|| {
            anyhow!("local= is missing: an address of this machine, or FIRST..LAST, one a job")
        })?;
        let text = |error: String| anyhow!(error);
        let number = u16::try_from(lun).ok().and_then(Lun::new);
        ensure!((1..=256).contains(&channels), "channels={channels}: a session has 1 to 256");
        Ok(Options {
            endpoint: Endpoint {
                target: units::address_port(target, DEFAULT_PORT).map_err(text).context("target=")?,
                local: address_of(local, job).context("local=")?,
                port: PortId::UNSPECIFIED,
                fault: None,
            },
            lun: number.ok_or_else(|| anyhow!("lun={lun} is no logical unit number: 0 to {}", Lun::MAX))?,
            // More channels than I/Os would be idle.
            channels: channels.min(depth.max(1)),
            depth: depth.max(1),
        })
    }
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

    fn new(target: &str, local: &str, job: u32) -> anyhow::Result<Options> {
        Options::new(Some(target), Some(local), 3, 2, 32, job)
    }

    #[test]
    fn a_job_is_told_by_its_options() {
        let options = new("127.0.0.1", "127.0.0.2", 7).unwrap();
        assert_eq!(options.endpoint.target.to_string(), "127.0.0.1:5555");
        assert_eq!(options.endpoint.local.to_string(), "127.0.0.2:0");
        assert_eq!((options.lun.get(), options.channels, options.depth), (3, 2, 32));
        assert_eq!(new("[fd00::1]:99", "fd00::2", 0).unwrap().endpoint.target.to_string(), "[fd00::1]:99");
        let few = Options::new(Some("127.0.0.1"), Some("127.0.0.2"), 0, 8, 4, 0).unwrap();
        assert_eq!(few.channels, 4);
    }

    #[test]
    fn every_job_takes_the_next_address() {
        let local = |text: &str, job| new("127.0.0.1", text, job).unwrap().endpoint.local.ip().to_string();
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
