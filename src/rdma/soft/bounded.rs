//! Small maps of fixed capacity, for what can be computed again: when one is full, it forgets.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A fast hash for addresses and ports. An attacker who makes collisions makes a lookup among
/// [`Bounded::CAPACITY`] entries slow, and no more than that.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// A map that gives each key a small number, and keeps a value by that number.
pub(super) struct Bounded<K, V> {
    numbers: HashMap<K, u32, BuildHasherDefault<Mix>>,
    values: Vec<V>,
    /// The last lookup: packets come in runs.
    last: Option<(K, u32)>,
}

impl<K: Copy + Eq + Hash, V> Bounded<K, V> {
    /// How many entries fit.
    pub(super) const CAPACITY: usize = 1024;

    pub(super) fn new() -> Self {
        Bounded {
            numbers: HashMap::with_capacity_and_hasher(Self::CAPACITY, Default::default()),
            values: Vec::with_capacity(Self::CAPACITY),
            last: None,
        }
    }

    /// The number of `key`; a new entry is made with `make`, which may decline.
    #[inline]
    pub(super) fn number_of(&mut self, key: K, make: impl FnOnce() -> Option<V>) -> Option<usize> {
        if let Some((last, number)) = self.last
            && last == key
        {
            return Some(number as usize);
        }
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => {
                let value = make()?;
                if self.is_full() {
                    self.clear();
                }
                let number = self.values.len() as u32;
                self.values.push(value);
                self.numbers.insert(key, number);
                number
            }
        };
        self.last = Some((key, number));
        Some(number as usize)
    }

    /// Whether the next new key makes it forget all others.
    pub(super) fn is_full(&self) -> bool {
        self.values.len() == Self::CAPACITY
    }

    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.values.clear();
        self.last = None;
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> &V {
        &self.values[number]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> &mut V {
        &mut self.values[number]
    }

    pub(super) fn values(&self) -> &[V] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_when_full_and_never_grows() {
        let mut map: Bounded<u32, u32> = Bounded::new();
        let capacity = Bounded::<u32, u32>::CAPACITY as u32;
        for key in 0..capacity {
            let number = map.number_of(key, || Some(key * 2)).unwrap();
            assert_eq!(*map.get(number), key * 2);
        }
        assert_eq!(map.number_of(7, || unreachable!("it is there")), Some(7));
        let number = map.number_of(capacity, || Some(1)).unwrap();
        assert_eq!((number, *map.get(number)), (0, 1));
        assert_eq!(map.number_of(7, || None), None);
        assert_eq!(map.values().len(), 1);
    }
}
