//! Every size and time of the target, fixed at start, with its reason.

use std::time::Duration;

/// Bytes of a data chunk: what a transfer moves at a time, and all that a task holds. Large enough
/// that a chunk's packets fill several segmented sends, small enough that a shard of 4 MiB has three.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Longest transfer of one command, in bytes; VPD page B0 says so. Longer ones are INVALID FIELD
/// IN CDB.
pub const MAX_TRANSFER_BYTES: u32 = 16 << 20;
/// Longest external descriptor table, in bytes: 2,048 descriptors of 16 bytes, what ib_srp's
/// `indirect_sg_entries` allows.
pub const MAX_TABLE_BYTES: usize = 32 << 10;

/// Most memory of one block device that an adapter is given to pin, in bytes, so that its reads go from
/// there. Pinning takes all of it at once, which on the shard's thread is a third of a second a GiB.
pub const PINNED_BYTES: usize = 1 << 30;

/// Longest information unit from an initiator, in bytes: what ib_srp asks for with 8 KiB of
/// immediate data.
pub const MAX_IT_IU_BYTES: u32 = 8260;
/// Shortest such length that a login may ask for (SRP r16a, 6.2: 64 bytes).
pub const MIN_IT_IU_BYTES: u32 = 64;
/// Bytes from one receive slot to the next: an IU of [`MAX_IT_IU_BYTES`] that starts 68 bytes
/// before a page ends in the third page.
pub const RECV_STRIDE_BYTES: usize = 12 << 10;
/// Where immediate data begins in a login's IU ("immediate data offset"). A slot begins this far
/// before a page, so that immediate data is page aligned and goes to O_DIRECT without a copy.
pub const IMMEDIATE_OFFSET_BYTES: usize = 68;
/// Longest response, in bytes: SRP_RSP (36), sense (96).
pub const MAX_TI_IU_BYTES: u32 = 132;
/// Bytes of a response buffer: [`MAX_TI_IU_BYTES`] up to whole cache lines.
pub const RSP_STRIDE_BYTES: usize = 192;

/// Credits of a channel at most: ib_srp's queue size.
pub const MAX_CREDITS: u32 = 64;
/// Credits of a channel at least: one command and one task management function.
pub const MIN_CREDITS: u32 = 2;
/// Receive slots that a channel has beyond its credits, for I_LOGOUT and late IUs.
pub const CONTROL_SLOTS: u32 = 1;
/// RDMA READs that one QP has in flight at most: what ib_srp offers is 4, our initiator 128.
pub const MAX_READS_A_QP: u8 = 128;
/// Bytes that one RDMA READ asks for at most: a fraction of a stock socket buffer.
pub const READ_BYTES: u32 = 64 << 10;
/// Half-open logins at most; the oldest goes first.
pub const MAX_HALF_OPEN: usize = 128;
/// Task management functions that one nexus has in progress at most: ib_srp keeps one slot.
pub const MAX_TMF_A_CHANNEL: usize = 4;
/// Commands of the control plane that wait at a shard at most.
pub const INBOX_DEPTH: usize = 1024;

/// How often an idle channel is probed, since SRP has no keep-alive.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// When task management that still waits is answered FUNCTION FAILED: ib_srp gives up at 5 s.
pub const TMF_ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// How long the reaper waits for LAST_WQE_REACHED, which rxe of kernel 6.1 never sends.
pub const LAST_WQE_WAIT: Duration = Duration::from_millis(100);
/// How long a QP may take to drain before it is destroyed and counted.
pub const QUIESCE_WITHIN: Duration = Duration::from_secs(5);
/// How often a QP is moved to ERR at most, if its markers show that it does not stay there.
pub const MARKERS_AT_MOST: u32 = 3;
/// When a QP that the device has not recycled or destroyed is told of: a firmware command takes
/// milliseconds, a reset of the adapter some seconds.
pub const RETIRE_WITHIN: Duration = Duration::from_secs(5);
/// How long the reaper waits before it asks a device again that has failed; doubled up to a minute.
pub const RETIRE_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Spare QPs that a shard keeps: an initiator with a channel on each of its 64 cores finds them all
/// when it comes back. Each takes what an idle channel takes, some 20 KiB.
pub const SPARE_QUEUE_PAIRS: usize = 64;
/// Tasks that have been given up while a block device had them and that may outnumber the receive
/// slots; further ones keep the slot that was promised for them.
pub const ORPHANS_AT_MOST: usize = super::luns::QUEUE_DEPTH;

/// Memory of a shard by default, in bytes.
pub const DEFAULT_MEMORY_BYTES: usize = 64 << 20;
/// Least memory of a shard, in bytes: 256 receive slots and three chunks.
pub const MIN_MEMORY_BYTES: usize = 4 << 20;
/// Most memory of a shard, in bytes: io_uring registers buffers of 1 GiB at most.
pub const MAX_MEMORY_BYTES: usize = 1 << 30;
/// Most receive slots of a shard: 63 channels with full credits need 4,096; beyond four times
/// that more memory serves the data better.
const MAX_RECV_SLOTS: usize = 16_384;

/// Why the wanted sizes cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadLimits {
    /// Too little or too much memory.
    #[error("--memory is {got} bytes a shard; it must lie between 4M and 1G")]
    Memory {
        /// What was asked for.
        got: u64,
    },
    /// Zero of something, or more than fits.
    #[error("{flag} is {got}; it must lie between 1 and {most}")]
    Count {
        /// Which flag.
        flag: &'static str,
        /// What was asked for.
        got: u64,
        /// The most that is possible.
        most: u64,
    },
    /// A time that makes no sense.
    #[error("{flag} is {got:?}; it must lie between {least:?} and {most:?}")]
    Time {
        /// Which flag.
        flag: &'static str,
        /// What was asked for.
        got: Duration,
        /// The least that is possible.
        least: Duration,
        /// The most that is possible.
        most: Duration,
    },
}

/// What the operator may choose.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Wishes {
    /// Memory of a shard, in bytes.
    pub memory_bytes: u64,
    /// Channels of the whole target.
    pub max_channels: u32,
    /// Sessions of the whole target.
    pub max_sessions: u32,
    /// A peer that acknowledges nothing for so long is dead.
    pub dead_after: Duration,
    /// A stop waits so long for commands in progress.
    pub drain_timeout: Duration,
}

impl Default for Wishes {
    fn default() -> Self {
        Wishes {
            memory_bytes: DEFAULT_MEMORY_BYTES as u64,
            max_channels: 1024,
            max_sessions: 256,
            dead_after: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(8),
        }
    }
}

/// The sizes of one shard and the times of the target.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Memory of a shard, in bytes: receive slots, response buffers and the data arena.
    pub memory_bytes: usize,
    /// Receive slots of a shard's SRQ.
    pub recv_slots: u32,
    /// Tasks of a shard. A command holds a credit until its response, and never more credits
    /// are granted than there are slots; [`ORPHANS_AT_MOST`] may be left of others.
    pub tasks: u32,
    /// Bytes of the data arena: what receive slots and responses leave, in whole chunks.
    pub data_bytes: usize,
    /// Below so many posted slots immediate data is copied out and its slot reposted, so that
    /// a stalled LUN cannot starve the others.
    pub recv_low: u32,
    /// Channels of the whole target.
    pub max_channels: u32,
    /// Sessions of the whole target.
    pub max_sessions: u32,
    /// Channels of one session.
    pub max_channels_per_session: u32,
    /// A peer that acknowledges nothing for so long is dead.
    pub dead_after: Duration,
    /// A stop waits so long for commands in progress.
    pub drain_timeout: Duration,
}

/// What the operator may lower while the target runs: it counts for logins to come, those that
/// there are keep what they have. `None` is what the target was started with.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Admission {
    /// Channels of the whole target.
    pub max_channels: Option<u32>,
    /// Sessions of the whole target.
    pub max_sessions: Option<u32>,
    /// Channels of one session.
    pub max_channels_per_session: Option<u32>,
}

impl Limits {
    /// These limits as far as `admission` does not lower them. An error names what cannot be.
    pub fn lowered(&self, admission: &Admission) -> Result<Limits, BadLimits> {
        let lower = |flag, wanted: Option<u32>, most| {
            wanted.map_or(Ok(most), |wanted| count(flag, wanted, most).map(|()| wanted))
        };
        let max_channels = lower("max_channels", admission.max_channels, self.max_channels)?;
        let a_session = admission.max_channels_per_session;
        Ok(Limits {
            max_channels,
            max_sessions: lower("max_sessions", admission.max_sessions, self.max_sessions)?,
            max_channels_per_session: lower("max_channels_per_session", a_session, self.max_channels)?,
            ..*self
        })
    }

    /// The sizes that follow from what the operator chose: three quarters of the memory are
    /// receive slots (4,096 of 64 MiB), the rest responses and data.
    pub fn new(wishes: &Wishes) -> Result<Limits, BadLimits> {
        let memory_bytes = usize::try_from(wishes.memory_bytes)
            .ok()
            .filter(|bytes| (MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(bytes))
            .ok_or(BadLimits::Memory { got: wishes.memory_bytes })?;
        let recv_slots = (memory_bytes / 4 * 3 / RECV_STRIDE_BYTES).min(MAX_RECV_SLOTS);
        let tasks = recv_slots + ORPHANS_AT_MOST;
        let left = memory_bytes - recv_region_bytes(recv_slots) - rsp_region_bytes(tasks);
        count("--max-channels", wishes.max_channels, 65_536)?;
        count("--max-sessions", wishes.max_sessions, 65_536)?;
        // Less than a probe and its answer would call living peers dead.
        time("--dead-after", wishes.dead_after, Duration::from_secs(1), Duration::from_secs(3600))?;
        time("--drain-timeout", wishes.drain_timeout, Duration::ZERO, Duration::from_secs(3600))?;
        Ok(Limits {
            memory_bytes,
            recv_slots: recv_slots as u32,
            tasks: tasks as u32,
            data_bytes: left / CHUNK_BYTES * CHUNK_BYTES,
            recv_low: recv_slots as u32 / 4,
            max_channels: wishes.max_channels,
            max_sessions: wishes.max_sessions,
            max_channels_per_session: wishes.max_channels,
            dead_after: wishes.dead_after,
            drain_timeout: wishes.drain_timeout,
        })
    }

    /// Bytes of the region that holds the receive slots.
    pub fn recv_region_bytes(&self) -> usize {
        recv_region_bytes(self.recv_slots as usize)
    }

    /// Where receive slot `slot` begins in its region: [`IMMEDIATE_OFFSET_BYTES`] before a page.
    pub fn recv_slot_offset(&self, slot: u32) -> usize {
        slot as usize * RECV_STRIDE_BYTES + reactors::memory::PAGE_BYTES - IMMEDIATE_OFFSET_BYTES
    }

    /// Bytes of the region that holds one response buffer a task.
    pub fn rsp_region_bytes(&self) -> usize {
        rsp_region_bytes(self.tasks as usize)
    }

    /// Chunks of the data arena.
    pub fn chunks(&self) -> usize {
        self.data_bytes / CHUNK_BYTES
    }

    /// How often an idle channel is probed: three times within `dead_after`, at most every
    /// [`PROBE_INTERVAL`].
    pub fn probe_interval(&self) -> Duration {
        PROBE_INTERVAL.min(self.dead_after / 3)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::new(&Wishes::default()).expect("the defaults fit")
    }
}

/// The last slot ends within its stride's end plus the page before it.
fn recv_region_bytes(slots: usize) -> usize {
    slots * RECV_STRIDE_BYTES
}

fn rsp_region_bytes(tasks: usize) -> usize {
    (tasks * RSP_STRIDE_BYTES).next_multiple_of(reactors::memory::PAGE_BYTES)
}

fn count(flag: &'static str, got: u32, most: u32) -> Result<(), BadLimits> {
    if (1..=most).contains(&got) {
        return Ok(());
    }
    Err(BadLimits::Count { flag, got: got.into(), most: most.into() })
}

fn time(flag: &'static str, got: Duration, least: Duration, most: Duration) -> Result<(), BadLimits> {
    if (least..=most).contains(&got) { Ok(()) } else { Err(BadLimits::Time { flag, got, least, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_memory(bytes: u64) -> Result<Limits, BadLimits> {
        Limits::new(&Wishes { memory_bytes: bytes, ..Wishes::default() })
    }

    #[test]
    fn the_default_is_4096_slots_and_the_rest_is_data() {
        let limits = Limits::default();
        assert_eq!((limits.recv_slots, limits.tasks, limits.recv_low), (4096, 4352, 1024));
        assert_eq!(limits.recv_region_bytes(), 48 << 20);
        assert_eq!(limits.chunks(), 60);
    }

    #[test]
    fn everything_fits_in_the_memory_at_every_size() {
        for bytes in (MIN_MEMORY_BYTES..MAX_MEMORY_BYTES).step_by((7 << 20) + 4097) {
            let limits = with_memory(bytes as u64).unwrap();
            assert!(
                limits.recv_region_bytes() + limits.rsp_region_bytes() + limits.data_bytes <= bytes,
                "{limits:?}"
            );
            assert!(limits.chunks() >= 3, "{limits:?}");
        }
        assert_eq!(with_memory(1 << 30).unwrap().recv_slots, 16_384);
    }

    #[test]
    fn a_slot_holds_the_longest_iu_with_its_data_on_a_page() {
        let limits = with_memory(4 << 20).unwrap();
        for slot in 0..limits.recv_slots {
            let start = limits.recv_slot_offset(slot);
            assert_eq!((start + IMMEDIATE_OFFSET_BYTES) % reactors::memory::PAGE_BYTES, 0);
            let end = start + MAX_IT_IU_BYTES as usize;
            assert!(end <= limits.recv_region_bytes() && end <= limits.recv_slot_offset(slot + 1));
        }
    }

    #[test]
    fn limits_are_lowered_and_never_raised() {
        let limits = Limits::new(&Wishes { max_channels: 8, max_sessions: 4, ..Wishes::default() }).unwrap();
        assert_eq!(limits.lowered(&Admission::default()), Ok(limits));
        let two = Admission { max_channels_per_session: Some(2), ..Admission::default() };
        assert_eq!(limits.lowered(&two), Ok(Limits { max_channels_per_session: 2, ..limits }));
        let words = |admission| limits.lowered(&admission).unwrap_err().to_string();
        assert_eq!(
            words(Admission { max_channels: Some(9), ..two }),
            "max_channels is 9; it must lie between 1 and 8"
        );
        assert_eq!(
            words(Admission { max_sessions: Some(0), ..two }),
            "max_sessions is 0; it must lie between 1 and 4"
        );
    }

    #[test]
    fn what_cannot_be_is_named() {
        let words = |wishes| Limits::new(&wishes).unwrap_err().to_string();
        let base = Wishes::default();
        assert_eq!(
            words(Wishes { memory_bytes: 1 << 20, ..base }),
            "--memory is 1048576 bytes a shard; it must lie between 4M and 1G"
        );
        assert_eq!(
            words(Wishes { max_channels: 0, ..base }),
            "--max-channels is 0; it must lie between 1 and 65536"
        );
        assert_eq!(
            words(Wishes { dead_after: Duration::from_millis(5), ..base }),
            "--dead-after is 5ms; it must lie between 1s and 3600s"
        );
    }
}
