//! Memory of the peer: what it has exported to us, mapped here and checked against a table of ours.

use reactors::memory::Region;

use super::socket::Received;
use crate::wire::num::RKey;
use crate::wire::shm::{Export, access};

/// Most regions that a peer may export on one connection; each takes a mapping of our process.
const MAX_EXPORTS: usize = 256;

#[derive(Debug)]
struct Exported {
    export: Export,
    region: Region,
}

/// Why an export of the peer is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadExport {
    #[error("more than {MAX_EXPORTS} memory regions")]
    TooMany,
    #[error("a memory region without its memfd")]
    NoMemfd,
    #[error("a memory region that ends beyond all addresses")]
    Wraps,
    #[error("a memory region: {0}")]
    Shared(#[from] reactors::shared::SharedError),
}

/// The peer's regions by key.
#[derive(Debug, Default)]
pub(super) struct PeerMemory {
    regions: Vec<Exported>,
    /// Where the last look-up found what it looked for.
    last: usize,
}

/// A place in the peer's memory.
#[derive(Debug)]
pub(super) struct PeerPlace<'a> {
    pub(super) region: &'a Region,
    pub(super) offset: usize,
}

impl PeerMemory {
    /// Maps what the peer exports.
    pub(super) fn add(&mut self, export: Export, received: &mut Received) -> Result<(), BadExport> {
        if self.regions.len() == MAX_EXPORTS {
            return Err(BadExport::TooMany);
        }
        let memfd = received.descriptor.take().ok_or(BadExport::NoMemfd)?;
        let len_bytes = usize::try_from(export.len_bytes).map_err(|_| BadExport::Wraps)?;
        export.addr.checked_add(export.len_bytes).ok_or(BadExport::Wraps)?;
        let region = reactors::shared::adopt(memfd, len_bytes)?;
        // A key that is used again names the newer region.
        self.remove(export.rkey);
        self.regions.push(Exported { export, region });
        Ok(())
    }

    /// The peer takes a region back.
    pub(super) fn remove(&mut self, rkey: RKey) {
        self.regions.retain(|exported| exported.export.rkey != rkey);
    }

    /// Where `len_bytes` at `addr` of the region `rkey` are here; `None` if key, right or bounds are
    /// wrong.
    #[inline]
    pub(super) fn place(
        &mut self,
        rkey: RKey,
        addr: u64,
        len_bytes: usize,
        write: bool,
    ) -> Option<PeerPlace<'_>> {
        let has = |exported: &Exported| exported.export.rkey == rkey;
        if !self.regions.get(self.last).is_some_and(has) {
            self.last = self.regions.iter().position(has)?;
        }
        let Exported { export, region } = &self.regions[self.last];
        let right = if write { access::WRITE } else { access::READ };
        let offset = usize::try_from(addr.checked_sub(export.addr)?).ok()?;
        let fits = offset.checked_add(len_bytes)? <= region.len_bytes();
        (fits && export.access & right != 0).then_some(PeerPlace { region, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(table: &mut PeerMemory, export: Export, memory: &Region) -> Result<(), BadExport> {
        let descriptor = memory.memfd().map(|fd| fd.try_clone_to_owned().unwrap());
        table.add(export, &mut Received { len_bytes: 0, descriptor })
    }

    #[test]
    fn key_right_and_bounds_are_checked() {
        let mut table = PeerMemory::default();
        let memory = reactors::shared::create("test", 8192).unwrap();
        let read = Export { rkey: RKey(7), addr: 1 << 40, len_bytes: 8192, access: access::READ };
        export(&mut table, read, &memory).unwrap();
        export(&mut table, Export { rkey: RKey(8), access: access::WRITE, ..read }, &memory).unwrap();
        let place = |table: &mut PeerMemory, rkey, addr, len, write| {
            table.place(RKey(rkey), addr, len, write).map(|place| place.offset)
        };
        let start = read.addr;
        assert_eq!(place(&mut table, 7, start + 8190, 2, false), Some(8190));
        assert_eq!(place(&mut table, 7, start, 8192, false), Some(0));
        assert_eq!(place(&mut table, 7, start, 1, true), None, "right");
        assert_eq!(place(&mut table, 8, start, 1, true), Some(0));
        assert_eq!(place(&mut table, 8, start, 1, false), None, "right");
        assert_eq!(place(&mut table, 9, start, 1, false), None, "key");
        assert_eq!(place(&mut table, 7, start + 8190, 3, false), None, "end");
        assert_eq!(place(&mut table, 7, start - 1, 1, false), None, "start");
        assert_eq!(place(&mut table, 7, u64::MAX, 2, false), None, "wrap");
        assert_eq!(place(&mut table, 7, start, usize::MAX, false), None, "wrap");
        table.remove(RKey(7));
        assert_eq!(place(&mut table, 7, start, 1, false), None, "revoked");
        assert_eq!(place(&mut table, 8, start, 1, true), Some(0));
    }

    #[test]
    fn what_is_not_what_it_says_is_not_taken() {
        let mut table = PeerMemory::default();
        let memory = reactors::shared::create("test", 4096).unwrap();
        let good = Export { rkey: RKey(1), addr: 0, len_bytes: 4096, access: access::READ };
        let longer = Export { len_bytes: 8192, ..good };
        assert!(matches!(export(&mut table, longer, &memory), Err(BadExport::Shared(_))));
        let wraps = Export { addr: u64::MAX - 4095, ..good };
        assert!(matches!(export(&mut table, wraps, &memory), Err(BadExport::Wraps)));
        assert!(matches!(export(&mut table, good, &Region::heap(4096)), Err(BadExport::NoMemfd)));
        for key in 0..MAX_EXPORTS as u32 {
            export(&mut table, Export { rkey: RKey(key), ..good }, &memory).unwrap();
        }
        assert!(matches!(export(&mut table, good, &memory), Err(BadExport::TooMany)));
    }
}
