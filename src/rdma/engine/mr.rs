//! Memory regions: keys to memory, with domain, rights and bounds.

use reactors::memory::Region;
use reactors::slab::{Key, Slab};

use crate::rdma::verbs::{Access, MrKeys, PdId, VerbsError};
use crate::wire::num::{LKey, RKey};

/// Bits of a key that tell its slot; the rest is random.
const SLOT_BITS: u32 = 16;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

struct Mr {
    pd: PdId,
    region: Region,
    access: Access,
    keys: MrKeys,
}

/// A place in a region, as a key and an address name it.
pub(crate) struct Place<'a> {
    pub(crate) region: &'a Region,
    pub(crate) offset: usize,
}

/// All memory regions of an engine. A key holds its slot in the low 16 bits, so that look-up is
/// one index and one comparison.
pub(crate) struct MrTable {
    slots: Slab<Mr>,
}

impl MrTable {
    pub(crate) fn new(capacity: u32) -> Self {
        assert!(capacity <= 1 << SLOT_BITS, "at most 2^16 memory regions");
        MrTable { slots: Slab::new(capacity as usize) }
    }

    pub(crate) fn register(
        &mut self,
        pd: PdId,
        region: &Region,
        access: Access,
        rng: &mut fastrand::Rng,
    ) -> Result<MrKeys, VerbsError> {
        let Some(key) = self.slots.next_key() else { return Err(VerbsError::Exhausted("memory region")) };
        // Never zero above the slot: key 0 means "no key" to many.
        let mut random = || rng.u32(1..1 << (32 - SLOT_BITS)) << SLOT_BITS | key.slot;
        let lkey = random();
        let rkey = std::iter::repeat_with(random).find(|key| *key != lkey).unwrap_or_default();
        let keys = MrKeys { lkey: LKey(lkey), rkey: RKey(rkey) };
        let mr = Mr { pd, region: region.clone(), access, keys };
        self.slots.insert(mr).map_err(|_| VerbsError::Exhausted("memory region"))?;
        Ok(keys)
    }

    pub(crate) fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        let not_found = VerbsError::NotFound("memory region");
        let key = self.slot(lkey.0).ok_or(not_found.clone())?;
        match self.slots.get(key) {
            Some(mr) if mr.keys.lkey == lkey => {
                self.slots.remove(key);
                Ok(())
            }
            _ => Err(not_found),
        }
    }

    /// The regions of a domain.
    pub(crate) fn of(&self, pd: PdId) -> impl Iterator<Item = (MrKeys, &Region, Access)> {
        let of_pd = self.slots.iter().map(|(_, mr)| mr).filter(move |mr| mr.pd == pd);
        of_pd.map(|mr| (mr.keys, &mr.region, mr.access))
    }

    /// The domain and the keys of a region of ours.
    pub(crate) fn find(&self, lkey: LKey) -> Option<(PdId, MrKeys)> {
        let mr = self.slots.get(self.slot(lkey.0)?)?;
        (mr.keys.lkey == lkey).then_some((mr.pd, mr.keys))
    }

    fn slot(&self, key: u32) -> Option<Key> {
        self.slots.key_at(key & SLOT_MASK)
    }

    /// Local memory of a work request; `None` if key, domain, right or bounds are wrong.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len_bytes: usize,
        write: bool,
    ) -> Option<Place<'_>> {
        let mr = self.slots.get(self.slot(lkey.0)?)?;
        (mr.keys.lkey == lkey && (mr.access.local_write || !write)).then_some(())?;
        mr.place(pd, addr, len_bytes)
    }

    /// Memory that a peer names for RDMA WRITE (`write`) or READ; `None` as above.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len_bytes: usize,
        write: bool,
    ) -> Option<Place<'_>> {
        let mr = self.slots.get(self.slot(rkey.0)?)?;
        let right = if write { mr.access.remote_write } else { mr.access.remote_read };
        (mr.keys.rkey == rkey && right).then_some(())?;
        mr.place(pd, addr, len_bytes)
    }
}

impl Mr {
    #[inline]
    fn place(&self, pd: PdId, addr: u64, len_bytes: usize) -> Option<Place<'_>> {
        let offset = usize::try_from(addr.checked_sub(self.region.addr())?).ok()?;
        let fits = self.pd == pd && offset.checked_add(len_bytes)? <= self.region.len_bytes();
        fits.then_some(Place { region: &self.region, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(Key { slot: 0, generation: 0 });
    const OTHER_PD: PdId = PdId(Key { slot: 1, generation: 0 });

    #[test]
    fn keys_domain_rights_and_bounds_are_checked() {
        let mut table = MrTable::new(4);
        let mut rng = fastrand::Rng::with_seed(1);
        let region = Region::heap(8192);
        let start = region.addr();
        let keys = table.register(PD, &region, Access::LOCAL, &mut rng).unwrap();
        assert!(table.local(PD, keys.lkey, start, 8192, true).is_some());
        assert_eq!(table.local(PD, keys.lkey, start + 8190, 2, true).unwrap().offset, 8190);
        assert!(table.local(PD, keys.lkey, start + 8190, 3, true).is_none(), "end");
        assert!(table.local(PD, keys.lkey, start - 1, 1, true).is_none(), "start");
        assert!(table.local(PD, keys.lkey, u64::MAX, 2, true).is_none(), "wrap");
        assert!(table.local(OTHER_PD, keys.lkey, start, 1, false).is_none(), "domain");
        assert!(table.local(PD, LKey(keys.lkey.0 ^ 1 << 31), start, 1, false).is_none(), "key");
        assert!(table.local(PD, LKey(keys.lkey.0 ^ 3), start, 1, false).is_none(), "slot");
        assert!(table.remote(PD, keys.rkey, start, 1, false).is_none(), "remote read");
        assert!(table.remote(PD, keys.rkey, start, 1, true).is_none(), "remote write");
    }

    #[test]
    fn rights_are_apart_and_a_dead_key_stays_dead() {
        let mut table = MrTable::new(1);
        let mut rng = fastrand::Rng::with_seed(2);
        let region = Region::heap(4096);
        let read_only = Access { local_write: false, remote_write: false, remote_read: true };
        let keys = table.register(PD, &region, read_only, &mut rng).unwrap();
        assert!(table.remote(PD, keys.rkey, region.addr(), 4096, false).is_some());
        assert!(table.remote(PD, keys.rkey, region.addr(), 1, true).is_none());
        assert!(table.local(PD, keys.lkey, region.addr(), 1, false).is_some());
        assert!(table.local(PD, keys.lkey, region.addr(), 1, true).is_none());
        assert_eq!(
            table.register(PD, &region, read_only, &mut rng),
            Err(VerbsError::Exhausted("memory region"))
        );
        table.deregister(keys.lkey).unwrap();
        assert_eq!(table.deregister(keys.lkey), Err(VerbsError::NotFound("memory region")));
        let newer = table.register(PD, &region, read_only, &mut rng).unwrap();
        assert!(table.remote(PD, keys.rkey, region.addr(), 1, false).is_none());
        assert!(table.remote(PD, newer.rkey, region.addr(), 1, false).is_some());
    }
}
