//! Which endpoints a delta stream has to send though their version is equal.

use std::collections::BTreeSet;

use crate::name::ResourceName;

/// Which clusters this stream sent before it asked for endpoints, by the names of their assignments
/// (S34, D9).
#[derive(Debug)]
pub(super) enum ClustersSent {
    All,
    Some(BTreeSet<ResourceName>),
}

impl ClustersSent {
    pub(super) fn add(&mut self, endpoints: &[ResourceName], is_whole: bool) {
        match self {
            _ if endpoints.is_empty() => {}
            Self::All => {}
            Self::Some(names) if is_whole || names.len() > CLUSTERS_REMEMBERED => *self = Self::All,
            Self::Some(names) => names.extend(endpoints.iter().cloned()),
        }
    }

    pub(super) fn has(&self, name: &ResourceName) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(name),
        }
    }
}

/// Past this number a stream that never asked for endpoints counts as having been sent all
/// clusters: at worst its first answer about endpoints repeats what the client has.
const CLUSTERS_REMEMBERED: usize = 4096;
