//! Packets to the kernel: ports and peers looked up, trains packed greedily, faults applied.
//!
//! The packer keeps one open train. A packet of the same peer, source port and length is
//! appended; a shorter one closes it, unless others of its length follow, which then make a train of their
//! own: one answer among the data would come before the others, and ever after go round by itself.
//! Anything else sends the train off first. The order in which the engine hands packets out makes that good:
//! see its `transmit`.

use std::io;
use std::os::fd::AsFd;

use reactors::time::Time;

use super::bounded::Bounded;
use super::counters::Counters;
use super::fault::{HOLD, Injector, Verdict, flip};
use super::looped::Looped;
use super::peers::{Peer, PeerKey, Places, TrainHealth};
use super::port::{PortSocket, SENDERS};
use super::steer::shard_of;
use super::train::Train;
use crate::rdma::engine::{Outgoing, Sink};
use crate::rdma::verbs::Path;
use crate::wire::bth::{Bth, Opcode};
use crate::wire::icrc::ICRC_LEN;
use crate::wire::num::Qpn;

/// Most packets of one transmission: after so many the shard looks at its other work.
const TURN_PACKETS: usize = 1024;
/// How long after the send buffer was found full it is tried again.
const RETRY: std::time::Duration = std::time::Duration::from_micros(200);
/// The longest packet without ICRC: path MTU 4,096, the longest headers, pad.
pub(super) const MAX_PACKET_BYTES: usize = 4096 + crate::wire::packet::MAX_HEADER_BYTES + 4;

/// A packet that the fault shim holds back.
struct Held {
    path: Path,
    dest_qpn: Qpn,
    bytes: [u8; MAX_PACKET_BYTES],
    len_bytes: usize,
    until: Time,
}

/// The fault shim on the way out.
pub(super) struct Faults {
    injector: Injector,
    held: Option<Box<Held>>,
}

impl Faults {
    pub(super) fn new(injector: Injector) -> Faults {
        Faults { injector, held: None }
    }
}

/// Which way a train goes: from which port, to which peer, by which of the sending sockets.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
struct Way {
    slot: usize,
    peer: usize,
    sender: usize,
}

/// Where packets of a path go.
#[derive(Copy, Clone)]
struct Route {
    path: Path,
    /// To addresses of this device: those to queue pairs of this shard go round.
    ours: bool,
    /// By the slot of a port to the number of a peer; none if we have no such port.
    out: Option<(usize, usize)>,
}

/// What lives on between transmissions.
pub(super) struct Outbound {
    train: Train,
    /// Where the open train goes.
    way: Way,
    /// The last route that was looked up: packets come in runs.
    last: Option<Route>,
    peers: Bounded<PeerKey, Peer>,
    places: Places,
    faults: Option<Faults>,
    /// The send buffer was full; nothing goes out before this.
    full_until: Option<Time>,
    /// Low bits of a QPN that tell the shard, ours and which it is; for packets to ourselves.
    shard: usize,
    shard_bits: u32,
}

impl Outbound {
    pub(super) fn new(shard: usize, shard_bits: u32, faults: Option<Faults>) -> Outbound {
        Outbound {
            train: Train::new(),
            way: Way::default(),
            last: None,
            peers: Bounded::new(),
            places: Places::new(),
            faults,
            full_until: None,
            shard,
            shard_bits,
        }
    }

    /// Ports changed: their slots may mean others now.
    pub(super) fn forget_peers(&mut self) {
        self.peers.clear();
        self.last = None;
    }

    /// When there is something to do although nothing was posted.
    pub(super) fn deadline(&self) -> Time {
        let held = self.faults.as_ref().and_then(|faults| faults.held.as_ref());
        let full = self.full_until.unwrap_or(Time::NEVER);
        held.map_or(full, |held| full.min(held.until))
    }

    /// Whether the send buffer was found full and `now` is too early to try again.
    pub(super) fn is_full(&self, now: Time) -> bool {
        self.full_until.is_some_and(|until| now < until)
    }

    /// The send buffer was found full: when it is tried again.
    pub(super) fn full_until(&self) -> Option<Time> {
        self.full_until
    }

    /// Peers to which no segmented sends go any more.
    pub(super) fn unsegmented(&self) -> impl Iterator<Item = std::net::IpAddr> {
        self.peers.values().iter().filter(|peer| !peer.health.is_good()).map(|peer| peer.remote)
    }
}

/// One transmission. What was handed to it has left when it is dropped.
pub(super) struct Transmitter<'a> {
    out: &'a mut Outbound,
    ports: &'a [Option<PortSocket>],
    looped: Option<&'a mut Looped>,
    counters: &'a mut Counters,
    now: Time,
    packets: usize,
}

impl Drop for Transmitter<'_> {
    fn drop(&mut self) {
        self.release(true);
        self.leave();
    }
}

impl Sink for Transmitter<'_> {
    fn has_room(&self) -> bool {
        self.packets < TURN_PACKETS
            && self.out.full_until.is_none()
            && self.looped.as_ref().is_none_or(|looped| looped.has_room())
    }

    fn packet(&mut self, out: &Outgoing<'_>) {
        self.packets += 1;
        if self.out.faults.is_none() {
            return self.route(out);
        }
        let mut bytes = [0; MAX_PACKET_BYTES];
        let len_bytes = out.copy_to(&mut bytes);
        self.judged(out.path, out.dest_qpn, &bytes[..len_bytes]);
    }
}

impl<'a> Transmitter<'a> {
    pub(super) fn new(
        out: &'a mut Outbound,
        ports: &'a [Option<PortSocket>],
        looped: Option<&'a mut Looped>,
        counters: &'a mut Counters,
        now: Time,
    ) -> Transmitter<'a> {
        if !out.is_full(now) {
            out.full_until = None;
        }
        Transmitter { out, ports, looped, counters, now, packets: 0 }
    }

    /// Sends a packet that lies in one piece, ICRC not included.
    pub(super) fn bytes(&mut self, path: &Path, dest_qpn: Qpn, ib: &[u8]) {
        self.packets += 1;
        if self.out.faults.is_some() {
            self.judged(path, dest_qpn, ib);
        } else {
            self.route_copy(path, dest_qpn, ib, None);
        }
    }

    /// Sends a packet as the fault shim wants it.
    fn judged(&mut self, path: &Path, dest_qpn: Qpn, ib: &[u8]) {
        let Some(faults) = &mut self.out.faults else { return };
        let verdict = faults.injector.judge(ib.len() + ICRC_LEN);
        self.counters.faults += u64::from(verdict != Verdict::Pass);
        match verdict {
            Verdict::Drop => return,
            Verdict::HoldBack if faults.held.is_none() => {
                let mut bytes = [0; MAX_PACKET_BYTES];
                bytes[..ib.len()].copy_from_slice(ib);
                let until = self.now + HOLD;
                let held = Held { path: *path, dest_qpn, bytes, len_bytes: ib.len(), until };
                faults.held = Some(Box::new(held));
                return;
            }
            Verdict::Duplicate => {
                self.route_copy(path, dest_qpn, ib, None);
                self.route_copy(path, dest_qpn, ib, None);
            }
            Verdict::Corrupt(bit) => self.route_copy(path, dest_qpn, ib, Some(bit)),
            Verdict::Pass | Verdict::HoldBack => self.route_copy(path, dest_qpn, ib, None),
        }
        self.release(false);
    }

    /// Lets go what was held back: one has passed it, or, if `overdue` only, it has waited enough.
    fn release(&mut self, overdue: bool) {
        let Some(faults) = &mut self.out.faults else { return };
        if let Some(held) = faults.held.take_if(|held| !overdue || held.until <= self.now) {
            self.route_copy(&held.path, held.dest_qpn, &held.bytes[..held.len_bytes], None);
        }
    }

    /// Sends a packet of the engine.
    fn route(&mut self, out: &Outgoing<'_>) {
        let route = self.route_of(out.path);
        if self.goes_round(&route, out.dest_qpn) {
            return self.go_round(out.path, out.len_bytes(), |bytes| {
                out.copy_to(bytes);
            });
        }
        let len_bytes = out.len_bytes() + ICRC_LEN;
        let Some(way) = self.open(&route, out.dest_qpn, len_bytes, out.retransmission) else { return };
        let peer = self.out.peers.get_mut(way.peer);
        let settled = !out.retransmission && !peer.health.is_doubtful();
        if settled
            && self.out.train.keep(len_bytes, |bytes| {
                out.copy_to(bytes);
            })
        {
            return;
        }
        let place = self.out.train.len();
        let prefix = &peer.prefixes[way.sender];
        self.out.train.append(prefix, out);
        if peer.health.is_doubtful()
            && prefix.is_v4()
            && let Ok((opcode, qpn, psn)) = Bth::peek(out.header)
            && Opcode::from_wire(opcode).is_some_and(Opcode::is_rc_request)
            && self.out.places.note(&mut peer.health, (qpn, psn), place, out.retransmission)
        {
            self.counters.segmenting_stopped += 1;
            tracing::warn!(
                peer = %peer.remote,
                "only the first packets of segmented sends arrive there; packets go singly from now on"
            );
        }
        if out.retransmission {
            self.leave();
        }
    }

    /// Sends a packet that lies in one piece; `spoil` is a bit to flip.
    fn route_copy(&mut self, path: &Path, dest_qpn: Qpn, ib: &[u8], spoil: Option<usize>) {
        let route = self.route_of(path);
        if self.goes_round(&route, dest_qpn) {
            // There is no ICRC on this way by which a spoiled packet would be found.
            if spoil.is_none() {
                self.go_round(path, ib.len(), |bytes| bytes.copy_from_slice(ib));
            }
        } else if let Some(way) = self.open(&route, dest_qpn, ib.len() + ICRC_LEN, false) {
            let prefix = &self.out.peers.get(way.peer).prefixes[way.sender];
            self.out
                .train
                .append_copy(prefix, ib, |bytes| spoil.into_iter().for_each(|bit| flip(bytes, bit)));
        }
    }

    /// Whether a packet is for a queue pair of this device.
    #[inline]
    fn goes_round(&self, route: &Route, dest_qpn: Qpn) -> bool {
        route.ours && shard_of(dest_qpn, self.out.shard_bits) == self.out.shard
    }

    fn go_round(&mut self, path: &Path, len_bytes: usize, write: impl FnOnce(&mut [u8])) {
        if let Some(looped) = self.looped.as_deref_mut() {
            self.counters.looped += u64::from(looped.push(path, len_bytes, write));
        }
    }

    /// Makes the open train one that takes a packet of `len_bytes` to there, `alone` or behind others. `None`
    /// if there is no way there.
    fn open(&mut self, route: &Route, dest_qpn: Qpn, len_bytes: usize, alone: bool) -> Option<Way> {
        let found = route.out.and_then(|(slot, peer)| Some((slot, peer, self.ports[slot].as_ref()?)));
        let Some((slot, peer, port)) = found else {
            self.counters.no_port += 1;
            return None;
        };
        // By the shard of the peer, where the GSI is at home on the first.
        let sender = if dest_qpn == Qpn::GSI { 0 } else { dest_qpn.get() as usize % SENDERS };
        let way = Way { slot, peer, sender };
        let max_segments = match self.out.peers.get(peer).health.is_good() {
            true => port.segmenting.max_segments,
            false => 1,
        };
        if let Some(tail_bytes) = self.out.train.tail_bytes() {
            if !alone && self.out.way == way && len_bytes == tail_bytes {
                self.send();
                self.append_tail();
            } else {
                self.leave();
            }
        }
        if alone || self.out.way != way || !self.out.train.takes(len_bytes, max_segments) {
            self.leave();
        }
        self.out.way = way;
        Some(way)
    }

    /// Where packets of a path go.
    #[inline]
    fn route_of(&mut self, path: &Path) -> Route {
        match self.out.last {
            Some(last) if last.path == *path => last,
            _ => self.look_up(path),
        }
    }

    fn look_up(&mut self, path: &Path) -> Route {
        let ports = || self.ports.iter().flatten();
        let ours = self.looped.is_some() && ports().any(|port| port.is_for(path.remote, path.scope_id));
        let route = Route { path: *path, ours, out: self.way_out(path) };
        self.out.last = Some(route);
        route
    }

    fn way_out(&mut self, path: &Path) -> Option<(usize, usize)> {
        let is_from = |port: &PortSocket| port.is_for(path.local, path.scope_id);
        let slot = self.ports.iter().position(|port| port.as_ref().is_some_and(is_from))?;
        let port = self.ports[slot].as_ref()?;
        // A full table forgets, and the open train must not lose its peer.
        if self.out.peers.is_full() {
            self.leave();
        }
        let key = PeerKey { port: slot as u32, remote: path.remote, scope_id: port.scope_id };
        let peer = self.out.peers.number_of(key, || Peer::new(port.address, port.source_ports(), &key))?;
        Some((slot, peer))
    }

    /// Sends off the open train with its tail.
    fn leave(&mut self) {
        self.append_tail();
        self.send();
    }

    fn append_tail(&mut self) {
        if self.out.train.tail_bytes().is_some() {
            let Way { peer, sender, .. } = self.out.way;
            let prefix = &self.out.peers.get(peer).prefixes[sender];
            self.out.train.append_tail(prefix);
        }
    }

    /// Sends off the open train; a tail stays.
    fn send(&mut self) {
        let (packets, bytes) = (self.out.train.len() as u64, self.out.train.len_bytes() as u64);
        if packets == 0 {
            return;
        }
        let Way { slot, peer, sender } = self.out.way;
        let Some(port) = &self.ports[slot] else { return self.out.train.clear() };
        let peer = self.out.peers.get_mut(peer);
        self.counters.send_calls += 1;
        match self.out.train.leave(port.senders[sender].0.as_fd(), &peer.to) {
            Ok(()) => {
                self.counters.sent_packets += packets;
                self.counters.sent_bytes += bytes;
                self.counters.sent_trains += u64::from(packets > 1);
            }
            Err(error) if is_full(&error) => {
                self.counters.send_full += packets;
                self.out.full_until = Some(self.now + RETRY);
            }
            Err(error) => {
                self.counters.send_errors += packets;
                if packets > 1 {
                    peer.health = TrainHealth::Stopped;
                }
                if !std::mem::replace(&mut peer.complained, true) {
                    tracing::warn!(peer = %peer.remote, packets, %error, "the kernel does not send to it");
                }
            }
        }
    }
}

/// Whether the kernel has no room now: what was to be sent is lost, as on any full queue of a
/// network, and will be sent again.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}
