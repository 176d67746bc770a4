//! The line that logs a Linux host in.

use std::net::SocketAddr;

use crate::target::listener::Listener;
use crate::target::snapshot::Identity;

/// What a user writes to `/sys/class/infiniband_srp/<port>/add_target` to log in at `listener`.
///
/// A link-local address means nothing without the initiator's interface, which only its user
/// knows: `<interface>` and `<address>` stand for what is to be filled in.
///
/// A socket of shared memory is none of the kernel's; its line is the same for `srpoll perf --shm`.
pub fn add_target_line(identity: &Identity, listener: &Listener) -> String {
    let address = match listener {
        Listener::Ip(address) => address,
        Listener::Shm(path) => return format!("{identity},shm={}", path.display()),
    };
    let port = address.port();
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            format!("{identity},dest=[{}%<interface>]:{port},src=[<address>%<interface>]", v6.ip())
        }
        SocketAddr::V6(v6) => format!("{identity},dest=[{}]:{port}", v6.ip()),
        SocketAddr::V4(v4) => format!("{identity},dest={}:{port}", v4.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_kernel_takes_them() {
        let identity = Identity { id_ext: 0x1234, ioc_guid: 0x0200_0000_dead_beef };
        for (listener, dest) in [
            ("10.0.0.1:5555", "dest=10.0.0.1:5555"),
            ("[fd00::1]:7", "dest=[fd00::1]:7"),
            ("[fe80::1%3]:5555", "dest=[fe80::1%<interface>]:5555,src=[<address>%<interface>]"),
        ] {
            assert_eq!(
                add_target_line(&identity, &Listener::Ip(listener.parse().unwrap())),
                format!("id_ext=0000000000001234,ioc_guid=02000000deadbeef,{dest}")
            );
        }
    }
}
