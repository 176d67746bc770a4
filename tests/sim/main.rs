//! The whole target, two shards of it, in a simulator: network, clock and chance follow from a
//! seed. Each file shows one concern.

#![allow(unreachable_pub)]

mod rig;

mod adapters;
mod config;
mod drains;
mod ends;
mod faults;
mod first;
mod in_place;
mod life;
mod login;
mod model;
mod random;
mod stages;
mod tasks;
mod transfer;
mod unmap;
