//! The clock of pollers: the processor's time stamp counter, scaled to nanoseconds.
//!
//! Reading it costs a few nanoseconds and no system call. Where the counter cannot be trusted
//! (not invariant, or the kernel gave it up as unstable), CLOCK_MONOTONIC takes its place. Tests
//! need no clock: a [`Time`] is a number.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::time::Time;

/// How long the counter is held against CLOCK_MONOTONIC. Reading that is good to about 50 ns, so
/// the rate is good to 10 ppm: plenty for protocol timers.
const CALIBRATION: Duration = Duration::from_millis(10);

/// Nanoseconds of a tick are `scale / 2^SHIFT`.
const SHIFT: u32 = 32;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Source {
    Tsc { scale: u64, start_ticks: u64 },
    Monotonic { start_ns: u64 },
}

/// A clock that starts when the process first asks for it. Copies, on any thread, agree.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    source: Source,
}

impl Clock {
    /// The process's clock; the first call takes some 10 ms to calibrate.
    pub fn get() -> Clock {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK
            .get_or_init(|| tsc_is_sound().then(Clock::calibrated).flatten().unwrap_or_else(Clock::monotonic))
    }

    /// A clock on CLOCK_MONOTONIC.
    fn monotonic() -> Clock {
        Clock { source: Source::Monotonic { start_ns: monotonic_ns() } }
    }

    fn calibrated() -> Option<Clock> {
        let (from_ns, from_ticks) = paired_reading();
        std::thread::sleep(CALIBRATION);
        let (to_ns, to_ticks) = paired_reading();
        let ticks = to_ticks.checked_sub(from_ticks).filter(|&ticks| ticks > 0)?;
        let scale = u128::from(to_ns.saturating_sub(from_ns)) * (1 << SHIFT) / u128::from(ticks);
        // Below 1/16 ns or above 100 ns a tick, something is lying.
        let scale = u64::try_from(scale).ok().filter(|s| (1 << (SHIFT - 4)..100 << SHIFT).contains(s))?;
        Some(Clock { source: Source::Tsc { scale, start_ticks: to_ticks } })
    }

    /// The time since the clock's start.
    #[inline]
    pub fn now(&self) -> Time {
        Time::from_nanos(match self.source {
            Source::Tsc { scale, start_ticks } => {
                // Another core's counter may lag by some ticks: never before the start.
                let ticks = ticks().saturating_sub(start_ticks);
                ((u128::from(ticks) * u128::from(scale)) >> SHIFT) as u64
            }
            Source::Monotonic { start_ns } => monotonic_ns().saturating_sub(start_ns),
        })
    }

    /// Whether it reads the time stamp counter.
    pub fn is_tsc(&self) -> bool {
        matches!(self.source, Source::Tsc { .. })
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Both clocks at one moment: the closest of a few tries, since an interrupt may come between.
fn paired_reading() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..8 {
        let before = ticks();
        let ns = monotonic_ns();
        let after = ticks();
        let spread = after.saturating_sub(before);
        if spread < best.0 {
            best = (spread, ns, before + spread / 2);
        }
    }
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC; Linux lets user space run it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Whether the counter runs at one rate on all cores, in all power states: the processor says
/// so, and the kernel, which watches it, has not struck it off its list.
fn tsc_is_sound() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    let kernel_list = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    let listed = std::fs::read_to_string(kernel_list)
        .is_ok_and(|list| list.split_whitespace().any(|source| source == "tsc"));
    has("constant_tsc") && has("nonstop_tsc") && listed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_with_the_system(clock: Clock) {
        let (from, from_ns) = (clock.now(), monotonic_ns());
        std::thread::sleep(Duration::from_millis(20));
        let (to_ns, to) = (monotonic_ns(), clock.now());
        // Two readings taken around ours: only the rate can make it shorter.
        let ours = to.since(from).as_nanos() as f64;
        let theirs = (to_ns - from_ns) as f64;
        assert!(ours > theirs * 0.99, "{ours} ns against {theirs} ns");
    }

    #[test]
    fn both_sources_run_at_the_rate_of_the_system() {
        runs_with_the_system(Clock::get());
        runs_with_the_system(Clock::monotonic());
    }

    #[test]
    fn time_never_runs_backwards_between_threads() {
        let clock = Clock::get();
        let mut last = clock.now();
        for _ in 0..100 {
            let there = std::thread::spawn(move || clock.now()).join().unwrap();
            assert!(there >= last);
            last = clock.now();
            assert!(last >= there);
        }
    }
}
