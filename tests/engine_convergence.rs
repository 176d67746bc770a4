//! Pairs of engines on a virtual clock over a bad network: they converge with the right bytes, or
//! both sides say RETRY_EXC; never a wrong byte. Everything follows from seeds.

#[path = "engine_support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::time::Duration;

use reactors::time::Time;
use srpoll::rdma::engine::EngineConfig;
use srpoll::rdma::sim::net::Faults;
use srpoll::rdma::verbs::*;

use support::*;

/// Every operation has a place of its own, so that what it left can be told whatever failed.
const PLACE: usize = 12 << 10;
const OPS: usize = 12;
const PRISTINE: u8 = 0xa5;

/// Areas of a side's memory, each with a place for every operation.
const SOURCE: usize = 0;
const RECEIVED: usize = 1;
const WRITTEN: usize = 2;
const READ: usize = 3;

fn place(area: usize, op: usize) -> usize {
    (area * OPS + op) * PLACE
}

#[derive(Copy, Clone, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

#[derive(Copy, Clone, Debug)]
struct Op {
    kind: Kind,
    len: usize,
    signaled: bool,
}

fn ops(rng: &mut fastrand::Rng) -> Vec<Op> {
    (0..OPS)
        .map(|_| Op {
            kind: *rng.choice([Kind::Send, Kind::Write, Kind::Read].iter()).unwrap(),
            len: *rng.choice([0, 1, 255, 1024, 4097, rng.clone().usize(0..PLACE), PLACE].iter()).unwrap(),
            signaled: rng.bool(),
        })
        .collect()
}

/// A pair, and what each side is doing.
struct Trial {
    pair: Pair,
    sources: [Vec<u8>; 2],
    ops: [Vec<Op>; 2],
    /// Receives posted so far.
    posted: [usize; 2],
    sent: [Vec<Wc>; 2],
    received: [Vec<Wc>; 2],
}

impl Trial {
    fn new(seed: u64, faults: Faults, setup: &Setup) -> Trial {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let mut setup = Setup { region_bytes: 4 * OPS * PLACE + 4096, ..setup.clone() };
        setup.mtu = PathMtu::from_code(rng.u8(1..=5)).unwrap();
        setup.srq = rng.bool();
        setup.psn = if rng.bool() { 0xff_fff0 } else { rng.u32(0..1 << 24) };
        setup.max_rd_atomic = rng.u8(1..=4);
        setup.config.write_only_segmentation = rng.bool();
        setup.config.read_chunk_bytes = 4096;
        let mut pair = Pair::new(faults, seed, &setup, &setup);
        // Sockets that take few packets at a time.
        pair.world.room_packets = [usize::MAX, 1, 3, 20][rng.usize(0..4)];
        let mut sources = [Vec::new(), Vec::new()];
        let all_ops = [ops(&mut rng), ops(&mut rng)];
        let mut posted = [0; 2];
        for side in 0..2 {
            pair.sides[side].region.fill(0, 4 * OPS * PLACE, PRISTINE).unwrap();
            sources[side] = pair.sides[side].fill(place(SOURCE, 0), OPS * PLACE, seed + side as u64);
            // Fewer receives than SENDs now and then: RNR NAKs until they are posted.
            posted[side] = rng.usize(0..=OPS);
            for op in 0..posted[side] {
                pair.post_recv(side, op as u64, place(RECEIVED, op), PLACE);
            }
        }
        let (sent, received) = Default::default();
        Trial { pair, sources, ops: all_ops, posted, sent, received }
    }

    fn post_all(&mut self) {
        for side in 0..2 {
            for (number, op) in self.ops[side].clone().into_iter().enumerate() {
                let peer = &self.pair.sides[1 - side];
                let (kind, area) = match op.kind {
                    Kind::Send => (SEND, SOURCE),
                    Kind::Write => (SendOp::Write(peer.remote(place(WRITTEN, number))), SOURCE),
                    Kind::Read => (SendOp::Read(peer.remote(place(SOURCE, number))), READ),
                };
                let list = self.pair.sides[side].list(place(area, number), op.len);
                // The last one tells that all are done.
                let signaled = op.signaled || number + 1 == OPS;
                self.pair.post_send(side, &wr(number as u64, kind, list, signaled));
            }
        }
    }

    fn post_missing_receives(&mut self) {
        for side in 0..2 {
            for op in self.posted[side]..OPS {
                self.pair.post_recv(side, op as u64, place(RECEIVED, op), PLACE);
            }
            self.posted[side] = OPS;
        }
    }

    fn collect(&mut self) {
        for side in 0..2 {
            let sent = self.pair.send_wcs(side);
            self.sent[side].extend(sent);
            let received = self.pair.recv_wcs(side);
            self.received[side].extend(received);
        }
    }

    /// Goes on until both sides have completed their last work request, well or badly.
    fn run(&mut self, limit: Duration) -> bool {
        self.pair.settle(Duration::from_millis(3));
        self.post_missing_receives();
        let end = self.pair.world.now() + limit;
        loop {
            self.collect();
            if self.sent.iter().all(|wcs| wcs.iter().any(|wc| wc.wr_id == OPS as u64 - 1)) {
                return true;
            }
            if !self.pair.world.step(end) {
                return false;
            }
            self.audit();
        }
    }

    fn audit(&self) {
        for (address, engine) in &self.pair.world.endpoints {
            engine.audit().unwrap_or_else(|what| panic!("{address}: {what}"));
        }
    }

    /// What was completed is right, and what was not is right as far as it went.
    fn check(&self, what: &str) {
        for side in 0..2 {
            let failed_at = self.sent[side].iter().find(|wc| wc.status != WcStatus::Success);
            let done_before = failed_at.map_or(OPS, |wc| wc.wr_id as usize);
            let (me, peer) = (&self.pair.sides[side], &self.pair.sides[1 - side]);
            let mut messages = 0;
            for (number, op) in self.ops[side].iter().enumerate() {
                let mine = &self.sources[side][number * PLACE..][..op.len];
                let theirs = &self.sources[1 - side][number * PLACE..][..op.len];
                let (found, right) = match op.kind {
                    Kind::Write => (peer.bytes(place(WRITTEN, number), PLACE), mine),
                    Kind::Read => (me.bytes(place(READ, number), PLACE), theirs),
                    Kind::Send => {
                        messages += 1;
                        // Receives of a shared queue are used in any order: the completion tells.
                        let at = match self.received[1 - side].get(messages - 1) {
                            Some(wc) => wc.wr_id as usize,
                            None if peer.srq.is_none() => messages - 1,
                            None => continue,
                        };
                        (peer.bytes(place(RECEIVED, at), PLACE), mine)
                    }
                };
                if number < done_before {
                    assert_eq!(&found[..op.len], right, "{what}: side {side} op {number} {op:?} is wrong");
                }
                for (at, (found, right)) in found.iter().zip(right).enumerate() {
                    assert!(
                        found == right || *found == PRISTINE,
                        "{what}: side {side} op {number} {op:?} has a wrong byte at {at}"
                    );
                }
                assert!(
                    found[op.len..].iter().all(|byte| *byte == PRISTINE),
                    "{what}: side {side} op {number} {op:?} went beyond its length"
                );
            }
            // Each SEND was received once, in order, with its length.
            let lengths = self.ops[side].iter().filter(|op| matches!(op.kind, Kind::Send));
            let good = self.received[1 - side].iter().filter(|wc| wc.status == WcStatus::Success);
            // A shared queue's receives are used in any order, but none twice.
            let shared = peer.srq.is_some();
            let mut used: Vec<_> = self.received[1 - side].iter().map(|wc| wc.wr_id).collect();
            used.sort_unstable();
            assert!(used.windows(2).all(|two| two[0] < two[1]), "{what}: side {side} {used:?}");
            let named = |(index, wc): (usize, &Wc)| {
                (if shared { index } else { wc.wr_id as usize }, wc.len_bytes as usize)
            };
            let good: Vec<_> = good.enumerate().map(named).collect();
            let expected: Vec<_> = lengths.map(|op| op.len).enumerate().collect();
            assert!(expected.starts_with(&good), "{what}: side {side} {good:?} of {expected:?}");
            if failed_at.is_none() {
                assert_eq!(good, expected, "{what}: side {side}");
            }
        }
    }
}

fn faults(seed: u64) -> Faults {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xfa17);
    // Every fault alone, and all together.
    let mut faults = Faults {
        loss: rng.f64() * 0.3,
        duplicate: rng.f64() * 0.2,
        reorder: rng.f64() * 0.3,
        corrupt: rng.f64() * 0.1,
        jitter: Duration::from_micros(rng.u64(0..100)),
        ..Faults::NONE
    };
    match seed % 6 {
        0 => faults = Faults { loss: faults.loss, ..Faults::NONE },
        1 => faults = Faults { duplicate: faults.duplicate, ..Faults::NONE },
        2 => faults = Faults { reorder: faults.reorder, ..Faults::NONE },
        3 => faults = Faults { loss: 0.3, ..faults },
        _ => {}
    }
    faults
}

/// `SRPOLL_SEEDS=N` runs N seeds, for a soak; counts of what happened are then higher, never lower.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("SRPOLL_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..asked.unwrap_or(usual).max(usual)
}

/// Short ACK timeouts (1 ms) and RNR waits (30 us), so that much happens.
fn hasty() -> Setup {
    Setup { timeout_code: 8, min_rnr_timer: 3, ..Setup::default() }
}

#[test]
fn with_infinite_retry_it_always_converges() {
    let setup = Setup { retry_forever: true, ..hasty() };
    let mut retransmissions = 0;
    for seed in seeds(600) {
        let mut trial = Trial::new(seed, faults(seed), &setup);
        trial.post_all();
        assert!(trial.run(Duration::from_secs(60)), "seed {seed}: {:?}", trial.sent);
        let all_well = trial.sent.iter().flatten().all(|wc| wc.status == WcStatus::Success);
        assert!(all_well, "seed {seed}: {:?}", trial.sent);
        trial.check(&format!("seed {seed}"));
        retransmissions += trial.pair.engine(0).counters().retransmissions;
        assert_eq!(trial.pair.engine(0).read_bytes_in_flight(), 0);
    }
    assert!(retransmissions > 10_000, "the network was bad: {retransmissions}");
}

#[test]
fn with_seven_retries_it_converges_or_both_sides_say_so() {
    // Without early tries, seven retries are soon used up.
    let config = EngineConfig { early_retry: Duration::ZERO, ..EngineConfig::default() };
    let setup = Setup { config, ..hasty() };
    let (mut converged, mut gave_up) = (0, 0);
    for seed in seeds(300) {
        let mut faults = faults(seed);
        if seed % 2 == 0 {
            faults.loss = 0.5 + (seed as f64) / 1_000.0;
        }
        let mut trial = Trial::new(seed, faults, &setup);
        trial.post_all();
        assert!(trial.run(Duration::from_secs(60)), "seed {seed}: {:?}", trial.sent);
        trial.check(&format!("seed {seed}"));
        let failures = |trial: &Trial, side: usize| {
            let bad = trial.sent[side].iter().filter(|wc| wc.status != WcStatus::Success);
            bad.map(|wc| wc.status).collect::<Vec<_>>()
        };
        let failed = [0, 1].map(|side| !failures(&trial, side).is_empty());
        if failed == [false, false] {
            converged += 1;
            continue;
        }
        gave_up += 1;
        for (side, failed) in failed.into_iter().enumerate() {
            if !failed {
                // It was done before the other gave up: its own traffic tells.
                let probe = SendOp::Write(Remote::default());
                trial.pair.post_send(side, &wr(99, probe, SgeList::EMPTY, true));
                trial.pair.settle_1s();
                trial.collect();
            }
            let bad = failures(&trial, side);
            assert_eq!(bad[0], WcStatus::RetryExceeded, "seed {seed} side {side}");
            assert!(bad[1..].iter().all(|status| *status == WcStatus::WrFlush), "seed {seed}: {bad:?}");
        }
    }
    assert!(converged > 100 && gave_up > 20, "{converged} converged, {gave_up} gave up");
}

#[test]
fn a_parted_network_heals_within_the_retries_or_ends_the_connection() {
    for (outage_ms, survives) in [(3, true), (7, true), (40, false)] {
        let mut trial = Trial::new(7, Faults::NONE, &hasty());
        trial.pair.world.net.part(A, B);
        trial.post_all();
        trial.pair.settle(Duration::from_millis(outage_ms));
        trial.pair.world.net.heal(A, B);
        assert!(trial.run(Duration::from_secs(10)));
        trial.check("parted");
        for side in 0..2 {
            let status = trial.sent[side].last().unwrap().status;
            assert_eq!(status == WcStatus::Success, survives, "{outage_ms} ms: {status:?}");
        }
    }
}

#[test]
fn no_content_of_a_packet_does_harm() {
    // Bits flip behind the check: anything may fail, nothing may panic or write outside.
    let mut broken = 0;
    for seed in 0..300 {
        let faults = Faults { mangle: 0.3, duplicate: 0.1, reorder: 0.1, loss: 0.05, ..Faults::NONE };
        let mut trial = Trial::new(seed, faults, &hasty());
        trial.post_all();
        trial.run(Duration::from_secs(5));
        let counters = *trial.pair.engine(0).counters();
        assert!(counters.packets_in > 0);
        for side in 0..2 {
            broken += u32::from(trial.sent[side].iter().any(|wc| wc.status != WcStatus::Success));
            // Its own source is readable only; its place for READs is named to nobody.
            let end = 4 * OPS * PLACE;
            assert_eq!(trial.pair.sides[side].bytes(end, 4096), [0; 4096], "the guard behind all places");
        }
    }
    assert!(broken > 50, "some connections broke: {broken}");
}

/// Goodput in MB/s of virtual time, and packets sent again per hundred, for one kind of work.
fn goodput(loss: f64, read: bool) -> (f64, f64) {
    let faults = Faults {
        loss,
        delay: Duration::from_micros(20),
        bytes_per_second: 1_000_000_000,
        queue_bytes: 512 << 10,
        ..Faults::NONE
    };
    let setup = Setup {
        mtu: PathMtu::B4096,
        timeout_code: 14,
        retry_forever: true,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        ..Setup::default()
    };
    let mut pair = Pair::new(faults, 42, &setup, &setup);
    pair.engine(0).set_read_budget(256 << 10);
    const PIECE: usize = 128 << 10;
    const PIECES: u64 = 150;
    let remote = pair.sides[1].remote(0);
    let mut posted = 0;
    let mut done = 0;
    let mut finished = Time::ZERO;
    while done < PIECES {
        // Eight in flight, each a transfer of 128 KiB and a SEND.
        while posted < PIECES && posted < done + 8 {
            pair.post_recv(1, posted, 512 << 10, 64);
            let list = pair.sides[0].list(0, PIECE);
            let op = if read { SendOp::Read(remote) } else { SendOp::Write(remote) };
            pair.post_send(0, &wr(posted, op, list, false));
            pair.post_send(0, &wr(posted, SEND, pair.sides[0].list(0, 36), true));
            posted += 1;
        }
        assert!(pair.world.step(Time::from_nanos(1_000_000_000_000)));
        for wc in pair.send_wcs(0) {
            assert_eq!(wc.status, WcStatus::Success);
            done += 1;
            finished = pair.world.now();
        }
    }
    let seconds = finished.as_nanos() as f64 / 1e9;
    let (mut again, mut sent) = (0, 0);
    for side in 0..2 {
        again += pair.engine(side).counters().retransmissions;
        sent += pair.engine(side).counters().packets_out;
    }
    ((PIECES * PIECE as u64) as f64 / 1e6 / seconds, 100.0 * again as f64 / sent as f64)
}

/// A link of 1,000 MB/s, 20 us one way, 128 KiB transfers, eight at a time. Figures of virtual
/// time: they are exact, and change only when the engine does.
#[test]
fn goodput_under_loss() {
    let mut table = String::from("loss      write MB/s  again %   read MB/s  again %\n");
    for loss in [0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3] {
        let (write, write_again) = goodput(loss, false);
        let (read, read_again) = goodput(loss, true);
        let loss = loss * 100.0;
        writeln!(table, "{loss:>4.1} % {write:>13.1} {write_again:>8.1} {read:>11.1} {read_again:>8.1}")
            .unwrap();
    }
    assert_eq!(
        table,
        "\
loss      write MB/s  again %   read MB/s  again %
 0.0 %         979.6      0.0       983.5      0.0
 0.1 %         919.1      4.5       883.1      7.3
 1.0 %         710.8      9.7       626.5     16.2
 5.0 %         317.6     16.6       191.7     30.3
10.0 %         124.0     24.8        46.6     49.0
20.0 %          28.9     36.6        11.5     68.7
30.0 %           9.6     46.4         3.0     78.7
"
    );
}
