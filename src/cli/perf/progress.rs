//! A line on the terminal while a run goes on; the run's end by signal; its own CPU time.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reactors::time::Time;
use rustix::time::{ClockId, clock_gettime};

use crate::initiator::load::{Report, Stop, Watch};

/// How often the line is drawn anew: seldom enough to cost a run nothing.
const EVERY: Duration = Duration::from_millis(250);

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Watches a run.
pub(super) struct Progress<'a> {
    stop: &'a AtomicBool,
    cpu_before: Duration,
    cpu: Option<Duration>,
    /// The line, if there is a terminal to draw it on.
    bar: Option<ProgressBar>,
    goal: Stop,
    begun: Option<Time>,
    next: Time,
    /// I/Os and time at the last look.
    last: (u64, Time),
}

impl<'a> Progress<'a> {
    /// `stop` ends the run; `label` stands before the line, `None` draws none.
    pub(super) fn new(stop: &'a AtomicBool, goal: Stop, label: Option<String>) -> Self {
        let bar = label.filter(|_| std::io::stderr().is_terminal()).map(|label| {
            let length = match goal {
                Stop::After(time) => time.as_millis() as u64,
                Stop::Ios(count) => count,
            };
            let style = ProgressStyle::with_template("{prefix} [{bar:24}] {percent:>3} % {msg}");
            let bar = ProgressBar::with_draw_target(Some(length.max(1)), ProgressDrawTarget::stderr());
            bar.set_prefix(label);
            // The template above is one of indicatif's own form; without it the usual one will do.
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("##-"));
            }
            bar
        });
        Progress {
            stop,
            cpu_before: cpu_time(),
            cpu: None,
            bar,
            goal,
            begun: None,
            next: Time::ZERO,
            last: (0, Time::ZERO),
        }
    }

    /// The CPU time of the measured part.
    pub(super) fn cpu(&self) -> Duration {
        self.cpu.unwrap_or_default()
    }

    fn draw(&mut self, now: Time, report: &Report) {
        self.next = now + EVERY;
        let begun = *self.begun.get_or_insert(now);
        let (ios, at) = std::mem::replace(&mut self.last, (report.ios, now));
        let Some(bar) = &self.bar else { return };
        bar.set_position(match self.goal {
            Stop::After(_) => now.since(begun).as_millis() as u64,
            Stop::Ios(_) => report.ios,
        });
        let seconds = now.since(at).as_secs_f64();
        if begun != now && seconds > 0.0 {
            let rate = (report.ios - ios) as f64 / seconds;
            let p99 = report.latency.value_at_percentile(99.0) as f64 / 1000.0;
            bar.set_message(format!("{rate:.0} IOPS, p99 {p99:.0} us, {} errors", report.errors));
        }
    }
}

impl Watch for Progress<'_> {
    fn interrupted(&mut self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn look(&mut self, now: Time, report: &Report) {
        if now >= self.next && self.bar.is_some() {
            self.draw(now, report);
        }
    }

    fn measured(&mut self) {
        self.cpu = Some(cpu_time().saturating_sub(self.cpu_before));
        if let Some(bar) = &self.bar {
            bar.set_message("reading back");
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
