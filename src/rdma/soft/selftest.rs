//! What this kernel does with our packets, tried at start: the ICRC stands on it.
//!
//! The ICRC covers IPv4's identification, which the kernel fills in after us. From an unconnected
//! socket that never fragments it is 0, and within a segmented send it counts up from that. A
//! process may see the packets that it sent, headers and all, without any capability: the kernel
//! gives them back with their time stamps (SO_TIMESTAMPING). So we send a packet and a train to
//! ourselves, hold the ICRC that we would compute against the one of the headers as they really
//! were, and count what arrives.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use socket2::{SockAddr, Socket};

use super::port::{Segmenting, new_socket, socket_address};
use super::socket::{self, Address};
use crate::wire::icrc::{self, ICRC_LEN, Prefix};

/// Segments of one send that kernels allow (UDP_MAX_SEGMENTS: 128 from 6.9 on, 64 before).
const SEGMENT_LIMITS: [usize; 2] = [128, 64];
/// A packet of the test: BTH and a few bytes.
const PACKET_BYTES: usize = 32;
/// SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE (linux/net_tstamp.h).
const SENT_PACKETS_COME_BACK: i32 = 1 << 1 | 1 << 4;
const ETHERNET_BYTES: usize = 14;

/// Why the test failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{0}: {1}")]
    System(&'static str, #[source] io::Error),
    #[error("the kernel gave a packet an identification or header that its ICRC does not foresee")]
    Icrc,
    #[error("a segmented send did not arrive as the packets that were put into it")]
    Segments,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failed {
    move |error| Failed::System(what, error)
}

/// Runs the test on one of our addresses.
pub(super) fn run(address: IpAddr, scope_id: u32) -> Result<Segmenting, Failed> {
    let sender = bound(address, scope_id)?;
    let receiver = bound(address, scope_id)?;
    let test = Test {
        to: Address::new(address, port_of(&receiver)?, scope_id),
        prefix: Prefix::new(address, address, port_of(&sender)?, port_of(&receiver)?).ok_or(Failed::Icrc)?,
        sender,
        receiver,
    };
    let sees_own = test.watch_own().is_ok();
    test.send(1).map_err(system("a send to ourselves"))?;
    test.check_arrival(1)?;
    if sees_own {
        test.check_headers().inspect_err(|_| {
            tracing::error!(
                %address,
                "this kernel does not number packets as their ICRC needs it: peers that check will drop them"
            );
        })?;
    } else {
        tracing::debug!(%address, "this kernel does not show sent packets, the ICRC is not tested");
    }
    for max_segments in SEGMENT_LIMITS {
        match test.send(max_segments) {
            Ok(()) => {
                test.check_arrival(max_segments)?;
                if sees_own {
                    test.check_headers()?;
                }
                return Ok(Segmenting { max_segments });
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(Failed::System("a segmented send to ourselves", error)),
        }
    }
    Err(Failed::Segments)
}

fn bound(address: IpAddr, scope_id: u32) -> Result<Socket, Failed> {
    let socket = new_socket(address).map_err(system("socket"))?;
    socket.bind(&SockAddr::from(socket_address(address, 0, scope_id))).map_err(system("bind"))?;
    Ok(socket)
}

fn port_of(socket: &Socket) -> Result<u16, Failed> {
    let address = socket.local_addr().map_err(system("getsockname"))?;
    Ok(address.as_socket().map_or(0, |address| address.port()))
}

struct Test {
    sender: Socket,
    receiver: Socket,
    to: Address,
    prefix: Prefix,
}

impl Test {
    fn watch_own(&self) -> io::Result<()> {
        let level = libc::SOL_SOCKET;
        socket::set_int(self.sender.as_fd(), level, libc::SO_TIMESTAMPING, SENT_PACKETS_COME_BACK)
    }

    /// The packet of a train's `index`, its ICRC as we foresee it.
    fn packet(&self, index: usize) -> [u8; PACKET_BYTES] {
        let mut packet = [index as u8; PACKET_BYTES];
        let (ib, end) = packet.split_at_mut(PACKET_BYTES - ICRC_LEN);
        end.copy_from_slice(&self.prefix.icrc(ib, index as u16));
        packet
    }

    fn send(&self, packets: usize) -> io::Result<()> {
        let bytes: Vec<u8> = (0..packets).flat_map(|index| self.packet(index)).collect();
        let segment = (packets > 1).then_some(PACKET_BYTES as u16);
        socket::send_bytes(self.sender.as_fd(), &self.to, &bytes, segment)
    }

    fn check_arrival(&self, packets: usize) -> Result<(), Failed> {
        let mut buffer = [0; 2 * PACKET_BYTES];
        for index in 0..packets {
            let got = socket::receive(self.receiver.as_fd(), &mut buffer).map_err(|_| Failed::Segments)?;
            if buffer[..got.len_bytes] != self.packet(index) {
                return Err(Failed::Segments);
            }
        }
        Ok(())
    }

    /// Compares the headers that the kernel made for the last send with those that we foresee.
    /// The rest of a train is counted up from its one header when it is cut.
    fn check_headers(&self) -> Result<(), Failed> {
        let mut buffer = vec![0; 1 << 16];
        let len = match socket::receive_own(self.sender.as_fd(), &mut buffer) {
            Ok(len) => len,
            // Not every way out takes time stamps, and administrators may switch this off.
            Err(_) => return Ok(()),
        };
        let Some(ip) = ip_packet(&mut buffer[..len]) else { return Ok(()) };
        match icrc::of_ip_packet(ip) {
            Ok((foreseen, sent)) if foreseen == sent => Ok(()),
            _ => Err(Failed::Icrc),
        }
    }
}

/// The IP packet in a frame, cut to the first segment if it is a train.
fn ip_packet(frame: &mut [u8]) -> Option<&[u8]> {
    let ip = frame.get_mut(ETHERNET_BYTES..)?;
    let (header_bytes, length_at) = match ip.first()? >> 4 {
        4 => (20, 2),
        6 => (40, 4),
        _ => return None,
    };
    let udp_bytes = 8 + PACKET_BYTES;
    let total = ip.len().min(header_bytes + udp_bytes);
    let ip = &mut ip[..total];
    let ip_length = if length_at == 2 { total } else { udp_bytes } as u16;
    ip.get_mut(length_at..length_at + 2)?.copy_from_slice(&ip_length.to_be_bytes());
    ip.get_mut(header_bytes + 4..header_bytes + 6)?.copy_from_slice(&(udp_bytes as u16).to_be_bytes());
    Some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_does_what_the_icrc_foresees() {
        for address in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1])] {
            let segmenting = run(address, 0).unwrap();
            assert!(SEGMENT_LIMITS.contains(&segmenting.max_segments), "{segmenting}");
        }
    }

    #[test]
    fn a_connected_socket_is_found_out() {
        // Its identifications count up from a random start: what the test must not let pass.
        let address = IpAddr::from([127, 0, 0, 1]);
        let (sender, receiver) = (bound(address, 0).unwrap(), bound(address, 0).unwrap());
        sender.connect(&receiver.local_addr().unwrap()).unwrap();
        let test = Test {
            to: Address::new(address, port_of(&receiver).unwrap(), 0),
            prefix: Prefix::new(address, address, port_of(&sender).unwrap(), port_of(&receiver).unwrap())
                .unwrap(),
            sender,
            receiver,
        };
        test.watch_own().unwrap();
        let mut verdicts = (0..4).map(|_| {
            test.send(1).unwrap();
            test.check_headers()
        });
        assert!(verdicts.any(|verdict| matches!(verdict, Err(Failed::Icrc))));
    }
}
