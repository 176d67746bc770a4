//! UNIX sockets that a process owns: where they lie, whose they are, and that they go away.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// What a socket is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// Its name in messages: "RPC socket".
    pub what: &'static str,
    /// The flag that names another one.
    pub flag: &'static str,
    /// Its kind.
    pub kind: Type,
}

/// Why there is no socket; one line that names it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A running instance has it.
    #[error("the {} {path} belongs to a running srpoll; give this one another {}", .purpose.what, .purpose.flag)]
    Live {
        /// What it is for.
        purpose: Purpose,
        /// Where.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{path} is not a socket; it is left alone, give another {}", .purpose.flag)]
    NoSocket {
        /// What it was to be for.
        purpose: Purpose,
        /// Where.
        path: PathBuf,
    },
    /// It cannot be made.
    #[error("the {} {path} cannot be made: {why}", .purpose.what)]
    Io {
        /// What it is for.
        purpose: Purpose,
        /// Where.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
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
    pub fn bind(path: &Path, purpose: Purpose) -> Result<OwnedSocket, SocketError> {
        let failed = |why| SocketError::Io { purpose, path: path.to_owned(), why };
        let [_, lock_path] = files_of(path);
        let live = || SocketError::Live { purpose, path: path.to_owned() };
        let lock = lock(&lock_path).map_err(failed)?.ok_or_else(live)?;
        match clear(path, purpose).and_then(|()| listen(path, purpose.kind).map_err(failed)) {
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
        files_of(&self.path)
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

/// The files of a socket at `path`: itself and its lock.
pub fn files_of(path: &Path) -> [PathBuf; 2] {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    [path.to_owned(), PathBuf::from(lock_path)]
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
fn clear(path: &Path, purpose: Purpose) -> Result<(), SocketError> {
    let failed = |why| SocketError::Io { purpose, path: path.to_owned(), why };
    let Ok(there) = fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        return Err(SocketError::NoSocket { purpose, path: path.to_owned() });
    }
    let socket = Socket::new(Domain::UNIX, purpose.kind, None).map_err(failed)?;
    match SockAddr::unix(path).and_then(|address| socket.connect(&address)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let (what, path_shown) = (purpose.what, path.display());
            tracing::info!("the {what} {path_shown} was left by an instance that is gone; replaced");
            fs::remove_file(path).map_err(failed)
        }
        // One of another kind lives as well.
        Err(error) if error.raw_os_error() != Some(libc::EPROTOTYPE) => Err(failed(error)),
        _ => Err(SocketError::Live { purpose, path: path.to_owned() }),
    }
}

fn listen(path: &Path, kind: Type) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, kind, None)?;
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
    use std::os::unix::net::UnixStream;

    const RPC: Purpose = Purpose { what: "RPC socket", flag: "--rpc", kind: Type::STREAM };

    #[test]
    fn the_socket_is_ours_alone_and_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let socket = OwnedSocket::bind(&path, RPC).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = OwnedSocket::bind(&path, RPC).unwrap_err().to_string();
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
        OwnedSocket::bind(&path, RPC).unwrap();
    }

    #[test]
    fn a_live_socket_of_another_program_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _other = UnixListener::bind(&path).unwrap();
        assert!(matches!(OwnedSocket::bind(&path, RPC), Err(SocketError::Live { .. })));
        UnixStream::connect(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no lock stays behind");
    }

    /// One of another kind cannot be connected to, and lives all the same.
    #[test]
    fn a_live_socket_of_another_kind_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let other = Purpose { kind: Type::SEQPACKET, ..RPC };
        {
            let _one = OwnedSocket::bind(&path, RPC).unwrap();
            fs::remove_file(folder.path().join("a.sock.lock")).unwrap();
            assert!(matches!(OwnedSocket::bind(&path, other), Err(SocketError::Live { .. })));
        }
        let one = OwnedSocket::bind(&path, other).unwrap();
        fs::remove_file(folder.path().join("a.sock.lock")).unwrap();
        assert!(matches!(OwnedSocket::bind(&path, RPC), Err(SocketError::Live { .. })));
        drop(one);
        let dead = listen(&path, Type::SEQPACKET).unwrap();
        drop(dead);
        OwnedSocket::bind(&path, RPC).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        let error = OwnedSocket::bind(&path, RPC).unwrap_err().to_string();
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
            let error = OwnedSocket::bind(&path, RPC).unwrap_err().to_string();
            let start = format!("the RPC socket {} cannot be made: ", path.display());
            assert!(error.starts_with(&start), "{error}");
        }
    }
}
