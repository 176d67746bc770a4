//! Tests of the SRP wire formats. The captures are gone through in `tests/srp_captures.rs`.

use proptest::prelude::*;

use super::*;
use crate::wire::num::RKey;

fn piece(addr: u64, len_bytes: u32) -> Descriptor {
    Descriptor { addr, rkey: RKey(0x1234_5678), len_bytes }
}

fn command() -> Cmd<'static> {
    Cmd {
        sol_not: Cmd::UCSOLNT,
        tag: Tag([1, 2, 3, 4, 5, 6, 7, 8]),
        lun: RawLun([0, 1, 0, 0, 0, 0, 0, 0]),
        attribute: TaskAttribute::Ordered,
        cdb: [0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
        additional_cdb: &[],
        data_out: DataBuffer::None,
        data_in: DataBuffer::None,
    }
}

fn emitted(cmd: &Cmd<'_>) -> Vec<u8> {
    let mut buf = vec![0xee; cmd.len_bytes()];
    assert_eq!(cmd.emit(&mut buf), Ok(buf.len()));
    buf
}

fn table(count: usize, each: u32) -> Vec<u8> {
    (0..count).flat_map(|index| piece(0x1000 * index as u64, each).emit()).collect()
}

#[test]
fn a_direct_command_has_these_bytes() {
    // SRP r16a, 6.8 (restated in the project's notes on the wire format, section 2).
    let cmd = Cmd { data_in: DataBuffer::Direct(piece(0xdead_beef_0000, 4096)), ..command() };
    #[rustfmt::skip]
    let expected = [
        0x02, 0x04, 0, 0, 0, 0x01, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
        0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0,
        0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x10, 0,
    ];
    assert_eq!(emitted(&cmd), expected);
    assert_eq!(Cmd::parse(&expected, None), Ok(Ok(cmd)));
}

#[test]
fn counts_mean_nothing_for_direct_descriptors() {
    let mut iu = emitted(&Cmd { data_in: DataBuffer::Direct(piece(0, 1)), ..command() });
    (iu[6], iu[7]) = (0xff, 0xff);
    assert!(Cmd::parse(&iu, None).unwrap().is_ok());
}

#[test]
fn two_hundred_and_fifty_five_inline_descriptors_fit() {
    let bytes = table(255, 4096);
    let inline = DescTable::new(&bytes).unwrap();
    let whole = piece(0x77, bytes.len() as u32);
    let cmd = Cmd {
        additional_cdb: &[9; 16],
        data_out: DataBuffer::Indirect { table: whole, total_bytes: 255 * 4096, inline },
        ..command()
    };
    let iu = emitted(&cmd);
    assert_eq!(iu.len(), 48 + 16 + 20 + 255 * 16);
    assert_eq!(Cmd::parse(&iu, None), Ok(Ok(cmd)));
}

#[test]
fn descriptors_that_lie_are_named() {
    let indirect = |table_bytes, count, each, total_bytes| {
        let bytes = table(count, each);
        let inline = DescTable::new(&bytes).unwrap();
        let table = piece(0, table_bytes);
        let cmd = Cmd { data_in: DataBuffer::Indirect { table, total_bytes, inline }, ..command() };
        Cmd::parse(&emitted(&cmd), None).unwrap().err()
    };
    assert_eq!(indirect(32, 2, 4096, 8192), None);
    assert_eq!(indirect(32, 2, 4096, 8193), Some(CmdError::Uncovered { covered: 8192, total: 8193 }));
    assert_eq!(indirect(33, 2, 4096, 8192), Some(CmdError::TableLength(33)));
    assert_eq!(indirect(16, 2, 4096, 8192), Some(CmdError::TableShort { inline: 2, table: 1 }));
    // A sum that would be 4 in 32 bits covers a buffer of 4 GiB - 1.
    assert_eq!(indirect(32, 2, 0x8000_0002, u32::MAX), None);
    assert_eq!(indirect(48, 2, 4096, u32::MAX), None, "the rest of the table is elsewhere");
    assert_eq!(indirect(0, 0, 0, 0), None);

    let cut = emitted(&Cmd { data_in: DataBuffer::Direct(piece(0, 1)), ..command() });
    assert_eq!(Cmd::parse(&cut[..63], None), Ok(Err(CmdError::Truncated { needed: 64, got: 63 })));
    assert_eq!(Cmd::parse(&cut[..47], None), Err(IuError::Short { needed: 48, got: 47 }));
    for (code, direction) in [(0x40, "OUT"), (0xf0, "OUT"), (0x03, "IN"), (0x0f, "IN")] {
        let mut iu = emitted(&command());
        iu.extend_from_slice(&[0; 32]);
        iu[5] = code;
        let code = if direction == "OUT" { code >> 4 } else { code };
        assert_eq!(Cmd::parse(&iu, Some(68)), Ok(Err(CmdError::Format { direction, code })));
    }
}

#[test]
fn immediate_data_are_checked_in_64_bits() {
    let cmd = Cmd { data_out: DataBuffer::Immediate { data: &[7; 512], offset: 68 }, ..command() };
    let mut iu = emitted(&cmd);
    assert_eq!(iu.len(), 68 + 512);
    assert_eq!(Cmd::parse(&iu, Some(68)), Ok(Ok(cmd)));
    assert_eq!(Cmd::parse(&iu, None), Ok(Err(CmdError::ImmediateNotNegotiated)));
    // 52 is the first byte behind the header; 51 is inside of it.
    let outside = |offset: usize, len_bytes| Ok(Err(CmdError::ImmediateBounds { offset, len_bytes }));
    assert!(Cmd::parse(&iu, Some(52)).unwrap().is_ok());
    assert_eq!(Cmd::parse(&iu, Some(51)), outside(51, 512));
    assert_eq!(Cmd::parse(&iu[..579], Some(68)), outside(68, 512));
    // 68 + this wraps to 63 in 32 bits.
    iu[48..52].copy_from_slice(&0xffff_fffb_u32.to_be_bytes());
    assert_eq!(Cmd::parse(&iu, Some(68)), outside(68, 0xffff_fffb));
}

#[test]
fn an_offset_of_data_inside_of_the_header_is_not_emitted() {
    let cmd = Cmd { data_out: DataBuffer::Immediate { data: &[7; 8], offset: 40 }, ..command() };
    assert!(cmd.emit(&mut [0; 128]).is_err());
}

#[test]
fn a_response_without_valid_flags_has_no_data() {
    let mut iu = [0; 64];
    iu[0] = Opcode::RSP;
    iu[28..36].fill(0xff);
    let rsp = Rsp::parse(&iu).unwrap();
    assert!(rsp.response.is_empty() && rsp.sense.is_empty());
    iu[18] = Rsp::SNSVALID;
    assert!(matches!(Rsp::parse(&iu), Err(IuError::Short { got: 64, .. })));
    iu[18] = Rsp::SNSVALID | Rsp::RSPVALID;
    assert!(matches!(Rsp::parse(&iu), Err(IuError::Short { got: 64, .. })));
}

#[test]
fn port_ids_are_read_as_lio_reads_them() {
    let id = PortId::new(0x0123_4567_89ab_cdef, 0x0250_56ff_fe12_3456);
    assert_eq!(id.to_string(), "0x0123456789abcdef025056fffe123456");
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!((id.extension(), id.guid()), (0x0123_4567_89ab_cdef, 0x0250_56ff_fe12_3456));
    assert_eq!("ff".parse(), Ok(PortId::new(0, 0xff)), "padded on the left");
    for bad in ["", "0x", "0xg", "+1", "000000000000000000000000000000000"] {
        assert_eq!(bad.parse::<PortId>(), Err(BadPortId(bad.to_owned())));
    }
}

/// Whatever parses is emitted as an IU that parses to the same, and that is emitted the same.
fn stable(iu: &[u8], immediate: Option<u16>) -> Result<(), TestCaseError> {
    let mut buf = vec![0; 16 * 1024];
    let mut again = vec![0; 16 * 1024];
    if let Ok(Ok(cmd)) = Cmd::parse(iu, immediate) {
        let len = cmd.emit(&mut buf).unwrap();
        prop_assert_eq!(len, cmd.len_bytes());
        let back = Cmd::parse(&buf[..len], immediate).unwrap().unwrap();
        prop_assert_eq!(back, cmd);
        prop_assert_eq!(back.emit(&mut again), Ok(len));
        prop_assert_eq!(&buf[..len], &again[..len]);
        if let Ok(header) = cmd.emit_header(&mut again) {
            prop_assert_eq!(&again[..header], &buf[..header]);
        }
    }
    if let Ok(rsp) = Rsp::parse(iu) {
        let len = rsp.emit(&mut buf).unwrap();
        prop_assert_eq!(Rsp::parse(&buf[..len]), Ok(rsp));
    }
    if let Ok(aer) = AerReq::parse(iu) {
        let len = aer.emit(&mut buf).unwrap();
        prop_assert_eq!(AerReq::parse(&buf[..len]), Ok(aer));
    }
    macro_rules! fixed {
        ($($name:ident),*) => {$(
            if let Ok(value) = $name::parse(iu) {
                prop_assert_eq!($name::parse(&value.emit()), Ok(value));
            }
        )*};
    }
    fixed!(TaskMgmt, InitiatorLogout, TargetLogout, CredReq, CredRsp, AerRsp, LoginRsp, LoginRej);
    if let Ok(request) = LoginReq::parse(LoginForm::Full, iu) {
        prop_assert_eq!(LoginReq::parse(LoginForm::Full, &request.emit_full()), Ok(request));
        prop_assert_eq!(LoginReq::parse(LoginForm::Compact, &request.emit_compact()), Ok(request));
    }
    if let Ok(request) = LoginReq::parse(LoginForm::Compact, iu) {
        prop_assert_eq!(LoginReq::parse(LoginForm::Compact, &request.emit_compact()), Ok(request));
    }
    Ok(())
}

const OPCODES: [u8; 12] = [0x00, 0x01, 0x02, 0x03, 0x41, 0x42, 0x80, 0x81, 0x82, 0xc0, 0xc1, 0xc2];

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(
        opcode in prop::sample::select(&OPCODES[..]),
        mut iu in prop::collection::vec(any::<u8>(), 0..400),
        immediate in prop::option::of(any::<u16>()),
    ) {
        if let Some(first) = iu.first_mut() {
            *first = opcode;
        }
        stable(&iu, immediate)?;
    }

    /// Random bytes seldom make a command that parses; these nearly always do.
    #[test]
    fn a_command_survives_the_wire(
        formats in prop::sample::select(&[0x00_u8, 0x01, 0x02, 0x10, 0x20, 0x30, 0x11, 0x22, 0x32][..]),
        counts in (0_u8..4, 0_u8..4),
        additional in 0_u8..8,
        table_entries in 0_u32..6,
        total in 0_u32..100_000,
        mut iu in prop::collection::vec(any::<u8>(), 48..600),
    ) {
        iu[0] = Opcode::CMD;
        iu[5] = formats;
        (iu[6], iu[7]) = counts;
        iu[31] = additional;
        let at = 48 + usize::from(additional & !3);
        if formats & 0xf0 == 0x30 && iu.len() >= at + 4 {
            iu[at..at + 4].copy_from_slice(&(total % 200).to_be_bytes());
        } else if formats & 0x22 != 0 && iu.len() >= at + 20 {
            iu[at + 12..at + 16].copy_from_slice(&(table_entries * 16).to_be_bytes());
            iu[at + 16..at + 20].copy_from_slice(&total.to_be_bytes());
        }
        stable(&iu, Some(200))?;
    }
}
