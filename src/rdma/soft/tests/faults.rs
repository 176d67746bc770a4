//! The fault shim, and what it must not be able to do: a wrong byte.

use super::rig::{Rig, Setup, own_address};
use super::traffic::exercise;
use crate::rdma::soft::Fault;
use crate::rdma::verbs::{PathMtu, SendOp, WcStatus};

fn five_percent_of_all(seed: u64) -> Option<Fault> {
    Some(Fault {
        drop_ppm: 50_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        corrupt_ppm: 50_000,
        seed,
        recv_buffer_bytes: 0,
    })
}

#[test]
fn five_percent_of_every_fault_both_ways_converge() {
    for seed in 0..3 {
        let setup = Setup { fault: five_percent_of_all(seed), mtu: PathMtu::B1024, ..Setup::default() };
        let mut rig = Rig::new(setup);
        let (a, b) = (rig.host(own_address(), 1), rig.host(own_address(), 1));
        let (here, there) = rig.connect((a, a), (b, b));
        exercise(&mut rig, here, there);
        exercise(&mut rig, there, here);
        for node in &rig.nodes {
            let counters = node.device.counters();
            assert!(counters.faults > 0 && counters.bad_icrc > 0, "{counters:?}");
            assert_eq!(counters.segmenting_stopped, 0, "plain loss is no reason");
        }
    }
}

#[test]
fn faults_within_one_device_converge_too() {
    let mut rig = Rig::new(Setup { fault: five_percent_of_all(9), ..Setup::default() });
    let host = rig.host(own_address(), 1);
    let (here, there) = rig.connect((host, host), (host, host));
    exercise(&mut rig, here, there);
    let counters = *rig.nodes[host].device.counters();
    assert!(counters.looped > 0 && counters.sent_packets == 0, "{counters:?}");
}

#[test]
fn many_writes_at_once_through_two_shards() {
    let fault =
        Some(Fault { drop_ppm: 10_000, duplicate_ppm: 10_000, reorder_ppm: 10_000, ..Fault::default() });
    let mut rig = Rig::new(Setup { fault, ..Setup::default() });
    let (a, b) = (rig.host(own_address(), 2), rig.host(own_address(), 2));
    let ends: Vec<_> = (0..4).map(|n| rig.connect((a, a + n % 2), (b, b + n / 2))).collect();
    for round in 0..4u64 {
        for (n, &(here, there)) in ends.iter().enumerate() {
            for chunk in 0..8usize {
                let at = (n * 8 + chunk) * (64 << 10);
                rig.nodes[here.node].fill(at, 64 << 10, round);
                let write = SendOp::Write(rig.remote(there.node, at));
                rig.post(here, (n * 8 + chunk) as u64, write, at, 64 << 10);
            }
        }
        for (n, &(here, there)) in ends.iter().enumerate() {
            for chunk in 0..8usize {
                let at = (n * 8 + chunk) * (64 << 10);
                let wc = rig.completion(here.node, (n * 8 + chunk) as u64);
                assert_eq!(wc.status, WcStatus::Success);
                let expected = super::rig::pattern(at, 64 << 10, round);
                assert!(rig.nodes[there.node].bytes(at, 64 << 10) == expected, "wrong bytes at {at}");
            }
        }
    }
}
