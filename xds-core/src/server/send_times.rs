//! When a stream was sent which revision.

use std::time::Duration;

use crate::name::Revision;

/// The times at which a stream had been sent everything up to a revision. Old times are less exact.
#[derive(Debug, Default)]
pub(super) struct SendTimes(Vec<(Revision, Duration)>);

impl SendTimes {
    /// Records that everything up to this revision is sent now.
    pub(super) fn note(&mut self, revision: Revision, now: Duration) {
        let before = self.0.iter().rev().nth(1).map(|(_, at)| *at);
        match self.0.last_mut() {
            // A time later than the true one only lets removals wait longer.
            Some(last) if before.is_some_and(|before| last.1 < before + SPACING) => *last = (revision, now),
            _ => self.0.push((revision, now)),
        }
        if self.0.len() > LIMIT {
            let mut at = 0;
            self.0.retain(|_| {
                at += 1;
                at > LIMIT / 2 || at % 2 == 0
            });
        }
    }

    /// The time by which a revision was sent, or a later time.
    pub(super) fn at(&self, revision: Revision) -> Option<Duration> {
        let first = self.0.partition_point(|(reached, _)| *reached < revision);
        self.0.get(first).map(|(_, at)| *at)
    }
}

const SPACING: Duration = Duration::from_millis(250);
const LIMIT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_something_is_sent_the_times_are_few_and_never_early() {
        let mut send_times = SendTimes::default();
        for number in 0..10_000 {
            send_times.note(Revision(number), Duration::from_millis(number * 10));
            assert!(send_times.0.len() <= LIMIT);
            for revision in [0, number / 2, number] {
                assert!(send_times.at(Revision(revision)) >= Some(Duration::from_millis(revision * 10)));
            }
        }
        assert_eq!(send_times.at(Revision(10_000)), None);
        let late = send_times.at(Revision(9_000)).unwrap();
        assert!(late <= Duration::from_secs(97), "{late:?}");
    }
}
