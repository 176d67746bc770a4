//! What the control plane asks of a shard: configuration, listeners, queries, the end.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reactors::time::Time;

use super::access::InitiatorId;
use super::dying::Meant;
use super::fabric::Fabric;
use super::handle::{ChannelInfo, Command, EndingInfo, Reply, ReplySlot, Request, SessionId, ShardStats};
use super::limits::CHUNK_BYTES;
use super::listener::{Listener, Port};
use super::message::Message;
use super::shard::{Shard, target_info};
use super::snapshot::Snapshot;
use super::why::Why;
use crate::rdma::verbs::{Farewell, ListenerId, Path, Service};
use crate::scsi::Condition;

/// The end of the target's service, in progress.
struct Leaving {
    reply: ReplySlot,
    deadline: Time,
    /// Commands that were cut off.
    cut: usize,
}

/// What the control plane waits for, and the listeners.
#[derive(Default)]
pub(super) struct Admin {
    listeners: HashMap<Listener, Vec<ListenerId>>,
    /// What is open here for listeners.
    ports: HashSet<Port>,
    /// On shard 0: ports without a listener that close on all shards with the last session.
    closing: Vec<Port>,
    /// Configurations that removed a logical unit and wait until its commands are done.
    applying: Vec<ReplySlot>,
    leaving: Option<Leaving>,
    stopped: bool,
}

impl Admin {
    /// Whether the slow lane has something to do for the control plane.
    pub(super) fn is_busy(&self) -> bool {
        !self.applying.is_empty() || self.leaving.is_some()
    }

    /// Whether the service ends: what is in progress is finished, and nothing new begins.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether the shard was told to leave its reactor.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }
}

impl<F: Fabric> Shard<F> {
    pub(super) fn on_command(&mut self, now: Time, command: Command) {
        let Command { request, reply } = command;
        match request {
            Request::Apply(snapshot) => self.apply(snapshot, reply),
            Request::AddListener(listener) => reply.send(self.add_listener(listener)),
            Request::RemoveListener(listener) => reply.send(self.remove_listener(&listener)),
            Request::EndSessionsOf(Listener::Ip(address)) => {
                self.end_channels(Meant::Listener(address), Why::ListenerRemoved, reply);
            }
            Request::EndSessionsOf(Listener::Shm(socket)) => {
                reply.send(Reply::Count(self.end_sessions_of(&socket)));
            }
            Request::Pending { min_age, most } => {
                reply.send(Reply::Pending(Box::new(self.pending(now, min_age, most))));
            }
            Request::Sessions => reply.send(Reply::Channels(self.channel_infos(now))),
            Request::Farewells => reply.send(Reply::Farewells(self.farewells())),
            Request::SayFarewells(list) => reply.send(Reply::Count(self.say_farewells(now, &list))),
            Request::Stats => reply.send(Reply::Stats(Box::new(self.stats()))),
            Request::Stages { lun, reset } => reply.send(Reply::Stages(self.luns.read_stages(lun, reset))),
            Request::Disconnect(session) => {
                self.end_channels(Meant::Session(session), Why::Kicked, reply);
            }
            Request::Drain(within) => self.leave(now, within, reply),
            Request::Stop => {
                self.admin.stopped = true;
                reply.send(Reply::Done);
            }
        }
    }

    fn apply(&mut self, snapshot: Arc<Snapshot>, reply: ReplySlot) {
        match self.open_luns(&snapshot) {
            Ok(changes) => {
                self.target = target_info(&snapshot);
                // Only the registry raises, so that each nexus hears of it once.
                if let Some(acceptor) = &self.acceptor {
                    if changes.inventory {
                        let luns = snapshot.luns.iter().map(|entry| entry.lun);
                        acceptor.raise_all(luns, Condition::LunsChanged);
                    }
                    for lun in changes.resized {
                        acceptor.raise(lun, Condition::CapacityChanged, None);
                    }
                }
                self.snapshot = snapshot;
                self.admin.applying.push(reply);
                self.wake_slow_lane();
            }
            Err(error) => reply.send(Reply::Refused(error.to_string())),
        }
    }

    fn add_listener(&mut self, listener: Listener) -> Reply {
        if self.admin.listeners.contains_key(&listener) {
            return Reply::Refused(format!("{listener} is served already"));
        }
        let port = listener.port();
        let first = !self.admin.listeners.keys().any(|other| other.port() == port);
        self.admin.closing.retain(|closing| *closing != port);
        if !self.admin.ports.contains(&port) {
            if let Err(error) = self.fabric.open_port(&port) {
                return Reply::Refused(error.to_string());
            }
            self.admin.ports.insert(port);
        }
        let mut ids = Vec::new();
        if self.acceptor.is_some() {
            for (address, service) in self.services(&listener, first) {
                match self.fabric.listen(address, service) {
                    Ok(id) => ids.push(id),
                    Err(error) => {
                        self.admin.listeners.insert(listener.clone(), ids);
                        self.remove_listener(&listener);
                        return Reply::Refused(format!("{listener}: {error}"));
                    }
                }
            }
        }
        self.admin.listeners.insert(listener, ids);
        Reply::Done
    }

    /// What is listened for at a listener; the plain IB CM at the `first` one of an address only.
    fn services(&self, listener: &Listener, first: bool) -> Vec<(Option<IpAddr>, Service)> {
        let Listener::Ip(address) = listener else { return vec![(None, Service::Shm)] };
        let ib_cm = self.snapshot.identity.map(|identity| Service::IbCm { service_id: identity.ioc_guid });
        let services = [Some(Service::RdmaCm { port: address.port() }), ib_cm.filter(|_| first)];
        services.into_iter().flatten().map(|service| (Some(address.ip()), service)).collect()
    }

    fn remove_listener(&mut self, listener: &Listener) -> Reply {
        let Some(ids) = self.admin.listeners.remove(listener) else {
            return Reply::Refused(format!("{listener} is not served"));
        };
        for id in ids {
            if let Err(error) = self.fabric.unlisten(id) {
                tracing::debug!(%listener, %error, "a listener was gone already");
            }
        }
        // Sessions that came by this port stay, and need it on their shard and on shard 0.
        let port = listener.port();
        let in_use = self.admin.listeners.keys().any(|other| other.port() == port);
        if self.acceptor.is_some() && !in_use && !self.admin.closing.contains(&port) {
            self.admin.closing.push(port);
            self.wake_slow_lane();
        }
        Reply::Done
    }

    /// Closes ports on all shards that nothing uses any more.
    fn close_ports(&mut self) {
        let Some(acceptor) = &self.acceptor else { return };
        let peers = &mut self.peers;
        self.admin.closing.retain(|port| {
            // Connections of shared memory have sockets of their own.
            let in_use = matches!(port, Port::Ip(address) if acceptor.uses(*address));
            if !in_use {
                (0..peers.shards()).for_each(|shard| peers.send(shard, Message::ClosePort(port.clone())));
            }
            in_use
        });
    }

    /// Shard 0 says that nothing uses this port any more.
    pub(super) fn close_port(&mut self, port: &Port) {
        let served = self.admin.listeners.keys().any(|listener| listener.port() == *port);
        if !served && self.admin.ports.remove(port) {
            self.fabric.close_port(port);
        }
    }

    fn farewells(&mut self) -> Vec<Farewell> {
        self.acceptor.as_ref().map_or_else(Vec::new, |acceptor| acceptor.farewells(&mut self.fabric))
    }

    /// Ends connections of a process before this one at the addresses that are served; gives how many.
    fn say_farewells(&mut self, now: Time, farewells: &[Farewell]) -> usize {
        let mut told = 0;
        for farewell in
            farewells.iter().filter(|farewell| self.admin.ports.contains(&Port::Ip(farewell.path.local)))
        {
            match self.fabric.say_farewell(now, farewell) {
                Ok(()) => told += 1,
                Err(error) => {
                    tracing::debug!(peer = %farewell.path.remote, %error, "an old connection is not ended");
                }
            }
        }
        told
    }

    /// Ends the channels that came by a socket: the registry knows their connections.
    fn end_sessions_of(&mut self, socket: &std::path::Path) -> usize {
        let Some(acceptor) = &self.acceptor else { return 0 };
        let came_by = |conn| self.fabric.came_by(conn, socket);
        acceptor.end_channels(&Why::ListenerRemoved, came_by, &mut self.peers)
    }

    fn leave(&mut self, now: Time, within: Duration, reply: ReplySlot) {
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.close();
        }
        self.admin.leaving = Some(Leaving { reply, deadline: now + within, cut: 0 });
        self.wake_slow_lane();
    }

    /// Answers what has become true meanwhile.
    pub(super) fn step_admin(&mut self, now: Time) {
        self.close_ports();
        if !self.luns.has_retired() {
            for reply in self.admin.applying.drain(..) {
                reply.send(Reply::Done);
            }
        }
        let Some(mut leaving) = self.admin.leaving.take() else { return };
        let overdue = now >= leaving.deadline;
        let ending: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.life.takes_ius() && (overdue || channel.roll.is_empty()))
            .map(|(key, channel)| (key, channel.roll.len()))
            .collect();
        for (key, tasks) in ending {
            leaving.cut += tasks;
            self.end_channel(now, key, Why::ShutDown);
        }
        let told = self.acceptor.as_ref().is_none_or(|acceptor| acceptor.is_empty());
        if overdue || (self.channels.is_empty() && told) {
            leaving.reply.send(Reply::Count(leaving.cut));
        } else {
            self.admin.leaving = Some(leaving);
        }
    }

    fn channel_infos(&self, now: Time) -> Vec<ChannelInfo> {
        self.channels
            .iter()
            .map(|(_, channel)| ChannelInfo {
                session: session_id(&channel.nexus.id),
                index: channel.index,
                shard: self.index,
                qpn: channel.qpn.get(),
                local: Some(channel.path.local).filter(|_| channel.path != Path::NONE),
                peer: channel.peer,
                state: channel.life.word(),
                ending: channel.exit.as_ref().map(|exit| EndingInfo {
                    why: exit.why.to_string(),
                    since_ms: now.since(exit.drain.since).as_millis() as u64,
                    waits_for: exit.drain.missing(channel.last_wqe, channel.roll.len()),
                }),
                credits: channel.srp.credit().granted(),
                commands: channel.roll.len() as u32,
                commands_total: channel.srp.counts().commands,
                read_bytes: channel.read_bytes,
                written_bytes: channel.written_bytes,
                it_iu_bytes: channel.srp.params().max_it_iu_bytes,
                immediate_data: channel.srp.params().immediate_offset.is_some(),
                segmented_sends: self.fabric.segments_on(&channel.path),
                age_ms: now.since(channel.since).as_millis() as u64,
            })
            .collect()
    }

    fn stats(&self) -> ShardStats {
        let slots = self.slots.counts();
        let mut counters = self.counts.named();
        counters.extend([
            ("channels_draining", self.draining.len() as u64),
            ("qps_retiring", self.retirements.len() as u64),
            ("qps_spare", self.spares.len() as u64),
            ("qps_cooling", self.spares.cooling() as u64),
            ("orphans_now", self.tasks.iter().filter(|(_, task)| !task.attached).count() as u64),
            ("memory_free_bytes", self.pool.free_bytes() as u64),
            ("memory_bytes", self.pool.capacity_bytes() as u64),
            ("recv_total", slots.total.into()),
            ("recv_held", slots.held.into()),
            ("recv_granted", slots.granted.into()),
            ("recv_memory_bytes", self.slots.region().len_bytes() as u64),
            ("recv_posts", slots.posts),
            ("recv_returns", slots.returns),
            ("idle_channel_bytes", Self::idle_channel_bytes() as u64),
        ]);
        if let Some(acceptor) = &self.acceptor {
            counters.push(("logins_accepted", acceptor.counts.accepted));
            counters.push(("logins_refused", acceptor.counts.refused));
            counters.push(("logins_abandoned", acceptor.counts.abandoned));
            counters.push(("sessions", acceptor.nexuses() as u64));
        }
        counters.extend(self.fabric.counters());
        ShardStats {
            shard: self.index,
            core: self.core,
            tid: self.tid,
            reactor: self.reactor.read(),
            pollers: vec![format!("srp_shard_{}", self.index)],
            counters,
            channels: self.channels.len() as u32,
            tasks: self.tasks.len() as u32,
            recv_posted: slots.posted,
            chunks_free: (self.pool.free_bytes() / CHUNK_BYTES) as u32,
        }
    }
}

pub(super) fn session_id(nexus: &super::nexus::NexusId) -> SessionId {
    SessionId { initiator: InitiatorId(nexus.initiator.0), target: nexus.target.0 }
}
