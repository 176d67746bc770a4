//! Floor 0: bytes to values and back, for every format that travels.
//!
//! Only this floor knows offsets. It knows no rule of a protocol beyond what one packet can
//! show by itself, and it does no I/O. Each format is a plain value with `parse` and `emit`;
//! no input makes `parse` panic.
//!
//! * [`num`]: newtypes of the fields (PSN, QPN, keys)
//! * [`bth`], [`ext`], [`packet`], [`icrc`]: RoCEv2 packets
//! * [`mad`], [`cm`]: management datagrams, connection management
//! * [`shm`]: messages of the shared-memory provider
//! * [`srp`]: information units and descriptors
//! * [`scsi`]: command descriptor blocks, sense data, VPD and mode pages

pub(crate) mod be;
pub mod bth;
pub mod cm;
pub mod error;
pub mod ext;
pub mod icrc;
pub(crate) mod layout;
pub mod mad;
pub mod num;
pub mod packet;
pub mod scsi;
pub mod shm;
pub mod srp;

pub use error::ParseError;
