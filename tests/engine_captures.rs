//! The engine in the place of Linux: each end of captured connections (`ib_srp` and `ib_srpt` over rxe)
//! is played by an engine that gets the other end's packets, and does what its consumer did. It
//! must send the same packets, byte for byte, requests and answers.

#[path = "engine_support/mod.rs"]
mod support;

#[path = "common/pcap.rs"]
mod pcap;

use std::net::IpAddr;

use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::verbs::*;
use srpoll::wire::bth::{Bth, Opcode, Operation};
use srpoll::wire::ext::Reth;
use srpoll::wire::num::Qpn;
use srpoll::wire::packet::{Ext, Packet as Whole};

use support::*;

const INITIATOR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 99, 0, 11));

/// An RC packet of the capture.
struct Seen {
    number: usize,
    from: IpAddr,
    bytes: Vec<u8>,
}

impl Seen {
    fn packet(&self) -> Whole<'_> {
        Whole::parse(&self.bytes).unwrap()
    }
    fn is_request(&self) -> bool {
        self.packet().bth.opcode.is_rc_request()
    }
}

/// Sends whole packets to a list.
struct Tape(Vec<Vec<u8>>);

impl srpoll::rdma::engine::Sink for Tape {
    fn has_room(&self) -> bool {
        true
    }
    fn packet(&mut self, out: &srpoll::rdma::engine::Outgoing<'_>) {
        let mut bytes = vec![0; out.len_bytes()];
        out.copy_to(&mut bytes);
        self.0.push(bytes);
    }
}

fn rc_packets(name: &str) -> (IpAddr, Vec<Seen>) {
    let frames = pcap::roce_frames(name);
    // The first connection; one capture has a second.
    let rc = |frame: &&pcap::Frame| Bth::parse(frame.ib()).unwrap().opcode != Opcode::UdSendOnly;
    let first = |initiator: bool| {
        let mut of_side = frames.iter().filter(rc).filter(|frame| (frame.source() == INITIATOR) == initiator);
        Bth::parse(of_side.next().unwrap().ib()).unwrap().dest_qpn
    };
    let ends = [first(true), first(false)];
    let target = frames.iter().map(pcap::Frame::source).find(|source| *source != INITIATOR).unwrap();
    let seen = frames
        .iter()
        .filter(rc)
        .filter(|frame| ends.contains(&Bth::parse(frame.ib()).unwrap().dest_qpn))
        .map(|frame| Seen { number: frame.number, from: frame.source(), bytes: frame.ib().to_vec() })
        .collect();
    (target, seen)
}

/// The packets of the message that begins at `at`, in order.
fn message(seen: &[Seen], at: usize) -> Vec<&Seen> {
    let mut packets = Vec::new();
    let mut psn = seen[at].packet().bth.psn;
    for next in seen[at..].iter().filter(|next| next.from == seen[at].from && next.is_request()) {
        let bth = next.packet().bth;
        assert_eq!(bth.psn, psn, "frame {}: nothing is lost in these captures", next.number);
        psn = psn.plus(1);
        packets.push(next);
        if bth.opcode.position().ends() {
            return packets;
        }
    }
    // Cut off by the end of the capture.
    packets
}

fn payload(packets: &[&Seen]) -> Vec<u8> {
    packets.iter().flat_map(|packet| packet.packet().payload.to_vec()).collect()
}

/// What `responder` answered to the READ with this first PSN and length.
fn read_answer(seen: &[Seen], responder: IpAddr, bth: &Bth, reth: &Reth, mtu: u32) -> Vec<u8> {
    let packets = reth.len_bytes.div_ceil(mtu).max(1);
    let answers = seen.iter().filter(|answer| {
        let answer_bth = answer.packet().bth;
        let index = answer_bth.psn.distance_from(bth.psn);
        let is_answer = answer_bth.opcode.operation() == Operation::ReadResponse;
        answer.from == responder && is_answer && (0..packets as i32).contains(&index)
    });
    payload(&answers.collect::<Vec<_>>())
}

/// Plays the end at `me`; gives how many packets agreed.
fn replay(name: &str, me: IpAddr, peer: IpAddr, seen: &[Seen]) -> usize {
    let first = |from: IpAddr| {
        seen.iter().find(|packet| packet.from == from && packet.is_request()).unwrap().packet().bth
    };
    let mtu = seen.iter().map(|packet| packet.packet().payload.len()).max().unwrap();
    let mtu = (1..=5).filter_map(PathMtu::from_code).find(|code| code.bytes() == mtu).unwrap();
    let config = EngineConfig {
        write_only_segmentation: false,
        read_chunk_bytes: 1 << 23,
        read_budget_bytes: 1 << 30,
        // rxe acknowledges what asks for it, and nothing else.
        ack_every_packets: u32::MAX,
        // As wide as rxe's, and so that only the ends of messages ask for an ACK.
        window_start_packets: 1 << 10,
        window_max_packets: 1 << 10,
        ..EngineConfig::default()
    };
    let setup = Setup { config, mtu, region_bytes: 16 << 20, max_recv_wr: 1024, ..Setup::default() };
    let mut lone = Lone::unconnected(&setup);
    let path = Path { local: me, remote: peer, scope_id: 0 };
    let dest_qpn: Qpn = first(me).dest_qpn;
    let rtr = lone.side.rtr(path, dest_qpn, first(peer).psn.get());
    let QpModify::Rts(rts) = lone.side.rts() else { unreachable!() };
    let rts = QpModify::Rts(RtsAttr { sq_psn: first(me).psn, ..rts });
    for change in [QpModify::Init, rtr, rts] {
        lone.modify(&change).unwrap();
    }
    // Every message gets memory of its own.
    let mut used = 0;
    let mut place = |len: usize| {
        let offset = used;
        used += len.next_multiple_of(64).max(64);
        offset
    };
    // What must lie where in the end.
    let mut sends_due: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut lands_due: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut expected = (Vec::new(), Vec::new());
    let mut sent = Tape(Vec::new());
    for (at, packet) in seen.iter().enumerate() {
        let whole = packet.packet();
        let (bth, position) = (whole.bth, whole.bth.opcode.position());
        if packet.from == me {
            if !packet.is_request() {
                expected.1.push(packet);
                continue;
            }
            expected.0.push(packet);
            if !position.begins() {
                continue;
            }
            let parts = message(seen, at);
            let bytes = payload(&parts);
            let remote = |reth: Reth| Remote { addr: reth.addr, rkey: reth.rkey };
            let (op, len) = match whole.ext {
                Ext::Reth(reth) if bth.opcode == Opcode::ReadRequest => {
                    (SendOp::Read(remote(reth)), reth.len_bytes as usize)
                }
                Ext::Reth(reth) => (SendOp::Write(remote(reth)), reth.len_bytes as usize),
                _ => {
                    let solicited = parts.last().unwrap().packet().bth.solicited;
                    (SendOp::Send { solicited }, bytes.len())
                }
            };
            let offset = place(len);
            match (op, whole.ext) {
                (SendOp::Read(_), Ext::Reth(reth)) => {
                    lands_due.push((offset, read_answer(seen, peer, &bth, &reth, mtu.bytes() as u32)));
                }
                _ => lone.side.region.write(offset, &bytes).unwrap(),
            }
            lone.post(&wr(at as u64, op, lone.side.list(offset, len), true));
        } else {
            let mut bytes = packet.bytes.clone();
            Bth { dest_qpn: lone.side.qpn, ..bth }.emit(&mut bytes);
            if let Ext::Reth(reth) = whole.ext {
                // The peer's addresses are of another machine's memory.
                let offset = place(reth.len_bytes as usize);
                if bth.opcode == Opcode::ReadRequest {
                    let answer = read_answer(seen, me, &bth, &reth, mtu.bytes() as u32);
                    lone.side.region.write(offset, &answer).unwrap();
                } else {
                    lands_due.push((offset, payload(&message(seen, at))));
                }
                let Reth { addr, rkey, .. } = lone.reth(offset, 0);
                Reth { addr, rkey, ..reth }.emit(&mut bytes[Bth::LEN..]);
            } else if packet.is_request() && position.begins() {
                let whole = payload(&message(seen, at));
                let offset = place(whole.len());
                lone.post_recv(at as u64, offset, whole.len());
                sends_due.push((offset, whole));
            }
            lone.engine.receive(lone.now, path, &bytes);
            lone.engine.end_batch(lone.now);
        }
        lone.engine.transmit(lone.now, &mut sent);
        lone.engine.audit().unwrap();
    }

    let is_request = |bytes: &Vec<u8>| Bth::parse(bytes).unwrap().opcode.is_rc_request();
    let (requests, answers): (Vec<_>, Vec<_>) = sent.0.into_iter().partition(is_request);
    for (what, ours, theirs) in [("request", requests, expected.0), ("answer", answers, expected.1)] {
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let number = theirs.number;
            let mut ours = ours.clone();
            if !theirs.packet().bth.opcode.position().ends() {
                // rxe asks for an ACK within a message too, every 66 packets.
                ours[8] = theirs.bytes[8];
            }
            assert_eq!(
                Whole::parse(&ours).unwrap().bth,
                theirs.packet().bth,
                "{name} at {me}: {what} of frame {number}"
            );
            assert!(ours == theirs.bytes, "{name} at {me}: {what} of frame {number} has other bytes");
        }
        // A capture may end within a message.
        assert!(ours.len() >= theirs.len(), "{name} at {me}: {} of {} {what}s", ours.len(), theirs.len());
    }
    let complete = lone.recv_wcs();
    assert!(complete.iter().all(|wc| wc.1 == WcStatus::Success));
    for (offset, bytes) in sends_due.iter().take(complete.len()).chain(&lands_due) {
        assert!(lone.side.bytes(*offset, bytes.len()) == *bytes, "{name} at {me}: the bytes that arrived");
    }
    assert!(lone.send_wcs().iter().all(|wc| wc.1 == WcStatus::Success));
    assert_eq!(lone.engine.counters().retransmissions, 0);
    seen.iter().filter(|packet| packet.from == me).count()
}

#[test]
fn it_sends_what_linux_sent_at_both_ends() {
    let mut agreed = 0;
    for name in [
        "lio-61-login-io.pcap",
        "lio-612-login-io.pcap",
        "var-noimm.pcap",
        "var-neverreg.pcap",
        "var-neverreg-ext.pcap",
        "var-regalways0-sg255.pcap",
    ] {
        let (target, seen) = rc_packets(name);
        agreed += replay(name, INITIATOR, target, &seen);
        agreed += replay(name, target, INITIATOR, &seen);
    }
    assert!(agreed > 3000, "{agreed} packets");
}
