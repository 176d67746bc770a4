//! The arena on real huge pages. Only root can reserve some for the test; without, it says so.

use std::fs;

use reactors::arena::{ArenaError, Backing, HugePages, allocate};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

fn reserved() -> Option<i64> {
    fs::read_to_string(RESERVED).ok()?.trim().parse().ok()
}

/// Reserves a few huge pages more, and gives them back.
struct Reservation(i64);

impl Reservation {
    fn new(pages: i64) -> Option<Reservation> {
        let before = reserved()?;
        fs::write(RESERVED, (before + pages).to_string()).ok()?;
        let reservation = Reservation(reserved()? - before);
        (reservation.0 == pages).then_some(reservation)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(now) = reserved() {
            let _ = fs::write(RESERVED, (now - self.0).to_string());
        }
    }
}

#[test]
fn an_arena_lies_on_huge_pages_and_gives_them_back() {
    let Some(_reservation) = Reservation::new(3) else {
        eprintln!("no huge pages can be reserved here: nothing was tested");
        return;
    };
    for _ in 0..3 {
        // Rounded up to whole pages. Were they not given back, the next time would fail.
        let (region, backing) = match allocate((2 << 20) + 1, HugePages::Require) {
            Ok(made) => made,
            // Pages of another size, or somebody else took them.
            Err(ArenaError::NoHugePages { why, .. }) => return eprintln!("{why}: nothing was tested"),
            Err(error) => panic!("{error}"),
        };
        let Backing::Huge { page_bytes } = backing else { panic!("{backing}") };
        assert_eq!(region.len_bytes() % page_bytes, 0);
        assert!(region.len_bytes() > 2 << 20);
        assert_eq!(region.addr() % page_bytes as u64, 0);
        region.write(region.len_bytes() - 2, b"ok").unwrap();
        let mut first = [1; 8];
        region.read(0, &mut first).unwrap();
        assert_eq!(first, [0; 8]);
    }
}
