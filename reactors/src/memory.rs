//! Memory that the kernel, an adapter or a peer may touch while we hold it.
//!
//! A [`Region`] is one contiguous, page-aligned piece. It is shared by reference count and
//! never moves, so its address can be given to io_uring, to an RDMA device, or to `sendmsg`.
//! All access is by copy through raw pointers, checked against the bounds: no Rust reference
//! into the region outlives a call, because others write there when they like.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock};
use std::{fmt, io};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size to which regions are aligned, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// An access that does not lie within its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len_bytes} bytes at offset {offset} lie outside a region of {region_bytes} bytes")]
pub struct OutOfBounds {
    /// Where the access began, in bytes from the region's start.
    pub offset: usize,
    /// How long the access was.
    pub len_bytes: usize,
    /// How long the region is.
    pub region_bytes: usize,
}

/// Takes back the memory of a region, by its first byte and its length in bytes.
pub type Release = Box<dyn FnOnce(NonNull<u8>, usize) + Send>;

struct Inner {
    start: NonNull<u8>,
    len_bytes: usize,
    /// Private anonymous memory, whose pages can be given back one by one.
    anonymous: bool,
    /// How many know the pages by where they lie in the machine, so that none may be given back. Held
    /// while some are given back.
    pins: RwLock<usize>,
    /// The file behind it, if another process may map it.
    memfd: Option<OwnedFd>,
    /// Gives the memory back.
    release: Option<Release>,
}

// SAFETY: the memory belongs to no thread. All access goes through raw-pointer copies that are
// checked against the bounds; a race between copies can give torn bytes, as with any memory that
// hardware writes, and never a torn Rust value, since nothing but bytes is stored here.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release(self.start, self.len_bytes);
        }
    }
}

/// A page-aligned piece of memory that never moves; clones share it.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

impl Region {
    /// A zeroed region of `len_bytes` from the ordinary allocator.
    ///
    /// # Panics
    /// If `len_bytes` is zero or the allocator has no memory.
    pub fn heap(len_bytes: usize) -> Region {
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES).expect("region size fits a layout");
        assert!(len_bytes > 0, "a region is not empty");
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory for a region");
        let release = move |start: NonNull<u8>, _| {
            // SAFETY: allocated above with this layout, and released once, by the last owner.
            unsafe { dealloc(start.as_ptr(), layout) }
        };
        // SAFETY: freshly allocated with that length; `release` gives it back.
        unsafe { Region::from_raw(start, len_bytes, Box::new(release)) }
    }

    /// A zeroed region of `len_bytes` that costs memory only where it is touched: for large and
    /// sparse things. The error is the kernel's, which refuses what it could never give.
    pub fn anonymous(len_bytes: usize) -> io::Result<Region> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel picks an address that is free.
        let start = unsafe { mmap_anonymous(null_mut(), len_bytes, protection, flags) }?;
        let start = NonNull::new(start.cast()).expect("a mapping is not at address zero");
        let release = |start: NonNull<u8>, len_bytes| {
            // SAFETY: mapped above with this length; the last owner is gone.
            let unmapped = unsafe { munmap(start.as_ptr().cast(), len_bytes) };
            debug_assert!(unmapped.is_ok());
        };
        let release = Some(Box::new(release) as _);
        let pins = RwLock::new(0);
        Ok(Region {
            inner: Arc::new(Inner { start, len_bytes, anonymous: true, pins, memfd: None, release }),
        })
    }

    /// A region of zeroes that is only ever read. All its pages are the kernel's one page of zeroes, so
    /// that it takes no memory, and it is found in the nearest cache however long it is. (Whoever writes
    /// there all the same gets a page of its own, as anywhere.)
    pub fn zeroes(len_bytes: usize) -> io::Result<Region> {
        let region = Region::anonymous(len_bytes)?;
        // The kernel has a huge page of zeroes, too, which is too long for that cache. Where it knows
        // no huge pages it refuses, which is as good.
        // SAFETY: advice about a mapping of ours, which touches nothing.
        let _ = unsafe { madvise(region.inner.start.as_ptr().cast(), len_bytes, Advice::LinuxNoHugepage) };
        let all_zero = region.with_bytes(0, len_bytes, |bytes| bytes.iter().all(|&byte| byte == 0));
        assert_eq!(all_zero, Ok(true), "fresh memory is zeroed");
        Ok(region)
    }

    /// Takes over `len_bytes` of memory at `start`; `release` is called once, after the last
    /// clone is gone.
    ///
    /// # Safety
    /// The memory must be valid for reads and writes, initialised, aligned to [`PAGE_BYTES`] and
    /// owned by nobody else until `release` is called.
    pub unsafe fn from_raw(start: NonNull<u8>, len_bytes: usize, release: Release) -> Region {
        // SAFETY: what the caller promises.
        unsafe { Region::from_parts(start, len_bytes, None, release) }
    }

    /// The same, of memory that is a mapping of `memfd`.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), but that others may write the memory at any time.
    pub(crate) unsafe fn from_parts(
        start: NonNull<u8>,
        len_bytes: usize,
        memfd: Option<OwnedFd>,
        release: Release,
    ) -> Region {
        debug_assert_eq!(start.as_ptr() as usize % PAGE_BYTES, 0);
        let release = Some(release);
        let pins = RwLock::new(0);
        Region { inner: Arc::new(Inner { start, len_bytes, anonymous: false, pins, memfd, release }) }
    }

    /// Keeps the pages of this region what they are, until what it gives is dropped: for devices that
    /// look up once where in the machine they lie. Waits for a [`clear`](Self::clear) in progress.
    pub fn pin(&self) -> Pinned {
        *self.inner.pins.write().unwrap_or_else(PoisonError::into_inner) += 1;
        Pinned(self.clone())
    }

    /// The file that another process can map to share this memory, if it has one.
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.memfd.as_ref().map(AsFd::as_fd)
    }

    /// The region's length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.inner.len_bytes
    }

    /// The virtual address of the first byte: what verbs call the address of a memory region.
    pub fn addr(&self) -> u64 {
        self.inner.start.as_ptr() as u64
    }

    /// Whether both are the same memory.
    pub fn same_as(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The first byte of `len_bytes` at `offset`: for system calls and devices. Making it is
    /// safe; it is valid as long as a clone of the region lives.
    #[inline]
    pub fn raw(&self, offset: usize, len_bytes: usize) -> Result<NonNull<u8>, OutOfBounds> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.inner.len_bytes => {
                // SAFETY: `offset` is within the allocation, as just checked.
                Ok(unsafe { self.inner.start.add(offset) })
            }
            _ => Err(OutOfBounds { offset, len_bytes, region_bytes: self.inner.len_bytes }),
        }
    }

    /// The eight bytes at `offset` as an atomic word: for what two threads or processes say to each
    /// other.
    ///
    /// # Panics
    /// If `offset` is no multiple of eight.
    #[inline]
    pub fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        assert!(offset.is_multiple_of(8), "a word is aligned");
        let at = self.raw(offset, 8)?;
        // SAFETY: in bounds and aligned, since regions begin at a page. An atomic may be written by
        // anybody at any time; plain copies of the same bytes can tear, which every user of a
        // region must live with. The reference keeps `self`, and so the memory.
        Ok(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// Asks for the cache line at `offset`, to be read soon; nothing happens beyond the end.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(at) = self.raw(offset, 1) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint, which touches nothing; SSE belongs to x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().cast()) };
        }
    }

    /// Asks for the cache line at `offset` as the only one who has it, to be written soon; nothing
    /// happens beyond the end.
    #[inline]
    pub fn prefetch_to_write(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Ok(at) = self.raw(offset, 1) {
            // SAFETY: a hint, which touches nothing; processors that do not have it do nothing.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// Copies `bytes` to `offset`.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.raw(offset, bytes.len())?;
        // SAFETY: in bounds, and a caller's slice cannot overlap: nobody gets one into a region.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies from `offset` to all of `bytes`.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.raw(offset, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Sets `len_bytes` at `offset` to `value`.
    pub fn fill(&self, offset: usize, len_bytes: usize, value: u8) -> Result<(), OutOfBounds> {
        let at = self.raw(offset, len_bytes)?;
        // SAFETY: in bounds.
        unsafe { std::ptr::write_bytes(at.as_ptr(), value, len_bytes) };
        Ok(())
    }

    /// Sets `len_bytes` at `offset` to zero. Whole pages of an [`anonymous`](Self::anonymous)
    /// region go back to the kernel, unless it is [pinned](Self::pin).
    pub fn clear(&self, offset: usize, len_bytes: usize) -> Result<(), OutOfBounds> {
        self.raw(offset, len_bytes)?;
        let end = offset + len_bytes;
        let (first, last) = (offset.next_multiple_of(PAGE_BYTES), end / PAGE_BYTES * PAGE_BYTES);
        let pins = self.inner.pins.read().unwrap_or_else(PoisonError::into_inner);
        if self.inner.anonymous && *pins == 0 && first < last {
            let at = self.raw(first, last - first)?;
            // SAFETY: whole pages within a private anonymous mapping of ours; they read as zeroes
            // afterwards. No Rust reference into a region outlives a call.
            if unsafe { madvise(at.as_ptr().cast(), last - first, Advice::LinuxDontNeed) }.is_ok() {
                self.fill(offset, first - offset, 0)?;
                return self.fill(last, end - last, 0);
            }
        }
        self.fill(offset, len_bytes, 0)
    }

    /// Copies `len_bytes` from `offset` of this region to `to_offset` of `to`.
    #[inline]
    pub fn copy_to(
        &self,
        offset: usize,
        to: &Region,
        to_offset: usize,
        len_bytes: usize,
    ) -> Result<(), OutOfBounds> {
        let source = self.raw(offset, len_bytes)?;
        let target = to.raw(to_offset, len_bytes)?;
        // SAFETY: both in bounds; `copy` allows overlap.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), len_bytes) };
        Ok(())
    }

    /// Shows the bytes at `offset` to `look`, without a copy: for checksums and parsers of
    /// memory that nobody writes during the call by contract (a received IU that we own, a
    /// buffer being sent), or whose readers can live with a mixture (a disk in memory).
    #[inline]
    pub fn with_bytes<R>(
        &self,
        offset: usize,
        len_bytes: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, OutOfBounds> {
        let at = self.raw(offset, len_bytes)?;
        // SAFETY: in bounds and initialised. The slice ends with the call; the owner of the
        // buffer (a work request or a task) keeps devices from writing it meanwhile.
        Ok(look(unsafe { std::slice::from_raw_parts(at.as_ptr(), len_bytes) }))
    }

    /// Lets `change` write the bytes at `offset` in place: for building what is about to be
    /// sent, in a buffer that the caller owns.
    #[inline]
    pub fn with_bytes_mut<R>(
        &self,
        offset: usize,
        len_bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, OutOfBounds> {
        let at = self.raw(offset, len_bytes)?;
        // SAFETY: as in `with_bytes`; the caller owns the buffer, so no other slice exists.
        Ok(change(unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len_bytes) }))
    }
}

/// A region whose pages stay; clones of the region itself do not keep them.
#[derive(Debug)]
pub struct Pinned(Region);

impl Deref for Pinned {
    type Target = Region;
    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        *self.0.inner.pins.write().unwrap_or_else(PoisonError::into_inner) -= 1;
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:#x}, {} bytes)", self.addr(), self.len_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_without_overflow() {
        let region = Region::heap(PAGE_BYTES);
        assert!(region.write(PAGE_BYTES - 2, b"ab").is_ok());
        assert_eq!(
            region.write(PAGE_BYTES - 1, b"ab"),
            Err(OutOfBounds { offset: PAGE_BYTES - 1, len_bytes: 2, region_bytes: PAGE_BYTES })
        );
        assert!(region.raw(usize::MAX, 2).is_err());
        let mut back = [0; 2];
        region.read(PAGE_BYTES - 2, &mut back).unwrap();
        assert_eq!(&back, b"ab");
    }

    #[test]
    fn words_lie_in_the_region() {
        use std::sync::atomic::Ordering::Relaxed;
        let region = Region::heap(PAGE_BYTES);
        region.word(PAGE_BYTES - 8).unwrap().store(u64::MAX, Relaxed);
        let mut back = [0; 9];
        region.read(PAGE_BYTES - 9, &mut back).unwrap();
        assert_eq!(back, [0, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert!(region.word(PAGE_BYTES).is_err());
    }

    #[test]
    fn clearing_touches_its_range_and_no_more() {
        for region in [Region::heap(4 * PAGE_BYTES), Region::anonymous(4 * PAGE_BYTES).unwrap()] {
            let len_bytes = region.len_bytes();
            for (offset, end) in [(100, 3 * PAGE_BYTES + 1), (PAGE_BYTES, 2 * PAGE_BYTES), (7, 9), (5, 5)] {
                region.fill(0, len_bytes, 0xa5).unwrap();
                region.clear(offset, end - offset).unwrap();
                let zeroes = |bytes: &[u8]| {
                    bytes.iter().enumerate().all(|(at, &byte)| (byte == 0) == (offset..end).contains(&at))
                };
                assert!(region.with_bytes(0, len_bytes, zeroes).unwrap(), "{offset}..{end} of {region:?}");
            }
            assert!(region.clear(1, len_bytes).is_err());
        }
    }

    #[test]
    fn release_runs_once_after_the_last_clone() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static RELEASED: AtomicU32 = AtomicU32::new(0);
        let owner = Region::heap(PAGE_BYTES);
        let keep = owner.clone();
        let start = owner.raw(0, PAGE_BYTES).unwrap();
        let release = Box::new(move |_, _| {
            drop(keep);
            RELEASED.fetch_add(1, Ordering::Relaxed);
        });
        // SAFETY: `keep` holds the memory until `release`.
        let region = unsafe { Region::from_raw(start, PAGE_BYTES, release) };
        let clone = region.clone();
        drop(region);
        assert_eq!(RELEASED.load(Ordering::Relaxed), 0);
        drop(clone);
        assert_eq!(RELEASED.load(Ordering::Relaxed), 1);
    }
}
