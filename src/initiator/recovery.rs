//! Time limits: a command that takes too long is aborted, then its logical unit is reset, then
//! the session is made anew (ib_srp's error handler: ABORT TASK, LUN RESET, reconnect). A peer
//! that is silent is probed, then given up.

use std::time::Duration;

use reactors::slab::Key;
use reactors::time::Time;

use super::channel::Tmf;
use super::memory::TMF_IU;
use super::session::{Session, SessionError, SessionState, kind};
use super::slot::{Outcome, SlotEvent, TMF_MARK, tag};
use crate::rdma::verbs::{Connections, Device, Remote, SendOp, SendWr, SgeList, VerbsError};
use crate::srp::tmf::{NO_TASK_TAG, TmfFunction, TmfStatus};
use crate::wire::srp::{RawLun, TaskMgmt};

/// How often time limits are looked at.
const TICK: Duration = Duration::from_millis(20);

impl<D: Device + Connections> Session<D> {
    pub(super) fn tick(&mut self, now: Time) {
        self.next_tick = now + TICK;
        if self.state() == SessionState::Waiting && now >= self.retry_at {
            self.start(now);
        }
        if self.state() == SessionState::Live {
            self.probe(now);
        }
        if self.state() == SessionState::Live {
            self.expire_task_management(now);
        }
        if self.state() == SessionState::Live {
            self.abort_what_is_late(now);
        }
    }

    /// Probes silent channels with a zero-length WRITE, which no target's consumer sees.
    fn probe(&mut self, now: Time) {
        for index in 0..self.used as usize {
            let channel = &mut self.channels[index];
            let Some(link) = &channel.link else { continue };
            let Ok(heard) = self.device.last_heard(link.qp) else { continue };
            let silent = now.since(heard);
            if silent >= self.config.dead_after {
                return self.lose(now, SessionError::Silent);
            }
            if silent < self.config.probe_after || channel.probing {
                continue;
            }
            let place = Key { slot: index as u32, generation: channel.epoch };
            let wr = SendWr {
                wr_id: place.handle(kind::PROBE).to_bits(),
                op: SendOp::Write(Remote::default()),
                sges: SgeList::EMPTY,
                signaled: true,
            };
            match self.device.post_send(now, link.qp, &wr) {
                Ok(()) => {
                    channel.probing = true;
                    self.counters.probes += 1;
                }
                // So much is on the way that its fate tells enough.
                Err(VerbsError::QueueFull) => {}
                Err(why) => return self.lose(now, SessionError::Verbs { what: "a probe", why }),
            }
        }
    }

    fn expire_task_management(&mut self, now: Time) {
        for index in 0..self.used as usize {
            let Some(late) = self.channels[index].tmf.filter(|tmf| now >= tmf.deadline) else { continue };
            self.channels[index].tmf = None;
            tracing::info!(function = ?late.function, "task management was not answered in time");
            match late.function {
                TmfFunction::LunReset => return self.lose(now, SessionError::Stuck),
                _ => self.reset(now, late.lun),
            }
        }
    }

    /// Asks for a LUN RESET, on channel 0 as ib_srp does. If one is on its way, that will do.
    fn reset(&mut self, now: Time, lun: RawLun) {
        let running = self.channels[0].tmf.map(|tmf| tmf.function);
        if running == Some(TmfFunction::LunReset) {
            return;
        }
        // An ABORT TASK of channel 0 that still waits is covered by the reset.
        self.channels[0].tmf = None;
        if self.send_tmf(now, 0, TmfFunction::LunReset, None, lun) {
            self.counters.resets += 1;
        } else {
            self.lose(now, SessionError::Stuck);
        }
    }

    fn abort_what_is_late(&mut self, now: Time) {
        for slot in 0..self.slots.len() as u32 {
            let entry = &self.slots[slot as usize];
            if now < entry.deadline || !entry.state.is_waiting() {
                continue;
            }
            let (index, lun) = (entry.channel as usize, entry.lun);
            // One at a time on each channel; the others wait for the next look.
            let busy =
                self.channels[index].tmf.is_some() || self.channels[index].control_busy[TMF_IU as usize];
            if !busy && self.send_tmf(now, index, TmfFunction::AbortTask, Some(slot), lun) {
                self.slots[slot as usize].deadline = Time::NEVER;
                self.counters.aborts += 1;
            }
        }
    }

    /// Sends a task management request if there is a credit for it.
    fn send_tmf(
        &mut self,
        now: Time,
        index: usize,
        function: TmfFunction,
        slot: Option<u32>,
        lun: RawLun,
    ) -> bool {
        let channel = &mut self.channels[index];
        if channel.control_busy[TMF_IU as usize] {
            return false;
        }
        if !channel.srp.as_mut().is_some_and(|srp| srp.credit().take_task_management()) {
            return false;
        }
        channel.tmf_generation = channel.tmf_generation.wrapping_add(1);
        let entry = slot.map(|slot| &self.slots[slot as usize]);
        let request = TaskMgmt {
            sol_not: 0,
            tag: tag(TMF_MARK | index as u32, channel.tmf_generation),
            lun,
            function: function.code(),
            task_tag: slot.zip(entry).map_or(NO_TASK_TAG, |(slot, entry)| entry.tag(slot)),
        };
        channel.tmf = Some(Tmf {
            function,
            slot: slot.unwrap_or(0),
            slot_generation: entry.map_or(0, |entry| entry.generation),
            lun,
            sent: now,
            deadline: now + self.config.abort_timeout,
        });
        match self.send_control(now, index, TMF_IU, &request.emit()) {
            Ok(()) => true,
            Err(why) => {
                self.lose(now, SessionError::Verbs { what: "task management", why });
                false
            }
        }
    }

    pub(super) fn on_tmf_answer(
        &mut self,
        now: Time,
        index: usize,
        channel: u32,
        generation: u32,
        status: Option<TmfStatus>,
    ) {
        let current = channel == index as u32 && generation == self.channels[index].tmf_generation;
        let Some(tmf) = self.channels[index].tmf.take_if(|_| current) else {
            self.counters.late_answers += 1;
            return;
        };
        match (tmf.function, status) {
            (TmfFunction::LunReset, Some(TmfStatus::Complete)) => {
                for slot in 0..self.slots.len() as u32 {
                    let entry = &self.slots[slot as usize];
                    if entry.state.is_waiting() && entry.lun == tmf.lun && entry.posted <= tmf.sent {
                        self.end_aborted(slot);
                    }
                }
            }
            (TmfFunction::LunReset, _) => self.lose(now, SessionError::Stuck),
            (_, Some(TmfStatus::Complete)) => {
                let entry = &self.slots[tmf.slot as usize];
                if entry.state.is_waiting() && entry.generation == tmf.slot_generation {
                    self.end_aborted(tmf.slot);
                }
            }
            // ib_srp takes any answer for success; one that failed promises nothing.
            _ => self.reset(now, tmf.lun),
        }
    }

    fn end_aborted(&mut self, slot: u32) {
        self.slots[slot as usize].apply(SlotEvent::Answer);
        self.complete(slot, Outcome::Aborted);
    }
}
