//! What a delta stream must send although the client brought the same version: the resource was named by
//! another one that was sent before the client subscribed to it (S34, S34b, D9).

use std::collections::{BTreeMap, BTreeSet};

use crate::name::ResourceName;
use crate::references::Target;
use crate::subscription::WILDCARD;

/// What the resources named that were sent before the client subscribed to the types of these names.
#[derive(Debug, Default)]
pub(super) struct ReferrersSent(BTreeMap<Target, Named>);

#[derive(Debug)]
enum Named {
    All,
    Some(BTreeSet<ResourceName>),
}

impl ReferrersSent {
    /// Adds names of one type. `is_whole`: the response with the resources that name them had everything.
    pub(super) fn add(&mut self, target: Target, names: impl Iterator<Item = ResourceName>, is_whole: bool) {
        let named = self.0.entry(target).or_insert_with(|| Named::Some(BTreeSet::new()));
        match named {
            Named::All => {}
            Named::Some(sent) if is_whole || sent.len() > REMEMBERED => *named = Named::All,
            Named::Some(sent) => sent.extend(names),
        }
    }

    pub(super) fn have(&self, target: Option<Target>, name: &ResourceName) -> bool {
        match target.and_then(|target| self.0.get(&target)) {
            None => false,
            Some(Named::All) => true,
            Some(Named::Some(names)) => names.contains(name) || names.contains(WILDCARD),
        }
    }
}

/// Past this number, all names of the type count. At worst the first response repeats what the client
/// has.
const REMEMBERED: usize = 4096;
