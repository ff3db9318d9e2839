//! Reads a store when its server starts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use xds_core::Resource;
use xds_proto::xds::store::v1 as proto;

use super::across::Across;
use super::catch_up::Mark;
use super::compaction::Compaction;
use super::dropping::Dropping;
use super::journal::Journal;
use super::nodes::Nodes;
use super::origins::Origins;
use super::running::Running;
use super::wall::Wall;
use super::{Config, Store, serving};
use crate::checked::{self, Damaged};
use crate::commit::{self, drained, hidden, without_aliases};
use crate::content::{self, ContentError};
use crate::engine::{EngineError, EngineRevision, View};
use crate::index::{Index, Loading, Pending, Records};
use crate::key::{NameDigest, RecordKey, stored};
use crate::log::{FORMAT, Head, LogEntry};
use crate::phase::PeerPhases;
use crate::record::{At, Local, Present, RecordState, served};
use crate::refs::ReferrerChanges;
use crate::seal::{self, UnsealError};
use crate::stored::{self as durable, ReadError};

/// Why a store cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The engine is empty: `init` was not run (ST2).
    #[error("there is no store here")]
    NoStore,
    /// A newer version wrote it (ST4).
    #[error("the store has format {found}; this version reads formats up to {known}")]
    Newer {
        /// The format of the store.
        found: u32,
        /// The newest format that this version reads.
        known: u32,
    },
    /// A restore into the engine did not finish (ST46).
    #[error("a restore into this store did not finish: remove it, and restore again")]
    Incomplete,
    /// SV13: the store has begun a plan that this server does not have, or not in this phase.
    #[error("the store is in phase F{phase} of plan {number}, {name}, which this server does not have")]
    LacksPlan {
        /// The number of the plan.
        number: u32,
        /// Its name.
        name: String,
        /// The number of its phase.
        phase: u32,
    },
    /// SG11: a reference rule that this server cannot use, because it lacks the type. Its references
    /// would be unknown here.
    #[error("the reference rule {name}: {reason}")]
    LacksField {
        /// The name of the rule.
        name: String,
        /// What is missing.
        reason: String,
    },
    /// ST47.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<ReadError> for LoadError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Engine(error) => error.into(),
            ReadError::Damaged(damaged) => damaged.into(),
            ReadError::Removed => Self::NoStore,
        }
    }
}

/// A record that a load found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// Its key.
    pub key: RecordKey,
    /// Its state; deleted records are loaded, too.
    pub state: RecordState,
    /// The state as clients get it, if that is another one (SR47).
    pub shown: Option<RecordState>,
    /// What clients get; `None` if nothing is served.
    pub resource: Option<Result<Resource, ContentError>>,
}

impl Store {
    /// The head of a store that this version can read, with the revision of the engine that wrote it.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn read_head(view: &dyn View) -> Result<(Head, EngineRevision), LoadError> {
        let stored = view.get(stored::HEAD)?.ok_or(LoadError::NoStore)?;
        let head: Head = checked::decode(stored::HEAD, stored.bytes)?;
        if head.format > FORMAT {
            return Err(LoadError::Newer { found: head.format, known: FORMAT });
        }
        if head.is_incomplete { Err(LoadError::Incomplete) } else { Ok((head, stored.revision)) }
    }

    /// The store of an engine, and all its records for `each`, in the order of keys. In a store that replicates,
    /// deleted records and those with aliases come after the others. Records that are migrated come last, in the forms
    /// that the phase serves.
    ///
    /// Leases start again, because nobody could renew them while no server ran (ST40).
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(
        view: &dyn View,
        config: Config,
        now: i64,
        mut each: impl FnMut(Loaded),
    ) -> Result<Self, LoadError> {
        let (head, head_revision) = Self::read_head(view)?;
        let head_revision = Some(head_revision);
        // The references of the records follow from the rules.
        let rules = durable::rules(view, config.fields.clone())?;
        if let Some((key, reason)) = rules.lacking() {
            let name = key.name().as_str().to_owned();
            return Err(LoadError::LacksField { name, reason: reason.to_owned() });
        }
        let index = Index::new(Arc::clone(&config.schemas), rules);
        let (mut index, mut loading) = (index, Loading::default());
        let check_owners_at = now.max(head.time).saturating_add(config.owner_grace);
        let mut newest: Option<(RecordKey, u64, Bytes, Bytes)> = None;
        let mut failed: Option<LoadError> = None;
        let mut of_plans = Vec::new();
        // Which of the variants of a name are served is known when all of them were read.
        let (mut of_name, mut later): (Vec<Loaded>, Vec<Loaded>) = Default::default();
        let mut end_name = |index: &Index, loaded: &mut Vec<Loaded>| {
            for loaded in loaded.drain(..).map(|loaded| loaded.withheld(index)) {
                // The phase of its plan may come later.
                match config.schemas.form(&loaded.key) {
                    Some(_) => of_plans.push(loaded),
                    None => each(loaded),
                }
            }
        };
        let mut keep = |(key, at, stored_key, value): (RecordKey, u64, Bytes, Bytes)| {
            let (state, local): (RecordState, Local) = checked::decode_both(&stored_key, value)?;
            let id = key.id();
            let resource = served(&state).map(|content| content::resource(&id, content));
            let of_clients = resource.as_ref().and_then(|resource| resource.as_ref().ok());
            // An earlier version of this program did not store the time.
            let time = if local.committed_at == 0 { now.max(head.time) } else { local.committed_at };
            let at = At { revision: at, now: time, head: &head };
            let mut record = Present::of(&key, &state, of_clients, at, index.rules());
            if (head.is_replicated || config.is_replicated) && record.is_deleted() {
                record.deleted_at = Some(local.running);
            }
            if let (Some(lease), Some(end)) = (record.lease, &mut record.expires_at) {
                // SR39, SR40: with the length of another node it may end later than that.
                *end = now.max(head.time).saturating_add(lease.length).max(*end);
            }
            let has_aliases = head.is_replicated && !record.aliases.is_empty();
            index.note_lease(&key, None, &record, &state);
            index.add(&mut loading, &id, &key, record, check_owners_at);
            if of_name.first().is_some_and(|first| !first.key.is_of_name_of(&key)) {
                end_name(&index, &mut of_name);
            }
            index.note_own(&key, &state);
            let loaded = Loaded { key, state, shown: None, resource };
            // SR48: whether it is served is known when all records were read.
            let may_be_held = head.is_replicated && loaded.state.lifecycle() == proto::State::Deleted;
            // SR47: so is whether clients get its aliases.
            if may_be_held || has_aliases { &mut later } else { &mut of_name }.push(loaded);
            Ok::<(), Damaged>(())
        };
        view.range(stored::RECORDS.0, stored::RECORDS.1, &mut |stored_key, value| {
            let stored_key = Bytes::copy_from_slice(stored_key);
            let Some((key, at)) = stored::parse_record(&stored_key) else {
                failed = Some(Damaged { key: stored_key }.into());
                return ControlFlow::Break(());
            };
            // The versions of a record come one after another, the newest last. Each is verified: a
            // damaged old one is found now, and not when somebody reads the history (ST47).
            if let Err(damaged) = checked::verify(&stored_key, &value.bytes) {
                failed = Some(damaged.into());
                return ControlFlow::Break(());
            }
            // An engine with the key gives it open.
            if seal::is_sealed(&value.bytes) {
                let state = checked::decode(&stored_key, value.bytes).unwrap_or_default();
                failed = Some(EngineError::from(UnsealError::without_keys(&key, &state)).into());
                return ControlFlow::Break(());
            }
            let last = newest.replace((key, at, stored_key, value.bytes));
            let last = last.filter(|last| newest.as_ref().is_some_and(|newest| newest.0 != last.0));
            match last.map_or(Ok(()), &mut keep) {
                Ok(()) => ControlFlow::Continue(()),
                Err(damaged) => {
                    failed = Some(damaged.into());
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        newest.map_or(Ok(()), &mut keep)?;
        index.finish(loading);
        end_name(&index, &mut of_name);
        if head.is_replicated {
            index.set_held(all_held(&index, now.max(head.time)));
        }
        for loaded in
            later.into_iter().map(|loaded| loaded.held(&index).without_aliases(&index).withheld(&index))
        {
            match config.schemas.form(&loaded.key) {
                Some(_) => of_plans.push(loaded),
                None => each(loaded),
            }
        }
        // SV13.
        if let Some((number, name, phase)) = index.phases().lacking(config.schemas.plans()) {
            return Err(LoadError::LacksPlan { number, name: name.to_owned(), phase });
        }
        let origins = Origins::load(view, &head)?;
        let at = stored::log(head.revision);
        let newest =
            view.get(&at)?.map(|newest| checked::decode::<LogEntry>(&at, newest.bytes)).transpose()?;
        let newest = newest.map(|entry| Mark::of(head.revision, &entry));
        let nodes = Nodes::load(view)?;
        let journal = Journal::load(view)?;
        index.load_blocks(view)?;
        let mut wall = Wall::new(now);
        wall.show(now, head.time);
        let running = Running::resumed(&head, now.max(head.time));
        serving::loaded(&index, index.schemas(), of_plans, &mut each);
        let mut store = Self {
            config,
            head,
            head_revision,
            index,
            origins,
            nodes,
            journal,
            running,
            read_only: None,
            waiting: VecDeque::new(),
            merging: VecDeque::new(),
            staging: None,
            take_id: None,
            writing: None,
            unknown: None,
            newest,
            is_behind: false,
            has_lost_log: false,
            ends_again_at: i64::MIN,
            is_cut_off: false,
            room_at: None,
            wall,
            batch: 0,
            compaction: Compaction::default(),
            passes: BTreeMap::new(),
            drains_at: i64::MIN,
            peer_phases: PeerPhases::default(),
            owners_at: i64::MIN,
            across: Across::default(),
            dropping: Dropping::default(),
            leases_at: i64::MIN,
            fetched: Vec::new(),
        };
        store.load_fetching(view)?;
        store.schedule_blocks();
        // ST40: these start again, too.
        store.take_over_leases(now.max(store.head.time));
        store.dropping.begin(store.index.policies());
        store.begin_older();
        Ok(store)
    }
}

/// The deleted records that are served (SR48).
fn all_held(index: &Index, now: i64) -> BTreeMap<NameDigest, BTreeSet<RecordKey>> {
    let (nothing, unchanged) = (Pending::default(), ReferrerChanges::default());
    let records = Records { index, batch: &nothing };
    let of = |name| commit::held_of(records, (&nothing, &unchanged), (name, &[]), now);
    let held = index.deleted().map(|(name, _)| (name, of(name)));
    held.filter(|(_, held)| !held.is_empty()).collect()
}

impl Loaded {
    /// SR48: a deleted record that another one refers to is served.
    fn held(self, index: &Index) -> Self {
        if !index.is_held(&self.key) {
            return self;
        }
        let shown = drained(self.state.clone());
        let resource = served(&shown).map(|content| content::resource(&self.key.id(), content));
        Self { shown: Some(shown), resource, ..self }
    }

    /// SR47: another resource has an alias of it for clients.
    fn without_aliases(self, index: &Index) -> Self {
        let Some(aliases) = index.lost_aliases(&self.key) else { return self };
        let shown = without_aliases(&self.key, self.state.clone(), aliases);
        let resource = match shown.lifecycle() {
            proto::State::Deleted => None,
            _ => served(&shown).map(|content| content::resource(&self.key.id(), content)),
        };
        Self { shown: Some(shown), resource, ..self }
    }

    /// SR47: a variant that overlaps with one that is served is not.
    fn withheld(self, index: &Index) -> Self {
        match index.is_withheld(&self.key) {
            true => Self { shown: Some(hidden(self.state.clone())), resource: None, ..self },
            false => self,
        }
    }

    /// The state as clients get it.
    #[must_use]
    pub fn for_clients(&self) -> &RecordState {
        self.shown.as_ref().unwrap_or(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Batch, Engine, MemoryEngine};

    #[test]
    fn st4_a_newer_format_is_refused_with_both_numbers() {
        let mut engine = MemoryEngine::default();
        let head = Head { format: FORMAT + 1, ..Head::default() };
        let written = (stored::HEAD.into(), Some(checked::encode(stored::HEAD, &head)));
        engine.commit(&Batch { compares: Vec::new(), writes: vec![written] }).unwrap();
        let config = Config::new(engine.limits(), 1);
        let loaded = Store::load(&*engine.view().unwrap(), config, 0, |_| {});
        assert!(matches!(loaded, Err(LoadError::Newer { found: 2, known: 1 })));
    }
}
