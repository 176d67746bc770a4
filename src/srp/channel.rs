//! A channel on the target's side: what each IU of the peer asks for.

use super::credit::TargetCredit;
use super::descriptors::{BufferError, BufferRef, data_of};
use super::login::ChannelParams;
use super::tags::{TagError, TagTable};
use super::tmf::{self, TmfAction};
use super::{Direction, SenseCode};
use crate::wire::srp::{
    Cmd, CmdError, InitiatorLogout, Opcode, RawLun, Tag, TargetLogout, TaskAttribute, TaskMgmt,
};

/// A command to execute.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// Echoed in the answer; not in use by another task of this channel.
    pub tag: Tag,
    /// For the answer.
    pub sol_not: u8,
    /// The logical unit.
    pub lun: RawLun,
    /// How it is ordered among others.
    pub attribute: TaskAttribute,
    /// The first 16 bytes of the CDB.
    pub cdb: [u8; 16],
    /// What the CDB has beyond 16 bytes.
    pub additional_cdb: &'a [u8],
    /// Which way its data go.
    pub direction: Direction,
    /// Where its data are.
    pub buffer: BufferRef,
}

/// Why a command is answered with CHECK CONDITION before anybody looks at its CDB.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformation {
    /// One of its descriptors lies.
    #[error(transparent)]
    Cmd(#[from] CmdError),
    /// Its descriptors together make no sense.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// What is wrong with a peer that sends such an IU. The channel ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An IU without a byte, or shorter than its opcode says.
    #[error("an information unit of {0} bytes")]
    Short(usize),
    /// Longer than was negotiated.
    #[error("an information unit of {0} bytes, longer than negotiated")]
    Long(usize),
    /// An opcode that does not exist or that only a target sends.
    #[error("opcode {0:#04x} from an initiator")]
    Opcode(u8),
    /// More requests than credits.
    #[error("a request without a credit")]
    CreditOverrun,
    /// A CRED_RSP or AER_RSP that nobody asked for.
    #[error("a response without a request")]
    ResponseWithoutRequest,
}

impl Violation {
    /// The reason for a T_LOGOUT.
    pub const fn logout_reason(&self) -> u32 {
        match self {
            Violation::Opcode(_) | Violation::Short(_) | Violation::Long(_) => TargetLogout::INVALID_IU_TYPE,
            Violation::ResponseWithoutRequest => TargetLogout::RESPONSE_WITHOUT_REQUEST,
            Violation::CreditOverrun => TargetLogout::NO_REASON,
        }
    }
}

/// What an IU asks for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Inbound<'a> {
    /// Execute this, after [`Channel::begin`].
    Command(Command<'a>),
    /// Answer with CHECK CONDITION and this sense; nothing is to be executed.
    Malformed {
        /// The tag for the answer.
        tag: Tag,
        /// For the answer.
        sol_not: u8,
        /// Why, for the log.
        why: Malformation,
        /// What to say.
        sense: SenseCode,
    },
    /// The tag is in use: end that task without a response, then answer the tag once, with
    /// CHECK CONDITION and this sense (SAM-5 5.11).
    Overlapped {
        /// The tag for the answer.
        tag: Tag,
        /// For the answer.
        sol_not: u8,
        /// The task that has the tag.
        task: u32,
        /// What to say.
        sense: SenseCode,
    },
    /// Manage tasks; the request's tag is to be registered, too, if the answer takes time.
    TaskManagement {
        /// The request.
        request: TaskMgmt,
        /// What it asks for.
        action: TmfAction,
    },
    /// The peer wants to end the channel.
    Logout {
        /// The tag of its I_LOGOUT.
        tag: Tag,
    },
    /// An answer that we asked for; nothing to do.
    Expected,
    /// Count, log, disconnect.
    Violation(Violation),
}

/// How many IUs of each kind came.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct ChannelCounts {
    /// Commands to execute.
    pub commands: u64,
    /// Task management requests.
    pub task_management: u64,
    /// Commands that were answered with CHECK CONDITION at once.
    pub malformed: u64,
    /// Commands with a tag in use.
    pub overlapped: u64,
    /// IUs that end the channel.
    pub violations: u64,
}

/// A channel on the target's side, from its login to its end. Whether it is still in use is known to
/// whoever has its queue pair; the IUs of one that is not are not for it.
#[derive(Debug)]
pub struct Channel {
    params: ChannelParams,
    credit: TargetCredit,
    tags: TagTable,
    /// CRED_REQs and AER_REQs that were sent and not answered.
    unanswered: u32,
    counts: ChannelCounts,
}

impl Channel {
    /// A channel with what its login agreed on.
    pub fn new(params: ChannelParams) -> Self {
        Channel {
            params,
            credit: TargetCredit::new(params.credits),
            // A tag in use holds a credit, so there are never more.
            tags: TagTable::new(params.credits as usize),
            unanswered: 0,
            counts: ChannelCounts::default(),
        }
    }

    /// What its login agreed on.
    pub fn params(&self) -> &ChannelParams {
        &self.params
    }

    /// Its credits.
    pub fn credit(&self) -> &TargetCredit {
        &self.credit
    }

    /// What came so far.
    pub fn counts(&self) -> &ChannelCounts {
        &self.counts
    }

    /// Tags in use and their tasks.
    pub fn tags(&self) -> &TagTable {
        &self.tags
    }

    /// What the IU in `bytes` asks for.
    #[inline(always)]
    pub fn on_iu<'a>(&mut self, bytes: &'a [u8]) -> Inbound<'a> {
        let inbound = self.read(bytes).unwrap_or_else(Inbound::Violation);
        match inbound {
            Inbound::Command(_) => self.counts.commands += 1,
            Inbound::TaskManagement { .. } => self.counts.task_management += 1,
            Inbound::Malformed { .. } => self.counts.malformed += 1,
            Inbound::Overlapped { .. } => self.counts.overlapped += 1,
            Inbound::Violation(_) => self.counts.violations += 1,
            Inbound::Logout { .. } | Inbound::Expected => {}
        }
        inbound
    }

    #[inline(always)]
    fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<Inbound<'a>, Violation> {
        let short = Violation::Short(bytes.len());
        if bytes.len() > self.params.max_it_iu_bytes as usize {
            return Err(Violation::Long(bytes.len()));
        }
        let &byte = bytes.first().ok_or(short)?;
        match Opcode::from_byte(byte) {
            Some(Opcode::Cmd) => self.command(bytes),
            Some(Opcode::TaskMgmt) => {
                let request = TaskMgmt::parse(bytes).map_err(|_| short)?;
                self.credit.take().map_err(|_| Violation::CreditOverrun)?;
                let action = tmf::decide(&request, &self.tags);
                Ok(Inbound::TaskManagement { request, action })
            }
            Some(Opcode::InitiatorLogout) => {
                let logout = InitiatorLogout::parse(bytes).map_err(|_| short)?;
                Ok(Inbound::Logout { tag: logout.tag })
            }
            Some(Opcode::CredRsp | Opcode::AerRsp) => {
                if bytes.len() < InitiatorLogout::BYTES {
                    return Err(short);
                }
                self.unanswered = self.unanswered.checked_sub(1).ok_or(Violation::ResponseWithoutRequest)?;
                Ok(Inbound::Expected)
            }
            _ => Err(Violation::Opcode(byte)),
        }
    }

    #[inline(always)]
    fn command<'a>(&mut self, bytes: &'a [u8]) -> Result<Inbound<'a>, Violation> {
        let (tag, _) = Cmd::tag_and_lun(bytes).ok_or(Violation::Short(bytes.len()))?;
        let sol_not = bytes[1];
        self.credit.take().map_err(|_| Violation::CreditOverrun)?;
        if let Some(task) = self.tags.get(tag) {
            return Ok(Inbound::Overlapped { tag, sol_not, task, sense: SenseCode::OVERLAPPED });
        }
        let parsed = Cmd::parse(bytes, self.params.immediate_offset)
            .map_err(|_| Violation::Short(bytes.len()))?
            .map_err(Malformation::from)
            .and_then(|cmd| Ok((cmd, data_of(&cmd)?)));
        Ok(match parsed {
            Ok((cmd, (direction, buffer))) => Inbound::Command(Command {
                tag,
                sol_not,
                lun: cmd.lun,
                attribute: cmd.attribute,
                cdb: cmd.cdb,
                additional_cdb: cmd.additional_cdb,
                direction,
                buffer,
            }),
            Err(why) => Inbound::Malformed { tag, sol_not, why, sense: SenseCode::INVALID_FIELD },
        })
    }

    /// The command (or task management request) with this tag is now the caller's `task`.
    pub fn begin(&mut self, tag: Tag, task: u32) -> Result<(), TagError> {
        self.tags.insert(tag, task)
    }

    /// The tag is free again, because its answer is about to be posted or because it ends
    /// without one. Gives the task that it stood for.
    pub fn end(&mut self, tag: Tag) -> Option<u32> {
        self.tags.remove(tag)
    }

    /// The delta for the answer to one request that is about to be posted; see
    /// [`TargetCredit::answer`].
    pub fn answer_delta(&mut self, withhold: bool) -> i32 {
        self.credit.answer(withhold)
    }

    /// One request ended without an answer.
    pub fn end_silently(&mut self) {
        self.credit.end_silently();
    }

    /// A CRED_REQ or AER_REQ goes out: one answer to it may come.
    pub fn expect_response(&mut self) {
        self.unanswered += 1;
    }

    /// A CRED_REQ with all withheld credits goes out. Gives its delta.
    pub fn give_withheld(&mut self) -> i32 {
        self.expect_response();
        self.credit.give()
    }

    /// CRED_REQs and AER_REQs that were not answered.
    pub fn unanswered(&self) -> u32 {
        self.unanswered
    }
}
