//! Where the shards of one device meet: links that wait for their queue pair, and what their owners
//! have to tell shard 0, which manages connections. Only logins and ends pass here; it is a lock.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};

use super::link::Link;

/// What the owner of a link tells the connection manager.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The active side is ready.
    Ready,
    /// The peer disconnects.
    Bye,
    /// The peer is gone.
    Gone,
}

#[derive(Debug, Default)]
struct Inside {
    parked: HashMap<u32, Box<Link>>,
    notices: VecDeque<(u32, Notice)>,
}

#[derive(Debug)]
struct Hall {
    inside: Mutex<Inside>,
    /// Notices wait.
    announced: AtomicBool,
    /// Readable while `announced`, for a shard 0 that sleeps.
    event: OwnedFd,
}

/// One shard's way to the others; clones lead to the same place.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Hall>);

impl Hub {
    /// For the shards of one device.
    pub fn new() -> io::Result<Hub> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Hub(Arc::new(Hall { inside: Mutex::default(), announced: AtomicBool::new(false), event })))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.inside.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps a link until a queue pair asks for it.
    pub(super) fn park(&self, link: Box<Link>) {
        self.inside().parked.insert(link.number, link);
    }

    /// Takes a link out.
    pub(super) fn unpark(&self, number: u32) -> Option<Box<Link>> {
        self.inside().parked.remove(&number)
    }

    /// Does something to a link that waits, if it does.
    pub(super) fn with_parked(&self, number: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.inside().parked.get_mut(&number) {
            change(link);
        }
    }

    /// Tells the connection manager.
    pub(super) fn tell(&self, number: u32, notice: Notice) {
        self.inside().notices.push_back((number, notice));
        if !self.0.announced.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is at its limit: then it is readable, which is all we want.
            let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether [`hear`](Self::hear) has something to give.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.0.announced.load(Ordering::Relaxed)
    }

    /// The next notice.
    pub(super) fn hear(&self) -> Option<(u32, Notice)> {
        let mut inside = self.inside();
        let notice = inside.notices.pop_front();
        if notice.is_none() && self.0.announced.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.0.event, &mut [0u8; 8]);
        }
        notice
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
