//! `srpoll perf`: an SRP initiator in user space that loads a logical unit, measures and verifies.

mod drive;
mod progress;
mod report;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use reactors::reactor::Idle;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::endpoint::{DEFAULT_PORT, Endpoint, ShmEndpoint};
use super::units;
use crate::initiator::SessionConfig;
use crate::initiator::load::{Pattern, Stop, Workload};
use crate::rdma::soft::Fault;
use crate::wire::scsi::lun::Lun;
use crate::wire::srp::PortId;

/// How long after a loss a session is made anew.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Data buffers are no shorter than this, so that looking for foreign data takes few commands.
const MIN_BUFFER_BYTES: u32 = 64 << 10;

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
    #[arg(long, value_name = "IP[:PORT]", required_unless_present = "shm", value_parser = |text: &str| units::address_port(text, DEFAULT_PORT))]
    target: Option<SocketAddr>,
    /// Our own address; needs UDP port 4791 of it
    #[arg(long, value_name = "IP", required_unless_present_any = ["ibv", "shm"], value_parser = |text: &str| units::address(text, 0))]
    local: Option<SocketAddr>,
    /// Our own address, on an RDMA adapter that is used through libibverbs
    #[arg(long, value_name = "IP", conflicts_with_all = ["local", "fault", "singly"], value_parser = |text: &str| units::address(text, 0))]
    ibv: Option<SocketAddr>,
    /// The socket of a target on this host, in place of --target and --local: shared memory
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["target", "local", "ibv", "fault", "singly"])]
    shm: Option<PathBuf>,
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
    #[arg(long, value_name = "N", required_unless_present = "qd_sweep", value_parser = clap::value_parser!(u32).range(1..=16384))]
    qd: Option<u32>,
    /// In place of --qd: a run for each of these depths, e.g. 1,2,4,8,16,32; prints a table
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["qd", "rate"], value_parser = clap::value_parser!(u32).range(1..=16384))]
    qd_sweep: Option<Vec<u32>>,
    /// I/Os a second at most, at even distances; latency counts from when an I/O was due, so that what waits
    /// behind a slow one is seen. --idle spin keeps the distances exact
    #[arg(long, value_name = "IOPS")]
    rate: Option<NonZeroU64>,
    /// Send new I/Os so many at a time, once so many have ended
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16384))]
    batch: u32,
    /// Channels of the session
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    channels: u32,
    /// How long to run, with --qd-sweep each run [default: 10s]
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
    /// One packet a send and a receive, without UDP checksums, as rdma_rxe has them: what such a peer costs
    /// the target
    #[arg(long)]
    singly: bool,
    /// Check all data: blocks are written before they are read, and read back at the end
    #[arg(long)]
    verify: bool,
    /// Write to a logical unit that holds somebody's data
    #[arg(long)]
    overwrite: bool,
    /// Make a lost session anew and go on
    #[arg(long)]
    reconnect: bool,
    /// Print one JSON object; docs/performance.md has its keys
    #[arg(long)]
    json: bool,
    /// Draw latency against IOPS (--qd-sweep), or latency by percentile, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also print how long the target had the I/Os in which stage; it must be on this host. Counting
    /// begins anew with the run
    #[arg(long)]
    stages: bool,
    /// UNIX socket of the target, for --stages [default: /run/srpoll.sock, else $XDG_RUNTIME_DIR/srpoll.sock]
    #[arg(long, value_name = "SOCKET", requires = "stages")]
    rpc: Option<PathBuf>,
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
    if let Some(shm) = args.shm_endpoint()? {
        return drive::run(args, shm.device()?, args.session(shm.session())?, core, &stop);
    }
    let endpoint = args.endpoint().context("--target, and --local or --ibv, say who talks to whom")?;
    let config = args.session(endpoint.session()?)?;
    let sleeps = matches!(args.idle, Idle::Sleep { .. });
    match args.ibv {
        Some(local) => drive::run(args, super::adapter::device(local, sleeps)?, config, core, &stop),
        None => drive::run(args, endpoint.device()?, config, core, &stop),
    }
}

impl PerfArgs {
    fn port(&self) -> PortId {
        match (self.id_ext, self.ioc_guid) {
            (Some(id_ext), Some(ioc_guid)) => PortId::new(id_ext, ioc_guid),
            _ => PortId::UNSPECIFIED,
        }
    }

    fn endpoint(&self) -> Option<Endpoint> {
        let (target, local) = (self.target?, self.local.or(self.ibv)?);
        Some(Endpoint { target, local, port: self.port(), fault: self.fault, singly: self.singly })
    }

    fn shm_endpoint(&self) -> anyhow::Result<Option<ShmEndpoint>> {
        let endpoint = |socket| ShmEndpoint::new(socket, self.port(), self.idle);
        self.shm.clone().map(endpoint).transpose().context("no name for an initiator over shared memory")
    }

    /// Whom we log in to, in words.
    fn target_words(&self) -> String {
        match (&self.shm, self.target) {
            (Some(path), _) => path.display().to_string(),
            (None, target) => target.map(|target| target.to_string()).unwrap_or_default(),
        }
    }

    /// The session that the workload needs, from the habits of its endpoint.
    fn session(&self, habits: SessionConfig) -> anyhow::Result<SessionConfig> {
        let io_bytes = u32::try_from(self.bs).ok().filter(|&bytes| bytes > 0 && bytes <= 64 << 20);
        let io_bytes = io_bytes.ok_or_else(|| anyhow!("--bs {} does not lie between 1 and 64M", self.bs))?;
        Ok(SessionConfig {
            channels: self.channels,
            depth: self.depths().into_iter().max().unwrap_or(1).div_ceil(self.channels),
            max_io_bytes: io_bytes.max(MIN_BUFFER_BYTES),
            reconnect_delay: self.reconnect.then_some(RECONNECT_DELAY),
            ..habits
        })
    }

    /// The depths of the runs.
    fn depths(&self) -> Vec<u32> {
        self.qd_sweep.clone().unwrap_or_else(|| self.qd.into_iter().collect())
    }

    /// The workload in a word, for plots.
    fn what(&self) -> String {
        let kind = clap::ValueEnum::to_possible_value(&self.rw);
        format!("{} of {} bytes", kind.map_or(String::new(), |kind| kind.get_name().to_owned()), self.bs)
    }

    fn workload(&self, config: &SessionConfig, depth: u32) -> Workload {
        debug_assert!(self.bs <= u64::from(config.max_io_bytes));
        Workload {
            pattern: self.rw.pattern(),
            read_percent: self.rw.read_percent(self.mix),
            io_bytes: self.bs as u32,
            depth,
            stop: match self.ios {
                Some(ios) => Stop::Ios(ios),
                None => Stop::After(self.time.unwrap_or(Duration::from_secs(10))),
            },
            verify: self.verify,
            seed: fastrand::u64(..),
            run: fastrand::u64(..),
        }
    }
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

    fn session(args: &PerfArgs) -> anyhow::Result<SessionConfig> {
        args.session(args.endpoint().expect("two addresses").session()?)
    }

    #[test]
    fn a_socket_takes_the_place_of_addresses() {
        let shm = parse("--shm /run/s --rw read --bs 4k --qd 1").unwrap();
        assert_eq!(shm.shm_endpoint().unwrap().unwrap().socket, PathBuf::from("/run/s"));
        assert_eq!(shm.target_words(), "/run/s");
        for both in ["--local 127.0.0.1", "--target 127.0.0.1", "--fault drop=1%", "--singly"] {
            assert!(parse(&format!("--shm /run/s {both} --rw read --bs 4k --qd 1")).is_err(), "{both}");
        }
        for half in ["", "--local 127.0.0.1", "--target 127.0.0.1"] {
            assert!(parse(&format!("{half} --rw read --bs 4k --qd 1")).is_err(), "{half}");
        }
    }

    #[test]
    fn the_line_of_the_manual_is_understood() {
        let args = parse(&format!(
            "{BASE} --lun 5 --mix 60 --channels 8 --time 3s --cores 1 --idle spin --verify --overwrite \
             --fault drop=1%,dup=1%,reorder=1% --reconnect --json"
        ))
        .unwrap();
        assert_eq!(args.target_words(), "127.0.0.1:5555");
        let config = session(&args).unwrap();
        assert_eq!((config.channels, config.depth, config.max_io_bytes), (8, 4, 65536));
        assert_eq!(config.target, PortId::UNSPECIFIED);
        let workload = args.workload(&config, 32);
        assert_eq!(
            (workload.pattern, workload.read_percent, workload.stop),
            (Pattern::Random, 60, Stop::After(Duration::from_secs(3)))
        );
        let named = format!("{BASE} --id-ext 0000000000000001 --ioc-guid 0000000000000002 --ios 7");
        let args = parse(&named).unwrap();
        assert_eq!(session(&args).unwrap().target, PortId::new(1, 2));
        assert_eq!(args.workload(&session(&args).unwrap(), 1).stop, Stop::Ios(7));
    }

    #[test]
    fn a_sweep_has_a_run_for_each_depth() {
        let base = "--target 127.0.0.1 --local 127.0.0.2 --rw read --bs 4k";
        let args = parse(&format!("{base} --channels 2 --qd-sweep 1,32,8 --plot x.svg")).unwrap();
        assert_eq!((args.depths(), session(&args).unwrap().depth), (vec![1, 32, 8], 16));
        assert_eq!(args.what(), "read of 4096 bytes");
        for (more, words) in [
            ("", "--qd"),
            ("--qd-sweep 1,0", "0"),
            ("--qd-sweep 1 --qd 2", "cannot be used with"),
            ("--qd-sweep 1,2 --rate 100", "cannot be used with"),
            ("--qd 1 --rate 0", "zero"),
            ("--qd 1 --rpc x", "--stages"),
        ] {
            let error = parse(&format!("{base} {more}")).unwrap_err();
            assert!(error.contains(words), "{more}: {error}");
        }
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
            session(&mixed).unwrap_err().to_string(),
            "::1 and 127.0.0.2 are not addresses of one family"
        );
        let long = parse("--target 127.0.0.1 --local 127.0.0.2 --rw read --bs 65M --qd 1").unwrap();
        assert!(session(&long).unwrap_err().to_string().contains("does not lie between 1 and 64M"));
    }
}
