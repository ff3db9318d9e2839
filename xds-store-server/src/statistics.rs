//! Counts and times of a running store since its start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use xds_proto::xds::store::v1::Outcome;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::EngineError;
use xds_store::store::Committed;

/// What a store counts since its start.
#[derive(Debug, Default)]
pub struct Statistics {
    /// By outcome and reason.
    commits: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    stages: [Times; Stage::ALL.len()],
    failed_writes: AtomicU64,
    is_full: AtomicBool,
    /// Why the engine cannot be reached; `None` while it can.
    unreachable: Mutex<Option<String>>,
}

/// What takes time in a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the request to the answer, once for each commit.
    Total,
    /// In the engine until the batch is durable, once for each batch.
    Write,
    /// In the cache, once for each batch.
    Publish,
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Times {
    nanoseconds: AtomicU64,
    /// One more than there are bounds: the last has everything above them.
    counts: [AtomicU64; BOUNDS.len() + 1],
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 3] = [Self::Total, Self::Write, Self::Publish];

    /// Its name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Write => "write",
            Self::Publish => "publish",
        }
    }
}

impl Statistics {
    /// How many commits were answered, by outcome (`committed`, `unchanged`, `refused`, `unknown`) and
    /// reason: the code of a refusal, such as `aborted`; empty for others.
    #[must_use]
    pub fn commits(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The times of a stage.
    #[must_use]
    pub fn times(&self, stage: Stage) -> &Times {
        &self.stages[stage as usize]
    }

    /// How many writes failed for another reason than a conflict or a limit. After such a failure
    /// the store may be read-only (ST21).
    #[must_use]
    pub fn failed_writes(&self) -> u64 {
        self.failed_writes.load(Ordering::Relaxed)
    }

    /// Whether there was no room for the last batch (ST22).
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Why the engine cannot be reached at present; `None` while it can. Only for an engine that
    /// several servers share.
    #[must_use]
    pub fn unreachable(&self) -> Option<String> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn on_engine(&self, unreachable: Option<String>) {
        *self.unreachable.lock().unwrap_or_else(PoisonError::into_inner) = unreachable;
    }

    pub(crate) fn on_answer(&self, answer: &Result<Committed, Refused>) {
        match answer {
            Ok(committed) if is_unchanged(committed) => self.count(("unchanged", "")),
            Ok(_) => self.count(("committed", "")),
            Err(refused) => self.on_refused(refused),
        }
    }

    pub(crate) fn on_refused(&self, refused: &Refused) {
        match refused.code {
            RefusalCode::Unknown => self.count(("unknown", "")),
            code => self.count(("refused", code_name(code))),
        }
    }

    fn count(&self, labels: (&'static str, &'static str)) {
        *self.commits.lock().unwrap_or_else(PoisonError::into_inner).entry(labels).or_default() += 1;
    }

    pub(crate) fn on_write<T>(&self, written: &Result<T, EngineError>) {
        match written {
            Ok(_) => self.is_full.store(false, Ordering::Relaxed),
            Err(EngineError::Full) => self.is_full.store(true, Ordering::Relaxed),
            Err(EngineError::Conflict | EngineError::TooLarge { .. }) => {}
            Err(_) => _ = self.failed_writes.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn on_stage(&self, stage: Stage, took: Duration) {
        let times = self.times(stage);
        let bound = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS.len());
        times.counts[bound].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = took.as_nanos().try_into().unwrap_or(u64::MAX);
        times.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Times {
    /// The sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// For each upper bound, in seconds, how many durations are in its bucket alone; the last bound
    /// is infinite.
    #[must_use]
    pub fn buckets(&self) -> [(f64, u64); BOUNDS.len() + 1] {
        std::array::from_fn(|number| {
            let bound = BOUNDS.get(number).copied().unwrap_or(f64::INFINITY);
            (bound, self.counts[number].load(Ordering::Relaxed))
        })
    }
}

fn is_unchanged(committed: &Committed) -> bool {
    let unchanged = [Outcome::Unchanged, Outcome::Absent, Outcome::Checked];
    !committed.results.is_empty()
        && committed.results.iter().all(|result| unchanged.contains(&result.outcome))
}

/// The name that gRPC gives the code.
fn code_name(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::InvalidArgument => "invalid_argument",
        RefusalCode::PermissionDenied => "permission_denied",
        RefusalCode::AlreadyExists => "already_exists",
        RefusalCode::NotFound => "not_found",
        RefusalCode::Aborted => "aborted",
        RefusalCode::FailedPrecondition => "failed_precondition",
        RefusalCode::ResourceExhausted => "resource_exhausted",
        RefusalCode::Unavailable => "unavailable",
        RefusalCode::Unknown => "unknown",
        RefusalCode::DataLoss => "data_loss",
        RefusalCode::Unimplemented => "unimplemented",
        _ => "other",
    }
}

/// In seconds: a sync takes from a fraction of a millisecond to seconds.
const BOUNDS: [f64; 13] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];
