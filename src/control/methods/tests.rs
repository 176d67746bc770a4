//! The methods, against shards that keep what they are told.

use std::collections::BTreeSet;

use reactors::time::Time;
use serde_json::{Value, json};

use super::{CallList, METHODS, run};
use crate::control::fake::{FakeShards, channel};
use crate::control::jsonrpc::{Call, RpcError};
use crate::control::model::Model;
use crate::target::access::InitiatorId;
use crate::target::handle::SessionId;
use crate::target::pending::{PendingQp, PendingTask};
use crate::target::stages::{Class, Kind, Laps, StageClock};

pub(super) fn call(model: &mut Model, method: &str, params: Value) -> Result<Value, RpcError> {
    run(model, Call { method: method.to_owned(), params })
}

/// Makes the calls; each must do.
pub(super) fn make(model: &mut Model, calls: &[(&str, Value)]) {
    for (method, params) in calls {
        if let Err(error) = call(model, method, params.clone()) {
            panic!("{method} {params}: {error}");
        }
    }
}

/// Makes the call, which must fail with this code and line.
pub(super) fn refused(model: &mut Model, method: &str, params: Value, code: i64, message: &str) {
    let shown = params.to_string();
    let error = call(model, method, params).expect_err(&shown);
    assert_eq!((error.code, error.message.as_str()), (code, message), "{method} {shown}");
}

fn malloc(name: &str) -> (&'static str, Value) {
    ("bdev_malloc_create", json!({"name": name, "num_blocks": 2048, "block_size": 512}))
}

#[test]
fn the_table_is_sorted_and_says_its_names() {
    let names: Vec<_> = METHODS.iter().map(|method| method.name).collect();
    assert!(names.is_sorted());
    assert!(METHODS.iter().all(|method| !method.summary.is_empty()));
    let shards = FakeShards::start(1);
    let mut model = shards.model("names");
    assert_eq!(call(&mut model, "rpc_get_methods", json!({"current": false})), Ok(json!(names)));
    let wanted = "rpc_get_methods bdev_null_create bdev_null_delete bdev_malloc_create bdev_malloc_delete \
                  bdev_uring_create bdev_uring_delete bdev_get_bdevs bdev_get_iostat srp_create_target \
                  srp_delete_target srp_target_add_lun srp_target_remove_lun srp_target_add_listener \
                  srp_target_remove_listener srp_target_add_initiator srp_target_remove_initiator \
                  srp_get_targets srp_get_sessions framework_get_reactors bdev_delay_create \
                  bdev_delay_delete bdev_delay_update_latency bdev_error_create bdev_error_delete \
                  bdev_error_inject_error bdev_null_resize bdev_uring_rescan srp_session_disconnect \
                  srp_target_set_limits srp_get_pending";
    let have: BTreeSet<_> = names.into_iter().collect();
    for name in wanted.split_whitespace() {
        assert!(have.contains(name), "{name}");
    }
    refused(
        &mut model,
        "nvmf_create_subsystem",
        json!(null),
        -32601,
        "there is no method \"nvmf_create_subsystem\"; rpc_get_methods lists them",
    );
}

#[test]
fn a_target_reaches_every_shard() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("whole");
    make(
        &mut model,
        &[
            malloc("m"),
            ("bdev_null_create", json!({"name": "n", "num_blocks": 16, "block_size": 4096})),
            ("srp_create_target", json!({"id_ext": "0000000000000001", "ioc_guid": "0000000000000002"})),
            ("srp_target_add_lun", json!({"bdev_name": "m", "lun": 3})),
            ("srp_target_add_lun", json!({"bdev_name": "n", "read_only": true})),
            ("srp_target_add_initiator", json!({"initiator": "0x1"})),
            ("srp_target_add_initiator", json!({"initiator": "10.0.0.0/8"})),
            ("srp_target_add_listener", json!({"address": "127.0.0.1"})),
            ("srp_target_add_listener", json!({"address": "fd00::1", "port": 7})),
        ],
    );
    for number in 0..2 {
        let shard = shards.shard(number);
        let snapshot = shard.snapshot.as_ref().unwrap();
        let luns: Vec<_> =
            snapshot.luns.iter().map(|lun| (lun.lun, lun.bdev.name().to_owned(), lun.read_only)).collect();
        assert_eq!(luns, [(0, "n".to_owned(), true), (3, "m".to_owned(), false)]);
        assert_eq!(snapshot.lun(3).unwrap().bdev.name(), "m");
        assert!(snapshot.lun(1).is_none());
        assert_eq!(snapshot.identity.unwrap().port_id()[7], 1);
        assert_eq!(snapshot.access.rules().len(), 2);
        let listeners: Vec<_> = shard.listeners.iter().map(ToString::to_string).collect();
        assert_eq!(listeners, ["127.0.0.1:5555", "[fd00::1]:7"]);
    }
    let targets = call(&mut model, "srp_get_targets", json!(null)).unwrap();
    assert_eq!(targets[0]["name"], json!("srpoll"));
    assert_eq!(targets[0]["initiators"], json!(["0x00000000000000000000000000000001", "10.0.0.0/8"]));
    assert_eq!(
        targets[0]["listeners"][1],
        json!({
            "address": "fd00::1",
            "port": 7,
            "add_target": "id_ext=0000000000000001,ioc_guid=0000000000000002,dest=[fd00::1]:7",
        })
    );
    let lun = &targets[0]["luns"][1];
    assert_eq!((&lun["lun"], &lun["bdev_name"], &lun["read_only"]), (&json!(3), &json!("m"), &json!(false)));
    assert!(lun["naa"].as_str().unwrap().starts_with('3'));

    make(
        &mut model,
        &[
            ("srp_target_remove_lun", json!({"lun": 0})),
            ("srp_target_remove_initiator", json!({"initiator": "0x1"})),
            ("srp_target_remove_listener", json!({"address": "fd00::1", "port": 7})),
        ],
    );
    let shard = shards.shard(1);
    assert_eq!(shard.snapshot.as_ref().unwrap().luns.len(), 1);
    assert_eq!(shard.listeners.len(), 1);
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("wrong");
    make(&mut model, &[malloc("m"), malloc("other"), ("srp_create_target", json!({}))]);
    make(&mut model, &[("srp_target_add_lun", json!({"bdev_name": "m"}))]);
    make(&mut model, &[("srp_target_add_listener", json!({"address": "127.0.0.1"}))]);
    make(&mut model, &[("srp_target_add_initiator", json!({"initiator": "any"}))]);
    for (method, params, code, message) in [
        (
            "bdev_malloc_create",
            json!({"nam": "x", "num_blocks": 1, "block_size": 512}),
            -32602,
            "unknown parameter `nam`, expected one of `name`, `num_blocks`, `block_size`, `uuid`, `readonly`",
        ),
        ("bdev_malloc_create", json!({"name": "x"}), -32602, "missing parameter `num_blocks`"),
        (
            "bdev_malloc_create",
            json!({"num_blocks": "1M", "block_size": 512}),
            -32602,
            "num_blocks: invalid type: string \"1M\", expected u64",
        ),
        (
            "bdev_malloc_create",
            json!({"num_blocks": u64::MAX, "block_size": 512}),
            -32602,
            "num_blocks: 18446744073709551615 blocks are more than 64 bits of bytes",
        ),
        (
            "bdev_malloc_create",
            json!({"name": "m", "num_blocks": 1, "block_size": 512}),
            -17,
            "a bdev named m exists already; choose another name or delete it first",
        ),
        (
            "bdev_malloc_create",
            json!({"name": "", "num_blocks": 1, "block_size": 512}),
            -32602,
            "\"\" is no name for a bdev: it must not be empty, nor hold blanks, commas or control characters",
        ),
        ("bdev_malloc_delete", json!({"name": "x"}), -19, "there is no bdev named x"),
        ("bdev_malloc_delete", json!({"name": "m"}), -16, "bdev m is in use by LUN 0"),
        ("bdev_null_delete", json!({"name": "other"}), -19, "bdev other is a Malloc disk, not a Null disk"),
        ("bdev_get_bdevs", json!({"name": "x"}), -19, "there is no bdev named x"),
        ("bdev_get_iostat", json!({"name": "x"}), -19, "there is no bdev named x"),
        (
            "srp_create_target",
            json!({"name": "second"}),
            -17,
            "there is a target \"srpoll\" already; srpoll serves one",
        ),
        ("srp_delete_target", json!({"name": "x"}), -19, "there is no target \"x\""),
        (
            "srp_target_add_lun",
            json!({"bdev_name": "other", "lun": 16384}),
            -32602,
            "LUN 16384 is out of range: 0 to 16383",
        ),
        (
            "srp_target_add_lun",
            json!({"bdev_name": "other", "lun": 0}),
            -17,
            "LUN 0 is taken already, by bdev m",
        ),
        ("srp_target_add_lun", json!({"bdev_name": "m", "lun": 1}), -16, "bdev m is in use by LUN 0"),
        ("srp_target_add_lun", json!({"bdev_name": "x"}), -19, "there is no bdev named x"),
        ("srp_target_add_lun", json!({"bdev_name": "other", "target": "x"}), -19, "there is no target \"x\""),
        ("srp_target_remove_lun", json!({"lun": 9}), -19, "there is no LUN 9"),
        ("srp_target_add_listener", json!({"address": "host"}), -32602, "address: \"host\" is no IP address"),
        (
            "srp_target_add_listener",
            json!({"address": "0.0.0.0"}),
            -32602,
            "address: \"0.0.0.0\" is not the address of one machine",
        ),
        (
            "srp_target_add_listener",
            json!({"address": "127.0.0.1", "port": 0}),
            -32602,
            "port: 0 is no port: 1 to 65535",
        ),
        (
            "srp_target_add_listener",
            json!({"address": "127.0.0.1"}),
            -17,
            "the target listens at 127.0.0.1:5555 already",
        ),
        (
            "srp_target_remove_listener",
            json!({"address": "127.0.0.9"}),
            -19,
            "the target does not listen at 127.0.0.9:5555",
        ),
        ("srp_target_add_initiator", json!({"initiator": "any"}), -17, "any is on the access list already"),
        (
            "srp_target_remove_initiator",
            json!({"initiator": "10.0.0.1"}),
            -19,
            "10.0.0.1 is not on the access list",
        ),
        (
            "srp_session_disconnect",
            json!({"initiator": "10.0.0.1"}),
            -32602,
            "initiator: \"10.0.0.1\" is no initiator port id",
        ),
        ("srp_session_disconnect", json!({"initiator": "0x1"}), -19, "0x1 is not logged in"),
        ("srp_get_targets", json!({"x": 1}), -32602, "unknown parameter `x`, there are no fields"),
        ("framework_get_config", json!({"name": "x"}), -32602, "name: there is no subsystem \"x\""),
    ] {
        refused(&mut model, method, params, code, message);
    }
}

#[test]
fn a_change_that_a_shard_refuses_changes_nothing() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("refuse");
    make(&mut model, &[malloc("m"), ("srp_create_target", json!({}))]);
    let before = call(&mut model, "save_config", json!({})).unwrap();
    shards.shard(1).refuse = Some("no memory for another queue".to_owned());
    refused(&mut model, "srp_target_add_lun", json!({"bdev_name": "m"}), -5, "no memory for another queue");
    assert_eq!(call(&mut model, "save_config", json!({})).unwrap(), before);
    // The shard that had taken it went back.
    for number in 0..2 {
        assert!(shards.shard(number).snapshot.as_ref().unwrap().luns.is_empty());
    }
    shards.shard(1).refuse = Some("UDP port 4791 is in use".to_owned());
    refused(
        &mut model,
        "srp_target_add_listener",
        json!({"address": "127.0.0.1"}),
        -5,
        "UDP port 4791 is in use",
    );
    assert!(shards.shard(0).listeners.is_empty());
    // And the same goes well afterwards.
    make(
        &mut model,
        &[
            ("srp_target_add_lun", json!({"bdev_name": "m"})),
            ("srp_target_add_listener", json!({"address": "127.0.0.1"})),
        ],
    );
}

#[test]
fn a_saved_configuration_makes_the_same_again() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("save");
    make(
        &mut model,
        &[
            malloc("m"),
            ("bdev_null_create", json!({"num_blocks": 16, "block_size": 4096, "readonly": true})),
            ("srp_create_target", json!({"name": "t"})),
            ("srp_target_add_lun", json!({"target": "t", "bdev_name": "m", "lun": 5})),
            ("srp_target_add_lun", json!({"target": "t", "bdev_name": "Null0"})),
            ("srp_target_add_initiator", json!({"initiator": "fd00::/64"})),
            ("srp_target_add_listener", json!({"address": "fe80::1%3"})),
        ],
    );
    let saved = call(&mut model, "save_config", json!(null)).unwrap();
    let targets = call(&mut model, "srp_get_targets", json!(null)).unwrap();
    let bdevs = call(&mut model, "bdev_get_bdevs", json!(null)).unwrap();

    // Another run of the same instance.
    let again = FakeShards::start(2);
    let mut model = again.model("save");
    CallList::read(&saved.to_string()).unwrap().make(&mut model).unwrap();
    assert_eq!(call(&mut model, "srp_get_targets", json!(null)).unwrap(), targets);
    assert_eq!(call(&mut model, "bdev_get_bdevs", json!(null)).unwrap(), bdevs);
    assert_eq!(call(&mut model, "save_config", json!(null)).unwrap(), saved);

    // By RPC, and as SPDK's clients read it.
    let third = FakeShards::start(1);
    let mut model = third.model("save");
    assert_eq!(call(&mut model, "load_config", saved.clone()), Ok(json!(true)));
    let subsystems = call(&mut model, "framework_get_subsystems", json!(null)).unwrap();
    for (at, subsystem) in subsystems.as_array().unwrap().iter().enumerate() {
        let name = &subsystem["subsystem"];
        let config = call(&mut model, "framework_get_config", json!({"name": name})).unwrap();
        assert_eq!(saved["subsystems"][at], json!({"subsystem": name, "config": config}));
    }
    // All of it is there already.
    let error = call(&mut model, "load_config", saved).unwrap_err();
    assert_eq!(error.code, -17);
    assert_eq!(
        error.message,
        "call 1, bdev_malloc_create: a bdev named m exists already; choose another name or delete it first"
    );
}

#[test]
fn configurations_that_cannot_be_read_say_where() {
    for (text, error) in [
        ("", "malformed JSON: EOF while parsing a value at line 1 column 0"),
        ("{\n  \"subsystems\": [,]\n}", "malformed JSON: expected value at line 2 column 18"),
        ("5", "neither {\"subsystems\": [...]} nor a list of {\"method\", \"params\"}"),
        ("{\"subsystem\": []}", "subsystem: unknown field `subsystem`, expected `subsystems`"),
        ("[{\"params\": {}}]", "[0]: missing field `method`"),
        (
            "[{\"method\": \"bdev_null_create\"}, {\"method\": \"nope\"}]",
            "call 2, nope: there is no method \"nope\"; rpc_get_methods lists them",
        ),
    ] {
        assert_eq!(CallList::read(text).unwrap_err().to_string(), error, "{text}");
    }
    let empty = CallList::read("{\"subsystems\": [{\"subsystem\": \"bdev\", \"config\": null}]}").unwrap();
    assert_eq!(empty, CallList::default());
}

#[test]
fn devices_look_as_spdk_shows_them() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("devices");
    assert_eq!(
        call(
            &mut model,
            "bdev_malloc_create",
            json!({"num_blocks": 8, "block_size": 512, "uuid": "0f14d0ab-9605-4a62-a9e4-5ed26688389b"})
        ),
        Ok(json!("Malloc0"))
    );
    // By its uuid, as SPDK's clients may.
    let uuid = "0f14d0ab-9605-4a62-a9e4-5ed26688389b";
    make(&mut model, &[("srp_create_target", json!({})), ("srp_target_add_lun", json!({"bdev_name": uuid}))]);
    refused(
        &mut model,
        "bdev_null_create",
        json!({"name": "twin", "num_blocks": 8, "block_size": 512, "uuid": uuid}),
        -17,
        "bdev twin cannot have the uuid 0f14d0ab-9605-4a62-a9e4-5ed26688389b: bdev Malloc0 has it; give \
         another uuid",
    );
    let bdevs = call(&mut model, "bdev_get_bdevs", json!({"name": "Malloc0", "timeout": 100})).unwrap();
    for (key, value) in [
        ("name", json!("Malloc0")),
        ("product_name", json!("Malloc disk")),
        ("block_size", json!(512)),
        ("num_blocks", json!(8)),
        ("uuid", json!("0f14d0ab-9605-4a62-a9e4-5ed26688389b")),
        ("aliases", json!(["0f14d0ab-9605-4a62-a9e4-5ed26688389b"])),
        ("claimed", json!(true)),
        ("driver_specific", json!({})),
    ] {
        assert_eq!(bdevs[0][key], value, "{key}");
    }
    assert_eq!(bdevs[0]["supported_io_types"]["write"], json!(true));
    let iostat = call(&mut model, "bdev_get_iostat", json!({"names": ["Malloc0"]})).unwrap();
    assert_eq!(iostat["tick_rate"], json!(1_000_000_000));
    assert_eq!(iostat["bdevs"][0]["name"], json!("Malloc0"));
    for key in ["bytes_read", "num_read_ops", "bytes_written", "num_write_ops", "read_latency_ticks"] {
        assert_eq!(iostat["bdevs"][0][key], json!(0), "{key}");
    }
}

#[test]
fn sessions_are_put_together_from_all_shards() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("sessions");
    let session = |n: u8| SessionId { initiator: InitiatorId([n; 16]), target: [9; 16] };
    shards.shard(0).channels = vec![channel(session(2), 0, 0), channel(session(1), 0, 1)];
    shards.shard(1).channels = vec![channel(session(1), 1, 0)];
    let sessions = call(&mut model, "srp_get_sessions", json!(null)).unwrap();
    let segmented = |n: usize| &sessions[0]["channels"][n]["segmented_sends"];
    assert_eq!((segmented(0), segmented(1)), (&json!(true), &json!(false)));
    let shown: Vec<_> = sessions
        .as_array()
        .unwrap()
        .iter()
        .map(|session| {
            let channels = session["channels"].as_array().unwrap();
            let where_from: Vec<_> =
                channels.iter().map(|c| (c["index"].clone(), c["shard"].clone())).collect();
            (session["initiator"].as_str().unwrap().to_owned(), session["commands"].clone(), where_from)
        })
        .collect();
    let (one, two) = ("0x01010101010101010101010101010101", "0x02020202020202020202020202020202");
    assert_eq!(
        shown,
        [
            (one.to_owned(), json!(20), vec![(json!(0), json!(1)), (json!(1), json!(0))]),
            (two.to_owned(), json!(10), vec![(json!(0), json!(0))]),
        ]
    );
    assert_eq!(
        call(&mut model, "srp_session_disconnect", json!({"initiator": one})),
        Ok(json!({"channels": 2}))
    );
    assert_eq!(call(&mut model, "srp_get_sessions", json!(null)).unwrap().as_array().unwrap().len(), 1);
}

#[test]
fn what_hangs_is_listed_from_all_shards_and_a_listener_may_take_its_sessions_along() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("pending");
    let task = |tag: &str, age_ms| PendingTask {
        session: None,
        shard: 1,
        tag: tag.to_owned(),
        lun: Some(3),
        operation: "write",
        lba: Some(8),
        blocks: Some(16),
        state: "aborted_in_block".to_owned(),
        age_ms,
        orphan: true,
        fence: true,
    };
    shards.shard(1).pending.tasks = vec![task("07", 12_000), task("08", 90_000)];
    shards.shard(0).pending.queue_pairs = vec![PendingQp {
        qpn: 77,
        shard: 0,
        state: "condemned",
        why: Some("the queue pair failed".to_owned()),
        waits_for: "the device to destroy it",
        since_ms: 6000,
        held: 2,
    }];
    let pending = call(&mut model, "srp_get_pending", json!({"max_tasks": 1})).unwrap();
    assert_eq!(pending["more_tasks"], json!(1));
    assert_eq!(pending["tasks"].as_array().unwrap().len(), 1);
    let oldest = &pending["tasks"][0];
    for (key, value) in [
        ("tag", json!("08")),
        ("lun", json!(3)),
        ("state", json!("aborted_in_block")),
        ("age_ms", json!(90_000)),
        ("orphan", json!(true)),
        ("initiator", json!(null)),
    ] {
        assert_eq!(oldest[key], value, "{key}");
    }
    assert_eq!(pending["queue_pairs"][0]["waits_for"], json!("the device to destroy it"));
    let unknown = call(&mut model, "srp_get_pending", json!({"min_age": 1})).unwrap_err();
    assert!(unknown.message.contains("min_age"), "{}", unknown.message);

    let at = |port: u16| json!({"address": "127.0.0.1", "port": port});
    make(
        &mut model,
        &[
            ("srp_create_target", json!({})),
            ("srp_target_add_listener", at(1)),
            ("srp_target_add_listener", at(2)),
        ],
    );
    let session = SessionId { initiator: InitiatorId([1; 16]), target: [9; 16] };
    shards.shard(1).channels = vec![channel(session, 1, 0)];
    make(&mut model, &[("srp_target_remove_listener", at(1))]);
    assert_eq!(shards.shard(1).channels.len(), 1, "sessions stay");
    let with_sessions = json!({"address": "127.0.0.1", "port": 2, "end_sessions": true});
    make(&mut model, &[("srp_target_remove_listener", with_sessions)]);
    assert!(shards.shard(1).channels.is_empty());
}

#[test]
fn the_end_of_a_target_ends_its_listeners_and_sessions() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("delete");
    make(
        &mut model,
        &[
            malloc("m"),
            ("srp_create_target", json!({})),
            ("srp_target_add_lun", json!({"bdev_name": "m"})),
            ("srp_target_add_listener", json!({"address": "127.0.0.1"})),
        ],
    );
    let session = SessionId { initiator: InitiatorId([1; 16]), target: [9; 16] };
    shards.shard(1).channels = vec![channel(session, 1, 0)];
    make(&mut model, &[("srp_delete_target", json!({"name": "srpoll"}))]);
    for number in 0..2 {
        let shard = shards.shard(number);
        assert!(shard.listeners.is_empty() && shard.channels.is_empty());
        let snapshot = shard.snapshot.as_ref().unwrap();
        assert!(snapshot.identity.is_none() && snapshot.luns.is_empty());
    }
    // The device is free again.
    make(&mut model, &[("bdev_malloc_delete", json!({"name": "m"}))]);
    assert_eq!(call(&mut model, "srp_get_targets", json!(null)), Ok(json!([])));
    refused(
        &mut model,
        "srp_target_remove_lun",
        json!({"lun": 0}),
        -19,
        "there is no target; make one with srp_create_target",
    );
}

#[test]
fn reactors_and_counters() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("reactors");
    let reactors = call(&mut model, "framework_get_reactors", json!(null)).unwrap();
    assert_eq!(reactors["pid"], json!(std::process::id()));
    assert_eq!(reactors["reactors"][1]["lcore"], json!(3));
    assert_eq!(reactors["reactors"][1]["lw_threads"][0]["cpumask"], json!("8"));
    let stats = call(&mut model, "srp_get_stats", json!(null)).unwrap();
    assert_eq!(stats["shards"][0]["counters"], json!({"rx_bad_icrc": 7}));
    let version = call(&mut model, "spdk_get_version", json!(null)).unwrap();
    assert_eq!(version["version"], json!(concat!("srpoll v", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn stages_of_all_shards_together() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("stages");
    make(
        &mut model,
        &[malloc("m"), ("srp_create_target", json!({})), ("srp_target_add_lun", json!({"bdev_name": "m"}))],
    );
    let mut clock = StageClock::new(None);
    for (number, ns) in [(0, 2_000), (1, 6_000)] {
        clock.turn(Time::from_nanos(ns));
        let laps = Laps::new(Time::ZERO);
        shards.shard(number).stages.record(Class::of(Kind::Write, 8192), &laps, &mut clock);
    }
    let read = |model: &mut Model, params| call(model, "srp_get_stages", params).unwrap();
    let first = read(&mut model, json!({"lun": 0, "reset": true}));
    let class = &first["classes"][0];
    let head = ["lun", "operation", "size", "commands"].map(|name| class[name].clone());
    assert_eq!(head, [json!(0), json!("write"), json!("<=16k"), json!(2)]);
    let zero = json!({"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "p99.9": 0.0, "max": 0.0});
    let whole = json!({"mean": 4.0, "p50": 2.047, "p90": 6.0, "p99": 6.0, "p99.9": 6.0, "max": 6.0});
    let names = ["receive", "buffer", "rdma_read", "backend", "response", "total"];
    for name in names {
        let expected = if matches!(name, "receive" | "total") { &whole } else { &zero };
        assert_eq!(&class["lat_us"][name], expected, "{name}");
    }
    assert_eq!(class["lat_us"].as_object().unwrap().len(), names.len());
    assert_eq!(read(&mut model, json!(null)), json!({"classes": []}));
    refused(&mut model, "srp_get_stages", json!({"lun": 7}), -19, "there is no LUN 7");
    refused(&mut model, "srp_get_stages", json!({"lun": 65_536}), -19, "there is no LUN 65536");
}
