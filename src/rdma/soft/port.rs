//! Opening the UDP sockets of an address: one to receive for each shard, and a few to send.
//!
//! The first receiving socket binds without SO_REUSEPORT, so that somebody else on the port
//! (rdma_rxe, another srpoll) is an error and not a rival for packets; then it sets the option
//! and the others join, in shard order, since the steering program answers with the number of a
//! socket in that order. Then the program is attached.
//!
//! This works without any capability. What a capability would give (a receive buffer beyond
//! net.core.rmem_max) is missed with a log line.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use libc::c_int;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::fault::Fault;
use super::selftest;
use super::socket::{self, UDP_GRO, UDP_NO_CHECK6_RX, UDP_NO_CHECK6_TX};
use super::steer::is_link_local;
use crate::rdma::verbs::PathMtu;

/// The UDP port of RoCEv2 (IANA).
pub const ROCE_PORT: u16 = 4791;
/// Where source ports begin, as rxe has it.
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// How many sockets a shard sends from on each address: one for each of the peer's shards, told
/// by the low bits of the destination QPN, so that no merged datagram holds packets for two.
pub(super) const SENDERS: usize = 4;

/// How to open a port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// How many shards take part.
    pub shards: usize,
    /// The interface of a link-local address; 0 looks for the one that has the address.
    pub scope_id: u32,
    /// Receive buffer to ask for, in bytes, for each shard.
    pub recv_buffer_bytes: usize,
    /// Send buffer to ask for, in bytes, for each sending socket.
    pub send_buffer_bytes: usize,
    /// One packet a send and a receive, without UDP checksums, as rdma_rxe has them: for measuring what such
    /// a peer costs the other side.
    pub singly: bool,
}

impl PortConfig {
    /// The usual buffers.
    pub const fn new(shards: usize) -> PortConfig {
        PortConfig {
            shards,
            scope_id: 0,
            // The kernel gives twice this, which holds 1,000 packets of 4 KiB with its overhead.
            recv_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            singly: false,
        }
    }

    /// With the receive buffer that a fault wants.
    #[must_use]
    pub fn with(self, fault: Option<Fault>) -> PortConfig {
        match fault.map_or(0, |fault| fault.recv_buffer_bytes as usize) {
            0 => self,
            bytes => PortConfig { recv_buffer_bytes: bytes.min(self.recv_buffer_bytes), ..self },
        }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The address names no single interface.
    #[error("{0} cannot be served: RoCE needs one address, not a wildcard, multicast or broadcast one")]
    NotUnicast(IpAddr),
    /// A link-local address that no interface has, or several.
    #[error("{0} is link-local, and not an address of exactly one interface")]
    NoScope(IpAddr),
    /// Shard 0 has not opened it for the others.
    #[error("UDP port {ROCE_PORT} of {0} has not been opened on the first shard")]
    NotOpened(IpAddr),
    /// Somebody else has the port.
    #[error(
        "UDP port {ROCE_PORT} of {0} is in use: rdma_rxe is loaded in this network namespace, or another \
         srpoll serves this address"
    )]
    InUse(IpAddr),
    /// The address is not one of this machine.
    #[error("{0} is not an address of this machine")]
    NotLocal(IpAddr),
    /// All source ports are taken.
    #[error("no free UDP source port from {FIRST_SOURCE_PORT} up on {0}")]
    NoSourcePort(IpAddr),
    /// The kernel said no to something else.
    #[error("cannot open UDP port {ROCE_PORT} of {address}: {what}: {source}")]
    System {
        /// Which address.
        address: IpAddr,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What segmented sends on a port can do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Segmenting {
    /// Most packets of one send; 1 is no segmenting.
    pub max_segments: usize,
}

/// The sockets of one shard on one address. A control thread opens them and hands them over.
#[derive(Debug)]
pub struct PortSocket {
    pub(super) address: IpAddr,
    pub(super) scope_id: u32,
    pub(super) recv: Socket,
    /// With their source ports.
    pub(super) senders: [(Socket, u16); SENDERS],
    pub(super) recv_buffer_bytes: usize,
    pub(super) segmenting: Segmenting,
}

impl PortSocket {
    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The receive buffer that the kernel gave, in bytes as it counts them: with its own
    /// overhead, which is about as much as the data.
    pub fn recv_buffer_bytes(&self) -> usize {
        self.recv_buffer_bytes
    }

    /// Whether packets that name this address of ours are its own. A link-local one may go without
    /// its interface.
    pub(super) fn is_for(&self, address: IpAddr, scope_id: u32) -> bool {
        self.address == address && (scope_id == 0 || self.scope_id == 0 || self.scope_id == scope_id)
    }

    pub(super) fn source_ports(&self) -> [u16; SENDERS] {
        std::array::from_fn(|sender| self.senders[sender].1)
    }

    /// What segmented sends can do here.
    pub fn segmenting(&self) -> Segmenting {
        self.segmenting
    }
}

/// Opens the sockets of `address` for all shards; they come in shard order.
pub fn open_port(address: IpAddr, config: &PortConfig) -> Result<Vec<PortSocket>, PortError> {
    let address = address.to_canonical();
    check(address)?;
    let config = &PortConfig { scope_id: scope(address, config.scope_id)?, ..*config };
    let opener = Opener { address, config };
    let receivers = opener.open_receivers()?;
    let segmenting = opener.segmenting();
    let mut next_port = FIRST_SOURCE_PORT;
    let mut ports = Vec::with_capacity(receivers.len());
    for recv in receivers {
        let mut open = || opener.open_sender(&mut next_port);
        let senders = [open()?, open()?, open()?, open()?];
        let recv_buffer_bytes =
            recv.recv_buffer_size().map_err(|source| opener.failed("SO_RCVBUF", source))?;
        ports.push(PortSocket {
            address,
            scope_id: config.scope_id,
            recv,
            senders,
            recv_buffer_bytes,
            segmenting,
        });
    }
    opener.log(&ports);
    Ok(ports)
}

/// The largest path MTU that fits the way from `local` to `remote`, by rxe's rule: the largest
/// that is no more than the link's less 96 bytes of headers.
pub fn path_mtu(local: IpAddr, remote: IpAddr, scope_id: u32) -> io::Result<PathMtu> {
    let (local, remote) = (local.to_canonical(), remote.to_canonical());
    let scope_id = scope(local, scope_id).map_err(io::Error::other)?;
    let probe = Socket::new(Domain::for_address(socket_address(remote, 0, 0)), Type::DGRAM, None)?;
    probe.bind(&SockAddr::from(socket_address(local, 0, scope_id)))?;
    // Connecting a datagram socket sends nothing; it makes the kernel look up the route.
    probe.connect(&SockAddr::from(socket_address(remote, ROCE_PORT, scope_id)))?;
    let (level, name) = match remote {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let link_bytes = usize::try_from(socket::get_int(probe.as_fd(), level, name)?).unwrap_or(0);
    Ok(mtu_for_link(link_bytes))
}

fn mtu_for_link(link_bytes: usize) -> PathMtu {
    (1..=5)
        .rev()
        .filter_map(PathMtu::from_code)
        .find(|mtu| mtu.bytes() + 96 <= link_bytes)
        .unwrap_or(PathMtu::B256)
}

pub(super) fn socket_address(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(v4) => SocketAddr::from((v4, port)),
        IpAddr::V6(v6) => std::net::SocketAddrV6::new(v6, port, 0, scope_id).into(),
    }
}

fn check(address: IpAddr) -> Result<(), PortError> {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(PortError::NotUnicast(address));
    }
    Ok(())
}

/// The interface that packets of an address go by: of a link-local one; of others it does not
/// matter, which is 0.
fn scope(address: IpAddr, scope_id: u32) -> Result<u32, PortError> {
    match address {
        IpAddr::V6(v6) if is_link_local(address) && scope_id == 0 => {
            let list = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
            only_interface(&list, v6).ok_or(PortError::NoScope(address))
        }
        _ if is_link_local(address) => Ok(scope_id),
        _ => Ok(0),
    }
}

/// The index of the interface that has an address, by the kernel's list (proc_pid_net(5)): 32 hex
/// digits of the address, then the index in hex.
fn only_interface(list: &str, address: Ipv6Addr) -> Option<u32> {
    let digits = format!("{:032x}", u128::from(address));
    let mut found = list.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == digits).then(|| u32::from_str_radix(words.next()?, 16).ok())?
    });
    found.next().filter(|_| found.next().is_none())
}

/// A UDP socket as all of ours are: not blocking, never fragmenting, so that on IPv4 the kernel
/// takes 0 for the identification.
pub(super) fn new_socket(address: IpAddr) -> io::Result<Socket> {
    let (domain, level, name) = match address {
        IpAddr::V4(_) => (Domain::IPV4, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        IpAddr::V6(_) => (Domain::IPV6, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // IP_PMTUDISC_DO and IPV6_PMTUDISC_DO are both 2.
    socket::set_int(socket.as_fd(), level, name, libc::IP_PMTUDISC_DO)?;
    Ok(socket)
}

struct Opener<'a> {
    address: IpAddr,
    config: &'a PortConfig,
}

impl Opener<'_> {
    fn failed(&self, what: &'static str, source: io::Error) -> PortError {
        PortError::System { address: self.address, what, source }
    }

    fn segmenting(&self) -> Segmenting {
        let none = Segmenting { max_segments: 1 };
        if self.config.singly {
            return none;
        }
        selftest::run(self.address, self.config.scope_id).unwrap_or_else(|error| {
            tracing::warn!(address = %self.address, %error, "segmented sends are off: their self test failed");
            none
        })
    }

    fn open_receivers(&self) -> Result<Vec<Socket>, PortError> {
        let shards = self.config.shards.max(1);
        let mut receivers = Vec::with_capacity(shards);
        let here = SockAddr::from(socket_address(self.address, ROCE_PORT, self.config.scope_id));
        let reuse = "SO_REUSEPORT";
        for shard in 0..shards {
            let socket = self.new_receiver()?;
            if shard > 0 {
                socket.set_reuse_port(true).map_err(|error| self.failed(reuse, error))?;
            }
            socket.bind(&here).map_err(|error| self.bind_failed(error))?;
            if shard == 0 && shards > 1 {
                socket.set_reuse_port(true).map_err(|error| self.failed(reuse, error))?;
            }
            receivers.push(socket);
        }
        if shards > 1 {
            let program = steering_program(crate::rdma::shard_bits(shards));
            socket::attach_program(receivers[0].as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, &program)
                .map_err(|error| self.failed("SO_ATTACH_REUSEPORT_CBPF", error))?;
        }
        Ok(receivers)
    }

    fn bind_failed(&self, error: io::Error) -> PortError {
        match error.kind() {
            io::ErrorKind::AddrInUse => PortError::InUse(self.address),
            io::ErrorKind::AddrNotAvailable => PortError::NotLocal(self.address),
            _ => self.failed("bind", error),
        }
    }

    fn new_receiver(&self) -> Result<Socket, PortError> {
        let socket = new_socket(self.address).map_err(|error| self.failed("socket", error))?;
        let fd = socket.as_fd();
        // Without merging every packet costs a system call; it still works.
        let merging = c_int::from(!self.config.singly);
        if let Err(error) = socket::set_int(fd, libc::SOL_UDP, UDP_GRO, merging) {
            tracing::warn!(address = %self.address, %error, "UDP_GRO is not to be had, receiving will be slow");
        }
        if self.address.is_ipv6() {
            // rxe sends without a UDP checksum, which IPv6 drops by default.
            socket::set_int(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)
                .map_err(|error| self.failed("UDP_NO_CHECK6_RX", error))?;
        }
        let wanted = self.config.recv_buffer_bytes;
        force_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, wanted)
            .map_err(|error| self.failed("SO_RCVBUF", error))?;
        Ok(socket)
    }

    /// A socket that only sends, on the next free source port.
    fn open_sender(&self, next_port: &mut u16) -> Result<(Socket, u16), PortError> {
        let socket = new_socket(self.address).map_err(|error| self.failed("socket", error))?;
        // What somebody sends to it is nobody's business and must not fill a buffer: drop all.
        let drop_all = [libc::sock_filter { code: BPF_RET_K, jt: 0, jf: 0, k: 0 }];
        socket::attach_program(socket.as_fd(), libc::SO_ATTACH_FILTER, &drop_all)
            .map_err(|error| self.failed("SO_ATTACH_FILTER", error))?;
        force_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, self.config.send_buffer_bytes)
            .map_err(|error| self.failed("SO_SNDBUF", error))?;
        if self.config.singly {
            self.leave_out_checksums(&socket)?;
        }
        loop {
            let port = *next_port;
            if port < FIRST_SOURCE_PORT {
                return Err(PortError::NoSourcePort(self.address));
            }
            // Wraps below the first when all have been tried.
            *next_port = port.wrapping_add(1);
            match socket.bind(&SockAddr::from(socket_address(self.address, port, self.config.scope_id))) {
                Ok(()) => return Ok((socket, port)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(self.bind_failed(error)),
            }
        }
    }

    fn leave_out_checksums(&self, socket: &Socket) -> Result<(), PortError> {
        let (what, level, name) = match self.address {
            IpAddr::V4(_) => ("SO_NO_CHECK", libc::SOL_SOCKET, libc::SO_NO_CHECK),
            IpAddr::V6(_) => ("UDP_NO_CHECK6_TX", libc::SOL_UDP, UDP_NO_CHECK6_TX),
        };
        socket::set_int(socket.as_fd(), level, name, 1).map_err(|error| self.failed(what, error))
    }

    fn log(&self, ports: &[PortSocket]) {
        let Some(first) = ports.first() else { return };
        let (wanted, given) = (self.config.recv_buffer_bytes, first.recv_buffer_bytes);
        // The kernel doubles what is asked for, to have room for its own overhead.
        if given < 2 * wanted {
            tracing::warn!(
                address = %self.address,
                given_bytes = given / 2,
                wanted_bytes = wanted,
                "the receive buffer is small, fewer READs will be in flight; `sysctl -w net.core.rmem_max={wanted}` \
                 or CAP_NET_ADMIN gives more"
            );
        }
        tracing::info!(
            address = %self.address,
            shards = ports.len(),
            recv_buffer_bytes = given,
            max_segments = first.segmenting.max_segments,
            "UDP port {ROCE_PORT} is open"
        );
    }
}

/// Asks for a buffer beyond the system's limit, and takes what the limit gives if that fails.
fn force_buffer(socket: &Socket, force: i32, plain: i32, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    socket::set_int(socket.as_fd(), libc::SOL_SOCKET, force, bytes)
        .or_else(|_| socket::set_int(socket.as_fd(), libc::SOL_SOCKET, plain, bytes))
}

/// Codes of classic BPF instructions (linux/bpf_common.h).
const BPF_LD_W_ABS: u16 = 0x20;
const BPF_JEQ_K: u16 = 0x15;
const BPF_AND_K: u16 = 0x54;
const BPF_RET_K: u16 = 0x06;
const BPF_RET_A: u16 = 0x16;

/// A program that gives the shard of a packet, as `steer::shard_of` does. It sees the UDP
/// payload; too short ones end it, which means shard 0.
fn steering_program(shard_bits: u32) -> [libc::sock_filter; 6] {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        op(BPF_LD_W_ABS, 0, 0, 4), // congestion byte and destination QPN
        op(BPF_AND_K, 0, 0, 0x00ff_ffff),
        op(BPF_JEQ_K, 2, 0, 1), // the GSI
        op(BPF_AND_K, 0, 0, (1 << shard_bits) - 1),
        op(BPF_RET_A, 0, 0, 0),
        op(BPF_RET_K, 0, 0, 0),
    ]
}

impl fmt::Display for Segmenting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max_segments {
            0 | 1 => f.write_str("no segmented sends"),
            most => write!(f, "segmented sends of {most} packets"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steering_program_says_what_the_code_says() {
        // What the six instructions do, done by hand for one word.
        let run = |bits: u32, word: u32| {
            let program = steering_program(bits);
            assert_eq!((program[0].k, program[1].k, program[2].k), (4, 0x00ff_ffff, 1));
            let qpn = word & program[1].k;
            if qpn == program[2].k { program[5].k } else { qpn & program[3].k }
        };
        for (bits, word) in [(1, 0x4000_0001), (1, 0x12_3457), (2, 0xff00_0002), (3, 0x00_ffff)] {
            let qpn = crate::wire::num::Qpn::new(word);
            assert_eq!(run(bits, word) as usize, crate::rdma::soft::steer::shard_of(qpn, bits));
        }
    }

    #[test]
    fn rxe_rule_of_path_mtu() {
        let mtu = |link| mtu_for_link(link).bytes();
        assert_eq!((mtu(1500), mtu(4191), mtu(4192), mtu(9000), mtu(65536)), (1024, 2048, 4096, 4096, 4096));
        assert_eq!(mtu(300), 256);
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(path_mtu(here, here, 0).unwrap(), PathMtu::B4096);
    }

    #[test]
    fn addresses_that_name_no_one_are_refused() {
        for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"] {
            let refused = open_port(address.parse().unwrap(), &PortConfig::new(1)).unwrap_err();
            assert!(matches!(refused, PortError::NotUnicast(_)), "{refused}");
        }
        let foreign = open_port("192.0.2.77".parse().unwrap(), &PortConfig::new(1)).unwrap_err();
        assert_eq!(foreign.to_string(), "192.0.2.77 is not an address of this machine");
    }

    #[test]
    fn the_interface_of_a_link_local_address_is_looked_up() {
        let list = "fe800000000000000000000000000001 0a 40 20 80     eth0\n\
                    00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe800000000000000000000000000002 03 40 20 80     eth1\n\
                    fe800000000000000000000000000002 04 40 20 80     eth2\n";
        assert_eq!(only_interface(list, "fe80::1".parse().unwrap()), Some(10));
        assert_eq!(only_interface(list, "fe80::2".parse().unwrap()), None);
        assert_eq!(only_interface(list, "fe80::3".parse().unwrap()), None);
    }
}
