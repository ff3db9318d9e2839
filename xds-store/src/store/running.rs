//! How long a node has run: a time that stands still while it does not, unlike that of a clock (SR26).

use crate::log::Head;
use crate::time::SECOND;

/// The running time of the node, over all of its processes.
#[derive(Debug)]
pub(super) struct Running {
    length: i64,
    /// The time up to which it is counted.
    counted_to: i64,
}

impl Running {
    /// A process starts.
    pub(super) fn resumed(head: &Head, now: i64) -> Self {
        Self { length: head.running, counted_to: now }
    }

    /// How long the node has run, in nanoseconds.
    pub(super) fn length(&self) -> i64 {
        self.length
    }

    /// Counts the time since the last call. A machine that was suspended, or whose clock was set, makes the
    /// time jump; little of that counts.
    pub(super) fn count(&mut self, now: i64) {
        let passed = now.saturating_sub(self.counted_to).max(0);
        self.length = self.length.saturating_add(passed.min(JUMP));
        self.counted_to = self.counted_to.max(now);
    }

    /// When the head has to say more, so that a node that is idle, and often restarted, comes forward, too.
    pub(super) fn due(&self, head: &Head) -> i64 {
        self.counted_to.saturating_add(KEEP_EVERY).saturating_sub(self.length.saturating_sub(head.running))
    }
}

/// How much a crash of an idle node loses at most.
const KEEP_EVERY: i64 = 600 * SECOND;
/// How much of the time between two calls counts at most.
const JUMP: i64 = 2 * KEEP_EVERY;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sr26_a_time_that_jumps_or_goes_back_counts_little() {
        let mut head = Head { running: 5, ..Head::default() };
        let mut running = Running::resumed(&head, 1000);
        assert_eq!(running.due(&head), 1000 + KEEP_EVERY);
        for (now, length) in [(1100, 105), (1050, 105), (1100, 105), (1150, 155)] {
            running.count(now);
            assert_eq!(running.length(), length, "{now}");
        }
        assert_eq!(running.due(&head), 1000 + KEEP_EVERY, "the head lacks 150");
        head.running = 155;
        assert_eq!(running.due(&head), 1150 + KEEP_EVERY);
        running.count(i64::MAX);
        assert_eq!(running.length(), 155 + JUMP);
    }
}
