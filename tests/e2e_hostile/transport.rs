//! A connected peer that breaks the rules of RC (IBTA vol. 1, 9.7.4 and 9.9).

use std::time::Duration;

use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::ext::{AtomicEth, Ieth, ImmDt, NakCode, Reth, Syndrome};
use srpoll::wire::num::RKey;
use srpoll::wire::packet::Ext;
use srpoll::wire::scsi::cdb::Cdb;
use srpoll::wire::srp::{Cmd, DataBuffer, Tag};

use super::Bout;
use super::raw::{MTU, PATIENCE, Peer, Seen, login};

/// TEST UNIT READY.
fn ready(tag: u64) -> Vec<u8> {
    let cmd = Cmd {
        sol_not: 0,
        tag: Tag(tag.to_be_bytes()),
        lun: Default::default(),
        attribute: Default::default(),
        cdb: Cdb::TestUnitReady.emit(),
        additional_cdb: &[],
        data_out: DataBuffer::None,
        data_in: DataBuffer::None,
    };
    let mut iu = vec![0; 64];
    let len = cmd.emit(&mut iu).unwrap();
    iu.truncate(len);
    iu
}

#[test]
fn requests_that_end_the_connection() {
    let mut bout = Bout::begin(102);
    let reth = |len_bytes| Ext::Reth(Reth { addr: 0x10_0000, rkey: RKey(0x0bad_0bad), len_bytes });
    let atomic = Ext::Atomic(AtomicEth { addr: 8, rkey: RKey(1), swap_or_add: 1, compare: 0 });
    let (access, invalid) = (NakCode::RemoteAccessError, NakCode::InvalidRequest);
    let wrong: [(&str, Opcode, Ext, usize, NakCode); 14] = [
        ("WRITE with a wrong key", Opcode::WriteOnly, reth(64), 64, access),
        ("WRITE FIRST with a wrong key", Opcode::WriteFirst, reth(4096), MTU, access),
        ("READ with a wrong key", Opcode::ReadRequest, reth(4096), 0, access),
        ("READ of more than a message", Opcode::ReadRequest, reth(u32::MAX), 0, invalid),
        ("READ with a payload", Opcode::ReadRequest, reth(64), 64, invalid),
        ("WRITE that is shorter than its header says", Opcode::WriteOnly, reth(64), 8, invalid),
        ("SEND MIDDLE without a FIRST", Opcode::SendMiddle, Ext::None, MTU, invalid),
        ("SEND LAST without a FIRST", Opcode::SendLast, Ext::None, 4, invalid),
        ("WRITE LAST without a FIRST", Opcode::WriteLast, Ext::None, 4, invalid),
        ("SEND FIRST that is short", Opcode::SendFirst, Ext::None, 100, invalid),
        ("SEND longer than the path MTU", Opcode::SendOnly, Ext::None, MTU + 4, invalid),
        ("SEND with immediate data", Opcode::SendOnlyImm, Ext::Imm(ImmDt([0; 4])), 48, invalid),
        ("SEND with invalidate", Opcode::SendOnlyInvalidate, Ext::Ieth(Ieth { rkey: RKey(1) }), 48, invalid),
        ("atomic", Opcode::FetchAdd, atomic, 0, invalid),
    ];
    let since = bout.target.stats();
    for (number, (what, opcode, ext, len, code)) in wrong.into_iter().enumerate() {
        let mut peer = Peer::connect(bout.wire(), number as u32, &login(number as u64)).unwrap();
        let psn = peer.psn;
        peer.packet(opcode, ext, &vec![0; len]);
        assert_eq!(peer.nak(what), (psn, Syndrome::Nak(code)), "{what}");
        peer.dreq(what);
    }
    bout.counted(&since, &["fatal_naks_out"], 14);
    bout.counted(&since, &["channels_ended"], 14);

    // An information unit that no receive holds.
    let mut peer = Peer::connect(bout.wire(), 20, &login(20)).unwrap();
    peer.send_iu(&[0x02; 9 * MTU]);
    let (_, syndrome) = peer.nak("a SEND of 9 KiB");
    assert_eq!(syndrome, Syndrome::Nak(invalid));
    peer.dreq("a SEND of 9 KiB");
    bout.end();
}

#[test]
fn requests_out_of_order_and_again() {
    let mut bout = Bout::begin(152);
    let mut peer = Peer::connect(bout.wire(), 1, &login(1)).unwrap();
    peer.send_iu(&ready(1));
    assert_eq!(peer.response("power on").1, Some((6, 0x29, 0)), "the unit attention of a new nexus");

    // A gap: NAK with the PSN that is missing; then all goes on.
    let since = bout.target.stats();
    let missing = peer.psn;
    peer.psn = missing.plus(1);
    peer.send_iu(&ready(3));
    assert_eq!(peer.nak("a gap"), (missing, Syndrome::Nak(NakCode::PsnSequenceError)));
    peer.psn = missing;
    peer.send_iu(&ready(2));
    peer.send_iu(&ready(3));
    for tag in [2u64, 3] {
        let (header, sense) = peer.response("after a gap");
        assert_eq!((header.tag, header.status, sense), (Tag(tag.to_be_bytes()), 0, None));
    }
    bout.counted(&since, &["sequence_naks_out"], 1);

    // The same packet again: acknowledged again, not executed again.
    let since = bout.target.stats();
    let again = Bth { ack_req: true, ..Bth::new(Opcode::SendOnly, peer.dest_qpn, peer.psn.minus(1)) };
    for _ in 0..5 {
        peer.odd_packet(again, Ext::None, &ready(3));
        let last = peer.psn.minus(1);
        peer.until("an ACK of a duplicate", |seen| match seen {
            Seen::Reply { psn, syndrome: Syndrome::Ack { .. } } if psn == last => Some(()),
            Seen::Iu(_) => panic!("a duplicate was executed"),
            _ => None,
        });
    }
    bout.counted(&since, &["duplicate_requests"], 5);

    // Answers that nobody asked for are dropped.
    let since = bout.target.stats();
    peer.reply(peer.psn.plus(1000), Syndrome::Nak(NakCode::RemoteAccessError));
    peer.reply(peer.psn.plus(1000), Syndrome::ACK);
    peer.read_response(peer.psn.plus(1000), &[0; 64]);
    bout.counted(&since, &["dropped_stale_responses"], 3);
    peer.send_iu(&ready(4));
    assert_eq!(peer.response("after stale answers").0.status, 0);
    assert!(peer.next(Duration::from_millis(200)).is_none_or(|seen| matches!(seen, Seen::Reply { .. })));
    peer.log_out();

    // A NAK for something that the target did send ends the connection.
    let mut peer = Peer::connect(bout.wire(), 2, &login(2)).unwrap();
    let first = srpoll::wire::num::Psn::new(0xff_fffe);
    peer.send_iu(&ready(1));
    let came = peer.wire.recv(PATIENCE).unwrap();
    let iu = if came.bth.opcode == Opcode::SendOnly { came } else { peer.wire.recv(PATIENCE).unwrap() };
    assert_eq!((iu.bth.opcode, iu.bth.psn), (Opcode::SendOnly, first), "a response");
    peer.reply(first, Syndrome::Nak(NakCode::RemoteOperationalError));
    peer.dreq("a fatal NAK");
    bout.end();
}
