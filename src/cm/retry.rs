//! Waiting for answers: what happens when a timer runs out, and when a peer asks for more time.

use std::time::Duration;

use reactors::slab::Key;
use reactors::time::Time;

use super::build;
use super::core::Cm;
use super::table::{Input, State};
use crate::rdma::verbs::{ConnEnd, Path};
use crate::wire::cm::{Mra, about, timeout};

/// The longest that a peer can put us off with one MRA. Codes go up to hours.
const MAX_MRA: Duration = Duration::from_secs(60);

impl Cm {
    /// MRA: the peer needs longer for our REQ or REP.
    pub(super) fn on_mra(&mut self, now: Time, from: Path, mra: &Mra) {
        let Ok(key) = self.find(mra.remote_id, None, from) else { return };
        let conn = self.conn(key);
        let expected = match conn.state {
            State::ReqSent => about::REQ,
            State::RepSent if conn.remote_id == Some(mra.local_id) => about::REP,
            _ => about::OTHER,
        };
        if mra.about != expected || self.step(now, key, Input::Mra).is_err() {
            self.stats.unexpected += 1;
            return;
        }
        let put_off = timeout(mra.service_timeout).min(MAX_MRA) + self.conn(key).interval;
        self.arm(key, now + put_off);
    }

    /// A timer ran out and a retry is left.
    pub(super) fn resend(&mut self, now: Time, key: Key) {
        if self.step(now, key, Input::Resend).is_err() {
            return;
        }
        let conn = self.conn(key);
        conn.retries_left -= 1;
        let due = now + conn.interval;
        self.stats.resent += 1;
        self.send_again(key);
        self.arm(key, due);
    }

    /// A timer ran out for good: the peer is told, in case that it hears us after all.
    pub(super) fn give_up(&mut self, now: Time, key: Key) {
        let state = self.conn(key).state;
        if self.step(now, key, Input::GiveUp).is_err() {
            return;
        }
        let config = self.config;
        let conn = self.conn(key);
        let (path, tid) = (conn.path, conn.tid);
        let told = match state {
            State::ReqSent | State::ReqReceived => Some(build::rej_timeout(&config, conn, about::REQ)),
            State::RepSent => Some(build::rej_timeout(&config, conn, about::OTHER)),
            _ => None,
        };
        if let Some(rej) = told {
            self.send(path, tid, rej);
        }
        let why = if state == State::DreqSent { ConnEnd::Disconnected } else { ConnEnd::Timeout };
        self.ended(key, why);
    }
}
