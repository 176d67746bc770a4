//! SRP information units that lie.

use srpoll::wire::ext::{NakCode, Syndrome};
use srpoll::wire::num::RKey;
use srpoll::wire::scsi::cdb::{Cdb, ReadWrite};
use srpoll::wire::srp::{Cmd, DataBuffer, DescTable, Descriptor, Opcode, Tag};

use super::Bout;
use super::raw::{Peer, Seen, login};

const WRITE_8_BLOCKS: Cdb = Cdb::Write(ReadWrite::plain(0, 8));
const READ_8_BLOCKS: Cdb = Cdb::Read(ReadWrite::plain(0, 8));
const FOUR_K: Descriptor = Descriptor { addr: 0x10_0000, rkey: RKey(0x5555), len_bytes: 4096 };

fn unit(tag: u64, cdb: &Cdb, data_out: DataBuffer<'_>, data_in: DataBuffer<'_>) -> Vec<u8> {
    let cmd = Cmd {
        sol_not: 0,
        tag: Tag(tag.to_be_bytes()),
        lun: Default::default(),
        attribute: Default::default(),
        cdb: cdb.emit(),
        additional_cdb: &[],
        data_out,
        data_in,
    };
    let mut iu = vec![0; 8260];
    let len = cmd.emit(&mut iu).unwrap();
    iu.truncate(len);
    iu
}

fn ready(tag: u64) -> Vec<u8> {
    unit(tag, &Cdb::TestUnitReady, DataBuffer::None, DataBuffer::None)
}

/// Logged in, and its first unit attention cleared.
fn peer(bout: &mut Bout, number: u32) -> Peer {
    let mut peer = Peer::connect(bout.wire(), number, &login(number.into())).unwrap();
    assert_eq!(peer.login.request_limit_delta, 64);
    peer.send_iu(&ready(0));
    assert_eq!(peer.response("power on").1, Some((6, 0x29, 0)));
    peer
}

#[test]
fn descriptors_that_lie_are_refused_and_the_session_goes_on() {
    let mut bout = Bout::begin(2);
    let mut peer = peer(&mut bout, 1);
    let two: Vec<u8> = [FOUR_K.emit(), FOUR_K.emit()].concat();
    let inline = DescTable::new(&two).unwrap();
    let table = |len_bytes| Descriptor { len_bytes, ..FOUR_K };
    let indirect = |table_bytes, total_bytes| {
        let buffer = DataBuffer::Indirect { table: table(table_bytes), total_bytes, inline };
        unit(1, &READ_8_BLOCKS, DataBuffer::None, buffer)
    };
    let immediate = |len_bytes: u32, iu_bytes: usize| {
        let mut iu = unit(
            1,
            &WRITE_8_BLOCKS,
            DataBuffer::Immediate { data: &[7; 4096], offset: 68 },
            DataBuffer::None,
        );
        iu[48..52].copy_from_slice(&len_bytes.to_be_bytes());
        iu.truncate(iu_bytes);
        iu
    };
    let direct = unit(1, &WRITE_8_BLOCKS, DataBuffer::Direct(FOUR_K), DataBuffer::None);
    let mut format = direct.clone();
    format[5] = 0x50;
    let mut immediate_in = unit(1, &READ_8_BLOCKS, DataBuffer::None, DataBuffer::Direct(FOUR_K));
    immediate_in[5] = 0x03;
    let mut additional_cdb = direct.clone();
    additional_cdb[31] = 0xfc;
    let mut count = indirect(32, 8192);
    count[7] = 200;
    let both = unit(1, &READ_8_BLOCKS, DataBuffer::Direct(FOUR_K), DataBuffer::Direct(FOUR_K));

    // SCST's answer for all of them: ILLEGAL REQUEST, INVALID FIELD IN CDB.
    let lies: [(&str, Vec<u8>); 13] = [
        ("a format there is not", format),
        ("immediate data from the target", immediate_in),
        ("an additional CDB beyond the end", additional_cdb),
        ("more inline descriptors than bytes", count),
        ("a table that is no multiple of 16", indirect(33, 8192)),
        ("a table that is shorter than what is inline", indirect(16, 4096)),
        ("descriptors that cover less than the buffer", indirect(32, 8193)),
        ("a table of four gigabytes", indirect(0xffff_fff0, 8192)),
        ("data both ways", both),
        ("a descriptor cut off", direct[..60].to_vec()),
        ("immediate data beyond the end", immediate(4097, 68 + 4096)),
        ("immediate data of four gigabytes", immediate(u32::MAX, 68 + 4096)),
        ("immediate data that are not there", immediate(4096, 68)),
    ];
    let since = bout.target.stats();
    for (what, iu) in &lies {
        peer.send_iu(iu);
        let (header, sense) = peer.response(what);
        assert_eq!((header.tag, header.status), (Tag(1u64.to_be_bytes()), 2), "{what}");
        assert_eq!(sense, Some((5, 0x24, 0)), "{what}");
        assert_eq!(header.request_limit_delta, 1, "{what}: its credit comes back");
    }
    bout.counted(&since, &["malformed"], lies.len() as u64);

    // Well formed, but the buffer and the command disagree about direction: 0e/03, or how long:
    // as much as fits, and a residual.
    let backwards = unit(1, &READ_8_BLOCKS, DataBuffer::Direct(FOUR_K), DataBuffer::None);
    peer.send_iu(&backwards);
    assert_eq!(peer.response("a READ with a buffer to read from").1, Some((5, 0x0e, 0x03)));
    let short = Descriptor { len_bytes: 512, ..FOUR_K };
    peer.send_iu(&unit(1, &READ_8_BLOCKS, DataBuffer::None, DataBuffer::Direct(short)));
    let mut written = 0;
    let header = loop {
        match peer.next(super::raw::PATIENCE).expect("data and a response") {
            Seen::Write { reth, payload } => {
                assert_eq!((reth.addr, reth.rkey), (short.addr + written, short.rkey));
                written += payload.len() as u64;
            }
            Seen::Iu(iu) => break srpoll::wire::srp::Rsp::parse(&iu).unwrap().header,
            _ => {}
        }
    };
    assert!(written <= 512, "it writes {written} bytes to a buffer of 512");
    assert!(header.status == 2 || header.data_in_residual == 3584, "{header:?}");

    peer.send_iu(&ready(9));
    assert_eq!(peer.response("after all that").0.status, 0);
    peer.log_out();
    bout.end();
}

#[test]
fn units_that_end_the_session() {
    let mut bout = Bout::begin(52);
    let with_opcode = |opcode: u8, len: usize| {
        let mut iu = ready(1);
        iu.resize(len, 0);
        iu[0] = opcode;
        iu
    };
    let wrong: [(&str, Vec<u8>); 10] = [
        ("no byte at all", Vec::new()),
        ("one byte of a command", vec![Opcode::CMD]),
        ("47 bytes of a command", with_opcode(Opcode::CMD, 47)),
        ("47 bytes of task management", with_opcode(Opcode::TSK_MGMT, 47)),
        ("an opcode there is not", with_opcode(0x55, 48)),
        ("a login in a session", with_opcode(Opcode::LOGIN_REQ, 64)),
        ("a response from an initiator", with_opcode(Opcode::RSP, 48)),
        ("a logout of the target", with_opcode(Opcode::T_LOGOUT, 16)),
        ("an answer to no CRED_REQ", with_opcode(Opcode::CRED_RSP, 16)),
        ("an answer to no AER_REQ", with_opcode(Opcode::AER_RSP, 16)),
    ];
    let since = bout.target.stats();
    for (number, (what, iu)) in wrong.iter().enumerate() {
        let mut peer = peer(&mut bout, number as u32);
        peer.send_iu(iu);
        peer.dreq(what);
    }
    bout.counted(&since, &["violations"], wrong.len() as u64);

    // 64 credits, 65 commands. The writes wait for data that do not come.
    let since = bout.target.stats();
    let mut peer = peer(&mut bout, 20);
    for tag in 0..65 {
        peer.send_iu(&unit(tag, &WRITE_8_BLOCKS, DataBuffer::Direct(FOUR_K), DataBuffer::None));
    }
    peer.dreq("one command too many");
    bout.counted(&since, &["violations"], 1);
    assert!(bout.target.log().contains("a request without a credit"));
    bout.end();
}

#[test]
fn tags_in_use_and_keys_that_are_wrong() {
    let mut bout = Bout::begin(102);

    // A tag that is in use: both commands end with one answer (SAM-5 5.11).
    let since = bout.target.stats();
    let mut first = peer(&mut bout, 1);
    let write = unit(5, &WRITE_8_BLOCKS, DataBuffer::Direct(FOUR_K), DataBuffer::None);
    first.send_iu(&write);
    let (psn, reth) = first.until("a READ of the data", |seen| match seen {
        Seen::ReadRequest { psn, reth } => Some((psn, reth)),
        _ => None,
    });
    assert_eq!((reth.addr, reth.rkey, reth.len_bytes), (FOUR_K.addr, FOUR_K.rkey, 4096));
    first.send_iu(&write);
    first.read_response_of(psn, &[9; 4096]);
    let (header, sense) = first.response("an overlapped command");
    assert_eq!((header.tag, header.status, sense), (Tag(5u64.to_be_bytes()), 2, Some((0x0b, 0x4e, 0))));
    // The first one's credit comes back when its READ is over, with whatever answer is next.
    let credits = header.request_limit_delta;
    first.send_iu(&ready(5));
    let header = first.response("the tag again").0;
    assert_eq!((header.status, credits + header.request_limit_delta), (0, 3));
    bout.counted(&since, &["malformed"], 1);
    bout.counted(&since, &["aborted"], 1);
    first.log_out();

    // Keys that the initiator's adapter does not know: it says so, and the session is over.
    for (number, (what, iu)) in [
        ("a WRITE with a wrong key", write.clone()),
        ("a READ with a wrong key", unit(6, &READ_8_BLOCKS, DataBuffer::None, DataBuffer::Direct(FOUR_K))),
    ]
    .into_iter()
    .enumerate()
    {
        let since = bout.target.stats();
        let mut peer = peer(&mut bout, 10 + number as u32);
        peer.send_iu(&iu);
        let psn = loop {
            let came = peer.wire.recv(super::raw::PATIENCE).expect("the target uses the descriptor");
            if matches!(came.ext, srpoll::wire::packet::Ext::Reth(_)) {
                break came.bth.psn;
            }
        };
        peer.reply(psn, Syndrome::Nak(NakCode::RemoteAccessError));
        peer.dreq(what);
        bout.counted(&since, &["fatal_naks_in"], 1);
    }

    // A table in memory that is not there.
    let mut third = peer(&mut bout, 20);
    let table = Descriptor { len_bytes: 64, ..FOUR_K };
    let external = DataBuffer::Indirect { table, total_bytes: 4096, inline: DescTable::default() };
    third.send_iu(&unit(7, &WRITE_8_BLOCKS, external, DataBuffer::None));
    let (psn, reth) = third.until("a READ of the table", |seen| match seen {
        Seen::ReadRequest { psn, reth } => Some((psn, reth)),
        _ => None,
    });
    assert_eq!((reth.addr, reth.len_bytes), (FOUR_K.addr, 64));
    third.reply(psn, Syndrome::Nak(NakCode::RemoteAccessError));
    third.dreq("a table with a wrong key");

    // A table that is there and covers too little: refused, and the session goes on.
    let mut fourth = peer(&mut bout, 21);
    fourth.send_iu(&unit(7, &WRITE_8_BLOCKS, external, DataBuffer::None));
    let psn = fourth.until("a READ of the table", |seen| match seen {
        Seen::ReadRequest { psn, .. } => Some(psn),
        _ => None,
    });
    let piece = Descriptor { len_bytes: 100, ..FOUR_K }.emit();
    fourth.read_response(psn, &[piece, piece, piece, piece].concat());
    assert_eq!(fourth.response("a table that covers too little").1, Some((5, 0x24, 0)));

    // More data than were asked for.
    fourth.send_iu(&unit(
        8,
        &WRITE_8_BLOCKS,
        DataBuffer::Direct(Descriptor { len_bytes: 512, ..FOUR_K }),
        DataBuffer::None,
    ));
    fourth.send_iu(&write);
    let psn = fourth.until("a READ of 4 KiB", |seen| match seen {
        Seen::ReadRequest { psn, reth } if reth.len_bytes == 4096 => Some(psn),
        _ => None,
    });
    fourth.read_response(psn, &[0; 64]);
    fourth.dreq("64 bytes for 4 KiB");
    bout.end();
}
