//! What refers to a resource, and what blocks its deletion (SG10).

use std::collections::BTreeSet;
use std::sync::Arc;

use xds_proto::xds::store::v1 as proto;

use super::Store;
use crate::blocks::Block;
use crate::commit::Forms;
use crate::index::{Pending, Records};
use crate::key::{NameDigest, RecordKey};
use crate::refs::ReferrerChanges;
use crate::rules::Acts;

/// What to find out about a resource.
#[derive(Debug, Clone, Copy)]
pub struct ReferrersQuery<'a, F> {
    /// A record of the resource: only its type and name count.
    pub key: &'a RecordKey,
    /// Further records, also by type and name: whether they exist.
    pub targets: &'a [RecordKey],
    /// Only records that the client may read are listed (ST54).
    pub may_read: F,
    /// How many referrers are listed.
    pub limit: usize,
    /// How many steps of blockers are followed.
    pub depth: usize,
}

/// What refers to a resource.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct FoundReferrers {
    /// Whether a record of this type and name exists, or its other form (SV30).
    pub exists: bool,
    /// Those of the targets of the query that do not exist.
    pub missing: BTreeSet<RecordKey>,
    /// The first referrers that the client may read, each with the form of the resource that it names.
    pub referrers: Vec<(RecordKey, RecordKey)>,
    /// Those of other regions (SG31), as their regions describe them. They come first within the limit.
    pub elsewhere: Vec<proto::Reference>,
    /// The number of all referrers.
    pub count: u64,
    /// What blocks the deletion, step by step, the nearest first: a referrer, and what it names.
    pub blockers: Vec<(RecordKey, RecordKey)>,
    /// What blocks it behind these, in another region.
    pub blocked_elsewhere: Option<proto::Reference>,
    /// Whether the last blocker is blocked by an earlier one.
    pub is_cycle: bool,
}

/// A deletion in progress (SG7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionInProgress {
    /// The record.
    pub key: RecordKey,
    /// Since when it is being deleted, in nanoseconds since 1970.
    pub since: i64,
    /// The first records that it waits for.
    pub blocked_by: Vec<RecordKey>,
    /// How many records it waits for; the same one counts for each form that it names.
    pub blockers: u64,
}

impl Store {
    /// The deletions in progress, the one that has waited the longest first (SG10): at most `limit`, each
    /// with at most `blockers` of what it waits for. Costs a look at each of their referrers.
    #[must_use]
    pub fn deletions(&self, limit: usize, blockers: usize) -> Vec<DeletionInProgress> {
        let (nothing, unchanged) = (Pending::default(), ReferrerChanges::default());
        let records = Records { index: &self.index, batch: &nothing };
        let forms = Forms { records, schemas: self.index.schemas(), now: self.head.time };
        let deletion = |(since, key): (i64, &RecordKey)| {
            let mut found =
                DeletionInProgress { key: key.clone(), since, blocked_by: Vec::new(), blockers: 0 };
            for form in forms.all(key) {
                let waits = |(_, acts): &(&RecordKey, Acts)| acts.needs_target();
                let blocks = records.blocks(form.name_digest());
                for source in blocks.filter_map(|(_, block)| block.source()) {
                    found.blockers += 1;
                    if found.blocked_by.len() < blockers {
                        found.blocked_by.push(source);
                    }
                }
                let name = form.name_digest();
                let here = records.referrers(&unchanged, name).filter(waits);
                for (source, _) in here.filter(|(source, _)| !records.is_blocked_by(name, source)) {
                    found.blockers += 1;
                    if found.blocked_by.len() < blockers {
                        found.blocked_by.push(source.clone());
                    }
                }
            }
            found
        };
        self.index.deleting_longest().take(limit).map(deletion).collect()
    }

    /// What refers to a resource in the last durable state. Costs a look at each referrer.
    pub fn referrers<F: Fn(&RecordKey) -> bool>(&self, query: &ReferrersQuery<'_, F>) -> FoundReferrers {
        let (nothing, unchanged) = (Pending::default(), ReferrerChanges::default());
        let records = Records { index: &self.index, batch: &nothing };
        let of = |key: &RecordKey| records.referrers(&unchanged, key.name_digest());
        let forms = Forms { records, schemas: self.index.schemas(), now: self.head.time };
        let exists = |key: &RecordKey| forms.all(key).any(|form| records.exists(form.name_digest()));
        let mut found = FoundReferrers { exists: exists(query.key), ..Default::default() };
        for target in query.targets.iter().filter(|target| !exists(target)) {
            found.missing.insert(target.clone());
        }
        let is_shown = |block: &&Arc<Block>| block.source().is_some_and(|source| (query.may_read)(&source));
        for form in forms.all(query.key) {
            for (_, block) in records.blocks(form.name_digest()) {
                found.count += 1;
                if found.elsewhere.len() < query.limit && is_shown(&block) {
                    found.elsewhere.push(block.to_proto());
                }
            }
            let is_copy = |source: &RecordKey| records.is_blocked_by(form.name_digest(), source);
            for (source, _) in of(&form).filter(|(source, _)| !is_copy(source)) {
                found.count += 1;
                if found.referrers.len() + found.elsewhere.len() < query.limit && (query.may_read)(source) {
                    found.referrers.push((source.clone(), form.clone()));
                }
            }
        }
        let mut seen: BTreeSet<NameDigest> = forms.all(query.key).map(|form| form.name_digest()).collect();
        let mut target = query.key.clone();
        while found.blockers.len() < query.depth {
            let blocker = |form: RecordKey| {
                // What should go with it may itself be blocked.
                let is_deleting =
                    |source: &RecordKey| records.get(source).is_some_and(|record| record.is_deleting());
                let blocks = |(source, acts): &(&RecordKey, Acts)| {
                    let waits = acts.has(Acts::BLOCK) || acts.needs_target() && is_deleting(source);
                    waits && (query.may_read)(source)
                };
                let name = form.name_digest();
                let mut here = of(&form).filter(|(source, _)| !records.is_blocked_by(name, source));
                let source = here.find(blocks).map(|(source, _)| source.clone());
                source.map(|source| (source, form))
            };
            let Some((source, form)) = forms.all(&target).find_map(blocker) else {
                let blocks = |form: RecordKey| records.blocks(form.name_digest()).map(|(_, block)| block);
                let mut blocks = forms.all(&target).flat_map(blocks).filter(is_shown);
                let keeps = blocks.find(|block| !block.goes_with_target());
                found.blocked_elsewhere = keeps.map(|block| block.to_proto());
                break;
            };
            found.blockers.push((source.clone(), form));
            let is_new = seen.insert(source.name_digest());
            seen.extend(forms.all(&source).map(|form| form.name_digest()));
            if !is_new {
                found.is_cycle = true;
                break;
            }
            target = source;
        }
        found
    }
}
