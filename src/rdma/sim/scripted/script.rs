//! What an adapter does and does wrong, as plain values.

use std::time::Duration;

use super::far::FarId;
use crate::rdma::verbs::{AsyncEvent, ConnEvent, Wc, WcStatus};

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// How the queue pair behaves that is connected to a far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// How it comes to RTS.
    pub connecting: Connecting,
    /// From the posting of a work request to its completion, if the peer answers.
    pub work: Duration,
    /// From the arrival of a SEND, which takes a receive, to that receive's completion.
    pub receive: Duration,
    /// The work request of this number, from 0, fails with this status.
    pub fails: Option<(u64, WcStatus)>,
    /// The queue pair has gone to ERR by itself, without an event, when the work request of this
    /// number is posted.
    pub broken_at_post: Option<u64>,
    /// How long a work request is retried whose peer does not answer; `None`: for ever.
    pub retries: Option<Duration>,
    /// What a move to ERR does.
    pub to_err: ToErr,
    /// How the send queue is flushed in ERR.
    pub flush: Flush,
    /// What posting in ERR does.
    pub posts_in_err: PostsInErr,
    /// When LAST_WQE_REACHED comes.
    pub last_wqe: LastWqe,
    /// Receives that it has taken from the SRQ, for messages that never become whole.
    pub taken: Taken,
    /// The connection manager moves it to ERR when the peer disconnects, as librdmacm does.
    pub dreq_breaks: bool,
    /// What comes out of the completion queue after it was retired.
    pub remains: Remains,
    /// How it is retired or destroyed.
    pub retiring: Retiring,
}

/// How a queue pair comes from INIT to RTS.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// When the call returns.
    AtOnce,
    /// The calls return at once, it is done after this time; until then the send queue is full.
    After(Duration),
    /// It fails after this time, which an event tells.
    Fails(Duration),
    /// The move to RTR is refused.
    Refused,
}

/// What a move to ERR does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ToErr {
    /// It moves.
    Obeyed,
    /// The call succeeds and nothing moves.
    Ignored,
    /// The call fails and nothing moves.
    Refused,
}

/// How the send queue is flushed in ERR.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Flush {
    /// In the order of posting: the first after some time, then one after the other.
    InOrder {
        /// When the first one comes.
        first: Duration,
        /// How long each takes.
        every: Duration,
    },
    /// In any order, within this time of the move or of the posting. Nothing is carried out after the
    /// move.
    AnyOrder {
        /// The longest that one takes.
        within: Duration,
    },
    /// So many at once and in order, the rest never.
    Stuck {
        /// How many come.
        after: u64,
    },
}

/// What posting in ERR does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PostsInErr {
    /// It is taken and flushed.
    Flushed,
    /// It is refused.
    Refused,
}

/// When LAST_WQE_REACHED comes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LastWqe {
    /// So long after the move to ERR; none, one or several.
    pub after: Vec<Duration>,
    /// Again with each post in ERR.
    pub on_posts: bool,
}

/// Receives that a queue pair has taken from the SRQ when it goes to ERR, for messages that never
/// become whole.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Taken {
    /// How many.
    pub count: u32,
    /// When they are flushed, after the move; `None`: never.
    pub back: Option<Duration>,
}

/// What comes out of the completion queue after a queue pair was retired.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Remains {
    /// What lies in it already.
    Queued,
    /// Nothing: the driver takes its completions out.
    Purged,
    /// So much later, flushes of all that was posted: they name a queue pair that is no more.
    Late(Duration),
}

/// How a queue pair is retired or destroyed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Retiring {
    /// How long it takes.
    pub after: Duration,
    /// So many attempts fail before one succeeds.
    pub failures: u32,
    /// It cannot be recycled, only destroyed.
    pub no_recycling: bool,
}

impl Script {
    /// What our soft provider does: all in order, all at once, LAST_WQE_REACHED once.
    pub fn soft() -> Script {
        Script {
            connecting: Connecting::AtOnce,
            work: us(5),
            receive: Duration::ZERO,
            fails: None,
            broken_at_post: None,
            retries: None,
            to_err: ToErr::Obeyed,
            flush: Flush::InOrder { first: Duration::ZERO, every: Duration::ZERO },
            posts_in_err: PostsInErr::Flushed,
            last_wqe: LastWqe { after: vec![Duration::ZERO], on_posts: false },
            taken: Taken::default(),
            dreq_breaks: false,
            remains: Remains::Purged,
            retiring: Retiring { after: Duration::ZERO, failures: 0, no_recycling: false },
        }
    }

    /// libibverbs over rxe of kernel 6.1: no LAST_WQE_REACHED.
    pub fn rxe_6_1() -> Script {
        Script {
            connecting: Connecting::After(us(42)),
            flush: Flush::InOrder { first: us(250), every: us(20) },
            last_wqe: LastWqe::default(),
            remains: Remains::Queued,
            retiring: Retiring { after: us(110), ..Script::soft().retiring },
            ..Script::soft()
        }
    }

    /// libibverbs over rxe of kernel 6.12: LAST_WQE_REACHED early, thrice, and again with each post.
    pub fn rxe_6_12() -> Script {
        Script {
            last_wqe: LastWqe { after: vec![us(100), us(1000), us(3000)], on_posts: true },
            ..Script::rxe_6_1()
        }
    }

    /// An iWARP adapter: no LAST_WQE_REACHED, nothing can be posted once the stream is broken, and the
    /// connection manager breaks it by itself.
    pub fn iwarp() -> Script {
        Script {
            posts_in_err: PostsInErr::Refused,
            last_wqe: LastWqe::default(),
            dreq_breaks: true,
            retries: Some(Duration::from_secs(4)),
            ..Script::rxe_6_1()
        }
    }

    /// Anything that an adapter may do, by chance.
    pub fn any(rng: &mut fastrand::Rng) -> Script {
        let long = |rng: &mut fastrand::Rng| match rng.u32(0..8) {
            0 => Duration::from_millis(rng.u64(0..8_000)),
            1..3 => Duration::from_millis(rng.u64(0..150)),
            _ => us(rng.u64(0..1_000)),
        };
        let seldom = |rng: &mut fastrand::Rng, one_in: u32| rng.u32(0..one_in) == 0;
        let mut script = match rng.u32(0..4) {
            0 => Script::soft(),
            1 => Script::rxe_6_1(),
            2 => Script::rxe_6_12(),
            _ => Script::iwarp(),
        };
        if seldom(rng, 3) {
            script.connecting = match rng.u32(0..8) {
                0 => Connecting::Refused,
                1 => Connecting::Fails(long(rng)),
                2..5 => Connecting::After(us(rng.u64(0..300))),
                _ => Connecting::AtOnce,
            };
        }
        script.work = us(rng.u64(0..60));
        script.receive = us(if seldom(rng, 3) { rng.u64(0..2_000) } else { 0 });
        if seldom(rng, 3) {
            script.fails = Some((rng.u64(0..12), rng.choice(FAILURES).unwrap_or(WcStatus::RetryExceeded)));
        }
        script.broken_at_post = seldom(rng, 5).then(|| rng.u64(0..12));
        script.retries = rng.bool().then(|| long(rng));
        script.to_err = match rng.u32(0..12) {
            0 => ToErr::Ignored,
            1 => ToErr::Refused,
            _ => ToErr::Obeyed,
        };
        script.flush = match rng.u32(0..6) {
            0 => Flush::AnyOrder { within: long(rng) },
            1 => Flush::Stuck { after: rng.u64(0..4) },
            2 => Flush::InOrder { first: long(rng), every: us(rng.u64(0..500)) },
            _ => script.flush,
        };
        if seldom(rng, 4) {
            script.posts_in_err = PostsInErr::Refused;
        }
        if seldom(rng, 2) {
            let after = (0..rng.u32(0..4)).map(|_| long(rng)).collect();
            script.last_wqe = LastWqe { after, on_posts: rng.bool() };
        }
        if seldom(rng, 3) {
            let back = (!seldom(rng, 3)).then(|| long(rng));
            script.taken = Taken { count: rng.u32(1..4), back };
        }
        script.dreq_breaks = rng.bool();
        script.remains = match rng.u32(0..4) {
            0 => Remains::Late(long(rng)),
            1 => Remains::Purged,
            _ => Remains::Queued,
        };
        script.retiring = Retiring {
            after: long(rng),
            failures: if seldom(rng, 8) { rng.u32(1..4) } else { 0 },
            no_recycling: seldom(rng, 4),
        };
        script
    }
}

/// How a work request may fail.
const FAILURES: [WcStatus; 8] = [
    WcStatus::LocalLength,
    WcStatus::LocalQpOperation,
    WcStatus::LocalProtection,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccess,
    WcStatus::RemoteOperation,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
];

/// What happens at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// The port goes up or down, which an event tells to every shard. While it is down nothing moves.
    Port {
        /// Whether it is up.
        up: bool,
    },
    /// The device dies: nothing completes, verbs fail, queue pairs can still be given back.
    Fatal,
    /// A shard's first completion queue runs over: from now on its completions are lost, and its
    /// queue pairs are in ERR.
    Overrun {
        /// Which shard.
        shard: usize,
    },
    /// `create_qp` is exhausted, or not any more.
    Stock {
        /// Whether it is.
        empty: bool,
    },
    /// The peer acknowledges nothing and sends nothing.
    Silence(FarId),
    /// It is back.
    Speech(FarId),
    /// The oldest work request fails with this status, as far as there is one; the queue pair is in ERR.
    Failure(FarId, WcStatus),
    /// The queue pair fails by itself, which an event tells (QP_FATAL).
    Break(FarId),
    /// The peer disconnects.
    Disconnect(FarId),
    /// A completion that belongs to nobody.
    Stray {
        /// Where.
        shard: usize,
        /// What.
        wc: Wc,
    },
    /// An event out of nowhere.
    Event {
        /// Where.
        shard: usize,
        /// What.
        event: AsyncEvent,
    },
    /// An event of the connection manager out of nowhere.
    Connection(ConnEvent),
}
