//! The connection manager of the adapter: what passes between the target's and the far ends.

use std::net::IpAddr;
use std::time::Duration;

use reactors::time::Time;

use super::adapter::{Inner, Step};
use super::far::{FarId, Link};
use crate::rdma::verbs::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ListenerId, PrivateData, Service, VerbsError,
};

/// How long a message of the connection manager is on its way.
pub(super) const FLIGHT: Duration = Duration::from_micros(20);
/// How long a message waits for its answer before it is sent again.
const RETRY: Duration = Duration::from_millis(500);
/// How often it is sent at most.
const TRIES: u8 = 5;
/// Reason of a REJ to a service that nobody offers (IBTA table 107).
const INVALID_SERVICE: u16 = 8;

/// An offer of a service.
pub(super) struct Listener {
    local: Option<IpAddr>,
    service: Service,
}

/// A connection.
pub(super) struct Conn {
    far: FarId,
    state: ConnState,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum ConnState {
    Asked,
    Accepted,
    Up,
    Leaving,
}

/// A message of the connection manager, and how often it was sent before.
pub(super) enum CmStep {
    Req(FarId, u8),
    Rep(ConnId, PrivateData, u8),
    Rtu(ConnId),
    /// From the target.
    Dreq(ConnId, u8),
    /// From the far end.
    FarDreq(ConnId, u8),
    /// The end of a connection that the target has ended.
    Over(ConnId),
}

impl Inner {
    fn conn(&mut self, conn: ConnId) -> Result<&mut Conn, VerbsError> {
        self.conns.get_mut(conn.0).ok_or(VerbsError::NotFound("connection"))
    }

    pub(super) fn listen(
        &mut self,
        local: Option<IpAddr>,
        service: Service,
    ) -> Result<ListenerId, VerbsError> {
        if self.listeners.iter().any(|(_, other)| other.service == service && other.local == local) {
            return Err(VerbsError::Busy("service"));
        }
        let made = self.listeners.insert(Listener { local, service });
        made.map(ListenerId).map_err(|_| VerbsError::Exhausted("listener"))
    }

    pub(super) fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError> {
        self.listeners.remove(listener.0).map(drop).ok_or(VerbsError::NotFound("listener"))
    }

    pub(super) fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        reply: &ConnReply,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        let now = self.see(now);
        let entry = self.conn(conn)?;
        if entry.state != ConnState::Asked {
            return Err(VerbsError::Invalid("a connection that was answered already"));
        }
        let far = entry.far;
        // What it is told to be connected with is not ready yet maybe.
        let near = self.fars[far.0].near;
        let ready = near.and_then(|of| self.qp(of)).filter(|qp| qp.qpn == reply.qpn).map(|qp| qp.ready_at);
        let private = PrivateData::new(private).ok_or(VerbsError::Invalid("private data"))?;
        self.conn(conn)?.state = ConnState::Accepted;
        match ready {
            // It never will be: the far end hears nothing, until it gives up.
            Some(Time::NEVER) => self.agenda.enter(now + RETRY, Step::Cm(CmStep::FarDreq(conn, TRIES))),
            Some(at) => self.agenda.enter(at.max(now) + FLIGHT, Step::Cm(CmStep::Rep(conn, private, 0))),
            None => self.misuse.push(format!("{now:?}: accepted with {}, which is not connected", reply.qpn)),
        }
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        now: Time,
        conn: ConnId,
        reason: u16,
        private: &[u8],
    ) -> Result<(), VerbsError> {
        self.see(now);
        let private_data = PrivateData::new(private).ok_or(VerbsError::Invalid("private data"))?;
        let entry = self.conn(conn)?;
        if entry.state != ConnState::Asked {
            return Err(VerbsError::Invalid("a connection that was answered already"));
        }
        self.end(conn, ConnEnd::Rejected { reason, private_data }, None);
        Ok(())
    }

    pub(super) fn established(&mut self, conn: ConnId) -> Result<(), VerbsError> {
        let entry = self.conn(conn)?;
        if entry.state == ConnState::Accepted {
            entry.state = ConnState::Up;
        }
        Ok(())
    }

    pub(super) fn disconnect(&mut self, now: Time, conn: ConnId) -> Result<(), VerbsError> {
        let now = self.see(now);
        let entry = self.conn(conn)?;
        match entry.state {
            ConnState::Asked => return Err(VerbsError::Invalid("answer the request first")),
            ConnState::Leaving => return Ok(()),
            ConnState::Accepted | ConnState::Up => entry.state = ConnState::Leaving,
        }
        self.agenda.enter(now + FLIGHT, Step::Cm(CmStep::Dreq(conn, 0)));
        Ok(())
    }

    /// Requests at this address find nobody any more; what is connected stays.
    pub(super) fn close_port(&mut self, address: IpAddr) {
        let open: Vec<_> =
            self.listeners.iter().filter(|(_, l)| l.local == Some(address)).map(|(key, _)| key).collect();
        for key in open {
            self.misuse.push(format!("{:?}: the port of {address} closes with a listener", self.now));
            self.listeners.remove(key);
        }
    }

    pub(super) fn far_disconnects(&mut self, now: Time, far: FarId) {
        let entry = &mut self.fars[far.0];
        if let Link::Ended(_) = entry.link {
            return;
        }
        entry.link = Link::Ended(ConnEnd::Disconnected);
        if let Some(conn) = entry.conn {
            self.agenda.enter(now + FLIGHT, Step::Cm(CmStep::FarDreq(conn, 0)));
        }
    }

    /// A connection is over: each side hears of it once.
    fn end(&mut self, conn: ConnId, at_far: ConnEnd, here: Option<ConnEnd>) {
        let Some(entry) = self.conns.remove(conn.0) else { return };
        let far = &mut self.fars[entry.far.0];
        if !matches!(far.link, Link::Ended(_)) {
            far.link = Link::Ended(at_far);
        }
        if let Some(why) = here {
            self.conn_events.push_back(ConnEvent::Ended { conn, why });
        }
    }

    pub(super) fn cm_step(&mut self, now: Time, step: CmStep) {
        if self.dead {
            return;
        }
        let again = |inner: &mut Inner, step| inner.agenda.enter(now + RETRY, Step::Cm(step));
        match step {
            CmStep::Req(far, tries) if !self.reaches(far) => {
                if tries < TRIES {
                    again(self, CmStep::Req(far, tries + 1));
                } else if self.fars[far.0].link == Link::Asked {
                    self.fars[far.0].link = Link::Ended(ConnEnd::Timeout);
                }
            }
            CmStep::Req(far, _) => self.req(far),
            CmStep::Rep(conn, private, tries) => self.rep(now, conn, private, tries),
            CmStep::Rtu(conn) => {
                let Ok(entry) = self.conn(conn) else { return };
                let far = entry.far;
                if entry.state == ConnState::Accepted && self.reaches(far) {
                    let _ = self.established(conn);
                    self.conn_events.push_back(ConnEvent::Established { conn });
                }
            }
            CmStep::Dreq(conn, tries) => {
                let Ok(far) = self.conn(conn).map(|entry| entry.far) else { return };
                if self.reaches(far) {
                    if !matches!(self.fars[far.0].link, Link::Ended(_)) {
                        self.fars[far.0].link = Link::Ended(ConnEnd::PeerDisconnected);
                    }
                    self.agenda.enter(now + FLIGHT, Step::Cm(CmStep::Over(conn)));
                } else if tries < TRIES {
                    again(self, CmStep::Dreq(conn, tries + 1));
                } else {
                    self.end(conn, ConnEnd::Timeout, Some(ConnEnd::Disconnected));
                }
            }
            CmStep::FarDreq(conn, tries) => {
                let Ok(far) = self.conn(conn).map(|entry| entry.far) else { return };
                if self.reaches(far) {
                    self.far_dreq(now, conn, far);
                } else if tries < TRIES {
                    again(self, CmStep::FarDreq(conn, tries + 1));
                }
            }
            CmStep::Over(conn) => self.end(conn, ConnEnd::PeerDisconnected, Some(ConnEnd::Disconnected)),
        }
    }

    fn req(&mut self, far: FarId) {
        let entry = &self.fars[far.0];
        // It may have changed its mind.
        let (Link::Asked, Some(asking)) = (&entry.link, &entry.asking) else { return };
        let offers = |listener: &Listener| {
            listener.service == asking.service
                && listener.local.is_none_or(|local| local == asking.path.local)
        };
        let listener = self.listeners.iter().find(|(_, listener)| offers(listener)).map(|(key, _)| key);
        let (request, private_data) = (asking.request(entry.qpn), asking.private_data);
        let conn = listener.and_then(|listener| {
            let conn = self.conns.insert(Conn { far, state: ConnState::Asked }).ok()?;
            Some((ConnId(conn), ListenerId(listener)))
        });
        let Some((conn, listener)) = conn else {
            let refusal = ConnEnd::Rejected { reason: INVALID_SERVICE, private_data: PrivateData::EMPTY };
            self.fars[far.0].link = Link::Ended(refusal);
            return;
        };
        self.fars[far.0].conn = Some(conn);
        self.conn_events.push_back(ConnEvent::Request { conn, listener, request, private_data });
    }

    fn rep(&mut self, now: Time, conn: ConnId, private: PrivateData, tries: u8) {
        let Ok(entry) = self.conn(conn) else { return };
        let (far, state) = (entry.far, entry.state);
        if state != ConnState::Accepted {
            return;
        }
        if !self.reaches(far) {
            if tries < TRIES {
                self.agenda.enter(now + RETRY, Step::Cm(CmStep::Rep(conn, private, tries + 1)));
            } else {
                self.end(conn, ConnEnd::Timeout, Some(ConnEnd::Timeout));
            }
            return;
        }
        let entry = &mut self.fars[far.0];
        if entry.link != Link::Asked {
            return;
        }
        entry.link = Link::Up(private);
        if entry.asking.as_ref().is_some_and(|asking| asking.rtu) {
            self.agenda.enter(now + FLIGHT, Step::Cm(CmStep::Rtu(conn)));
        }
    }

    fn far_dreq(&mut self, now: Time, conn: ConnId, far: FarId) {
        let near = self.fars[far.0].near;
        if let Some(of) = near
            && self.qp(of).is_some_and(|qp| qp.script.dreq_breaks)
        {
            self.break_qp(now, of);
        }
        let leaving = self.conn(conn).is_ok_and(|entry| entry.state == ConnState::Leaving);
        let why = if leaving { ConnEnd::Disconnected } else { ConnEnd::PeerDisconnected };
        self.end(conn, ConnEnd::Timeout, Some(why));
    }
}
