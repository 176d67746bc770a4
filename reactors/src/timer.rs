//! A hierarchical timer wheel: insert, cancel and re-arm in constant time, no allocation after
//! start.
//!
//! Time is cut into ticks of [`TICK_NANOS`] (4.096 us, the unit of RC timeouts). Level 0 has a
//! slot for each of the next 64 ticks, level 1 a slot for each 64 of those, and so on; nine
//! levels hold any [`Time`]. A timer lies at the level of the highest digit (base 64) in which
//! its tick differs from the wheel's present, and moves down as that comes nearer. A timer never
//! fires early, and at most one tick late.

use crate::slab::Key;
use crate::time::Time;

/// Length of a tick in nanoseconds.
pub const TICK_NANOS: u64 = 1 << TICK_SHIFT;

const TICK_SHIFT: u32 = 12;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Nine digits of six bits hold the 52 bits of a tick.
const LEVELS: usize = 9;
/// The list of timers that are due.
const DUE: u16 = (LEVELS * SLOTS) as u16;
/// Of an entry that is in no list.
const FREE: u16 = DUE + 1;
const NONE: u32 = u32::MAX;

/// Names an armed timer. Once it fired or was cancelled, the key names nothing.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey(Key);

#[derive(Copy, Clone)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NONE, last: NONE };

struct Entry<T> {
    tick: u64,
    prev: u32,
    next: u32,
    list: u16,
    generation: u32,
    value: Option<T>,
}

/// A wheel for at most `capacity` timers, each with a value.
pub struct TimerWheel<T> {
    entries: Box<[Entry<T>]>,
    free: Vec<u32>,
    lists: Box<[List]>,
    /// For each level, which slots have timers.
    occupied: [u64; LEVELS],
    /// The wheel's present: all timers up to this tick are due.
    tick: u64,
}

/// The first tick at which `time` has passed.
fn tick_of(time: Time) -> u64 {
    time.as_nanos().div_ceil(TICK_NANOS)
}

/// Where a timer of `tick` lies when the present is `now`, `tick` being later.
fn place(tick: u64, now: u64) -> (usize, usize) {
    let level = (63 - (tick ^ now).leading_zeros()) / DIGIT_BITS;
    let slot = (tick >> (level * DIGIT_BITS)) as usize & (SLOTS - 1);
    (level as usize, slot)
}

impl<T> TimerWheel<T> {
    /// A wheel whose present is `now`; all its memory is allocated here.
    pub fn new(capacity: usize, now: Time) -> Self {
        assert!(capacity < NONE as usize, "that many timers do not fit a wheel");
        TimerWheel {
            entries: (0..capacity)
                .map(|_| Entry { tick: 0, prev: NONE, next: NONE, list: FREE, generation: 0, value: None })
                .collect(),
            free: (0..capacity as u32).rev().collect(),
            lists: vec![EMPTY; usize::from(DUE) + 1].into_boxed_slice(),
            occupied: [0; LEVELS],
            tick: now.as_nanos() / TICK_NANOS,
        }
    }

    /// How many timers are armed.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Arms a timer; gives the value back if the wheel is full.
    pub fn insert(&mut self, deadline: Time, value: T) -> Result<TimerKey, T> {
        let Some(slot) = self.free.pop() else { return Err(value) };
        let entry = &mut self.entries[slot as usize];
        entry.tick = tick_of(deadline);
        entry.value = Some(value);
        let key = TimerKey(Key { slot, generation: entry.generation });
        self.link(slot);
        Ok(key)
    }

    /// Disarms a timer and gives its value; `None` if it fired already.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let slot = self.armed(key)?;
        self.unlink(slot);
        self.release(slot)
    }

    /// Moves an armed timer to another deadline; false if it fired already.
    pub fn rearm(&mut self, key: TimerKey, deadline: Time) -> bool {
        let Some(slot) = self.armed(key) else { return false };
        let tick = tick_of(deadline);
        if self.entries[slot as usize].tick != tick {
            self.unlink(slot);
            self.entries[slot as usize].tick = tick;
            self.link(slot);
        }
        true
    }

    /// The value of an armed timer.
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.armed(key).and_then(|slot| self.entries[slot as usize].value.as_ref())
    }

    /// Takes the next timer whose deadline is not after `now`, in order of ticks. Call it until
    /// it gives `None`.
    pub fn pop_expired(&mut self, now: Time) -> Option<T> {
        let target = now.as_nanos() / TICK_NANOS;
        while self.lists[usize::from(DUE)].first == NONE {
            match self.next_slot() {
                Some((level, slot, start)) if start <= target => self.open(level, slot, start),
                _ => {
                    self.tick = self.tick.max(target);
                    return None;
                }
            }
        }
        let first = self.lists[usize::from(DUE)].first;
        self.unlink(first);
        self.release(first)
    }

    /// When [`pop_expired`](Self::pop_expired) should be called next: never after the earliest
    /// deadline's tick, perhaps before it, when timers have to move down a level.
    pub fn next_deadline(&self) -> Time {
        if self.lists[usize::from(DUE)].first != NONE {
            return Time::from_nanos(self.tick << TICK_SHIFT);
        }
        match self.next_slot() {
            Some((.., start)) => Time::from_nanos(start.saturating_mul(TICK_NANOS)),
            None => Time::NEVER,
        }
    }

    /// The slot that opens next: its level, number and first tick. Timers of a level come before
    /// all of the levels above, and always after the present within their own.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * DIGIT_BITS;
        let above = self.tick >> shift >> DIGIT_BITS << DIGIT_BITS;
        Some((level, slot, (above | slot as u64) << shift))
    }

    /// Moves the present to `start`, the first tick of a slot, and its timers to where they now
    /// belong.
    fn open(&mut self, level: usize, slot: usize, start: u64) {
        self.tick = start;
        self.occupied[level] &= !(1 << slot);
        let list = std::mem::replace(&mut self.lists[level * SLOTS + slot], EMPTY);
        let mut at = list.first;
        while at != NONE {
            let next = self.entries[at as usize].next;
            self.link(at);
            at = next;
        }
    }

    fn armed(&self, key: TimerKey) -> Option<u32> {
        let entry = self.entries.get(key.0.slot as usize)?;
        (entry.list != FREE && entry.generation == key.0.generation).then_some(key.0.slot)
    }

    fn release(&mut self, slot: u32) -> Option<T> {
        let entry = &mut self.entries[slot as usize];
        entry.list = FREE;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        entry.value.take()
    }

    fn link(&mut self, at: u32) {
        let tick = self.entries[at as usize].tick;
        let list = if tick <= self.tick {
            DUE
        } else {
            let (level, slot) = place(tick, self.tick);
            self.occupied[level] |= 1 << slot;
            (level * SLOTS + slot) as u16
        };
        let last = std::mem::replace(&mut self.lists[usize::from(list)].last, at);
        if last == NONE {
            self.lists[usize::from(list)].first = at;
        } else {
            self.entries[last as usize].next = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.list, entry.prev, entry.next) = (list, last, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let Entry { list, prev, next, .. } = self.entries[at as usize];
        match prev {
            NONE => self.lists[usize::from(list)].first = next,
            prev => self.entries[prev as usize].next = next,
        }
        match next {
            NONE => self.lists[usize::from(list)].last = prev,
            next => self.entries[next as usize].prev = prev,
        }
        if list < DUE && self.lists[usize::from(list)].first == NONE {
            self.occupied[usize::from(list) / SLOTS] &= !(1 << (usize::from(list) % SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn fires_once_and_not_early() {
        let mut wheel = TimerWheel::new(2, Time::ZERO);
        let key = wheel.insert(at(10_000_000), 'a').unwrap();
        assert_eq!(wheel.pop_expired(at(9_999_999)), None);
        assert_eq!(wheel.get(key), Some(&'a'));
        assert_eq!(wheel.pop_expired(at(10_000_000 + TICK_NANOS)), Some('a'));
        assert_eq!(wheel.pop_expired(at(20_000_000)), None);
        assert_eq!(wheel.cancel(key), None);
        assert!(!wheel.rearm(key, at(1)));
    }

    #[test]
    fn a_full_wheel_gives_back_and_a_cancelled_timer_makes_room() {
        let mut wheel = TimerWheel::new(1, at(5));
        let key = wheel.insert(Time::NEVER, 1).unwrap();
        assert_eq!(wheel.insert(at(7), 2), Err(2));
        assert_eq!(wheel.cancel(key), Some(1));
        assert_eq!(wheel.next_deadline(), Time::NEVER);
        assert!(wheel.insert(at(7), 2).is_ok());
        assert_eq!(wheel.pop_expired(at(TICK_NANOS)), Some(2));
        assert!(wheel.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Cancel(usize),
        Rearm(usize, u64),
        Advance(u64),
    }

    /// Spans of all sizes, from below a tick to days.
    fn span() -> impl Strategy<Value = u64> {
        (0u32..48, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => span().prop_map(Step::Insert),
            1 => any::<usize>().prop_map(Step::Cancel),
            2 => (any::<usize>(), span()).prop_map(|(which, span)| Step::Rearm(which, span)),
            3 => span().prop_map(Step::Advance),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(start in span(), steps in prop::collection::vec(step(), 1..300)) {
            let mut now = start;
            let mut wheel = TimerWheel::new(64, at(now));
            // (tick, id) -> key, and the same by arming order.
            let mut model: BTreeMap<(u64, u32), TimerKey> = BTreeMap::new();
            let mut next_id = 0;
            for step in steps {
                match step {
                    Step::Insert(after) => match wheel.insert(at(now + after), next_id) {
                        Ok(key) => {
                            model.insert((tick_of(at(now + after)), next_id), key);
                            next_id += 1;
                        }
                        Err(_) => prop_assert_eq!(model.len(), 64),
                    },
                    Step::Cancel(which) | Step::Rearm(which, _) if model.is_empty() => {
                        let _ = which;
                    }
                    Step::Cancel(which) => {
                        let (&id, &key) = model.iter().nth(which % model.len()).unwrap();
                        prop_assert_eq!(wheel.cancel(key), Some(id.1));
                        model.remove(&id);
                    }
                    Step::Rearm(which, after) => {
                        let (&id, &key) = model.iter().nth(which % model.len()).unwrap();
                        prop_assert!(wheel.rearm(key, at(now + after)));
                        model.remove(&id);
                        model.insert((tick_of(at(now + after)), id.1), key);
                    }
                    Step::Advance(by) => {
                        now += by;
                        let mut last = 0;
                        while let Some(id) = wheel.pop_expired(at(now)) {
                            let (&(tick, _), _) = model.iter().find(|((_, it), _)| *it == id).unwrap();
                            prop_assert!(tick <= now / TICK_NANOS, "fired early");
                            prop_assert!(tick >= last, "fired out of order");
                            last = tick;
                            model.remove(&(tick, id));
                        }
                        let first = model.keys().next().map(|(tick, _)| *tick);
                        prop_assert!(first.is_none_or(|tick| tick > now / TICK_NANOS), "not fired");
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                match model.keys().next() {
                    Some((tick, _)) => prop_assert!(
                        wheel.next_deadline() <= at(tick * TICK_NANOS).max(at(now))
                    ),
                    None => prop_assert_eq!(wheel.next_deadline(), Time::NEVER),
                }
            }
        }
    }
}
