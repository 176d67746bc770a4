//! What a killed target owes its peers: the connections that are open, in a file of the state folder, so that
//! whoever starts there next can end them by DREQ. An initiator notices a target that is gone by
//! nothing but its own timers, which take up to minutes (kernel 6.1); a DREQ it heeds at once.
//!
//! The file is written by a thread of its own, some moments after a connection came or went, never by a
//! shard. It is a help, no promise: what is not in it is not told, what cannot be read is passed over.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rdma::verbs::{Farewell, Path as Route};
use crate::target::handle::TargetHandle;
use crate::wire::cm::CommId;
use crate::wire::num::Qpn;

/// The file in the state folder.
const FILE: &str = "connections.json";
/// How often is looked whether connections came or went. A channel that is younger when the process is killed is not
/// told.
const EVERY: Duration = Duration::from_millis(250);

/// The file: as [`Farewell`], in plain numbers.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    connections: Vec<StoredConnection>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredConnection {
    local: IpAddr,
    remote: IpAddr,
    scope_id: u32,
    local_id: u32,
    remote_id: u32,
    local_qpn: u32,
    remote_qpn: u32,
}

/// The text of the file.
fn emit(farewells: &[Farewell]) -> String {
    let one = |farewell: &Farewell| StoredConnection {
        local: farewell.path.local,
        remote: farewell.path.remote,
        scope_id: farewell.path.scope_id,
        local_id: farewell.local_id.0,
        remote_id: farewell.remote_id.0,
        local_qpn: farewell.local_qpn.get(),
        remote_qpn: farewell.remote_qpn.get(),
    };
    let stored = Stored { connections: farewells.iter().map(one).collect() };
    let mut text = serde_json::to_string_pretty(&stored).unwrap_or_default();
    text.push('\n');
    text
}

/// The text of the file, understood.
fn parse(text: &str) -> Result<Vec<Farewell>, String> {
    let stored: Stored = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let one = |stored: StoredConnection| {
        for qpn in [stored.local_qpn, stored.remote_qpn] {
            if !(2..1 << 24).contains(&qpn) {
                return Err(format!("{qpn} is no number of a queue pair"));
            }
        }
        Ok(Farewell {
            path: Route { local: stored.local, remote: stored.remote, scope_id: stored.scope_id },
            local_id: CommId(stored.local_id),
            remote_id: CommId(stored.remote_id),
            local_qpn: Qpn::new(stored.local_qpn),
            remote_qpn: Qpn::new(stored.remote_qpn),
        })
    };
    stored.connections.into_iter().map(one).collect()
}

/// The file of one state folder.
#[derive(Clone, Debug)]
pub struct FarewellFile(PathBuf);

impl FarewellFile {
    /// The file in `folder`.
    pub fn in_folder(folder: &Path) -> FarewellFile {
        FarewellFile(folder.join(FILE))
    }

    /// What a process before this one left; nothing if it came to its end, or if the file is damaged,
    /// which the log says.
    pub fn read(&self) -> Vec<Farewell> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::warn!("{}: {error}; peers of the process before are not told", self.0.display());
                return Vec::new();
            }
        };
        parse(&text).unwrap_or_else(|why| {
            tracing::warn!("{}: {why}; peers of the process before are not told", self.0.display());
            Vec::new()
        })
    }

    /// Puts the file in place of the one before, as a whole. Not synced: connections do not outlive the
    /// machine.
    fn write(&self, farewells: &[Farewell]) -> io::Result<()> {
        let part = self.0.with_extension("json.part");
        // The ids in it are all that it takes to end a connection.
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(emit(farewells).as_bytes())?;
        fs::rename(&part, &self.0)
    }
}

/// The thread that keeps the file true.
#[derive(Debug)]
pub struct Keeping {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeping {
    /// Keeps `file` as the target has connections, until it is [finished](Self::finish).
    pub fn start(file: FarewellFile, target: TargetHandle) -> io::Result<Keeping> {
        let (stop, stopped) = mpsc::channel();
        let keep = move || {
            let mut last = Last { file, seen: None, failed: false };
            while stopped.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                last.look(&target);
            }
            last.look(&target);
        };
        let thread = std::thread::Builder::new().name("farewells".to_owned()).spawn(keep)?;
        Ok(Keeping { stop: Some(stop), thread: Some(thread) })
    }

    /// Writes for the last time; the target must still answer.
    pub fn finish(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What was written last.
struct Last {
    file: FarewellFile,
    /// The target's count of comings and goings.
    seen: Option<u64>,
    failed: bool,
}

impl Last {
    fn look(&mut self, target: &TargetHandle) {
        // Before the question, so that what happens meanwhile is asked for again.
        let now = target.seatings();
        if self.seen == Some(now) {
            return;
        }
        let Ok(farewells) = target.farewells() else { return };
        match self.file.write(&farewells) {
            Ok(()) => (self.seen, self.failed) = (Some(now), false),
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::warn!("{}: {error}; trying on", self.file.0.display());
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn farewells() -> Vec<Farewell> {
        let v4 = Farewell {
            path: Route { local: [10, 99, 0, 1].into(), remote: [10, 99, 0, 11].into(), scope_id: 0 },
            local_id: CommId(0xdead_beef),
            remote_id: CommId(7),
            local_qpn: Qpn::new(0x12),
            remote_qpn: Qpn::new(0xff_ffff),
        };
        let link_local: IpAddr = "fe80::1".parse().unwrap();
        vec![v4, Farewell { path: Route { local: link_local, remote: link_local, scope_id: 3 }, ..v4 }]
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = FarewellFile::in_folder(folder.path());
        assert_eq!(file.read(), [], "no file");
        for list in [farewells(), Vec::new()] {
            file.write(&list).unwrap();
            assert_eq!(file.read(), list);
        }
        assert_eq!(fs::metadata(&file.0).unwrap().permissions().mode() & 0o777, 0o600);
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE], "nothing else is left");
    }

    #[test]
    fn a_torn_or_foreign_file_is_nothing_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = FarewellFile::in_folder(folder.path());
        let whole = emit(&farewells());
        for cut in 0..whole.len() - 2 {
            fs::write(&file.0, &whole[..cut]).unwrap();
            assert_eq!(file.read(), [], "the first {cut} bytes");
        }
        for foreign in [
            "\u{0}\u{0}\u{0}",
            "[]",
            r#"{"connections": [], "more": 1}"#,
            &whole.replace(r#""local_qpn": 18"#, r#""local_qpn": 1"#),
            &whole.replace(r#""remote_qpn": 16777215"#, r#""remote_qpn": 16777216"#),
            &whole.replace("fe80::1", "fe80::1%eth0"),
        ] {
            assert_ne!(foreign, whole);
            fs::write(&file.0, foreign).unwrap();
            assert_eq!(file.read(), [], "{foreign}");
        }
        file.write(&farewells()).unwrap();
        assert_eq!(file.read(), farewells());
    }
}
