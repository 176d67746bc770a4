//! Queue pairs after their channel: to the spares, or to nothing.
//!
//! The device is asked to recycle or to destroy one, which may take it a while, and answers by an
//! event. Tasks whose memory the queue pair may still touch (its drain was overdue) are held until
//! then. A device that fails is asked again, ever more patiently; one that does not answer is waited
//! for: its memory is not safe before. No session and no exit waits with it.

use std::time::Duration;

use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::life::{Life, LifeEvent};
use super::limits::{RETIRE_AGAIN_AFTER, RETIRE_WITHIN};
use super::shard::Shard;
use super::spares::Spare;
use super::why::Why;
use crate::rdma::verbs::{Path, QpId, Retire, Retired, VerbsError};
use crate::srp::task::{Owner, TaskEvent};
use crate::wire::num::Qpn;

/// A queue pair on its way from a channel to the spares or to its end.
pub(super) struct Retiring {
    pub(super) qp: QpId,
    pub(super) qpn: Qpn,
    pub(super) max_send_wr: u32,
    /// The path of its channel, if it had one.
    pub(super) path: Path,
    /// Flushed or condemned.
    pub(super) life: Life,
    /// Why its channel ended, if it had one.
    pub(super) why: Option<Why>,
    /// Tasks whose memory it may touch.
    pub(super) held: Vec<Key>,
    /// When its channel was over.
    pub(super) since: Time,
    /// What the device was asked and when; `None` while it is to be asked again.
    asked: Option<(Retire, Time)>,
    /// When it is asked again.
    again: Time,
    failures: u32,
    told_late: bool,
}

impl Retiring {
    pub(super) fn new(now: Time, qp: QpId, qpn: Qpn, max_send_wr: u32) -> Retiring {
        Retiring {
            qp,
            qpn,
            max_send_wr,
            path: Path::NONE,
            life: Life::Condemned,
            why: None,
            held: Vec::new(),
            since: now,
            asked: None,
            again: now,
            failures: 0,
            told_late: false,
        }
    }

    /// What it waits for, in words.
    pub(super) fn waits_for(&self) -> &'static str {
        match self.asked {
            Some((Retire::Recycle, _)) => "the device to reset it",
            Some((Retire::Destroy, _)) => "the device to destroy it",
            None => "another try, after the device did not destroy it",
        }
    }
}

/// The queue pairs of a shard that the device has been asked to recycle or to destroy.
#[derive(Default)]
pub(super) struct Retirements {
    list: Vec<Retiring>,
}

impl Retirements {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Retiring> {
        self.list.iter()
    }

    /// How many of them are to become spares.
    fn coming(&self) -> usize {
        self.list.iter().filter(|one| one.life == Life::Flushed).count()
    }
}

impl<F: Fabric> Shard<F> {
    /// Takes over a queue pair whose channel is over.
    pub(super) fn retire(&mut self, now: Time, mut retiring: Retiring) {
        let wanted = self.queues.unfit().is_none() && !self.admin.is_leaving();
        let recycle = retiring.life == Life::Flushed && wanted && self.has_room_for_a_spare(now);
        self.ask(now, &mut retiring, if recycle { Retire::Recycle } else { Retire::Destroy });
        self.retirements.list.push(retiring);
    }

    /// Whether there is room for one more spare. One that only its old peer can use makes room for it, the
    /// oldest, since that peer may never be back.
    fn has_room_for_a_spare(&mut self, now: Time) -> bool {
        let coming = self.retirements.coming();
        if !self.spares.has_room(coming)
            && self.spares.are_bound()
            && let Some(oldest) = self.spares.give_up_one()
        {
            self.retire_spare(now, oldest);
        }
        self.spares.has_room(coming)
    }

    /// A queue pair that never served a channel goes at once.
    pub(super) fn retire_unused(&mut self, now: Time, qp: QpId, max_send_wr: u32) {
        let qpn = self.fabric.qpn(qp).unwrap_or_default();
        self.retire(now, Retiring::new(now, qp, qpn, max_send_wr));
    }

    /// A spare that nobody will want.
    pub(super) fn retire_spare(&mut self, now: Time, spare: Spare) {
        let qpn = self.fabric.qpn(spare.qp).unwrap_or_default();
        let retiring = Retiring::new(now, spare.qp, qpn, spare.max_send_wr);
        self.retire(now, Retiring { life: spare.life, ..retiring });
    }

    fn ask(&mut self, now: Time, retiring: &mut Retiring, how: Retire) {
        match self.fabric.retire_qp(now, retiring.qp, how) {
            // An earlier request is under way, and its answer will come.
            Ok(()) | Err(VerbsError::Busy(_)) => retiring.asked = Some((how, now)),
            Err(error) => {
                tracing::debug!(shard = self.index, qpn = %retiring.qpn, %error, "a queue pair cannot retire");
                self.refused(now, retiring);
            }
        }
    }

    /// The device did not do what it was asked: it is asked to destroy, a while later.
    fn refused(&mut self, now: Time, retiring: &mut Retiring) {
        retiring.life.advance(LifeEvent::Refused);
        self.counts.retires_failed += 1;
        retiring.asked = None;
        retiring.again = now + RETIRE_AGAIN_AFTER.saturating_mul(1 << retiring.failures.min(6));
        if retiring.failures == 0 {
            tracing::warn!(shard = self.index, qpn = %retiring.qpn, held = retiring.held.len(),
                "the device does not let go of a queue pair, it is asked again");
        }
        retiring.failures += 1;
    }

    /// The device has answered.
    pub(super) fn on_qp_retired(&mut self, now: Time, qp: QpId, outcome: Retired) {
        let Some(at) = self.retirements.list.iter().position(|one| one.qp == qp) else {
            tracing::debug!(shard = self.index, ?qp, ?outcome, "an answer about a queue pair that is gone");
            return;
        };
        let mut retiring = self.retirements.list.swap_remove(at);
        let asked_to_recycle = matches!(retiring.asked, Some((Retire::Recycle, _)));
        match outcome {
            Retired::Recycled if asked_to_recycle && self.queues.unfit().is_none() => {
                self.release_held(&mut retiring);
                self.counts.qps_recycled += 1;
                self.spares.put(now, qp, retiring.max_send_wr, retiring.path, retiring.life);
            }
            // It was recycled, but nobody will want it.
            Retired::Recycled => {
                self.release_held(&mut retiring);
                self.ask(now, &mut retiring, Retire::Destroy);
                self.retirements.list.push(retiring);
            }
            Retired::Destroyed => self.is_gone(retiring),
            Retired::Failed => {
                self.refused(now, &mut retiring);
                self.retirements.list.push(retiring);
            }
        }
    }

    fn is_gone(&mut self, mut retiring: Retiring) {
        retiring.life.advance(LifeEvent::Destroyed);
        debug_assert_eq!(retiring.life, Life::Destroyed);
        self.counts.qps_destroyed += 1;
        self.release_held(&mut retiring);
    }

    /// The queue pair touches nothing any more: tasks that waited for that end.
    fn release_held(&mut self, retiring: &mut Retiring) {
        for key in retiring.held.drain(..) {
            let Some(task) = self.tasks.get_mut(key) else { continue };
            // Completions that came late have ended some of them already.
            if task.state.owner() != Owner::Device {
                continue;
            }
            if task.state.is_aborted() {
                task.advance(TaskEvent::DeviceReleased);
                task.advance(TaskEvent::EndSilently);
            } else {
                task.advance(TaskEvent::ResponseSent);
            }
            self.free(key);
        }
    }

    /// Asks again where the device failed, and says so where it does not answer.
    pub(super) fn step_retirements(&mut self, now: Time) {
        self.spares.rest(now);
        for at in 0..self.retirements.list.len() {
            match self.retirements.list[at].asked {
                Some((_, since)) => self.look_whether_late(now, at, now.since(since)),
                None if now >= self.retirements.list[at].again => {
                    let mut retiring = self.retirements.list.swap_remove(at);
                    self.ask(now, &mut retiring, Retire::Destroy);
                    // In its old place, so that nobody is skipped.
                    self.retirements.list.push(retiring);
                    let last = self.retirements.list.len() - 1;
                    self.retirements.list.swap(at, last);
                }
                None => {}
            }
        }
    }

    fn look_whether_late(&mut self, now: Time, at: usize, waited: Duration) {
        let retiring = &mut self.retirements.list[at];
        if waited < RETIRE_WITHIN || std::mem::replace(&mut retiring.told_late, true) {
            return;
        }
        self.counts.retires_overdue += 1;
        tracing::warn!(
            shard = self.index,
            qpn = %retiring.qpn,
            held = retiring.held.len(),
            gone_for = ?now.since(retiring.since),
            "a queue pair still waits for {}",
            retiring.waits_for()
        );
    }

    /// The device is gone: spares are of no use any more.
    pub(super) fn give_up_spares(&mut self, now: Time) {
        while let Some(spare) = self.spares.give_up_one() {
            self.retire_spare(now, spare);
        }
    }
}
