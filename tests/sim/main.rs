//! The whole target, two shards of it, in a simulator: network, clock and chance follow from a
//! seed. Each file shows one concern.

mod rig;

mod config;
mod ends;
mod first;
mod login;
mod tasks;
mod transfer;
