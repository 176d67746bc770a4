//! Which channels of a shard die, and at which pace.
//!
//! Ends are cut into steps: a queue pair goes to ERR and its peer is told, a task is told, a marker is posted, a
//! channel is buried (`reaper` does them). One step in every few turns: a command of a living channel waits
//! for one short step now and then, however many die.

use std::collections::VecDeque;
use std::net::SocketAddr;

use reactors::slab::Key;
use reactors::time::Time;

use super::admin::session_id;
use super::channel::Channel;
use super::handle::{ReplySlot, SessionId};
use super::why::Why;
use crate::rdma::verbs::Service;

/// Turns from one step (a task is told, a marker is posted) to the next. A step takes as long as a turn
/// without work or two; a command takes some dozen turns.
const TURNS_A_STEP: u32 = 4;
/// Turns from a long step to the next one: a queue pair goes to ERR and its peer is told, or a channel is
/// buried and its queue pair recycled.
const TURNS_A_LONG_STEP: u32 = 8;
/// The first long steps after a while without any find everything cold and take several times as long:
/// the pause after the first is 2 to the power of this times as long, after each further one half as long.
const COLD_PAUSES: u32 = 3;
/// For each so many dying channels there is one step at a time: so many of them are gone after a few
/// milliseconds, and ten times as many, too.
const CROWD: usize = 64;
/// Dying channels that are looked at for each step. Most of those that wait for their device or their
/// tasks still do.
pub(super) const LOOKS_A_STEP: usize = 4;

/// Places of channels that are looked at in a turn for those that an administrator wants to end.
pub(super) const PLACES_A_TURN: u32 = 4;

/// Which channels an administrator wants to end.
pub(super) enum Meant {
    /// Those of a session.
    Session(SessionId),
    /// Those that came by a listener at an address. IB CM has no port: its service is the address's.
    Listener(SocketAddr),
}

impl Meant {
    pub(super) fn is(&self, channel: &Channel) -> bool {
        match self {
            Meant::Session(session) => session_id(&channel.nexus.id) == *session,
            Meant::Listener(address) => {
                channel.path.local == address.ip()
                    && match channel.service {
                        Service::RdmaCm { port } => port == address.port(),
                        Service::IbCm { .. } => true,
                        Service::Shm => false,
                    }
            }
        }
    }
}

/// A look through all channels for those that are to end.
pub(super) struct Sweep {
    pub(super) meant: Meant,
    pub(super) why: Why,
    pub(super) reply: ReplySlot,
    /// The next place.
    pub(super) slot: u32,
    /// How many there were so far.
    pub(super) found: usize,
}

/// The dying channels of a shard.
pub(super) struct Draining {
    /// What an administrator wants to end.
    pub(super) sweeps: VecDeque<Sweep>,
    /// Those whose queue pairs are to go to ERR, in the order in which they were put down.
    pub(super) sentenced: VecDeque<Key>,
    /// The others.
    keys: Vec<Key>,
    /// Where the next look goes.
    cursor: usize,
    /// How many looks are left of the present round through all of them.
    unlooked: usize,
    /// Turns until the next step.
    turns: u32,
    /// Long steps until everything counts as warm.
    cold: u32,
    /// One of them may go on now.
    pub(super) woken: bool,
    /// At the latest then one of them goes on.
    next: Time,
}

impl Draining {
    /// Room for so many.
    pub(super) fn new(channels: usize) -> Draining {
        Draining {
            sweeps: VecDeque::new(),
            sentenced: VecDeque::with_capacity(channels),
            keys: Vec::with_capacity(channels),
            cursor: 0,
            unlooked: 0,
            turns: 0,
            cold: COLD_PAUSES,
            woken: false,
            next: Time::NEVER,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sentenced.len() + self.keys.len()
    }

    /// When one of them goes on.
    pub(super) fn next(&self) -> Time {
        let waits = !self.sweeps.is_empty() || !self.sentenced.is_empty();
        if self.woken || self.unlooked > 0 || waits { Time::ZERO } else { self.next }
    }

    /// Begins another round, if it is time.
    pub(super) fn begin_round(&mut self, now: Time) {
        let over = self.unlooked == 0;
        if std::mem::take(&mut self.woken) || over && now >= self.next {
            if over {
                self.next = Time::NEVER;
            }
            self.unlooked = self.keys.len();
        }
    }

    /// Something may have happened to any of them.
    pub(super) fn wake(&mut self) {
        self.woken |= !self.keys.is_empty();
    }

    /// The next one that is to be looked at in this round.
    pub(super) fn look(&mut self) -> Option<Key> {
        self.unlooked = self.unlooked.checked_sub(1)?;
        if self.cursor >= self.keys.len() {
            self.cursor = 0;
        }
        self.keys.get(self.cursor).copied()
    }

    /// The one that was just looked at waits until then.
    pub(super) fn waits(&mut self, until: Time) {
        self.next = self.next.min(until);
        self.cursor += 1;
    }

    /// The one that was just looked at goes on in the next turn.
    pub(super) fn goes_on(&mut self) {
        self.unlooked += 1;
    }

    /// A turn begins: how many steps are due in it; `None` while there is a pause.
    pub(super) fn due(&mut self) -> Option<usize> {
        self.turns = self.turns.saturating_sub(1);
        (self.turns == 0).then(|| self.len().div_ceil(CROWD))
    }

    /// A long step was taken.
    pub(super) fn pause_long(&mut self) {
        self.turns = TURNS_A_LONG_STEP << self.cold;
        self.cold = self.cold.saturating_sub(1);
    }

    /// The steps of a turn were taken. If none dies, and none is to, the next end will find everything cold.
    pub(super) fn pause(&mut self) {
        self.turns = self.turns.max(TURNS_A_STEP);
        if self.sweeps.is_empty() && self.len() == 0 {
            self.cold = COLD_PAUSES;
            self.turns = TURNS_A_LONG_STEP << COLD_PAUSES;
        }
    }

    /// The queue pair of one is in ERR: from now on it is looked at.
    pub(super) fn carried_out(&mut self, key: Key) {
        self.keys.push(key);
        self.woken = true;
    }

    /// The one that was just looked at is over.
    pub(super) fn is_over(&mut self) {
        self.keys.swap_remove(self.cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns_until_due(draining: &mut Draining) -> usize {
        (1..).find(|_| draining.due().is_some()).unwrap()
    }

    #[test]
    fn pauses_shorten_while_ends_follow_each_other() {
        let mut draining = Draining::new(2 * CROWD);
        assert_eq!(draining.due(), Some(0), "nothing dies");
        draining.carried_out(Key { slot: 0, generation: 0 });
        let pauses = [0; 5].map(|_| {
            draining.pause_long();
            draining.pause();
            turns_until_due(&mut draining)
        });
        assert_eq!(pauses, [64, 32, 16, 8, 8]);
        draining.pause();
        assert_eq!(turns_until_due(&mut draining), 4, "after a short step");
        assert!(draining.look().is_none(), "a round begins first");
        draining.begin_round(Time::ZERO);
        assert!(draining.look().is_some());
        draining.is_over();
        draining.pause();
        assert_eq!(turns_until_due(&mut draining), 64, "all of them are over: it cools down");
    }

    #[test]
    fn a_crowd_takes_more_steps_a_turn() {
        let mut draining = Draining::new(2 * CROWD);
        (0..=CROWD as u32).for_each(|slot| draining.carried_out(Key { slot, generation: 0 }));
        assert_eq!(draining.due(), Some(2));
    }
}
