//! The life of a connection id, as a table: what comes in, the state after it, what is to be done.
//! Plain code; `janitor` feeds it and does what it says.

/// Where a connection is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// We ask: the peer's address is being resolved.
    Resolving,
    /// We ask: the way to it is being resolved.
    Routing,
    /// We ask: the REQ is out.
    Asked,
    /// We ask: the REP is here, our RTU is not out.
    Answered,
    /// A peer asks: its REQ is here, not answered.
    Requested,
    /// A peer asks: our REP is out, its RTU is not here.
    Accepted,
    /// Both sides are up.
    Established,
    /// Our DREQ is out.
    Disconnecting,
    /// Over; the id goes.
    Over,
}

/// What happens to a connection: events of the connection manager, then wishes of its consumer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// The address is resolved.
    AddressResolved,
    /// The way is resolved.
    RouteResolved,
    /// The peer's REP.
    Response,
    /// The peer's RTU.
    Established,
    /// The peer's REJ.
    Rejected,
    /// No way, no answer, or an error on it.
    Failed,
    /// DREQ of the peer, or the end of ours.
    Disconnected,
    /// The device goes.
    Removed,
    /// Consumer: accept.
    Accept,
    /// Consumer: refuse.
    Refuse,
    /// Consumer: our queue pair is ready.
    Ready,
    /// Consumer: disconnect.
    Disconnect,
}

/// What is to be done.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Do {
    /// Nothing: it came too late or says nothing new.
    Nothing,
    /// Resolve the way.
    ResolveRoute,
    /// Send the REQ.
    Connect,
    /// Tell the consumer of the REP.
    TellReply,
    /// Tell the consumer that the peer is up.
    TellEstablished,
    /// Send the REP.
    Accept,
    /// Send the REJ; the id goes, and nothing is told.
    Refuse,
    /// Send the RTU.
    Establish,
    /// Send the DREQ and wait for its end.
    SendDreq,
    /// Answer the peer's DREQ, tell the consumer, and the id goes.
    AnswerDreq,
    /// Tell the consumer why, and the id goes.
    End(Why),
}

/// Why it is over.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    /// By a REJ.
    Rejected,
    /// No answer.
    Timeout,
    /// By our own wish.
    Disconnected,
    /// With the device.
    Removed,
}

#[cfg(test)]
const PHASES: [Phase; 9] = [
    Phase::Resolving,
    Phase::Routing,
    Phase::Asked,
    Phase::Answered,
    Phase::Requested,
    Phase::Accepted,
    Phase::Established,
    Phase::Disconnecting,
    Phase::Over,
];
#[cfg(test)]
const INPUTS: [Input; 12] = [
    Input::AddressResolved,
    Input::RouteResolved,
    Input::Response,
    Input::Established,
    Input::Rejected,
    Input::Failed,
    Input::Disconnected,
    Input::Removed,
    Input::Accept,
    Input::Refuse,
    Input::Ready,
    Input::Disconnect,
];

impl Phase {
    /// The next state, and what is to be done on the way.
    pub(super) const fn next(self, input: Input) -> (Phase, Do) {
        use Phase as P;
        match (self, input) {
            (P::Over, _) => (P::Over, Do::Nothing),
            (_, Input::Removed) => (P::Over, Do::End(Why::Removed)),

            (P::Resolving, Input::AddressResolved) => (P::Routing, Do::ResolveRoute),
            (P::Routing, Input::RouteResolved) => (P::Asked, Do::Connect),
            (P::Asked, Input::Response) => (P::Answered, Do::TellReply),
            (P::Answered, Input::Ready) => (P::Established, Do::Establish),

            (P::Requested, Input::Accept) => (P::Accepted, Do::Accept),
            (P::Requested, Input::Refuse) => (P::Over, Do::Refuse),
            (P::Accepted, Input::Established) => (P::Established, Do::TellEstablished),

            // Before both sides are up there is no connection that a DREQ could end: the id goes, and
            // the kernel tells the peer by a REJ.
            (
                P::Resolving | P::Routing | P::Asked | P::Answered | P::Requested | P::Accepted,
                Input::Disconnect,
            ) => (P::Over, Do::End(Why::Disconnected)),
            (P::Established, Input::Disconnect) => (P::Disconnecting, Do::SendDreq),
            (P::Disconnecting, Input::Disconnected) => (P::Over, Do::End(Why::Disconnected)),
            (_, Input::Disconnected) => (P::Over, Do::AnswerDreq),

            (P::Disconnecting, Input::Rejected | Input::Failed) => (P::Over, Do::End(Why::Disconnected)),
            (_, Input::Rejected) => (P::Over, Do::End(Why::Rejected)),
            (_, Input::Failed) => (P::Over, Do::End(Why::Timeout)),

            (same, _) => (same, Do::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table but what does nothing.
    #[test]
    fn the_table() {
        let mut table = String::new();
        for phase in PHASES {
            for input in INPUTS {
                let (next, does) = phase.next(input);
                if does != Do::Nothing || next != phase {
                    table += &format!("{phase:?} {input:?} -> {next:?} {does:?}\n");
                }
            }
        }
        assert_eq!(table, include_str!("conn_table.txt"));
    }

    /// Whatever happens, the consumer hears of the end exactly once, or has refused itself.
    #[test]
    fn every_walk_ends_once() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut phase = if rng.bool() { Phase::Resolving } else { Phase::Requested };
            let mut ends = 0;
            for _ in 0..40 {
                let (next, does) = phase.next(rng.choice(INPUTS).unwrap());
                ends += u32::from(matches!(does, Do::End(_) | Do::AnswerDreq | Do::Refuse));
                assert_eq!(ends == 1, next == Phase::Over);
                phase = next;
            }
        }
    }
}
