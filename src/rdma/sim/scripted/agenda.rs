//! What is to happen, by time; at one time in the order of entry.

use std::collections::BTreeMap;

use reactors::time::Time;

pub(super) struct Agenda<T> {
    entries: BTreeMap<(Time, u64), T>,
    next: u64,
}

impl<T> Agenda<T> {
    pub(super) const fn new() -> Self {
        Agenda { entries: BTreeMap::new(), next: 0 }
    }

    pub(super) fn enter(&mut self, at: Time, entry: T) {
        self.entries.insert((at, self.next), entry);
        self.next += 1;
    }

    /// The first entry whose time has come.
    pub(super) fn take(&mut self, now: Time) -> Option<T> {
        let first = self.entries.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the first entry is due.
    pub(super) fn next_time(&self) -> Time {
        self.entries.first_key_value().map_or(Time::NEVER, |((at, _), _)| *at)
    }
}
