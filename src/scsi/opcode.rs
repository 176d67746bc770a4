//! The table of commands: operation code, service action, name, which CDB bits may be set, who
//! answers. A command is added here and nowhere else.

use super::device::{Call, Unit};
use super::plan::Plan;
use super::{inquiry, mode, report, rw, unmap};
use crate::wire::scsi::cdb::{Cdb, opcode as op, service_action};

/// What a command does about a pending unit attention condition (SAM-5, 5.14; SPC-4, 6.6, 6.33,
/// 6.39).
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum AttentionRule {
    /// It ends with CHECK CONDITION and the condition, which is thereby cleared.
    Report,
    /// It is carried out and the condition stays.
    Ignore,
    /// It is carried out and takes what it tells as data.
    Take,
}

/// Whom a command may address.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// Disks.
    Disk,
    /// Disks and the well known logical unit.
    Units,
    /// Any LUN, whether something is there or not.
    Everywhere,
}

/// Carries a command out; its CDB has passed the table's checks.
pub type Handler = fn(&mut Call<'_>, &Cdb) -> Plan;

/// One command.
#[derive(Debug)]
pub struct Command {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, of operation codes that have them.
    pub service_action: Option<u8>,
    /// Its name in the standard.
    pub name: &'static str,
    /// CDB usage data as REPORT SUPPORTED OPERATION CODES gives it (SPC-4, 6.35.3): the bits that
    /// are evaluated, behind the operation code; its length is the CDB's.
    pub usage: &'static [u8],
    /// Bits that may be set and mean nothing: (byte, mask). A set bit in neither is INVALID FIELD
    /// IN CDB.
    pub ignored: &'static [(u8, u8)],
    /// Bits of the first 16 bytes that may be set, those of padding too: so that one look tells a good CDB.
    allowed: u128,
    /// What it does about unit attentions.
    pub attention: AttentionRule,
    /// Whom it may address.
    pub reach: Reach,
    /// It changes the medium.
    pub writes: bool,
    /// Who carries it out.
    pub run: Handler,
}

impl Command {
    /// Whether the command may go to `unit`.
    pub fn reaches(&self, unit: Unit<'_>) -> bool {
        match unit {
            Unit::Disk(_) => true,
            Unit::ReportLuns => self.reach != Reach::Disk,
            Unit::Absent => self.reach == Reach::Everywhere,
        }
    }

    /// The first bit of `cdb` that may not be set: its byte, and the left-most such bit in it. Of
    /// a CDB that ends early: the first byte missing.
    #[inline]
    pub fn first_bad_bit(&self, cdb: &[u8]) -> Option<(u16, Option<u8>)> {
        match cdb.first_chunk() {
            Some(&first) if u128::from_le_bytes(first) & !self.allowed == 0 => None,
            _ => self.find_bad_bit(cdb),
        }
    }

    #[cold]
    fn find_bad_bit(&self, cdb: &[u8]) -> Option<(u16, Option<u8>)> {
        let last = self.usage.len() - 1;
        for (at, usage) in self.usage.iter().enumerate().skip(1) {
            let Some(byte) = cdb.get(at) else { return Some((at as u16, None)) };
            let mut bad = byte & !usage;
            if bad == 0 {
                continue;
            }
            // CONTROL: vendor specific bits mean nothing to us; NACA (ACA is not supported) and the
            // rest may not be set (SAM-5, 5.2).
            if at == last {
                bad &= !CONTROL_VENDOR;
            }
            for (place, mask) in self.ignored {
                if usize::from(*place) == at {
                    bad &= !mask;
                }
            }
            if bad != 0 {
                return Some((at as u16, Some(7 - bad.leading_zeros() as u8)));
            }
        }
        None
    }
}

const CONTROL_VENDOR: u8 = 0xc0;

/// GROUP NUMBER: grouping is not supported and the field means nothing (SBC-3, 4.20).
const GROUP_6: (u8, u8) = (6, 0x3f);
const GROUP_10: (u8, u8) = (10, 0x3f);
const GROUP_14: (u8, u8) = (14, 0x3f);
/// FUA_NV (obsolete) and RARC (rebuild assist is not supported: ignored) of READ.
const READ_FLAGS: (u8, u8) = (1, 0x06);
/// FUA_NV (obsolete) of WRITE.
const WRITE_FLAGS: (u8, u8) = (1, 0x02);
/// SYNC_NV (obsolete) of SYNCHRONIZE CACHE.
const SYNC_FLAGS: (u8, u8) = (1, 0x04);

/// READ, WRITE: protection, DPO, FUA.
const RW: u8 = 0xf8;

const fn disk(opcode: u8, name: &'static str, usage: &'static [u8], run: Handler) -> Command {
    Command {
        opcode,
        service_action: None,
        name,
        usage,
        ignored: &[],
        allowed: 0,
        attention: AttentionRule::Report,
        reach: Reach::Disk,
        writes: false,
        run,
    }
}

const fn read(opcode: u8, name: &'static str, usage: &'static [u8], ignored: &'static [(u8, u8)]) -> Command {
    Command { ignored, ..disk(opcode, name, usage, rw::read) }
}

const fn write(
    opcode: u8,
    name: &'static str,
    usage: &'static [u8],
    ignored: &'static [(u8, u8)],
) -> Command {
    Command { ignored, writes: true, ..disk(opcode, name, usage, rw::write) }
}

/// Every command, in the order of operation codes and service actions.
pub static COMMANDS: [Command; 20] = with_allowed([
    Command {
        reach: Reach::Units,
        ..disk(op::TEST_UNIT_READY, "TEST UNIT READY", &[0x00, 0, 0, 0, 0, 0], report::test_unit_ready)
    },
    Command {
        reach: Reach::Everywhere,
        attention: AttentionRule::Take,
        ..disk(op::REQUEST_SENSE, "REQUEST SENSE", &[0x03, 0x01, 0, 0, 0xff, 0], report::request_sense)
    },
    read(op::READ_6, "READ(6)", &[0x08, 0x1f, 0xff, 0xff, 0xff, 0], &[]),
    write(op::WRITE_6, "WRITE(6)", &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0], &[]),
    Command {
        reach: Reach::Everywhere,
        attention: AttentionRule::Ignore,
        ..disk(op::INQUIRY, "INQUIRY", &[0x12, 0x01, 0xff, 0xff, 0xff, 0], inquiry::inquiry)
    },
    disk(op::MODE_SENSE_6, "MODE SENSE(6)", &[0x1a, 0x08, 0xff, 0xff, 0xff, 0], mode::mode_sense),
    disk(op::START_STOP_UNIT, "START STOP UNIT", &[0x1b, 0x01, 0, 0x0f, 0xf7, 0], rw::start_stop_unit),
    disk(
        op::READ_CAPACITY_10,
        "READ CAPACITY(10)",
        &[0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0],
        report::read_capacity,
    ),
    read(
        op::READ_10,
        "READ(10)",
        &[0x28, RW, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0],
        &[READ_FLAGS, GROUP_6],
    ),
    write(
        op::WRITE_10,
        "WRITE(10)",
        &[0x2a, RW, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0],
        &[WRITE_FLAGS, GROUP_6],
    ),
    Command {
        ignored: &[SYNC_FLAGS, GROUP_6],
        ..disk(
            op::SYNCHRONIZE_CACHE_10,
            "SYNCHRONIZE CACHE(10)",
            &[0x35, 0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0],
            rw::synchronize_cache,
        )
    },
    Command {
        writes: true,
        ignored: &[GROUP_6],
        ..disk(op::UNMAP, "UNMAP", &[0x42, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0], unmap::unmap)
    },
    disk(
        op::MODE_SENSE_10,
        "MODE SENSE(10)",
        &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        mode::mode_sense,
    ),
    read(
        op::READ_16,
        "READ(16)",
        &[0x88, RW, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        &[READ_FLAGS, GROUP_14],
    ),
    write(
        op::WRITE_16,
        "WRITE(16)",
        &[0x8a, RW, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        &[WRITE_FLAGS, GROUP_14],
    ),
    Command {
        ignored: &[SYNC_FLAGS, GROUP_14],
        ..disk(
            op::SYNCHRONIZE_CACHE_16,
            "SYNCHRONIZE CACHE(16)",
            &[0x91, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
            rw::synchronize_cache,
        )
    },
    Command {
        service_action: Some(service_action::READ_CAPACITY_16),
        ..disk(
            op::SERVICE_ACTION_IN_16,
            "READ CAPACITY(16)",
            &[0x9e, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0],
            report::read_capacity,
        )
    },
    Command {
        reach: Reach::Everywhere,
        attention: AttentionRule::Ignore,
        ..disk(
            op::REPORT_LUNS,
            "REPORT LUNS",
            &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
            report::report_luns,
        )
    },
    read(
        op::READ_12,
        "READ(12)",
        &[0xa8, RW, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        &[READ_FLAGS, GROUP_10],
    ),
    write(
        op::WRITE_12,
        "WRITE(12)",
        &[0xaa, RW, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        &[WRITE_FLAGS, GROUP_10],
    ),
]);

/// Fills in [`Command::allowed`]: the bits that [`Command::find_bad_bit`] passes over.
const fn with_allowed<const N: usize>(mut commands: [Command; N]) -> [Command; N] {
    let mut command = 0;
    while command < N {
        let Command { usage, ignored, .. } = commands[command];
        // The operation code led here; what is behind the CDB is nobody's.
        let mut bytes = [0xff; 16];
        let mut at = 1;
        while at < usage.len() {
            bytes[at] = usage[at];
            at += 1;
        }
        bytes[usage.len() - 1] |= CONTROL_VENDOR;
        let mut at = 0;
        while at < ignored.len() {
            bytes[ignored[at].0 as usize] |= ignored[at].1;
            at += 1;
        }
        commands[command].allowed = u128::from_le_bytes(bytes);
        command += 1;
    }
    commands
}

/// For each operation code the place of its first command in the table, or none.
static INDEX: [u8; 256] = index();
const NO_COMMAND: u8 = u8::MAX;

const fn index() -> [u8; 256] {
    let mut index = [NO_COMMAND; 256];
    let mut at = COMMANDS.len();
    while at > 0 {
        at -= 1;
        index[COMMANDS[at].opcode as usize] = at as u8;
    }
    index
}

/// The command that `cdb` is, if it is in the table.
pub fn find(cdb: &[u8]) -> Option<&'static Command> {
    let opcode = *cdb.first()?;
    let first = COMMANDS.get(usize::from(INDEX[usize::from(opcode)]))?;
    if first.service_action.is_none() {
        return Some(first);
    }
    let action = cdb.get(1)? & 0x1f;
    of_opcode(opcode).find(|command| command.service_action == Some(action))
}

/// The commands of one operation code, in order.
pub fn of_opcode(opcode: u8) -> impl Iterator<Item = &'static Command> {
    let first = usize::from(INDEX[usize::from(opcode)]);
    COMMANDS.iter().skip(first).take_while(move |command| command.opcode == opcode)
}

/// Whether the table has service actions of this operation code.
pub fn has_service_actions(opcode: u8) -> bool {
    of_opcode(opcode).next().is_some_and(|command| command.service_action.is_some())
}
