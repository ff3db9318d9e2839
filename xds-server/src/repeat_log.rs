//! What clients do again and again, in few lines of the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use xds_core::{ClientName, TypeUrl};

/// Logs the first time that a client does something, and what it repeats at growing intervals, with
/// how often: 10 s, 20 s and so on up to 10 minutes. After twice such a time without it, the next
/// is a first one.
///
/// 1,024 things are told apart; whatever comes on top of them is told as that of one client.
/// Metrics count all of it.
#[derive(Debug, Default)]
pub(crate) struct RepeatLog(Mutex<BTreeMap<Key, RepeatState>>);

/// Of a client, with the identity that it showed.
pub(crate) type Key = (ClientName, String, Occurrence);

/// What it does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Occurrence {
    /// It rejects what it is sent of this type.
    Nack(TypeUrl),
    /// It is sent more of this type at a time than most clients accept.
    Large(TypeUrl),
    /// It may not read anything, or not any more.
    Denied,
    /// It breaks a rule that ends its stream.
    Refused,
}

#[derive(Debug)]
struct RepeatState {
    /// Since the last line.
    unlogged: u64,
    /// The words of the last one.
    detail: String,
    interval: Duration,
    next_at: Instant,
}

/// What is to be done about one time.
#[derive(Debug, PartialEq, Eq)]
enum LogAction {
    Log,
    /// What comes until then is one line.
    LogAt(Instant),
    /// A line will tell of it.
    Nothing,
}

impl RepeatLog {
    /// It happened once more.
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
                if known.unlogged == 1 { LogAction::LogAt(known.next_at.max(now)) } else { LogAction::Nothing }
            }
            _ => {
                let (detail, next_at) = (String::new(), now + FIRST);
                all.insert(key.clone(), RepeatState { unlogged: 0, detail, interval: FIRST, next_at });
                LogAction::Log
            }
        };
        (key, action)
    }

    /// How often it happened since the last line, and how it was put the last time.
    fn take(&self, key: &Key, now: Instant) -> (u64, String) {
        let mut all = self.all();
        let Some(known) = all.get_mut(key) else { return (0, String::new()) };
        known.interval = (2 * known.interval).min(LAST);
        known.next_at = now + known.interval;
        (std::mem::take(&mut known.unlogged), std::mem::take(&mut known.detail))
    }

    /// No code panics while it holds the lock, so what a poisoned one guards is whole.
    fn all(&self) -> MutexGuard<'_, BTreeMap<Key, RepeatState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RepeatState {
    /// It did not happen for so long that it is forgotten.
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
                cluster, r#type, size, repeated, "a response exceeds the 4 MiB that most clients accept"
            );
        }
        Occurrence::Denied => info!(node, cluster, identity, reason = detail, repeated, "a stream is denied"),
        Occurrence::Refused => info!(node, cluster, identity, error = detail, repeated, "closing a stream"),
    }
}

/// What is told apart.
const LIMIT: usize = 1024;
/// Whose it is beyond that.
const OTHERS: &str = "#others";
/// The first interval, and the longest one.
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
        assert_eq!([action(0), action(1), action(2)], [LogAction::Log, LogAction::LogAt(at(10)), LogAction::Nothing]);
        assert_eq!(repeats.take(&key("n"), at(10)), (2, "no".to_owned()));
        assert_eq!([action(11), action(29)], [LogAction::LogAt(at(30)), LogAction::Nothing]);
        assert_eq!(repeats.take(&key("n"), at(30)).0, 2);
        assert_eq!(action(100), LogAction::LogAt(at(100)), "it comes late, and is not over");
        assert_eq!(repeats.take(&key("n"), at(100)).0, 1);
        assert_eq!(action(300), LogAction::Log, "160 s without it make it new");
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
