//! Sudden ends, end to end: either side dies under load, the other one notices, cleans up, and a
//! new login works at once.

#[path = "common/instance.rs"]
mod instance;

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use instance::{Instance, Perf, Start, address, wait_for};
use rustix::process::Signal;

/// More than anything here takes, even on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// A short workload of its own.
const SHORT: [&str; 9] = ["--rw", "randrw", "--qd", "8", "--channels", "2", "--ios", "300", "--verify"];

fn session_of(target: &Instance, local: IpAddr) -> Option<serde_json::Value> {
    target.sessions().into_iter().find(|session| session["address"] == local.to_string())
}

fn rests(target: &Instance, before: &[(&str, u64)]) {
    let mut now = Vec::new();
    wait_for("what the dead held comes back", LONG, || {
        now = target.stats().at_rest();
        if now != before {
            eprintln!("now {now:?}");
        }
        now == before
    });
}

#[test]
fn initiators_that_die_under_load() {
    let (at, first, second) = (address(1), address(2), address(3));
    let target = Start::new(at).args(&["--lun", "malloc:16M", "--dead-after", "3s"]).ready();
    let before = target.stats().at_rest();

    // The same identity comes back before the target has noticed: its SINGLE login replaces the
    // dead session (SRP r16a, 6.2).
    let mut load = Perf::healthy(at, first);
    load.under_way(&target, 4);
    load.kill();
    assert!(session_of(&target, first).is_some(), "a dead peer is silent, and no more than that");
    Perf::start(at, first, &SHORT).end(LONG).verified();
    assert_eq!(target.stats().get("ended_silent"), 0, "{}", target.log());
    assert_eq!(target.log().matches("session ended: a new login of the same initiator").count(), 1);
    rests(&target, &before);

    // Another identity finds its place beside the dead session.
    let mut load = Perf::healthy(at, first);
    load.under_way(&target, 4);
    load.kill();
    let mut other = Perf::healthy(at, second);
    other.under_way(&target, 4);
    // The dead one goes by itself, and takes nothing with it.
    wait_for("the silent session is given up", LONG, || session_of(&target, first).is_none());
    assert_eq!(target.stats().get("ended_silent"), 4);
    assert_eq!(session_of(&target, second).unwrap()["channels"].as_array().unwrap().len(), 4);
    other.stop(LONG).verified();
    rests(&target, &before);
    assert_eq!(target.stop(LONG).0, Some(0));
}

/// Starts a target on two files, again and again in the same folder.
fn on_files(folder: tempfile::TempDir, at: IpAddr) -> Instance {
    let lun = |name: &str| format!("uring:{}", folder.path().join(name).display());
    let luns = [lun("one"), lun("two")];
    let start = Start::wrapped(&[instance::SRPOLL], folder, at);
    start.args(&["--lun", &luns[0], "--lun", &luns[1]]).ready()
}

fn make_files(folder: &Path) {
    for name in ["one", "two"] {
        File::create(folder.join(name)).unwrap().set_len(16 << 20).unwrap();
    }
}

#[test]
fn a_target_that_dies_under_load_and_comes_back() {
    let (at, patient, other) = (address(11), address(12), address(13));
    let folder = tempfile::tempdir().unwrap();
    make_files(folder.path());
    let target = on_files(folder, at);
    let line = target.printed[0].clone();
    let load =
        ["--rw", "randrw", "--mix", "50", "--qd", "16", "--channels", "4", "--time", "120s", "--verify"];
    let mut patient = Perf::start(at, patient, &[&load[..], &["--reconnect"]].concat());
    let mut other = Perf::start(at, other, &[&load[..], &["--lun", "1"]].concat());
    patient.under_way(&target, 4);
    other.under_way(&target, 4);

    // What a target owes its peers is in its folder, some moments after they came.
    let owed = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("state/connections.json")).unwrap_or_default();
        text.matches("\"remote_id\"").count()
    };
    wait_for("all channels are in the state folder", LONG, || owed(target.folder()) == 8);
    let folder = target.kill();
    let target = on_files(folder, at);
    assert_eq!(target.printed[0], line, "the identity is the same");
    let told = "8 of 8 connections that the process before left open are being ended";
    assert!(target.log().contains(told), "{}", target.log());
    // Without --reconnect the loss is told by the status.
    let lost = other.end(LONG);
    assert_eq!(lost.status, Some(3), "{lost:?}");
    assert!(lost.err.contains("srpoll: the session was lost: "), "{lost:?}");
    assert_eq!(lost.out, "");
    // With it the work goes on, and whatever was acknowledged before is there.
    patient.under_way(&target, 4);
    let ended = patient.stop(LONG);
    ended.verified();
    let (status, folder) = target.stop(LONG);
    assert_eq!((status, owed(folder.path())), (Some(0), 0), "who stops has told everybody");
}

#[test]
fn a_target_that_is_told_to_stop_under_load() {
    let (at, local) = (address(21), address(22));
    let target = Start::new(at).args(&["--lun", "malloc:16M", "--drain-timeout", "4s"]).ready();
    let mut load = Perf::healthy(at, local);
    load.under_way(&target, 4);
    let (status, folder) = target.stop(Duration::from_secs(20));
    assert_eq!(status, Some(0));
    assert!(!folder.path().join("rpc").exists(), "no socket stays");
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("commands were cut off"), "{log}");
    let lost = load.end(LONG);
    assert_eq!(lost.status, Some(3), "{lost:?}");

    // A second signal does not wait.
    let target = Start::new(at).args(&["--lun", "malloc:16M", "--drain-timeout", "3600s"]).ready();
    let mut load = Perf::healthy(at, local);
    load.under_way(&target, 4);
    // Asleep, it neither answers nor ends.
    load.signal(Signal::STOP);
    instance::signal(&target.child, Signal::TERM);
    wait_for("the stop begins", LONG, || target.log().contains("stopping: "));
    let (status, folder) = target.stop(LONG);
    assert_eq!(status, Some(128 + 15));
    assert!(!folder.path().join("rpc").exists(), "no socket stays");
    load.kill();
}

#[test]
fn an_initiator_that_sleeps_too_long() {
    let (at, local) = (address(31), address(32));
    let target = Start::new(at).args(&["--lun", "malloc:16M", "--dead-after", "2s"]).ready();
    let before = target.stats().at_rest();
    let mut load = Perf::healthy(at, local);
    load.under_way(&target, 4);
    load.signal(Signal::STOP);
    wait_for("the silent session is given up", LONG, || target.sessions().is_empty());
    assert_eq!(target.stats().get("ended_silent"), 4);
    rests(&target, &before);
    // Awake again it is told, by DREQ, and does not believe that it is still logged in.
    load.signal(Signal::CONT);
    let lost = load.end(LONG);
    assert_eq!(lost.status, Some(3), "{lost:?}");
    Perf::start(at, local, &SHORT).end(LONG).verified();
    assert_eq!(target.stop(LONG).0, Some(0));
}
