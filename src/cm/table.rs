//! The state table of a connection: from, input, to. Whatever is not in it is illegal.

/// States of a connection (IBTA vol. 1, 12.9.7, without those for alternate paths).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Active: our REQ is on its way.
    ReqSent,
    /// Active: the REP is here, our consumer prepares its queue pair.
    RepReceived,
    /// Passive: our consumer decides on a REQ.
    ReqReceived,
    /// Passive: our REP is on its way.
    RepSent,
    /// Both sides may send.
    Established,
    /// Our DREQ is on its way.
    DreqSent,
    /// Over; our ids rest.
    TimeWait,
}

/// What can happen to a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Consumer accepts.
    Accept,
    /// Consumer refuses.
    Reject,
    /// Consumer's queue pair is up (active), or had data before the RTU (passive).
    Establish,
    /// Consumer ends it.
    Disconnect,
    /// The REQ of this connection came again.
    Req,
    /// Another REQ from the same GUID and queue pair.
    Replace,
    /// REP.
    Rep,
    /// RTU.
    Rtu,
    /// MRA.
    Mra,
    /// REJ.
    Rej,
    /// DREQ for our queue pair.
    Dreq,
    /// DREP.
    Drep,
    /// The timer ran out and a retry is left.
    Resend,
    /// The timer ran out for good.
    GiveUp,
    /// Too many are half open, and this one is the oldest.
    Evict,
}

use Input as I;
use State as S;

/// The table.
pub(super) const TABLE: [(State, Input, State); 52] = [
    (S::ReqSent, I::Rep, S::RepReceived),
    (S::ReqSent, I::Mra, S::ReqSent),
    (S::ReqSent, I::Rej, S::TimeWait),
    (S::ReqSent, I::Resend, S::ReqSent),
    (S::ReqSent, I::GiveUp, S::TimeWait),
    (S::ReqSent, I::Disconnect, S::TimeWait),
    (S::RepReceived, I::Establish, S::Established),
    (S::RepReceived, I::Rep, S::RepReceived),
    (S::RepReceived, I::Reject, S::TimeWait),
    (S::RepReceived, I::Disconnect, S::TimeWait),
    (S::RepReceived, I::Rej, S::TimeWait),
    (S::RepReceived, I::Dreq, S::TimeWait),
    (S::RepReceived, I::Replace, S::TimeWait),
    (S::ReqReceived, I::Accept, S::RepSent),
    (S::ReqReceived, I::Reject, S::TimeWait),
    (S::ReqReceived, I::Req, S::ReqReceived),
    (S::ReqReceived, I::Rej, S::TimeWait),
    (S::ReqReceived, I::Replace, S::TimeWait),
    (S::ReqReceived, I::GiveUp, S::TimeWait),
    (S::ReqReceived, I::Evict, S::TimeWait),
    (S::RepSent, I::Rtu, S::Established),
    (S::RepSent, I::Establish, S::Established),
    (S::RepSent, I::Req, S::RepSent),
    (S::RepSent, I::Mra, S::RepSent),
    (S::RepSent, I::Rej, S::TimeWait),
    (S::RepSent, I::Dreq, S::TimeWait),
    (S::RepSent, I::Disconnect, S::DreqSent),
    (S::RepSent, I::Replace, S::TimeWait),
    (S::RepSent, I::Resend, S::RepSent),
    (S::RepSent, I::GiveUp, S::TimeWait),
    (S::RepSent, I::Evict, S::TimeWait),
    (S::Established, I::Establish, S::Established),
    (S::Established, I::Req, S::Established),
    (S::Established, I::Rep, S::Established),
    (S::Established, I::Rtu, S::Established),
    (S::Established, I::Rej, S::TimeWait),
    (S::Established, I::Dreq, S::TimeWait),
    (S::Established, I::Disconnect, S::DreqSent),
    (S::Established, I::Replace, S::TimeWait),
    (S::DreqSent, I::Disconnect, S::DreqSent),
    (S::DreqSent, I::Req, S::DreqSent),
    (S::DreqSent, I::Rtu, S::DreqSent),
    (S::DreqSent, I::Rej, S::TimeWait),
    (S::DreqSent, I::Dreq, S::TimeWait),
    (S::DreqSent, I::Drep, S::TimeWait),
    (S::DreqSent, I::Replace, S::TimeWait),
    (S::DreqSent, I::Resend, S::DreqSent),
    (S::DreqSent, I::GiveUp, S::TimeWait),
    (S::TimeWait, I::Req, S::TimeWait),
    (S::TimeWait, I::Rep, S::TimeWait),
    (S::TimeWait, I::Dreq, S::TimeWait),
    (S::TimeWait, I::Drep, S::TimeWait),
];

/// An input that a state does not take: from a peer it is ignored, from the consumer refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Illegal;

/// Where `input` leads from `state`.
pub(super) fn next(state: State, input: Input) -> Result<State, Illegal> {
    let row = TABLE.iter().find(|(from, by, _)| *from == state && *by == input);
    row.map(|(_, _, to)| *to).ok_or(Illegal)
}

impl State {
    /// Passive and not yet confirmed by the peer: what a storm of requests can make many of.
    pub(super) const fn is_half_open(self) -> bool {
        matches!(self, State::ReqReceived | State::RepSent)
    }
}
