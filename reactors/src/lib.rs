//! Pinned polling threads and what they stand on: time, timers, slabs, lock-free rings and
//! memory that hardware may touch.
//!
//! This crate knows cores, threads and pages. It knows no storage and no network.
//!
//! * pure data structures: [`time`], [`handle`], [`slab`], [`timer`], [`buddy`]
//! * memory that devices, the kernel and peers touch: [`memory`], [`arena`], [`shared`]
//! * threads: [`affinity`], [`clock`], [`poller`], [`reactor`], [`wake`], [`ring`], [`stats`]
//!
//! A [`reactor::Reactor`] is a thread, mostly pinned to a core, that owns one
//! [`poller::Poller`] and calls it for ever. Reactors share nothing; they meet on the bounded
//! rings of [`ring`], which wake a reactor that has gone to sleep.

pub mod affinity;
pub mod arena;
pub mod buddy;
pub mod clock;
pub mod handle;
pub mod memory;
pub mod poller;
pub mod reactor;
pub mod ring;
pub mod shared;
pub mod slab;
pub mod stats;
pub mod time;
pub mod timer;
pub mod wake;
