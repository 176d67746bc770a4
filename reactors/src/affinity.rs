//! Which cores there are, and pinning to one.

use std::fmt;
use std::sync::OnceLock;

use core_affinity::CoreId;

/// `core_affinity` writes beyond its fixed `cpu_set_t` (and so panics) from this core id on.
const CORE_LIMIT: usize = 1024;

/// Why cores cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// Some of the cores are not there, or this process may not run on them.
    #[error("no such cores: {missing}; this process may run on {available}", missing = Cores(missing), available = Cores(available))]
    Missing {
        /// Those that are not there.
        missing: Vec<usize>,
        /// Those that are.
        available: Vec<usize>,
    },
    /// A core was named twice; two pollers on one core would starve each other.
    #[error("core {0} is named twice")]
    Twice(usize),
    /// More pollers than cores.
    #[error("{asked} cores asked for, this process may run on {} ({})", available.len(), Cores(available))]
    TooMany {
        /// How many were asked for.
        asked: usize,
        /// Those that there are.
        available: Vec<usize>,
    },
    /// The operating system would not tell or would not pin.
    #[error("cannot pin to core {0}")]
    Refused(usize),
}

struct Cores<'a>(&'a [usize]);

impl fmt::Display for Cores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, core) in self.0.iter().enumerate() {
            write!(f, "{}{core}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The cores on which this process may run, ascending. Asked once: a thread that is pinned
/// already sees its own core only, so the first call must come from one that is not.
pub fn available() -> &'static [usize] {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    CORES.get_or_init(|| {
        let mut cores: Vec<usize> = core_affinity::get_core_ids()
            .unwrap_or_default()
            .into_iter()
            .map(|core| core.id)
            .filter(|&core| core < CORE_LIMIT)
            .collect();
        cores.sort_unstable();
        cores
    })
}

/// Checks that each of `cores` is there, and none named twice.
pub fn check(cores: &[usize]) -> Result<(), AffinityError> {
    check_against(cores, available())
}

/// The first `count` cores.
pub fn first(count: usize) -> Result<Vec<usize>, AffinityError> {
    match available().get(..count) {
        Some(cores) => Ok(cores.to_vec()),
        None => Err(AffinityError::TooMany { asked: count, available: available().to_vec() }),
    }
}

fn check_against(cores: &[usize], available: &[usize]) -> Result<(), AffinityError> {
    for (n, core) in cores.iter().enumerate() {
        if cores[..n].contains(core) {
            return Err(AffinityError::Twice(*core));
        }
    }
    let missing: Vec<usize> = cores.iter().copied().filter(|core| !available.contains(core)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(AffinityError::Missing { missing, available: available.to_vec() })
}

/// Pins the calling thread to `core`.
pub fn pin(core: usize) -> Result<(), AffinityError> {
    check(&[core])?;
    if core_affinity::set_for_current(CoreId { id: core }) {
        Ok(())
    } else {
        Err(AffinityError::Refused(core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_cores_are_named() {
        let error = check_against(&[1, 9, 4000], &[0, 1]).unwrap_err();
        assert_eq!(error.to_string(), "no such cores: 9,4000; this process may run on 0,1");
        assert_eq!(check_against(&[1, 0, 1], &[0, 1]), Err(AffinityError::Twice(1)));
        assert_eq!(check_against(&[1, 0], &[0, 1]), Ok(()));
        let error = AffinityError::TooMany { asked: 3, available: vec![0, 1] };
        assert_eq!(error.to_string(), "3 cores asked for, this process may run on 2 (0,1)");
    }

    #[test]
    fn a_pinned_thread_runs_where_it_should() {
        let core = *available().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin(core).unwrap();
            core_affinity::get_core_ids().unwrap()
        });
        assert_eq!(seen.join().unwrap(), [CoreId { id: core }]);
        assert!(matches!(pin(100_000), Err(AffinityError::Missing { .. })));
    }
}
