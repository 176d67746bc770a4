//! Connecting the channels of a session: REQ with the login, REP, queue pair to RTS, RTU.

use reactors::slab::Key;
use reactors::time::Time;

use super::channel::{Channel, Link, Phase, PhaseEvent, Receives};
use super::memory::{CONTROL_IUS, Registered};
use super::session::{Session, SessionError, SessionState, kind};
use crate::rdma::verbs::{
    Access, ConnEnd, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, Device, PrivateData, QpInit,
    QpModify, RecvWr, RtrAttr, RtsAttr, Service, VerbsError,
};
use crate::srp::initiator::{IMMEDIATE_OFFSET, InitiatorChannel, login_request};
use crate::wire::num::Psn;
use crate::wire::srp::{LoginRej, Tag};

/// RNR NAK timer that we name: 0.64 ms (IBTA table 45); we never run out of receives.
const RNR_TIMER: u8 = 12;
/// RDMA READs that we answer at a time.
const RESPONDER_RESOURCES: u8 = 128;
/// IBTA reason code: invalid service id.
const NO_SUCH_SERVICE: u16 = 8;

impl<D: Device + Connections> Session<D> {
    pub(super) fn connect(&mut self, now: Time, index: usize) {
        if let Err(why) = self.try_connect(now, index) {
            self.lose(now, why);
        }
    }

    fn try_connect(&mut self, now: Time, index: usize) -> Result<(), SessionError> {
        let config = &self.config;
        let failed = |what| move |why| SessionError::Verbs { what, why };
        let wrs = config.depth + CONTROL_IUS + 1;
        let init = QpInit {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            // A command's SEND may wait for its ACK while its request has been answered and is used again.
            max_send_wr: (2 * wrs).min(self.device.caps().max_send_wr),
            max_recv_wr: wrs,
            remote_access: true,
        };
        let qp = self.device.create_qp(&init).map_err(failed("a queue pair"))?;
        let tag = Tag((index as u64).to_le_bytes());
        let max_it_iu = self.max_it_iu_bytes();
        let immediate = config.max_immediate_bytes > 0;
        let request = login_request(config.initiator, config.target, tag, max_it_iu, index > 0, immediate);
        let starting_psn = Psn::new(self.rng.u32(..));
        let channel = &mut self.channels[index];
        channel.apply(PhaseEvent::Connect);
        channel.link = Some(Link { qp, conn: None, starting_psn, request });

        self.device.modify_qp(now, qp, &QpModify::Init).map_err(failed("a queue pair to INIT"))?;
        let private = match config.service {
            Service::RdmaCm { .. } => PrivateData::new(&request.emit_compact()),
            Service::IbCm { .. } | Service::Shm => PrivateData::new(&request.emit_full()),
        };
        let attr = ConnectAttr {
            service: config.service,
            path: config.path,
            qpn: self.device.qpn(qp).map_err(failed("the number of a queue pair"))?,
            starting_psn,
            path_mtu: config.path_mtu,
            responder_resources: RESPONDER_RESOURCES.min(self.device.caps().max_rd_atomic),
            initiator_depth: 0,
            retry_count: config.retry_count,
            rnr_retry: 7,
            private_data: private.expect("a login request fits"),
        };
        let conn = self.device.connect(now, &attr).map_err(failed("a connection request"))?;
        if let Some(link) = &mut self.channels[index].link {
            link.conn = Some(conn);
        }
        Ok(())
    }

    /// The longest IU that we will send, in bytes.
    fn max_it_iu_bytes(&self) -> u32 {
        let (_, iu) = self.memory.iu(0);
        let immediate = match self.config.max_immediate_bytes {
            0 => 0,
            bytes => u32::from(IMMEDIATE_OFFSET) + bytes,
        };
        (iu as u32).max(immediate)
    }

    fn channel_of(&self, conn: ConnId) -> Option<usize> {
        let has = |channel: &Channel| channel.link.as_ref().is_some_and(|link| link.conn == Some(conn));
        self.channels.iter().position(has)
    }

    pub(super) fn on_connection(&mut self, now: Time, event: ConnEvent) {
        match event {
            ConnEvent::Request { conn, .. } => {
                // Nobody logs in to an initiator: invalid service id.
                let _ = self.device.reject(now, conn, NO_SUCH_SERVICE, &[]);
            }
            ConnEvent::Established { .. } => {}
            ConnEvent::Reply { conn, reply, timeout_code, private_data } => {
                let Some(index) = self.channel_of(conn) else { return };
                if self.channels[index].phase != Phase::Connecting {
                    return;
                }
                match self.accepted(now, index, conn, &reply, timeout_code, private_data.as_slice()) {
                    Ok(()) => self.channel_is_up(now, index),
                    Err(why) => self.lose(now, why),
                }
            }
            ConnEvent::Ended { conn, why } => {
                let Some(index) = self.channel_of(conn) else { return };
                if let Some(link) = &mut self.channels[index].link {
                    link.conn = None;
                }
                self.connection_ended(now, index, &why);
            }
        }
    }

    fn connection_ended(&mut self, now: Time, index: usize, why: &ConnEnd) {
        if self.state() == SessionState::Closing {
            self.take_down(now, index);
            self.closed_if_down();
            return;
        }
        let why = match why {
            ConnEnd::Rejected { reason, private_data } => {
                let why = match LoginRej::parse(private_data.as_slice()) {
                    Ok(rej) if *reason == LoginRej::CM_REASON => {
                        SessionError::Refused(rej.reason.to_string())
                    }
                    _ => SessionError::Rejected(*reason),
                };
                // A later channel that is refused lowers their number; the first one's is final.
                if index > 0 && self.channels[index].phase == Phase::Connecting {
                    tracing::info!(channels = index, %why, "the session has fewer channels than wanted");
                    self.take_down(now, index);
                    self.used = index as u32;
                    self.up();
                    return;
                }
                why
            }
            ConnEnd::Timeout => SessionError::NoAnswer,
            ConnEnd::PeerDisconnected | ConnEnd::Disconnected | ConnEnd::Replaced => {
                SessionError::Disconnected
            }
        };
        self.lose(now, why);
    }

    /// The target accepted: receive buffers, QP to RTS, RTU.
    fn accepted(
        &mut self,
        now: Time,
        index: usize,
        conn: ConnId,
        reply: &ConnReply,
        timeout_code: u8,
        private: &[u8],
    ) -> Result<(), SessionError> {
        let failed = |what| move |why| SessionError::Verbs { what, why };
        let config = self.config;
        let Some(link) = &self.channels[index].link else { return Err(SessionError::Disconnected) };
        let srp = InitiatorChannel::new(&link.request, private).map_err(SessionError::Login)?;
        let (qp, rq_psn) = (link.qp, link.starting_psn);

        let count = config.depth + CONTROL_IUS;
        let stride = (srp.max_ti_iu_bytes as usize).next_multiple_of(64);
        let memory = Registered::new(&mut self.device, self.pd, count as usize * stride, Access::LOCAL)
            .map_err(failed("receive buffers"))?;
        self.channels[index].receives = Some(Receives { memory, stride });
        self.channels[index].srp = Some(srp);
        for buffer in 0..count {
            self.post_recv(index, buffer).map_err(failed("a receive"))?;
        }

        let depth = RESPONDER_RESOURCES.min(self.device.caps().max_rd_atomic);
        let rtr = RtrAttr {
            path: config.path,
            path_mtu: config.path_mtu,
            dest_qpn: reply.qpn,
            rq_psn,
            max_dest_rd_atomic: depth,
            min_rnr_timer: RNR_TIMER,
        };
        self.device.modify_qp(now, qp, &QpModify::Rtr(rtr)).map_err(failed("a queue pair to RTR"))?;
        let rts = RtsAttr {
            sq_psn: reply.starting_psn,
            timeout_code,
            retry_count: config.retry_count,
            retry_forever: false,
            rnr_retry: reply.rnr_retry,
            max_rd_atomic: reply.responder_resources.max(1),
        };
        self.device.modify_qp(now, qp, &QpModify::Rts(rts)).map_err(failed("a queue pair to RTS"))?;
        self.device.established(now, conn).map_err(failed("the end of the handshake"))?;
        self.channels[index].apply(PhaseEvent::Accepted);
        Ok(())
    }

    /// Posts receive buffer `buffer` of a channel that has a QP.
    pub(super) fn post_recv(&mut self, index: usize, buffer: u32) -> Result<(), VerbsError> {
        let channel = &self.channels[index];
        let (Some(link), Some(receives)) = (&channel.link, &channel.receives) else {
            return Err(VerbsError::NotFound("queue pair"));
        };
        let place = Key { slot: (index as u32) << 16 | buffer, generation: channel.epoch };
        let wr = RecvWr {
            wr_id: place.handle(kind::RECV).to_bits(),
            sge: receives.memory.sge(buffer as usize * receives.stride, receives.stride),
        };
        self.device.post_recv(link.qp, &wr)
    }

    fn channel_is_up(&mut self, now: Time, index: usize) {
        if index as u32 + 1 < self.used {
            self.connect(now, index + 1);
        } else {
            self.up();
        }
    }
}
