//! A session: all channels of one nexus, their logins, their end and the way back.

use std::collections::VecDeque;
use std::fmt;

use reactors::time::Time;

use super::channel::{Channel, Phase, PhaseEvent};
use super::config::SessionConfig;
use super::memory::{CONTROL_IUS, Memory, Registered};
use super::slot::{Completion, Outcome, Slot, SlotEvent, SlotId, SlotState};
use crate::rdma::verbs::{Connections, CqId, Device, PdId, VerbsError, Wc, WcOpcode, WcStatus};
use crate::srp::initiator::BadLogin;
use crate::wire::num::Qpn;
use crate::wire::srp::IuError;

/// How many completions are taken at a time.
const BATCH: usize = 64;

/// The kinds of our work request handles.
pub(super) mod kind {
    /// The SEND of a command: slot and generation of the request.
    pub(crate) const COMMAND: u8 = 1;
    /// A receive: channel and index; epoch of the channel.
    pub(crate) const RECV: u8 = 2;
    /// The SEND of a control IU: channel and index; epoch.
    pub(crate) const CONTROL: u8 = 3;
    /// A probe: channel; epoch.
    pub(crate) const PROBE: u8 = 4;
}

/// Where a session is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// Not started.
    Idle,
    /// Channels log in.
    Connecting,
    /// Commands can be sent.
    Live,
    /// Lost; it starts again by itself after a while.
    Waiting,
    /// Lost for good.
    Lost,
    /// DREQs are on the way.
    Closing,
    /// Over.
    Closed,
}

/// What happens to a session.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// It shall log in.
    Start,
    /// All its channels are live.
    Up,
    /// A channel failed; it will be tried again.
    LoseForNow,
    /// A channel failed.
    Lose,
    /// It shall log out.
    Close,
    /// The last channel is down.
    Down,
}

impl SessionState {
    /// The state after `event`; `None` if the table has no such move.
    pub const fn after(self, event: SessionEvent) -> Option<SessionState> {
        use SessionEvent as E;
        use SessionState as S;
        Some(match (self, event) {
            (S::Idle | S::Waiting, E::Start) => S::Connecting,
            (S::Connecting, E::Up) => S::Live,
            (S::Connecting | S::Live, E::LoseForNow) => S::Waiting,
            (S::Connecting | S::Live, E::Lose) => S::Lost,
            (S::Connecting | S::Live, E::Close) => S::Closing,
            (S::Idle | S::Waiting | S::Lost, E::Close) | (S::Closing, E::Down) => S::Closed,
            _ => return None,
        })
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SessionState::Idle => "idle",
            SessionState::Connecting => "connecting",
            SessionState::Live => "live",
            SessionState::Waiting => "waiting",
            SessionState::Lost => "lost",
            SessionState::Closing => "closing",
            SessionState::Closed => "closed",
        })
    }
}

/// Why a session could not be made or was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(&'static str),
    /// A verb failed.
    #[error("{what}: {why}")]
    Verbs {
        /// What was tried.
        what: &'static str,
        /// Why not.
        why: VerbsError,
    },
    /// The target refused the login.
    #[error("the target refused the login: {0}")]
    Refused(String),
    /// The connection manager of the target refused.
    #[error("the connection was refused with reason {0} (8: nobody serves that port)")]
    Rejected(u16),
    /// The target cannot be used as it answered.
    #[error("the target's answer to the login: {0}")]
    Login(BadLogin),
    /// Nobody answered.
    #[error("no answer to the connection request")]
    NoAnswer,
    /// The target ended a connection.
    #[error("the target disconnected")]
    Disconnected,
    /// The target said good-bye in an SRP_T_LOGOUT.
    #[error("the target logged out, reason {0}")]
    TargetLogout(u32),
    /// A work request failed.
    #[error("a work request ended with {0:?}")]
    Completion(WcStatus),
    /// The target sent nonsense.
    #[error("an information unit of the target: {0}")]
    Iu(IuError),
    /// The target sends more requests than it gets answers to.
    #[error("the target sends requests faster than they can be answered")]
    Flood,
    /// The target has not shown any sign of life.
    #[error("the target is silent")]
    Silent,
    /// Neither ABORT TASK nor LUN RESET was answered well.
    #[error("a command ran into its time limit, and neither ABORT TASK nor LUN RESET helped")]
    Stuck,
}

/// What was counted since the start.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct SessionCounters {
    /// Sessions that came up.
    pub logins: u64,
    /// Sessions that were lost.
    pub losses: u64,
    /// Commands posted.
    pub commands: u64,
    /// ABORT TASKs sent.
    pub aborts: u64,
    /// LUN RESETs sent.
    pub resets: u64,
    /// Answers to requests that had ended.
    pub late_answers: u64,
    /// CRED_REQs and AER_REQs answered.
    pub target_requests: u64,
    /// Probes sent.
    pub probes: u64,
}

/// A session over a device that it owns.
pub struct Session<D> {
    pub(super) device: D,
    pub(super) config: SessionConfig,
    pub(super) rng: fastrand::Rng,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) memory: Memory,
    /// Memory for data that are the caller's.
    pub(super) lent: Option<Registered>,
    pub(super) channels: Vec<Channel>,
    /// How many of the channels this session came to have.
    pub(super) used: u32,
    pub(super) slots: Vec<Slot>,
    pub(super) completed: VecDeque<Completion>,
    state: SessionState,
    why: Option<SessionError>,
    pub(super) retry_at: Time,
    pub(super) next_tick: Time,
    /// The channel whose turn it is.
    pub(super) turn: u32,
    /// Room for completions that are taken at a time.
    batch: Box<[Wc]>,
    /// Room for a descriptor table that is being made.
    pub(super) scratch: Vec<u8>,
    pub(super) counters: SessionCounters,
}

const NO_WC: Wc =
    Wc { wr_id: 0, status: WcStatus::WrFlush, opcode: WcOpcode::Recv, len_bytes: 0, qpn: Qpn::GSI };

impl<D: Device + Connections> Session<D> {
    /// A session that is not started. All memory is allocated here, but for receive buffers,
    /// whose length the login tells.
    pub fn new(mut device: D, config: SessionConfig, rng: fastrand::Rng) -> Result<Self, SessionError> {
        config.check().map_err(SessionError::Config)?;
        let failed = |what| move |why| SessionError::Verbs { what, why };
        let pd = device.alloc_pd().map_err(failed("a protection domain"))?;
        let requests = config.channels * config.depth;
        // A SEND and a receive for each request, control IU and probe.
        let entries = 2 * (requests + config.channels * (CONTROL_IUS + 1));
        let cq = device.create_cq(entries).map_err(failed("a completion queue"))?;
        let memory = Memory::new(&mut device, pd, &config).map_err(failed("memory for commands and data"))?;
        let own = |channel: u32| (channel * config.depth..(channel + 1) * config.depth).rev().collect();
        Ok(Session {
            device,
            config,
            rng,
            pd,
            cq,
            memory,
            lent: None,
            channels: (0..config.channels).map(|channel| Channel::new(own(channel))).collect(),
            used: 0,
            slots: (0..requests).map(|slot| Slot::new(slot / config.depth)).collect(),
            completed: VecDeque::with_capacity(requests as usize),
            state: SessionState::Idle,
            why: None,
            retry_at: Time::NEVER,
            next_tick: Time::ZERO,
            turn: 0,
            batch: vec![NO_WC; BATCH].into(),
            scratch: Vec::with_capacity(config.descriptors.pieces() * 16),
            counters: SessionCounters::default(),
        })
    }

    /// Where the session is.
    pub fn state(&self) -> SessionState {
        self.state
    }

    /// Why it was lost last.
    pub fn why_lost(&self) -> Option<&SessionError> {
        self.why.as_ref()
    }

    /// How many channels it has.
    pub fn channels(&self) -> u32 {
        self.used
    }

    /// What it is made of.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// What was counted since the start.
    pub fn counters(&self) -> &SessionCounters {
        &self.counters
    }

    /// The device, for its counters and descriptors.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device; what is done to the session's own resources is the caller's risk.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// When [`poll`](Self::poll) has something to do although nothing arrives.
    pub fn next_deadline(&self) -> Time {
        if self.completed.is_empty() { self.device.next_deadline().min(self.next_tick) } else { Time::ZERO }
    }

    fn apply(&mut self, event: SessionEvent) {
        match self.state.after(event) {
            Some(next) => self.state = next,
            None => panic!("a session that is {} cannot take {event:?}", self.state),
        }
    }

    /// Begins to log in. Afterwards [`poll`](Self::poll) until the state changes.
    ///
    /// # Panics
    /// If the session was started before.
    pub fn start(&mut self, now: Time) {
        self.apply(SessionEvent::Start);
        self.used = self.config.channels;
        self.turn = 0;
        self.retry_at = Time::NEVER;
        self.connect(now, 0);
    }

    /// Logs out: DREQ on every channel. Requests that wait for an answer end as lost.
    pub fn close(&mut self, now: Time) {
        if matches!(self.state, SessionState::Closing | SessionState::Closed) {
            return;
        }
        self.apply(SessionEvent::Close);
        for index in 0..self.channels.len() {
            let channel = &mut self.channels[index];
            let conn = channel.link.as_ref().and_then(|link| link.conn);
            match conn {
                Some(conn) if channel.phase != Phase::Down => {
                    channel.apply(PhaseEvent::Disconnect);
                    if self.device.disconnect(now, conn).is_err() {
                        self.take_down(now, index);
                    }
                }
                _ => self.take_down(now, index),
            }
        }
        self.closed_if_down();
    }

    pub(super) fn closed_if_down(&mut self) {
        let down = self.channels.iter().all(|channel| channel.phase == Phase::Down);
        if self.state == SessionState::Closing && down {
            self.apply(SessionEvent::Down);
        }
    }

    /// Moves everything: packets, completions, connection events, time limits. Gives how much
    /// there was to do; zero means idle.
    pub fn poll(&mut self, now: Time) -> usize {
        let mut busy = self.device.progress(now);
        while let Some(event) = self.device.poll_conn() {
            busy += 1;
            self.on_connection(now, event);
        }
        // Out of `self` while they are looked at.
        let mut batch = std::mem::take(&mut self.batch);
        loop {
            let count = self.device.poll_cq(self.cq, &mut batch);
            busy += count;
            for wc in &batch[..count] {
                self.on_completion(now, wc);
            }
            if count < BATCH {
                break;
            }
        }
        self.batch = batch;
        while self.device.poll_event().is_some() {
            // Every event that ends a QP ends its work requests, too.
            busy += 1;
        }
        if now >= self.next_tick {
            self.tick(now);
        }
        busy
    }

    /// The next request that has ended.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }

    /// Ends the session: all channels go down, what waits for an answer ends as lost.
    pub(super) fn lose(&mut self, now: Time, why: SessionError) {
        if !matches!(self.state, SessionState::Connecting | SessionState::Live) {
            // Closing: whatever goes wrong now, it is over.
            return;
        }
        tracing::debug!(%why, "session lost");
        self.counters.losses += u64::from(self.state == SessionState::Live);
        match self.config.reconnect_delay {
            Some(delay) => {
                self.apply(SessionEvent::LoseForNow);
                self.retry_at = now + delay;
            }
            None => self.apply(SessionEvent::Lose),
        }
        self.why = Some(why);
        for index in 0..self.channels.len() {
            let conn = self.channels[index].link.as_ref().and_then(|link| link.conn);
            if let Some(conn) = conn {
                // The peer is told, if it still listens; who refuses this has forgotten us anyway.
                let _ = self.device.disconnect(now, conn);
            }
            self.take_down(now, index);
        }
    }

    /// Ends a channel's QP and all of its requests.
    pub(super) fn take_down(&mut self, now: Time, index: usize) {
        let channel = &mut self.channels[index];
        channel.apply(PhaseEvent::Down);
        channel.epoch = channel.epoch.wrapping_add(1);
        channel.srp = None;
        channel.tmf = None;
        channel.probing = false;
        channel.control_busy = [false; CONTROL_IUS as usize];
        if let Some(link) = channel.link.take()
            && let Err(why) = self.device.destroy_qp(now, link.qp)
        {
            tracing::warn!(%why, "a queue pair could not be destroyed");
        }
        if let Some(receives) = channel.receives.take()
            && let Err(why) = self.device.deregister(receives.memory.keys.lkey)
        {
            tracing::warn!(%why, "receive buffers could not be deregistered");
        }
        let depth = self.config.depth;
        for slot in index as u32 * depth..(index as u32 + 1) * depth {
            let entry = &mut self.slots[slot as usize];
            let waiting = entry.state.is_waiting();
            let released = entry.state == SlotState::Released;
            entry.apply(SlotEvent::Lost);
            if waiting {
                self.complete(slot, Outcome::Lost);
            } else if released {
                self.channels[index].free.push(slot);
            }
        }
    }

    /// Hands a request that has ended to the caller.
    pub(super) fn complete(&mut self, slot: u32, outcome: Outcome) {
        let entry = &mut self.slots[slot as usize];
        entry.deadline = Time::NEVER;
        let (user, posted) = (entry.user, entry.posted);
        self.completed.push_back(Completion { slot: SlotId(slot), user, posted, outcome });
    }

    /// All channels are there.
    pub(super) fn up(&mut self) {
        self.counters.logins += 1;
        self.apply(SessionEvent::Up);
    }
}
