//! Peers that lie: whatever they write and send, they end their own connection and no other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use reactors::memory::Region;
use reactors::slab::Key;

use super::rig::{End, Rig};
use crate::rdma::shm::segment::{SEGMENT_BYTES, Side, Word};
use crate::rdma::shm::socket;
use crate::rdma::verbs::{
    AsyncEvent, ConnId, Device as _, QpId, QpModify, QpState, Remote, SendOp, SgeList, WcStatus,
};
use crate::wire::num::{Psn, Qpn, RKey};
use crate::wire::shm::{Export, MAX_LEN, Message, Offer, access};

const OFFER: Offer =
    Offer { qpn: Qpn::new(9), starting_psn: Psn::new(8), responder_resources: 4, initiator_depth: 4 };
const CONNECT: Message<'static> = Message::Connect { guid: 3, offer: OFFER, private: b"login" };

/// A peer that is no device.
struct Stranger {
    socket: OwnedFd,
    segment: Region,
}

impl Stranger {
    fn new(rig: &Rig) -> Stranger {
        let socket = socket::connect(&rig.folder.path().join("s")).unwrap();
        Stranger { socket, segment: reactors::shared::create("stranger", SEGMENT_BYTES).unwrap() }
    }

    /// One whose queue pair is in RTS at the target: the target's queue pair.
    fn connected(rig: &mut Rig) -> (Stranger, QpId) {
        let stranger = Stranger::new(rig);
        socket::send(&stranger.socket, &CONNECT, stranger.segment.memfd()).unwrap();
        let (_, request, _) = rig.asked();
        let qp = rig.nodes[0].create_qp();
        rig.nodes[0].device.modify_qp(rig.now, qp, &QpModify::Init).unwrap();
        rig.ready(0, qp, request.remote_qpn);
        (stranger, qp)
    }
}

/// The target's end of a connection with a stranger; its number at the connection manager is no matter.
fn target_end(qp: QpId) -> End {
    End { node: 0, qp, conn: ConnId(Key { slot: 0, generation: 0 }) }
}

/// A well-behaved pair beside the stranger, which must go on.
fn beside(rig: &mut Rig) -> impl FnMut(&mut Rig) + use<> {
    let node = rig.initiator();
    let (ours, theirs) = rig.connected(node, 0);
    move |rig| {
        rig.nodes[0].completions.clear();
        rig.nodes[0].post_receive(63);
        rig.send(ours, 1, 0, 100);
        rig.turns();
        let qpn = rig.nodes[0].device.qpn(theirs.qp).unwrap();
        // Receives are shared, so it may be that of a stranger's record.
        assert!(rig.nodes[0].completions.iter().any(|wc| wc.qpn == qpn && wc.len_bytes == 100));
    }
}

#[test]
fn a_connection_begins_with_a_request_or_ends() {
    let mut rig = Rig::new(1);
    let mut goes_on = beside(&mut rig);
    let unsealed = rustix::fs::memfd_create("stranger", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, SEGMENT_BYTES as u64).unwrap();
    let short = reactors::shared::create("stranger", SEGMENT_BYTES - 4096).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let descriptors = [None, Some(unsealed.as_fd()), short.memfd(), Some(reader.as_fd())];
    for beside in descriptors {
        let stranger = Stranger::new(&rig);
        socket::send(&stranger.socket, &CONNECT, beside).unwrap();
        rig.turns();
        assert!(
            matches!(socket::receive(&stranger.socket, &mut [0; MAX_LEN]), socket::Look::Gone),
            "{beside:?}"
        );
    }
    for wrong in [Message::Ready, Message::Bell, Message::Bye, Message::Revoke(RKey(1))] {
        let stranger = Stranger::new(&rig);
        socket::send(&stranger.socket, &wrong, stranger.segment.memfd()).unwrap();
        rig.turns();
        assert!(
            matches!(socket::receive(&stranger.socket, &mut [0; MAX_LEN]), socket::Look::Gone),
            "{wrong:?}"
        );
    }
    // Who says nothing is not waited for.
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(Stranger::new(&rig));
        rig.turns();
    }
    let before = rig.nodes[0].counter("connections");
    assert!((60..=65).contains(&before), "{before}");
    rig.now += std::time::Duration::from_secs(3);
    rig.turns();
    assert_eq!(rig.nodes[0].counter("connections"), 1);
    drop(silent);
    assert!(rig.nodes[0].heard.is_empty(), "{:?}", rig.nodes[0].heard);
    goes_on(&mut rig);
}

#[test]
fn a_peer_may_hang_up_at_any_point() {
    let mut rig = Rig::new(1);
    let mut goes_on = beside(&mut rig);
    drop(Stranger::new(&rig));
    let stranger = Stranger::new(&rig);
    rig.turns();
    drop(stranger);
    let stranger = Stranger::new(&rig);
    socket::send(&stranger.socket, &CONNECT, stranger.segment.memfd()).unwrap();
    drop(stranger);
    rig.turns();
    rig.nodes[0].heard.clear();
    let (stranger, qp) = Stranger::connected(&mut rig);
    drop(stranger);
    rig.turns();
    assert_eq!(rig.nodes[0].device.qp_state(qp), Ok(QpState::Err));
    assert_eq!(rig.nodes[0].counter("connections"), 1);
    goes_on(&mut rig);
}

#[test]
fn lies_in_the_ring_end_the_queue_pair() {
    let mut rig = Rig::new(1);
    let mut goes_on = beside(&mut rig);
    let cells = Side::Active.cells_at();
    let taken = Word::Taken.at(Side::Active);
    for (offset, word) in
        [(cells, 5 << 32), (cells, 1 << 32 | 9 << 24), (cells, 1 << 32 | 1 << 24 | 0xff_ffff), (taken, 1)]
    {
        let (stranger, qp) = Stranger::connected(&mut rig);
        stranger.segment.word(offset).unwrap().store(word, Ordering::Release);
        rig.turns();
        assert_eq!(rig.nodes[0].device.qp_state(qp), Ok(QpState::Err), "{word:#x}");
        assert!(rig.nodes[0].events.contains(&AsyncEvent::QpRequestError(qp)));
        goes_on(&mut rig);
    }
}

#[test]
fn memory_that_is_none_ends_the_connection() {
    let mut rig = Rig::new(1);
    let mut goes_on = beside(&mut rig);
    let memory = reactors::shared::create("stranger", 8192).unwrap();
    let good = Export { rkey: RKey(1), addr: 0x1000, len_bytes: 8192, access: access::READ | access::WRITE };
    for (export, with) in [
        (Export { len_bytes: 16384, ..good }, memory.memfd()),
        (Export { len_bytes: 0, ..good }, memory.memfd()),
        (Export { addr: u64::MAX, ..good }, memory.memfd()),
        (good, None),
    ] {
        let (stranger, qp) = Stranger::connected(&mut rig);
        socket::send(&stranger.socket, &Message::Export(export), with).unwrap();
        rig.turns();
        assert_eq!(rig.nodes[0].device.qp_state(qp), Ok(QpState::Err), "{export:?}");
    }
    // And what it exports it may write, and let go of, at any time.
    let (stranger, qp) = Stranger::connected(&mut rig);
    socket::send(&stranger.socket, &Message::Export(good), memory.memfd()).unwrap();
    drop(memory);
    let piece = SgeList::one(rig.nodes[0].sge(0, 8192));
    let to = Remote { addr: 0x1000, rkey: RKey(1) };
    rig.nodes[0].completions.clear();
    rig.post(target_end(qp), 1, SendOp::Write(to), piece);
    assert_eq!(rig.done(0), [(1, WcStatus::Success)]);
    drop(stranger);
    goes_on(&mut rig);
}

/// Random words in the segment, random messages on the socket, for many short lives.
#[test]
fn noise_ends_its_own_connection_only() {
    let mut rig = Rig::new(1);
    let mut goes_on = beside(&mut rig);
    let mut rng = fastrand::Rng::with_seed(0x5a5a);
    for life in 0..60u64 {
        let (stranger, qp) = Stranger::connected(&mut rig);
        if life % 2 == 0 {
            rig.nodes[0].post_receive(life);
        }
        for _ in 0..rng.usize(1..40) {
            match rng.u8(0..4) {
                0 => {
                    let mut bytes = vec![0; rng.usize(1..MAX_LEN)];
                    rng.fill(&mut bytes);
                    bytes[0] %= 10;
                    let _ = rustix::net::send(&stranger.socket, &bytes, rustix::net::SendFlags::NOSIGNAL);
                }
                1 => {
                    let at = rng.usize(0..SEGMENT_BYTES / 8) * 8;
                    stranger.segment.word(at).unwrap().store(rng.u64(..), Ordering::Relaxed);
                }
                2 => {
                    // As a record would look, mostly.
                    let at = 4096 + rng.usize(0..8) * 64;
                    let word = rng.u64(0..3) << 32 | rng.u64(0..3) << 24 | rng.u64(0..300);
                    stranger.segment.word(at).unwrap().store(word, Ordering::Release);
                }
                _ if rig.nodes[0].device.qp_state(qp) == Ok(QpState::Rts) => {
                    rig.send(target_end(qp), 7, 0, rng.usize(0..4000));
                }
                _ => break,
            }
            rig.turns();
        }
        drop(stranger);
        rig.turns();
        rig.turns();
        assert_eq!(rig.nodes[0].device.qp_state(qp), Ok(QpState::Err), "{life}");
        rig.nodes[0].device.destroy_qp(rig.now, qp).unwrap();
        rig.nodes[0].heard.clear();
        rig.nodes[0].events.clear();
        goes_on(&mut rig);
    }
    assert_eq!(rig.nodes[0].counter("connections"), 1);
}
