//! Which kind of ring this kernel makes: the best one first, older ways as fall-backs.

use std::io;

use io_uring::{IoUring, Probe, opcode};

use crate::io::OpenError;

/// Entries of the submission queue: what one system call hands over at most.
const SQ_ENTRIES: u32 = 256;

/// How a ring was set up, for the log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Setup {
    /// SINGLE_ISSUER and DEFER_TASKRUN (6.1): completions are run when we ask, on our core.
    Deferred,
    /// COOP_TASKRUN (5.19): completions never interrupt us, any system call runs them.
    Cooperative,
    /// Neither.
    Plain,
}

/// A ring for `operations` at once, each of which may be under cancellation as well.
pub(super) fn build(operations: usize) -> Result<(IoUring, Setup), OpenError> {
    let cq_entries = u32::try_from(operations * 2).unwrap_or(u32::MAX);
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
        #[cfg(test)]
        if tests::ONLY.get().is_some_and(|only| only != setup) {
            continue;
        }
        let mut builder = IoUring::builder();
        builder.setup_cqsize(cq_entries).setup_clamp().dontfork();
        match setup {
            // Without the flag in memory nothing would tell that deferred work waits.
            Setup::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            Setup::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            Setup::Plain => {}
        }
        match builder.build(SQ_ENTRIES) {
            Ok(ring) => {
                check_operations(&ring)?;
                tracing::debug!(
                    "io_uring: {setup:?}, {} submissions, {} completions",
                    SQ_ENTRIES,
                    ring.params().cq_entries()
                );
                return Ok((ring, setup));
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(explain(&error)),
        }
    }
    Err(explain(&refused))
}

fn explain(error: &io::Error) -> OpenError {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "not permitted here; set the sysctl kernel.io_uring_disabled to 0, or 1 and join its group"
        }
        Some(libc::ENOSYS) => {
            "this kernel, or the container's seccomp filter, has no io_uring; Linux 5.11 is needed"
        }
        Some(libc::ENOMEM) => "no memory for the ring; raise the limit of locked memory (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files; raise the limit (ulimit -n)",
        _ => "the ring could not be made",
    };
    OpenError::new("io_uring", format_args!("{remedy} ({error})"))
}

fn check_operations(ring: &IoUring) -> Result<(), OpenError> {
    let mut probe = Probe::new();
    let known = ring.submitter().register_probe(&mut probe).is_ok();
    let needed =
        [opcode::Read::CODE, opcode::Write::CODE, opcode::Fallocate::CODE, opcode::AsyncCancel::CODE];
    // EXT_ARG came with 5.11; switching the eventfd in memory with 5.8.
    let recent = ring.params().is_feature_ext_arg();
    if recent && known && needed.iter().all(|&code| probe.is_supported(code)) {
        return Ok(());
    }
    Err(OpenError::new("io_uring", "this kernel's io_uring is too old; Linux 5.11 is needed"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use reactors::time::Time;

    use super::*;
    use crate::io::Op;
    use crate::testing::{Driver, wait_readable};
    use crate::uring::ring::Ring;
    use crate::uring::{UringBdev, UringOptions};

    thread_local! {
        /// The one setup that this thread's rings may have.
        pub(super) static ONLY: Cell<Option<Setup>> = const { Cell::new(None) };
    }

    #[test]
    fn older_kinds_of_ring_move_bytes_and_wake_sleepers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
            ONLY.set(Some(setup));
            let device = UringBdev::open("u0", &path, &UringOptions::default()).unwrap();
            let mut driver = Driver::open(&device, 300);
            for round in 0..10_u8 {
                driver.write(u64::from(round) * 4096, &[round; 4096]).unwrap();
                driver.try_submit(Op::Flush, 0, 0).unwrap();
                // Woken for nothing is allowed; slept through is not.
                while driver.poll().is_empty() {
                    if driver.queue().next_deadline() == Time::NEVER {
                        let woken = wait_readable(driver.queue().wait_fd().unwrap(), Duration::from_secs(10));
                        assert!(woken, "{setup:?}, round {round}: slept through the completion");
                    }
                }
                assert_eq!(driver.read(u64::from(round) * 4096, 4096).unwrap(), [round; 4096]);
            }
            for n in 0..300 {
                driver.try_submit(Op::Read, n * 512, 512).unwrap();
            }
            while driver.queue().in_flight() > 0 {
                driver.wait_some();
            }
        }
        ONLY.set(None);
    }

    #[test]
    fn a_signal_that_comes_late_wakes_once_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = UringBdev::open("u0", &path, &UringOptions::default()).unwrap();
        let mut driver = Driver::open(&device, 4);
        driver.read(0, 512).unwrap();
        let late = Ring::signal_of_this_thread();
        rustix::io::write(&late, &1_u64.to_ne_bytes()).unwrap();
        assert!(wait_readable(driver.queue().wait_fd().unwrap(), Duration::ZERO));
        assert_eq!(driver.queue().next_deadline(), Time::NEVER);
        assert!(!wait_readable(driver.queue().wait_fd().unwrap(), Duration::ZERO), "would spin");
    }

    #[test]
    fn refusals_name_the_remedy() {
        let why = |errno| explain(&io::Error::from_raw_os_error(errno)).to_string();
        assert!(
            why(libc::EPERM)
                .starts_with("io_uring: not permitted here; set the sysctl kernel.io_uring_disabled")
        );
        assert!(why(libc::ENOSYS).contains("Linux 5.11 is needed"));
        assert!(why(libc::ENOMEM).contains("ulimit -l"));
        assert!(why(libc::EMFILE).contains("ulimit -n"));
    }
}
