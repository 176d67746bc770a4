//! When peers must ring the bell: before the thread sleeps, and not while it spins.
//!
//! A thread that finds nothing for a while says so to its peers, then looks once more, and only then may
//! sleep. A peer that has written something looks whether we said so. The device sees its thread only
//! by its calls; so it begins early, and until it is through it has "something to do".

use std::time::Duration;

use reactors::time::Time;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nobody rings.
    Awake,
    /// Everybody was told; what they wrote before may be unseen.
    Told,
    /// And nothing was there afterwards.
    Ready,
}

/// What is to be done about peers after a turn.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Tell {
    Nothing,
    Asleep,
    Awake,
}

/// The way to sleep.
#[derive(Debug)]
pub(super) struct Doze {
    /// After so long without work; `None`: the thread never sleeps.
    after: Option<Duration>,
    idle_since: Time,
    state: State,
}

impl Doze {
    pub(super) fn new(after: Option<Duration>) -> Doze {
        Doze { after, idle_since: Time::ZERO, state: State::Awake }
    }

    /// A turn is over, which found something or not.
    #[inline]
    pub(super) fn after_turn(&mut self, now: Time, found: bool) -> Tell {
        let Some(after) = self.after else { return Tell::Nothing };
        if found {
            self.idle_since = now;
            return self.wake();
        }
        match self.state {
            State::Awake if now.since(self.idle_since) >= after => {
                self.state = State::Told;
                Tell::Asleep
            }
            State::Told => {
                self.state = State::Ready;
                Tell::Nothing
            }
            State::Awake | State::Ready => Tell::Nothing,
        }
    }

    /// Something is new: it all begins again.
    pub(super) fn wake(&mut self) -> Tell {
        match std::mem::replace(&mut self.state, State::Awake) {
            State::Awake => Tell::Nothing,
            State::Told | State::Ready => Tell::Awake,
        }
    }

    /// Whether peers were told that we sleep, so that they ring.
    #[inline]
    pub(super) fn is_told(&self) -> bool {
        self.state != State::Awake
    }

    /// Whether the thread may sleep.
    pub(super) fn may_sleep(&self) -> bool {
        self.after.is_none() || self.state == State::Ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_looks_again_and_sleeps() {
        let at = |micros: u64| Time::from_nanos(1000 * micros);
        let mut doze = Doze::new(Some(Duration::from_micros(10)));
        assert_eq!(doze.after_turn(at(100), true), Tell::Nothing);
        assert_eq!(doze.after_turn(at(109), false), Tell::Nothing);
        assert!(!doze.may_sleep() && !doze.is_told());
        assert_eq!(doze.after_turn(at(110), false), Tell::Asleep);
        assert!(!doze.may_sleep() && doze.is_told());
        assert_eq!(doze.after_turn(at(111), true), Tell::Awake, "it looked once more and found something");
        assert_eq!(doze.after_turn(at(121), false), Tell::Asleep);
        assert_eq!(doze.after_turn(at(122), false), Tell::Nothing);
        assert!(doze.may_sleep());
        assert_eq!(doze.after_turn(at(999), false), Tell::Nothing);
        assert_eq!(doze.wake(), Tell::Awake);
        assert!(!doze.may_sleep());
    }

    #[test]
    fn who_spins_is_never_told_about() {
        let mut doze = Doze::new(None);
        for turn in 0..100 {
            assert_eq!(doze.after_turn(Time::from_nanos(turn * 1_000_000), turn % 50 == 0), Tell::Nothing);
        }
        assert!(!doze.is_told());
    }
}
