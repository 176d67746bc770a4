//! What an operator changes while initiators are logged in: sizes, logical units, limits, sessions,
//! devices that are slow or fail; as those initiators see it.

use std::fs::{self, File, OpenOptions};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use srpoll::initiator::SessionState;

#[path = "common/served.rs"]
mod served;
use served::{Host, Instance, SRPOLL, address, until};

const LUNS_CHANGED: &str = "(3f/0e)";
const CAPACITY_CHANGED: &str = "(2a/09)";

/// That this is said once, and then the logical unit is ready.
fn hears_once(host: &mut Host, lun: u16, what: &str) {
    let said = host.ready(lun);
    assert!(said.starts_with("UNIT ATTENTION") && said.contains(what), "{what} at LUN {lun}: {said}");
    assert_eq!(host.ready(lun), "GOOD", "once, at LUN {lun}");
}

#[test]
fn every_nexus_hears_once_of_what_changes() {
    let (target, first, second) = (address(1), address(2), address(3));
    let instance = Instance::start(&["--soft", &target, "--cores", "any,any", "--lun", "null:8M"]);
    let mut hosts = [Host::login(&first, &target), Host::login(&second, &target)];
    hosts.iter_mut().for_each(|host| host.settle(0));

    instance.rpc("bdev_null_create", json!({"name": "n", "num_blocks": 2048, "block_size": 512}));
    let latencies = |micros: u64| {
        json!({
            "base_bdev_name": "n", "name": "d", "avg_read_latency": micros, "p99_read_latency": micros,
            "avg_write_latency": micros, "p99_write_latency": micros,
        })
    };
    instance.rpc("bdev_delay_create", latencies(10));
    instance.rpc("srp_target_add_lun", json!({"lun": 1, "bdev_name": "d"}));
    for host in &mut hosts {
        hears_once(host, 0, LUNS_CHANGED);
        host.settle(1);
        assert_eq!(host.blocks(1), 2048);
    }

    instance.rpc("bdev_null_resize", json!({"name": "n", "new_size": 16}));
    for host in &mut hosts {
        assert_eq!(host.ready(0), "GOOD", "the other logical unit has not changed");
        hears_once(host, 1, CAPACITY_CHANGED);
        assert_eq!(host.blocks(1), 16 << 11);
        assert_eq!(host.read(1, (16 << 11) - 1).said, "GOOD");
    }
    instance.rpc("bdev_null_resize", json!({"name": "n", "new_size": 1}));
    for host in &mut hosts {
        hears_once(host, 1, CAPACITY_CHANGED);
        let said = host.read(1, 2048).said;
        assert!(said.starts_with("ILLEGAL REQUEST") && said.contains("(21/00)"), "{said}");
    }

    instance.rpc("srp_target_remove_lun", json!({"lun": 1}));
    for host in &mut hosts {
        hears_once(host, 0, LUNS_CHANGED);
        let said = host.ready(1);
        assert!(said.contains("(25/00)"), "{said}");
        // SPC-4, 6.6.2: INQUIRY is what tells the revision, four bytes of it.
        let inquiry = host.command(0, &[0x12, 0, 0, 0, 36, 0], 36).data;
        let revision = format!("{}.{} ", env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        assert_eq!(&inquiry[32..36], &revision.as_bytes()[..4]);
    }
}

#[test]
fn a_file_that_is_cut_short_unlinked_or_replaced_is_reported() {
    let (target, local) = (address(11), address(12));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let spec = format!("uring:{}", path.display());
    let instance = Instance::start(&["--soft", &target, "--lun", &spec]);
    let mut host = Host::login(&local, &target);
    host.settle(0);
    assert_eq!(host.read(0, 2047).said, "GOOD");

    OpenOptions::new().write(true).open(&path).unwrap().set_len(64 << 10).unwrap();
    // No I/O is needed to notice it.
    let said = until("a unit attention", || {
        let said = host.ready(0);
        (said != "GOOD").then_some(said)
    });
    assert!(said.contains(CAPACITY_CHANGED), "{said}");
    assert_eq!(host.ready(0), "GOOD");
    let said = host.read(0, 2047).said;
    assert!(said.starts_with("MEDIUM ERROR") && said.contains("(11/00), block 2047"), "{said}");
    assert_eq!(host.read(0, 127).said, "GOOD", "what is there is served");
    assert_eq!(host.blocks(0), 2048, "until it is rescanned");
    assert!(instance.log().contains("was truncated to 65536 bytes"), "{}", instance.log());

    instance.rpc("bdev_uring_rescan", json!({"name": "uring0"}));
    hears_once(&mut host, 0, CAPACITY_CHANGED);
    assert_eq!(host.blocks(0), 128);

    fs::remove_file(&path).unwrap();
    until("a warning", || instance.log().contains("was unlinked").then_some(()));
    assert_eq!(host.read(0, 127).said, "GOOD", "its data is there");

    File::create(&path).unwrap().set_len(64 << 10).unwrap();
    let said = until("a unit attention", || {
        let said = host.ready(0);
        (said != "GOOD").then_some(said)
    });
    assert!(said.contains(CAPACITY_CHANGED), "{said}");
    let said = host.read(0, 0).said;
    assert!(said.starts_with("MEDIUM ERROR"), "{said}");
    assert!(instance.log().contains("was replaced by another file"), "{}", instance.log());
}

/// A `srpoll perf` that runs.
fn perf(target: &str, local: &str, args: &[&str]) -> std::process::Child {
    Command::new(SRPOLL)
        .args(["perf", "--target", target, "--local", local, "--json", "--bs", "4k"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Its exit status and what it measured.
fn measured(child: std::process::Child) -> (Option<i32>, Value, String) {
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {words}"));
    (output.status.code(), report, words)
}

#[test]
fn a_load_sees_the_errors_that_are_injected_and_no_others() {
    let (target, local) = (address(21), address(22));
    let instance = Instance::start(&["--soft", &target, "--lun", "null:8M"]);
    instance.rpc("bdev_malloc_create", json!({"name": "m", "num_blocks": 16384, "block_size": 512}));
    instance.rpc("bdev_error_create", json!({"base_name": "m"}));
    let none = json!({
        "base_bdev_name": "EE_m", "name": "slow", "avg_read_latency": 0, "p99_read_latency": 0,
        "avg_write_latency": 0, "p99_write_latency": 0,
    });
    instance.rpc("bdev_delay_create", none);
    instance.rpc("srp_target_add_lun", json!({"lun": 1, "bdev_name": "slow"}));
    let done = |what: &str| {
        let stats = instance.rpc("bdev_get_iostat", json!({"name": "slow"}));
        stats["bdevs"][0][what].as_u64().unwrap()
    };

    let load =
        perf(&target, &local, &["--lun", "1", "--rw", "randrw", "--qd", "8", "--time", "4s", "--verify"]);
    // It writes when it has looked for foreign data.
    until("a load", || (done("num_write_ops") > 100).then_some(()));
    let inject = |io: &str, error: &str, num: u32| {
        let params = json!({"name": "EE_m", "io_type": io, "error_type": error, "num": num});
        instance.rpc("bdev_error_inject_error", params);
    };
    inject("read", "failure", 3);
    until("failures", || (done("num_errors") == 3).then_some(()));
    inject("all", "nomem", 20);
    let slow = json!({"delay_bdev_name": "slow", "latency_type": "avg_read", "latency_us": 3000});
    instance.rpc("bdev_delay_update_latency", slow);
    // What happens to another logical unit, and to nobody, is not felt.
    instance.rpc("bdev_null_resize", json!({"name": "null0", "new_size": 4}));
    let before = done("num_read_ops");
    until("slow reads", || (done("num_read_ops") > before + 20).then_some(()));
    let (status, report, words) = measured(load);
    assert_eq!((status, &report["errors"]), (Some(1), &json!(3)), "{report} {words}");
    assert!(report["verified"].as_u64().unwrap() > 0, "{report}");
    let stats = instance.rpc("bdev_get_iostat", json!({"name": "slow"}));
    assert!(stats["bdevs"][0]["max_read_latency_ticks"].as_u64().unwrap() >= 3_000_000, "{stats}");
    assert!(instance.log().contains("a block operation failed"));

    // At depth 1 a queue without memory has nothing in flight whose end could make room.
    inject("all", "nomem", 5);
    let fast = json!({"delay_bdev_name": "slow", "latency_type": "avg_read", "latency_us": 0});
    instance.rpc("bdev_delay_update_latency", fast);
    let load = perf(&target, &local, &["--lun", "1", "--rw", "randread", "--qd", "1", "--ios", "50"]);
    let (status, report, words) = measured(load);
    assert_eq!((status, &report["errors"], &report["ios"]), (Some(0), &json!(0), &json!(50)), "{words}");
}

#[test]
fn who_logs_in_gets_what_the_limits_leave() {
    let (target, first, second) = (address(31), address(32), address(33));
    let instance = Instance::start(&["--soft", &target, "--lun", "null:8M"]);
    instance.rpc("srp_target_set_limits", json!({"max_channels_per_session": 2, "max_sessions": 1}));
    let load = perf(&target, &first, &["--rw", "randread", "--qd", "8", "--channels", "4", "--ios", "200"]);
    let (status, report, words) = measured(load);
    assert_eq!((status, &report["errors"]), (Some(0), &json!(0)), "{words}");
    assert!(words.contains("the target gave 2 channels of 4"), "{words}");

    let sessions = || instance.rpc("srp_get_sessions", json!({}));
    until("the end of the load's session", || (sessions() == json!([])).then_some(()));
    let mut host = Host::login(&first, &target);
    assert!(Host::try_login(&second, &target).is_err());
    let log = instance.log();
    assert!(log.contains("srp_target_set_limits max_sessions 1 are in use"), "{log}");
    // Limits are for those who come: who is there stays.
    instance.rpc("srp_target_set_limits", json!({"max_channels": 1, "max_sessions": 0}));
    host.settle(0);

    // The operator sees the session, and ends it.
    let id = host.id.to_string();
    let shown = instance.says(&["session", "list"]);
    assert!(shown.contains(&id) && shown.contains("live"), "{shown}");
    assert_eq!(instance.says(&["session", "disconnect", &id]), "1 channels are ending\n");
    until("the end of the session", || (host.poll() != SessionState::Live).then_some(()));
    until("the session is gone", || (sessions() == json!([])).then_some(()));
    assert!(instance.log().contains("an administrator ended it"));
    let again = instance.srpoll(&["session", "disconnect", &id]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not logged in"));
}

#[test]
fn logical_units_from_the_command_line() {
    let target = address(41);
    let instance = Instance::start(&["--soft", &target, "--lun", "null:8M"]);
    assert_eq!(instance.says(&["lun", "add", "malloc:4M"]), "LUN 1 is bdev malloc1\n");
    assert_eq!(instance.says(&["lun", "add", "7=null:1M,ro"]), "LUN 7 is bdev null7\n");
    instance.rpc("bdev_null_create", json!({"name": "mine", "num_blocks": 8, "block_size": 4096}));
    assert_eq!(instance.says(&["lun", "add", "--bdev", "mine"]), "LUN 2 is bdev mine\n");
    let luns = instance.says(&["lun", "list"]);
    let columns = |text: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    };
    assert_eq!(
        columns(&luns).iter().map(|line| line.rsplit_once(' ').unwrap().0).collect::<Vec<_>>(),
        [
            "LUN BDEV SIZE BLOCK MODE",
            "0 null0 8 MiB 512",
            "1 malloc1 4 MiB 512",
            "2 mine 32 KiB 4096",
            "7 null7 1 MiB 512",
        ]
    );
    let bdevs = instance.says(&["bdev", "list"]);
    assert!(bdevs.contains("malloc1  Malloc disk  4 MiB   512    rw    yes   -"), "{bdevs}");
    // A LUN goes with its device, unless told otherwise; a name that is taken leaves nothing behind.
    instance.says(&["lun", "remove", "7"]);
    instance.says(&["lun", "remove", "2", "--keep-bdev"]);
    let taken = instance.srpoll(&["lun", "add", "1=null:1M"]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&taken.stderr).contains("LUN 1 is taken already, by bdev malloc1"));
    let bdevs = instance.says(&["bdev", "list"]);
    let names: Vec<&str> = bdevs.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["malloc1", "mine", "null0"]);
    let shown = instance.says(&["target", "show"]);
    assert!(shown.contains(&format!("dest={target}:5555")), "{shown}");
    assert!(shown.contains("limits        256 sessions, 1024 channels, 1024 channels a session"), "{shown}");
    for noun in ["target", "lun", "session", "bdev"] {
        let help = Command::new(SRPOLL).args([noun, "--help"]).output().unwrap();
        assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--rpc"), "{noun}");
    }
}
