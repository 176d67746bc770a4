//! `srp_*`: the target, its logical units, access list, listeners and sessions.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::Nothing;
use crate::control::jsonrpc::RpcError;
use crate::control::login::add_target_line;
use crate::control::model::{DEFAULT_TARGET, Lun, Model, Target};
use crate::target::access::Rule;
use crate::target::handle::{ChannelInfo, SessionInfo, ShardStats};
use crate::target::identity::lun_names;
use crate::target::limits::{Admission, Limits};
use crate::target::listener::Listener;
use crate::target::snapshot::Identity;
use crate::target::stages::{Spread, StageReading};

/// Service port if none is given.
const DEFAULT_PORT: u16 = 5555;

/// Parameters of `srp_create_target`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateTarget {
    name: Option<String>,
    id_ext: Option<String>,
    ioc_guid: Option<String>,
    max_channels: Option<u32>,
    max_sessions: Option<u32>,
    max_channels_per_session: Option<u32>,
}

pub(super) fn create_target(model: &mut Model, params: CreateTarget) -> Result<Value, RpcError> {
    let own = model.keeper().identity();
    let identity = Identity {
        id_ext: params.id_ext.map_or(Ok(own.id_ext), |digits| hex16("id_ext", &digits))?,
        ioc_guid: params.ioc_guid.map_or(Ok(own.ioc_guid), |digits| hex16("ioc_guid", &digits))?,
    };
    let name = params.name.as_deref().unwrap_or(DEFAULT_TARGET);
    let admission = Admission {
        max_channels: params.max_channels,
        max_sessions: params.max_sessions,
        max_channels_per_session: params.max_channels_per_session,
    };
    model.create_target(name, identity, admission)?;
    Ok(json!(name))
}

/// Parameters of `srp_target_set_limits`: what is not named stays, 0 is what the process was
/// started with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SetLimits {
    target: Option<String>,
    max_channels: Option<u32>,
    max_sessions: Option<u32>,
    max_channels_per_session: Option<u32>,
}

pub(super) fn set_limits(model: &mut Model, params: SetLimits) -> Result<Value, RpcError> {
    let before = model.target_named(params.target.as_deref())?.admission;
    let next = |wanted: Option<u32>, before| wanted.map_or(before, |limit| (limit > 0).then_some(limit));
    let admission = Admission {
        max_channels: next(params.max_channels, before.max_channels),
        max_sessions: next(params.max_sessions, before.max_sessions),
        max_channels_per_session: next(params.max_channels_per_session, before.max_channels_per_session),
    };
    model.set_admission(params.target.as_deref(), admission).map(|()| json!(true))
}

/// The limits by the names of their parameters.
pub(super) fn admission_words(admission: &Admission) -> [(&'static str, Option<u32>); 3] {
    [
        ("max_channels", admission.max_channels),
        ("max_sessions", admission.max_sessions),
        ("max_channels_per_session", admission.max_channels_per_session),
    ]
}

fn hex16(what: &str, digits: &str) -> Result<u64, RpcError> {
    match u64::from_str_radix(digits, 16) {
        Ok(value) if digits.len() == 16 && !digits.starts_with('+') => Ok(value),
        _ => Err(RpcError::params(format!("{what}: \"{digits}\" is not 16 hexadecimal digits"))),
    }
}

/// Parameters of `srp_delete_target`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteTarget {
    name: String,
}

pub(super) fn delete_target(model: &mut Model, params: DeleteTarget) -> Result<Value, RpcError> {
    model.delete_target(&params.name).map(|()| json!(true))
}

/// Parameters of `srp_target_add_lun`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddLun {
    target: Option<String>,
    lun: Option<u64>,
    bdev_name: String,
    uuid: Option<Uuid>,
    #[serde(default)]
    read_only: bool,
}

pub(super) fn add_lun(model: &mut Model, params: AddLun) -> Result<Value, RpcError> {
    let uuid = match params.uuid {
        Some(uuid) => uuid,
        None => model.device(&params.bdev_name)?.uuid(),
    };
    let lun = Lun { bdev: params.bdev_name, uuid, read_only: params.read_only };
    model.add_lun(params.target.as_deref(), params.lun, lun).map(|number| json!(number))
}

/// Parameters of `srp_target_remove_lun`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveLun {
    target: Option<String>,
    lun: u64,
}

pub(super) fn remove_lun(model: &mut Model, params: RemoveLun) -> Result<Value, RpcError> {
    model.remove_lun(params.target.as_deref(), params.lun).map(|()| json!(true))
}

/// Parameters of `srp_target_add_listener`: an address with its port, or a socket of shared memory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenerParams {
    target: Option<String>,
    address: Option<String>,
    port: Option<u16>,
    shm: Option<PathBuf>,
}

impl ListenerParams {
    fn read(&self) -> Result<Listener, RpcError> {
        match (&self.address, &self.shm, self.port) {
            (Some(address), None, port) => read_address(address, port.unwrap_or(DEFAULT_PORT)),
            (None, Some(path), None) if path.is_absolute() => Ok(Listener::Shm(path.clone())),
            (None, Some(path), None) => {
                Err(RpcError::params(format!("shm: \"{}\" is no absolute path", path.display())))
            }
            (None, None, _) => Err(RpcError::params("either address or shm is needed")),
            (_, Some(_), _) => Err(RpcError::params("shm: a socket has neither address nor port")),
        }
    }
}

fn read_address(address: &str, port: u16) -> Result<Listener, RpcError> {
    let bad = |why: &str| RpcError::params(format!("address: \"{address}\" {why}"));
    if port == 0 {
        return Err(RpcError::params("port: 0 is no port: 1 to 65535"));
    }
    let ip_scope = match address.split_once('%') {
        Some((ip, scope)) => (ip, scope.parse().map_err(|_| bad("has no interface number behind %"))?),
        None => (address, 0),
    };
    let ip: IpAddr = ip_scope.0.parse().map_err(|_| bad("is no IP address"))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(bad("is not the address of one machine"));
    }
    Ok(Listener::Ip(match ip {
        IpAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, ip_scope.1)),
        IpAddr::V4(_) if ip_scope.1 != 0 => {
            return Err(bad("has a scope, which only IPv6 addresses have"));
        }
        ip => SocketAddr::new(ip, port),
    }))
}

/// A listener as the parameters of `srp_target_add_listener`.
pub fn listener_params(listener: &Listener) -> Value {
    match listener {
        Listener::Shm(path) => json!({"shm": path}),
        Listener::Ip(SocketAddr::V6(v6)) if v6.scope_id() != 0 => {
            json!({"address": format!("{}%{}", v6.ip(), v6.scope_id()), "port": v6.port()})
        }
        Listener::Ip(address) => json!({"address": address.ip().to_string(), "port": address.port()}),
    }
}

pub(super) fn add_listener(model: &mut Model, params: ListenerParams) -> Result<Value, RpcError> {
    let listener = params.read()?;
    model.add_listener(params.target.as_deref(), listener.clone())?;
    Ok(listener_words(model.target_named(params.target.as_deref())?, &listener))
}

/// Parameters of `srp_target_remove_listener`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveListener {
    target: Option<String>,
    address: Option<String>,
    port: Option<u16>,
    shm: Option<PathBuf>,
    #[serde(default)]
    end_sessions: bool,
}

pub(super) fn remove_listener(model: &mut Model, params: RemoveListener) -> Result<Value, RpcError> {
    let RemoveListener { target, address, port, shm, end_sessions } = params;
    let listener = ListenerParams { target, address, port, shm };
    model.remove_listener(listener.target.as_deref(), listener.read()?, end_sessions).map(|()| json!(true))
}

/// Parameters of `srp_target_add_initiator` and `srp_target_remove_initiator`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Initiator {
    target: Option<String>,
    initiator: String,
}

impl Initiator {
    fn read(&self) -> Result<Rule, RpcError> {
        self.initiator.parse().map_err(|error| RpcError::params(format!("initiator: {error}")))
    }
}

pub(super) fn add_initiator(model: &mut Model, params: Initiator) -> Result<Value, RpcError> {
    model.add_initiator(params.target.as_deref(), params.read()?).map(|()| json!(true))
}

pub(super) fn remove_initiator(model: &mut Model, params: Initiator) -> Result<Value, RpcError> {
    model.remove_initiator(params.target.as_deref(), params.read()?).map(|()| json!(true))
}

pub(super) fn get_targets(model: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    let limits = *model.limits();
    Ok(model.target().into_iter().map(|target| describe(target, &limits)).collect())
}

fn describe(target: &Target, limits: &Limits) -> Value {
    // What cannot be lowered so far was refused when it was asked for.
    let limits = limits.lowered(&target.admission).unwrap_or(*limits);
    let luns: Vec<Value> = target
        .luns
        .iter()
        .map(|(number, lun)| {
            let names = lun_names(&target.identity, lun.uuid);
            json!({
                "lun": number,
                "bdev_name": lun.bdev,
                "read_only": lun.read_only,
                "uuid": lun.uuid.to_string(),
                "naa": format!("{:016x}", names.naa),
                "serial": names.serial,
            })
        })
        .collect();
    let listeners: Vec<Value> =
        target.listeners.iter().map(|listener| listener_words(target, listener)).collect();
    json!({
        "name": target.name,
        "id_ext": format!("{:016x}", target.identity.id_ext),
        "ioc_guid": format!("{:016x}", target.identity.ioc_guid),
        "luns": luns,
        "listeners": listeners,
        "initiators": target.rules.iter().map(Rule::to_string).collect::<Vec<_>>(),
        "max_channels": limits.max_channels,
        "max_sessions": limits.max_sessions,
        "max_channels_per_session": limits.max_channels_per_session,
    })
}

fn listener_words(target: &Target, listener: &Listener) -> Value {
    let mut words = listener_params(listener);
    words["add_target"] = json!(add_target_line(&target.identity, listener));
    words
}

pub(super) fn get_sessions(model: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    Ok(model.handle().sessions()?.iter().map(session).collect())
}

fn session(session: &SessionInfo) -> Value {
    let sum = |of: fn(&ChannelInfo) -> u64| session.channels.iter().map(of).sum::<u64>();
    json!({
        "initiator": session.id.initiator.to_string(),
        "target": format!("{:#034x}", u128::from_be_bytes(session.id.target)),
        "address": session.channels.first().map(|channel| channel.peer.to_string()),
        "commands": sum(|channel| channel.commands_total),
        "read_bytes": sum(|channel| channel.read_bytes),
        "written_bytes": sum(|channel| channel.written_bytes),
        "channels": session.channels.iter().map(channel).collect::<Vec<_>>(),
    })
}

fn channel(channel: &ChannelInfo) -> Value {
    let ending = channel.ending.as_ref();
    json!({
        "index": channel.index,
        "shard": channel.shard,
        "qpn": channel.qpn,
        "state": channel.state,
        "ends_because": ending.map(|ending| &ending.why),
        "ends_since_ms": ending.map(|ending| ending.since_ms),
        "end_waits_for": ending.map(|ending| &ending.waits_for),
        "local": channel.local.map(|local| local.to_string()),
        "peer": channel.peer.to_string(),
        "credits": channel.credits,
        "commands_now": channel.commands,
        "commands": channel.commands_total,
        "read_bytes": channel.read_bytes,
        "written_bytes": channel.written_bytes,
        "it_iu_bytes": channel.it_iu_bytes,
        "immediate_data": channel.immediate_data,
        "segmented_sends": channel.segmented_sends,
        "age_ms": channel.age_ms,
    })
}

/// Parameters of `srp_session_disconnect`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disconnect {
    initiator: String,
}

pub(super) fn session_disconnect(model: &mut Model, params: Disconnect) -> Result<Value, RpcError> {
    let sessions = model.handle().sessions()?;
    let wanted: Vec<_> = match params.initiator.parse() {
        Ok(Rule::Initiator(id)) => sessions.iter().filter(|session| session.id.initiator == id).collect(),
        _ => {
            let message = format!("initiator: \"{}\" is no initiator port id", params.initiator);
            return Err(RpcError::params(message));
        }
    };
    if wanted.is_empty() {
        return Err(RpcError::missing(format!("{} is not logged in", params.initiator)));
    }
    let mut channels = 0;
    for session in wanted {
        channels += model.handle().disconnect_session(session.id)?;
    }
    Ok(json!({"channels": channels}))
}

/// Parameters of `srp_get_stages`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetStages {
    /// Of this logical unit; of all if there is none.
    lun: Option<u64>,
    /// Count anew from now on.
    #[serde(default)]
    reset: bool,
}

/// `{"classes": [...]}`, sorted by LUN, reads before writes, small before large. A class that has
/// seen no command is not there. Each is
/// `{"lun": 0, "operation": "read", "size": "<=4k", "commands": 12345, "lat_us": {...}}`: the operation is
/// `read`, `write` or `other` (then the size is `any`), and `lat_us` has the stages of
/// [`Stage`](crate::target::stages::Stage) by name, `receive`, `buffer`, `rdma_read`, `backend`,
/// `response`, and `total`, which is their sum command by command. A stage is
/// `{"mean": ..., "p50": ..., "p90": ..., "p99": ..., "p99.9": ..., "max": ...}` in microseconds; mean and
/// max are exact, a percentile is up to an eighth too long.
pub(super) fn get_stages(model: &mut Model, params: GetStages) -> Result<Value, RpcError> {
    let lun = match params.lun {
        None => None,
        Some(number) => {
            let there = u16::try_from(number).ok().filter(|number| model.has_lun(*number));
            Some(there.ok_or_else(|| RpcError::missing(format!("there is no LUN {number}")))?)
        }
    };
    let classes = model.handle().stages(lun, params.reset)?;
    Ok(json!({"classes": classes.iter().map(stages).collect::<Vec<_>>()}))
}

fn stages(class: &StageReading) -> Value {
    let lat_us: Map<String, Value> =
        class.named().map(|(name, spread)| (name.to_owned(), spread_words(spread))).collect();
    json!({
        "lun": class.lun,
        "operation": class.class.operation(),
        "size": class.class.size(),
        "commands": class.total().count(),
        "lat_us": lat_us,
    })
}

fn spread_words(spread: &Spread) -> Value {
    let at = |quantile| spread.quantile_ns(quantile) as f64 / 1000.0;
    json!({
        "mean": spread.mean_ns() / 1000.0,
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "p99.9": at(0.999),
        "max": spread.max_ns() as f64 / 1000.0,
    })
}

/// Parameters of `srp_get_pending`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetPending {
    #[serde(default)]
    min_age_ms: u64,
    max_tasks: Option<u32>,
}

/// Commands that `srp_get_pending` lists if it is not told how many.
const PENDING_TASKS: u32 = 256;

pub(super) fn get_pending(model: &mut Model, params: GetPending) -> Result<Value, RpcError> {
    let most = params.max_tasks.unwrap_or(PENDING_TASKS) as usize;
    let pending = model.handle().pending(Duration::from_millis(params.min_age_ms), most)?;
    let tasks = pending.tasks.iter().map(|task| {
        json!({
            "initiator": task.session.map(|session| session.initiator.to_string()),
            "shard": task.shard,
            "tag": task.tag,
            "lun": task.lun,
            "operation": task.operation,
            "lba": task.lba,
            "blocks": task.blocks,
            "state": task.state,
            "age_ms": task.age_ms,
            "orphan": task.orphan,
            "fence": task.fence,
        })
    });
    let queue_pairs = pending.queue_pairs.iter().map(|qp| {
        json!({
            "qpn": qp.qpn,
            "shard": qp.shard,
            "state": qp.state,
            "ended_because": qp.why,
            "waits_for": qp.waits_for,
            "since_ms": qp.since_ms,
            "tasks_held": qp.held,
        })
    });
    Ok(json!({
        "tasks": tasks.collect::<Vec<_>>(),
        "more_tasks": pending.more,
        "queue_pairs": queue_pairs.collect::<Vec<_>>(),
    }))
}

pub(super) fn get_stats(model: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    let shards: Vec<Value> = model.handle().shard_stats()?.iter().map(shard).collect();
    Ok(json!({"shards": shards}))
}

fn shard(stats: &ShardStats) -> Value {
    let counters: Map<String, Value> =
        stats.counters.iter().map(|&(name, count)| (name.to_owned(), json!(count))).collect();
    json!({
        "shard": stats.shard,
        "core": stats.core,
        "channels": stats.channels,
        "tasks": stats.tasks,
        "recv_posted": stats.recv_posted,
        "chunks_free": stats.chunks_free,
        "busy_ns": stats.reactor.busy_ns,
        "idle_ns": stats.reactor.idle_ns,
        "asleep_ns": stats.reactor.asleep_ns,
        "counters": counters,
    })
}
