//! The books of an engine, checked: what must be true between any two calls.

use reactors::time::Time;

use super::device::Engine;
use super::qp::Qp;
use super::state;
use crate::rdma::verbs::QpState;

/// Fails with what is wrong, in words.
macro_rules! must {
    ($true:expr, $($what:tt)*) => {
        if !$true {
            return Err(format!($($what)*));
        }
    };
}

impl Engine {
    /// Checks everything that must be true between two calls; for tests and simulations.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn audit(&self) -> Result<(), String> {
        let sh = &self.shared;
        let mut asked_bytes = 0;
        for (key, qp) in self.qps.iter() {
            self.audit_lists(qp)?;
            qp.audit_send_queue().map_err(|what| format!("{:?} in {:?}: {what}", qp.qpn, qp.state))?;
            asked_bytes += qp.req.asked.iter().map(|read| u64::from(read.bytes)).sum::<u64>();
            must!(qp.key == key, "{:?} does not know its own place", qp.qpn);

            let rules = state::rules(qp.state);
            // Nothing is forgotten: who has something to do stands in a list, or a timer runs.
            must!(qp.offers(sh).class().is_none() || qp.is_ready, "{:?} has output and is not ready", qp.qpn);
            must!(!rules.flush || qp.req.queue.is_empty() || qp.flush_due, "{:?} is not flushed", qp.qpn);
            let waits = rules.send && qp.req.una != qp.req.next || qp.req.retry.rnr_waiting();
            let due = qp.req.retry.deadline();
            must!(!waits || due != Time::NEVER || !qp.req.retry.has_timeout(), "{:?} waits for ever", qp.qpn);
            must!(due == Time::NEVER || sh.timers.of(key.slot) <= due, "{:?} would oversleep", qp.qpn);
            must!(rules.send || due == Time::NEVER, "{:?} has a timer in {:?}", qp.qpn, qp.state);
        }
        must!(asked_bytes == sh.read_budget.used_bytes(), "READ budget: {asked_bytes} bytes are asked for");
        must!(asked_bytes > 0 || sh.read_budget.waiting.is_empty(), "READs wait for a budget that is free");
        Ok(())
    }

    /// Its marks say in which lists it stands, once each.
    fn audit_lists(&self, qp: &Qp) -> Result<(), String> {
        let sh = &self.shared;
        let slot = qp.key.slot;
        let count = |list: &mut dyn Iterator<Item = &u32>| list.filter(|other| **other == slot).count();
        for (name, mark, times) in [
            ("ready", qp.is_ready, count(&mut sh.ready.iter())),
            ("replies", qp.replies_later, count(&mut sh.replies.iter())),
            ("flushes", qp.flush_due, count(&mut sh.flushes.iter())),
            ("budget", qp.waits_for_budget, count(&mut sh.read_budget.waiting.iter())),
        ] {
            must!(times == usize::from(mark), "{:?} stands {times} times in {name}", qp.qpn);
        }
        Ok(())
    }
}

impl Qp {
    /// The send queue and its sequence numbers agree.
    fn audit_send_queue(&self) -> Result<(), String> {
        let req = &self.req;
        let (in_flight, used) = (req.next.distance_from(req.una), req.high.distance_from(req.una));
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            must!(req.asked.is_empty() && req.read_psns == 0, "READs in flight");
            return Ok(());
        }
        must!(
            0 <= in_flight && in_flight <= used,
            "una {:?} next {:?} high {:?}",
            req.una,
            req.next,
            req.high
        );
        let ahead = req.acked.distance_from(req.una);
        let at_read = req.queue.front().is_some_and(|front| front.begun && front.is_read());
        must!(
            ahead == 0 || 0 < ahead && ahead <= used && at_read,
            "acked {:?}, una {:?}",
            req.acked,
            req.una
        );
        must!(req.cursor <= req.queue.len(), "cursor {} of {}", req.cursor, req.queue.len());
        let mut expected = req.queue.front().filter(|front| front.begun).map_or(req.una, |front| front.first);
        must!(!req.una.is_before(expected), "una lies before the first request");
        let mut reads = 0;
        for (index, wqe) in req.queue.iter().enumerate() {
            if !wqe.begun {
                must!(req.queue.iter().skip(index).all(|later| !later.begun), "begun out of order");
                break;
            }
            must!(wqe.first == expected, "request {index} begins at {:?}, not {expected:?}", wqe.first);
            expected = wqe.end();
            must!(index > 0 || req.una.is_before(expected), "the first request is done and still there");
            if index == req.cursor {
                let inside = !req.next.is_before(wqe.first) && req.next.is_before(expected);
                must!(inside, "next {:?} is not in request {index}", req.next);
            }
            if wqe.is_read() {
                let from = if req.una.is_before(wqe.first) { wqe.first } else { req.una };
                let to = if req.next.is_before(expected) { req.next } else { expected };
                reads += to.distance_from(from).max(0) as u32;
            }
        }
        must!(reads == req.read_psns, "{reads} READ PSNs in flight, {} in the books", req.read_psns);
        let behind = req.queue.get(req.cursor).is_none_or(|wqe| !wqe.begun);
        must!(!behind || req.next == expected, "next {:?} is not the end {expected:?}", req.next);
        must!(req.asked.len() <= req.max_reads(), "{} READs in flight", req.asked.len());
        let ends = req.asked.iter().all(|read| req.una.is_before(read.end) && !req.next.is_before(read.end));
        must!(ends, "a READ that is answered, or was not asked, holds budget");
        Ok(())
    }
}
