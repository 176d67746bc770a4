//! The logical units as one shard has them open: a block queue each, what SCSI says of it, and
//! the tasks that wait there.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bdev::{BlockQueue, OpenError, RegionId};
use reactors::memory::Region;
use reactors::slab::{Key, Slab};

use super::lent::{InPlace, Lent};
use super::limits::{CHUNK_BYTES, MAX_TRANSFER_BYTES};
use super::snapshot::{LunEntry, MAX_LUN, Snapshot};
use super::stages::{StageReading, Stages};
use crate::scsi::{LunInfo, Naa};
use crate::wire::scsi::inquiry::ascii_field;
use crate::wire::scsi::lun::Lun;

/// Operations that one shard has at one block device at most; what exceeds it waits.
pub const QUEUE_DEPTH: usize = 256;
/// Most logical units of a target.
pub const MAX_LUNS: usize = 1024;

/// A logical unit on this shard.
pub struct OpenLun {
    /// What the configuration says.
    pub entry: LunEntry,
    /// What SCSI says.
    pub info: LunInfo,
    /// The device's generation that `info` is of.
    generation: u64,
    /// This shard's way to the device.
    pub queue: Box<dyn BlockQueue>,
    /// The data pool, as the queue knows it.
    pub pool_region: RegionId,
    /// The receive slots, as the queue knows them.
    pub slot_region: RegionId,
    /// The device's own memory, if reads can go from there.
    pub lent: Option<Rc<Lent>>,
    /// Alignment of buffers that the device takes without a copy of its own, in bytes.
    pub buffer_align_bytes: usize,
    /// Tasks whose operation the queue had no room for, oldest first.
    pub waiting: VecDeque<Key>,
    /// Tasks whose write waits for a fence, oldest first.
    pub held: VecDeque<Key>,
    /// How long its commands were in which stage.
    pub stages: Stages,
    /// Tasks that name this LUN.
    pub tasks: u32,
    /// The configuration has it no more: it goes when its last task has ended.
    pub retired: bool,
    /// It stands in [`Luns::busy`].
    listed: bool,
}

impl OpenLun {
    /// Whether tasks wait for room in the queue and no completion will make some: a device may
    /// say for reasons of its own that it is full.
    pub fn is_stuck(&self) -> bool {
        !self.waiting.is_empty() && self.queue.in_flight() == 0
    }

    /// Where what a read asks for lies in memory already, if it does: then it needs no block operation.
    #[inline]
    pub fn read_in_place(&mut self, offset_bytes: u64, len_bytes: u64) -> Option<InPlace> {
        let memory = self.lent.as_ref()?;
        let offset = self.queue.read_in_place(offset_bytes, len_bytes)?;
        Some(InPlace { memory: Rc::clone(memory), offset })
    }

    /// Whether a turn has nothing to look for here.
    fn is_at_rest(&self) -> bool {
        self.queue.in_flight() == 0 && self.held.is_empty() && self.waiting.is_empty()
    }
}

/// All logical units of this shard.
pub struct Luns {
    open: Slab<OpenLun>,
    /// Which of the open ones a LUN number means now.
    by_number: Box<[Option<Key>]>,
    numbers: Vec<u16>,
    /// Those that a turn has to look at; a key may be stale.
    busy: Vec<Key>,
    epoch: u64,
}

/// What a new configuration changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Logical units came or went.
    pub inventory: bool,
    /// LUNs whose capacity is another now, or of whose medium more or less is there than before.
    pub resized: Vec<u16>,
}

impl Default for Luns {
    fn default() -> Self {
        Luns {
            // Twice, since a removed one may linger while its successor is open.
            open: Slab::new(2 * MAX_LUNS),
            by_number: vec![None; usize::from(MAX_LUN) + 1].into(),
            numbers: Vec::new(),
            busy: Vec::with_capacity(2 * MAX_LUNS),
            epoch: 0,
        }
    }
}

impl Luns {
    /// The LUN of this number, if the target has it.
    #[inline]
    pub fn find(&self, lun: u16) -> Option<Key> {
        *self.by_number.get(usize::from(lun))?
    }

    /// An open LUN.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&OpenLun> {
        self.open.get(key)
    }

    /// An open LUN.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut OpenLun> {
        self.open.get_mut(key)
    }

    /// All open LUNs, retired ones too.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut OpenLun)> {
        self.open.iter_mut()
    }

    /// All open LUNs, retired ones too.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &OpenLun)> {
        self.open.iter()
    }

    /// An open LUN that is about to have something at its block device, or in line for it: turns look
    /// at it from now until it is [at rest](Self::rest).
    #[inline]
    pub fn get_to_submit(&mut self, key: Key) -> Option<&mut OpenLun> {
        let lun = self.open.get_mut(key)?;
        if !lun.listed {
            lun.listed = true;
            self.busy.push(key);
        }
        Some(lun)
    }

    /// The busy LUN number `at`; none behind the last one.
    #[inline]
    pub fn busy_at(&mut self, at: usize) -> Option<(Key, &mut OpenLun)> {
        // A LUN that is closed is at rest, and may have left its key here.
        while self.open.get(*self.busy.get(at)?).is_none() {
            self.busy.swap_remove(at);
        }
        let key = *self.busy.get(at)?;
        Some((key, self.open.get_mut(key)?))
    }

    /// The busy LUN number `at` was looked at: if it has nothing left, another one has its number, or
    /// none, and this is true.
    #[inline]
    pub fn rest(&mut self, at: usize) -> bool {
        let lun = self.busy.get(at).and_then(|&key| self.open.get_mut(key));
        let rests = lun.is_none_or(|lun| {
            lun.listed = !lun.is_at_rest();
            !lun.listed
        });
        if rests && at < self.busy.len() {
            self.busy.swap_remove(at);
        }
        rests
    }

    /// The busy LUNs.
    pub fn busy(&self) -> impl Iterator<Item = &OpenLun> {
        self.busy.iter().filter_map(|&key| self.open.get(key))
    }

    /// Changes whenever a queue was opened or closed.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The LUN numbers of the target, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = Lun> + '_ {
        self.numbers.iter().filter_map(|&number| Lun::new(number))
    }

    /// Makes the open LUNs those of `snapshot`: opens what is new, retires what is gone, takes
    /// over what changed. On an error nothing has changed. `lend` makes memory of a device known to
    /// RDMA, if it can.
    pub fn apply(
        &mut self,
        snapshot: &Snapshot,
        pool: &Region,
        slots: &Region,
        mut lend: impl FnMut(&LunEntry, &Region) -> Option<Rc<Lent>>,
    ) -> Result<Changes, OpenError> {
        let stays = |open: &OpenLun, entry: &LunEntry| Arc::ptr_eq(&open.entry.bdev, &entry.bdev);
        let mut opened = Vec::new();
        for entry in &snapshot.luns {
            let old = self.find(entry.lun).and_then(|key| self.open.get(key));
            if !old.is_some_and(|old| stays(old, entry)) {
                opened.push(open_lun(entry, pool, slots, &mut lend)?);
            }
        }
        if opened.len() > self.open.capacity() - self.open.len() {
            let why = format!("{} logical units are open already", self.open.len());
            return Err(OpenError { what: "another logical unit".to_owned(), why });
        }
        let mut changes = Changes::default();
        for number in std::mem::take(&mut self.numbers) {
            let Some(key) = self.find(number) else { continue };
            let Some(open) = self.open.get_mut(key) else { continue };
            match snapshot.lun(number).filter(|entry| stays(open, entry)) {
                Some(entry) => {
                    // Read first: what changes after it is seen by the next snapshot.
                    let generation = entry.bdev.generation();
                    let info = info(entry);
                    let capacity = |info: &LunInfo| (info.blocks, info.block_bytes);
                    if generation != open.generation || capacity(&info) != capacity(&open.info) {
                        changes.resized.push(number);
                    }
                    open.generation = generation;
                    open.info = info;
                    open.entry = entry.clone();
                }
                None => {
                    open.retired = true;
                    changes.inventory = true;
                    self.by_number[usize::from(number)] = None;
                }
            }
        }
        for open in opened {
            let number = usize::from(open.entry.lun);
            if let Ok(key) = self.open.insert(open) {
                self.by_number[number] = Some(key);
                changes.inventory = true;
            }
        }
        self.epoch += 1;
        self.numbers = snapshot.luns.iter().map(|entry| entry.lun).collect();
        self.sweep();
        Ok(changes)
    }

    /// What was recorded of the stages of commands on the LUNs of the configuration, of one or of all;
    /// counts begin anew if `reset`.
    pub fn read_stages(&mut self, lun: Option<u16>, reset: bool) -> Vec<StageReading> {
        let wanted = |open: &OpenLun| !open.retired && lun.is_none_or(|lun| lun == open.entry.lun);
        let open = self.open.iter_mut().map(|(_, open)| open).filter(|open| wanted(open));
        open.flat_map(|open| open.stages.read(open.entry.lun, reset)).collect()
    }

    /// Whether a LUN that the configuration has no more is still in use.
    pub fn has_retired(&self) -> bool {
        self.open.iter().any(|(_, open)| open.retired)
    }

    /// Closes retired LUNs that nothing uses any more.
    pub fn sweep(&mut self) {
        let over = |open: &OpenLun| open.retired && open.tasks == 0 && open.queue.in_flight() == 0;
        let gone: Vec<Key> = self.open.iter().filter(|(_, open)| over(open)).map(|(key, _)| key).collect();
        for key in gone {
            self.epoch += 1;
            self.open.remove(key);
        }
    }
}

fn open_lun(
    entry: &LunEntry,
    pool: &Region,
    slots: &Region,
    lend: impl FnOnce(&LunEntry, &Region) -> Option<Rc<Lent>>,
) -> Result<OpenLun, OpenError> {
    let mut queue = entry.bdev.open_queue(QUEUE_DEPTH)?;
    let pool_region = queue.register(pool)?;
    let slot_region = queue.register(slots)?;
    Ok(OpenLun {
        generation: entry.bdev.generation(),
        info: info(entry),
        entry: entry.clone(),
        lent: queue.memory().and_then(|region| lend(entry, region)),
        queue,
        pool_region,
        slot_region,
        buffer_align_bytes: (entry.bdev.geometry().buffer_align_bytes as usize).max(1),
        waiting: VecDeque::new(),
        held: VecDeque::new(),
        stages: Stages::default(),
        tasks: 0,
        retired: false,
        listed: false,
    })
}

fn info(entry: &LunEntry) -> LunInfo {
    let geometry = entry.bdev.geometry();
    LunInfo {
        block_bytes: geometry.block_bytes,
        blocks: geometry.blocks,
        physical_block_exponent: geometry.physical_block_exponent,
        read_only: entry.read_only || geometry.read_only,
        write_cache: geometry.write_cache,
        unmap: geometry.unmap,
        unmap_reads_zeroes: geometry.unmap_reads_zeroes,
        rotational: geometry.rotational,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        optimal_transfer_bytes: CHUNK_BYTES as u32,
        product: ascii_field(entry.bdev.product()),
        serial: entry.serial.clone(),
        naa: Naa::locally_assigned(entry.naa),
    }
}

#[cfg(test)]
mod tests {
    use bdev::Bdev;
    use bdev::delay::{DelayBdev, Hold};
    use bdev::null::{NullBdev, NullOptions};
    use uuid::Uuid;

    use super::*;
    use crate::target::fence::Fences;
    use crate::target::limits::Limits;

    fn null(uuid: u128) -> Arc<dyn Bdev> {
        let uuid = Some(Uuid::from_u128(uuid));
        let options = NullOptions { len_bytes: 1 << 20, block_bytes: 512, read_only: false, uuid };
        Arc::new(NullBdev::create("n", &options).unwrap())
    }

    fn snapshot(luns: &[(u16, &Arc<dyn Bdev>)]) -> Snapshot {
        let luns = luns.iter().map(|&(lun, bdev)| LunEntry {
            lun,
            bdev: Arc::clone(bdev),
            naa: 0x3000_0000_0000_0001,
            serial: "1".to_owned(),
            uuid: bdev.uuid(),
            read_only: false,
            fences: Arc::new(Fences::default()),
        });
        Snapshot { luns: luns.collect(), ..Snapshot::empty(Limits::default()) }
    }

    #[test]
    fn a_size_that_changed_below_a_wrapper_is_seen_once() {
        let (pool, slots) = (Region::heap(4096), Region::heap(4096));
        let base = null(1);
        let over: Arc<dyn Bdev> = Arc::new(DelayBdev::new("d", Arc::clone(&base), Hold::After));
        let other = null(2);
        let snapshot = snapshot(&[(0, &over), (7, &other)]);
        let mut luns = Luns::default();
        let mut apply = |snapshot: &Snapshot| luns.apply(snapshot, &pool, &slots, |_, _| None).unwrap();
        assert_eq!(apply(&snapshot), Changes { inventory: true, resized: vec![] });
        assert_eq!(apply(&snapshot), Changes::default());
        base.resize(4096).unwrap();
        assert_eq!(apply(&snapshot), Changes { inventory: false, resized: vec![0] });
        assert_eq!(apply(&snapshot), Changes::default());
        let key = luns.find(0).unwrap();
        assert_eq!(luns.get(key).unwrap().info.blocks, 4096);
    }

    #[test]
    fn a_turn_looks_where_something_is_going_on() {
        let (pool, slots) = (Region::heap(4096), Region::heap(4096));
        let mut luns = Luns::default();
        let all: Vec<_> = (1..4).map(null).collect();
        luns.apply(&snapshot(&[(0, &all[0]), (1, &all[1]), (2, &all[2])]), &pool, &slots, |_, _| None)
            .unwrap();
        let keys = [0, 1, 2].map(|lun| luns.find(lun).unwrap());
        assert!(luns.busy_at(0).is_none());
        for key in [keys[0], keys[2], keys[0]] {
            let lun = luns.get_to_submit(key).unwrap();
            let (op, id) =
                (bdev::Op::Read, bdev::IoId(u64::from(key.slot) << 8 | lun.queue.in_flight() as u64));
            let (region, region_offset) = (lun.pool_region, 0);
            lun.queue
                .submit(bdev::Io { id, op, offset_bytes: 0, len_bytes: 512, region, region_offset })
                .unwrap();
        }
        assert_eq!(luns.busy().count(), 2, "none stands there twice");
        luns.get_to_submit(keys[1]).unwrap().waiting.push_back(keys[1]);
        // The first has one of its two operations left, the others nothing.
        let mut completions = Vec::with_capacity(1);
        let (first, lun) = luns.busy_at(0).unwrap();
        lun.queue.poll(reactors::time::Time::ZERO, &mut completions);
        assert_eq!((first, completions.len()), (keys[0], 1));
        assert!(!luns.rest(0), "it has more");
        let (second, lun) = luns.busy_at(1).unwrap();
        lun.queue.poll(reactors::time::Time::ZERO, &mut Vec::with_capacity(9));
        assert_eq!(second, keys[2]);
        assert!(luns.rest(1), "it has no more");
        let (third, lun) = luns.busy_at(1).unwrap();
        assert_eq!(third, keys[1]);
        lun.waiting.clear();
        // It is closed, whatever stands in the list.
        luns.apply(&snapshot(&[(0, &all[0])]), &pool, &slots, |_, _| None).unwrap();
        assert!(luns.get(keys[1]).is_none() && luns.busy_at(1).is_none());
        assert_eq!(luns.busy().count(), 1);
    }

    #[test]
    fn logical_units_that_come_and_go_change_the_inventory() {
        let (pool, slots) = (Region::heap(4096), Region::heap(4096));
        let (one, two) = (null(1), null(2));
        let mut luns = Luns::default();
        let mut apply = |shown: &[(u16, &Arc<dyn Bdev>)]| {
            luns.apply(&snapshot(shown), &pool, &slots, |_, _| None).unwrap().inventory
        };
        assert!(apply(&[(0, &one)]));
        assert!(apply(&[(0, &one), (1, &two)]));
        assert!(!apply(&[(0, &one), (1, &two)]));
        assert!(apply(&[(1, &two)]));
        assert!(apply(&[(1, &one)]), "another device of the same number");
    }
}
