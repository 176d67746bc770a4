//! The whole state table, written out.

use std::fmt::Write as _;

use super::super::table::{Illegal, Input, State, TABLE, next};

const STATES: [State; 7] = [
    State::ReqSent,
    State::RepReceived,
    State::ReqReceived,
    State::RepSent,
    State::Established,
    State::DreqSent,
    State::TimeWait,
];

const INPUTS: [Input; 15] = [
    Input::Accept,
    Input::Reject,
    Input::Establish,
    Input::Disconnect,
    Input::Req,
    Input::Replace,
    Input::Rep,
    Input::Rtu,
    Input::Mra,
    Input::Rej,
    Input::Dreq,
    Input::Drep,
    Input::Resend,
    Input::GiveUp,
    Input::Evict,
];

/// For each input (line) where it leads from each state (column); a dot is illegal. The reviewed
/// truth: a change here is a change of the protocol.
const SNAPSHOT: &str =
    "           ReqSent     RepReceived ReqReceived RepSent     Established DreqSent    TimeWait
Accept     .           .           RepSent     .           .           .           .
Reject     .           TimeWait    TimeWait    .           .           .           .
Establish  .           Established .           Established Established .           .
Disconnect TimeWait    TimeWait    .           DreqSent    DreqSent    DreqSent    .
Req        .           .           ReqReceived RepSent     Established DreqSent    TimeWait
Replace    .           TimeWait    TimeWait    TimeWait    TimeWait    TimeWait    .
Rep        RepReceived RepReceived .           .           Established .           TimeWait
Rtu        .           .           .           Established Established DreqSent    .
Mra        ReqSent     .           .           RepSent     .           .           .
Rej        TimeWait    TimeWait    TimeWait    TimeWait    TimeWait    TimeWait    .
Dreq       .           TimeWait    .           TimeWait    TimeWait    TimeWait    TimeWait
Drep       .           .           .           .           .           TimeWait    TimeWait
Resend     ReqSent     .           .           RepSent     .           DreqSent    .
GiveUp     TimeWait    .           TimeWait    TimeWait    .           TimeWait    .
Evict      .           .           TimeWait    TimeWait    .           .           .
";

#[test]
fn the_table_is_as_reviewed() {
    let mut text = String::from("          ");
    let line = |text: &mut String, cells: [String; 7]| {
        cells.iter().for_each(|cell| write!(text, " {cell:11}").unwrap());
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line(&mut text, STATES.map(|state| format!("{state:?}")));
    for input in INPUTS {
        write!(text, "{:10}", format!("{input:?}")).unwrap();
        line(
            &mut text,
            STATES.map(|state| match next(state, input) {
                Ok(to) => format!("{to:?}"),
                Err(Illegal) => ".".to_owned(),
            }),
        );
    }
    assert_eq!(text, SNAPSHOT, "\n{text}");
}

#[test]
fn each_state_takes_an_input_in_one_way() {
    for (index, (from, input, to)) in TABLE.iter().enumerate() {
        assert_eq!(next(*from, *input), Ok(*to));
        let again = TABLE[index + 1..].iter().any(|(other, by, _)| other == from && by == input);
        assert!(!again, "{from:?} takes {input:?} twice");
    }
    assert_eq!(next(State::ReqSent, Input::Rtu), Err(Illegal));
    assert_eq!(next(State::TimeWait, Input::Establish), Err(Illegal));
}

/// Nothing leads out of time wait, and every other state has a way into it.
#[test]
fn all_ways_lead_to_time_wait() {
    assert!(TABLE.iter().all(|(from, _, to)| *from != State::TimeWait || *to == State::TimeWait));
    for state in [
        State::ReqSent,
        State::RepReceived,
        State::ReqReceived,
        State::RepSent,
        State::Established,
        State::DreqSent,
    ] {
        assert!(TABLE.iter().any(|(from, _, to)| *from == state && *to == State::TimeWait), "{state:?}");
    }
}
