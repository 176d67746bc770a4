//! Floor 2, sans-io: the SRP protocol: login, channels, credits, commands, task management.
//!
//! It knows information units and their rules, for both roles. Values come in (an IU, a login
//! request with what the target has left) and values come out (execute this, refuse with that
//! reason). It must not know the RDMA engine, SCSI's meaning of a LUN or a CDB, or block devices.
//!
//! Target:
//! * [`login`]: whether a login is accepted, and with what parameters
//! * [`channel`]: what an IU on a live channel asks for
//! * [`credit`]: the request limit, as both sides count it; [`tags`]: tags in use
//! * [`descriptors`]: which remote pieces cover a range of a data buffer
//! * [`answer`]: building SRP_RSP; [`residual`]: how much was not transferred
//! * [`tmf`]: task management functions and their answers; [`task`]: the states of a task
//!
//! Initiator:
//! * [`initiator`]: credits, answers and what the target sends by itself

pub mod answer;
pub mod channel;
pub mod credit;
pub mod descriptors;
pub mod initiator;
pub mod login;
pub mod residual;
pub mod tags;
pub mod task;
pub mod tmf;

/// Which way the data of a command go.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Direction {
    /// There are none.
    #[default]
    None,
    /// From the initiator to the target (a SCSI WRITE).
    Out,
    /// From the target to the initiator (a SCSI READ).
    In,
}

/// Sense key, additional sense code and qualifier that a protocol error is answered with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct SenseCode {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
}

impl SenseCode {
    /// ILLEGAL REQUEST, INVALID FIELD IN CDB: for descriptors that lie, as SCST answers. A
    /// RSP code alone would not do: ib_srp reads it for task management only.
    pub const INVALID_FIELD: SenseCode = SenseCode { key: 0x05, asc: 0x24, ascq: 0x00 };
    /// ABORTED COMMAND, OVERLAPPED COMMANDS ATTEMPTED (SAM-5 5.11).
    pub const OVERLAPPED: SenseCode = SenseCode { key: 0x0b, asc: 0x4e, ascq: 0x00 };
}

#[cfg(test)]
mod tests;
