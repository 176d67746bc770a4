//! The side that asks: REQ out, REP in, RTU out.

use reactors::slab::Key;
use reactors::time::Time;

use super::build;
use super::conn::{Conn, PeerKey};
use super::core::{Cm, Stranger, canonical};
use super::table::{Input, State};
use crate::rdma::verbs::{ConnEvent, ConnId, ConnReply, ConnectAttr, Path, PrivateData, VerbsError};
use crate::wire::cm::{Rep, about, reason, timeout};

/// Where the RDMA-CM's source ports begin; the port is only told, nothing is bound to it.
const FIRST_SOURCE_PORT: u16 = 0xc000;

impl Cm {
    /// Sends a REQ.
    pub(super) fn start_connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        if self.events_full() {
            return Err(VerbsError::QueueFull);
        }
        let attr = ConnectAttr { path: canonical(attr.path), ..*attr };
        let local_id = self.new_local_id();
        let flow_label = self.rng.u32(1..1 << 20);
        let source_port = self.rng.u16(FIRST_SOURCE_PORT..);
        let req = build::req(&self.config, &attr, local_id, flow_label, source_port)?;
        let interval = timeout(self.config.cm_timeout_code);
        let conn = Conn {
            state: State::ReqSent,
            path: attr.path,
            local_id,
            remote_id: None,
            tid: self.rng.u64(..),
            local_qpn: attr.qpn,
            peer: None,
            req: None,
            replaced: None,
            sent: None,
            retries_left: self.config.max_cm_retries,
            max_retries: self.config.max_cm_retries,
            interval,
            deadline: Time::NEVER,
            born: 0,
        };
        let key = self.insert(conn).ok_or(VerbsError::Exhausted("connection"))?;
        self.send_and_keep(key, req);
        self.arm(key, now + interval);
        Ok(ConnId(key))
    }

    /// REP: the peer accepts, or has not seen our RTU.
    pub(super) fn on_rep(&mut self, now: Time, from: Path, tid: u64, rep: &Rep) {
        let key = match self.find(rep.remote_id, None, from) {
            Ok(key) => key,
            Err(Stranger::Unknown) => return self.refuse_rep(from, tid, rep),
            Err(Stranger::WrongPeer) => return,
        };
        let conn = self.conn(key);
        let (before, known) = (conn.state, conn.remote_id);
        if known.is_some_and(|id| id != rep.local_id) || conn.req.is_some() {
            self.stats.unexpected += 1;
            return;
        }
        match (before, self.step(now, key, Input::Rep)) {
            (State::ReqSent, Ok(_)) => self.first_rep(now, key, rep),
            (State::RepReceived, Ok(_)) => {
                let conn = self.conn(key);
                let (path, tid, mra) = (conn.path, conn.tid, build::mra(conn, about::REP));
                self.send(path, tid, mra);
            }
            (State::Established, Ok(_)) => self.send_rtu(key),
            // Given up before it was ever answered.
            (State::TimeWait, Ok(_)) if known.is_none() => self.refuse_rep(from, tid, rep),
            // The REJ, if that is how it ended.
            (State::TimeWait, Ok(_)) => self.send_again(key),
            _ => self.stats.unexpected += 1,
        }
    }

    fn first_rep(&mut self, now: Time, key: Key, rep: &Rep) {
        self.arm(key, Time::NEVER);
        let conn = self.conn(key);
        conn.remote_id = Some(rep.local_id);
        conn.sent = None;
        let peer = PeerKey::new(conn.path, rep.local_ca_guid, rep.local_qpn);
        self.replace(now, &peer);
        self.set_peer(key, peer);
        let timeout_code = ack_timeout(self.config.ack_timeout_code, rep.target_ack_delay);
        self.event(ConnEvent::Reply {
            conn: ConnId(key),
            reply: ConnReply {
                qpn: rep.local_qpn,
                starting_psn: rep.starting_psn,
                responder_resources: rep.responder_resources,
                initiator_depth: rep.initiator_depth,
                rnr_retry: rep.rnr_retry,
            },
            timeout_code,
            private_data: PrivateData::new(&rep.private_data).unwrap_or(PrivateData::EMPTY),
        });
    }

    /// Nobody here waits for this REP: say so, or the peer resends it through all its retries.
    fn refuse_rep(&mut self, from: Path, tid: u64, rep: &Rep) {
        if let Ok(rej) = build::rej(rep.remote_id, rep.local_id, about::REP, reason::INVALID_COMM_ID, &[]) {
            self.send(from, tid, rej);
        }
    }

    fn send_rtu(&mut self, key: Key) {
        let conn = self.conn(key);
        let (path, tid, rtu) = (conn.path, conn.tid, build::rtu(conn));
        self.send(path, tid, rtu);
    }

    /// The consumer's queue pair is ready (active), or had data before the RTU (passive).
    pub(super) fn confirm(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError> {
        let (key, found) = self.live(conn)?;
        let before = found.state;
        self.step(now, key, Input::Establish)
            .map_err(|_| VerbsError::Invalid("connection is not that far"))?;
        match before {
            State::RepReceived => self.send_rtu(key),
            State::RepSent => {
                self.conn(key).sent = None;
                self.arm(key, Time::NEVER);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The ACK timeout of a queue pair: what the path needs and what the peer takes to acknowledge,
/// added as powers of two (as Linux's `cm_ack_timeout` does).
fn ack_timeout(path_code: u8, delay_code: u8) -> u8 {
    let sum = if path_code >= delay_code {
        path_code + u8::from(delay_code + 1 >= path_code)
    } else {
        delay_code + u8::from(path_code + 1 >= delay_code)
    };
    sum.min(31)
}

#[cfg(test)]
mod tests {
    use super::ack_timeout;

    #[test]
    fn timeouts_add_as_powers_of_two() {
        // spec: 17 with rxe's delay of 15 stays 17 (0.54 s), 19 stays 19 (2.15 s).
        assert_eq!(ack_timeout(17, 15), 17);
        assert_eq!(ack_timeout(19, 15), 19);
        assert_eq!(ack_timeout(16, 15), 17);
        assert_eq!(ack_timeout(15, 15), 16);
        assert_eq!(ack_timeout(10, 20), 20);
        assert_eq!(ack_timeout(31, 31), 31);
    }
}
