//! A bad network and small memory under verified I/O of our own initiator.

use std::time::Duration;

use srpoll::initiator::{DescriptorForm, SessionConfig};
use srpoll::rdma::sim::net::Faults;

use crate::model::Worker;
use crate::rig::{Rig, Setup, disk, lun, secs};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Runs all workers until they have done `each` commands.
fn work(rig: &mut Rig, workers: &mut [Worker], each: u64, within: Duration) {
    workers.iter_mut().for_each(|worker| worker.budget = each);
    rig.until_within("the work is done", within, |rig| {
        for worker in workers.iter_mut() {
            worker.work(rig.now, &mut rig.sessions[worker.session]);
        }
        workers.iter().all(|worker| worker.budget == 0 && worker.in_flight() == 0)
    });
}

fn close_all(rig: &mut Rig) {
    let now = rig.now;
    rig.sessions.iter_mut().for_each(|session| session.close(now));
    rig.clean();
}

fn faulty(seed: u64, chance: f64) -> Faults {
    Faults {
        loss: chance,
        duplicate: chance,
        reorder: chance,
        corrupt: chance / 10.0,
        jitter: Duration::from_micros(if seed.is_multiple_of(2) { 5 } else { 0 }),
        ..Faults::NONE
    }
}

/// Two sessions of four channels each on two shards; every second one with external tables.
fn under_faults(seed: u64, chance: f64, each: u64) {
    let options = bdev::sim::SimOptions::faultless(16 << 20, seed);
    let mut rig = Rig::new(Setup {
        seed,
        faults: faulty(seed, chance),
        ..Setup::new(vec![lun(0, disk::malloc(16)), lun(1, disk::sim(&options))])
    });
    rig.audits = false;
    let forms = [DescriptorForm::Direct, DescriptorForm::External { pieces: 40, inline: 7 }];
    let mut workers: Vec<Worker> = (0..2)
        .map(|number| {
            let config = SessionConfig {
                channels: 4,
                depth: 8,
                max_io_bytes: 96 << 10,
                descriptors: forms[usize::from(number)],
                ..Rig::session_config(number)
            };
            let session = rig.live_session(number, config);
            assert_eq!(rig.sessions[session].channels(), 4);
            Worker::new(session, u16::from(number), 0..40, 96 * KIB, seed + u64::from(number))
        })
        .collect();
    let channels: Vec<u32> = (0..2).map(|shard| rig.stats(shard).channels).collect();
    assert_eq!(channels, [4, 4]);
    work(&mut rig, &mut workers, each, secs(300));
    rig.audit();
    for worker in &workers {
        // The first command on each LUN meets the unit attention of a new nexus.
        assert_eq!((worker.done, worker.failed, worker.lost), (each - 1, 1, 0), "seed {seed}, {chance}");
    }
    close_all(&mut rig);
}

#[test]
fn verified_io_on_a_good_network() {
    under_faults(1, 0.0, 600);
}

#[test]
fn verified_io_under_1_percent_of_each_fault() {
    (0..4).for_each(|seed| under_faults(seed, 0.01, 200));
}

#[test]
fn verified_io_under_5_percent_of_each_fault() {
    (10..13).for_each(|seed| under_faults(seed, 0.05, 80));
}

#[test]
fn verified_io_under_10_percent_of_each_fault() {
    (20..22).for_each(|seed| under_faults(seed, 0.10, 50));
}

/// Two chunks of arena, and 64 commands at a time that want up to 64 of them, with external tables.
#[test]
fn an_arena_of_two_chunks_serves_64_mixed_commands() {
    for seed in 0..3 {
        let mut setup = Setup { seed, ..Setup::new(vec![lun(0, disk::malloc(512))]) };
        setup.limits.data_bytes = 2 * 256 * KIB;
        setup.shards = 1 + seed as usize % 2;
        let mut rig = Rig::new(setup);
        rig.audits = false;
        let sizes = [(512, 24, 12), (200 * KIB, 24, 12), (MIB, 8, 6), (16 * MIB, 8, 2)];
        let mut workers = Vec::new();
        for (number, (bytes, depth, stripes)) in sizes.into_iter().enumerate() {
            let config = SessionConfig {
                depth,
                max_io_bytes: bytes as u32,
                max_immediate_bytes: 0,
                descriptors: match number {
                    0 => DescriptorForm::External { pieces: 3, inline: 0 },
                    1 => DescriptorForm::Inline { pieces: 9 },
                    2 => DescriptorForm::External { pieces: 2048, inline: 5 },
                    _ => DescriptorForm::External { pieces: 700, inline: 0 },
                },
                command_timeout: secs(600),
                ..Rig::session_config(number as u8)
            };
            let session = rig.live_session(number as u8, config);
            // Each on its own eighth of the disk.
            let first = number * 64 * MIB / bytes;
            workers.push(Worker::new(session, 0, first..first + stripes, bytes, seed * 10 + number as u64));
        }
        let budgets = [80, 60, 20, 6];
        for (worker, budget) in workers.iter_mut().zip(budgets) {
            worker.budget = budget;
        }
        rig.until_within("all have finished", secs(300), |rig| {
            for worker in &mut workers {
                worker.work(rig.now, &mut rig.sessions[worker.session]);
            }
            workers.iter().all(|worker| worker.budget == 0 && worker.in_flight() == 0)
        });
        for (worker, budget) in workers.iter().zip(budgets) {
            assert_eq!((worker.done, worker.failed, worker.lost), (budget - 1, 1, 0));
        }
        assert!(rig.shards.iter().map(|shard| shard.counts().memory_waits).sum::<u64>() > 10);
        rig.audit();
        close_all(&mut rig);
    }
}
