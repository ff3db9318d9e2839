//! A server that is asked for the names of one authority has no say about those of another (C16).

use std::collections::BTreeSet;

use xds_core::VariantId;

use super::Violation;
use crate::agent::{Agent, Sight};
use crate::content::Kind;
use crate::liar::AUTHORITY;

/// What a client has of the names that a server is not asked for.
pub(crate) struct Held {
    sights: Vec<(usize, Sight)>,
    variants: BTreeSet<VariantId>,
}

impl Held {
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

    /// Checks that they are still what they were.
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
        // Known: it may bring what goes by the alias of a name that it is asked for (D24).
        match self.variants.difference(&now).next() {
            None => Ok(()),
            Some(id) => {
                let what = format!("a liar took away {}[{}]", id.name, id.constraints);
                Err(Violation::new("honest", what))
            }
        }
    }
}

/// All variants of old-style names in the cache of a client.
fn variants(agent: &Agent) -> BTreeSet<VariantId> {
    let snapshot = agent.client.cache().snapshot();
    let mut all = BTreeSet::new();
    for kind in Kind::ALL {
        let names = snapshot.of_type(&kind.url().into()).into_iter().flat_map(|names| names.iter());
        for (name, variants) in names.filter(|(name, _)| !name.as_str().contains(AUTHORITY)) {
            all.extend(variants.iter().map(|variant| VariantId {
                type_url: kind.url().into(),
                name: name.clone(),
                constraints: variant.constraints().clone(),
            }));
        }
    }
    all
}
