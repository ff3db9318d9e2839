//! Repeated events of one client as few lines of the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use xds_core::{ClientName, TypeUrl};

/// Logs the first occurrence of an event at once. Repetitions are summed up in one line with their
/// number, after 10 s, 20 s and so on up to 10 minutes. If an event does not occur for twice the
/// current interval, the next occurrence counts as the first again.
///
/// It keeps 1,024 events apart; further ones are logged together as those of one client, `#others`.
/// Metrics count all of them.
#[derive(Debug, Default)]
pub(crate) struct RepeatLog(Mutex<BTreeMap<Key, RepeatState>>);

/// The client, the identity of its connection, and the event.
pub(crate) type Key = (ClientName, String, Occurrence);

/// A kind of event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Occurrence {
    /// The client rejects responses of this type.
    Nack(TypeUrl),
    /// A response of this type is larger than most clients accept.
    Large(TypeUrl),
    /// Metadata of the client gives no parameter, though constraints name it (T46).
    SkippedMetadata,
    /// The authorizer refuses the client.
    Denied,
    /// The client breaks a rule, which closes its stream.
    Refused,
}

#[derive(Debug)]
struct RepeatState {
    /// Occurrences since the last log line.
    unlogged: u64,
    /// The detail of the last occurrence.
    detail: String,
    interval: Duration,
    next_at: Instant,
}

/// What to do about one occurrence.
#[derive(Debug, PartialEq, Eq)]
enum LogAction {
    Log,
    /// Log one line then, for all occurrences until then.
    LogAt(Instant),
    /// A line is already scheduled.
    Nothing,
}

impl RepeatLog {
    /// Notes an occurrence, and logs it now or later.
    pub(crate) fn on(self: &Arc<Self>, key: Key, detail: &str) {
        let (key, action) = self.note(key, detail, Instant::now());
        match action {
            LogAction::Nothing => {}
            LogAction::Log => log_line(&key, detail, None),
            LogAction::LogAt(at) => {
                let repeats = Arc::clone(self);
                tokio::spawn(async move {
                    sleep_until(at).await;
                    let (count, detail) = repeats.take(&key, Instant::now());
                    log_line(&key, &detail, Some(count));
                });
            }
        }
    }

    fn note(&self, key: Key, detail: &str, now: Instant) -> (Key, LogAction) {
        let mut all = self.all();
        if all.len() >= LIMIT && !all.contains_key(&key) {
            all.retain(|_, known| !known.is_over(now));
        }
        let is_full = all.len() >= LIMIT && !all.contains_key(&key);
        let others = ClientName { id: OTHERS.into(), cluster: "".into() };
        let key = if is_full { (others, String::new(), key.2.of_others()) } else { key };
        let action = match all.get_mut(&key) {
            Some(known) if !known.is_over(now) => {
                known.unlogged += 1;
                detail.clone_into(&mut known.detail);
                if known.unlogged == 1 {
                    LogAction::LogAt(known.next_at.max(now))
                } else {
                    LogAction::Nothing
                }
            }
            _ => {
                let (detail, next_at) = (String::new(), now + FIRST);
                all.insert(key.clone(), RepeatState { unlogged: 0, detail, interval: FIRST, next_at });
                LogAction::Log
            }
        };
        (key, action)
    }

    /// The number of occurrences since the last line, and the detail of the last one.
    fn take(&self, key: &Key, now: Instant) -> (u64, String) {
        let mut all = self.all();
        let Some(known) = all.get_mut(key) else { return (0, String::new()) };
        known.interval = (2 * known.interval).min(LAST);
        known.next_at = now + known.interval;
        (std::mem::take(&mut known.unlogged), std::mem::take(&mut known.detail))
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, RepeatState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RepeatState {
    /// Whether the event has not occurred for so long that it is forgotten.
    fn is_over(&self, now: Instant) -> bool {
        self.unlogged == 0 && now >= self.next_at + self.interval
    }
}

impl Occurrence {
    fn of_others(self) -> Self {
        match self {
            Self::Nack(_) => Self::Nack(OTHERS.into()),
            Self::Large(_) => Self::Large(OTHERS.into()),
            other => other,
        }
    }
}

fn log_line((client, identity, what): &Key, detail: &str, repeated: Option<u64>) {
    let (node, cluster) = (&*client.id, &*client.cluster);
    match what {
        Occurrence::Nack(type_url) => {
            let r#type = type_url.message_name();
            warn!(
                node,
                cluster, identity, r#type, detail, repeated, "NACK: the client rejected configuration"
            );
        }
        Occurrence::Large(type_url) => {
            let (r#type, size) = (type_url.message_name(), detail);
            warn!(
                node,
                cluster,
                r#type,
                size,
                repeated,
                "a response exceeds the 4 MiB that most clients accept; it is sent as it is"
            );
        }
        Occurrence::SkippedMetadata => warn!(
            node,
            cluster,
            identity,
            detail,
            repeated,
            "a client lacks a parameter that `when:` conditions name: its metadata has no string for it"
        ),
        Occurrence::Denied => info!(
            node,
            cluster,
            identity,
            reason = detail,
            repeated,
            "closed a stream: the client is not authorized"
        ),
        Occurrence::Refused => info!(
            node,
            cluster,
            identity,
            error = detail,
            repeated,
            "closed a stream: the client broke a rule of the protocol or a limit"
        ),
    }
}

/// How many events are kept apart.
const LIMIT: usize = 1024;
/// The client id for the events beyond the limit.
const OTHERS: &str = "#others";
/// The first interval, and the longest.
const FIRST: Duration = Duration::from_secs(10);
const LAST: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Key {
        (ClientName { id: id.into(), cluster: "".into() }, String::new(), Occurrence::Denied)
    }

    #[test]
    fn g15_the_first_is_told_at_once_and_what_repeats_at_growing_intervals() {
        let (repeats, start) = (RepeatLog::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let action = |seconds| repeats.note(key("n"), "no", at(seconds)).1;
        assert_eq!(
            [action(0), action(1), action(2)],
            [LogAction::Log, LogAction::LogAt(at(10)), LogAction::Nothing]
        );
        assert_eq!(repeats.take(&key("n"), at(10)), (2, "no".to_owned()));
        assert_eq!([action(11), action(29)], [LogAction::LogAt(at(30)), LogAction::Nothing]);
        assert_eq!(repeats.take(&key("n"), at(30)).0, 2);
        assert_eq!(action(100), LogAction::LogAt(at(100)), "a late repetition is not a first occurrence");
        assert_eq!(repeats.take(&key("n"), at(100)).0, 1);
        assert_eq!(action(300), LogAction::Log, "after 160 s without it, it is a first occurrence");
    }

    #[test]
    fn g15_many_clients_are_told_as_one_and_those_that_stopped_make_room() {
        let (repeats, now) = (RepeatLog::default(), Instant::now());
        for number in 0..LIMIT {
            assert_eq!(repeats.note(key(&number.to_string()), "", now).1, LogAction::Log);
        }
        let (of, action) = repeats.note(key("more"), "", now);
        assert_eq!((&*of.0.id, action), (OTHERS, LogAction::Log));
        assert_eq!(repeats.note(key("another"), "", now).1, LogAction::LogAt(now + FIRST));
        let later = now + 3 * FIRST;
        assert_eq!(&*repeats.note(key("more"), "", later).0.0.id, "more");
        assert!(repeats.all().len() < 10);
    }
}
