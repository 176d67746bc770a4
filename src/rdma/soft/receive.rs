//! Datagrams to packets: merged ones are cut, lengths and ICRCs checked, faults applied.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use reactors::time::Time;

use super::bounded::Bounded;
use super::counters::Counters;
use super::fault::{HOLD, Injector, Verdict, flip};
use super::ident::{Identifications, Likely};
use super::port::{PortSocket, ROCE_PORT};
use super::socket::{self, Received, Source};
use crate::rdma::verbs::Path;
use crate::wire::bth::Bth;
use crate::wire::icrc::{ICRC_LEN, Prefix};

/// A datagram has no more than this, merged or not.
const BUFFER_BYTES: usize = 1 << 16;
/// Most datagrams that are taken from a socket in one go: after so many, answers are due.
const MOST_DATAGRAMS: usize = 64;
/// After so many datagrams that were alone, nobody looks for one more behind the next one: that is a
/// system call on the way of every command at depth 1. Should there be one, the next turn finds it.
const ALONE: u8 = 8;
/// The shortest RoCE packet: a BTH and an ICRC.
const SHORTEST: usize = Bth::LEN + ICRC_LEN;

/// Who sends to us: by which port of ours, from which address and port.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
struct FlowKey {
    slot: u32,
    source: Source,
}

struct Flow {
    peer: IpAddr,
    prefix: Prefix,
    /// Number of the address pair: rxe counts identifications for it, over all its ports.
    pair: usize,
}

type PairKey = (u32, IpAddr);

/// Receives and checks.
pub(super) struct Inbound {
    buffer: Box<[u8]>,
    flows: Bounded<FlowKey, Flow>,
    pairs: Bounded<PairKey, Identifications>,
    faults: Option<Injector>,
    held: Option<Held>,
    /// By port.
    habits: Vec<Habit>,
}

/// How datagrams come to a port: whether one that was received is worth a look for the next.
#[derive(Copy, Clone, Default)]
struct Habit {
    /// How many in a row were alone, up to [`ALONE`].
    alone: u8,
    /// The last call received one, and did not look for another.
    spared: bool,
}

impl Habit {
    /// How many datagrams to receive in one go.
    fn most(self) -> usize {
        if self.alone == ALONE { 1 } else { MOST_DATAGRAMS }
    }

    /// So many there were.
    fn learn(&mut self, datagrams: usize) {
        let spares = self.most() == 1;
        match datagrams {
            0 => self.spared = false,
            1 if !self.spared => {
                self.alone = (self.alone + 1).min(ALONE);
                self.spared = spares;
            }
            // There was another.
            _ => *self = Habit::default(),
        }
    }
}

/// A packet that the fault shim holds back; its ICRC is cut off.
struct Held {
    path: Path,
    ib: Box<[u8]>,
    until: Time,
}

impl Inbound {
    pub(super) fn new(faults: Option<Injector>) -> Inbound {
        Inbound {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            flows: Bounded::new(),
            pairs: Bounded::new(),
            faults,
            held: None,
            habits: Vec::with_capacity(16),
        }
    }

    /// Ports changed: their slots may mean others now.
    pub(super) fn forget_peers(&mut self) {
        self.flows.clear();
        self.pairs.clear();
    }

    /// Receives what came to a port, until there is no more or enough is taken, and gives each
    /// packet whose ICRC is right, without it, to `take`. Gives the number of datagrams.
    pub(super) fn receive(
        &mut self,
        now: Time,
        slot: usize,
        port: &PortSocket,
        counters: &mut Counters,
        mut take: impl FnMut(Path, &[u8], &mut Counters),
    ) -> usize {
        // Out of `self` while its bytes are looked at.
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut datagrams = 0;
        if slot >= self.habits.len() {
            self.habits.resize(slot + 1, Habit::default());
        }
        let most = self.habits[slot].most();
        while datagrams < most {
            counters.recv_calls += 1;
            match socket::receive(port.recv.as_fd(), &mut buffer) {
                Ok(got) => {
                    datagrams += 1;
                    self.datagram(now, (slot, port), &got, &mut buffer, counters, &mut take);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // A pending error of the socket is cleared by reading it.
                    counters.recv_errors += 1;
                    datagrams += 1;
                }
            }
        }
        self.buffer = buffer;
        self.habits[slot].learn(datagrams);
        datagrams
    }

    fn datagram(
        &mut self,
        now: Time,
        (slot, port): (usize, &PortSocket),
        got: &Received,
        buffer: &mut [u8],
        counters: &mut Counters,
        take: &mut impl FnMut(Path, &[u8], &mut Counters),
    ) {
        counters.recv_datagrams += 1;
        if got.truncated {
            counters.truncated += 1;
            return;
        }
        if got.len_bytes == 0 {
            counters.bad_length += 1;
            return;
        }
        let source = Source { ip: got.source.ip.to_canonical(), ..got.source };
        let path = Path { local: port.address, remote: source.ip, scope_id: port.scope_id };
        let Some(flow) = self.flow(slot as u32, source, port.address) else { return };
        for (place, segment) in buffer[..got.len_bytes].chunks_mut(got.segment_bytes.max(1)).enumerate() {
            counters.recv_packets += 1;
            counters.recv_bytes += segment.len() as u64;
            if segment.len() < SHORTEST || segment.len() % 4 != 0 {
                counters.bad_length += 1;
                continue;
            }
            let verdict = match &mut self.faults {
                Some(injector) => injector.judge(segment.len()),
                None => Verdict::Pass,
            };
            counters.faults += u64::from(verdict != Verdict::Pass);
            if let Verdict::Corrupt(bit) = verdict {
                flip(segment, bit);
            }
            let Some(ib) = self.checked(now, flow, place, segment, counters) else { continue };
            if verdict == Verdict::Pass {
                take(path, ib, counters);
                continue;
            }
            match verdict {
                Verdict::Drop => continue,
                Verdict::HoldBack if self.held.is_none() => {
                    self.held = Some(Held { path, ib: ib.into(), until: now + HOLD });
                    continue;
                }
                Verdict::Duplicate => {
                    take(path, ib, counters);
                    take(path, ib, counters);
                }
                Verdict::Pass | Verdict::HoldBack | Verdict::Corrupt(_) => take(path, ib, counters),
            }
            self.release(now, true, counters, take);
        }
    }

    /// Lets go what the fault shim holds back, if another packet has `passed` it or it has waited
    /// long enough. True if there was something.
    pub(super) fn release(
        &mut self,
        now: Time,
        passed: bool,
        counters: &mut Counters,
        take: &mut impl FnMut(Path, &[u8], &mut Counters),
    ) -> bool {
        let held = self.held.take_if(|held| passed || held.until <= now);
        if let Some(held) = &held {
            take(held.path, &held.ib, counters);
        }
        held.is_some()
    }

    /// When [`release`](Self::release) is due.
    pub(super) fn deadline(&self) -> Time {
        self.held.as_ref().map_or(Time::NEVER, |held| held.until)
    }

    /// The number of a flow; `None` if the addresses are of different families.
    fn flow(&mut self, slot: u32, source: Source, local: IpAddr) -> Option<usize> {
        if self.pairs.is_full() {
            self.forget_peers();
        }
        let pairs = &mut self.pairs;
        self.flows.number_of(FlowKey { slot, source }, || {
            let pair = pairs.number_of((slot, source.ip), || Some(Identifications::default()))?;
            let prefix = Prefix::new(source.ip, local, source.port, ROCE_PORT)?;
            Some(Flow { peer: source.ip, prefix, pair })
        })
    }

    /// The packet without its ICRC, if that is right.
    fn checked<'a>(
        &mut self,
        now: Time,
        flow: usize,
        place: usize,
        segment: &'a [u8],
        counters: &mut Counters,
    ) -> Option<&'a [u8]> {
        let Flow { peer, prefix, pair } = self.flows.get(flow);
        let ids = self.pairs.get_mut(*pair);
        let ib = &segment[..segment.len() - ICRC_LEN];
        let Some(id) = prefix.solve_id(segment, ids.guess(place)) else {
            counters.bad_icrc += 1;
            return None;
        };
        if !prefix.is_v4() {
            return Some(ib);
        }
        match ids.judge(now, id, place) {
            Likely::Yes => Some(ib),
            Likely::Anything => {
                counters.unpredictable_peers += 1;
                tracing::info!(
                    peer = %peer,
                    "its IPv4 identifications follow no order: only 16 bits of its ICRCs count"
                );
                Some(ib)
            }
            Likely::No => {
                counters.unlikely_id += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_that_is_always_alone_is_not_looked_behind() {
        let mut habit = Habit::default();
        for _ in 0..ALONE {
            assert_eq!(habit.most(), MOST_DATAGRAMS);
            habit.learn(1);
        }
        for _ in 0..100 {
            assert_eq!(habit.most(), 1);
            habit.learn(1);
            habit.learn(0);
        }
        // Two turns in a row found one: they came together.
        habit.learn(1);
        habit.learn(1);
        assert_eq!(habit.most(), MOST_DATAGRAMS);
        (0..ALONE - 1).for_each(|_| habit.learn(1));
        habit.learn(2);
        habit.learn(1);
        assert_eq!(habit.most(), MOST_DATAGRAMS, "it begins anew");
    }
}
