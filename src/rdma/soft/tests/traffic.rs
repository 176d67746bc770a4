//! SEND, WRITE and READ between devices and within one.

use std::net::{IpAddr, Ipv6Addr};

use super::rig::{End, Node, Rig, Setup, own_address, pattern};
use crate::rdma::soft::{PortConfig, open_port};
use crate::rdma::verbs::{ConnEnd, ConnEvent, Connections, PathMtu, SendOp, WcOpcode, WcStatus};

/// One of each operation in several sizes; every byte is looked at.
pub(super) fn exercise(rig: &mut Rig, here: End, there: End) {
    let sizes = [0usize, 1, 3, 36, 255, 256, 257, 4096, 4097, 8260, 65_536, 200_001];
    for (n, len) in sizes.into_iter().enumerate() {
        let seed = n as u64 + 1;
        let (from, to) = (64 * n, (512 << 10) + 32 * n);
        rig.nodes[here.node].fill(from, len, seed);
        let write = SendOp::Write(rig.remote(there.node, to));
        rig.post(here, 7, write, from, len);
        let wc = rig.completion(here.node, 7);
        assert_eq!((wc.status, wc.opcode, wc.qpn), (WcStatus::Success, WcOpcode::Write, here.qpn));
        assert_eq!(rig.nodes[there.node].bytes(to, len), pattern(from, len, seed), "WRITE of {len}");

        let back = (1 << 20) + 16 * n;
        let read = SendOp::Read(rig.remote(there.node, to));
        rig.post(here, 8, read, back, len);
        let wc = rig.completion(here.node, 8);
        assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Read));
        assert_eq!(rig.nodes[here.node].bytes(back, len), pattern(from, len, seed), "READ of {len}");

        if len <= 8260 {
            rig.post(here, 9, SendOp::Send { solicited: false }, from, len);
            assert_eq!(rig.completion(here.node, 9).status, WcStatus::Success);
            let node = there.node;
            let wc = rig.until("a receive", |rig| {
                let is_recv = |&(at, wc): &(usize, crate::rdma::verbs::Wc)| at == node && wc.wr_id >> 32 == 1;
                let at = rig.completions.iter().position(is_recv)?;
                Some(rig.completions.swap_remove(at).1)
            });
            assert_eq!((wc.opcode, wc.len_bytes, wc.qpn), (WcOpcode::Recv, len as u32, there.qpn));
            let at = Node::received_at(wc.wr_id);
            assert_eq!(rig.nodes[node].bytes(at, len), pattern(from, len, seed), "SEND of {len}");
            rig.nodes[node].post_receive(wc.wr_id & 0xffff);
        }
    }
}

#[test]
fn two_devices_over_ipv4() {
    let mut rig = Rig::new(Setup::default());
    let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
    let (here, there) = rig.connect((a, a), (b, b));
    exercise(&mut rig, here, there);
    exercise(&mut rig, there, here);
    let (sent, got) = (*rig.nodes[a].device.counters(), *rig.nodes[b].device.counters());
    assert!(sent.sent_trains > 0, "long messages travel in trains: {sent:?}");
    assert!(got.recv_packets > got.recv_datagrams, "and arrive merged: {got:?}");
    assert_eq!((got.bad_icrc, got.unlikely_id, got.bad_length, got.truncated), (0, 0, 0, 0));
    assert_eq!((sent.looped, sent.send_errors, sent.send_full), (0, 0, 0));
}

/// The other side still sends trains to it, which the kernel cuts.
#[test]
fn a_peer_that_cannot_batch() {
    let mut rig = Rig::new(Setup::default());
    let singly = PortConfig { singly: true, ..PortConfig::new(1) };
    let ports = open_port(own_address(), &singly).unwrap();
    assert_eq!(ports[0].segmenting().max_segments, 1);
    let (a, b) = (rig.host(own_address(), 1), rig.host_on(ports));
    let (here, there) = rig.connect((a, a), (b, b));
    exercise(&mut rig, here, there);
    exercise(&mut rig, there, here);
    let (one, other) = (*rig.nodes[b].device.counters(), *rig.nodes[a].device.counters());
    assert_eq!((one.sent_packets, one.sent_trains), (one.send_calls, 0), "{one:?}");
    assert_eq!(one.recv_packets, one.recv_datagrams, "{one:?}");
    assert_eq!(other.recv_packets, other.recv_datagrams, "{other:?}");
    assert!(other.sent_trains > 0, "{other:?}");
    assert_eq!((one.bad_icrc, one.unlikely_id, other.bad_icrc, other.unlikely_id), (0, 0, 0, 0));
}

#[test]
fn all_path_mtus() {
    for code in 1..=5 {
        let mtu = PathMtu::from_code(code).unwrap();
        let mut rig = Rig::new(Setup { mtu, ..Setup::default() });
        let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
        let (here, there) = rig.connect((a, a), (b, b));
        exercise(&mut rig, here, there);
    }
}

/// Only ::1 is there on every machine, so there is one device; first in the process, then through
/// the kernel.
#[test]
fn one_device_over_ipv6() {
    for in_process in [true, false] {
        let mut rig = Rig::new(Setup { in_process, ..Setup::default() });
        // Another test process may have the port for a moment.
        let address = IpAddr::from(Ipv6Addr::LOCALHOST);
        let host = loop {
            match crate::rdma::soft::open_port(address, &crate::rdma::soft::PortConfig::new(1)) {
                Ok(ports) => break rig.host_on(ports),
                Err(crate::rdma::soft::PortError::InUse(_)) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let (here, there) = rig.connect((host, host), (host, host));
        exercise(&mut rig, here, there);
        let counters = *rig.nodes[host].device.counters();
        assert_eq!(counters.looped > 0, in_process, "{counters:?}");
        assert_eq!(counters.sent_packets == 0, in_process, "{counters:?}");
        assert_eq!((counters.bad_icrc, counters.send_errors), (0, 0));
    }
}

/// With the receive buffer of an unprivileged process, READ data must not overrun it for long.
#[test]
fn a_small_receive_buffer_is_enough() {
    let mut rig = Rig::new(Setup { recv_buffer_bytes: 106_496, ..Setup::default() });
    let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
    let (here, there) = rig.connect((a, a), (b, b));
    exercise(&mut rig, here, there);
    for n in 0..8 {
        let remote = rig.remote(there.node, 0);
        rig.post(here, 100 + n, SendOp::Read(remote), 0, 256 << 10);
    }
    for n in 0..8 {
        assert_eq!(rig.completion(here.node, 100 + n).status, WcStatus::Success);
    }
}

#[test]
fn a_peer_hears_the_end() {
    let mut rig = Rig::new(Setup::default());
    let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
    let (here, there) = rig.connect((a, a), (b, b));
    let now = rig.now();
    rig.nodes[a].device.disconnect(now, here.conn).unwrap();
    let end = rig.until("the end of the connection", |rig| {
        loop {
            match rig.nodes[b].device.poll_conn()? {
                ConnEvent::Ended { conn, why } => return Some((conn, why)),
                _ => continue,
            }
        }
    });
    assert_eq!(end, (there.conn, ConnEnd::PeerDisconnected));
}
