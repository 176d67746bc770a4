//! One shard's device: the verbs over links.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use reactors::memory::{PAGE_BYTES, Region};
use reactors::slab::{Key, Slab};
use reactors::time::Time;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use super::connector::Connector;
use super::doze::{Doze, Tell};
use super::hub::{Hub, Notice};
use super::qp::Qp;
use super::ring::MAX_RECORD_BYTES;
use super::tables::Tables;
use crate::rdma::engine::Sizes;
use crate::rdma::engine::qpn::QpnTable;
use crate::rdma::verbs::{
    Access, AsyncEvent, ConnEvent, ConnId, ConnReply, ConnectAttr, Connections, CqId, Device as Verbs,
    DeviceCaps, ListenerId, MrKeys, PdId, QpId, QpInit, QpModify, QpState, RecvWr, Recycling, Retire,
    Retired, SendWr, Service, SrqId, TIME_WAIT, VerbsError, Wc, WcStatus,
};
use crate::unix::OwnedSocket;
use crate::wire::num::{LKey, Qpn};

const NO_QP: VerbsError = VerbsError::NotFound("queue pair");
/// How often a device that is awake looks at its sockets: for ends, and memory that was shown.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What a device is made of.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// This shard, of how many.
    pub shard: u32,
    /// How many low bits of a QPN tell the shard.
    pub shard_bits: u32,
    /// How much of everything there may be.
    pub sizes: Sizes,
    /// GUID of the device, on the shard that manages connections; `None` on the others.
    pub guid: Option<u64>,
    /// The socket that our own requests go to.
    pub target: Option<PathBuf>,
    /// How long the thread goes on without work before it sleeps; `None` if it spins for ever. Until
    /// then nobody pays for waking it.
    pub sleeps_after: Option<Duration>,
    /// The way to the other shards.
    pub hub: Hub,
    /// Seed of queue pair numbers and keys.
    pub seed: u64,
}

impl DeviceConfig {
    /// A device of one shard that manages its own connections, for a thread that spins.
    pub fn new(guid: u64) -> io::Result<DeviceConfig> {
        Ok(DeviceConfig {
            shard: 0,
            shard_bits: 0,
            sizes: Sizes::default(),
            guid: Some(guid),
            target: None,
            sleeps_after: None,
            hub: Hub::new()?,
            seed: fastrand::u64(..),
        })
    }
}

/// One shard's device.
pub struct Device {
    config: DeviceConfig,
    tables: Tables,
    qps: Slab<Qp>,
    qpns: QpnTable,
    /// Queue pairs with a link.
    live: Vec<Key>,
    /// Queue pairs that wrote or copied in this turn.
    busy: Vec<Key>,
    connector: Option<Connector>,
    hub: Hub,
    /// The sockets of our links.
    epoll: Arc<OwnedFd>,
    doze: Doze,
    next_look: Time,
    now: Time,
}

impl Device {
    /// A device without anything in it.
    pub fn new(config: DeviceConfig) -> io::Result<Device> {
        let mut rng = fastrand::Rng::with_seed(config.seed ^ u64::from(config.shard) << 56);
        let connector = match config.guid {
            Some(guid) => {
                let (target, hub) = (config.target.clone(), config.hub.clone());
                Some(Connector::new(guid, target, hub, rng.u32(..))?)
            }
            None => None,
        };
        let qps = config.sizes.max_qp as usize;
        Ok(Device {
            qps: Slab::new(qps),
            qpns: QpnTable::new(config.shard, config.shard_bits, config.sizes.max_qp, TIME_WAIT),
            live: Vec::with_capacity(qps),
            busy: Vec::with_capacity(qps),
            connector,
            hub: config.hub.clone(),
            epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            // Before the thread itself would sleep, so that it need not wait for us.
            doze: Doze::new(config.sleeps_after.map(|after| after / 2)),
            next_look: Time::ZERO,
            now: Time::ZERO,
            tables: Tables::new(&config, rng),
            config,
        })
    }

    /// Takes requests at this socket, as soon as somebody listens; on the shard that manages
    /// connections only.
    pub fn open(&mut self, socket: OwnedSocket) -> Result<(), VerbsError> {
        let path = socket.path().to_owned();
        self.connector()?.open(socket).map_err(|error| VerbsError::System {
            what: format!("listen at {}", path.display()),
            why: error.to_string(),
        })
    }

    /// Takes no more requests at that socket; its file goes. Connections stay.
    pub fn close(&mut self, path: &Path) {
        if let Some(connector) = &mut self.connector {
            connector.close(path);
        }
    }

    /// Whether a connection came by that socket, which may be closed by now; on the shard that manages
    /// connections only.
    pub fn came_by(&self, conn: ConnId, path: &Path) -> bool {
        self.connector.as_ref().is_some_and(|connector| connector.came_by(conn, path))
    }

    /// Whether connections are managed here.
    pub fn manages_connections(&self) -> bool {
        self.connector.is_some()
    }

    /// What was counted since start, by name.
    pub fn named_counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.tables.counters.named();
        if let Some(connector) = &self.connector {
            all.push(("connections", connector.len() as u64));
            all.push(("half_open", connector.half_open() as u64));
        }
        all
    }

    /// Bytes that an idle queue pair on a shared receive queue takes, for sizing.
    pub const fn queue_pair_bytes() -> usize {
        Qp::idle_bytes()
    }

    fn connector(&mut self) -> Result<&mut Connector, VerbsError> {
        self.connector.as_mut().ok_or(VerbsError::Invalid("shard: connections are managed by another"))
    }

    fn qp(&self, qp: QpId) -> Result<&Qp, VerbsError> {
        self.qps.get(qp.0).ok_or(NO_QP)
    }

    /// Does something to a queue pair that may give it a link or take it away.
    fn change<R>(
        &mut self,
        qp: QpId,
        change: impl FnOnce(&mut Qp, &mut Tables, &Hub) -> R,
    ) -> Result<R, VerbsError> {
        let pair = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
        let had_link = pair.link.is_some();
        let result = change(pair, &mut self.tables, &self.hub);
        self.note(qp.0, had_link);
        self.settle();
        Ok(result)
    }

    /// Keeps the list of the living, after something that may have changed it.
    #[inline]
    fn note(&mut self, key: Key, had_link: bool) {
        let Some(pair) = self.qps.get_mut(key) else { return };
        match (had_link, &mut pair.link) {
            (false, Some(link)) => {
                self.live.push(key);
                let data = u64::from(key.generation) << 32 | u64::from(key.slot);
                if let Err(error) = link.watch(&self.epoll, data) {
                    tracing::error!(%error, "the socket of a connection cannot be watched");
                }
                // It must be told, too, before we sleep.
                let tell = self.doze.wake();
                self.tell(tell);
            }
            (true, None) => self.live.retain(|other| *other != key),
            _ => {}
        }
    }

    /// What a completion queue that ran over means for its queue pairs: they are of no use.
    #[inline]
    fn settle(&mut self) {
        if !self.tables.objects.overrun {
            return;
        }
        while std::mem::take(&mut self.tables.objects.overrun) {
            let Device { qps, tables, .. } = self;
            for (_, pair) in qps.iter_mut() {
                if [pair.init.send_cq, pair.init.recv_cq].iter().any(|cq| tables.objects.is_dead(*cq)) {
                    pair.enter_error(tables, WcStatus::WrFlush);
                }
            }
        }
        let qps = &self.qps;
        self.live.retain(|key| qps.get(*key).is_some_and(|pair| pair.link.is_some()));
    }

    fn tell(&mut self, tell: Tell) {
        let asleep = match tell {
            Tell::Nothing => return,
            Tell::Asleep => true,
            Tell::Awake => false,
        };
        for key in &self.live {
            if let Some(link) = self.qps.get(*key).and_then(|pair| pair.link.as_ref()) {
                link.say_asleep(asleep);
            }
        }
        // Before the rings are looked at once more: whoever wrote and did not see this is seen.
        fence(Ordering::SeqCst);
    }

    /// The copies of the last turn are done, and who sleeps is woken.
    #[inline]
    fn end_turn(&mut self) {
        let Device { busy, qps, tables, .. } = self;
        for key in busy.drain(..) {
            if let Some(pair) = qps.get_mut(key) {
                pair.end_turn(tables);
            }
        }
    }

    /// Takes what is in the rings, and does what waits for room in them.
    #[inline]
    fn take_in(&mut self, now: Time) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some(&key) = self.live.get(at) {
            let Device { qps, tables, busy, .. } = self;
            let Some(pair) = qps.get_mut(key) else { break };
            work += pair.take_in(tables, now);
            if pair.is_stalled() {
                let was_busy = pair.was_busy;
                work += pair.run_sends(tables);
                if pair.was_busy && !was_busy {
                    busy.push(key);
                }
            }
            match pair.link.is_some() {
                true => at += 1,
                false => {
                    self.live.swap_remove(at);
                }
            }
        }
        self.settle();
        work
    }

    /// Looks at the sockets, and whether peers live.
    fn look(&mut self, now: Time) -> usize {
        self.next_look = now + LOOK_EVERY;
        for at in 0..self.live.len() {
            let Some(&key) = self.live.get(at) else { break };
            let _ = self.change(QpId(key), |pair, tables, _| pair.look_alive(tables, now));
        }
        let mut ready = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&*self.epoll, &mut ready[..], Some(&at_once)).unwrap_or(0);
        for event in &ready[..count] {
            let data = event.data.u64();
            let key = Key { slot: data as u32, generation: (data >> 32) as u32 };
            let _ = self.change(QpId(key), hear);
        }
        count + self.connector.as_mut().map_or(0, |connector| connector.look(now))
    }
}

/// The socket of a queue pair's connection has something to say.
fn hear(pair: &mut Qp, tables: &mut Tables, hub: &Hub) {
    let Some(link) = &mut pair.link else { return };
    let (heard, number) = (link.look(), link.number);
    tables.counters.bells_heard += u64::from(heard.bell);
    if heard.ready {
        hub.tell(number, Notice::Ready);
    }
    if heard.bye {
        hub.tell(number, Notice::Bye);
    } else if heard.gone {
        tables.counters.peers_gone += 1;
        hub.tell(number, Notice::Gone);
    }
    if heard.bye || heard.gone {
        // As when a peer acknowledges nothing any more.
        pair.enter_error(tables, WcStatus::RetryExceeded);
    }
}

impl Verbs for Device {
    fn caps(&self) -> DeviceCaps {
        DeviceCaps {
            max_qp: self.config.sizes.max_qp,
            max_cqe: 1 << 17,
            max_srq_wr: 1 << 15,
            max_send_wr: 1 << 12,
            max_rd_atomic: 128,
            max_message_bytes: MAX_RECORD_BYTES as u32,
            last_wqe_event: true,
            recycling: Recycling::NewNumber,
        }
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.tables.objects.alloc_pd()
    }

    /// Memory that peers can map.
    fn allocate(&mut self, len_bytes: usize, access: Access) -> Result<Region, VerbsError> {
        if !access.remote_read && !access.remote_write {
            return Ok(Region::heap(len_bytes.max(1).next_multiple_of(PAGE_BYTES)));
        }
        reactors::shared::create("srpoll-memory", len_bytes).map_err(|error| VerbsError::System {
            what: format!("make shared memory of {len_bytes} bytes"),
            why: error.to_string(),
        })
    }

    fn register(&mut self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys, VerbsError> {
        self.tables.objects.check_pd(pd)?;
        if (access.remote_read || access.remote_write) && region.memfd().is_none() {
            return Err(VerbsError::Invalid("memory: the peer can only reach what the device allocated"));
        }
        let Device { tables, live, qps, .. } = self;
        let objects = &mut tables.objects;
        let keys = objects.mrs.register(pd, region, access, &mut objects.rng)?;
        for key in &*live {
            let Some(pair) = qps.get(*key).filter(|pair| pair.init.pd == pd && pair.init.remote_access)
            else {
                continue;
            };
            if let Some(link) = &pair.link
                && !link.export(keys, region, access)
            {
                tracing::warn!(peer = %link.peer, "a peer that does not read its messages cannot see new memory");
            }
        }
        Ok(keys)
    }

    /// Takes effect at the peer as soon as it reads its messages. Who must know that nothing is
    /// written any more ends the queue pair first.
    fn deregister(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        let (pd, keys) = self.tables.objects.mrs.find(lkey).ok_or(VerbsError::NotFound("memory region"))?;
        let of_pd = self.live.iter().filter_map(|key| self.qps.get(*key)).filter(|pair| pair.init.pd == pd);
        for link in of_pd.filter(|pair| pair.init.remote_access).filter_map(|pair| pair.link.as_ref()) {
            link.revoke(keys.rkey);
        }
        self.tables.objects.mrs.deregister(lkey)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let most = self.caps().max_cqe;
        self.tables.objects.create_cq(depth, most)
    }

    fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId, VerbsError> {
        let most = self.caps().max_srq_wr;
        self.tables.objects.create_srq(pd, depth, most)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let gone = self.tables.objects.destroy_cq(cq, self.qps.iter().map(|(_, pair)| &pair.init))?;
        self.tables.unpolled -= gone.len();
        Ok(())
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        self.tables.objects.destroy_srq(srq, self.qps.iter().map(|(_, pair)| &pair.init))
    }

    fn posted_srq_recvs(&self, srq: SrqId) -> Option<u32> {
        Some(self.tables.objects.posted_srq_recvs(srq))
    }

    fn arm_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), VerbsError> {
        self.tables.objects.arm_srq_limit(srq, limit)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<QpId, VerbsError> {
        self.tables.objects.check(init)?;
        let most = self.caps().max_send_wr;
        if init.max_send_wr == 0 || init.max_send_wr > most || init.max_recv_wr > most {
            return Err(VerbsError::Invalid("max_send_wr or max_recv_wr"));
        }
        let key = self.qps.next_key().ok_or(VerbsError::Exhausted("queue pair"))?;
        let qpn = self.qpns.assign(self.now, key, &mut self.tables.objects.rng);
        let inserted = self.qps.insert(Qp::new(key, qpn, *init));
        inserted.map(QpId).map_err(|_| VerbsError::Exhausted("queue pair"))
    }

    fn qpn(&self, qp: QpId) -> Result<Qpn, VerbsError> {
        Ok(self.qp(qp)?.qpn)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        Ok(self.qp(qp)?.state)
    }

    fn modify_qp(&mut self, now: Time, qp: QpId, change: &QpModify) -> Result<(), VerbsError> {
        self.change(qp, |pair, tables, hub| pair.modify(tables, hub, now, change))?
    }

    fn retire_qp(&mut self, now: Time, qp: QpId, how: Retire) -> Result<(), VerbsError> {
        let outcome = match how {
            Retire::Destroy => {
                self.destroy_qp(now, qp)?;
                Retired::Destroyed
            }
            Retire::Recycle => {
                self.modify_qp(now, qp, &QpModify::Reset)?;
                let pair = self.qps.get_mut(qp.0).ok_or(NO_QP)?;
                self.qpns.free(now, pair.qpn);
                pair.qpn = self.qpns.assign(now, qp.0, &mut self.tables.objects.rng);
                self.modify_qp(now, qp, &QpModify::Init)?;
                Retired::Recycled
            }
        };
        self.tables.objects.events.push_back(AsyncEvent::QpRetired { qp, outcome });
        Ok(())
    }

    fn destroy_qp(&mut self, now: Time, qp: QpId) -> Result<(), VerbsError> {
        self.modify_qp(now, qp, &QpModify::Reset)?;
        let ended = self.qps.remove(qp.0).ok_or(NO_QP)?;
        self.qpns.free(now, ended.qpn);
        Ok(())
    }

    #[inline]
    fn post_send(&mut self, _: Time, qp: QpId, wr: &SendWr) -> Result<(), VerbsError> {
        let Some(pair) = self.qps.get_mut(qp.0) else { return Err(NO_QP) };
        let was_busy = pair.was_busy;
        let posted = pair.post_send(&mut self.tables, wr);
        if pair.was_busy && !was_busy {
            self.busy.push(qp.0);
        }
        if pair.link.is_none() {
            self.live.retain(|other| *other != qp.0);
        }
        self.settle();
        posted.map_err(VerbsError::from)
    }

    fn post_recv(&mut self, qp: QpId, wr: &RecvWr) -> Result<(), VerbsError> {
        self.qps.get_mut(qp.0).ok_or(NO_QP)?.post_recv(&mut self.tables, wr)
    }

    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr) -> Result<(), VerbsError> {
        self.tables.objects.srq(srq)?.post(wr)
    }

    #[inline]
    fn poll_cq(&mut self, cq: CqId, into: &mut [Wc]) -> usize {
        let count = self.tables.objects.cqs.get_mut(cq.0).map_or(0, |cq| cq.poll(into));
        self.tables.unpolled -= count;
        count
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.tables.objects.events.pop_front()
    }

    fn last_heard(&self, qp: QpId) -> Result<Time, VerbsError> {
        Ok(self.qp(qp)?.last_heard())
    }

    fn progress(&mut self, now: Time) -> usize {
        self.now = now;
        self.end_turn();
        let mut work = self.take_in(now);
        let news = self.connector.as_ref().is_some_and(Connector::has_news);
        if now >= self.next_look || self.doze.is_told() || news {
            work += self.look(now);
        }
        let tell = self.doze.after_turn(now, work > 0);
        self.tell(tell);
        work
    }

    fn next_deadline(&self) -> Time {
        let due = self.tables.unpolled > 0
            || !self.tables.objects.events.is_empty()
            || !self.busy.is_empty()
            || !self.doze.may_sleep();
        if due {
            return Time::ZERO;
        }
        // Nobody rings for room in a ring.
        let stalled = self.live.iter().filter_map(|key| self.qps.get(*key)).any(Qp::is_stalled);
        let look = if stalled { self.next_look } else { Time::NEVER };
        look.min(self.connector.as_ref().map_or(Time::NEVER, Connector::deadline))
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let connector = self.connector.as_ref().map(Connector::wait_fd);
        std::iter::once(self.epoll.as_raw_fd()).chain(connector).collect()
    }
}

impl Connections for Device {
    fn listen(&mut self, _: Option<std::net::IpAddr>, service: Service) -> Result<ListenerId, VerbsError> {
        self.connector()?.listen(service)
    }

    fn unlisten(&mut self, listener: ListenerId) -> Result<(), VerbsError> {
        self.connector()?.unlisten(listener)
    }

    fn connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        self.connector()?.connect(now, attr)
    }

    fn accept(&mut self, _: Time, conn: ConnId, reply: &ConnReply, private: &[u8]) -> Result<(), VerbsError> {
        self.connector()?.accept(conn, reply, private)
    }

    fn reject(&mut self, _: Time, conn: ConnId, reason: u16, private: &[u8]) -> Result<(), VerbsError> {
        self.connector()?.reject(conn, reason, private)
    }

    fn established(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.connector()?.established(conn)
    }

    fn disconnect(&mut self, _: Time, conn: ConnId) -> Result<(), VerbsError> {
        self.connector()?.disconnect(conn)
    }

    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.connector.as_mut()?.next_event()
    }
}
