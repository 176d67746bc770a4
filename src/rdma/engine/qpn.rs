//! QPNs: which queue pair a number names, and which numbers rest.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use reactors::slab::Key;
use reactors::time::Time;

use crate::wire::num::Qpn;

/// Hash of a QPN, whose upper bits are random already: one multiplication spreads them.
#[derive(Default)]
struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Low bits of a QPN that are its shard's at least, few shards as there may be: who sends to several
/// queue pairs of one shard sees by them that one train may carry packets for all.
const LEAST_SHARD_BITS: u32 = 2;

/// The QPNs of a shard: random above the shard's bits, and silent for a while after their end,
/// so that late packets of a dead connection find nobody (IBTA vol. 1, 12.9.8.4).
pub(crate) struct QpnTable {
    shard: u32,
    shard_bits: u32,
    rest: Duration,
    most_resting: usize,
    /// `None`: resting.
    numbers: HashMap<Qpn, Option<Key>, BuildHasherDefault<QpnHasher>>,
    resting: VecDeque<(Time, Qpn)>,
}

impl QpnTable {
    pub(crate) fn new(shard: u32, shard_bits: u32, max_qp: u32, rest: Duration) -> Self {
        assert!(shard_bits <= 8 && shard < 1 << shard_bits, "shard {shard} fits its {shard_bits} bits");
        let shard_bits = shard_bits.max(LEAST_SHARD_BITS);
        let numbers = 1usize << (24 - shard_bits);
        let max_qp = max_qp as usize;
        assert!(max_qp <= numbers / 4, "{max_qp} queue pairs are too many for their numbers");
        // Resting numbers are bounded too: beyond this the oldest wakes early.
        let most_resting = (4 * max_qp).clamp(64, numbers / 4);
        QpnTable {
            shard,
            shard_bits,
            rest,
            most_resting,
            numbers: HashMap::with_capacity_and_hasher(max_qp + most_resting + 1, Default::default()),
            resting: VecDeque::with_capacity(most_resting + 1),
        }
    }

    /// A random number that is neither in use nor resting, for `qp`.
    pub(crate) fn assign(&mut self, now: Time, qp: Key, rng: &mut fastrand::Rng) -> Qpn {
        self.wake(now);
        loop {
            let upper = rng.u32(0..1 << (24 - self.shard_bits));
            let qpn = Qpn::new(upper << self.shard_bits | self.shard);
            // 0 and 1 are the management QPs; rxe itself begins at 16.
            if qpn.get() >= 16 && !self.numbers.contains_key(&qpn) {
                self.numbers.insert(qpn, Some(qp));
                return qpn;
            }
        }
    }

    /// Puts a number to rest until `now` plus the rest time.
    pub(crate) fn free(&mut self, now: Time, qpn: Qpn) {
        self.wake(now);
        self.numbers.insert(qpn, None);
        self.resting.push_back((now + self.rest, qpn));
        if self.resting.len() > self.most_resting {
            let (_, oldest) = self.resting.pop_front().expect("more than none");
            self.numbers.remove(&oldest);
        }
    }

    /// The queue pair of a number.
    #[inline]
    pub(crate) fn get(&self, qpn: Qpn) -> Option<Key> {
        self.numbers.get(&qpn).copied().flatten()
    }

    /// Ends the rest of a few numbers: each call adds one at most, so that this keeps up with many that
    /// went to rest at once, and nobody waits for all of them.
    fn wake(&mut self, now: Time) {
        for _ in 0..2 {
            let Some((_, qpn)) = self.resting.front().filter(|(until, _)| *until <= now) else { return };
            self.numbers.remove(qpn);
            self.resting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QP: Key = Key { slot: 3, generation: 9 };

    #[test]
    fn numbers_carry_the_shard_and_are_never_the_management_ones() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut table = QpnTable::new(1, 1, 1000, Duration::ZERO);
        for _ in 0..1000 {
            let qpn = table.assign(Time::ZERO, QP, &mut rng);
            assert_eq!(qpn.get() & 3, 1, "with few shards two bits are theirs all the same");
            assert!(qpn.get() >= 16);
            assert_eq!(table.get(qpn), Some(QP));
        }
    }

    #[test]
    fn a_freed_number_names_nobody_and_rests() {
        let mut rng = fastrand::Rng::with_seed(8);
        let rest = Duration::from_millis(600);
        let mut table = QpnTable::new(0, 0, 1, rest);
        let qpn = table.assign(Time::ZERO, QP, &mut rng);
        table.free(Time::ZERO, qpn);
        assert_eq!(table.get(qpn), None);
        assert!(table.numbers.contains_key(&qpn), "resting");
        table.wake(Time::ZERO + (rest - Duration::from_nanos(1)));
        assert!(table.numbers.contains_key(&qpn), "still resting");
        table.wake(Time::ZERO + rest);
        assert!(!table.numbers.contains_key(&qpn), "free again");
    }

    #[test]
    fn churn_is_bounded() {
        let mut rng = fastrand::Rng::with_seed(9);
        let mut table = QpnTable::new(0, 8, 4, Duration::from_secs(3600));
        for _ in 0..10_000 {
            let qpn = table.assign(Time::ZERO, QP, &mut rng);
            table.free(Time::ZERO, qpn);
        }
        assert_eq!(table.resting.len(), 64);
        assert_eq!(table.numbers.len(), 64);
    }
}
