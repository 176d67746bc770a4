//! Shared receive queues with their limit event, completion queues that run over, capacities.

use srpoll::rdma::engine::{Engine, EngineConfig, Sizes};
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::Opcode;

use crate::support::*;

#[test]
fn the_limit_fires_once_when_the_fill_drops_below_it() {
    let mut lone = Lone::new(&Setup::default());
    let srq = lone.side.srq.unwrap();
    for id in 0..6 {
        lone.post_recv(id, 0, 64);
    }
    lone.engine.arm_srq_limit(srq, 4).unwrap();
    let mut index = 0;
    let mut consume = |lone: &mut Lone| {
        lone.request(Opcode::SendOnly, index, true, None, b"x");
        index += 1;
        lone.events()
    };
    assert!(consume(&mut lone).is_empty(), "5 left");
    assert!(consume(&mut lone).is_empty(), "4 left is not below 4");
    assert_eq!(consume(&mut lone), [AsyncEvent::SrqLimit(srq)]);
    assert!(consume(&mut lone).is_empty(), "disarmed");
    lone.engine.arm_srq_limit(srq, 2).unwrap();
    lone.engine.arm_srq_limit(srq, 0).unwrap();
    assert!(consume(&mut lone).is_empty(), "0 disarms");
    lone.engine.arm_srq_limit(srq, 3).unwrap();
    assert_eq!(lone.events(), [AsyncEvent::SrqLimit(srq)], "already below: at once");
    assert!(matches!(lone.engine.arm_srq_limit(srq, 257), Err(VerbsError::Invalid(_))));
}

#[test]
fn a_shared_queue_serves_all_its_queue_pairs_the_newest_receive_first() {
    let mut lone = Lone::new(&Setup::default());
    let other = lone.engine.create_qp(&lone.side.qp_init()).unwrap();
    for change in [QpModify::Init, lone.rtr(), lone.side.rts()] {
        lone.engine.modify_qp(lone.now, other, &change).unwrap();
    }
    let qpn = lone.engine.qpn(other).unwrap();
    for id in 0..3 {
        lone.post_recv(id, 0, 4096);
    }
    lone.request(Opcode::SendFirst, 0, false, None, &[1; 1024]);
    let bth = srpoll::wire::bth::Bth { dest_qpn: qpn, ..lone.bth(Opcode::SendOnly, 0) };
    lone.hear(bth, &[], b"short");
    lone.request(Opcode::SendLast, 1, false, None, &[1; 4]);
    let wcs = lone.side.recv_wcs(&mut lone.engine);
    let seen: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.qpn, wc.len_bytes)).collect();
    assert_eq!(seen, [(1, qpn, 5), (2, lone.side.qpn, 1028)]);
}

#[test]
fn a_full_receive_queue_says_so() {
    for srq in [true, false] {
        let mut lone = Lone::new(&Setup { srq, max_recv_wr: 2, ..Setup::default() });
        lone.post_recv(1, 0, 64);
        lone.post_recv(2, 0, 64);
        let wr = RecvWr { wr_id: 3, sge: lone.side.sge(0, 64) };
        let refused = match lone.side.srq {
            Some(srq) => lone.engine.post_srq_recv(srq, &wr),
            None => lone.engine.post_recv(lone.side.qp, &wr),
        };
        assert_eq!(refused, Err(VerbsError::QueueFull));
        if srq {
            let refused = lone.engine.post_recv(lone.side.qp, &wr);
            assert!(matches!(refused, Err(VerbsError::Invalid(_))), "it has no queue of its own");
        }
    }
}

#[test]
fn a_completion_queue_that_runs_over_is_an_event_and_ends_its_users() {
    let mut lone = Lone::new(&Setup { cq_depth: 3, ..Setup::default() });
    // A bystander on other queues.
    let cq = lone.engine.create_cq(10).unwrap();
    let init = QpInit { send_cq: cq, recv_cq: cq, ..lone.side.qp_init() };
    let bystander = lone.engine.create_qp(&init).unwrap();
    lone.engine.modify_qp(lone.now, bystander, &QpModify::Init).unwrap();
    for id in 0..5 {
        lone.post_recv(id, 0, 64);
        lone.request(Opcode::SendOnly, id as u32, true, None, b"x");
    }
    let qp = lone.side.qp;
    assert_eq!(
        lone.events(),
        [AsyncEvent::CqOverrun(lone.side.recv_cq), AsyncEvent::QpFatal(qp), AsyncEvent::LastWqeReached(qp)]
    );
    assert_eq!(lone.state(), QpState::Err);
    assert_eq!(lone.engine.qp_state(bystander).unwrap(), QpState::Init);
    assert_eq!(lone.recv_wcs(), [0, 1, 2].map(|id| (id, WcStatus::Success)), "what it held is there");
    assert_eq!(lone.engine.counters().completions_lost, 1);
}

#[test]
fn capacities_are_fixed_and_ids_are_checked() {
    let sizes = Sizes { max_pd: 1, max_cq: 1, max_srq: 1, max_mr: 1, ..Sizes::default() };
    let config = EngineConfig { sizes, ..EngineConfig::default() };
    let mut engine = Engine::new(config.clone(), fastrand::Rng::with_seed(1));
    assert_eq!(engine.caps(), config.caps());
    assert_eq!(engine.caps().max_rd_atomic, 128);
    let pd = engine.alloc_pd().unwrap();
    assert_eq!(engine.alloc_pd(), Err(VerbsError::Exhausted("protection domain")));
    let cq = engine.create_cq(8).unwrap();
    assert_eq!(engine.create_cq(8), Err(VerbsError::Exhausted("completion queue")));
    assert!(matches!(engine.create_cq(0), Err(VerbsError::Invalid(_))));
    assert!(matches!(engine.create_cq(config.max_cqe + 1), Err(VerbsError::Invalid(_))));
    let srq = engine.create_srq(pd, 8).unwrap();
    assert_eq!(engine.create_srq(pd, 8), Err(VerbsError::Exhausted("shared receive queue")));
    let region = reactors::memory::Region::heap(4096);
    let keys = engine.register(pd, &region, Access::LOCAL).unwrap();
    let full = engine.register(pd, &region, Access::LOCAL);
    assert_eq!(full, Err(VerbsError::Exhausted("memory region")));
    engine.deregister(keys.lkey).unwrap();
    assert_eq!(engine.deregister(keys.lkey), Err(VerbsError::NotFound("memory region")));

    let stale = reactors::slab::Key { slot: 0, generation: 9 };
    let init = QpInit {
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: Some(srq),
        max_send_wr: 8,
        max_recv_wr: 0,
        remote_access: false,
    };
    for (bad, error) in [
        (QpInit { pd: PdId(stale), ..init }, VerbsError::NotFound("protection domain")),
        (QpInit { send_cq: CqId(stale), ..init }, VerbsError::NotFound("completion queue")),
        (QpInit { recv_cq: CqId(stale), ..init }, VerbsError::NotFound("completion queue")),
        (QpInit { srq: Some(SrqId(stale)), ..init }, VerbsError::NotFound("shared receive queue")),
        (QpInit { max_send_wr: 0, ..init }, VerbsError::Invalid("max_send_wr")),
        (QpInit { max_send_wr: config.max_send_wr + 1, ..init }, VerbsError::Invalid("max_send_wr")),
        (
            QpInit { srq: None, max_recv_wr: config.max_recv_wr + 1, ..init },
            VerbsError::Invalid("max_recv_wr"),
        ),
    ] {
        assert_eq!(engine.create_qp(&bad), Err(error));
    }
    assert!(engine.create_qp(&init).is_ok());
}
