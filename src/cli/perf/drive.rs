//! One session and the runs over it, one after the other, whatever device carries it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use super::PerfArgs;
use super::progress::Progress;
use super::report::{self, Measured};
use crate::cli::endpoint::Poll;
use crate::cli::rpc;
use crate::control::socket;
use crate::initiator::load::{Load, LoadError, Workload, find_foreign};
use crate::initiator::scan::{CommandError, LunInfo, Pace, close, scan, wait_live};
use crate::initiator::session::SessionCounters;
use crate::initiator::{Session, SessionConfig};
use crate::rdma::verbs::{Connections, Device};

/// The exit status for a session that was lost.
const STATUS_LOST: u8 = 3;

/// How the runs ended.
enum Ended {
    Measured(Vec<Measured>),
    Lost(String),
}

/// Runs the workload over `device`, on this thread and, if it says so, on `core`; `stop` ends it early.
pub(super) fn run<D: Device + Connections>(
    args: &PerfArgs,
    device: D,
    config: SessionConfig,
    core: Option<usize>,
    stop: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    if let Some(core) = core {
        reactors::affinity::pin(core).context("--cores")?;
    }
    let mut pace = Poll::new(args.idle, &device).context("cannot wait for packets")?;
    let mut session = Session::new(device, config, fastrand::Rng::new())?;
    let outcome = drive(args, &mut session, &mut pace, stop);
    close(&mut session, &mut pace);
    match outcome? {
        Ended::Lost(why) => {
            eprintln!("srpoll: the session was lost: {why}");
            Ok(ExitCode::from(STATUS_LOST))
        }
        Ended::Measured(runs) => tell(args, &runs),
    }
}

/// Prints what the runs came to.
fn tell(args: &PerfArgs, runs: &[Measured]) -> anyhow::Result<ExitCode> {
    let sweep = args.qd_sweep.is_some();
    let errors: u64 = runs.iter().map(|run| run.report.errors).sum();
    let verified: u64 = runs.iter().map(|run| run.report.verified).sum();
    let mut text = match (args.json, sweep) {
        (true, false) => runs.iter().map(|run| format!("{}\n", run.json())).collect(),
        (true, true) => {
            format!("{}\n", json!({"sweep": runs.iter().map(Measured::json).collect::<Vec<_>>()}))
        }
        (false, false) => runs.iter().map(Measured::text).collect(),
        (false, true) => report::sweep_table(runs),
    };
    if args.verify && !args.json {
        text += &format!("verified {verified} I/Os, {errors} errors\n");
    }
    for line in runs.iter().flat_map(|run| &run.report.told) {
        eprintln!("srpoll: {line}");
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")?;
    if let Some(path) = &args.plot {
        report::plot(runs, &args.what()).save(path)?;
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn drive<D: Device + Connections>(
    args: &PerfArgs,
    session: &mut Session<D>,
    pace: &mut Poll,
    stop: &AtomicBool,
) -> anyhow::Result<Ended> {
    let stages = args.stages.then(|| Stages::new(args)).transpose()?;
    session.start(pace.now());
    let who = session.config().initiator;
    wait_live(session, pace).with_context(|| format!("cannot log in to {} as {who}", args.target_words()))?;
    if session.channels() < args.channels {
        tracing::warn!("the target gave {} channels of {}", session.channels(), args.channels);
    }
    let info = match scan(session, pace, args.lun) {
        Ok(info) => info,
        Err(CommandError::Lost(why)) => return Ok(Ended::Lost(why.to_string())),
        Err(error) => return Err(error.into()),
    };
    let mut looked = false;
    let mut runs = Vec::new();
    for depth in args.depths() {
        let workload = args.workload(session.config(), depth);
        let load = load(args, session, &workload, &info)?;
        let writes = args.verify || workload.read_percent < 100;
        if writes && !args.overwrite && !looked {
            looked = true;
            match find_foreign(session, pace, &info, workload.seed) {
                Ok(None) => {}
                Ok(Some(offset)) => bail!(
                    "LUN {} holds data that are not ours, at offset {offset}: --overwrite writes over them",
                    args.lun
                ),
                Err(CommandError::Lost(why)) => return Ok(Ended::Lost(why.to_string())),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(stages) = &stages {
            stages.reset()?;
        }
        let label = (!args.json).then(|| format!("QD {depth}"));
        let mut watch = Progress::new(stop, workload.stop, label);
        let report = match load.run(session, pace, &mut watch) {
            Ok(report) => report,
            Err(LoadError::Lost(why)) => return Ok(Ended::Lost(why.to_string())),
            Err(error) => return Err(error.into()),
        };
        let counters: SessionCounters = *session.counters();
        let (rate, cpu) = (args.rate.map(std::num::NonZeroU64::get), watch.cpu());
        drop(watch);
        let stages = stages.as_ref().map(Stages::read).transpose()?;
        runs.push(Measured { depth, rate, report, cpu, counters, stages });
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(Ended::Measured(runs))
}

fn load<D: Device + Connections>(
    args: &PerfArgs,
    session: &Session<D>,
    workload: &Workload,
    info: &LunInfo,
) -> anyhow::Result<Load> {
    let requests = (session.config().channels * session.config().depth) as usize;
    let mut load = Load::new(*workload, info, requests)?.in_batches(args.batch);
    if let Some(rate) = args.rate {
        load = load.at_rate(rate);
    }
    let io_bytes = u64::from(workload.io_bytes);
    if args.verify && load.reach_bytes() < info.len_bytes() / io_bytes * io_bytes {
        tracing::warn!("LUN {} is large: its first {} bytes are verified", args.lun, load.reach_bytes());
    }
    Ok(load)
}

/// The target's stage histograms, over its RPC socket.
struct Stages {
    socket: PathBuf,
    lun: u16,
}

impl Stages {
    fn new(args: &PerfArgs) -> anyhow::Result<Stages> {
        let stages = Stages {
            socket: args.rpc.clone().unwrap_or_else(socket::default_for_client),
            lun: args.lun.get(),
        };
        stages.read()?;
        Ok(stages)
    }

    fn call(&self, reset: bool) -> anyhow::Result<Value> {
        let params = json!({"lun": self.lun, "reset": reset});
        let answer = rpc::call(&self.socket, "srp_get_stages", params).context("--stages")?;
        answer.map_err(|why| anyhow!("--stages: srp_get_stages: {why}"))
    }

    fn reset(&self) -> anyhow::Result<()> {
        self.call(true).map(drop)
    }

    fn read(&self) -> anyhow::Result<Value> {
        self.call(false).map(|mut answer| answer["classes"].take())
    }
}
