//! Floor 2, sans-io: the reliable-connection engine of one shard.
//!
//! It knows the transport rules of RC (IBTA vol. 1, chapters 9 to 11, as Linux's rxe and rdmavt
//! practise them): protection domains, memory regions, queues, queue pairs, requester, responder,
//! retries. It must not know sockets, threads, clocks, the ICRC, the GSI (QPN 1), connection
//! management, or what travels in a SEND. Time and randomness come in as arguments, packets go
//! out through a [`Sink`].
//!
//! [`Engine`] has the verbs of `rdma::verbs::Device` as inherent methods, and four more for the
//! provider that moves packets: [`Engine::receive`] for each packet of a batch,
//! [`Engine::end_batch`] after it, [`Engine::transmit`] while the socket has room,
//! [`Engine::handle_timeout`] when [`Engine::deadline`] has passed.
//!
//! * [`config`], [`counters`], [`transmit`]: what the provider sees
//! * `device`: the verbs, and the way of a packet to its queue pair
//! * `qp`, `state`: a queue pair, its states and what moving between them does
//! * `requester` and `completer`: work requests to packets, answers to completions; `retry` and
//!   `window`: when to send again, and how much
//! * `responder` and `reads`: requests of the peer, and the READs among them
//! * `audit`: what must be true between two calls
//! * `shared`: what all queue pairs use: `timers`, queues of work, and `objects`: `mr`, `cq`, `srq`, events;
//!   `rdma::shm` has the same objects, `qpn` and `state`, and the scripted adapter of `rdma::sim` their tables
//!
//! Nothing here allocates after `create_qp` and the moves to RTR and RTS.

mod audit;
mod completer;
pub mod config;
pub mod counters;
pub(crate) mod cq;
mod device;
pub(crate) mod mr;
pub(crate) mod objects;
mod qp;
pub(crate) mod qpn;
mod reads;
mod requester;
mod responder;
mod retry;
mod shared;
pub(crate) mod srq;
pub(crate) mod state;
mod timers;
pub mod transmit;
mod window;

pub use config::{EngineConfig, Sizes};
pub use counters::Counters;
pub use device::Engine;
pub use transmit::{Outgoing, Piece, Sink};
