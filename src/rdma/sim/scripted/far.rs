//! The far ends of queue pairs: what a test says for the peer.

use std::collections::VecDeque;

use reactors::memory::Region;
use reactors::time::Time;

use super::adapter::{Adapter, Inner, Step};
use super::connections::CmStep;
use super::qp::QpRef;
use super::script::{Act, Script};
use crate::rdma::verbs::{ConnEnd, ConnId, ConnRequest, Path, PathMtu, PrivateData, Service};
use crate::wire::num::{Psn, Qpn, RKey};

/// A far end of an adapter. It is used for one connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FarId(pub(super) usize);

/// Where its connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// It has not asked.
    Idle,
    /// It has asked.
    Asked,
    /// It was accepted, with these bytes.
    Up(PrivateData),
    /// It was refused, or it has ended.
    Ended(ConnEnd),
}

/// How it asks for a connection.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Which service.
    pub service: Service,
    /// The addresses, as the target sees them.
    pub path: Path,
    /// GUID of its adapter.
    pub guid: u64,
    /// The consumer's bytes.
    pub private_data: PrivateData,
    /// RDMA READs that it answers at a time.
    pub responder_resources: u8,
    /// Whether an RTU follows the REP.
    pub rtu: bool,
}

impl Asking {
    /// The request as the connection manager of the target tells it, from a queue pair of this number.
    pub fn request(&self, qpn: Qpn) -> ConnRequest {
        ConnRequest {
            service: self.service,
            path: self.path,
            process: None,
            remote_guid: self.guid,
            remote_qpn: qpn,
            send_psn: Psn::new(1),
            path_mtu: PathMtu::B4096,
            responder_resources: self.responder_resources,
            initiator_depth: 0,
            timeout_code: 14,
            retry_count: 7,
            rnr_retry: 7,
        }
    }
}

pub(super) struct Far {
    pub(super) qpn: Qpn,
    pub(super) script: Script,
    pub(super) memory: Region,
    pub(super) rkey: RKey,
    pub(super) link: Link,
    pub(super) conn: Option<ConnId>,
    pub(super) asking: Option<Asking>,
    pub(super) near: Option<QpRef>,
    pub(super) silent: bool,
    /// A message of it found no queue pair that takes it: its retries are over.
    pub(super) failed: bool,
    /// What it has sent and what has not arrived.
    pub(super) outbox: VecDeque<Vec<u8>>,
    /// What has come.
    pub(super) inbox: VecDeque<Vec<u8>>,
}

impl Adapter {
    /// A far end whose peer may read and write all of `memory`; the queue pair that will be connected
    /// to it behaves as `script` says.
    pub fn far(&self, memory: &Region, script: Script) -> FarId {
        let mut inner = self.inner.borrow_mut();
        let number = inner.fars.len();
        let rkey = RKey(inner.rng.u32(1..));
        inner.fars.push(Far {
            qpn: Qpn::new(0x10 + number as u32),
            script,
            memory: memory.clone(),
            rkey,
            link: Link::Idle,
            conn: None,
            asking: None,
            near: None,
            silent: false,
            failed: false,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
        });
        FarId(number)
    }

    /// Asks for a connection.
    pub fn ask(&self, now: Time, far: FarId, asking: Asking) {
        let mut inner = self.inner.borrow_mut();
        let now = inner.see(now);
        let entry = &mut inner.fars[far.0];
        entry.link = Link::Asked;
        entry.asking = Some(asking);
        inner.agenda.enter(now + super::connections::FLIGHT, Step::Cm(CmStep::Req(far, 0)));
    }

    /// Sends a message.
    pub fn send(&self, now: Time, far: FarId, bytes: &[u8]) {
        let mut inner = self.inner.borrow_mut();
        let now = inner.see(now);
        let entry = &mut inner.fars[far.0];
        entry.outbox.push_back(bytes.to_vec());
        let flight = entry.script.work;
        inner.agenda.enter(now + flight, Step::Arrival(far));
    }

    /// The next message that has come.
    pub fn receive(&self, far: FarId) -> Option<Vec<u8>> {
        self.inner.borrow_mut().fars[far.0].inbox.pop_front()
    }

    /// Disconnects, now.
    pub fn disconnect(&self, now: Time, far: FarId) {
        let mut inner = self.inner.borrow_mut();
        let now = inner.see(now);
        inner.far_disconnects(now, far);
    }

    /// Where its connection is.
    pub fn link(&self, far: FarId) -> Link {
        self.inner.borrow().fars[far.0].link.clone()
    }

    /// Whether its retries are over: its queue pair is of no use.
    pub fn has_failed(&self, far: FarId) -> bool {
        self.inner.borrow().fars[far.0].failed
    }

    /// The key of its memory.
    pub fn rkey(&self, far: FarId) -> RKey {
        self.inner.borrow().fars[far.0].rkey
    }

    /// The same as [`at`](Self::at), now.
    pub fn act(&self, now: Time, act: Act) {
        self.at(now, act);
        self.inner.borrow_mut().run(now);
    }
}

impl Inner {
    /// Whether packets go to a far end and back.
    pub(super) fn reaches(&self, far: FarId) -> bool {
        self.port_up && !self.dead && !self.fars[far.0].silent
    }

    /// Whether the far end's queue pair answers: it goes with its connection.
    pub(super) fn answers(&self, far: FarId) -> bool {
        self.reaches(far) && !matches!(self.fars[far.0].link, Link::Ended(_))
    }

    pub(super) fn far_of(&self, qpn: Qpn) -> Option<FarId> {
        self.fars.iter().position(|far| far.qpn == qpn).map(FarId)
    }
}
