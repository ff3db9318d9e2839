//! The durable store of `xds serve --store`.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use clap::Args;
use xds::Cache;
use xds_store_server::{Condition, Standing, StoreConfig, StoreHandle};

use super::count;
use crate::cli::Failure;
use crate::cli::store::init::new_identity;
use crate::cli::store::place::Place;

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct StoreOptions {
    /// Serve the durable store in this folder, which `xds store init` creates; `memory:` for a
    /// store that is lost when the process ends
    ///
    /// Clients get the resources that the API of the store writes. Everything that the API answered
    /// with OK survives a restart, a crash and a power cut.
    #[arg(long, value_name = "STORE")]
    store: Option<Place>,
    /// How many commits may wait; more are refused with RESOURCE_EXHAUSTED. Together they may have
    /// 64 MiB
    #[arg(long, value_name = "COMMITS", default_value = "1000", value_parser = count, requires = "store")]
    commit_queue_limit: usize,
}

/// A store that is served.
#[derive(Debug, Clone)]
pub(super) struct ServedStore {
    pub(super) place: Place,
    pub(super) handle: StoreHandle,
}

impl StoreOptions {
    /// Opens the store and commits its records to the cache. `None` without `--store`.
    pub(super) fn start(&self, cache: &Arc<Cache>) -> Result<Option<ServedStore>, Failure> {
        let Some(place) = &self.store else { return Ok(None) };
        if *place == Place::Memory {
            tracing::warn!("--store memory: keeps nothing: all commits are lost when this process ends");
        }
        let engine = place.open(&new_identity()?).map_err(Failure::Place)?;
        let mut config = StoreConfig::default();
        config.cache = Arc::clone(cache);
        config.queue_commits = self.commit_queue_limit;
        let handle = StoreHandle::start(engine, config);
        let handle = handle.map_err(|error| Failure::Place(place.not_started(error)))?;
        Ok(Some(ServedStore { place: place.clone(), handle }))
    }
}

impl ServedStore {
    /// The summary of what it serves.
    pub(super) fn summary(&self, cache: &Cache) -> Vec<String> {
        let snapshot = cache.snapshot();
        let variants = |of_type| {
            let names = snapshot.of_type(of_type).into_iter().flat_map(|resources| resources.iter());
            names.map(|(_, variants)| variants.len()).sum::<usize>()
        };
        let types: Vec<_> = snapshot.counts().map(|(of_type, _)| (of_type, variants(of_type))).collect();
        let all: usize = types.iter().map(|(_, variants)| variants).sum();
        let revision = self.handle.standing().borrow().revision_text();
        let place = self.place.to_string();
        let place = place.trim_end_matches(':');
        let mut lines = vec![format!("{place}: {all} resources at revision {revision}")];
        let types = types.into_iter().filter(|(_, variants)| *variants > 0);
        lines.extend(types.map(|(of_type, variants)| format!("{variants:>9} {}", of_type.message_name())));
        if self.handle.standing().borrow().condition == Condition::Waiting {
            lines.push(format!("{place}: no commit yet; clients wait for the first one"));
        }
        lines
    }

    /// `/readyz/store`: whether commits are accepted (ST59).
    pub(super) fn routes(&self) -> Router {
        let standing = self.handle.standing();
        let answer = move || {
            let answer = ready_to_commit(&standing.borrow());
            async { answer }
        };
        Router::new().route("/readyz/store", get(answer))
    }
}

fn ready_to_commit(standing: &Standing) -> (StatusCode, String) {
    if standing.accepts_commits() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", standing.reason))
    }
}
