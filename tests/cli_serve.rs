//! A whole instance as its operator sees it: what it prints, what its socket answers, how it
//! stops.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const SRPOLL: &str = env!("CARGO_BIN_EXE_srpoll");

/// A running instance; killed if the test does not stop it.
struct Instance {
    folder: tempfile::TempDir,
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// What it printed up to `ready`.
    printed: Vec<String>,
}

impl Instance {
    fn start(args: &[&str]) -> Instance {
        Instance::start_in(tempfile::tempdir().unwrap(), args)
    }

    fn start_in(folder: tempfile::TempDir, args: &[&str]) -> Instance {
        let mut child = Command::new(SRPOLL)
            .arg("serve")
            .args(["--memory", "4M", "--hugepages", "off"])
            .arg("--rpc")
            .arg(folder.path().join("rpc"))
            .arg("--state")
            .arg(folder.path().join("state"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut printed = Vec::new();
        while printed.last().is_none_or(|line| line != "ready") {
            let mut line = String::new();
            if stdout.read_line(&mut line).unwrap() == 0 {
                let mut log = String::new();
                child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
                panic!("it ended after {printed:?}: {log}");
            }
            printed.push(line.trim_end().to_owned());
        }
        Instance { folder, child, stdout, printed }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("rpc")
    }

    fn srpoll(&self, command: &str, args: &[&str]) -> Output {
        Command::new(SRPOLL).arg(command).arg("--rpc").arg(self.socket()).args(args).output().unwrap()
    }

    fn rpc(&self, method: &str, params: Value) -> Value {
        let output = self.srpoll("rpc", &[method, &params.to_string()]);
        assert!(output.status.success(), "{method}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; gives its status, the rest of its output and the folder.
    fn end(mut self) -> (Option<i32>, String, tempfile::TempDir) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        (status.code(), rest, folder)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address that no other test process uses, other than those of `cli_bad_input`.
fn address(host: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{host}", pid >> 8 & 0x3f | 0x80, pid & 0xff)
}

#[test]
fn from_start_to_stop() {
    let (first, second) = (address(1), address(2));
    let instance = Instance::start(&[
        "--soft",
        &first,
        "--soft",
        &format!("{second}:7"),
        "--port",
        "6666",
        "--cores",
        "any,any",
        "--id-ext",
        "00000000000000AB",
        "--ioc-guid",
        "0200000000000001",
        "--allow",
        "10.0.0.1",
        "--lun",
        "null:1G",
        "--lun",
        "0=malloc:1M,block=4096",
        "--lun",
        "malloc:2M,ro",
    ]);
    let ids = "id_ext=00000000000000ab,ioc_guid=0200000000000001";
    assert_eq!(
        instance.printed,
        [format!("{ids},dest={first}:6666"), format!("{ids},dest={second}:7"), "ready".to_owned()]
    );
    let targets = instance.rpc("srp_get_targets", json!({}));
    let luns: Vec<_> = targets[0]["luns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lun| format!("{} {}", lun["lun"], lun["bdev_name"].as_str().unwrap()))
        .collect();
    assert_eq!(luns, ["0 malloc0", "1 null1", "2 malloc2"]);
    assert_eq!(targets[0]["initiators"], json!(["10.0.0.1"]));
    assert_eq!(instance.rpc("framework_get_reactors", json!({}))["reactors"].as_array().unwrap().len(), 2);
    assert_eq!(instance.rpc("srp_get_sessions", json!({})), json!([]));

    // Changes at run time.
    instance.rpc("bdev_null_create", json!({"name": "more", "num_blocks": 8, "block_size": 512}));
    assert_eq!(instance.rpc("srp_target_add_lun", json!({"bdev_name": "more"})), json!(3));
    let refused = instance.srpoll("rpc", &["bdev_null_delete", "{\"name\": \"more\"}"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(refused.stderr).unwrap(),
        "srpoll: bdev_null_delete: bdev more is in use by LUN 3 (-16)\n"
    );
    let unknown = instance.srpoll("rpc", &["bdev_null_delete", "{\"nam\": \"more\"}"]);
    assert_eq!(
        String::from_utf8(unknown.stderr).unwrap(),
        "srpoll: bdev_null_delete: unknown parameter `nam`, expected `name` (-32602)\n"
    );
    let third = address(3);
    let added = instance.rpc("srp_target_add_listener", json!({"address": third, "port": 9}));
    assert_eq!(added["add_target"], json!(format!("{ids},dest={third}:9")));
    instance.rpc("srp_target_remove_listener", json!({"address": third, "port": 9}));

    let status = instance.srpoll("status", &[]);
    let report = String::from_utf8(status.stdout).unwrap();
    assert!(report.contains("\n2    malloc2  2 MiB  512    ro    3"), "{report}");

    instance.signal(rustix::process::Signal::TERM);
    let (status, rest, folder) = instance.end();
    assert_eq!((status, rest.as_str()), (Some(0), ""));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["state"], "only the identity stays");
}

#[test]
fn an_identity_survives_a_restart_and_is_never_shared() {
    let address = address(10);
    let args = ["--soft", address.as_str(), "--lun", "0=malloc:1M"];
    let instance = Instance::start(&args);
    let (line, targets) = (instance.printed[0].clone(), instance.rpc("srp_get_targets", json!({})));

    let state = instance.folder.path().join("state");
    let other = tempfile::tempdir().unwrap();
    let output = Command::new(SRPOLL)
        .args(["serve", "--soft", "127.0.0.1", "--lun", "malloc:1M"])
        .arg("--rpc")
        .arg(other.path().join("rpc"))
        .arg("--state")
        .arg(&state)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().ends_with(&format!(
        "srpoll: the state folder {} is in use by another srpoll; give each instance its own --state\n",
        state.display()
    )));

    instance.signal(rustix::process::Signal::INT);
    let (status, _, folder) = instance.end();
    assert_eq!(status, Some(0));
    let again = Instance::start_in(folder, &args);
    assert_eq!(again.printed[0], line);
    assert_eq!(again.rpc("srp_get_targets", json!({})), targets);
}

#[test]
fn a_saved_configuration_starts_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let address = address(20);
    let lun = format!("5=uring:{}", file.display());
    let instance =
        Instance::start(&["--soft", &address, "--lun", &lun, "--lun", "null:1M", "--allow", "any"]);
    let saved = instance.rpc("save_config", json!({}));
    instance.signal(rustix::process::Signal::TERM);
    assert_eq!(instance.end().0, Some(0));

    let config = folder.path().join("config.json");
    fs::write(&config, saved.to_string()).unwrap();
    let again = Instance::start(&["--config", config.to_str().unwrap()]);
    assert_eq!(again.rpc("save_config", json!({})), saved);
    assert!(again.printed[0].ends_with(&format!("dest={address}:5555")));
}

#[test]
fn a_dead_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("rpc")).unwrap());
    let instance = Instance::start_in(folder, &["--soft", &address(30), "--lun", "malloc:1M"]);
    assert_eq!(instance.rpc("framework_wait_init", json!({})), json!(true));
}
