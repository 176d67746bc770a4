//! After start no I/O of the initiator costs an allocation, from the command's IU to the report:
//! a counting allocator says so. The target is another process.

#[path = "common/counting.rs"]
mod counting;

#[path = "common/verified_load.rs"]
mod verified_load;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use counting::allocations;
use srpoll::initiator::load::Watch;
use verified_load::WARM_TURNS;

/// Looks at the counter once the run is warm, and at its end.
#[derive(Default)]
struct Count {
    turns: u32,
    warm: Option<u64>,
    end: Option<u64>,
}

impl Watch for Count {
    fn interrupted(&mut self) -> bool {
        self.turns += 1;
        if self.turns == WARM_TURNS {
            self.warm = Some(allocations());
        }
        false
    }

    fn measured(&mut self) {
        self.end = Some(allocations());
    }
}

#[test]
fn an_io_allocates_nothing() {
    let pid = std::process::id();
    let address = |last| IpAddr::from([127, 0x20 | (pid >> 8 & 0x1f) as u8, pid as u8, last]);
    let folder = tempfile::tempdir().unwrap();
    let mut target = Command::new(env!("CARGO_BIN_EXE_srpoll"))
        .args(["serve", "--soft", &address(1).to_string(), "--lun", "malloc:16M", "--memory", "4M"])
        .arg("--rpc")
        .arg(folder.path().join("rpc"))
        .arg("--state")
        .arg(folder.path().join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(target.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));

    let mut counted = Count::default();
    verified_load::run(address(2), address(1), &mut counted);
    target.kill().unwrap();
    target.wait().unwrap();
    assert_eq!(counted.end.unwrap() - counted.warm.expect("as many turns as it takes"), 0);
}
