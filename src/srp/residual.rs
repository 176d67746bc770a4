//! Residuals: how far the data buffer and what the command transfers differ (SRP r16a, 6.9).

use super::Direction;
use crate::wire::srp::Rsp;
use crate::wire::srp::RspHeader;

/// The difference between a data buffer and the data of its command.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Residual {
    /// Which of the two residual fields counts.
    pub direction: Direction,
    /// What kind of difference.
    pub kind: ResidualKind,
    /// How many bytes.
    pub len_bytes: u32,
}

/// Which side of the comparison was longer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum ResidualKind {
    /// They were equal.
    #[default]
    Exact,
    /// The command transferred less than the buffer holds.
    Under,
    /// The command had more than the buffer holds.
    Over,
}

impl Residual {
    /// No difference.
    pub const NONE: Residual =
        Residual { direction: Direction::None, kind: ResidualKind::Exact, len_bytes: 0 };

    /// The residual of a command that has `command_bytes` to transfer (zero if it failed before
    /// any) and a data buffer of `buffer_bytes`. What moves is the shorter of the two.
    ///
    /// A command that has data for which no direction was given has no field to say so:
    /// `direction` is then that of the command, and the buffer zero bytes.
    pub fn new(direction: Direction, buffer_bytes: u32, command_bytes: u64) -> Self {
        let buffer = u64::from(buffer_bytes);
        let kind = match command_bytes.cmp(&buffer) {
            _ if direction == Direction::None => ResidualKind::Exact,
            std::cmp::Ordering::Equal => ResidualKind::Exact,
            std::cmp::Ordering::Less => ResidualKind::Under,
            std::cmp::Ordering::Greater => ResidualKind::Over,
        };
        let len_bytes = match kind {
            ResidualKind::Exact => 0,
            _ => u32::try_from(command_bytes.abs_diff(buffer)).unwrap_or(u32::MAX),
        };
        Residual { direction, kind, len_bytes }
    }

    /// Puts the residual into the header of a response.
    pub fn apply(&self, header: &mut RspHeader) {
        use ResidualKind::{Exact, Over, Under};
        let flag = match (self.direction, self.kind) {
            (Direction::None, _) | (_, Exact) => return,
            (Direction::Out, Over) => Rsp::DOOVER,
            (Direction::Out, Under) => Rsp::DOUNDER,
            (Direction::In, Over) => Rsp::DIOVER,
            (Direction::In, Under) => Rsp::DIUNDER,
        };
        header.residual_flags |= flag;
        match self.direction {
            Direction::Out => header.data_out_residual = self.len_bytes,
            _ => header.data_in_residual = self.len_bytes,
        }
    }

    /// The residual that a response reports, as an initiator reads it: data-IN first.
    pub fn of(header: &RspHeader) -> Self {
        use ResidualKind::{Over, Under};
        let table = [
            (Rsp::DIUNDER, Direction::In, Under, header.data_in_residual),
            (Rsp::DOUNDER, Direction::Out, Under, header.data_out_residual),
            (Rsp::DIOVER, Direction::In, Over, header.data_in_residual),
            (Rsp::DOOVER, Direction::Out, Over, header.data_out_residual),
        ];
        table
            .into_iter()
            .find(|(flag, ..)| header.residual_flags & flag != 0)
            .map_or(Self::NONE, |(_, direction, kind, len_bytes)| Residual { direction, kind, len_bytes })
    }
}
