//! The UNIX socket of the control plane: where it lies, whose it is, and that it goes away.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, Socket, Type};

/// Where the socket lies by default.
pub const DEFAULT_PATH: &str = "/run/srpoll.sock";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Why there is no socket; one line that names it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A running instance has it.
    #[error("the RPC socket {0} belongs to a running srpoll; give this one another --rpc")]
    Live(PathBuf),
    /// Something else is there.
    #[error("{0} is not a socket; it is left alone, give another --rpc")]
    NoSocket(PathBuf),
    /// It cannot be made.
    #[error("the RPC socket {path} cannot be made: {why}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// No path was given and there is none by default.
    #[error("the RPC socket cannot be {DEFAULT_PATH} ({why}) and XDG_RUNTIME_DIR is not set; give --rpc")]
    NoDefault {
        /// Why the first choice fails.
        why: io::Error,
    },
}

/// Where an instance without `--rpc` puts its socket: [`DEFAULT_PATH`] if it may write there,
/// else `$XDG_RUNTIME_DIR/srpoll.sock`.
pub fn default_for_server() -> Result<PathBuf, SocketError> {
    match rustix::fs::access("/run", rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(PathBuf::from(DEFAULT_PATH)),
        Err(errno) => in_runtime_dir().ok_or(SocketError::NoDefault { why: errno.into() }),
    }
}

/// Where a client without `--rpc` looks: the first of the two places that has something.
pub fn default_for_client() -> PathBuf {
    let first = PathBuf::from(DEFAULT_PATH);
    match in_runtime_dir() {
        Some(second) if !first.exists() && second.exists() => second,
        _ => first,
    }
}

fn in_runtime_dir() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    folder.is_absolute().then(|| folder.join("srpoll.sock"))
}

/// A listening socket, mode 0600, that nobody else has; gone with this value.
#[derive(Debug)]
pub struct OwnedSocket {
    path: PathBuf,
    lock_path: PathBuf,
    listener: UnixListener,
    /// Held as long as the socket is ours. Closed, and so given up, after the files are gone.
    _lock: File,
}

impl OwnedSocket {
    /// Makes the socket at `path`. A dead one is replaced, a live one is an error.
    pub fn bind(path: &Path) -> Result<OwnedSocket, SocketError> {
        let failed = |why| SocketError::Io { path: path.to_owned(), why };
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let lock = lock(&lock_path).map_err(failed)?.ok_or_else(|| SocketError::Live(path.to_owned()))?;
        match clear(path).and_then(|()| listen(path).map_err(failed)) {
            Ok(listener) => Ok(OwnedSocket { path: path.to_owned(), lock_path, listener, _lock: lock }),
            Err(error) => {
                let _ = fs::remove_file(&lock_path);
                Err(error)
            }
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What must be removed when the process ends without dropping this: socket and lock.
    pub fn files(&self) -> [PathBuf; 2] {
        [self.path.clone(), self.lock_path.clone()]
    }

    /// The listening socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// The locked file at `path`; `None` if somebody else has the lock.
fn lock(path: &Path) -> io::Result<Option<File>> {
    // A few rounds, since the owner before may remove the file between our open and our lock.
    for _ in 0..16 {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        if fs::metadata(path).is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino())) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Removes a dead socket. The lock is ours, so one that answers is not srpoll's, or of a version
/// that took no lock.
fn clear(path: &Path) -> Result<(), SocketError> {
    let Ok(there) = fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(
                "the RPC socket {} was left by an instance that is gone; replaced",
                path.display()
            );
            fs::remove_file(path).map_err(|why| SocketError::Io { path: path.to_owned(), why })
        }
        Err(why) => Err(SocketError::Io { path: path.to_owned(), why }),
        Ok(_) => Err(SocketError::Live(path.to_owned())),
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The mode of an unbound socket becomes that of its file: there is no moment in which
    // others may connect.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(UnixListener::from(OwnedFd::from(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_socket_is_ours_alone_and_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let socket = OwnedSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = OwnedSocket::bind(&path).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "the RPC socket {} belongs to a running srpoll; give this one another --rpc",
                path.display()
            )
        );
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_dead_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        OwnedSocket::bind(&path).unwrap();
    }

    #[test]
    fn a_live_socket_of_another_program_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _other = UnixListener::bind(&path).unwrap();
        assert!(matches!(OwnedSocket::bind(&path), Err(SocketError::Live(_))));
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no lock stays behind");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        let error = OwnedSocket::bind(&path).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{} is not a socket; it is left alone, give another --rpc", path.display())
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_path_that_cannot_be_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("no/such"), folder.path().join("x".repeat(120))] {
            let error = OwnedSocket::bind(&path).unwrap_err().to_string();
            let start = format!("the RPC socket {} cannot be made: ", path.display());
            assert!(error.starts_with(&start), "{error}");
        }
    }
}
