//! Bounded lock-free rings: the only places where reactors meet.
//!
//! A [`Mailbox`] belongs to one reactor and is filled through any number of [`Sender`]s. Nobody
//! ever waits: what does not fit comes back to the sender, and an [`Outbox`] keeps it there, in
//! order, for the next turn.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::wake::Waker;

/// The receiving end of a ring.
#[derive(Debug)]
pub struct Mailbox<T> {
    ring: Arc<ArrayQueue<T>>,
}

/// The sending end of a ring; clones send to the same.
#[derive(Debug)]
pub struct Sender<T> {
    ring: Arc<ArrayQueue<T>>,
    waker: Waker,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { ring: Arc::clone(&self.ring), waker: self.waker.clone() }
    }
}

impl<T> Mailbox<T> {
    /// A ring for at most `capacity` messages to the reactor that `waker` wakes.
    ///
    /// # Panics
    /// If `capacity` is zero.
    pub fn new(capacity: usize, waker: &Waker) -> (Sender<T>, Mailbox<T>) {
        let ring = Arc::new(ArrayQueue::new(capacity));
        (Sender { ring: Arc::clone(&ring), waker: waker.clone() }, Mailbox { ring })
    }

    /// The oldest message.
    #[inline]
    pub fn recv(&self) -> Option<T> {
        self.ring.pop()
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// How many messages are there.
    pub fn len(&self) -> usize {
        self.ring.len()
    }
}

impl<T> Sender<T> {
    /// Sends, and wakes the reactor if it sleeps. Gives the message back if the ring is full.
    #[inline]
    pub fn send(&self, message: T) -> Result<(), T> {
        self.ring.push(message)?;
        self.waker.wake();
        Ok(())
    }
}

/// A sender that keeps what does not fit, in order.
///
/// Nobody calls when a full ring has room again: a poller whose outbox has a backlog must not
/// sleep, so its next deadline is at once.
#[derive(Debug)]
pub struct Outbox<T> {
    sender: Sender<T>,
    waiting: VecDeque<T>,
    capacity: usize,
}

impl<T> Outbox<T> {
    /// Keeps at most `capacity` messages that did not fit: the number of things the owner can
    /// have to say at a time (its tasks, say), so that it is never too small.
    pub fn new(sender: Sender<T>, capacity: usize) -> Outbox<T> {
        Outbox { sender, waiting: VecDeque::with_capacity(capacity), capacity }
    }

    /// Sends now or keeps for [`flush`](Self::flush). Gives the message back if `capacity` are
    /// kept already.
    pub fn send(&mut self, message: T) -> Result<(), T> {
        // Nothing may pass what waits.
        let message = if self.waiting.is_empty() {
            match self.sender.send(message) {
                Ok(()) => return Ok(()),
                Err(message) => message,
            }
        } else {
            message
        };
        if self.waiting.len() == self.capacity {
            return Err(message);
        }
        self.waiting.push_back(message);
        Ok(())
    }

    /// Sends what waits, as far as it fits; once a turn. Gives how many went.
    pub fn flush(&mut self) -> usize {
        let mut sent = 0;
        while let Some(message) = self.waiting.pop_front() {
            if let Err(message) = self.sender.send(message) {
                self.waiting.push_front(message);
                break;
            }
            sent += 1;
        }
        sent
    }

    /// How many messages wait.
    pub fn backlog(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_gives_back() {
        let (sender, mailbox) = Mailbox::new(1, &Waker::new().unwrap());
        assert_eq!(sender.send(1), Ok(()));
        assert_eq!(sender.send(2), Err(2));
        assert_eq!(mailbox.recv(), Some(1));
        assert_eq!(mailbox.recv(), None);
    }

    #[test]
    fn an_outbox_keeps_the_order() {
        let (sender, mailbox) = Mailbox::new(2, &Waker::new().unwrap());
        let mut outbox = Outbox::new(sender, 2);
        for n in 0..4 {
            assert_eq!(outbox.send(n), Ok(()));
        }
        assert_eq!(outbox.send(4), Err(4));
        assert_eq!(mailbox.recv(), Some(0));
        // 2 waits, so 4 may not take the place that 0 left.
        assert_eq!(outbox.send(4), Err(4));
        assert_eq!(outbox.flush(), 1);
        assert_eq!(outbox.send(4), Ok(()));
        let mut seen = Vec::new();
        while seen.len() < 4 {
            outbox.flush();
            seen.extend(mailbox.recv());
        }
        assert_eq!(seen, [1, 2, 3, 4]);
        assert_eq!(outbox.backlog(), 0);
    }

    #[test]
    fn threads_lose_and_double_nothing() {
        const EACH: u64 = 20_000;
        let (sender, mailbox) = Mailbox::new(64, &Waker::new().unwrap());
        let threads: Vec<_> = (0..2)
            .map(|who| {
                let mut outbox = Outbox::new(sender.clone(), 8);
                std::thread::spawn(move || {
                    for n in 0..EACH {
                        let mut message = (who, n);
                        while let Err(back) = outbox.send(message) {
                            message = back;
                            outbox.flush();
                            std::thread::yield_now();
                        }
                    }
                    while outbox.backlog() > 0 {
                        outbox.flush();
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let mut next = [0; 2];
        while next != [EACH, EACH] {
            match mailbox.recv() {
                Some((who, n)) => {
                    assert_eq!(n, next[who], "messages of one sender keep their order");
                    next[who] += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(mailbox.is_empty());
    }
}
