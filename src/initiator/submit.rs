//! Sending commands: reserve a request, fill its buffer, post it, release it.

use reactors::memory::{OutOfBounds, Region};
use reactors::slab::Key;
use reactors::time::Time;

use super::channel::Phase;
use super::config::DescriptorForm;
use super::memory::Registered;
use super::session::{Session, SessionError, SessionState, kind};
use super::slot::{SlotEvent, SlotId, SlotState};
use crate::rdma::verbs::{Access, Connections, Device, SendOp, SendWr, SgeList, VerbsError};
use crate::wire::num::RKey;
use crate::wire::srp::{Cmd, DataBuffer, DescTable, Descriptor, RawLun, TaskAttribute};

/// Which way the data of a command go, and how many bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// From the target into the request's buffer.
    In(u32),
    /// From the request's buffer to the target.
    Out(u32),
}

impl Transfer {
    /// How many bytes.
    pub fn len_bytes(self) -> u32 {
        match self {
            Transfer::None => 0,
            Transfer::In(len) | Transfer::Out(len) => len,
        }
    }
}

/// A command to send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The logical unit.
    pub lun: RawLun,
    /// The CDB.
    pub cdb: [u8; 16],
    /// Its data.
    pub transfer: Transfer,
    /// How it is ordered among others.
    pub attribute: TaskAttribute,
    /// Comes back in the completion.
    pub user: u64,
}

/// Why a command was not posted. The request is still reserved.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The session was lost since the reservation.
    #[error("the session is gone")]
    Gone,
    /// The send queue is full; try again after a poll.
    #[error("the send queue is full")]
    Full,
    /// The data buffer is shorter than the transfer.
    #[error("a transfer longer than a buffer")]
    TooLong,
}

impl<D: Device + Connections> Session<D> {
    /// Reserves a request on the next channel that has one and a credit for it. `None`: try again
    /// after a completion.
    #[inline]
    pub fn reserve(&mut self) -> Option<SlotId> {
        if self.state() != SessionState::Live {
            return None;
        }
        for _ in 0..self.used {
            let index = self.turn as usize;
            self.turn = if self.turn + 1 < self.used { self.turn + 1 } else { 0 };
            if let Some(slot) = self.reserve_on(index) {
                return Some(slot);
            }
        }
        None
    }

    fn reserve_on(&mut self, index: usize) -> Option<SlotId> {
        let channel = &mut self.channels[index];
        let srp = channel.srp.as_mut()?;
        if channel.phase != Phase::Live || channel.free.is_empty() || !srp.credit().take_command() {
            return None;
        }
        let slot = channel.free.pop()?;
        let entry = &mut self.slots[slot as usize];
        entry.apply(SlotEvent::Reserve);
        entry.epoch = channel.epoch;
        Some(SlotId(slot))
    }

    /// Where the data buffer of a request is: region, offset and length in bytes.
    pub fn buffer(&self, slot: SlotId) -> (&Region, usize, usize) {
        (&self.memory.data.region, self.memory.data(slot.0), self.config.max_io_bytes as usize)
    }

    /// Lets `change` fill the first `len_bytes` of the data buffer of a reserved request.
    #[inline]
    pub fn fill<R>(
        &self,
        slot: SlotId,
        len_bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, OutOfBounds> {
        let (region, offset, room) = self.buffer(slot);
        if len_bytes > room {
            return Err(OutOfBounds { offset: 0, len_bytes, region_bytes: room });
        }
        region.with_bytes_mut(offset, len_bytes, change)
    }

    /// Shows the first `len_bytes` of the data buffer of a completed request to `look`.
    #[inline]
    pub fn look<R>(
        &self,
        slot: SlotId,
        len_bytes: usize,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, OutOfBounds> {
        let (region, offset, room) = self.buffer(slot);
        if len_bytes > room {
            return Err(OutOfBounds { offset: 0, len_bytes, region_bytes: room });
        }
        region.with_bytes(offset, len_bytes, look)
    }

    /// Registers memory of `len_bytes` for the caller's own data, in place of what was lent before: for
    /// commands that [`post_lent`](Self::post_lent) sends. No such command may be on its way.
    pub fn lend(&mut self, len_bytes: usize) -> Result<Region, SessionError> {
        let failed = |why| SessionError::Verbs { what: "memory of the caller", why };
        if let Some(before) = self.lent.take() {
            self.device.deregister(before.keys.lkey).map_err(failed)?;
        }
        let lent = Registered::new(&mut self.device, self.pd, len_bytes, Access::REMOTE).map_err(failed)?;
        Ok(self.lent.insert(lent).region.clone())
    }

    /// Posts a command in a reserved request; its data are in the request's own buffer.
    ///
    /// # Panics
    /// If the request is not reserved.
    pub fn post(&mut self, now: Time, slot: SlotId, command: &Command) -> Result<(), PostError> {
        if command.transfer.len_bytes() > self.config.max_io_bytes {
            return Err(PostError::TooLong);
        }
        self.post_from(now, slot, command, Data { lent: false, at: self.memory.data(slot.0) })
    }

    /// Posts a command in a reserved request; its data are in [lent](Self::lend) memory, from `at`
    /// on. They belong to the command until it has ended.
    ///
    /// # Panics
    /// If the request is not reserved.
    pub fn post_lent(
        &mut self,
        now: Time,
        slot: SlotId,
        command: &Command,
        at: usize,
    ) -> Result<(), PostError> {
        let room = self.lent.as_ref().map_or(0, |lent| lent.region.len_bytes());
        if at.checked_add(command.transfer.len_bytes() as usize).is_none_or(|end| end > room) {
            return Err(PostError::TooLong);
        }
        self.post_from(now, slot, command, Data { lent: true, at })
    }

    fn post_from(&mut self, now: Time, slot: SlotId, command: &Command, data: Data) -> Result<(), PostError> {
        let entry = &self.slots[slot.0 as usize];
        assert_eq!(entry.state, SlotState::Held, "a command is posted in a reserved request");
        let index = entry.channel as usize;
        let channel = &self.channels[index];
        let Some(link) = channel.link.as_ref().filter(|_| channel.is_live() && channel.epoch == entry.epoch)
        else {
            return Err(PostError::Gone);
        };
        let qp = link.qp;
        let generation = entry.generation.wrapping_add(1);
        self.slots[slot.0 as usize].generation = generation;
        let sges = self.build(slot.0, index, command, data);
        let wr = SendWr {
            wr_id: Key { slot: slot.0, generation }.handle(kind::COMMAND).to_bits(),
            op: SendOp::Send { solicited: false },
            sges,
            signaled: true,
        };
        match self.device.post_send(now, qp, &wr) {
            Ok(()) => {}
            Err(VerbsError::QueueFull) => return Err(PostError::Full),
            Err(why) => {
                self.lose(now, SessionError::Verbs { what: "a command", why });
                return Err(PostError::Gone);
            }
        }
        let deadline = now + self.config.command_timeout;
        let entry = &mut self.slots[slot.0 as usize];
        entry.apply(SlotEvent::Post);
        (entry.user, entry.lun, entry.posted, entry.deadline) = (command.user, command.lun, now, deadline);
        self.counters.commands += 1;
        Ok(())
    }

    /// Gives a request back: one that was reserved and not posted, or one that has ended.
    ///
    /// # Panics
    /// If an answer is still to come.
    #[inline]
    pub fn release(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.0 as usize];
        let unused = entry.state == SlotState::Held;
        entry.apply(SlotEvent::Release);
        let free = entry.state == SlotState::Free;
        let channel = &mut self.channels[entry.channel as usize];
        if free {
            channel.free.push(slot.0);
        }
        if let Some(srp) = channel.srp.as_mut().filter(|_| unused && channel.epoch == entry.epoch) {
            srp.credit().add(1);
        }
    }

    /// Writes the IU of a command; gives what is to be sent.
    fn build(&mut self, slot: u32, index: usize, command: &Command, data: Data) -> SgeList {
        let len = command.transfer.len_bytes();
        let srp = self.channels[index].srp.as_ref();
        let most = srp.map_or(0, |srp| srp.max_immediate_bytes()).min(self.config.max_immediate_bytes);
        let offset = srp.and_then(|srp| srp.immediate_offset);
        let cmd = Cmd {
            sol_not: 0,
            tag: self.slots[slot as usize].tag(slot),
            lun: command.lun,
            attribute: command.attribute,
            cdb: command.cdb,
            additional_cdb: &[],
            data_out: DataBuffer::None,
            data_in: DataBuffer::None,
        };
        match (command.transfer, offset) {
            (Transfer::Out(1..), Some(offset)) if len <= most && self.is_shallow(index) => {
                let memory = self.data_memory(data);
                let emitted = memory.region.with_bytes(data.at, len as usize, |data| {
                    let offset = usize::from(offset);
                    self.emit(slot, offset, &Cmd { data_out: DataBuffer::Immediate { data, offset }, ..cmd })
                });
                let header = emitted.expect("a data buffer lies in its region");
                let (at, _) = self.memory.iu(slot);
                let data = memory.sge(data.at, len as usize);
                SgeList::two(self.memory.ius.sge(at, header), data)
            }
            (transfer, _) => {
                let scratch = std::mem::take(&mut self.scratch);
                let (buffer, scratch) = self.describe(slot, len, data, scratch);
                let buffer = match buffer {
                    Described::Direct(descriptor) => DataBuffer::Direct(descriptor),
                    Described::Table { table, total_bytes, inline } => {
                        let inline = DescTable::new(&scratch[..inline]).expect("whole descriptors");
                        DataBuffer::Indirect { table, total_bytes, inline }
                    }
                };
                let cmd = match transfer {
                    Transfer::In(1..) => Cmd { data_in: buffer, ..cmd },
                    Transfer::Out(1..) => Cmd { data_out: buffer, ..cmd },
                    _ => cmd,
                };
                let header = self.emit(slot, 0, &cmd);
                self.scratch = scratch;
                let (at, _) = self.memory.iu(slot);
                SgeList::one(self.memory.ius.sge(at, header))
            }
        }
    }

    /// Whether few commands of a channel are on their way.
    #[inline]
    fn is_shallow(&self, index: usize) -> bool {
        let busy = self.config.depth - self.channels[index].free.len() as u32;
        busy <= self.config.max_immediate_depth
    }

    /// Writes the header of a command, zeroed up to `at_least` bytes; gives its length.
    fn emit(&self, slot: u32, at_least: usize, cmd: &Cmd<'_>) -> usize {
        let (at, room) = self.memory.iu(slot);
        let emitted = self.memory.ius.region.with_bytes_mut(at, room, |iu| {
            let len = cmd.emit_header(iu).expect("an IU buffer holds the longest header");
            let end = len.max(at_least);
            iu[len..end].fill(0);
            end
        });
        emitted.expect("an IU buffer lies in its region")
    }

    /// The memory that a command's data are in.
    fn data_memory(&self, data: Data) -> &Registered {
        self.lent.as_ref().filter(|_| data.lent).unwrap_or(&self.memory.data)
    }

    /// Describes `len` bytes of data in the configured form; the table, if there is one, comes into
    /// `scratch`, and into the request's own memory if it is external.
    fn describe(&self, slot: u32, len: u32, data: Data, mut scratch: Vec<u8>) -> (Described, Vec<u8>) {
        let memory = self.data_memory(data);
        let addr = memory.region.addr() + data.at as u64;
        let rkey = memory.keys.rkey;
        let form = self.config.descriptors;
        if form == DescriptorForm::Direct {
            return (Described::Direct(Descriptor { addr, rkey, len_bytes: len }), scratch);
        }
        scratch.clear();
        for piece in pieces(addr, rkey, len, form.pieces() as u32) {
            scratch.extend_from_slice(&piece.emit());
        }
        let own = &self.memory.data;
        if form.inline() < form.pieces() {
            own.region.write(self.memory.table(slot), &scratch).expect("a table lies in its region");
        }
        let table_addr = own.region.addr() + self.memory.table(slot) as u64;
        let table = Descriptor { addr: table_addr, rkey: own.keys.rkey, len_bytes: scratch.len() as u32 };
        let inline = form.inline() * Descriptor::BYTES;
        (Described::Table { table, total_bytes: len, inline }, scratch)
    }
}

/// Where the data of a command are.
#[derive(Copy, Clone, Debug)]
struct Data {
    /// In lent memory, else in the requests' buffers.
    lent: bool,
    /// Offset there, in bytes.
    at: usize,
}

/// A buffer's description.
enum Described {
    Direct(Descriptor),
    /// The table is in the scratch memory; its first `inline` bytes go into the IU.
    Table {
        table: Descriptor,
        total_bytes: u32,
        inline: usize,
    },
}

/// `len` bytes at `addr` in `count` pieces that differ by a byte at most; some may be empty.
fn pieces(addr: u64, rkey: RKey, len: u32, count: u32) -> impl Iterator<Item = Descriptor> {
    let (each, longer) = (len / count, len % count);
    let mut at = addr;
    (0..count).map(move |index| {
        let len_bytes = each + u32::from(index < longer);
        let piece = Descriptor { addr: at, rkey, len_bytes };
        at += u64::from(len_bytes);
        piece
    })
}
