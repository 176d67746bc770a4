//! The IP addresses of this machine, and addresses as the socket interface spells them.

#![allow(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::null_mut;

/// The unicast addresses of all interfaces that are up, without loopback.
pub(super) fn local() -> Vec<SocketAddr> {
    let mut first: *mut libc::ifaddrs = null_mut();
    // SAFETY: the call writes one pointer, which is given back below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: an entry of the list that getifaddrs made, not freed yet.
        let entry = unsafe { &*at };
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        let loopback = entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        if up && !loopback && !entry.ifa_addr.is_null() {
            // SAFETY: an address of the list, as long as its family says.
            found.extend(unsafe { from_raw(entry.ifa_addr) });
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list that getifaddrs made, once.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// The address that a socket address structure holds, if it is one of IP.
///
/// # Safety
/// `addr` points to a socket address that is as long as its family says.
pub(super) unsafe fn from_raw(addr: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: every socket address begins with its family.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family; the caller vouches for the length.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family; the caller vouches for the length.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["10.1.2.3:5555", "[fd00::7]:1", "[fe80::1%4]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = socket2::SockAddr::from(address);
            // SAFETY: the crate made it for this address.
            assert_eq!(unsafe { from_raw(raw.as_ptr().cast()) }, Some(address), "{text}");
        }
        assert!(local().iter().all(|address| !address.ip().is_loopback()));
    }
}
