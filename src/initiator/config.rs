//! What a session is made of.

use std::time::Duration;

use crate::rdma::verbs::{Path, PathMtu, Service};
use crate::wire::srp::PortId;

/// How the data buffer of a command is described. All but `Direct` are there to show that a
/// target understands them: the buffer is one piece of memory in any case.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DescriptorForm {
    /// One direct descriptor.
    Direct,
    /// An indirect table of this many pieces, all in the IU (1..=255).
    Inline {
        /// Pieces of the buffer.
        pieces: u16,
    },
    /// An indirect table in our memory, the first entries of which are in the IU, too.
    External {
        /// Pieces of the buffer (1..=2048).
        pieces: u16,
        /// How many of them are in the IU (0..=255, fewer than `pieces`).
        inline: u16,
    },
}

impl DescriptorForm {
    /// Descriptors of the whole table.
    pub fn pieces(self) -> usize {
        match self {
            DescriptorForm::Direct => 1,
            DescriptorForm::Inline { pieces } | DescriptorForm::External { pieces, .. } => pieces.into(),
        }
    }

    /// Descriptors in the IU.
    pub fn inline(self) -> usize {
        match self {
            DescriptorForm::Direct => 1,
            DescriptorForm::Inline { pieces } => pieces.into(),
            DescriptorForm::External { inline, .. } => inline.into(),
        }
    }
}

/// What a session is made of; fixed at start.
#[derive(Copy, Clone, Debug)]
pub struct SessionConfig {
    /// Our address and the target's.
    pub path: Path,
    /// The target's service.
    pub service: Service,
    /// Payload bytes of a packet.
    pub path_mtu: PathMtu,
    /// Who we are.
    pub initiator: PortId,
    /// Whom we want; [`PortId::UNSPECIFIED`] for whoever listens there.
    pub target: PortId,
    /// Channels to make; the target may allow fewer. At most 256.
    pub channels: u32,
    /// Requests of one channel at a time (each has its own buffer), if there are credits. At
    /// most 4000.
    pub depth: u32,
    /// Longest data buffer of a request, in bytes.
    pub max_io_bytes: u32,
    /// Longest data-OUT that is sent as immediate data, in bytes, if the target grants it; zero
    /// asks for none.
    pub max_immediate_bytes: u32,
    /// Up to so many commands of a channel on their way data-OUT is sent as immediate data, which saves a
    /// round trip; with more the target READs it, in packets of one size that share segmented sends.
    pub max_immediate_depth: u32,
    /// How data buffers are described.
    pub descriptors: DescriptorForm,
    /// After this long a command is aborted.
    pub command_timeout: Duration,
    /// After this long an unanswered ABORT TASK becomes a LUN RESET, and that a new session.
    pub abort_timeout: Duration,
    /// A channel that heard nothing for so long is probed by a zero-length WRITE.
    pub probe_after: Duration,
    /// A channel that heard nothing for so long is dead.
    pub dead_after: Duration,
    /// How long after a loss, and between attempts, a session is made anew; `None`: never.
    pub reconnect_delay: Option<Duration>,
    /// Retries of our QPs and, by request, of the peer's, 0..=7; 7 means seven.
    pub retry_count: u8,
}

impl SessionConfig {
    /// Longest immediate data that fit a receive slot of ours and of LIO, in bytes.
    pub const MAX_IMMEDIATE_BYTES: u32 = 8192;

    /// Where a READ begins to cost less than the unequal packets of immediate data.
    pub const MAX_IMMEDIATE_DEPTH: u32 = 4;

    /// A session of one channel with ib_srp's habits.
    pub fn new(path: Path, service: Service, initiator: PortId) -> Self {
        SessionConfig {
            path,
            service,
            path_mtu: PathMtu::B1024,
            initiator,
            target: PortId::UNSPECIFIED,
            channels: 1,
            depth: 32,
            max_io_bytes: 128 << 10,
            max_immediate_bytes: Self::MAX_IMMEDIATE_BYTES,
            max_immediate_depth: Self::MAX_IMMEDIATE_DEPTH,
            descriptors: DescriptorForm::Direct,
            command_timeout: Duration::from_secs(30),
            abort_timeout: Duration::from_secs(5),
            probe_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(10),
            reconnect_delay: None,
            retry_count: 7,
        }
    }

    /// Why the session cannot be made like this, if it cannot.
    pub fn check(&self) -> Result<(), &'static str> {
        let forms = match self.descriptors {
            DescriptorForm::Direct => true,
            DescriptorForm::Inline { pieces } => (1..=255).contains(&pieces),
            DescriptorForm::External { pieces, inline } => {
                (1..=2048).contains(&pieces) && inline <= 255 && inline < pieces
            }
        };
        if !(1..=256).contains(&self.channels) {
            Err("a session has 1 to 256 channels")
        } else if !(1..=4000).contains(&self.depth) {
            Err("a channel has 1 to 4000 requests at a time")
        } else if self.max_io_bytes == 0 || self.max_io_bytes as usize > 64 << 20 {
            Err("a data buffer has 1 byte to 64 MiB")
        } else if !forms {
            Err("an indirect table has 1 to 255 descriptors in the IU and 2048 in all")
        } else {
            Ok(())
        }
    }
}
