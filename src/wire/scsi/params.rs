//! The writer of parameter data, which is built from front to back.

/// Parameter data that is written once from front to back. What does not fit in the buffer is
/// counted and not kept, so that the available length is always exact.
pub(super) struct Params<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Params<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Params { out, len: 0 }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        if let Some(room) = self.out.get_mut(self.len..) {
            let n = room.len().min(bytes.len());
            room[..n].copy_from_slice(&bytes[..n]);
        }
        self.len += bytes.len();
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub(super) fn be16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    pub(super) fn be32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    pub(super) fn be64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    pub(super) fn zeroes(&mut self, count: usize) -> &mut Self {
        for _ in 0..count {
            self.u8(0);
        }
        self
    }

    /// Overwrites bytes put before.
    pub(super) fn patch(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        debug_assert!(at + bytes.len() <= self.len, "patch behind the end");
        for (i, byte) in bytes.iter().enumerate() {
            if let Some(slot) = self.out.get_mut(at + i) {
                *slot = *byte;
            }
        }
        self
    }

    /// How many bytes were put, kept or not.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut out = [0xff; 5];
        let mut params = Params::new(&mut out);
        params.u8(1).be16(0x0203).be32(0x0405_0607).zeroes(3);
        assert_eq!(params.patch(0, &[9]).patch(4, &[8, 8]).len(), 10);
        assert_eq!(out, [9, 2, 3, 4, 8]);
    }
}
