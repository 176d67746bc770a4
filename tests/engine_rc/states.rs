//! The state table (spec section 7), what may be posted in each state, SQD, and the ends of a QP.

use std::fmt::Write as _;
use std::time::Duration;

use srpoll::rdma::engine::{EngineConfig, Sizes};
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::Opcode;

use crate::support::*;

const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

/// An engine whose QP is in `state`.
fn in_state(state: QpState, setup: &Setup) -> Lone {
    let mut lone = Lone::unconnected(setup);
    let rtr = lone.rtr();
    let rts = lone.side.rts();
    let way = [QpModify::Init, rtr, rts, QpModify::Drain { notify: false }];
    let steps = match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts | QpState::Err => 3,
        QpState::Sqd => 4,
    };
    for change in &way[..steps] {
        lone.modify(change).unwrap();
    }
    if state == QpState::Err {
        lone.modify(&QpModify::Err).unwrap();
    }
    assert_eq!(lone.state(), state);
    lone
}

#[test]
fn the_whole_table() {
    let mut table = String::from("from    RESET  INIT   RTR    RTS    DRAIN  RESUME ERR\n");
    for from in STATES {
        write!(table, "{:<7}", format!("{from:?}").to_uppercase()).unwrap();
        let attrs = in_state(QpState::Init, &Setup::default());
        let changes = [
            QpModify::Reset,
            QpModify::Init,
            attrs.rtr(),
            attrs.side.rts(),
            QpModify::Drain { notify: false },
            QpModify::Resume,
            QpModify::Err,
        ];
        for change in changes {
            let mut lone = in_state(from, &Setup::default());
            let cell = match lone.modify(&change) {
                Ok(()) => format!("{:?}", lone.state()).to_uppercase(),
                Err(error) => {
                    assert_eq!(error, VerbsError::State(from));
                    assert_eq!(lone.state(), from, "an illegal move changes nothing");
                    "-".to_owned()
                }
            };
            write!(table, " {cell:<6}").unwrap();
        }
        table = table.trim_end().to_owned() + "\n";
    }
    assert_eq!(
        table,
        "\
from    RESET  INIT   RTR    RTS    DRAIN  RESUME ERR
RESET   RESET  INIT   -      -      -      -      -
INIT    RESET  INIT   RTR    -      -      -      ERR
RTR     RESET  -      -      RTS    -      -      ERR
RTS     RESET  -      -      -      SQD    RTS    ERR
SQD     RESET  -      -      -      SQD    RTS    ERR
ERR     RESET  -      -      -      -      -      ERR
"
    );
}

#[test]
fn what_may_be_posted_and_what_becomes_of_it() {
    let mut table = String::from("state  post recv  post send  takes requests\n");
    for state in STATES {
        let mut lone = in_state(state, &Setup { srq: false, ..Setup::default() });
        lone.sent();
        let recv = RecvWr { wr_id: 1, sge: lone.side.sge(0, 64) };
        let recv = match lone.engine.post_recv(lone.side.qp, &recv) {
            Err(VerbsError::State(_)) => "refused",
            Ok(()) if lone.recv_wcs() == [(1, WcStatus::WrFlush)] => "flushed",
            other => other.map(|()| "taken").unwrap(),
        };
        let send = wr(2, SEND, lone.side.list(0, 8), true);
        let send = match lone.engine.post_send(lone.now, lone.side.qp, &send) {
            Err(VerbsError::State(_)) => "refused",
            other => {
                other.unwrap();
                let sent = lone.sent().len();
                match lone.send_wcs().as_slice() {
                    [(2, WcStatus::WrFlush)] => "flushed",
                    [] if sent == 0 => "held",
                    [] => "sent",
                    _ => "?",
                }
            }
        };
        let before = lone.engine.counters().dropped_state;
        lone.request(Opcode::WriteOnly, 0, true, Some(lone.reth(0, 0)), &[]);
        let dropped = lone.engine.counters().dropped_state > before;
        let takes = if dropped { "no" } else { "yes" };
        writeln!(table, "{:<6} {recv:<10} {send:<10} {takes}", format!("{state:?}").to_uppercase()).unwrap();
    }
    assert_eq!(
        table,
        "\
state  post recv  post send  takes requests
RESET  refused    refused    no
INIT   taken      refused    no
RTR    taken      refused    yes
RTS    taken      sent       yes
SQD    taken      held       yes
ERR    flushed    flushed    no
"
    );
}

#[test]
fn bad_attributes_are_errors_that_change_nothing() {
    let mut lone = in_state(QpState::Init, &Setup::default());
    let QpModify::Rtr(good) = lone.rtr() else { unreachable!() };
    for bad in [
        RtrAttr { min_rnr_timer: 32, ..good },
        RtrAttr { max_dest_rd_atomic: 129, ..good },
        RtrAttr { path: Path { remote: "fd00::1".parse().unwrap(), ..good.path }, ..good },
    ] {
        assert!(matches!(lone.modify(&QpModify::Rtr(bad)), Err(VerbsError::Invalid(_))));
        assert_eq!(lone.state(), QpState::Init);
    }
    lone.modify(&QpModify::Rtr(good)).unwrap();
    let QpModify::Rts(good) = lone.side.rts() else { unreachable!() };
    for bad in [
        RtsAttr { timeout_code: 32, ..good },
        RtsAttr { retry_count: 8, ..good },
        RtsAttr { rnr_retry: 8, ..good },
        RtsAttr { max_rd_atomic: 129, ..good },
    ] {
        assert!(matches!(lone.modify(&QpModify::Rts(bad)), Err(VerbsError::Invalid(_))));
        assert_eq!(lone.state(), QpState::Rtr);
    }
    lone.modify(&QpModify::Rts(good)).unwrap();
}

#[test]
fn the_first_packet_in_rtr_is_an_event_once() {
    let mut lone = in_state(QpState::Rtr, &Setup::default());
    for index in 0..3 {
        lone.request(Opcode::WriteOnly, index, true, Some(lone.reth(0, 0)), &[]);
    }
    assert_eq!(lone.replies().len(), 1, "RTR answers");
    assert_eq!(lone.events(), [AsyncEvent::CommEstablished(lone.side.qp)]);
    // In RTS it is no news.
    let mut lone = in_state(QpState::Rts, &Setup::default());
    lone.request(Opcode::WriteOnly, 0, true, Some(lone.reth(0, 0)), &[]);
    assert!(lone.events().is_empty());
    // The way through RTR arms it again.
    lone.modify(&QpModify::Reset).unwrap();
    lone.modify(&QpModify::Init).unwrap();
    lone.modify(&lone.rtr()).unwrap();
    lone.request(Opcode::WriteOnly, 0, true, Some(lone.reth(0, 0)), &[]);
    assert_eq!(lone.events(), [AsyncEvent::CommEstablished(lone.side.qp)]);
}

#[test]
fn rtr_takes_requests_and_no_responses() {
    let mut lone = in_state(QpState::Rtr, &Setup::default());
    lone.ack(0);
    assert_eq!(lone.engine.counters().dropped_state, 1);
    lone.post_recv(5, 0, 64);
    lone.request(Opcode::SendOnly, 0, true, None, b"early");
    assert_eq!(lone.recv_wcs(), [(5, WcStatus::Success)]);
}

#[test]
fn sqd_finishes_what_has_begun_and_holds_the_rest() {
    let mut lone = in_state(QpState::Rts, &Setup::default());
    let (op, list) = (SendOp::Write(FAR), lone.side.list(0, 3 * 1024));
    lone.post(&wr(1, op, list, true));
    lone.post(&wr(2, op, list, true));
    assert_eq!(lone.sent_up_to(1).len(), 1, "the first has begun");
    lone.modify(&QpModify::Drain { notify: true }).unwrap();
    let sent = lone.sent();
    assert_eq!(sent.len(), 2, "and goes on to its end");
    assert!(sent[1].bth.ack_req);
    assert!(lone.events().is_empty());
    // Its retransmissions go on too.
    lone.wait(Duration::from_secs(1));
    assert_eq!(lone.sent().len(), 3);
    lone.ack(2);
    assert_eq!(lone.send_wcs(), [(1, WcStatus::Success)]);
    assert_eq!(lone.events(), [AsyncEvent::SqDrained(lone.side.qp)]);
    assert!(lone.sent().is_empty(), "the second is held");
    lone.post(&wr(3, op, list, true));
    assert!(lone.sent().is_empty(), "and so is a new one");
    lone.modify(&QpModify::Resume).unwrap();
    assert_eq!(lone.sent().len(), 6);
    lone.ack(8);
    assert_eq!(lone.send_wcs(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    assert!(lone.events().is_empty(), "drained once");
}

#[test]
fn an_idle_queue_pair_is_drained_at_once_and_only_if_asked() {
    let mut lone = in_state(QpState::Rts, &Setup::default());
    lone.modify(&QpModify::Drain { notify: true }).unwrap();
    assert_eq!(lone.events(), [AsyncEvent::SqDrained(lone.side.qp)]);
    let mut lone = in_state(QpState::Rts, &Setup::default());
    lone.modify(&QpModify::Drain { notify: false }).unwrap();
    assert!(lone.events().is_empty());
    lone.modify(&QpModify::Drain { notify: true }).unwrap();
    assert_eq!(lone.events(), [AsyncEvent::SqDrained(lone.side.qp)], "SQD to SQD asks anew");
}

#[test]
fn an_unsignaled_last_request_before_sqd_still_drains() {
    let mut lone = in_state(QpState::Rts, &Setup::default());
    let list = lone.side.list(0, 8);
    lone.post(&wr(1, SendOp::Write(FAR), list, false));
    lone.post(&wr(2, SendOp::Write(FAR), list, false));
    assert_eq!(lone.sent_up_to(1).len(), 1);
    lone.modify(&QpModify::Drain { notify: true }).unwrap();
    // The first left without AckReq, since another was to follow. It is asked for in time.
    lone.wait(Duration::from_secs(1));
    let again = lone.sent();
    assert!(again.last().unwrap().bth.ack_req);
    lone.ack(0);
    assert_eq!(lone.events(), [AsyncEvent::SqDrained(lone.side.qp)]);
}

#[test]
fn reset_wipes_both_queues_without_completions() {
    let mut lone = in_state(QpState::Rts, &Setup { srq: false, ..Setup::default() });
    lone.post_recv(7, 0, 64);
    lone.post(&wr(1, SEND, lone.side.list(0, 8), true));
    lone.post(&wr(2, SendOp::Read(FAR), lone.side.list(0, 8), true));
    assert_eq!(lone.sent().len(), 2);
    assert_eq!(lone.engine.read_bytes_in_flight(), 8);
    lone.modify(&QpModify::Reset).unwrap();
    assert_eq!(lone.engine.read_bytes_in_flight(), 0);
    assert!(lone.sent().is_empty());
    lone.wait(Duration::from_secs(10));
    assert!(lone.sent().is_empty());
    assert!(lone.send_wcs().is_empty() && lone.recv_wcs().is_empty() && lone.events().is_empty());
    // A new life with the same number and fresh sequence numbers.
    lone.modify(&QpModify::Init).unwrap();
    lone.modify(&lone.rtr()).unwrap();
    lone.modify(&lone.side.rts()).unwrap();
    lone.request(Opcode::SendOnly, 0, true, None, &[]);
    assert_eq!(lone.replies()[0].syndrome().unwrap().to_wire() >> 5, 1, "RNR NAK: the receive is gone");
    lone.post(&wr(3, SEND, lone.side.list(0, 8), true));
    assert_eq!(lone.sent()[0].bth.psn.get(), lone.side.setup.psn);
}

#[test]
fn a_destroyed_queue_pair_is_gone_and_its_number_rests() {
    // Two numbers in all above the reserved ones would be too few: 8 shard bits leave 65,536.
    let config = EngineConfig {
        shard: 3,
        shard_bits: 8,
        sizes: Sizes { max_qp: 1, ..Sizes::default() },
        ..EngineConfig::default()
    };
    let mut lone = in_state(QpState::Rts, &Setup { config, ..Setup::default() });
    assert_eq!(lone.side.qpn.get() & 0xff, 3);
    lone.post(&wr(1, SEND, lone.side.list(0, 8), true));
    lone.sent();
    let (qp, qpn) = (lone.side.qp, lone.side.qpn);
    assert_eq!(lone.engine.create_qp(&lone.side.qp_init()), Err(VerbsError::Exhausted("queue pair")));
    lone.engine.destroy_qp(lone.now, qp).unwrap();
    assert!(lone.send_wcs().is_empty());
    assert_eq!(lone.engine.qp_state(qp), Err(VerbsError::NotFound("queue pair")));
    assert_eq!(lone.engine.destroy_qp(lone.now, qp), Err(VerbsError::NotFound("queue pair")));
    lone.ack(0);
    assert_eq!(lone.engine.counters().dropped_unknown_qpn, 1);
    let newer = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    assert_ne!(newer, qp, "a stale id is never another QP");
    assert_ne!(lone.engine.qpn(newer).unwrap(), qpn);
    assert_eq!(lone.engine.qp_of(lone.engine.qpn(newer).unwrap()), Some(newer));
    assert_eq!(
        lone.engine.post_recv(qp, &RecvWr { wr_id: 0, sge: Sge::default() }),
        Err(VerbsError::NotFound("queue pair"))
    );
}

#[test]
fn a_recycled_queue_pair_begins_anew_under_another_number() {
    for state in STATES {
        let mut lone = in_state(state, &Setup::default());
        let (qp, qpn) = (lone.side.qp, lone.side.qpn);
        if state == QpState::Rts {
            lone.post(&wr(1, SEND, lone.side.list(0, 8), true));
            lone.sent();
        }
        let before = lone.events();
        assert_eq!(
            before.contains(&AsyncEvent::LastWqeReached(qp)),
            state == QpState::Err && lone.side.srq.is_some()
        );
        lone.engine.retire_qp(lone.now, qp, Retire::Recycle).unwrap();
        assert_eq!(lone.events(), [AsyncEvent::QpRetired { qp, outcome: Retired::Recycled }], "{state:?}");
        assert_eq!(lone.state(), QpState::Init);
        assert!(lone.send_wcs().is_empty(), "what was posted ends without completions");
        assert_eq!(lone.engine.last_heard(qp), Ok(reactors::time::Time::ZERO));
        // A packet of the old connection finds nobody.
        lone.ack(0);
        assert_eq!(lone.engine.counters().dropped_unknown_qpn, 1);
        let renamed = lone.engine.qpn(qp).unwrap();
        assert_ne!(renamed, qpn);
        assert_eq!((lone.engine.qp_of(qpn), lone.engine.qp_of(renamed)), (None, Some(qp)));
        lone.side.qpn = renamed;
        let (rtr, rts) = (lone.rtr(), lone.side.rts());
        lone.modify(&rtr).unwrap();
        lone.modify(&rts).unwrap();
        lone.post(&wr(2, SEND, lone.side.list(0, 8), true));
        assert_eq!(lone.sent()[0].bth.psn.get(), lone.side.setup.psn);
        lone.ack(0);
        assert_eq!(lone.send_wcs(), [(2, WcStatus::Success)]);
    }
}

#[test]
fn a_queue_pair_may_also_retire_for_good() {
    let mut lone = in_state(QpState::Err, &Setup::default());
    let qp = lone.side.qp;
    lone.events();
    lone.engine.retire_qp(lone.now, qp, Retire::Destroy).unwrap();
    assert_eq!(lone.events(), [AsyncEvent::QpRetired { qp, outcome: Retired::Destroyed }]);
    let gone = Err(VerbsError::NotFound("queue pair"));
    assert_eq!(lone.engine.retire_qp(lone.now, qp, Retire::Recycle), gone);
    assert_eq!(lone.engine.retire_qp(lone.now, qp, Retire::Destroy), gone);
    assert!(lone.events().is_empty());
}
