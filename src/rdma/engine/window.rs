//! How many packets may be in flight: doubles while all is well at the start, then grows by one
//! a round; halves on a gap.

/// A congestion window in packets. RC has none on the wire; this one keeps a sender from
/// overrunning the receive buffer of a peer's socket again and again.
#[derive(Copy, Clone, Debug)]
pub(super) struct Window {
    size: u32,
    least: u32,
    most: u32,
    /// Below this the window grows with every acknowledged packet, above it once a round.
    threshold: u32,
    credit: u32,
}

impl Window {
    pub(super) fn new(start: u32, least: u32, most: u32) -> Self {
        let most = most.max(1);
        let least = least.clamp(1, most);
        Window { size: start.clamp(least, most), least, most, threshold: most, credit: 0 }
    }

    /// Packets that may be in flight.
    #[inline]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// `packets` were acknowledged.
    #[inline]
    pub(super) fn acknowledged(&mut self, packets: u32) {
        if self.size < self.threshold {
            self.size = self.size.saturating_add(packets).min(self.threshold);
        } else if self.size < self.most {
            self.credit += packets;
            if self.credit >= self.size {
                self.credit = 0;
                self.size += 1;
            }
        }
    }

    /// A packet was lost, others behind it arrived.
    pub(super) fn gap(&mut self) {
        self.size = (self.size / 2).max(self.least);
        self.threshold = self.size;
        self.credit = 0;
    }

    /// Nothing arrived for a whole timeout.
    pub(super) fn silence(&mut self) {
        self.threshold = (self.size / 2).max(self.least);
        self.size = self.least;
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_on_a_gap_and_grows_by_one_a_round() {
        let mut window = Window::new(8, 2, 64);
        window.acknowledged(8);
        assert_eq!(window.size(), 16, "every packet counts at the start");
        window.gap();
        assert_eq!(window.size(), 8);
        window.acknowledged(7);
        assert_eq!(window.size(), 8);
        window.acknowledged(1);
        assert_eq!(window.size(), 9);
        for _ in 0..10 {
            window.gap();
        }
        assert_eq!(window.size(), 2, "never less than the least");
        for _ in 0..10_000 {
            window.acknowledged(1);
        }
        assert_eq!(window.size(), 64, "never more than the most");
        window.silence();
        assert_eq!(window.size(), 2);
        window.acknowledged(1_000);
        assert_eq!(window.size(), 32, "doubling ends at half of what it was");
    }
}
