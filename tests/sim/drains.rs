//! Any interleaving of events ends with every queue pair recycled or destroyed, and with every slot,
//! buffer and credit accounted for, whatever the adapter does.
//!
//! A history is one target of two shards on one scripted adapter, with a few dozen channels that come,
//! work and die; all of it follows from its seed. `DRAINS=1000000 DRAINS_SEED=1` runs as many drains
//! from that seed on; `scripts/soak drains` does so on a release build.

use std::sync::Arc;
use std::time::Duration;

use reactors::slab::Key;
use srpoll::rdma::sim::scripted::{Act, AdapterConfig, Script};
use srpoll::rdma::verbs::{AsyncEvent, QpId, Recycling, Wc, WcOpcode, WcStatus};
use srpoll::srp::tmf::{NO_TASK_TAG, TmfFunction};
use srpoll::target::handle::Request;
use srpoll::wire::num::Qpn;
use srpoll::wire::srp::Tag;

use crate::rig::disk::Hang;
use crate::rig::scripted::Hosts;
use crate::rig::{Rig, Setup, disk, limits, lun, ms, secs};

const KIB: usize = 1 << 10;
const HOSTS: u8 = 5;
/// The host of the channel that nothing befalls.
const STEADY: u8 = 99;

struct History {
    rig: Rig<Hosts>,
    rng: fastrand::Rng,
    hang: Arc<Hang>,
    steady: usize,
    /// The steady channel has lost its shard.
    shaken: bool,
}

impl History {
    fn new(seed: u64) -> History {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = AdapterConfig {
            recycling: [Recycling::Never, Recycling::SameNumber, Recycling::NewNumber][rng.usize(0..3)],
            last_wqe_event: rng.bool(),
            ..AdapterConfig::new(rng.u64(..), 2)
        };
        let hang = Hang::new(2);
        let mut setup = Setup::new(vec![lun(0, disk::malloc(2)), lun(1, hang.clone())]);
        setup.limits = limits(|wishes| wishes.max_channels = 24);
        setup.limits.data_bytes = rng.usize(2..4) * 256 * KIB;
        let mut rig = Rig::on_adapter(&setup, config);
        rig.audits = seed.is_multiple_of(8);
        let steady = rig.login_on(STEADY, Script::soft());
        History { rig, rng, hang, steady, shaken: false }
    }

    fn any_channel(&mut self) -> Option<usize> {
        let live: Vec<_> =
            (0..self.rig.channels.len()).filter(|&n| n != self.steady && self.rig.is_live(n)).collect();
        self.rng.choice(live)
    }

    fn log_in(&mut self) {
        let (number, multi) = (self.rng.u8(0..HOSTS), self.rng.u32(0..5) > 0);
        let script = Script::any(&mut self.rng);
        let rtu = self.rng.u32(0..10) > 0;
        self.rig.ask_login(number, multi, rtu, script);
    }

    fn command(&mut self, channel: usize) {
        if self.rig.channels[channel].credits < 2 {
            return;
        }
        let sizes = [512, 512, 4 * KIB, 4 * KIB, 8 * KIB, 64 * KIB, 300 * KIB, 700 * KIB];
        let len = sizes[self.rng.usize(0..sizes.len())];
        let (lun, lba, at) = (self.rng.u16(0..2), self.rng.u64(0..2048), self.rng.usize(0..64) * 4096);
        match self.rng.u32(0..5) {
            0 | 1 => self.rig.read(channel, lun, lba, at, len),
            2 | 3 => self.rig.write(channel, lun, lba, at, len),
            _ => self.rig.write_immediate(channel, lun, lba, &vec![1; len.min(8 * KIB)]),
        };
    }

    fn manage(&mut self, channel: usize) {
        let entry = &self.rig.channels[channel];
        if entry.credits < 1 {
            return;
        }
        let task = entry.pending.keys().next().copied().map(Tag);
        let (function, task) = match (self.rng.u32(0..4), task) {
            (0, _) => (TmfFunction::LunReset, NO_TASK_TAG),
            (1, _) | (_, None) => (TmfFunction::AbortTaskSet, NO_TASK_TAG),
            (_, Some(task)) => (TmfFunction::AbortTask, task),
        };
        let lun = self.rng.u16(0..2);
        self.rig.manage(channel, function, lun, task);
    }

    /// Something happens to a channel, or to all.
    fn accident(&mut self) {
        let Some(channel) = self.any_channel() else { return };
        let far = self.rig.far(channel);
        let soon = self.rig.now + Duration::from_micros(self.rng.u64(0..100));
        let statuses = [WcStatus::RetryExceeded, WcStatus::RemoteAccess, WcStatus::LocalQpOperation];
        let status = statuses[self.rng.usize(0..statuses.len())];
        match self.rng.u32(0..8) {
            0 => self.rig.leave(channel),
            1 => self.rig.log_out(channel),
            2 => self.rig.adapter.at(soon, Act::Failure(far, status)),
            3 => self.rig.adapter.at(soon, Act::Break(far)),
            4 => self.rig.adapter.at(soon, Act::Silence(far)),
            5 => self.rig.kick(self.rig.channels[channel].number),
            6 => self.rig.send_on(channel, &[0x77; 40]),
            // Three at a time, in any order.
            _ => {
                let mut acts = [Act::Disconnect(far), Act::Break(far), Act::Failure(far, status)];
                self.rng.shuffle(&mut acts);
                self.rig.adapter.all_at(soon, acts);
            }
        }
    }

    /// Something out of nowhere, which nobody may mind.
    fn noise(&mut self) {
        let shard = self.rng.usize(0..2);
        let nobody = QpId(Key { slot: self.rng.u32(0..1000), generation: u32::MAX });
        let events = [
            AsyncEvent::LastWqeReached(nobody),
            AsyncEvent::QpFatal(nobody),
            AsyncEvent::CommEstablished(nobody),
            AsyncEvent::SqDrained(nobody),
        ];
        let event = events[self.rng.usize(0..events.len())];
        let status = if self.rng.bool() { WcStatus::Success } else { WcStatus::WrFlush };
        let (wr_id, qpn) = (self.rng.u64(..), Qpn::new(self.rng.u32(..)));
        let wc = Wc { wr_id, status, opcode: WcOpcode::Recv, len_bytes: 48, qpn };
        let soon = self.rig.now;
        self.rig.adapter.all_at(soon, [Act::Event { shard, event }, Act::Stray { shard, wc }]);
    }

    fn turn(&mut self) {
        match self.rng.u32(0..100) {
            0..16 => self.log_in(),
            16..60 => {
                if let Some(channel) = self.any_channel() {
                    (0..self.rng.u32(1..6)).for_each(|_| self.command(channel));
                }
            }
            60..65 => {
                if let Some(channel) = self.any_channel() {
                    self.manage(channel);
                }
            }
            65..85 => self.accident(),
            85..88 => self.noise(),
            88..90 => {
                let now = self.rig.now;
                let up_again = now + ms(self.rng.u64(1..300));
                self.rig.adapter.at(now, Act::Port { up: false });
                self.rig.adapter.at(up_again, Act::Port { up: true });
            }
            90..92 => {
                let empty = self.rng.bool();
                self.rig.adapter.at(self.rig.now, Act::Stock { empty });
            }
            92..94 => self.hang.hang(0..1 << 20),
            94..96 => self.hang.release(),
            96..99 => self.rig.run(ms(self.rng.u64(1..300))),
            _ => self.rig.run(ms(self.rng.u64(1..8_000))),
        }
        let micros = self.rng.u64(0..150);
        self.rig.run(Duration::from_micros(micros));
    }

    /// The world is well again; whatever is left comes to its end.
    fn finish(mut self) -> u64 {
        self.hang.release();
        let now = self.rig.now;
        self.rig.adapter.at(now, Act::Port { up: true });
        self.rig.adapter.at(now, Act::Stock { empty: false });
        for channel in 0..self.rig.channels.len() {
            self.rig.adapter.at(now, Act::Speech(self.rig.far(channel)));
        }
        if self.rng.bool() {
            self.rig.run(secs(1));
        }
        if !self.shaken {
            // Others may still reset its logical unit.
            let good = (0..20).any(|_| {
                self.rig.run(ms(300));
                let tag = self.rig.read(self.steady, 0, 0, 0, 4 * KIB);
                self.rig.answer(self.steady, tag).is_good()
            });
            assert!(good, "the steady channel is served");
            let entry = &self.rig.channels[self.steady];
            assert_eq!(entry.credits, entry.granted, "credits of a channel without commands");
        }
        if self.rng.bool() {
            for shard in 0..2 {
                self.rig.post_request(shard, Request::Drain(secs(8)));
            }
            self.rig.settled();
        } else {
            self.rig.settle();
        }
        self.rig.count(|counts| counts.channels_ended())
    }
}

/// One history; gives how many queue pairs were drained in it.
fn history(seed: u64) -> u64 {
    let mut history = History::new(seed);
    for _ in 0..200 {
        history.turn();
    }
    history.finish()
}

#[test]
fn ten_thousand_drains_end_with_nothing_left() {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number: {text:?}")),
        Err(_) => default,
    };
    let (wanted, first): (u64, u64) = (number("DRAINS", 10_000), number("DRAINS_SEED", 1));
    let (mut drains, mut seed) = (0, first);
    while drains < wanted {
        match std::panic::catch_unwind(|| history(seed)) {
            Ok(some) => drains += some,
            Err(panic) => {
                eprintln!("seed {seed} fails, after {drains} drains: DRAINS=1 DRAINS_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
        seed += 1;
    }
    eprintln!("{drains} drains in {} histories from seed {first}", seed - first);
}
