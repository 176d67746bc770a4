//! Pinned polling threads and what they stand on: time, timers, slabs, lock-free rings and
//! memory that hardware may touch.
//!
//! This crate knows cores, threads and pages. It knows no storage and no network.
//!
//! * pure data structures: [`time`], [`handle`], [`slab`]
//! * memory that devices, the kernel and peers touch: [`memory`]

pub mod handle;
pub mod memory;
pub mod slab;
pub mod time;
