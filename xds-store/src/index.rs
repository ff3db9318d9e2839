//! What the store keeps in memory of its records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use xds_core::matching::KeySetRule;
use xds_core::matching::SetError;
use xds_core::{Constraints, Formula, VariantId, VariantSet};
use xds_proto::xds::store::v1 as proto;

use crate::authority::Authorities;
use crate::blocks::{BlockChanges, BlockSide, Blocks};
use crate::conflict::Conflict;
use crate::engine::View;
use crate::forgotten::{FORGOTTEN_TYPE, Forgotten};
use crate::key::{NameDigest, RecordDigest, RecordKey};
use crate::log::Head;
use crate::phase::{self, Ceiling, LiveServers, Phase, Phases, Schemas};
use crate::record::{EntryId, Local, Present, RecordState};
use crate::refs::{Reference, ReferrerChanges, Referrers};
use crate::region::{FetchingChanges, Policies};
use crate::rules::{Acts, Rules};
use crate::stored::ReadError;
use crate::{looks, time};
pub(crate) use claims::{Claims, holder};
use ends::Ends;
pub use form_counts::FormCounts;
use form_counts::PlanCounts;
pub(crate) use overlap::{Withheld, arrange, key_of};
use ownership::Ownership;

mod claims;
mod ends;
mod form_counts;
mod leases;
mod overlap;
mod ownership;
mod referring;

/// All records, found by digests of their keys: a comparison of two digests costs the same however
/// long the names are, and a change costs the same however many variants a name has.
#[derive(Debug, Default)]
pub(crate) struct Index {
    records: BTreeMap<RecordDigest, Present>,
    /// The constraints of the variants that are served. Names that never had constraints are not
    /// in it: they have at most one record, and a start has a million of them.
    variants: BTreeMap<NameDigest, Variants>,
    /// The variants that are not among those, because they overlap with them (SR47).
    withheld: BTreeMap<NameDigest, Withheld>,
    /// The deleted records of each name, and those of them that are served (SR48).
    deleted: BTreeMap<NameDigest, BTreeSet<RecordKey>>,
    held: BTreeMap<NameDigest, BTreeSet<RecordKey>>,
    /// Of each alias: the records that have it (D24).
    aliases: BTreeMap<NameDigest, Claims>,
    /// Of each record: the aliases that another resource has for clients (SR47).
    lost_aliases: BTreeMap<RecordKey, BTreeSet<NameDigest>>,
    owned: BTreeMap<Box<str>, BTreeSet<RecordKey>>,
    ownership: Ownership,
    pub(crate) referrers: Referrers,
    /// The records that are being deleted, by the names of both of their forms.
    pub(crate) deleting: Referrers,
    /// References of other regions to names of this one, and of this region to those of others.
    pub(crate) blocks: Blocks,
    pub(crate) own_blocks: Blocks,
    /// Names that are being deleted, and of whose deletions there may be a step to do.
    drained: BTreeSet<NameDigest>,
    pub(crate) ends: Ends,
    /// Since when records are being deleted.
    deleting_since: BTreeSet<(i64, RecordKey)>,
    /// Deleted records, with the store revisions that deleted them.
    tombstones: BTreeSet<(u64, RecordKey)>,
    live: usize,
    form_counts: PlanCounts,
    schemas: Arc<Schemas>,
    phases: Phases,
    servers: LiveServers,
    rules: Rules,
    policies: Policies,
    authorities: Authorities,
    forgotten: Forgotten,
    /// The records with a lease that another node ends (ST39), by that node.
    leases_of_others: BTreeMap<Box<str>, BTreeSet<RecordKey>>,
}

/// The variants of a name. No two match the same parameters.
pub(crate) type Variants = VariantSet<Constraints>;

/// The records of an index that is being loaded.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    records: Vec<(RecordDigest, Present)>,
    /// The last record.
    last: Option<RecordKey>,
    /// The constraints of its name so far, without those of deleted records.
    constraints: Vec<Constraints>,
    references: Vec<((NameDigest, RecordKey), Acts)>,
    /// Records of plans.
    forms: Vec<RecordKey>,
}

/// Changes that a batch makes, and that are not durable yet. Each replaces what the [`Index`] has.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) records: BTreeMap<RecordDigest, Present>,
    pub(crate) variants: BTreeMap<NameDigest, Variants>,
    pub(crate) withheld: BTreeMap<NameDigest, Withheld>,
    pub(crate) held: BTreeMap<NameDigest, BTreeSet<RecordKey>>,
    /// The records of each name that commits of the batch deleted.
    pub(crate) deleted: BTreeMap<NameDigest, BTreeSet<RecordKey>>,
    /// What clients get instead of the states that records have, if that changes (SR47).
    pub(crate) shown: BTreeMap<RecordKey, RecordState>,
    /// What is lost with that, or by a merge (SR44).
    pub(crate) lost: Vec<Conflict>,
    pub(crate) aliases: BTreeMap<NameDigest, Claims>,
    pub(crate) lost_aliases: BTreeMap<RecordKey, BTreeSet<NameDigest>>,
    pub(crate) referrers: ReferrerChanges,
    pub(crate) deleting: ReferrerChanges,
    /// The records that changed, with their states.
    pub(crate) states: BTreeMap<RecordKey, RecordState>,
    /// Records with a renewed lease.
    pub(crate) renewed: BTreeMap<RecordKey, Renewed>,
    /// Records that end at this node alone, with the lifecycles that they have for other nodes: by their dates (SR5),
    /// or as a snapshot does not have them (DELETED, SR21).
    pub(crate) ended_by_date: BTreeMap<RecordKey, proto::State>,
    /// Records that are deleted or being deleted, with the entries from which this store has that.
    pub(crate) deleted_by: BTreeMap<RecordKey, EntryId>,
    /// Records that did not change, and whose references are other ones by a changed rule.
    pub(crate) reread: BTreeMap<RecordKey, Box<[Reference]>>,
    /// References between regions.
    pub(crate) blocks: BlockChanges,
    pub(crate) own_blocks: BlockChanges,
}

/// A record with a renewed lease.
#[derive(Debug)]
pub(crate) struct Renewed {
    /// The store revision that changed the record.
    pub(crate) at: u64,
    pub(crate) state: RecordState,
    pub(crate) local: Local,
}

/// The records as some changes leave them: the index below what is pending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records<'a> {
    pub(crate) index: &'a Index,
    pub(crate) batch: &'a Pending,
}

/// The variants of a name after an edit (ST10). Its cost depends on the variants that share values
/// with the inserted ones; see [`VariantSet::edit`].
pub(crate) fn edited(
    variants: &Variants,
    removed: &[Constraints],
    inserted: &[Constraints],
) -> Result<Variants, SetError<Constraints>> {
    let removed: Vec<Arc<Formula>> = removed.iter().map(Into::into).collect();
    let inserted = inserted.iter().map(|constraints| (constraints.into(), constraints.clone()));
    variants.edit(removed.iter().map(|formula| &**formula), inserted, KeySetRule::Equal)
}

impl Pending {
    /// What the store keeps with the state of a record. All commits of a batch have one time.
    pub(crate) fn local(&self, key: &RecordKey, head: &Head) -> Local {
        let of_others = self.ended_by_date.get(key).copied().unwrap_or_default();
        let is_deleted = self.states.get(key).is_some_and(|state| state.lifecycle() == proto::State::Deleted);
        Local {
            committed_at: head.time,
            lifecycle_of_others: of_others.into(),
            deleted_by: self.deleted_by.get(key).cloned(),
            running: if is_deleted { head.running } else { 0 },
            conflict: None,
        }
    }

    /// Adds the changes of one more commit.
    pub(crate) fn extend(&mut self, commit: Self) {
        self.records.extend(commit.records);
        self.variants.extend(commit.variants);
        self.withheld.extend(commit.withheld);
        self.held.extend(commit.held);
        self.aliases.extend(commit.aliases);
        self.lost_aliases.extend(commit.lost_aliases);
        self.referrers.extend(commit.referrers);
        self.deleting.extend(commit.deleting);
        for (key, state) in &commit.states {
            if state.lifecycle() == proto::State::Deleted {
                self.deleted.entry(key.name_digest()).or_default().insert(key.clone());
            }
        }
        // What is kept with a state goes with the one before.
        for key in commit.states.keys() {
            self.ended_by_date.remove(key);
            self.deleted_by.remove(key);
        }
        self.states.extend(commit.states);
        self.renewed.extend(commit.renewed);
        self.ended_by_date.extend(commit.ended_by_date);
        self.deleted_by.extend(commit.deleted_by);
        self.reread.extend(commit.reread);
        self.blocks.extend(commit.blocks);
        self.own_blocks.extend(commit.own_blocks);
    }
}

impl<'a> Records<'a> {
    pub(crate) fn get(self, key: &RecordKey) -> Option<&'a Present> {
        self.at(key.record_digest())
    }

    fn at(self, record: RecordDigest) -> Option<&'a Present> {
        looks::look();
        self.batch.records.get(&record).or_else(|| self.index.records.get(&record))
    }

    /// The variants of a name that has, or had, constraints.
    pub(crate) fn constrained(self, name: NameDigest) -> Option<&'a Variants> {
        looks::look();
        self.batch.variants.get(&name).or_else(|| self.index.variants.get(&name))
    }

    /// The variants of a name.
    pub(crate) fn variants(self, name: NameDigest) -> Variants {
        match self.constrained(name) {
            Some(variants) => variants.clone(),
            None if self.exists(name) => Variants::everyone(Constraints::NONE),
            None => Variants::new(),
        }
    }

    /// Whether a name has a record that is not deleted.
    pub(crate) fn exists(self, name: NameDigest) -> bool {
        match self.constrained(name) {
            Some(variants) => !variants.is_empty(),
            None => self.at(RecordDigest::unconstrained(name)).is_some_and(|only| !only.is_deleted()),
        }
    }

    /// Whether a name has a record that is not deleted, once a commit is done.
    pub(crate) fn exists_after(self, commit: &Pending, name: NameDigest) -> bool {
        match commit.variants.get(&name).or_else(|| self.constrained(name)) {
            Some(variants) => !variants.is_empty(),
            None => {
                let only = RecordDigest::unconstrained(name);
                let only = commit.records.get(&only).or_else(|| self.at(only));
                only.is_some_and(|only| !only.is_deleted())
            }
        }
    }

    /// The records of a named owner.
    pub(crate) fn owned(self, owner: &str) -> BTreeSet<RecordKey> {
        let durable = self.index.owned.get(owner).into_iter().flatten();
        let keys = durable.chain(self.batch.states.keys());
        let is_owned = |key: &&RecordKey| {
            let is_owner = |record: &Present| record.owners.iter().any(|name| &**name == owner);
            self.get(key).is_some_and(|record| !record.is_deleted() && is_owner(record))
        };
        keys.filter(is_owned).cloned().collect()
    }
}

impl Index {
    /// The records, with nothing pending.
    pub(crate) fn get(&self, key: &RecordKey) -> Option<&Present> {
        self.records.get(&key.record_digest())
    }

    /// An index without records, for these plans and reference rules.
    pub(crate) fn new(schemas: Arc<Schemas>, rules: Rules) -> Self {
        Self { schemas, rules, ..Self::default() }
    }

    /// The names of a record that is being deleted: its own, and that of its other form if it has one
    /// (SV30), in order. Otherwise none.
    pub(crate) fn deleting_names(&self, key: &RecordKey, record: &Present) -> Vec<Reference> {
        if !record.is_deleting() {
            return Vec::new();
        }
        let other = self.schemas.form(key).and_then(|(plan, form)| plan.other_key(key, form).ok());
        let mut names: Vec<_> =
            [Some(key), other.as_ref()].into_iter().flatten().map(RecordKey::name_digest).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(|target| Reference { target, acts: Acts::ALLOW }).collect()
    }

    /// The phases of plans.
    pub(crate) fn phases(&self) -> &Phases {
        &self.phases
    }

    /// The reference rules.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The policies of regions.
    pub(crate) fn policies(&self) -> &Policies {
        &self.policies
    }

    /// What authorities may refer to.
    pub(crate) fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Takes what a batch changes of the names that the store fetches.
    pub(crate) fn note_fetching(&mut self, changes: FetchingChanges) {
        self.policies.note_fetching(changes);
        // The writer finishes them once it has all names.
        self.drain_all();
    }

    /// Each deletion in progress may end now.
    pub(crate) fn drain_all(&mut self) {
        self.drained.extend(self.deleting.targets());
    }

    /// The nodes that are forgotten.
    pub(crate) fn forgotten(&self) -> &Forgotten {
        &self.forgotten
    }

    /// What the program knows, below the ceilings of the store.
    pub(crate) fn schemas(&self) -> &Arc<Schemas> {
        &self.schemas
    }

    /// The key of the other form of a record, in the phases that read both.
    pub(crate) fn other_form(&self, key: &RecordKey) -> Option<RecordKey> {
        let (plan, form) = self.schemas.form(key)?;
        let reads_both = matches!(self.phases.phase(plan), Phase::F2 | Phase::F3);
        plan.other_key(key, form).ok().filter(|_| reads_both)
    }

    /// The servers of the store that said that they are alive.
    pub(crate) fn servers(&self) -> &LiveServers {
        &self.servers
    }

    /// Takes the state of a record if it is one of the store's own.
    pub(crate) fn note_own(&mut self, key: &RecordKey, state: &RecordState) {
        self.phases.note(key, state);
        self.servers.note(key, state);
        self.forgotten.note(key, state);
        self.policies.note(key, state);
        self.authorities.note(key, state);
        if let Some(ceiling) = Ceiling::of_record(key, state) {
            Arc::make_mut(&mut self.schemas).set_stored_ceiling(ceiling);
        }
    }

    /// How many records exist, and how many are deleted and not collected yet.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.live, self.tombstones.len())
    }

    /// Adds a record of an engine. Records come in the order of keys.
    pub(crate) fn add(
        &mut self,
        loading: &mut Loading,
        id: &VariantId,
        key: &RecordKey,
        record: Present,
        check_owners_at: i64,
    ) {
        let name = key.name_digest();
        if loading.last.as_ref().is_some_and(|last| last.name_digest() != name) {
            self.end_name(loading);
        }
        loading.last = Some(key.clone());
        self.note(key, None, Some(&record));
        self.ownership.note(key, None, &record, check_owners_at);
        self.load_form(key, &record, loading);
        if !record.is_deleted() {
            for alias in &record.aliases {
                self.aliases.entry(*alias).or_default().insert(key.clone());
            }
            let constraints = match self.schemas.plans() {
                [] => id.constraints.clone(),
                _ => self.schemas.selecting(key),
            };
            loading.constraints.push(constraints);
        }
        let references = record.references.iter();
        loading.references.extend(references.map(|one| ((one.target, key.clone()), one.acts)));
        // SG8: a deletion in progress goes on.
        let deleting = self.deleting_names(key, &record);
        self.deleting.replace(key, &[], &deleting);
        self.drained.extend(deleting.iter().map(|deleting| deleting.target));
        loading.records.push((key.record_digest(), record));
    }

    /// All variants of a name were added. They are checked at once: one by one, each of many variants
    /// would build a part of the set again.
    fn end_name(&mut self, loading: &mut Loading) {
        let Some(key) = &loading.last else { return };
        if loading.constraints.iter().any(|constraints| !constraints.is_unconstrained()) {
            match edited(&Variants::new(), &[], &loading.constraints) {
                Ok(variants) => _ = self.variants.insert(key.name_digest(), variants),
                Err(_) => self.load_overlap(loading, key),
            }
        }
        loading.constraints.clear();
    }

    /// All records were added. Builds the tree from sorted records at once, which is faster than to
    /// insert each, and smaller.
    pub(crate) fn finish(&mut self, mut loading: Loading) {
        self.end_name(&mut loading);
        self.records = loading.records.into_iter().collect();
        self.count_loaded(&loading.forms);
        self.load_lost_aliases();
        self.referrers = Referrers::load(loading.references);
        self.ownership.note_start();
    }

    /// Takes what a batch made durable. The owners of what it changed are checked at this time.
    pub(crate) fn apply(&mut self, pending: Pending, check_owners_at: i64) {
        let Pending { mut records, variants, withheld, held, states, renewed, reread, .. } = pending;
        let Pending { aliases, lost_aliases, .. } = pending;
        self.apply_withheld(withheld, held);
        // SG35: what another region kept may end.
        let ended = pending.blocks.iter().filter(|(_, block)| block.is_none()).map(|(key, _)| key.target);
        self.drained.extend(ended.filter(|target| self.deleting.of(*target).next().is_some()));
        self.blocks.apply(pending.blocks);
        self.own_blocks.apply(pending.own_blocks);
        // SG41: those of a forgotten node are finished by another one. SG22: and so are those that a policy gives away.
        let has_others = |key: &RecordKey| key.has_type(FORGOTTEN_TYPE) || Policies::is_policy(key);
        if !reread.is_empty() || states.keys().any(has_others) {
            self.drain_all();
        }
        for (key, references) in reread {
            if let Some(record) = self.records.get_mut(&key.record_digest()) {
                self.referrers.replace(&key, &record.references, &references);
                record.references = references;
            }
        }
        for (key, state) in &states {
            self.note_own(key, state);
            self.rules.note(key, state);
            let digest = key.record_digest();
            let Some(after) = records.remove(&digest) else { continue };
            let before = self.records.remove(&digest);
            self.note(key, before.as_ref(), Some(&after));
            self.note_lease(key, before.as_ref(), &after, state);
            self.count_forms(key, before.as_ref(), &after);
            self.ownership.note(key, before.as_ref(), &after, check_owners_at);
            let references = before.as_ref().map_or(&[][..], |before| &before.references);
            self.referrers.replace(key, references, &after.references);
            let deleting = before.as_ref().map(|before| self.deleting_names(key, before)).unwrap_or_default();
            let deleting_after = self.deleting_names(key, &after);
            self.deleting.replace(key, &deleting, &deleting_after);
            self.drained.extend(deleting_after.iter().map(|deleting| deleting.target));
            // A field that named it in another way may be one that goes with it now. If it named it before, it may
            // have been the last one.
            let is_deleting = |target: &NameDigest| self.deleting.of(*target).next().is_some();
            let targets = references.iter().chain(&after.references).map(|one| one.target);
            self.drained.extend(targets.filter(is_deleting));
            self.records.insert(digest, after);
        }
        for (name, variants) in variants {
            if variants.is_empty() {
                self.variants.remove(&name);
            } else {
                self.variants.insert(name, variants);
            }
        }
        // A record that the batch changed after the renewal has its own end.
        for (key, Renewed { at, state, .. }) in &renewed {
            if self.get(key).is_some_and(|record| record.changed_at == *at) {
                self.renew(key, state);
            }
        }
        for (alias, claims) in aliases {
            put_or_drop(&mut self.aliases, alias, claims.is_empty(), claims);
        }
        for (key, lost) in lost_aliases {
            put_or_drop(&mut self.lost_aliases, key, lost.is_empty(), lost);
        }
    }

    /// Notes a renewed lease (ST37).
    pub(crate) fn renew(&mut self, key: &RecordKey, state: &RecordState) {
        let Some(expires_at) = state.expires_at.as_ref().map(time::from_proto) else { return };
        if let Some(record) = self.records.get_mut(&key.record_digest())
            && record.lease.is_some()
        {
            self.ends.remove(key, record);
            record.expires_at = Some(expires_at);
            if let Some(lease) = &mut record.lease {
                (lease.renewal, lease.stored_end) = (state.renewal, expires_at);
            }
            self.ends.add(key, record);
        }
    }

    /// Takes the references between regions of an engine.
    pub(crate) fn load_blocks(&mut self, view: &dyn View) -> Result<(), ReadError> {
        self.blocks = Blocks::load(view, BlockSide::Target)?;
        self.own_blocks = Blocks::load(view, BlockSide::Source)?;
        Ok(())
    }

    /// Forgets a deleted record.
    pub(crate) fn collect(&mut self, key: &RecordKey) {
        let digest = key.record_digest();
        if let Some(record) = self.records.get(&digest).filter(|record| record.is_deleted()) {
            self.tombstones.remove(&(record.changed_at, key.clone()));
            self.note_deleted(key, false);
            self.records.remove(&digest);
        }
    }

    /// How many records are being deleted, and since when the one that has waited the longest is.
    pub(crate) fn deleting_since(&self) -> (usize, Option<i64>) {
        (self.deleting_since.len(), self.deleting_since.first().map(|(since, _)| *since))
    }

    /// The records that are being deleted and since when, the one that has waited the longest first.
    pub(crate) fn deleting_longest(&self) -> impl Iterator<Item = (i64, &RecordKey)> {
        self.deleting_since.iter().map(|(since, key)| (*since, key))
    }

    /// Names that are being deleted, and of whose deletion there may be a step to do.
    pub(crate) fn drained(&self) -> impl Iterator<Item = NameDigest> {
        self.drained.iter().copied()
    }

    /// There is nothing to do until something changes.
    pub(crate) fn note_drained(&mut self, name: NameDigest) {
        self.drained.remove(&name);
    }

    /// Deleted records with the store revisions that deleted them, the one that was deleted first, first.
    pub(crate) fn tombstones(&self) -> impl Iterator<Item = (u64, &RecordKey)> {
        self.tombstones.iter().map(|(changed_at, key)| (*changed_at, key))
    }

    fn note(&mut self, key: &RecordKey, before: Option<&Present>, after: Option<&Present>) {
        let is_own = phase::is_own(key);
        let is_live = |record: &Present| !record.is_deleted() && !is_own;
        let live = |record: Option<&Present>| usize::from(record.is_some_and(is_live));
        self.live = self.live + live(after) - live(before);
        if let Some(before) = before {
            self.ends.remove(key, before);
            for owner in &before.owners {
                if let Some(owned) = self.owned.get_mut(owner) {
                    owned.remove(key);
                    if owned.is_empty() {
                        self.owned.remove(owner);
                    }
                }
            }
            if before.is_deleted() {
                self.tombstones.remove(&(before.changed_at, key.clone()));
                self.note_deleted(key, false);
            }
            before.deleting_at.into_iter().for_each(|at| _ = self.deleting_since.remove(&(at, key.clone())));
        }
        let Some(after) = after else { return };
        if after.is_deleted() {
            self.tombstones.insert((after.changed_at, key.clone()));
            self.note_deleted(key, true);
            return;
        }
        self.ends.add(key, after);
        after.deleting_at.into_iter().for_each(|at| _ = self.deleting_since.insert((at, key.clone())));
        for owner in &after.owners {
            self.owned.entry(owner.clone()).or_default().insert(key.clone());
        }
    }
}

/// A map has no entries that say nothing.
fn put_or_drop<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, is_empty: bool, value: V) {
    if is_empty {
        map.remove(&key)
    } else {
        map.insert(key, value)
    };
}
