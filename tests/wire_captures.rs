//! Every RoCEv2 frame that was captured from Linux initiators and targets, through our formats:
//! it parses, comes out again byte for byte, and its ICRC is right.

#[path = "common/pcap.rs"]
mod pcap;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use srpoll::wire::bth::Opcode;
use srpoll::wire::cm::{CmMad, CmaHeader, Message, rdma_cm};
use srpoll::wire::ext::Deth;
use srpoll::wire::icrc::{self, Prefix};
use srpoll::wire::packet::{Ext, Packet};

/// The captures and how many RoCEv2 frames each holds (`tcpdump -r FILE udp dst port 4791 | wc -l`).
const CAPTURES: [(&str, usize); 15] = [
    ("host-minitarget-61-mtu4096.pcap", 300),
    ("host-minitarget-612-mtu4096.pcap", 300),
    ("host-minitarget-death-reconnect.pcap", 310),
    ("host-minitarget-login-io.pcap", 600),
    ("host-peer-REJ.pcap", 3),
    ("lio-61-login-REJ-noacl.pcap", 2),
    ("lio-61-login-io.pcap", 483),
    ("lio-612-login-REJ-noacl.pcap", 2),
    ("lio-612-login-io.pcap", 575),
    ("noone-listening.pcap", 16),
    ("var-ch2.pcap", 823),
    ("var-neverreg-ext.pcap", 400),
    ("var-neverreg.pcap", 881),
    ("var-noimm.pcap", 814),
    ("var-regalways0-sg255.pcap", 791),
];

/// The one frame that was sent with a wrong ICRC on purpose.
const BAD_ICRC: (&str, usize) = ("host-peer-REJ.pcap", 2);

fn frames() -> impl Iterator<Item = (&'static str, pcap::Frame)> {
    CAPTURES.iter().flat_map(|(name, count)| {
        let frames = pcap::roce_frames(name);
        assert_eq!(frames.len(), *count, "{name}");
        frames.into_iter().map(|frame| (*name, frame))
    })
}

#[test]
fn no_capture_is_left_out() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, CAPTURES.map(|(name, _)| name));
}

#[test]
fn every_frame_parses_and_is_emitted_again() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut total = 0;
    for (name, frame) in frames() {
        let at = format!("{name} frame {}", frame.number);
        let packet = Packet::parse(frame.ib()).unwrap_or_else(|error| panic!("{at}: {error}"));
        let mut again = vec![0xa5; frame.ib().len()];
        assert_eq!(packet.emit(&mut again), again.len(), "{at}");
        assert_eq!(again, frame.ib(), "{at}");
        total += 1;
        *seen.entry(format!("{:?}", packet.bth.opcode)).or_default() += 1;
        if packet.bth.opcode == Opcode::UdSendOnly {
            assert_eq!(packet.ext, Ext::Deth(Deth::GSI), "{at}");
            let mad = CmMad::parse(packet.payload).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(mad.emit(), packet.payload, "{at}");
            *seen.entry(format!("MAD {:#x}", mad.message.attribute())).or_default() += 1;
            if let Message::Req(req) = mad.message {
                assert_eq!(rdma_cm::port(req.service_id), Some(5555), "{at}");
                let bytes = req.private_data.first_chunk().unwrap();
                let header = CmaHeader::parse(bytes);
                let mut again = [0; CmaHeader::LEN];
                header.emit(&mut again);
                assert_eq!(again, *bytes, "{at}");
                assert_eq!(header.addresses(), Some((frame.source(), frame.destination())), "{at}");
                assert_eq!(std::net::IpAddr::from(req.local_gid), frame.source(), "{at}");
                assert_eq!(std::net::IpAddr::from(req.remote_gid), frame.destination(), "{at}");
            }
        }
    }
    let mut table = String::new();
    for (what, count) in seen {
        writeln!(table, "{what:20} {count:5}").unwrap();
    }
    println!("{table}{total} frames");
    assert_eq!(table, SEEN);
    assert_eq!(total, 6_300);
}

/// What the captures hold. An independent count of the opcode bytes (a few lines of Python over
/// the files) gives the same.
const SEEN: &str = "\
Acknowledge           1755
MAD 0x10                33
MAD 0x12                 4
MAD 0x13                14
MAD 0x14                14
MAD 0x15                 9
MAD 0x16                 9
ReadRequest             58
ReadResponseFirst       57
ReadResponseLast        54
ReadResponseMiddle    1204
ReadResponseOnly         1
SendFirst               12
SendLast                12
SendMiddle              52
SendOnly              1314
UdSendOnly              83
WriteFirst             144
WriteLast              144
WriteMiddle           1020
WriteOnly              390
";

#[test]
fn every_icrc_is_right_but_the_one_that_was_spoilt() {
    let mut prefixes: BTreeMap<_, Prefix> = BTreeMap::new();
    let (mut right, mut last_id) = (0, 0);
    for (name, frame) in frames() {
        let at = format!("{name} frame {}", frame.number);
        let (computed, received) = icrc::of_ip_packet(&frame.ip).unwrap();
        let key = (frame.source(), frame.destination(), frame.source_port());
        let prefix = prefixes
            .entry(key)
            .or_insert_with(|| Prefix::new(key.0, key.1, key.2, 4791).expect("one address family"));
        assert_eq!(prefix.icrc(frame.ib(), frame.ip_id()), computed, "{at}: both ways agree");
        if (name, frame.number) == BAD_ICRC {
            assert_ne!(computed, received, "{at}");
            assert!(!prefix.check(frame.udp_payload(), frame.ip_id()), "{at}");
            assert_eq!(prefix.solve_id(frame.udp_payload(), 0), None, "{at}");
            continue;
        }
        assert_eq!(computed, received, "{at}");
        assert!(prefix.check(frame.udp_payload(), frame.ip_id()), "{at}");
        // What a plain UDP socket cannot see is found, whatever it was before.
        assert_eq!(prefix.solve_id(frame.udp_payload(), last_id), Some(frame.ip_id()), "{at}");
        last_id = frame.ip_id();
        right += 1;
    }
    assert_eq!(right, 6_299);
}
