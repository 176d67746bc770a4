//! Anything in any order: commands of every form, task management, logins, deaths, a disk that
//! hangs, errs and forgets, a network that loses. The state tables assert themselves; the books are
//! audited all the way; the bytes are known; in the end nothing is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use srpoll::rdma::sim::net::Faults;
use srpoll::rdma::verbs::{ConnEnd, Connections, Device};
use srpoll::srp::tmf::{NO_TASK_TAG, TmfFunction};
use srpoll::wire::srp::{Cmd, DataBuffer, DescTable, InitiatorLogout, Tag};

use crate::rig::command::{cmd, pattern};
use crate::rig::disk::Hang;
use crate::rig::raw::{Link, Login};
use crate::rig::{Rig, Setup, TARGET, cdb, disk, host, lun, ms, secs};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of the stripes of each LUN; one command at a time works on each.
const STRIPES: [usize; 20] = [
    512, 512, 1024, 4096, 4096, 4096, 8192, 8192, 8192, 16384, 65536, 65536, 65536, 131_072, 131_072,
    262_144, 262_656, 300_032, 524_288, 1_048_576,
];
const READ_AT: usize = 32 * MIB;
const TABLE_AT: usize = 64 * MIB;
const HOSTS: usize = 3;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Content {
    Known(u64),
    Open,
}

/// Host, channel, tag.
type Key = (usize, usize, [u8; 8]);

struct Stripe {
    content: Content,
    busy: bool,
}

struct Job {
    lun: usize,
    stripe: usize,
    writes: Option<u64>,
    /// What a READ has to give.
    expects: Content,
    /// Task management may have ended it, or not.
    maybe_over: bool,
    /// It was told to be over: an answer would break the promise.
    over: bool,
}

struct Management {
    raw: usize,
    channel: usize,
    tag: Tag,
    function: TmfFunction,
    lun: usize,
    task: Tag,
    /// The jobs of its nexus on that LUN when it was sent.
    jobs: Vec<Key>,
}

struct World {
    rig: Rig,
    rng: fastrand::Rng,
    hang: Arc<Hang>,
    stripes: [Vec<Stripe>; 2],
    jobs: BTreeMap<Key, Job>,
    managements: Vec<Management>,
    /// Channels that are of no use any more.
    dead: Vec<Vec<bool>>,
    /// Stripes on which a dead channel may still work, until the target knows of its death.
    quarantine: Vec<(usize, usize, usize, usize)>,
    /// Tell what happens, for who looks for the cause of a failure.
    tells: bool,
    /// Nexuses and LUNs for which a function is on its way on a channel that is dead for us.
    doubts: Vec<(usize, usize)>,
    answered: u64,
}

fn offset(stripe: usize) -> usize {
    STRIPES[..stripe].iter().sum()
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let hang = Hang::new(4);
        let mut options = bdev::sim::SimOptions::faultless(4 << 20, seed);
        options.stalls = rng.choice([0, 0, 100]).unwrap();
        options.stall = secs(rng.choice([1, 6]).unwrap());
        options.errors = rng.choice([0, 200]).unwrap();
        options.full = rng.choice([0, 1000]).unwrap();
        let mut setup = Setup { seed, ..Setup::new(vec![lun(0, disk::sim(&options)), lun(1, hang.clone())]) };
        setup.limits.data_bytes = rng.choice([2, 3, 6]).unwrap() * 256 * KIB;
        let mut rig = Rig::new(setup);
        for number in 0..HOSTS {
            rig.raw(number as u8);
        }
        let stripes = || STRIPES.iter().map(|_| Stripe { content: Content::Known(0), busy: false }).collect();
        World {
            rig,
            rng,
            hang,
            stripes: [stripes(), stripes()],
            jobs: BTreeMap::new(),
            managements: Vec::new(),
            dead: vec![Vec::new(); HOSTS],
            quarantine: Vec::new(),
            tells: std::env::var_os("SIM_LOG").is_some(),
            doubts: Vec::new(),
            answered: 0,
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:?} {}", self.rig.now, what());
        }
    }

    fn is_live(&self, raw: usize, channel: usize) -> bool {
        !self.dead[raw][channel] && matches!(self.rig.raws[raw].channels[channel].link, Link::Live(_))
    }

    fn any_channel(&mut self) -> Option<(usize, usize)> {
        let live: Vec<_> = (0..HOSTS)
            .flat_map(|raw| (0..self.rig.raws[raw].channels.len()).map(move |channel| (raw, channel)))
            .filter(|&(raw, channel)| self.is_live(raw, channel))
            .collect();
        self.rng.choice(live)
    }

    fn login(&mut self) {
        let raw = self.rng.usize(0..HOSTS);
        let live = (0..self.dead[raw].len()).filter(|&channel| self.is_live(raw, channel)).count();
        let mut login = Login::new(raw as u8);
        if self.rng.u32(0..4) > 0 {
            login = login.multi();
            if live >= 3 {
                return;
            }
        }
        login.responder_resources = self.rng.choice([1, 4, 16]).unwrap();
        login.silent_rtu = self.rng.u32(0..10) == 0;
        let now = self.rig.now;
        self.rig.raws[raw].connect(now, &login);
        self.dead[raw].push(false);
        self.tell(|| format!("{raw}.{} login {:#x}", self.dead[raw].len() - 1, login.request.flags));
    }

    fn command(&mut self) {
        let Some((raw, channel)) = self.any_channel() else { return };
        if self.rig.raws[raw].channels[channel].credits < 2 {
            return;
        }
        let lun = self.rng.usize(0..2);
        let free: Vec<_> = (0..STRIPES.len()).filter(|&stripe| !self.stripes[lun][stripe].busy).collect();
        let Some(stripe) = self.rng.choice(free) else { return };
        let (len, at) = (STRIPES[stripe], offset(stripe) + lun * 4 * MIB);
        let lba = (offset(stripe) / 512) as u64;
        let blocks = (len / 512) as u32;
        let write = self.rng.bool();
        let seed = self.rng.u64(1..);
        let data = pattern(len, seed);
        let at = if write { at } else { READ_AT + at };
        self.rig.raws[raw].memory.write(at, &data).unwrap();
        let tag = self.rig.raws[raw].tag();
        let base =
            cmd(tag, lun as u16, if write { cdb::write_16(lba, blocks) } else { cdb::read_16(lba, blocks) });
        let form = self.rng.usize(0..4);
        let count = self.rng.usize(1..=if form == 1 { 60 } else { 300 });
        let mut table = Vec::new();
        let mut from = 0;
        for index in 0..count {
            let to = if index + 1 == count { len } else { self.rng.usize(from..=len) };
            table.extend_from_slice(&self.rig.raws[raw].piece(at + from, to - from).emit());
            from = to;
        }
        // Each stripe has its own place for an external table.
        let table_at = TABLE_AT + (lun * STRIPES.len() + stripe) * 8192;
        let buffer = match form {
            0 => DataBuffer::Direct(self.rig.raws[raw].piece(at, len)),
            1 => DataBuffer::Indirect {
                table: self.rig.raws[raw].piece(table_at, table.len()),
                total_bytes: len as u32,
                inline: DescTable::new(&table).unwrap(),
            },
            2 => {
                self.rig.raws[raw].memory.write(table_at, &table).unwrap();
                let inline = DescTable::new(&table[..self.rng.usize(0..count.min(12)) * 16]).unwrap();
                let table = self.rig.raws[raw].piece(table_at, table.len());
                DataBuffer::Indirect { table, total_bytes: len as u32, inline }
            }
            _ if write && len <= 8192 => DataBuffer::Immediate { data: &data, offset: 68 },
            _ => DataBuffer::Direct(self.rig.raws[raw].piece(at, len)),
        };
        let command = if write { Cmd { data_out: buffer, ..base } } else { Cmd { data_in: buffer, ..base } };
        self.rig.post(raw, channel, &command);
        self.tell(|| {
            let what = if write { "write" } else { "read" };
            format!("{raw}.{channel} {what} {} lun {lun} stripe {stripe} form {form}", tag.0[0])
        });
        let entry = &mut self.stripes[lun][stripe];
        entry.busy = true;
        let expects = entry.content;
        let maybe_over = self.doubts.contains(&(raw, lun));
        let job = Job { lun, stripe, writes: write.then_some(seed), expects, maybe_over, over: false };
        self.jobs.insert((raw, channel, tag.0), job);
    }

    fn manage(&mut self) {
        let Some((raw, channel)) = self.any_channel() else { return };
        if self.rig.raws[raw].channels[channel].credits < 1 || self.managements.iter().any(|m| m.raw == raw) {
            return;
        }
        let of_channel: Vec<_> =
            self.jobs.keys().filter(|key| (key.0, key.1) == (raw, channel)).copied().collect();
        let function = match self.rng.u32(0..8) {
            0 => TmfFunction::LunReset,
            1 => TmfFunction::AbortTaskSet,
            2 => TmfFunction::ClearTaskSet,
            _ => TmfFunction::AbortTask,
        };
        let victim =
            of_channel.iter().min_by_key(|key| u64::from_le_bytes(key.2) ^ self.rng.u64(..)).copied();
        let (lun, task) = match (function, victim) {
            (TmfFunction::AbortTask, Some(victim)) => (self.jobs[&victim].lun, Tag(victim.2)),
            (TmfFunction::AbortTask, None) => return,
            _ => (self.rng.usize(0..2), NO_TASK_TAG),
        };
        let jobs = self.jobs.iter().filter(|(key, job)| key.0 == raw && job.lun == lun);
        let jobs = jobs.map(|(key, _)| *key).collect();
        let tag = self.rig.manage(raw, channel, function, lun as u16, task);
        self.tell(|| format!("{raw}.{channel} {function:?} lun {lun} task {}", task.0[0]));
        self.managements.push(Management { raw, channel, tag, function, lun, task, jobs });
    }

    fn kill(&mut self) {
        let Some((raw, channel)) = self.any_channel() else { return };
        let now = self.rig.now;
        let (conn, qp) = {
            let channel = &self.rig.raws[raw].channels[channel];
            (channel.conn, channel.qp)
        };
        match self.rng.u32(0..6) {
            0 => {
                if let Some(conn) = conn {
                    let _ = self.rig.raws[raw].device.disconnect(now, conn);
                }
            }
            1 => {
                let _ = self.rig.raws[raw].device.destroy_qp(now, qp);
            }
            2 => self.rig.send(raw, channel, &InitiatorLogout { tag: Tag(*b"good bye") }.emit()),
            3 => {
                let tag = self.rig.raws[raw].tag();
                let data_in = DataBuffer::Direct(self.rig.raws[raw].wrong_piece(0, 512));
                self.rig.post(raw, channel, &Cmd { data_in, ..cmd(tag, 0, cdb::read_10(0, 1)) });
            }
            4 => self.rig.send(raw, channel, &[0x77; 20]),
            _ => {
                let len = self.rng.usize(0..300);
                let noise = pattern(len, self.rng.u64(1..));
                // Never anything that could be a command of effect.
                let noise: Vec<u8> = noise.into_iter().map(|byte| byte | 0x40).collect();
                self.rig.send(raw, channel, &noise);
            }
        }
        self.bury(raw, channel);
    }

    /// Whether commands of the nexus on other channels came before this function nobody knows, be it
    /// that they were sent before it or after.
    fn doubt(&mut self, management: &Management) {
        if management.function == TmfFunction::AbortTask {
            return;
        }
        let meant = |key: &Key, job: &Job| {
            key.0 == management.raw && key.1 != management.channel && job.lun == management.lun
        };
        for (_, job) in self.jobs.iter_mut().filter(|(key, job)| meant(key, job)) {
            job.maybe_over = true;
        }
    }

    /// A channel is of no use any more: its commands come to no known end.
    fn bury(&mut self, raw: usize, channel: usize) {
        if std::mem::replace(&mut self.dead[raw][channel], true) {
            return;
        }
        self.tell(|| format!("{raw}.{channel} is buried: {:?}", self.rig.raws[raw].channels[channel].link));
        // A function that nobody answers any more may have done its work on other channels.
        let (over, rest) = std::mem::take(&mut self.managements)
            .into_iter()
            .partition(|management| (management.raw, management.channel) == (raw, channel));
        self.managements = rest;
        let over: Vec<Management> = over;
        for management in over {
            if management.function != TmfFunction::AbortTask {
                self.doubts.push((raw, management.lun));
            }
            self.doubt(&management);
        }
        let keys: Vec<_> = self.jobs.keys().filter(|key| (key.0, key.1) == (raw, channel)).copied().collect();
        for key in keys {
            let job = self.jobs.remove(&key).unwrap();
            if job.over {
                continue;
            }
            if job.writes.is_some() {
                self.stripes[job.lun][job.stripe].content = Content::Open;
            }
            // Our memory is still exposed to the channel, too.
            self.quarantine.push((raw, channel, job.lun, job.stripe));
        }
    }

    /// Takes what has been answered and what has ended.
    fn look(&mut self) {
        for raw in 0..HOSTS {
            for channel in 0..self.rig.raws[raw].channels.len() {
                if matches!(self.rig.raws[raw].channels[channel].link, Link::Ended(_) | Link::Refused(_)) {
                    self.take_answers(raw, channel);
                    self.bury(raw, channel);
                    // The target ended it, or has answered our DREQ: what it left is fenced.
                    let gone =
                        self.rig.raws[raw].channels[channel].link == Link::Ended(ConnEnd::PeerDisconnected);
                    if gone {
                        self.leave_quarantine(raw, Some(channel));
                    }
                } else if !self.dead[raw][channel] {
                    self.take_answers(raw, channel);
                    // Our side ran out of retries: it says good-bye, as ib_srp does.
                    if !self.rig.raws[raw].channels[channel].failures.is_empty() {
                        let now = self.rig.now;
                        if let Some(conn) = self.rig.raws[raw].channels[channel].conn {
                            let _ = self.rig.raws[raw].device.disconnect(now, conn);
                        }
                        self.bury(raw, channel);
                    }
                }
            }
        }
        self.take_management();
    }

    fn leave_quarantine(&mut self, raw: usize, channel: Option<usize>) {
        let stripes = &mut self.stripes;
        self.quarantine.retain(|&(of, by, lun, stripe)| {
            let leaves = of == raw && channel.is_none_or(|channel| channel == by);
            if leaves {
                stripes[lun][stripe].busy = false;
            }
            !leaves
        });
    }

    fn take_answers(&mut self, raw: usize, channel: usize) {
        assert_eq!(self.rig.raws[raw].channels[channel].twice, Vec::<[u8; 8]>::new(), "answered twice");
        let answers = std::mem::take(&mut self.rig.raws[raw].channels[channel].answers);
        let inbox = std::mem::take(&mut self.rig.raws[raw].channels[channel].inbox);
        for iu in inbox {
            // Credits that came by a request; the raw channel counts those of answers only.
            if iu[0] == 0x81 {
                let delta = i32::from_be_bytes(iu[4..8].try_into().unwrap());
                self.rig.raws[raw].channels[channel].credits += delta;
                if self.is_live(raw, channel) {
                    let mut answer = vec![0; 16];
                    answer[0] = 0x41;
                    answer[8..16].copy_from_slice(&iu[8..16]);
                    self.rig.send(raw, channel, &answer);
                }
            }
        }
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.sort_by_key(|(tag, _)| *tag);
        for (tag, answer) in answers {
            let Some(job) = self.jobs.remove(&(raw, channel, tag)) else {
                self.rig.raws[raw].channels[channel].answers.insert(tag, answer);
                continue;
            };
            self.tell(|| {
                format!("{raw}.{channel} answer to {}: {:?} {:?}", tag[0], answer.status, answer.sense)
            });
            assert!(!job.over, "an answer after the promise that there is none");
            self.answered += 1;
            let stripe = &mut self.stripes[job.lun][job.stripe];
            stripe.busy = false;
            if answer.is_good() {
                match (job.writes, job.expects) {
                    (Some(seed), _) => stripe.content = Content::Known(seed),
                    (None, Content::Known(seed)) => {
                        let len = STRIPES[job.stripe];
                        let at = READ_AT + offset(job.stripe) + job.lun * 4 * MIB;
                        let right = if seed == 0 { vec![0; len] } else { pattern(len, seed) };
                        assert!(
                            self.rig.raws[raw].bytes(at, len) == right,
                            "wrong bytes in stripe {}",
                            job.stripe
                        );
                    }
                    (None, Content::Open) => {}
                }
            } else if job.writes.is_some() && answer.sense.is_none_or(|(key, ..)| key != 6) {
                stripe.content = Content::Open;
            }
        }
    }

    fn take_management(&mut self) {
        let mut rest = Vec::new();
        for management in std::mem::take(&mut self.managements) {
            let (raw, channel) = (management.raw, management.channel);
            let Some(answer) = self.rig.raws[raw].channels[channel].answers.remove(&management.tag.0) else {
                rest.push(management);
                continue;
            };
            let code = answer.code.expect("an answer to task management");
            self.tell(|| format!("{raw}.{channel} {:?} answered {code}", management.function));
            assert!([0, 5].contains(&code), "{:?}: {code}", management.function);
            self.doubt(&management);
            for key in management.jobs {
                let Some(job) = self.jobs.get_mut(&key) else { continue };
                let meant = management.function != TmfFunction::AbortTask || key.2 == management.task.0;
                assert_eq!(job.lun, management.lun);
                if !meant || job.over {
                    continue;
                }
                if key.1 != channel {
                    continue;
                }
                if job.writes.is_some() {
                    self.stripes[job.lun][job.stripe].content = Content::Open;
                }
                job.over = true;
                self.stripes[job.lun][job.stripe].busy = false;
            }
        }
        self.managements.extend(rest);
        // What was told to be over stays known for a while, so that an answer to it is noticed; its
        // stripe is anybody's again.
    }

    fn turn(&mut self) {
        match self.rng.u32(0..100) {
            0..6 => self.login(),
            6..70 => self.command(),
            70..78 => self.manage(),
            78..80 => self.kill(),
            80..83 => {
                let from = self.rng.u64(0..8) * 512 * 1024;
                self.hang.hang(from..from + 1024 * 1024);
            }
            83..88 => self.hang.release(),
            88..90 => {
                let chance = self.rng.choice([0.0, 0.01, 0.1]).unwrap();
                let faults = Faults {
                    loss: chance,
                    duplicate: chance,
                    reorder: chance,
                    corrupt: chance / 4.0,
                    ..Faults::NONE
                };
                self.rig.wire.with_net(|net| net.set_faults(faults));
            }
            90..91 => {
                let raw = self.rng.u8(0..HOSTS as u8);
                self.rig.wire.with_net(|net| net.part(host(raw), TARGET));
            }
            91..94 => {
                (0..HOSTS as u8).for_each(|raw| self.rig.wire.with_net(|net| net.heal(host(raw), TARGET)))
            }
            94..96 => {
                let time = ms(self.rng.u64(1..1500));
                self.rig.run(time);
            }
            96..97 => self.rig.run(secs(5)),
            _ => self.rig.run(ms(3)),
        }
        let micros = self.rng.u64(0..60);
        self.rig.run(Duration::from_micros(micros));
        self.look();
    }

    /// Everything is well again; whatever is alive comes to its end.
    fn finish(mut self) {
        self.rig.wire.with_net(|net| {
            net.set_faults(Faults::NONE);
            (0..HOSTS as u8).for_each(|raw| net.heal(host(raw), TARGET));
        });
        self.hang.release();
        for _ in 0..400 {
            self.rig.run(ms(100));
            self.look();
            if self.jobs.values().all(|job| job.maybe_over || job.over) && self.managements.is_empty() {
                break;
            }
        }
        let stuck: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| !job.maybe_over && !job.over)
            .map(|(key, job)| (*key, job.lun, job.stripe, job.writes.is_some()))
            .collect();
        assert_eq!(stuck, [], "commands without an end");
        assert!(self.managements.is_empty(), "task management without an answer");
        // Whose commands may be over may be not: their stripes are unknown.
        for job in self.jobs.values().filter(|job| !job.over && job.writes.is_some()) {
            self.stripes[job.lun][job.stripe].content = Content::Open;
        }
        for raw in 0..HOSTS {
            for channel in 0..self.rig.raws[raw].channels.len() {
                let now = self.rig.now;
                if let Some(conn) = self.rig.raws[raw].channels[channel].conn {
                    let _ = self.rig.raws[raw].device.disconnect(now, conn);
                }
            }
        }
        self.rig.clean();
        for (number, bdev) in
            [&self.rig.snapshot.luns[0].bdev, &self.rig.snapshot.luns[1].bdev].iter().enumerate()
        {
            let mut driver = bdev::testing::Driver::open(&***bdev, 4);
            for (index, stripe) in self.stripes[number].iter().enumerate() {
                let Content::Known(seed) = stripe.content else { continue };
                let len = STRIPES[index];
                // A simulated disk may err now and then.
                let found = (0..20).find_map(|_| driver.read(offset(index) as u64, len).ok());
                let right = if seed == 0 { vec![0; len] } else { pattern(len, seed) };
                assert!(
                    found.is_some_and(|found| found == right),
                    "stripe {index} of LUN {number} in the end"
                );
            }
        }
    }
}

/// Runs one seed; gives how many commands were answered.
fn history(seed: u64, turns: usize) -> u64 {
    let mut world = World::new(seed);
    world.rig.audits = seed.is_multiple_of(4);
    world.login();
    world.login();
    for _ in 0..turns {
        world.turn();
    }
    world.rig.audit();
    let answered = world.answered;
    world.finish();
    answered
}

/// `SIM_SEEDS=1000..2000` runs those instead.
#[test]
fn anything_in_any_order() {
    let range = std::env::var("SIM_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let mut answered = 0;
    for number in range.unwrap_or(0..60) {
        let result = std::panic::catch_unwind(|| history(number, 300));
        match result {
            Ok(answers) => answered += answers,
            Err(panic) => {
                eprintln!("seed {number}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(answered > 10, "{answered}");
}
