//! Deadlines of queue pairs: an indexed binary heap, one entry a queue pair, no allocation.

use reactors::time::Time;

const ABSENT: u32 = u32::MAX;

/// The earliest deadlines first. A deadline that moves to later is left where it is and found to
/// be early when its time comes, since ACK timers are pushed back with every ACK.
pub(super) struct Timers {
    heap: Vec<(Time, u32)>,
    /// Where a slot's entry lies in `heap`.
    places: Box<[u32]>,
}

impl Timers {
    pub(super) fn new(slots: u32) -> Self {
        Timers {
            heap: Vec::with_capacity(slots as usize),
            places: vec![ABSENT; slots as usize].into_boxed_slice(),
        }
    }

    /// The earliest deadline, which may be earlier than its slot now wants.
    #[inline]
    pub(super) fn earliest(&self) -> Time {
        self.heap.first().map_or(Time::NEVER, |entry| entry.0)
    }

    /// Wakes `slot` at `at` or earlier.
    #[inline]
    pub(super) fn wake_by(&mut self, slot: u32, at: Time) {
        if at == Time::NEVER {
            return;
        }
        let place = self.places[slot as usize];
        if place == ABSENT {
            self.heap.push((at, slot));
            self.places[slot as usize] = self.heap.len() as u32 - 1;
            self.up(self.heap.len() - 1);
        } else if at < self.heap[place as usize].0 {
            self.heap[place as usize].0 = at;
            self.up(place as usize);
        }
    }

    /// When `slot` is woken.
    pub(super) fn of(&self, slot: u32) -> Time {
        match self.places[slot as usize] {
            ABSENT => Time::NEVER,
            place => self.heap[place as usize].0,
        }
    }

    /// Takes a slot whose deadline is not after `now`.
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        let &(at, slot) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(slot);
        Some(slot)
    }

    /// Forgets a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.places[slot as usize], ABSENT);
        if place == ABSENT {
            return;
        }
        let place = place as usize;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.places[self.heap[place].1 as usize] = place as u32;
            self.up(place);
            self.down(place);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].0 <= self.heap[at].0 {
                break;
            }
            self.swap(parent, at);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.heap[child].0 < self.heap[least].0 {
                    least = child;
                }
            }
            if least == at {
                break;
            }
            self.swap(least, at);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn later_is_left_earlier_moves() {
        let mut timers = Timers::new(2);
        timers.wake_by(0, Time::from_nanos(5));
        timers.wake_by(0, Time::from_nanos(9));
        assert_eq!(timers.earliest(), Time::from_nanos(5));
        timers.wake_by(1, Time::from_nanos(7));
        timers.wake_by(1, Time::from_nanos(3));
        assert_eq!(timers.pop(Time::from_nanos(2)), None);
        assert_eq!(timers.pop(Time::from_nanos(3)), Some(1));
        assert_eq!(timers.pop(Time::from_nanos(100)), Some(0));
        assert_eq!(timers.earliest(), Time::NEVER);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u32..16, 0u64..50, 0u8..4), 1..200)) {
            let mut timers = Timers::new(16);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (slot, at, what) in steps {
                match what {
                    0 => {
                        timers.remove(slot);
                        model.remove(&slot);
                    }
                    1 => match timers.pop(Time::from_nanos(at)) {
                        Some(slot) => {
                            let due = model.remove(&slot).expect("was armed");
                            prop_assert!(due <= at && model.values().all(|other| *other >= due));
                        }
                        None => prop_assert!(model.values().all(|due| *due > at)),
                    },
                    _ => {
                        timers.wake_by(slot, Time::from_nanos(at));
                        let due = model.entry(slot).or_insert(at);
                        *due = at.min(*due);
                    }
                }
                let earliest = model.values().min().map_or(Time::NEVER, |at| Time::from_nanos(*at));
                prop_assert_eq!(timers.earliest(), earliest);
            }
        }
    }
}
