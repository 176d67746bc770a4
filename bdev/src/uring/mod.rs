//! A regular file or a block device, by io_uring.
//!
//! * `open`: opening, geometry, and every reason not to serve something
//! * `file`: what the queues of a device share; the watch on a size that changes
//! * `op`: one operation on its way: which segment is next, what a result of the kernel means
//! * `segment`: what the kernel is asked for next
//! * `ring`: the ring of a thread; all queues that the thread opens share it
//! * `turn`: a turn of that ring, and going to sleep
//! * `params`: which kind of ring this kernel makes, and what it must be able to do
//! * `buffers`: memory regions as fixed buffers, and bounce buffers for what O_DIRECT refuses
//! * `queue`: the queue of one device
//!
//! A thread's queues share a ring: a turn of the reactor then costs one system call however many
//! devices there are, and the arena is pinned and accounted once a thread, not once a queue.
//!
//! A sleeper is woken through an eventfd. The ring's own descriptor will not do: with deferred
//! task work it is readable when such work waits, and yet nobody who sleeps on it is woken
//! (seen on 6.18). The eventfd is switched on, in memory, when the reactor asks for the next
//! deadline, and off by the next poll, so that it costs nothing while the reactor is awake.

mod buffers;
mod file;
mod op;
mod open;
mod params;
mod queue;
mod ring;
mod segment;
mod turn;

use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use crate::device::{Bdev, BlockQueue, Geometry};
use crate::io::OpenError;
use crate::stats::IoStats;
use file::File;

/// How a file or block device shall be served.
#[derive(Clone, Debug, Default)]
pub struct UringOptions {
    /// Refuse writes. Without it, a file that cannot be written is an error.
    pub read_only: bool,
    /// Bytes of a block: 512 or 4096. By default what the device has, and 512 for files.
    pub block_bytes: Option<u32>,
    /// Its identity; by default derived from the file's path.
    pub uuid: Option<Uuid>,
    /// Go through the page cache even where O_DIRECT would work.
    pub buffered: bool,
}

/// A regular file or block device that is served by io_uring.
pub struct UringBdev {
    file: Arc<File>,
    uuid: Uuid,
}

impl UringBdev {
    /// Opens the file or block device `path`. An error names the path, the value found and the
    /// remedy.
    pub fn open(name: &str, path: &Path, options: &UringOptions) -> Result<UringBdev, OpenError> {
        let file = File::open(name, path, options)?;
        let from_path =
            || Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("file://{}", file.path.display()).as_bytes());
        let uuid = options.uuid.unwrap_or_else(from_path);
        Ok(UringBdev { file: Arc::new(file), uuid })
    }

    /// Whether the page cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.file.direct.is_some()
    }
}

impl Bdev for UringBdev {
    fn name(&self) -> &str {
        &self.file.name
    }

    fn product(&self) -> &'static str {
        "URING disk"
    }

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn generation(&self) -> u64 {
        self.file.generation()
    }

    fn backing(&self) -> Option<&Path> {
        Some(&self.file.path)
    }

    fn check_backing(&self) {
        self.file.check_backing();
    }

    fn rescan(&self) -> Result<Geometry, OpenError> {
        self.file.rescan()
    }

    fn stats(&self) -> IoStats {
        self.file.stats.read()
    }

    fn open_queue(&self, depth: usize) -> Result<Box<dyn BlockQueue>, OpenError> {
        Ok(Box::new(queue::UringQueue::open(&self.file, depth)?))
    }
}
