//! What a run came to, as text, JSON and plots. The keys of the JSON are a promise; the table of
//! them is in `docs/performance.md`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cli::plot::{Axis, Plot, Series};
use crate::initiator::load::Report;
use crate::initiator::session::SessionCounters;

const PERCENTILES: [(&str, f64); 7] = [
    ("p50", 50.0),
    ("p90", 90.0),
    ("p95", 95.0),
    ("p99", 99.0),
    ("p99.9", 99.9),
    ("p99.99", 99.99),
    ("max", 100.0),
];

/// A run and what it was.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// I/Os at a time.
    pub(super) depth: u32,
    /// I/Os that were due a second, if that was fixed.
    pub(super) rate: Option<u64>,
    pub(super) report: Report,
    /// Our own CPU time.
    pub(super) cpu: Duration,
    /// Of the session since its start.
    pub(super) counters: SessionCounters,
    /// The target's stages during the run: `classes` of `srp_get_stages`.
    pub(super) stages: Option<Value>,
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

impl Measured {
    fn per_second(&self, count: u64) -> f64 {
        let elapsed = self.report.elapsed;
        if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
    }

    fn iops(&self) -> f64 {
        self.per_second(self.report.ios)
    }

    fn mbps(&self) -> f64 {
        self.per_second(self.report.bytes) / 1e6
    }

    fn cpu_per_io_us(&self) -> f64 {
        if self.report.ios == 0 { 0.0 } else { self.cpu.as_secs_f64() * 1e6 / self.report.ios as f64 }
    }

    fn cpu_percent(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.report.elapsed.as_secs_f64().max(1e-9)
    }

    fn latency_us(&self, percentile: f64) -> f64 {
        micros(self.report.latency.value_at_percentile(percentile))
    }

    /// One JSON object.
    pub(super) fn json(&self) -> Value {
        let report = &self.report;
        let mut latency: Map<_, _> =
            PERCENTILES.iter().map(|&(name, at)| (name.to_owned(), json!(self.latency_us(at)))).collect();
        latency.insert("mean".to_owned(), json!(report.latency.mean() / 1000.0));
        let mut value = json!({
            "qd": self.depth,
            "iops": self.iops(),
            "mbps": self.mbps(),
            "lat_us": latency,
            "errors": report.errors,
            "ios": report.ios,
            "reads": report.reads,
            "writes": report.ios - report.reads,
            "seconds": report.elapsed.as_secs_f64(),
            "verified": report.verified,
            "unknown": report.unknown,
            "retries": report.retries,
            "reconnects": self.counters.logins.saturating_sub(1),
            "cpu_percent": self.cpu_percent(),
            "cpu_us_per_io": self.cpu_per_io_us(),
        });
        if let Some(rate) = self.rate {
            value["rate"] = json!(rate);
            value["unsent"] = json!(report.unsent);
        }
        if let Some(stages) = &self.stages {
            value["stages"] = stages.clone();
        }
        value
    }

    /// A few lines.
    pub(super) fn text(&self) -> String {
        let report = &self.report;
        let elapsed = report.elapsed.as_secs_f64();
        let (reads, writes) = (report.reads, report.ios - report.reads);
        let mut text = format!(
            "{:.0} IOPS, {:.1} MB/s: {reads} reads and {writes} writes in {elapsed:.2} s\n",
            self.iops(),
            self.mbps()
        );
        text += &format!("latency in us: mean {:.1}", report.latency.mean() / 1000.0);
        for (name, at) in PERCENTILES {
            text += &format!(", {name} {:.1}", self.latency_us(at));
        }
        if let Some(rate) = self.rate {
            text += &format!("\n{rate} I/Os a second were due; latency counts from then");
            if report.unsent > 0 {
                text += &format!("; {} were due and never sent: the rate was not held", report.unsent);
            }
        }
        let (percent, each) = (self.cpu_percent(), self.cpu_per_io_us());
        text += &format!("\nown CPU: {percent:.0} % of a core, {each:.2} us an I/O\n");
        if report.retries > 0 {
            text += &format!(
                "{} I/Os were sent again; the session was made anew {} times\n",
                report.retries,
                self.counters.logins.saturating_sub(1)
            );
        }
        if report.unknown > 0 {
            text += &format!("{} places could not be verified: their last write failed\n", report.unknown);
        }
        if report.errors > 0 {
            text += &format!("{} errors\n", report.errors);
        }
        if let Some(classes) = self.stages.as_ref().and_then(Value::as_array) {
            text += &stage_table(classes);
        }
        text
    }
}

/// One line a stage, one block a class.
fn stage_table(classes: &[Value]) -> String {
    let mut text = String::from("stages of the target, in us:\n");
    for class in classes {
        let word = |key: &str| class[key].as_str().unwrap_or("?").to_owned();
        let total = class["lat_us"]["total"]["mean"].as_f64().unwrap_or(0.0);
        text += &format!(
            "  LUN {} {} {}, {} commands\n    {:10} {:>9} {:>6} {:>9} {:>9} {:>9}\n",
            class["lun"],
            word("operation"),
            word("size"),
            class["commands"],
            "",
            "mean",
            "share",
            "p50",
            "p99",
            "max"
        );
        // The order in which a command passes them; a JSON object has none.
        for stage in ["receive", "buffer", "rdma_read", "backend", "response", "total"] {
            let spread = &class["lat_us"][stage];
            let at = |key: &str| spread[key].as_f64().unwrap_or(0.0);
            let share = if total > 0.0 { 100.0 * at("mean") / total } else { 0.0 };
            text += &format!(
                "    {stage:10} {:9.2} {share:5.0}% {:9.2} {:9.2} {:9.2}\n",
                at("mean"),
                at("p50"),
                at("p99"),
                at("max")
            );
        }
    }
    text
}

/// A line for each depth.
pub(super) fn sweep_table(runs: &[Measured]) -> String {
    let mut text = format!(
        "{:>5} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
        "QD", "IOPS", "MB/s", "mean us", "p50", "p99", "p99.9", "CPU us/IO", "errors"
    );
    for run in runs {
        text += &format!(
            "{:5} {:10.0} {:9.1} {:9.1} {:9.1} {:9.1} {:9.1} {:9.2} {:7}\n",
            run.depth,
            run.iops(),
            run.mbps(),
            run.report.latency.mean() / 1000.0,
            run.latency_us(50.0),
            run.latency_us(99.0),
            run.latency_us(99.9),
            run.cpu_per_io_us(),
            run.report.errors
        );
    }
    text
}

/// Latency against IOPS of several depths; of one run its latency by percentile.
pub(super) fn plot(runs: &[Measured], what: &str) -> Plot {
    let latency = Axis { label: "latency in us".to_owned(), log: true };
    if let [run] = runs {
        // 0 %, 90 %, 99 %, ... at even distances: by how rare what is slower is.
        let last = run.report.latency.len().max(10) as f64;
        let mut points: Vec<_> = Vec::new();
        let mut rarer = 1.0;
        while rarer <= last {
            let label = if rarer == 1.0 { String::new() } else { format!("{} %", 100.0 - 100.0 / rarer) };
            let at = if rarer == 1.0 { 0.0 } else { 100.0 - 100.0 / rarer };
            points.push((rarer, run.latency_us(at), label));
            rarer *= 10.0;
        }
        points.push((last, run.latency_us(100.0), "max".to_owned()));
        return Plot {
            title: format!("{what}, QD {}", run.depth),
            x: Axis { label: "one I/O in so many is slower".to_owned(), log: true },
            y: latency,
            series: vec![Series { name: format!("{:.0} IOPS", run.iops()), points }],
        };
    }
    let series = |name: &str, at: f64| Series {
        name: name.to_owned(),
        points: runs
            .iter()
            .map(|run| (run.iops(), run.latency_us(at), format!("QD {}", run.depth)))
            .collect(),
    };
    Plot {
        title: what.to_owned(),
        x: Axis { label: "IOPS".to_owned(), log: false },
        y: latency,
        series: vec![series("p50", 50.0), series("p99", 99.0)],
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    fn measured(depth: u32) -> Measured {
        let mut latency = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        (1..=100).for_each(|us| latency.record(us * 1000).unwrap());
        let report = Report {
            ios: 100,
            reads: 60,
            bytes: 409_600,
            elapsed: Duration::from_secs(2),
            latency,
            errors: 0,
            told: Vec::new(),
            retries: 0,
            verified: 0,
            unknown: 0,
            unsent: 7,
        };
        let counters = SessionCounters { logins: 1, ..SessionCounters::default() };
        Measured { depth, rate: None, report, cpu: Duration::from_millis(1), counters, stages: None }
    }

    #[test]
    fn the_keys_that_are_promised() {
        let value = measured(4).json();
        let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let promised = "cpu_percent cpu_us_per_io errors iops ios lat_us mbps qd reads reconnects retries seconds \
                        unknown verified writes";
        assert_eq!(keys.join(" "), promised);
        assert_eq!((value["iops"].as_f64(), value["cpu_us_per_io"].as_f64()), (Some(50.0), Some(10.0)));
        assert_eq!(value["lat_us"]["p50"].as_f64().map(f64::round), Some(50.0));
        let rated = Measured { rate: Some(54), ..measured(4) };
        assert_eq!((&rated.json()["rate"], &rated.json()["unsent"]), (&json!(54), &json!(7)));
        assert!(rated.text().contains("7 were due and never sent"));
        assert!(!measured(4).text().contains("due"));
    }

    #[test]
    fn stages_are_shown_in_the_order_of_the_way() {
        let spread = |mean: f64| json!({"mean": mean, "p50": mean, "p99": mean, "max": mean});
        let stages = json!([{"lun": 0, "operation": "read", "size": "<=4k", "commands": 5, "lat_us": {
            "backend": spread(1.0), "buffer": spread(0.0), "rdma_read": spread(0.0), "receive": spread(2.0),
            "response": spread(1.0), "total": spread(4.0)}}]);
        let text = Measured { stages: Some(stages), ..measured(1) }.text();
        let at = |name| text.find(name).unwrap_or_else(|| panic!("no {name} in {text}"));
        assert!(
            at("receive") < at("buffer") && at("backend") < at("response") && at("response") < at("total")
        );
        assert!(text.contains("LUN 0 read <=4k, 5 commands") && text.contains("50%"), "{text}");
    }

    #[test]
    fn plots_of_one_run_and_of_a_sweep() {
        let one = plot(&[measured(4)], "randread 4096");
        let points = &one.series[0].points;
        assert_eq!(points.iter().map(|point| point.0).collect::<Vec<_>>(), [1.0, 10.0, 100.0, 100.0]);
        assert_eq!(points[1].2, "90 %");
        let sweep = plot(&[measured(1), measured(2)], "randread 4096");
        assert_eq!((sweep.series.len(), sweep.series[0].points[1].2.as_str()), (2, "QD 2"));
        assert_eq!(sweep_table(&[measured(1), measured(2)]).lines().count(), 3);
    }
}
