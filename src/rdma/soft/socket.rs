//! The system calls: segmented sends, merged receives, socket options that nobody else wraps.

#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void};

/// Option names of level SOL_UDP (linux/udp.h).
pub(super) const UDP_SEGMENT: c_int = 103;
pub(super) const UDP_GRO: c_int = 104;
pub(super) const UDP_NO_CHECK6_TX: c_int = 101;
pub(super) const UDP_NO_CHECK6_RX: c_int = 102;

/// Most bytes of the control messages that we ask for: one `int`, or a time stamp.
const CONTROL_BYTES: usize = 256;

/// A control buffer, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// A socket address as the kernel takes it.
#[derive(Copy, Clone)]
pub(super) struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    pub(super) fn new(ip: IpAddr, port: u16, scope_id: u32) -> Address {
        // SAFETY: all zeros is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let at = ptr::from_mut(&mut storage);
        let len = match ip {
            IpAddr::V4(v4) => {
                let address = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage is large enough and aligned for every family.
                unsafe { at.cast::<libc::sockaddr_in>().write(address) };
                mem::size_of::<libc::sockaddr_in>()
            }
            IpAddr::V6(v6) => {
                let address = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.octets() },
                    sin6_scope_id: scope_id,
                };
                // SAFETY: as above.
                unsafe { at.cast::<libc::sockaddr_in6>().write(address) };
                mem::size_of::<libc::sockaddr_in6>()
            }
        };
        Address { storage, len: len as libc::socklen_t }
    }
}

/// Who sent a datagram: address, port, scope.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
    pub(super) scope_id: u32,
}

/// A datagram, perhaps several that the kernel merged.
#[derive(Copy, Clone, Debug)]
pub(super) struct Received {
    pub(super) len_bytes: usize,
    /// Length of each of the merged datagrams but the last, which may be shorter.
    pub(super) segment_bytes: usize,
    pub(super) source: Source,
    /// It was longer than the buffer.
    pub(super) truncated: bool,
}

/// Receives what there is; `WouldBlock` if there is nothing.
pub(super) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut control = MaybeUninit::<Control>::uninit();
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = storage.as_mut_ptr().cast();
    msg.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: all pointers of `msg` lead to live buffers of the lengths named beside them.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, libc::MSG_DONTWAIT) };
    let len_bytes = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let segment_bytes = merged_segment(&msg).filter(|&bytes| bytes > 0).unwrap_or(len_bytes);
    let family_bytes = mem::size_of::<libc::sa_family_t>();
    if (msg.msg_namelen as usize) < family_bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "datagram without a source"));
    }
    // SAFETY: the kernel wrote an address of `msg_namelen` bytes, at least the family.
    let source = unsafe { read_source(storage.as_ptr()) }?;
    Ok(Received { len_bytes, segment_bytes, source, truncated: msg.msg_flags & libc::MSG_TRUNC != 0 })
}

/// The segment length of a merged datagram (UDP_GRO).
fn merged_segment(msg: &libc::msghdr) -> Option<usize> {
    // SAFETY: `msg` was filled in by recvmsg, so its control part is a list of messages.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !at.is_null() {
        // SAFETY: the macros give null or a header that lies whole within the control part; the
        // value is read unaligned, and the kernel wrote an int there.
        unsafe {
            if (*at).cmsg_level == libc::SOL_UDP && (*at).cmsg_type == UDP_GRO {
                let value = ptr::read_unaligned(libc::CMSG_DATA(at).cast::<c_int>());
                return usize::try_from(value).ok();
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
    None
}

/// # Safety
/// `storage` holds an address that the kernel wrote.
unsafe fn read_source(storage: *const libc::sockaddr_storage) -> io::Result<Source> {
    // SAFETY: the family is there in every address, and what it says is how long the address is.
    unsafe {
        match c_int::from((*storage).ss_family) {
            libc::AF_INET => {
                let from = storage.cast::<libc::sockaddr_in>().read();
                let ip = Ipv4Addr::from(from.sin_addr.s_addr.to_ne_bytes());
                Ok(Source { ip: ip.into(), port: u16::from_be(from.sin_port), scope_id: 0 })
            }
            libc::AF_INET6 => {
                let from = storage.cast::<libc::sockaddr_in6>().read();
                let ip = Ipv6Addr::from(from.sin6_addr.s6_addr);
                let scope_id = from.sin6_scope_id;
                Ok(Source { ip: ip.into(), port: u16::from_be(from.sin6_port), scope_id })
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "datagram of an unknown family")),
        }
    }
}

/// Sends `iovecs` as one datagram, or cut into datagrams of `segment_bytes`.
///
/// # Safety
/// Every iovec must lead to readable memory of its length.
pub(super) unsafe fn send(
    socket: BorrowedFd<'_>,
    to: &Address,
    iovecs: &[libc::iovec],
    segment_bytes: Option<u16>,
) -> io::Result<()> {
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = ptr::from_ref(&to.storage).cast_mut().cast();
    msg.msg_namelen = to.len;
    msg.msg_iov = iovecs.as_ptr().cast_mut();
    msg.msg_iovlen = iovecs.len() as _;
    let mut control = MaybeUninit::<Control>::uninit();
    if let Some(segment) = segment_bytes {
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: pure arithmetic; the buffer is larger than one message with a u16.
        msg.msg_controllen = unsafe { libc::CMSG_SPACE(mem::size_of::<u16>() as u32) } as _;
        // SAFETY: the control buffer is aligned and has room for this message.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const msg);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(mem::size_of::<u16>() as u32) as _;
            ptr::write_unaligned(libc::CMSG_DATA(header).cast::<u16>(), segment);
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: name and control are live above, the iovecs by contract; the kernel only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const msg, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends bytes as one datagram, or cut into datagrams of `segment_bytes`.
pub(super) fn send_bytes(
    socket: BorrowedFd<'_>,
    to: &Address,
    bytes: &[u8],
    segment_bytes: Option<u16>,
) -> io::Result<()> {
    let iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the iovec is the slice; the kernel only reads it.
    unsafe { send(socket, to, &[iov], segment_bytes) }
}

/// Takes a packet off the error queue: one that we sent, with all its headers, as SO_TIMESTAMPING
/// gives it back. `WouldBlock` if none is there.
pub(super) fn receive_own(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = MaybeUninit::<Control>::uninit();
    // SAFETY: all zeros is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    // SAFETY: all pointers of `msg` lead to live buffers of the lengths named beside them.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut msg, flags) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Sets an option whose value is an `int`.
pub(super) fn set_int(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set(socket, level, name, &value)
}

/// Gets an option whose value is an `int`.
pub(super) fn get_int(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` and `len` are live, and `len` says how much room there is.
    let failed = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast::<c_void>(), &raw mut len)
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Attaches a classic BPF program by the option `name` (SO_ATTACH_FILTER and kin).
pub(super) fn attach_program(
    socket: BorrowedFd<'_>,
    name: c_int,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    // The kernel copies the program; the pointer is mutable by declaration only.
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(socket, libc::SOL_SOCKET, name, &program)
}

fn set<T>(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let at = ptr::from_ref(value).cast::<c_void>();
    let len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is live and `len` bytes long; the kernel only reads it, and what a
    // `sock_fprog` points to, which its caller keeps.
    let failed = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, len) };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
