//! Connection management on librdmacm: every call is a job for the janitor, every answer an event.
//!
//! Logins come by RDMA-CM. Plain IB-CM, which `soft` also serves, is not offered: a listener for it is
//! taken and hears nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use reactors::time::Time;

use super::cm::Id;
use super::device::{Device, failed};
use super::janitor::{Job, Wish, key_of, number_of};
use crate::rdma::verbs::{
    ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, ListenerId, PrivateData, Service, VerbsError,
};

const NO_CONN: VerbsError = VerbsError::NotFound("connection");

impl Device {
    fn wish(&mut self, conn: ConnId, wish: Wish) -> Result<(), VerbsError> {
        if !self.conns.contains(&conn) {
            return Err(NO_CONN);
        }
        self.job(Job::Conn(number_of(conn.0), wish));
        Ok(())
    }
}

fn private_data(bytes: &[u8]) -> Result<PrivateData, VerbsError> {
    PrivateData::new(bytes).ok_or(VerbsError::Invalid("private data are too long"))
}

impl Connections for Device {
    fn listen(&mut self, local: Option<IpAddr>, service: Service) -> Result<ListenerId, VerbsError> {
        let number = self.seat.book.number();
        let Service::RdmaCm { port } = service else {
            tracing::debug!(?service, "plain IB-CM is not served on RDMA adapters");
            return Ok(ListenerId(key_of(number)));
        };
        let address = SocketAddr::new(local.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port);
        let id = Id::new(&self.seat.cm, number).map_err(|why| failed("a connection id", &why))?;
        id.bind(address).and_then(|()| id.listen()).map_err(|why| VerbsError::System {
            what: format!("listen on service port {port}"),
            why: match why.kind() {
                std::io::ErrorKind::AddrInUse => "another RDMA service has it".to_owned(),
                _ => why.to_string(),
            },
        })?;
        self.listeners.insert(number);
        self.job(Job::Listen(number, id));
        Ok(ListenerId(key_of(number)))
    }

    fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError> {
        let number = number_of(listener.0);
        if self.listeners.remove(&number) {
            self.job(Job::Unlisten(number));
        }
        Ok(())
    }

    fn connect(&mut self, _: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        if !matches!(attr.service, Service::RdmaCm { .. }) {
            return Err(VerbsError::Invalid("RDMA adapters connect by RDMA-CM only"));
        }
        let number = self.seat.book.number();
        let conn = ConnId(key_of(number));
        self.conns.insert(conn);
        self.job(Job::Connect(number, Box::new(*attr)));
        Ok(conn)
    }

    fn accept(&mut self, _: Time, conn: ConnId, reply: &ConnReply, private: &[u8]) -> Result<(), VerbsError> {
        let caps = self.abilities();
        let reply = ConnReply {
            responder_resources: reply.responder_resources.min(caps.caps.max_rd_atomic),
            initiator_depth: reply.initiator_depth.min(caps.max_reads),
            ..*reply
        };
        self.wish(conn, Wish::Accept(reply, private_data(private)?))
    }

    /// The reason is 28, consumer defined, whatever was asked for: librdmacm knows no other.
    fn reject(&mut self, _: Time, conn: ConnId, _reason: u16, private: &[u8]) -> Result<(), VerbsError> {
        self.wish(conn, Wish::Refuse(private_data(private)?))?;
        self.conns.remove(&conn);
        Ok(())
    }

    fn established(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.wish(conn, Wish::Ready)
    }

    fn disconnect(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.wish(conn, Wish::Disconnect)
    }

    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.conn_events.pop_front()
    }
}
