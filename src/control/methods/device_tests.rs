//! Devices over devices, sizes that change, and limits: what the shards are told of them.

use std::fs::{File, OpenOptions};

use serde_json::json;

use super::CallList;
use super::tests::{call, make, refused};
use crate::control::fake::{FakeShards, channel};
use crate::target::access::InitiatorId;
use crate::target::handle::{EndingInfo, SessionId};

fn null(name: &str) -> (&'static str, serde_json::Value) {
    ("bdev_null_create", json!({"name": name, "num_blocks": 2048, "block_size": 512}))
}

fn delay(name: &str, base: &str) -> (&'static str, serde_json::Value) {
    (
        "bdev_delay_create",
        json!({
            "base_bdev_name": base,
            "name": name,
            "avg_read_latency": 1,
            "p99_read_latency": 2,
            "avg_write_latency": 3,
            "p99_write_latency": 4,
        }),
    )
}

#[test]
fn devices_over_devices_are_shown_saved_and_made_again() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("wrappers");
    make(
        &mut model,
        &[
            null("z"),
            ("bdev_error_create", json!({"base_name": "z"})),
            delay("a", "EE_z"),
            (
                "bdev_delay_update_latency",
                json!({"delay_bdev_name": "a", "latency_type": "p99_write", "latency_us": 70}),
            ),
            ("srp_create_target", json!({})),
            ("srp_target_add_lun", json!({"bdev_name": "a"})),
        ],
    );
    let bdevs = call(&mut model, "bdev_get_bdevs", json!(null)).unwrap();
    let shown: Vec<_> =
        bdevs.as_array().unwrap().iter().map(|bdev| (&bdev["name"], &bdev["claimed"])).collect();
    assert_eq!(
        shown,
        [(&json!("EE_z"), &json!(true)), (&json!("a"), &json!(true)), (&json!("z"), &json!(true))]
    );
    assert_eq!(bdevs[0]["driver_specific"], json!({"error": {"name": "EE_z", "base_bdev": "z"}}));
    assert_eq!(
        bdevs[1]["driver_specific"],
        json!({"delay": {
            "name": "a",
            "base_bdev_name": "EE_z",
            "avg_read_latency": 1,
            "p99_read_latency": 2,
            "avg_write_latency": 3,
            "p99_write_latency": 70,
        }})
    );
    // A base cannot go, nor have a second user.
    refused(&mut model, "bdev_null_delete", json!({"name": "z"}), -16, "bdev z is in use by bdev EE_z");
    refused(
        &mut model,
        "srp_target_add_lun",
        json!({"bdev_name": "z"}),
        -16,
        "bdev z is in use by bdev EE_z",
    );
    let (method, params) = delay("b", "a");
    refused(&mut model, method, params, -16, "bdev a is in use by LUN 0");

    // Bases are saved before what lies over them, whatever their names.
    let saved = call(&mut model, "save_config", json!(null)).unwrap();
    let again = FakeShards::start(1);
    let mut copy = again.model("wrappers");
    CallList::read(&saved.to_string()).unwrap().make(&mut copy).unwrap();
    assert_eq!(call(&mut copy, "bdev_get_bdevs", json!(null)).unwrap(), bdevs);
    assert_eq!(call(&mut copy, "save_config", json!(null)).unwrap(), saved);

    make(
        &mut model,
        &[
            ("srp_target_remove_lun", json!({"lun": 0})),
            ("bdev_delay_delete", json!({"name": "a"})),
            ("bdev_error_delete", json!({"name": "EE_z"})),
            ("bdev_null_delete", json!({"name": "z"})),
        ],
    );
}

#[test]
fn wrong_parameters_of_devices_over_devices() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("wrong wrappers");
    make(&mut model, &[null("n"), ("bdev_error_create", json!({"base_name": "n"})), null("o")]);
    let latency =
        |name: &str, kind: &str| json!({"delay_bdev_name": name, "latency_type": kind, "latency_us": 1});
    let inject = |io: &str, error: &str| json!({"name": "EE_n", "io_type": io, "error_type": error});
    for (method, params, code, message) in [
        ("bdev_error_create", json!({"base_name": "x"}), -19, "there is no bdev named x"),
        (
            "bdev_error_create",
            json!({"base_name": "n"}),
            -17,
            "a bdev named EE_n exists already; choose another name or delete it first",
        ),
        ("bdev_error_delete", json!({"name": "n"}), -19, "bdev n is a Null disk, not an Error disk"),
        ("bdev_delay_update_latency", latency("n", "avg_read"), -19, "bdev n is a Null disk, not a delay"),
        (
            "bdev_delay_update_latency",
            latency("n", "read"),
            -32602,
            "latency_type: unknown variant `read`, expected one of `avg_read`, `p99_read`, `avg_write`, `p99_write`",
        ),
        (
            "bdev_error_inject_error",
            inject("reads", "failure"),
            -32602,
            "io_type: unknown variant `reads`, expected one of `read`, `write`, `flush`, `unmap`, \
             `write_zeroes`, `all`, `clear`",
        ),
        (
            "bdev_error_inject_error",
            inject("read", "nvme_failure"),
            -32602,
            "error_type: unknown variant `nvme_failure`, expected one of `failure`, `pending`, \
             `corrupt_data`, `nomem`",
        ),
        (
            "bdev_error_inject_error",
            inject("read", "corrupt_data"),
            -32602,
            "corrupt_value: 1 to 255 is needed for corrupt_data",
        ),
        (
            "bdev_null_resize",
            json!({"name": "EE_n", "new_size": 1}),
            -19,
            "bdev EE_n is an Error disk, not a Null disk",
        ),
        (
            "bdev_null_resize",
            json!({"name": "o", "new_size": 1u64 << 60}),
            -32602,
            "new_size: 1152921504606846976 MiB are more than 64 bits of bytes",
        ),
        ("bdev_uring_rescan", json!({"name": "o"}), -19, "bdev o is a Null disk, not a URING disk"),
    ] {
        refused(&mut model, method, params, code, message);
    }
    assert!(call(&mut model, "bdev_null_resize", json!({"name": "o", "new_size": 0})).is_err());
    // The refused resize changed nothing, and a good one is saved.
    assert_eq!(
        call(&mut model, "bdev_get_bdevs", json!({"name": "o"})).unwrap()[0]["num_blocks"],
        json!(2048)
    );
    make(&mut model, &[("bdev_null_resize", json!({"name": "o", "new_size": 3}))]);
    let saved = call(&mut model, "save_config", json!(null)).unwrap().to_string();
    assert!(saved.contains(r#""num_blocks":6144"#), "{saved}");
}

#[test]
fn a_new_size_reaches_the_shards_through_what_lies_over_the_device() {
    let shards = FakeShards::start(2);
    let mut model = shards.model("resize");
    make(
        &mut model,
        &[
            null("n"),
            delay("d", "n"),
            null("idle"),
            ("srp_create_target", json!({})),
            ("srp_target_add_lun", json!({"bdev_name": "d"})),
        ],
    );
    let epoch = || shards.shard(1).snapshot.as_ref().unwrap().epoch;
    let before = epoch();
    make(&mut model, &[("bdev_null_resize", json!({"name": "n", "new_size": 5}))]);
    assert_eq!(epoch(), before + 1);
    for number in 0..2 {
        let shard = shards.shard(number);
        assert_eq!(shard.snapshot.as_ref().unwrap().luns[0].bdev.geometry().len_bytes(), 5 << 20);
    }
    // Nobody is told of what no logical unit uses.
    make(&mut model, &[("bdev_null_resize", json!({"name": "idle", "new_size": 5}))]);
    assert_eq!(model.refresh(), Ok(false));
    assert_eq!(epoch(), before + 1);
}

#[test]
fn a_file_that_shrinks_or_grows_reaches_the_shards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let shards = FakeShards::start(1);
    let mut model = shards.model("file");
    make(
        &mut model,
        &[
            ("bdev_uring_create", json!({"name": "u", "filename": path})),
            ("srp_create_target", json!({})),
            ("srp_target_add_lun", json!({"bdev_name": "u"})),
        ],
    );
    let epoch = || shards.shard(0).snapshot.as_ref().unwrap().epoch;
    let before = epoch();
    assert_eq!(model.refresh(), Ok(false));
    OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    model.device("u").unwrap().check_backing();
    assert_eq!(model.refresh(), Ok(true));
    assert_eq!((model.refresh(), epoch()), (Ok(false), before + 1));
    make(&mut model, &[("bdev_uring_rescan", json!({"name": "u"}))]);
    assert_eq!(epoch(), before + 2);
    assert_eq!(call(&mut model, "bdev_get_bdevs", json!({})).unwrap()[0]["num_blocks"], json!(8));
    std::fs::rename(&path, folder.path().join("away")).unwrap();
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let error = call(&mut model, "bdev_uring_rescan", json!({"name": "u"})).unwrap_err();
    assert!(error.message.contains("another file lies there now"), "{error}");
}

#[test]
fn limits_of_a_target() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("limits");
    make(&mut model, &[("srp_create_target", json!({"max_channels": 8, "max_sessions": 3}))]);
    let told = || {
        let limits = shards.shard(0).snapshot.as_ref().unwrap().limits;
        (limits.max_channels, limits.max_sessions, limits.max_channels_per_session)
    };
    assert_eq!(told(), (8, 3, 1024));
    make(&mut model, &[("srp_target_set_limits", json!({"max_channels_per_session": 2, "max_sessions": 0}))]);
    assert_eq!(told(), (8, 256, 2));
    refused(
        &mut model,
        "srp_target_set_limits",
        json!({"max_channels": 1025}),
        -32602,
        "max_channels is 1025; it must lie between 1 and 1024",
    );
    assert_eq!(told(), (8, 256, 2));
    let targets = call(&mut model, "srp_get_targets", json!(null)).unwrap();
    assert_eq!(
        (&targets[0]["max_channels"], &targets[0]["max_sessions"], &targets[0]["max_channels_per_session"]),
        (&json!(8), &json!(256), &json!(2))
    );
    let saved = call(&mut model, "save_config", json!(null)).unwrap();
    let again = FakeShards::start(1);
    let mut copy = again.model("limits");
    CallList::read(&saved.to_string()).unwrap().make(&mut copy).unwrap();
    assert_eq!(call(&mut copy, "srp_get_targets", json!(null)).unwrap(), targets);
}

#[test]
fn a_channel_that_ends_says_why_and_since_when() {
    let shards = FakeShards::start(1);
    let mut model = shards.model("ending");
    let session = SessionId { initiator: InitiatorId([1; 16]), target: [9; 16] };
    let mut dying = channel(session, 0, 0);
    dying.state = "quiescing";
    dying.ending = Some(EndingInfo {
        why: "an administrator ended it".to_owned(),
        since_ms: 40,
        waits_for: "3 tasks".to_owned(),
    });
    shards.shard(0).channels = vec![dying, channel(session, 0, 1)];
    let sessions = call(&mut model, "srp_get_sessions", json!(null)).unwrap();
    let channels = &sessions[0]["channels"];
    for (key, first, second) in [
        ("state", json!("quiescing"), json!("live")),
        ("ends_because", json!("an administrator ended it"), json!(null)),
        ("ends_since_ms", json!(40), json!(null)),
        ("end_waits_for", json!("3 tasks"), json!(null)),
    ] {
        assert_eq!((&channels[0][key], &channels[1][key]), (&first, &second), "{key}");
    }
}
