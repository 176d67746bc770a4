//! Bytes to values and back: what a packet, its ICRC, an SRP command and its response cost.

#![allow(missing_docs)]

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use srpoll::wire::bth::{Bth, Opcode};
use srpoll::wire::icrc::Prefix;
use srpoll::wire::num::{Psn, Qpn, RKey};
use srpoll::wire::packet::Packet;
use srpoll::wire::srp::{Cmd, DataBuffer, Descriptor, RawLun, Rsp, RspHeader, Tag, TaskAttribute};

fn packets(c: &mut Criterion) {
    let mut group = c.benchmark_group("packet");
    group.throughput(Throughput::Elements(1));
    let bth = Bth::new(Opcode::SendOnly, Qpn::new(0x1234), Psn::new(7));
    let mut bytes = [0; Bth::LEN + 64];
    bth.emit(&mut bytes);
    group.bench_function("emit a BTH", |b| b.iter(|| black_box(&bth).emit(black_box(&mut bytes))));
    group.bench_function("parse a SEND ONLY", |b| b.iter(|| Packet::parse(black_box(&bytes)).is_ok()));
}

fn icrc(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
    let prefix = Prefix::new(here, there, 0xc000, 4791).unwrap();
    for len_bytes in [64, 1024, 4096] {
        let ib = vec![0x5a; Bth::LEN + 16 + len_bytes];
        group.throughput(Throughput::Bytes(len_bytes as u64));
        group.bench_function(format!("make, {len_bytes} bytes"), |b| {
            b.iter(|| prefix.icrc(black_box(&ib), 0))
        });
        let mut segment = ib.clone();
        segment.extend(prefix.icrc(&ib, 3));
        group.bench_function(format!("check, identification guessed, {len_bytes} bytes"), |b| {
            b.iter(|| prefix.solve_id(black_box(&segment), 3));
        });
        group.bench_function(format!("check, identification solved for, {len_bytes} bytes"), |b| {
            b.iter(|| prefix.solve_id(black_box(&segment), 0x4000));
        });
    }
}

fn srp(c: &mut Criterion) {
    let mut group = c.benchmark_group("srp");
    group.throughput(Throughput::Elements(1));
    let command = Cmd {
        sol_not: 0,
        tag: Tag([1; 8]),
        lun: RawLun::default(),
        attribute: TaskAttribute::Simple,
        cdb: [0x28; 16],
        additional_cdb: &[],
        data_out: DataBuffer::None,
        data_in: DataBuffer::Direct(Descriptor { addr: 0x1000, rkey: RKey(9), len_bytes: 4096 }),
    };
    let mut iu = [0; 128];
    let len = command.emit(&mut iu).unwrap();
    group.bench_function("parse SRP_CMD", |b| b.iter(|| Cmd::parse(black_box(&iu[..len]), Some(68)).is_ok()));
    let response = Rsp { header: RspHeader::default(), response: &[], sense: &[] };
    group.bench_function("emit SRP_RSP", |b| b.iter(|| black_box(&response).emit(black_box(&mut iu))));
}

criterion_group!(benches, packets, icrc, srp);
criterion_main!(benches);
