//! The search for gaps in all names: in the background, one search at a time, with a time limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use xds_core::matching::coverage::Domains;
use xds_core::{ResourceName, Revision, Snapshot, TypeUrl};

use super::Provider;
use super::gaps::gaps_of;

/// The last search, or the current one.
#[derive(Debug)]
pub(super) struct Sweep {
    domains: Option<Provider<Domains>>,
    progress: Arc<Mutex<SweepProgress>>,
}

/// The progress of a search, and its results.
#[derive(Debug, Clone, Default)]
pub(super) struct SweepProgress {
    pub(super) state: SweepState,
    pub(super) revision: Revision,
    pub(super) names_done: usize,
    pub(super) names: usize,
    /// The results of the last search; shared, so that a request copies a pointer.
    pub(super) found: Arc<Vec<NameWithGaps>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SweepState {
    #[default]
    NotBegun,
    Running,
    Done,
    /// The search took too long, or found too many names.
    CutShort,
}

/// A name without a variant for some parameters, or one that is too complex to check.
#[derive(Debug, Clone)]
pub(super) struct NameWithGaps {
    pub(super) type_url: TypeUrl,
    pub(super) name: ResourceName,
    pub(super) gaps: Value,
}

impl Sweep {
    pub(super) fn new(domains: Option<Provider<Domains>>) -> Self {
        Self { domains, progress: Arc::default() }
    }

    /// The parameters that clients can have; unlimited without a provider.
    pub(super) fn domains(&self) -> Domains {
        self.domains.as_ref().map(|domains| (domains.0)()).unwrap_or_default()
    }

    pub(super) fn progress(&self) -> SweepProgress {
        lock(&self.progress).clone()
    }

    /// Starts a search, unless one is running or this revision was searched already.
    pub(super) fn begin(&self, snapshot: &Arc<Snapshot>) {
        let mut progress = lock(&self.progress);
        let is_known = progress.state != SweepState::NotBegun && progress.revision == snapshot.revision();
        if progress.state == SweepState::Running || is_known {
            return;
        }
        // The results of the last search stay until the new search is done.
        (progress.state, progress.revision, progress.names_done) =
            (SweepState::Running, snapshot.revision(), 0);
        progress.names = snapshot.counts().map(|(_, count)| count).sum();
        drop(progress);
        let (snapshot, domains) = (Arc::clone(snapshot), self.domains.clone());
        let progress = Arc::clone(&self.progress);
        tokio::task::spawn_blocking(move || {
            let domains = domains.map(|domains| (domains.0)()).unwrap_or_default();
            look(&snapshot, &domains, &progress);
        });
    }
}

fn look(snapshot: &Snapshot, domains: &Domains, progress: &Mutex<SweepProgress>) {
    let (begun, mut found, mut names_done) = (Instant::now(), Vec::new(), 0);
    let mut state = SweepState::Done;
    'types: for (type_url, _) in snapshot.counts() {
        for (name, variants) in snapshot.of_type(type_url).into_iter().flat_map(|of_type| of_type.iter()) {
            names_done += 1;
            if names_done % NAMES_BETWEEN_NEWS == 0 {
                lock(progress).names_done = names_done;
                if begun.elapsed() > TIME_LIMIT {
                    state = SweepState::CutShort;
                    break 'types;
                }
            }
            // Nearly every name has one variant, without constraints.
            let is_for_all = |one: &Arc<xds_core::Variant>| one.constraints().is_unconstrained();
            if variants.len() == 1 && variants.iter().all(is_for_all) {
                continue;
            }
            let gaps = gaps_of(variants, domains);
            let is_covered = gaps["is_judged"] == true && gaps["gaps"].as_array().is_some_and(Vec::is_empty);
            if is_covered {
                continue;
            }
            if found.len() == FOUND_LIMIT {
                state = SweepState::CutShort;
                break 'types;
            }
            found.push(NameWithGaps { type_url: type_url.clone(), name: name.clone(), gaps });
        }
    }
    found.sort_by(|one, other| (&one.type_url, &one.name).cmp(&(&other.type_url, &other.name)));
    let mut progress = lock(progress);
    (progress.state, progress.revision) = (state, snapshot.revision());
    (progress.names_done, progress.found) = (names_done, Arc::new(found));
}

impl SweepState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::NotBegun => "not_begun",
            Self::Running => "running",
            Self::Done => "done",
            Self::CutShort => "cut_short",
        }
    }
}

/// No code panics while it holds the lock, so the data is consistent even if the lock is poisoned.
fn lock(progress: &Mutex<SweepProgress>) -> MutexGuard<'_, SweepProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a search may take. 100,000 names with four variants each take a second or two.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The most names in the results.
const FOUND_LIMIT: usize = 1000;

const NAMES_BETWEEN_NEWS: usize = 256;
