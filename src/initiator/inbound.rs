//! Reading what comes back: completions, responses, requests of the target.

use reactors::handle::Handle;
use reactors::slab::Key;
use reactors::time::Time;

use super::memory::{CONTROL_IUS, TMF_IU};
use super::session::{Session, SessionError, kind};
use super::slot::{Outcome, SlotEvent, SlotState, TMF_MARK, untag};
use crate::rdma::verbs::{Connections, Device, SendOp, SendWr, SgeList, VerbsError, Wc, WcStatus};
use crate::srp::initiator::FromTarget;
use crate::srp::residual::Residual;
use crate::srp::tmf::TmfStatus;
use crate::wire::scsi::sense::Sense;
use crate::wire::scsi::status::Status;
use crate::wire::srp::{IuError, Tag};

/// What a received IU comes down to, without its bytes.
enum Received {
    Response { tag: Tag, outcome: Outcome, tmf: Option<TmfStatus> },
    Answer([u8; 16]),
    Logout(u32),
}

impl<D: Device + Connections> Session<D> {
    pub(super) fn on_completion(&mut self, now: Time, wc: &Wc) {
        let handle = Handle::from_bits(wc.wr_id);
        let (slot, generation) = (handle.slot(), handle.generation());
        match handle.kind() {
            kind::COMMAND => {
                let Some(entry) = self.slots.get_mut(slot as usize) else { return };
                let channel = &mut self.channels[entry.channel as usize];
                if entry.generation != generation || channel.epoch != entry.epoch {
                    return;
                }
                if wc.status != WcStatus::Success {
                    return self.lose(now, SessionError::Completion(wc.status));
                }
                match entry.state {
                    SlotState::Posted | SlotState::Answered => entry.apply(SlotEvent::SendDone),
                    SlotState::Released => {
                        entry.apply(SlotEvent::SendDone);
                        channel.free.push(slot);
                    }
                    // Its answer has come before.
                    _ => {}
                }
            }
            kind::RECV => {
                let (index, buffer) = ((slot >> 16) as usize, slot & 0xffff);
                if self.is_current(index, generation) {
                    self.on_receive(now, index, buffer, wc);
                }
            }
            kind::CONTROL => {
                let (index, control) = ((slot / CONTROL_IUS) as usize, (slot % CONTROL_IUS) as usize);
                if self.is_current(index, generation) {
                    self.channels[index].control_busy[control] = false;
                    self.check(now, wc.status);
                }
            }
            kind::PROBE if self.is_current(slot as usize, generation) => {
                self.channels[slot as usize].probing = false;
                self.check(now, wc.status);
            }
            _ => {}
        }
    }

    /// Whether a completion belongs to the QP that the channel has now.
    fn is_current(&self, index: usize, epoch: u32) -> bool {
        self.channels.get(index).is_some_and(|channel| channel.epoch == epoch && channel.link.is_some())
    }

    fn check(&mut self, now: Time, status: WcStatus) {
        if status != WcStatus::Success {
            self.lose(now, SessionError::Completion(status));
        }
    }

    fn on_receive(&mut self, now: Time, index: usize, buffer: u32, wc: &Wc) {
        if wc.status != WcStatus::Success {
            return self.lose(now, SessionError::Completion(wc.status));
        }
        match self.read(index, buffer, wc.len_bytes as usize) {
            Ok(received) => {
                // The buffer first: what follows may end the channel.
                if let Err(why) = self.post_recv(index, buffer) {
                    return self.lose(now, SessionError::Verbs { what: "a receive", why });
                }
                self.on_received(now, index, &received);
            }
            Err(why) => self.lose(now, SessionError::Iu(why)),
        }
    }

    fn read(&mut self, index: usize, buffer: u32, len: usize) -> Result<Received, IuError> {
        let channel = &mut self.channels[index];
        let short = IuError::Short { needed: 1, got: 0 };
        let (Some(srp), Some(receives)) = (&mut channel.srp, &channel.receives) else { return Err(short) };
        let offset = buffer as usize * receives.stride;
        let read = receives.memory.region.with_bytes(offset, len.min(receives.stride), |iu| {
            Ok(match srp.on_iu(iu)? {
                FromTarget::Rsp(rsp) => Received::Response {
                    tag: rsp.header.tag,
                    outcome: Outcome::Status {
                        status: Status::from_code(rsp.header.status),
                        sense: Sense::parse(rsp.sense),
                        residual: Residual::of(&rsp.header),
                    },
                    tmf: TmfStatus::of(&rsp),
                },
                FromTarget::CredReq { answer } => Received::Answer(answer),
                FromTarget::AerReq { answer, lun, .. } => {
                    tracing::info!(?lun, "the target reports an asynchronous event");
                    Received::Answer(answer)
                }
                FromTarget::TargetLogout { reason } => Received::Logout(reason),
            })
        });
        read.unwrap_or(Err(short))
    }

    fn on_received(&mut self, now: Time, index: usize, received: &Received) {
        match *received {
            Received::Response { tag, outcome, tmf } => {
                let (slot, generation) = untag(tag);
                if slot & TMF_MARK != 0 {
                    self.on_tmf_answer(now, index, slot & !TMF_MARK, generation, tmf);
                    return;
                }
                let entry = self.slots.get_mut(slot as usize).filter(|entry| {
                    entry.generation == generation
                        && entry.state.is_waiting()
                        && entry.channel == index as u32
                });
                match entry {
                    Some(entry) => {
                        entry.apply(SlotEvent::Answer);
                        // Who answers has got it. The end of its SEND, if it is yet to come, has
                        // nothing new to say: sent again, it is a duplicate, into which nobody looks.
                        if entry.state == SlotState::Answered {
                            entry.apply(SlotEvent::SendDone);
                            if let Some(link) = &self.channels[index].link {
                                let wr_id = Key { slot, generation }.handle(kind::COMMAND).to_bits();
                                self.device.confirm_send(now, link.qp, wr_id);
                            }
                        }
                        self.complete(slot, outcome);
                    }
                    // Of a command that was aborted meanwhile; its credit has been taken.
                    None => self.counters.late_answers += 1,
                }
            }
            Received::Answer(iu) => {
                self.counters.target_requests += 1;
                let free = (TMF_IU + 1..CONTROL_IUS)
                    .find(|&control| !self.channels[index].control_busy[control as usize]);
                match free {
                    None => self.lose(now, SessionError::Flood),
                    Some(control) => {
                        if let Err(why) = self.send_control(now, index, control, &iu) {
                            self.lose(now, SessionError::Verbs { what: "an answer to the target", why });
                        }
                    }
                }
            }
            Received::Logout(reason) => self.lose(now, SessionError::TargetLogout(reason)),
        }
    }

    /// Sends a control IU of a channel.
    pub(super) fn send_control(
        &mut self,
        now: Time,
        index: usize,
        control: u32,
        iu: &[u8],
    ) -> Result<(), VerbsError> {
        let (at, room) = self.memory.control(index as u32, control);
        debug_assert!(iu.len() <= room);
        let written = self.memory.ius.region.write(at, iu);
        written.map_err(|_| VerbsError::Invalid("length of an information unit"))?;
        let channel = &mut self.channels[index];
        let Some(link) = &channel.link else { return Err(VerbsError::NotFound("queue pair")) };
        let place = Key { slot: index as u32 * CONTROL_IUS + control, generation: channel.epoch };
        let wr = SendWr {
            wr_id: place.handle(kind::CONTROL).to_bits(),
            op: SendOp::Send { solicited: false },
            sges: SgeList::one(self.memory.ius.sge(at, iu.len())),
            signaled: true,
        };
        self.device.post_send(now, link.qp, &wr)?;
        channel.control_busy[control as usize] = true;
        Ok(())
    }
}
