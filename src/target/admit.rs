//! From an admission to a channel: a spare queue pair or a new one, brought to RTS.

use reactors::slab::Key;
use reactors::time::Time;

use super::channel::{Channel, ChannelSeed};
use super::fabric::Fabric;
use super::life::{Life, LifeEvent};
use super::limits::{MAX_CREDITS, MAX_READS_A_QP};
use super::message::{Admission, Admitted, ChannelRef, Message};
use super::shard::Shard;
use crate::rdma::verbs::{ConnRequest, Path, QpId, QpInit, QpModify, RtrAttr, RtsAttr, VerbsError};
use crate::wire::num::{Psn, Qpn};

/// Work requests of a queue pair: a response and a WRITE for each credit, and a few for marker and
/// probe; what does not fit waits in the channel's line. The completion queue is sized by it, and
/// most of an idle channel's memory is this.
const fn send_queue(credits: u32) -> u32 {
    2 * credits + 8
}
/// RDMA READs that Linux's ib_srp answers at a time.
const IB_SRP_READS: u8 = 4;
/// RNR NAK timer that we name: receives are always posted, so that it hardly matters (0.64 ms).
const MIN_RNR_TIMER: u8 = 12;
/// Longest local ACK timeout that we use, as a code (134 ms): initiators ask for up to 2 s, and a
/// lost last packet is noticed only by it.
const MAX_TIMEOUT_CODE: u8 = 15;

/// A queue pair in INIT, for a login.
struct Ready {
    qp: QpId,
    max_send_wr: u32,
    life: Life,
}

impl<F: Fabric> Shard<F> {
    /// Makes a channel for a login that shard 0 has decided to admit.
    pub(super) fn on_admission(&mut self, now: Time, admission: Admission) {
        let conn = admission.conn;
        let result = match self.queues.unfit() {
            Some(why) => Err(format!("shard {}: {why}", self.index)),
            None => self
                .make_channel(now, admission)
                .map_err(|error| format!("shard {} cannot make another channel: {error}", self.index)),
        };
        self.peers.send(0, Message::Admitted { conn, result });
    }

    fn make_channel(&mut self, now: Time, admission: Admission) -> Result<Admitted, VerbsError> {
        if self.channels.is_full() {
            return Err(VerbsError::Exhausted("channel"));
        }
        let room = send_queue(admission.params.credits).min(self.fabric.caps().max_send_wr);
        let ready = self.ready_queue_pair(now, &admission.request.path, room)?;
        let starting_psn = Psn::new(self.rng.u32(..));
        let max_rd_atomic = admission.request.responder_resources.clamp(1, MAX_READS_A_QP);
        let connected = self.connect(now, ready.qp, &admission.request, starting_psn, max_rd_atomic);
        let seed = |qpn| ChannelSeed {
            conn: admission.conn,
            qp: ready.qp,
            qpn,
            max_send_wr: ready.max_send_wr,
            life: ready.life,
            path: admission.request.path,
            service: admission.request.service,
            peer: admission.request.peer(),
            nexus: admission.nexus,
            index: admission.index,
            params: admission.params,
            slots: admission.slots,
            max_reads: max_rd_atomic,
        };
        let made = connected.and_then(|qpn| {
            let inserted = self.channels.insert(Channel::new(seed(qpn), now));
            inserted.map(|key| (qpn, key)).map_err(|_| VerbsError::Exhausted("channel"))
        });
        let (qpn, key): (Qpn, Key) = match made {
            Ok(made) => made,
            Err(error) => {
                self.retire_unused(now, ready.qp, ready.max_send_wr);
                return Err(error);
            }
        };
        self.slots.grant(admission.slots);
        self.by_qpn.insert(qpn, key);
        let channel = ChannelRef { shard: self.index, key };
        Ok(Admitted { channel, qpn, starting_psn, max_rd_atomic })
    }

    /// A queue pair in INIT with so much room in its send queue: a spare that can go this path, if there is
    /// one.
    fn ready_queue_pair(&mut self, now: Time, path: &Path, max_send_wr: u32) -> Result<Ready, VerbsError> {
        if let Some(spare) = self.spares.take(now, path, max_send_wr) {
            self.counts.qps_reused += 1;
            return Ok(Ready { qp: spare.qp, max_send_wr: spare.max_send_wr, life: spare.life });
        }
        let init = QpInit {
            pd: self.pd,
            send_cq: self.queues.cq,
            recv_cq: self.queues.cq,
            srq: Some(self.queues.srq),
            max_send_wr,
            max_recv_wr: 0,
            remote_access: false,
        };
        let qp = self.fabric.create_qp(&init)?;
        self.counts.qps_made += 1;
        if let Err(error) = self.fabric.modify_qp(now, qp, &QpModify::Init) {
            self.retire_unused(now, qp, max_send_wr);
            return Err(error);
        }
        Ok(Ready { qp, max_send_wr, life: Life::Connecting })
    }

    /// Brings a queue pair to RTS at once: an SRP target sends nothing before the first command, and
    /// that command is the proof that the initiator is ready, RTU or not.
    fn connect(
        &mut self,
        now: Time,
        qp: QpId,
        request: &ConnRequest,
        starting_psn: Psn,
        max_rd_atomic: u8,
    ) -> Result<Qpn, VerbsError> {
        let rtr = RtrAttr {
            path: request.path,
            path_mtu: request.path_mtu,
            dest_qpn: request.remote_qpn,
            rq_psn: starting_psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: MIN_RNR_TIMER,
        };
        let rts = RtsAttr {
            sq_psn: request.send_psn,
            timeout_code: request.timeout_code.clamp(1, MAX_TIMEOUT_CODE),
            // Whether the peer is dead is decided by `--dead-after`, not by counting retries.
            retry_count: 7,
            retry_forever: true,
            rnr_retry: 7,
            max_rd_atomic,
        };
        self.fabric.modify_qp(now, qp, &QpModify::Rtr(rtr))?;
        self.fabric.modify_qp(now, qp, &QpModify::Rts(rts))?;
        self.fabric.qpn(qp)
    }

    /// The connection is established.
    pub(super) fn on_established(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key).filter(|channel| channel.life.takes_ius()) else {
            return;
        };
        if channel.life.advance(LifeEvent::Established) {
            tracing::info!(
                shard = self.index,
                qpn = %channel.qpn,
                initiator = %channel.nexus.id.initiator,
                peer = %channel.peer,
                channel = channel.index,
                "logged in"
            );
        }
    }

    /// The peer has shown that it is up, by data before its RTU maybe.
    #[inline]
    pub(super) fn on_data_first(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if channel.life == Life::Connecting {
            let conn = channel.conn;
            self.on_established(key);
            self.peers.send(0, Message::DataFirst { conn });
        }
    }

    /// Bytes of host memory that an idle channel of ib_srp takes: queue pair, tags, books.
    pub(super) fn idle_channel_bytes() -> usize {
        let tags = crate::srp::tags::TagTable::new(MAX_CREDITS as usize).heap_bytes();
        F::queue_pair_bytes(send_queue(MAX_CREDITS), IB_SRP_READS) + size_of::<Channel>() + tags
    }
}
