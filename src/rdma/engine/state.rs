//! The state table of a queue pair, and what each state allows (IBTA vol. 1, 10.3.1).

use crate::rdma::verbs::{QpModify, QpState, VerbsError};

use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd};

/// The kinds of change, in the order of the table's columns.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Change {
    Reset,
    Init,
    Rtr,
    Rts,
    Drain,
    Resume,
    Err,
}

/// Rows are the states before, columns the changes. `Init` in INIT and `Drain` in SQD change
/// attributes at most; `Resume` in RTS is RTS to RTS with nothing to change.
const TABLE: [(QpState, [Option<QpState>; 7]); 6] = [
    //       Reset        Init        Rtr        Rts        Drain      Resume     Err
    (Reset, [Some(Reset), Some(Init), None, None, None, None, None]),
    (Init, [Some(Reset), Some(Init), Some(Rtr), None, None, None, Some(Error)]),
    (Rtr, [Some(Reset), None, None, Some(Rts), None, None, Some(Error)]),
    (Rts, [Some(Reset), None, None, None, Some(Sqd), Some(Rts), Some(Error)]),
    (Sqd, [Some(Reset), None, None, None, Some(Sqd), Some(Rts), Some(Error)]),
    (Error, [Some(Reset), None, None, None, None, None, Some(Error)]),
];

fn kind(change: &QpModify) -> Change {
    match change {
        QpModify::Reset => Change::Reset,
        QpModify::Init => Change::Init,
        QpModify::Rtr(_) => Change::Rtr,
        QpModify::Rts(_) => Change::Rts,
        QpModify::Drain { .. } => Change::Drain,
        QpModify::Resume => Change::Resume,
        QpModify::Err => Change::Err,
    }
}

/// The state after `change` in state `from`.
pub(crate) fn after(from: QpState, change: &QpModify) -> Result<QpState, VerbsError> {
    let row = TABLE.iter().find(|(state, _)| *state == from).expect("every state has a row");
    row.1[kind(change) as usize].ok_or(VerbsError::State(from))
}

/// What a state does with work requests and packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Receives may be posted.
    pub(crate) post_recv: bool,
    /// Sends may be posted.
    pub(crate) post_send: bool,
    /// Requests of the peer are taken.
    pub(crate) take_requests: bool,
    /// Responses of the peer are taken, and sends go out (in SQD only what has begun).
    pub(crate) send: bool,
    /// Everything posted is flushed.
    pub(crate) flush: bool,
}

/// The rules of `state`.
#[inline]
pub(crate) fn rules(state: QpState) -> Rules {
    let none = Rules { post_recv: false, post_send: false, take_requests: false, send: false, flush: false };
    match state {
        Reset => none,
        Init => Rules { post_recv: true, ..none },
        Rtr => Rules { post_recv: true, take_requests: true, ..none },
        Rts | Sqd => Rules { post_recv: true, post_send: true, take_requests: true, send: true, ..none },
        Error => Rules { post_recv: true, post_send: true, flush: true, ..none },
    }
}
