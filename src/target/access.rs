//! Who may log in: decided by initiator port id or by the address that its packets come from.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::rdma::verbs::Peer;

/// An initiator port identifier: identifier extension (8 bytes), port GUID (8 bytes), SRP r16a.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InitiatorId(pub [u8; 16]);

impl fmt::Display for InitiatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#034x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for InitiatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One line of the access list.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Rule {
    /// Everybody.
    Any,
    /// The initiator with this port id, from wherever.
    Initiator(InitiatorId),
    /// Whoever sends from this network: an address and how many of its leading bits count.
    Network {
        /// The address; bits behind the prefix are zero.
        address: IpAddr,
        /// How many leading bits must agree, 0..=32 or 0..=128.
        prefix_bits: u8,
    },
}

impl Rule {
    /// A rule for one address.
    pub fn address(address: IpAddr) -> Rule {
        let address = plain(address);
        Rule::Network { address, prefix_bits: width_bits(address) }
    }

    fn admits(&self, initiator: InitiatorId, peer: Peer) -> bool {
        match (*self, peer) {
            (Rule::Any, _) => true,
            (Rule::Initiator(id), _) => id == initiator,
            (Rule::Network { address, prefix_bits }, Peer::Address(peer)) => {
                width_bits(peer) == width_bits(address)
                    && mask(peer, prefix_bits) == mask(address, prefix_bits)
            }
            // A process of this host is in no network.
            (Rule::Network { .. }, Peer::Process(_)) => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Any => f.write_str("any"),
            Rule::Initiator(id) => write!(f, "{id}"),
            Rule::Network { address, prefix_bits } if *prefix_bits == width_bits(*address) => {
                write!(f, "{address}")
            }
            Rule::Network { address, prefix_bits } => write!(f, "{address}/{prefix_bits}"),
        }
    }
}

/// Why a text is no rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "\"{0}\" is neither \"any\", an initiator port id (32 hex digits, 0x optional), an IP address nor ADDRESS/BITS"
)]
pub struct BadRule(pub String);

impl FromStr for Rule {
    type Err = BadRule;

    /// Reads `any`, an IP address, `ADDRESS/BITS`, or an initiator port id of up to 32 hex
    /// digits, `0x` optional, padded on the left. A port id without `0x` must have more than 16
    /// digits, so that a mistyped address is not taken for one.
    fn from_str(text: &str) -> Result<Rule, BadRule> {
        let bad = || BadRule(text.to_owned());
        if text == "any" {
            return Ok(Rule::Any);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Rule::address(address));
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let prefix_bits: u8 = bits.parse().map_err(|_| bad())?;
            if prefix_bits > width_bits(address) {
                return Err(bad());
            }
            return Ok(Rule::Network { address: mask(address, prefix_bits), prefix_bits });
        }
        let (digits, marked) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        let shortest = if marked { 1 } else { 17 };
        if !(shortest..=32).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let id = u128::from_str_radix(digits, 16).map_err(|_| bad())?;
        Ok(Rule::Initiator(InitiatorId(id.to_be_bytes())))
    }
}

/// Who may log in. An empty list admits peers on this host only, by loopback addresses or shared
/// memory, so that a target that nobody has configured is not open to the network.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessList {
    rules: Vec<Rule>,
}

impl AccessList {
    /// The list of these rules, sorted and without duplicates.
    pub fn new(mut rules: Vec<Rule>) -> AccessList {
        rules.sort();
        rules.dedup();
        AccessList { rules }
    }

    /// Its rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether `initiator` at `peer` may log in. `peer` is the UDP source address of its connection
    /// request, or the process that the kernel names, since nothing inside a request is trusted.
    pub fn check(&self, initiator: InitiatorId, peer: Peer) -> Result<(), Refusal> {
        let peer = match peer {
            Peer::Address(address) => Peer::Address(plain(address)),
            process => process,
        };
        let admitted = match self.rules.as_slice() {
            [] => {
                matches!(peer, Peer::Address(address) if address.is_loopback())
                    || matches!(peer, Peer::Process(_))
            }
            rules => rules.iter().any(|rule| rule.admits(initiator, peer)),
        };
        if admitted { Ok(()) } else { Err(Refusal { initiator, peer, only_loopback: self.rules.is_empty() }) }
    }
}

/// A login that the access list does not admit; its text is for the log and says what to do.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Who wanted to log in.
    pub initiator: InitiatorId,
    /// From where.
    pub peer: Peer,
    /// There is no list, and the peer is not on a loopback address.
    pub only_loopback: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { initiator, peer, only_loopback } = self;
        if *only_loopback {
            write!(
                f,
                "initiator {initiator} from {peer} refused: with no access list only loopback peers may log in"
            )?;
        } else {
            write!(f, "initiator {initiator} from {peer} is not on the access list")?;
        }
        write!(f, "; add it with --allow {initiator} or srp_target_add_initiator")
    }
}

impl std::error::Error for Refusal {}

/// An IPv4 address that came in IPv6 clothes, undressed.
fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn width_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// `address` with everything behind its first `bits` bits zero.
fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & keep).into())
        }
        IpAddr::V6(v6) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & keep))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::verbs::Process;

    const ALICE: InitiatorId =
        InitiatorId([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x4a, 0xb, 0x7b]);

    fn list(rules: &[&str]) -> AccessList {
        AccessList::new(rules.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn at(peer: &str) -> Peer {
        Peer::Address(peer.parse().unwrap())
    }

    /// A process of this host is no stranger, and is in no network.
    #[test]
    fn processes_by_port_id_or_without_a_list() {
        let process = Peer::Process(Process { pid: 7, uid: 1000 });
        let admits = |rules: &[&str]| list(rules).check(ALICE, process).is_ok();
        assert!(admits(&[]) && admits(&["any"]) && admits(&[&ALICE.to_string()]));
        assert!(!admits(&["0.0.0.0/0"]) && !admits(&["127.0.0.1", "::1"]));
        let refused = list(&["127.0.0.1"]).check(ALICE, process).unwrap_err().to_string();
        assert!(refused.contains("from pid 7 uid 1000 is not on the access list"), "{refused}");
    }

    fn admits(rules: &[&str], peer: &str) -> bool {
        list(rules).check(ALICE, at(peer)).is_ok()
    }

    #[test]
    fn rules_read_and_print() {
        for (text, printed) in [
            ("any", "any"),
            ("10.0.0.1", "10.0.0.1"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::1", "::1"),
            ("fd00::1:2/64", "fd00::/64"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("0x1", "0x00000000000000000000000000000001"),
            ("0X505400FFFE4A0B7B", "0x0000000000000000505400fffe4a0b7b"),
            ("0000000000000000505400fffe4a0b7b", "0x0000000000000000505400fffe4a0b7b"),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for text in [
            "",
            "0x",
            "all",
            "10.0.0.256",
            "10.0.0.1/33",
            "::1/129",
            "505400fffe4a0b7b",
            "0x000000000000000000505400fffe4a0b7b",
            "0xzz",
            "10.0.0.1:5555",
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" is neither")), "{error}");
        }
    }

    #[test]
    fn an_empty_list_admits_loopback_only() {
        for (peer, expect) in [
            ("127.0.0.1", true),
            ("127.9.8.7", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(admits(&[], peer), expect, "{peer}");
        }
    }

    #[test]
    fn any_rule_is_enough() {
        let id = "0x505400fffe4a0b7b";
        for (rules, peer, expect) in [
            (&["any"][..], "10.0.0.1", true),
            (&[id], "10.0.0.1", true),
            (&["0x1"], "10.0.0.1", false),
            (&["0x1", id], "10.0.0.1", true),
            (&["10.0.0.1"], "10.0.0.1", true),
            (&["10.0.0.1"], "::ffff:10.0.0.1", true),
            (&["10.0.0.1"], "10.0.0.2", false),
            (&["10.0.0.1"], "127.0.0.1", false),
            (&["10.0.0.0/8"], "10.200.1.1", true),
            (&["10.0.0.0/8"], "11.0.0.0", false),
            (&["0.0.0.0/0"], "fd00::1", false),
            (&["fd00::/64"], "fd00::ffff", true),
            (&["fd00::/64"], "fd00:0:0:1::", false),
        ] {
            assert_eq!(admits(rules, peer), expect, "{rules:?} {peer}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = list(&["10.0.0.1"]).check(ALICE, at("10.0.0.9")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "initiator 0x0000000000000000505400fffe4a0b7b from 10.0.0.9 is not on the access list; \
             add it with --allow 0x0000000000000000505400fffe4a0b7b or srp_target_add_initiator"
        );
        let refused = AccessList::default().check(ALICE, at("10.0.0.9")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "initiator 0x0000000000000000505400fffe4a0b7b from 10.0.0.9 refused: with no access list only \
             loopback peers may log in; add it with --allow 0x0000000000000000505400fffe4a0b7b or \
             srp_target_add_initiator"
        );
    }
}
