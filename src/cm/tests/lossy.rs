//! Both sides over a network that loses, repeats and reorders, on a virtual clock.

use std::collections::BTreeMap;

use super::*;
use crate::wire::mad::MAD_LEN;

/// How bad the network is, in percent.
#[derive(Copy, Clone)]
struct Badness {
    loss: u8,
    duplicate: u8,
    /// Most milliseconds that a message takes; the least is always 1.
    delay_ms: u64,
}

/// What a consumer has seen of one connection.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    requests: usize,
    replies: usize,
    established: usize,
    ended: Vec<ConnEnd>,
}

struct World {
    pair: Pair,
    rng: fastrand::Rng,
    badness: Badness,
    /// By time of arrival, then order.
    flying: BTreeMap<(Time, u64), (bool, [u8; MAD_LEN])>,
    order: u64,
    seen_a: BTreeMap<u32, Seen>,
    /// With the queue pair at A.
    seen_b: Vec<(ConnId, Qpn, Seen)>,
    /// What consumers do after thinking about it: when, which side, which connection.
    plans: Vec<(Time, bool, ConnId)>,
}

impl World {
    fn new(seed: u64, badness: Badness) -> World {
        World {
            pair: Pair::new(),
            rng: fastrand::Rng::with_seed(seed),
            badness,
            flying: BTreeMap::new(),
            order: 0,
            seen_a: BTreeMap::new(),
            seen_b: Vec::new(),
            plans: Vec::new(),
        }
    }

    fn launch(&mut self, to_b: bool, bytes: [u8; MAD_LEN]) {
        if self.rng.u8(..100) < self.badness.loss {
            return;
        }
        let copies = if self.rng.u8(..100) < self.badness.duplicate { 2 } else { 1 };
        for _ in 0..copies {
            let delay = Duration::from_millis(self.rng.u64(1..=self.badness.delay_ms));
            self.order += 1;
            self.flying.insert((self.pair.now + delay, self.order), (to_b, bytes));
        }
    }

    /// One consumer each: it thinks a while about every event.
    fn consume(&mut self) {
        while let Some(event) = self.pair.a.poll_event() {
            let (ConnEvent::Request { conn, .. }
            | ConnEvent::Reply { conn, .. }
            | ConnEvent::Established { conn }
            | ConnEvent::Ended { conn, .. }) = event;
            let seen = self.seen_a.get_mut(&conn.0.slot).expect("A opened it");
            match event {
                ConnEvent::Reply { .. } => {
                    seen.replies += 1;
                    let think = Duration::from_millis(self.rng.u64(0..50));
                    self.plans.push((self.pair.now + think, false, conn));
                }
                ConnEvent::Ended { why, .. } => seen.ended.push(why),
                _ => panic!("A is the asking side: {event:?}"),
            }
        }
        while let Some(event) = self.pair.b.poll_event() {
            match event {
                ConnEvent::Request { conn, request, .. } => {
                    self.seen_b.push((conn, request.remote_qpn, Seen { requests: 1, ..Seen::default() }));
                    let think = Duration::from_millis(self.rng.u64(0..3_000));
                    self.plans.push((self.pair.now + think, true, conn));
                }
                ConnEvent::Established { conn } => self.b(conn).established += 1,
                ConnEvent::Ended { conn, why } => self.b(conn).ended.push(why),
                ConnEvent::Reply { .. } => panic!("B is the asked side"),
            }
        }
    }

    fn b(&mut self, conn: ConnId) -> &mut Seen {
        let found = self.seen_b.iter_mut().find(|(known, ..)| *known == conn);
        &mut found.expect("B was asked").2
    }

    fn act(&mut self) {
        let now = self.pair.now;
        let due: Vec<_> = self.plans.extract_if(.., |(time, _, _)| *time <= now).collect();
        for (_, at_b, conn) in due {
            // It may have ended meanwhile; then this is a harmless error.
            let _ = if at_b {
                self.pair.b.accept(now, conn, &reply(0x200 + conn.0.slot), b"yes")
            } else {
                self.pair.a.established(now, conn)
            };
        }
    }

    /// Lets everything happen for `time`.
    fn run(&mut self, time: Duration) {
        let end = self.pair.now + time;
        loop {
            self.act();
            self.consume();
            while let Some((_, bytes)) = self.pair.a.poll_transmit() {
                self.launch(true, bytes);
            }
            while let Some((_, bytes)) = self.pair.b.poll_transmit() {
                self.launch(false, bytes);
            }
            let arrival = self.flying.first_key_value().map_or(Time::NEVER, |((time, _), _)| *time);
            let plan = self.plans.iter().map(|(time, _, _)| *time).min().unwrap_or(Time::NEVER);
            let timer = self.pair.a.deadline().min(self.pair.b.deadline());
            let next = arrival.min(plan).min(timer);
            if next > end {
                self.pair.now = end;
                return;
            }
            self.pair.now = next.max(self.pair.now);
            let now = self.pair.now;
            self.pair.a.handle_timeout(now);
            self.pair.b.handle_timeout(now);
            while let Some(entry) = self.flying.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                match entry.remove() {
                    (true, bytes) => self.pair.b.handle_mad(now, b_path(), &bytes),
                    (false, bytes) => self.pair.a.handle_mad(now, a_path(), &bytes),
                }
            }
        }
    }
}

/// Eight connections open, live and close; whatever the network does short of cutting, both
/// sides come to agree.
fn open_and_close(seed: u64, badness: Badness) {
    let mut world = World::new(seed, badness);
    let mut conns = Vec::new();
    for qpn in 0x100..0x108 {
        let conn = world.pair.a.connect(world.pair.now, &connect_attr(PORT, qpn)).unwrap();
        world.seen_a.insert(conn.0.slot, Seen::default());
        conns.push(conn);
        world.run(Duration::from_millis(100));
    }
    world.run(Duration::from_secs(60));
    for (slot, seen) in &world.seen_a {
        let expected = Seen { replies: 1, ..Seen::default() };
        assert_eq!(*seen, expected, "seed {seed}: connection {slot} of A");
    }
    assert_eq!(world.seen_b.len(), 8, "seed {seed}: each request is told once");
    for (conn, _, seen) in &world.seen_b {
        let expected = Seen { requests: 1, established: 1, ..Seen::default() };
        assert_eq!(*seen, expected, "seed {seed}: {conn:?} of B");
    }
    // Half of them are closed by A, half by B, one by both.
    for conn in &conns[..4] {
        world.pair.a.disconnect(world.pair.now, *conn).unwrap();
    }
    for (conn, ..) in world.seen_b.iter().filter(|(_, qpn, _)| *qpn >= Qpn::new(0x103)) {
        world.pair.b.disconnect(world.pair.now, *conn).unwrap();
    }
    world.run(Duration::from_secs(60));
    for (conn, _, seen) in world.seen_b {
        assert_eq!(seen.ended.len(), 1, "seed {seed}: {conn:?} of B: {seen:?}");
    }
    for (slot, seen) in world.seen_a {
        assert_eq!(seen.ended.len(), 1, "seed {seed}: connection {slot} of A: {seen:?}");
    }
    assert!(world.pair.a.is_empty() && world.pair.b.is_empty(), "seed {seed}: nothing is left");
    assert_eq!(world.pair.b.half_open(), 0);
}

#[test]
fn a_perfect_network() {
    open_and_close(0, Badness { loss: 0, duplicate: 0, delay_ms: 1 });
}

#[test]
fn loss_duplication_and_reorder() {
    for seed in 0..60 {
        open_and_close(seed, Badness { loss: 10, duplicate: 10, delay_ms: 40 });
    }
}

#[test]
fn a_bad_network() {
    for seed in 100..140 {
        open_and_close(seed, Badness { loss: 30, duplicate: 30, delay_ms: 400 });
    }
}

#[test]
fn a_cut_network_ends_everything_and_frees_it() {
    for seed in 0..10 {
        let mut world = World::new(seed, Badness { loss: 100, duplicate: 0, delay_ms: 1 });
        let dead = world.pair.a.connect(world.pair.now, &connect_attr(PORT, 0x100)).unwrap();
        world.seen_a.insert(dead.0.slot, Seen::default());
        world.run(Duration::from_secs(20));
        assert_eq!(world.seen_a[&dead.0.slot].ended, [ConnEnd::Timeout]);
        // Then up, and cut while established.
        world.badness.loss = 0;
        let conn = world.pair.a.connect(world.pair.now, &connect_attr(PORT, 0x101)).unwrap();
        world.seen_a.insert(conn.0.slot, Seen::default());
        world.run(Duration::from_secs(5));
        world.badness.loss = 100;
        let b = world.seen_b[0].0;
        world.pair.a.disconnect(world.pair.now, conn).unwrap();
        world.pair.b.disconnect(world.pair.now, b).unwrap();
        world.run(Duration::from_secs(15));
        assert_eq!(world.seen_a[&conn.0.slot].ended, [ConnEnd::Disconnected]);
        assert_eq!(world.seen_b[0].2.ended, [ConnEnd::Disconnected]);
        assert!(world.pair.a.is_empty() && world.pair.b.is_empty());
    }
}
