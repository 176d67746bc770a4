//! Tags in use on one channel: which task slot a tag stands for. Open addressing with a fixed
//! capacity; no allocation after start.

use crate::wire::srp::Tag;

/// Why a tag was not taken in.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The tag is in use by this task.
    #[error("the tag is in use by task {0}")]
    InUse(u32),
    /// As many tags as fit are in use: more tasks than credits.
    #[error("more tags than credits")]
    Full,
}

#[derive(Copy, Clone)]
struct Entry {
    tag: Tag,
    task: u32,
    used: bool,
}

/// A table of at most `capacity` tags. Look-up, insertion and removal take constant time for
/// tags that spread; at worst they look at all entries, of which there are twice as many as
/// credits or a little more.
pub struct TagTable {
    entries: Box<[Entry]>,
    capacity: usize,
    len: usize,
}

impl TagTable {
    /// A table for `capacity` tags, all free.
    pub fn new(capacity: usize) -> Self {
        let empty = Entry { tag: Tag::default(), task: 0, used: false };
        let size = (capacity.max(1) * 2).next_power_of_two();
        TagTable { entries: vec![empty; size].into_boxed_slice(), capacity, len: 0 }
    }

    /// Bytes that the table takes on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// How many tags are in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no tag is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The task of `tag`.
    #[inline]
    pub fn get(&self, tag: Tag) -> Option<u32> {
        let entry = &self.entries[self.find(tag)];
        entry.used.then_some(entry.task)
    }

    /// Marks `tag` as used by `task`.
    #[inline]
    pub fn insert(&mut self, tag: Tag, task: u32) -> Result<(), TagError> {
        let at = self.find(tag);
        if self.entries[at].used {
            return Err(TagError::InUse(self.entries[at].task));
        }
        if self.len == self.capacity {
            return Err(TagError::Full);
        }
        self.entries[at] = Entry { tag, task, used: true };
        self.len += 1;
        Ok(())
    }

    /// Frees `tag`; gives the task that it stood for.
    #[inline]
    pub fn remove(&mut self, tag: Tag) -> Option<u32> {
        let mut hole = self.find(tag);
        if !self.entries[hole].used {
            return None;
        }
        let task = self.entries[hole].task;
        // Close the gap, so that a probe never stops too early and no tombstones pile up.
        let mask = self.entries.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.entries[at];
            if !entry.used {
                break;
            }
            let home = self.home(entry.tag);
            // Move the entry back unless its home lies behind the hole.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole].used = false;
        self.len -= 1;
        Some(task)
    }

    /// All tags in use and their tasks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Tag, u32)> {
        self.entries.iter().filter(|entry| entry.used).map(|entry| (entry.tag, entry.task))
    }

    /// Where a probe for `tag` begins: ib_srp counts in the first bytes and puts its hardware
    /// queue into the third, so all bytes are mixed.
    fn home(&self, tag: Tag) -> usize {
        let mixed = u64::from_le_bytes(tag.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.entries.len() - 1)
    }

    /// The entry of `tag`, or the free one where it belongs. Half the entries are always free.
    fn find(&self, tag: Tag) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = self.home(tag);
        while self.entries[at].used && self.entries[at].tag != tag {
            at = (at + 1) & mask;
        }
        at
    }
}

impl std::fmt::Debug for TagTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
