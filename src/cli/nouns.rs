//! `srpoll target|lun|session|bdev`: what an operator does with a running instance, each a call or
//! two of its JSON-RPC interface.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use super::lun_spec::LunSpec;
use super::rpc::call;
use super::status::{list, lun_rows, notes, number, row, seconds_words, size_words, table, word};
use crate::control::socket;

/// Which instance is meant.
#[derive(clap::Args, Debug)]
struct Instance {
    /// UNIX socket of the instance [default: /run/srpoll.sock, else $XDG_RUNTIME_DIR/srpoll.sock]
    #[arg(long, value_name = "SOCKET", global = true)]
    rpc: Option<PathBuf>,
}

impl Instance {
    fn call(&self, method: &str, params: Value) -> anyhow::Result<Value> {
        let path = self.rpc.clone().unwrap_or_else(socket::default_for_client);
        call(&path, method, params)?.map_err(|message| anyhow!("{method}: {message}"))
    }

    fn ask(&self, method: &str) -> anyhow::Result<Value> {
        self.call(method, Value::Null)
    }
}

/// Show the target of a running instance.
#[derive(clap::Args, Debug)]
pub struct TargetArgs {
    #[command(flatten)]
    instance: Instance,
    #[command(subcommand)]
    command: TargetCommand,
}

#[derive(clap::Subcommand, Debug)]
enum TargetCommand {
    /// Show who it is, where to log in, who may, and how many
    Show,
}

/// `srpoll target`.
pub fn target(args: &TargetArgs) -> anyhow::Result<ExitCode> {
    let TargetCommand::Show = args.command;
    print(&targets_text(&args.instance.ask("srp_get_targets")?))
}

fn targets_text(targets: &Value) -> String {
    let mut text = String::new();
    for target in list(targets) {
        text += &format!("name          {}\n", word(&target["name"]));
        text += &format!("id_ext        {}\n", word(&target["id_ext"]));
        text += &format!("ioc_guid      {}\n", word(&target["ioc_guid"]));
        for listener in list(&target["listeners"]) {
            text += &format!("log in with   {}\n", word(&listener["add_target"]));
        }
        let allowed: Vec<String> = list(&target["initiators"]).iter().map(word).collect();
        let allowed = if allowed.is_empty() { "loopback peers".to_owned() } else { allowed.join(", ") };
        text += &format!("may log in    {allowed}\n");
        text += &format!("LUNs          {}\n", list(&target["luns"]).len());
        text += &format!(
            "limits        {} sessions, {} channels, {} channels a session\n",
            word(&target["max_sessions"]),
            word(&target["max_channels"]),
            word(&target["max_channels_per_session"])
        );
    }
    text
}

/// Logical units of a running instance.
#[derive(clap::Args, Debug)]
pub struct LunArgs {
    #[command(flatten)]
    instance: Instance,
    #[command(subcommand)]
    command: LunCommand,
}

#[derive(clap::Subcommand, Debug)]
enum LunCommand {
    /// List them
    List,
    /// Add one, with a device made for it or with one that there is
    Add {
        /// As --lun of "srpoll serve": [N=]uring:PATH, [N=]malloc:SIZE or [N=]null:SIZE, then any
        /// of ,ro ,block=512|4096 ,uuid=U
        #[arg(value_name = "SPEC", required_unless_present = "bdev", conflicts_with = "bdev")]
        spec: Option<LunSpec>,
        /// The device that there is
        #[arg(long, value_name = "NAME")]
        bdev: Option<String>,
        /// Number of the logical unit over --bdev [default: the lowest free]
        #[arg(long, value_name = "N", requires = "bdev")]
        lun: Option<u64>,
    },
    /// Remove one, and its device with it
    Remove {
        /// Its number
        #[arg(value_name = "N")]
        lun: u64,
        /// Leave the device
        #[arg(long)]
        keep_bdev: bool,
    },
}

/// `srpoll lun`.
pub fn lun(args: LunArgs) -> anyhow::Result<ExitCode> {
    let instance = args.instance;
    match args.command {
        LunCommand::List => {
            let (targets, bdevs) = (instance.ask("srp_get_targets")?, instance.ask("bdev_get_bdevs")?);
            let tables = list(&targets).iter().map(|target| table(&lun_rows(target, &bdevs)));
            print(&tables.collect::<String>())
        }
        LunCommand::Add { spec: Some(spec), .. } => {
            let number = match spec.lun {
                Some(number) => number,
                None => lowest_free(&instance.ask("srp_get_targets")?),
            };
            let [device, lun] = spec.calls(number)?;
            let name = instance.call(&device.method, device.params)?;
            if let Err(error) = instance.call(&lun.method, lun.params) {
                // What was made for it goes with it.
                let delete = device.method.replace("create", "delete");
                let _ = instance.call(&delete, json!({"name": name}));
                return Err(error);
            }
            print(&format!("LUN {number} is bdev {}\n", word(&name)))
        }
        LunCommand::Add { bdev, lun, .. } => {
            let mut params = json!({"bdev_name": bdev});
            if let Some(lun) = lun {
                params["lun"] = json!(lun);
            }
            let number = instance.call("srp_target_add_lun", params)?;
            print(&format!("LUN {number} is bdev {}\n", bdev.unwrap_or_default()))
        }
        LunCommand::Remove { lun, keep_bdev } => {
            let targets = instance.ask("srp_get_targets")?;
            let luns = list(&targets).iter().flat_map(|target| list(&target["luns"]));
            let there = luns.clone().find(|there| there["lun"] == lun);
            let name = there.map(|there| there["bdev_name"].clone());
            instance.call("srp_target_remove_lun", json!({"lun": lun}))?;
            if let Some(name) = name.filter(|_| !keep_bdev) {
                let bdevs = instance.call("bdev_get_bdevs", json!({"name": name}))?;
                let delete = delete_method(&word(&bdevs[0]["product_name"]))?;
                instance.call(delete, json!({"name": name}))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The lowest number that no logical unit has.
fn lowest_free(targets: &Value) -> u64 {
    let taken = |lun: u64| {
        list(targets).iter().any(|target| list(&target["luns"]).iter().any(|there| there["lun"] == lun))
    };
    (0..).find(|&lun| !taken(lun)).unwrap_or_default()
}

fn delete_method(product: &str) -> anyhow::Result<&'static str> {
    match product {
        "Malloc disk" => Ok("bdev_malloc_delete"),
        "Null disk" => Ok("bdev_null_delete"),
        "URING disk" => Ok("bdev_uring_delete"),
        "delay" => Ok("bdev_delay_delete"),
        "Error disk" => Ok("bdev_error_delete"),
        other => Err(anyhow!("the LUN is removed; how to delete a {other} is not known")),
    }
}

/// Sessions of a running instance.
#[derive(clap::Args, Debug)]
pub struct SessionArgs {
    #[command(flatten)]
    instance: Instance,
    #[command(subcommand)]
    command: SessionCommand,
}

#[derive(clap::Subcommand, Debug)]
enum SessionCommand {
    /// List them with their channels
    List,
    /// List commands that are not done, the oldest first, and queue pairs of ended channels
    Pending {
        /// Only commands that are older, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        older_than: u64,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50)]
        max: u32,
    },
    /// End those of an initiator; it may log in again
    Disconnect {
        /// Its port id, as "session list" shows it
        #[arg(value_name = "ID")]
        initiator: String,
    },
}

/// `srpoll session`.
pub fn session(args: &SessionArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        SessionCommand::List => print(&sessions_text(&args.instance.ask("srp_get_sessions")?)),
        SessionCommand::Pending { older_than, max } => {
            let params = json!({"min_age_ms": older_than.saturating_mul(1000), "max_tasks": max});
            print(&pending_text(&args.instance.call("srp_get_pending", params)?))
        }
        SessionCommand::Disconnect { initiator } => {
            let ended = args.instance.call("srp_session_disconnect", json!({"initiator": initiator}))?;
            print(&format!("{} channels are ending\n", word(&ended["channels"])))
        }
    }
}

fn sessions_text(sessions: &Value) -> String {
    let heads = ["SESSION", "CHANNEL", "STATE", "FROM", "SHARD", "COMMANDS", "READ", "WRITTEN", "SINCE"];
    let mut rows = vec![row(heads)];
    for session in list(sessions) {
        for channel in list(&session["channels"]) {
            rows.push(vec![
                word(&session["initiator"]),
                word(&channel["index"]),
                word(&channel["state"]),
                word(&channel["peer"]),
                word(&channel["shard"]),
                word(&channel["commands"]),
                size_words(number(&channel["read_bytes"])),
                size_words(number(&channel["written_bytes"])),
                seconds_words(number(&channel["age_ms"])),
            ]);
        }
    }
    table(&rows) + &notes(sessions)
}

/// Commands and queue pairs that are not done, as `srp_get_pending` lists them.
fn pending_text(pending: &Value) -> String {
    let mut text = String::new();
    let mut rows = vec![row(["AGE", "SHARD", "LUN", "TAG", "OPERATION", "STATE", "SESSION", "NOTE"])];
    for task in list(&pending["tasks"]) {
        let blocks = match (task["lba"].as_u64(), task["blocks"].as_u64()) {
            (Some(lba), Some(blocks)) => format!("{} {lba}+{blocks}", word(&task["operation"])),
            _ => word(&task["operation"]),
        };
        let notes = [("orphan", "given up"), ("fence", "holds up later writes")];
        let notes: Vec<&str> =
            notes.into_iter().filter(|(key, _)| task[*key] == true).map(|(_, words)| words).collect();
        rows.push(vec![
            seconds_words(number(&task["age_ms"])),
            word(&task["shard"]),
            word(&task["lun"]),
            word(&task["tag"]),
            blocks,
            word(&task["state"]),
            word(&task["initiator"]),
            notes.join(", "),
        ]);
    }
    text += &table(&rows);
    let more = number(&pending["more_tasks"]);
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    for qp in list(&pending["queue_pairs"]) {
        text += &format!(
            "queue pair {} of shard {} is {}, waits for {} since {}, and holds the memory of {} commands\n",
            word(&qp["qpn"]),
            word(&qp["shard"]),
            word(&qp["state"]),
            word(&qp["waits_for"]),
            seconds_words(number(&qp["since_ms"])),
            word(&qp["tasks_held"])
        );
    }
    text
}

/// Block devices of a running instance.
#[derive(clap::Args, Debug)]
pub struct BdevArgs {
    #[command(flatten)]
    instance: Instance,
    #[command(subcommand)]
    command: BdevCommand,
}

#[derive(clap::Subcommand, Debug)]
enum BdevCommand {
    /// List them
    List,
}

/// `srpoll bdev`.
pub fn bdev(args: &BdevArgs) -> anyhow::Result<ExitCode> {
    let BdevCommand::List = args.command;
    print(&bdevs_text(&args.instance.ask("bdev_get_bdevs")?))
}

fn bdevs_text(bdevs: &Value) -> String {
    let mut rows = vec![row(["BDEV", "KIND", "SIZE", "BLOCK", "MODE", "USED", "BACKED BY"])];
    for bdev in list(bdevs) {
        let block = number(&bdev["block_size"]);
        let specific = &bdev["driver_specific"];
        let below = [
            &specific["uring"]["filename"],
            &specific["delay"]["base_bdev_name"],
            &specific["error"]["base_bdev"],
        ];
        rows.push(vec![
            word(&bdev["name"]),
            word(&bdev["product_name"]),
            size_words(number(&bdev["num_blocks"]).saturating_mul(block)),
            block.to_string(),
            (if bdev["supported_io_types"]["write"] == true { "rw" } else { "ro" }).to_owned(),
            (if bdev["claimed"] == true { "yes" } else { "no" }).to_owned(),
            word(below.into_iter().find(|below| !below.is_null()).unwrap_or(&Value::Null)),
        ]);
    }
    table(&rows)
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_with_channels_of_note() {
        let text = sessions_text(&json!([{"initiator": "0x1", "channels": [
            {"index": 0, "state": "live", "peer": "127.0.0.2", "shard": 1, "commands": 7,
             "read_bytes": 4096, "written_bytes": 0, "age_ms": 12345, "segmented_sends": false},
            {"index": 1, "state": "quiescing", "peer": "127.0.0.2", "shard": 0, "commands": 0,
             "read_bytes": 0, "written_bytes": 0, "age_ms": 99, "ends_because": "an administrator ended it",
             "ends_since_ms": 1500, "end_waits_for": "2 tasks"},
        ]}]));
        let expect = "\
SESSION  CHANNEL  STATE      FROM       SHARD  COMMANDS  READ   WRITTEN  SINCE
0x1      0        live       127.0.0.2  1      7         4 KiB  0 B      12.3 s
0x1      1        quiescing  127.0.0.2  0      0         0 B    0 B      0.0 s
packets to channel 0 of 0x1 leave one by one
channel 1 of 0x1 has been ending for 1.5 s: an administrator ended it; waits for 2 tasks
";
        assert_eq!(text, expect);
    }

    #[test]
    fn what_hangs() {
        let text = pending_text(&json!({
            "tasks": [
                {"age_ms": 12345, "shard": 1, "lun": 3, "tag": "0000000000000007", "operation": "write",
                 "lba": 8, "blocks": 16, "state": "aborted_in_block", "initiator": null, "orphan": true,
                 "fence": true},
                {"age_ms": 0, "shard": 0, "lun": null, "tag": "0000000000000008", "operation": "management",
                 "lba": null, "blocks": null, "state": "received", "initiator": "0x1", "orphan": false,
                 "fence": false},
            ],
            "more_tasks": 2,
            "queue_pairs": [{"qpn": 77, "shard": 1, "state": "condemned", "since_ms": 6000, "tasks_held": 1,
                             "waits_for": "the device to destroy it"}],
        }));
        let expect = "\
AGE     SHARD  LUN  TAG               OPERATION   STATE             SESSION  NOTE
12.3 s  1      3    0000000000000007  write 8+16  aborted_in_block  -        given up, holds up later writes
0.0 s   0      -    0000000000000008  management  received          0x1
and 2 more
queue pair 77 of shard 1 is condemned, waits for the device to destroy it since 6.0 s, and holds the memory of 1 commands
";
        assert_eq!(text, expect);
    }

    #[test]
    fn devices_with_what_is_below_them() {
        let text = bdevs_text(&json!([
            {"name": "d", "product_name": "delay", "num_blocks": 2048, "block_size": 512, "claimed": false,
             "supported_io_types": {"write": true}, "driver_specific": {"delay": {"base_bdev_name": "m"}}},
            {"name": "m", "product_name": "Malloc disk", "num_blocks": 2048, "block_size": 512,
             "claimed": true, "supported_io_types": {"write": false}, "driver_specific": {}},
        ]));
        let expect = "\
BDEV  KIND         SIZE   BLOCK  MODE  USED  BACKED BY
d     delay        1 MiB  512    rw    no    m
m     Malloc disk  1 MiB  512    ro    yes   -
";
        assert_eq!(text, expect);
    }

    #[test]
    fn the_lowest_free_number() {
        let luns = |numbers: &[u64]| {
            let luns: Vec<Value> = numbers.iter().map(|number| json!({"lun": number})).collect();
            json!([{"luns": luns}])
        };
        for (taken, free) in [(vec![], 0), (vec![0, 1, 3], 2), (vec![1], 0)] {
            assert_eq!(lowest_free(&luns(&taken)), free);
        }
    }
}
