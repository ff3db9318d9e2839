//! What the clock of the machine shows, and the time of the store that follows from it (ST41).

use crate::time::SECOND;

/// The time of a store never goes back. While the clock is behind it, because the clock was set back, the time goes on
/// at half speed: what is due still happens, and the clock catches up. When the clock is set right again, it jumps ahead.
/// That is no time that passed.
#[derive(Debug)]
pub(super) struct Wall {
    shown: i64,
    time: i64,
}

impl Wall {
    pub(super) fn new(shown: i64) -> Self {
        Self { shown, time: shown }
    }

    /// What the clock showed last.
    pub(super) fn shown(&self) -> i64 {
        self.shown
    }

    /// The time of the store.
    pub(super) fn time(&self) -> i64 {
        self.time
    }

    /// The clock shows this, and the store has acted on `least` before: the time of the store.
    pub(super) fn show(&mut self, shown: i64, least: i64) -> i64 {
        let passed = shown.saturating_sub(self.shown).clamp(0, STEP);
        let time = self.time.saturating_add(passed / 2);
        (self.shown, self.time) = (shown, shown.max(time).max(least));
        self.time
    }

    /// What the clock shows when the time of the store is this. While the clock is behind, this is at most [`STEP`] from
    /// now. So whatever is more is a jump of the clock, and no time that passed.
    pub(super) fn at(&self, time: i64) -> i64 {
        if self.time <= self.shown {
            return time;
        }
        let left = time.saturating_sub(self.time).max(0);
        let caught_up_at = self.time.saturating_mul(2).saturating_sub(self.shown);
        // From there on both are the same.
        let at = if time > caught_up_at { time } else { self.shown.saturating_add(left.saturating_mul(2)) };
        at.min(self.shown.saturating_add(STEP))
    }
}

/// The most that the clock goes ahead between two steps of the machine while it is behind the time of the store.
const STEP: i64 = 60 * SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st41_time_goes_on_at_half_speed_while_the_clock_was_set_back() {
        let mut wall = Wall::new(1000);
        assert_eq!((wall.show(1010, 0), wall.at(1100)), (1010, 1100));
        // Back by 100.
        assert_eq!(wall.show(910, 1010), 1010);
        assert_eq!((wall.at(900), wall.at(1020), wall.at(1110), wall.at(1111)), (910, 930, 1110, 1111));
        for (shown, time) in [(930, 1020), (931, 1020), (1009, 1059), (1108, 1108), (1200, 1200)] {
            assert_eq!(wall.show(shown, 0), time, "{shown}");
        }
        // Another server of the store was ahead.
        assert_eq!((wall.show(1201, 2000), wall.at(2001)), (2000, 1203));
    }

    #[test]
    fn st41_a_clock_that_is_set_right_again_takes_the_time_ahead_by_half_a_step_at_most() {
        let year = 365 * 24 * 3600 * SECOND;
        let mut wall = Wall::new(2 * year);
        for _ in 0..3 {
            assert!(wall.show(year, 0) <= 2 * year + 3 * STEP / 2);
            assert!(wall.show(2 * year, 0) <= 2 * year + 3 * STEP / 2);
        }
        // The machine is called often enough for the half of the time that passes.
        wall.show(year, 0);
        let before = wall.time();
        while wall.shown() < year + 3600 * SECOND {
            let next = wall.at(3 * year);
            wall.show(next, 0);
        }
        assert_eq!(wall.time(), before + 1800 * SECOND);
    }
}
