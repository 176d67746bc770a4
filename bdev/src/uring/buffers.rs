//! The memory of a ring: regions as fixed buffers, and bounce buffers.
//!
//! A fixed buffer spares the kernel pinning pages for each I/O. It is a matter of speed only:
//! what is not registered (no CAP_IPC_LOCK and a low limit of locked memory, an old kernel, a
//! transfer across the border of two buffers) goes by address.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::IoUring;
use reactors::memory::{OutOfBounds, PAGE_BYTES, Region};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::ring::TENANTS;
use crate::check::Regions;
use crate::io::{OpenError, RegionId};

/// Most that the kernel takes as one fixed buffer, in bytes.
const MAX_FIXED_BYTES: usize = 1 << 30;

/// Least that is worth registering, in bytes.
const MIN_FIXED_BYTES: usize = 1 << 20;

/// Places in the kernel's table of fixed buffers.
const FIXED_SLOTS: u32 = 512;

/// Bytes of a bounce buffer, and of the zeroes that are written by hand.
pub(super) const BOUNCE_BYTES: usize = 128 << 10;

/// Bytes of a `struct statx`.
const ANSWER_BYTES: usize = size_of::<libc::statx>();

/// How many bounce buffers a ring has; who finds none waits for one.
const BOUNCE_BUFFERS: u16 = 8;

/// Bytes in fixed buffers, over all rings of the process.
static FIXED_BYTES: Mutex<usize> = Mutex::new(0);

fn fixed_bytes() -> MutexGuard<'static, usize> {
    FIXED_BYTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in the fixed buffers of one ring, counted as long as this lives.
#[derive(Default)]
struct Counted(usize);

impl Counted {
    fn add(&mut self, total: &mut usize, bytes: usize) {
        self.0 += bytes;
        *total += bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *fixed_bytes() -= self.0;
    }
}

/// How many more bytes fixed buffers may take: half of the limit of locked memory in all. The rings
/// themselves count against it, too, and without a ring there is no I/O.
fn allowance(fixed_bytes: usize) -> usize {
    let limit = getrlimit(Resource::Memlock).current;
    let unlimited = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    match limit.filter(|_| !unlimited) {
        None => usize::MAX,
        Some(bytes) => {
            let half = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
            half.saturating_sub(fixed_bytes) / PAGE_BYTES * PAGE_BYTES
        }
    }
}

/// A part of a region that is a fixed buffer.
struct Fixed {
    region: RegionId,
    start: usize,
    end: usize,
    index: u16,
}

/// The memory that a ring's operations move.
pub(super) struct Buffers {
    pub(super) regions: Regions,
    fixed: Vec<Fixed>,
    counted: Counted,
    /// Whether the kernel has a table to register in.
    has_table: bool,
    next_index: u32,
    /// Anonymous memory, so that it costs nothing where arenas are aligned for the device.
    bounce: Region,
    free_bounce: Vec<u16>,
    zeroes: Region,
    /// Room for an answer of `statx` for each queue of the ring.
    answers: Region,
}

/// Where a segment's bytes are.
#[derive(Copy, Clone)]
pub(super) struct Place {
    pub(super) address: NonNull<u8>,
    /// Its fixed buffer, if it lies in one.
    pub(super) fixed: Option<u16>,
}

impl Buffers {
    pub(super) fn new(uring: &IoUring) -> Result<Buffers, OpenError> {
        let anonymous = |len_bytes| {
            Region::anonymous(len_bytes)
                .map_err(|error| OpenError::new("io_uring", format_args!("no memory ({error})")))
        };
        let has_table = match uring.submitter().register_buffers_sparse(FIXED_SLOTS) {
            Ok(()) => true,
            Err(error) => {
                tracing::info!(
                    "io_uring: no registered buffers on this kernel ({error}); I/O is somewhat slower"
                );
                false
            }
        };
        Ok(Buffers {
            regions: Regions::new(),
            fixed: Vec::with_capacity(FIXED_SLOTS as usize),
            counted: Counted::default(),
            has_table,
            next_index: 0,
            bounce: anonymous(usize::from(BOUNCE_BUFFERS) * BOUNCE_BYTES)?,
            free_bounce: (0..BOUNCE_BUFFERS).collect(),
            zeroes: anonymous(BOUNCE_BYTES)?,
            answers: anonymous(TENANTS * ANSWER_BYTES)?,
        })
    }

    /// Makes `region` known, and registers as much of it as the kernel lets us.
    pub(super) fn add(&mut self, uring: &IoUring, region: &Region) -> Result<RegionId, OpenError> {
        let known = self.regions.len();
        let id = self.regions.add(region)?;
        if usize::from(id.0) < known || !self.has_table {
            return Ok(id);
        }
        let len_bytes = region.len_bytes();
        let mut start = 0;
        // Rings of other threads wait, so that together they keep to what is allowed.
        let mut total = fixed_bytes();
        while start < len_bytes && self.next_index < FIXED_SLOTS {
            let wanted = (len_bytes - start).min(MAX_FIXED_BYTES);
            match self.register_most(uring, region, start, wanted, allowance(*total)) {
                Ok(registered) => {
                    let index = self.next_index as u16;
                    self.fixed.push(Fixed { region: id, start, end: start + registered, index });
                    self.next_index += 1;
                    self.counted.add(&mut total, registered);
                    start += registered;
                    if registered < wanted {
                        tracing::info!(
                            "io_uring: only {start} of {len_bytes} bytes are a registered buffer; raise the limit of \
                             locked memory (ulimit -l) or give CAP_IPC_LOCK for speed"
                        );
                        break;
                    }
                }
                Err(error) => {
                    tracing::info!(
                        "io_uring: {} bytes stay without registered buffer ({error}); raise the limit of locked \
                         memory (ulimit -l) or give CAP_IPC_LOCK for speed",
                        len_bytes - start
                    );
                    break;
                }
            }
        }
        Ok(id)
    }

    /// Registers as many of the `wanted` bytes at `start` as are allowed and the kernel takes, halving.
    fn register_most(
        &self,
        uring: &IoUring,
        region: &Region,
        start: usize,
        wanted: usize,
        allowed: usize,
    ) -> std::io::Result<usize> {
        let mut len_bytes = wanted.min(allowed);
        if len_bytes < wanted.min(MIN_FIXED_BYTES) {
            return Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
        }
        loop {
            let at = region.raw(start, len_bytes).map_err(std::io::Error::other)?;
            let buffer = libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len_bytes };
            // SAFETY: the region is kept in `self.regions`, which lives as long as the ring or is
            // leaked with what the kernel still holds (`Ring::drop`).
            match unsafe { uring.submitter().register_buffers_update(self.next_index, &[buffer], None) } {
                Ok(()) => return Ok(len_bytes),
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOMEM) && len_bytes / 2 >= MIN_FIXED_BYTES =>
                {
                    len_bytes = len_bytes / 2 / PAGE_BYTES * PAGE_BYTES;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Where `len_bytes` at `offset` of a region are.
    #[inline]
    pub(super) fn place(&self, region: RegionId, offset: usize, len_bytes: usize) -> Option<Place> {
        let address = self.regions.get(region)?.raw(offset, len_bytes).ok()?;
        let inside = |fixed: &&Fixed| {
            fixed.region == region && fixed.start <= offset && offset + len_bytes <= fixed.end
        };
        let fixed = self.fixed.iter().find(inside).map(|fixed| fixed.index);
        Some(Place { address, fixed })
    }

    /// A bounce buffer, if one is free.
    pub(super) fn take_bounce(&mut self) -> Option<u16> {
        self.free_bounce.pop()
    }

    /// Gives a bounce buffer back.
    pub(super) fn give_bounce(&mut self, bounce: u16) {
        self.free_bounce.push(bounce);
    }

    /// Where a bounce buffer is.
    pub(super) fn bounce_place(&self, bounce: u16) -> Result<Place, OutOfBounds> {
        let address = self.bounce.raw(usize::from(bounce) * BOUNCE_BYTES, BOUNCE_BYTES)?;
        Ok(Place { address, fixed: None })
    }

    /// Copies between a bounce buffer and a region.
    pub(super) fn copy_bounce(
        &self,
        bounce: u16,
        region: RegionId,
        offset: usize,
        len_bytes: usize,
        to_region: bool,
    ) -> Option<()> {
        let (all, region) = (&self.bounce, self.regions.get(region)?);
        let at = usize::from(bounce) * BOUNCE_BYTES;
        if to_region {
            all.copy_to(at, region, offset, len_bytes).ok()
        } else {
            region.copy_to(offset, all, at, len_bytes).ok()
        }
    }

    /// [`BOUNCE_BYTES`] zeroes.
    pub(super) fn zeroes(&self) -> Result<Place, OutOfBounds> {
        Ok(Place { address: self.zeroes.raw(0, BOUNCE_BYTES)?, fixed: None })
    }

    /// Where the kernel is to say how large the file of the queue at `place` is.
    pub(super) fn answer(&self, place: u16) -> Result<Place, OutOfBounds> {
        let address = self.answers.raw(usize::from(place) * ANSWER_BYTES, ANSWER_BYTES)?;
        Ok(Place { address, fixed: None })
    }

    /// How large the kernel said that it is, in bytes.
    pub(super) fn answered_len(&self, place: u16) -> Result<u64, OutOfBounds> {
        let mut size = [0; 8];
        let at = usize::from(place) * ANSWER_BYTES + std::mem::offset_of!(libc::statx, stx_size);
        self.answers.read(at, &mut size)?;
        Ok(u64::from_ne_bytes(size))
    }

    /// Never frees the answers: the kernel may still write one.
    pub(super) fn leak_answers(&self) {
        std::mem::forget(self.answers.clone());
    }

    /// Never frees any of this: the kernel may still use it.
    pub(super) fn leak(&self) {
        for region in self.regions.iter().chain([&self.bounce, &self.zeroes, &self.answers]) {
            std::mem::forget(region.clone());
        }
    }
}
