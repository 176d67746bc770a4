//! The `srpoll` binary: parse the command line, run it, turn its error into one clear line.

use std::process::ExitCode;

fn main() -> ExitCode {
    srpoll::cli::main()
}
