//! How the control plane speaks to the shards: commands in, replies back, nothing shared.
//!
//! A [`Command`] reaches a shard's inbox by ring. The shard answers through the command's
//! [`ReplySlot`] when it is done, maybe many turns later; the control plane waits, for a bounded
//! time. A shard never waits for the control plane.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use reactors::reactor::Idle;
use reactors::stats::ReactorReading;

use super::access::InitiatorId;
use super::listener::Listener;
use super::pending::Pending;
use super::snapshot::Snapshot;
use super::stages::StageReading;
use crate::rdma::soft::Fault;
use crate::rdma::verbs::{Farewell, Peer};

/// How long the control plane waits for an answer that needs no I/O of a peer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What a target is started with; fixed for its life.
#[derive(Clone, Debug)]
pub struct StartConfig {
    /// One shard each: pinned to that core, or not pinned.
    pub cores: Vec<Option<usize>>,
    /// What a shard without work does.
    pub idle: Idle,
    /// Whether memory comes from huge pages.
    pub hugepages: Hugepages,
    /// The first configuration; carries the limits.
    pub snapshot: Arc<Snapshot>,
    /// What carries the traffic.
    pub provider: Provider,
}

/// What carries a target's traffic.
#[derive(Clone, Debug)]
pub enum Provider {
    /// The built-in RoCEv2 over UDP.
    Soft {
        /// Faults to inject into datagrams, both ways.
        fault: Option<Fault>,
    },
    /// An RDMA adapter.
    #[cfg(feature = "ibv")]
    Ibv(crate::rdma::ibv::Adapter),
    /// Shared memory, with processes of this host.
    Shm,
}

/// Whether memory comes from huge pages.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Hugepages {
    /// If there are any; else ordinary pages, with a log line.
    #[default]
    Auto,
    /// No huge pages is an error.
    Require,
    /// Never.
    Off,
}

/// A session: the I_T nexus by its two port ids.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SessionId {
    /// Initiator port id.
    pub initiator: InitiatorId,
    /// Target port id.
    pub target: [u8; 16],
}

/// What is asked of a shard.
#[derive(Clone, Debug)]
pub enum Request {
    /// Take this configuration; answer [`Reply::Done`] when no command admitted under the old
    /// one conflicts with it any more.
    Apply(Arc<Snapshot>),
    /// Take part in serving there. Sent to shard 0 first and to the next one when the one before has
    /// answered.
    AddListener(Listener),
    /// Take no new logins there; sessions stay.
    RemoveListener(Listener),
    /// End the channels that came by this listener: [`Reply::Count`] of them.
    EndSessionsOf(Listener),
    /// Say what is not done: [`Reply::Pending`].
    Pending {
        /// Commands that are older.
        min_age: Duration,
        /// Commands at most.
        most: usize,
    },
    /// Say which channels there are: [`Reply::Channels`].
    Sessions,
    /// Asked of shard 0: say what would end the open connections: [`Reply::Farewells`].
    Farewells,
    /// Asked of shard 0: end these connections of a process before this one; [`Reply::Count`] of peers that are
    /// being told.
    SayFarewells(Vec<Farewell>),
    /// Say how busy the shard is: [`Reply::Stats`].
    Stats,
    /// Say how long commands were in which stage, on one logical unit or on all, and count anew from
    /// now on if `reset`: [`Reply::Stages`].
    Stages {
        /// The one logical unit.
        lun: Option<u16>,
        /// Whether counts begin anew.
        reset: bool,
    },
    /// End the channels of this session: [`Reply::Count`] of channels told to go.
    Disconnect(SessionId),
    /// Take no new logins, end all channels when their commands are done, at the latest after
    /// this time; then [`Reply::Count`] of commands that were cut off.
    Drain(Duration),
    /// Leave the reactor; [`Reply::Done`].
    Stop,
}

/// A request and where its answer goes.
#[derive(Debug)]
pub struct Command {
    /// What is asked.
    pub request: Request,
    /// Where the answer goes.
    pub reply: ReplySlot,
}

/// Takes the one answer of one shard. Dropped without an answer it says [`Reply::Gone`].
#[derive(Debug)]
pub struct ReplySlot {
    shard: usize,
    to: Option<mpsc::Sender<(usize, Reply)>>,
}

impl ReplySlot {
    /// A slot for the answer of `shard`, which comes out of the other end of `to`.
    pub fn new(shard: usize, to: mpsc::Sender<(usize, Reply)>) -> Self {
        ReplySlot { shard, to: Some(to) }
    }

    /// Answers; never blocks. An asker that has given up is no error.
    pub fn send(mut self, reply: Reply) {
        if let Some(to) = self.to.take() {
            let _ = to.send((self.shard, reply));
        }
    }
}

impl Drop for ReplySlot {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            let _ = to.send((self.shard, Reply::Gone));
        }
    }
}

/// A shard's answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Done.
    Done,
    /// Not done, nothing changed; the text says why.
    Refused(String),
    /// How many.
    Count(usize),
    /// The channels of this shard.
    Channels(Vec<ChannelInfo>),
    /// What would end the open connections.
    Farewells(Vec<Farewell>),
    /// What is not done there.
    Pending(Box<Pending>),
    /// How the shard fares.
    Stats(Box<ShardStats>),
    /// How long commands were in which stage, by logical unit and class.
    Stages(Vec<StageReading>),
    /// The shard has ended.
    Gone,
}

/// One channel of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelInfo {
    /// Of which session.
    pub session: SessionId,
    /// Its number in the session's order of logins.
    pub index: u32,
    /// The shard it lives on.
    pub shard: usize,
    /// Our queue pair.
    pub qpn: u32,
    /// Our address, if connections have any.
    pub local: Option<IpAddr>,
    /// Who is at the other end.
    pub peer: Peer,
    /// Its state in words: `live`, `draining`, ...
    pub state: &'static str,
    /// Why it ends, if it does.
    pub ending: Option<EndingInfo>,
    /// Credits granted to it.
    pub credits: u32,
    /// Commands in progress.
    pub commands: u32,
    /// Commands taken since login.
    pub commands_total: u64,
    /// Bytes read by the initiator since login.
    pub read_bytes: u64,
    /// Bytes written by the initiator since login.
    pub written_bytes: u64,
    /// The longest IU it may send, in bytes.
    pub it_iu_bytes: u32,
    /// Whether it may send immediate data.
    pub immediate_data: bool,
    /// Whether several packets to it leave in one call: not if those behind the first get lost on the way, as
    /// behind adapters that number segments otherwise. `None` where the provider makes no packets.
    pub segmented_sends: Option<bool>,
    /// Milliseconds since its login.
    pub age_ms: u64,
}

/// Why a channel ends, and how far it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndingInfo {
    /// The reason, in words.
    pub why: String,
    /// Milliseconds since the end began.
    pub since_ms: u64,
    /// What its drain still waits for, in words; empty if for nothing.
    pub waits_for: String,
}

/// A session with its channels, put together from all shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// Which.
    pub id: SessionId,
    /// Its channels, by index.
    pub channels: Vec<ChannelInfo>,
}

/// How a shard fares. Numbers since start unless said otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardStats {
    /// Which shard.
    pub shard: usize,
    /// The core that its thread is pinned to.
    pub core: Option<usize>,
    /// The kernel's id of its thread.
    pub tid: i32,
    /// What its reactor did.
    pub reactor: ReactorReading,
    /// Names of its pollers.
    pub pollers: Vec<String>,
    /// Channels now.
    pub channels: u32,
    /// Commands in progress now.
    pub tasks: u32,
    /// Receive slots posted now.
    pub recv_posted: u32,
    /// Free chunks of the data arena now.
    pub chunks_free: u32,
    /// Everything that is counted, by name, e.g. `rx_bad_icrc`.
    pub counters: Vec<(&'static str, u64)>,
}

/// Why the target did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandleError {
    /// A shard said no; its words.
    #[error("{0}")]
    Refused(String),
    /// A shard did not answer in time.
    #[error("shard {shard} did not answer {what} within {within:?}")]
    Late {
        /// Which shard.
        shard: usize,
        /// What was asked.
        what: &'static str,
        /// How long was waited.
        within: Duration,
    },
    /// A shard has ended.
    #[error("shard {shard} has ended")]
    Gone {
        /// Which shard.
        shard: usize,
    },
}

/// Puts a command into one shard's inbox; gives it back when the inbox is full.
pub type CommandSink = Box<dyn Fn(Command) -> Result<(), Command> + Send + Sync>;

struct Inner {
    shards: Vec<CommandSink>,
    /// Waits for the threads to end; taken by the first stop.
    join: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    stopped: AtomicBool,
}

/// The running target, as the control plane sees it. Clones are the same target.
#[derive(Clone)]
pub struct TargetHandle {
    inner: Arc<Inner>,
    seatings: Arc<AtomicU64>,
}

impl TargetHandle {
    /// A target of these shards; `join` waits for their threads after they were told to stop.
    pub fn new(shards: Vec<CommandSink>, join: Box<dyn FnOnce() + Send>) -> TargetHandle {
        TargetHandle {
            inner: Arc::new(Inner { shards, join: Mutex::new(Some(join)), stopped: AtomicBool::new(false) }),
            seatings: Arc::default(),
        }
    }

    /// The same target; `seatings` is what its shard 0 counts whenever a connection came or went.
    pub fn with_seatings(self, seatings: Arc<AtomicU64>) -> TargetHandle {
        TargetHandle { seatings, ..self }
    }

    /// Another number than before when connections came or went. Asks no shard.
    pub fn seatings(&self) -> u64 {
        self.seatings.load(Ordering::Acquire)
    }

    /// How many shards it has.
    pub fn shards(&self) -> usize {
        self.inner.shards.len()
    }

    /// Gives `snapshot` to every shard and waits until all work by it.
    pub fn apply(&self, snapshot: &Arc<Snapshot>) -> Result<(), HandleError> {
        let request = Request::Apply(snapshot.clone());
        let what = "a new configuration";
        // Shard 0 is the last: it raises the unit attentions, and an initiator that hears of a
        // change must see it on whichever shard it looks.
        self.gather(1..self.shards(), &request, what, ANSWER_WITHIN)?;
        self.ask_one(0, request, what, ANSWER_WITHIN).map(drop)
    }

    /// Serves a listener, shard after shard. On an error no shard serves it.
    pub fn add_listener(&self, listener: &Listener) -> Result<(), HandleError> {
        for shard in 0..self.shards() {
            let request = Request::AddListener(listener.clone());
            if let Err(error) = self.ask_one(shard, request, "a new listener", ANSWER_WITHIN) {
                let _ = self.remove_listener(listener);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends a listener on every shard; its sessions stay.
    pub fn remove_listener(&self, listener: &Listener) -> Result<(), HandleError> {
        let request = Request::RemoveListener(listener.clone());
        self.ask_all(&request, "the end of a listener", ANSWER_WITHIN).map(drop)
    }

    /// Ends the sessions that came by a listener; gives how many channels they had there.
    pub fn end_sessions_of(&self, listener: Listener) -> Result<usize, HandleError> {
        let request = Request::EndSessionsOf(listener);
        let replies = self.ask_all(&request, "the end of a listener's sessions", ANSWER_WITHIN)?;
        Ok(replies.iter().map(count).sum())
    }

    /// What is not done: the `most` oldest commands of at least `min_age`, and the queue pairs whose
    /// channels are over.
    pub fn pending(&self, min_age: Duration, most: usize) -> Result<Pending, HandleError> {
        let request = Request::Pending { min_age, most };
        let replies = self.ask_all(&request, "for what is pending", ANSWER_WITHIN)?;
        let mut all = Pending::default();
        for reply in replies {
            if let Reply::Pending(pending) = reply {
                all.merge(*pending, most);
            }
        }
        Ok(all)
    }

    /// All sessions with their channels, sorted by id.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, HandleError> {
        let replies = self.ask_all(&Request::Sessions, "for its sessions", ANSWER_WITHIN)?;
        let channels = replies.into_iter().flat_map(|reply| match reply {
            Reply::Channels(channels) => channels,
            _ => Vec::new(),
        });
        Ok(gather_sessions(channels.collect()))
    }

    /// What would end the open connections, for who comes after this process.
    pub fn farewells(&self) -> Result<Vec<Farewell>, HandleError> {
        Ok(match self.ask_one(0, Request::Farewells, "for its connections", ANSWER_WITHIN)? {
            Reply::Farewells(farewells) => farewells,
            _ => Vec::new(),
        })
    }

    /// Tells the peers of a process before this one that its connections are over, as far as their
    /// addresses are served; gives how many.
    pub fn say_farewells(&self, farewells: Vec<Farewell>) -> Result<usize, HandleError> {
        let request = Request::SayFarewells(farewells);
        self.ask_one(0, request, "the end of old connections", ANSWER_WITHIN).map(|reply| count(&reply))
    }

    /// How each shard fares, in their order.
    pub fn shard_stats(&self) -> Result<Vec<ShardStats>, HandleError> {
        let replies = self.ask_all(&Request::Stats, "for its statistics", ANSWER_WITHIN)?;
        let stats = replies.into_iter().filter_map(|reply| match reply {
            Reply::Stats(stats) => Some(*stats),
            _ => None,
        });
        Ok(stats.collect())
    }

    /// How long commands were in which stage since start or the last reset, on one logical unit or on
    /// all, by class; all shards together. Counts begin anew if `reset`.
    pub fn stages(&self, lun: Option<u16>, reset: bool) -> Result<Vec<StageReading>, HandleError> {
        let replies = self.ask_all(&Request::Stages { lun, reset }, "for its stages", ANSWER_WITHIN)?;
        let readings = replies.into_iter().flat_map(|reply| match reply {
            Reply::Stages(readings) => readings,
            _ => Vec::new(),
        });
        Ok(StageReading::merged(readings))
    }

    /// Ends a session; gives how many channels it had.
    pub fn disconnect_session(&self, session: SessionId) -> Result<usize, HandleError> {
        let replies = self.ask_all(&Request::Disconnect(session), "the end of a session", ANSWER_WITHIN)?;
        Ok(replies.iter().map(count).sum())
    }

    /// Lets commands in progress end, at most for `within`, then ends all channels. Gives how
    /// many commands were cut off.
    pub fn drain(&self, within: Duration) -> Result<usize, HandleError> {
        // A shard that keeps its deadline needs a moment more for the last answers.
        let wait = within + Duration::from_secs(1);
        let replies = self.ask_all(&Request::Drain(within), "the drain", wait)?;
        Ok(replies.iter().map(count).sum())
    }

    /// Ends the reactors and waits for their threads. Only the first call does anything.
    pub fn stop(&self) -> Result<(), HandleError> {
        if self.inner.stopped.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.ask_all(&Request::Stop, "the stop", ANSWER_WITHIN)?;
        let join = self.inner.join.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(join) = join {
            join();
        }
        Ok(())
    }

    /// Asks one shard.
    fn ask_one(
        &self,
        shard: usize,
        request: Request,
        what: &'static str,
        within: Duration,
    ) -> Result<Reply, HandleError> {
        self.gather(std::iter::once(shard), &request, what, within).map(|mut replies| replies.remove(0))
    }

    /// Asks every shard at once; gives the answers in the shards' order.
    fn ask_all(
        &self,
        request: &Request,
        what: &'static str,
        within: Duration,
    ) -> Result<Vec<Reply>, HandleError> {
        self.gather(0..self.shards(), request, what, within)
    }

    fn gather(
        &self,
        shards: impl Iterator<Item = usize>,
        request: &Request,
        what: &'static str,
        within: Duration,
    ) -> Result<Vec<Reply>, HandleError> {
        let deadline = Instant::now() + within;
        let (to, answers) = mpsc::channel();
        let mut waiting: Vec<usize> = Vec::new();
        for shard in shards {
            let reply = ReplySlot::new(shard, to.clone());
            self.send(shard, Command { request: request.clone(), reply }, what, deadline, within)?;
            waiting.push(shard);
        }
        let mut replies: Vec<(usize, Reply)> = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((shard, reply)) = answers.recv_timeout(left) else {
                return Err(HandleError::Late { shard: waiting[0], what, within });
            };
            waiting.retain(|&other| other != shard);
            replies.push((shard, reply));
        }
        replies.sort_by_key(|&(shard, _)| shard);
        replies
            .into_iter()
            .map(|(shard, reply)| match reply {
                Reply::Refused(why) => Err(HandleError::Refused(why)),
                // What has ended has stopped.
                Reply::Gone if matches!(request, Request::Stop) => Ok(Reply::Done),
                Reply::Gone => Err(HandleError::Gone { shard }),
                reply => Ok(reply),
            })
            .collect()
    }

    /// Puts a command into an inbox, again and again while it is full.
    fn send(
        &self,
        shard: usize,
        mut command: Command,
        what: &'static str,
        deadline: Instant,
        within: Duration,
    ) -> Result<(), HandleError> {
        loop {
            let Err(back) = self.inner.shards[shard](command) else { return Ok(()) };
            if Instant::now() >= deadline {
                let mut reply = back.reply;
                reply.to = None;
                return Err(HandleError::Late { shard, what, within });
            }
            command = back;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn count(reply: &Reply) -> usize {
    match reply {
        Reply::Count(count) => *count,
        _ => 0,
    }
}

/// Puts the channels of all shards together to sessions, sorted.
fn gather_sessions(mut channels: Vec<ChannelInfo>) -> Vec<SessionInfo> {
    channels.sort_by_key(|channel| (channel.session, channel.index, channel.shard, channel.qpn));
    let mut sessions: Vec<SessionInfo> = Vec::new();
    for channel in channels {
        match sessions.last_mut() {
            Some(last) if last.id == channel.session => last.channels.push(channel),
            _ => sessions.push(SessionInfo { id: channel.session, channels: vec![channel] }),
        }
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target whose shards answer with `answer`, or keep the command if there is no answer.
    fn target(answers: Vec<Option<Reply>>) -> TargetHandle {
        let sinks = answers.into_iter().map(|answer| -> CommandSink {
            let kept = Mutex::new(Vec::new());
            Box::new(move |command| {
                match &answer {
                    Some(Reply::Gone) => drop(command),
                    Some(answer) => command.reply.send(answer.clone()),
                    None => kept.lock().unwrap().push(command),
                }
                Ok(())
            })
        });
        TargetHandle::new(sinks.collect(), Box::new(|| {}))
    }

    #[test]
    fn a_silent_shard_is_named_and_not_waited_for_for_ever() {
        let target = target(vec![Some(Reply::Done), None]);
        let within = Duration::from_millis(20);
        assert_eq!(
            target.ask_all(&Request::Sessions, "for its sessions", within).unwrap_err().to_string(),
            "shard 1 did not answer for its sessions within 20ms"
        );
    }

    #[test]
    fn a_full_inbox_is_tried_again_until_the_time_is_over() {
        let tries = Mutex::new(0);
        let sink: CommandSink = Box::new(move |command| {
            let mut tries = tries.lock().unwrap();
            *tries += 1;
            if *tries < 3 {
                return Err(command);
            }
            command.reply.send(Reply::Count(5));
            Ok(())
        });
        let target = TargetHandle::new(vec![sink], Box::new(|| {}));
        assert_eq!(target.drain(Duration::ZERO), Ok(5));
        let full = TargetHandle::new(vec![Box::new(Err)], Box::new(|| {}));
        let within = Duration::from_millis(5);
        let error = full.ask_all(&Request::Stats, "for its statistics", within).unwrap_err();
        assert_eq!(error, HandleError::Late { shard: 0, what: "for its statistics", within });
    }

    #[test]
    fn refusals_and_ends_of_shards_are_errors() {
        let refusing = target(vec![Some(Reply::Done), Some(Reply::Refused("no room".to_owned()))]);
        assert_eq!(refusing.sessions(), Err(HandleError::Refused("no room".to_owned())));
        let ended = target(vec![Some(Reply::Done), Some(Reply::Gone)]);
        assert_eq!(ended.sessions(), Err(HandleError::Gone { shard: 1 }));
        // To stop what has ended is no error; to stop twice neither.
        assert_eq!(ended.stop(), Ok(()));
        assert_eq!(ended.stop(), Ok(()));
    }
}
