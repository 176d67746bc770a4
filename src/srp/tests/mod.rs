//! Tests of the SRP protocol core.

mod buffers;
mod channel;
mod credits;
mod login;
mod states;
