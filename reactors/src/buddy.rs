//! A buddy allocator for pieces of 4 KiB to 256 KiB, over any range of bytes.
//!
//! It knows offsets only, so it can manage a [`Region`](crate::memory::Region) or anything else.
//! Free pieces of a size form a list, last in first out, so that a piece that the caches still
//! hold is given out again first. No allocation after start.

use std::num::NonZeroU32;

/// Bytes of the smallest piece.
pub const MIN_PIECE_BYTES: usize = 4096;
/// Bytes of the largest piece.
pub const MAX_PIECE_BYTES: usize = MIN_PIECE_BYTES << (ORDERS - 1);

const ORDERS: usize = 7;
const NONE: u32 = u32::MAX;

/// A piece that was given out. Eight bytes, as an option too, so that it travels in a register.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub struct Piece {
    page: u32,
    pages: NonZeroU32,
}

impl Piece {
    #[inline]
    fn new(page: u32, order: usize) -> Piece {
        Piece { page, pages: NonZeroU32::new(1 << order).unwrap_or(NonZeroU32::MIN) }
    }

    /// From the start of the range, in bytes; a multiple of [`len_bytes`](Self::len_bytes).
    #[inline]
    pub const fn offset(&self) -> usize {
        self.page as usize * MIN_PIECE_BYTES
    }

    /// A power of two, [`MIN_PIECE_BYTES`] to [`MAX_PIECE_BYTES`].
    #[inline]
    pub const fn len_bytes(&self) -> usize {
        self.pages.get() as usize * MIN_PIECE_BYTES
    }
}

/// What is known of the piece that begins at a page.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum State {
    /// No piece begins here.
    Inside,
    /// A free piece of this order.
    Free(u8),
    /// A piece of this order, given out.
    Taken(u8),
}

#[derive(Copy, Clone)]
struct Page {
    state: State,
    prev: u32,
    next: u32,
}

/// The allocator.
pub struct Buddy {
    pages: Box<[Page]>,
    /// First free piece of each order.
    free: [u32; ORDERS],
    free_bytes: usize,
}

fn order_bytes(order: usize) -> usize {
    MIN_PIECE_BYTES << order
}

/// The smallest order whose pieces hold `len_bytes`.
#[inline]
fn order_of(len_bytes: usize) -> Option<usize> {
    let pages = len_bytes.max(1).div_ceil(MIN_PIECE_BYTES);
    let order = pages.next_power_of_two().trailing_zeros() as usize;
    (order < ORDERS).then_some(order)
}

impl Buddy {
    /// Manages `len_bytes`, all free; what exceeds a multiple of [`MAX_PIECE_BYTES`] is not used.
    pub fn new(len_bytes: usize) -> Buddy {
        let chunks = len_bytes / MAX_PIECE_BYTES;
        let pages_a_chunk = 1 << (ORDERS - 1);
        assert!(chunks * pages_a_chunk < NONE as usize, "the range is too large for a buddy allocator");
        let page = Page { state: State::Inside, prev: NONE, next: NONE };
        let mut buddy = Buddy {
            pages: vec![page; chunks * pages_a_chunk].into_boxed_slice(),
            free: [NONE; ORDERS],
            free_bytes: chunks * MAX_PIECE_BYTES,
        };
        for chunk in (0..chunks).rev() {
            buddy.put_free((chunk * pages_a_chunk) as u32, ORDERS - 1);
        }
        buddy
    }

    /// Bytes under management.
    pub fn capacity_bytes(&self) -> usize {
        self.pages.len() * MIN_PIECE_BYTES
    }

    /// Bytes that are free, perhaps in small pieces.
    pub fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Bytes of the largest piece that [`alloc`](Self::alloc) would give now; 0 if none.
    pub fn largest_free_bytes(&self) -> usize {
        (0..ORDERS).rev().find(|&order| self.free[order] != NONE).map_or(0, order_bytes)
    }

    /// A piece of at least `len_bytes`; `None` if there is none, or if that is more than
    /// [`MAX_PIECE_BYTES`].
    #[inline]
    pub fn alloc(&mut self, len_bytes: usize) -> Option<Piece> {
        let order = order_of(len_bytes)?;
        let mut have = (order..ORDERS).find(|&order| self.free[order] != NONE)?;
        let page = self.free[have];
        self.take_free(page, have);
        while have > order {
            have -= 1;
            self.put_free(page + (1 << have), have);
        }
        self.pages[page as usize].state = State::Taken(order as u8);
        self.free_bytes -= order_bytes(order);
        Some(Piece::new(page, order))
    }

    /// Takes a piece back.
    ///
    /// # Panics
    /// If it was not given out: freed twice, or made up.
    pub fn free(&mut self, piece: Piece) {
        let mut page = piece.page as usize;
        let mut order = match self.pages.get(page).map(|page| page.state) {
            Some(State::Taken(order)) => usize::from(order),
            other => panic!("{piece:?} was not given out: {other:?}"),
        };
        assert_eq!(piece.len_bytes(), order_bytes(order), "{piece:?} was given out with another length");
        self.free_bytes += piece.len_bytes();
        self.pages[page].state = State::Inside;
        while order < ORDERS - 1 {
            let buddy = page ^ (1 << order);
            if self.pages[buddy].state != State::Free(order as u8) {
                break;
            }
            self.take_free(buddy as u32, order);
            page = page.min(buddy);
            order += 1;
        }
        self.put_free(page as u32, order);
    }

    fn put_free(&mut self, page: u32, order: usize) {
        let next = std::mem::replace(&mut self.free[order], page);
        if next != NONE {
            self.pages[next as usize].prev = page;
        }
        self.pages[page as usize] = Page { state: State::Free(order as u8), prev: NONE, next };
    }

    #[inline]
    fn take_free(&mut self, page: u32, order: usize) {
        let Page { prev, next, .. } = self.pages[page as usize];
        match prev {
            NONE => self.free[order] = next,
            prev => self.pages[prev as usize].next = next,
        }
        if next != NONE {
            self.pages[next as usize].prev = prev;
        }
        self.pages[page as usize].state = State::Inside;
    }
}

impl std::fmt::Debug for Buddy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buddy({} of {} bytes free)", self.free_bytes, self.capacity_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounds_up_and_refuses_what_is_too_long() {
        let mut buddy = Buddy::new(MAX_PIECE_BYTES + 4096);
        assert_eq!(buddy.capacity_bytes(), MAX_PIECE_BYTES);
        assert_eq!(buddy.alloc(MAX_PIECE_BYTES + 1), None);
        let piece = buddy.alloc(4097).unwrap();
        assert_eq!(piece.len_bytes(), 8192);
        assert_eq!(buddy.largest_free_bytes(), MAX_PIECE_BYTES / 2);
        assert_eq!(buddy.alloc(MAX_PIECE_BYTES), None);
        buddy.free(piece);
        assert_eq!(buddy.alloc(MAX_PIECE_BYTES), Some(Piece::new(0, ORDERS - 1)));
        assert_eq!(buddy.largest_free_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "was not given out")]
    fn freeing_twice_is_found() {
        let mut buddy = Buddy::new(MAX_PIECE_BYTES);
        let (first, _second) = (buddy.alloc(1).unwrap(), buddy.alloc(1).unwrap());
        buddy.free(first);
        buddy.free(first);
    }

    #[test]
    fn the_last_piece_freed_is_the_next_given_out() {
        let mut buddy = Buddy::new(4 * MAX_PIECE_BYTES);
        let held: Vec<_> = (0..130).map(|_| buddy.alloc(4096).unwrap()).collect();
        buddy.free(held[77]);
        assert_eq!(buddy.alloc(4096), Some(held[77]));
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_all_come_back(
            steps in prop::collection::vec((any::<bool>(), 0usize..MAX_PIECE_BYTES + 2, any::<usize>()), 1..400)
        ) {
            let total = 3 * MAX_PIECE_BYTES;
            let mut buddy = Buddy::new(total);
            let mut held: Vec<Piece> = Vec::new();
            let pages = |piece: Piece| {
                piece.offset() / MIN_PIECE_BYTES..(piece.offset() + piece.len_bytes()) / MIN_PIECE_BYTES
            };
            let mut owner = vec![false; total / MIN_PIECE_BYTES];
            for (take, len_bytes, which) in steps {
                if take {
                    // Small ones more often.
                    let len_bytes = if which % 2 == 0 { len_bytes / 16 } else { len_bytes };
                    let largest = buddy.largest_free_bytes();
                    let got = buddy.alloc(len_bytes);
                    prop_assert_eq!(got.is_some(), len_bytes <= largest && largest > 0);
                    if let Some(piece) = got {
                        prop_assert!(piece.len_bytes() >= len_bytes && piece.offset() % piece.len_bytes() == 0);
                        let taken = &mut owner[pages(piece)];
                        prop_assert!(taken.iter().all(|taken| !*taken), "overlap");
                        taken.fill(true);
                        held.push(piece);
                    }
                } else if !held.is_empty() {
                    let piece = held.swap_remove(which % held.len());
                    owner[pages(piece)].fill(false);
                    buddy.free(piece);
                }
                let sum: usize = held.iter().map(|piece| piece.len_bytes()).sum();
                prop_assert_eq!(buddy.free_bytes() + sum, total);
            }
            held.into_iter().for_each(|piece| buddy.free(piece));
            for _ in 0..3 {
                prop_assert!(buddy.alloc(MAX_PIECE_BYTES).is_some());
            }
            prop_assert_eq!(buddy.free_bytes(), 0);
        }
    }
}
