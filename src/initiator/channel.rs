//! One channel: its queue pair from REQ to DREQ, and what its login agreed on.

use std::fmt;

use reactors::time::Time;

use super::memory::{CONTROL_IUS, Registered};
use crate::rdma::verbs::{ConnId, QpId};
use crate::srp::initiator::InitiatorChannel;
use crate::srp::tmf::TmfFunction;
use crate::wire::num::Psn;
use crate::wire::srp::{LoginReq, RawLun};

/// Where a channel is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// It has no QP.
    Down,
    /// The REQ with its login is on the way.
    Connecting,
    /// It carries commands.
    Live,
    /// Our DREQ is on the way.
    Leaving,
}

/// What happens to a channel.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PhaseEvent {
    /// We ask for it.
    Connect,
    /// The target accepted, and the QP is in RTS.
    Accepted,
    /// We end it.
    Disconnect,
    /// It is over, for whatever reason: its QP goes.
    Down,
}

impl Phase {
    /// The phase after `event`; `None` if the table has no such move.
    pub(super) const fn after(self, event: PhaseEvent) -> Option<Phase> {
        use PhaseEvent as E;
        Some(match (self, event) {
            (Phase::Down, E::Connect) => Phase::Connecting,
            (Phase::Connecting, E::Accepted) => Phase::Live,
            (Phase::Connecting | Phase::Live, E::Disconnect) => Phase::Leaving,
            (_, E::Down) => Phase::Down,
            _ => return None,
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Down => "down",
            Phase::Connecting => "connecting",
            Phase::Live => "live",
            Phase::Leaving => "leaving",
        })
    }
}

/// What a channel has while it has a QP.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) qp: QpId,
    /// `None` once the connection has ended by itself.
    pub(super) conn: Option<ConnId>,
    /// The PSN with which the target starts.
    pub(super) starting_psn: Psn,
    pub(super) request: LoginReq,
}

/// Receive buffers of a live channel.
#[derive(Debug)]
pub(super) struct Receives {
    pub(super) memory: Registered,
    pub(super) stride: usize,
}

/// A task management function that waits for its answer.
#[derive(Copy, Clone, Debug)]
pub(super) struct Tmf {
    pub(super) function: TmfFunction,
    /// The request to abort (with ABORT TASK).
    pub(super) slot: u32,
    /// That request's generation.
    pub(super) slot_generation: u32,
    pub(super) lun: RawLun,
    pub(super) sent: Time,
    pub(super) deadline: Time,
}

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) phase: Phase,
    /// Moves on whenever the QP goes: completions of an older one are orphans.
    pub(super) epoch: u32,
    pub(super) link: Option<Link>,
    pub(super) srp: Option<InitiatorChannel>,
    pub(super) receives: Option<Receives>,
    /// Which control IUs are being sent.
    pub(super) control_busy: [bool; CONTROL_IUS as usize],
    pub(super) tmf: Option<Tmf>,
    pub(super) tmf_generation: u32,
    /// A probe is on the way.
    pub(super) probing: bool,
    /// Requests that nobody has; all memory was allocated at start.
    pub(super) free: Vec<u32>,
}

impl Channel {
    pub(super) fn new(free: Vec<u32>) -> Self {
        Channel {
            phase: Phase::Down,
            epoch: 0,
            link: None,
            srp: None,
            receives: None,
            control_busy: [false; CONTROL_IUS as usize],
            tmf: None,
            tmf_generation: 0,
            probing: false,
            free,
        }
    }

    /// Moves on; a move that is not in the table is a bug of this module.
    pub(super) fn apply(&mut self, event: PhaseEvent) {
        match self.phase.after(event) {
            Some(next) => self.phase = next,
            None => panic!("a channel that is {} cannot take {event:?}", self.phase),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_phases() {
        let mut table = String::new();
        for phase in [Phase::Down, Phase::Connecting, Phase::Live, Phase::Leaving] {
            for event in [PhaseEvent::Connect, PhaseEvent::Accepted, PhaseEvent::Disconnect, PhaseEvent::Down]
            {
                let to = phase.after(event).map_or("illegal".to_owned(), |to| to.to_string());
                table.push_str(&format!("{phase:12}{:12}{to}\n", format!("{event:?}")));
            }
        }
        assert_eq!(
            table,
            "\
down        Connect     connecting
down        Accepted    illegal
down        Disconnect  illegal
down        Down        down
connecting  Connect     illegal
connecting  Accepted    live
connecting  Disconnect  leaving
connecting  Down        down
live        Connect     illegal
live        Accepted    illegal
live        Disconnect  leaving
live        Down        down
leaving     Connect     illegal
leaving     Accepted    illegal
leaving     Disconnect  illegal
leaving     Down        down
"
        );
    }
}
