//! What goes over a connection.

use super::rig::{MEMORY_BYTES, Node, RECEIVE_BYTES, Rig, SENDS};
use crate::rdma::shm::ring::MAX_RECORD_BYTES;
use crate::rdma::verbs::{
    Access, Device as _, QpState, Remote, SendOp, SendWr, SgeList, VerbsError,
    WcStatus::{self, Success},
};
use crate::wire::num::RKey;

const SEND: SendOp = SendOp::Send { solicited: false };

#[test]
fn sends_of_every_length_arrive() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (ours, _) = rig.connected(node, 0);
    for (number, len) in [0, 1, 55, 56, 57, 64, 112, 4096, RECEIVE_BYTES].into_iter().enumerate() {
        rig.nodes[0].post_receive(number as u64);
        rig.nodes[node].region.fill(7, len, number as u8 + 1).unwrap();
        rig.send(ours, 100 + number as u64, 7, len);
        assert_eq!(rig.done(node), [(100 + number as u64, Success)]);
        let wc = rig.nodes[0].completions.pop().unwrap();
        assert_eq!((wc.wr_id, wc.status, wc.len_bytes as usize), (number as u64, Success, len));
        assert_eq!(rig.nodes[0].bytes(Node::receive_at(number as u64), len), vec![number as u8 + 1; len]);
    }
}

#[test]
fn two_pieces_are_one_message() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (ours, _) = rig.connected(node, 0);
    rig.nodes[0].post_receive(3);
    rig.nodes[node].region.write(10, b"header").unwrap();
    rig.nodes[node].region.write(5000, &[9; 100]).unwrap();
    let sges = SgeList::two(rig.nodes[node].sge(10, 6), rig.nodes[node].sge(5000, 100));
    rig.post(ours, 1, SEND, sges);
    rig.turns();
    assert_eq!(rig.nodes[0].completions[0].len_bytes, 106);
    assert_eq!(rig.nodes[0].bytes(Node::receive_at(3), 106), [&b"header"[..], &[9; 100]].concat());
}

#[test]
fn rdma_goes_both_ways_and_needs_the_right_key() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (_, theirs) = rig.connected(node, 0);
    rig.nodes[0].region.write(100, b"to the initiator").unwrap();
    let to = rig.nodes[node].remote(2000);
    let piece = SgeList::two(rig.nodes[0].sge(100, 10), rig.nodes[0].sge(110, 6));
    rig.post(theirs, 1, SendOp::Write(to), piece);
    assert_eq!(rig.nodes[node].bytes(2000, 16), b"to the initiator", "done when it is posted");
    rig.nodes[node].region.write(3000, b"from the initiator").unwrap();
    let from = rig.nodes[node].remote(3000);
    let piece = SgeList::one(rig.nodes[0].sge(200, 18));
    rig.post(theirs, 2, SendOp::Read(from), piece);
    assert_eq!(rig.nodes[0].bytes(200, 18), b"from the initiator");
    assert_eq!(rig.done(0), [(1, Success), (2, Success)]);

    let end = rig.nodes[node].remote(MEMORY_BYTES - 17);
    rig.post(theirs, 3, SendOp::Read(end), piece);
    assert_eq!(rig.done(0), [(3, WcStatus::RemoteAccess)], "a byte beyond the end");
    assert_eq!(rig.nodes[0].device.qp_state(theirs.qp), Ok(QpState::Err));
    rig.post(theirs, 4, SendOp::Read(from), piece);
    assert_eq!(rig.done(0), [(4, WcStatus::WrFlush)]);

    for remote in
        [Remote { rkey: RKey(from.rkey.0 ^ 1 << 20), ..from }, Remote { addr: from.addr - 3001, ..from }]
    {
        let (_, theirs) = rig.connected(node, 0);
        rig.post(theirs, 5, SendOp::Write(remote), piece);
        assert_eq!(rig.done(0), [(5, WcStatus::RemoteAccess)], "{remote:?}");
    }
    let (_, theirs) = rig.connected(node, 0);
    let beyond = SgeList::one(rig.nodes[0].sge(MEMORY_BYTES - 1, 2));
    rig.post(theirs, 6, SendOp::Write(from), beyond);
    assert_eq!(rig.done(0), [(6, WcStatus::LocalProtection)], "our own memory is checked, too");
}

#[test]
fn memory_is_reached_as_it_is_registered_at_the_time() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (_, theirs) = rig.connected(node, 0);
    let initiator = &mut rig.nodes[node];
    let late = initiator.device.allocate(4096, Access::REMOTE).unwrap();
    let read_only = Access { local_write: false, remote_write: false, remote_read: true };
    let keys = initiator.device.register(initiator.pd, &late, read_only).unwrap();
    let remote = Remote { addr: late.addr(), rkey: keys.rkey };
    let piece = SgeList::one(rig.nodes[0].sge(0, 64));
    // Nobody has looked at the socket meanwhile.
    rig.post(theirs, 1, SendOp::Read(remote), piece);
    assert_eq!(rig.done(0), [(1, Success)]);
    rig.nodes[node].device.deregister(keys.lkey).unwrap();
    rig.turns();
    rig.post(theirs, 2, SendOp::Read(remote), piece);
    assert_eq!(rig.done(0), [(2, WcStatus::RemoteAccess)]);

    let (_, theirs) = rig.connected(node, 0);
    let initiator = &mut rig.nodes[node];
    let keys = initiator.device.register(initiator.pd, &late, read_only).unwrap();
    let remote = Remote { addr: late.addr(), rkey: keys.rkey };
    rig.post(theirs, 3, SendOp::Write(remote), piece);
    assert_eq!(rig.done(0), [(3, WcStatus::RemoteAccess)], "only to be read");

    let initiator = &mut rig.nodes[node];
    let private = reactors::memory::Region::heap(4096);
    let refused = initiator.device.register(initiator.pd, &private, Access::REMOTE);
    assert!(matches!(refused, Err(VerbsError::Invalid(_))), "what the peer could not map");
    initiator.device.register(initiator.pd, &private, Access::LOCAL).unwrap();
}

#[test]
fn a_send_waits_for_a_receive_and_those_behind_it_for_room() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (ours, theirs) = rig.connected(node, 0);
    // 56 cells each: four fit the ring. The lengths tell them apart, in whichever order receives are taken.
    let len = |id: u64| 56 * 56 - id as usize;
    let wr = |id| SendWr {
        wr_id: id,
        op: SEND,
        sges: SgeList::one(rig.nodes[node].sge(0, len(id))),
        signaled: true,
    };
    let wrs: Vec<SendWr> = (0..4 + u64::from(SENDS) + 1).map(wr).collect();
    let (now, device) = (rig.now, &mut rig.nodes[node].device);
    for wr in &wrs[..wrs.len() - 1] {
        device.post_send(now, ours.qp, wr).unwrap();
    }
    assert_eq!(device.post_send(now, ours.qp, &wrs[wrs.len() - 1]), Err(VerbsError::QueueFull));
    assert_eq!(rig.done(node).len(), 4, "in the ring");
    assert!(rig.nodes[0].completions.is_empty());
    for number in 0..4 + u64::from(SENDS) {
        rig.nodes[0].post_receive(number);
    }
    for _ in 0..6 {
        rig.turns();
    }
    let received: Vec<usize> = rig.nodes[0].completions.iter().map(|wc| wc.len_bytes as usize).collect();
    assert_eq!(received, (0..4 + u64::from(SENDS)).map(len).collect::<Vec<_>>());
    assert_eq!(rig.done(node).len(), SENDS as usize);
    assert_eq!(rig.nodes[0].device.qp_state(theirs.qp), Ok(QpState::Rts));
}

#[test]
fn a_send_that_does_not_fit_ends_the_queue_pair() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (ours, theirs) = rig.connected(node, 0);
    rig.nodes[0].post_receive(1);
    rig.send(ours, 9, 0, RECEIVE_BYTES + 1);
    assert_eq!(rig.done(0), [(1, WcStatus::LocalLength)]);
    assert_eq!(rig.nodes[0].device.qp_state(theirs.qp), Ok(QpState::Err));
    let too_long = SendWr {
        wr_id: 1,
        op: SEND,
        sges: SgeList::one(rig.nodes[node].sge(0, MAX_RECORD_BYTES + 1)),
        signaled: true,
    };
    let refused = rig.nodes[node].device.post_send(rig.now, ours.qp, &too_long);
    assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{refused:?}");
}

#[test]
fn shards_share_a_socket_and_keep_their_queue_pairs() {
    let mut rig = Rig::new(2);
    let node = rig.initiator();
    for shard in [1, 0, 1] {
        let (ours, theirs) = rig.connected(node, shard);
        let qpn = rig.nodes[shard].device.qpn(theirs.qp).unwrap();
        assert_eq!(qpn.get() as usize & 1, shard);
        rig.nodes[shard].post_receive(5);
        rig.send(ours, 1, 0, 64);
        rig.turns();
        let wc = rig.nodes[shard].completions.pop().unwrap();
        assert_eq!((wc.wr_id, wc.qpn), (5, qpn));
        rig.done(node);
    }
}

#[test]
fn an_empty_write_is_a_sign_of_life() {
    let mut rig = Rig::new(1);
    let node = rig.initiator();
    let (_, theirs) = rig.connected(node, 0);
    rig.turns();
    let before = rig.nodes[0].device.last_heard(theirs.qp).unwrap();
    rig.turns();
    assert_eq!(rig.nodes[0].device.last_heard(theirs.qp), Ok(before), "who does nothing is not heard");
    rig.post(theirs, 1, SendOp::Write(Remote::default()), SgeList::EMPTY);
    assert_eq!(rig.done(0), [(1, Success)]);
    assert!(rig.nodes[0].device.last_heard(theirs.qp).unwrap() > before);
    assert!(rig.nodes[node].completions.is_empty());
}

#[test]
fn who_sleeps_is_woken_and_who_spins_is_not() {
    let mut rig = Rig::new(1);
    let sleeper = rig.initiator_with(|config| crate::rdma::shm::DeviceConfig {
        sleeps_after: Some(std::time::Duration::from_micros(10)),
        ..config
    });
    let spinner = rig.initiator();
    let readable = |rig: &Rig, node: usize| {
        rig.nodes[node].device.wait_fds().into_iter().any(|fd| {
            // The descriptors are the device's, which lives.
            let path = format!("/proc/self/fdinfo/{fd}");
            assert!(std::path::Path::new(&path).exists());
            epoll_is_ready(fd)
        })
    };
    for (node, rings) in [(sleeper, true), (spinner, false)] {
        let (_, theirs) = rig.connected(node, 0);
        rig.turns();
        rig.turns();
        assert!(!readable(&rig, node));
        assert_eq!(rig.nodes[node].device.next_deadline(), reactors::time::Time::NEVER);
        let before = rig.nodes[0].counter("shm_bells_rung");
        rig.nodes[node].post_receive(1);
        rig.send(theirs, 1, 0, 36);
        // The target's next turn rings, and rings once.
        let now = rig.now;
        rig.nodes[0].device.progress(now);
        rig.nodes[0].device.progress(now);
        assert_eq!(rig.nodes[0].counter("shm_bells_rung") - before, u64::from(rings));
        assert_eq!(readable(&rig, node), rings);
        rig.turns();
        assert_eq!(rig.nodes[node].completions.pop().map(|wc| wc.wr_id), Some(1));
        rig.turns();
        assert!(!readable(&rig, node), "the bell was heard");
    }
}

/// Whether an epoll has something: by an epoll around it, since its number is all we have.
fn epoll_is_ready(fd: std::os::fd::RawFd) -> bool {
    let mut bed = reactors::wake::Bed::new(reactors::wake::Waker::new().unwrap()).unwrap();
    bed.set_fds(|fds| fds.push(fd)).unwrap();
    let started = std::time::Instant::now();
    bed.wait(Some(std::time::Duration::from_millis(300))).unwrap();
    started.elapsed() < std::time::Duration::from_millis(250)
}
