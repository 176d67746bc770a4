//! The adapter: what all contexts share, its clock, and what a test does to it.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use reactors::slab::Slab;
use reactors::time::Time;

use super::agenda::Agenda;
use super::connections::{CmStep, Conn, Listener};
use super::context::Context;
use super::far::{Far, FarId};
use super::qp::{Qp, QpRef};
use super::script::Act;
use crate::rdma::engine::cq::{Cq, Pushed};
use crate::rdma::engine::mr::MrTable;
use crate::rdma::engine::qpn::QpnTable;
use crate::rdma::engine::srq::Srq;
use crate::rdma::verbs::{
    AsyncEvent, ConnEvent, CqId, DeviceCaps, QpState, Recycling, Retire, TIME_WAIT, Wc,
};

/// What an adapter is made of.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    /// What all chance comes from.
    pub seed: u64,
    /// How many contexts it has, one a shard.
    pub shards: usize,
    /// Queue pairs of each.
    pub max_qp: u32,
    /// What it says about recycling.
    pub recycling: Recycling,
    /// Whether it says that LAST_WQE_REACHED comes.
    pub last_wqe_event: bool,
    /// Whether it says how many receives lie in a shared receive queue, which libibverbs does not.
    pub counts_receives: bool,
}

impl AdapterConfig {
    /// An adapter that recycles queue pairs under their number.
    pub fn new(seed: u64, shards: usize) -> AdapterConfig {
        AdapterConfig {
            seed,
            shards,
            max_qp: 64,
            recycling: Recycling::SameNumber,
            last_wqe_event: true,
            counts_receives: true,
        }
    }
}

/// What a context holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Books {
    /// Queue pairs, in whatever state.
    pub queue_pairs: usize,
    /// Receives that lie in shared receive queues.
    pub receives: usize,
    /// Receives that queue pairs have taken and not completed.
    pub taken: usize,
    /// Completions that nobody has polled.
    pub completions: usize,
}

/// An adapter. Clones are the same one.
#[derive(Clone)]
pub struct Adapter {
    pub(super) inner: Rc<RefCell<Inner>>,
}

/// What belongs to one context.
pub(super) struct Side {
    pub(super) pds: Slab<()>,
    pub(super) mrs: MrTable,
    pub(super) cqs: Slab<Cq>,
    pub(super) srqs: Slab<Srq>,
    pub(super) qps: Slab<Qp>,
    pub(super) qpns: QpnTable,
    pub(super) events: VecDeque<AsyncEvent>,
    /// Addresses of receives that the adapter has.
    pub(super) receives: HashSet<u64>,
}

/// What is to happen.
pub(super) enum Step {
    Act(Act),
    /// Work requests up to this number are due.
    Work(QpRef, u64),
    /// The retries of this work request are over.
    GiveUp(QpRef, u64),
    /// This work request is flushed.
    Flush(QpRef, u64),
    /// A receive that the queue pair has taken completes, flushed or not.
    Received(QpRef, Wc),
    /// The peer's next message arrives.
    Arrival(FarId),
    /// An asynchronous event of a queue pair.
    Told(QpRef, AsyncEvent),
    /// What began to connect has failed.
    NotConnected(QpRef),
    Retired(QpRef, Retire),
    /// A completion that outlives its queue pair.
    Late(usize, CqId, Wc),
    Cm(CmStep),
}

pub(super) struct Inner {
    pub(super) config: AdapterConfig,
    pub(super) rng: fastrand::Rng,
    /// The latest time that anybody named.
    pub(super) now: Time,
    pub(super) agenda: Agenda<Step>,
    pub(super) sides: Vec<Side>,
    pub(super) fars: Vec<Far>,
    pub(super) conns: Slab<Conn>,
    pub(super) listeners: Slab<Listener>,
    pub(super) conn_events: VecDeque<ConnEvent>,
    pub(super) port_up: bool,
    pub(super) dead: bool,
    pub(super) stock_empty: bool,
    pub(super) misuse: Vec<String>,
}

impl Adapter {
    /// An adapter with its port up and nobody at the other end.
    pub fn new(config: AdapterConfig) -> Adapter {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let shard_bits = config.shards.next_power_of_two().trailing_zeros();
        let sides = (0..config.shards).map(|shard| Side {
            pds: Slab::new(4),
            mrs: MrTable::new(16),
            cqs: Slab::new(4),
            srqs: Slab::new(4),
            qps: Slab::new(config.max_qp as usize),
            qpns: QpnTable::new(shard as u32, shard_bits, config.max_qp, TIME_WAIT),
            events: VecDeque::new(),
            receives: HashSet::new(),
        });
        let inner = Inner {
            sides: sides.collect(),
            rng: rng.fork(),
            now: Time::ZERO,
            agenda: Agenda::new(),
            fars: Vec::new(),
            conns: Slab::new(1 << 12),
            listeners: Slab::new(16),
            conn_events: VecDeque::new(),
            port_up: true,
            dead: false,
            stock_empty: false,
            misuse: Vec::new(),
            config,
        };
        Adapter { inner: Rc::new(RefCell::new(inner)) }
    }

    /// The contexts of all shards, in their order.
    pub fn contexts(&self) -> Vec<Context> {
        let shards = self.inner.borrow().sides.len();
        (0..shards).map(|shard| Context::new(self.clone(), shard)).collect()
    }

    /// Lets `act` happen at `when`.
    pub fn at(&self, when: Time, act: Act) {
        self.inner.borrow_mut().agenda.enter(when, Step::Act(act));
    }

    /// Lets all of `acts` happen, one after the other at the same time.
    pub fn all_at(&self, when: Time, acts: impl IntoIterator<Item = Act>) {
        acts.into_iter().for_each(|act| self.at(when, act));
    }

    /// When it does something next by itself.
    pub fn next_time(&self) -> Time {
        self.inner.borrow().agenda.next_time()
    }

    /// What the context of `shard` holds.
    pub fn books(&self, shard: usize) -> Books {
        let inner = self.inner.borrow();
        let side = &inner.sides[shard];
        Books {
            queue_pairs: side.qps.len(),
            receives: side.srqs.iter().map(|(_, srq)| srq.len()).sum(),
            taken: side.qps.iter().map(|(_, qp)| qp.taken.len()).sum(),
            completions: side.cqs.iter().map(|(_, cq)| cq.len()).sum(),
        }
    }

    /// How many queue pairs of `shard` are in which state.
    pub fn states(&self, shard: usize) -> Vec<(QpState, usize)> {
        let inner = self.inner.borrow();
        let count = |state| inner.sides[shard].qps.iter().filter(|(_, qp)| qp.state == state).count();
        let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];
        states.into_iter().map(|state| (state, count(state))).filter(|(_, count)| *count > 0).collect()
    }

    /// What no consumer of verbs may do and this one has done, one sentence each.
    pub fn misuse(&self) -> Vec<String> {
        self.inner.borrow().misuse.clone()
    }
}

impl Inner {
    pub(super) fn qp(&mut self, of: QpRef) -> Option<&mut Qp> {
        self.sides[of.shard].qps.get_mut(of.id.0).filter(|qp| qp.life == of.life)
    }

    /// Everybody's time: it never goes back.
    pub(super) fn see(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    /// Does what is due. Gives how much that was.
    pub(super) fn run(&mut self, now: Time) -> usize {
        let now = self.see(now);
        let mut done = 0;
        while let Some(step) = self.agenda.take(now) {
            done += 1;
            match step {
                Step::Act(act) => self.act(now, act),
                Step::Cm(step) => self.cm_step(now, step),
                _ if self.dead && !matches!(step, Step::Retired(..)) => {}
                Step::Work(qp, number) => self.work(now, qp, number),
                Step::GiveUp(qp, number) => self.give_up(now, qp, number),
                Step::Flush(qp, number) => self.flush(qp, number),
                Step::Received(qp, wc) => self.received(qp, wc),
                Step::Arrival(far) => self.arrival(now, far),
                Step::NotConnected(qp) => self.not_connected(now, qp),
                Step::Retired(qp, how) => self.retired(now, qp, how),
                Step::Late(shard, cq, wc) => self.complete(shard, cq, wc),
                Step::Told(qp, event) => {
                    if self.qp(qp).is_some() {
                        self.sides[qp.shard].events.push_back(event);
                    }
                }
            }
        }
        done
    }

    fn act(&mut self, now: Time, act: Act) {
        match act {
            Act::Port { up } => {
                self.port_up = up;
                self.sides.iter_mut().for_each(|side| side.events.push_back(AsyncEvent::PortState { up }));
                self.go_on(now);
            }
            Act::Fatal => {
                self.dead = true;
                self.sides.iter_mut().for_each(|side| side.events.push_back(AsyncEvent::DeviceFatal));
            }
            Act::Overrun { shard } => {
                if let Some(cq) = self.first_cq(shard) {
                    self.overrun(shard, cq);
                }
            }
            Act::Stock { empty } => self.stock_empty = empty,
            Act::Silence(far) => self.fars[far.0].silent = true,
            Act::Speech(far) => {
                self.fars[far.0].silent = false;
                self.go_on(now);
            }
            Act::Failure(far, status) => {
                if let Some(of) = self.fars[far.0].near {
                    self.fail_oldest(now, of, status);
                }
            }
            Act::Break(far) => {
                if let Some(of) = self.fars[far.0].near.filter(|of| self.qp(*of).is_some()) {
                    self.break_qp(now, of);
                    self.sides[of.shard].events.push_back(AsyncEvent::QpFatal(of.id));
                }
            }
            Act::Disconnect(far) => self.far_disconnects(now, far),
            Act::Stray { shard, wc } => {
                if let Some(cq) = self.first_cq(shard) {
                    self.complete(shard, cq, wc);
                }
            }
            Act::Event { shard, event } => self.sides[shard].events.push_back(event),
            Act::Connection(event) => self.conn_events.push_back(event),
        }
    }

    fn first_cq(&self, shard: usize) -> Option<CqId> {
        self.sides[shard].cqs.iter().next().map(|(key, _)| CqId(key))
    }

    /// Puts a completion into its queue, if there is room.
    pub(super) fn complete(&mut self, shard: usize, cq: CqId, wc: Wc) {
        let Some(queue) = self.sides[shard].cqs.get_mut(cq.0) else { return };
        if queue.push(wc) == Pushed::Overrun {
            self.overrun(shard, cq);
        }
    }

    fn overrun(&mut self, shard: usize, cq: CqId) {
        let side = &mut self.sides[shard];
        if let Some(queue) = side.cqs.get_mut(cq.0) {
            queue.run_over();
        }
        side.events.push_back(AsyncEvent::CqOverrun(cq));
        for (_, qp) in side.qps.iter_mut() {
            if qp.state != QpState::Reset && (qp.init.send_cq == cq || qp.init.recv_cq == cq) {
                qp.state = QpState::Err;
            }
        }
    }

    /// What the adapter says it can do.
    pub(super) fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            max_qp: self.config.max_qp,
            max_cqe: 1 << 16,
            max_srq_wr: 1 << 15,
            max_send_wr: 1 << 12,
            max_rd_atomic: 16,
            max_message_bytes: 1 << 30,
            last_wqe_event: self.config.last_wqe_event,
            recycling: self.config.recycling,
        }
    }
}
