//! Regions that two processes map: memfds whose size is sealed.
//!
//! A mapping of a file that somebody truncates ends the process that touches it (SIGBUS). So what is
//! mapped here can neither shrink nor grow: ours is sealed when it is made, and what a stranger hands
//! us is looked at before it is mapped. Only a memfd on ordinary pages is taken: a hole punched into
//! one of huge pages could not be filled again when none are left, which is SIGBUS again.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::memory::{PAGE_BYTES, Region};

/// What keeps a file as long as it is.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// The file system of memfds on ordinary pages (TMPFS_MAGIC of linux/magic.h).
const TMPFS: u64 = 0x0102_1994;

/// Why memory that somebody handed us is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// It is no memfd on ordinary pages.
    #[error("the descriptor is no memfd on ordinary pages")]
    NoMemfd,
    /// Its size may change.
    #[error("the memfd is not sealed against changes of its size")]
    NotSealed,
    /// It is not as long as it was said to be.
    #[error("the memfd has {has_bytes} bytes, {len_bytes} were announced")]
    Length {
        /// How long it is.
        has_bytes: u64,
        /// How long it should be.
        len_bytes: u64,
    },
    /// The kernel refused.
    #[error("shared memory: {0}")]
    System(#[from] io::Error),
}

/// A zeroed region of at least `len_bytes`, rounded up to whole pages, that other processes can map
/// by its [`memfd`](Region::memfd). All pages are present. `name` shows in `/proc/PID/maps`.
pub fn create(name: &str, len_bytes: usize) -> io::Result<Region> {
    let len_bytes = len_bytes.max(1).next_multiple_of(PAGE_BYTES);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = memfd_create(name, flags)?;
    ftruncate(&memfd, len_bytes as u64)?;
    fcntl_add_seals(&memfd, SIZE_SEALS | SealFlags::SEAL)?;
    let region = map(memfd, len_bytes)?;
    let start = region.raw(0, len_bytes).expect("the whole of a region lies in it");
    // SAFETY: the mapping just made. Advice only: fewer page faults and TLB misses where the kernel
    // has huge pages for shared memory.
    let _ = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
    // SAFETY: as above. A lack of memory is an error here, where a touch would end the process.
    match unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxPopulateWrite) } {
        // Kernels before 5.14 do not know it.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(region),
        Err(errno) => Err(errno.into()),
    }
}

/// Maps `len_bytes` of memory that another process handed us. It may write there at any time; it
/// cannot take the memory away.
pub fn adopt(memfd: OwnedFd, len_bytes: usize) -> Result<Region, SharedError> {
    let seals = fcntl_get_seals(&memfd).map_err(|_| SharedError::NoMemfd)?;
    if fstatfs(&memfd).map_err(io::Error::from)?.f_type as u64 != TMPFS {
        return Err(SharedError::NoMemfd);
    }
    if !seals.contains(SIZE_SEALS) {
        return Err(SharedError::NotSealed);
    }
    // After the seals: from here on it stays so.
    let has_bytes = fstat(&memfd).map_err(io::Error::from)?.st_size as u64;
    let whole = len_bytes > 0 && len_bytes.is_multiple_of(PAGE_BYTES);
    if has_bytes != len_bytes as u64 || !whole {
        return Err(SharedError::Length { has_bytes, len_bytes: len_bytes as u64 });
    }
    Ok(map(memfd, len_bytes)?)
}

fn map(memfd: OwnedFd, len_bytes: usize) -> io::Result<Region> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel picks an address that is free.
    let start = unsafe { mmap(null_mut(), len_bytes, protection, MapFlags::SHARED, &memfd, 0) }?;
    let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at address zero");
    let release = Box::new(|start: NonNull<u8>, len_bytes| {
        // SAFETY: mapped above with this length; the last owner is gone.
        let unmapped = unsafe { munmap(start.as_ptr().cast(), len_bytes) };
        debug_assert!(unmapped.is_ok());
    });
    // SAFETY: mapped above, and as long as the file, whose size is sealed; page aligned, zeroed or
    // written by its maker, ours until `release`.
    Ok(unsafe { Region::from_parts(start, len_bytes, Some(memfd), release) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dup(region: &Region) -> OwnedFd {
        region.memfd().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn two_mappings_are_one_memory() {
        let ours = create("test", PAGE_BYTES + 1).unwrap();
        assert_eq!(ours.len_bytes(), 2 * PAGE_BYTES);
        let theirs = adopt(dup(&ours), 2 * PAGE_BYTES).unwrap();
        theirs.write(5000, b"here").unwrap();
        let mut back = [0; 4];
        ours.read(5000, &mut back).unwrap();
        assert_eq!(&back, b"here");
        drop(ours);
        theirs.read(5000, &mut back).unwrap();
        assert_eq!(&back, b"here", "either keeps it");
        assert!(Region::heap(PAGE_BYTES).memfd().is_none());
    }

    #[test]
    fn its_size_is_for_ever() {
        let ours = create("test", PAGE_BYTES).unwrap();
        assert!(ftruncate(ours.memfd().unwrap(), 0).is_err());
        assert!(ftruncate(ours.memfd().unwrap(), 1 << 20).is_err());
    }

    #[test]
    fn what_could_take_the_memory_away_is_not_mapped() {
        let file = |seals: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memfd = memfd_create("test", flags).unwrap();
            ftruncate(&memfd, PAGE_BYTES as u64).unwrap();
            fcntl_add_seals(&memfd, seals).unwrap();
            memfd
        };
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
            assert!(matches!(adopt(file(seals), PAGE_BYTES), Err(SharedError::NotSealed)), "{seals:?}");
        }
        for len_bytes in [0, 1, 2 * PAGE_BYTES] {
            assert!(
                matches!(adopt(file(SIZE_SEALS), len_bytes), Err(SharedError::Length { .. })),
                "{len_bytes}"
            );
        }
        adopt(file(SIZE_SEALS), PAGE_BYTES).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        assert!(matches!(adopt(reader.into(), PAGE_BYTES), Err(SharedError::NoMemfd)));
    }

    #[test]
    fn a_memfd_of_huge_pages_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // Some kernels have none: then nobody can hand us one.
        let Ok(memfd) = memfd_create("test", flags) else { return };
        fcntl_add_seals(&memfd, SIZE_SEALS).unwrap();
        assert!(matches!(adopt(memfd, PAGE_BYTES), Err(SharedError::NoMemfd)));
    }

    #[test]
    fn no_memory_is_an_error_and_not_the_end() {
        assert!(create("test", 1 << 60).is_err());
    }
}
