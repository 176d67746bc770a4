//! How far two cores are from each other: the time a cache line takes from one to the other.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use reactors::affinity::{self, AffinityError};

/// A batch is so short that most of them run undisturbed on a busy machine, too: the middle one counts.
const TRIPS_A_BATCH: u64 = 50;
const BATCHES: usize = 200;
/// On a machine that is busier than that fewer batches have to do, but so many that those which somebody else
/// interrupted are not the middle.
const LIMIT: Duration = Duration::from_millis(30);
const FEWEST: usize = 25;
/// Tells the other side that there are no more.
const OVER: u64 = u64::MAX;

/// A number with its cache line, and the one that is fetched along with it, to itself.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    fn wait_for(&self, wanted: impl Fn(u64) -> bool) -> u64 {
        loop {
            let number = self.0.load(Ordering::Acquire);
            if wanted(number) {
                return number;
            }
            spin_loop();
        }
    }
}

/// The middle of the one-way times in nanoseconds.
pub(crate) fn measure(cores: [usize; 2]) -> Result<f64, AffinityError> {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    affinity::check(&cores)?;
    affinity::pin(cores[0])?;
    thread::scope(|scope| {
        scope.spawn(|| answer(cores[1], &there, &back));
        let times = ask(&there, &back);
        there.0.store(OVER, Ordering::Release);
        Ok(times[times.len() / 2])
    })
}

/// Sends back each number that comes.
fn answer(core: usize, there: &Line, back: &Line) {
    // Where it must not run there, the times say so: they are those of one core.
    let _ = affinity::pin(core);
    let mut last = 0;
    while last != OVER {
        last = there.wait_for(|number| number != last);
        back.0.store(last, Ordering::Release);
    }
}

/// One-way times of all batches in nanoseconds, sorted. The first trip waits for the other thread to run.
fn ask(there: &Line, back: &Line) -> Vec<f64> {
    let mut trip = 0;
    let mut trips = |count: u64| {
        let started = Instant::now();
        for _ in 0..count {
            trip += 1;
            there.0.store(trip, Ordering::Release);
            back.wait_for(|number| number == trip);
        }
        started.elapsed()
    };
    trips(1);
    let began = Instant::now();
    let mut times = Vec::with_capacity(BATCHES);
    while times.len() < BATCHES && (times.len() < FEWEST || began.elapsed() < LIMIT) {
        times.push(trips(TRIPS_A_BATCH).as_nanos() as f64 / TRIPS_A_BATCH as f64 / 2.0);
    }
    times.sort_by(f64::total_cmp);
    times
}
