//! The ring protocol: records in cells of 128 bytes, one writer, one reader, either of which may lie.
//!
//! A cell is a header word and 120 bytes: a command or a response. A longer record takes as many cells as it needs, one after the other;
//! the header of the first is written last, with release order, and so publishes all of them. The word
//! carries the *lap*, which is how often the writer has gone round: a cell of the lap before is an empty
//! one, and no byte of a payload ever lies where a header is looked for. So the reader of a busy ring
//! touches the cache lines of the records and nothing else. What it has taken it says once a batch,
//! in a word of its own; the writer looks there only when the ring seems full.
//!
//! The reader takes a header once, checks it, and from then on goes by its own copy; a writer that lies
//! gets an error, which ends its connection. It can make us copy its own bytes, whichever it likes.

use std::sync::atomic::Ordering;

use reactors::memory::Region;

/// Bytes of a cell: two cache lines, of which a response touches one.
pub(super) const CELL_BYTES: usize = 128;
/// Bytes of its header.
const HEADER_BYTES: usize = 8;
/// Bytes of a record in one cell.
const PAYLOAD_BYTES: usize = CELL_BYTES - HEADER_BYTES;
/// Cells of a ring: twice the commands of a channel, which take one each, and room for an information
/// unit with immediate data.
const CELLS: u64 = 128;
/// How many cells ahead the writer asks for the one that the reader still has: the way between two cores
/// is as long as writing that many.
const WRITE_AHEAD: u64 = 8;
/// How many cells ahead the reader asks.
const READ_AHEAD: u64 = 2;
/// Length of a ring in bytes.
pub(super) const RING_BYTES: usize = CELLS as usize * CELL_BYTES;
/// Longest record in bytes. Not the whole ring, so that the writer does not wait for an empty one.
pub(super) const MAX_RECORD_BYTES: usize = 3 * CELLS as usize / 4 * PAYLOAD_BYTES;

/// What a record is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A SEND.
    Send = 1,
    /// An RDMA WRITE of nothing: asks whether the reader lives.
    Probe = 2,
}

/// The kind of every cell of a record but the first.
const MORE: u64 = 0x7f;

/// A record at the reader's place, as its header said once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    pub(super) len_bytes: usize,
}

/// The other side broke the protocol of the ring.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the rules of the ring: {0}")]
pub(super) struct Lie(pub(super) &'static str);

/// A piece of memory that goes into a record.
#[derive(Copy, Clone, Debug)]
pub(super) struct Source<'a> {
    pub(super) region: &'a Region,
    pub(super) offset: usize,
    pub(super) len_bytes: usize,
}

fn cells(len_bytes: usize) -> u64 {
    len_bytes.div_ceil(PAYLOAD_BYTES).max(1) as u64
}

/// The lap of the cell at `place`, 1.. so that a zeroed cell is empty.
fn lap(place: u64) -> u64 {
    (place / CELLS + 1) & u64::from(u32::MAX)
}

fn header(place: u64, kind: u64, len_bytes: usize) -> u64 {
    lap(place) << 32 | kind << 24 | len_bytes as u64
}

/// A ring in a segment, as either end knows it.
#[derive(Debug)]
struct Ring {
    segment: Region,
    /// Where the cells begin.
    cells_at: usize,
    /// Where the reader says how much it has taken.
    taken_at: usize,
}

impl Ring {
    fn cell(&self, place: u64) -> usize {
        self.cells_at + (place % CELLS) as usize * CELL_BYTES
    }
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct Writer {
    ring: Ring,
    /// The next cell.
    place: u64,
    /// What the reader has taken, as we last saw.
    taken: u64,
}

impl Writer {
    pub(super) fn new(segment: &Region, cells_at: usize, taken_at: usize) -> Writer {
        Writer { ring: Ring { segment: segment.clone(), cells_at, taken_at }, place: 0, taken: 0 }
    }

    /// Looks how much the reader has taken; whether it is more than before.
    pub(super) fn look(&mut self) -> Result<bool, Lie> {
        let word = self.ring.segment.word(self.ring.taken_at).expect("a segment has its words");
        let taken = word.load(Ordering::Acquire);
        // Both differences on the circle: it only grows, and never beyond what was written.
        if taken.wrapping_sub(self.taken) > self.place.wrapping_sub(self.taken) {
            return Err(Lie("it says that it took what was never sent"));
        }
        let moved = taken != self.taken;
        self.taken = taken;
        Ok(moved)
    }

    /// Whether the reader has taken everything, as far as we saw.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.place == self.taken
    }

    /// Writes a record of the pieces one after the other; false if there is no room now.
    ///
    /// # Panics
    /// If it is longer than [`MAX_RECORD_BYTES`], or a piece does not lie in its region.
    #[inline]
    pub(super) fn push(&mut self, kind: Kind, pieces: &[Source<'_>]) -> Result<bool, Lie> {
        let len_bytes: usize = pieces.iter().map(|piece| piece.len_bytes).sum();
        assert!(len_bytes <= MAX_RECORD_BYTES, "a record of {len_bytes} bytes");
        let count = cells(len_bytes);
        if self.place - self.taken + count > CELLS {
            self.look()?;
            if self.place - self.taken + count > CELLS {
                return Ok(false);
            }
        }
        self.ring.segment.prefetch_to_write(self.ring.cell(self.place + WRITE_AHEAD));
        if count == 1 {
            let mut to = self.ring.cell(self.place) + HEADER_BYTES;
            for piece in pieces {
                let copied = piece.region.copy_to(piece.offset, &self.ring.segment, to, piece.len_bytes);
                copied.expect("a piece lies in its region, a cell in its segment");
                to += piece.len_bytes;
            }
        } else {
            self.copy_in_all(pieces, count);
        }
        self.store(self.place, header(self.place, kind as u64, len_bytes), Ordering::Release);
        self.place += count;
        Ok(true)
    }

    /// Copies the pieces of a record of several cells, and marks all cells but the first.
    fn copy_in_all(&self, pieces: &[Source<'_>], count: u64) {
        let mut at = 0;
        for piece in pieces {
            self.copy_in(piece, at);
            at += piece.len_bytes;
        }
        for place in self.place + 1..self.place + count {
            self.store(place, header(place, MORE, 0), Ordering::Relaxed);
        }
    }

    #[inline]
    fn store(&self, place: u64, value: u64, order: Ordering) {
        let word = self.ring.segment.word(self.ring.cell(place)).expect("a cell lies in its segment");
        word.store(value, order);
    }

    /// Copies a piece to where byte `at` of the record goes.
    fn copy_in(&self, piece: &Source<'_>, mut at: usize) {
        let mut done = 0;
        while done < piece.len_bytes {
            let (cell, inside) = (at / PAYLOAD_BYTES, at % PAYLOAD_BYTES);
            let bytes = (PAYLOAD_BYTES - inside).min(piece.len_bytes - done);
            let to = self.ring.cell(self.place + cell as u64) + HEADER_BYTES + inside;
            let copied = piece.region.copy_to(piece.offset + done, &self.ring.segment, to, bytes);
            copied.expect("a piece lies in its region, a cell in its segment");
            done += bytes;
            at += bytes;
        }
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Reader {
    ring: Ring,
    /// The next cell.
    place: u64,
    /// What the writer was told.
    said: u64,
}

impl Reader {
    pub(super) fn new(segment: &Region, cells_at: usize, taken_at: usize) -> Reader {
        Reader { ring: Ring { segment: segment.clone(), cells_at, taken_at }, place: 0, said: 0 }
    }

    fn load(&self, place: u64, order: Ordering) -> u64 {
        self.ring.segment.word(self.ring.cell(place)).expect("a cell lies in its segment").load(order)
    }

    /// The next record, if there is one.
    #[inline]
    pub(super) fn peek(&self) -> Result<Option<Record>, Lie> {
        let word = self.load(self.place, Ordering::Acquire);
        if word >> 32 != lap(self.place) {
            let before = if self.place < CELLS { 0 } else { lap(self.place - CELLS) };
            return if word >> 32 == before { Ok(None) } else { Err(Lie("a cell is of no lap")) };
        }
        let kind = match word >> 24 & 0xff {
            kind if kind == Kind::Send as u64 => Kind::Send,
            kind if kind == Kind::Probe as u64 => Kind::Probe,
            _ => return Err(Lie("a record is of no kind")),
        };
        let len_bytes = (word & 0xff_ffff) as usize;
        if len_bytes > MAX_RECORD_BYTES {
            return Err(Lie("a record is longer than the ring takes"));
        }
        for place in self.place + 1..self.place + cells(len_bytes) {
            if self.load(place, Ordering::Relaxed) != header(place, MORE, 0) {
                return Err(Lie("a record has fewer cells than its length needs"));
            }
        }
        Ok(Some(Record { kind, len_bytes }))
    }

    /// Copies the record that [`peek`](Self::peek) showed to `offset` of `to`, which has room.
    #[inline]
    pub(super) fn copy_out(&self, record: Record, to: &Region, offset: usize) {
        self.ring.segment.prefetch(self.ring.cell(self.place + READ_AHEAD));
        let mut done = 0;
        let mut place = self.place;
        while done < record.len_bytes {
            let bytes = PAYLOAD_BYTES.min(record.len_bytes - done);
            let from = self.ring.cell(place) + HEADER_BYTES;
            let copied = self.ring.segment.copy_to(from, to, offset + done, bytes);
            copied.expect("a cell lies in its segment, and the caller has looked for room");
            done += bytes;
            place += 1;
        }
    }

    /// Goes past the record that [`peek`](Self::peek) showed.
    #[inline]
    pub(super) fn pass(&mut self, record: Record) {
        self.place += cells(record.len_bytes);
    }

    /// Tells the writer what was taken; whether it was anything new.
    #[inline]
    pub(super) fn say(&mut self) -> bool {
        let news = self.said != self.place;
        if news {
            let word = self.ring.segment.word(self.ring.taken_at).expect("a segment has its words");
            word.store(self.place, Ordering::Release);
            self.said = self.place;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::shm::segment::{SEGMENT_BYTES, Side, Word};
    use proptest::prelude::*;
    use reactors::memory::PAGE_BYTES;
    use std::collections::VecDeque;

    fn ends() -> (Region, Writer, Reader) {
        let segment = Region::heap(SEGMENT_BYTES.next_multiple_of(PAGE_BYTES));
        let (cells_at, taken_at) = (Side::Active.cells_at(), Word::Taken.at(Side::Passive));
        let writer = Writer::new(&segment, cells_at, taken_at);
        let reader = Reader::new(&segment, cells_at, taken_at);
        (segment, writer, reader)
    }

    fn push(writer: &mut Writer, bytes: &[u8]) -> Result<bool, Lie> {
        let region = Region::heap(MAX_RECORD_BYTES + 8);
        region.write(3, bytes).unwrap();
        let half = bytes.len() / 2;
        let first = Source { region: &region, offset: 3, len_bytes: half };
        let second = Source { region: &region, offset: 3 + half, len_bytes: bytes.len() - half };
        writer.push(Kind::Send, &[first, second])
    }

    fn pop(reader: &mut Reader) -> Result<Option<Vec<u8>>, Lie> {
        let Some(record) = reader.peek()? else { return Ok(None) };
        let region = Region::heap(MAX_RECORD_BYTES + 8);
        reader.copy_out(record, &region, 5);
        let mut bytes = vec![0; record.len_bytes];
        region.read(5, &mut bytes).unwrap();
        reader.pass(record);
        Ok(Some(bytes))
    }

    #[test]
    fn an_empty_record_is_a_record() {
        let (_, mut writer, mut reader) = ends();
        assert_eq!(pop(&mut reader), Ok(None));
        assert_eq!(writer.push(Kind::Probe, &[]), Ok(true));
        let record = reader.peek().unwrap().unwrap();
        assert_eq!(record, Record { kind: Kind::Probe, len_bytes: 0 });
        reader.pass(record);
        assert_eq!(reader.peek(), Ok(None));
        assert!(!writer.is_empty() && reader.say() && writer.look() == Ok(true) && writer.is_empty());
        assert!(!reader.say() && writer.look() == Ok(false));
    }

    #[test]
    fn a_full_ring_waits_until_it_is_told_that_there_is_room() {
        let (_, mut writer, mut reader) = ends();
        let record = [7; 2 * PAYLOAD_BYTES];
        for _ in 0..CELLS / 2 {
            assert_eq!(push(&mut writer, &record), Ok(true));
        }
        assert_eq!(push(&mut writer, &record), Ok(false));
        assert_eq!(pop(&mut reader).unwrap().unwrap(), record);
        assert_eq!(push(&mut writer, &record), Ok(false), "not told yet");
        reader.say();
        assert_eq!(push(&mut writer, &record), Ok(true));
    }

    /// Data that look like headers are nobody's record: whoever writes blocks through an honest peer
    /// cannot forge commands.
    #[test]
    fn payload_is_never_taken_for_a_header() {
        let (_, mut writer, mut reader) = ends();
        for round in 0..3 * CELLS {
            let place = writer.place;
            let forged: Vec<u8> =
                (0..7 * 8).flat_map(|ahead| header(place + CELLS + ahead, 1, 9).to_le_bytes()).collect();
            assert_eq!(push(&mut writer, &forged), Ok(true), "{round}");
            assert_eq!(pop(&mut reader).unwrap().unwrap(), forged);
            assert_eq!(pop(&mut reader), Ok(None));
            reader.say();
        }
    }

    #[test]
    fn lies_are_told_from_emptiness() {
        let lie = |forge: &dyn Fn(&Region)| {
            let (segment, mut writer, mut reader) = ends();
            push(&mut writer, &[1; 200]).unwrap();
            forge(&segment);
            (pop(&mut reader), writer.look())
        };
        let set = |offset: usize, value: u64| {
            move |segment: &Region| segment.word(offset).unwrap().store(value, Ordering::Relaxed)
        };
        let cell = Side::Active.cells_at();
        let taken = Word::Taken.at(Side::Passive);
        assert!(lie(&set(cell, header(0, 9, 200))).0.is_err(), "kind");
        assert!(lie(&set(cell, header(0, 1, MAX_RECORD_BYTES + 1))).0.is_err(), "length");
        assert!(lie(&set(cell, header(0, 1, 2 * PAYLOAD_BYTES + 1))).0.is_err(), "cells");
        assert!(lie(&set(cell, header(CELLS, 1, 200))).0.is_err(), "lap");
        assert!(lie(&set(cell + CELL_BYTES, 0)).0.is_err(), "the second cell");
        assert!(lie(&set(taken, 3)).1.is_err(), "taken too much");
        assert!(lie(&set(taken, u64::MAX)).1.is_err(), "taken backwards");
        assert_eq!(lie(&set(cell, 0)).0, Ok(None));
        assert_eq!(lie(&set(taken, 2)).1, Ok(true));
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in(
            steps in proptest::collection::vec((any::<bool>(), 0..=MAX_RECORD_BYTES, any::<u8>()), 0..200)
        ) {
            let (_, mut writer, mut reader) = ends();
            let mut model = VecDeque::new();
            for (write, len, fill) in steps {
                if write {
                    let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add(at as u8)).collect();
                    if push(&mut writer, &bytes).unwrap() {
                        model.push_back(bytes);
                    }
                } else {
                    prop_assert_eq!(pop(&mut reader).unwrap(), model.pop_front());
                    reader.say();
                }
            }
            while let Some(bytes) = pop(&mut reader).unwrap() {
                prop_assert_eq!(Some(bytes), model.pop_front());
            }
            prop_assert!(model.is_empty());
        }

        /// A segment of any bytes: an end gives a record, nothing, or the lie, and never panics.
        #[test]
        fn any_segment_is_read_without_harm(seed in any::<u64>(), near in any::<bool>()) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (segment, mut writer, mut reader) = ends();
            for _ in 0..200 {
                let cell = Side::Active.cells_at() + rng.usize(0..CELLS as usize) * CELL_BYTES;
                let word = if near {
                    header(rng.u64(0..3 * CELLS), rng.u64(0..4) * 0x2a, rng.usize(0..12_000))
                } else {
                    rng.u64(..)
                };
                segment.word(cell).unwrap().store(word, Ordering::Relaxed);
                if rng.u8(..) == 0 {
                    segment.word(Word::Taken.at(Side::Passive)).unwrap().store(rng.u64(..), Ordering::Relaxed);
                }
                let _ = push(&mut writer, &[3; 70]);
                if pop(&mut reader).is_err() || writer.look().is_err() {
                    break;
                }
            }
        }
    }
}
