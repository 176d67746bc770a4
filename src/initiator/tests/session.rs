//! Logging in, sending commands, and what happens when they do not come back.

use std::time::Duration;

use super::fake::FakeDevice;
use super::{Jumping, config, pace, session};
use crate::initiator::scan::{CommandError, Pace, close, execute, scan, wait_live};
use crate::initiator::session::SessionError;
use crate::initiator::{
    Command, Completion, DescriptorForm, Outcome, PostError, Session, SessionConfig, SessionState, Transfer,
};
use crate::srp::descriptors::BufferRef;
use crate::srp::tmf::TmfStatus;
use crate::wire::scsi::cdb::{Cdb, ReadWrite};
use crate::wire::scsi::lun::Lun;
use crate::wire::srp::{AerReq, CredReq, PortId, RawLun, Tag, TargetLogout, TaskAttribute};

fn live(config: SessionConfig) -> (Session<FakeDevice>, Jumping) {
    let (mut session, mut pace) = (session(config), pace());
    session.start(pace.now());
    wait_live(&mut session, &mut pace).unwrap();
    (session, pace)
}

fn read(blocks: u32) -> Command {
    Command {
        lun: RawLun::default(),
        cdb: Cdb::Read(ReadWrite::plain(0, blocks)).emit(),
        transfer: Transfer::In(blocks * 512),
        attribute: TaskAttribute::Simple,
        user: 42,
    }
}

fn post(session: &mut Session<FakeDevice>, pace: &mut Jumping, command: &Command) {
    let slot = session.reserve().expect("a request");
    session.post(pace.now(), slot, command).unwrap();
}

/// Polls until a request ends or the session changes its state.
fn next(session: &mut Session<FakeDevice>, pace: &mut Jumping) -> Option<Completion> {
    let state = session.state();
    for _ in 0..100_000 {
        if let Some(done) = session.next_completion() {
            session.release(done.slot);
            return Some(done);
        }
        if session.state() != state {
            return None;
        }
        if session.poll(pace.now()) == 0 {
            pace.rest(session.next_deadline());
        }
    }
    panic!("nothing happens any more");
}

#[test]
fn a_session_of_four_channels_logs_in_and_out() {
    let (mut session, mut pace) = live(SessionConfig { channels: 4, ..config() });
    assert_eq!((session.channels(), session.device().in_use().0), (4, 4));
    let info = scan(&mut session, &mut pace, Lun::ZERO).unwrap();
    assert_eq!((info.name.as_str(), info.blocks, info.block_bytes), ("srpoll fake 1", 2048, 512));
    assert_eq!(session.device().knobs.attentions, 0, "the unit attention was cleared");
    let missing = scan(&mut session, &mut pace, Lun::new(1).unwrap());
    assert_eq!(missing, Err(CommandError::NoDisk(Lun::new(1).unwrap())));
    close(&mut session, &mut pace);
    assert_eq!(session.state(), SessionState::Closed);
    assert_eq!(session.device().in_use(), (0, 2), "QPs and receive buffers are gone");
}

#[test]
fn a_target_may_allow_fewer_channels() {
    let mut session = session(SessionConfig { channels: 5, ..config() });
    session.device_mut().knobs.channels = 3;
    let mut pace = pace();
    session.start(pace.now());
    wait_live(&mut session, &mut pace).unwrap();
    assert_eq!(session.channels(), 3);
    // Requests come from the three only.
    let reserved: Vec<_> = std::iter::from_fn(|| session.reserve()).collect();
    assert_eq!(reserved.len(), 3 * 8);
}

#[test]
fn a_refused_login_says_why() {
    let (mut session, mut pace) = (session(SessionConfig { target: PortId::new(1, 2), ..config() }), pace());
    session.start(pace.now());
    let refused = wait_live(&mut session, &mut pace).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the target refused the login: unable to associate the channel with an I_T nexus (0x00010003)"
    );
    assert_eq!((session.state(), session.device().in_use().0), (SessionState::Lost, 0));
}

#[test]
fn one_credit_is_kept_for_task_management() {
    let mut session = session(SessionConfig { depth: 8, ..config() });
    session.device_mut().knobs.credits = 4;
    session.device_mut().knobs.attentions = 0;
    let mut pace = pace();
    session.start(pace.now());
    wait_live(&mut session, &mut pace).unwrap();
    let first = session.reserve().unwrap();
    assert!(session.reserve().is_some() && session.reserve().is_some());
    assert_eq!(session.reserve(), None);
    // A request that is given back unused gives its credit back, too.
    session.release(first);
    let again = session.reserve().unwrap();
    session.post(pace.now(), again, &read(1)).unwrap();
    let done = next(&mut session, &mut pace).unwrap();
    assert!(done.outcome.is_good() && done.user == 42);
    assert!(session.reserve().is_some());
}

/// Writes and reads back `blocks` in `form`; gives the buffers that the target saw.
fn round_trip(form: DescriptorForm, blocks: u32, max_immediate_bytes: u32) -> Vec<BufferRef> {
    let config = SessionConfig { descriptors: form, max_immediate_bytes, ..config() };
    let (mut session, mut pace) = live(config);
    session.device_mut().knobs.attentions = 0;
    let len = blocks * 512;
    let pattern: Vec<u8> = (0..len).map(|byte| (byte * 7 + byte / 512) as u8).collect();
    let rw = ReadWrite::plain(3, blocks);
    let slot = session.reserve().unwrap();
    session.fill(slot, len as usize, |bytes| bytes.copy_from_slice(&pattern)).unwrap();
    let write = Command { cdb: Cdb::Write(rw).emit(), transfer: Transfer::Out(len), ..read(1) };
    session.post(pace.now(), slot, &write).unwrap();
    assert!(next(&mut session, &mut pace).unwrap().outcome.is_good());
    assert_eq!(session.device().disk[3 * 512..][..len as usize], pattern);
    let mut back = vec![0; len as usize];
    execute(&mut session, &mut pace, "READ", Lun::ZERO, &Cdb::Read(rw), &mut back).unwrap();
    assert_eq!(back, pattern);
    std::mem::take(&mut session.device_mut().buffers)
}

#[test]
fn every_form_of_descriptors_carries_data() {
    let buffers = round_trip(DescriptorForm::Direct, 16, 8192);
    assert!(matches!(buffers[0], BufferRef::Immediate { offset: 68, len_bytes: 8192 }), "{buffers:?}");
    assert!(matches!(buffers[1], BufferRef::Direct(_)));
    let buffers = round_trip(DescriptorForm::Direct, 17, 8192);
    assert!(matches!(buffers[0], BufferRef::Direct(_)), "too long for immediate data");
    let buffers = round_trip(DescriptorForm::Direct, 1, 0);
    assert!(matches!(buffers[0], BufferRef::Direct(_)), "immediate data not wanted");
    let buffers = round_trip(DescriptorForm::Inline { pieces: 255 }, 20, 0);
    assert!(buffers.iter().all(|buffer| matches!(buffer, BufferRef::Inline { count: 255, .. })));
    let buffers = round_trip(DescriptorForm::External { pieces: 2048, inline: 12 }, 128, 0);
    assert!(buffers.iter().all(|buffer| matches!(buffer, BufferRef::External { .. })), "{buffers:?}");
    // More pieces than bytes: some are empty.
    round_trip(DescriptorForm::External { pieces: 600, inline: 0 }, 1, 0);
}

#[test]
fn a_late_command_is_aborted() {
    let (mut session, mut pace) = live(config());
    session.device_mut().knobs.attentions = 0;
    session.device_mut().knobs.stall = true;
    post(&mut session, &mut pace, &read(1));
    let began = pace.now();
    let done = next(&mut session, &mut pace).unwrap();
    assert_eq!(done.outcome, Outcome::Aborted);
    let took = pace.now().since(began);
    assert!((30..31).contains(&took.as_secs()), "{took:?}");
    assert_eq!((session.counters().aborts, session.counters().resets), (1, 0));
    assert_eq!(session.state(), SessionState::Live);
    // All credits are back: as many requests as there are can be had.
    assert_eq!(std::iter::from_fn(|| session.reserve()).count(), 8);
}

#[test]
fn an_abort_without_an_answer_becomes_a_reset_of_the_logical_unit() {
    for abort in [None, Some(TmfStatus::Failed)] {
        let (mut session, mut pace) = live(SessionConfig { channels: 2, ..config() });
        let knobs = &mut session.device_mut().knobs;
        (knobs.attentions, knobs.stall, knobs.abort) = (0, true, Some(abort));
        for _ in 0..3 {
            post(&mut session, &mut pace, &read(1));
        }
        for _ in 0..3 {
            assert_eq!(next(&mut session, &mut pace).unwrap().outcome, Outcome::Aborted);
        }
        assert_eq!(session.counters().resets, 1);
        assert_eq!(session.state(), SessionState::Live);
    }
}

#[test]
fn a_reset_without_an_answer_ends_the_session() {
    let (mut session, mut pace) = live(config());
    let knobs = &mut session.device_mut().knobs;
    (knobs.attentions, knobs.stall, knobs.tmf) = (0, true, None);
    post(&mut session, &mut pace, &read(1));
    let began = pace.now();
    assert!(next(&mut session, &mut pace).is_none_or(|done| done.outcome == Outcome::Lost));
    assert_eq!((session.state(), session.why_lost()), (SessionState::Lost, Some(&SessionError::Stuck)));
    // 30 s, 5 s for ABORT TASK, 5 s for LUN RESET.
    assert_eq!(pace.now().since(began).as_secs(), 40);
    assert_eq!(session.reserve(), None);
}

#[test]
fn a_lost_session_comes_back_if_it_shall() {
    let delay = Some(Duration::from_secs(1));
    let (mut session, mut pace) = live(SessionConfig { channels: 2, reconnect_delay: delay, ..config() });
    session.device_mut().knobs.attentions = 0;
    session.device_mut().knobs.stall = true;
    post(&mut session, &mut pace, &read(1));
    let held = session.reserve().unwrap();
    session.poll(pace.now());
    session.device_mut().target_leaves();
    session.poll(pace.now());
    let done = next(&mut session, &mut pace).unwrap();
    assert_eq!(done.outcome, Outcome::Lost);
    assert_eq!((session.state(), session.device().in_use().0), (SessionState::Waiting, 0));
    assert_eq!(session.why_lost(), Some(&SessionError::Disconnected));
    while session.state() != SessionState::Live {
        if session.poll(pace.now()) == 0 {
            pace.rest(session.next_deadline());
        }
    }
    session.device_mut().knobs.stall = false;
    // A request of the old session cannot be posted in the new one; a new one can.
    assert!(session.post(pace.now(), held, &read(1)).is_err());
    session.release(held);
    post(&mut session, &mut pace, &read(1));
    assert!(next(&mut session, &mut pace).unwrap().outcome.is_good());
    assert_eq!((session.counters().logins, session.counters().losses), (2, 1));
    assert_eq!(std::iter::from_fn(|| session.reserve()).count(), 16);
}

#[test]
fn a_silent_target_is_probed_and_given_up() {
    let (mut session, mut pace) = live(config());
    session.device_mut().knobs.dead = true;
    post(&mut session, &mut pace, &read(1));
    assert_eq!(next(&mut session, &mut pace).map(|done| done.outcome), Some(Outcome::Lost));
    assert_eq!((session.state(), session.why_lost()), (SessionState::Lost, Some(&SessionError::Silent)));
}

#[test]
fn what_the_target_asks_is_answered() {
    let (mut session, mut pace) = live(config());
    let more = CredReq { solicited: false, request_limit_delta: 5, tag: Tag([9; 8]) };
    session.device_mut().knobs.unsolicited = Some(more.emit().to_vec());
    session.poll(pace.now());
    session.poll(pace.now());
    let mut event = [0; 64];
    let len = AerReq { tag: Tag([8; 8]), sense: &[0x70; 18], ..AerReq::default() }.emit(&mut event).unwrap();
    session.device_mut().knobs.unsolicited = Some(event[..len].to_vec());
    session.poll(pace.now());
    session.poll(pace.now());
    assert_eq!(session.device().seen, [0x41, 0x42], "CRED_RSP and AER_RSP");
    assert_eq!((session.counters().target_requests, session.state()), (2, SessionState::Live));
    let bye = TargetLogout { solicited: false, reason: TargetLogout::INACTIVE, tag: Tag([7; 8]) };
    session.device_mut().knobs.unsolicited = Some(bye.emit().to_vec());
    session.poll(pace.now());
    assert_eq!(session.why_lost(), Some(&SessionError::TargetLogout(1)));
}

#[test]
fn nonsense_of_the_target_ends_the_session() {
    let (mut session, mut pace) = live(config());
    session.device_mut().knobs.unsolicited = Some(vec![0xff; 20]);
    session.poll(pace.now());
    assert!(matches!(session.why_lost(), Some(SessionError::Iu(_))));
    assert_eq!(session.device().in_use().0, 0);
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    for bad in [
        SessionConfig { channels: 0, ..config() },
        SessionConfig { depth: 0, ..config() },
        SessionConfig { max_io_bytes: 0, ..config() },
        SessionConfig { descriptors: DescriptorForm::Inline { pieces: 256 }, ..config() },
        SessionConfig { descriptors: DescriptorForm::External { pieces: 4, inline: 4 }, ..config() },
    ] {
        let made = Session::new(FakeDevice::new(), bad, fastrand::Rng::with_seed(1));
        assert!(matches!(made.err(), Some(SessionError::Config(_))));
    }
}

#[test]
fn data_may_lie_in_memory_of_the_caller() {
    let immediate = [0, SessionConfig::MAX_IMMEDIATE_BYTES];
    let forms = [DescriptorForm::Direct, DescriptorForm::External { pieces: 3, inline: 1 }];
    for (max_immediate_bytes, descriptors) in immediate.into_iter().zip(forms) {
        // The requests' own buffers are too short for it.
        let short = SessionConfig { max_immediate_bytes, descriptors, max_io_bytes: 512, ..config() };
        let (mut session, mut pace) = live(short);
        session.device_mut().knobs.attentions = 0;
        let lent = session.lend(16384).unwrap();
        lent.fill(8192, 2048, 0xa5).unwrap();
        let write = Command {
            cdb: Cdb::Write(ReadWrite::plain(7, 4)).emit(),
            transfer: Transfer::Out(2048),
            ..read(4)
        };
        for (command, at) in
            [(write, 8192), (Command { cdb: Cdb::Read(ReadWrite::plain(7, 4)).emit(), ..read(4) }, 512)]
        {
            let slot = session.reserve().unwrap();
            session.post_lent(pace.now(), slot, &command, at).unwrap();
            assert!(next(&mut session, &mut pace).unwrap().outcome.is_good());
        }
        let mut back = [0; 2048];
        lent.read(512, &mut back).unwrap();
        assert_eq!(back, [0xa5; 2048]);
        let slot = session.reserve().unwrap();
        for beyond in [16384 - 512, usize::MAX] {
            assert_eq!(session.post_lent(pace.now(), slot, &write, beyond), Err(PostError::TooLong));
        }
        session.release(slot);
        // Other memory takes its place: what was registered before is not any more.
        let before = session.device().in_use().1;
        session.lend(4096).unwrap();
        assert_eq!(session.device().in_use().1, before);
    }
}
