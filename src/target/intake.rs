//! From a received information unit to a task: SRP says what is asked, SCSI says what to do.

use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::limits::CHUNK_BYTES;
use super::shard::Shard;
use super::slots::Slots;
use super::task::{Phase, Source, Task, TaskSeed};
use super::why::Why;
use crate::rdma::verbs::{Wc, WcStatus};
use crate::scsi::{self, BlockOp, Call, Condition, Demand, Outcome, Plan, Unit};
use crate::srp::channel::{Command, Inbound};
use crate::srp::descriptors::BufferRef;
use crate::srp::task::Owner;
use crate::srp::{Direction, SenseCode};
use crate::wire::scsi::lun::LunField;
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};

/// INVALID FIELD IN COMMAND INFORMATION UNIT: the data buffer does not fit the command.
const BAD_BUFFER: Sense = Sense::new(SenseKey::IllegalRequest, Asc(0x0e, 0x03));

impl<F: Fabric> Shard<F> {
    /// A receive slot came back: with an information unit, or flushed.
    pub(super) fn on_receive(&mut self, now: Time, slot: Key, wc: &Wc) {
        let Some(slot) = self.slots.take(slot) else {
            self.counts.stale_completions += 1;
            return;
        };
        let key = self.by_qpn.get(&wc.qpn).copied();
        // When the service ends nothing new begins, or a busy initiator would never let a channel be
        // idle; what is dropped here, it sends again over its next session.
        let taking = !self.admin.is_leaving();
        let live = key
            .filter(|&key| taking && self.channels.get(key).is_some_and(|channel| channel.life.takes_ius()));
        // A completion of a queue pair that is unknown or on its way out is nothing to wonder at:
        // its slot goes straight back.
        let (Some(key), WcStatus::Success) = (live, wc.status) else {
            self.counts.late_receives += 1;
            self.slots.put(slot);
            return;
        };
        self.on_data_first(key);
        self.on_information_unit(now, key, slot, wc.len_bytes);
    }

    fn on_information_unit(&mut self, now: Time, key: Key, slot: u32, iu_bytes: u32) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        let inbound = self
            .slots
            .region()
            .with_bytes(Slots::offset(slot), iu_bytes as usize, |iu| owned(channel.srp.on_iu(iu)))
            .expect("a receive completion lies in its slot");
        match inbound {
            Inbound::Command(command) => {
                self.counts.commands += 1;
                let seed =
                    TaskSeed { channel: key, tag: command.tag, sol_not: command.sol_not, slot, iu_bytes };
                if let Some(task) = self.new_task(now, seed, true) {
                    self.start_command(now, task, &command);
                }
            }
            other => self.on_other_unit(now, key, (slot, iu_bytes), other),
        }
    }

    /// Everything that is no command to be carried out. Apart from those, so that they stay in registers.
    #[cold]
    fn on_other_unit(
        &mut self,
        now: Time,
        key: Key,
        (slot, iu_bytes): (u32, u32),
        inbound: Inbound<'static>,
    ) {
        let seed = |tag, sol_not| TaskSeed { channel: key, tag, sol_not, slot, iu_bytes };
        match inbound {
            Inbound::Command(_) => debug_assert!(false, "commands do not come here"),
            Inbound::Malformed { tag, sol_not, why, sense } => {
                self.counts.malformed += 1;
                tracing::debug!(shard = self.index, %why, "a command is malformed");
                if let Some(task) = self.new_task(now, seed(tag, sol_not), true) {
                    self.refuse(task, sense);
                }
            }
            Inbound::Overlapped { tag, sol_not, task, sense } => {
                self.counts.malformed += 1;
                if let Some(other) = self.tasks.key_at(task) {
                    self.abort(now, other, super::task::Ending::Silent);
                    // The answer comes at once: what the older command may still write is fenced.
                    let in_block = |task: &Task| task.state.owner() == Owner::Block;
                    if self.tasks.get(other).is_some_and(in_block) {
                        self.orphan(other);
                    }
                }
                if let Some(task) = self.new_task(now, seed(tag, sol_not), false) {
                    self.refuse(task, sense);
                }
            }
            Inbound::TaskManagement { request, action } => {
                self.counts.task_management += 1;
                if let Some(task) = self.new_task(now, seed(request.tag, request.sol_not), false) {
                    self.start_management(now, task, &request, &action);
                }
            }
            Inbound::Logout { .. } => {
                self.slots.put(slot);
                self.end_channel(now, key, Why::LoggedOut);
            }
            Inbound::Expected => self.slots.put(slot),
            Inbound::Violation(violation) => {
                self.slots.put(slot);
                self.counts.violations += 1;
                self.end_channel(now, key, Why::Violation(violation.to_string()));
            }
        }
    }

    /// A task in a free place; its tag is registered if `tagged`.
    #[inline(always)]
    fn new_task(&mut self, now: Time, seed: TaskSeed, tagged: bool) -> Option<Key> {
        let (channel, slot, tag) = (seed.channel, seed.slot, seed.tag);
        let Some((key, task)) = self.tasks.insert_with(|| Task::new(seed, now)) else {
            // A task finds a place as long as its slot is promised to somebody: see `Limits::tasks`.
            debug_assert!(false, "no place for a task although its slot was free");
            self.slots.put(slot);
            return None;
        };
        let channel = self.channels.get_mut(channel)?;
        task.place = channel.roll.enter(key);
        if tagged {
            let registered = channel.srp.begin(tag, key.slot);
            debug_assert!(registered.is_ok(), "{registered:?}");
            task.tagged = registered.is_ok();
        }
        Some(key)
    }

    /// Answers with CHECK CONDITION before SCSI looks at the command.
    fn refuse(&mut self, key: Key, code: SenseCode) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let sense_key = SenseKey::from_low_bits(code.key);
        task.outcome = Outcome::check(Sense::new(sense_key, Asc(code.asc, code.ascq)));
        self.responses.push(key);
    }

    fn start_command(&mut self, now: Time, key: Key, command: &Command<'_>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(channel) = self.channels.get(task.channel) else { return };
        let field = LunField::parse(&command.lun.0);
        if let LunField::Unit(lun) = field {
            task.lun_number = Some(lun.get());
            task.lun = self.luns.find(lun.get());
        }
        task.direction = command.direction;
        task.buffer = command.buffer;
        let lun = task.lun.and_then(|lun| self.luns.get(lun));
        let unit = match (field, lun) {
            (LunField::ReportLuns, _) => Unit::ReportLuns,
            (_, Some(lun)) => Unit::Disk(&lun.info),
            (_, None) => Unit::Absent,
        };
        let plan = scsi::start(Call {
            unit,
            target: &self.target,
            luns: &mut self.luns.numbers(),
            attention: lun.map(|lun| channel.nexus.attention(lun.entry.lun)),
            cdb: &command.cdb,
            data: &mut self.scratch,
        });
        if let Some(lun) = task.lun.and_then(|lun| self.luns.get_mut(lun)) {
            lun.tasks += 1;
        } else {
            task.lun = None;
        }
        if let Plan::Done(Outcome { luns_reported: true, .. }) = plan {
            channel.nexus.clear_everywhere(Condition::LunsChanged);
        }
        match self.plan_transfer(key, &plan) {
            Ok(()) => self.run(now, key),
            Err(outcome) => self.fail(key, outcome),
        }
    }

    /// Decides which bytes move and through which memory.
    fn plan_transfer(&mut self, key: Key, plan: &Plan) -> Result<(), Outcome> {
        let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
        let buffer = u64::from(task.buffer.len_bytes());
        let (wanted, bytes) = match plan.demand() {
            Demand::Nothing => (Direction::None, 0),
            Demand::In(bytes) => (Direction::In, bytes),
            Demand::Out(bytes) => (Direction::Out, bytes),
        };
        let block_bytes = match plan {
            Plan::Done(outcome) => {
                task.outcome = *outcome;
                1
            }
            Plan::Block(op) => {
                task.op = Some(*op);
                op.extent().block_bytes as usize
            }
            Plan::List { .. } => {
                task.list_next = Some(0);
                1
            }
        };
        if wanted == Direction::None {
            task.phase = if task.op.is_some() { Phase::Block } else { Phase::Respond };
            return Ok(());
        }
        // Data without a buffer of that direction; a write of more than the buffer holds would
        // leave a part of the medium's blocks undefined.
        if wanted != task.direction || (wanted == Direction::Out && bytes > buffer) {
            return Err(Outcome::check(BAD_BUFFER));
        }
        task.command_bytes = bytes;
        let total = bytes.min(buffer) as u32;
        if total == 0 {
            task.phase = Phase::Respond;
            return Ok(());
        }
        if let Plan::Done(outcome) = plan {
            task.parameters = Some(self.scratch[..outcome.data_len].into());
        }
        let lun = task.lun.and_then(|lun| self.luns.get_mut(lun));
        let align = lun.as_ref().map_or(1, |lun| lun.buffer_align_bytes);
        // With few slots left, immediate data are copied so that their slot can be posted again: a
        // stalled device holds arena memory then, not what others receive into.
        let plenty = self.slots.counts().posted >= self.snapshot.limits.recv_low;
        // A buffer may end within a block; the device reads all of it.
        let whole = (total as usize).next_multiple_of(block_bytes);
        let need = need(whole, &task.buffer, |offset| {
            let at = task.slot.map_or(0, Slots::offset) + offset;
            plenty && at.is_multiple_of(align)
        });
        // Field by field: it is what it was when the task came but for these.
        task.transfer.total = total;
        task.transfer.chunk_room = need.chunk_room;
        task.transfer.chunk_at = need.table_bytes;
        if let Some(BlockOp::Read { extent, .. }) = task.op
            && need.is_one_chunk(whole)
            && let Some(lun) = lun
        {
            task.in_place = lun.read_in_place(extent.offset_bytes(), whole as u64);
        }
        if task.in_place.is_some() {
            self.counts.reads_in_place += 1;
        } else if need.in_slot {
            task.transfer.source = Source::Slot;
        } else {
            task.transfer.need = need.table_bytes + need.chunk_room as usize;
        }
        task.phase = Phase::Memory;
        Ok(())
    }
}

/// What a transfer needs.
struct Need {
    /// Most bytes of a chunk.
    chunk_room: u32,
    /// Bytes for an external table before the chunk.
    table_bytes: usize,
    /// The data stay in their receive slot.
    in_slot: bool,
}

impl Need {
    /// Whether one chunk is all of the `whole` bytes, and nothing else is needed.
    #[inline]
    fn is_one_chunk(&self, whole: usize) -> bool {
        self.chunk_room as usize == whole && self.table_bytes == 0
    }
}

/// How `whole` bytes move: in chunks of at most [`CHUNK_BYTES`], memory for an external table
/// included, so that a task takes all its memory at once. Aligned immediate data need none.
#[inline]
fn need(whole: usize, buffer: &BufferRef, aligned: impl Fn(usize) -> bool) -> Need {
    let table = match buffer {
        BufferRef::External { table, .. } => (table.len_bytes as usize).next_multiple_of(4096),
        _ => 0,
    };
    let chunk_room = whole.min(CHUNK_BYTES - table);
    let in_slot = matches!(buffer, BufferRef::Immediate { offset, .. } if aligned(usize::from(*offset)));
    Need { chunk_room: chunk_room as u32, table_bytes: table, in_slot }
}

/// The inbound value without a borrow of the slot: what a task keeps of its descriptors are plain
/// numbers already, and no command that we know has additional CDB bytes.
#[inline(always)]
fn owned(inbound: Inbound<'_>) -> Inbound<'static> {
    match inbound {
        Inbound::Command(command) => Inbound::Command(Command {
            tag: command.tag,
            sol_not: command.sol_not,
            lun: command.lun,
            attribute: command.attribute,
            cdb: command.cdb,
            additional_cdb: &[],
            direction: command.direction,
            buffer: command.buffer,
        }),
        Inbound::Malformed { tag, sol_not, why, sense } => Inbound::Malformed { tag, sol_not, why, sense },
        Inbound::Overlapped { tag, sol_not, task, sense } => {
            Inbound::Overlapped { tag, sol_not, task, sense }
        }
        Inbound::TaskManagement { request, action } => Inbound::TaskManagement { request, action },
        Inbound::Logout { tag } => Inbound::Logout { tag },
        Inbound::Expected => Inbound::Expected,
        Inbound::Violation(violation) => Inbound::Violation(violation),
    }
}
