//! A shard: the target's state on one core, and its loop.
//!
//! A shard owns its queues, channels, tasks, memory and block queues; nobody else touches them.
//! [`Shard::poll`] is one turn. Everything that can wait (ends of channels, task management that
//! is not done, probes, commands of the control plane) happens in the slow lane of the same turn.
//!
//! The concerns live in files of their own, each an `impl Shard`:
//! `intake` (from a received information unit to a task), `pipeline` (a task's way),
//! `respond` (batches of responses), `manage` (task management), `admit` (logins), `reaper` and
//! `retire` (ends of channels and of their queue pairs), `events` (what the device says by itself),
//! `admin` (the control plane).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use reactors::arena::{self, HugePages};
use reactors::clock::Clock;
use reactors::poller::{Busy, Poller};
use reactors::ring::Mailbox;
use reactors::slab::{Key, Slab};
use reactors::stats::ReactorStats;
use reactors::time::Time;

use super::accept::{Acceptor, Desk};
use super::admin::Admin;
use super::channel::Channel;
use super::counts::Counts;
use super::credits::CreditRequests;
use super::dying::Draining;
use super::fabric::Fabric;
use super::lent::Loans;
use super::limits::SPARE_QUEUE_PAIRS;
use super::luns::{Changes, Luns, MAX_LUNS};
use super::manage::{Ending, Managements};
use super::message::{Message, Peers};
use super::pool::Pool;
use super::queues::Queues;
use super::quiet::Quiet;
use super::respond::Responses;
use super::retire::Retirements;
use super::slots::Slots;
use super::snapshot::Snapshot;
use super::spares::Spares;
use super::stages::StageClock;
use super::task::Task;
use super::wr::Tag;
use crate::rdma::verbs::{Access, ConnEvent, PdId, VerbsError, Wc, WcOpcode, WcStatus};
use crate::scsi::{self, TargetInfo};
use crate::wire::num::Qpn;
use crate::wire::scsi::inquiry::ascii_field;

/// Completions taken at a time.
const BATCH: usize = 32;
const NO_WC: Wc =
    Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::GSI };
/// Batches of completions taken in one turn, so that no source starves the others.
const BATCHES_A_TURN: usize = 8;
/// Messages taken in one turn, and events of connections, so that many at a time hold up nobody.
const MESSAGES_A_TURN: usize = 8;
/// How often the slow lane looks while something is in it.
const SLOW_BUSY: Duration = Duration::from_millis(2);
/// How often the slow lane looks at idle channels.
const SLOW_IDLE: Duration = Duration::from_millis(500);

/// QPNs are random already; a multiplication spreads them over the table.
#[derive(Default)]
pub struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What a shard is made from.
pub struct ShardSeed {
    /// Its number.
    pub index: usize,
    /// The core that its thread is pinned to.
    pub core: Option<usize>,
    /// The configuration at start.
    pub snapshot: Arc<Snapshot>,
    /// Where its memory comes from.
    pub hugepages: HugePages,
    /// Its inbox.
    pub inbox: Mailbox<Message>,
    /// The way to all shards.
    pub peers: Peers,
    /// Counted up by shard 0 whenever a connection came or went.
    pub seatings: Arc<AtomicU64>,
    /// What its reactor does.
    pub stats: Arc<ReactorStats>,
    /// The clock of its reactor; none if a turn is to count as one moment.
    pub clock: Option<Clock>,
}

/// Why a shard could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No memory.
    #[error(transparent)]
    Arena(#[from] arena::ArenaError),
    /// The provider refused.
    #[error("the RDMA provider refused to start: {0}")]
    Verbs(#[from] VerbsError),
    /// A block device could not be opened.
    #[error(transparent)]
    Bdev(#[from] bdev::OpenError),
}

/// The target's state on one core.
pub struct Shard<F: Fabric> {
    pub(super) index: usize,
    pub(super) core: Option<usize>,
    pub(super) fabric: F,
    pub(super) pd: PdId,
    pub(super) queues: Queues,
    pub(super) slots: Slots,
    pub(super) pool: Pool,
    pub(super) responses: Responses,
    pub(super) credit_requests: CreditRequests,
    pub(super) tasks: Slab<Task>,
    pub(super) channels: Slab<Channel>,
    pub(super) by_qpn: HashMap<Qpn, Key, BuildHasherDefault<QpnHasher>>,
    pub(super) luns: Luns,
    pub(super) loans: Loans,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) target: TargetInfo,
    pub(super) inbox: Mailbox<Message>,
    pub(super) peers: Peers,
    /// On shard 0 only.
    pub(super) acceptor: Option<Acceptor>,
    /// Channels on their way out.
    pub(super) draining: Draining,
    /// Queue pairs on their way to the spares or to their end.
    pub(super) retirements: Retirements,
    pub(super) spares: Spares,
    /// Tasks that no promise of a receive slot stands for: at a block device, and given up.
    pub(super) loose: usize,
    /// Task management that waits for tasks to end.
    pub(super) endings: Vec<Ending>,
    pub(super) managements: Managements,
    pub(super) admin: Admin,
    /// Where SCSI puts parameter data.
    pub(super) scratch: Box<[u8]>,
    pub(super) counts: Counts,
    pub(super) stage_clock: StageClock,
    /// Failures of block operations.
    pub(super) block_log: Quiet,
    pub(super) rng: fastrand::Rng,
    pub(super) reactor: Arc<ReactorStats>,
    /// The kernel's id of the thread.
    pub(super) tid: i32,
    /// Room for work completions that are taken at a time.
    batch: Box<[Wc]>,
    completions: Vec<bdev::Completion>,
    next_slow: Time,
}

impl<F: Fabric> Shard<F> {
    /// A shard with all its memory, and no channel.
    pub fn new(seed: ShardSeed, mut fabric: F, rng: fastrand::Rng) -> Result<Self, StartError> {
        let limits = seed.snapshot.limits;
        let pd = fabric.alloc_pd()?;
        let mut local = |bytes: usize| -> Result<_, StartError> {
            let (region, _) = arena::allocate(bytes, seed.hugepages)?;
            let keys = fabric.register(pd, &region, Access::LOCAL)?;
            Ok((region, keys.lkey))
        };
        let (slot_region, slot_lkey) = local(limits.recv_region_bytes())?;
        let (pool_region, pool_lkey) = local(limits.data_bytes)?;
        let (rsp_region, rsp_lkey) = local(limits.rsp_region_bytes())?;
        let (credit_region, credit_lkey) = local(CreditRequests::bytes(2 * limits.max_channels as usize))?;
        let caps = fabric.caps();
        // Every slot may have a receive completion, and every channel may flush all of its send
        // queue at a time: for the smallest channel 16 entries and three slots.
        let cq_depth = caps.max_cqe.min(8 * limits.recv_slots);
        let cq = fabric.create_cq(cq_depth)?;
        let srq = fabric.create_srq(pd, limits.recv_slots)?;
        let tasks = limits.tasks as usize;
        let mut shard = Shard {
            index: seed.index,
            core: seed.core,
            pd,
            queues: Queues::new(cq, cq_depth, srq),
            slots: Slots::new(slot_region, slot_lkey, srq, limits.recv_slots),
            pool: Pool::new(pool_region, pool_lkey, tasks),
            responses: Responses::new(rsp_region, rsp_lkey, tasks),
            credit_requests: CreditRequests::new(credit_region, credit_lkey),
            tasks: Slab::new(tasks),
            // Twice, since a dying one keeps its place while its successor has another.
            channels: Slab::new(2 * limits.max_channels as usize),
            by_qpn: HashMap::default(),
            luns: Luns::default(),
            loans: Loans::default(),
            target: target_info(&seed.snapshot),
            snapshot: Arc::clone(&seed.snapshot),
            inbox: seed.inbox,
            acceptor: (seed.index == 0)
                .then(|| Acceptor::new(seed.peers.shards(), limits.recv_slots, seed.seatings)),
            peers: seed.peers,
            draining: Draining::new(2 * limits.max_channels as usize),
            retirements: Retirements::default(),
            spares: Spares::new(caps.recycling, SPARE_QUEUE_PAIRS.min(limits.max_channels as usize)),
            loose: 0,
            endings: Vec::new(),
            managements: Managements::default(),
            admin: Admin::default(),
            scratch: vec![0; scsi::scratch_bytes(MAX_LUNS)].into(),
            counts: Counts::default(),
            stage_clock: StageClock::new(seed.clock),
            block_log: Quiet::default(),
            rng,
            reactor: seed.stats,
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            batch: vec![NO_WC; BATCH].into(),
            completions: Vec::with_capacity(4 * BATCH),
            next_slow: Time::ZERO,
            fabric,
        };
        shard.open_luns(&seed.snapshot)?;
        shard.slots.post(&mut shard.fabric)?;
        tracing::info!(
            shard = shard.index,
            receive_slots = limits.recv_slots,
            receive_bytes = shard.slots.region().len_bytes(),
            data_bytes = shard.pool.capacity_bytes(),
            idle_channel_bytes = Self::idle_channel_bytes(),
            "memory is fixed"
        );
        Ok(shard)
    }

    /// Makes the logical units those of `snapshot`; on an error nothing has changed.
    pub(super) fn open_luns(&mut self, snapshot: &Snapshot) -> Result<Changes, bdev::OpenError> {
        let Shard { index, fabric, pd, loans, .. } = self;
        self.luns.apply(snapshot, self.pool.region(), self.slots.region(), |entry, memory| {
            let copied = |why| {
                tracing::warn!(shard = *index, bdev = entry.bdev.name(), "reads are copied: {why}");
            };
            loans.take(fabric, *pd, memory).map_err(copied).ok()
        })
    }

    /// The provider's context, for tests that play tricks on it.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// What was counted since start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What the RDMA device has completed.
    fn take_work_completions(&mut self, now: Time) -> usize {
        // Out of `self` while they are looked at.
        let mut batch = std::mem::take(&mut self.batch);
        let mut taken = 0;
        for _ in 0..BATCHES_A_TURN {
            let count = self.fabric.poll_cq(self.queues.cq, &mut batch);
            self.stage_clock.batch();
            for wc in &batch[..count] {
                self.on_work_completion(now, wc);
            }
            taken += count;
            if count < BATCH {
                self.queues.empties += 1;
                break;
            }
        }
        self.batch = batch;
        taken
    }

    #[inline]
    fn on_work_completion(&mut self, now: Time, wc: &Wc) {
        if wc.status != WcStatus::Success {
            self.on_failed_work(now, wc);
        }
        let ok = wc.status == WcStatus::Success;
        match Tag::parse(wc.wr_id) {
            Some((Tag::Receive, slot)) => self.on_receive(now, slot, wc),
            Some((Tag::Response, task)) => self.on_response_sent(now, task),
            Some((Tag::DataRead, task)) => self.on_data_read(now, task, ok),
            Some((Tag::TableRead, task)) => self.on_table_read(now, task, ok),
            Some((Tag::ChunkSent, task)) => self.on_chunk_sent(now, task, ok),
            Some((Tag::Marker, channel)) => self.on_marker(now, channel, wc),
            Some((Tag::Probe, channel)) => self.on_probe_back(channel),
            Some((Tag::Housekeeping, channel)) => self.resume(now, channel),
            Some((Tag::Block, _)) | None => self.counts.stale_completions += 1,
        }
    }

    /// What the block devices have completed.
    fn take_block_completions(&mut self, now: Time) -> usize {
        let mut taken = 0;
        let mut completions = std::mem::take(&mut self.completions);
        let mut at = 0;
        while let Some((key, lun)) = self.luns.busy_at(at) {
            lun.queue.poll(now, &mut completions);
            taken += completions.len();
            self.stage_clock.batch();
            for completion in completions.drain(..) {
                self.on_block_completion(now, completion);
            }
            self.resume_lun(now, key);
            if !self.luns.rest(at) {
                at += 1;
            }
        }
        self.completions = completions;
        taken
    }

    fn take_messages(&mut self, now: Time) -> usize {
        let mut taken = 0;
        while taken < MESSAGES_A_TURN {
            let Some(message) = self.inbox.recv() else { break };
            self.on_message(now, message);
            taken += 1;
        }
        taken
    }

    fn on_message(&mut self, now: Time, message: Message) {
        match message {
            Message::Control(command) => self.on_command(now, command),
            Message::Admit(admission) => self.on_admission(now, *admission),
            Message::Established { channel } => self.on_established(channel),
            Message::End { channel, why, for_login } => self.on_end_asked(now, channel, why, for_login),
            Message::EndTasks { lun, nexus, scope, from } => {
                self.on_end_tasks(now, lun, &nexus, scope, from);
            }
            Message::TasksEnded { to, complete } => self.on_tasks_ended(to, complete),
            Message::ClosePort(port) => self.close_port(&port),
            for_shard_0 => self.on_registry_message(now, for_shard_0),
        }
    }

    /// Messages to the registry of nexuses.
    fn on_registry_message(&mut self, now: Time, message: Message) {
        let Some(acceptor) = &mut self.acceptor else {
            debug_assert!(false, "a message to shard 0 came to shard {}: {message:?}", self.index);
            return;
        };
        let (net, peers) = (&mut self.fabric, &mut self.peers);
        let outcome = match message {
            Message::Admitted { conn, result } => {
                let mut desk = Desk { now, snapshot: &self.snapshot, net, peers };
                acceptor.on_admitted(conn, result, &mut desk);
                Ok(())
            }
            Message::Ended { for_login } => {
                acceptor.on_other_ended(for_login, peers);
                Ok(())
            }
            Message::DataFirst { conn } => net.established(now, conn),
            Message::Ending { conn, why, cut } => {
                let tell = why.is_ours();
                acceptor.on_ending(conn, why, cut);
                // Who is gone already needs not be told, and no end of the connection follows.
                if tell { net.disconnect(now, conn).inspect(|()| acceptor.on_leaving(conn)) } else { Ok(()) }
            }
            Message::Gone { conn, channel, slots, tally } => {
                acceptor.on_gone(now, conn, channel, slots, tally);
                Ok(())
            }
            Message::SlotsBack { shard, slots } => {
                acceptor.on_slots_back(shard, slots);
                Ok(())
            }
            _ => Ok(()),
        };
        // The connection may have ended by itself in the same moment.
        if let Err(error) = outcome {
            tracing::debug!(%error, "the connection manager knows that connection no more");
        }
    }

    /// What the connection manager of shard 0 has to say.
    fn take_connection_events(&mut self, now: Time) -> usize {
        let Some(acceptor) = &mut self.acceptor else { return 0 };
        let mut taken = 0;
        while taken < MESSAGES_A_TURN {
            let Some(event) = self.fabric.poll_conn() else { break };
            taken += 1;
            let (net, peers) = (&mut self.fabric, &mut self.peers);
            match event {
                ConnEvent::Request { conn, request, private_data, .. } => {
                    let mut desk = Desk { now, snapshot: &self.snapshot, net, peers };
                    acceptor.on_request(conn, request, &private_data, &mut desk);
                }
                ConnEvent::Established { conn } => acceptor.on_established(conn, peers),
                ConnEvent::Ended { conn, why } => acceptor.on_ended(conn, why, peers),
                // A target asks nobody.
                ConnEvent::Reply { conn, .. } => {
                    tracing::debug!(?conn, "a reply to a request that was not made");
                }
            }
        }
        taken
    }

    fn slow_lane(&mut self, now: Time) {
        // Dying channels are woken by what happens to them; here, too, lest one be forgotten.
        self.draining.wake();
        self.step_retirements(now);
        self.settle_queues(now);
        self.step_endings(now);
        self.probe_channels(now);
        self.return_credits(now);
        self.step_admin(now);
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.tell_of_ends(now);
        }
        self.luns.sweep();
        self.loans.sweep(&mut self.fabric);
        let busy = !self.retirements.is_empty()
            || self.queues.are_in_doubt()
            || !self.endings.is_empty()
            || self.admin.is_busy()
            // The fence may be lowered by another shard, which wakes nobody.
            || self.luns.iter().any(|(_, lun)| !lun.held.is_empty() || lun.is_stuck());
        self.next_slow = now + if busy { SLOW_BUSY } else { SLOW_IDLE };
    }

    /// Something was put into the slow lane: it is looked at in this turn.
    pub(super) fn wake_slow_lane(&mut self) {
        self.next_slow = Time::ZERO;
    }

    /// Whether something waits that no descriptor announces.
    fn retries(&self) -> bool {
        self.peers.has_backlog() || self.responses.are_fresh() || self.slots.has_idle()
    }
}

impl<F: Fabric> Poller for Shard<F> {
    fn poll(&mut self, now: Time) -> Busy {
        self.stage_clock.turn(now);
        let mut work = self.fabric.progress(now);
        work += self.take_messages(now);
        work += self.take_connection_events(now);
        // What happened to a queue pair comes before the flushes that follow from it.
        work += self.take_async_events(now);
        work += self.take_work_completions(now);
        work += self.take_block_completions(now);
        work += self.serve_memory(now);
        work += self.post_responses(now);
        if self.slots.has_idle()
            && let Err(error) = self.slots.post(&mut self.fabric)
        {
            tracing::error!(shard = self.index, %error, "receive slots cannot be posted");
        }
        work += self.peers.flush();
        if now >= self.draining.next() {
            work += self.step_drains(now);
        }
        if now >= self.next_slow {
            self.slow_lane(now);
        }
        Busy(work)
    }

    fn next_deadline(&self) -> Time {
        if self.retries() {
            return Time::ZERO;
        }
        // What is not polled, because nothing is in flight there, has no say.
        let polled = self.luns.busy().filter(|lun| lun.queue.in_flight() > 0);
        let block = polled.map(|lun| lun.queue.next_deadline()).min();
        let slow = self.next_slow.min(self.draining.next());
        slow.min(self.fabric.next_deadline()).min(block.unwrap_or(Time::NEVER))
    }

    fn wait_fds(&self, fds: &mut Vec<RawFd>) {
        fds.extend(self.fabric.wait_fds());
        fds.extend(self.luns.iter().filter_map(|(_, lun)| lun.queue.wait_fd()).map(|fd| fd.as_raw_fd()));
    }

    fn wait_fds_epoch(&self) -> u64 {
        self.fabric.wait_fds_epoch().wrapping_add(self.luns.epoch())
    }

    fn is_done(&self) -> bool {
        self.admin.is_stopped()
    }
}

/// What INQUIRY says of the target under this configuration.
pub(super) fn target_info(snapshot: &Snapshot) -> TargetInfo {
    // Four bytes are too few for a patch level too.
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    TargetInfo {
        vendor: ascii_field("SRPOLL"),
        revision: ascii_field(version),
        port_id: snapshot.identity.map(|identity| identity.port_id()).unwrap_or_default(),
        relative_port: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::limits::Limits;

    #[test]
    fn the_revision_is_major_and_minor() {
        let info = target_info(&Snapshot::empty(Limits::default()));
        let text = std::str::from_utf8(&info.revision).unwrap();
        let (major, minor) = text.trim_end().split_once('.').unwrap();
        assert!(major.parse::<u16>().is_ok() && minor.parse::<u16>().is_ok(), "{text:?}");
        assert!(env!("CARGO_PKG_VERSION").starts_with(&format!("{major}.{minor}.")), "{text:?}");
    }
}
