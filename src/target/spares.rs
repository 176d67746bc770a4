//! Spare queue pairs: recycled ones that wait for the next login, bounded and all of one kind.
//!
//! One that kept its number rests for the time wait first, so that late packets of its old
//! connection find nobody (IBTA vol. 1, 12.9.8.4), and serves the same peer over the same path only:
//! see [`Recycling::SameNumber`].

use reactors::time::Time;

use super::life::{Life, LifeEvent};
use crate::rdma::verbs::{Path, QpId, Recycling, TIME_WAIT};

/// A queue pair in INIT without a connection.
#[derive(Clone, Debug)]
pub struct Spare {
    /// Which.
    pub qp: QpId,
    /// Room of its send queue.
    pub max_send_wr: u32,
    /// The path of its connection.
    pub path: Path,
    /// Cooling or recycled.
    pub life: Life,
    rests_until: Time,
}

/// The spares of one shard.
pub struct Spares {
    recycling: Recycling,
    most: usize,
    spares: Vec<Spare>,
    /// How many of them rest.
    cooling: usize,
}

impl Spares {
    /// Room for `most` on a device that recycles in this way.
    pub fn new(recycling: Recycling, most: usize) -> Self {
        let most = if recycling == Recycling::Never { 0 } else { most };
        Spares { recycling, most, spares: Vec::with_capacity(most), cooling: 0 }
    }

    /// Whether there is room for one more, while `coming` are on their way.
    pub fn has_room(&self, coming: usize) -> bool {
        self.spares.len() + coming < self.most
    }

    /// Whether each is good for the peer only that it had.
    pub fn are_bound(&self) -> bool {
        self.recycling == Recycling::SameNumber
    }

    /// Takes in a queue pair that the device has just recycled; `life` is its life so far.
    pub fn put(&mut self, now: Time, qp: QpId, max_send_wr: u32, path: Path, mut life: Life) {
        debug_assert!(self.spares.len() < self.most, "room was looked for before");
        life.advance(LifeEvent::Reset);
        let rests_until = match self.recycling {
            Recycling::SameNumber => now + TIME_WAIT,
            Recycling::NewNumber | Recycling::Never => now,
        };
        self.spares.push(Spare { qp, max_send_wr, path, life, rests_until });
        self.cooling += 1;
        self.rest(now);
    }

    /// Those whose rest is over may be taken from now on.
    pub fn rest(&mut self, now: Time) {
        // The latest are at the end.
        for spare in self.spares.iter_mut().rev() {
            if self.cooling == 0 {
                return;
            }
            if spare.life == Life::Cooling && now >= spare.rests_until {
                spare.life.advance(LifeEvent::Rested);
                self.cooling -= 1;
            }
        }
    }

    /// One for a login by `path` that needs so much room in its send queue: that with the least, and of
    /// those the one that was in use last, whose memory is warm.
    pub fn take(&mut self, now: Time, path: &Path, max_send_wr: u32) -> Option<Spare> {
        self.rest(now);
        let mut best: Option<(usize, u32)> = None;
        for (at, spare) in self.spares.iter().enumerate().rev() {
            let goes_there = !self.are_bound() || spare.path == *path;
            let (room, fits) = (spare.max_send_wr, goes_there && spare.max_send_wr >= max_send_wr);
            if spare.life == Life::Recycled && fits && best.is_none_or(|(_, least)| room < least) {
                best = Some((at, room));
                if room == max_send_wr {
                    break;
                }
            }
        }
        let (at, _) = best?;
        let mut spare = self.spares.remove(at);
        spare.life.advance(LifeEvent::Login);
        Some(spare)
    }

    /// Gives up the one that has been here longest.
    pub fn give_up_one(&mut self) -> Option<Spare> {
        if self.spares.is_empty() {
            return None;
        }
        let mut spare = self.spares.remove(0);
        self.cooling -= usize::from(spare.life == Life::Cooling);
        spare.life.advance(LifeEvent::Unwanted);
        Some(spare)
    }

    /// How many there are, the cooling ones included.
    pub fn len(&self) -> usize {
        self.spares.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spares.is_empty()
    }

    /// How many of them rest.
    pub fn cooling(&self) -> usize {
        self.cooling
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reactors::slab::Key;

    use super::*;

    fn qp(slot: u32) -> QpId {
        QpId(Key { slot, generation: 0 })
    }

    fn path(host: u8) -> Path {
        Path { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, host].into(), scope_id: 0 }
    }

    fn taken(spares: &mut Spares, now: Time, need: u32) -> Option<u32> {
        spares.take(now, &path(9), need).map(|spare| {
            assert_eq!(spare.life, Life::Connecting);
            spare.qp.0.slot
        })
    }

    #[test]
    fn the_smallest_that_fits_and_the_warmest_of_these() {
        let mut spares = Spares::new(Recycling::NewNumber, 4);
        let now = Time::from_nanos(5);
        for (slot, room) in [(1, 136), (2, 64), (3, 64), (4, 256)] {
            assert!(spares.has_room(0));
            spares.put(now, qp(slot), room, path(slot as u8), Life::Flushed);
        }
        assert!(!spares.has_room(0));
        assert_eq!(taken(&mut spares, now, 64), Some(3));
        assert_eq!(taken(&mut spares, now, 64), Some(2));
        assert_eq!(taken(&mut spares, now, 64), Some(1));
        assert_eq!(taken(&mut spares, now, 257), None);
        assert_eq!(taken(&mut spares, now, 256), Some(4));
        assert!(spares.is_empty());
        assert!(spares.has_room(3) && !spares.has_room(4));
    }

    #[test]
    fn one_that_kept_its_number_rests_for_the_time_wait() {
        let mut spares = Spares::new(Recycling::SameNumber, 4);
        let start = Time::from_nanos(1);
        spares.put(start, qp(1), 64, path(9), Life::Flushed);
        let almost = start + (TIME_WAIT - Duration::from_nanos(1));
        assert_eq!((taken(&mut spares, almost, 64), spares.cooling()), (None, 1));
        spares.rest(start + TIME_WAIT);
        assert_eq!((spares.cooling(), spares.len()), (0, 1));
        assert_eq!(taken(&mut spares, start + TIME_WAIT, 64), Some(1));
    }

    #[test]
    fn one_that_kept_its_number_serves_its_old_peer_only() {
        let mut spares = Spares::new(Recycling::SameNumber, 4);
        spares.put(Time::ZERO, qp(1), 64, path(9), Life::Flushed);
        spares.put(Time::ZERO, qp(2), 64, path(8), Life::Flushed);
        let now = Time::ZERO + TIME_WAIT;
        assert!(spares.take(now, &path(7), 64).is_none());
        assert_eq!((taken(&mut spares, now, 64), taken(&mut spares, now, 64)), (Some(1), None));
    }

    #[test]
    fn who_cannot_recycle_keeps_none() {
        assert!(!Spares::new(Recycling::Never, 4).has_room(0));
    }

    #[test]
    fn what_is_given_up_is_condemned() {
        let mut spares = Spares::new(Recycling::SameNumber, 4);
        spares.put(Time::ZERO, qp(1), 64, path(9), Life::Flushed);
        spares.put(Time::ZERO, qp(2), 64, path(9), Life::Flushed);
        let first = spares.give_up_one().unwrap();
        assert_eq!((first.qp, first.life), (qp(1), Life::Condemned));
        assert_eq!(spares.give_up_one().map(|spare| spare.qp), Some(qp(2)));
        assert!(spares.give_up_one().is_none());
    }
}
