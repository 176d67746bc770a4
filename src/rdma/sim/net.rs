//! A simulated network at the datagram seam, on a virtual clock.
//!
//! A datagram is a RoCEv2 packet without its ICRC. The network stands in for the ICRC: what it
//! corrupts is dropped by the check on arrival, except in the mode that flips bits behind the check
//! ([`Faults::mangle`]), which shows that no content of a packet can do harm. Everything follows
//! from the seed; nothing here knows what the endpoints are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::Duration;

use reactors::time::Time;

use crate::rdma::engine::{Engine, Outgoing, Sink};
use crate::rdma::verbs::Path;

/// What a network does to datagrams. Chances are 0.0..=1.0.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Faults {
    /// Chance that a datagram vanishes.
    pub loss: f64,
    /// Chance that it comes twice.
    pub duplicate: f64,
    /// Chance that it is held back by up to [`reorder_by`](Self::reorder_by), so that others
    /// overtake it.
    pub reorder: f64,
    /// How far a reordered datagram is held back at most.
    pub reorder_by: Duration,
    /// Chance that bits flip on the way: the ICRC check drops it.
    pub corrupt: f64,
    /// Chance that bits flip and the ICRC check does not see it.
    pub mangle: f64,
    /// One way through the network.
    pub delay: Duration,
    /// Up to this much more delay, at random; datagrams may overtake each other.
    pub jitter: Duration,
    /// Speed of a sender's link in bytes a second; 0: no limit.
    pub bytes_per_second: u64,
    /// How many bytes may wait for a sender's link; more are dropped. 0: no limit.
    pub queue_bytes: u64,
}

impl Faults {
    /// A good network: 10 us one way.
    pub const NONE: Faults = Faults {
        loss: 0.0,
        duplicate: 0.0,
        reorder: 0.0,
        reorder_by: Duration::from_micros(200),
        corrupt: 0.0,
        mangle: 0.0,
        delay: Duration::from_micros(10),
        jitter: Duration::ZERO,
        bytes_per_second: 0,
        queue_bytes: 0,
    };
}

/// Bytes of Ethernet, IP, UDP and ICRC around a datagram, for the speed of links.
const FRAMING_BYTES: u64 = 14 + 20 + 8 + 4;

/// A datagram that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// `local` is where it arrives, `remote` where it came from.
    pub path: Path,
    /// BTH to the end of payload and pad.
    pub bytes: Vec<u8>,
}

/// What became of all datagrams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Given to the network.
    pub sent: u64,
    /// Arrived.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost because the sender's link had no room.
    pub overflowed: u64,
    /// Lost because the two ends cannot reach each other.
    pub parted: u64,
    /// Corrupted, and caught by the ICRC.
    pub corrupted: u64,
    /// Corrupted, and not caught.
    pub mangled: u64,
    /// Repeated.
    pub duplicated: u64,
    /// Longer than the MTU.
    pub too_long: u64,
}

struct InFlight {
    at: Time,
    /// Among those of one time, the order of sending.
    order: u64,
    datagram: Datagram,
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for InFlight {}
impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The network.
pub struct Network {
    rng: fastrand::Rng,
    faults: Faults,
    mtu_bytes: usize,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    order: u64,
    /// Pairs that cannot reach each other.
    parted: Vec<(IpAddr, IpAddr)>,
    /// When each sender's link is free again.
    links: Vec<(IpAddr, Time)>,
    counters: NetCounters,
}

impl Network {
    /// A network whose every chance follows from `seed`.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Network {
            rng: fastrand::Rng::with_seed(seed),
            faults,
            mtu_bytes: 12 + 28 + 4096,
            in_flight: BinaryHeap::new(),
            order: 0,
            parted: Vec::new(),
            links: Vec::new(),
            counters: NetCounters::default(),
        }
    }

    /// Changes what happens to datagrams from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The longest datagram in bytes, without ICRC; longer ones vanish.
    pub fn set_mtu(&mut self, mtu_bytes: usize) {
        self.mtu_bytes = mtu_bytes;
    }

    /// From now on nothing gets from `a` to `b` or back.
    pub fn part(&mut self, a: IpAddr, b: IpAddr) {
        self.parted.push((a, b));
    }

    /// Undoes [`part`](Self::part).
    pub fn heal(&mut self, a: IpAddr, b: IpAddr) {
        self.parted.retain(|pair| *pair != (a, b) && *pair != (b, a));
    }

    /// What became of all datagrams so far.
    pub fn counters(&self) -> &NetCounters {
        &self.counters
    }

    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    /// A random time up to `most`.
    fn up_to(&mut self, most: Duration) -> Duration {
        match u64::try_from(most.as_nanos()).unwrap_or(u64::MAX) {
            0 => Duration::ZERO,
            nanos => Duration::from_nanos(self.rng.u64(0..=nanos)),
        }
    }

    /// Takes a datagram from `path.local` to `path.remote`.
    pub fn send(&mut self, now: Time, path: &Path, bytes: Vec<u8>) {
        self.counters.sent += 1;
        if bytes.len() > self.mtu_bytes {
            self.counters.too_long += 1;
            return;
        }
        let Some(leaves) = self.serialize(now, path.local, bytes.len() as u64) else {
            self.counters.overflowed += 1;
            return;
        };
        let pair = (path.local, path.remote);
        if self.parted.iter().any(|parted| *parted == pair || *parted == (pair.1, pair.0)) {
            self.counters.parted += 1;
            return;
        }
        if self.happens(self.faults.loss) {
            self.counters.lost += 1;
            return;
        }
        let copies = 1 + u32::from(self.happens(self.faults.duplicate));
        self.counters.duplicated += u64::from(copies) - 1;
        for _ in 0..copies {
            self.fly(leaves, path, bytes.clone());
        }
    }

    /// When the sender's link has sent it; `None` if too much is waiting there.
    fn serialize(&mut self, now: Time, from: IpAddr, len_bytes: u64) -> Option<Time> {
        let speed = self.faults.bytes_per_second;
        if speed == 0 {
            return Some(now);
        }
        let place = match self.links.iter().position(|link| link.0 == from) {
            Some(place) => place,
            None => {
                self.links.push((from, now));
                self.links.len() - 1
            }
        };
        let free = self.links[place].1.max(now);
        let waiting_bytes = free.since(now).as_nanos() * u128::from(speed) / 1_000_000_000;
        if self.faults.queue_bytes > 0 && waiting_bytes > u128::from(self.faults.queue_bytes) {
            return None;
        }
        let takes = Duration::from_nanos((len_bytes + FRAMING_BYTES) * 1_000_000_000 / speed);
        self.links[place].1 = free + takes;
        Some(free + takes)
    }

    fn fly(&mut self, leaves: Time, path: &Path, mut bytes: Vec<u8>) {
        if self.happens(self.faults.corrupt) {
            self.counters.corrupted += 1;
            return;
        }
        if self.happens(self.faults.mangle) {
            self.counters.mangled += 1;
            self.mangle(&mut bytes);
        }
        let mut at = leaves + self.faults.delay + self.up_to(self.faults.jitter);
        if self.happens(self.faults.reorder) {
            at += self.up_to(self.faults.reorder_by);
        }
        self.order += 1;
        let seen = Path { local: path.remote, remote: path.local, scope_id: path.scope_id };
        let datagram = Datagram { path: seen, bytes };
        self.in_flight.push(Reverse(InFlight { at, order: self.order, datagram }));
    }

    /// Flips bits, mostly among the headers, and now and then cuts the end off.
    fn mangle(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.rng.usize(1..=4) {
            let reach = if self.rng.bool() { bytes.len().min(28) } else { bytes.len() };
            if reach > 0 {
                let at = self.rng.usize(0..reach);
                bytes[at] ^= 1 << self.rng.u32(0..8);
            }
        }
        if self.rng.u32(0..8) == 0 {
            let keep = self.rng.usize(0..=bytes.len());
            bytes.truncate(keep);
        }
    }

    /// When the next datagram arrives.
    pub fn next_arrival(&self) -> Time {
        self.in_flight.peek().map_or(Time::NEVER, |next| next.0.at)
    }

    /// Takes a datagram that has arrived by `now`.
    pub fn arrive(&mut self, now: Time) -> Option<Datagram> {
        if self.next_arrival() > now {
            return None;
        }
        self.counters.delivered += 1;
        self.in_flight.pop().map(|next| next.0.datagram)
    }
}

/// Where an endpoint's packets go: into the network, at the present time.
pub struct Outbox<'a> {
    net: &'a mut Network,
    now: Time,
    sent: usize,
    room: usize,
}

impl Outbox<'_> {
    /// Sends the bytes of a packet.
    pub fn send(&mut self, path: &Path, bytes: Vec<u8>) {
        self.net.send(self.now, path, bytes);
        self.sent += 1;
    }
}

impl Sink for Outbox<'_> {
    fn has_room(&self) -> bool {
        self.sent < self.room
    }

    fn packet(&mut self, out: &Outgoing<'_>) {
        let mut bytes = vec![0; out.len_bytes()];
        out.copy_to(&mut bytes);
        self.send(out.path, bytes);
    }
}

/// Something with an address on the network.
pub trait Endpoint {
    /// Takes a datagram in.
    fn receive(&mut self, now: Time, datagram: &Datagram);
    /// The last datagram of a batch was taken in.
    fn end_batch(&mut self, now: Time);
    /// Sends what is due.
    fn transmit(&mut self, now: Time, outbox: &mut Outbox<'_>);
    /// When it has something to do although nothing arrives.
    fn deadline(&self) -> Time;
    /// Does what is due.
    fn handle_timeout(&mut self, now: Time);
}

impl Endpoint for Engine {
    fn receive(&mut self, now: Time, datagram: &Datagram) {
        Engine::receive(self, now, datagram.path, &datagram.bytes);
    }
    fn end_batch(&mut self, now: Time) {
        Engine::end_batch(self, now);
    }
    fn transmit(&mut self, now: Time, outbox: &mut Outbox<'_>) {
        Engine::transmit(self, now, outbox);
    }
    fn deadline(&self) -> Time {
        Engine::deadline(self)
    }
    fn handle_timeout(&mut self, now: Time) {
        Engine::handle_timeout(self, now);
    }
}

/// Endpoints on a network, and the clock that all of them see.
pub struct World<E> {
    /// The network.
    pub net: Network,
    /// The endpoints with their addresses.
    pub endpoints: Vec<(IpAddr, E)>,
    /// Packets that an endpoint may send at one time, at most; the rest waits a microsecond.
    pub room_packets: usize,
    now: Time,
}

impl<E: Endpoint> World<E> {
    /// A world at time zero.
    pub fn new(net: Network, endpoints: Vec<(IpAddr, E)>) -> Self {
        World { net, endpoints, room_packets: usize::MAX, now: Time::ZERO }
    }

    /// The present time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// When anything happens next.
    pub fn next_event(&self) -> Time {
        let due = self.endpoints.iter().map(|(_, endpoint)| endpoint.deadline()).min();
        self.net.next_arrival().min(due.unwrap_or(Time::NEVER))
    }

    /// Goes on to the next thing that happens, or to `limit` if that is earlier, and lets it
    /// happen. `false` once `limit` is reached.
    pub fn step(&mut self, limit: Time) -> bool {
        let next = self.next_event().max(self.now);
        if next > limit {
            self.now = self.now.max(limit);
            return false;
        }
        self.now = next;
        let now = self.now;
        while let Some(datagram) = self.net.arrive(now) {
            let to = datagram.path.local;
            if let Some((_, endpoint)) = self.endpoints.iter_mut().find(|(address, _)| *address == to) {
                endpoint.receive(now, &datagram);
            }
        }
        let mut crowded = false;
        for (_, endpoint) in &mut self.endpoints {
            endpoint.end_batch(now);
            endpoint.handle_timeout(now);
            let room = self.room_packets;
            let mut outbox = Outbox { net: &mut self.net, now, sent: 0, room };
            endpoint.transmit(now, &mut outbox);
            crowded |= outbox.sent == room;
        }
        if crowded {
            self.now += Duration::from_micros(1);
        }
        true
    }

    /// Steps until `done` or until `limit`; says whether it was done.
    pub fn run(&mut self, limit: Time, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if !self.step(limit) {
                return done(self);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const PATH: Path = Path { local: A, remote: B, scope_id: 0 };

    fn arrivals(seed: u64, faults: Faults) -> (Vec<(Time, u8)>, NetCounters) {
        let mut net = Network::new(seed, faults);
        for number in 0..200u8 {
            net.send(Time::from_nanos(u64::from(number) * 1_000), &PATH, vec![number; 40]);
        }
        let mut seen = Vec::new();
        while net.next_arrival() != Time::NEVER {
            let at = net.next_arrival();
            let datagram = net.arrive(at).unwrap();
            assert_eq!(datagram.path, Path { local: B, remote: A, scope_id: 0 });
            seen.push((at, datagram.bytes[39]));
        }
        (seen, *net.counters())
    }

    #[test]
    fn a_seed_tells_everything() {
        let faults = Faults { loss: 0.2, duplicate: 0.2, reorder: 0.3, corrupt: 0.1, ..Faults::NONE };
        assert_eq!(arrivals(1, faults), arrivals(1, faults));
        assert_ne!(arrivals(1, faults).0, arrivals(2, faults).0);
        let (seen, counters) = arrivals(3, faults);
        assert!(counters.lost > 10 && counters.duplicated > 10 && counters.corrupted > 5, "{counters:?}");
        assert_eq!(counters.delivered, seen.len() as u64);
        let sent_again = counters.sent + counters.duplicated;
        assert_eq!(sent_again, counters.delivered + counters.lost + counters.corrupted);
        assert!(seen.windows(2).any(|pair| pair[0].1 > pair[1].1), "some overtook");
        assert!(arrivals(4, Faults::NONE).0.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    #[test]
    fn a_link_has_a_speed_and_a_queue() {
        let faults = Faults { bytes_per_second: 1_000_000, queue_bytes: 1_000, ..Faults::NONE };
        let mut net = Network::new(0, faults);
        for _ in 0..20 {
            net.send(Time::ZERO, &PATH, vec![0; 154]);
        }
        // 154 + 46 bytes at 1 MB/s take 200 us; the seventh finds more than 1,000 bytes waiting.
        assert_eq!(net.next_arrival(), Time::from_nanos(210_000));
        assert_eq!(net.counters().overflowed, 14);
        let mut last = Time::ZERO;
        while net.next_arrival() != Time::NEVER {
            last = net.next_arrival();
            net.arrive(last);
        }
        assert_eq!(last, Time::from_nanos(6 * 200_000 + 10_000));
    }

    #[test]
    fn parted_ends_do_not_reach_each_other_until_healed() {
        let mut net = Network::new(0, Faults::NONE);
        net.part(B, A);
        net.send(Time::ZERO, &PATH, vec![1; 12]);
        assert_eq!((net.next_arrival(), net.counters().parted), (Time::NEVER, 1));
        net.heal(A, B);
        net.send(Time::ZERO, &PATH, vec![1; 12]);
        assert_ne!(net.next_arrival(), Time::NEVER);
        net.set_mtu(11);
        net.send(Time::ZERO, &PATH, vec![1; 12]);
        assert_eq!(net.counters().too_long, 1);
    }
}
