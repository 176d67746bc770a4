//! The fault shim: does to packets what bad networks do, at the datagram seam, both ways.

use crate::wire::icrc::ICRC_LEN;

/// Faults to inject into datagrams, rates in parts per million of packets.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Fault {
    /// Lost.
    pub drop_ppm: u32,
    /// Delivered twice.
    pub duplicate_ppm: u32,
    /// Delivered after a later one.
    pub reorder_ppm: u32,
    /// Delivered with a flipped bit.
    pub corrupt_ppm: u32,
    /// Seed of the choices.
    pub seed: u64,
    /// Receive buffer to ask for, in bytes, as if net.core.rmem_max were that; 0 is the usual one.
    pub recv_buffer_bytes: u32,
}

/// What happens to a packet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Pass,
    Drop,
    Duplicate,
    /// Let the next one pass first.
    HoldBack,
    /// Flip this bit.
    Corrupt(usize),
}

/// Judges packets, by a seed.
#[derive(Clone, Debug)]
pub(super) struct Injector {
    fault: Fault,
    rng: fastrand::Rng,
}

/// How long a packet that is held back waits for one that may pass it.
pub(super) const HOLD: std::time::Duration = std::time::Duration::from_millis(2);

const MILLION: u32 = 1_000_000;

impl Injector {
    /// `stream` tells the two directions of all shards apart, so that they do not lose in step.
    pub(super) fn new(fault: Fault, stream: u64) -> Injector {
        let seed = fault.seed ^ stream.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Injector { fault, rng: fastrand::Rng::with_seed(seed) }
    }

    /// What happens to a packet of `len_bytes`, ICRC included.
    pub(super) fn judge(&mut self, len_bytes: usize) -> Verdict {
        let Fault { drop_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm, .. } = self.fault;
        let mut hits = |ppm: u32| self.rng.u32(..MILLION) < ppm;
        if hits(drop_ppm) {
            Verdict::Drop
        } else if hits(duplicate_ppm) {
            Verdict::Duplicate
        } else if hits(reorder_ppm) {
            Verdict::HoldBack
        } else if hits(corrupt_ppm) {
            Verdict::Corrupt(self.rng.usize(..len_bytes.max(ICRC_LEN) * 8))
        } else {
            Verdict::Pass
        }
    }
}

/// Flips one bit.
pub(super) fn flip(bytes: &mut [u8], bit: usize) {
    if let Some(byte) = bytes.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_as_asked_and_a_seed_repeats_itself() {
        let fault = Fault {
            drop_ppm: 10_000,
            duplicate_ppm: 20_000,
            reorder_ppm: 30_000,
            corrupt_ppm: 40_000,
            seed: 7,
            recv_buffer_bytes: 0,
        };
        let run = |stream| {
            let mut injector = Injector::new(fault, stream);
            (0..100_000).map(|_| injector.judge(100)).collect::<Vec<_>>()
        };
        let verdicts = run(0);
        assert_eq!(verdicts, run(0));
        assert_ne!(verdicts, run(1));
        let share = |of: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| of(verdict)).count();
        assert!((800..1_200).contains(&share(|v| *v == Verdict::Drop)));
        assert!((1_700..2_300).contains(&share(|v| *v == Verdict::Duplicate)));
        assert!((2_600..3_400).contains(&share(|v| *v == Verdict::HoldBack)));
        assert!((3_500..4_500).contains(&share(|v| matches!(v, Verdict::Corrupt(bit) if *bit < 800))));
    }

    #[test]
    fn no_fault_passes_all() {
        let mut injector = Injector::new(Fault::default(), 3);
        assert!((0..1_000).all(|_| injector.judge(16) == Verdict::Pass));
    }
}
