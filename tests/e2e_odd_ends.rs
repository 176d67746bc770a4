//! What an operator's machine does to a running target: files that shrink, addresses and folders
//! that are in use, and no rights at all.

#[path = "common/instance.rs"]
mod instance;

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::process::Command;
use std::time::Duration;

use instance::{Perf, SRPOLL, Start, address, wait_for};

const LONG: Duration = Duration::from_secs(60);
/// A user who owns nothing, and whose locked memory nobody else counts.
fn nobody() -> u32 {
    200_000 + std::process::id() % 100_000
}

#[test]
fn a_file_that_is_cut_off_while_it_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let file = File::create(&disk).unwrap();
    file.set_len(16 << 20).unwrap();
    let (at, hurt, healthy) = (address(1), address(2), address(3));
    let lun = format!("uring:{}", disk.display());
    let target = Start::new(at).args(&["--lun", &lun, "--lun", "malloc:16M"]).ready();
    // Only reads: what is written behind the end makes a file longer again.
    let load = ["--rw", "randread", "--qd", "8", "--channels", "2", "--time", "120s"];
    let hurt = Perf::start(at, hurt, &load);
    let load = ["--rw", "randrw", "--qd", "8", "--channels", "2", "--time", "120s", "--verify", "--lun", "1"];
    let mut healthy = Perf::start(at, healthy, &load);
    healthy.under_way(&target, 2);
    wait_for("reads", LONG, || {
        target.sessions().iter().filter(|session| session["read_bytes"].as_u64().unwrap() > 1 << 20).count()
            == 2
    });
    assert_eq!(target.stats().get("block_errors"), 0);

    file.set_len(4096).unwrap();
    wait_for("failures", LONG, || target.stats().get("block_errors") > 100);
    let words = format!("{} was truncated to 4096 bytes while it is served as 16777216", disk.display());
    wait_for("a word in the log", LONG, || target.log().contains(&words));
    let ended = hurt.stop(LONG);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.err.contains("MediumError"), "{ended:?}");
    // Every failure is counted; the log is told of some.
    assert!(target.log().matches("a block operation failed").count() < 100);
    healthy.stop(LONG).verified();
    assert_eq!(target.stop(LONG).0, Some(0));
}

#[test]
fn an_address_that_another_instance_has() {
    let at = address(11);
    let first = Start::new(at).args(&["--lun", "malloc:1M"]).ready();
    let (status, said) = Start::new(at).args(&["--lun", "malloc:1M"]).refused();
    assert_eq!(status, Some(1));
    let last = said.lines().last().unwrap();
    assert_eq!(
        last,
        format!(
            "srpoll: --soft {at}:5555: listen on {at}: UDP port 4791 of {at} is in use: rdma_rxe is loaded in this network \
             namespace, or another srpoll serves this address"
        )
    );
    // An initiator there gets the same words.
    let ended = Perf::start(at, at, &["--rw", "read", "--qd", "1"]).end(LONG);
    assert_eq!(ended.status, Some(1));
    assert!(ended.err.contains(&format!("UDP port 4791 of {at} is in use")), "{ended:?}");
    // The first one serves on, and its place is free when it is gone.
    let load = ["--rw", "randrw", "--qd", "8", "--ios", "200", "--verify"];
    Perf::start(at, address(12), &load).end(LONG).verified();
    assert_eq!(first.stop(LONG).0, Some(0));
    let again = Start::new(at).args(&["--lun", "malloc:1M"]).ready();
    assert_eq!(again.stop(LONG).0, Some(0));
}

#[test]
fn a_state_folder_that_another_instance_has() {
    let first = Start::new(address(21)).args(&["--lun", "malloc:1M"]).ready();
    let state = first.folder().join("state");
    let mut command = Command::new(SRPOLL);
    command.args(["serve", "--soft", &address(22).to_string(), "--lun", "malloc:1M", "--hugepages", "off"]);
    let other = tempfile::tempdir().unwrap();
    let output =
        command.arg("--rpc").arg(other.path().join("rpc")).arg("--state").arg(&state).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let words = format!(
        "srpoll: the state folder {} is in use by another srpoll; give each instance its own --state",
        state.display()
    );
    assert_eq!(said.lines().last(), Some(words.as_str()));
    assert_eq!(first.stop(LONG).0, Some(0));
}

/// On both sides: no capability, no group, little locked memory.
#[test]
fn a_user_without_any_rights() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("srpoll");
    // The build's own folder may be closed to others.
    fs::copy(SRPOLL, &program).unwrap();
    let disk = folder.path().join("disk");
    File::create(&disk).unwrap().set_len(16 << 20).unwrap();
    let nobody = nobody();
    let uid = nobody.to_string();
    // What a login gives.
    let mut prefix = vec!["prlimit", "--memlock=8388608"];
    if rustix::process::geteuid().is_root() {
        for path in [folder.path(), &disk] {
            chown(path, Some(nobody), Some(nobody)).unwrap();
        }
        let drop = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"];
        prefix.extend(drop);
        prefix.extend(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
    }
    prefix.push(program.to_str().unwrap());

    let (at, from) = (address(31), address(32));
    let lun = format!("uring:{}", disk.display());
    let target = Start::wrapped(&prefix, folder_of(folder.path()), at);
    let target = target.args(&["--lun", &lun]).ready();
    let pid = target.child.id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let load = ["--rw", "randrw", "--qd", "32", "--channels", "4", "--ios", "3000", "--verify"];
    Perf::wrapped(&prefix, at, from, &load).end(LONG).verified();
    let log = target.log();
    assert!(log.contains("registered") || log.contains("locked"), "it says what it lacks: {log}");
    assert_eq!(target.stop(LONG).0, Some(0));
}

/// A folder inside `parent` with the same owner.
fn folder_of(parent: &std::path::Path) -> tempfile::TempDir {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir_in(parent).unwrap();
    let owner = fs::metadata(parent).unwrap();
    chown(folder.path(), Some(owner.uid()), Some(owner.gid())).unwrap();
    folder
}
