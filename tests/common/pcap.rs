//! Reads the captures of `tests/captures`: classic pcap, little-endian, Ethernet.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::Path;

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// One RoCEv2 frame of a capture.
#[derive(Clone)]
pub(crate) struct Frame {
    /// Position in its file, from 1, as Wireshark counts.
    pub(crate) number: usize,
    /// The IP packet, without Ethernet header and trailer.
    pub(crate) ip: Vec<u8>,
}

impl Frame {
    /// Source address, IPv4.
    pub(crate) fn source(&self) -> std::net::IpAddr {
        std::net::IpAddr::from([self.ip[12], self.ip[13], self.ip[14], self.ip[15]])
    }

    /// Destination address, IPv4.
    pub(crate) fn destination(&self) -> std::net::IpAddr {
        std::net::IpAddr::from([self.ip[16], self.ip[17], self.ip[18], self.ip[19]])
    }

    /// IPv4 identification.
    pub(crate) fn ip_id(&self) -> u16 {
        u16::from_be_bytes([self.ip[4], self.ip[5]])
    }

    /// UDP source port.
    pub(crate) fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.ip[20], self.ip[21]])
    }

    /// BTH to ICRC.
    pub(crate) fn udp_payload(&self) -> &[u8] {
        &self.ip[28..]
    }

    /// BTH to pad.
    pub(crate) fn ib(&self) -> &[u8] {
        &self.ip[28..self.ip.len() - 4]
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// Every RoCEv2 frame of the capture with this file name.
///
/// # Panics
/// If the file is not what it ought to be; a capture that is cut short must not pass a test.
pub(crate) fn roce_frames(name: &str) -> Vec<Frame> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(u32_at(&file, 0), 0xa1b2_c3d4, "{name}: pcap with microseconds");
    assert_eq!(u32_at(&file, 20), 1, "{name}: link type Ethernet");
    let mut frames = Vec::new();
    let (mut at, mut number) = (24, 0);
    while at < file.len() {
        number += 1;
        let len = u32_at(&file, at + 8);
        assert_eq!(len, u32_at(&file, at + 12), "{name}: frame {number} is cut");
        let ethernet = &file[at + 16..at + 16 + len];
        at += 16 + len;
        if ethernet[12..14] != [0x08, 0x00] || ethernet[14] != 0x45 || ethernet[23] != 17 {
            continue;
        }
        if u16::from_be_bytes([ethernet[36], ethernet[37]]) != ROCE_PORT {
            continue;
        }
        let total = usize::from(u16::from_be_bytes([ethernet[16], ethernet[17]]));
        frames.push(Frame { number, ip: ethernet[14..14 + total].to_vec() });
    }
    frames
}
