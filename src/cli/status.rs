//! `srpoll status`: what a running instance serves and to whom, at a glance.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::rpc::call;
use crate::control::socket;

/// Show target, logical units, sessions and reactors of a running instance.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    /// UNIX socket of the instance [default: /run/srpoll.sock, else $XDG_RUNTIME_DIR/srpoll.sock]
    #[arg(long, value_name = "SOCKET")]
    rpc: Option<PathBuf>,
}

/// Asks and prints.
pub fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let path = args.rpc.unwrap_or_else(socket::default_for_client);
    let ask =
        |method: &str| call(&path, method, Value::Null)?.map_err(|message| anyhow!("{method}: {message}"));
    let text = report(
        &ask("srp_get_targets")?,
        &ask("bdev_get_bdevs")?,
        &ask("srp_get_sessions")?,
        &ask("framework_get_reactors")?,
        &ask("srp_get_stats")?,
    );
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// The answers as tables.
fn report(targets: &Value, bdevs: &Value, sessions: &Value, reactors: &Value, stats: &Value) -> String {
    let mut text = String::new();
    for target in list(targets) {
        text += &format!("target {}\n", word(&target["name"]));
        for listener in list(&target["listeners"]) {
            text += &format!("  {}\n", word(&listener["add_target"]));
        }
        let allowed: Vec<String> = list(&target["initiators"]).iter().map(word).collect();
        let allowed = if allowed.is_empty() { "loopback peers".to_owned() } else { allowed.join(", ") };
        text += &format!("  may log in: {allowed}\n\n");
        text += &table(&lun_rows(target, bdevs));
        text.push('\n');
    }
    let mut rows = vec![row(["SESSION", "FROM", "CHANNELS", "COMMANDS", "READ", "WRITTEN"])];
    for session in list(sessions) {
        rows.push(vec![
            word(&session["initiator"]),
            word(&session["address"]),
            list(&session["channels"]).len().to_string(),
            word(&session["commands"]),
            size_words(number(&session["read_bytes"])),
            size_words(number(&session["written_bytes"])),
        ]);
    }
    text += &table(&rows);
    text += &notes(sessions);
    text += &ends_words(stats);
    text.push('\n');
    let mut rows = vec![row(["REACTOR", "CORE", "BUSY"])];
    for (at, reactor) in list(&reactors["reactors"]).iter().enumerate() {
        let (busy, idle) = (number(&reactor["busy"]), number(&reactor["idle"]));
        let core = if reactor["pinned"] == true { word(&reactor["lcore"]) } else { "any".to_owned() };
        let permille = u128::from(busy) * 1000 / u128::from(busy + idle).max(1);
        rows.push(vec![at.to_string(), core, format!("{}.{} %", permille / 10, permille % 10)]);
    }
    text + &table(&rows)
}

/// A line for each channel whose packets cannot share sends; and one for each that ends: since when, why, and
/// what it waits for.
pub(super) fn notes(sessions: &Value) -> String {
    let mut lines = String::new();
    for session in list(sessions) {
        for channel in list(&session["channels"]) {
            if channel["segmented_sends"] == false {
                let (index, initiator) = (word(&channel["index"]), word(&session["initiator"]));
                lines += &format!("packets to channel {index} of {initiator} leave one by one\n");
            }
            let Some(why) = channel["ends_because"].as_str() else { continue };
            let waits = channel["end_waits_for"].as_str().unwrap_or_default();
            let waits = if waits.is_empty() { String::new() } else { format!("; waits for {waits}") };
            lines += &format!(
                "channel {} of {} has been ending for {}: {why}{waits}\n",
                word(&channel["index"]),
                word(&session["initiator"]),
                seconds_words(number(&channel["ends_since_ms"]))
            );
        }
    }
    lines
}

pub(super) fn seconds_words(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// What did not go by itself when a channel ended: the names of the counters.
const ESCALATIONS: [&str; 7] = [
    "drains_overdue",
    "err_ignored",
    "err_refused",
    "retires_failed",
    "retires_overdue",
    "recv_lost",
    "queues_renewed",
];
/// What is left of ended channels now.
const LEFT: [&str; 3] = ["channels_draining", "qps_retiring", "orphans_now"];

/// How channels have ended so far and what is left of them, as far as there is something to say.
fn ends_words(stats: &Value) -> String {
    let shards = list(&stats["shards"]);
    let sum = |name: &str| shards.iter().map(|shard| number(&shard["counters"][name])).sum::<u64>();
    let names = shards.first().and_then(|shard| shard["counters"].as_object());
    let exits: Vec<&str> =
        names.into_iter().flat_map(|all| all.keys()).filter_map(|name| name.strip_prefix("ended_")).collect();
    let line = |what: &str, names: &[(&str, u64)]| {
        let counted: Vec<String> = names
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
            .collect();
        if counted.is_empty() { String::new() } else { format!("{what}: {}\n", counted.join(", ")) }
    };
    let exits: Vec<_> = exits.iter().map(|name| (*name, sum(&format!("ended_{name}")))).collect();
    let named = |names: &[&'static str]| names.iter().map(|name| (*name, sum(name))).collect::<Vec<_>>();
    line("channels ended", &exits)
        + &line("trouble with that", &named(&ESCALATIONS))
        + &line("left", &named(&LEFT))
}

/// The logical units of a target, with what their devices are.
pub(super) fn lun_rows(target: &Value, bdevs: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![row(["LUN", "BDEV", "SIZE", "BLOCK", "MODE", "NAA"])];
    for lun in list(&target["luns"]) {
        let bdev = list(bdevs).iter().find(|bdev| bdev["name"] == lun["bdev_name"]).unwrap_or(&Value::Null);
        let block = number(&bdev["block_size"]);
        let writes = bdev["supported_io_types"]["write"] == true && lun["read_only"] != true;
        rows.push(vec![
            word(&lun["lun"]),
            word(&lun["bdev_name"]),
            size_words(number(&bdev["num_blocks"]).saturating_mul(block)),
            block.to_string(),
            (if writes { "rw" } else { "ro" }).to_owned(),
            word(&lun["naa"]),
        ]);
    }
    rows
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

pub(super) fn row<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Bytes in the largest unit that leaves a whole number or at least ten of it.
pub(super) fn size_words(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = |shift: u32| bytes > 0 && (bytes.is_multiple_of(1 << shift) || bytes >= 10 << shift);
    match units.into_iter().find(|&(_, shift)| fits(shift)) {
        Some((unit, shift)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// Columns as wide as their longest word, two blanks between them, none behind.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| {
            rows.iter().filter_map(|row| row.get(at)).map(|word| word.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(word, &width)| format!("{word:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report() {
        let text = report(
            &json!([{
                "name": "srpoll",
                "listeners": [{"add_target": "id_ext=1,ioc_guid=2,dest=127.0.0.1:5555"}],
                "initiators": [],
                "luns": [
                    {"lun": 0, "bdev_name": "uring0", "read_only": false, "naa": "3000000000000001"},
                    {"lun": 10, "bdev_name": "null10", "read_only": true, "naa": "3000000000000002"},
                ],
            }]),
            &json!([
                {"name": "uring0", "num_blocks": 2048, "block_size": 4096, "supported_io_types": {"write": true}},
                {"name": "null10", "num_blocks": 3, "block_size": 512, "supported_io_types": {"write": true}},
            ]),
            &json!([{
                "initiator": "0x1", "address": "127.0.0.2", "channels": [1, 2], "commands": 7,
                "read_bytes": 12345678, "written_bytes": 0,
            }]),
            &json!({"reactors": [{"lcore": 1, "pinned": true, "busy": 1, "idle": 2}, {"lcore": 1, "busy": 0, "idle": 0}]}),
            &json!({"shards": [
                {"counters": {"ended_silent": 2, "ended_kicked": 0, "ended_logged_out": 1, "orphans_now": 1}},
                {"counters": {"ended_silent": 1, "ended_kicked": 0, "drains_overdue": 1}},
            ]}),
        );
        let expect = "\
target srpoll
  id_ext=1,ioc_guid=2,dest=127.0.0.1:5555
  may log in: loopback peers

LUN  BDEV    SIZE    BLOCK  MODE  NAA
0    uring0  8 MiB   4096   rw    3000000000000001
10   null10  1536 B  512    ro    3000000000000002

SESSION  FROM       CHANNELS  COMMANDS  READ    WRITTEN
0x1      127.0.0.2  2         7         11 MiB  0 B
channels ended: 1 logged out, 3 silent
trouble with that: 1 drains overdue
left: 1 orphans now

REACTOR  CORE  BUSY
0        1     33.3 %
1        any   0.0 %
";
        assert_eq!(text, expect);
    }

    #[test]
    fn sizes_in_words() {
        for (bytes, words) in [
            (0, "0 B"),
            (1535, "1535 B"),
            (1 << 10, "1 KiB"),
            (64 << 20, "64 MiB"),
            (1 << 40, "1 TiB"),
            ((1 << 40) + 512, "1024 GiB"),
        ] {
            assert_eq!(size_words(bytes), words);
        }
    }
}
