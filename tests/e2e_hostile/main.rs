//! Bad input on the wire, by UDP on loopback against the built program: each kind is counted and
//! answered as the standard says, a verified workload on four channels of two shards beside it
//! notices nothing, and afterwards the target holds what it held before.
//!
//! * `packets`: datagrams that are no packets, and packets that are for nobody
//! * `transport`: a connected peer that breaks the rules of RC
//! * `management`: messages of the connection manager that lie
//! * `units`: SRP information units that lie
//! * `storm`: hundreds of logins that nobody goes through with

#[path = "../common/instance.rs"]
mod instance;
mod management;
mod packets;
#[path = "../common/raw.rs"]
mod raw;
mod storm;
mod transport;
mod units;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use instance::{Instance, Perf, Start, Stats, address, wait_for};
use raw::Wire;

/// One at a time: each has a load beside it.
static TURN: Mutex<()> = Mutex::new(());

/// A target, a healthy workload on it, and the counters as they were before that.
struct Bout {
    target: Instance,
    healthy: Perf,
    before: Stats,
    at: IpAddr,
    host: u8,
    next_host: u8,
    _turn: MutexGuard<'static, ()>,
}

impl Bout {
    /// Uses addresses `host` to `host` + 49.
    fn begin(host: u8) -> Bout {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, local) = (address(host), address(host + 1));
        let target = Start::new(at).args(&["--lun", "malloc:16M"]).ready();
        let before = target.stats();
        let mut healthy = Perf::healthy(at, local);
        healthy.under_way(&target, 4);
        let channels = target.sessions()[0]["channels"].as_array().unwrap().clone();
        for shard in 0..2 {
            assert_eq!(
                channels.iter().filter(|channel| channel["shard"] == shard).count(),
                2,
                "{channels:?}"
            );
        }
        Bout { target, healthy, before, at, host, next_host: host + 2, _turn: turn }
    }

    /// A wire on an address of its own.
    fn wire(&mut self) -> Wire {
        let local = address(self.next_host);
        self.next_host += 1;
        assert!(self.next_host < self.host + 50);
        Wire::new(local, self.at)
    }

    /// Queue pair numbers of the healthy session.
    fn live_qpns(&self) -> Vec<u32> {
        let sessions = self.target.sessions();
        let healthy =
            sessions.iter().find(|session| session["address"] == address(self.host + 1).to_string());
        let channels = healthy.expect("the healthy session")["channels"].as_array().unwrap();
        channels.iter().map(|channel| channel["qpn"].as_u64().unwrap() as u32).collect()
    }

    /// Waits until the counters `names` together are `by` more than in `since`.
    fn counted(&self, since: &Stats, names: &[&str], by: u64) {
        let sum = |stats: &Stats| names.iter().map(|name| stats.get(name)).sum::<u64>();
        let (start, mut now) = (sum(since), 0);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while now < start + by {
            assert!(
                std::time::Instant::now() < deadline,
                "{names:?} went up by {} only, not {by}",
                now.saturating_sub(start)
            );
            now = sum(&self.target.stats());
        }
    }

    /// The healthy session has its channels still and gets on; ends it, and looks at what is left.
    fn end(self) {
        let commands = || {
            let sessions = self.target.sessions();
            sessions.iter().map(|session| session["commands"].as_u64().unwrap()).sum::<u64>()
        };
        let so_far = commands();
        wait_for("the healthy session gets on", Duration::from_secs(10), || commands() > so_far);
        assert_eq!(self.live_qpns().len(), 4);
        let ended = self.healthy.stop(Duration::from_secs(60));
        ended.verified();
        assert_eq!(ended.err, "", "the healthy session says nothing");
        let rest = self.before.at_rest();
        let mut now = Vec::new();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while now != rest {
            assert!(std::time::Instant::now() < deadline, "left behind: {now:?}, before: {rest:?}");
            now = self.target.stats().at_rest();
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(self.target.sessions(), Vec::<serde_json::Value>::new());
        let log = self.target.log();
        for word in ["panicked", " ERROR "] {
            assert!(!log.contains(word), "{log}");
        }
        let (status, _) = self.target.stop(Duration::from_secs(15));
        assert_eq!(status, Some(0));
    }
}
