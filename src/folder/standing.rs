//! The warnings about the content that is in use, and since when each is there. No I/O.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::lint::Warning;

/// What a folder does about [warnings](super::Contents::warnings).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WarningPolicy {
    /// The reaction. Default: none.
    pub reaction: Reaction,
    /// Kinds of warnings that are ignored, out of [`Warning::KINDS`].
    pub allowed: BTreeSet<String>,
}

/// What a folder does about warnings that are not allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reaction {
    /// It does not look for them.
    #[default]
    Ignore,
    /// [`Folder::watch`](super::Folder::watch) logs them, and [`StandingWarnings`] lists them.
    Report,
    /// They are errors of the folder.
    Refuse,
}

impl WarningPolicy {
    /// Drops the warnings that are allowed.
    pub fn retain(&self, warnings: &mut Vec<Warning>) {
        warnings.retain(|warning| !self.allowed.contains(warning.kind()));
    }
}

/// The warnings about the content of a folder that is in use.
///
/// Lists at most [`WARNINGS_LISTED`] of them, and counts all.
#[derive(Debug, Default)]
pub struct StandingWarnings(Mutex<State>);

/// A warning about the content in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingWarning {
    /// The warning.
    pub warning: Warning,
    /// When the check found it first. A change of its examples or its place does not change this.
    pub since: SystemTime,
}

#[derive(Debug, Default)]
struct State {
    list: Arc<[StandingWarning]>,
    /// The number of warnings of each kind; `None` before the first check.
    counts: Option<[usize; Warning::KINDS.len()]>,
    /// All warnings, also those that are not listed, by the digest of what they are about.
    known: HashMap<u64, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    since: SystemTime,
    /// The digest of the text.
    text: u64,
}

/// What a check changed, for the log. Of each at most [`WARNINGS_LOGGED`], in the order of files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Warnings that are new, or that have other words than before.
    pub(super) new: Vec<Warning>,
    /// Warnings that the content in use does not have any more.
    pub(super) ended: Vec<Warning>,
    /// How many more new ones there are.
    pub(super) new_not_shown: usize,
    /// How many more have ended.
    pub(super) ended_not_shown: usize,
}

impl StandingWarnings {
    /// The warnings, in the order of files and lines.
    #[must_use]
    pub fn list(&self) -> Arc<[StandingWarning]> {
        Arc::clone(&self.state().list)
    }

    /// The number of warnings of each kind, also of kinds without any; `None` before the first
    /// check.
    #[must_use]
    pub fn counts(&self) -> Option<[(&'static str, usize); Warning::KINDS.len()]> {
        let counts = self.state().counts?;
        Some(std::array::from_fn(|number| (Warning::KINDS[number], counts[number])))
    }

    /// Takes the result of a check.
    pub(super) fn replace(&self, now: SystemTime, warnings: Vec<Warning>) -> Difference {
        let mut state = self.state();
        let mut difference = Difference::default();
        let mut counts = [0; Warning::KINDS.len()];
        let mut known = HashMap::with_capacity(warnings.len());
        let mut list = Vec::with_capacity(warnings.len().min(WARNINGS_LISTED));
        for warning in warnings {
            let (subject, text) = (subject(&warning), digest(&warning.to_string()));
            let before = state.known.get(&subject);
            let since = before.map_or(now, |known| known.since);
            if before.is_none_or(|known| known.text != text) {
                push(&mut difference.new, &mut difference.new_not_shown, &warning);
            }
            known.insert(subject, Known { since, text });
            if let Some(number) = Warning::KINDS.iter().position(|kind| *kind == warning.kind()) {
                counts[number] += 1;
            }
            if list.len() < WARNINGS_LISTED {
                list.push(StandingWarning { warning, since });
            }
        }
        let ended = state.known.keys().filter(|subject| !known.contains_key(subject)).count();
        let listed = state.list.iter().map(|standing| &standing.warning);
        for warning in listed.filter(|warning| !known.contains_key(&subject(warning))) {
            push(&mut difference.ended, &mut difference.ended_not_shown, warning);
        }
        difference.ended_not_shown = ended.saturating_sub(difference.ended.len());
        *state = State { list: list.into(), counts: Some(counts), known };
        difference
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The data is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(shown: &mut Vec<Warning>, not_shown: &mut usize, warning: &Warning) {
    if shown.len() < WARNINGS_LOGGED { shown.push(warning.clone()) } else { *not_shown += 1 }
}

/// The digest of what a warning is about: not its place, which moves with each line above it, and
/// not its examples.
fn subject(warning: &Warning) -> u64 {
    let Warning { type_url, name, constraints, .. } = warning;
    digest(&(type_url, name, constraints, warning.kind(), warning.reference(), warning.key()))
}

fn digest(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// How many warnings [`StandingWarnings::list`] has at most.
pub const WARNINGS_LISTED: usize = 1000;

/// How many new warnings a check logs at most, and how many that ended.
const WARNINGS_LOGGED: usize = 100;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::contents::Contents;
    use super::*;

    /// The warnings of clusters with these names and conditions.
    fn warnings(clusters: &[(&str, &str)]) -> Vec<Warning> {
        let document = |(name, when): &(&str, &str)| {
            format!(
                "---\n\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nwhen: '{when}'\nname: {name}\n"
            )
        };
        let text: String = clusters.iter().map(document).collect();
        Contents::of_texts(&[("a.yaml", &text)]).warnings()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_warning_is_new_once_and_keeps_its_time_when_it_moves_or_changes_its_words() {
        let standing = StandingWarnings::default();
        assert_eq!(standing.counts(), None);
        let first = warnings(&[("a", "env=prod")]);
        assert_eq!(standing.replace(at(1), first.clone()).new, first);
        // The same warning, some lines further down.
        let both = warnings(&[("z", "env=prod"), ("a", "env=prod")]);
        let difference = standing.replace(at(2), both.clone());
        assert_eq!((difference.new, difference.ended), (vec![both[0].clone()], Vec::new()));
        let other_words = warnings(&[("z", "env=prod"), ("a", "env=prod || !env")]);
        let difference = standing.replace(at(3), other_words.clone());
        assert_eq!((difference.new, difference.ended), (vec![other_words[1].clone()], Vec::new()));
        let since: Vec<_> = standing.list().iter().map(|warning| warning.since).collect();
        assert_eq!(since, [at(2), at(1)]);
        let difference = standing.replace(at(4), Vec::new());
        assert_eq!((difference.new, difference.ended), (Vec::new(), other_words));
        assert_eq!(standing.counts().unwrap(), Warning::KINDS.map(|kind| (kind, 0)));
    }

    #[test]
    fn g15_any_number_of_warnings_is_counted_and_a_bounded_number_is_logged_and_listed() {
        let standing = StandingWarnings::default();
        let names: Vec<_> = (0..WARNINGS_LISTED + 50).map(|number| format!("c{number}")).collect();
        let clusters: Vec<_> = names.iter().map(|name| (&**name, "env=prod")).collect();
        let difference = standing.replace(at(1), warnings(&clusters));
        assert_eq!((difference.new.len(), difference.new_not_shown), (100, WARNINGS_LISTED - 50));
        assert_eq!(standing.list().len(), WARNINGS_LISTED);
        assert!(standing.counts().unwrap().contains(&("gap", WARNINGS_LISTED + 50)));
        let difference = standing.replace(at(2), Vec::new());
        assert_eq!((difference.ended.len(), difference.ended_not_shown), (100, WARNINGS_LISTED - 50));
    }
}
