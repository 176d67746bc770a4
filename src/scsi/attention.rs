//! Unit attention conditions (SAM-5, 5.14) of one I_T nexus at one logical unit, shared by all
//! shards that serve the nexus.
//!
//! One atomic word instead of an owner: whoever clears a bit reports the condition, so that each
//! is reported exactly once without a message between shards.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::wire::scsi::sense::{Asc, Sense, SenseKey};

/// What happened, in the order in which it is reported (SAM-5, table 37: resets before changes).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Condition {
    /// The nexus is new to the logical unit: 29/00, as for power on.
    PowerOn = 0,
    /// A LUN RESET of another nexus: 29/03.
    Reset = 1,
    /// The nexus was lost and is back: 29/07.
    NexusLoss = 2,
    /// Another nexus had commands of this one cleared: 2F/00.
    CommandsCleared = 3,
    /// INQUIRY data changed: 3F/03.
    InquiryChanged = 4,
    /// Mode parameters changed: 2A/01.
    ModeChanged = 5,
    /// The capacity changed: 2A/09.
    CapacityChanged = 6,
    /// Logical units came or went: 3F/0E.
    LunsChanged = 7,
}

impl Condition {
    /// All of them, first reported first.
    pub const ALL: [Condition; 8] = [
        Condition::PowerOn,
        Condition::Reset,
        Condition::NexusLoss,
        Condition::CommandsCleared,
        Condition::InquiryChanged,
        Condition::ModeChanged,
        Condition::CapacityChanged,
        Condition::LunsChanged,
    ];

    const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// What reporting this one makes pointless: a reset says all that a lesser one could.
    const fn covers(self) -> u32 {
        self.bit()
            | match self {
                Condition::PowerOn => {
                    Condition::Reset.bit() | Condition::NexusLoss.bit() | Condition::CommandsCleared.bit()
                }
                Condition::Reset => Condition::CommandsCleared.bit(),
                _ => 0,
            }
    }

    /// Its code.
    pub const fn asc(self) -> Asc {
        match self {
            Condition::PowerOn => Asc::POWER_ON_OR_RESET,
            Condition::Reset => Asc::DEVICE_RESET,
            Condition::NexusLoss => Asc::NEXUS_LOSS,
            Condition::CommandsCleared => Asc::COMMANDS_CLEARED,
            Condition::InquiryChanged => Asc::INQUIRY_CHANGED,
            Condition::ModeChanged => Asc::MODE_PARAMETERS_CHANGED,
            Condition::CapacityChanged => Asc::CAPACITY_CHANGED,
            Condition::LunsChanged => Asc::REPORTED_LUNS_CHANGED,
        }
    }

    /// Its sense data.
    pub const fn sense(self) -> Sense {
        Sense::new(SenseKey::UnitAttention, self.asc())
    }
}

/// The pending conditions. Shared by reference or `Arc`; nothing pends at first.
#[derive(Default, Debug)]
pub struct Attention {
    pending: AtomicU32,
}

impl Attention {
    /// Nothing pending.
    pub const fn new() -> Attention {
        Attention { pending: AtomicU32::new(0) }
    }

    /// What a nexus begins with: [`Condition::PowerOn`].
    pub const fn at_login() -> Attention {
        Attention { pending: AtomicU32::new(Condition::PowerOn.bit()) }
    }

    /// Establishes a condition; one that pends already is still reported once.
    ///
    /// The change that it tells of must be visible before: publish first, raise then.
    pub fn raise(&self, condition: Condition) {
        self.pending.fetch_or(condition.bit(), Ordering::Release);
    }

    /// Whether anything pends: the fast path's check, without order.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Takes the condition to report now. Of all who call, one gets it.
    pub fn claim(&self) -> Option<Condition> {
        let mut claimed = None;
        self.pending
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |pending| {
                claimed = Condition::ALL.into_iter().find(|condition| pending & condition.bit() != 0);
                claimed.map(|condition| pending & !condition.covers())
            })
            .ok()
            .and(claimed)
    }

    /// Drops a condition that has become known in another way; whether it was pending.
    pub fn clear(&self, condition: Condition) -> bool {
        self.pending.fetch_and(!condition.bit(), Ordering::AcqRel) & condition.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_once_in_order() {
        let attention = Attention::new();
        assert!(!attention.is_pending());
        assert_eq!(attention.claim(), None);
        for condition in [Condition::LunsChanged, Condition::CapacityChanged, Condition::NexusLoss] {
            attention.raise(condition);
            attention.raise(condition);
        }
        assert!(attention.is_pending());
        assert_eq!(attention.claim(), Some(Condition::NexusLoss));
        assert_eq!(attention.claim(), Some(Condition::CapacityChanged));
        assert!(attention.clear(Condition::LunsChanged));
        assert!(!attention.clear(Condition::LunsChanged));
        assert_eq!(attention.claim(), None);
    }

    #[test]
    fn a_reset_covers_lesser_ones() {
        let attention = Attention::at_login();
        attention.raise(Condition::Reset);
        attention.raise(Condition::CommandsCleared);
        attention.raise(Condition::CapacityChanged);
        assert_eq!(attention.claim(), Some(Condition::PowerOn));
        assert_eq!(attention.claim(), Some(Condition::CapacityChanged));
        assert_eq!(attention.claim(), None);
    }

    #[test]
    fn codes() {
        let codes: Vec<_> = Condition::ALL.iter().map(|c| (c.asc().0, c.asc().1)).collect();
        assert_eq!(
            codes,
            [(0x29, 0), (0x29, 3), (0x29, 7), (0x2f, 0), (0x3f, 3), (0x2a, 1), (0x2a, 9), (0x3f, 0x0e)]
        );
    }

    /// Four threads claim while one raises: every raise that found the bit clear is claimed by
    /// exactly one of them.
    #[test]
    fn exactly_one_claimer() {
        use std::sync::atomic::{AtomicBool, AtomicUsize};
        let (attention, done, claimed) = (Attention::new(), AtomicBool::new(false), AtomicUsize::new(0));
        let raised = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) || attention.is_pending() {
                        if attention.claim().is_some() {
                            claimed.fetch_add(1, Ordering::Relaxed);
                        }
                        std::thread::yield_now();
                    }
                });
            }
            let mut raised = 0;
            for _ in 0..2000 {
                if !attention.is_pending() {
                    attention.raise(Condition::CapacityChanged);
                    raised += 1;
                }
                std::thread::yield_now();
            }
            done.store(true, Ordering::Release);
            raised
        });
        assert_eq!(claimed.load(Ordering::Relaxed), raised);
    }
}
