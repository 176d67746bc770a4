//! SRP on the wire: information units (IUs) and data buffer descriptors (T10 project 1415-D,
//! revision 16a, with the immediate data and compact login that Linux added).
//!
//! It knows the layout of each IU and the checks that one IU can show by itself: lengths, counts
//! and sums, in 64 bits. It knows nothing of channels, credits or tags in use (that is `srp`),
//! nor what a LUN or a CDB means (that is `wire::scsi`).
//!
//! * [`login`] has SRP_LOGIN_REQ (both forms), SRP_LOGIN_RSP, SRP_LOGIN_REJ
//! * [`cmd`] has SRP_CMD, [`desc`] its descriptors
//! * [`rsp`] has SRP_RSP
//! * [`iu`] has the opcodes and the short IUs
//!
//! All integers are big-endian, except the [`Tag`], which is eight opaque bytes. Reserved bytes
//! are written as zero and not checked. Nothing here allocates.

use std::fmt;

use super::be::{u16_at, u32_at, u64_at};

pub mod cmd;
pub mod desc;
pub mod iu;
pub mod login;
pub mod rsp;

pub use cmd::{Cmd, CmdError, TaskAttribute};
pub use desc::{DataBuffer, DescTable, Descriptor};
pub use iu::{AerReq, AerRsp, CredReq, CredRsp, InitiatorLogout, Opcode, TargetLogout, TaskMgmt};
pub use login::{BufferFormats, LoginForm, LoginRej, LoginReq, LoginRsp, MultiChannel, RejReason};
pub use rsp::{Rsp, RspHeader};

/// Why bytes are not the information unit that they were taken for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IuError {
    /// Fewer bytes than the IU's fixed part, or than its own length fields say.
    #[error("{got} bytes where the information unit has {needed}")]
    Short {
        /// Bytes that the IU would have.
        needed: usize,
        /// Bytes that came.
        got: usize,
    },
    /// Byte 0 (byte 11 of a compact login) is another opcode.
    #[error("opcode {0:#04x} is not that of this information unit")]
    Opcode(u8),
    /// The buffer for the IU is too small.
    #[error("no room for {needed} bytes in a buffer of {room}")]
    NoRoom {
        /// Bytes that the IU has.
        needed: usize,
        /// Bytes of the buffer.
        room: usize,
    },
}

/// The tag of a request: eight opaque bytes, echoed in the response. ib_srp puts a host-order
/// number there, so a tag is compared and copied, never read as a number.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub [u8; 8]);

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// The LUN field of an IU: the eight bytes of SAM-5 4.7. Their meaning is `wire::scsi`'s.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct RawLun(pub [u8; 8]);

impl fmt::Debug for RawLun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// An SRP port identifier, 16 bytes: extension, then GUID (r16a order). Of an initiator:
/// initiator extension and port GUID; of a target: `id_ext` and `ioc_guid`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct PortId(pub [u8; 16]);

impl PortId {
    /// All zeros. As target of a login: whichever target listens there (an extension of ours; a
    /// Linux initiator always names one).
    pub const UNSPECIFIED: PortId = PortId([0; 16]);

    /// The identifier of these two halves.
    pub const fn new(extension: u64, guid: u64) -> Self {
        PortId((((extension as u128) << 64) | guid as u128).to_be_bytes())
    }

    /// The first half: initiator extension or `id_ext`.
    pub const fn extension(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The second half: port GUID or `ioc_guid`.
    pub const fn guid(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

/// Lower-case hexadecimal with `0x` in front: the form of an access list.
impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a port identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a port identifier (up to 32 hex digits, with or without 0x)")]
pub struct BadPortId(pub String);

/// Up to 32 hex digits with optional `0x`, padded with zeros on the left, as LIO reads them.
impl std::str::FromStr for PortId {
    type Err = BadPortId;
    fn from_str(text: &str) -> Result<Self, BadPortId> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        let all_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if digits.is_empty() || digits.len() > 32 || !all_hex {
            return Err(BadPortId(text.to_owned()));
        }
        let value = u128::from_str_radix(digits, 16).map_err(|_| BadPortId(text.to_owned()))?;
        Ok(PortId(value.to_be_bytes()))
    }
}

/// The first `N` bytes, or how many are missing.
fn fixed<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], IuError> {
    bytes.first_chunk().ok_or(IuError::Short { needed: N, got: bytes.len() })
}

/// `N` bytes at `at`; the caller has checked that they are there.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Copies `value` to `at`; the caller has checked that it fits.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The first `needed` bytes of `buf`.
fn room(buf: &mut [u8], needed: usize) -> Result<&mut [u8], IuError> {
    let room = buf.len();
    buf.get_mut(..needed).ok_or(IuError::NoRoom { needed, room })
}

#[cfg(test)]
mod tests;
