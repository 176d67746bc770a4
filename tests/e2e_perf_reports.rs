//! What `srpoll perf` reports, by the built program on both sides: a sweep over depths, a fixed rate, the
//! stages of the target, and the plots. No figure is judged, only that each is there and fits the others.

#[path = "common/instance.rs"]
mod instance;

use std::time::Duration;

use instance::{Ended, Instance, Perf, Start, address};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(60);

fn target(host: u8) -> Instance {
    Start::new(address(host)).args(&["--lun", "malloc:16M"]).ready()
}

fn perf(host: u8, args: &[&str]) -> Ended {
    Perf::start(address(host), address(host + 1), args).end(LONG)
}

fn json(ended: &Ended) -> Value {
    assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""));
    serde_json::from_str(&ended.out).expect("one JSON object")
}

#[test]
fn a_sweep_is_one_run_a_depth_and_a_plot() {
    let target = target(1);
    let plot = target.folder().join("sweep.svg");
    let plot = plot.to_str().unwrap();
    let load = ["--rw", "randread", "--channels", "2", "--ios", "500"];
    let ended = perf(1, &[&load[..], &["--qd-sweep", "1,8,2", "--json", "--plot", plot]].concat());
    let value = json(&ended);
    let runs = value["sweep"].as_array().expect("a list of runs");
    assert_eq!(runs.iter().map(|run| run["qd"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(8), Some(2)]);
    for run in runs {
        assert_eq!((run["ios"].as_u64(), run["errors"].as_u64()), (Some(500), Some(0)), "{run}");
        assert!(run["lat_us"]["p50"].as_f64() <= run["lat_us"]["max"].as_f64(), "{run}");
    }
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains(">QD 8<") && !svg.contains("NaN"), "{svg}");

    let table = perf(1, &[&load[..], &["--qd-sweep", "1,4", "--batch", "4"]].concat());
    assert_eq!((table.status, table.out.lines().count()), (Some(0), 3), "{}", table.out);
    assert_eq!(target.stop(LONG).0, Some(0));
}

#[test]
fn at_a_rate_there_are_as_many_as_were_due_and_the_target_tells_its_stages() {
    let target = target(11);
    let rpc = target.folder().join("rpc");
    let rpc = rpc.to_str().unwrap();
    let load = ["--rw", "randrw", "--qd", "8", "--verify", "--rate", "200", "--time", "1s"];
    let value = json(&perf(11, &[&load[..], &["--stages", "--rpc", rpc, "--json"]].concat()));
    let done = value["ios"].as_u64().unwrap() + value["unsent"].as_u64().unwrap();
    let most = 200.0 * value["seconds"].as_f64().unwrap() + 1.0;
    assert!(done >= 199 && done as f64 <= most, "{value}");
    let classes = value["stages"].as_array().expect("classes of commands");
    let counted: u64 = classes.iter().filter_map(|class| class["commands"].as_u64()).sum();
    assert!(counted >= value["ios"].as_u64().unwrap(), "{value}");
    for stage in ["receive", "buffer", "rdma_read", "backend", "response", "total"] {
        assert!(classes.iter().all(|class| class["lat_us"][stage]["mean"].is_number()), "{stage}: {value}");
    }

    let nobody = perf(11, &["--rw", "read", "--qd", "1", "--stages", "--rpc", "/nonexistent"]);
    assert_eq!(nobody.status, Some(1));
    assert!(nobody.err.contains("--stages: no srpoll answers at /nonexistent"), "{}", nobody.err);
    assert_eq!(target.stop(LONG).0, Some(0));
}
