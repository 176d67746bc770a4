//! Workloads, and that verification finds what is wrong.

use std::num::NonZeroU64;
use std::time::Duration;

use super::fake::{BLOCK_BYTES, FakeDevice};
use super::{Jumping, config, pace, session};
use crate::initiator::load::{Load, LoadError, Pattern, Report, Stop, Workload, find_foreign};
use crate::initiator::scan::{LunInfo, Pace, scan, wait_live};
use crate::initiator::session::SessionError;
use crate::initiator::stamp::Stamp;
use crate::initiator::{Session, SessionConfig};
use crate::wire::scsi::lun::Lun;
use reactors::time::Time;

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

/// A clock that once goes on by a millisecond, as when somebody else has the core.
struct Gap {
    clock: Jumping,
    at: Time,
}

impl Pace for Gap {
    fn now(&mut self) -> Time {
        let now = self.clock.now();
        if now >= self.at {
            (self.at, self.clock.0) = (Time::NEVER, now + Duration::from_millis(1));
        }
        self.clock.now()
    }

    fn rest(&mut self, until: Time) {
        self.clock.rest(until);
    }
}

#[test]
fn at_a_rate_latency_counts_from_when_an_io_was_due() {
    let run = |rate: u64, gap: bool| {
        let (mut session, clock, info) = start(SessionConfig { channels: 3, ..config() });
        let at = if gap { clock.0 + Duration::from_millis(50) } else { Time::NEVER };
        let stop = Stop::After(Duration::from_millis(100));
        let workload = Workload { verify: false, read_percent: 100, stop, ..mixed() };
        let load = Load::new(workload, &info, 24).unwrap().at_rate(NonZeroU64::new(rate).unwrap());
        load.run(&mut session, &mut Gap { clock, at }, &mut ()).unwrap()
    };
    let late = |report: &Report| report.ios - report.latency.count_between(0, 90_000);
    // As many as were due, and each at once.
    let smooth = run(10_000, false);
    assert!((999..=1001).contains(&smooth.ios) && smooth.unsent <= 1, "{smooth:?}");
    assert_eq!(late(&smooth), 0);
    // In a gap of a millisecond ten were due, and all but the last of them are late.
    let held_up = run(10_000, true);
    assert!((999..=1001).contains(&held_up.ios) && (8..=11).contains(&late(&held_up)), "{held_up:?}");
    // More than can be done: it says what it did not send.
    let too_fast = run(100_000_000, false);
    assert!(too_fast.unsent > 9_000_000 && too_fast.ios < 1_000_000, "{too_fast:?}");
}

#[test]
fn in_batches_ios_are_sent_together() {
    let (mut session, mut pace, info) = start(config());
    let load = Load::new(Workload { depth: 8, ..mixed() }, &info, 24).unwrap().in_batches(100);
    let report = load.run(&mut session, &mut pace, &mut ()).unwrap();
    assert_eq!((report.ios, report.errors, report.verified), (3000, 0, 3000 + 256));
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
