//! The server of one authority has no effect on names of another authority (C16), in our client and
//! in a proxy.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use xds_core::{Cache, VariantId};

use super::Violation;
use crate::agent::{Agent, Sight};
use crate::content::Kind;
use crate::relay::{LIAR, is_of_liar};

/// The resources of a client whose names are not requested from a server.
pub(crate) struct Protected {
    sights: Vec<(usize, Sight)>,
    variants: BTreeSet<VariantId>,
}

impl Protected {
    pub(crate) fn of(agent: &Agent, server: usize) -> Self {
        if agent.profile.liar != Some(server) || !agent.profile.is_served_honestly() {
            return Self { sights: Vec::new(), variants: BTreeSet::new() };
        }
        let watchers = agent.watchers.iter().enumerate();
        let honest = watchers.filter(|(_, watcher)| !watcher.is_of_liar);
        Self {
            sights: honest.map(|(at, watcher)| (at, watcher.sight.clone())).collect(),
            variants: variants(agent),
        }
    }

    /// Checks that they did not change.
    pub(crate) fn check(&self, agent: &Agent) -> Result<(), Violation> {
        for (at, before) in &self.sights {
            let watcher = &agent.watchers[*at];
            if !watcher.sight.is_same(before) {
                let what = format!("a liar changed what {watcher} sees: {before}, now {}", watcher.sight);
                return Err(Violation::new("honest", what));
            }
        }
        if self.sights.is_empty() && self.variants.is_empty() {
            return Ok(());
        }
        let now = variants(agent);
        // Known: a liar may add a resource through the alias of a requested name (D24).
        match self.variants.difference(&now).next() {
            None => Ok(()),
            Some(id) => {
                let what = format!("a liar took away {}[{}]", id.name, id.constraints);
                Err(Violation::new("honest", what))
            }
        }
    }
}

/// The resources of a proxy whose names are not requested from the liar of an authority.
pub(crate) struct Proxied(Option<BTreeMap<VariantId, Bytes>>);

impl Proxied {
    pub(crate) fn of(cache: &Cache, server: usize) -> Self {
        Self((server == LIAR).then(|| contents(cache)))
    }

    /// Checks that they did not change.
    pub(crate) fn check(&self, cache: &Cache) -> Result<(), Violation> {
        let Some(before) = &self.0 else { return Ok(()) };
        let now = contents(cache);
        let is_other = |(id, payload): &(&VariantId, &Bytes)| before.get(*id) != Some(*payload);
        let is_gone = |id: &&VariantId| !now.contains_key(*id);
        let other = now.iter().find(is_other).map(|(id, _)| id);
        match other.or_else(|| before.keys().find(is_gone)) {
            None => Ok(()),
            Some(id) => {
                let what = format!("a liar changed what a proxy has of {}[{}]", id.name, id.constraints);
                Err(Violation::new("honest", what))
            }
        }
    }
}

/// All variants of old-style names in the cache of a client.
fn variants(agent: &Agent) -> BTreeSet<VariantId> {
    contents(agent.client.cache()).into_keys().collect()
}

/// The variants of old-style names in any cache, with their payloads.
fn contents(cache: &Cache) -> BTreeMap<VariantId, Bytes> {
    let snapshot = cache.snapshot();
    let mut all = BTreeMap::new();
    for kind in Kind::ALL {
        let names = snapshot.of_type(&kind.url().into()).into_iter().flat_map(|names| names.iter());
        for (name, variants) in names.filter(|(name, _)| !is_of_liar(name.as_str())) {
            all.extend(variants.iter().map(|variant| {
                let (name, constraints) = (name.clone(), variant.constraints().clone());
                let id = VariantId { type_url: kind.url().into(), name, constraints };
                (id, variant.payload().clone())
            }));
        }
    }
    all
}
