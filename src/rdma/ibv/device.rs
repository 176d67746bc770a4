//! One shard's device: its queues on the context that all shards share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rdma_core_sys as raw;
use reactors::memory::Region;
use reactors::slab::{Key, Slab};
use reactors::time::Time;

use super::adapter::Adapter;
use super::bell::Bell;
use super::cm::{self, EventChannel};
use super::convert;
use super::janitor::{Book, Janitor, Job, News, Post};
use super::pairs::QpSlot;
use super::probe::{Abilities, INIT_MASK};
use super::sys::{Attr, Channel, Cq, Mr, Pd, Qp, QpParts, Srq};
use crate::rdma::verbs::{
    Access, AsyncEvent, ConnEvent, ConnId, CqId, Device as Verbs, DeviceCaps, MrKeys, PdId, QpId, QpInit,
    QpModify, QpState, RecvWr, Retire, SendOp, SendWr, SrqId, VerbsError, Wc,
};
use crate::wire::num::{LKey, Qpn};

/// Protection domains, completion queues and shared receive queues of a shard, each.
const FEW: usize = 16;
/// Completions taken from the library at a time.
const BATCH: usize = 32;
/// A queue that gave nothing for so long is armed, so that the reactor may sleep. Arming costs a
/// doorbell, or with rxe a system call.
const ARM_AFTER: Duration = Duration::from_micros(20);

pub(super) const NO_PD: VerbsError = VerbsError::NotFound("protection domain");
pub(super) const NO_CQ: VerbsError = VerbsError::NotFound("completion queue");
pub(super) const NO_SRQ: VerbsError = VerbsError::NotFound("shared receive queue");
pub(super) const NO_QP: VerbsError = VerbsError::NotFound("queue pair");

/// What one shard's device is made from, on that shard's thread.
pub struct Seat {
    pub(super) adapter: Adapter,
    pub(super) shard: usize,
    sleeps: bool,
    max_qp: u32,
    pub(super) cm: Arc<EventChannel>,
    pub(super) book: Arc<Book>,
    jobs: Sender<Job>,
    call: Arc<Bell>,
    news: Receiver<News>,
    bell: Arc<Bell>,
}

/// Starts the janitor of an adapter and makes a seat for each of `shards` shards, with up to `max_qp`
/// queue pairs each. With `sleeps`, shards may sleep, and are woken by completions.
///
/// # Errors
/// The system's, if there are no descriptors or threads left.
pub fn link(adapter: &Adapter, shards: usize, max_qp: u32, sleeps: bool) -> io::Result<Vec<Seat>> {
    assert!((1..=256).contains(&shards), "a shard's number is a byte of its handles");
    let cm = EventChannel::new()?;
    let book = Arc::new(Book::default());
    let call = Arc::new(Bell::new()?);
    let (jobs, to_do) = channel();
    let (mut seats, mut posts) = (Vec::new(), Vec::new());
    for shard in 0..shards {
        let (to, news) = channel();
        let bell = Arc::new(Bell::new()?);
        posts.push(Post { to, bell: Arc::clone(&bell) });
        seats.push(Seat {
            adapter: adapter.clone(),
            shard,
            sleeps,
            max_qp: max_qp.min(adapter.abilities.caps.max_qp),
            cm: Arc::clone(&cm),
            book: Arc::clone(&book),
            jobs: jobs.clone(),
            call: Arc::clone(&call),
            news,
            bell,
        });
    }
    let context = Arc::clone(&adapter.context);
    let janitor = Janitor::new(context, adapter.port, cm, to_do, call, posts, book);
    std::thread::Builder::new().name("rdma-janitor".to_owned()).spawn(move || janitor.run())?;
    Ok(seats)
}

pub(super) struct CqSlot {
    pub(super) cq: Arc<Cq>,
    /// When it last gave something, or was armed.
    busy: Time,
    armed: bool,
    /// Found empty since it was armed: what comes now is announced.
    quiet: bool,
}

/// What was counted.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) completions: u64,
    pub(super) qps_fresh: u64,
    pub(super) qps_from_stock: u64,
    pub(super) qps_recycled: u64,
    pub(super) qps_destroyed: u64,
    pub(super) qps_stuck: u64,
    pub(super) wakeups: u64,
}

/// One shard's device.
pub struct Device {
    pub(super) seat: Seat,
    channel: Option<Arc<Channel>>,
    pub(super) pds: Slab<Arc<Pd>>,
    pub(super) cqs: Slab<CqSlot>,
    pub(super) srqs: Slab<Arc<Srq>>,
    pub(super) qps: Slab<QpSlot>,
    mrs: Vec<Mr>,
    pub(super) by_qpn: HashMap<Qpn, Key>,
    pub(super) stock: Vec<(QpParts, Qp)>,
    /// Queue pairs that the janitor is making.
    pub(super) ordered: usize,
    pub(super) events: VecDeque<AsyncEvent>,
    pub(super) conn_events: VecDeque<ConnEvent>,
    /// Connections that have not ended.
    pub(super) conns: HashSet<ConnId>,
    /// The numbers of listeners that the janitor keeps.
    pub(super) listeners: HashSet<u64>,
    now: Time,
    gone: bool,
    pub(super) counts: Counts,
}

impl Device {
    /// A device without queues.
    ///
    /// # Errors
    /// The system's, if there is no descriptor for sleeping.
    pub fn new(seat: Seat) -> Result<Device, VerbsError> {
        let channel = if seat.sleeps {
            Some(Channel::new(&seat.adapter.context).map_err(|why| failed("a completion channel", &why))?)
        } else {
            None
        };
        let max_qp = seat.max_qp as usize;
        Ok(Device {
            seat,
            channel,
            pds: Slab::new(FEW),
            cqs: Slab::new(FEW),
            srqs: Slab::new(FEW),
            qps: Slab::new(max_qp),
            mrs: Vec::new(),
            by_qpn: HashMap::new(),
            stock: Vec::new(),
            ordered: 0,
            events: VecDeque::new(),
            conn_events: VecDeque::new(),
            conns: HashSet::new(),
            listeners: HashSet::new(),
            now: Time::ZERO,
            gone: false,
            counts: Counts::default(),
        })
    }

    /// Whether `address` is one of this device.
    pub(crate) fn owns(&self, address: IpAddr) -> Result<(), VerbsError> {
        let what = format!("listen on {address}");
        let (name, _) = EventChannel::new()
            .and_then(|channel| cm::device_of(&channel, SocketAddr::new(address, 0)))
            .map_err(|why| VerbsError::System { what: what.clone(), why: why.to_string() })?;
        if *name != *self.seat.adapter.name {
            let own = &self.seat.adapter.name;
            return Err(VerbsError::System {
                what,
                why: format!("it is an address of {name}, and this srpoll runs on {own}"),
            });
        }
        Ok(())
    }

    /// What the adapter can do.
    pub(super) fn abilities(&self) -> &Abilities {
        &self.seat.adapter.abilities
    }

    /// Bytes of host memory that an idle queue pair takes, about: our books, and what drivers take
    /// for a send work request with two pieces of memory.
    pub(crate) fn queue_pair_bytes(max_send_wr: u32) -> usize {
        size_of::<QpSlot>() + 128 * max_send_wr as usize
    }

    /// Which shard this is.
    pub(crate) fn shard(&self) -> usize {
        self.seat.shard
    }

    /// What was counted, by name.
    pub(crate) fn named_counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counts;
        vec![
            ("completions", c.completions),
            ("qps_fresh", c.qps_fresh),
            ("qps_from_stock", c.qps_from_stock),
            ("qps_recycled", c.qps_recycled),
            ("qps_destroyed", c.qps_destroyed),
            ("qps_stuck", c.qps_stuck),
            ("wakeups", c.wakeups),
            ("connections", self.conns.len() as u64),
        ]
    }

    pub(super) fn job(&self, job: Job) {
        // Without a janitor, which ends only with an error that it has logged, nothing is done.
        let _ = self.seat.jobs.send(job);
        self.seat.call.ring();
    }

    fn tag(&self, key: Key) -> u64 {
        key.handle(self.seat.shard as u8).to_bits()
    }

    fn take_news(&mut self) -> usize {
        let mut taken = 0;
        while let Ok(news) = self.seat.news.try_recv() {
            taken += 1;
            match news {
                News::Async(event) => self.on_event(event),
                News::Conn(event) => {
                    match &event {
                        ConnEvent::Request { conn, .. } => {
                            self.conns.insert(*conn);
                        }
                        ConnEvent::Ended { conn, .. } => {
                            self.conns.remove(conn);
                        }
                        ConnEvent::Reply { .. } | ConnEvent::Established { .. } => {}
                    }
                    self.conn_events.push_back(event);
                }
                News::Retired(id, qp, outcome) => self.on_retired(id, qp, outcome),
                News::Made(parts, qp) => {
                    self.ordered = self.ordered.saturating_sub(1);
                    if let Some(qp) = qp.filter(|_| !self.gone) {
                        self.stock.push((*parts, qp));
                    }
                }
            }
        }
        taken
    }

    fn on_event(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::DeviceFatal => {
                if std::mem::replace(&mut self.gone, true) {
                    return;
                }
                let device = &self.seat.adapter.name;
                if self.seat.shard == 0 {
                    tracing::error!(
                        %device,
                        "the RDMA device is gone, and its listeners with it: start srpoll again when it is back"
                    );
                }
                self.stock.clear();
            }
            AsyncEvent::QpFatal(qp) | AsyncEvent::QpAccessError(qp) | AsyncEvent::QpRequestError(qp) => {
                if let Some(slot) = self.qps.get_mut(qp.0) {
                    slot.state = QpState::Err;
                }
            }
            _ => {}
        }
        self.events.push_back(event);
    }

    /// Arms the queues that have been quiet for a while, so that the reactor may sleep.
    fn arm(&mut self, now: Time) {
        let Some(channel) = &self.channel else { return };
        let still_armed = self.cqs.iter().any(|(_, slot)| slot.armed);
        if still_armed {
            // Announced, but the completion was found before: armed no more.
            let announced = channel.drain() > 0;
            self.counts.wakeups += u64::from(announced);
            if announced {
                self.cqs.iter_mut().for_each(|(_, slot)| slot.armed = false);
            }
        }
        for (_, slot) in self.cqs.iter_mut() {
            if !slot.armed && now.since(slot.busy) >= ARM_AFTER {
                slot.armed = slot.cq.arm().is_ok();
                slot.quiet = false;
            }
        }
    }

    /// Whether a SEND is short enough, and its memory known, to be copied with the work request.
    fn fits_inline(mrs: &[Mr], qp: &Qp, wr: &SendWr) -> bool {
        let len = wr.sges.len_bytes();
        let known = |lkey: LKey| mrs.iter().find(|mr| mr.keys().lkey == lkey);
        matches!(wr.op, SendOp::Send { .. })
            && len > 0
            && len <= u64::from(qp.inline_bytes())
            && wr.sges.as_slice().iter().all(|sge| known(sge.lkey).is_some_and(|mr| mr.holds(sge)))
    }

    /// Whether the device is gone: posting is then taken, and lost.
    fn swallow(&self, error: io::Error, what: &'static str) -> Result<(), VerbsError> {
        match error.raw_os_error() {
            _ if self.gone => Ok(()),
            Some(libc::ENOMEM | libc::EAGAIN) => Err(VerbsError::QueueFull),
            _ => Err(failed(what, &error)),
        }
    }
}

/// The system's refusal, with advice where there is some.
pub(super) fn failed(what: &'static str, why: &io::Error) -> VerbsError {
    VerbsError::System { what: what.to_owned(), why: why.to_string() }
}

/// Why memory cannot be registered; most often the limit of locked memory is in the way.
fn unregistered(bytes: usize, why: &io::Error) -> VerbsError {
    let advice = match why.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => {
            ": the limit of locked memory is too low; raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity \
             of the service), or run with the capability IPC_LOCK"
        }
        _ => "",
    };
    VerbsError::System { what: format!("register {bytes} bytes"), why: format!("{why}{advice}") }
}

impl Verbs for Device {
    fn caps(&self) -> DeviceCaps {
        self.seat.adapter.abilities.caps
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        let pd = Pd::new(&self.seat.adapter.context).map_err(|why| failed("a protection domain", &why))?;
        self.pds.insert(pd).map(PdId).map_err(|_| VerbsError::Exhausted("protection domain"))
    }

    fn pins_memory(&self) -> bool {
        true
    }

    fn register(&mut self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError> {
        let pd = self.pds.get(pd.0).ok_or(NO_PD)?;
        let mr = Mr::new(pd, region, access).map_err(|why| unregistered(region.len_bytes(), &why))?;
        let keys = mr.keys();
        self.mrs.push(mr);
        Ok(keys)
    }

    fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        let place = self.mrs.iter().position(|mr| mr.keys().lkey == lkey);
        let mr = self.mrs.swap_remove(place.ok_or(VerbsError::NotFound("memory region"))?);
        self.job(Job::Deregister(mr));
        Ok(())
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let key = self.cqs.next_key().ok_or(VerbsError::Exhausted("completion queue"))?;
        let context = &self.seat.adapter.context;
        let cq = Cq::new(context, depth, self.channel.as_ref(), self.tag(key))
            .map_err(|why| failed("a completion queue", &why))?;
        let slot = CqSlot { cq, busy: self.now, armed: false, quiet: false };
        self.cqs.insert(slot).map(CqId).map_err(|_| VerbsError::Exhausted("completion queue"))
    }

    fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId, VerbsError> {
        let key = self.srqs.next_key().ok_or(VerbsError::Exhausted("shared receive queue"))?;
        let pd = self.pds.get(pd.0).ok_or(NO_PD)?;
        let srq = Srq::new(pd, depth, self.tag(key)).map_err(|why| failed("a shared receive queue", &why))?;
        self.srqs.insert(srq).map(SrqId).map_err(|_| VerbsError::Exhausted("shared receive queue"))
    }

    // A queue ends with the last queue pair that was made with it. Those of the stock are the last: what
    // hangs on a queue that is given up is not wanted any more.

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let CqSlot { cq, .. } = self.cqs.remove(cq.0).ok_or(NO_CQ)?;
        self.stock
            .retain(|(parts, _)| !Arc::ptr_eq(&parts.send_cq, &cq) && !Arc::ptr_eq(&parts.recv_cq, &cq));
        Ok(())
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        let srq = self.srqs.remove(srq.0).ok_or(NO_SRQ)?;
        self.stock.retain(|(parts, _)| !parts.srq.as_ref().is_some_and(|other| Arc::ptr_eq(other, &srq)));
        Ok(())
    }

    fn posted_srq_recvs(&self, _: SrqId) -> Option<u32> {
        // ibv_query_srq tells depth and limit, not how many are posted.
        None
    }

    fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        let srq = self.srqs.get(srq.0).ok_or(NO_SRQ)?;
        srq.arm_limit(limit).map_err(|why| failed("the limit of a shared receive queue", &why))
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<QpId, VerbsError> {
        if self.gone {
            return Err(VerbsError::NotFound("device"));
        }
        let key = self.qps.next_key().ok_or(VerbsError::Exhausted("queue pair"))?;
        let parts = self.parts(init)?;
        let mut qp = self.fetch(&parts)?;
        qp.set_tag(self.tag(key));
        let qpn = qp.qpn();
        let mut attr = Attr::none();
        attr.qp_state = convert::qp_state(QpState::Init);
        attr.port_num = self.seat.adapter.port;
        attr.qp_access_flags = convert::qp_access(init.remote_access);
        let slot =
            QpSlot { qp: Some(qp), qpn, state: QpState::Reset, init: attr, rts: None, heard: self.now };
        let key = self.qps.insert(slot).map_err(|_| VerbsError::Exhausted("queue pair"))?;
        self.by_qpn.insert(qpn, key);
        Ok(QpId(key))
    }

    fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError> {
        self.qps.get(qp.0).map(|slot| slot.qpn).ok_or(NO_QP)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.qps.get(qp.0).map(|slot| slot.state).ok_or(NO_QP)
    }

    /// The way to the peer, the first PSNs and the path MTU are those that the connection manager has
    /// negotiated; those of the attributes are not looked at.
    fn modify_qp(&mut self, now: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError> {
        let state = self.slot(qp)?.state;
        let next = match (change, state) {
            (QpModify::Reset, _) => QpState::Reset,
            (QpModify::Init, QpState::Reset) => QpState::Init,
            (QpModify::Rtr(_), QpState::Init) => QpState::Rtr,
            (QpModify::Rts(_), QpState::Rtr) => QpState::Rts,
            (QpModify::Drain { .. }, QpState::Rts) => QpState::Sqd,
            (QpModify::Resume, QpState::Sqd) => QpState::Rts,
            (QpModify::Err, state) if state != QpState::Reset => QpState::Err,
            _ => return Err(VerbsError::State(state)),
        };
        match change {
            QpModify::Rtr(rtr) => self.ready_to_receive(qp, rtr)?,
            QpModify::Rts(rts) => self.ready_to_send(qp, rts)?,
            QpModify::Init => {
                let slot = self.slot(qp)?;
                let held = slot.qp.as_ref().ok_or(VerbsError::Busy("queue pair"))?;
                held.modify(&slot.init, INIT_MASK).map_err(|why| failed("INIT of a queue pair", &why))?;
            }
            QpModify::Drain { notify } => {
                let mut attr = Attr::none();
                attr.qp_state = convert::qp_state(QpState::Sqd);
                attr.en_sqd_async_notify = u8::from(*notify);
                let mask = raw::ibv_qp_attr_mask::IBV_QP_STATE.0
                    | raw::ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
                let held = self.slot(qp)?.qp.as_ref().ok_or(VerbsError::Busy("queue pair"))?;
                held.modify(&attr, mask).map_err(|why| failed("SQD of a queue pair", &why))?;
            }
            QpModify::Reset | QpModify::Resume | QpModify::Err => {
                let held = self.slot(qp)?.qp.as_ref().ok_or(VerbsError::Busy("queue pair"))?;
                held.set_state(next).map_err(|why| failed("a queue pair's state", &why))?;
            }
        }
        let slot = self.slot(qp)?;
        slot.state = next;
        slot.heard = now;
        Ok(())
    }

    fn retire_qp(&mut self, _: Time, qp: QpId, how: Retire) -> Result<(), VerbsError> {
        let gone = self.gone;
        let slot = self.slot(qp)?;
        let held = slot.qp.take().ok_or(VerbsError::Busy("queue pair"))?;
        slot.state = QpState::Reset;
        let init = Box::new(slot.init.clone());
        // What a device that is gone would recycle is of no use.
        let how = if gone { Retire::Destroy } else { how };
        self.job(Job::Retire { shard: self.seat.shard, id: qp, qp: held, init, how });
        Ok(())
    }

    fn destroy_qp(&mut self, _: Time, qp: QpId) -> Result<(), VerbsError> {
        let slot = self.slot(qp)?;
        let held = slot.qp.take().ok_or(VerbsError::Busy("queue pair"))?;
        match held.destroy() {
            Ok(()) => {
                self.counts.qps_destroyed += 1;
                if let Some(slot) = self.qps.remove(qp.0) {
                    self.by_qpn.remove(&slot.qpn);
                }
                Ok(())
            }
            Err((held, why)) => {
                self.slot(qp)?.qp = Some(held);
                Err(failed("the end of a queue pair", &why))
            }
        }
    }

    #[inline]
    #[allow(unsafe_code)]
    fn post_send(&mut self, _: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        let slot = self.qps.get(qp.0).ok_or(NO_QP)?;
        let held = slot.qp.as_ref().ok_or(VerbsError::State(slot.state))?;
        let inline = Self::fits_inline(&self.mrs, held, wr);
        // SAFETY: inline only what lies in registered memory, which its registration keeps.
        unsafe { held.post_send(wr, inline) }.or_else(|error| self.swallow(error, "a send work request"))
    }

    fn post_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), VerbsError> {
        let slot = self.qps.get(qp.0).ok_or(NO_QP)?;
        let held = slot.qp.as_ref().ok_or(VerbsError::State(slot.state))?;
        held.post_recv(wr).or_else(|error| self.swallow(error, "a receive work request"))
    }

    #[inline]
    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), VerbsError> {
        let srq = self.srqs.get(srq.0).ok_or(NO_SRQ)?;
        srq.post(wr).or_else(|error| self.swallow(error, "a receive work request"))
    }

    fn poll_cq(&mut self, cq: CqId, into: &mut [Wc]) -> usize {
        let Some(slot) = self.cqs.get_mut(cq.0) else { return 0 };
        let mut batch = [const { MaybeUninit::uninit() }; BATCH];
        let room = into.len().min(BATCH);
        let Some(taken) = slot.cq.poll(&mut batch[..room]) else {
            if !self.gone {
                self.events.push_back(AsyncEvent::CqOverrun(cq));
            }
            return 0;
        };
        if taken.is_empty() {
            slot.quiet |= slot.armed;
            return 0;
        }
        slot.busy = self.now;
        slot.quiet = false;
        self.counts.completions += taken.len() as u64;
        let mut last = None;
        for (to, from) in into.iter_mut().zip(taken) {
            let qpn = Qpn::new(from.qp_num);
            let status = convert::wc_status(from.status);
            // Consecutive completions are often of one queue pair.
            if last.is_none_or(|(known, _)| known != qpn) {
                last = self.by_qpn.get(&qpn).map(|key| (qpn, *key));
            }
            if let Some(slot) = last.and_then(|(_, key)| self.qps.get_mut(key)) {
                match status {
                    crate::rdma::verbs::WcStatus::Success => slot.heard = self.now,
                    _ => slot.work_failed(),
                }
            }
            *to = Wc {
                wr_id: from.wr_id,
                status,
                opcode: convert::wc_opcode(from.opcode),
                len_bytes: from.byte_len,
                qpn,
            };
        }
        taken.len()
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    fn last_heard(&self, qp: QpId) -> Result<Time, VerbsError> {
        self.qps.get(qp.0).map(|slot| slot.heard).ok_or(NO_QP)
    }

    fn progress(&mut self, now: Time) -> usize {
        self.now = now;
        let taken = if self.seat.bell.answer() { self.take_news() } else { 0 };
        self.arm(now);
        taken
    }

    fn next_deadline(&self) -> Time {
        let asleep = |slot: &CqSlot| slot.armed && slot.quiet;
        let may_sleep = self.gone || self.cqs.iter().all(|(_, slot)| asleep(slot));
        if self.channel.is_some() && !may_sleep { Time::ZERO } else { Time::NEVER }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let channel = self.channel.iter().map(|channel| channel.fd());
        std::iter::once(self.seat.bell.raw_fd()).chain(channel).collect()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The janitor looks whether somebody is left.
        let (closed, _) = channel();
        self.seat.jobs = closed;
        self.seat.call.ring();
    }
}
