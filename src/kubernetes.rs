//! Kubernetes as a source of resources: endpoints of services, and resources in ConfigMaps and
//! Secrets.
//!
//! Each object is a content of its own: an object with an error is reported, keeps its last good
//! content, and stops no other. While the API server is away, everything stays as it is. Nothing is
//! removed before a list that lacks it was read to its end.
//!
//! | module | what it does |
//! | --- | --- |
//! | `object` | names of objects, and what can be wrong with them |
//! | `endpoints` | EndpointSlices to assignments; no I/O |
//! | `contents` | ConfigMaps to resources, Secrets to SDS secrets; which names a namespace may bring; no I/O |
//! | `owners` | which object has which name in the cache |
//! | `state` | what all objects bring; turns changed objects into a transaction; no I/O |
//! | `watch` | lists and watches of the API server |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::config::InferConfigError;
use kube::{Client, Config};
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};
use xds_core::Cache;
use xds_file::Reloads;

use crate::folder::Descriptors;
use contents::Rules;
pub use object::{Kind, ObjectName, Problem};
use state::{Change, Committed, State, WatchScope};
use watch::{Message, News};

mod contents;
mod endpoints;
mod object;
mod owners;
mod state;
mod watch;

/// What to read.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Whether the EndpointSlices of services become assignments.
    pub endpoints: bool,
    /// The labels of the ConfigMaps that are read, in the notation of Kubernetes.
    pub config_maps: Option<String>,
    /// The labels of the Secrets that are read, in the notation of Kubernetes.
    pub secrets: Option<String>,
    /// The namespaces that are read; all, if there are none.
    pub namespaces: BTreeSet<String>,
    /// The namespaces whose ConfigMaps may bring any name. Those of others bring names that begin
    /// with the namespace and `/`.
    pub trusted_namespaces: BTreeSet<String>,
}

/// Why a source cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubernetesError {
    /// There are no credentials for an API server.
    #[error("no API server: neither KUBECONFIG nor a service account of a pod can be used: {0}")]
    Config(#[source] Box<InferConfigError>),
    /// The credentials cannot be used.
    #[error("the credentials for the API server cannot be used: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// The objects of an API server as a source of a cache.
#[derive(Debug)]
pub struct Kubernetes {
    /// A commit takes it to a thread that may block.
    state: Arc<Mutex<State>>,
    messages: Receiver<Message>,
    /// What each watch reads, for the log.
    scopes: Vec<WatchScope>,
    /// Why watches get no answers.
    away: BTreeMap<usize, String>,
    has_committed: bool,
    /// The problems that the log has.
    logged: BTreeMap<ObjectName, Vec<Problem>>,
    reloads: Arc<Reloads>,
    /// Ends with this.
    _watches: JoinSet<()>,
}

impl Kubernetes {
    /// Begins to read the API server of the environment: that of `KUBECONFIG`, or that of the pod.
    /// Call it within a runtime.
    ///
    /// # Errors
    /// There are no credentials, or they cannot be used. An API server that does not answer is no
    /// error.
    pub async fn start(
        selection: &Selection,
        descriptors: Arc<Descriptors>,
    ) -> Result<Self, KubernetesError> {
        let mut config = Config::infer().await.map_err(|error| KubernetesError::Config(Box::new(error)))?;
        // Without it, a request waits forever for an API server that is gone without a word. Longer
        // than a watch, which the API server ends.
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        let client = Client::try_from(config).map_err(|error| KubernetesError::Client(Box::new(error)))?;
        Ok(Self::with_client(&client, selection, descriptors))
    }

    fn with_client(client: &Client, selection: &Selection, descriptors: Arc<Descriptors>) -> Self {
        let kinds = [
            (Kind::EndpointSlice, selection.endpoints.then_some(None)),
            (Kind::ConfigMap, selection.config_maps.as_deref().map(Some)),
            (Kind::Secret, selection.secrets.as_deref().map(Some)),
        ];
        let mut namespaces: Vec<_> =
            selection.namespaces.iter().map(|namespace| Some(namespace.as_str().into())).collect();
        if namespaces.is_empty() {
            namespaces.push(None);
        }
        let (sender, messages) = mpsc::channel(MESSAGES);
        let (mut scopes, mut watches) = (Vec::new(), JoinSet::new());
        for (kind, labels) in kinds {
            let Some(labels) = labels else { continue };
            for namespace in &namespaces {
                let scope = WatchScope { kind, namespace: namespace.clone() };
                watch::start(&mut watches, client, (scopes.len(), &scope), labels, &sender);
                scopes.push(scope);
            }
        }
        let trusted =
            selection.trusted_namespaces.iter().map(|namespace| namespace.as_str().into()).collect();
        Self {
            state: Arc::new(Mutex::new(State::new(Rules { trusted, descriptors }, scopes.clone()))),
            messages,
            scopes,
            away: BTreeMap::new(),
            has_committed: false,
            logged: BTreeMap::new(),
            reloads: Arc::default(),
            _watches: watches,
        }
    }

    /// Whether the newest objects are in use; also valid while [`watch`](Self::watch) runs.
    #[must_use]
    pub fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// The number of services, and of other objects, whose resources are in the cache.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        self.state().counts()
    }

    /// Waits for a complete list of all objects, however long the API server is away, and commits
    /// what they bring. Until then nothing is known to be absent (G13).
    pub async fn load(&mut self, cache: &Arc<Cache>) {
        while !self.state().is_complete() {
            let Some(message) = self.messages.recv().await else { return };
            self.on(message);
        }
        self.commit(cache).await;
    }

    /// Follows the changes. Call it after [`load`](Self::load); it ends when its task is aborted.
    pub async fn watch(mut self, cache: Arc<Cache>) {
        loop {
            match timeout(REPORT_EVERY, self.messages.recv()).await {
                Ok(Some(message)) => {
                    self.on(message);
                    // Changes that belong together are one commit.
                    let until = Instant::now() + TOGETHER;
                    while Instant::now() < until
                        && let Ok(Some(message)) = timeout_at(until, self.messages.recv()).await
                    {
                        self.on(message);
                    }
                }
                Ok(None) => return,
                Err(_quiet) => {}
            }
            self.commit(&cache).await;
        }
    }

    fn on(&mut self, Message { watch, news }: Message) {
        match news {
            News::Change(change) => {
                if matches!(change, Change::Listed) {
                    tracing::debug!(scope = self.scope(watch), "listed");
                }
                self.state().on(watch, change);
            }
            News::Away(reason) => {
                if self.away.get(&watch) != Some(&reason) {
                    let scope = self.scope(watch);
                    warn!(scope, reason, "Kubernetes cannot be read; what is known stays in use");
                    self.away.insert(watch, reason);
                    self.report(false);
                }
            }
            News::Back => {
                if self.away.remove(&watch).is_some() {
                    info!(scope = self.scope(watch), "Kubernetes is read again");
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn scope(&self, watch: usize) -> String {
        let WatchScope { kind, namespace } = &self.scopes[watch];
        let within = namespace.as_ref().map_or_else(String::new, |namespace| format!(" in {namespace}"));
        format!("{kind:?}s{within}")
    }

    async fn commit(&mut self, cache: &Arc<Cache>) {
        let mut has_changed = false;
        // The first commit says that nothing else exists, also if there is nothing.
        if self.state().has_changes() || !self.has_committed {
            let (state, cache) = (Arc::clone(&self.state), Arc::clone(cache));
            let work = move || lock(&state).commit(&cache);
            let committed = spawn_blocking(work).await.unwrap_or_else(|panicked| {
                warn!(%panicked, "a change of Kubernetes cannot be read");
                Committed::default()
            });
            self.has_committed = true;
            has_changed = committed.has_changed;
            tracing::debug!(translated = committed.translated, has_changed, "committed");
        }
        self.log_problems();
        self.report(has_changed);
    }

    /// Logs each new problem once, and its end.
    fn log_problems(&mut self) {
        let state = Arc::clone(&self.state);
        let state = lock(&state);
        let problems = state.problems();
        if *problems == self.logged {
            return;
        }
        for (object, problems) in problems.iter().filter(|(object, of)| self.logged.get(object) != Some(of)) {
            for problem in problems {
                warn!("{object}: {problem}");
            }
        }
        for object in self.logged.keys().filter(|object| !problems.contains_key(object)) {
            info!("{object}: has no errors any longer, or is gone");
        }
        self.logged.clone_from(problems);
    }

    /// Reports whether the newest objects are in use.
    fn report(&self, has_changed: bool) {
        let state = self.state();
        let problems = state.problems();
        if !self.away.is_empty() {
            let lines = self.away.iter().map(|(watch, reason)| format!("{}: {reason}", self.scope(*watch)));
            self.reloads.on_refused(lines.collect::<Vec<_>>().join("\n"));
        } else if !problems.is_empty() {
            self.reloads.on_isolated(problems.len(), listed(problems), has_changed);
        } else if has_changed {
            self.reloads.on_new();
        } else {
            self.reloads.on_same();
        }
    }
}

/// A panic leaves objects that are not read until they change, and no other trace.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first problems, one a line.
fn listed(problems: &BTreeMap<ObjectName, Vec<Problem>>) -> String {
    let lines = problems.iter().flat_map(|(object, of)| of.iter().map(move |problem| (object, problem)));
    let mut text = String::new();
    for (number, (object, problem)) in lines.enumerate() {
        if number == PROBLEMS_LISTED {
            text.push_str("\nand more: the log has them");
            break;
        }
        let separator = if number == 0 { "" } else { "\n" };
        _ = write!(text, "{separator}{object}: {problem}");
    }
    text
}

/// How long changes are collected after the first one: less than a person notices, and long enough
/// for the slices of a deployment that change together.
const TOGETHER: Duration = Duration::from_millis(100);

/// How often a source without changes says that it is current, and tries again what waits for the
/// name of another source.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// How long an answer of the API server may take.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Messages that wait for the source. More wait in the watches, and then in the API server.
const MESSAGES: usize = 64;

/// Problems that the metrics and the admin page quote.
const PROBLEMS_LISTED: usize = 20;
