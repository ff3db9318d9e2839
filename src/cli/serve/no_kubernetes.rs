//! A binary without the feature `kubernetes`: it has no such options, and no such source.

use std::sync::Arc;

use clap::Args;
use xds::folder::Descriptors;
use xds::{Cache, Reloads};

use super::migrate::Stop;
use crate::cli::Failure;

#[derive(Debug, Args)]
pub(super) struct KubernetesOptions {}

/// What comes after the start of the source.
pub(super) enum Started {
    Loaded(Option<ServedKubernetes>),
    #[expect(dead_code, reason = "with the feature, there may be a signal meanwhile")]
    Stopped,
}

/// There is none.
#[derive(Debug)]
pub(super) enum ServedKubernetes {}

impl KubernetesOptions {
    pub(super) async fn start(
        &self,
        _: &Arc<Cache>,
        _: &Arc<Descriptors>,
        _: &mut Option<Stop>,
    ) -> Result<Started, Failure> {
        Ok(Started::Loaded(None))
    }
}

impl ServedKubernetes {
    pub(super) fn reloads(&self) -> Arc<Reloads> {
        match *self {}
    }

    pub(super) fn summary(&self) -> String {
        match *self {}
    }

    pub(super) async fn watch(self, _: Arc<Cache>) {
        match self {}
    }
}

/// The options that are a source by themselves, so that DIR may be missing.
pub(super) const SOURCES: [&str; 1] = ["store"];
