//! A disk in memory: for tests, demonstrations, and data that may go with the process.
//!
//! Memory is taken as blocks are written; unmapped blocks give it back. Operations are done when
//! they are submitted, so nothing is ever cancelled and a flush has nothing to do. Threads that
//! write one block at the same time leave either's bytes there, or some of both. Reads can be served from
//! the disk's own memory, and then see what is written before their bytes are sent.

use reactors::memory::{OutOfBounds, Region};
use uuid::Uuid;

use crate::check::blocks_of;
use crate::device::{Bdev, BlockQueue, Geometry};
use crate::instant::{InstantQueue, Medium};
use crate::io::{Io, Op, OpenError};
use crate::stats::{DeviceStats, IoStats};

/// What a memory disk shall be.
#[derive(Clone, Debug)]
pub struct MallocOptions {
    /// Its size in bytes: a multiple of the block size.
    pub len_bytes: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_bytes: u32,
    /// Refuse writes. The disk reads as zeroes.
    pub read_only: bool,
    /// Its identity; random if none is given, since the data is new too.
    pub uuid: Option<Uuid>,
}

/// A disk in memory.
pub struct MallocBdev {
    name: String,
    uuid: Uuid,
    geometry: Geometry,
    data: Region,
    stats: DeviceStats,
}

impl MallocBdev {
    /// A disk of zeroes.
    pub fn create(name: &str, options: &MallocOptions) -> Result<MallocBdev, OpenError> {
        let len_bytes = options.len_bytes;
        let blocks = blocks_of(name, len_bytes, options.block_bytes)?;
        let too_large = |error: &dyn std::fmt::Display| {
            let why =
                format!("no address space for a memory disk of {len_bytes} bytes ({error}); make it smaller");
            OpenError::new(name, why)
        };
        let len = usize::try_from(len_bytes).map_err(|error| too_large(&error))?;
        let data = Region::anonymous(len).map_err(|error| too_large(&error))?;
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
        let uuid = options.uuid.unwrap_or_else(Uuid::new_v4);
        Ok(MallocBdev { name: name.to_owned(), uuid, geometry, data, stats: DeviceStats::default() })
    }
}

impl Bdev for MallocBdev {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> &'static str {
        "Malloc disk"
    }

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn stats(&self) -> IoStats {
        self.stats.read()
    }

    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        let medium = Memory { geometry: self.geometry, data: self.data.clone() };
        Ok(Box::new(InstantQueue::new(medium, depth, self.stats.open_queue())))
    }
}

struct Memory {
    geometry: Geometry,
    data: Region,
}

impl Medium for Memory {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn memory(&self) -> Option<&Region> {
        Some(&self.data)
    }

    #[inline]
    fn place(&self, offset_bytes: u64) -> usize {
        // What lies beyond the address space lies beyond the disk, too.
        usize::try_from(offset_bytes).unwrap_or(usize::MAX)
    }

    #[inline]
    fn execute(&self, io: &Io, buffer: Option<&Region>) -> Result<(), OutOfBounds> {
        // The device was mapped with its length as a `usize`, and `io` lies within it.
        let (at, len) = (io.offset_bytes as usize, io.len_bytes as usize);
        match (io.op, buffer) {
            (Op::Read, Some(buffer)) => self.data.copy_to(at, buffer, io.region_offset, len),
            (Op::Write { .. }, Some(buffer)) => buffer.copy_to(io.region_offset, &self.data, at, len),
            (Op::Unmap | Op::WriteZeroes, _) => self.data.clear(at, len),
            (Op::Flush | Op::Read | Op::Write { .. }, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Driver;

    fn disk(len_bytes: u64) -> Result<MallocBdev, OpenError> {
        MallocBdev::create("m0", &MallocOptions { len_bytes, block_bytes: 512, read_only: false, uuid: None })
    }

    #[test]
    fn gigabytes_cost_nothing_until_written() {
        let disk = disk(2 << 30).unwrap();
        let mut driver = Driver::open(&disk, 4);
        let far = (2 << 30) - 4096;
        driver.write(far, &[7; 4096]).unwrap();
        assert_eq!(driver.read(far, 4096).unwrap(), [7; 4096]);
        driver.run(Op::Unmap, 0, 2 << 30).unwrap();
        assert_eq!(driver.read(far, 4096).unwrap(), [0; 4096]);
    }

    #[test]
    fn reads_in_place_see_the_disk_and_count() {
        let disk = disk(1 << 20).unwrap();
        let mut driver = Driver::open(&disk, 4);
        driver.write(4096, &[7; 1024]).unwrap();
        let queue = driver.queue();
        let place = queue.read_in_place(4096, 1024).unwrap();
        let memory = queue.memory().unwrap().clone();
        let bytes = || memory.with_bytes(place, 1024, <[u8]>::to_vec).unwrap();
        assert_eq!(bytes(), [7; 1024]);
        assert_eq!(queue.read_in_place((1 << 20) - 512, 1024), None, "beyond the disk");
        assert_eq!(queue.read_in_place(u64::MAX - 511, 512), None, "overflow");
        assert_eq!(queue.read_in_place(100, 512), None, "no block");
        assert_eq!(queue.in_flight(), 0);
        let reads = *disk.stats().of(crate::OpKind::Read);
        assert_eq!((reads.ops, reads.bytes, reads.errors), (1, 1024, 0));
        driver.run(Op::Unmap, 0, 1 << 20).unwrap();
        drop((driver, disk));
        assert_eq!(bytes(), [0; 1024], "who reads keeps the memory");
    }

    #[test]
    fn a_size_that_no_machine_has_is_an_error_that_says_so() {
        let error = disk(1 << 60).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("m0: no address space for a memory disk of 1152921504606846976 bytes"),
            "{error}"
        );
    }

    #[test]
    fn threads_see_one_disk() {
        let disk = disk(1 << 20).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let disk = &disk;
                scope.spawn(move || {
                    let mut driver = Driver::open(disk, 4);
                    driver.write(u64::from(thread) * 512, &[thread + 1; 512]).unwrap();
                });
            }
        });
        let all = Driver::open(&disk, 1).read(0, 2048).unwrap();
        assert!((0..4).all(|thread| all[thread * 512..][..512] == [thread as u8 + 1; 512]));
        assert_eq!(disk.stats().of(crate::OpKind::Write).bytes, 2048);
    }
}
