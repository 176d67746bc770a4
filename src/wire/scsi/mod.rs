//! SCSI as bytes: CDBs, sense data, and the parameter data of the commands that srpoll serves and
//! sends.
//!
//! It knows layouts (SPC-4, SBC-3, SAM-5; the clause stands with each type). It must not know
//! which of them a device server accepts, nor any state: that is `crate::scsi`.
//!
//! * [`lun`]: the 8-byte LUN field
//! * [`status`]: SAM status codes
//! * [`cdb`]: command descriptor blocks
//! * [`sense`]: sense data, fixed and descriptor format
//! * [`inquiry`], [`vpd`]: INQUIRY data
//! * [`mode`]: mode parameter headers, block descriptors and pages
//! * [`capacity`]: READ CAPACITY parameter data
//! * [`luns`]: REPORT LUNS parameter data

pub mod capacity;
pub mod cdb;
pub mod inquiry;
pub mod lun;
pub mod luns;
pub mod mode;
pub mod sense;
pub mod status;
pub mod vpd;

/// Big-endian fields out of a buffer whose length the caller has checked, and a bounded writer.
pub(crate) mod field {
    /// Two bytes at `at`.
    pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }

    /// Four bytes at `at`.
    pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    /// Eight bytes at `at`.
    pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
        (u64::from(be32(bytes, at)) << 32) | u64::from(be32(bytes, at + 4))
    }

    /// Parameter data that is written once from front to back. What does not fit in the buffer is
    /// counted and not kept, so that the available length is always exact.
    pub(crate) struct Page<'a> {
        out: &'a mut [u8],
        len: usize,
    }

    impl<'a> Page<'a> {
        pub(crate) fn new(out: &'a mut [u8]) -> Self {
            Page { out, len: 0 }
        }

        pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Self {
            if let Some(room) = self.out.get_mut(self.len..) {
                let n = room.len().min(bytes.len());
                room[..n].copy_from_slice(&bytes[..n]);
            }
            self.len += bytes.len();
            self
        }

        pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
            self.put(&[value])
        }

        pub(crate) fn be16(&mut self, value: u16) -> &mut Self {
            self.put(&value.to_be_bytes())
        }

        pub(crate) fn be32(&mut self, value: u32) -> &mut Self {
            self.put(&value.to_be_bytes())
        }

        pub(crate) fn be64(&mut self, value: u64) -> &mut Self {
            self.put(&value.to_be_bytes())
        }

        pub(crate) fn zeroes(&mut self, count: usize) -> &mut Self {
            for _ in 0..count {
                self.u8(0);
            }
            self
        }

        /// Overwrites bytes put before.
        pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
            debug_assert!(at + bytes.len() <= self.len, "patch behind the end");
            for (i, byte) in bytes.iter().enumerate() {
                if let Some(slot) = self.out.get_mut(at + i) {
                    *slot = *byte;
                }
            }
            self
        }

        /// How many bytes were put, kept or not.
        pub(crate) fn len(&self) -> usize {
            self.len
        }
    }
}
