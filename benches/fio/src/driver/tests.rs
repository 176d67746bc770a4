//! What the driver makes of I/Os; with a target in this process: what leaves when.

use std::net::IpAddr;
use std::sync::Arc;

use bdev::null::{NullBdev, NullOptions};
use reactors::reactor::Idle;
use srpoll::rdma::soft;
use srpoll::target::handle::{Hugepages, Provider, StartConfig, TargetHandle};
use srpoll::target::limits::{Limits, Wishes};
use srpoll::target::listener::Listener;
use srpoll::target::snapshot::{Identity, LunEntry, Snapshot};

use super::*;
use crate::Any;
use crate::options::{Options, Way};

const BLOCK: u64 = 4096;

fn address(host: u8) -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, 48 | (pid >> 8 & 0xf) as u8, pid as u8, host])
}

/// A target that serves a null device as LUN 0 there.
fn target(provider: Provider, listener: &Listener) -> TargetHandle {
    let limits = Limits::new(&Wishes { memory_bytes: 8 << 20, ..Wishes::default() }).unwrap();
    let empty = Snapshot::empty(limits);
    let handle = srpoll::target::start(&StartConfig {
        cores: vec![None],
        idle: Idle::default(),
        hugepages: Hugepages::Off,
        snapshot: Arc::new(empty.clone()),
        provider,
    })
    .unwrap();
    let null = NullOptions { len_bytes: 1 << 30, block_bytes: 512, read_only: false, uuid: None };
    let lun = LunEntry {
        lun: 0,
        bdev: Arc::new(NullBdev::create("null", &null).unwrap()),
        naa: 0x3 << 60,
        serial: "1".to_owned(),
        uuid: uuid::Uuid::nil(),
        read_only: false,
        fences: Arc::default(),
    };
    let identity = Some(Identity { id_ext: 1, ioc_guid: 2 });
    handle.apply(&Arc::new(Snapshot { epoch: 1, identity, luns: vec![lun], ..empty })).unwrap();
    handle.add_listener(listener).unwrap();
    handle
}

/// Packets so far; how many of a batch leave at once is the send window's business.
fn sent(driver: &Driver<soft::Device>) -> u64 {
    driver.session.device().counters().sent_packets
}

fn submit(driver: &mut Driver<soft::Device>, memory: u64, range: std::ops::Range<u64>) {
    for n in range {
        driver.submit(Direction::Read, n * BLOCK, memory + n * BLOCK, BLOCK, n).unwrap();
    }
}

fn poll_until(driver: &mut Driver<soft::Device>, ended: usize) {
    let started = std::time::Instant::now();
    while driver.done.len() < ended {
        driver.poll();
        assert!(started.elapsed().as_secs() < 60, "{} of {ended} have ended", driver.done.len());
    }
}

#[test]
fn directions_are_those_of_the_header() {
    let header = include_str!("../../srpoll.h");
    for (name, direction) in [
        ("SRPOLL_READ = 0", Direction::Read),
        ("SRPOLL_WRITE = 1", Direction::Write),
        ("SRPOLL_SYNC = 2", Direction::Sync),
        ("SRPOLL_TRIM = 3", Direction::Trim),
    ] {
        assert!(header.contains(name), "{name}");
        assert_eq!(Direction::of(direction as i32), Some(direction));
    }
    assert_eq!(Direction::of(4), None);
}

#[test]
fn sense_becomes_what_a_block_device_would_say() {
    let errno = |key, asc| errno_of(Some(&Sense::new(key, asc)));
    assert_eq!(errno(SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE), libc::ENOSPC);
    assert_eq!(errno(SenseKey::DataProtect, Asc::WRITE_PROTECTED), libc::EROFS);
    assert_eq!(errno(SenseKey::IllegalRequest, Asc::INVALID_FIELD_IN_CDB), libc::EOPNOTSUPP);
    assert_eq!(errno_of(None), libc::EIO);
}

#[test]
fn what_is_submitted_leaves_together_once_no_more_is_to_be_expected() {
    let target = target(Provider::Soft { fault: None }, &Listener::Ip((address(1), 5555).into()));
    let (there, here) = (address(1).to_string(), address(2).to_string());
    let options = Options::new(Some(&there), Some(&here), 0, 1, 16, 0).unwrap();
    let Way::Udp(end) = &options.way else { panic!("{options:?}") };
    let mut driver =
        Driver::open(&options, end.device().unwrap(), end.session().unwrap(), &end.target).unwrap();
    let memory = driver.memory(64 << 10).unwrap();
    let before = sent(&driver);
    submit(&mut driver, memory, 0..8);
    assert_eq!(sent(&driver), before, "nobody has polled");
    driver.commit();
    assert!(sent(&driver) > before);

    poll_until(&mut driver, 8);
    let before = sent(&driver);
    for left in (0..8).rev() {
        // As fio does by default: one event is taken, one I/O is queued, and that is committed.
        let done = driver.next_done().unwrap();
        assert_eq!(done.error, 0);
        submit(&mut driver, memory, done.user..done.user + 1);
        driver.commit();
        if left > 0 {
            assert_eq!(sent(&driver), before, "with {left} left to take");
        }
    }
    assert!(sent(&driver) > before);

    // Eight that are taken at once are followed by eight.
    poll_until(&mut driver, 8);
    while driver.next_done().is_some() {}
    let before = sent(&driver);
    submit(&mut driver, memory, 0..7);
    driver.commit();
    assert_eq!(sent(&driver), before);
    submit(&mut driver, memory, 7..8);
    driver.commit();
    assert!(sent(&driver) > before);
    poll_until(&mut driver, 8);
    driver.close();
    target.stop().unwrap();
}

#[test]
fn jobs_over_shared_memory_are_initiators_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let target = target(Provider::Shm, &Listener::Shm(socket.clone()));
    // As `srpoll_open` does it: nothing of the options stays.
    let open = || {
        let there = format!("shm:{}", socket.display());
        let options = Options::new(Some(&there), None, 0, 1, 4, 0).unwrap();
        match Any::open(&options).unwrap() {
            Any::Shm { driver, _keeper } => (driver, _keeper),
            Any::Udp(_) => panic!("{options:?}"),
        }
    };
    let (mut first, second) = (open(), open());
    assert_ne!(first.0.session.config().initiator, second.0.session.config().initiator);
    let memory = first.0.memory(4096).unwrap();
    first.0.submit(Direction::Read, 0, memory, BLOCK, 7).unwrap();
    let started = std::time::Instant::now();
    while first.0.done.is_empty() && started.elapsed().as_secs() < 60 {
        first.0.poll();
    }
    assert_eq!(
        first.0.next_done().map(|end| (end.user, end.error)),
        Some((7, 0)),
        "not replaced by the second"
    );
    first.0.close();
    second.0.close();
    target.stop().unwrap();
}
