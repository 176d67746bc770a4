//! Every SRP information unit of every capture parses and is emitted again, byte for byte.
//!
//! The captures show Linux's ib_srp (kernels 6.1 and 6.12) against LIO's ib_srpt and against a
//! small user-space target; `tests/captures` holds them.

#[path = "common/pcap.rs"]
mod pcap;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use srpoll::wire::bth::Operation;
use srpoll::wire::packet::Packet;
use srpoll::wire::srp::{
    AerReq, AerRsp, Cmd, CredReq, CredRsp, DataBuffer, InitiatorLogout, LoginForm, LoginRej, LoginReq,
    LoginRsp, Opcode, Rsp, TargetLogout, TaskMgmt,
};

/// Where the immediate data of all captured channels begin: ib_srp asks for this offset.
const IMMEDIATE_OFFSET: u16 = 68;
/// Bytes of the RDMA-CM header in front of a login request.
const RDMA_CM_HEADER: usize = 36;

/// The IU written again from its parsed value, and its name.
fn again(iu: &[u8]) -> (&'static str, Vec<u8>) {
    let mut buf = vec![0xee; iu.len() + 64];
    match Opcode::from_byte(iu[0]).expect("a known opcode") {
        Opcode::Cmd => {
            let cmd = Cmd::parse(iu, Some(IMMEDIATE_OFFSET)).unwrap().expect("a well-formed command");
            let mut buf = vec![0xee; cmd.len_bytes()];
            let len = cmd.emit(&mut buf).unwrap();
            let name = match (&cmd.data_out, &cmd.data_in) {
                (DataBuffer::None, DataBuffer::None) => "cmd without data",
                (DataBuffer::Direct(_), _) => "cmd direct out",
                (_, DataBuffer::Direct(_)) => "cmd direct in",
                (DataBuffer::Immediate { .. }, _) => "cmd immediate",
                (DataBuffer::Indirect { table, inline, .. }, _)
                | (_, DataBuffer::Indirect { table, inline, .. }) => {
                    if table.len_bytes as usize == inline.as_bytes().len() {
                        "cmd inline"
                    } else {
                        "cmd external"
                    }
                }
                (DataBuffer::None, DataBuffer::Immediate { .. }) => {
                    unreachable!("data-IN is never immediate")
                }
            };
            if let DataBuffer::Immediate { offset, .. } = cmd.data_out {
                // The bytes before the data are undefined; ib_srp leaves stale ones.
                let header = cmd.header_bytes();
                buf[header..offset].copy_from_slice(&iu[header..offset]);
            }
            (name, buf[..len].to_vec())
        }
        Opcode::Rsp => {
            let rsp = Rsp::parse(iu).unwrap();
            let len = rsp.emit(&mut buf).unwrap();
            let name = if rsp.response.is_empty() { "rsp" } else { "rsp to task management" };
            (name, buf[..len].to_vec())
        }
        Opcode::TaskMgmt => ("tsk_mgmt", TaskMgmt::parse(iu).unwrap().emit().to_vec()),
        Opcode::InitiatorLogout => ("i_logout", InitiatorLogout::parse(iu).unwrap().emit().to_vec()),
        Opcode::TargetLogout => ("t_logout", TargetLogout::parse(iu).unwrap().emit().to_vec()),
        Opcode::CredReq => ("cred_req", CredReq::parse(iu).unwrap().emit().to_vec()),
        Opcode::CredRsp => ("cred_rsp", CredRsp::parse(iu).unwrap().emit().to_vec()),
        Opcode::AerRsp => ("aer_rsp", AerRsp::parse(iu).unwrap().emit().to_vec()),
        Opcode::AerReq => {
            let len = AerReq::parse(iu).unwrap().emit(&mut buf).unwrap();
            ("aer_req", buf[..len].to_vec())
        }
        Opcode::LoginReq | Opcode::LoginRsp | Opcode::LoginRej => panic!("a login IU outside of CM"),
    }
}

/// The login IU in a CM message, if it has one.
fn login(mad: &[u8]) -> Option<(&'static str, Vec<u8>, Vec<u8>)> {
    const MAD_HEADER: usize = 24;
    let body = &mad[MAD_HEADER..];
    match u16::from_be_bytes([mad[16], mad[17]]) {
        0x10 => {
            let iu = &body[140 + RDMA_CM_HEADER..140 + RDMA_CM_HEADER + LoginReq::COMPACT_BYTES];
            let request = LoginReq::parse(LoginForm::Compact, iu).unwrap();
            let full = LoginReq::parse(LoginForm::Full, &request.emit_full()).unwrap();
            assert_eq!(request, full, "both forms say the same");
            Some(("login_req", iu.to_vec(), request.emit_compact().to_vec()))
        }
        0x13 => {
            let iu = &body[36..36 + LoginRsp::BYTES];
            Some(("login_rsp", iu.to_vec(), LoginRsp::parse(iu).unwrap().emit().to_vec()))
        }
        0x12 => {
            let iu = &body[84..84 + LoginRej::BYTES];
            let reason = u16::from_be_bytes([body[10], body[11]]);
            if reason != LoginRej::CM_REASON || iu.iter().all(|&byte| byte == 0) {
                return None;
            }
            Some(("login_rej", iu.to_vec(), LoginRej::parse(iu).unwrap().emit().to_vec()))
        }
        _ => None,
    }
}

fn count(file: &str) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let mut parts: HashMap<_, Vec<u8>> = HashMap::new();
    let mut check = |name, original: &[u8], emitted: &[u8]| {
        assert_eq!(original, emitted, "{name}");
        *counts.entry(name).or_default() += 1;
    };
    for frame in pcap::roce_frames(file) {
        let packet = Packet::parse(frame.ib()).expect("a RoCE packet");
        match packet.bth.opcode.operation() {
            Operation::Datagram => {
                if let Some((name, original, emitted)) = login(packet.payload) {
                    check(name, &original, &emitted);
                }
            }
            Operation::Send => {
                let position = packet.bth.opcode.position();
                let key = (frame.source(), frame.destination(), packet.bth.dest_qpn);
                let message = parts.entry(key).or_default();
                if position.begins() {
                    message.clear();
                }
                message.extend_from_slice(packet.payload);
                if position.ends() {
                    let (name, emitted) = again(message);
                    check(name, message, &emitted);
                }
            }
            _ => {}
        }
    }
    counts
}

#[test]
fn every_information_unit_of_every_capture_is_emitted_again() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut table = String::new();
    for path in files {
        let counts = count(path.file_name().unwrap().to_str().unwrap());
        table.push_str(&format!("{}\n", path.file_stem().unwrap().to_str().unwrap()));
        for (name, count) in counts {
            table.push_str(&format!("  {count:5} {name}\n"));
        }
    }
    assert_eq!(table, EXPECTED, "\n{table}");
}

/// How many of each kind each capture has.
const EXPECTED: &str = "\
host-minitarget-61-mtu4096
     32 cmd direct in
      4 cmd direct out
      2 cmd without data
      1 login_req
      1 login_rsp
     37 rsp
host-minitarget-612-mtu4096
     35 cmd direct in
      3 cmd direct out
      2 cmd without data
      1 login_req
      1 login_rsp
     39 rsp
host-minitarget-death-reconnect
    106 cmd direct in
      3 cmd without data
      2 login_req
      2 login_rsp
     32 rsp
     29 tsk_mgmt
host-minitarget-login-io
     35 cmd direct in
      7 cmd direct out
      2 cmd without data
      1 login_req
      1 login_rsp
     40 rsp
host-peer-REJ
      2 login_rej
      1 login_req
lio-61-login-REJ-noacl
      1 login_rej
      1 login_req
lio-61-login-io
     44 cmd direct in
      2 cmd direct out
      3 cmd immediate
      7 cmd without data
      1 login_req
      1 login_rsp
     56 rsp
lio-612-login-REJ-noacl
      1 login_rej
      1 login_req
lio-612-login-io
     60 cmd direct in
      2 cmd direct out
      3 cmd immediate
      7 cmd without data
      1 login_req
      1 login_rsp
     72 rsp
noone-listening
     16 login_req
var-ch2
     57 cmd direct in
      5 cmd direct out
      3 cmd immediate
      4 cmd without data
      2 login_req
      2 login_rsp
     69 rsp
var-neverreg-ext
     51 cmd direct in
      2 cmd external
      3 cmd immediate
      1 cmd inline
      5 cmd without data
      2 login_req
      2 login_rsp
     60 rsp
      2 tsk_mgmt
var-neverreg
     51 cmd direct in
      1 cmd direct out
      3 cmd immediate
      9 cmd inline
      4 cmd without data
      1 login_req
      1 login_rsp
     68 rsp
var-noimm
     57 cmd direct in
      6 cmd direct out
      5 cmd without data
      1 login_req
      1 login_rsp
     68 rsp
var-regalways0-sg255
     54 cmd direct in
      2 cmd direct out
      3 cmd immediate
      5 cmd without data
      1 login_req
      1 login_rsp
     64 rsp
";
