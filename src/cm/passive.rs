//! The side that is asked: REQ in, REP or REJ out, RTU in.

use std::net::IpAddr;
use std::time::Duration;

use reactors::slab::Key;
use reactors::time::Time;

use super::build;
use super::conn::{Conn, PeerKey, ReqMark};
use super::core::Cm;
use super::table::{Input, State};
use crate::rdma::verbs::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ConnRequest, ListenerId, Path, PathMtu, PrivateData, Service,
    VerbsError,
};
use crate::wire::cm::{CmaHeader, CommId, Req, Rtu, about, rdma_cm, reason, timeout};
use crate::wire::num::Qpn;

/// The longest that a consumer may think about a request, whatever the peer would wait.
const MAX_DECISION: Duration = Duration::from_secs(120);
/// The interval of REPs, whatever the peer claims: not a flood, and not once an hour.
const REP_INTERVAL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(10);

/// What a REQ that passed all checks says.
struct Asked {
    service: Service,
    listener: ListenerId,
    path_mtu: PathMtu,
    private_data: PrivateData,
}

impl Cm {
    /// REQ: new, again, or in place of an older one.
    pub(super) fn on_req(&mut self, now: Time, from: Path, tid: u64, req: &Req) {
        let peer = PeerKey::new(from, req.local_ca_guid, req.local_qpn);
        let mark = ReqMark { remote_id: req.local_id, psn: req.starting_psn };
        let before = self.by_peer(&peer);
        if let Some(key) = before {
            let conn = self.conn(key);
            if conn.req == Some(mark) && conn.path == from {
                return self.duplicate_req(now, key);
            }
            if conn.replaced == Some(mark) {
                self.stats.duplicate_requests += 1;
                return;
            }
        }
        let asked = match self.check_req(from, req) {
            Ok(asked) => asked,
            Err(reason) => return self.refuse_req(from, tid, req.local_id, reason),
        };
        if self.events_full() {
            self.stats.overrun += 1;
            return;
        }
        let replaced = before.and_then(|key| self.conn(key).req);
        self.replace(now, &peer);
        while self.half_open.len() >= self.config.max_half_open.max(1) {
            self.evict_oldest(now);
        }
        let conn = Conn {
            state: State::ReqReceived,
            path: from,
            local_id: self.new_local_id(),
            remote_id: Some(req.local_id),
            tid,
            local_qpn: Qpn::default(),
            peer: None,
            req: Some(mark),
            replaced,
            sent: None,
            retries_left: 0,
            max_retries: req.max_cm_retries,
            interval: timeout(req.local_cm_timeout).clamp(*REP_INTERVAL.start(), *REP_INTERVAL.end()),
            deadline: Time::NEVER,
            born: 0,
        };
        let Some(key) = self.insert(conn) else {
            return self.refuse_req(from, tid, req.local_id, reason::NO_RESOURCES);
        };
        self.set_peer(key, peer);
        // The peer waits so long, if its retries are answered with MRA.
        let patience = timeout(req.remote_cm_timeout) * (u32::from(req.max_cm_retries) + 1);
        self.arm(key, now + patience.clamp(Duration::from_secs(10), MAX_DECISION));
        self.event(ConnEvent::Request {
            conn: ConnId(key),
            listener: asked.listener,
            request: ConnRequest {
                service: asked.service,
                path: from,
                process: None,
                remote_guid: req.local_ca_guid,
                remote_qpn: req.local_qpn,
                send_psn: req.starting_psn,
                path_mtu: asked.path_mtu,
                responder_resources: req.responder_resources,
                initiator_depth: req.initiator_depth,
                timeout_code: req.ack_timeout,
                retry_count: req.retry_count,
                rnr_retry: req.rnr_retry,
            },
            private_data: asked.private_data,
        });
    }

    /// Everything that can be wrong with a REQ; the error is the reason of the REJ.
    fn check_req(&self, from: Path, req: &Req) -> Result<Asked, u16> {
        if req.transport != 0 {
            return Err(reason::INVALID_TRANSPORT);
        }
        if req.local_qpn.get() < 2 {
            return Err(reason::UNSUPPORTED);
        }
        let path_mtu = PathMtu::from_code(req.path_mtu).ok_or(reason::INVALID_MTU)?;
        // The peer is the UDP source of its REQ; what is inside must agree.
        if (IpAddr::from(req.local_gid), IpAddr::from(req.remote_gid)) != (from.remote, from.local) {
            return Err(reason::INVALID_GID);
        }
        let (service, consumer) = match rdma_cm::port(req.service_id) {
            None => (Service::IbCm { service_id: req.service_id }, &req.private_data[..]),
            Some(port) => {
                let (head, consumer) =
                    req.private_data.split_first_chunk().ok_or(reason::INVALID_SERVICE_ID)?;
                let addresses = CmaHeader::parse(head).addresses();
                let (source, destination) = addresses.ok_or(reason::INVALID_SERVICE_ID)?;
                if destination != from.local {
                    return Err(reason::INVALID_SERVICE_ID);
                }
                if source != from.remote {
                    return Err(reason::INVALID_GID);
                }
                (Service::RdmaCm { port }, consumer)
            }
        };
        let listener = self.listener(from.local, service).ok_or(reason::INVALID_SERVICE_ID)?;
        let private_data = PrivateData::new(consumer).unwrap_or(PrivateData::EMPTY);
        Ok(Asked { service, listener, path_mtu, private_data })
    }

    /// Who listens: for this very address first, then for all.
    fn listener(&self, local: IpAddr, service: Service) -> Option<ListenerId> {
        let find = |address| {
            let mut all = self.listeners.iter();
            all.find(|(_, one)| one.local == address && one.service == service)
                .map(|(key, _)| ListenerId(key))
        };
        find(Some(local)).or_else(|| find(None))
    }

    /// A REJ without any state, as Linux sends it: local id 0.
    fn refuse_req(&mut self, from: Path, tid: u64, theirs: CommId, reason: u16) {
        self.stats.refused += 1;
        if let Ok(rej) = build::rej(CommId(0), theirs, about::REQ, reason, &[]) {
            self.send(from, tid, rej);
        }
    }

    /// The REQ of a connection that we know came again.
    fn duplicate_req(&mut self, now: Time, key: Key) {
        self.stats.duplicate_requests += 1;
        match self.step(now, key, Input::Req) {
            Ok(State::ReqReceived) => {
                let conn = self.conn(key);
                let (path, tid, mra) = (conn.path, conn.tid, build::mra(conn, about::REQ));
                self.send(path, tid, mra);
            }
            // The REP, or after a refusal the REJ.
            Ok(State::RepSent | State::TimeWait) => self.send_again(key),
            _ => {}
        }
    }

    /// Ends the connection of a peer's queue pair, if it has one: a queue pair has one at a time.
    pub(super) fn replace(&mut self, now: Time, peer: &PeerKey) {
        let Some(old) = self.by_peer(peer) else { return };
        if self.step(now, old, Input::Replace).is_ok() {
            self.stats.replaced += 1;
            self.ended(old, ConnEnd::Replaced);
        }
    }

    /// Makes room among the half-open connections. A peer that has our REP is told; one that has
    /// not will ask again.
    fn evict_oldest(&mut self, now: Time) {
        let Some((_, key)) = self.half_open.first_key_value().map(|(born, key)| (*born, *key)) else {
            return;
        };
        let state = self.conn(key).state;
        if self.step(now, key, Input::Evict).is_err() {
            return;
        }
        self.stats.evicted += 1;
        if state == State::RepSent {
            let config = self.config;
            let conn = self.conn(key);
            let (path, tid, rej) = (conn.path, conn.tid, build::rej_timeout(&config, conn, about::OTHER));
            self.send(path, tid, rej);
        }
        self.ended(key, ConnEnd::Timeout);
    }

    /// The consumer accepts.
    pub(super) fn answer_with_rep(
        &mut self,
        now: Time,
        conn: ConnId,
        reply: &ConnReply,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        let config = self.config;
        let (key, found) = self.live(conn)?;
        let rep = build::rep(&config, found, reply, private)?;
        self.step(now, key, Input::Accept).map_err(|_| VerbsError::Invalid("no request to accept"))?;
        let conn = self.conn(key);
        conn.local_qpn = reply.qpn;
        conn.retries_left = conn.max_retries;
        let due = now + conn.interval;
        self.send_and_keep(key, rep);
        self.arm(key, due);
        Ok(())
    }

    /// The consumer refuses a request, or (active) a reply.
    pub(super) fn answer_with_rej(
        &mut self,
        now: Time,
        conn: ConnId,
        reason: u16,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        let (key, found) = self.live(conn)?;
        let theirs = found.remote_id.unwrap_or_default();
        // As Linux does it: a refused REQ gives the peer no id of ours.
        let (ours, what) = match found.state {
            State::RepReceived => (found.local_id, about::REP),
            _ => (CommId(0), about::REQ),
        };
        let rej = build::rej(ours, theirs, what, reason, private)?;
        self.step(now, key, Input::Reject).map_err(|_| VerbsError::Invalid("nothing to refuse"))?;
        self.send_and_keep(key, rej);
        Ok(())
    }

    /// RTU: the peer has our REP.
    pub(super) fn on_rtu(&mut self, now: Time, from: Path, rtu: &Rtu) {
        let Ok(key) = self.find(rtu.remote_id, Some(rtu.local_id), from) else { return };
        let before = self.conn(key).state;
        match (before, self.step(now, key, Input::Rtu)) {
            (State::RepSent, Ok(_)) => {
                self.conn(key).sent = None;
                self.arm(key, Time::NEVER);
                self.event(ConnEvent::Established { conn: ConnId(key) });
            }
            (_, Ok(_)) => {}
            (_, Err(_)) => self.stats.unexpected += 1,
        }
    }
}
