//! A device that forgets: writes go nowhere, reads give zeroes. What remains is the target's own
//! cost, so it is what the benches serve.
//!
//! SPDK's null device leaves the buffer of a read as it is, which over a network hands one
//! initiator what another one wrote. Ours has zeroes in memory, and reads up to [`ZEROES_BYTES`] are
//! served from there; a buffer that is given to it is cleared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use reactors::memory::{OutOfBounds, Region};
use uuid::Uuid;

use crate::check::blocks_of;
use crate::device::{Bdev, BlockQueue, Geometry};
use crate::instant::{InstantQueue, Medium};
use crate::io::{Io, Op, OpenError};
use crate::stats::{DeviceStats, IoStats};

/// The longest read that needs no buffer, in bytes.
pub const ZEROES_BYTES: usize = 256 << 10;

/// What all null devices of the process read; none if the kernel has no address space left.
static ZEROES: LazyLock<Option<Region>> = LazyLock::new(|| Region::zeroes(ZEROES_BYTES).ok());

/// What a null device shall be.
#[derive(Clone, Debug)]
pub struct NullOptions {
    /// Its size in bytes: a multiple of the block size.
    pub len_bytes: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// Its identity; random if none is given.
    pub uuid: Option<Uuid>,
}

/// The size, which may change while queues are open.
struct Size {
    blocks: AtomicU64,
    generation: AtomicU64,
}

/// A device that forgets.
pub struct NullBdev {
    name: String,
    uuid: Uuid,
    geometry: Geometry,
    size: Arc<Size>,
    stats: DeviceStats,
}

impl NullBdev {
    /// A device of that size; it costs no memory.
    pub fn create(name: &str, options: &NullOptions) -> Result<NullBdev, OpenError> {
        let blocks = blocks_of(name, options.len_bytes, options.block_bytes)?;
        let geometry = Geometry {
            block_bytes: options.block_bytes,
            blocks,
            physical_block_exponent: 0,
            buffer_align_bytes: 1,
            read_only: options.read_only,
            write_cache: false,
            unmap: true,
            unmap_reads_zeroes: true,
            write_zeroes: true,
            rotational: false,
        };
        let size = Arc::new(Size { blocks: AtomicU64::new(blocks), generation: AtomicU64::new(0) });
        let uuid = options.uuid.unwrap_or_else(Uuid::new_v4);
        Ok(NullBdev { name: name.to_owned(), uuid, geometry, size, stats: DeviceStats::default() })
    }
}

impl Bdev for NullBdev {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> &'static str {
        "Null disk"
    }

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.size.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    fn generation(&self) -> u64 {
        self.size.generation.load(Ordering::Acquire)
    }

    fn resize(&self, blocks: u64) -> Result<Geometry, OpenError> {
        let block_bytes = u64::from(self.geometry.block_bytes);
        let Some(len_bytes) = blocks.checked_mul(block_bytes) else {
            let most = u64::MAX / block_bytes;
            return Err(OpenError::new(
                &self.name,
                format_args!("{blocks} blocks; at most {most} can be addressed"),
            ));
        };
        blocks_of(&self.name, len_bytes, self.geometry.block_bytes)?;
        self.size.blocks.store(blocks, Ordering::Release);
        self.size.generation.fetch_add(1, Ordering::Release);
        Ok(self.geometry())
    }

    fn stats(&self) -> IoStats {
        self.stats.read()
    }

    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        let (size, zeroes) = (Arc::clone(&self.size), ZEROES.clone());
        let medium = Nothing { geometry: self.geometry, size, zeroes };
        Ok(Box::new(InstantQueue::new(medium, depth, self.stats.open_queue())))
    }
}

struct Nothing {
    /// But for the size.
    geometry: Geometry,
    size: Arc<Size>,
    zeroes: Option<Region>,
}

impl Medium for Nothing {
    #[inline]
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.size.blocks.load(Ordering::Relaxed), ..self.geometry }
    }

    fn memory(&self) -> Option<&Region> {
        self.zeroes.as_ref()
    }

    #[inline]
    fn place(&self, _offset_bytes: u64) -> usize {
        0
    }

    #[inline]
    fn execute(&self, io: &Io, buffer: Option<&Region>) -> Result<(), OutOfBounds> {
        match (io.op, buffer) {
            (Op::Read, Some(buffer)) => buffer.fill(io.region_offset, io.len_bytes as usize, 0),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SubmitError;
    use crate::testing::Driver;

    fn device() -> NullBdev {
        NullBdev::create(
            "n0",
            &NullOptions { len_bytes: 8192, block_bytes: 512, read_only: false, uuid: None },
        )
        .unwrap()
    }

    #[test]
    fn a_read_leaves_nothing_of_what_the_buffer_held() {
        let device = device();
        let mut driver = Driver::open(&device, 4);
        driver.write(0, &[0xaa; 4096]).unwrap();
        assert_eq!(driver.read(0, 4096).unwrap(), [0; 4096]);
    }

    #[test]
    fn reads_in_place_are_of_zeroes_that_all_share() {
        let (device, other) = (device(), device());
        let mut driver = Driver::open(&device, 4);
        let queue = driver.queue();
        assert_eq!(queue.read_in_place(4096, 4096), Some(0));
        let zeroes = queue.memory().unwrap();
        assert_eq!(zeroes.with_bytes(0, ZEROES_BYTES, |bytes| bytes.iter().all(|&byte| byte == 0)), Ok(true));
        assert!(Driver::open(&other, 4).queue().memory().unwrap().same_as(zeroes));
        assert_eq!(queue.read_in_place(4096, 8192), None, "beyond the device");
        device.resize(1 << 20).unwrap();
        assert!(queue.read_in_place(4096, ZEROES_BYTES as u64).is_some());
        assert_eq!(queue.read_in_place(4096, ZEROES_BYTES as u64 + 512), None, "longer than the zeroes");
        assert_eq!(device.stats().of(crate::OpKind::Read).ops, 2);
    }

    #[test]
    fn resizing_shows_in_open_queues_and_counts_a_generation() {
        let device = device();
        let mut driver = Driver::open(&device, 4);
        assert_eq!(driver.try_submit(Op::Read, 8192, 512), Err(SubmitError::Invalid));
        assert_eq!(device.resize(32).unwrap().blocks, 32);
        assert_eq!(device.generation(), 1);
        driver.read(8192, 512).unwrap();
        assert!(device.resize(0).is_err());
        let beyond = device.resize(u64::MAX / 2).unwrap_err().to_string();
        assert_eq!(beyond, "n0: 9223372036854775807 blocks; at most 36028797018963967 can be addressed");
        assert_eq!(
            (device.geometry().blocks, device.generation()),
            (32, 1),
            "a refused size changes nothing"
        );
    }
}
