//! `srpoll serve`: the target.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow};
use reactors::reactor::Idle;
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::adapter;
use super::lun_spec::LunSpec;
use super::units;
use crate::control::farewells::{FarewellFile, Keeping};
use crate::control::jsonrpc::Call;
use crate::control::login::add_target_line;
use crate::control::methods::{self, CallList};
use crate::control::model::Model;
use crate::control::server::{Event, Server};
use crate::control::socket;
use crate::control::watch::Watch;
use crate::rdma::soft::Fault;
use crate::target::access::Rule;
use crate::target::handle::{Hugepages, Provider, StartConfig, TargetHandle};
use crate::target::identity::{Keeper, Origin, default_folders};
use crate::target::limits::{Limits, Wishes};
use crate::target::listener::Listener;
use crate::target::snapshot::Snapshot;
use crate::unix::{self, OwnedSocket};

/// Serve block devices as an SRP target.
///
/// Prints one line a listener for /sys/class/infiniband_srp/PORT/add_target of a Linux
/// initiator (with --shm the socket, for srpoll perf --shm), then "ready". Logs go to standard error; SRPOLL_LOG sets what is logged (info).
/// Sizes are numbers with k, M, G or T (powers of 1024), times numbers with us, ms, s, m or h.
#[derive(clap::Args, Debug)]
#[allow(rustdoc::broken_intra_doc_links, reason = "these are the texts of --help, brackets and all")]
pub struct ServeArgs {
    /// Address to serve over the built-in RoCEv2 provider (UDP port 4791), with a service port
    /// other than --port as IP:PORT or [IPV6]:PORT. Repeat for more
    #[arg(long, value_name = "IP", num_args = 1.., required_unless_present_any = ["config", "ibv", "shm"])]
    soft: Vec<String>,
    /// RDMA adapter to serve on through libibverbs in place of --soft, with RDMA-CM: by its name
    /// (all its addresses, or those of one of its ports) or by addresses of it, as --soft has them
    #[arg(long, value_name = "DEVICE[/HCAPORT]|IP", num_args = 1.., conflicts_with_all = ["soft", "fault"])]
    ibv: Vec<String>,
    /// UNIX socket to serve processes of this host at, over shared memory, in place of --soft; for
    /// processes of the same user and of root
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["soft", "ibv", "fault"])]
    shm: Option<PathBuf>,
    /// Service port that initiators name in dest=IP:PORT
    #[arg(long, value_name = "PORT", default_value = "5555", value_parser = units::port)]
    port: u16,
    /// Logical unit: [N=]uring:PATH, [N=]malloc:SIZE or [N=]null:SIZE, then any of ,ro
    /// ,block=512|4096 ,uuid=U. A comma in PATH is written ",,". Without N the lowest free
    /// number. Repeat for more
    #[arg(long, value_name = "SPEC", num_args = 1.., required_unless_present = "config")]
    lun: Vec<LunSpec>,
    /// Who may log in: any, an initiator port id (up to 32 hex digits), an address or
    /// ADDRESS/BITS. Without this only peers on loopback addresses. Repeat for more
    #[arg(long, value_name = "any|ID|IP", num_args = 1..)]
    allow: Vec<Rule>,
    /// Cores to poll on, one reactor each, as 0,1 or 0-3; "any" is a reactor that is not pinned
    /// [default: one that is not pinned]
    #[arg(long, value_name = "LIST", value_parser = units::cores)]
    cores: Option<CoreList>,
    /// UNIX socket of the JSON-RPC server [default: /run/srpoll.sock, else
    /// $XDG_RUNTIME_DIR/srpoll.sock]
    #[arg(long, value_name = "SOCKET")]
    rpc: Option<PathBuf>,
    /// Calls to make before those of the flags, as save_config writes them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder that keeps the identity of this instance [default: a folder for each --rpc socket
    /// in /var/lib/srpoll, else in $XDG_STATE_HOME/srpoll]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Identifier extension of the target port, 16 hex digits [default: kept in --state]
    #[arg(long, value_name = "H", value_parser = units::hex16)]
    id_ext: Option<u64>,
    /// I/O controller GUID of the target port, 16 hex digits [default: kept in --state]
    #[arg(long, value_name = "H", value_parser = units::hex16)]
    ioc_guid: Option<u64>,
    /// Memory of each reactor for receive slots and data
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = units::size)]
    memory: u64,
    /// What a reactor without work does: spin, or sleep after it found none for so long
    #[arg(long, value_name = "spin|sleep[:TIME]", default_value = "sleep:50us", value_parser = units::idle)]
    idle: Idle,
    /// Huge pages: auto takes them if there are any, require fails without, off never does
    #[arg(long, value_name = "auto|require|off", default_value = "auto", value_parser = units::hugepages)]
    hugepages: Hugepages,
    /// A peer that acknowledges nothing for so long is dead
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    dead_after: Duration,
    /// How long a stop waits for commands in progress
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = units::duration)]
    drain_timeout: Duration,
    /// Most channels of all sessions
    #[arg(long, value_name = "N", default_value_t = Wishes::default().max_channels)]
    max_channels: u32,
    /// Most sessions
    #[arg(long, value_name = "N", default_value_t = Wishes::default().max_sessions)]
    max_sessions: u32,
    /// Faults to inject into packets, for tests: drop=1%,dup=1%,reorder=1%,corrupt=0.1%,rcvbuf=SIZE,seed=N
    #[arg(long, value_name = "SPEC", value_parser = units::fault)]
    fault: Option<Fault>,
}

/// Cores as clap must see them: one value, not many.
type CoreList = Vec<Option<usize>>;

/// Serves until a signal comes.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    super::start_log("info");
    // Everything that can be wrong with words is found before anything is touched.
    let mut listeners = args.listeners()?;
    let limits = Limits::new(&args.wishes())?;
    let cores = args.cores.clone().unwrap_or_else(|| vec![None]);
    reactors::affinity::check(&cores.iter().flatten().copied().collect::<Vec<_>>()).context("--cores")?;
    let config = args.config.as_deref().map(read_config).transpose()?.unwrap_or_default();

    let mut provider = Provider::Soft { fault: args.fault };
    if !args.ibv.is_empty() {
        let addresses;
        (provider, addresses) = adapter::find(&args.ibv, args.port)?;
        listeners = addresses.into_iter().map(Listener::Ip).collect();
    }
    if args.shm.is_some() {
        provider = Provider::Shm;
    }

    let socket_path = match &args.rpc {
        Some(path) => std::path::absolute(path)?,
        None => socket::default_for_server()?,
    };
    let socket = OwnedSocket::bind(&socket_path, socket::RPC_SOCKET)?;
    let keeper = args.keeper(listeners.first(), &socket_path)?;
    let farewell_file = match keeper.origin() {
        Origin::Kept { folder, .. } => Some(FarewellFile::in_folder(folder)),
        Origin::Derived(_) => None,
    };
    let (events_to, events) = mpsc::channel();
    let mut files = socket.files().to_vec();
    files.extend(args.shm.iter().flat_map(|path| unix::files_of(path)));
    watch_signals(files, events_to.clone()).context("signals cannot be caught")?;
    let changed_to = events_to.clone();

    let handle = crate::target::start(&StartConfig {
        cores,
        idle: args.idle,
        hugepages: args.hugepages,
        snapshot: Arc::new(Snapshot::empty(limits)),
        provider,
    })?;
    let stop = handle.clone();
    let mut model = Model::new(handle, keeper, limits);
    let watch = Watch::start(model.registry(), changed_to).context("no thread to watch files")?;
    let result = configure(&mut model, &args, config, &listeners)
        .and_then(|()| Server::start(socket, events_to).context("no thread for the RPC server"))
        .and_then(|server| {
            let keeping = farewell_file.map(|file| take_over(file, model.handle())).transpose()?;
            let served = serve(&mut model, server, &events, args.drain_timeout);
            keeping.into_iter().for_each(Keeping::finish);
            served
        });
    drop(watch);
    stop.stop().context("the reactors did not stop")?;
    result.map(|()| ExitCode::SUCCESS)
}

impl ServeArgs {
    fn provider_flag(&self) -> &'static str {
        match (&self.shm, self.ibv.is_empty()) {
            (Some(_), _) => "--shm",
            (None, false) => "--ibv",
            (None, true) => "--soft",
        }
    }

    fn wishes(&self) -> Wishes {
        Wishes {
            memory_bytes: self.memory,
            max_channels: self.max_channels,
            max_sessions: self.max_sessions,
            dead_after: self.dead_after,
            drain_timeout: self.drain_timeout,
        }
    }

    fn listeners(&self) -> anyhow::Result<Vec<Listener>> {
        let mut listeners = Vec::new();
        if let Some(path) = &self.shm {
            listeners.push(Listener::Shm(std::path::absolute(path).context("--shm")?));
        }
        for text in &self.soft {
            let listener =
                units::address_port(text, self.port).map_err(|why| anyhow!("--soft {text}: {why}"))?;
            let listener = Listener::Ip(listener);
            if listeners.contains(&listener) {
                return Err(anyhow!("--soft {text}: given twice"));
            }
            listeners.push(listener);
        }
        Ok(listeners)
    }

    /// Who this instance is: by `--state`, else by a folder that can be made, else derived.
    fn keeper(&self, first_listener: Option<&Listener>, socket: &Path) -> anyhow::Result<Keeper> {
        if let Some(folder) = &self.state {
            return Ok(Keeper::in_folder(folder)?);
        }
        let instance = instance_name(socket);
        let mut refused = String::new();
        for folder in default_folders(&instance) {
            match Keeper::in_folder(&folder) {
                Err(crate::target::identity::StateError::Io { path, why }) => {
                    refused = format!("{}: {why}", path.display());
                }
                kept_or_wrong => return Ok(kept_or_wrong?),
            }
        }
        let first_address = match first_listener {
            Some(Listener::Ip(address)) => Some(*address),
            Some(Listener::Shm(_)) | None => None,
        };
        let keeper = Keeper::derived(first_address, &instance);
        if let Origin::Derived(from) = keeper.origin() {
            tracing::warn!("no state folder ({refused}); the identity is derived from {from}");
        }
        Ok(keeper)
    }
}

/// The name of an instance: the path of its socket, which no other on the host has.
fn instance_name(socket: &Path) -> String {
    let path = socket.to_string_lossy();
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    path.trim_start_matches('/').chars().map(safe).collect()
}

fn read_config(path: &Path) -> anyhow::Result<CallList> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|why| anyhow!("--config {shown}: {why}"))?;
    CallList::read(&text).map_err(|why| anyhow!("--config {shown}: {why}"))
}

/// Makes the calls of the file, then those of the flags.
fn configure(
    model: &mut Model,
    args: &ServeArgs,
    config: CallList,
    listeners: &[Listener],
) -> anyhow::Result<()> {
    if let Some(path) = &args.config {
        config.make(model).map_err(|why| anyhow!("--config {}: {why}", path.display()))?;
    }
    create_target(model, args)?;
    // Those with a number first, so that none of the others takes it.
    let (numbered, others): (Vec<_>, Vec<_>) = args.lun.iter().partition(|spec| spec.lun.is_some());
    for spec in numbered.into_iter().chain(others) {
        add_lun(model, spec).map_err(|why| anyhow!("--lun {}: {why}", spec.text))?;
    }
    for rule in &args.allow {
        let params = json!({"initiator": rule.to_string()});
        call(model, "srp_target_add_initiator", params).map_err(|why| anyhow!("--allow {rule}: {why}"))?;
    }
    for listener in listeners {
        let params = methods::listener_params(listener);
        call(model, "srp_target_add_listener", params)
            .map_err(|why| anyhow!("{} {listener}: {why}", args.provider_flag()))?;
    }
    Ok(())
}

/// Makes the target unless the file has; then the flags must not want another identity.
fn create_target(model: &mut Model, args: &ServeArgs) -> anyhow::Result<()> {
    if let Some(there) = model.target() {
        for (flag, wanted, has) in [
            ("--id-ext", args.id_ext, there.identity.id_ext),
            ("--ioc-guid", args.ioc_guid, there.identity.ioc_guid),
        ] {
            if let Some(wanted) = wanted.filter(|&wanted| wanted != has) {
                return Err(anyhow!("{flag} {wanted:016x}: the target of the --config file has {has:016x}"));
            }
        }
        return Ok(());
    }
    let mut params = Map::new();
    for (key, value) in [("id_ext", args.id_ext), ("ioc_guid", args.ioc_guid)] {
        if let Some(value) = value {
            params.insert(key.to_owned(), json!(format!("{value:016x}")));
        }
    }
    call(model, "srp_create_target", Value::Object(params)).map(drop)
}

/// The two calls that make a logical unit.
fn add_lun(model: &mut Model, spec: &LunSpec) -> anyhow::Result<()> {
    let free = || model.lowest_free_lun().map(u64::from).ok_or_else(|| anyhow!("every LUN is taken"));
    let number = spec.lun.map_or_else(free, Ok)?;
    // Found before the device is made.
    if let Some(there) = model.target().and_then(|target| target.luns.get(&u16::try_from(number).ok()?)) {
        return Err(anyhow!("LUN {number} is taken already, by bdev {}", there.bdev));
    }
    for call in spec.calls(number)? {
        methods::run(model, call)?;
    }
    Ok(())
}

fn call(model: &mut Model, method: &str, params: Value) -> anyhow::Result<Value> {
    Ok(methods::run(model, Call { method: method.to_owned(), params })?)
}

/// Says where to log in, answers calls until a signal comes, then drains.
fn serve(
    model: &mut Model,
    server: Server,
    events: &mpsc::Receiver<Event>,
    drain_timeout: Duration,
) -> anyhow::Result<()> {
    announce(model).context("standard output")?;
    tracing::info!("RPC at {}", server.path().display());
    loop {
        match events.recv() {
            Ok(Event::Call(call, reply)) => {
                // A client that is gone wants no answer.
                let _ = reply.send(methods::run(model, call));
            }
            Ok(Event::Changed) => {
                if let Err(error) = model.refresh() {
                    tracing::error!("a changed medium was not made known: {error}");
                }
            }
            Ok(Event::Stop) | Err(_) => break,
        }
    }
    drop(server);
    tracing::info!("stopping: commands in progress have {drain_timeout:?}");
    match model.handle().drain(drain_timeout) {
        Ok(0) => {}
        Ok(left) => tracing::warn!("{left} commands were cut off"),
        Err(error) => tracing::warn!("the drain did not end well: {error}"),
    }
    Ok(())
}

/// Ends the connections that a process before this one left open, and keeps account of this one's.
fn take_over(file: FarewellFile, target: &TargetHandle) -> anyhow::Result<Keeping> {
    let left = file.read();
    if !left.is_empty() {
        let (all, told) = (left.len(), target.say_farewells(left)?);
        tracing::info!("{told} of {all} connections that the process before left open are being ended");
    }
    Keeping::start(file, target.clone()).context("no thread to keep account of connections")
}

/// Starts a thread that asks for a stop on the first signal; on the second it removes `files` and stops
/// at once.
fn watch_signals(files: Vec<PathBuf>, events: mpsc::Sender<Event>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let watch = move || {
        let mut seen = false;
        for signal in signals.forever() {
            if seen {
                tracing::warn!("second signal: stopping at once");
                for file in &files {
                    let _ = std::fs::remove_file(file);
                }
                std::process::exit(128 + signal);
            }
            seen = true;
            let _ = events.send(Event::Stop);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

/// The login lines and `ready`, on standard output and flushed.
fn announce(model: &Model) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if let Some(target) = model.target() {
        for listener in &target.listeners {
            writeln!(out, "{}", add_target_line(&target.identity, listener))?;
        }
    }
    writeln!(out, "ready")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_named_by_their_sockets() {
        assert_eq!(instance_name(Path::new("/run/srpoll.sock")), "run_srpoll.sock");
        assert_eq!(instance_name(Path::new("/tmp/a b/ü.sock")), "tmp_a_b__.sock");
    }
}
