//! Two shards: what the kernel steers, and what it cannot.

use std::net::UdpSocket;

use super::rig::{Rig, Setup, own_address};
use super::traffic::exercise;
use crate::rdma::soft::{Device, DeviceConfig, ROCE_PORT, link_shards};
use crate::rdma::verbs::{Connections, Device as _, Service, VerbsError};
use crate::wire::bth::{Bth, Opcode};
use crate::wire::icrc::Prefix;
use crate::wire::num::{Psn, Qpn};

#[test]
fn each_shard_gets_the_packets_of_its_queue_pairs() {
    let mut rig = Rig::new(Setup::default());
    let (a, b) = (rig.host(own_address(), 2), rig.host(own_address(), 2));
    // All four combinations; the connection managers are on the first shards.
    for from in [a, a + 1] {
        for to in [b, b + 1] {
            let (here, there) = rig.connect((a, from), (b, to));
            assert_eq!(here.qpn.get() as usize % 2, from - a);
            assert_eq!(there.qpn.get() as usize % 2, to - b);
            exercise(&mut rig, here, there);
        }
    }
    for node in &rig.nodes {
        let counters = node.device.counters();
        assert_eq!((counters.handed_over, counters.taken_over), (0, 0), "the kernel steers: {counters:?}");
        assert!(counters.recv_packets > 0);
    }
}

/// A datagram whose first packet is for one shard carries one for the other behind it.
#[test]
fn a_packet_on_the_wrong_shard_is_handed_over() {
    let mut rig = Rig::new(Setup::default());
    let address = own_address();
    let host = rig.host(address, 2);
    let stranger_ip = own_address();
    let stranger = UdpSocket::bind((stranger_ip, 0)).unwrap();
    let from = stranger.local_addr().unwrap().port();
    let prefix = Prefix::new(stranger_ip, address, from, ROCE_PORT).unwrap();
    let packet = |qpn: u32, id: u16| {
        let mut bytes = [0; 16];
        Bth::new(Opcode::SendOnly, Qpn::new(qpn), Psn::new(1)).emit(&mut bytes);
        let icrc = prefix.icrc(&bytes[..12], id);
        bytes[12..].copy_from_slice(&icrc);
        bytes
    };
    let train = [packet(0x100, 0), packet(0x101, 1), packet(0x102, 2), packet(0x103, 3)].concat();
    let to = crate::rdma::soft::socket::Address::new(address, ROCE_PORT, 0);
    let fd = std::os::fd::AsFd::as_fd(&stranger);
    crate::rdma::soft::socket::send_bytes(fd, &to, &train, Some(16)).unwrap();
    rig.until("packets for the second shard", |rig| {
        (rig.nodes[host + 1].device.counters().taken_over == 2).then_some(())
    });
    let unknown = |node: usize| rig.nodes[node].device.engine_counters().dropped_unknown_qpn;
    assert_eq!((unknown(host), unknown(host + 1)), (2, 2));
    assert_eq!(rig.nodes[host].device.counters().handed_over, 2);
}

#[test]
fn the_first_shard_opens_ports_for_the_others() {
    let address = own_address();
    let mut devices: Vec<Device> = link_shards(2)
        .unwrap()
        .into_iter()
        .enumerate()
        .map(|(shard, links)| {
            let mut config = DeviceConfig::new(7);
            config.engine.shard = shard as u32;
            config.engine.shard_bits = 1;
            config.links = Some(links);
            if shard > 0 {
                config.cm = None;
            }
            Device::new(config)
        })
        .collect();
    let too_early = devices[1].open_port(address).unwrap_err();
    assert!(too_early.to_string().contains("has not been opened on the first shard"), "{too_early}");
    devices[0].open_port(address).unwrap();
    devices[1].open_port(address).unwrap();
    // Again is no error, and opens nothing.
    devices[0].open_port(address).unwrap();
    // A socket each, and the descriptor of what others hand over.
    assert_eq!((devices[0].wait_fds().len(), devices[1].wait_fds().len()), (2, 2));

    let elsewhere = devices[1].listen(None, Service::RdmaCm { port: 1 });
    assert_eq!(elsewhere, Err(VerbsError::NotFound("connection manager on this shard")));
}
