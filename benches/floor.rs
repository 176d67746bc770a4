//! What the kernel alone takes for the datagrams of our commands: `cargo bench --bench floor`.
//!
//! Two UDP sockets on loopback exchange, on one thread, trains of just the sizes that an initiator and a target
//! of ours exchange over UDP, each in its segmented send and its merged receive, with nothing between them: no
//! packet is looked into, no ICRC computed. So this is the least that the provider over UDP can cost here, and
//! what is above it is ours. The CRC of the data, which both sides cannot go without, is shown beside it.
//!
//! With a case after `--` only that is measured; with `--json` it prints an object a case on a line, which
//! `scripts/bench` puts beside the systems.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use srpoll::wire::icrc::Prefix;

/// Rounds of a case; the middle one counts.
const ROUNDS: usize = 3000;
/// Most bytes of one segmented send.
const MOST_BYTES: usize = 65_487;
/// Option names of level SOL_UDP (linux/udp.h).
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Bytes on the wire behind the UDP header: BTH 12, RETH 16, AETH 4, ICRC 4.
const COMMAND: usize = 12 + 64 + 4;
const RESPONSE: usize = 12 + 36 + 4;
const WRITE: usize = 12 + 16 + 4096 + 4;
const READ_REQUEST: usize = 12 + 16 + 4;
const READ_RESPONSE: usize = 12 + 4 + 4096 + 4;

/// Packets of one size that follow each other.
type Run = (usize, usize);

/// A round: who sends what to whom, in order. The rest of each is the other side's.
struct Case {
    name: &'static str,
    qd: usize,
    packets_an_io: usize,
    /// `true` where the target sends.
    steps: Vec<(bool, Vec<Run>)>,
}

fn cases() -> Vec<Case> {
    let read = |name, qd, packets| Case {
        name,
        qd,
        packets_an_io: packets,
        steps: vec![(false, vec![(qd, COMMAND)]), (true, vec![(qd * packets, WRITE), (qd, RESPONSE)])],
    };
    let write = |name, qd| Case {
        name,
        qd,
        packets_an_io: 1,
        steps: vec![
            (false, vec![(qd, COMMAND)]),
            (true, vec![(qd, READ_REQUEST)]),
            (false, vec![(qd, READ_RESPONSE)]),
            (true, vec![(qd, RESPONSE)]),
        ],
    };
    vec![
        read("4k randread QD1", 1, 1),
        read("4k randread QD32", 32, 1),
        read("4k randread QD128", 128, 1),
        write("4k randwrite QD32", 32),
        read("128k read QD8", 8, 32),
    ]
}

/// Sizes of the packets of each send: equal ones, and one shorter one may end it.
fn sends(runs: &[Run]) -> Vec<(usize, Vec<usize>)> {
    let mut sends: Vec<(usize, Vec<usize>)> = Vec::new();
    for &(count, bytes) in runs {
        for nth in 0..count {
            let fits = sends.last().is_some_and(|(segment, sizes)| {
                let ends = count == 1 && bytes < *segment;
                let total: usize = sizes.iter().sum();
                (bytes == *segment || ends)
                    && total + bytes <= MOST_BYTES
                    && sizes.len() < 64
                    && (nth > 0 || ends)
            });
            match sends.last_mut() {
                Some((_, sizes)) if fits => sizes.push(bytes),
                _ => sends.push((bytes, vec![bytes])),
            }
        }
    }
    sends
}

/// One side: a socket that receives and one that sends, as the provider has them.
struct Side {
    recv: std::net::UdpSocket,
    send: std::net::UdpSocket,
    address: SocketAddrV4,
    buffer: Vec<u8>,
}

fn set(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let at = std::ptr::from_ref(&value).cast();
    // SAFETY: the value is an int, as its length says, and is only read.
    let failed =
        unsafe { libc::setsockopt(fd, level, name, at, size_of::<libc::c_int>() as libc::socklen_t) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Side {
    fn new(host: u8) -> io::Result<Side> {
        // An address of this process, so that two runs do not meet.
        let [.., c, d] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, 128 | host, c, d.max(1));
        let recv = std::net::UdpSocket::bind((ip, 0))?;
        let send = std::net::UdpSocket::bind((ip, 0))?;
        set(recv.as_raw_fd(), libc::SOL_UDP, UDP_GRO, 1)?;
        for (socket, name) in [(&recv, libc::SO_RCVBUF), (&send, libc::SO_SNDBUF)] {
            socket.set_nonblocking(true)?;
            set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set(socket.as_raw_fd(), libc::SOL_SOCKET, name, 4 << 20)?;
        }
        let std::net::SocketAddr::V4(address) = recv.local_addr()? else { unreachable!("bound to IPv4") };
        Ok(Side { recv, send, address, buffer: vec![0; 1 << 16] })
    }

    /// One segmented send: a short piece of header and a longer one of data a packet, as trains have them.
    fn send(&self, to: SocketAddrV4, data: &[u8], segment: usize, sizes: &[usize]) -> io::Result<()> {
        let mut pieces: [libc::iovec; 128] =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 128];
        let mut used = 0;
        let mut piece = |offset: usize, bytes: usize| {
            let iov_base = data[offset..offset + bytes].as_ptr().cast_mut().cast();
            pieces[used] = libc::iovec { iov_base, iov_len: bytes };
            used += 1;
        };
        let small: usize = sizes.iter().filter(|bytes| **bytes < 4096).sum();
        let mut offset = 0;
        if small == sizes.iter().sum::<usize>() {
            piece(0, small);
        } else {
            for &bytes in sizes {
                let header = bytes.saturating_sub(4096);
                if header > 0 {
                    piece(offset, header);
                }
                piece(offset + header, bytes - header);
                offset += bytes;
            }
        }
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: to.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
            sin_zero: [0; 8],
        };
        let mut control = [0u64; 4];
        // SAFETY: all zeros is a valid msghdr.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_name = std::ptr::from_ref(&name).cast_mut().cast();
        msg.msg_namelen = size_of_val(&name) as libc::socklen_t;
        msg.msg_iov = pieces.as_mut_ptr();
        msg.msg_iovlen = used as _;
        if sizes.len() > 1 {
            msg.msg_control = control.as_mut_ptr().cast();
            // SAFETY: the control buffer is aligned and longer than one message with a u16.
            unsafe {
                msg.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const msg);
                (*header).cmsg_level = libc::SOL_UDP;
                (*header).cmsg_type = UDP_SEGMENT;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment as u16);
            }
        }
        // SAFETY: name, control and the pieces of `data` are live, and the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.send.as_raw_fd(), &raw const msg, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives `bytes`, in merged datagrams.
    fn receive(&mut self, bytes: usize) -> io::Result<()> {
        let mut got = 0;
        while got < bytes {
            got += self.recv.recv_from(&mut self.buffer)?.0;
        }
        Ok(())
    }
}

fn middle(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / 1000.0
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let json = words.iter().any(|word| word == "--json");
    let wanted = |case: &Case| words.iter().all(|word| word == "--json" || word == case.name);
    let (mut initiator, mut target) = (Side::new(1)?, Side::new(2)?);
    let data = vec![0x5a; 1 << 17];
    let prefix = Prefix::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into(), 50_000, 4791)
        .expect("one family");
    if !json {
        println!(
            "the kernel's part of an I/O over UDP on loopback, and the CRC of its data, in microseconds:"
        );
    }
    for case in cases().into_iter().filter(wanted) {
        let steps: Vec<_> = case.steps.iter().map(|(ours, runs)| (*ours, sends(runs))).collect();
        let (mut target_times, mut all_times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (mut of_target, mut of_all) = (Duration::ZERO, Duration::ZERO);
            for (by_target, sends) in &steps {
                let (from, to) =
                    if *by_target { (&target, &mut initiator) } else { (&initiator, &mut target) };
                for (segment, sizes) in sends {
                    let started = Instant::now();
                    from.send(to.address, &data, *segment, sizes)?;
                    let sent = started.elapsed();
                    to.receive(sizes.iter().sum())?;
                    let received = started.elapsed() - sent;
                    of_target += if *by_target { sent } else { received };
                    of_all += sent + received;
                }
            }
            target_times.push(of_target / case.qd as u32);
            all_times.push(of_all);
        }
        let crc_times = (0..ROUNDS).map(|_| {
            let started = Instant::now();
            std::hint::black_box(prefix.icrc(std::hint::black_box(&data[..WRITE - 4]), 0));
            started.elapsed()
        });
        let crc = middle(crc_times.collect()) * case.packets_an_io as f64;
        let (of_target, round) = (middle(target_times), middle(all_times));
        match json {
            true => println!(
                r#"{{"case": "{}", "target_us": {of_target:.3}, "round_us": {round:.3}, "crc_us": {crc:.3}}}"#,
                case.name
            ),
            false => println!(
                "  {:18}  target {of_target:6.2}  CRC {crc:5.2}  both sides, all of a round {round:8.2}",
                case.name
            ),
        }
    }
    Ok(())
}
