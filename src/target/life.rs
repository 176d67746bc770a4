//! The life of a queue pair, from a login to its next one or to its end: one table.
//!
//! A channel has the queue pair up to *flushed* or *condemned*; then the channel is over, and the
//! queue pair goes on alone (`retire`): to the pool of spares or to nothing.

/// Where a queue pair is in its life.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Accepted; neither RTU nor data have come.
    Connecting,
    /// In use.
    Live,
    /// Failed or asked to end, and in ERR: nothing new begins, tasks are ended.
    Draining,
    /// The marker is posted: waits for flushes and tasks.
    Quiescing,
    /// Everything is back; the device makes a spare of it, or destroys it.
    Flushed,
    /// Not everything came back in time, or the device could not recycle it: it is to be destroyed,
    /// and memory that it may still touch is held until it is.
    Condemned,
    /// In INIT again; its number rests for the time wait, if it kept it.
    Cooling,
    /// A spare: the next login may have it.
    Recycled,
    /// Gone.
    Destroyed,
}

/// What moves a queue pair along.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LifeEvent {
    /// RTU or the first data came.
    Established,
    /// Something ended the channel.
    End,
    /// All tasks were told to end, and the marker is posted (or posting it was refused).
    Quiesce,
    /// Marker, receive side and tasks are back.
    Quiet,
    /// The deadline passed.
    Overdue,
    /// The device has it in INIT again.
    Reset,
    /// The device did not do what it was asked.
    Refused,
    /// The time wait is over, or there is none.
    Rested,
    /// A login takes it.
    Login,
    /// Nobody will want it: the device is gone, or its queues are.
    Unwanted,
    /// The device has destroyed it.
    Destroyed,
}

/// An event that the state does not know.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} in state {state:?}")]
pub struct IllegalLife {
    /// The state.
    pub state: Life,
    /// The event.
    pub event: LifeEvent,
}

impl Life {
    /// All states, for tables.
    pub const ALL: [Life; 9] = [
        Life::Connecting,
        Life::Live,
        Life::Draining,
        Life::Quiescing,
        Life::Flushed,
        Life::Condemned,
        Life::Cooling,
        Life::Recycled,
        Life::Destroyed,
    ];

    /// The state after `event`.
    pub const fn next(self, event: LifeEvent) -> Result<Life, IllegalLife> {
        use Life::*;
        use LifeEvent as E;
        Ok(match (self, event) {
            (Connecting | Live, E::Established) => Live,
            (Connecting | Live, E::End) => Draining,
            // Ending is idempotent: several things notice the same death.
            (Draining | Quiescing, E::End) => self,
            (Draining, E::Quiesce) => Quiescing,
            (Quiescing, E::Quiet) => Flushed,
            (Draining | Quiescing, E::Overdue) => Condemned,
            (Flushed, E::Reset) => Cooling,
            (Flushed | Condemned, E::Refused) => Condemned,
            (Cooling, E::Rested) => Recycled,
            (Recycled, E::Login) => Connecting,
            (Cooling | Recycled, E::Unwanted) => Condemned,
            (Flushed | Condemned, E::Destroyed) => Destroyed,
            (state, event) => return Err(IllegalLife { state, event }),
        })
    }

    /// Moves along; gives whether the state is another one now. An illegal move is a bug of ours, is
    /// logged and changes nothing.
    pub fn advance(&mut self, event: LifeEvent) -> bool {
        match self.next(event) {
            Ok(next) => {
                let moved = next != *self;
                *self = next;
                moved
            }
            Err(illegal) => {
                tracing::error!(%illegal, "a queue pair was moved against its table");
                debug_assert!(false, "{illegal}");
                false
            }
        }
    }

    /// Whether information units are taken.
    #[inline]
    pub const fn takes_ius(self) -> bool {
        matches!(self, Life::Connecting | Life::Live)
    }

    /// The state in one word, for people and the JSON-RPC interface.
    pub const fn word(self) -> &'static str {
        match self {
            Life::Connecting => "connecting",
            Life::Live => "live",
            Life::Draining => "draining",
            Life::Quiescing => "quiescing",
            Life::Flushed => "flushed",
            Life::Condemned => "condemned",
            Life::Cooling => "cooling",
            Life::Recycled => "recycled",
            Life::Destroyed => "destroyed",
        }
    }
}

impl LifeEvent {
    /// All events, for tables.
    pub const ALL: [LifeEvent; 11] = [
        LifeEvent::Established,
        LifeEvent::End,
        LifeEvent::Quiesce,
        LifeEvent::Quiet,
        LifeEvent::Overdue,
        LifeEvent::Reset,
        LifeEvent::Refused,
        LifeEvent::Rested,
        LifeEvent::Login,
        LifeEvent::Unwanted,
        LifeEvent::Destroyed,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_lives() {
        let mut table = String::new();
        for state in Life::ALL {
            for event in LifeEvent::ALL {
                if let Ok(next) = state.next(event) {
                    table += &format!("{:11}{:12}{}\n", state.word(), format!("{event:?}"), next.word());
                }
            }
        }
        assert_eq!(table, TABLE, "\n{table}");
    }

    const TABLE: &str = "\
connecting Established live
connecting End         draining
live       Established live
live       End         draining
draining   End         draining
draining   Quiesce     quiescing
draining   Overdue     condemned
quiescing  End         quiescing
quiescing  Quiet       flushed
quiescing  Overdue     condemned
flushed    Reset       cooling
flushed    Refused     condemned
flushed    Destroyed   destroyed
condemned  Refused     condemned
condemned  Destroyed   destroyed
cooling    Rested      recycled
cooling    Unwanted    condemned
recycled   Login       connecting
recycled   Unwanted    condemned
";

    #[test]
    fn every_life_can_end() {
        for state in Life::ALL.into_iter().filter(|state| *state != Life::Destroyed) {
            // Whatever happens, some way leads on, and none leads back but by a login.
            let ways = LifeEvent::ALL.into_iter().filter_map(|event| state.next(event).ok());
            assert!(ways.clone().any(|next| next != state), "{state:?} is a dead end");
            let at = |life| Life::ALL.iter().position(|other| *other == life);
            let back = ways.filter(|next| at(*next) < at(state));
            let expected: &[Life] = match state {
                Life::Recycled => &[Life::Connecting, Life::Condemned],
                Life::Cooling => &[Life::Condemned],
                _ => &[],
            };
            assert_eq!(back.collect::<Vec<_>>(), expected, "{state:?}");
        }
    }
}
