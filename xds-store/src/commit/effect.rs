//! What a commit makes of the records.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;

use super::across::Needs;
use super::changed::Changed;
use super::form::{Act, CommitLimits, Draft, DraftChange, Put};
use super::forms::Forms;
use super::held::held;
use super::mirror::{Mirror, MirrorMode};
use super::reference::Referring;
use super::refused::{RefusalCode, Refused, Violations};
use super::schema::Checked;
use super::shown::{Shown, shown};
use super::{ambiguity, cascade, collect, condition, drain, owner, rights, schema};
use crate::authority::{AUTHORITY_TYPE, Authorities};
use crate::index::{Pending, Records, Renewed};
use crate::key::RecordKey;
use crate::log::{Head, LogChange};
use crate::number;
use crate::phase::{self, Ceiling, Form, PeerPhases, Phase, PhaseRecord, Schemas};
use crate::record::{Local, Present, RecordRevision, RecordState, Uid, content_digest, served};
use crate::region::Policies;
use crate::rules::{RULE_TYPE, Rules};
use crate::stored::{ReadError, Stored};
use crate::time;

/// What happened to one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeResult {
    /// What happened.
    pub outcome: proto::Outcome,
    /// The revision and uid of the record after the commit; `None` if there is none.
    pub record: Option<(RecordRevision, Uid)>,
    /// If it is being deleted: what it waits for, at most 20 (SG7).
    pub blocked_by: Vec<proto::Reference>,
}

/// What happened to a record that the request did not name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The record.
    pub key: RecordKey,
    /// What happened to it.
    pub result: ChangeResult,
}

/// What a commit does.
#[derive(Debug)]
pub(crate) struct Judged {
    /// What the index has after it, with the states of the changed records.
    pub(crate) pending: Pending,
    /// The changed records for the log, in the order of keys.
    pub(crate) changes: Vec<LogChange>,
    pub(crate) results: Vec<ChangeResult>,
    pub(crate) effects: Vec<Effect>,
    /// For people.
    pub(crate) warnings: Vec<String>,
    /// Whether other nodes get it.
    pub(crate) is_replicated: bool,
}

/// Judges commits on a state.
pub(crate) struct Judging<'a> {
    pub(crate) records: Records<'a>,
    pub(crate) stored: &'a Stored<'a>,
    pub(crate) head: &'a Head,
    pub(crate) now: i64,
    pub(crate) limits: CommitLimits,
    pub(crate) schemas: &'a Schemas,
    pub(crate) rules: &'a Rules,
    /// Which region owns which names (SG21).
    pub(crate) policies: &'a Policies,
    /// Which authorities may refer to which others (SG37).
    pub(crate) authorities: &'a Authorities,
    /// The most dependents that end with the records of one commit (SG8).
    pub(crate) dependents: usize,
    /// The number of this run of the server, under which it says that it is alive (SV15).
    pub(crate) server: u64,
    /// How far the plans of other nodes are (SV42).
    pub(crate) peer_phases: &'a PeerPhases,
    /// See [`may_be_referred`](Self::may_be_referred).
    pub(crate) unheard: &'a BTreeMap<String, String>,
    /// Of a commit that may wait for other regions.
    pub(crate) needs: Option<&'a RefCell<Needs>>,
}

impl Judging<'_> {
    /// What the commit does.
    ///
    /// # Errors
    /// The violations of the first stage that refuses it (ST8).
    pub(crate) fn judge(&self, draft: &Draft) -> Result<Judged, Refused> {
        self.check_times(draft)?;
        self.check_rules(draft)?;
        self.check_forgotten(draft)?;
        let pruned = self.pruned(draft);
        rights::check_pruned(draft, &pruned)?;
        self.check_regions(draft)?;
        self.check_apart(draft)?;
        condition::check(draft, self.forms())?;
        let checked = schema::check(draft, self.forms())?;
        let draft = &*checked.draft;
        owner::check(self, draft)?;
        let mut changed = Changed::default();
        let (mut results, mut effects) = (Vec::with_capacity(draft.changes.len()), Vec::new());
        for (number, change) in draft.changes.iter().enumerate() {
            let result = self.change(draft, change, &mut changed)?;
            results.push(match checked.mirrors.get(&number) {
                Some(mirror) => self.mirror(&change.key, mirror, result, &mut changed, &mut effects)?,
                None => result,
            });
        }
        for key in pruned {
            let Some(record) = self.records.get(&key) else { continue };
            let mut result = self.release(&key, record, &draft.owner, &mut changed)?;
            if let Some(mirror) = self.mirror_of(&key) {
                result = self.mirror(&key, &mirror, result, &mut changed, &mut effects)?;
            }
            effects.push(Effect { key, result });
        }
        // SG12: rules hold from the commit on that changes them.
        let rules = self.rules_after(&changed);
        let authorities = self.authorities_after(&changed);
        let judging = Judging {
            rules: rules.as_ref().unwrap_or(self.rules),
            authorities: authorities.as_ref().unwrap_or(self.authorities),
            ..*self
        };
        let of_authorities = judging.check_authorities(draft, &changed)?;
        if rules.is_some() {
            judging.check_twins(draft)?;
            judging.reread(self.rules, &mut changed)?;
        }
        for (number, change) in draft.changes.iter().enumerate() {
            if matches!(change.act, Act::Delete { drain: true }) {
                let other = checked.mirrors.get(&number).map(|mirror| mirror.key.clone());
                changed.may_wait.extend(other.into_iter().chain([change.key.clone()]));
            }
        }
        if !draft.is_copy {
            let ended = cascade::cascade(&judging, Some(draft), &mut changed)?;
            rights::check_ended(draft, &ended)?;
            effects.extend(ended);
        }
        drain::begin(&judging, &mut changed);
        effects.extend(judging.follow_references(Some(draft), &mut changed)?);
        judging.check_regions_of(&changed)?;
        changed.check_numbers()?;
        // A deletion may have become one in progress, or have ended.
        let mut named = BTreeSet::new();
        let latest = |key: &RecordKey| {
            let (_, outcome) = changed.states.get(key)?;
            let is_end = matches!(outcome, proto::Outcome::Deleted | proto::Outcome::Deleting);
            is_end.then(|| changed.result(key, *outcome))
        };
        for (number, (change, result)) in draft.changes.iter().zip(&mut results).enumerate() {
            let key = checked.asked(number, change);
            let is_deletion = matches!(change.act, Act::Delete { .. });
            if let Some(latest) = latest(key).filter(|_| is_deletion) {
                *result = latest;
                named.insert(key);
            }
        }
        let mut seen = BTreeSet::new();
        effects.retain_mut(|effect| {
            if let Some(latest) = latest(&effect.key) {
                effect.result = latest;
            }
            !named.contains(&effect.key) && seen.insert(effect.key.clone())
        });
        let mut judged = judging.finish(changed, results, effects, Some(&checked))?;
        judged.warnings.extend(of_authorities);
        judged.warnings.extend(judging.rules.refused_cascades(self.rules));
        Ok(judged)
    }

    /// What the changes do to further records, until nothing is added (SG5).
    pub(super) fn follow_references(
        &self,
        draft: Option<&Draft>,
        changed: &mut Changed,
    ) -> Result<Vec<Effect>, ReadError> {
        let mut effects = Vec::new();
        loop {
            if draft.is_none_or(|draft| !draft.is_copy) {
                effects.extend(collect::collect(self, draft, changed)?);
            }
            let ended = drain::finish(self, changed)?;
            if ended.is_empty() {
                return Ok(effects);
            }
            effects.extend(ended);
        }
    }

    /// SG16: what the owner has, and the commit does not name.
    fn pruned(&self, draft: &Draft) -> Vec<RecordKey> {
        if !draft.prune {
            return Vec::new();
        }
        let changes = draft.changes.iter().filter(|change| !matches!(change.act, Act::Check));
        let mut named: BTreeSet<_> = changes.map(|change| change.key.clone()).collect();
        let others: Vec<_> = named.iter().filter_map(|key| self.forms().side(key)?.other.ok()).collect();
        named.extend(others);
        // SV18: the other form follows the leading one.
        let follows = |key: &RecordKey| {
            let side = self.forms().side(key);
            side.is_some_and(|side| side.form != self.forms().leading(key, &side))
        };
        let owned = self.records.owned(&draft.owner).into_iter();
        owned.filter(|key| !named.contains(key) && !follows(key)).collect()
    }

    pub(super) fn forms(&self) -> Forms<'_> {
        Forms { records: self.records, schemas: self.schemas, now: self.now }
    }

    /// What becomes of the other form if the store itself changes a leading one.
    pub(super) fn mirror_of(&self, key: &RecordKey) -> Option<Mirror> {
        let side = self.forms().side(key).filter(|side| side.phase != Phase::F0)?;
        let is_below = self.schemas.pair_version(side.plan).major() < side.plan.new_version().major();
        let is_deleted = is_below || side.phase.ignores_old();
        let mode = if is_deleted { MirrorMode::Delete } else { MirrorMode::Write };
        let form = if side.form == Form::Old { Form::New } else { Form::Old };
        Some(Mirror { key: side.other.ok()?, form, content: None, asked: side.form, mode })
    }

    /// Stages 7 to 9, and what the log has of the commit. Without a commit, time or a pass does what
    /// cannot be refused.
    pub(super) fn finish(
        &self,
        mut changed: Changed,
        mut results: Vec<ChangeResult>,
        effects: Vec<Effect>,
        commit: Option<&Checked<'_>>,
    ) -> Result<Judged, Refused> {
        if self.head.is_replicated {
            changed.log_renewals(self);
        }
        let Changed { states, after, referrers, deleting, renewed, reread, causes, .. } = changed;
        let (ended_by_date, deleted_by) = (changed.ended_by_date, changed.deleted_by);
        let numbers: OnceCell<BTreeMap<&RecordKey, usize>> = OnceCell::new();
        let number = |key: &RecordKey| {
            let all = || {
                let changes = commit.into_iter().flat_map(|commit| &commit.draft.changes).enumerate();
                let mirrors = commit.into_iter().flat_map(|commit| &commit.mirrors);
                let changes = changes.map(|(number, change)| (&change.key, number));
                changes.chain(mirrors.map(|(number, mirror)| (&mirror.key, *number))).collect()
            };
            numbers.get_or_init(all).get(key).copied()
        };
        let number_of = |key: &RecordKey| number(key).unwrap_or_default();
        let mut pending = ambiguity::check(self.records, after, number_of, changed.is_merge)?;
        let warnings = match commit.map(|commit| &*commit.draft).filter(|draft| !draft.is_copy) {
            Some(draft) => {
                let (states, pending) = (&states, &pending);
                let (referrers, deleting) = (&referrers, &deleting);
                let (reread, causes) = (&reread, &causes);
                let referring =
                    Referring { judging: self, draft, states, pending, referrers, deleting, reread, causes };
                referring.show_blockers(&mut results)?;
                referring.check(number)?
            }
            None => Vec::new(),
        };
        pending.deleting = deleting;
        let found = results.len() + effects.len();
        if found > self.limits.changes {
            return Err(Refused::limit(&self.limits.changes(), found));
        }
        // SR5, SV12, SV15, SV33: what is of this store alone. A first commit may change nothing (ST64).
        let is_of_others = |key| !phase::is_local(key) && !ended_by_date.contains_key(key);
        let is_replicated = states.is_empty() || states.keys().any(is_of_others);
        let mut changes = Vec::with_capacity(states.len());
        for (key, (state, outcome)) in states {
            let previous = self.previous(&key)?;
            changes.push(LogChange { key: key.to_proto(), previous, outcome: outcome.into() });
            pending.states.insert(key, state);
        }
        pending.renewed = renewed;
        pending.ended_by_date = ended_by_date;
        pending.deleted_by = deleted_by;
        pending.reread = reread;
        // SR48: nodes that do not replicate have no crossing commits.
        if self.head.is_replicated {
            pending.held = held(self.records, &pending, &referrers, self.now);
        }
        pending.referrers = referrers;
        let state = |key: &RecordKey, record: &Present| self.state(key, record);
        let Shown { states, lost } = shown(self.records, &pending, state)?;
        (pending.shown, pending.lost) = (states, changed.lost);
        pending.lost.extend(lost);
        Ok(Judged { pending, changes, results, effects, warnings, is_replicated })
    }

    /// The store revision of the state before; 0 if there is none. Another server of the store may have
    /// forgotten that of a deleted record.
    fn previous(&self, key: &RecordKey) -> Result<u64, ReadError> {
        let Some(record) = self.records.get(key) else { return Ok(0) };
        let may_be_forgotten = record.is_deleted() && record.changed_at <= self.head.floor;
        let is_kept = !may_be_forgotten || self.stored.state_if_kept(key, record.changed_at)?.is_some();
        Ok(if is_kept { record.changed_at } else { 0 })
    }

    /// The last part of stage 1, which needs the time.
    fn check_times(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        for (number, change) in draft.changes.iter().enumerate() {
            let Act::Put(put) = &change.act else { continue };
            if put.expires_at.is_some_and(|end| end <= self.now) {
                let field = "put.expires_at".to_owned();
                let why = proto::violation::Why::Invalid(proto::Invalid { field });
                let at = (number, Some(change.key.to_proto()));
                violations.add(RefusalCode::InvalidArgument, at, "expires_at is in the past".to_owned(), why);
            }
        }
        violations.into_result()
    }

    fn change(
        &self,
        draft: &Draft,
        change: &DraftChange,
        changed: &mut Changed,
    ) -> Result<ChangeResult, Refused> {
        let key = &change.key;
        let before = self.records.get(key);
        let live = before.filter(|record| record.exists(self.now));
        let unchanged = |outcome| Ok(unchanged(key, outcome, live));
        match (&change.act, live) {
            (Act::Check, _) => unchanged(proto::Outcome::Checked),
            (Act::Phase(step, time), _) => self.step(draft, (*step, *time), key, changed),
            (Act::Ceiling(ceiling), _) => self.set_ceiling(ceiling, key, changed),
            (Act::Put(put), _) => self.put(draft, key, put, before, changed),
            // ST13, ST67. A touch of nothing was refused before.
            (Act::Delete { .. } | Act::Touch | Act::Quarantine(_), None) => unchanged(proto::Outcome::Absent),
            // It waits already, unless this commit ends that.
            (Act::Delete { drain: true }, Some(record)) if record.is_deleting() => {
                unchanged(proto::Outcome::Deleting)
            }
            // An owner that takes over is the only one, and leaves.
            (Act::Delete { .. }, Some(record)) if draft.owner.is_empty() || draft.take_over => {
                Ok(changed.set(self, key, tombstone(self.state(key, record)?), proto::Outcome::Deleted))
            }
            (Act::Delete { .. }, Some(record)) => self.release(key, record, &draft.owner, changed),
            (Act::Touch, Some(record)) => {
                self.renew(key, record, changed)?;
                unchanged(proto::Outcome::Touched)
            }
            (Act::Quarantine(_), Some(record)) if record.is_quarantined => {
                unchanged(proto::Outcome::Unchanged)
            }
            (Act::Quarantine(quarantine), Some(record)) => {
                let mut state = self.state(key, record)?;
                let serve = if quarantine.serve_nothing { None } else { self.last_good(key, record)? };
                let (at, reason) = (Some(time::to_proto(self.now)), quarantine.reason.clone());
                state.quarantined = Some(proto::Quarantined { at, reason, serve });
                Ok(changed.set(self, key, state, proto::Outcome::Quarantined))
            }
        }
    }

    /// What a put writes, with the stamp of the record before: in F4 a new record may have that of a
    /// mirrored write (SV26), which is no content of the writer.
    pub(super) fn content_of(&self, key: &RecordKey, put: &Put, live: Option<&Present>) -> RecordState {
        let stamp = live.and_then(|record| record.stamp.as_ref());
        let state = RecordState {
            key: Some(key.to_proto()),
            lifecycle: proto::State::Live.into(),
            content: Some(put.content.clone()),
            lease: put.lease.as_ref().map(|length| time::length_to_proto(*length)),
            origin: self.head.node.clone(),
            mirror_of: stamp.map(ToString::to_string).unwrap_or_default(),
            ..RecordState::default()
        };
        RecordState { digest: content_digest(&state), ..state }
    }

    /// Whether a put of this content makes no new generation of a record that exists. A put on a
    /// quarantined record makes one (ST14).
    pub(super) fn is_same(&self, state: &RecordState, put: &Put, record: &Present) -> bool {
        let is_same = state.digest[..] == record.content && !record.is_quarantined;
        is_same && (put.lease.is_some() || put.expires_at == record.expires_at)
    }

    /// ST12, ST14, and the owner that a put adds.
    fn put(
        &self,
        draft: &Draft,
        key: &RecordKey,
        put: &Put,
        before: Option<&Present>,
        changed: &mut Changed,
    ) -> Result<ChangeResult, Refused> {
        let live = before.filter(|record| record.exists(self.now));
        let mut state = self.content_of(key, put, live);
        if let Some(record) = live.filter(|record| self.is_same(&state, put, record)) {
            let joins = !draft.owner.is_empty() && !record.owners.iter().any(|name| **name == *draft.owner);
            let is_owned = !put.owners.is_empty() || !record.owned_by.is_empty();
            if joins || draft.take_over || is_owned {
                let mut joined = self.state(key, record)?;
                if owner::join(&mut joined, draft) | owner::set_resources(&mut joined, &put.owners) {
                    if let Some(length) = put.lease {
                        self.extend(&mut joined, length);
                    }
                    return Ok(changed.set(self, key, joined, proto::Outcome::Updated));
                }
            }
            if put.lease.is_some() {
                self.renew(key, record, changed)?;
            }
            return Ok(unchanged(key, proto::Outcome::Unchanged, live));
        }
        if !state.mirror_of.is_empty() {
            state.mirror_of.clear();
            state.digest = content_digest(&state);
        }
        let outcome = if live.is_some() { proto::Outcome::Updated } else { proto::Outcome::Created };
        (state.incarnation, state.generation) = self.next_generation(live, before);
        let end = put.lease.map(|length| self.now.saturating_add(length)).or(put.expires_at);
        state.expires_at = end.map(time::to_proto);
        if end.is_some() {
            state.renewed_by.clone_from(&self.head.node);
        }
        let created_at = live.map_or(self.now, |record| record.created_at);
        state.created_at = Some(time::to_proto(created_at));
        if let Some(record) = live.filter(|record| record.has_epochs) {
            state.owners = self.state(key, record)?.owners;
        }
        owner::join(&mut state, draft);
        owner::set_resources(&mut state, &put.owners);
        Ok(changed.with_resource(self, key, state, outcome, Some(&put.resource)))
    }

    /// The incarnation and generation of a new content of a record (ST14).
    pub(super) fn next_generation(&self, live: Option<&Present>, before: Option<&Present>) -> (u64, u64) {
        match (live, before) {
            (Some(record), _) => (record.incarnation, number::after(record.generation)),
            (None, Some(record)) => (number::after(record.incarnation), 1),
            (None, None) => (number::after(self.head.incarnation_floor), 1),
        }
    }

    /// The end of an ownership: the record is deleted with its last owner (SG14).
    fn release(
        &self,
        key: &RecordKey,
        record: &Present,
        owner: &str,
        changed: &mut Changed,
    ) -> Result<ChangeResult, Refused> {
        let mut state = self.state(key, record)?;
        let is_owner = owner::leave(&mut state, owner);
        if !owner::has_any(&state) {
            Ok(changed.set(self, key, tombstone(state), proto::Outcome::Deleted))
        } else if is_owner {
            Ok(changed.set(self, key, state, proto::Outcome::Released))
        } else {
            Ok(unchanged(key, proto::Outcome::Released, Some(record)))
        }
    }

    /// Whether the commit has to wait until the batch is durable. A quarantine reads the log for the
    /// content before, and a renewal of a lease writes the version that is there once more.
    pub(crate) fn has_to_wait(&self, draft: &Draft) -> bool {
        let states = &self.records.batch.states;
        let is_own = |change: &DraftChange| matches!(change.act, Act::Phase(..) | Act::Ceiling(_));
        // SV28, SV33: a commit is judged in the phase, and below the ceilings, that are durable.
        let mut plans = self.schemas.plans().iter();
        if plans.any(|plan| states.contains_key(&PhaseRecord::key(plan.number())))
            || states.range(Ceiling::first()..).next().is_some_and(|(key, _)| Ceiling::is_key(key))
            || (!states.is_empty() && draft.changes.iter().any(is_own))
        {
            return true;
        }
        // Rules, and what they say of references, are those that are durable; and so are policies and authorities.
        let is_rule = |change: &DraftChange| is_rule(&change.key);
        let prunes_rule = || draft.prune && self.records.owned(&draft.owner).iter().any(self::is_rule);
        if has_rule(states) || (!states.is_empty() && (draft.changes.iter().any(is_rule) || prunes_rule())) {
            return true;
        }
        let reads_stored = |change: &&DraftChange| match &change.act {
            Act::Quarantine(_) | Act::Touch => true,
            Act::Put(put) => put.lease.is_some(),
            Act::Delete { .. } | Act::Check | Act::Phase(..) | Act::Ceiling(_) => false,
        };
        let is_waiting = |key: &RecordKey| {
            let other = self.forms().side(key).and_then(|side| side.other.ok());
            states.contains_key(key) || other.is_some_and(|other| states.contains_key(&other))
        };
        draft.changes.iter().filter(reads_stored).any(|change| is_waiting(&change.key))
    }

    /// The content of the generation before the present one. A generation that was quarantined
    /// itself is represented by what was served in its place.
    fn last_good(&self, key: &RecordKey, record: &Present) -> Result<Option<proto::Content>, Refused> {
        let mut at = record.changed_at;
        // Changes of owners alone lie between two generations.
        for _ in 0..STEPS_LIMIT {
            let Some(entry) = self.stored.entry(at)? else { return Ok(None) };
            let wire_key = key.to_proto();
            let change = entry.changes.into_iter().find(|change| change.key == wire_key);
            at = change.map_or(0, |change| change.previous);
            if at == 0 {
                return Ok(None);
            }
            // The state before a revision that is not forgotten is kept, although its own entry may
            // be forgotten.
            let Some(state) = self.stored.state_if_kept(key, at)? else { return Ok(None) };
            if state.incarnation != record.incarnation {
                return Ok(None);
            }
            if state.generation < record.generation {
                return Ok(served(&state).cloned());
            }
        }
        Ok(None)
    }

    /// The state of a record after the changes so far; `None` if it does not exist.
    pub(super) fn state_after(
        &self,
        key: &RecordKey,
        changed: &Changed,
    ) -> Result<Option<RecordState>, ReadError> {
        let state = match (changed.state(key), self.records.get(key)) {
            (Some(state), _) => Some(state.clone()),
            (None, Some(record)) => Some(self.state(key, record)?),
            (None, None) => None,
        };
        Ok(state.filter(|state| state.lifecycle() != proto::State::Deleted))
    }

    pub(crate) fn state(&self, key: &RecordKey, record: &Present) -> Result<RecordState, ReadError> {
        self.version(key, record).map(|(state, _)| state)
    }

    pub(super) fn version(
        &self,
        key: &RecordKey,
        record: &Present,
    ) -> Result<(RecordState, Local), ReadError> {
        let (mut state, local) = self.as_stored(key, record)?;
        // ST40: here the lease may end later than the state says. Nodes that merge the state see that as a
        // renewal (SR40).
        let stored_end = state.expires_at.as_ref().map(time::from_proto);
        if record.lease.is_some() && record.expires_at > stored_end {
            state.expires_at = record.expires_at.map(time::to_proto);
            state.renewal = number::after(state.renewal);
            state.renewed_by.clone_from(&self.head.node);
        }
        Ok((state, local))
    }

    /// The state of a record as the engine has it once the batch is durable.
    pub(super) fn as_stored(
        &self,
        key: &RecordKey,
        record: &Present,
    ) -> Result<(RecordState, Local), ReadError> {
        let Pending { states, renewed, .. } = self.records.batch;
        // Of one revision, the renewed state is the newer one.
        let renewed = renewed.get(key).filter(|renewed| renewed.at == record.changed_at);
        Ok(match (renewed, states.get(key)) {
            (Some(Renewed { state, local, .. }), _) => (state.clone(), local.clone()),
            (None, Some(state)) => (state.clone(), self.records.batch.local(key, self.head)),
            (None, None) => self.stored.version(key, record.changed_at)?,
        })
    }
}

/// Whether other records are judged by this one.
pub(super) fn is_rule(key: &RecordKey) -> bool {
    Rules::is_rule(key) || Policies::is_policy(key) || Authorities::is_authority(key)
}

/// Whether a batch has such a record. Policies follow rules in the order of keys.
pub(super) fn has_rule(states: &BTreeMap<RecordKey, RecordState>) -> bool {
    let first = |type_url| states.range(RecordKey::before_type(type_url)..).next();
    [AUTHORITY_TYPE, RULE_TYPE].into_iter().filter_map(first).any(|(key, _)| is_rule(key))
}

pub(super) fn unchanged(key: &RecordKey, outcome: proto::Outcome, record: Option<&Present>) -> ChangeResult {
    let record = record.map(|record| (record.revision, Uid::of(key, record.incarnation)));
    ChangeResult { outcome, record, blocked_by: Vec::new() }
}

pub(super) fn tombstone(state: RecordState) -> RecordState {
    RecordState { lifecycle: proto::State::Deleted.into(), ..state }
}

/// How many commits back a quarantine looks for the content before: changes of owners alone are
/// hardly ever more.
const STEPS_LIMIT: usize = 1_000;
