//! Fewer log lines: what may happen with every command is told a few times a second, and counted.

use std::time::Duration;

use reactors::time::Time;

/// Lines of a window that are told.
const LINES: u32 = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// Says which lines go to the log.
#[derive(Clone, Debug, Default)]
pub(super) struct Quiet {
    /// When the window began; `None` before the first line.
    since: Option<Time>,
    told: u32,
    kept: u64,
}

impl Quiet {
    /// Whether a line is to be told now; then how many were not told since the last window.
    pub(super) fn tell(&mut self, now: Time) -> Option<u64> {
        if self.since.is_none_or(|since| now.since(since) >= WINDOW) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told >= LINES {
            self.kept += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_a_second() {
        let mut quiet = Quiet::default();
        let told: Vec<_> = (0..2_500).filter_map(|ms| quiet.tell(Time::from_nanos(ms * 1_000_000))).collect();
        assert_eq!(told, [0, 0, 0, 0, 0, 995, 0, 0, 0, 0, 995, 0, 0, 0, 0]);
    }
}
