//! What the RDMA-CM adds to the connection manager, so that a connection is for an IP port
//! (IBTA annex A11; Linux's `core/cma.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::layout::layout;

/// Service ids of port space TCP, without the port.
const PORT_SPACE_TCP: u64 = 0x0000_0000_0106_0000;

/// The service id of an IP port.
pub const fn service_id(port: u16) -> u64 {
    PORT_SPACE_TCP | port as u64
}

/// The IP port of a service id, if it is one of the RDMA-CM (port space TCP).
pub const fn port(service_id: u64) -> Option<u16> {
    if service_id & !0xffff == PORT_SPACE_TCP { Some(service_id as u16) } else { None }
}

layout! {
    /// The header of the RDMA-CM in front of a REQ's private data.
    CmaHeader: 36 bytes
    /// Version: 0.
    version: u8 = 0, 0, 8;
    /// 4 or 6.
    ip_version: u8 = 1, 0, 4;
    /// Reserved.
    reserved_1: u8 = 1, 4, 4;
    /// The port that the requester binds.
    source_port: u16 = 2, 0, 16;
    /// The requester's address; IPv4 stands in the last four bytes.
    source: [u8; 16] = 4, 0, 128;
    /// The address that is asked for.
    destination: [u8; 16] = 20, 0, 128;
}

impl CmaHeader {
    /// The header of a request between two addresses of one family (IPv4-mapped counts as
    /// IPv4); `None` if they are of two.
    pub fn new(source: IpAddr, destination: IpAddr, source_port: u16) -> Option<CmaHeader> {
        let (ip_version, source, destination) = match (source.to_canonical(), destination.to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (4, v4_field(source), v4_field(destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => (6, source.octets(), destination.octets()),
            _ => return None,
        };
        Some(CmaHeader { version: 0, ip_version, reserved_1: 0, source_port, source, destination })
    }

    /// Source and destination address; `None` if a version is unknown.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let address = match (self.version, self.ip_version) {
            (0, 4) => |field: [u8; 16]| IpAddr::V4(Ipv4Addr::new(field[12], field[13], field[14], field[15])),
            (0, 6) => |field: [u8; 16]| IpAddr::V6(Ipv6Addr::from(field)),
            _ => return None,
        };
        Some((address(self.source), address(self.destination)))
    }
}

fn v4_field(address: Ipv4Addr) -> [u8; 16] {
    let mut field = [0; 16];
    field[12..].copy_from_slice(&address.octets());
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_of_ports() {
        assert_eq!(service_id(5555).to_be_bytes(), [0, 0, 0, 0, 1, 6, 0x15, 0xb3]);
        assert_eq!(port(service_id(5555)), Some(5555));
        assert_eq!(port(0x0000_0000_0111_15b3), None, "port space UDP");
        assert_eq!(port(0x1000_0000_0106_15b3), None);
    }

    #[test]
    fn addresses_stand_where_linux_puts_them() {
        let v4 = |last| IpAddr::from([10, 99, 0, last]);
        let header = CmaHeader::new(v4(2), v4(1), 0x1234).unwrap();
        let mut bytes = [0xff; 36];
        header.emit(&mut bytes);
        assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
        assert_eq!(bytes[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 99, 0, 2]);
        assert_eq!(header.addresses(), Some((v4(2), v4(1))));
        assert_eq!(CmaHeader { version: 1, ..header }.addresses(), None);
        assert_eq!(CmaHeader { ip_version: 5, ..header }.addresses(), None);
        assert_eq!(CmaHeader::new(v4(2), IpAddr::from([0u16; 8]), 1), None);
    }
}
