//! A link: our end of one connection. Two rings, the words beside them, the peer's memory, the socket.

use std::hint::spin_loop;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use reactors::memory::Region;
use reactors::time::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::memory::PeerMemory;
use super::ring::{Reader, Writer};
use super::segment::{Side, Word};
use super::socket::{self, Look, Received};
use crate::rdma::verbs::{Access, MrKeys, Process};
use crate::wire::num::RKey;
use crate::wire::shm::{Export, MAX_LEN, Message, access};

/// Messages taken from a socket at a time, so that no peer keeps a shard.
const MESSAGES_A_LOOK: usize = 64;
/// How long we wait for a peer that is copying while we close: a turn of its thread, and time for a
/// scheduler. A peer that is stopped in the middle of a copy is not waited for any longer.
const COPY_PATIENCE: Duration = Duration::from_millis(20);

/// What the socket had to say.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The bell was rung.
    pub(super) bell: bool,
    /// The active side is ready.
    pub(super) ready: bool,
    /// The peer disconnects.
    pub(super) bye: bool,
    /// The peer is gone, or what it says makes no sense.
    pub(super) gone: bool,
}

/// Our end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Tells it from all others of this device; the verbs see it as the number of the peer's queue pair.
    pub(super) number: u32,
    side: Side,
    segment: Region,
    pub(super) writer: Writer,
    pub(super) reader: Reader,
    socket: Arc<OwnedFd>,
    pub(super) peer: Process,
    pub(super) memory: PeerMemory,
    /// When the peer last did something.
    pub(super) last_heard: Time,
    /// Heard, and not yet acted upon.
    heard: Heard,
    /// The epoll of our socket, which it leaves with the link although others may keep it open.
    watch: Option<Arc<OwnedFd>>,
    /// Our word says that we may be copying.
    copying: bool,
}

impl Link {
    pub(super) fn new(
        number: u32,
        side: Side,
        segment: Region,
        socket: Arc<OwnedFd>,
        peer: Process,
        now: Time,
    ) -> Link {
        let writer = Writer::new(&segment, side.cells_at(), Word::Taken.at(side.other()));
        let reader = Reader::new(&segment, side.other().cells_at(), Word::Taken.at(side));
        Link {
            number,
            side,
            segment,
            writer,
            reader,
            socket,
            peer,
            memory: PeerMemory::default(),
            last_heard: now,
            heard: Heard::default(),
            watch: None,
            copying: false,
        }
    }

    /// Has `epoll` say when the socket has something to say, with `data`.
    pub(super) fn watch(&mut self, epoll: &Arc<OwnedFd>, data: u64) -> io::Result<()> {
        epoll::add(epoll, &*self.socket, EventData::new_u64(data), EventFlags::IN)?;
        self.watch = Some(Arc::clone(epoll));
        Ok(())
    }

    /// Takes what has come by the socket; gives all that was heard since the last time.
    pub(super) fn look(&mut self) -> Heard {
        self.pump();
        std::mem::take(&mut self.heard)
    }

    /// Takes what has come by the socket. What is more than memory waits for [`look`](Self::look).
    pub(super) fn pump(&mut self) {
        let mut bytes = [0; MAX_LEN];
        for _ in 0..MESSAGES_A_LOOK {
            match socket::receive(&self.socket, &mut bytes) {
                Look::Message(mut received) => self.on_message(&bytes, &mut received),
                Look::Nothing => return,
                Look::Gone => self.heard.gone = true,
            }
            if self.heard.gone {
                return;
            }
        }
    }

    /// Takes a message.
    pub(super) fn on_message(&mut self, bytes: &[u8; MAX_LEN], received: &mut Received) {
        match Message::parse(&bytes[..received.len_bytes]) {
            Ok(Message::Bell) => self.heard.bell = true,
            Ok(Message::Ready) => self.heard.ready = true,
            Ok(Message::Bye) => self.heard.bye = true,
            Ok(Message::Revoke(rkey)) => self.memory.remove(rkey),
            Ok(Message::Export(export)) => {
                if let Err(why) = self.memory.add(export, received) {
                    self.distrust(&why.to_string());
                }
            }
            Ok(_) => self.distrust("a message that has no place in a connection"),
            Err(why) => self.distrust(&why.to_string()),
        }
    }

    fn distrust(&mut self, why: &str) {
        tracing::warn!(peer = %self.peer, "the connection ends, because the peer sent {why}");
        self.heard.gone = true;
    }

    /// Tells the peer of a region that it may reach. False if the peer cannot be told.
    pub(super) fn export(&self, keys: MrKeys, region: &Region, may: Access) -> bool {
        let Some(memfd) = region.memfd() else { return true };
        let bit = |allowed: bool, bit: u8| if allowed { bit } else { 0 };
        let export = Export {
            rkey: keys.rkey,
            addr: region.addr(),
            len_bytes: region.len_bytes() as u64,
            access: bit(may.remote_write, access::WRITE) | bit(may.remote_read, access::READ),
        };
        export.access == 0 || socket::send(&self.socket, &Message::Export(export), Some(memfd)).is_ok()
    }

    /// Takes a region back.
    pub(super) fn revoke(&self, rkey: RKey) {
        // Who does not read its messages will not read another one either: its hang-up comes.
        let _ = socket::send(&self.socket, &Message::Revoke(rkey), None);
    }

    fn own(&self, word: Word) -> &std::sync::atomic::AtomicU64 {
        word.of(self.side, &self.segment)
    }

    fn peers(&self, word: Word) -> &std::sync::atomic::AtomicU64 {
        word.of(self.side.other(), &self.segment)
    }

    /// Says that we copy to or from the peer's memory until [`end_copies`](Self::end_copies). False if
    /// the peer has closed it. The two fences make at least one side see the other.
    #[inline]
    pub(super) fn begin_copy(&mut self) -> bool {
        if !self.copying {
            self.copying = true;
            self.own(Word::Copying).store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        self.peers(Word::Closed).load(Ordering::Acquire) == 0
    }

    /// All copies of this turn are done.
    #[inline]
    pub(super) fn end_copies(&mut self) {
        if self.copying {
            self.copying = false;
            self.own(Word::Copying).store(0, Ordering::Release);
        }
    }

    /// From now on the peer touches no memory of ours: closes it, and waits for a copy in progress.
    pub(super) fn close_memory(&self) {
        self.own(Word::Closed).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let started = Instant::now();
        while self.peers(Word::Copying).load(Ordering::Acquire) != 0 && !self.is_hung_up() {
            if started.elapsed() > COPY_PATIENCE {
                tracing::warn!(peer = %self.peer, "the peer does not say that it has ended its copies");
                return;
            }
            spin_loop();
        }
    }

    fn is_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut set = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let polled = poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_err() || set[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }

    /// Says whether we sleep, and so want the bell. Who says yes must look at the ring once more.
    pub(super) fn say_asleep(&self, asleep: bool) {
        self.own(Word::Asleep).store(asleep.into(), Ordering::Relaxed);
    }

    /// Rings if the peer sleeps or is about to; whether it was so.
    #[inline]
    pub(super) fn ring_bell(&self) -> bool {
        fence(Ordering::SeqCst);
        let asleep = self.peers(Word::Asleep);
        let rings = asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0;
        if rings {
            // A full socket is readable, which wakes as well; a closed one is noticed by its owner.
            let _ = socket::send(&self.socket, &Message::Bell, None);
        }
        rings
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(epoll) = &self.watch {
            let _ = epoll::delete(&**epoll, &*self.socket);
        }
    }
}
