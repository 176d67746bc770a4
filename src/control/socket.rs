//! The UNIX socket of the control plane: where it lies.

use std::io;
use std::path::PathBuf;

use socket2::Type;

use crate::unix::Purpose;

/// Where the socket lies by default.
pub const DEFAULT_PATH: &str = "/run/srpoll.sock";
/// What the socket is for.
pub const RPC_SOCKET: Purpose = Purpose { what: "RPC socket", flag: "--rpc", kind: Type::STREAM };

/// No path was given and there is none by default.
#[derive(Debug, thiserror::Error)]
#[error("the RPC socket cannot be {DEFAULT_PATH} ({why}) and XDG_RUNTIME_DIR is not set; give --rpc")]
pub struct NoDefault {
    /// Why the first choice fails.
    pub why: io::Error,
}

/// Where an instance without `--rpc` puts its socket: [`DEFAULT_PATH`] if it may write there,
/// else `$XDG_RUNTIME_DIR/srpoll.sock`.
pub fn default_for_server() -> Result<PathBuf, NoDefault> {
    match rustix::fs::access("/run", rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(PathBuf::from(DEFAULT_PATH)),
        Err(errno) => in_runtime_dir().ok_or(NoDefault { why: errno.into() }),
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
