//! The way of a command: who is addressed, what pends, is it known, are its bits allowed; then its
//! handler.

use super::attention::{Attention, Condition};
use super::info::{LunInfo, TargetInfo};
use super::opcode::{self, AttentionRule, Command, Reach};
use super::plan::{Outcome, Plan};
use crate::wire::scsi::cdb::Cdb;
use crate::wire::scsi::lun::Lun;
use crate::wire::scsi::luns;
use crate::wire::scsi::sense::{Asc, Sense, SenseKey};

/// The buffer for data-in that suffices for every command with up to 500 logical units.
pub const SCRATCH_BYTES: usize = 4096;

/// The buffer for data-in that a target of so many logical units needs; a shorter one cuts
/// REPORT LUNS.
pub const fn scratch_bytes(luns: usize) -> usize {
    let list = luns::HEADER_BYTES + (luns + 1) * luns::ENTRY_BYTES;
    if list > SCRATCH_BYTES { list } else { SCRATCH_BYTES }
}

/// Whom a command addresses.
#[derive(Copy, Clone, Debug)]
pub enum Unit<'a> {
    /// A disk that exists.
    Disk(&'a LunInfo),
    /// The REPORT LUNS well known logical unit.
    ReportLuns,
    /// A LUN where nothing is, or that addresses nothing here.
    Absent,
}

/// One command with all that its answer depends on.
pub struct Call<'a> {
    /// Whom it addresses.
    pub unit: Unit<'a>,
    /// The target.
    pub target: &'a TargetInfo,
    /// The logical units that the I_T nexus may see, ascending; only REPORT LUNS looks.
    pub luns: &'a mut dyn Iterator<Item = Lun>,
    /// What pends for the I_T nexus at a disk.
    pub attention: Option<&'a Attention>,
    /// The CDB, with or without padding.
    pub cdb: &'a [u8],
    /// Where data-in goes, [`scratch_bytes`] long.
    pub data: &'a mut [u8],
}

impl Call<'_> {
    /// GOOD with `available` bytes of parameter data, cut to the allocation length.
    pub(super) fn answer(&self, available: usize, allocation: usize) -> Plan {
        Plan::Done(Outcome::data(available.min(allocation).min(self.data.len())))
    }
}

/// INVALID FIELD IN CDB as a plan.
pub(super) const fn invalid_field(byte: u16, bit: Option<u8>) -> Plan {
    Plan::Done(Outcome::invalid_field(byte, bit))
}

const fn fail(key: SenseKey, asc: Asc) -> Plan {
    Plan::Done(Outcome::fail(key, asc))
}

/// Takes one command as far as it goes without the medium.
///
/// The order of checks is LIO's, which initiators know: logical unit, unit attention, operation
/// code, fields, write protection, then what the command itself checks.
pub fn start(mut call: Call<'_>) -> Plan {
    let found = opcode::find(call.cdb);
    let reach = found.map_or(Reach::Disk, |command| command.reach);
    if matches!(call.unit, Unit::Absent) && reach != Reach::Everywhere {
        return fail(SenseKey::IllegalRequest, Asc::LUN_NOT_SUPPORTED);
    }
    let rule = found.map_or(AttentionRule::Report, |command| command.attention);
    if rule == AttentionRule::Report
        && let Some(condition) = claim(call.attention)
    {
        return Plan::Done(Outcome::check(condition.sense()));
    }
    let Some(command) = found.filter(|command| command.reaches(call.unit)) else {
        return invalid_opcode(call.cdb);
    };
    if let Some((byte, bit)) = command.first_bad_bit(call.cdb) {
        return invalid_field(byte, bit);
    }
    if command.writes && matches!(call.unit, Unit::Disk(lun) if lun.read_only) {
        return fail(SenseKey::DataProtect, Asc::WRITE_PROTECTED);
    }
    run(command, &mut call)
}

fn run(command: &Command, call: &mut Call<'_>) -> Plan {
    // Looked at where it was made: it is not moved.
    match &Cdb::parse(call.cdb) {
        Some(cdb) => (command.run)(call, cdb),
        // The table checked the length; an entry without a parser would end here.
        None => invalid_opcode(call.cdb),
    }
}

/// The condition to report, if one pends; the check is cheap if none does.
pub(super) fn claim(attention: Option<&Attention>) -> Option<Condition> {
    attention.filter(|attention| attention.is_pending()).and_then(Attention::claim)
}

/// INVALID COMMAND OPERATION CODE; the pointer is at the service action where the operation code
/// itself is known.
pub(super) fn invalid_opcode(cdb: &[u8]) -> Plan {
    let known = cdb.first().is_some_and(|code| opcode::has_service_actions(*code));
    let (byte, bit) = if known { (1, Some(4)) } else { (0, None) };
    let sense = Sense::new(SenseKey::IllegalRequest, Asc::INVALID_OPCODE);
    Plan::Done(Outcome::check(sense.with_cdb_field(byte, bit)))
}
