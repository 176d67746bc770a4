//! What LIO answered Linux in `tests/captures`, beside what the device server answers to the same CDBs of
//! a disk of the same size: every difference is listed and has its reason.

use std::collections::{BTreeMap, HashMap};

use srpoll::scsi::{Attention, Call, Demand, LunInfo, Naa, Plan, SCRATCH_BYTES, TargetInfo, Unit, start};
use srpoll::wire::bth;
use srpoll::wire::packet::Packet;
use srpoll::wire::scsi::inquiry::ascii_field;
use srpoll::wire::scsi::lun::{Lun, LunField};
use srpoll::wire::scsi::sense::Sense;
use srpoll::wire::srp::{Cmd, Opcode, Rsp};

#[path = "common/pcap.rs"]
mod pcap;

/// A command and LIO's answer: status or sense data in words, and the bytes that it transferred.
struct Exchange {
    lun: LunField,
    cdb: [u8; 16],
    answer: String,
}

/// In words: sense data, or status, and bytes in and out.
fn words(sense: Option<Sense>, status: u8, demand: Demand) -> String {
    match (sense, demand) {
        // Where LIO points at no field, the pointer is not compared.
        (Some(sense), _) => Sense { field: None, ..sense }.to_string(),
        (None, Demand::Nothing) => format!("status {status}"),
        (None, Demand::In(bytes)) => format!("status {status}, {bytes} in"),
        (None, Demand::Out(bytes)) => format!("status {status}, {bytes} out"),
    }
}

/// The single-packet commands of a capture with their responses, in order.
fn exchanges(capture: &str) -> Vec<Exchange> {
    let mut open = HashMap::new();
    let mut found = Vec::new();
    for frame in pcap::roce_frames(capture) {
        let Ok(packet) = Packet::parse(frame.ib()) else { continue };
        if packet.bth.opcode != bth::Opcode::SendOnly || packet.payload.is_empty() {
            continue;
        }
        let iu = packet.payload;
        match Opcode::from_byte(iu[0]) {
            Some(Opcode::Cmd) => {
                let cmd = Cmd::parse(iu, Some(68)).expect("an SRP_CMD").expect("well-formed");
                let bytes = (cmd.data_in.len_bytes(), cmd.data_out.len_bytes());
                open.insert(cmd.tag.0, (LunField::parse(&cmd.lun.0), cmd.cdb, bytes));
            }
            Some(Opcode::Rsp) => {
                let rsp = Rsp::parse(iu).expect("an SRP_RSP");
                let Some((lun, cdb, (bytes_in, bytes_out))) = open.remove(&rsp.header.tag.0) else {
                    continue;
                };
                let demand = match (bytes_in, bytes_out) {
                    (0, 0) => Demand::Nothing,
                    (bytes, 0) => Demand::In(u64::from(bytes - rsp.header.data_in_residual)),
                    (_, bytes) => Demand::Out(u64::from(bytes - rsp.header.data_out_residual)),
                };
                let answer = words(Sense::parse(rsp.sense), rsp.header.status, demand);
                found.push(Exchange { lun, cdb, answer });
            }
            _ => {}
        }
    }
    found
}

/// A disk of the size that the capture's READ CAPACITY shows.
fn disk(blocks: u64) -> LunInfo {
    LunInfo {
        block_bytes: 512,
        blocks,
        physical_block_exponent: 0,
        read_only: false,
        write_cache: false,
        unmap: false,
        unmap_reads_zeroes: false,
        rotational: false,
        max_transfer_bytes: 16 << 20,
        optimal_transfer_bytes: 0,
        product: ascii_field("test"),
        serial: "1".into(),
        naa: Naa::locally_assigned(1),
    }
}

fn ours(lun: LunField, cdb: &[u8]) -> String {
    let target = TargetInfo {
        vendor: ascii_field("SRPOLL"),
        revision: ascii_field("0"),
        port_id: [0; 16],
        relative_port: 1,
    };
    // LUN 0: 64 MiB ramdisk. LUN 1: a block device of 250 GiB. As in lio-612-login-io.pcap.
    let (zero, one) = (disk(0x2_0000), disk(0x1f40_0000));
    let unit = match lun {
        LunField::Unit(lun) if lun == Lun::ZERO => Unit::Disk(&zero),
        LunField::Unit(lun) if lun.get() == 1 => Unit::Disk(&one),
        _ => Unit::Absent,
    };
    let attention = Attention::new();
    let mut data = [0; SCRATCH_BYTES];
    let plan = start(Call {
        unit,
        target: &target,
        luns: &mut (0..2).filter_map(Lun::new),
        attention: Some(&attention),
        cdb,
        data: &mut data,
    });
    match plan {
        Plan::Done(outcome) => words(outcome.sense, outcome.status.code(), plan.demand()),
        Plan::Block(_) | Plan::List { .. } => words(None, 0, plan.demand()),
    }
}

#[test]
fn the_same_answers_as_lio_but_for_a_few() {
    let mut seen = 0;
    let mut differences = BTreeMap::new();
    for capture in ["lio-612-login-io.pcap", "lio-61-login-io.pcap", "var-ch2.pcap", "var-noimm.pcap"] {
        for Exchange { lun, cdb, answer } in exchanges(capture) {
            seen += 1;
            let mine = ours(lun, &cdb);
            if mine != answer {
                let cdb: Vec<String> = cdb.iter().map(|byte| format!("{byte:02x}")).collect();
                differences.insert(cdb.concat(), format!("LIO {answer}; ours {mine}"));
            }
        }
    }
    let list: Vec<String> = differences.iter().map(|(cdb, both)| format!("{cdb}: {both}")).collect();
    assert_eq!(list, DIFFERENCES);
    assert!(seen > 100, "{seen} commands");
}

/// Why, in order: LIO's LUNs were exported just before, ours raise nothing here. LIO had no serial number and
/// therefore no VPD pages, twice asked with different allocation lengths. LIO has REPORT SUPPORTED OPERATION
/// CODES, by which Linux asks for INQUIRY, WRITE SAME(10) and (16); it does without.
const DIFFERENCES: &[&str] = &[
    "00000000000000000000000000000000: \
     LIO UNIT ATTENTION: reported luns data has changed (3f/0e); ours status 0",
    "12010000240000000000000000000000: LIO status 0, 4 in; ours status 0, 10 in",
    "12010000fc0000000000000000000000: LIO status 0, 4 in; ours status 0, 10 in",
    "a30c011200000000000a000000000000: \
     LIO status 0, 10 in; ours ILLEGAL REQUEST: invalid command operation code (20/00)",
    "a30c014100000000000e000000000000: \
     LIO status 0, 14 in; ours ILLEGAL REQUEST: invalid command operation code (20/00)",
    "a30c0193000000000014000000000000: \
     LIO status 0, 20 in; ours ILLEGAL REQUEST: invalid command operation code (20/00)",
];
