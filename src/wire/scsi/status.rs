//! SAM status codes (SAM-5, 5.3.1).

use std::fmt;

/// How a command ended, as the initiator is told.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// Completed without error.
    Good = 0x00,
    /// Sense data says what happened.
    CheckCondition = 0x02,
    /// The condition that the command asks about is met.
    ConditionMet = 0x04,
    /// The logical unit cannot take the command now.
    Busy = 0x08,
    /// Another I_T nexus holds a reservation that forbids the command.
    ReservationConflict = 0x18,
    /// The task set has no room for the command.
    TaskSetFull = 0x28,
    /// An ACA condition is established.
    AcaActive = 0x30,
    /// Aborted by another I_T nexus, with TAS set.
    TaskAborted = 0x40,
}

impl Status {
    /// The status of this code, if SAM-5 has one.
    pub const fn from_code(code: u8) -> Option<Status> {
        Some(match code {
            0x00 => Status::Good,
            0x02 => Status::CheckCondition,
            0x04 => Status::ConditionMet,
            0x08 => Status::Busy,
            0x18 => Status::ReservationConflict,
            0x28 => Status::TaskSetFull,
            0x30 => Status::AcaActive,
            0x40 => Status::TaskAborted,
            _ => return None,
        })
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Good => "GOOD",
            Status::CheckCondition => "CHECK CONDITION",
            Status::ConditionMet => "CONDITION MET",
            Status::Busy => "BUSY",
            Status::ReservationConflict => "RESERVATION CONFLICT",
            Status::TaskSetFull => "TASK SET FULL",
            Status::AcaActive => "ACA ACTIVE",
            Status::TaskAborted => "TASK ABORTED",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_go_both_ways() {
        let known: Vec<u8> = (0..=255).filter(|code| Status::from_code(*code).is_some()).collect();
        assert_eq!(known, [0x00, 0x02, 0x04, 0x08, 0x18, 0x28, 0x30, 0x40]);
        for code in known {
            assert_eq!(Status::from_code(code).map(Status::code), Some(code));
        }
    }
}
