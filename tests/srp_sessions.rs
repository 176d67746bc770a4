//! Our initiator against the whole target, on a simulated network and a virtual clock.

#[path = "sim/rig/mod.rs"]
mod rig;

use std::time::Duration;

use bdev::Bdev;
use bdev::delay::Hold;
use bdev::io::OpKind;
use reactors::time::Time;
use srpoll::initiator::load::{Load, LoadError, Pattern, Report, Stop, Workload};
use srpoll::initiator::scan::{Pace, scan, wait_live};
use srpoll::initiator::{DescriptorForm, Session, SessionConfig, SessionState};
use srpoll::rdma::sim::device::SimDevice;
use srpoll::rdma::sim::net::Faults;
use srpoll::wire::scsi::lun::Lun;

use rig::{Rig, Setup, TARGET, disk, host, lun, ms, secs};

type Happening = Box<dyn Fn(&mut Rig)>;

fn happening(happen: fn(&mut Rig)) -> Happening {
    Box::new(happen)
}

/// Lets the rest of the rig work whenever the initiator looks at the clock, and the clock jump
/// when nobody has anything to do.
struct Virtual<'a> {
    rig: &'a mut Rig,
    /// What happens, and when.
    plan: Vec<(Time, Happening)>,
}

impl Pace for Virtual<'_> {
    fn now(&mut self) -> Time {
        self.rig.now
    }

    fn worked(&mut self) {
        self.rig.step(self.rig.now);
    }

    fn rest(&mut self, until: Time) {
        // Time must go on, even if the initiator is as eager as the shards are.
        let until = until.max(self.rig.now + Duration::from_micros(1));
        let planned = self.plan.iter().map(|&(at, _)| at).min().unwrap_or(Time::NEVER);
        let limit = until.min(planned).min(self.rig.now + secs(1));
        self.rig.step(limit.max(self.rig.now));
        while let Some(index) = self.plan.iter().position(|&(at, _)| at <= self.rig.now) {
            let (_, happen) = self.plan.swap_remove(index);
            happen(self.rig);
        }
    }
}

fn mixed(io_bytes: u32) -> Workload {
    Workload {
        pattern: Pattern::Random,
        read_percent: 50,
        io_bytes,
        depth: 24,
        stop: Stop::Ios(600),
        verify: true,
        seed: 11,
        run: 0xabcd,
    }
}

/// Runs a workload on LUN 0 over a session of host 0.
fn load(
    rig: &mut Rig,
    config: SessionConfig,
    workload: Workload,
    plan: Vec<(Duration, Happening)>,
) -> (Result<Report, LoadError>, Session<SimDevice>) {
    rig.live_session(0, config);
    let mut session = rig.sessions.pop().expect("the session");
    let began = rig.now;
    let plan = plan.into_iter().map(|(after, happen)| (began + after, happen)).collect();
    let mut pace = Virtual { rig, plan };
    wait_live(&mut session, &mut pace).unwrap();
    let info = scan(&mut session, &mut pace, Lun::ZERO).unwrap();
    let requests = (config.channels * config.depth) as usize;
    let ended =
        Load::new(workload, &info, requests).and_then(|load| load.run(&mut session, &mut pace, &mut ()));
    (ended, session)
}

fn good(report: Result<Report, LoadError>) -> Report {
    let report = report.unwrap();
    assert_eq!((report.errors, report.unknown), (0, 0), "{:?}", report.told);
    assert!(report.verified >= report.ios);
    report
}

fn config() -> SessionConfig {
    SessionConfig { channels: 4, depth: 8, max_io_bytes: 1 << 20, ..Rig::session_config(0) }
}

#[test]
fn four_channels_on_two_shards_under_loss() {
    for loss in [0.0, 0.01, 0.05] {
        let faults = Faults { loss, duplicate: loss, reorder: loss, ..Faults::NONE };
        let mut rig = Rig::new(Setup { faults, ..Setup::new(vec![lun(0, disk::malloc(8))]) });
        let (ended, session) = load(&mut rig, config(), mixed(4096), vec![]);
        let report = good(ended);
        assert_eq!((report.ios, session.channels(), session.counters().losses), (600, 4, 0));
        drop(session);
        rig.clean();
    }
}

#[test]
fn every_form_of_descriptors_at_every_length() {
    let forms = [
        (DescriptorForm::Direct, 8192),
        (DescriptorForm::Direct, 0),
        (DescriptorForm::Inline { pieces: 1 }, 0),
        (DescriptorForm::Inline { pieces: 12 }, 0),
        // Far more READs than may be in flight.
        (DescriptorForm::Inline { pieces: 255 }, 0),
        (DescriptorForm::External { pieces: 64, inline: 4 }, 0),
        (DescriptorForm::External { pieces: 2048, inline: 0 }, 0),
    ];
    for (descriptors, max_immediate_bytes) in forms {
        for io_bytes in [512, 8192, 64 << 10, 768 << 10] {
            let mut rig = Rig::new(Setup::new(vec![lun(0, disk::malloc(8))]));
            rig.audits = false;
            let config = SessionConfig { descriptors, max_immediate_bytes, ..config() };
            let ios = if io_bytes > 64 << 10 || descriptors.pieces() > 1000 { 20 } else { 60 };
            let workload = Workload { stop: Stop::Ios(ios), ..mixed(io_bytes) };
            let workload = Workload { depth: 6, ..workload };
            good(load(&mut rig, config, workload, vec![]).0);
            rig.clean();
        }
    }
}

fn part(rig: &mut Rig) {
    rig.wire.with_net(|net| net.part(host(0), TARGET));
}

fn heal(rig: &mut Rig) {
    rig.wire.with_net(|net| net.heal(host(0), TARGET));
}

#[test]
fn a_cut_network_ends_the_session_or_is_survived() {
    for reconnect in [None, Some(secs(1))] {
        let mut rig = Rig::new(Setup::new(vec![lun(0, disk::malloc(8))]));
        let config = SessionConfig { reconnect_delay: reconnect, ..config() };
        let workload = Workload { stop: Stop::After(secs(30)), depth: 2, ..mixed(4096) };
        let slow = Faults { delay: ms(2), ..Faults::NONE };
        rig.wire.with_net(|net| net.set_faults(slow));
        let plan = vec![(secs(1), happening(part)), (secs(15), happening(heal))];
        let (ended, session) = load(&mut rig, config, workload, plan);
        if reconnect.is_some() {
            let report = good(ended);
            assert!(report.retries > 0);
            assert_eq!((session.counters().logins, session.counters().losses), (2, 1));
        } else {
            assert!(matches!(ended, Err(LoadError::Lost(_))));
        }
        drop(session);
        heal(&mut rig);
        rig.clean();
    }
}

#[test]
fn a_short_cut_is_not_even_noticed() {
    let mut rig = Rig::new(Setup::new(vec![lun(0, disk::malloc(8))]));
    let workload = Workload { stop: Stop::After(secs(8)), depth: 2, ..mixed(4096) };
    rig.wire.with_net(|net| net.set_faults(Faults { delay: ms(2), ..Faults::NONE }));
    let plan = vec![(secs(2), happening(part)), (ms(3500), happening(heal))];
    let (ended, session) = load(&mut rig, config(), workload, plan);
    assert_eq!(good(ended).retries, 0);
    assert_eq!(session.counters().losses, 0);
}

#[test]
fn a_back_end_that_stalls_is_aborted_and_no_data_are_lost() {
    // Cancellable (before) and not (after); longer than ABORT TASK may wait, and shorter.
    for (hold, stall) in [(Hold::Before, 8), (Hold::After, 8), (Hold::Before, 3), (Hold::After, 3)] {
        let delayed = disk::delayed(8, hold);
        let device: std::sync::Arc<dyn Bdev> = delayed.clone();
        let mut rig = Rig::new(Setup::new(vec![lun(0, device)]));
        let config = SessionConfig {
            command_timeout: secs(2),
            reconnect_delay: Some(secs(1)),
            channels: 2,
            ..config()
        };
        delayed.set_latency_us(OpKind::Write, stall * 1_000_000);
        let workload = Workload { stop: Stop::Ios(12), depth: 4, ..mixed(4096) };
        let ease: Happening = Box::new(move |_| delayed.set_latency_us(OpKind::Write, 0));
        let (ended, session) = load(&mut rig, config, workload, vec![(secs(40), ease)]);
        let report = good(ended);
        assert!(session.counters().aborts > 0, "{:?}", session.counters());
        assert!(report.retries > 0);
        drop(session);
        rig.clean();
    }
}

#[test]
fn an_idle_session_stays_and_a_target_that_went_silent_is_found() {
    let mut rig = Rig::simple();
    let config = SessionConfig { reconnect_delay: None, ..config() };
    let index = rig.live_session(0, config);
    rig.run(secs(120));
    let counters = *rig.sessions[index].counters();
    assert_eq!((rig.sessions[index].state(), counters.losses), (SessionState::Live, 0));
    part(&mut rig);
    rig.until_within("the initiator finds out", secs(15), |rig| {
        rig.sessions[index].state() == SessionState::Lost
    });
    assert!(rig.sessions[index].counters().probes > 0);
    rig.clean();
}
