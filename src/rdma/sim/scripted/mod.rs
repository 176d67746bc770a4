//! A scripted adapter at the verbs seam: it does what real adapters do and our soft provider never
//! would, when and how a [`Script`] says so.
//!
//! There is no wire. An [`Adapter`] has a context for each shard ([`Context`], which is a verbs device
//! and, on shard 0, a connection manager) and far ends ([`FarId`]): what the test says for the other
//! side of a queue pair. SENDs go straight into the other side's queue, RDMA into its memory, after
//! the time that the script names. Everything runs on the caller's thread and clock; all chance
//! follows from one seed.
//!
//! Two things are plain values, so that a test can be read:
//!
//! * a [`Script`] for each far end: how the queue pair that is connected to it behaves, above all
//!   when it dies: whether it goes to ERR at all, how and whether its work is flushed, when
//!   LAST_WQE_REACHED comes (before the flush, after it, thrice, never), what it does with receives
//!   that it has taken, what comes out after it was destroyed, how long that takes and whether it
//!   works;
//! * [`Act`]s at times ([`Adapter::at`]): the port goes down, the device dies, a completion queue runs
//!   over, a peer falls silent or disconnects, completions come that belong to nobody.
//!
//! The repertoire is what libibverbs over rxe was seen to do (flushes in 0.25 to 0.6 ms with opcode
//! and length 0, no receive taken from the SRQ in ERR, LAST_WQE_REACHED never on kernel 6.1 and twice
//! or thrice on 6.12, again with each post) and what drivers of adapters document beyond it.
//!
//! The adapter keeps books of its own ([`Adapter::books`]) and notes what no consumer may do
//! ([`Adapter::misuse`]): destroying a queue pair twice, posting memory that another work request
//! still has.

mod adapter;
mod agenda;
mod connections;
mod context;
mod far;
mod qp;
mod script;
mod work;

pub use adapter::{Adapter, AdapterConfig, Books};
pub use context::Context;
pub use far::{Asking, FarId, Link};
pub use script::{Act, Connecting, Flush, LastWqe, PostsInErr, Remains, Retiring, Script, Taken, ToErr};
