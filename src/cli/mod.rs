//! Floor 6: the command line.
//!
//! It knows every floor below and how a person types; nothing below knows it.

pub mod units;

use std::process::ExitCode;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    eprintln!("srpoll: no command is built in yet");
    ExitCode::FAILURE
}
