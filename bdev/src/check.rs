//! Whether an operation fits its device and its buffer: what every queue asks before it takes one.

use reactors::memory::Region;

use crate::device::{BlockQueue, Geometry};
use crate::io::{Io, IoError, Op, OpenError, RegionId, SubmitError};

/// The regions that a queue knows. A region's id is its place here.
pub(crate) struct Regions {
    known: Vec<Region>,
}

/// How many regions a queue takes: an arena is one or a few.
pub(crate) const MAX_REGIONS: usize = 256;

impl Regions {
    pub(crate) fn new() -> Regions {
        Regions { known: Vec::with_capacity(MAX_REGIONS) }
    }

    /// The id of `region`, which is added if it is new.
    pub(crate) fn add(&mut self, region: &Region) -> Result<RegionId, OpenError> {
        if let Some(place) = self.known.iter().position(|known| known.same_as(region)) {
            return Ok(RegionId(place as u16));
        }
        if self.known.len() == MAX_REGIONS {
            return Err(OpenError::new(
                "block queue",
                format_args!("no more than {MAX_REGIONS} memory regions; use fewer, larger ones"),
            ));
        }
        self.known.push(region.clone());
        Ok(RegionId((self.known.len() - 1) as u16))
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.known.iter()
    }

    #[inline]
    pub(crate) fn get(&self, id: RegionId) -> Option<&Region> {
        self.known.get(usize::from(id.0))
    }
}

/// The regions of a queue that stands on another one, and what they are called there.
pub(crate) struct Below {
    regions: Regions,
    below: Vec<RegionId>,
}

impl Below {
    pub(crate) fn new() -> Below {
        Below { regions: Regions::new(), below: Vec::with_capacity(MAX_REGIONS) }
    }

    /// Makes `region` known here and to the queue below.
    pub(crate) fn register(
        &mut self,
        base: &mut dyn BlockQueue,
        region: &Region,
    ) -> Result<RegionId, OpenError> {
        let below = base.register(region)?;
        let known = self.regions.len();
        let id = self.regions.add(region)?;
        if usize::from(id.0) == known {
            self.below.push(below);
        }
        Ok(id)
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The name below; what is unknown is unknown there as well.
    #[inline]
    pub(crate) fn below(&self, id: RegionId) -> RegionId {
        self.below.get(usize::from(id.0)).copied().unwrap_or(RegionId(u16::MAX))
    }
}

/// Whether this range is whole blocks of the device.
#[inline]
pub(crate) fn is_within(geometry: &Geometry, offset_bytes: u64, len_bytes: u64) -> bool {
    let mask = u64::from(geometry.block_bytes) - 1;
    let end = offset_bytes.checked_add(len_bytes);
    (offset_bytes | len_bytes) & mask == 0 && end.is_some_and(|end| end <= geometry.len_bytes())
}

/// Checks `io` against the device and the buffer's region. What is valid and yet cannot be done
/// is the error that the operation shall complete with.
#[inline]
pub(crate) fn admit(
    io: &Io,
    geometry: &Geometry,
    regions: &Regions,
) -> Result<Result<(), IoError>, SubmitError> {
    if !is_within(geometry, io.offset_bytes, io.len_bytes) {
        return Err(SubmitError::Invalid);
    }
    if io.op.has_buffer() {
        let len_bytes = u32::try_from(io.len_bytes).map_err(|_| SubmitError::Invalid)? as usize;
        let region = regions.get(io.region).ok_or(SubmitError::Invalid)?;
        region.raw(io.region_offset, len_bytes).map_err(|_| SubmitError::Invalid)?;
    }
    if io.op.is_write() && geometry.read_only {
        return Ok(Err(IoError::ReadOnly));
    }
    let supported = match io.op {
        Op::Unmap => geometry.unmap,
        Op::WriteZeroes => geometry.write_zeroes,
        Op::Read | Op::Write { .. } | Op::Flush => true,
    };
    Ok(if supported { Ok(()) } else { Err(IoError::Unsupported) })
}

/// How many blocks of `block_bytes` a device of `len_bytes` has; says what is wrong with either.
pub(crate) fn blocks_of(what: &str, len_bytes: u64, block_bytes: u32) -> Result<u64, OpenError> {
    check_block_bytes(what, block_bytes)?;
    if len_bytes == 0 {
        return Err(OpenError::new(what, "its size is zero; give it at least one block"));
    }
    let block_bytes = u64::from(block_bytes);
    if !len_bytes.is_multiple_of(block_bytes) {
        let blocks = len_bytes / block_bytes;
        let (down, up) = (blocks * block_bytes, (blocks + 1).saturating_mul(block_bytes));
        let remedy = if blocks == 0 { format!("{up}") } else { format!("{down} or {up}") };
        let why = format!(
            "its size of {len_bytes} bytes is no multiple of the block size of {block_bytes}; make it {remedy} bytes"
        );
        return Err(OpenError::new(what, why));
    }
    Ok(len_bytes / block_bytes)
}

/// Block sizes are 512 and 4096 bytes.
pub(crate) fn check_block_bytes(what: &str, block_bytes: u32) -> Result<(), OpenError> {
    match block_bytes {
        512 | 4096 => Ok(()),
        _ => Err(OpenError::new(what, format_args!("a block size of {block_bytes} bytes; use 512 or 4096"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoId;
    use reactors::memory::PAGE_BYTES;

    fn geometry() -> Geometry {
        Geometry {
            block_bytes: 512,
            blocks: 8,
            physical_block_exponent: 0,
            buffer_align_bytes: 1,
            read_only: false,
            write_cache: false,
            unmap: false,
            unmap_reads_zeroes: false,
            write_zeroes: true,
            rotational: false,
        }
    }

    fn io(op: Op, offset_bytes: u64, len_bytes: u64, region_offset: usize) -> Io {
        Io { id: IoId(1), op, offset_bytes, len_bytes, region: RegionId(0), region_offset }
    }

    #[test]
    fn ranges_and_buffers_are_checked() {
        let mut regions = Regions::new();
        let region = Region::heap(PAGE_BYTES);
        assert_eq!(regions.add(&region).unwrap(), RegionId(0));
        assert_eq!(regions.add(&region.clone()).unwrap(), RegionId(0), "known by its memory");
        let ask = |io: Io| admit(&io, &geometry(), &regions);
        let fua = Op::Write { fua: true };
        assert_eq!(ask(io(Op::Read, 0, 4096, 0)), Ok(Ok(())));
        assert_eq!(ask(io(Op::Read, 512, 4096, 0)), Err(SubmitError::Invalid), "beyond the device");
        assert_eq!(ask(io(Op::Read, 0, 1024, 3584)), Err(SubmitError::Invalid), "beyond the region");
        assert_eq!(ask(io(fua, 100, 512, 0)), Err(SubmitError::Invalid), "offset is no block");
        assert_eq!(ask(io(fua, 0, 100, 0)), Err(SubmitError::Invalid), "length is no block");
        assert_eq!(ask(io(Op::WriteZeroes, u64::MAX - 511, 512, 0)), Err(SubmitError::Invalid), "overflow");
        assert_eq!(ask(Io { region: RegionId(1), ..io(Op::Read, 0, 512, 0) }), Err(SubmitError::Invalid));
        assert_eq!(ask(io(Op::Unmap, 0, 512, 0)), Ok(Err(IoError::Unsupported)));
        let read_only = Geometry { read_only: true, ..geometry() };
        assert_eq!(admit(&io(fua, 0, 512, 0), &read_only, &regions), Ok(Err(IoError::ReadOnly)));
        assert_eq!(admit(&io(Op::Flush, 0, 0, 0), &read_only, &regions), Ok(Ok(())));
    }

    #[test]
    fn sizes_say_what_would_be_right() {
        assert_eq!(blocks_of("disk", 8192, 4096).unwrap(), 2);
        let why = |len_bytes, block_bytes| blocks_of("disk", len_bytes, block_bytes).unwrap_err().to_string();
        assert_eq!(
            why(5000, 4096),
            "disk: its size of 5000 bytes is no multiple of the block size of 4096; make it 4096 or 8192 bytes"
        );
        assert_eq!(
            why(100, 512),
            "disk: its size of 100 bytes is no multiple of the block size of 512; make it 512 bytes"
        );
        assert_eq!(why(0, 512), "disk: its size is zero; give it at least one block");
        assert_eq!(why(1000, 1000), "disk: a block size of 1000 bytes; use 512 or 4096");
    }
}
