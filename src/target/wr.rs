//! What the 64 bits mean that a shard hands out as `wr_id` and as a block operation's id.
//!
//! Kind, slot and generation travel through the provider or the kernel and come back; a handle
//! of something that has ended meanwhile finds nothing.

use reactors::handle::Handle;
use reactors::slab::Key;

/// What a completion is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A receive slot took a SEND (key: slot and its generation).
    Receive,
    /// The SEND of a task's SRP_RSP.
    Response,
    /// The last RDMA WRITE of a chunk that is not the task's last.
    ChunkSent,
    /// An RDMA READ of a task's data.
    DataRead,
    /// An RDMA READ of a task's external descriptor table.
    TableRead,
    /// A block operation of a task.
    Block,
    /// The marker that ends a dying channel's send queue (key: channel).
    Marker,
    /// The probe of an idle channel (key: channel).
    Probe,
    /// A WRITE signaled only to free send queue entries (key: channel).
    Housekeeping,
}

impl Tag {
    const fn code(self) -> u8 {
        match self {
            Tag::Receive => 1,
            Tag::Response => 2,
            Tag::ChunkSent => 3,
            Tag::DataRead => 4,
            Tag::TableRead => 5,
            Tag::Block => 6,
            Tag::Marker => 7,
            Tag::Probe => 8,
            Tag::Housekeeping => 9,
        }
    }

    /// The bits for `key` of this kind.
    pub const fn bits(self, key: Key) -> u64 {
        key.handle(self.code()).to_bits()
    }

    /// What `bits` stand for; `None` for bits that no shard ever made.
    pub const fn parse(bits: u64) -> Option<(Tag, Key)> {
        let handle = Handle::from_bits(bits);
        let tag = match handle.kind() {
            1 => Tag::Receive,
            2 => Tag::Response,
            3 => Tag::ChunkSent,
            4 => Tag::DataRead,
            5 => Tag::TableRead,
            6 => Tag::Block,
            7 => Tag::Marker,
            8 => Tag::Probe,
            9 => Tag::Housekeeping,
            _ => return None,
        };
        Some((tag, Key { slot: handle.slot(), generation: handle.generation() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_comes_back() {
        let key = Key { slot: 4095, generation: 77 };
        for tag in [
            Tag::Receive,
            Tag::Response,
            Tag::ChunkSent,
            Tag::DataRead,
            Tag::TableRead,
            Tag::Block,
            Tag::Marker,
            Tag::Probe,
            Tag::Housekeeping,
        ] {
            assert_eq!(Tag::parse(tag.bits(key)), Some((tag, key)));
        }
        assert_eq!(Tag::parse(0), None);
        assert_eq!(Tag::parse(u64::MAX), None);
    }
}
