//! A running `srpoll serve` for tests, its log in a file, and an initiator that sees every status
//! and sense datum as it came.

#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use reactors::clock::Clock;
use reactors::time::Time;
use serde_json::Value;
use srpoll::initiator::scan::{Pace, wait_live};
use srpoll::initiator::{Command as ScsiCommand, Outcome, Session, SessionConfig, SessionState, Transfer};
use srpoll::rdma::soft::{self, PortConfig, open_port};
use srpoll::rdma::verbs::{Path, Service};
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::{PortId, RawLun, TaskAttribute};

pub(crate) const SRPOLL: &str = env!("CARGO_BIN_EXE_srpoll");
/// How long anything may take on a machine that others use, too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A loopback address that no other test process uses.
pub(crate) fn address(host: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{host}", pid >> 8 & 0x3f | 0x80, pid & 0xff)
}

/// Looks again and again until there is something to see.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what}: it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running instance; killed if the test does not stop it.
pub(crate) struct Instance {
    pub(crate) folder: tempfile::TempDir,
    child: Child,
    _stdout: BufReader<ChildStdout>,
}

impl Instance {
    pub(crate) fn start(args: &[&str]) -> Instance {
        Instance::start_in(tempfile::tempdir().unwrap(), args)
    }

    pub(crate) fn start_in(folder: tempfile::TempDir, args: &[&str]) -> Instance {
        let mut child = Command::new(SRPOLL)
            .arg("serve")
            .args(["--memory", "8M", "--hugepages", "off"])
            .arg("--rpc")
            .arg(folder.path().join("rpc"))
            .arg("--state")
            .arg(folder.path().join("state"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            let got = stdout.read_line(&mut line).unwrap();
            assert!(got > 0, "{}", std::fs::read_to_string(folder.path().join("log")).unwrap());
        }
        Instance { folder, child, _stdout: stdout }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("rpc")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// A command of the operator: words, then `--rpc`.
    pub(crate) fn srpoll(&self, words: &[&str]) -> Output {
        Command::new(SRPOLL).args(words).arg("--rpc").arg(self.socket()).output().unwrap()
    }

    /// The same, which must go well; what it prints.
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.srpoll(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn rpc(&self, method: &str, params: Value) -> Value {
        serde_json::from_str(&self.says(&["rpc", method, &params.to_string()])).unwrap()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Naps(Clock);

impl Pace for Naps {
    fn now(&mut self) -> Time {
        self.0.now()
    }

    fn rest(&mut self, _: Time) {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// An initiator of one logged-in session.
pub(crate) struct Host {
    session: Session<soft::Device>,
    pace: Naps,
    /// Its port id.
    pub(crate) id: PortId,
}

/// How a command ended: `good`, another status, or sense data in words; and the data that came.
pub(crate) struct Answer {
    pub(crate) said: String,
    pub(crate) data: Vec<u8>,
}

impl Host {
    /// Logs in at `target` from `local`; as an error what was said instead.
    pub(crate) fn try_login(local: &str, target: &str) -> Result<Host, String> {
        let (local, remote): (IpAddr, IpAddr) = (local.parse().unwrap(), target.parse().unwrap());
        let IpAddr::V4(v4) = local else { panic!("an IPv4 address") };
        let id = PortId::new(7, u64::from(u32::from(v4)));
        let mut device = soft::Device::new(soft::DeviceConfig::new(id.guid()));
        for socket in open_port(local, &PortConfig::new(1)).unwrap() {
            device.add_port(socket);
        }
        let path = Path { local, remote, scope_id: 0 };
        let config = SessionConfig::new(path, Service::RdmaCm { port: 5555 }, id);
        let mut session = Session::new(device, config, fastrand::Rng::new()).unwrap();
        let mut pace = Naps(Clock::get());
        session.start(pace.now());
        match wait_live(&mut session, &mut pace) {
            Ok(()) => Ok(Host { session, pace, id }),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn login(local: &str, target: &str) -> Host {
        Host::try_login(local, target).unwrap()
    }

    /// Lets the session live.
    pub(crate) fn poll(&mut self) -> SessionState {
        self.session.poll(self.pace.now());
        self.session.state()
    }

    /// Sends one command, once.
    pub(crate) fn command(&mut self, lun: u16, cdb: &[u8], len: u32) -> Answer {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let command = ScsiCommand {
            lun: RawLun(Lun::new(lun).unwrap().emit()),
            cdb: padded,
            transfer: if len == 0 { Transfer::None } else { Transfer::In(len) },
            attribute: TaskAttribute::Simple,
            user: 0,
        };
        let slot = until("a credit", || {
            self.session.poll(self.pace.now());
            self.session.reserve()
        });
        self.session.post(self.pace.now(), slot, &command).unwrap();
        let done = until("an answer", || {
            self.session.poll(self.pace.now());
            self.session.next_completion()
        });
        let data = self.session.look(slot, len as usize, <[u8]>::to_vec).unwrap();
        self.session.release(slot);
        let said = match done.outcome {
            Outcome::Status { sense: Some(sense), .. } => sense.to_string(),
            Outcome::Status { status: Some(status), .. } => status.to_string(),
            other => format!("{other:?}"),
        };
        Answer { said, data }
    }

    /// TEST UNIT READY: what it says.
    pub(crate) fn ready(&mut self, lun: u16) -> String {
        self.command(lun, &[0; 6], 0).said
    }

    /// TEST UNIT READY until it is, whatever is in the way.
    pub(crate) fn settle(&mut self, lun: u16) {
        until("a ready logical unit", || (self.ready(lun) == "GOOD").then_some(()));
    }

    /// READ(10) of one block of 512 bytes.
    pub(crate) fn read(&mut self, lun: u16, lba: u32) -> Answer {
        let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        self.command(lun, &cdb, 512)
    }

    /// How many blocks READ CAPACITY(10) says.
    pub(crate) fn blocks(&mut self, lun: u16) -> u32 {
        let answer = self.command(lun, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8);
        assert_eq!(answer.said, "GOOD");
        u32::from_be_bytes(answer.data[..4].try_into().unwrap()) + 1
    }
}
