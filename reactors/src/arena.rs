//! Large regions on huge pages.
//!
//! Huge pages must have been reserved by the administrator (`vm.nr_hugepages`). Where none are,
//! ordinary pages take their place, with the kernel asked to merge them (MADV_HUGEPAGE); whether
//! that is an error, and whether it is worth a log line, is the [`HugePages`] policy.
//!
//! All pages are touched at start, so that no page fault comes on the fast path and memory that
//! is not there is found at once.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::memory::{PAGE_BYTES, Region};

/// Whether to use huge pages.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// If there are enough; else ordinary pages and a log line.
    #[default]
    Auto,
    /// Without them it is an error.
    Require,
    /// Ordinary pages.
    Off,
}

/// What a region came to lie on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Reserved huge pages.
    Huge {
        /// Bytes of one.
        page_bytes: usize,
    },
    /// Ordinary pages, that the kernel may merge.
    Ordinary {
        /// Why not huge ones; `None` if nobody asked for them.
        why: Option<String>,
    },
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Huge { page_bytes } => write!(f, "huge pages of {} KiB", page_bytes / 1024),
            Backing::Ordinary { why: Some(why) } => write!(f, "ordinary pages ({why})"),
            Backing::Ordinary { why: None } => f.write_str("ordinary pages"),
        }
    }
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Huge pages were required.
    #[error("no huge pages for {len_bytes} bytes: {why}")]
    NoHugePages {
        /// How much was asked for.
        len_bytes: usize,
        /// What is missing, and how to get it.
        why: String,
    },
    /// The kernel gave no memory at all.
    #[error("no memory for an arena of {len_bytes} bytes: {source}")]
    NoMemory {
        /// How much was asked for.
        len_bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A region of at least `len_bytes`, zeroed and with all pages present. Logs what it lies on.
///
/// The length is rounded up to whole pages of the kind it gets.
///
/// # Panics
/// If `len_bytes` is zero.
pub fn allocate(len_bytes: usize, policy: HugePages) -> Result<(Region, Backing), ArenaError> {
    assert!(len_bytes > 0, "an arena is not empty");
    let (region, backing) = match policy {
        HugePages::Off => (ordinary(len_bytes)?, Backing::Ordinary { why: None }),
        HugePages::Require => huge(len_bytes).map_err(|why| ArenaError::NoHugePages { len_bytes, why })?,
        HugePages::Auto => match huge(len_bytes) {
            Ok(made) => made,
            Err(why) => (ordinary(len_bytes)?, Backing::Ordinary { why: Some(why) }),
        },
    };
    tracing::info!(bytes = region.len_bytes(), %backing, "arena");
    Ok((region, backing))
}

/// A region on huge pages, or in words why not.
fn huge(len_bytes: usize) -> Result<(Region, Backing), String> {
    // Asked before hugepage-rs is: it panics where the kernel was built without huge pages.
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name| meminfo_field(&meminfo, name);
    let page_bytes = field("Hugepagesize:").ok_or("this kernel has none")? * 1024;
    let pages = len_bytes.div_ceil(page_bytes);
    let free = field("HugePages_Free:").unwrap_or(0);
    let layout =
        Layout::from_size_align(pages * page_bytes, PAGE_BYTES).map_err(|error| error.to_string())?;
    // SAFETY: the layout is not empty. It gives null when not enough pages are reserved.
    let start = unsafe { hugepage_rs::alloc(layout) };
    let Some(start) = NonNull::new(start) else {
        return Err(format!(
            "{pages} of {} KiB are needed, {free} are free; `sysctl vm.nr_hugepages` sets them",
            page_bytes / 1024
        ));
    };
    // The kernel reserved the pages with the mapping, so touching them cannot fail.
    touch(start, layout.size(), page_bytes);
    let release = move |start: NonNull<u8>, _| {
        // SAFETY: allocated above with this layout, and released once, by the last owner.
        unsafe { hugepage_rs::dealloc(start.as_ptr(), layout) }
    };
    // SAFETY: mapped above, zeroed by the kernel, page aligned, ours until `release`.
    let region = unsafe { Region::from_raw(start, layout.size(), Box::new(release)) };
    Ok((region, Backing::Huge { page_bytes }))
}

fn ordinary(len_bytes: usize) -> Result<Region, ArenaError> {
    let mapped_bytes = len_bytes.next_multiple_of(PAGE_BYTES);
    let no_memory = |error: rustix::io::Errno| ArenaError::NoMemory { len_bytes, source: error.into() };
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            mapped_bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_err(no_memory)?;
    // SAFETY: the mapping just made. Advice only: a kernel without it says no, and that is fine.
    let _ = unsafe { madvise(start, mapped_bytes, Advice::LinuxHugepage) };
    // Populating reports a lack of memory as an error where a touch would end the process.
    // SAFETY: as above.
    match unsafe { madvise(start, mapped_bytes, Advice::LinuxPopulateWrite) } {
        // Kernels before 5.14 do not know it.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => {
            // SAFETY: the mapping made above, which nobody knows yet.
            let _ = unsafe { munmap(start, mapped_bytes) };
            return Err(no_memory(error));
        }
    }
    let start = NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at address zero");
    touch(start, mapped_bytes, PAGE_BYTES);
    let release = move |start: NonNull<u8>, _| {
        // SAFETY: mapped above with this length, and released once, by the last owner.
        let _ = unsafe { munmap(start.as_ptr().cast(), mapped_bytes) };
    };
    // SAFETY: mapped above, zeroed by the kernel, page aligned, ours until `release`.
    Ok(unsafe { Region::from_raw(start, mapped_bytes, Box::new(release)) })
}

/// Writes one byte of each page.
fn touch(start: NonNull<u8>, len_bytes: usize, page_bytes: usize) {
    for offset in (0..len_bytes).step_by(page_bytes) {
        // SAFETY: within the mapping of the caller, which nobody else knows yet.
        unsafe { start.add(offset).write_volatile(0) };
    }
}

fn meminfo_field(meminfo: &str, name: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How many bytes this process may lock (RLIMIT_MEMLOCK); `None` is no limit. Registering
/// buffers with io_uring or an RDMA adapter counts against it, except for processes with
/// CAP_IPC_LOCK.
pub fn memlock_limit_bytes() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_pages_are_zeroed_and_usable_to_the_end() {
        let (region, backing) = allocate(3 * PAGE_BYTES - 1, HugePages::Off).unwrap();
        assert_eq!(backing, Backing::Ordinary { why: None });
        assert_eq!(region.len_bytes(), 3 * PAGE_BYTES);
        let mut bytes = [1; 2];
        region.read(3 * PAGE_BYTES - 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0]);
        region.write(3 * PAGE_BYTES - 2, b"ok").unwrap();
    }

    /// More than any test machine reserves, so the fall-back is certain.
    const VAST: usize = 1 << 50;

    #[test]
    fn required_but_missing_says_what_to_do() {
        let error = allocate(VAST, HugePages::Require).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("no huge pages for"), "{text}");
        assert!(text.contains("vm.nr_hugepages") || text.contains("this kernel has none"), "{text}");
    }

    #[test]
    fn auto_falls_back_and_says_why() {
        let (region, backing) = allocate(PAGE_BYTES, HugePages::Auto).unwrap();
        assert!(region.len_bytes() >= PAGE_BYTES);
        match backing {
            Backing::Huge { page_bytes } => assert_eq!(region.len_bytes(), page_bytes),
            Backing::Ordinary { why } => assert!(why.is_some()),
        }
    }

    #[test]
    fn no_memory_is_an_error_and_not_the_end() {
        assert!(matches!(allocate(VAST, HugePages::Off), Err(ArenaError::NoMemory { .. })));
    }

    #[test]
    fn meminfo_is_read_by_name() {
        let text = "HugePages_Free:       12\nHugepagesize:       2048 kB\n";
        assert_eq!(meminfo_field(text, "Hugepagesize:"), Some(2048));
        assert_eq!(meminfo_field(text, "HugePages_Free:"), Some(12));
        assert_eq!(meminfo_field(text, "Hugetlb:"), None);
    }
}
