//! Tests of the connection manager: two of them, a virtual clock, and what travels between.

mod bounds;
mod ending;
mod handshake;
mod lossy;
mod refusal;
mod table;

use std::net::IpAddr;
use std::time::Duration;

use reactors::time::Time;

use super::{Cm, CmConfig};
use crate::rdma::verbs::{
    ConnEnd, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, Path, PathMtu, PrivateData, Service,
};
use crate::wire::cm::{CmMad, Message};
use crate::wire::num::{Psn, Qpn};

/// The service of the tests with the RDMA-CM.
const PORT: Service = Service::RdmaCm { port: 5555 };
/// The service of the tests without.
const PLAIN: Service = Service::IbCm { service_id: 0x0002_c903_0000_0001 };

/// The asking side's address and GUID.
const A: ([u8; 4], u64) = ([10, 99, 0, 11], 0xa);
/// The asked side's address and GUID.
const B: ([u8; 4], u64) = ([10, 99, 0, 1], 0xb);

/// The path from A to B.
fn a_path() -> Path {
    Path { local: IpAddr::from(A.0), remote: IpAddr::from(B.0), scope_id: 0 }
}

/// The path from B to A.
fn b_path() -> Path {
    swap(a_path())
}

fn swap(path: Path) -> Path {
    Path { local: path.remote, remote: path.local, ..path }
}

fn connect_attr(service: Service, qpn: u32) -> ConnectAttr {
    ConnectAttr {
        service,
        path: a_path(),
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(0x00_1111),
        path_mtu: PathMtu::B4096,
        responder_resources: 128,
        initiator_depth: 2,
        retry_count: 6,
        rnr_retry: 7,
        private_data: PrivateData::new(b"may I?").unwrap(),
    }
}

fn reply(qpn: u32) -> ConnReply {
    ConnReply {
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(0x00_2222),
        responder_resources: 4,
        initiator_depth: 16,
        rnr_retry: 5,
    }
}

/// Two connection managers and a clock; messages move only when a test says so.
struct Pair {
    now: Time,
    a: Cm,
    b: Cm,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(CmConfig::new(B.1))
    }

    /// With this configuration on the asked side.
    fn with(config: CmConfig) -> Pair {
        let mut b = Cm::new(config, fastrand::Rng::with_seed(2));
        b.listen(None, PORT).unwrap();
        b.listen(Some(IpAddr::from(B.0)), PLAIN).unwrap();
        let a = Cm::new(CmConfig::new(A.1), fastrand::Rng::with_seed(1));
        Pair { now: Time::ZERO + Duration::from_secs(1), a, b }
    }

    fn give_a(&mut self, mad: &CmMad) {
        self.a.handle_mad(self.now, a_path(), &mad.emit());
    }

    fn give_b(&mut self, mad: &CmMad) {
        self.b.handle_mad(self.now, b_path(), &mad.emit());
    }

    fn sent_by_a(&mut self) -> Vec<CmMad> {
        take(&mut self.a, a_path())
    }

    fn sent_by_b(&mut self) -> Vec<CmMad> {
        take(&mut self.b, b_path())
    }

    /// The one message that A has to send.
    fn one_from_a(&mut self) -> CmMad {
        one(self.sent_by_a())
    }

    /// The one message that B has to send.
    fn one_from_b(&mut self) -> CmMad {
        one(self.sent_by_b())
    }

    /// Lets all messages arrive, until there are none.
    fn settle(&mut self) {
        for _ in 0..20 {
            let (from_a, from_b) = (self.sent_by_a(), self.sent_by_b());
            if from_a.is_empty() && from_b.is_empty() {
                return;
            }
            from_a.iter().for_each(|mad| self.give_b(mad));
            from_b.iter().for_each(|mad| self.give_a(mad));
        }
        panic!("the two never stop talking");
    }

    /// Lets time pass, timers running as they are due; messages pile up.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let next = self.a.deadline().min(self.b.deadline());
            if next > end {
                break;
            }
            self.now = next;
            self.a.handle_timeout(next);
            self.b.handle_timeout(next);
        }
        self.now = end;
    }

    /// A has sent a REQ, and B's consumer is asked.
    fn asked(&mut self, service: Service, qpn: u32) -> (ConnId, ConnId) {
        let a = self.a.connect(self.now, &connect_attr(service, qpn)).unwrap();
        let req = self.one_from_a();
        self.give_b(&req);
        (a, requested(&mut self.b))
    }

    /// Both are established; B's queue pair is A's number and 0x100.
    fn established(&mut self, qpn: u32) -> (ConnId, ConnId) {
        let (a, b) = self.asked(PORT, qpn);
        self.b.accept(self.now, b, &reply(qpn + 0x100), b"yes").unwrap();
        self.settle();
        assert!(matches!(self.a.poll_event(), Some(ConnEvent::Reply { conn, .. }) if conn == a));
        self.a.established(self.now, a).unwrap();
        self.settle();
        assert_eq!(self.b.poll_event(), Some(ConnEvent::Established { conn: b }));
        assert_eq!((self.a.poll_event(), self.b.poll_event()), (None, None));
        (a, b)
    }

    fn ended_a(&mut self) -> (ConnId, ConnEnd) {
        ended(&mut self.a)
    }

    fn ended_b(&mut self) -> (ConnId, ConnEnd) {
        ended(&mut self.b)
    }
}

fn take(cm: &mut Cm, expected: Path) -> Vec<CmMad> {
    std::iter::from_fn(|| cm.poll_transmit())
        .map(|(path, bytes)| {
            assert_eq!(path, expected);
            CmMad::parse(&bytes).unwrap()
        })
        .collect()
}

fn one(mut mads: Vec<CmMad>) -> CmMad {
    assert_eq!(mads.len(), 1, "{mads:?}");
    mads.remove(0)
}

fn requested(cm: &mut Cm) -> ConnId {
    match cm.poll_event() {
        Some(ConnEvent::Request { conn, .. }) => conn,
        other => panic!("no request but {other:?}"),
    }
}

fn ended(cm: &mut Cm) -> (ConnId, ConnEnd) {
    match cm.poll_event() {
        Some(ConnEvent::Ended { conn, why }) => (conn, why),
        other => panic!("not ended but {other:?}"),
    }
}

/// The name of a message, for comparing what was said.
fn name(mad: &CmMad) -> &'static str {
    match mad.message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
        Message::Lap(_) => "LAP",
        Message::Apr(_) => "APR",
    }
}

fn names(mads: &[CmMad]) -> Vec<&'static str> {
    mads.iter().map(name).collect()
}

/// The reason of a REJ.
fn reason_of(mad: &CmMad) -> u16 {
    match mad.message {
        Message::Rej(rej) => rej.reason,
        other => panic!("no REJ but {other:?}"),
    }
}
