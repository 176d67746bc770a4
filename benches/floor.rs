//! What the kernel alone takes for the datagrams of our commands: `cargo bench --bench floor`.
//!
//! Two UDP sockets on loopback exchange, on two threads with a core each, trains of just the sizes that an
//! initiator and a target of ours exchange over UDP, each in its segmented send and its merged receive, with
//! nothing between them: no packet is looked into, no ICRC computed. So this is the least that the provider over
//! UDP can cost here, and what is above it is ours. The CRC of the data, which both sides cannot go without, is
//! shown beside it. On two cores, since the kernel's memory for packets is then where the other core has it last
//! read, which on one costs nothing and here most of a copy.
//!
//! With a case after `--` only that is measured; with `--json` it prints an object a case on a line, which
//! `scripts/bench` puts beside the systems. `--cores A,B` says where target and initiator run; else that is the first
//! two cores that there are. `--distance` measures nothing but the time of a cache line between the two.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use reactors::affinity;
use srpoll::wire::icrc::Prefix;

#[path = "floor/distance.rs"]
mod distance;

/// Rounds of a case; the middle one counts.
const ROUNDS: usize = 3000;
/// Most bytes of one segmented send.
const MOST_BYTES: usize = 65_487;
/// Who has waited so long waits for a datagram that was dropped.
const LOST: Duration = Duration::from_secs(2);
/// Option names of level SOL_UDP (linux/udp.h).
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// Bytes on the wire behind the UDP header: BTH 12, RETH 16, AETH 4, ICRC 4.
const COMMAND: usize = 12 + 64 + 4;
const RESPONSE: usize = 12 + 36 + 4;
const WRITE: usize = 12 + 16 + BLOCK + 4;
const READ_REQUEST: usize = 12 + 16 + 4;
const READ_RESPONSE: usize = 12 + 4 + BLOCK + 4;
/// Payload of a packet that has data, and the bytes after it.
const BLOCK: usize = 4096;
const ICRC: usize = 4;

/// Packets of one size that follow each other.
type Run = (usize, usize);
/// The packets of one segmented send: the length of all but the last, and of each.
type Train = (usize, Vec<usize>);

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
fn sends(runs: &[Run]) -> Vec<Train> {
    let mut sends: Vec<Train> = Vec::new();
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

/// A block of data, as the memory of a shard has them: each I/O's is its own.
#[repr(align(4096))]
#[derive(Clone)]
struct Block([u8; BLOCK]);

/// One side: a socket that receives and one that sends, as the provider has them, and its memory.
struct Side {
    recv: std::net::UdpSocket,
    send: std::net::UdpSocket,
    address: SocketAddrV4,
    buffer: Vec<u8>,
    /// Headers and ends of packets.
    scratch: Vec<u8>,
    blocks: Vec<Block>,
}

fn set(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let at = std::ptr::from_ref(&value).cast();
    // SAFETY: the value is an int, as its length says, and is only read.
    let failed =
        unsafe { libc::setsockopt(fd, level, name, at, size_of::<libc::c_int>() as libc::socklen_t) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for what a round has on the way, beyond the system's limit if we may.
fn set_buffer(fd: RawFd, by_force: libc::c_int, by_leave: libc::c_int) -> io::Result<()> {
    let bytes = 4 << 20;
    set(fd, libc::SOL_SOCKET, by_force, bytes).or_else(|_| set(fd, libc::SOL_SOCKET, by_leave, bytes))
}

impl Side {
    fn new(host: u8, blocks: usize) -> io::Result<Side> {
        // An address of this process, so that two runs do not meet.
        let [.., c, d] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, 128 | host, c, d.max(1));
        let recv = std::net::UdpSocket::bind((ip, 0))?;
        let send = std::net::UdpSocket::bind((ip, 0))?;
        set(recv.as_raw_fd(), libc::SOL_UDP, UDP_GRO, 1)?;
        for socket in [&recv, &send] {
            socket.set_nonblocking(true)?;
            set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        }
        set_buffer(recv.as_raw_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        set_buffer(send.as_raw_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
        let std::net::SocketAddr::V4(address) = recv.local_addr()? else { unreachable!("bound to IPv4") };
        let blocks = vec![Block([0x5a; BLOCK]); blocks];
        Ok(Side { recv, send, address, buffer: vec![0; 1 << 16], scratch: vec![0x5a; 1 << 13], blocks })
    }

    /// What the kernel gathers for those packets: headers and ends from the scratch bytes, between them the next
    /// blocks of data.
    fn pieces(&self, sizes: &[usize], blocks: &mut std::slice::Iter<Block>) -> Vec<libc::iovec> {
        let iovec =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut pieces = Vec::with_capacity(2 * sizes.len() + 1);
        let (mut run, mut used) = (0, 0);
        for &bytes in sizes {
            if bytes < BLOCK {
                used += bytes;
                continue;
            }
            used += bytes - BLOCK - ICRC;
            pieces.push(iovec(&self.scratch[run..used]));
            pieces.push(iovec(&blocks.next().expect("a block a packet").0));
            run = used;
            used += ICRC;
        }
        pieces.push(iovec(&self.scratch[run..used]));
        pieces
    }

    /// One segmented send.
    fn send(
        &self,
        to: SocketAddrV4,
        segment: usize,
        pieces: &[libc::iovec],
        packets: usize,
    ) -> io::Result<()> {
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
        msg.msg_iov = pieces.as_ptr().cast_mut();
        msg.msg_iovlen = pieces.len() as _;
        if packets > 1 {
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
        // SAFETY: name, control and the pieces of scratch and blocks are live, and the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.send.as_raw_fd(), &raw const msg, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// All of a step's sends; the time that they took.
    fn send_all(&self, to: SocketAddrV4, trains: &[Train]) -> io::Result<Duration> {
        let (mut took, mut blocks) = (Duration::ZERO, self.blocks.iter());
        for (segment, sizes) in trains {
            let pieces = self.pieces(sizes, &mut blocks);
            let started = Instant::now();
            self.send(to, *segment, &pieces, sizes.len())?;
            took += started.elapsed();
        }
        Ok(took)
    }

    /// Receives `bytes`, in merged datagrams; the time of the looks that found some. Others are the wait for the
    /// other side, and nobody's I/O.
    fn receive(&mut self, bytes: usize) -> io::Result<Duration> {
        let (mut got, mut took, mut last) = (0, Duration::ZERO, Instant::now());
        while got < bytes {
            let started = Instant::now();
            match self.recv.recv_from(&mut self.buffer) {
                Ok((more, _)) => {
                    got += more;
                    last = Instant::now();
                    took += last - started;
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if started - last > LOST => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        }
        Ok(took)
    }

    /// This side's part of a round; the time of its sends and receives.
    fn round(
        &mut self,
        peer: SocketAddrV4,
        is_target: bool,
        steps: &[(bool, Vec<Train>)],
    ) -> io::Result<Duration> {
        let mut took = Duration::ZERO;
        for (by_target, trains) in steps {
            took += match *by_target == is_target {
                true => self.send_all(peer, trains)?,
                false => self.receive(trains.iter().flat_map(|(_, sizes)| sizes).sum())?,
            };
        }
        Ok(took)
    }
}

/// What the target's calls take in a round, and how long the initiator has to wait for one, in the middle.
fn exchange(case: &Case, [target_core, initiator_core]: [usize; 2]) -> io::Result<(f64, f64)> {
    let steps: Vec<_> = case.steps.iter().map(|(ours, runs)| (*ours, sends(runs))).collect();
    let blocks = case.qd * case.packets_an_io;
    let (mut initiator, mut target) = (Side::new(1, blocks)?, Side::new(2, blocks)?);
    let (to_initiator, to_target) = (initiator.address, target.address);
    thread::scope(|scope| {
        let target = scope.spawn(|| -> io::Result<_> {
            affinity::pin(target_core).map_err(io::Error::other)?;
            (0..ROUNDS).map(|_| target.round(to_initiator, true, &steps)).collect()
        });
        affinity::pin(initiator_core).map_err(io::Error::other)?;
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let started = Instant::now();
            initiator.round(to_target, false, &steps)?;
            rounds.push(started.elapsed());
        }
        Ok((middle(target.join().expect("the target's thread")?), middle(rounds)))
    })
}

/// The CRC of the data of a packet, in the middle.
fn crc() -> f64 {
    let prefix = Prefix::new(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into(), 50_000, 4791)
        .expect("one family");
    let data = vec![0x5a; WRITE - ICRC];
    let times = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        std::hint::black_box(prefix.icrc(std::hint::black_box(&data), 0));
        started.elapsed()
    });
    middle(times.collect())
}

fn middle(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / 1000.0
}

/// What stands after `--`.
struct Options {
    json: bool,
    distance: bool,
    /// Target's and initiator's.
    cores: [usize; 2],
    case: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { json: false, distance: false, cores: [0; 2], case: None };
    let mut cores = affinity::available().to_vec();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--bench" => {}
            "--json" => options.json = true,
            "--distance" => options.distance = true,
            "--cores" => {
                let named = words.next().ok_or("--cores takes A,B")?;
                let named: Result<_, _> = named.split(',').map(str::parse).collect();
                cores = named.map_err(|_| "--cores takes two numbers, A,B")?;
            }
            _ => options.case = Some(word),
        }
    }
    cores.truncate(2);
    options.cores = cores.try_into().map_err(|_| "two cores are needed, one a side")?;
    affinity::check(&options.cores).map_err(|error| error.to_string())?;
    Ok(options)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    if options.distance {
        let ns = distance::measure(options.cores)?;
        match options.json {
            true => println!(r#"{{"distance_ns": {ns:.1}}}"#),
            false => println!("a cache line from one core to the other: {ns:.0} ns"),
        }
        return Ok(());
    }
    if !options.json {
        println!(
            "the kernel's part of an I/O over UDP on loopback, and the CRC of its data, in microseconds:"
        );
    }
    let wanted = |case: &Case| options.case.as_ref().is_none_or(|name| name == case.name);
    for case in cases().into_iter().filter(wanted) {
        let (of_target, round) = exchange(&case, options.cores)?;
        let of_target = of_target / case.qd as f64;
        let crc = crc() * case.packets_an_io as f64;
        match options.json {
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
