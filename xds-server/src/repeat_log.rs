//! Repeated events of one client as few lines of the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use xds_core::{ClientName, TypeUrl};

use crate::line_times::{LineTimes, LogAction};

/// Logs the first occurrence of an event at once, and repetitions as [`LineTimes`] says: one line
/// with their number.
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
    /// A response of this type is larger than most clients accept.
    Large(TypeUrl),
    /// Metadata of the client gives no parameter, though constraints name it (T46).
    SkippedMetadata,
    /// The authorizer refuses the client.
    Denied,
    /// The client may not read names of this type that it subscribes to.
    NamesDenied(TypeUrl),
    /// The client breaks a rule, which closes its stream.
    Refused,
}

#[derive(Debug)]
struct RepeatState {
    times: LineTimes,
    /// The detail of the last occurrence.
    detail: String,
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
                    if let Some((count, detail)) = repeats.take(&key, Instant::now()) {
                        log_line(&key, &detail, Some(count));
                    }
                });
            }
        }
    }

    fn note(&self, key: Key, detail: &str, now: Instant) -> (Key, LogAction) {
        let mut all = self.all();
        if all.len() >= LIMIT && !all.contains_key(&key) {
            all.retain(|_, known| !known.times.is_over(now));
        }
        let is_full = all.len() >= LIMIT && !all.contains_key(&key);
        let others = ClientName { id: OTHERS.into(), cluster: "".into() };
        let key = if is_full { (others, String::new(), key.2.of_others()) } else { key };
        let action = match all.get_mut(&key) {
            Some(known) => {
                detail.clone_into(&mut known.detail);
                known.times.on_event(now)
            }
            None => {
                let (times, action) = LineTimes::start(now);
                all.insert(key.clone(), RepeatState { times, detail: String::new() });
                action
            }
        };
        (key, action)
    }

    /// The number of occurrences since the last line, and the detail of the last one; `None` if no
    /// line is due.
    fn take(&self, key: &Key, now: Instant) -> Option<(u64, String)> {
        let mut all = self.all();
        let known = all.get_mut(key)?;
        let count = known.times.take(now)?;
        Some((count, std::mem::take(&mut known.detail)))
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, RepeatState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Occurrence {
    fn of_others(self) -> Self {
        match self {
            Self::Large(_) => Self::Large(OTHERS.into()),
            Self::NamesDenied(_) => Self::NamesDenied(OTHERS.into()),
            other => other,
        }
    }
}

fn log_line((client, identity, what): &Key, detail: &str, repeated: Option<u64>) {
    let (node, cluster) = (&*client.id, &*client.cluster);
    match what {
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
        Occurrence::NamesDenied(type_url) => warn!(
            node,
            cluster,
            identity,
            r#type = type_url.message_name(),
            reason = detail,
            repeated,
            "a client subscribes to resources that it may not read"
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
#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_times::FIRST_INTERVAL;

    fn key(id: &str) -> Key {
        (ClientName { id: id.into(), cluster: "".into() }, String::new(), Occurrence::Denied)
    }

    #[test]
    fn g15_many_clients_are_told_as_one_and_those_that_stopped_make_room() {
        let (repeats, now) = (RepeatLog::default(), Instant::now());
        for number in 0..LIMIT {
            assert_eq!(repeats.note(key(&number.to_string()), "", now).1, LogAction::Log);
        }
        let (of, action) = repeats.note(key("more"), "", now);
        assert_eq!((&*of.0.id, action), (OTHERS, LogAction::Log));
        assert_eq!(repeats.note(key("another"), "", now).1, LogAction::LogAt(now + FIRST_INTERVAL));
        let later = now + 3 * FIRST_INTERVAL;
        assert_eq!(&*repeats.note(key("more"), "", later).0.0.id, "more");
        assert!(repeats.all().len() < 10);
    }
}
