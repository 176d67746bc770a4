//! What each IU on a channel asks for.

use crate::srp::answer::{CommandAnswer, TmfAnswer};
use crate::srp::channel::{Channel, Inbound, Malformation, Violation};
use crate::srp::descriptors::{BufferError, BufferRef};
use crate::srp::initiator::{FromTarget, InitiatorChannel, login_request};
use crate::srp::login::ChannelParams;
use crate::srp::residual::{Residual, ResidualKind};
use crate::srp::tmf::{NO_TASK_TAG, TmfAction, TmfFunction, TmfStatus};
use crate::srp::{Direction, SenseCode};
use crate::wire::num::RKey;
use crate::wire::srp::{
    AerReq, AerRsp, BufferFormats, Cmd, CmdError, CredReq, CredRsp, DataBuffer, DescTable, Descriptor,
    InitiatorLogout, LoginRsp, PortId, RawLun, Rsp, Tag, TargetLogout, TaskAttribute, TaskMgmt,
};

fn params(credits: u32) -> ChannelParams {
    ChannelParams {
        credits,
        max_it_iu_bytes: 1024,
        max_ti_iu_bytes: 256,
        immediate_offset: Some(68),
        solicited_flags: 0,
    }
}

fn live(credits: u32) -> Channel {
    Channel::new(params(credits))
}

fn tag(number: u8) -> Tag {
    Tag([number, 0, 0, 0, 0, 0, 0, 0])
}

fn cmd<'a>(number: u8, data_out: DataBuffer<'a>, data_in: DataBuffer<'a>) -> Cmd<'a> {
    Cmd {
        sol_not: 0,
        tag: tag(number),
        lun: RawLun::default(),
        attribute: TaskAttribute::Simple,
        cdb: [0x28; 16],
        additional_cdb: &[],
        data_out,
        data_in,
    }
}

fn bytes(cmd: &Cmd<'_>) -> Vec<u8> {
    let mut buf = vec![0; cmd.len_bytes()];
    cmd.emit(&mut buf).unwrap();
    buf
}

fn plain(number: u8) -> Vec<u8> {
    bytes(&cmd(number, DataBuffer::None, DataBuffer::None))
}

fn task_management(number: u8, function: u8, task_tag: Tag) -> [u8; 48] {
    TaskMgmt { tag: tag(number), function, task_tag, ..TaskMgmt::default() }.emit()
}

#[test]
fn a_command_says_which_way_its_data_go() {
    let mut channel = live(8);
    let piece = Descriptor { addr: 0x1000, rkey: RKey(5), len_bytes: 4096 };
    let mut buffer_of = |data_out, data_in| match channel.on_iu(&bytes(&cmd(1, data_out, data_in))) {
        Inbound::Command(command) => (command.direction, command.buffer),
        other => panic!("{other:?}"),
    };
    assert_eq!(buffer_of(DataBuffer::None, DataBuffer::None), (Direction::None, BufferRef::None));
    assert_eq!(
        buffer_of(DataBuffer::None, DataBuffer::Direct(piece)),
        (Direction::In, BufferRef::Direct(piece))
    );
    let entries = [piece.emit(), piece.emit()].concat();
    let inline = DescTable::new(&entries).unwrap();
    let table = Descriptor { len_bytes: 32, ..piece };
    assert_eq!(
        buffer_of(DataBuffer::Indirect { table, total_bytes: 8192, inline }, DataBuffer::None),
        (Direction::Out, BufferRef::Inline { offset: 68, count: 2, total_bytes: 8192 })
    );
    let table = Descriptor { len_bytes: 48, ..piece };
    assert_eq!(
        buffer_of(DataBuffer::Indirect { table, total_bytes: 12288, inline }, DataBuffer::None),
        (Direction::Out, BufferRef::External { table, total_bytes: 12288 })
    );
    let data = DataBuffer::Immediate { data: &[1; 100], offset: 68 };
    assert_eq!(
        buffer_of(data, DataBuffer::None),
        (Direction::Out, BufferRef::Immediate { offset: 68, len_bytes: 100 })
    );
}

#[test]
fn descriptors_that_lie_are_answered_and_the_channel_lives_on() {
    let mut channel = live(8);
    let piece = Descriptor { addr: 0, rkey: RKey(5), len_bytes: 4096 };
    let both = bytes(&cmd(1, DataBuffer::Direct(piece), DataBuffer::Direct(piece)));
    let malformed =
        |why| Inbound::Malformed { tag: tag(1), sol_not: 0, why, sense: SenseCode::INVALID_FIELD };
    assert_eq!(channel.on_iu(&both), malformed(Malformation::Buffer(BufferError::Bidirectional)));
    let table = Descriptor { len_bytes: 2049 * 16, ..piece };
    let many = DataBuffer::Indirect { table, total_bytes: 1, inline: DescTable::default() };
    assert_eq!(
        channel.on_iu(&bytes(&cmd(1, many, DataBuffer::None))),
        malformed(Malformation::Buffer(BufferError::TooMany(2049)))
    );
    let mut cut = bytes(&cmd(1, DataBuffer::Direct(piece), DataBuffer::None));
    cut.truncate(60);
    assert_eq!(
        channel.on_iu(&cut),
        malformed(Malformation::Cmd(CmdError::Truncated { needed: 64, got: 60 }))
    );
    assert_eq!(channel.counts().malformed, 3);
    assert_eq!(channel.credit().outstanding(), 3, "each of them is to be answered");
    assert_eq!((channel.answer_delta(false), channel.credit().left()), (1, 6));
}

#[test]
fn a_request_without_a_credit_is_a_violation() {
    let mut channel = live(2);
    assert!(matches!(channel.on_iu(&plain(1)), Inbound::Command(_)));
    channel.begin(tag(1), 10).unwrap();
    assert!(matches!(channel.on_iu(&plain(2)), Inbound::Command(_)));
    channel.begin(tag(2), 11).unwrap();
    assert_eq!(channel.on_iu(&plain(3)), Inbound::Violation(Violation::CreditOverrun));
    let reset = task_management(4, 0x08, NO_TASK_TAG);
    assert_eq!(channel.on_iu(&reset), Inbound::Violation(Violation::CreditOverrun));
    assert_eq!(channel.counts().violations, 2);
    // An answer gives its credit back, and the tag.
    assert_eq!(channel.end(tag(1)), Some(10));
    assert_eq!(channel.answer_delta(false), 1);
    assert!(matches!(channel.on_iu(&plain(1)), Inbound::Command(_)));
}

#[test]
fn a_tag_in_use_is_found() {
    let mut channel = live(4);
    assert!(matches!(channel.on_iu(&plain(1)), Inbound::Command(_)));
    channel.begin(tag(1), 10).unwrap();
    assert_eq!(
        channel.on_iu(&plain(1)),
        Inbound::Overlapped { tag: tag(1), sol_not: 0, task: 10, sense: SenseCode::OVERLAPPED }
    );
    // What the target does: end the first silently, answer once with both credits.
    assert_eq!(channel.end(tag(1)), Some(10));
    channel.end_silently();
    assert_eq!(channel.answer_delta(false), 2);
    assert_eq!(channel.credit().left(), 4);
}

#[test]
fn task_management_finds_its_task() {
    let mut channel = live(16);
    channel.on_iu(&plain(1));
    channel.begin(tag(1), 10).unwrap();
    let lun = RawLun::default();
    let mut action = |function, task_tag| match channel.on_iu(&task_management(9, function, task_tag)) {
        Inbound::TaskManagement { action, .. } => action,
        other => panic!("{other:?}"),
    };
    assert_eq!(action(0x01, tag(1)), TmfAction::AbortTask { task: 10, lun });
    assert_eq!(action(0x01, tag(2)), TmfAction::Answer(TmfStatus::Complete), "not in the task set");
    assert_eq!(action(0x02, NO_TASK_TAG), TmfAction::AbortTaskSet { lun });
    assert_eq!(action(0x04, NO_TASK_TAG), TmfAction::ClearTaskSet { lun });
    assert_eq!(action(0x08, NO_TASK_TAG), TmfAction::LunReset { lun });
    assert_eq!(action(0x40, NO_TASK_TAG), TmfAction::Answer(TmfStatus::NotSupported));
    assert_eq!(action(0x20, NO_TASK_TAG), TmfAction::Answer(TmfStatus::NotSupported));
    for code in 0..=255 {
        assert_eq!(TmfStatus::from_code(code).code(), code);
        if let Some(function) = TmfFunction::from_code(code) {
            assert_eq!(function.code(), code);
        }
    }
}

#[test]
fn responses_count_only_if_they_were_asked_for() {
    let mut channel = live(2);
    let (credit, event) = (CredRsp { tag: tag(1) }.emit(), AerRsp { tag: tag(2) }.emit());
    channel.expect_response();
    assert_eq!(channel.on_iu(&credit), Inbound::Expected);
    assert_eq!(channel.on_iu(&event), Inbound::Violation(Violation::ResponseWithoutRequest));
    assert_eq!(Violation::ResponseWithoutRequest.logout_reason(), TargetLogout::RESPONSE_WITHOUT_REQUEST);
    channel.expect_response();
    assert_eq!(channel.on_iu(&event[..15]), Inbound::Violation(Violation::Short(15)));
    assert_eq!(channel.on_iu(&event), Inbound::Expected);
    assert_eq!(channel.credit().left(), 2, "they cost no credit");
}

#[test]
fn other_ius_end_the_channel() {
    let mut channel = live(8);
    let logout = InitiatorLogout { tag: tag(3) }.emit();
    assert_eq!(channel.on_iu(&logout), Inbound::Logout { tag: tag(3) });
    let violation = |channel: &mut Channel, iu: &[u8]| match channel.on_iu(iu) {
        Inbound::Violation(violation) => violation,
        other => panic!("{other:?}"),
    };
    assert_eq!(violation(&mut channel, &[]), Violation::Short(0));
    for opcode in [0x00, 0x04, 0x40, 0x7f, 0x80, 0x81, 0x82, 0xc0, 0xc1, 0xc2, 0xff] {
        assert_eq!(violation(&mut channel, &[opcode; 64]), Violation::Opcode(opcode));
    }
    assert_eq!(violation(&mut channel, &plain(1)[..47]), Violation::Short(47));
    assert_eq!(violation(&mut channel, &[0x01; 47]), Violation::Short(47));
    assert_eq!(violation(&mut channel, &logout[..15]), Violation::Short(15));
    assert_eq!(violation(&mut channel, &[0x02; 1025]), Violation::Long(1025));
}

#[test]
fn residuals_are_exact() {
    let residual = |direction, buffer, command| {
        let residual = Residual::new(direction, buffer, command);
        let answer = CommandAnswer { tag: tag(1), sol_not: 0, delta: 1, status: 0, residual, sense: &[] };
        let mut buf = [0; 64];
        let built = answer.emit(256, &mut buf).unwrap();
        let rsp = Rsp::parse(&buf[..built.len_bytes]).unwrap();
        // What an initiator reads out of it is what went in.
        let exact = residual.kind == ResidualKind::Exact;
        assert_eq!(Residual::of(&rsp.header), if exact { Residual::NONE } else { residual });
        let header = rsp.header;
        (header.residual_flags, header.data_out_residual, header.data_in_residual)
    };
    assert_eq!(residual(Direction::In, 4096, 4096), (0, 0, 0));
    assert_eq!(residual(Direction::In, 4096, 36), (Rsp::DIUNDER, 0, 4060));
    assert_eq!(residual(Direction::In, 36, 96), (Rsp::DIOVER, 0, 60));
    assert_eq!(residual(Direction::Out, 4096, 0), (Rsp::DOUNDER, 4096, 0));
    assert_eq!(residual(Direction::Out, 512, 1024), (Rsp::DOOVER, 512, 0));
    assert_eq!(residual(Direction::Out, 0, u64::MAX), (Rsp::DOOVER, u32::MAX, 0));
    assert_eq!(residual(Direction::None, 0, 0), (0, 0, 0));
}

#[test]
fn sense_is_cut_to_what_the_initiator_takes() {
    let sense = [0x70; 96];
    let answer = |sol_not| CommandAnswer {
        tag: tag(1),
        sol_not,
        delta: 3,
        status: 2,
        residual: Residual::NONE,
        sense: &sense,
    };
    let mut buf = [0; 256];
    let built = answer(Cmd::UCSOLNT).emit(54, &mut buf).unwrap();
    assert_eq!((built.len_bytes, built.solicited), (54, true));
    let rsp = Rsp::parse(&buf[..54]).unwrap();
    assert_eq!((rsp.header.status, rsp.header.request_limit_delta, rsp.sense), (2, 3, &sense[..18]));
    assert!(!answer(Cmd::SCSOLNT).emit(54, &mut buf).unwrap().solicited, "success only");
    assert_eq!(answer(0).emit(30, &mut buf).unwrap().len_bytes, 36);
    assert!(answer(0).emit(256, &mut buf[..100]).is_err());
}

#[test]
fn the_initiator_reads_what_the_target_sends() {
    let request = login_request(PortId::default(), PortId::default(), tag(0), 300, false, true);
    let response = LoginRsp {
        request_limit_delta: 3,
        tag: tag(0),
        max_it_iu_bytes: 300,
        max_ti_iu_bytes: 256,
        formats: BufferFormats::BOTH,
        flags: LoginRsp::IMMEDIATE,
    };
    let mut channel = InitiatorChannel::new(&request, &response.emit()).unwrap();
    assert!(channel.credit().take_command() && channel.credit().take_command());
    assert!(!channel.credit().take_command(), "the last one is for task management");
    assert!(channel.credit().take_task_management());
    assert!(!channel.credit().take_task_management());

    let mut buf = [0; 64];
    let answer = TmfAnswer { tag: tag(9), sol_not: 0, delta: 2, status: TmfStatus::Failed };
    let built = answer.emit(&mut buf).unwrap();
    assert_eq!(built.len_bytes, TmfAnswer::BYTES);
    let Ok(FromTarget::Rsp(rsp)) = channel.on_iu(&buf[..built.len_bytes]) else { panic!("a response") };
    assert_eq!((rsp.header.tag, TmfStatus::of(&rsp)), (tag(9), Some(TmfStatus::Failed)));
    assert_eq!(channel.credit().limit(), 2);

    let take = CredReq { solicited: false, request_limit_delta: -3, tag: tag(5) }.emit();
    let answer = CredRsp { tag: tag(5) }.emit();
    assert_eq!(channel.on_iu(&take), Ok(FromTarget::CredReq { answer }));
    assert_eq!((channel.credit().limit(), channel.credit().commands()), (-1, 0));

    let event = AerReq { request_limit_delta: 4, tag: tag(6), sense: &[1, 2, 3], ..AerReq::default() };
    let len = event.emit(&mut buf).unwrap();
    let answer = AerRsp { tag: tag(6) }.emit();
    assert_eq!(
        channel.on_iu(&buf[..len]),
        Ok(FromTarget::AerReq { answer, lun: RawLun::default(), sense: &[1, 2, 3] })
    );
    assert_eq!(channel.credit().commands(), 2);

    let logout = TargetLogout { solicited: true, reason: 4, tag: tag(7) }.emit();
    assert_eq!(channel.on_iu(&logout), Ok(FromTarget::TargetLogout { reason: 4 }));
    assert!(channel.on_iu(&plain(1)).is_err());
    assert!(channel.on_iu(&[]).is_err());

    let data = [0; 240];
    let fits = |len| cmd(1, DataBuffer::Immediate { data: &data[..len], offset: 68 }, DataBuffer::None);
    assert!(channel.may_send(&fits(232)));
    assert!(!channel.may_send(&fits(233)));
}
