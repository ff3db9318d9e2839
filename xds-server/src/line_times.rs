//! The times at which a repeated event gets a line in the log.

use std::time::Duration;

use tokio::time::Instant;

/// The lines of one event: the first occurrence at once, further ones in one line after 10 s, 20 s
/// and so on up to 10 minutes. If the event does not occur for twice the current interval, the next
/// occurrence counts as the first again.
#[derive(Debug)]
pub(crate) struct LineTimes {
    /// Occurrences since the last line.
    unlogged: u64,
    interval: Duration,
    last_at: Instant,
}

/// What to do about one occurrence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogAction {
    Log,
    /// Log one line then, for all occurrences until then.
    LogAt(Instant),
    /// A line is already scheduled.
    Nothing,
}

impl LineTimes {
    /// At the first occurrence.
    pub(crate) fn start(now: Instant) -> (Self, LogAction) {
        (Self { unlogged: 0, interval: FIRST_INTERVAL, last_at: now }, LogAction::Log)
    }

    /// At each further occurrence.
    pub(crate) fn on_event(&mut self, now: Instant) -> LogAction {
        if self.is_over(now) {
            let action;
            (*self, action) = Self::start(now);
            return action;
        }
        self.unlogged += 1;
        if self.unlogged == 1 { LogAction::LogAt(self.next_at().max(now)) } else { LogAction::Nothing }
    }

    /// At an occurrence that is news, as a rejection of newer content is: its line comes after the
    /// shortest interval.
    pub(crate) fn on_news(&mut self, now: Instant) -> LogAction {
        if self.interval > FIRST_INTERVAL && !self.is_over(now) {
            // A line that is scheduled later finds that it is not due, or that all is logged.
            self.interval = FIRST_INTERVAL;
            self.unlogged += 1;
            return LogAction::LogAt(self.next_at().max(now));
        }
        self.on_event(now)
    }

    /// The number of occurrences since the last line; `None` if no line is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        if self.unlogged == 0 || now < self.next_at() {
            return None;
        }
        (self.interval, self.last_at) = ((2 * self.interval).min(LAST_INTERVAL), now);
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Whether the event has not occurred for so long that it is forgotten.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.unlogged == 0 && now >= self.next_at() + self.interval
    }

    fn next_at(&self) -> Instant {
        self.last_at + self.interval
    }
}

/// The first interval, and the longest.
pub(crate) const FIRST_INTERVAL: Duration = Duration::from_secs(10);
const LAST_INTERVAL: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g15_the_first_event_is_logged_at_once_and_repetitions_at_growing_intervals() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (mut times, first) = LineTimes::start(at(0));
        assert_eq!(
            [first, times.on_event(at(1)), times.on_event(at(2))],
            [LogAction::Log, LogAction::LogAt(at(10)), LogAction::Nothing]
        );
        assert_eq!([times.take(at(9)), times.take(at(10)), times.take(at(10))], [None, Some(2), None]);
        assert_eq!([11, 29].map(|s| times.on_event(at(s))), [LogAction::LogAt(at(30)), LogAction::Nothing]);
        assert_eq!(times.take(at(30)), Some(2));
        let late = times.on_event(at(100));
        assert_eq!(late, LogAction::LogAt(at(100)), "a late repetition is not a first occurrence");
        assert_eq!(times.take(at(100)), Some(1));
        assert_eq!(
            times.on_event(at(300)),
            LogAction::Log,
            "after 160 s without it, it is a first occurrence"
        );
    }

    #[test]
    fn g15_news_are_logged_after_the_shortest_interval() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (mut times, _) = LineTimes::start(at(0));
        times.on_event(at(1));
        assert_eq!(times.take(at(10)), Some(1));
        assert_eq!(times.on_event(at(12)), LogAction::LogAt(at(30)));
        assert_eq!(times.on_news(at(13)), LogAction::LogAt(at(20)));
        assert_eq!(times.on_news(at(14)), LogAction::Nothing);
        assert_eq!(times.take(at(20)), Some(3));
        // The line that was scheduled before the news.
        assert_eq!(times.take(at(30)), None);
    }
}
