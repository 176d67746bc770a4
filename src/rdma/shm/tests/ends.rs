//! How connections come to nothing, and how they end.

use super::rig::Rig;
use crate::rdma::shm::{Device, DeviceConfig};
use crate::rdma::verbs::{
    AsyncEvent, ConnEnd, ConnEvent, Connections, Device as _, Path, Peer, Process, QpModify, QpState, Retire,
    Retired, SendOp, Service, SgeList, VerbsError, WcStatus,
};
use crate::wire::num::Qpn;

#[test]
fn the_peer_is_who_the_kernel_says() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    rig.ask(node, b"who");
    let (_, request, private) = rig.asked();
    let us = Process { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
    assert_eq!(request.peer(), Peer::Process(us));
    assert_eq!(request.peer().to_string(), format!("pid {} uid {}", us.pid, us.uid));
    assert_eq!((request.service, request.path), (Service::Shm, Path::NONE));
    assert_eq!((request.responder_resources, request.initiator_depth), (5, 6));
    assert_eq!(private.as_slice(), b"who");
}

#[test]
fn a_refusal_carries_reason_and_data() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    rig.ask(node, b"please");
    let (conn, request, _) = rig.asked();
    rig.nodes[0].device.reject(rig.now, conn, 28, b"no").unwrap();
    let ended = rig.ended(node);
    let [ConnEnd::Rejected { reason: 28, private_data }] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(private_data.as_slice(), b"no");
    assert_eq!(rig.nodes[0].counter("connections"), 0);
    // The link of a refused request is gone.
    let qp = rig.nodes[0].create_qp();
    rig.nodes[0].device.modify_qp(rig.now, qp, &QpModify::Init).unwrap();
    let link = crate::rdma::verbs::RtrAttr {
        path: Path::NONE,
        path_mtu: crate::rdma::verbs::PathMtu::B4096,
        dest_qpn: request.remote_qpn,
        rq_psn: Default::default(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    };
    let moved = rig.nodes[0].device.modify_qp(rig.now, qp, &QpModify::Rtr(link));
    assert!(matches!(moved, Err(VerbsError::NotFound(_))), "{moved:?}");
    assert!(rig.nodes[0].device.reject(rig.now, conn, 28, b"").is_err(), "answered twice");
}

#[test]
fn nobody_is_let_in_while_nobody_listens() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let second = rig.nodes[0].device.listen(None, Service::Shm).unwrap();
    assert!(rig.nodes[0].device.listen(None, Service::RdmaCm { port: 5555 }).is_err());
    // The rig's own listener is the first of its kind.
    let id = crate::rdma::verbs::ListenerId(reactors::slab::Key { slot: 0, generation: 0 });
    for listener in [id, second] {
        rig.nodes[0].device.unlisten(listener).unwrap();
    }
    assert!(rig.nodes[0].device.unlisten(id).is_err());
    rig.ask(node, b"anybody");
    let ended = rig.ended(node);
    assert!(matches!(ended[..], [ConnEnd::Rejected { reason: 8, .. }]), "{ended:?}");
}

#[test]
fn a_socket_that_is_none_is_told_in_words() {
    let mut rig = Rig::new(1);
    let folder = rig.folder.path().to_owned();
    let stream = std::os::unix::net::UnixListener::bind(folder.join("stream")).unwrap();
    drop(crate::unix::OwnedSocket::bind(&folder.join("gone"), crate::rdma::shm::SOCKET).unwrap());
    for (name, words) in [
        ("none", "there is no such socket; does srpoll serve --shm run?"),
        ("stream", "that is a socket of another kind, such as --rpc makes"),
        ("gone", "there is no such socket"),
    ] {
        let path = folder.join(name);
        let node = rig.initiator_with(|config| DeviceConfig { target: Some(path.clone()), ..config });
        let qp = rig.nodes[node].create_qp();
        let device = &mut rig.nodes[node].device;
        device.modify_qp(rig.now, qp, &QpModify::Init).unwrap();
        let attr = crate::rdma::verbs::ConnectAttr {
            service: Service::Shm,
            path: Path::NONE,
            qpn: device.qpn(qp).unwrap(),
            starting_psn: Default::default(),
            path_mtu: crate::rdma::verbs::PathMtu::B4096,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry: 7,
            private_data: crate::rdma::verbs::PrivateData::EMPTY,
        };
        let error = device.connect(rig.now, &attr).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(name), "{error}");
    }
    drop(stream);
}

#[test]
fn a_word_of_farewell_ends_both_queue_pairs() {
    let mut rig = Rig::new(2);
    let node = rig.initiator();
    for by_initiator in [true, false] {
        let (ours, theirs) = rig.connected(node, 1);
        let (who, end) = if by_initiator { (node, ours) } else { (0, theirs) };
        rig.nodes[who].device.disconnect(rig.now, end.conn).unwrap();
        rig.turns();
        let heard_of = if by_initiator { 0 } else { node };
        assert_eq!(rig.ended(heard_of), [ConnEnd::PeerDisconnected]);
        assert_eq!(rig.ended(who), [ConnEnd::Disconnected]);
        let other = if by_initiator { theirs } else { ours };
        assert_eq!(rig.nodes[other.node].device.qp_state(other.qp), Ok(QpState::Err));
        assert!(rig.nodes[other.node].events.contains(&AsyncEvent::LastWqeReached(other.qp)));
        rig.nodes[node].device.destroy_qp(rig.now, ours.qp).unwrap();
        rig.nodes[1].device.destroy_qp(rig.now, theirs.qp).unwrap();
        rig.turns();
        assert_eq!(rig.nodes[0].counter("connections") + rig.nodes[node].counter("connections"), 0);
    }
}

#[test]
fn a_peer_that_dies_is_retries_that_run_out() {
    let mut rig = Rig::new(2);
    let node = rig.initiator();
    let (_, theirs) = rig.connected(node, 1);
    // Something waits for the peer: it takes nothing any more.
    for id in 0..8 {
        rig.send(theirs, id, 0, 56 * 56);
    }
    rig.nodes[1].device.progress(rig.now);
    rig.nodes.pop();
    let done = rig.done(1);
    assert_eq!(
        &done[..5],
        [0, 1, 2, 3]
            .map(|id| (id, WcStatus::Success))
            .iter()
            .chain(&[(4, WcStatus::RetryExceeded)])
            .copied()
            .collect::<Vec<_>>()
    );
    assert!(done[5..].iter().all(|(_, status)| *status == WcStatus::WrFlush));
    assert_eq!(rig.nodes[1].device.qp_state(theirs.qp), Ok(QpState::Err));
    assert!(rig.nodes[1].events.contains(&AsyncEvent::LastWqeReached(theirs.qp)));
    assert_eq!(rig.ended(0), [ConnEnd::PeerDisconnected]);
    assert_eq!(rig.nodes[0].counter("connections"), 0);
    assert_eq!(rig.nodes[1].counter("shm_peers_gone"), 1);
}

#[test]
fn a_peer_that_dies_before_the_answer_is_forgotten() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    rig.ask(node, b"login");
    let (conn, ..) = rig.asked();
    rig.nodes.pop();
    assert_eq!(rig.ended(0), [ConnEnd::PeerDisconnected]);
    let late = crate::rdma::verbs::ConnReply {
        qpn: Qpn::new(5),
        starting_psn: Default::default(),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry: 7,
    };
    assert_eq!(
        rig.nodes[0].device.accept(rig.now, conn, &late, b""),
        Err(VerbsError::NotFound("connection"))
    );
    assert_eq!(rig.nodes[0].counter("connections"), 0);
}

/// From the moment that a queue pair is gone the peer writes nothing any more, even if it has not heard
/// of it.
#[test]
fn memory_is_closed_with_its_queue_pair() {
    for destroy in [true, false] {
        let mut rig = Rig::new(1);
        let node = rig.initiator();
        let (ours, theirs) = rig.connected(node, 0);
        let (now, device) = (rig.now, &mut rig.nodes[node].device);
        match destroy {
            true => device.destroy_qp(now, ours.qp).unwrap(),
            false => device.modify_qp(now, ours.qp, &QpModify::Err).unwrap(),
        }
        rig.nodes[0].region.fill(0, 64, 0xa5).unwrap();
        let (to, piece) = (rig.nodes[node].remote(0), SgeList::one(rig.nodes[0].sge(0, 64)));
        rig.post(theirs, 1, SendOp::Write(to), piece);
        assert_eq!(rig.nodes[node].bytes(0, 64), [0; 64]);
        assert_eq!(rig.done(0), [(1, WcStatus::RetryExceeded)]);
    }
}

#[test]
fn a_recycled_queue_pair_can_be_connected_again() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (_, theirs) = rig.connected(node, 0);
    let (now, device) = (rig.now, &mut rig.nodes[0].device);
    let before = device.qpn(theirs.qp).unwrap();
    device.retire_qp(now, theirs.qp, Retire::Recycle).unwrap();
    assert_ne!(device.qpn(theirs.qp).unwrap(), before);
    assert_eq!(device.qp_state(theirs.qp), Ok(QpState::Init));
    rig.turns();
    let retired = |outcome| AsyncEvent::QpRetired { qp: theirs.qp, outcome };
    assert!(rig.nodes[0].events.contains(&retired(Retired::Recycled)));
    rig.ask(node, b"again");
    let (_, request, _) = rig.asked();
    rig.ready(0, theirs.qp, request.remote_qpn);
    rig.nodes[0].device.retire_qp(rig.now, theirs.qp, Retire::Destroy).unwrap();
    rig.turns();
    assert!(rig.nodes[0].events.contains(&retired(Retired::Destroyed)));
    assert!(rig.nodes[0].device.qp_state(theirs.qp).is_err());
}

#[test]
fn a_completion_queue_that_runs_over_ends_its_queue_pairs() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (_, theirs) = rig.connected(node, 0);
    let (to, piece) = (rig.nodes[node].remote(0), SgeList::one(rig.nodes[0].sge(0, 8)));
    for id in 0..1025 {
        rig.post(theirs, id, SendOp::Write(to), piece);
    }
    rig.turns();
    assert_eq!(rig.nodes[0].completions.len(), 1024);
    assert!(matches!(rig.nodes[0].events[0], AsyncEvent::CqOverrun(_)), "{:?}", rig.nodes[0].events);
    assert_eq!(rig.nodes[0].device.qp_state(theirs.qp), Ok(QpState::Err));
}

#[test]
fn a_shard_that_manages_no_connections_says_so() {
    let config = DeviceConfig { guid: None, ..DeviceConfig::new(1).unwrap() };
    let mut device = Device::new(config).unwrap();
    assert!(matches!(device.listen(None, Service::Shm), Err(VerbsError::Invalid(_))));
    assert_eq!(device.poll_conn(), None::<ConnEvent>);
}
