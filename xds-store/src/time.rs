//! Times as nanoseconds since 1970, and as messages have them.

use prost_types::{Duration, Timestamp};

/// A time of a message. Times outside of the years 1677 to 2262 count as the nearest one inside.
#[must_use]
pub fn from_proto(time: &Timestamp) -> i64 {
    nanoseconds(time.seconds, time.nanos)
}

/// A time for a message.
#[must_use]
pub fn to_proto(time: i64) -> Timestamp {
    let nanos = i32::try_from(time.rem_euclid(SECOND)).unwrap_or_default();
    Timestamp { seconds: time.div_euclid(SECOND), nanos }
}

/// The length of a duration in nanoseconds, at most 292 years.
pub(crate) fn length_from_proto(length: &Duration) -> i64 {
    nanoseconds(length.seconds, length.nanos)
}

/// A length for a message, in nanoseconds.
#[must_use]
pub fn length_to_proto(length: i64) -> Duration {
    let nanos = i32::try_from(length % SECOND).unwrap_or_default();
    Duration { seconds: length / SECOND, nanos }
}

/// The length of a message; `None` if it is negative. The library's own conversion panics in a build with checks of
/// overflow if the message has the lowest number of seconds.
#[must_use]
pub fn length_of(length: Duration) -> Option<std::time::Duration> {
    if length.seconds < 0 { None } else { length.try_into().ok() }
}

fn nanoseconds(seconds: i64, nanos: i32) -> i64 {
    let time = i128::from(seconds) * i128::from(SECOND) + i128::from(nanos);
    i64::try_from(time).unwrap_or(if time < 0 { i64::MIN } else { i64::MAX })
}

/// A second in nanoseconds.
pub(crate) const SECOND: i64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_through_a_message_and_extremes_are_clamped() {
        for time in [0, 1, -1, 1_500_000_000_123_456_789, i64::MAX, i64::MIN] {
            assert_eq!(from_proto(&to_proto(time)), time);
        }
        assert_eq!(from_proto(&Timestamp { seconds: i64::MAX, nanos: 5 }), i64::MAX);
        assert_eq!(length_from_proto(&length_to_proto(90 * SECOND + 7)), 90 * SECOND + 7);
        for (seconds, nanos, length) in
            [(i64::MIN, i32::MIN, None), (-1, 0, None), (1, 0, Some(1)), (0, -1, None)]
        {
            let length = length.map(std::time::Duration::from_secs);
            assert_eq!(length_of(Duration { seconds, nanos }), length, "{seconds} {nanos}");
        }
        assert!(length_of(Duration { seconds: i64::MAX, nanos: i32::MAX }).is_some());
    }
}
