//! The endpoints that a delta stream must send although the client brought the same version.

use std::collections::BTreeSet;

use crate::name::ResourceName;

/// The clusters that were sent before the client subscribed to endpoints, by the names of their
/// assignments (S34, D9).
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

/// Past this number, all clusters count as sent. At worst the first response with endpoints repeats
/// what the client has.
const CLUSTERS_REMEMBERED: usize = 4096;
