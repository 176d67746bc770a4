//! A slab of fixed capacity with generations: insert and remove in constant time, no allocation
//! after start, and a stale key finds nothing.

use crate::handle::{Handle, MAX_SLOT};

/// Where a value lies in a slab, and which generation of that place it is.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The place, 0..capacity.
    pub slot: u32,
    /// How many values the place held before.
    pub generation: u32,
}

impl Key {
    /// This key as a handle of `kind`.
    pub const fn handle(self, kind: u8) -> Handle {
        Handle::new(kind, self.slot, self.generation)
    }
}

impl From<Handle> for Key {
    fn from(handle: Handle) -> Key {
        Key { slot: handle.slot(), generation: handle.generation() }
    }
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A pool of at most `capacity` values.
pub struct Slab<T> {
    entries: Box<[Entry<T>]>,
    /// Free places, the lowest of those that were never used last.
    free: Vec<u32>,
    /// How many places, from the first, were ever in use: who looks through all values looks no further.
    used: usize,
}

impl<T> Slab<T> {
    /// An empty slab; all its memory is allocated here.
    ///
    /// # Panics
    /// If `capacity` does not fit a [`Handle`]'s slot.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity <= MAX_SLOT as usize + 1, "slab capacity {capacity} is beyond a handle's slot");
        Slab {
            entries: (0..capacity).map(|_| Entry { generation: 0, value: None }).collect(),
            free: (0..capacity as u32).rev().collect(),
            used: 0,
        }
    }

    /// How many values fit.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no value fits any more.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts `value` in; gives it back if the slab is full.
    pub fn insert(&mut self, value: T) -> Result<Key, T> {
        let Some(slot) = self.free.pop() else { return Err(value) };
        let entry = &mut self.entries[slot as usize];
        entry.value = Some(value);
        self.used = self.used.max(slot as usize + 1);
        Ok(Key { slot, generation: entry.generation })
    }

    /// Puts what `make` makes in; `None` if the slab is full. A value of many bytes is made in its place
    /// where it would otherwise be moved there.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> Option<(Key, &mut T)> {
        let slot = self.free.pop()?;
        let entry = &mut self.entries[slot as usize];
        self.used = self.used.max(slot as usize + 1);
        let key = Key { slot, generation: entry.generation };
        Some((key, entry.value.get_or_insert_with(make)))
    }

    /// Drops the value of `key` where it is, as [`remove`](Self::remove) without moving it; whether
    /// there was one.
    #[inline]
    pub fn discard(&mut self, key: Key) -> bool {
        let Some(entry) = self.entries.get_mut(key.slot as usize) else { return false };
        let there = entry.generation == key.generation && entry.value.is_some();
        if there {
            entry.value = None;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(key.slot);
        }
        there
    }

    /// The key that the next [`insert`](Self::insert) will give, so that a value can know it.
    pub fn next_key(&self) -> Option<Key> {
        let slot = *self.free.last()?;
        Some(Key { slot, generation: self.entries[slot as usize].generation })
    }

    /// The value of `key`, if it is still there.
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    /// The value of `key`, if it is still there.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// Takes the value of `key` out; its slot moves on to the next generation.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.slot as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(value)
    }

    /// The key of what is in `slot` now, if anything.
    pub fn key_at(&self, slot: u32) -> Option<Key> {
        let entry = self.entries.get(slot as usize)?;
        entry.value.as_ref().map(|_| Key { slot, generation: entry.generation })
    }

    /// All values with their keys, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries[..self.used].iter().enumerate().filter_map(|(slot, entry)| {
            let key = Key { slot: slot as u32, generation: entry.generation };
            entry.value.as_ref().map(|value| (key, value))
        })
    }

    /// All values with their keys, in slot order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.entries[..self.used].iter_mut().enumerate().filter_map(|(slot, entry)| {
            let key = Key { slot: slot as u32, generation: entry.generation };
            entry.value.as_mut().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::new(1);
        let first = slab.insert('a').unwrap();
        assert_eq!(slab.insert('b'), Err('b'));
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('c').unwrap();
        assert_eq!(first.slot, second.slot);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'c'));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn next_key_tells_the_truth() {
        let mut slab = Slab::new(2);
        let foretold = slab.next_key().unwrap();
        assert_eq!(slab.insert(1), Ok(foretold));
    }
}
