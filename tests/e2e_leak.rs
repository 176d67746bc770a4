//! A thousand connects and cut connects against one target: afterwards memory, descriptors, threads,
//! queue pairs and receive slots are where they were when the first fifty had gone. LEAK_CONNECTS=10000
//! makes ten thousand of them.

#[path = "common/instance.rs"]
mod instance;
#[path = "common/raw.rs"]
mod raw;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use instance::{Instance, Start, address, wait_for};
use raw::{Peer, Wire, login, req};
use srpoll::wire::cm::{CmMad, CommId};
use srpoll::wire::num::Qpn;
use srpoll::wire::scsi::cdb::Cdb;
use srpoll::wire::srp::{Cmd, DataBuffer, Descriptor, InitiatorLogout, LoginReq, Tag};

/// Resident memory may differ by this much: allocators keep what they had at the highest point, and 64
/// spare queue pairs of 20 KiB and more may have come together on each of the two shards.
const RSS_SLACK_KIB: u64 = 1024 + 2 * 64 * 32;
const IDENTITIES: u32 = 8;

/// What a process holds, by its own kernel's account, and what the target says it holds.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: u64,
    rss_kib: u64,
    target: Vec<(&'static str, u64)>,
    connections: u64,
}

fn holdings(target: &Instance) -> Holdings {
    let of = format!("/proc/{}", target.child.id());
    let status = fs::read_to_string(format!("{of}/status")).unwrap();
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let stats = target.stats();
    Holdings {
        descriptors: fs::read_dir(format!("{of}/fd")).unwrap().count(),
        threads: number("Threads:"),
        rss_kib: number("VmRSS:"),
        target: stats.at_rest(),
        connections: stats.get("connections"),
    }
}

fn write_that_waits(tag: u64) -> Vec<u8> {
    let descriptor = Descriptor { addr: 0x10_0000, len_bytes: 4096, ..Descriptor::default() };
    let cmd = Cmd {
        sol_not: 0,
        tag: Tag(tag.to_be_bytes()),
        lun: Default::default(),
        attribute: Default::default(),
        cdb: Cdb::Write(srpoll::wire::scsi::cdb::ReadWrite::plain(0, 8)).emit(),
        additional_cdb: &[],
        data_out: DataBuffer::Direct(descriptor),
        data_in: DataBuffer::None,
    };
    let mut iu = vec![0; 128];
    let len = cmd.emit(&mut iu).unwrap();
    iu.truncate(len);
    iu
}

/// Eight hosts, each with its address and identity. A number says how a connect goes.
struct Crowd {
    wires: Vec<Option<Wire>>,
    at: std::net::IpAddr,
    /// Logged in and silent, to be forgotten.
    idle: usize,
}

impl Crowd {
    fn new(at: std::net::IpAddr) -> Crowd {
        Crowd {
            wires: (0..IDENTITIES).map(|host| Some(Wire::new(address(10 + host as u8), at))).collect(),
            at,
            idle: 0,
        }
    }

    fn login_of(number: u32) -> LoginReq {
        login(u64::from(number % IDENTITIES))
    }

    fn connect(&mut self, number: u32) {
        let host = (number % IDENTITIES) as usize;
        let mut wire = self.wires[host].take().unwrap();
        // What came for the last one is nothing to the next.
        while wire.recv(Duration::from_millis(1)).is_some() {}
        match number % 7 {
            // Asks, and never answers.
            0 => {
                let mut request = req(&wire, number, &Crowd::login_of(number));
                request.local_id = CommId(0x1000 + number);
                request.local_qpn = Qpn::new(0x100 + number);
                wire.send_mad(&CmMad::new(number.into(), request));
            }
            // Logs in and closes its socket, and opens another one.
            1 => {
                let peer = self.log_in(wire, number);
                drop(peer);
                wire = Wire::new(address(10 + host as u8), self.at);
            }
            // Logs in and is silent.
            2 => {
                self.idle += 1;
                wire = self.log_in(wire, number).wire;
            }
            // Dies with commands on the way, whose data are wanted.
            3 => {
                let mut peer = self.log_in(wire, number);
                for tag in 0..10 {
                    peer.send_iu(&write_that_waits(tag));
                }
                wire = peer.wire;
            }
            // Breaks the protocol.
            4 => {
                let mut peer = self.log_in(wire, number);
                peer.send_iu(&[0x77; 40]);
                wire = peer.wire;
            }
            // Logs out by SRP, or by DREQ.
            5 => {
                let mut peer = self.log_in(wire, number);
                peer.send_iu(&InitiatorLogout { tag: Tag([1; 8]) }.emit());
                peer.dreq("I_LOGOUT");
                wire = peer.wire;
            }
            _ => {
                let mut peer = self.log_in(wire, number);
                peer.wire.send_mad(&CmMad::new(3, peer.good_dreq()));
                peer.until("a DREP", |seen| {
                    matches!(seen, raw::Seen::Cm(srpoll::wire::cm::Message::Drep(_))).then_some(())
                });
                wire = peer.wire;
            }
        }
        self.wires[host] = Some(wire);
    }

    /// Every other login is one more channel of its identity's session.
    fn log_in(&self, mut wire: Wire, number: u32) -> Peer {
        let mut login = Crowd::login_of(number);
        login.flags |= (number / IDENTITIES % 2) as u8;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let host = (number % IDENTITIES) as u8;
            match Peer::connect(wire, number, &login) {
                Ok(peer) => return peer,
                // The silent ones hold all there is, until they are given up.
                Err(rej) => assert!(Instant::now() < deadline, "refused: {}", rej.reason),
            }
            std::thread::sleep(Duration::from_millis(50));
            wire = Wire::new(address(10 + host), self.at);
        }
    }
}

#[test]
fn a_thousand_connects_leave_nothing() {
    let at = address(1);
    let target = Start::new(at).args(&["--lun", "malloc:16M", "--dead-after", "2s"]).ready();
    let start = target.stats().at_rest();
    let mut crowd = Crowd::new(at);
    let gone = |target: &Instance| {
        let mut now = BTreeMap::new();
        wait_for("all of them are gone", Duration::from_secs(30), || {
            let holdings = holdings(target);
            now = holdings.target.iter().copied().collect();
            now == start.iter().copied().collect() && holdings.connections == 0
        });
    };
    (0..50).for_each(|number| crowd.connect(number));
    gone(&target);
    // The thread of an RPC client ends a moment after the client.
    std::thread::sleep(Duration::from_millis(500));
    let after_fifty = holdings(&target);

    let asked = std::env::var("LEAK_CONNECTS").ok().and_then(|text| text.parse().ok());
    let many: u32 = asked.unwrap_or(1000);
    (50..50 + many).for_each(|number| crowd.connect(number));
    assert!(crowd.idle as u32 > many / 10);
    gone(&target);
    let mut after_all = None;
    let deadline = Instant::now() + Duration::from_secs(30);
    while after_all.as_ref() != Some(&after_fifty) {
        assert!(Instant::now() < deadline, "after fifty: {after_fifty:?}; after all: {after_all:?}");
        std::thread::sleep(Duration::from_millis(500));
        let mut now = holdings(&target);
        if now.rss_kib <= after_fifty.rss_kib + RSS_SLACK_KIB {
            now.rss_kib = after_fifty.rss_kib;
        }
        after_all = Some(now);
    }
    let stats = target.stats();
    let ended = stats.get("channels_ended");
    assert!(ended >= u64::from(many) * 8 / 10, "{ended} channels ended");
    assert_eq!(
        (stats.get("drains_overdue"), stats.get("logins_accepted")),
        (0, ended),
        "each login ended, in time"
    );
    assert!(stats.get("ended_silent") > 0);
    assert!(stats.get("qps_spare") <= 2 * 64 && stats.get("qps_retiring") == 0);
    // Every queue pair that was made is a spare or gone.
    let made = stats.get("qps_made");
    assert_eq!(made, stats.get("qps_spare") + stats.get("qps_destroyed"));
    assert!(made < ended, "most logins take a spare: {made} made for {ended}");
    println!("{after_fifty:?} after fifty; {many} more: {ended} channels, {made} queue pairs made");
    let log = target.log();
    assert!(!log.contains("panicked") && !log.contains(" ERROR "), "{log}");
    assert_eq!(target.stop(Duration::from_secs(30)).0, Some(0));
}
