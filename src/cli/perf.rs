//! `srpoll perf`: an SRP initiator in user space that loads a logical unit, measures and verifies.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use reactors::reactor::Idle;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::endpoint::{DEFAULT_PORT, Endpoint, Poll};
use super::units;
use crate::initiator::load::{Load, LoadError, Pattern, Report, Stop, Watch, Workload, find_foreign};
use crate::initiator::scan::{CommandError, Pace, close, scan, wait_live};
use crate::initiator::session::SessionCounters;
use crate::initiator::{Session, SessionConfig};
use crate::rdma::soft::{self, Fault};
use crate::wire::scsi::lun::Lun;
use crate::wire::srp::PortId;

/// The exit status for a session that was lost.
const STATUS_LOST: u8 = 3;
/// How long after a loss a session is made anew.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Data buffers are no shorter than this, so that looking for foreign data takes few commands.
const MIN_BUFFER_BYTES: u32 = 64 << 10;
const PERCENTILES: [(&str, f64); 7] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p95", 95.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("p99.99", 99.99),
    ("max", 100.0),
];

/// Which I/Os to do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Read,
    Write,
    Randread,
    Randwrite,
    Randrw,
}

impl Kind {
    fn pattern(self) -> Pattern {
        match self {
            Kind::Read | Kind::Write => Pattern::Sequential,
            Kind::Randread | Kind::Randwrite | Kind::Randrw => Pattern::Random,
        }
    }

    fn read_percent(self, mix: u8) -> u8 {
        match self {
            Kind::Read | Kind::Randread => 100,
            Kind::Write | Kind::Randwrite => 0,
            Kind::Randrw => mix,
        }
    }
}

/// Load a logical unit of an SRP target from user space, measure, and verify.
///
/// Exit status: 0 all went well, 1 I/Os failed or data were wrong, 3 the session was lost.
#[derive(clap::Args, Debug)]
pub struct PerfArgs {
    /// The target's address and service port
    #[arg(long, value_name = "IP[:PORT]", value_parser = |text: &str| units::address_port(text, DEFAULT_PORT))]
    target: SocketAddr,
    /// Our own address; needs UDP port 4791 of it
    #[arg(long, value_name = "IP", value_parser = |text: &str| units::address(text, 0))]
    local: SocketAddr,
    /// Number of the logical unit
    #[arg(long, value_name = "N", default_value = "0", value_parser = lun)]
    lun: Lun,
    /// Which I/Os
    #[arg(long, value_enum)]
    rw: Kind,
    /// How many of 100 I/Os of randrw are reads
    #[arg(long, value_name = "PERCENT", default_value = "70", value_parser = clap::value_parser!(u8).range(0..=100))]
    mix: u8,
    /// Bytes of an I/O
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    bs: u64,
    /// I/Os at a time, over all channels
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    qd: u32,
    /// Channels of the session
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    channels: u32,
    /// How long to run [default: 10s]
    #[arg(long, value_name = "TIME", conflicts_with = "ios", value_parser = units::duration)]
    time: Option<Duration>,
    /// How many I/Os to do
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ios: Option<u64>,
    /// The core to poll on; one [default: not pinned]
    #[arg(long, value_name = "N", value_parser = units::cores)]
    cores: Option<CoreList>,
    /// What to do without work: spin, or sleep after there was none for so long
    #[arg(long, value_name = "spin|sleep[:TIME]", default_value = "sleep:50us", value_parser = units::idle)]
    idle: Idle,
    /// Faults to inject into packets: drop=1%,dup=1%,reorder=1%,corrupt=0.1%,rcvbuf=SIZE,seed=N
    #[arg(long, value_name = "SPEC", value_parser = units::fault)]
    fault: Option<Fault>,
    /// Check all data: blocks are written before they are read, and read back at the end
    #[arg(long)]
    verify: bool,
    /// Write to a logical unit that holds somebody's data
    #[arg(long)]
    overwrite: bool,
    /// Make a lost session anew and go on
    #[arg(long)]
    reconnect: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Identifier extension of the target port, for targets that want to be named, 16 hex digits
    #[arg(long, value_name = "H", requires = "ioc_guid", value_parser = units::hex16)]
    id_ext: Option<u64>,
    /// I/O controller GUID of the target port, 16 hex digits
    #[arg(long, value_name = "H", requires = "id_ext", value_parser = units::hex16)]
    ioc_guid: Option<u64>,
}

/// Cores as clap must see them: one value, not many.
type CoreList = Vec<Option<usize>>;

fn lun(text: &str) -> Result<Lun, String> {
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    number
        .and_then(Lun::new)
        .ok_or_else(|| format!("\"{text}\" is no logical unit number: 0 to {}", Lun::MAX))
}

/// Runs the workload.
pub fn run(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    super::start_log("warn");
    let config = args.session()?;
    let core = match args.cores.as_deref() {
        None | Some([None]) => None,
        Some(&[Some(core)]) => Some(core),
        Some(_) => bail!("--cores: perf polls on one core"),
    };
    if let Some(core) = core {
        reactors::affinity::check(&[core]).context("--cores")?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("signals cannot be caught")?;
    }
    let device = args.endpoint().device()?;
    if let Some(core) = core {
        reactors::affinity::pin(core).context("--cores")?;
    }
    let mut pace = Poll::new(args.idle, &device).context("cannot wait for packets")?;
    let mut session = Session::new(device, config, fastrand::Rng::new())?;
    let outcome = args.drive(&mut session, &mut pace, &stop);
    close(&mut session, &mut pace);
    match outcome? {
        Ended::Lost(why) => {
            eprintln!("srpoll: the session was lost: {why}");
            Ok(ExitCode::from(STATUS_LOST))
        }
        Ended::Measured(report, cpu) => {
            let counters = *session.counters();
            let text =
                if args.json { as_json(&report, cpu, &counters) } else { as_text(&report, cpu, &counters) };
            for line in &report.told {
                eprintln!("srpoll: {line}");
            }
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes()).context("standard output")?;
            if args.verify && !args.json {
                writeln!(out, "verified {} I/Os, {} errors", report.verified, report.errors)?;
            }
            out.flush().context("standard output")?;
            Ok(if report.errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// How a run ended.
enum Ended {
    Measured(Box<Report>, Duration),
    Lost(String),
}

impl PerfArgs {
    fn endpoint(&self) -> Endpoint {
        let port = match (self.id_ext, self.ioc_guid) {
            (Some(id_ext), Some(ioc_guid)) => PortId::new(id_ext, ioc_guid),
            _ => PortId::UNSPECIFIED,
        };
        Endpoint { target: self.target, local: self.local, port, fault: self.fault }
    }

    fn session(&self) -> anyhow::Result<SessionConfig> {
        let io_bytes = u32::try_from(self.bs).ok().filter(|&bytes| bytes > 0 && bytes <= 64 << 20);
        let io_bytes = io_bytes.ok_or_else(|| anyhow!("--bs {} does not lie between 1 and 64M", self.bs))?;
        Ok(SessionConfig {
            channels: self.channels,
            depth: self.qd.div_ceil(self.channels),
            max_io_bytes: io_bytes.max(MIN_BUFFER_BYTES),
            reconnect_delay: self.reconnect.then_some(RECONNECT_DELAY),
            ..self.endpoint().session()?
        })
    }

    fn workload(&self, config: &SessionConfig) -> Workload {
        debug_assert!(self.bs <= u64::from(config.max_io_bytes));
        Workload {
            pattern: self.rw.pattern(),
            read_percent: self.rw.read_percent(self.mix),
            io_bytes: self.bs as u32,
            depth: self.qd,
            stop: match self.ios {
                Some(ios) => Stop::Ios(ios),
                None => Stop::After(self.time.unwrap_or(Duration::from_secs(10))),
            },
            verify: self.verify,
            seed: fastrand::u64(..),
            run: fastrand::u64(..),
        }
    }

    fn drive(
        &self,
        session: &mut Session<soft::Device>,
        pace: &mut Poll,
        stop: &AtomicBool,
    ) -> anyhow::Result<Ended> {
        session.start(pace.now());
        let who = session.config().initiator;
        wait_live(session, pace).with_context(|| format!("cannot log in to {} as {who}", self.target))?;
        if session.channels() < self.channels {
            tracing::warn!("the target gave {} channels of {}", session.channels(), self.channels);
        }
        let workload = self.workload(session.config());
        let info = match scan(session, pace, self.lun) {
            Ok(info) => info,
            Err(CommandError::Lost(why)) => return Ok(Ended::Lost(why.to_string())),
            Err(error) => return Err(error.into()),
        };
        let requests = (session.config().channels * session.config().depth) as usize;
        let load = Load::new(workload, &info, requests)?;
        let writes = self.verify || workload.read_percent < 100;
        if writes && !self.overwrite {
            match find_foreign(session, pace, &info, workload.seed) {
                Ok(None) => {}
                Ok(Some(offset)) => bail!(
                    "LUN {} holds data that are not ours, at offset {offset}: --overwrite writes over them",
                    self.lun
                ),
                Err(CommandError::Lost(why)) => return Ok(Ended::Lost(why.to_string())),
                Err(error) => return Err(error.into()),
            }
        }
        if self.verify
            && load.reach_bytes() < info.len_bytes() / workload.io_bytes as u64 * workload.io_bytes as u64
        {
            tracing::warn!("LUN {} is large: its first {} bytes are verified", self.lun, load.reach_bytes());
        }
        let mut watch = Stopwatch { stop, started: cpu_time(), used: None };
        match load.run(session, pace, &mut watch) {
            Ok(report) => Ok(Ended::Measured(Box::new(report), watch.used.unwrap_or_default())),
            Err(LoadError::Lost(why)) => Ok(Ended::Lost(why.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Measures our own CPU, and ends the run on a signal.
struct Stopwatch<'a> {
    stop: &'a AtomicBool,
    started: Duration,
    used: Option<Duration>,
}

impl Watch for Stopwatch<'_> {
    fn interrupted(&mut self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn measured(&mut self) {
        self.used = Some(cpu_time().saturating_sub(self.started));
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

fn cpu_per_io_us(report: &Report, cpu: Duration) -> f64 {
    if report.ios == 0 { 0.0 } else { cpu.as_secs_f64() * 1e6 / report.ios as f64 }
}

fn as_json(report: &Report, cpu: Duration, counters: &SessionCounters) -> String {
    let mut latency: Map<_, _> = PERCENTILES
        .iter()
        .map(|&(name, at)| (name.to_owned(), json!(micros(report.latency.value_at_percentile(at)))))
        .collect();
    latency.insert("mean".to_owned(), json!(report.latency.mean() / 1000.0));
    let value = json!({
        "iops": per_second(report.ios, report.elapsed),
        "mbps": per_second(report.bytes, report.elapsed) / 1e6,
        "lat_us": latency,
        "errors": report.errors,
        "ios": report.ios,
        "reads": report.reads,
        "writes": report.ios - report.reads,
        "seconds": report.elapsed.as_secs_f64(),
        "verified": report.verified,
        "unknown": report.unknown,
        "retries": report.retries,
        "reconnects": counters.logins.saturating_sub(1),
        "cpu_percent": 100.0 * cpu.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9),
        "cpu_us_per_io": cpu_per_io_us(report, cpu),
    });
    format!("{value}\n")
}

fn as_text(report: &Report, cpu: Duration, counters: &SessionCounters) -> String {
    let elapsed = report.elapsed.as_secs_f64();
    let mut text = format!(
        "{:.0} IOPS, {:.1} MB/s: {} reads and {} writes in {elapsed:.2} s\n",
        per_second(report.ios, report.elapsed),
        per_second(report.bytes, report.elapsed) / 1e6,
        report.reads,
        report.ios - report.reads,
    );
    text += &format!("latency in us: mean {:.1}", report.latency.mean() / 1000.0);
    for (name, at) in PERCENTILES {
        text += &format!(", {name} {:.1}", micros(report.latency.value_at_percentile(at)));
    }
    text += &format!(
        "\nown CPU: {:.0} % of a core, {:.2} us an I/O\n",
        100.0 * cpu.as_secs_f64() / elapsed.max(1e-9),
        cpu_per_io_us(report, cpu)
    );
    if report.retries > 0 {
        text += &format!(
            "{} I/Os were sent again; the session was made anew {} times\n",
            report.retries,
            counters.logins.saturating_sub(1)
        );
    }
    if report.unknown > 0 {
        text += &format!("{} places could not be verified: their last write failed\n", report.unknown);
    }
    if report.errors > 0 {
        text += &format!("{} errors\n", report.errors);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        perf: PerfArgs,
    }

    fn parse(line: &str) -> Result<PerfArgs, String> {
        Line::try_parse_from(std::iter::once("perf").chain(line.split_whitespace()))
            .map(|line| line.perf)
            .map_err(|error| error.to_string())
    }

    const BASE: &str = "--target 127.0.0.1 --local 127.0.0.2 --rw randrw --bs 4k --qd 32";

    #[test]
    fn the_line_of_the_manual_is_understood() {
        let args = parse(&format!(
            "{BASE} --lun 5 --mix 60 --channels 8 --time 3s --cores 1 --idle spin --verify --overwrite \
             --fault drop=1%,dup=1%,reorder=1% --reconnect --json"
        ))
        .unwrap();
        assert_eq!(args.target.to_string(), "127.0.0.1:5555");
        let config = args.session().unwrap();
        assert_eq!((config.channels, config.depth, config.max_io_bytes), (8, 4, 65536));
        assert_eq!(config.target, PortId::UNSPECIFIED);
        let workload = args.workload(&config);
        assert_eq!(
            (workload.pattern, workload.read_percent, workload.stop),
            (Pattern::Random, 60, Stop::After(Duration::from_secs(3)))
        );
        let named = format!("{BASE} --id-ext 0000000000000001 --ioc-guid 0000000000000002 --ios 7");
        let args = parse(&named).unwrap();
        assert_eq!(args.session().unwrap().target, PortId::new(1, 2));
        assert_eq!(args.workload(&args.session().unwrap()).stop, Stop::Ios(7));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (more, words) in [
            ("--time 3s --ios 5", "cannot be used with"),
            ("--lun 16384", "0 to 16383"),
            ("--lun +1", "0 to 16383"),
            ("--mix 101", "101"),
            ("--channels 0", "0"),
            ("--id-ext 0000000000000001", "--ioc-guid"),
        ] {
            let error = parse(&format!("{BASE} {more}")).unwrap_err();
            assert!(error.contains(words), "{more}: {error}");
        }
        let mixed = parse("--target ::1 --local 127.0.0.2 --rw read --bs 4k --qd 1").unwrap();
        assert_eq!(
            mixed.session().unwrap_err().to_string(),
            "::1 and 127.0.0.2 are not addresses of one family"
        );
        let long = parse("--target 127.0.0.1 --local 127.0.0.2 --rw read --bs 65M --qd 1").unwrap();
        assert!(long.session().unwrap_err().to_string().contains("does not lie between 1 and 64M"));
    }
}
