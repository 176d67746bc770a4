//! Opening and measuring what a uring bdev is to serve: each thing that can be wrong with it gets
//! an error that names it, the value found and the remedy.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use reactors::memory::{PAGE_BYTES, Region};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::UringOptions;
use crate::check::{blocks_of, check_block_bytes};
use crate::device::Geometry;
use crate::io::OpenError;

/// Whether the page cache is passed by, and what buffers must look like then.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Direct {
    /// Alignment of buffers in bytes, a power of two.
    pub(super) memory_align: u32,
}

/// An open file and what it is like.
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    pub(super) is_block_device: bool,
    pub(super) len_bytes: u64,
    pub(super) direct: Option<Direct>,
    /// A read is a copy and never waits; see [`is_memory`].
    pub(super) in_memory: bool,
    pub(super) geometry: Geometry,
}

/// Opens and measures `path`.
pub(super) fn open(name: &str, path: &Path, options: &UringOptions) -> Result<Opened, OpenError> {
    let what = path.display().to_string();
    let is_block_device = kind_of(path, &what)?;
    if let Some(block_bytes) = options.block_bytes {
        check_block_bytes(&what, block_bytes)?;
    }
    let (fd, may_be_direct) = open_direct(path, &what, options)?;
    let sysfs = Sysfs::of(&fd, is_block_device, &what)?;
    // The kernel lets such a device be opened for writing, and fails each write.
    if sysfs.read_only && !options.read_only {
        return Err(explain(&what, options, Errno::ROFS));
    }
    let (logical, physical) = if is_block_device {
        let logical = rustix::fs::ioctl_blksszget(&fd).unwrap_or(512);
        (logical, rustix::fs::ioctl_blkpbszget(&fd).unwrap_or(logical))
    } else {
        (512, PAGE_BYTES as u32)
    };
    let block_bytes = block_size(&what, options, logical)?;
    let len_bytes = len_of(&fd, is_block_device).map_err(|errno| failed(&what, "its size", errno))?;
    let blocks = blocks_of(&what, len_bytes, block_bytes)?;

    let direct =
        if may_be_direct { direct_alignment(&fd, block_bytes) } else { Err("there is no O_DIRECT".into()) };
    let direct = match direct {
        Ok(memory_align) => Some(Direct { memory_align }),
        Err(why) => {
            if !options.buffered {
                tracing::info!("{name}: {what} is read and written through the page cache: {why}");
            }
            let flags = rustix::fs::fcntl_getfl(&fd).map_err(|errno| failed(&what, "its mode", errno))?;
            rustix::fs::fcntl_setfl(&fd, flags - OFlags::DIRECT)
                .map_err(|errno| failed(&what, "its mode", errno))?;
            None
        }
    };

    let punches =
        || if is_block_device { sysfs.write_zeroes } else { can_punch(&fd, len_bytes, block_bytes) };
    let unmap = !options.read_only && punches();
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
    let in_memory = !is_block_device && is_memory(&fd);
    if !is_block_device {
        // When it was read last is nobody's business, and costs each read. Refused of another user's file.
        let _ = rustix::fs::fcntl_getfl(&fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::NOATIME));
    }
    Ok(Opened { fd, is_block_device, len_bytes, direct, in_memory, geometry })
}

/// The block size that was asked for, or the smallest there is.
fn block_size(what: &str, options: &UringOptions, logical: u32) -> Result<u32, OpenError> {
    let block_bytes = options.block_bytes.unwrap_or(logical);
    if block_bytes >= logical {
        check_block_bytes(what, block_bytes)?;
        return Ok(block_bytes);
    }
    let why =
        format!("a block size of {block_bytes} bytes is below the {logical} of the device; use {logical}");
    Err(OpenError::new(what, why))
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

fn explain(what: &str, options: &UringOptions, errno: Errno) -> OpenError {
    let why = match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS if !options.read_only => {
            format!("it cannot be opened for writing ({errno}); change its mode, or serve it read-only (,ro)")
        }
        Errno::ACCESS | Errno::PERM => format!("it cannot be opened for reading ({errno}); change its mode"),
        Errno::BUSY => {
            "it is in use: mounted, or part of a volume or array; free it, or serve it read-only (,ro)".into()
        }
        Errno::TXTBSY => "it is a program that runs; serve a copy of it, or serve it read-only (,ro)".into(),
        _ => format!("it cannot be opened ({errno})"),
    };
    OpenError::new(what, why)
}

/// A block device that is written is ours alone, so that nothing mounted is overwritten.
fn try_open(path: &Path, options: &UringOptions, extra: OFlags) -> Result<OwnedFd, Errno> {
    let is_block_device = fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let access = match (options.read_only, is_block_device) {
        (true, _) => OFlags::RDONLY,
        (false, false) => OFlags::RDWR,
        (false, true) => OFlags::RDWR | OFlags::EXCL,
    };
    for _ in 0..BUSY_TRIES {
        match rustix::fs::open(path, access | OFlags::CLOEXEC | extra, Mode::empty()) {
            // The kernel takes a moment to let go of what a killed process had in flight.
            Err(Errno::BUSY) if is_block_device => std::thread::sleep(BUSY_WAIT),
            opened => return opened,
        }
    }
    Err(Errno::BUSY)
}

/// How often a block device that somebody else holds is tried again, and how long to wait before.
const BUSY_TRIES: u32 = 10;
const BUSY_WAIT: Duration = Duration::from_millis(100);

pub(super) fn failed(what: &str, part: &str, errno: Errno) -> OpenError {
    OpenError::new(what, format_args!("{part} cannot be read ({errno})"))
}

/// Opens past the page cache if the file system lets us; whether it did.
fn open_direct(path: &Path, what: &str, options: &UringOptions) -> Result<(OwnedFd, bool), OpenError> {
    if !options.buffered {
        match try_open(path, options, OFlags::DIRECT) {
            Ok(fd) => return Ok((fd, true)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(explain(what, options, errno)),
        }
    }
    let fd = try_open(path, options, OFlags::empty()).map_err(|errno| explain(what, options, errno))?;
    Ok((fd, false))
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

pub(super) fn len_of(fd: &OwnedFd, is_block_device: bool) -> Result<u64, Errno> {
    if is_block_device {
        return rustix::fs::seek(fd, SeekFrom::End(0));
    }
    Ok(rustix::fs::fstat(fd)?.st_size.unsigned_abs())
}

/// File systems whose data are nowhere else than in memory (linux/magic.h): tmpfs, ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether everything of the file is in memory for good, so that a read of it never waits: its file
/// system is of memory, and there is no swap space that it could have gone to. (Swap space that is
/// added later can make a read wait for the swap device.)
///
/// io_uring asks a file for a read that does not wait, tmpfs does not say that it has one (Linux 6.18;
/// RWF_NOWAIT is EOPNOTSUPP there as well), and so every read would go to a worker thread.
fn is_memory(fd: &OwnedFd) -> bool {
    let of_memory = rustix::fs::fstatfs(fd)
        .is_ok_and(|file_system| MEMORY_FILE_SYSTEMS.contains(&(file_system.f_type as u64 & 0xffff_ffff)));
    of_memory && rustix::system::sysinfo().totalswap == 0
}

/// Whether holes can be punched, asked beyond the end, where there is nothing to lose.
fn can_punch(fd: &OwnedFd, len_bytes: u64, block_bytes: u32) -> bool {
    let beyond = len_bytes.next_multiple_of(PAGE_BYTES as u64);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, beyond, u64::from(block_bytes)).is_ok()
}

/// What sysfs says of the disk below.
struct Sysfs {
    read_only: bool,
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
        let read_only =
            is_block_device && fs::read_to_string(format!("{disk}/ro")).is_ok_and(|ro| ro.trim() == "1");
        let number = |name: &str| attribute(name).parse::<u64>().unwrap_or(0);
        Ok(Sysfs {
            read_only,
            rotational: number("rotational") != 0,
            // A file's data may sit in the page cache or unwritten extents whatever its disk does.
            write_cache: !is_block_device || attribute("write_cache") != "write through",
            write_zeroes: number("write_zeroes_max_bytes") != 0,
        })
    }
}
