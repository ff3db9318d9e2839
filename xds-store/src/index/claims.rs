//! Aliases that several resources have after a merge: which of these has it for clients (SR47, D24).
//!
//! Two nodes may commit one alias before they hear of each other. All records stay as they are. The records alone
//! say which resource has the alias for clients, so nodes with equal records serve the same.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Index, Records};
use crate::key::{NameDigest, RecordKey};
use crate::record::Present;

/// The records that have an alias.
pub(crate) type Claims = BTreeSet<RecordKey>;

static NOBODY: Claims = Claims::new();

/// The name that has an alias for clients: a resource that is named so, or else that of the record that
/// [`arrange`](super::arrange) would serve.
pub(crate) fn holder<'a>(
    alias: NameDigest,
    is_named_so: bool,
    claims: impl Iterator<Item = (&'a RecordKey, &'a Present)>,
) -> Option<NameDigest> {
    if is_named_so {
        return Some(alias);
    }
    let order = |(key, record): &(&'a RecordKey, &'a Present)| {
        (Reverse((record.incarnation, record.generation)), record.content, *key)
    };
    claims.min_by_key(order).map(|(key, _)| key.name_digest())
}

impl<'a> Records<'a> {
    /// The records that have an alias.
    pub(crate) fn claims(self, alias: NameDigest) -> &'a Claims {
        let claims = self.batch.aliases.get(&alias).or_else(|| self.index.aliases.get(&alias));
        claims.unwrap_or(&NOBODY)
    }

    /// The aliases of a record that another resource has for clients; `None`: there are none.
    pub(crate) fn lost_aliases(self, key: &RecordKey) -> Option<&'a BTreeSet<NameDigest>> {
        let lost = self.batch.lost_aliases.get(key).or_else(|| self.index.lost_aliases.get(key));
        lost.filter(|lost| !lost.is_empty())
    }
}

impl Index {
    /// The aliases of a record that another resource has for clients; `None`: there are none.
    pub(crate) fn lost_aliases(&self, key: &RecordKey) -> Option<&BTreeSet<NameDigest>> {
        self.lost_aliases.get(key)
    }

    /// Of a load: all records were added.
    pub(super) fn load_lost_aliases(&mut self) {
        let nothing = super::Pending::default();
        let records = Records { index: self, batch: &nothing };
        let mut lost: Vec<(RecordKey, NameDigest)> = Vec::new();
        for (alias, claims) in &self.aliases {
            let claimants = claims.iter().filter_map(|key| Some((key, records.get(key)?)));
            let holder = holder(*alias, records.exists(*alias), claimants);
            let losers = claims.iter().filter(|key| Some(key.name_digest()) != holder);
            lost.extend(losers.map(|key| (key.clone(), *alias)));
        }
        for (key, alias) in lost {
            self.lost_aliases.entry(key).or_default().insert(alias);
        }
    }
}
