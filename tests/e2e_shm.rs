//! Shared memory, end to end: processes of one host, verified data, and every way to die.

#[path = "common/instance.rs"]
mod instance;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use instance::{Instance, Perf, SRPOLL, Start, address, wait_for};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use serde_json::json;

/// More than anything here takes, even on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const SHORT: [&str; 11] =
    ["--rw", "randrw", "--bs", "4k", "--qd", "8", "--channels", "2", "--ios", "300", "--verify"];
const LOAD: [&str; 13] = [
    "--rw",
    "randrw",
    "--mix",
    "50",
    "--bs",
    "4k",
    "--qd",
    "16",
    "--channels",
    "4",
    "--time",
    "120s",
    "--verify",
];

fn started() -> Instance {
    Start::shm().args(&["--lun", "malloc:16M", "--dead-after", "3s"]).ready()
}

fn rests(target: &Instance, before: &[(&str, u64)]) {
    wait_for("what the dead held comes back", LONG, || target.stats().at_rest() == before);
}

/// Open descriptors, those of RPC connections that come and go not counted: the fewest of a while.
fn descriptors(target: &Instance) -> usize {
    let count = |_| {
        std::thread::sleep(Duration::from_millis(20));
        fs::read_dir(format!("/proc/{}/fd", target.child.id())).unwrap().count()
    };
    (0..20).map(count).min().unwrap()
}

#[test]
fn data_of_every_size_arrive_on_two_shards() {
    let target = started();
    let socket = target.shm_socket();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(target.printed[0].ends_with(&format!(",shm={}", socket.display())), "{:?}", target.printed);
    for (bs, qd) in [("512", "1"), ("4k", "32"), ("64k", "8"), ("1M", "4")] {
        let args = ["--rw", "randrw", "--bs", bs, "--qd", qd, "--channels", "4", "--ios", "400", "--verify"];
        // Each one finds the data of the one before, and they are perf's own.
        Perf::shm(&socket, &args).end(LONG).verified();
    }
    let stats = target.stats();
    assert!(stats.get("shm_rdma_bytes") > 100 << 20);
    assert_eq!(stats.get("shm_liars") + stats.get("shm_bad_access"), 0);
    assert!(stats.get("shm_bells_rung") > 0, "both sides sleep sometimes");
}

#[test]
fn a_session_is_a_process() {
    let target = started();
    let mut load = Perf::shm(&target.shm_socket(), &LOAD);
    load.under_way(&target, 4);
    let sessions = target.sessions();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(sessions[0]["address"], format!("pid {} uid {uid}", load.pid()));
    let channels = sessions[0]["channels"].as_array().unwrap();
    assert!(channels.iter().all(|channel| channel["local"].is_null() && channel["immediate_data"] == false));
    let mut shards: Vec<_> = channels.iter().map(|channel| channel["shard"].as_u64().unwrap()).collect();
    shards.sort_unstable();
    assert_eq!(shards, [0, 0, 1, 1]);
    let initiator = json!({"initiator": sessions[0]["initiator"]});
    target.rpc("srp_session_disconnect", &initiator);
    assert_eq!(load.end(LONG).status, Some(3));
}

#[test]
fn initiators_may_be_killed_at_any_point() {
    let luns = ["--lun", "malloc:16M", "--lun", "malloc:16M"];
    let target = Start::shm().args(&luns).args(&["--dead-after", "3s"]).ready();
    let before = target.stats().at_rest();
    let socket = target.shm_socket();
    let mut healthy = Perf::shm(&socket, &LOAD);
    healthy.under_way(&target, 4);
    let open = descriptors(&target);
    for round in 0..24 {
        // The first ones die before they have logged in.
        let victim = Perf::shm(&socket, &[&LOAD[..], &["--lun", "1", "--overwrite"]].concat());
        std::thread::sleep(Duration::from_millis(5 * round));
        victim.kill();
    }
    wait_for("only the healthy one is left", LONG, || target.sessions().len() == 1);
    let mut now = 0;
    wait_for("no descriptor stays", LONG, || {
        now = descriptors(&target);
        if now != open {
            eprintln!("{now} descriptors, {open} before");
        }
        now == open
    });
    healthy.stop(LONG).verified();
    rests(&target, &before);
    assert_eq!(target.stop(LONG).0, Some(0));
}

/// A target on two files, again and again in the same folder.
fn on_files(folder: tempfile::TempDir) -> Instance {
    let luns = ["one", "two"].map(|name| format!("uring:{}", folder.path().join(name).display()));
    Start::shm_in(folder).args(&["--lun", &luns[0], "--lun", &luns[1]]).ready()
}

#[test]
fn a_target_that_is_killed_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        fs::File::create(folder.path().join(name)).unwrap().set_len(16 << 20).unwrap();
    }
    let target = on_files(folder);
    let socket = target.shm_socket();
    let mut patient = Perf::shm(&socket, &[&LOAD[..], &["--reconnect"]].concat());
    patient.under_way(&target, 4);
    let other = Perf::shm(&socket, &[&LOAD[..], &["--lun", "1"]].concat());
    wait_for("the other one", LONG, || target.sessions().len() == 2);
    let folder = target.kill();
    let lost = other.end(LONG);
    assert_eq!(lost.status, Some(3), "{lost:?}");
    assert!(lost.err.contains("srpoll: the session was lost: "), "{lost:?}");
    assert!(socket.exists(), "a killed process cleans nothing up");
    let nobody = Perf::shm(&socket, &SHORT).end(LONG);
    assert!(nobody.err.contains("the srpoll that made this socket is gone"), "{nobody:?}");

    let target = on_files(folder);
    assert!(target.log().contains("was left by an instance that is gone; replaced"));
    patient.under_way(&target, 4);
    // Whatever was acknowledged before is there.
    patient.stop(LONG).verified();
    assert_eq!(target.stop(LONG).0, Some(0));
}

#[test]
fn a_target_that_is_told_to_stop_takes_its_socket_with_it() {
    let target = started();
    let socket = target.shm_socket();
    let mut load = Perf::shm(&socket, &LOAD);
    load.under_way(&target, 4);
    let (status, _folder) = target.stop(LONG);
    assert_eq!(status, Some(0));
    assert_eq!(load.end(LONG).status, Some(3));
    assert!(!socket.exists());
    let nobody = Perf::shm(&socket, &SHORT).end(LONG);
    assert_eq!(nobody.status, Some(1), "{nobody:?}");
    assert!(nobody.err.contains("there is no such socket; does srpoll serve --shm run?"), "{nobody:?}");
}

#[test]
fn an_initiator_that_sleeps_too_long_is_given_up() {
    let target = started();
    let before = target.stats().at_rest();
    let mut load = Perf::shm(&target.shm_socket(), &LOAD);
    load.under_way(&target, 4);
    load.signal(Signal::STOP);
    wait_for("the silent session is given up", LONG, || target.sessions().is_empty());
    rests(&target, &before);
    load.signal(Signal::CONT);
    let lost = load.end(LONG);
    assert_eq!(lost.status, Some(3), "{lost:?}");
    Perf::shm(&target.shm_socket(), &SHORT).end(LONG).verified();
}

#[test]
fn a_socket_has_one_owner_and_only_a_socket_is_replaced() {
    let target = started();
    let socket = target.shm_socket();
    let (status, said) =
        Start::shm_at(tempfile::tempdir().unwrap(), &socket).args(&["--lun", "null:1M"]).refused();
    assert_eq!(status, Some(1));
    assert!(said.contains("belongs to a running srpoll; give this one another --shm"), "{said}");
    Perf::shm(&socket, &SHORT).end(LONG).verified();

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious");
    fs::write(&file, "data").unwrap();
    let (status, said) =
        Start::shm_at(tempfile::tempdir().unwrap(), &file).args(&["--lun", "null:1M"]).refused();
    assert_eq!(status, Some(1));
    assert!(said.contains("is not a socket; it is left alone, give another --shm"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "data");
}

/// Needs root, who alone can be somebody else.
#[test]
fn other_users_are_not_let_in() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let target = started();
    let socket = target.shm_socket();
    fs::set_permissions(target.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = target.folder().join("program");
    fs::copy(SRPOLL, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let try_as_nobody = || {
        let mut command = Command::new(&program);
        command.args(["perf", "--shm"]).arg(&socket).args(SHORT).uid(65534).gid(65534);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = try_as_nobody();
    assert!(said.contains("the socket is another user's"), "{said}");
    // Whoever opens the file to all has not opened the target.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let said = try_as_nobody();
    assert!(said.contains("cannot log in"), "{said}");
    let refused = "a connection is refused: process";
    wait_for("the refusal", LONG, || target.log().contains(refused));
    assert!(target.log().contains("is of user 65534; only user 0 and root share memory"), "{}", target.log());
}

#[test]
fn listeners_come_and_go_and_are_saved() {
    let target = started();
    let second = target.folder().join("second");
    let added = target.rpc("srp_target_add_listener", &json!({"shm": second}));
    assert_eq!(added["shm"], json!(second));
    Perf::shm(&second, &SHORT).end(LONG).verified();
    let saved = target.rpc("save_config", &json!({})).to_string();
    assert!(saved.contains(&second.display().to_string()), "{saved}");
    let mut load = Perf::shm(&second, &LOAD);
    load.under_way(&target, 4);
    target.rpc("srp_target_remove_listener", &json!({"shm": second}));
    wait_for("the socket goes", LONG, || !second.exists());
    // The first one serves on; reading disturbs nobody's verification.
    let reads = ["--rw", "randread", "--bs", "4k", "--qd", "4", "--ios", "100"];
    assert_eq!(Perf::shm(&target.shm_socket(), &reads).end(LONG).status, Some(0));
    load.stop(LONG).verified();
    for (params, words) in [
        (json!({"address": address(1).to_string()}), "this srpoll serves shared memory (--shm) only"),
        (json!({"shm": "relative"}), "is no absolute path"),
        (json!({"shm": "/a", "port": 1}), "a socket has neither address nor port"),
        (json!({}), "either address or shm is needed"),
    ] {
        let said = target.rpc_refused("srp_target_add_listener", &params);
        assert!(said.contains(words), "{params}: {said}");
    }
}

#[test]
fn a_socket_that_is_removed_with_its_sessions_ends_those_that_came_by_it() {
    let luns = ["--lun", "malloc:16M", "--lun", "malloc:16M"];
    let target = Start::shm().args(&luns).args(&["--dead-after", "3s"]).ready();
    let second = target.folder().join("second");
    target.rpc("srp_target_add_listener", &json!({"shm": second}));
    // Two of one user, and so two initiators, the first of which anybody can name.
    let mut stays = Perf::shm(&target.shm_socket(), &LOAD);
    stays.under_way(&target, 4);
    let first = target.sessions()[0]["initiator"].clone();
    let goes = Perf::shm(&second, &[&LOAD[..], &["--lun", "1"]].concat());
    wait_for("both are there", LONG, || target.sessions().len() == 2);
    target.rpc("srp_target_remove_listener", &json!({"shm": second, "end_sessions": true}));
    assert_eq!(goes.end(LONG).status, Some(3));
    wait_for("one of them", LONG, || target.sessions().len() == 1);
    assert_eq!(target.sessions()[0]["initiator"], first);
    stays.under_way(&target, 4);
    stays.stop(LONG).verified();
    assert_eq!(target.stop(LONG).0, Some(0));
}

/// A thousand connects that come to nothing leave nothing behind.
#[test]
fn connects_that_are_cut_leave_nothing() {
    let target = started();
    let connect = || {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(target.shm_socket()).unwrap()).unwrap();
        socket
    };
    Perf::shm(&target.shm_socket(), &SHORT).end(LONG).verified();
    wait_for("it rests", LONG, || target.sessions().is_empty());
    let (before, open) = (target.stats().at_rest(), descriptors(&target));
    for round in 0..1000u32 {
        let socket = connect();
        let noise = [1u8, 0, 1, round as u8];
        if round % 3 > 0 {
            // What is no request, and a request that is cut short.
            let _ = rustix::net::send(
                &socket,
                &noise[..1 + round as usize % 4],
                rustix::net::SendFlags::NOSIGNAL,
            );
        }
    }
    rests(&target, &before);
    let mut now = 0;
    wait_for("no descriptor stays", LONG, || {
        now = descriptors(&target);
        if now != open {
            eprintln!("{now} descriptors, {open} before");
        }
        now == open
    });
    assert_eq!(target.stats().get("connections"), 0);
    Perf::shm(&target.shm_socket(), &SHORT).end(LONG).verified();
}
