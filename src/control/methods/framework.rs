//! `framework_*`, `rpc_*`, `spdk_*`: about the process itself.

use serde::Deserialize;
use serde_json::{Value, json};

use super::bdev::TICK_RATE;
use super::{METHODS, Nothing};
use crate::control::jsonrpc::RpcError;
use crate::control::model::Model;
use crate::target::handle::ShardStats;

/// Parameters of `rpc_get_methods`; both change nothing here, SPDK's clients send them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetMethods {
    #[serde(rename = "current")]
    _current: Option<bool>,
    #[serde(rename = "include_aliases")]
    _include_aliases: Option<bool>,
}

pub(super) fn get_methods(_: &mut Model, _: GetMethods) -> Result<Value, RpcError> {
    Ok(METHODS.iter().map(|method| method.name).collect())
}

pub(super) fn wait_init(_: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    Ok(json!(true))
}

pub(super) fn get_version(_: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    Ok(json!({
        "version": concat!("srpoll v", env!("CARGO_PKG_VERSION")),
        "fields": {
            "major": number(env!("CARGO_PKG_VERSION_MAJOR")),
            "minor": number(env!("CARGO_PKG_VERSION_MINOR")),
            "patch": number(env!("CARGO_PKG_VERSION_PATCH")),
            "suffix": env!("CARGO_PKG_VERSION_PRE"),
        },
    }))
}

pub(super) fn get_reactors(model: &mut Model, _: Nothing) -> Result<Value, RpcError> {
    let reactors: Vec<Value> = model.handle().shard_stats()?.iter().map(reactor).collect();
    Ok(json!({"tick_rate": TICK_RATE, "pid": std::process::id(), "reactors": reactors}))
}

/// One reactor as SPDK shows it. Sleep is idle time.
fn reactor(stats: &ShardStats) -> Value {
    let reactor = &stats.reactor;
    let threads: Vec<Value> = stats
        .pollers
        .iter()
        .enumerate()
        .map(|(id, name)| json!({"name": name, "id": id + 1, "cpumask": cpumask(stats.core), "elapsed": reactor.busy_ns + reactor.idle_ns + reactor.asleep_ns}))
        .collect();
    json!({
        "lcore": stats.core.unwrap_or(stats.shard),
        "pinned": stats.core.is_some(),
        "tid": stats.tid,
        "busy": reactor.busy_ns,
        "idle": reactor.idle_ns + reactor.asleep_ns,
        "asleep": reactor.asleep_ns,
        "in_interrupt": false,
        "lw_threads": threads,
    })
}

/// The core as a hexadecimal mask; empty if the thread is not pinned.
fn cpumask(core: Option<usize>) -> String {
    match core {
        Some(core) => format!("{:x}{}", 1u8 << (core % 4), "0".repeat(core / 4)),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        for (core, mask) in [(0, "1"), (3, "8"), (4, "10"), (9, "200"), (64, "10000000000000000")] {
            assert_eq!(cpumask(Some(core)), mask);
        }
        assert_eq!(cpumask(None), "");
    }
}
