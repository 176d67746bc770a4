//! `srpoll perf` against `srpoll serve`, both as built, over UDP on loopback addresses of this run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const SRPOLL: &str = env!("CARGO_BIN_EXE_srpoll");

/// A network of its own for each test: target .1, initiator .2.
fn network() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let test = NEXT.fetch_add(1, Ordering::Relaxed);
    // The upper half of 127/8 below what the other test files use.
    format!("127.{}.{}", 0x40 | (pid >> 8 & 0x3f), (pid & 0xff) as u8 ^ test.wrapping_mul(37))
}

/// A running target; killed at the end.
struct Target {
    folder: tempfile::TempDir,
    network: String,
    args: Vec<String>,
    child: Child,
}

impl Target {
    fn start(args: &[&str]) -> Target {
        let folder = tempfile::tempdir().unwrap();
        let network = network();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let child = Target::spawn(&folder, &network, &args);
        Target { folder, network, args, child }
    }

    fn spawn(folder: &tempfile::TempDir, network: &str, args: &[String]) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.path().join("log")).unwrap();
        let mut child = Command::new(SRPOLL)
            .args(["serve", "--soft", &format!("{network}.1"), "--hugepages", "off", "--idle", "sleep"])
            .arg("--rpc")
            .arg(folder.path().join("rpc"))
            .arg("--state")
            .arg(folder.path().join("state"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map(Result::unwrap).any(|line| line == "ready");
        assert!(ready, "{}", fs::read_to_string(folder.path().join("log")).unwrap());
        child
    }

    /// As `kill -9` ends it.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Target::spawn(&self.folder, &self.network, &self.args);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(SRPOLL);
        let (target, local) = (format!("{}.1", self.network), format!("{}.2", self.network));
        command.args(["perf", "--target", &target, "--local", &local]).args(args.split_whitespace());
        command
    }

    fn rpc(&self, method: &str) -> Value {
        let rpc = self.folder.path().join("rpc");
        let answer = Command::new(SRPOLL).args(["rpc", method, "--rpc"]).arg(rpc).output().unwrap();
        assert!(answer.status.success(), "{method}: {}", words(&answer));
        serde_json::from_slice(&answer.stdout).unwrap()
    }

    fn perf(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs with `--json` and gives the object, once it went well.
    fn measured(&self, args: &str) -> Value {
        let output = self.perf(&format!("{args} --json"));
        assert!(output.status.success(), "{}\n{}", words(&output), self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[test]
fn a_verified_mix_over_channels_on_two_shards_and_a_bad_network() {
    let fault = "--fault drop=1%,dup=1%,reorder=1%,corrupt=0.1%";
    let target = Target::start(&["--lun", "5=malloc:16M", "--cores", "any,any", "--fault", &fault[8..]]);
    let report = target.measured(&format!(
        "--lun 5 --rw randrw --mix 60 --bs 4k --qd 64 --channels 8 --ios 4000 --verify {fault},seed=3"
    ));
    assert_eq!((&report["errors"], &report["ios"]), (&Value::from(0), &Value::from(4000)), "{report}");
    assert!(report["verified"].as_u64().unwrap() > 4000, "{report}");
    assert_eq!(report["reconnects"], 0);
    let log = target.log();
    assert!(log.contains("shard=0") && log.contains("shard=1"), "channels on both shards: {log}");
}

#[test]
fn a_peer_that_cannot_batch() {
    let target = Target::start(&["--lun", "0=malloc:16M"]);
    let report = target.measured("--rw randrw --bs 16k --qd 32 --ios 2000 --singly --verify");
    assert_eq!((&report["errors"], &report["ios"]), (&Value::from(0), &Value::from(2000)), "{report}");
    let stats = target.rpc("srp_get_stats");
    let counter = |name: &str| stats["shards"][0]["counters"][name].as_u64().unwrap();
    assert_eq!(counter("recv_packets"), counter("recv_datagrams"), "{stats}");
    assert!(counter("sent_trains") > 0, "the target still batches: {stats}");
}

#[test]
fn the_report_has_its_keys() {
    let target = Target::start(&["--lun", "null:1G"]);
    let report = target.measured("--rw randread --bs 4k --qd 16 --time 200ms");
    for key in ["iops", "mbps", "errors", "ios", "seconds", "cpu_percent", "cpu_us_per_io"] {
        assert!(report[key].is_number(), "{key}: {report}");
    }
    for key in ["p50", "p90", "p95", "p99", "p99.9", "p99.99", "max", "mean"] {
        assert!(report["lat_us"][key].as_f64().unwrap() > 0.0, "{key}: {report}");
    }
    assert!(report["iops"].as_f64().unwrap() > 0.0);
    let output = target.perf("--rw write --bs 8k --qd 4 --ios 64 --verify --overwrite");
    // A null device forgets: verification must say so.
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("verified 64 I/Os, 64 errors"), "{text}");
    assert!(words(&output).contains("generation 1 was written, zeros were read"), "{}", words(&output));
}

#[test]
fn long_transfers_of_every_pattern() {
    let target = Target::start(&["--lun", "malloc:32M,block=4096", "--memory", "4M"]);
    for args in [
        "--rw write --bs 1M --qd 4 --ios 40 --channels 2",
        "--rw read --bs 4M --qd 2 --ios 10",
        "--rw randrw --bs 124k --qd 8 --ios 200 --channels 3",
        "--rw randwrite --bs 16M --qd 1 --ios 2",
    ] {
        let report = target.measured(&format!("{args} --verify"));
        assert_eq!(report["errors"], 0, "{args}: {report}");
    }
    let output = target.perf("--rw read --bs 17M --qd 1 --ios 1");
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains("longer than the logical unit takes"), "{}", words(&output));
}

#[test]
fn somebodys_data_are_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut disk = vec![0; 8 << 20];
    disk[5 << 20] = 7;
    fs::write(&path, &disk).unwrap();
    let target = Target::start(&["--lun", &format!("uring:{}", path.display())]);
    for args in ["--rw randwrite --verify", "--rw write", "--rw randread --verify"] {
        let output = target.perf(&format!("{args} --bs 4k --qd 4 --ios 16"));
        assert_eq!(output.status.code(), Some(1), "{args}");
        assert_eq!(
            words(&output),
            "srpoll: LUN 0 holds data that are not ours, at offset 5242880: --overwrite writes over them"
        );
    }
    assert!(fs::read(&path).unwrap() == disk, "nothing was written");
    let report = target.measured("--rw randread --bs 4k --qd 4 --ios 16");
    assert_eq!(report["errors"], 0, "reading is always allowed");
    let overwritten = target.measured("--rw randwrite --bs 64k --qd 4 --ios 500 --verify --overwrite");
    assert_eq!(overwritten["errors"], 0);
    // A second run knows the data of the first one, and that they are old.
    fs::write(&path, vec![0; 8 << 20]).unwrap();
    for _ in 0..2 {
        let report = target.measured("--rw randrw --bs 4k --qd 4 --ios 300 --verify");
        assert_eq!(report["errors"], 0, "{report}");
    }
}

#[test]
fn a_killed_target_ends_the_run_with_status_3() {
    let mut target = Target::start(&["--lun", "malloc:16M"]);
    let child = target
        .command("--rw randrw --bs 4k --qd 8 --time 120s --verify")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(500));
    target.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    assert!(words(&output).starts_with("srpoll: the session was lost: "), "{}", words(&output));
}

#[test]
fn a_killed_target_is_logged_in_to_again_and_all_data_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let mut target = Target::start(&["--lun", &format!("uring:{}", path.display())]);
    let child = target
        .command("--rw randrw --bs 4k --qd 16 --channels 2 --time 12s --verify --reconnect --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It logs in and looks whose data are there before it writes: a session that is lost then is an error.
    let written = || target.rpc("srp_get_sessions")[0]["written_bytes"].as_u64().unwrap_or(0);
    let started = Instant::now();
    while written() == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is written: {}", target.log());
        thread::sleep(Duration::from_millis(50));
    }
    target.kill();
    target.restart();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{}", words(&output), target.log());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["errors"], &report["reconnects"]), (&Value::from(0), &Value::from(1)), "{report}");
    assert!(report["retries"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let target = Target::start(&["--lun", "malloc:1M", "--lun", "7=null:1G,ro"]);
    for (args, status, line) in [
        ("--rw read --bs 4k --qd 1 --lun 3", 1, "LUN 3 does not exist or is not a disk"),
        ("--rw read --bs 1000 --qd 1", 1, "an I/O of 1000 bytes is no multiple of the block size 512"),
        ("--rw read --bs 2M --qd 1", 1, "the logical unit is shorter than an I/O of 2097152 bytes"),
        ("--rw read --bs 4k --qd 1 --cores 0,1", 1, "--cores: perf polls on one core"),
        (
            "--rw read --bs 4k --qd 1 --id-ext 0000000000000001 --ioc-guid 0000000000000002",
            1,
            "unable to associate the channel with an I_T nexus (0x00010003)",
        ),
        ("--rw randomly --bs 4k --qd 1", 2, "invalid value 'randomly'"),
    ] {
        let output = target.perf(args);
        let text = words(&output);
        assert_eq!(output.status.code(), Some(status), "{args}: {text}");
        assert!(text.starts_with("srpoll: ") && text.contains(line), "{args}: {text}");
        assert_eq!((text.lines().count(), output.stdout.len()), (1, 0), "{args}: {text}");
    }
    let output = target.perf("--lun 7 --rw write --bs 4k --qd 1 --ios 3");
    let text = words(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("DataProtect, write protected (27/00)"), "{text}");
}
