//! Pieces of a data buffer.

use proptest::prelude::*;

use crate::srp::descriptors::{
    BufferError, BufferRef, Cursor, MAX_DESCRIPTORS, Piece, Table, check_table, pieces,
};
use crate::wire::num::RKey;
use crate::wire::srp::{DescTable, Descriptor};

fn table_of(lengths: &[u32]) -> Vec<u8> {
    let entry = |(index, &len_bytes): (usize, &u32)| {
        Descriptor { addr: (index as u64) << 32, rkey: RKey(index as u32), len_bytes }.emit()
    };
    lengths.iter().enumerate().flat_map(entry).collect()
}

#[test]
fn a_chunk_is_covered_by_its_pieces() {
    let bytes = table_of(&[100, 0, 50, 0, 0, 200]);
    let table = Table::Many(DescTable::new(&bytes).unwrap());
    let piece = |index: u32, within: u64, len_bytes| Piece {
        addr: (u64::from(index) << 32) + within,
        rkey: RKey(index),
        len_bytes,
    };
    let mut first = pieces(table, Cursor::START, 120);
    assert_eq!(first.by_ref().collect::<Vec<_>>(), [piece(0, 0, 100), piece(2, 0, 20)]);
    let rest: Vec<_> = pieces(table, first.cursor(), 1000).collect();
    assert_eq!(rest, [piece(2, 20, 30), piece(5, 0, 200)]);
    assert_eq!(pieces(table, Cursor::at(&table, 120), 1000).collect::<Vec<_>>(), rest);
    assert_eq!(pieces(table, Cursor::at(&table, 350), 1).count(), 0, "behind the end");
    assert_eq!(pieces(table, Cursor::START, 0).count(), 0);

    let one = Table::One(Descriptor { addr: u64::MAX - 1, rkey: RKey(1), len_bytes: 8 });
    let middle: Vec<_> = pieces(one, Cursor::at(&one, 4), 2).collect();
    assert_eq!(middle, [Piece { addr: 2, rkey: RKey(1), len_bytes: 2 }], "it wraps and does not panic");
}

#[test]
fn external_tables_are_checked_when_they_are_here() {
    assert!(check_table(&table_of(&[10, 20]), 30).is_ok());
    assert_eq!(check_table(&table_of(&[10, 20]), 31), Err(BufferError::Uncovered { covered: 30, total: 31 }));
    assert_eq!(check_table(&[0; 17], 0), Err(BufferError::TableLength(17)));
    assert!(check_table(&table_of(&[1; MAX_DESCRIPTORS]), 2048).is_ok());
    assert_eq!(check_table(&table_of(&[1; MAX_DESCRIPTORS + 1]), 1), Err(BufferError::TooMany(2049)));
}

#[test]
fn a_reference_finds_its_table_in_the_iu_only() {
    let mut iu = vec![0; 68];
    iu.extend(table_of(&[5, 6]));
    let inline = BufferRef::Inline { offset: 68, count: 2, total_bytes: 11 };
    let Some(Table::Many(table)) = inline.table(&iu) else { panic!("a table") };
    assert_eq!(table.iter().map(|entry| entry.len_bytes).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(inline.table(&iu[..99]), None);
    assert_eq!(BufferRef::None.table(&iu), None);
}

proptest! {
    /// Chunk by chunk, the pieces are those bytes of the buffer that a byte-wise walk gives.
    #[test]
    fn pieces_are_the_bytes_of_the_buffer(
        lengths in prop::collection::vec(prop_oneof![Just(0_u32), 1_u32..40], 1..30),
        chunk in 1_u32..64,
    ) {
        let bytes = table_of(&lengths);
        let table = Table::Many(DescTable::new(&bytes).unwrap());
        let expected: Vec<u64> = (0_u64..)
            .zip(&lengths)
            .flat_map(|(index, &len)| (0..u64::from(len)).map(move |within| (index << 32) + within))
            .collect();
        let mut walked = Vec::new();
        let mut cursor = Cursor::START;
        while walked.len() < expected.len() {
            let mut part = pieces(table, cursor, chunk);
            let before = walked.len();
            for piece in part.by_ref() {
                prop_assert!(piece.len_bytes > 0);
                walked.extend((0..u64::from(piece.len_bytes)).map(|within| piece.addr + within));
            }
            prop_assert_eq!(walked.len() - before, (chunk as usize).min(expected.len() - before));
            cursor = part.cursor();
            let sought: Vec<_> = pieces(table, Cursor::at(&table, walked.len() as u64), 7).collect();
            prop_assert_eq!(sought, pieces(table, cursor, 7).collect::<Vec<_>>());
        }
        prop_assert_eq!(walked, expected);
        prop_assert!(cursor.next(&table, 1).is_none());
    }
}
