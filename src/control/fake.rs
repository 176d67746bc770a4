//! Shards for tests of the control plane: threads that answer commands and keep what they were
//! told. They serve nobody.

use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use crate::control::model::Model;
use crate::rdma::verbs::Peer;
use crate::target::handle::{
    ChannelInfo, Command, CommandSink, Reply, Request, SessionId, ShardStats, TargetHandle,
};
use crate::target::identity::Keeper;
use crate::target::limits::Limits;
use crate::target::listener::Listener;
use crate::target::pending::Pending;
use crate::target::snapshot::Snapshot;
use crate::target::stages::Stages;

/// What one shard knows.
#[derive(Default)]
pub(crate) struct Shard {
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) channels: Vec<ChannelInfo>,
    pub(crate) stages: Stages,
    /// What is not done.
    pub(crate) pending: Pending,
    /// The next change is refused with this.
    pub(crate) refuse: Option<String>,
}

/// The shards of one test.
pub(crate) struct FakeShards {
    shards: Vec<Arc<Mutex<Shard>>>,
    pub(crate) handle: TargetHandle,
}

impl FakeShards {
    pub(crate) fn start(count: usize) -> FakeShards {
        let shards: Vec<_> = (0..count).map(|_| Arc::new(Mutex::new(Shard::default()))).collect();
        let sinks = shards.iter().enumerate().map(|(number, shard)| sink(number, shard.clone())).collect();
        FakeShards { shards, handle: TargetHandle::new(sinks, Box::new(|| {})) }
    }

    pub(crate) fn shard(&self, number: usize) -> MutexGuard<'_, Shard> {
        self.shards[number].lock().unwrap()
    }

    /// A model that drives these shards; its identity is derived for `instance`.
    pub(crate) fn model(&self, instance: &str) -> Model {
        Model::new(self.handle.clone(), Keeper::derived(None, instance), Limits::default())
    }
}

fn sink(number: usize, shard: Arc<Mutex<Shard>>) -> CommandSink {
    let (to, commands) = mpsc::channel::<Command>();
    std::thread::spawn(move || {
        for command in commands {
            let last = matches!(command.request, Request::Stop);
            let reply = shard.lock().unwrap().answer(number, command.request);
            command.reply.send(reply);
            if last {
                return;
            }
        }
    });
    Box::new(move |command| to.send(command).map_err(|error| error.0))
}

impl Shard {
    fn answer(&mut self, number: usize, request: Request) -> Reply {
        let change =
            matches!(request, Request::Apply(_) | Request::AddListener(_) | Request::RemoveListener(_));
        if change && let Some(why) = self.refuse.take() {
            return Reply::Refused(why);
        }
        match request {
            Request::Apply(snapshot) => {
                let before = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.epoch);
                assert!(snapshot.epoch > before, "epochs grow");
                self.snapshot = Some(snapshot);
                Reply::Done
            }
            Request::AddListener(listener) => {
                self.listeners.push(listener);
                Reply::Done
            }
            Request::RemoveListener(listener) => {
                self.listeners.retain(|there| *there != listener);
                Reply::Done
            }
            Request::EndSessionsOf(listener) => {
                let before = self.channels.len();
                let ip = match listener {
                    Listener::Ip(address) => Some(address.ip()),
                    Listener::Shm(_) => None,
                };
                self.channels.retain(|channel| channel.local != ip);
                Reply::Count(before - self.channels.len())
            }
            Request::Pending { .. } => Reply::Pending(Box::new(self.pending.clone())),
            Request::Sessions => Reply::Channels(self.channels.clone()),
            Request::Stats => Reply::Stats(Box::new(ShardStats {
                shard: number,
                core: Some(number + 2),
                pollers: vec!["srp".to_owned()],
                counters: vec![("rx_bad_icrc", 7)],
                ..ShardStats::default()
            })),
            Request::Stages { lun, reset } => {
                Reply::Stages(self.stages.read(lun.unwrap_or(0), reset).collect())
            }
            Request::Disconnect(session) => {
                let before = self.channels.len();
                self.channels.retain(|channel| channel.session != session);
                Reply::Count(before - self.channels.len())
            }
            Request::Drain(_) => Reply::Count(std::mem::take(&mut self.channels).len()),
            Request::Farewells => Reply::Farewells(Vec::new()),
            Request::SayFarewells(list) => Reply::Count(list.len()),
            Request::Stop => Reply::Done,
        }
    }
}

/// A channel of `session` on `shard`.
pub(crate) fn channel(session: SessionId, shard: usize, index: u32) -> ChannelInfo {
    ChannelInfo {
        session,
        index,
        shard,
        qpn: 0x100 + index,
        local: "127.0.0.1".parse().ok(),
        peer: Peer::Address("127.0.0.2".parse().unwrap()),
        state: "live",
        ending: None,
        credits: 64,
        commands: 1,
        commands_total: 10,
        read_bytes: 4096,
        written_bytes: 512,
        it_iu_bytes: 8260,
        immediate_data: true,
        segmented_sends: Some(index == 0),
        age_ms: 5,
    }
}
