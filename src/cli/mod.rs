//! Floor 6: the command line.
//!
//! It knows every floor below and how a person types; nothing below knows it. Exit status: 0
//! done, 1 not done, 2 not understood; `perf` has 3 for a lost session.

mod adapter;
pub mod endpoint;
pub mod lun_spec;
pub mod nouns;
pub mod perf;
pub mod plot;
pub mod rpc;
pub mod serve;
pub mod status;
pub mod units;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

/// A polled-mode, user-space SRP storage target.
#[derive(Parser, Debug)]
#[command(name = "srpoll", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Serve(Box<serve::ServeArgs>),
    Perf(Box<perf::PerfArgs>),
    Rpc(rpc::RpcArgs),
    Status(status::StatusArgs),
    Target(nouns::TargetArgs),
    Lun(nouns::LunArgs),
    Session(nouns::SessionArgs),
    Bdev(nouns::BdevArgs),
    #[command(hide = true)]
    Plot(plot::PlotArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return not_understood(&error),
    };
    let done = match args.command {
        Command::Serve(args) => serve::run(*args),
        Command::Perf(args) => perf::run(&args),
        Command::Rpc(args) => rpc::run(args),
        Command::Status(args) => status::run(args),
        Command::Target(args) => nouns::target(&args),
        Command::Lun(args) => nouns::lun(args),
        Command::Session(args) => nouns::session(&args),
        Command::Bdev(args) => nouns::bdev(&args),
        Command::Plot(args) => plot::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("srpoll: {}", one_line(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

/// Help and version go out as they are; what is wrong becomes one line.
fn not_understood(error: &clap::Error) -> ExitCode {
    let help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
    if help.contains(&error.kind()) || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return if help.contains(&error.kind()) { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    let text = error.render().to_string();
    let words: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let line = words.join(" ");
    eprintln!("srpoll: {} (see --help)", line.strip_prefix("error: ").unwrap_or(&line));
    ExitCode::from(2)
}

/// Line breaks in what the system or a library said become spaces.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Logs to standard error; SRPOLL_LOG sets what is logged in place of `usual`.
fn start_log(usual: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SRPOLL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(usual));
    // A second start in one process (tests) keeps the first log.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}
