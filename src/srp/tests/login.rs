//! Who may log in, and what is agreed on.

use crate::srp::initiator::{BadLogin, InitiatorChannel, login_request};
use crate::srp::login::{Accepted, LoginContext, LoginLimits, Refusal, decide, resolved};
use crate::wire::srp::{BufferFormats, LoginRej, LoginReq, LoginRsp, PortId, RejReason, Tag};

const TARGET: PortId = PortId::new(0x1111, 0x2222);
const INITIATOR: PortId = PortId::new(0, 0x0250_56ff_fe12_3456);

const LIMITS: LoginLimits = LoginLimits {
    max_it_iu_bytes: 8260,
    max_ti_iu_bytes: 512,
    credits: 64,
    min_credits: 2,
    control_slots: 1,
    multi_channel: true,
    max_channels_per_nexus: 4,
    immediate: true,
};

const CONTEXT: LoginContext = LoginContext {
    target: TARGET,
    enabled: true,
    allowed: true,
    nexus_channels: 0,
    channels_left: 10,
    sessions_left: 10,
    slots_left: 4096,
};

fn request(multi: bool) -> LoginReq {
    login_request(INITIATOR, TARGET, Tag([7; 8]), 8260, multi, true)
}

fn refused(request: LoginReq, limits: LoginLimits, context: LoginContext) -> (Refusal, RejReason) {
    let refusal = decide(&request, &limits, &context).expect_err("a refusal");
    let rej = refusal.rej(&request);
    assert_eq!(rej.tag, request.tag);
    assert_eq!(LoginRej::parse(&rej.emit()), Ok(rej));
    (refusal, rej.reason)
}

#[test]
fn the_first_login_of_a_linux_initiator() {
    let accepted = decide(&request(false), &LIMITS, &CONTEXT).unwrap();
    assert_eq!(
        accepted.response,
        LoginRsp {
            request_limit_delta: 64,
            tag: Tag([7; 8]),
            max_it_iu_bytes: 8260,
            max_ti_iu_bytes: 512,
            formats: BufferFormats::BOTH,
            flags: LoginRsp::IMMEDIATE,
        }
    );
    assert_eq!((accepted.terminate_others, accepted.slots), (false, 65));
    assert_eq!(accepted.params.immediate_offset, Some(68));
    let channel = InitiatorChannel::new(&request(false), &accepted.response.emit()).unwrap();
    assert_eq!(channel.max_immediate_bytes(), 8192);
}

#[test]
fn a_request_may_leave_the_target_open() {
    let open = LoginReq { target: PortId::UNSPECIFIED, ..request(false) };
    assert_eq!(resolved(&open, TARGET), request(false));
    assert_eq!(resolved(&request(false), PortId::new(1, 2)), request(false));
    assert_eq!(decide(&open, &LIMITS, &CONTEXT), decide(&request(false), &LIMITS, &CONTEXT));
}

#[test]
fn single_ends_the_others_and_multi_keeps_them() {
    let context = LoginContext { nexus_channels: 2, ..CONTEXT };
    let single = decide(&request(false), &LIMITS, &context).unwrap();
    assert!(single.terminate_others);
    assert_eq!(single.response.flags, LoginRsp::IMMEDIATE | LoginRsp::TERMINATED);
    let multi = decide(&request(true), &LIMITS, &context).unwrap();
    assert!(!multi.terminate_others);
    assert_eq!(multi.response.flags, LoginRsp::IMMEDIATE | LoginRsp::MAINTAINED);
    // Of a nexus without a channel there is nothing to maintain, nor to end.
    let first = decide(&request(true), &LIMITS, &CONTEXT).unwrap();
    assert_eq!((first.terminate_others, first.response.flags), (false, LoginRsp::IMMEDIATE));
}

#[test]
fn single_may_log_in_again_when_the_nexus_is_full() {
    let context = LoginContext { nexus_channels: 4, sessions_left: 0, ..CONTEXT };
    assert!(decide(&request(false), &LIMITS, &context).unwrap().terminate_others);
}

#[test]
fn every_reason_has_its_case() {
    let no = refused;
    let (ok, multi) = (request(false), request(true));
    let cases = [
        no(LoginReq { flags: 0x82, ..ok }, LIMITS, CONTEXT),
        no(ok, LIMITS, LoginContext { enabled: false, ..CONTEXT }),
        no(ok, LIMITS, LoginContext { channels_left: 0, ..CONTEXT }),
        no(ok, LIMITS, LoginContext { slots_left: 2, ..CONTEXT }),
        no(LoginReq { max_it_iu_bytes: 63, ..ok }, LIMITS, CONTEXT),
        no(LoginReq { max_it_iu_bytes: 8261, ..ok }, LIMITS, CONTEXT),
        no(LoginReq { target: PortId::new(1, 2), ..ok }, LIMITS, CONTEXT),
        no(LoginReq { formats: BufferFormats(0x0016), ..ok }, LIMITS, CONTEXT),
        no(
            multi,
            LoginLimits { multi_channel: false, ..LIMITS },
            LoginContext { nexus_channels: 1, ..CONTEXT },
        ),
        no(multi, LIMITS, LoginContext { nexus_channels: 4, ..CONTEXT }),
        no(ok, LIMITS, LoginContext { sessions_left: 0, ..CONTEXT }),
        no(ok, LIMITS, LoginContext { allowed: false, ..CONTEXT }),
    ];
    let table: String = cases.iter().map(|(why, reason)| format!("{:#010x} {why}\n", reason.0)).collect();
    assert_eq!(
        table,
        "\
0x00010000 multi-channel action 2 is reserved
0x00010001 the target is disabled
0x00010001 no room for another channel
0x00010001 2 receive slots are left, a channel takes 3 at least
0x00010002 asked for information units of 63 bytes, 64 to 8260 are possible
0x00010002 asked for information units of 8261 bytes, 64 to 8260 are possible
0x00010003 target port id 0x00000000000000010000000000000002 is not this target
0x00010004 descriptor formats 0x0016 are not all supported
0x00010005 one channel a session is offered, and there is one
0x00010006 the session has all of its 4 channels
0x00010006 no room for another session
0x00010006 initiator 0x0000000000000000025056fffe123456 is not in the access list
"
    );
    assert_eq!(Refusal::Internal.reason(), RejReason::NO_REASON);
}

#[test]
fn credits_are_what_is_left_but_never_under_two() {
    let credits = |slots_left| {
        let context = LoginContext { slots_left, ..CONTEXT };
        decide(&request(false), &LIMITS, &context)
            .map(|Accepted { params, slots, .. }| (params.credits, slots))
    };
    assert_eq!(credits(65), Ok((64, 65)));
    assert_eq!(credits(64), Ok((63, 64)));
    assert_eq!(credits(3), Ok((2, 3)));
    assert_eq!(credits(2), Err(Refusal::Slots { left: 2, needed: 3 }));
    assert_eq!(credits(0), Err(Refusal::Slots { left: 0, needed: 3 }));
}

#[test]
fn immediate_data_are_granted_from_48_on() {
    let granted = |flags, immediate_offset, immediate| {
        let request = LoginReq { flags, immediate_offset, ..request(false) };
        let limits = LoginLimits { immediate, ..LIMITS };
        let accepted = decide(&request, &limits, &CONTEXT).unwrap();
        assert_eq!(
            accepted.response.flags & LoginRsp::IMMEDIATE != 0,
            accepted.params.immediate_offset.is_some()
        );
        accepted.params.immediate_offset
    };
    assert_eq!(granted(0x80, 68, true), Some(68));
    assert_eq!(granted(0x80, 48, true), Some(48), "copied, but granted");
    assert_eq!(granted(0x80, 47, true), None);
    assert_eq!(granted(0x80, 8260, true), None, "no byte of data would fit");
    assert_eq!(granted(0x00, 68, true), None, "not asked for");
    assert_eq!(granted(0x80, 68, false), None, "not offered");
}

#[test]
fn an_initiator_does_not_take_every_answer() {
    let asked = request(false);
    let good = decide(&asked, &LIMITS, &CONTEXT).unwrap().response;
    let with = |response: LoginRsp| InitiatorChannel::new(&asked, &response.emit()).err();
    assert_eq!(with(good), None);
    assert_eq!(
        with(LoginRsp { max_it_iu_bytes: 8259, ..good }),
        Some(BadLogin::IuLength { asked: 8260, given: 8259 })
    );
    assert_eq!(with(LoginRsp { request_limit_delta: 1, ..good }), Some(BadLogin::Credits(1)));
    assert_eq!(with(LoginRsp { request_limit_delta: -5, ..good }), Some(BadLogin::Credits(-5)));
    assert_eq!(with(LoginRsp { max_ti_iu_bytes: 35, ..good }), Some(BadLogin::TargetIuLength(35)));
    assert!(matches!(InitiatorChannel::new(&asked, &[0xc2; 52]), Err(BadLogin::Iu(_))));
    let without = LoginReq { flags: 0, ..asked };
    let channel = InitiatorChannel::new(&without, &good.emit()).unwrap();
    assert_eq!(channel.immediate_offset, None, "granted but not asked for");
}
