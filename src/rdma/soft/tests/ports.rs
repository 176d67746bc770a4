//! Ports in use, foreign packets, ports that come and go.

use std::net::{IpAddr, UdpSocket};

use super::rig::{Rig, Setup, own_address};
use super::traffic::exercise;
use crate::rdma::soft::{PortConfig, PortError, ROCE_PORT, open_port};
use crate::rdma::verbs::Device as _;
use crate::wire::bth::{Bth, Opcode};
use crate::wire::icrc::Prefix;
use crate::wire::num::{Psn, Qpn};

#[test]
fn a_port_in_use_is_an_error_that_says_whose_it_may_be() {
    for shards in [1, 2] {
        let address = own_address();
        // As rdma_rxe has it: on the wildcard address, where there is no other user.
        let rival = UdpSocket::bind((address, ROCE_PORT)).unwrap();
        let error = open_port(address, &PortConfig::new(shards)).unwrap_err();
        assert!(matches!(error, PortError::InUse(in_use) if in_use == address));
        let text = error.to_string();
        assert!(
            text.contains("4791") && text.contains("rdma_rxe") && text.contains("another srpoll"),
            "{text}"
        );
        drop(rival);

        let first = open_port(address, &PortConfig::new(shards)).unwrap();
        assert_eq!(first.len(), shards);
        assert!(matches!(open_port(address, &PortConfig::new(shards)), Err(PortError::InUse(_))));
        drop(first);
        open_port(address, &PortConfig::new(shards)).unwrap();
    }
}

#[test]
fn what_strangers_send_is_counted_by_reason() {
    let mut rig = Rig::new(Setup::default());
    let address = own_address();
    let host = rig.host(address, 1);
    let stranger_ip = own_address();
    let stranger = UdpSocket::bind((stranger_ip, 0)).unwrap();
    let from = stranger.local_addr().unwrap().port();
    let prefix = Prefix::new(stranger_ip, address, from, ROCE_PORT).unwrap();
    let packet = |qpn: u32, opcode: Opcode, id: u16| {
        let mut bytes = [0; 20];
        Bth::new(opcode, Qpn::new(qpn), Psn::new(1)).emit(&mut bytes);
        let icrc = prefix.icrc(&bytes[..16], id);
        bytes[16..].copy_from_slice(&icrc);
        bytes
    };
    let send = |bytes: &[u8]| {
        stranger.send_to(bytes, (address, ROCE_PORT)).unwrap();
    };
    send(b"short");
    send(&[0; 22]);
    let mut spoiled = packet(0x77, Opcode::Acknowledge, 0);
    spoiled[17] ^= 0x10;
    send(&spoiled);
    // The identification of a counter is learnt; one far from it is not believed.
    send(&packet(0x77, Opcode::Acknowledge, 40_000));
    send(&packet(0x77, Opcode::Acknowledge, 40_001));
    send(&packet(0x77, Opcode::Acknowledge, 20_000));
    send(&packet(1, Opcode::SendOnly, 0));
    rig.until("all packets", |rig| (rig.nodes[host].device.counters().recv_packets == 7).then_some(()));
    let counters = *rig.nodes[host].device.counters();
    assert_eq!(counters.bad_length, 2);
    assert_eq!(counters.bad_icrc, 1);
    assert_eq!(counters.unlikely_id, 1);
    assert_eq!((counters.gsi_packets, counters.bad_gsi), (1, 1));
    assert_eq!(rig.nodes[host].device.engine_counters().dropped_unknown_qpn, 2);
    // Nobody answered any of it.
    assert_eq!(counters.send_calls, 0);
}

#[test]
fn what_is_sent_to_a_source_port_goes_nowhere() {
    let address = own_address();
    let ports = open_port(address, &PortConfig::new(1)).unwrap();
    let source = ports[0].source_ports()[0];
    let stranger = UdpSocket::bind((own_address(), 0)).unwrap();
    stranger.send_to(b"hello", (address, source)).unwrap();
    let mut buffer = [0; 16];
    let got = std::os::fd::AsFd::as_fd(&ports[0].senders[0].0);
    let got = crate::rdma::soft::socket::receive(got, &mut buffer);
    assert_eq!(got.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn ports_come_and_go_and_others_stay() {
    let mut rig = Rig::new(Setup::default());
    let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
    let (here, there) = rig.connect((a, a), (b, b));
    let second = own_address();
    let epoch = rig.nodes[b].device.wait_fds_epoch();
    rig.nodes[b].device.open_port(second).unwrap();
    assert_eq!(rig.nodes[b].device.addresses().collect::<Vec<_>>().len(), 2);
    assert_eq!(rig.nodes[b].device.wait_fds().len(), 2);
    exercise(&mut rig, here, there);
    let device = &mut rig.nodes[b].device;
    assert!(device.close_port(second) && !device.close_port(second));
    assert_ne!(device.wait_fds_epoch(), epoch);
    exercise(&mut rig, there, here);
    // It is free for others at once.
    drop(UdpSocket::bind((second, ROCE_PORT)).unwrap());
}

#[test]
fn nothing_is_sent_from_an_address_that_was_closed() {
    let mut rig = Rig::new(Setup::default());
    let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
    let (here, there) = rig.connect((a, a), (b, b));
    exercise(&mut rig, here, there);
    let address: IpAddr = rig.nodes[a].device.addresses().next().unwrap();
    assert!(rig.nodes[a].device.close_port(address));
    let write = crate::rdma::verbs::SendOp::Write(rig.remote(there.node, 0));
    rig.post(here, 1, write, 0, 64);
    rig.until("a lost packet", |rig| (rig.nodes[a].device.counters().no_port > 0).then_some(()));
    // Given back, the port carries on where it was: this is a loss like any other.
    rig.nodes[a].device.open_port(address).unwrap();
    assert_eq!(rig.completion(a, 1).status, crate::rdma::verbs::WcStatus::Success);
}

/// What an ordinary user can do: capabilities belong to a thread, so this one gives its away.
#[test]
fn no_capability_is_needed() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let address = own_address();
    let ports = std::thread::spawn(move || {
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .unwrap();
        open_port(address, &PortConfig { recv_buffer_bytes: 1 << 30, ..PortConfig::new(2) })
    });
    let ports = ports.join().unwrap().unwrap();
    // Less than was asked for, and still good.
    assert!(ports.iter().all(|port| port.recv_buffer_bytes() < 1 << 30));
    let mut rig = Rig::new(Setup::default());
    let (a, b) = (rig.host_on(ports), rig.host(own_address(), 1));
    let (here, there) = rig.connect((a, a + 1), (b, b));
    exercise(&mut rig, here, there);
}

/// Random packets with a right ICRC, to live queue pairs, to QPN 1 and to nobody, from an address
/// that is not the peer's: all of it is counted, and a connection beside it notices nothing.
#[test]
fn noise_of_a_stranger_does_not_touch_a_connection() {
    let mut rig = Rig::new(Setup::default());
    let (address, stranger_ip) = (own_address(), own_address());
    let (a, b) = (rig.host(own_address(), 1), rig.host(address, 1));
    let (here, there) = rig.connect((a, a), (b, b));
    let stranger = UdpSocket::bind((stranger_ip, 0)).unwrap();
    let from = stranger.local_addr().unwrap().port();
    let prefix = Prefix::new(stranger_ip, address, from, ROCE_PORT).unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut sent = 0;
    for round in 0..40 {
        for _ in 0..100 {
            let len = rng.usize(..80) * 4;
            let mut bytes: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            if let Some(header) = bytes.get_mut(..12) {
                let opcode = *rng.choice(&Opcode::ALL).unwrap();
                let nobody = Qpn::new(rng.u32(..));
                let qpn = rng.choice([there.qpn, Qpn::GSI, nobody]).unwrap();
                let bth = Bth { pad: rng.u8(..4), ..Bth::new(opcode, qpn, Psn::new(rng.u32(..))) };
                bth.emit(header);
                if rng.bool() {
                    // A management datagram in all but its contents.
                    bytes.resize(12 + 8 + 256, 7);
                    bytes[12..20].copy_from_slice(&[0x80, 1, 0, 0, 0, 0, 0, 1]);
                }
                let icrc = prefix.icrc(&bytes, 0);
                bytes.extend(icrc);
            }
            // A socket whose buffer is full loses it: no matter.
            sent += u64::from(stranger.send_to(&bytes, (address, ROCE_PORT)).is_ok());
        }
        rig.turn();
        if round % 10 == 0 {
            exercise(&mut rig, here, there);
        }
    }
    rig.until("the noise", |rig| (rig.nodes[b].device.counters().recv_packets > sent / 2).then_some(()));
    let (counters, engine) = (*rig.nodes[b].device.counters(), *rig.nodes[b].device.engine_counters());
    assert!(engine.dropped_wrong_peer > 0 && engine.dropped_unknown_qpn > 0, "{engine:?}");
    assert!(counters.bad_gsi > 0 && counters.bad_length > 0, "{counters:?}");
    assert!(rig.nodes[b].device.cm_stats().unwrap().malformed > 0);
    exercise(&mut rig, there, here);
}
