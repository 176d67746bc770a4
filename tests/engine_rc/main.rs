//! The RC engine, rule by rule: pairs of engines on a good network, and single engines whose peer
//! is the test.

#[path = "../engine_support/mod.rs"]
mod support;

mod churn;
mod error_state;
mod peers;
mod queues;
mod reads;
mod requester;
mod responder;
mod states;
mod transfers;
