//! Standing troubles, which the page shows above everything else, and `/api/troubles`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use serde_json::{Value, json};
use xds_core::shortened;

use super::answer::{JsonAnswer, JsonBody, at_ms, paged};
use super::query::RequestQuery;
use super::{AdminState, Provider};

/// Something that an operator has to correct or to know, and that lasts until then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of trouble it is, in `snake_case`. It is a label of a metric, so clients must not
    /// choose it.
    pub kind: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// One sentence that says what is wrong.
    pub what: String,
    /// The reason, such as the text of an error; may be empty and may have several lines. At most
    /// 4 KiB of it are shown.
    pub detail: String,
    /// Since when it lasts, if that is known.
    pub since: Option<SystemTime>,
    /// When it was last seen, if that is known and is not now.
    pub last_at: Option<SystemTime>,
    /// How often it was seen since then, or how many clients or files it affects; `what` says which.
    pub count: u64,
    /// What to do about it; may be empty.
    pub cure: String,
    /// The view of the page that shows more, such as `clients?rejecting=true`; empty for none.
    pub link: String,
}

/// How bad a trouble is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something does not work, or a change is not in effect.
    Error,
    /// Everything works now, but something will not, or is probably a mistake.
    Warning,
}

/// The standing troubles of a server. Clones share them.
#[derive(Clone, Default)]
pub struct Troubles(Arc<TroubleSources>);

#[derive(Default)]
struct TroubleSources {
    sources: Mutex<Vec<Provider<Vec<Trouble>>>>,
    listed: Mutex<Option<(Instant, Arc<[Trouble]>)>>,
}

impl Trouble {
    /// An error of this kind, without details.
    #[must_use]
    pub fn error(kind: &'static str, what: impl Into<String>) -> Self {
        Self::new(kind, Severity::Error, what.into())
    }

    /// A warning of this kind, without details.
    #[must_use]
    pub fn warning(kind: &'static str, what: impl Into<String>) -> Self {
        Self::new(kind, Severity::Warning, what.into())
    }

    fn new(kind: &'static str, severity: Severity, what: String) -> Self {
        let (detail, cure, link) = <(String, String, String)>::default();
        Self { kind, severity, what, detail, since: None, last_at: None, count: 1, cure, link }
    }
}

impl Severity {
    /// `error` or `warning`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl Troubles {
    /// Adds a source of troubles: a function that returns those that last now. It is called at most
    /// once a second, and only while somebody looks. It must not list these troubles.
    pub fn add(&self, source: impl Fn() -> Vec<Trouble> + Send + Sync + 'static) {
        lock(&self.0.sources).push(Provider(Arc::new(source)));
    }

    /// All of them, at most a second old: errors first, the oldest first. It may take milliseconds
    /// if there are many clients.
    #[must_use]
    pub fn list(&self) -> Arc<[Trouble]> {
        let mut listed = lock(&self.0.listed);
        if let Some((at, troubles)) = &*listed
            && at.elapsed() < LIST_LASTS
        {
            return Arc::clone(troubles);
        }
        let sources = lock(&self.0.sources).clone();
        let mut troubles: Vec<_> = sources.iter().flat_map(|source| (source.0)()).collect();
        // Those without a time came last.
        troubles.sort_by_key(|trouble| (trouble.severity, trouble.since.is_none(), trouble.since));
        let troubles: Arc<[_]> = troubles.into();
        *listed = Some((Instant::now(), Arc::clone(&troubles)));
        troubles
    }

    /// How many errors and warnings there are.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let list = self.list();
        let errors = list.iter().filter(|trouble| trouble.severity == Severity::Error).count();
        (errors, list.len() - errors)
    }
}

/// No code panics while it holds one of the locks, except a source, after which there is no list.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Troubles").field("sources", &lock(&self.0.sources).len()).finish_non_exhaustive()
    }
}

/// `/api/troubles`: a page of them.
pub(super) async fn list(State(state): State<Arc<AdminState>>, query: RequestQuery) -> JsonAnswer {
    query.only(&["page"])?;
    let page = query.page()?;
    let answer = state.trouble_work(move |state| {
        let (errors, warnings) = state.troubles.counts();
        let mut answer = paged(&state.troubles.list(), page, row);
        answer.extend([("errors".to_owned(), errors.into()), ("warnings".to_owned(), warnings.into())]);
        answer.into()
    });
    Ok(JsonBody(answer.await))
}

fn row(trouble: &Trouble) -> Value {
    json!({
        "kind": trouble.kind,
        "severity": trouble.severity.as_str(),
        "what": shortened(&trouble.what, WHAT_LIMIT_BYTES),
        "detail": shortened(&trouble.detail, DETAIL_LIMIT_BYTES),
        "since_ms": trouble.since.map(at_ms),
        "last_at_ms": trouble.last_at.map(at_ms),
        "count": trouble.count,
        "cure": shortened(&trouble.cure, WHAT_LIMIT_BYTES),
        "link": Some(&trouble.link).filter(|link| !link.is_empty()),
    })
}

/// How old a list may be.
const LIST_LASTS: Duration = Duration::from_secs(1);

/// The longest sentence in an answer.
const WHAT_LIMIT_BYTES: usize = 1024;

/// The longest detail in an answer.
const DETAIL_LIMIT_BYTES: usize = 4096;
