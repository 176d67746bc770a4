//! Two network namespaces and a wire between them: packets that the kernel really cuts, sends and
//! receives one by one. Only root can make them; without, these tests say so and look at nothing.

use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};

use super::rig::{Rig, Setup};
use super::traffic::exercise;
use crate::rdma::soft::{PortConfig, PortSocket, ROCE_PORT, open_port, path_mtu};
use crate::rdma::verbs::{Path, PathMtu, SendOp, WcStatus};
use crate::wire::icrc;

/// Two namespaces, 10.77.0.1 and fd77::1 in one, 10.77.0.2 and fd77::2 in the other.
struct Wire {
    names: [String; 2],
}

impl Drop for Wire {
    fn drop(&mut self) {
        // With a namespace goes its end of the wire, and with that the other.
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(args: &str) {
    let done = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {args}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Wire {
    /// `None`, and a line that says so, for whoever is not root or has no `ip`.
    fn new(mtu: u32) -> Option<Wire> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tag = format!("{}-{number}", std::process::id());
        let wire = Wire { names: [format!("srpoll-a-{tag}"), format!("srpoll-b-{tag}")] };
        let made = Command::new("ip").args(["netns", "add", &wire.names[0]]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            eprintln!("network namespaces cannot be made here: nothing was tested");
            return None;
        }
        let [a, b] = &wire.names;
        ip(&format!("netns add {b}"));
        // A device that takes no trains: they are cut before they reach it.
        ip(&format!("-n {a} link add w0 mtu {mtu} gso_max_segs 1 type veth peer name w0 netns {b}"));
        for (name, last) in [(a, 1), (b, 2)] {
            ip(&format!("-n {name} addr add 10.77.0.{last}/24 dev w0"));
            ip(&format!("-n {name} addr add fd77::{last}/64 dev w0 nodad"));
            ip(&format!("-n {name} addr add fe80::{last}/64 dev w0 nodad"));
            ip(&format!("-n {name} link set w0 mtu {mtu} gso_max_segs 1 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        Some(wire)
    }

    /// Runs `work` in a namespace: what it opens stays there.
    fn inside<T: Send>(&self, end: usize, work: impl FnOnce() -> T + Send) -> T {
        let file = std::fs::File::open(format!("/run/netns/{}", self.names[end])).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let fd = std::os::fd::AsFd::as_fd(&file);
                move_into_link_name_space(fd, Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }

    fn open(&self, end: usize, address: IpAddr) -> PortSocket {
        self.inside(end, || open_port(address, &PortConfig::new(1)).unwrap().pop().unwrap())
    }
}

const V4: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const V6: [&str; 2] = ["fd77::1", "fd77::2"];
/// Nobody names their interface: it is the one that has the address.
const LINK_LOCAL: [&str; 2] = ["fe80::1", "fe80::2"];

#[test]
fn over_a_wire_that_takes_no_trains() {
    let Some(wire) = Wire::new(9000) else { return };
    for addresses in [V4, V6, LINK_LOCAL] {
        let addresses = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let mut rig = Rig::new(Setup::default());
        let a = rig.host_on(vec![wire.open(0, addresses[0])]);
        let b = rig.host_on(vec![wire.open(1, addresses[1])]);
        let mtu = wire.inside(0, || path_mtu(addresses[0], addresses[1], 0).unwrap());
        assert_eq!(mtu, PathMtu::B4096, "{addresses:?}");
        let (here, there) = rig.connect((a, a), (b, b));
        exercise(&mut rig, here, there);
        exercise(&mut rig, there, here);
        let (sent, got) = (*rig.nodes[a].device.counters(), *rig.nodes[b].device.counters());
        assert!(sent.sent_trains > 0);
        assert_eq!((got.bad_icrc, got.unlikely_id, sent.send_errors), (0, 0, 0));
    }
}

/// Every packet as it was on the wire, its IPv4 header included, has the ICRC that we foresaw: the
/// segments of trains too, which were cut by the kernel and numbered by it.
#[test]
fn what_the_kernel_cuts_has_the_right_icrc() {
    let Some(wire) = Wire::new(1500) else { return };
    let addresses = V4.map(|address| address.parse::<IpAddr>().unwrap());
    let mut rig = Rig::new(Setup { mtu: PathMtu::B1024, ..Setup::default() });
    let a = rig.host_on(vec![wire.open(0, addresses[0])]);
    let b = rig.host_on(vec![wire.open(1, addresses[1])]);
    let tap = wire.inside(1, || {
        let tap = Socket::new(Domain::IPV4, Type::RAW.nonblocking(), Some(Protocol::UDP)).unwrap();
        tap.set_recv_buffer_size(4 << 20).unwrap();
        tap
    });
    let (here, there) = rig.connect((a, a), (b, b));
    let write = SendOp::Write(rig.remote(there.node, 0));
    rig.post(here, 1, write, 0, 64 << 10);
    assert_eq!(rig.completion(a, 1).status, WcStatus::Success);

    let mut highest_id = 0;
    let mut packets = 0;
    let mut buffer = [0; 2048];
    let mut tap = std::io::BufReader::with_capacity(0, tap);
    while let Ok(len) = std::io::Read::read(tap.get_mut(), &mut buffer) {
        let packet = &buffer[..len];
        if packet[22..24] != ROCE_PORT.to_be_bytes() {
            continue;
        }
        let (foreseen, sent) = icrc::of_ip_packet(packet).unwrap();
        let id = u16::from_be_bytes([packet[4], packet[5]]);
        assert_eq!(foreseen, sent, "packet {packets} with identification {id}");
        highest_id = highest_id.max(id);
        packets += 1;
    }
    assert!(packets > 64 && highest_id > 8, "{packets} packets, identifications to {highest_id}");
}

/// A path MTU that the link does not carry: the kernel says so, and nothing else happens.
#[test]
fn packets_longer_than_the_link_are_errors_of_ours() {
    let Some(wire) = Wire::new(1500) else { return };
    let addresses = V4.map(|address| address.parse::<IpAddr>().unwrap());
    let mut rig = Rig::new(Setup { mtu: PathMtu::B4096, ..Setup::default() });
    let a = rig.host_on(vec![wire.open(0, addresses[0])]);
    let b = rig.host_on(vec![wire.open(1, addresses[1])]);
    let mtu = wire.inside(0, || path_mtu(addresses[0], addresses[1], 0).unwrap());
    assert_eq!(mtu, PathMtu::B1024);
    let (here, there) = rig.connect((a, a), (b, b));
    let write = SendOp::Write(rig.remote(there.node, 0));
    rig.post(here, 1, write, 0, 1000);
    assert_eq!(rig.completion(a, 1).status, WcStatus::Success);
    let path = Path { local: addresses[0], remote: addresses[1], scope_id: 0 };
    assert!(rig.nodes[a].device.segments_on(&path));
    rig.post(here, 2, write, 0, 64 << 10);
    rig.until("a refused packet", |rig| (rig.nodes[a].device.counters().send_errors > 0).then_some(()));
    assert!(!rig.nodes[a].device.segments_on(&path), "refused together: they go one by one");
    assert_eq!(rig.nodes[b].device.counters().bad_length, 0);
}
