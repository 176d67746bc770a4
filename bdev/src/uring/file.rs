//! The file or block device behind a uring bdev: opened, measured, and watched for a change of
//! its size.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use reactors::memory::{PAGE_BYTES, Region};
use reactors::time::Time;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::UringOptions;
use crate::check::{blocks_of, check_block_bytes};
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

/// Whether the page cache is passed by, and what buffers must look like then.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Direct {
    /// Alignment of buffers in bytes, a power of two.
    pub(super) memory_align: u32,
}

/// What the queues of a device share.
pub(super) struct File {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) direct: Option<Direct>,
    pub(super) stats: DeviceStats,
    /// All but the number of blocks.
    geometry: Geometry,
    is_block_device: bool,
    blocks: AtomicU64,
    generation: AtomicU64,
    /// How much of the device there really is, in bytes: less than its geometry says if the file
    /// was truncated while it is served.
    live_bytes: AtomicU64,
    next_look_ns: AtomicU64,
    zeroing: AtomicU8,
}

impl File {
    /// Opens and measures `path`.
    pub(super) fn open(name: &str, path: &Path, options: &UringOptions) -> Result<File, OpenError> {
        let what = path.display().to_string();
        let is_block_device = kind_of(path, &what)?;
        let (mut fd, mut direct) = open_direct(path, &what, options)?;
        if let Some(block_bytes) = options.block_bytes {
            check_block_bytes(&what, block_bytes)?;
        }
        let sysfs = Sysfs::of(&fd, is_block_device, &what)?;
        let logical = if is_block_device { rustix::fs::ioctl_blksszget(&fd).unwrap_or(512) } else { 512 };
        let block_bytes = options.block_bytes.unwrap_or(logical);
        if block_bytes < logical {
            let why = format!(
                "a block size of {block_bytes} bytes is below the {logical} of the device; use {logical}"
            );
            return Err(OpenError::new(what, why));
        }
        let len_bytes = len_of(&fd, is_block_device).map_err(|errno| failed(&what, "its size", errno))?;
        let blocks = blocks_of(&what, len_bytes, block_bytes)?;

        if direct {
            match direct_alignment(&fd, block_bytes) {
                Ok(_) => {}
                Err(why) => {
                    tracing::info!("{name}: {what} is read and written through the page cache: {why}");
                    fd = open_with(path, &what, options, OFlags::empty())?;
                    direct = false;
                }
            }
        } else if !options.buffered {
            tracing::info!(
                "{name}: {what} is read and written through the page cache: its file system has no O_DIRECT"
            );
        }
        let direct = if direct {
            direct_alignment(&fd, block_bytes).ok().map(|memory_align| Direct { memory_align })
        } else {
            None
        };

        let physical = if is_block_device {
            rustix::fs::ioctl_blkpbszget(&fd).unwrap_or(logical)
        } else {
            PAGE_BYTES as u32
        };
        let unmap = !options.read_only
            && if is_block_device { sysfs.write_zeroes } else { can_punch(&fd, len_bytes, block_bytes) };
        let geometry = Geometry {
            block_bytes,
            blocks,
            physical_block_exponent: (physical / block_bytes).max(1).ilog2() as u8,
            buffer_align_bytes: direct.map_or(1, |direct| direct.memory_align),
            read_only: options.read_only,
            write_cache: sysfs.write_cache,
            unmap,
            unmap_reads_zeroes: unmap,
            write_zeroes: true,
            rotational: sysfs.rotational,
        };
        Ok(File {
            name: name.to_owned(),
            path: fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            fd,
            direct,
            stats: DeviceStats::default(),
            geometry,
            is_block_device,
            blocks: AtomicU64::new(blocks),
            generation: AtomicU64::new(0),
            live_bytes: AtomicU64::new(len_bytes),
            next_look_ns: AtomicU64::new(0),
            zeroing: AtomicU8::new(Zeroing::ZeroRange as u8),
        })
    }

    /// The present geometry.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    /// Counts changes of the geometry.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes the present size over.
    pub(super) fn rescan(&self) -> Result<Geometry, OpenError> {
        let what = self.path.display().to_string();
        let len_bytes =
            len_of(&self.fd, self.is_block_device).map_err(|errno| failed(&what, "its size", errno))?;
        let blocks = blocks_of(&what, len_bytes, self.geometry.block_bytes)?;
        self.live_bytes.store(len_bytes, Ordering::Release);
        let before = self.blocks.swap(blocks, Ordering::AcqRel);
        if before != blocks {
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
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.has(self.blocks.load(Ordering::Acquire) * u64::from(self.geometry.block_bytes))
    }

    /// Looks at the size of the file, if that was last done long enough ago.
    #[inline]
    pub(super) fn look_sometimes(&self, now: Time) {
        let next = self.next_look_ns.load(Ordering::Relaxed);
        let after = now.as_nanos().saturating_add(LOOK_EVERY_NS);
        // Queues of other threads look as well; one of them is enough.
        if now.as_nanos() >= next
            && self.next_look_ns.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.look();
        }
    }

    /// Looks at the size of the file; says so in the log when it does not hold what it should.
    pub(super) fn look(&self) {
        let Ok(found) = len_of(&self.fd, self.is_block_device) else { return };
        let promised = self.geometry().len_bytes();
        let live = found.min(promised);
        let before = self.live_bytes.swap(live, Ordering::AcqRel).min(promised);
        let (name, path) = (&self.name, self.path.display());
        if live < before {
            tracing::error!(
                "{name}: {path} was truncated to {found} bytes while it is served as {promised}; I/O beyond that fails"
            );
        } else if live > before {
            tracing::warn!("{name}: {path} grew back to {found} bytes of {promised}");
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

/// Whether `path` is a block device (true) or a regular file (false); anything else is an error.
fn kind_of(path: &Path, what: &str) -> Result<bool, OpenError> {
    let metadata = fs::metadata(path).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound => {
                "there is no such file; create it first, e.g. with truncate -s 1G".to_owned()
            }
            ErrorKind::PermissionDenied => "permission denied on the way to it".to_owned(),
            _ => error.to_string(),
        };
        OpenError::new(what, why)
    })?;
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    if kind.is_block_device() || kind.is_file() {
        return Ok(kind.is_block_device());
    }
    let found = if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        "neither a regular file nor a block device"
    };
    Err(OpenError::new(what, format_args!("it is {found}; give a regular file or a block device")))
}

fn open_with(path: &Path, what: &str, options: &UringOptions, extra: OFlags) -> Result<OwnedFd, OpenError> {
    try_open(path, options, extra).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS if !options.read_only => {
            let why = format!(
                "it cannot be opened for writing ({errno}); change its mode, or serve it read-only (,ro)"
            );
            OpenError::new(what, why)
        }
        _ => failed(what, "it", errno),
    })
}

fn try_open(path: &Path, options: &UringOptions, extra: OFlags) -> Result<OwnedFd, Errno> {
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    rustix::fs::open(path, access | OFlags::CLOEXEC | extra, Mode::empty())
}

fn failed(what: &str, part: &str, errno: Errno) -> OpenError {
    OpenError::new(what, format_args!("{part} cannot be read ({errno})"))
}

/// Opens past the page cache if the file system lets us; whether it did.
fn open_direct(path: &Path, what: &str, options: &UringOptions) -> Result<(OwnedFd, bool), OpenError> {
    if !options.buffered {
        match try_open(path, options, OFlags::DIRECT) {
            Ok(fd) => return Ok((fd, true)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            Err(_) => return open_with(path, what, options, OFlags::DIRECT).map(|fd| (fd, true)),
        }
    }
    Ok((open_with(path, what, options, OFlags::empty())?, false))
}

/// The alignment of buffers for O_DIRECT, or why blocks of this size cannot be had that way.
fn direct_alignment(fd: &OwnedFd, block_bytes: u32) -> Result<u32, String> {
    if let Ok(statx) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        let (memory, offset) = (statx.stx_dio_mem_align, statx.stx_dio_offset_align);
        if memory == 0 || offset == 0 {
            return Err("its file system has no O_DIRECT for it".to_owned());
        }
        if !block_bytes.is_multiple_of(offset) {
            return Err(format!("blocks of {block_bytes} bytes are less than O_DIRECT's {offset}"));
        }
        return Ok(memory.next_power_of_two());
    }
    // Kernels before 6.1, and file systems that do not say: one block, read with the best of
    // buffers, shows whether offsets are fine; for buffers a page is always enough.
    let probe = Region::heap(PAGE_BYTES);
    let read = probe.with_bytes_mut(0, block_bytes as usize, |bytes| rustix::io::pread(fd, bytes, 0));
    match read {
        Ok(Ok(_)) => Ok(PAGE_BYTES as u32),
        Ok(Err(errno)) => Err(format!("reading {block_bytes} bytes with O_DIRECT failed ({errno})")),
        Err(error) => Err(error.to_string()),
    }
}

fn len_of(fd: &OwnedFd, is_block_device: bool) -> Result<u64, Errno> {
    if is_block_device {
        return rustix::fs::seek(fd, SeekFrom::End(0));
    }
    Ok(rustix::fs::fstat(fd)?.st_size.unsigned_abs())
}

/// Whether holes can be punched, asked beyond the end, where there is nothing to lose.
fn can_punch(fd: &OwnedFd, len_bytes: u64, block_bytes: u32) -> bool {
    let beyond = len_bytes.next_multiple_of(PAGE_BYTES as u64);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, beyond, u64::from(block_bytes)).is_ok()
}

/// What sysfs says of the disk below.
struct Sysfs {
    rotational: bool,
    write_cache: bool,
    write_zeroes: bool,
}

impl Sysfs {
    fn of(fd: &OwnedFd, is_block_device: bool, what: &str) -> Result<Sysfs, OpenError> {
        let stat = rustix::fs::fstat(fd).map_err(|errno| failed(what, "its state", errno))?;
        debug_assert_eq!(FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice, is_block_device);
        let device = if is_block_device { stat.st_rdev } else { stat.st_dev };
        let disk = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        // A partition has no queue of its own; its disk's folder is the one above.
        let attribute = |name: &str| {
            let tried = [format!("{disk}/queue/{name}"), format!("{disk}/../queue/{name}")];
            tried.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default().trim().to_owned()
        };
        let number = |name: &str| attribute(name).parse::<u64>().unwrap_or(0);
        Ok(Sysfs {
            rotational: number("rotational") != 0,
            // A file's data may sit in the page cache or unwritten extents whatever its disk does.
            write_cache: !is_block_device || attribute("write_cache") != "write through",
            write_zeroes: number("write_zeroes_max_bytes") != 0,
        })
    }
}
