//! Commands of raw initiators, sent and waited for.

use srpoll::srp::tmf::TmfFunction;
use srpoll::wire::scsi::lun::Lun;
use srpoll::wire::srp::{Cmd, DataBuffer, RawLun, Tag, TaskAttribute, TaskMgmt};

use super::Rig;
use super::answer::Answer;
use super::raw::{Link, Login, SEND_BYTES};

/// Bytes that follow from `seed`.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// The LUN field of a number.
pub fn raw_lun(number: u16) -> RawLun {
    RawLun(Lun::new(number).unwrap().emit())
}

/// A command without data.
pub fn cmd(tag: Tag, lun: u16, cdb: [u8; 16]) -> Cmd<'static> {
    Cmd {
        sol_not: 0,
        tag,
        lun: raw_lun(lun),
        attribute: TaskAttribute::Simple,
        cdb,
        additional_cdb: &[],
        data_out: DataBuffer::None,
        data_in: DataBuffer::None,
    }
}

impl Rig {
    /// Logs in and waits for the answer, whatever it is.
    pub fn try_login(&mut self, raw: usize, login: &Login) -> usize {
        let now = self.now;
        let channel = self.raws[raw].connect(now, login);
        self.until("an answer to a login", |rig| rig.raws[raw].channels[channel].link != Link::Connecting);
        channel
    }

    /// Logs in.
    pub fn login_with(&mut self, raw: usize, login: &Login) -> usize {
        let channel = self.try_login(raw, login);
        let link = &self.raws[raw].channels[channel].link;
        assert!(matches!(link, Link::Live(_)), "{link:?}");
        channel
    }

    /// Logs in with the usual login of the host.
    pub fn login(&mut self, raw: usize) -> usize {
        self.login_with(raw, &Login::new(self.raws[raw].number))
    }

    /// The same, beside the channels that there are.
    pub fn login_multi(&mut self, raw: usize) -> usize {
        self.login_with(raw, &Login::new(self.raws[raw].number).multi())
    }

    pub fn send(&mut self, raw: usize, channel: usize, iu: &[u8]) {
        let now = self.now;
        self.raws[raw].send(now, channel, iu);
    }

    /// Sends a command.
    pub fn post(&mut self, raw: usize, channel: usize, cmd: &Cmd<'_>) -> Tag {
        let mut iu = vec![0; SEND_BYTES];
        let len = cmd.emit(&mut iu).unwrap();
        self.send(raw, channel, &iu[..len]);
        cmd.tag
    }

    /// Whether a tag was answered.
    pub fn answered(&self, raw: usize, channel: usize, tag: Tag) -> Option<&Answer> {
        self.raws[raw].channels[channel].answers.get(&tag.0)
    }

    /// Waits for the answer to a tag.
    pub fn answer(&mut self, raw: usize, channel: usize, tag: Tag) -> Answer {
        self.until("an answer", |rig| rig.answered(raw, channel, tag).is_some());
        self.answered(raw, channel, tag).unwrap().clone()
    }

    /// Sends a command and waits for its answer.
    pub fn command(&mut self, raw: usize, channel: usize, cmd: &Cmd<'_>) -> Answer {
        let tag = self.post(raw, channel, cmd);
        self.answer(raw, channel, tag)
    }

    /// A command with data-IN to `offset` of our memory.
    pub fn read_in(
        &mut self,
        raw: usize,
        channel: usize,
        lun: u16,
        cdb: [u8; 16],
        at: usize,
        len: usize,
    ) -> Answer {
        let tag = self.raws[raw].tag();
        let data_in = DataBuffer::Direct(self.raws[raw].piece(at, len));
        self.command(raw, channel, &Cmd { data_in, ..cmd(tag, lun, cdb) })
    }

    /// A command with data-OUT from `offset` of our memory.
    pub fn write_out(
        &mut self,
        raw: usize,
        channel: usize,
        lun: u16,
        cdb: [u8; 16],
        at: usize,
        len: usize,
    ) -> Answer {
        let tag = self.raws[raw].tag();
        let data_out = DataBuffer::Direct(self.raws[raw].piece(at, len));
        self.command(raw, channel, &Cmd { data_out, ..cmd(tag, lun, cdb) })
    }

    /// A command without data.
    pub fn plain(&mut self, raw: usize, channel: usize, lun: u16, cdb: [u8; 16]) -> Answer {
        let tag = self.raws[raw].tag();
        self.command(raw, channel, &cmd(tag, lun, cdb))
    }

    /// Sends a task management function; gives its tag.
    pub fn manage(&mut self, raw: usize, channel: usize, function: TmfFunction, lun: u16, task: Tag) -> Tag {
        let tag = self.raws[raw].tag();
        let request =
            TaskMgmt { sol_not: 0, tag, lun: raw_lun(lun), function: function.code(), task_tag: task };
        self.send(raw, channel, &request.emit());
        tag
    }

    /// Takes the unit attention of a new nexus.
    pub fn ready(&mut self, raw: usize, channel: usize, lun: u16) {
        let answer = self.plain(raw, channel, lun, super::cdb::TEST_UNIT_READY);
        assert_eq!(answer.sense, Some((6, 0x29, 0)), "the first command of a nexus meets power on");
        let answer = self.plain(raw, channel, lun, super::cdb::TEST_UNIT_READY);
        assert!(answer.is_good(), "{answer:?}");
    }
}
