//! How connections end: REJ, DREQ, DREP; and the messages that are only refused.

use reactors::slab::Key;
use reactors::time::Time;

use super::build;
use super::conn::{Conn, PeerKey};
use super::core::{Cm, Stranger, canonical};
use super::table::{Input, State};
use crate::rdma::verbs::{ConnEnd, ConnId, Farewell, Path, PrivateData, VerbsError};
use crate::wire::cm::{Apr, CommId, Drep, Dreq, Lap, Rej, SidrRep, SidrReq, about, reason, timeout};

impl Cm {
    /// REJ of our REQ or REP, or a REJ that ends an established connection.
    pub(super) fn on_rej(&mut self, now: Time, from: Path, rej: &Rej) {
        let Some(key) = self.rejected(from, rej) else { return };
        let before = self.conn(key).state;
        if self.step(now, key, Input::Rej).is_err() {
            self.stats.unexpected += 1;
            return;
        }
        let private_data = PrivateData::new(&rej.private_data).unwrap_or(PrivateData::EMPTY);
        self.ended(
            key,
            match before {
                State::DreqSent => ConnEnd::Disconnected,
                _ => ConnEnd::Rejected { reason: rej.reason, private_data },
            },
        );
    }

    /// Which connection a REJ means.
    fn rejected(&mut self, from: Path, rej: &Rej) -> Option<Key> {
        if rej.remote_id == CommId(0) && rej.reason == reason::TIMEOUT {
            // The peer gave up before our REP reached it, so it knows no id of ours.
            let guid = u64::from_be_bytes(*rej.info.first_chunk()?);
            let matching = self.half_open.values().copied().find(|key| {
                self.conns.get(*key).is_some_and(|conn| {
                    conn.path == from
                        && conn.remote_id == Some(rej.local_id)
                        && conn.peer.is_some_and(|peer| peer.guid == guid)
                })
            });
            self.stats.unexpected += u64::from(matching.is_none());
            return matching;
        }
        let key = self.find(rej.remote_id, None, from).ok()?;
        let conn = self.conn(key);
        match conn.remote_id {
            // Not answered yet: the peer may name an id of its own, or none.
            None => Some(key),
            Some(theirs) => (theirs == rej.local_id).then_some(key),
        }
    }

    /// The consumer ends a connection.
    pub(super) fn start_disconnect(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError> {
        let config = self.config;
        let (key, found) = self.live(conn)?;
        let before = found.state;
        self.step(now, key, Input::Disconnect)
            .map_err(|_| VerbsError::Invalid("answer the request first"))?;
        match before {
            State::RepSent | State::Established => {
                let conn = self.conn(key);
                conn.interval = timeout(config.disconnect_timeout_code);
                conn.retries_left = config.max_cm_retries;
                let (due, dreq) = (now + conn.interval, build::dreq(conn));
                self.send_and_keep(key, dreq);
                self.arm(key, due);
            }
            State::ReqSent | State::RepReceived => {
                let what = if before == State::ReqSent { about::REQ } else { about::REP };
                let conn = self.conn(key);
                let (path, tid, rej) = (conn.path, conn.tid, build::rej_timeout(&config, conn, what));
                self.send(path, tid, rej);
                self.ended(key, ConnEnd::Disconnected);
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends a connection of a process before us, as if it were ours and its consumer wanted that. No
    /// peer's request is taken for it: the peer may be in the middle of asking anew.
    pub(super) fn end_foreign(&mut self, now: Time, farewell: &Farewell) -> Result<(), VerbsError> {
        let Farewell { path, local_id, remote_id, local_qpn, remote_qpn } = *farewell;
        if self.is_taken(local_id) {
            return Err(VerbsError::Busy("communication id"));
        }
        let path = canonical(path);
        let conn = Conn {
            state: State::DreqSent,
            path,
            local_id,
            remote_id: Some(remote_id),
            tid: self.rng.u64(..),
            local_qpn,
            peer: Some(PeerKey::new(path, 0, remote_qpn)),
            req: None,
            replaced: None,
            sent: None,
            retries_left: self.config.max_cm_retries,
            max_retries: self.config.max_cm_retries,
            interval: timeout(self.config.disconnect_timeout_code),
            deadline: Time::NEVER,
            born: 0,
        };
        let (due, dreq) = (now + conn.interval, build::dreq(&conn));
        let key = self.insert(conn).ok_or(VerbsError::Exhausted("connection"))?;
        self.send_and_keep(key, dreq);
        self.arm(key, due);
        Ok(())
    }

    /// DREQ: answered always, unless it names the wrong queue pair or comes from the wrong peer.
    pub(super) fn on_dreq(&mut self, now: Time, from: Path, tid: u64, dreq: &Dreq) {
        let drep = Drep { local_id: dreq.remote_id, remote_id: dreq.local_id, ..Drep::default() };
        let key = match self.find(dreq.remote_id, Some(dreq.local_id), from) {
            Ok(key) => key,
            // Long over for us. Without an answer the peer would wait through all its retries.
            Err(Stranger::Unknown) => return self.send(from, tid, drep),
            Err(Stranger::WrongPeer) => return,
        };
        let conn = self.conn(key);
        if conn.local_qpn != dreq.remote_qpn {
            self.stats.wrong_peer += 1;
            return;
        }
        let before = conn.state;
        if self.step(now, key, Input::Dreq).is_err() {
            self.stats.unexpected += 1;
            return;
        }
        self.send(from, tid, drep);
        match before {
            State::TimeWait => {}
            // Both sides ended it at once.
            State::DreqSent => self.ended(key, ConnEnd::Disconnected),
            _ => self.ended(key, ConnEnd::PeerDisconnected),
        }
    }

    /// DREP: the peer knows.
    pub(super) fn on_drep(&mut self, now: Time, from: Path, drep: &Drep) {
        let Ok(key) = self.find(drep.remote_id, Some(drep.local_id), from) else { return };
        let before = self.conn(key).state;
        match (before, self.step(now, key, Input::Drep)) {
            (State::DreqSent, Ok(_)) => self.ended(key, ConnEnd::Disconnected),
            (_, Ok(_)) => {}
            (_, Err(_)) => self.stats.unexpected += 1,
        }
    }

    /// LAP: alternate paths make no sense on IP.
    pub(super) fn on_lap(&mut self, from: Path, tid: u64, lap: &Lap) {
        if self.find(lap.remote_id, Some(lap.local_id), from).is_ok() {
            let (local_id, remote_id) = (lap.remote_id, lap.local_id);
            self.send(from, tid, Apr { local_id, remote_id, status: Apr::UNSUPPORTED, ..Apr::default() });
        }
    }

    /// SIDR_REQ: we have no datagram services.
    pub(super) fn on_sidr_req(&mut self, from: Path, tid: u64, req: &SidrReq) {
        self.stats.unexpected += 1;
        let (request_id, service_id) = (req.request_id, req.service_id);
        self.send(
            from,
            tid,
            SidrRep { request_id, service_id, status: SidrRep::UNSUPPORTED, ..SidrRep::default() },
        );
    }
}
