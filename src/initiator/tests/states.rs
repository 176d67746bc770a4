//! The state tables, printed whole.

use crate::initiator::session::{SessionEvent, SessionState};
use crate::initiator::slot::{SlotEvent, SlotState};

#[test]
fn the_table_of_requests() {
    let mut table = String::new();
    for state in SlotState::ALL {
        for event in SlotEvent::ALL {
            if let Ok(next) = state.after(event) {
                table.push_str(&format!("{state:10}{:10}{next}\n", format!("{event:?}")));
            }
        }
    }
    assert_eq!(table, REQUESTS, "\n{table}");
}

const REQUESTS: &str = "\
free      Reserve   held
free      Lost      free
held      Post      posted
held      Release   free
held      Lost      held
posted    SendDone  sent
posted    Answer    answered
posted    Lost      done
sent      Answer    done
sent      Lost      done
answered  SendDone  done
answered  Release   released
answered  Lost      done
done      Release   free
done      Lost      done
released  SendDone  free
released  Lost      free
";

#[test]
fn the_table_of_sessions() {
    use SessionEvent as E;
    use SessionState as S;
    let mut table = String::new();
    for state in [S::Idle, S::Connecting, S::Live, S::Waiting, S::Lost, S::Closing, S::Closed] {
        for event in [E::Start, E::Up, E::LoseForNow, E::Lose, E::Close, E::Down] {
            if let Some(next) = state.after(event) {
                table.push_str(&format!("{state:12}{:12}{next}\n", format!("{event:?}")));
            }
        }
    }
    assert_eq!(table, SESSIONS, "\n{table}");
}

const SESSIONS: &str = "\
idle        Start       connecting
idle        Close       closed
connecting  Up          live
connecting  LoseForNow  waiting
connecting  Lose        lost
connecting  Close       closing
live        LoseForNow  waiting
live        Lose        lost
live        Close       closing
waiting     Start       connecting
waiting     Close       closed
lost        Close       closed
closing     Down        closed
";
