//! Responses, a batch at a time: after a turn's WRITEs all its SRP_RSPs are posted together, so
//! that packets of one size follow each other and share segmented sends.

use reactors::memory::Region;
use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::limits::RSP_STRIDE_BYTES;
use super::shard::Shard;
use super::task::Phase;
use super::wr::Tag;
use crate::rdma::verbs::{SendOp, SendWr, Sge, SgeList, VerbsError};
use crate::srp::answer::{Built, CommandAnswer, TmfAnswer};
use crate::srp::residual::Residual;
use crate::srp::task::{TaskEvent, TaskState};
use crate::wire::num::LKey;

/// The response buffers, one a task, and the tasks whose response is due.
pub(super) struct Responses {
    region: Region,
    lkey: LKey,
    due: Vec<Key>,
    /// Some of them were not tried yet.
    fresh: bool,
}

impl Responses {
    /// Buffers for `tasks` tasks in `region`.
    pub(super) fn new(region: Region, lkey: LKey, tasks: usize) -> Self {
        assert!(tasks * RSP_STRIDE_BYTES <= region.len_bytes(), "a response buffer for each task");
        Responses { region, lkey, due: Vec::with_capacity(tasks), fresh: false }
    }

    /// Puts a task's response into the next batch.
    pub(super) fn push(&mut self, task: Key) {
        self.due.push(task);
        self.fresh = true;
    }

    /// Whether none is due.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Whether some are due that were not tried yet. Those that were wait for room in a send queue,
    /// and completions announce that.
    pub(super) fn are_fresh(&self) -> bool {
        self.fresh
    }

    fn build(&self, task: Key, emit: impl FnOnce(&mut [u8]) -> Built) -> (Sge, bool) {
        let offset = task.slot as usize * RSP_STRIDE_BYTES;
        let built = self
            .region
            .with_bytes_mut(offset, RSP_STRIDE_BYTES, emit)
            .expect("a task's response buffer lies in the region");
        let addr = self.region.addr() + offset as u64;
        (Sge { addr, len_bytes: built.len_bytes as u32, lkey: self.lkey }, built.solicited)
    }
}

impl<F: Fabric> Shard<F> {
    /// Posts the responses that are due; those that find no room stay for the next turn. Gives
    /// how many were posted.
    pub(super) fn post_responses(&mut self, now: Time) -> usize {
        if self.responses.is_empty() {
            return 0;
        }
        let mut due = std::mem::take(&mut self.responses.due);
        self.responses.fresh = false;
        self.stage_clock.batch();
        let before = due.len();
        due.retain(|&key| !self.post_response(now, key));
        let posted = before - due.len();
        // Ends of channels during the posts may have made more responses due.
        due.append(&mut self.responses.due);
        self.responses.due = due;
        posted
    }

    /// Posts one response. False if the send queue has no room.
    fn post_response(&mut self, now: Time, key: Key) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return true };
        // A task may have become due twice: by its result and by an abort right after it.
        if task.phase != Phase::Respond || task.state == TaskState::Responding {
            return true;
        }
        let Some(channel) = self.channels.get_mut(task.channel).filter(|channel| channel.life.takes_ius())
        else {
            return true;
        };
        let delta_ahead = channel.srp.credit().withheld() as i32 + 1;
        let max_ti = channel.srp.params().max_ti_iu_bytes;
        let (sge, solicited) = match task.management {
            Some(status) => {
                let answer = TmfAnswer { tag: task.tag, sol_not: task.sol_not, delta: delta_ahead, status };
                self.responses.build(key, |buf| answer.emit(buf).expect("a response buffer holds 40 bytes"))
            }
            None => {
                let emitted;
                let sense: &[u8] = match &task.outcome.sense {
                    None => &[],
                    Some(sense) => {
                        emitted = sense.emit_fixed();
                        emitted.as_slice()
                    }
                };
                let answer = CommandAnswer {
                    tag: task.tag,
                    sol_not: task.sol_not,
                    delta: delta_ahead,
                    status: task.outcome.status.code(),
                    residual: Residual::new(task.direction, task.buffer.len_bytes(), task.command_bytes),
                    sense,
                };
                self.responses.build(key, |buf| {
                    answer.emit(max_ti, buf).expect("a response buffer holds a response with sense")
                })
            }
        };
        let wr = SendWr {
            wr_id: Tag::Response.bits(key),
            op: SendOp::Send { solicited },
            sges: SgeList::one(sge),
            signaled: true,
        };
        match self.fabric.post_send(now, channel.qp, &wr) {
            Ok(()) => {}
            Err(VerbsError::QueueFull) => return false,
            Err(error) => {
                let channel = task.channel;
                self.on_refused_post(now, channel, &error);
                return true;
            }
        }
        let delta = channel.srp.answer_delta(false);
        debug_assert_eq!(delta, delta_ahead);
        channel.posted(true);
        if task.tagged {
            channel.srp.end(task.tag);
            task.tagged = false;
        }
        task.credited = false;
        task.advance(TaskEvent::PostResponse);
        if let Some(lun) = task.lun.and_then(|lun| self.luns.get_mut(lun)) {
            lun.stages.record(task.class(), &task.laps, &mut self.stage_clock);
        }
        self.leave_lun(key);
        true
    }
}
