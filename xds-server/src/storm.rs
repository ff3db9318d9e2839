//! Many clients at once: who has nothing yet goes before who has something.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How many streams of a server wait for their first response.
#[derive(Debug, Default)]
pub(crate) struct Storm {
    starting: AtomicUsize,
}

/// A stream among those that wait; it is no more when this is dropped.
#[derive(Debug)]
pub(crate) struct Starting(Arc<Storm>);

/// How long a stream that was answered before has made way.
#[derive(Debug, Default)]
pub(crate) struct Courtesy {
    since: Option<Instant>,
}

impl Storm {
    pub(crate) fn enter(self: &Arc<Self>) -> Starting {
        self.starting.fetch_add(1, Ordering::Relaxed);
        Starting(Arc::clone(self))
    }

    /// Whether more than this many wait.
    pub(crate) fn exceeds(&self, limit: usize) -> bool {
        self.starting.load(Ordering::Relaxed) > limit
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.starting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Courtesy {
    /// When to look again; `None` when it is its turn, which comes after [`LONGEST`] at the latest:
    /// a storm that does not end must not keep updates from the others.
    pub(crate) fn makes_way(&mut self, is_storm: bool, now: Instant) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        if is_storm && now < since + LONGEST {
            return Some(now + STEP);
        }
        self.since = None;
        None
    }
}

/// What an update waits at most.
const LONGEST: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_make_way_as_long_as_the_storm_lasts_and_no_longer_than_a_second() {
        let (storm, now) = (Arc::<Storm>::default(), Instant::now());
        let waiting: Vec<_> = (0..3).map(|_| storm.enter()).collect();
        assert!(storm.exceeds(2) && !storm.exceeds(3));
        let mut courtesy = Courtesy::default();
        assert_eq!(courtesy.makes_way(storm.exceeds(2), now), Some(now + STEP));
        assert_eq!(courtesy.makes_way(storm.exceeds(2), now + LONGEST), None, "its turn");
        let later = now + LONGEST;
        assert_eq!(
            courtesy.makes_way(storm.exceeds(2), later),
            Some(later + STEP),
            "and the next update waits again"
        );
        drop(waiting);
        assert_eq!(courtesy.makes_way(storm.exceeds(2), later), None);
    }
}
