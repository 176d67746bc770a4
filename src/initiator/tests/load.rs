//! Workloads, and that verification finds what is wrong.

use std::time::Duration;

use super::fake::{BLOCK_BYTES, FakeDevice};
use super::{Jumping, config, pace, session};
use crate::initiator::load::{Load, LoadError, Pattern, Report, Stop, Workload, find_foreign};
use crate::initiator::scan::{LunInfo, Pace, scan, wait_live};
use crate::initiator::session::SessionError;
use crate::initiator::stamp::Stamp;
use crate::initiator::{Session, SessionConfig};
use crate::wire::scsi::lun::Lun;

fn mixed() -> Workload {
    Workload {
        pattern: Pattern::Random,
        read_percent: 70,
        io_bytes: 4096,
        depth: 12,
        stop: Stop::Ios(3000),
        verify: true,
        seed: 5,
        run: 0xfeed,
    }
}

fn start(config: SessionConfig) -> (Session<FakeDevice>, Jumping, LunInfo) {
    let (mut session, mut pace) = (session(config), pace());
    session.start(pace.now());
    wait_live(&mut session, &mut pace).unwrap();
    let info = scan(&mut session, &mut pace, Lun::ZERO).unwrap();
    (session, pace, info)
}

fn run(workload: Workload, prepare: impl FnOnce(&mut FakeDevice)) -> Result<Report, LoadError> {
    let (mut session, mut pace, info) = start(SessionConfig { channels: 3, ..config() });
    prepare(session.device_mut());
    Load::new(workload, &info, 24)?.run(&mut session, &mut pace, &mut ())
}

#[test]
fn a_verified_mix_of_reads_and_writes() {
    let report = run(mixed(), |_| {}).unwrap();
    assert_eq!((report.ios, report.errors, report.unknown), (3000, 0, 0), "{:?}", report.told);
    assert_eq!(report.bytes, 3000 * 4096);
    assert!(report.reads > 1000 && report.reads < 3000);
    // All 256 pieces were written and read back at the end.
    assert_eq!((report.verified, report.latency.len()), (3000 + 256, 3000));
}

#[test]
fn every_pattern_runs() {
    for (pattern, read_percent) in
        [(Pattern::Sequential, 100), (Pattern::Sequential, 0), (Pattern::Random, 100), (Pattern::Random, 0)]
    {
        for verify in [false, true] {
            for (io_bytes, depth) in [(512, 1), (4096, 64), (65536, 3)] {
                let stop = Stop::After(Duration::from_millis(2));
                let workload = Workload { pattern, read_percent, io_bytes, depth, verify, stop, ..mixed() };
                let report = run(workload, |_| {}).unwrap();
                assert_eq!(report.errors, 0, "{:?}", report.told);
                assert!(report.ios > 0);
                if !verify {
                    assert_eq!(report.reads, if read_percent == 100 { report.ios } else { 0 });
                }
            }
        }
    }
}

#[test]
fn a_write_that_was_forgotten_is_found() {
    let report = run(mixed(), |device| device.knobs.forget_writes = 1).unwrap();
    assert!(report.errors > 0);
    // Zeros if it was the piece's first write and the first read came before the second.
    assert!(report.told[0].contains("generation 1 was written, zeros were read"), "{:?}", report.told);
}

#[test]
fn unit_attentions_and_busy_units_are_no_errors() {
    let report = run(mixed(), |device| (device.knobs.attentions, device.knobs.busy) = (3, 50)).unwrap();
    assert_eq!((report.ios, report.errors, report.retries), (3000, 0, 53), "{:?}", report.told);
}

#[test]
fn a_lost_session_ends_the_run_or_is_survived() {
    for reconnect in [false, true] {
        let delay = reconnect.then_some(Duration::from_millis(100));
        let config = SessionConfig { channels: 3, reconnect_delay: delay, ..config() };
        let (mut session, mut pace, info) = start(config);
        session.device_mut().knobs.leave_after = 2000;
        let load = Load::new(mixed(), &info, 24).unwrap();
        let ended = load.run(&mut session, &mut pace, &mut ());
        if reconnect {
            let report = ended.unwrap();
            assert_eq!((report.ios, report.errors, report.unknown), (3000, 0, 0), "{:?}", report.told);
            assert!(report.retries > 0);
            assert_eq!(session.counters().logins, 2);
        } else {
            assert_eq!(ended.err(), Some(LoadError::Lost(SessionError::Disconnected)));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |workload| match run(workload, |_| {}) {
        Err(LoadError::Unfit(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(Workload { io_bytes: 1000, ..mixed() }),
        "an I/O of 1000 bytes is no multiple of the block size 512"
    );
    assert_eq!(
        refused(Workload { io_bytes: 2 << 20, ..mixed() }),
        "the logical unit is shorter than an I/O of 2097152 bytes"
    );
}

#[test]
fn foreign_data_are_found() {
    let (mut session, mut pace, info) = start(config());
    let mut found = |session: &mut Session<FakeDevice>| find_foreign(session, &mut pace, &info, 1).unwrap();
    assert_eq!(found(&mut session), None, "zeros");
    let ours = Stamp { run: 1, lun: 9, offset: 3, generation: 4 };
    ours.write(&mut session.device_mut().disk[..BLOCK_BYTES]);
    assert_eq!(found(&mut session), None, "of an earlier run");
    session.device_mut().disk[512 * 2047 + 77] = 1;
    assert_eq!(found(&mut session), Some(512 * 2047));
}
