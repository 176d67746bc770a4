//! Verified workloads over bad networks, by the built program on both sides: 64 commands on eight
//! channels of two shards while packets are lost, doubled and overtaken on both sides. `scripts/soak`
//! runs the same for a minute each.

#[path = "common/instance.rs"]
mod instance;
#[path = "common/netns.rs"]
mod netns;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use instance::{Instance, Perf, SRPOLL, Start, address};
use netns::Netns;
use srpoll::initiator::stamp::{Found, look};

/// One at a time: each wants all of the machine.
static TURN: Mutex<()> = Mutex::new(());
const LONG: Duration = Duration::from_secs(90);
const LOAD: [&str; 11] =
    ["--rw", "randrw", "--mix", "50", "--qd", "64", "--channels", "8", "--time", "5s", "--verify"];
const BAD: &str = "drop=1%,dup=1%,reorder=1%";
/// As with the net.core.rmem_max that kernels had for twenty years.
const STOCK: &str = "drop=1%,dup=1%,reorder=1%,rcvbuf=212992";

/// Runs the load, with the same faults on both sides but other choices; gives the target back.
fn verified(prefix: &[&str], at: IpAddr, from: IpAddr, lun: &str, fault: &str) -> Instance {
    let prefix = [prefix, &[SRPOLL]].concat();
    let (ours, theirs) = (format!("{fault},seed=1"), format!("{fault},seed=2"));
    let start = Start::wrapped(&prefix, tempfile::tempdir().unwrap(), at);
    let target = start.args(&["--lun", lun, "--fault", &ours, "--allow", "any"]).ready();
    let before = target.stats();
    let load = Perf::wrapped(&prefix, at, from, &[&LOAD[..], &["--fault", &theirs]].concat());
    let ended = load.end(LONG);
    ended.verified();
    assert_eq!(ended.err, "");
    let after = target.stats();
    assert!(after.get("faults") > before.get("faults"), "the network was bad");
    assert!(after.get("retransmissions") > 0, "packets were lost");
    assert_eq!(after.get("drains_overdue"), 0);
    instance::wait_for("all is given back", LONG, || target.stats().at_rest() == before.at_rest());
    target
}

fn over_ipv4(host: u8, fault: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let target = verified(&[], address(host), address(host + 1), "malloc:64M", fault);
    assert_eq!(target.stop(LONG).0, Some(0));
}

/// Two addresses on `lo` of a namespace.
fn over_ipv6(fault: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let script = "ip link set lo up; ip addr add fd00:51::1/128 dev lo; ip addr add fd00:51::2/128 dev lo";
    let Some(netns) = Netns::new(script) else {
        eprintln!("skipped: this user may not make a network namespace");
        return;
    };
    let enter = netns.enter();
    let prefix: Vec<&str> = enter.iter().map(String::as_str).collect();
    let address = |last| IpAddr::from([0xfd00u16, 0x51, 0, 0, 0, 0, 0, last]);
    let target = verified(&prefix, address(1), address(2), "malloc:64M", fault);
    assert!(target.printed[0].ends_with("dest=[fd00:51::1]:5555"), "{:?}", target.printed);
    assert_eq!(target.stop(LONG).0, Some(0));
}

#[test]
fn ipv4_and_a_bad_network() {
    over_ipv4(1, BAD);
}

#[test]
fn ipv4_and_a_stock_receive_buffer() {
    over_ipv4(11, STOCK);
}

#[test]
fn ipv6_and_a_bad_network() {
    over_ipv6(BAD);
}

#[test]
fn ipv6_and_a_stock_receive_buffer() {
    over_ipv6(STOCK);
}

#[test]
fn a_file_holds_what_was_written() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let lun = format!("7=uring:{}", disk.display());
    let (at, from) = (address(21), address(22));
    let target = Start::new(at).args(&["--lun", &lun, "--fault", BAD]).ready();
    let on_seven = [&LOAD[..], &["--lun", "7", "--fault", BAD]].concat();
    let verified = Perf::start(at, from, &on_seven).end(LONG).verified();
    assert_eq!(target.stop(LONG).0, Some(0));

    // Block by block, past all of our own readers: what it says of itself is where it lies, and all
    // of its bytes follow from that.
    let bytes = fs::read(&disk).unwrap();
    assert_eq!(bytes.len(), 16 << 20);
    let (mut runs, mut stamped) = (BTreeSet::new(), 0);
    for (number, block) in bytes.chunks(512).enumerate() {
        match look(block) {
            Found::Stamp(stamp) => {
                assert_eq!((stamp.lun, stamp.offset), (7, number as u64 * 512));
                stamp.check(block).unwrap();
                runs.insert(stamp.run);
                stamped += 1;
            }
            Found::Zeros => {}
            Found::Foreign => panic!("block {number} was written by nobody"),
        }
    }
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert!(stamped > 0 && stamped <= 8 * verified, "{stamped} blocks of {verified} I/Os");
}
