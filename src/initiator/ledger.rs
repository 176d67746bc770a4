//! What verification knows of each piece of a logical unit: how often this run wrote it, and
//! whether an I/O is on its way to it.

const BUSY: u32 = 1 << 31;
/// A write ended badly: what the piece holds is unknown.
const UNKNOWN: u32 = 1 << 30;
const GENERATION: u32 = UNKNOWN - 1;

/// What may be done to a piece now.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Read it; it holds this generation. The piece is busy now.
    Read(u32),
    /// Write it with this generation. The piece is busy now.
    Write(u32),
    /// Another I/O is on its way.
    Busy,
}

/// One entry for each piece: an I/O's length, aligned.
pub struct Ledger {
    pieces: Box<[u32]>,
}

impl Ledger {
    /// Nothing is written yet.
    pub fn new(pieces: usize) -> Self {
        Ledger { pieces: vec![0; pieces].into_boxed_slice() }
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Claims a piece for reading, or for writing if this run has not written it, or if what it
    /// holds is unknown.
    pub fn claim(&mut self, piece: usize, write: bool) -> Claim {
        let entry = &mut self.pieces[piece];
        if *entry & BUSY != 0 {
            return Claim::Busy;
        }
        let generation = *entry & GENERATION;
        let must_write = generation == 0 || *entry & UNKNOWN != 0;
        *entry |= BUSY;
        if write || must_write {
            // After 2^30 writings it begins again with one: zero means never written.
            Claim::Write(if generation == GENERATION { 1 } else { generation + 1 })
        } else {
            Claim::Read(generation)
        }
    }

    /// Claims a piece for the last reading: `None` if there is nothing to be compared.
    pub fn claim_written(&mut self, piece: usize) -> Option<u32> {
        let entry = &mut self.pieces[piece];
        let generation = *entry & GENERATION;
        if *entry & (BUSY | UNKNOWN) != 0 || generation == 0 {
            return None;
        }
        *entry |= BUSY;
        Some(generation)
    }

    /// A read has ended.
    pub fn end_read(&mut self, piece: usize) {
        self.pieces[piece] &= !BUSY;
    }

    /// A write of `generation` has ended; if not well, nobody knows what the piece holds.
    pub fn end_write(&mut self, piece: usize, generation: u32, good: bool) {
        self.pieces[piece] = generation & GENERATION | if good { 0 } else { UNKNOWN };
    }

    /// Pieces whose contents are unknown because their last write ended badly.
    pub fn unknown(&self) -> usize {
        self.pieces.iter().filter(|&&entry| entry & UNKNOWN != 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_written_before_it_is_read_and_never_twice_at_a_time() {
        let mut ledger = Ledger::new(2);
        assert_eq!(ledger.claim(1, false), Claim::Write(1), "not yet written");
        assert_eq!(ledger.claim(1, false), Claim::Busy);
        assert_eq!(ledger.claim(1, true), Claim::Busy);
        ledger.end_write(1, 1, true);
        assert_eq!(ledger.claim(1, false), Claim::Read(1));
        assert_eq!(ledger.claim_written(1), None, "busy");
        ledger.end_read(1);
        assert_eq!(ledger.claim(1, true), Claim::Write(2));
        ledger.end_write(1, 2, false);
        assert_eq!((ledger.unknown(), ledger.claim_written(1)), (1, None));
        assert_eq!(ledger.claim(1, false), Claim::Write(3), "unknown contents are not compared");
        ledger.end_write(1, 3, true);
        assert_eq!((ledger.unknown(), ledger.claim_written(1)), (0, Some(3)));
        assert_eq!(ledger.claim_written(0), None, "never written");
    }

    #[test]
    fn generations_wrap_past_zero() {
        let mut ledger = Ledger::new(1);
        ledger.end_write(0, GENERATION, true);
        assert_eq!(ledger.claim(0, true), Claim::Write(1));
    }
}
