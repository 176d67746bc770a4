//! Processes of the built program: targets, workloads, and what they say of themselves.
//!
//! Every wait is bounded; every process is ended by the handle that started it.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The program under test.
pub(crate) const SRPOLL: &str = env!("CARGO_BIN_EXE_srpoll");

/// Asks `ready` until it says yes; panics with `what` if it does not within `within`.
pub(crate) fn wait_for(what: &str, within: Duration, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !ready() {
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A loopback address that no other test process uses. `host` tells apart what one process uses.
pub(crate) fn address(host: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, (pid >> 8 & 0x3f | 0x40) as u8, pid as u8, host])
}

/// Sends a signal to a child.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for the end of a child: its status code, `None` if a signal ended it.
pub(crate) fn wait_end(what: &str, child: &mut Child, within: Duration) -> Option<i32> {
    let mut status = None;
    wait_for(&format!("end of {what}"), within, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.code())
}

/// How to start a target.
pub(crate) struct Start {
    command: Command,
    folder: tempfile::TempDir,
}

impl Start {
    /// `srpoll serve` on `address`, two shards, in a folder of its own.
    pub(crate) fn new(address: IpAddr) -> Start {
        Start::wrapped(&[SRPOLL], tempfile::tempdir().unwrap(), address)
    }

    /// The same, started by another program whose last arguments are the program and its own.
    pub(crate) fn wrapped(prefix: &[&str], folder: tempfile::TempDir, address: IpAddr) -> Start {
        Start::serving(prefix, folder, &["--soft", &address.to_string()])
    }

    /// `srpoll serve` over shared memory, two shards, its socket in a folder of its own.
    pub(crate) fn shm() -> Start {
        Start::shm_in(tempfile::tempdir().unwrap())
    }

    /// The same, in this folder.
    pub(crate) fn shm_in(folder: tempfile::TempDir) -> Start {
        let socket = folder.path().join("shm");
        Start::shm_at(folder, &socket)
    }

    /// The same, its socket somewhere else.
    pub(crate) fn shm_at(folder: tempfile::TempDir, socket: &Path) -> Start {
        Start::serving(&[SRPOLL], folder, &["--shm", socket.to_str().unwrap()])
    }

    fn serving(prefix: &[&str], folder: tempfile::TempDir, at: &[&str]) -> Start {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg("serve").args(at);
        command.args(["--cores", "any,any", "--idle", "sleep", "--hugepages", "off", "--memory", "16M"]);
        command.arg("--rpc").arg(folder.path().join("rpc"));
        command.arg("--state").arg(folder.path().join("state"));
        Start { command, folder }
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Start {
        self.command.args(args);
        self
    }

    /// Starts it and waits until it says `ready`.
    pub(crate) fn ready(self) -> Instance {
        let Start { mut command, folder } = self;
        let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut printed = Vec::new();
        while printed.last().is_none_or(|line| line != "ready") {
            let mut line = String::new();
            if stdout.read_line(&mut line).unwrap() == 0 {
                let log = fs::read_to_string(folder.path().join("log")).unwrap();
                panic!("it ended after {printed:?}: {log}");
            }
            printed.push(line.trim_end().to_owned());
        }
        Instance { folder: Some(folder), child, stdout, printed }
    }

    /// Starts it and waits until it ends: its status and what it wrote to standard error.
    pub(crate) fn refused(self) -> (Option<i32>, String) {
        let Start { mut command, folder: _folder } = self;
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let status = wait_end("an instance that cannot start", &mut child, Duration::from_secs(20));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }
}

/// A running target; killed if the test does not stop it.
pub(crate) struct Instance {
    folder: Option<tempfile::TempDir>,
    pub(crate) child: Child,
    stdout: BufReader<ChildStdout>,
    /// What it printed up to `ready`.
    pub(crate) printed: Vec<String>,
}

impl Instance {
    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    fn socket(&self) -> PathBuf {
        self.folder().join("rpc")
    }

    /// Where it is logged in to, if it serves shared memory.
    pub(crate) fn shm_socket(&self) -> PathBuf {
        self.folder().join("shm")
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap()
    }

    pub(crate) fn rpc(&self, method: &str, params: &Value) -> Value {
        let output = Command::new(SRPOLL)
            .arg("rpc")
            .arg("--rpc")
            .arg(self.socket())
            .args([method, &params.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{method}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A call that must be refused; what was said.
    pub(crate) fn rpc_refused(&self, method: &str, params: &Value) -> String {
        let mut call = Command::new(SRPOLL);
        call.arg("rpc").arg("--rpc").arg(self.socket()).args([method, &params.to_string()]);
        let output = call.output().unwrap();
        assert!(!output.status.success(), "{method} {params}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn sessions(&self) -> Vec<Value> {
        self.rpc("srp_get_sessions", &json!({})).as_array().unwrap().clone()
    }

    /// What all shards counted, summed up.
    pub(crate) fn stats(&self) -> Stats {
        let stats = self.rpc("srp_get_stats", &json!({}));
        let mut all = BTreeMap::new();
        for shard in stats["shards"].as_array().unwrap() {
            let plain = shard.as_object().unwrap().iter();
            for (name, value) in plain.chain(shard["counters"].as_object().unwrap()) {
                *all.entry(name.clone()).or_insert(0) += value.as_u64().unwrap_or(0);
            }
        }
        Stats(all)
    }

    /// Kills it at once; what it left behind goes into `start` of the next.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder.take().unwrap()
    }

    /// Ends it by SIGTERM; gives its status and its folder.
    pub(crate) fn stop(mut self, within: Duration) -> (Option<i32>, tempfile::TempDir) {
        signal(&self.child, Signal::TERM);
        let status = wait_end("the target", &mut self.child, within);
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "it prints nothing after `ready`");
        (status, self.folder.take().unwrap())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(folder) = self.folder.as_ref().filter(|_| std::thread::panicking()) {
            let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            eprintln!("the target's log ends with:");
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// Counters by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stats(BTreeMap<String, u64>);

impl Stats {
    pub(crate) fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("there is no counter {name}: {:?}", self.0.keys()))
    }

    /// What must be the same whenever nobody is logged in.
    pub(crate) fn at_rest(&self) -> Vec<(&'static str, u64)> {
        const NAMES: [&str; 9] = [
            "channels",
            "tasks",
            "sessions",
            "recv_posted",
            "recv_held",
            "recv_granted",
            "chunks_free",
            "memory_free_bytes",
            "half_open",
        ];
        NAMES.map(|name| (name, self.get(name))).to_vec()
    }
}

/// A workload, `srpoll perf`; killed if the test does not end it.
pub(crate) struct Perf {
    child: Child,
    files: tempfile::TempDir,
}

/// How a workload ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// That all went well; gives the number of verified I/Os.
    pub(crate) fn verified(&self) -> u64 {
        assert_eq!(self.status, Some(0), "{self:?}");
        let line = self.out.lines().find(|line| line.starts_with("verified "));
        let words: Vec<_> = line.unwrap_or_else(|| panic!("{self:?}")).split(' ').collect();
        assert_eq!(words[2..], ["I/Os,", "0", "errors"], "{self:?}");
        let count = words[1].parse().unwrap();
        assert!(count > 0, "{self:?}");
        count
    }
}

impl Perf {
    pub(crate) fn start(target: IpAddr, local: IpAddr, args: &[&str]) -> Perf {
        Perf::wrapped(&[SRPOLL], target, local, args)
    }

    /// The same, started by another program.
    pub(crate) fn wrapped(prefix: &[&str], target: IpAddr, local: IpAddr, args: &[&str]) -> Perf {
        let (target, local) = (target.to_string(), local.to_string());
        let ends = ["--target", &target, "--local", &local, "--bs", "4k"];
        Perf::between(prefix, &[&ends[..], args].concat())
    }

    /// A workload over shared memory; it says its block size.
    pub(crate) fn shm(socket: &Path, args: &[&str]) -> Perf {
        Perf::between(&[SRPOLL], &[&["--shm", socket.to_str().unwrap()], args].concat())
    }

    fn between(prefix: &[&str], args: &[&str]) -> Perf {
        let files = tempfile::tempdir().unwrap();
        let file = |name| File::create(files.path().join(name)).unwrap();
        let child = Command::new(prefix[0])
            .args(&prefix[1..])
            .args(["perf", "--idle", "sleep"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap();
        Perf { child, files }
    }

    /// A verified mix on four channels that goes on until it is told to end.
    pub(crate) fn healthy(target: IpAddr, local: IpAddr) -> Perf {
        let load = ["--rw", "randrw", "--mix", "50", "--qd", "16", "--channels", "4", "--verify"];
        Perf::start(target, local, &[&load[..], &["--time", "120s"]].concat())
    }

    /// Waits until it has a session with `channels` channels and has written 1 MiB.
    pub(crate) fn under_way(&mut self, target: &Instance, channels: usize) {
        wait_for("a session under load", Duration::from_secs(20), || {
            if self.child.try_wait().unwrap().is_some() {
                panic!("it ended early: {:?}", self.read(None));
            }
            target.sessions().iter().any(|session| {
                session["channels"].as_array().unwrap().len() == channels
                    && session["written_bytes"].as_u64().unwrap() > 1 << 20
            })
        });
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, what: Signal) {
        signal(&self.child, what);
    }

    fn read(&self, status: Option<i32>) -> Ended {
        let read = |name| fs::read_to_string(self.files.path().join(name)).unwrap();
        Ended { status, out: read("out"), err: read("err") }
    }

    /// Waits for its end.
    pub(crate) fn end(mut self, within: Duration) -> Ended {
        let status = wait_end("the workload", &mut self.child, within);
        self.read(status)
    }

    /// Tells it to end, and waits for that.
    pub(crate) fn stop(self, within: Duration) -> Ended {
        self.signal(Signal::INT);
        self.end(within)
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
