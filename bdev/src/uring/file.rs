//! The file or block device behind a uring bdev, as its queues share it: its size, which may
//! change while it is served, and which way zeroes are written to it.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use reactors::time::Time;

use super::UringOptions;
use super::open::{self, Direct, Opened, failed, len_of};
use crate::check::blocks_of;
use crate::device::Geometry;
use crate::io::OpenError;
use crate::stats::DeviceStats;

/// How often at most a served file's size is looked at, in nanoseconds.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// How zeroes are written; each way is the fall-back of the one before.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Zeroing {
    /// `FALLOC_FL_ZERO_RANGE`.
    ZeroRange,
    /// `FALLOC_FL_PUNCH_HOLE`, whose holes read as zeroes (tmpfs has only this).
    PunchHole,
    /// Ordinary writes.
    Write,
}

/// What lies at the path of an open file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
enum AtPath {
    /// The file itself.
    Itself,
    /// Another file; the one that is served has another name.
    Another,
    /// Another file, and the one that is served has no name at all: what is written to it is lost
    /// with the process, and after a restart another medium has this one's identity.
    Replaced,
    /// Nothing; the file that is served has another name.
    Nothing,
    /// Nothing; the file that is served has no name at all.
    Unlinked,
}

/// What the queues of a device share.
pub(super) struct File {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) direct: Option<Direct>,
    /// A read is a copy and never waits.
    pub(super) in_memory: bool,
    pub(super) stats: DeviceStats,
    /// All but the number of blocks.
    geometry: Geometry,
    is_block_device: bool,
    blocks: AtomicU64,
    generation: AtomicU64,
    /// How much of the device is still what was written to it, in bytes: less than its geometry says
    /// if the file was truncated while it is served. A mark that only a rescan raises: a file that
    /// grows again, be it by a write that was under way, has lost what was cut off all the same.
    live_bytes: AtomicU64,
    /// Held while the mark and the size change, which is seldom and short: a look that began before
    /// a rescan must not lower what that has raised.
    marking: Mutex<()>,
    /// It was said that the file grew again after it was truncated.
    regrown: AtomicBool,
    next_look_ns: AtomicU64,
    /// What was seen at the path last: an [`AtPath`].
    at_path: AtomicU8,
    zeroing: AtomicU8,
}

impl File {
    /// Opens and measures `path`.
    pub(super) fn open(name: &str, path: &Path, options: &UringOptions) -> Result<File, OpenError> {
        let Opened { fd, is_block_device, len_bytes, direct, in_memory, geometry } =
            open::open(name, path, options)?;
        Ok(File {
            name: name.to_owned(),
            path: fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            fd,
            direct,
            in_memory,
            stats: DeviceStats::default(),
            geometry,
            is_block_device,
            blocks: AtomicU64::new(geometry.blocks),
            generation: AtomicU64::new(0),
            live_bytes: AtomicU64::new(len_bytes),
            marking: Mutex::new(()),
            regrown: AtomicBool::new(false),
            next_look_ns: AtomicU64::new(0),
            at_path: AtomicU8::new(AtPath::Itself as u8),
            zeroing: AtomicU8::new(Zeroing::ZeroRange as u8),
        })
    }

    /// The present geometry.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    /// Bytes of a block.
    #[inline]
    pub(super) fn block_bytes(&self) -> u32 {
        self.geometry.block_bytes
    }

    /// Counts changes of the geometry.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes the present size over.
    pub(super) fn rescan(&self) -> Result<Geometry, OpenError> {
        let what = self.path.display().to_string();
        if !self.is_block_device && matches!(self.check_path(), AtPath::Another | AtPath::Replaced) {
            let why = "another file lies there now; delete the bdev and create it anew to serve that one";
            return Err(OpenError::new(what, why));
        }
        let len_bytes =
            len_of(&self.fd, self.is_block_device).map_err(|errno| failed(&what, "its size", errno))?;
        let blocks = blocks_of(&what, len_bytes, self.geometry.block_bytes)?;
        let _marking = self.marking.lock().unwrap_or_else(PoisonError::into_inner);
        let (was_whole, before) = (self.is_whole(), self.blocks.load(Ordering::Acquire));
        self.live_bytes.store(len_bytes, Ordering::Release);
        self.regrown.store(false, Ordering::Relaxed);
        self.blocks.store(blocks, Ordering::Release);
        if before != blocks || !was_whole {
            self.generation.fetch_add(1, Ordering::Release);
            tracing::info!("{}: {what} has {blocks} blocks now, was {before}", self.name);
        }
        Ok(self.geometry())
    }

    /// Whether the bytes up to `end` are really there.
    #[inline]
    pub(super) fn has(&self, end: u64) -> bool {
        end <= self.live_bytes.load(Ordering::Acquire)
    }

    /// Whether the file holds all of the device.
    fn is_whole(&self) -> bool {
        self.has(self.blocks.load(Ordering::Acquire) * u64::from(self.geometry.block_bytes))
    }

    /// Whether somebody should look at the size of the file now. One asker at a time is told so,
    /// and a block device never shrinks unnoticed.
    #[inline]
    pub(super) fn is_watch_due(&self, now: Time) -> bool {
        let next = self.next_look_ns.load(Ordering::Relaxed);
        let after = now.as_nanos().saturating_add(LOOK_EVERY_NS);
        now.as_nanos() >= next
            && !self.is_block_device
            && self.next_look_ns.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Looks at the size of the file.
    pub(super) fn look(&self) {
        let asked_in = self.generation();
        if let Ok(len_bytes) = len_of(&self.fd, self.is_block_device) {
            self.found(len_bytes, asked_in);
        }
    }

    /// Looks at the size of the file and at what its path names now.
    pub(super) fn check_backing(&self) {
        if self.is_block_device {
            return;
        }
        self.check_path();
        self.look();
    }

    /// Looks at what the path names now; the log says so when that is something else than before.
    fn check_path(&self) -> AtPath {
        let Ok(stat) = rustix::fs::fstat(&self.fd) else { return AtPath::Itself };
        let at_path = match fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (stat.st_dev, stat.st_ino) => AtPath::Itself,
            Ok(_) if stat.st_nlink == 0 => AtPath::Replaced,
            Ok(_) => AtPath::Another,
            Err(_) if stat.st_nlink == 0 => AtPath::Unlinked,
            Err(_) => AtPath::Nothing,
        };
        let before = self.at_path.swap(at_path as u8, Ordering::Relaxed);
        if before == at_path as u8 {
            return at_path;
        }
        let (name, path) = (&self.name, self.path.display());
        match at_path {
            AtPath::Itself => tracing::info!("{name}: {path} is the file that is served again"),
            AtPath::Another => tracing::warn!(
                "{name}: {path} was renamed and is served on; another file lies at its path now"
            ),
            AtPath::Replaced => tracing::error!(
                "{name}: {path} was replaced by another file; I/O fails until the bdev is deleted and made anew"
            ),
            AtPath::Nothing => {
                tracing::warn!("{name}: {path} was renamed; it is served as long as the bdev is there");
            }
            AtPath::Unlinked => tracing::warn!(
                "{name}: {path} was unlinked; its data is served, and is lost when the bdev is deleted or the process ends"
            ),
        }
        at_path
    }

    /// Whether a file that will be there after a restart no more was replaced by another.
    fn is_replaced(&self) -> bool {
        self.at_path.load(Ordering::Relaxed) == AtPath::Replaced as u8
    }

    /// The file was found to have `len_bytes` when it was asked in the generation `asked_in`; the log
    /// says so when that changes what is there. What is older than a rescan is nothing.
    pub(super) fn found(&self, len_bytes: u64, asked_in: u64) {
        let _marking = self.marking.lock().unwrap_or_else(PoisonError::into_inner);
        if asked_in != self.generation() {
            return;
        }
        let promised = self.geometry().len_bytes();
        let replaced = self.is_replaced();
        let live = if replaced { 0 } else { len_bytes.min(promised) };
        let before = self.live_bytes.fetch_min(live, Ordering::AcqRel).min(promised);
        if live < before {
            self.generation.fetch_add(1, Ordering::Release);
        }
        let (name, path) = (&self.name, self.path.display());
        if replaced {
        } else if live < before {
            tracing::error!(
                "{name}: {path} was truncated to {len_bytes} bytes while it is served as {promised}; I/O beyond that fails until bdev_uring_rescan"
            );
        } else if live > before && !self.regrown.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{name}: {path} grew to {len_bytes} bytes of {promised} after it was truncated to {before}; I/O beyond that fails until bdev_uring_rescan"
            );
        }
    }

    /// How zeroes are written at present.
    pub(super) fn zeroing(&self) -> Zeroing {
        match self.zeroing.load(Ordering::Relaxed) {
            0 => Zeroing::ZeroRange,
            1 => Zeroing::PunchHole,
            _ => Zeroing::Write,
        }
    }

    /// `failed` does not work here; the next way it is.
    pub(super) fn zeroing_fell_back(&self, failed: Zeroing) {
        let next = match failed {
            Zeroing::ZeroRange if self.geometry.unmap => Zeroing::PunchHole,
            _ => Zeroing::Write,
        };
        let before = self.zeroing.fetch_max(next as u8, Ordering::Relaxed);
        if before < next as u8 {
            let path = self.path.display();
            tracing::info!("{}: {path} has no {failed:?}; zeroes are written by {next:?}", self.name);
        }
    }
}
