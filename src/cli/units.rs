//! What people type on the command line, read into values: sizes, times, addresses, fault rates.
//!
//! Each reader gives one clear line on bad input, with the text that it did not understand. They
//! have the signature of clap's value parsers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use reactors::reactor::Idle;

use crate::rdma::soft::Fault;
use crate::target::handle::Hugepages;

/// A size in bytes: a number, then nothing or `k`, `K`, `M`, `G`, `T` for powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("\"{text}\" is no size: a number, then nothing or k, K, M, G, T (powers of 1024)");
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number = number(digits).ok_or_else(bad)?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("\"{text}\" is more than 64 bits of bytes"))
}

/// A time: a whole number with its unit, `ns`, `us`, `ms`, `s`, `m` or `h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("\"{text}\" is no time: a whole number, then ns, us, ms, s, m or h");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (digits, unit) = text.split_at(unit_at);
    let nanos: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(bad()),
    };
    let number = number(digits).ok_or_else(bad)?;
    number
        .checked_mul(nanos)
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("\"{text}\" is too long a time"))
}

/// A rate in per cent, with at most four digits behind the point (`1%`, `0.1%`), as parts per
/// million.
pub fn per_million(text: &str) -> Result<u32, String> {
    let bad = || format!("\"{text}\" is no rate: 0% to 100%, at most four digits behind the point");
    let digits = text.strip_suffix('%').ok_or_else(bad)?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    if part.len() > 4 {
        return Err(bad());
    }
    let whole = number(whole).ok_or_else(bad)?;
    let part = number(&format!("{part:0<4}")).ok_or_else(bad)?;
    let ppm = whole.saturating_mul(10_000).saturating_add(part);
    u32::try_from(ppm).ok().filter(|&ppm| ppm <= 1_000_000).ok_or_else(bad)
}

/// `drop=1%,dup=1%,reorder=1%,corrupt=0.1%,rcvbuf=SIZE,seed=N`, each part optional, at least one there.
pub fn fault(text: &str) -> Result<Fault, String> {
    let mut fault = Fault::default();
    let mut seen: Vec<&str> = Vec::new();
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("\"{part}\" in the fault is not KEY=VALUE, e.g. drop=1%"))?;
        if seen.contains(&key) {
            return Err(format!("{key} is given twice in the fault"));
        }
        seen.push(key);
        match key {
            "drop" => fault.drop_ppm = per_million(value)?,
            "dup" => fault.duplicate_ppm = per_million(value)?,
            "reorder" => fault.reorder_ppm = per_million(value)?,
            "corrupt" => fault.corrupt_ppm = per_million(value)?,
            "seed" => {
                fault.seed = number(value).ok_or_else(|| format!("the seed \"{value}\" is no number"))?
            }
            "rcvbuf" => {
                let bytes = u32::try_from(size(value)?).ok().filter(|bytes| (4096..=1 << 30).contains(bytes));
                fault.recv_buffer_bytes =
                    bytes.ok_or_else(|| format!("rcvbuf {value} does not lie between 4k and 1G"))?;
            }
            _ => {
                return Err(format!(
                    "no fault \"{key}\": there are drop, dup, reorder, corrupt, rcvbuf, seed"
                ));
            }
        }
    }
    Ok(fault)
}

/// `spin`, `sleep` or `sleep:TIME`.
pub fn idle(text: &str) -> Result<Idle, String> {
    match text.split_once(':') {
        None if text == "spin" => Ok(Idle::Spin),
        None if text == "sleep" => Ok(Idle::default()),
        Some(("sleep", after)) => Ok(Idle::Sleep { after: duration(after)? }),
        _ => Err(format!("\"{text}\" is neither spin, sleep nor sleep:TIME")),
    }
}

/// `auto`, `require` or `off`.
pub fn hugepages(text: &str) -> Result<Hugepages, String> {
    match text {
        "auto" => Ok(Hugepages::Auto),
        "require" => Ok(Hugepages::Require),
        "off" => Ok(Hugepages::Off),
        _ => Err(format!("\"{text}\" is neither auto, require nor off")),
    }
}

/// Cores: numbers and ranges, `0,1` or `0-3`, none twice. `any` is a reactor that is not pinned
/// and may stand several times.
pub fn cores(text: &str) -> Result<Vec<Option<usize>>, String> {
    let bad = |part: &str| format!("\"{part}\" is no core: a number, a range like 0-3, or any");
    let mut cores: Vec<Option<usize>> = Vec::new();
    for part in text.split(',') {
        if part == "any" {
            cores.push(None);
            continue;
        }
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = number(first).ok_or_else(|| bad(part))? as usize;
        let last = number(last).ok_or_else(|| bad(part))? as usize;
        if last < first || last - first >= 1024 {
            return Err(bad(part));
        }
        for core in first..=last {
            if cores.contains(&Some(core)) {
                return Err(format!("core {core} is given twice"));
            }
            cores.push(Some(core));
        }
    }
    Ok(cores)
}

/// Exactly 16 hexadecimal digits.
pub fn hex16(text: &str) -> Result<u64, String> {
    if text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return u64::from_str_radix(text, 16).map_err(|error| error.to_string());
    }
    Err(format!("\"{text}\" is not 16 hexadecimal digits"))
}

/// One IP address of a machine, `%SCOPE` (interface name or number) behind a link-local one;
/// never a wildcard or multicast address. The port of the result is `port`.
pub fn address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let (bare, scope) = match text.split_once('%') {
        Some((bare, scope)) => (bare, Some(scope)),
        None => (text, None),
    };
    let ip: IpAddr = bare.parse().map_err(|_| format!("\"{text}\" is no IP address"))?;
    if ip.is_unspecified() {
        return Err(format!("{text} is a wildcard: name one address"));
    }
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if ip.is_multicast() || broadcast {
        return Err(format!("{text} is not the address of one machine"));
    }
    match (ip, scope) {
        (IpAddr::V6(v6), Some(scope)) => {
            let scope_id =
                scope_id(scope).ok_or_else(|| format!("no network interface \"{scope}\" ({text})"))?;
            Ok(SocketAddr::V6(SocketAddrV6::new(v6, port, 0, scope_id)))
        }
        (_, Some(_)) => Err(format!("\"{text}\": only an IPv6 address has a scope")),
        (IpAddr::V6(v6), None) if is_link_local(v6) => {
            Err(format!("{text} is link-local: say on which interface, e.g. {text}%eth0"))
        }
        (ip, None) => Ok(SocketAddr::new(ip, port)),
    }
}

/// `IP`, `IP:PORT`, `[IPV6]:PORT`; without a port it is `default_port`.
pub fn address_port(text: &str, default_port: u16) -> Result<SocketAddr, String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) =
            rest.split_once(']').ok_or_else(|| format!("\"{text}\" has no closing bracket"))?;
        let port = match behind.strip_prefix(':') {
            Some(digits) => port(digits)?,
            None if behind.is_empty() => default_port,
            None => return Err(format!("\"{text}\" is no address: [IPV6]:PORT")),
        };
        return address(inside, port);
    }
    match text.split_once(':') {
        Some((ip, digits)) if !digits.contains(':') => address(ip, port(digits)?),
        _ => address(text, default_port),
    }
}

/// A service port, 1..=65535.
pub fn port(text: &str) -> Result<u16, String> {
    number(text)
        .and_then(|n| u16::try_from(n).ok())
        .filter(|&port| port != 0)
        .ok_or_else(|| format!("\"{text}\" is no port: 1 to 65535"))
}

/// A number of decimal digits and nothing else (`parse` would take a plus sign).
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn is_link_local(v6: Ipv6Addr) -> bool {
    v6.segments()[0] & 0xffc0 == 0xfe80
}

/// The index of a network interface, by its name or as a number.
fn scope_id(scope: &str) -> Option<u32> {
    if let Some(index) = number(scope) {
        return u32::try_from(index).ok().filter(|&index| index != 0);
    }
    if scope.is_empty() || scope.contains('/') || scope.starts_with('.') {
        return None;
    }
    std::fs::read_to_string(format!("/sys/class/net/{scope}/ifindex")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("16T", 16 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4m", "4KB", "-1", "+1", "1.5G", " 1", "1 k", "64MiB", "é", "1é"] {
            assert_eq!(
                size(text),
                Err(format!(
                    "\"{text}\" is no size: a number, then nothing or k, K, M, G, T (powers of 1024)"
                ))
            );
        }
        assert_eq!(size("99999999T"), Err("\"99999999T\" is more than 64 bits of bytes".to_owned()));
    }

    #[test]
    fn durations() {
        for (text, expect) in [
            ("50us", Duration::from_micros(50)),
            ("0s", Duration::ZERO),
            ("10s", Duration::from_secs(10)),
            ("250ms", Duration::from_millis(250)),
            ("7ns", Duration::from_nanos(7)),
            ("2m", Duration::from_secs(120)),
            ("1h", Duration::from_secs(3600)),
        ] {
            assert_eq!(duration(text), Ok(expect), "{text}");
        }
        for text in ["", "10", "s", "1.5s", "10sec", "-1s", "1 s", "1S"] {
            assert_eq!(
                duration(text),
                Err(format!("\"{text}\" is no time: a whole number, then ns, us, ms, s, m or h"))
            );
        }
        assert!(duration("99999999999999h").is_err());
    }

    #[test]
    fn rates() {
        for (text, ppm) in [
            ("1%", 10_000),
            ("0.1%", 1_000),
            ("0%", 0),
            ("100%", 1_000_000),
            ("0.0001%", 1),
            ("12.34%", 123_400),
        ] {
            assert_eq!(per_million(text), Ok(ppm), "{text}");
        }
        for text in ["", "%", "1", "101%", "100.1%", "0.00001%", ".5%", "-1%", "1.%x"] {
            assert!(per_million(text).is_err(), "{text}");
        }
    }

    #[test]
    fn faults() {
        assert_eq!(
            fault("drop=1%,dup=2%,reorder=0.5%,corrupt=0.1%,rcvbuf=212992,seed=9"),
            Ok(Fault {
                drop_ppm: 10_000,
                duplicate_ppm: 20_000,
                reorder_ppm: 5_000,
                corrupt_ppm: 1_000,
                seed: 9,
                recv_buffer_bytes: 212_992
            })
        );
        assert_eq!(fault("drop=3%"), Ok(Fault { drop_ppm: 30_000, ..Fault::default() }));
        for (text, error) in [
            ("", "\"\" in the fault is not KEY=VALUE, e.g. drop=1%"),
            ("drop", "\"drop\" in the fault is not KEY=VALUE, e.g. drop=1%"),
            ("drop=1%,", "\"\" in the fault is not KEY=VALUE, e.g. drop=1%"),
            ("loss=1%", "no fault \"loss\": there are drop, dup, reorder, corrupt, rcvbuf, seed"),
            ("drop=1%,drop=2%", "drop is given twice in the fault"),
            ("drop=1", "\"1\" is no rate: 0% to 100%, at most four digits behind the point"),
            ("seed=x", "the seed \"x\" is no number"),
            ("rcvbuf=1", "rcvbuf 1 does not lie between 4k and 1G"),
        ] {
            assert_eq!(fault(text), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn idle_policies() {
        let sleep = |us| Ok(Idle::Sleep { after: Duration::from_micros(us) });
        assert_eq!(idle("spin"), Ok(Idle::Spin));
        assert_eq!(idle("sleep"), sleep(50));
        assert_eq!(idle("sleep:1ms"), sleep(1000));
        assert_eq!(idle("nap"), Err("\"nap\" is neither spin, sleep nor sleep:TIME".to_owned()));
        assert_eq!(idle("spin:1s"), Err("\"spin:1s\" is neither spin, sleep nor sleep:TIME".to_owned()));
        assert!(idle("sleep:").is_err());
    }

    #[test]
    fn core_lists() {
        assert_eq!(cores("0"), Ok(vec![Some(0)]));
        assert_eq!(cores("3,1"), Ok(vec![Some(3), Some(1)]));
        assert_eq!(cores("0-2,7"), Ok(vec![Some(0), Some(1), Some(2), Some(7)]));
        assert_eq!(cores("any,any"), Ok(vec![None, None]));
        assert_eq!(cores("1,0-1"), Err("core 1 is given twice".to_owned()));
        for text in ["", "a", "0,", "2-1", "0-", "-1", "0-99999999"] {
            assert!(cores(text).unwrap_err().contains("is no core"), "{text}");
        }
    }

    #[test]
    fn hex_identifiers() {
        assert_eq!(hex16("00000000deadBEEF"), Ok(0xdead_beef));
        for text in ["", "deadbeef", "0x000000deadbeef", "00000000deadbeef0", "0000000gdeadbeef"] {
            assert_eq!(hex16(text), Err(format!("\"{text}\" is not 16 hexadecimal digits")));
        }
    }

    #[test]
    fn addresses_with_and_without_port() {
        for (text, expect) in [
            ("127.0.0.1", "127.0.0.1:5555"),
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("::1", "[::1]:5555"),
            ("fd00::1", "[fd00::1]:5555"),
            ("[fd00::1]", "[fd00::1]:5555"),
            ("[fd00::1]:7", "[fd00::1]:7"),
            ("fe80::1%3", "[fe80::1%3]:5555"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
        ] {
            assert_eq!(address_port(text, 5555).map(|a| a.to_string()), Ok(expect.to_owned()));
        }
        for (text, error) in [
            ("", "\"\" is no IP address"),
            ("localhost", "\"localhost\" is no IP address"),
            ("10.0.0", "\"10.0.0\" is no IP address"),
            ("0.0.0.0", "0.0.0.0 is a wildcard: name one address"),
            ("[::]:5555", ":: is a wildcard: name one address"),
            ("224.0.0.1", "224.0.0.1 is not the address of one machine"),
            ("ff02::1", "ff02::1 is not the address of one machine"),
            ("255.255.255.255", "255.255.255.255 is not the address of one machine"),
            ("127.0.0.1:0", "\"0\" is no port: 1 to 65535"),
            ("127.0.0.1:65536", "\"65536\" is no port: 1 to 65535"),
            ("127.0.0.1:", "\"\" is no port: 1 to 65535"),
            ("[::1", "\"[::1\" has no closing bracket"),
            ("[::1]5555", "\"[::1]5555\" is no address: [IPV6]:PORT"),
            ("fe80::1", "fe80::1 is link-local: say on which interface, e.g. fe80::1%eth0"),
            ("fe80::1%nosuch0", "no network interface \"nosuch0\" (fe80::1%nosuch0)"),
            ("fe80::1%../x", "no network interface \"../x\" (fe80::1%../x)"),
            ("10.0.0.1%3", "\"10.0.0.1%3\": only an IPv6 address has a scope"),
        ] {
            assert_eq!(address_port(text, 5555), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_loopback_interface_has_an_index() {
        let address = address_port("fe80::1%lo", 5555).unwrap();
        assert!(matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0), "{address}");
    }
}
