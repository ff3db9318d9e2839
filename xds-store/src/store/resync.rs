//! What a whole snapshot makes of the records, in one batch (SR20, SR21, SR31).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::staging::{Alone, Kind};
use super::{Store, Writing};
use crate::checked::{self, Damaged};
use crate::clock::Clock;
use crate::commit::{Judged, Judging, Refused};
use crate::conflict::{self, Conflict};
use crate::key::{RecordKey, stored};
use crate::log::LogEntry;
use crate::merge::merge;
use crate::number;
use crate::phase::{self, Taking};
use crate::record::RecordState;
use crate::rules::Rules;
use crate::stored::{ReadError, Stored};

/// What a snapshot did.
#[derive(Debug, Default, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resynced {
    /// It replaced the records, and the node has another id (SR21).
    pub has_replaced: bool,
    /// Changes of this node that are lost: those of records that were deleted meanwhile, or created again.
    pub dropped: Vec<(RecordKey, RecordState)>,
    /// How many records were given to other nodes under the new id.
    pub reissued: usize,
}

/// The records as they shall be.
#[derive(Default)]
struct Decided {
    after: Vec<(RecordKey, RecordState)>,
    /// What this node gives to others as changes of its own.
    reissued: Vec<(RecordKey, RecordState)>,
    dropped: Vec<(RecordKey, RecordState)>,
    /// SR44.
    lost: Vec<Conflict>,
    /// Records that end here, as the snapshot does not have them. Nothing says that they were deleted.
    gone: Vec<RecordKey>,
    /// SR27: the greatest incarnation that was replaced.
    incarnation: u64,
    /// The incarnation floor of the snapshot.
    floor: u64,
    /// This node has forgotten entries that the snapshot does not cover.
    has_forgotten: bool,
}

/// What entries that the snapshot does not cover did to a record.
#[derive(Debug, Default, Clone, Copy)]
struct Uncovered {
    has_changed: bool,
    has_created: bool,
}

/// A snapshot that is whole: what becomes of the records, the new id, the clock, and the last page.
type Whole<'a> = (Kind, &'a str, &'a Clock, &'a proto::SnapshotResponse);

impl Store {
    /// Adds what the records become, with the clock of the snapshot.
    pub(super) fn add_snapshot(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        (kind, new_id, clock, page): Whole<'_>,
    ) -> Result<(), Refused> {
        let floor = page.incarnation_floor;
        let judging = self.judging(writing, stored, now);
        let uncovered = self.uncovered(kind, clock, stored)?;
        let mut decided =
            Decided { floor, has_forgotten: self.origins.has_forgotten(clock), ..Decided::default() };
        self.decide_all(&judging, kind, &uncovered, &mut decided)?;
        if self.takes_phases(kind) {
            let taking = if kind == Kind::Reissue { Taking::Merged } else { Taking::OfPeer };
            decided.after.extend(judging.taken_phases(&page.phases, taking));
        }
        let mut judged = Judged { is_replicated: false, ..judging.take(&decided.after)? };
        let gone = std::mem::take(&mut decided.gone).into_iter();
        judged.pending.ended_by_date.extend(gone.map(|key| (key, proto::State::Deleted)));
        writing.lost.append(&mut decided.lost);
        let has_replaced = kind == Kind::Replace;
        let head = &mut writing.head;
        let replaced = decided.incarnation.min(number::LAST_FLOOR);
        head.incarnation_floor = head.incarnation_floor.max(floor).max(replaced);
        head.is_joining = false;
        // SR24: a node of a cluster that has nothing yet waits for its first commit.
        if clock.iter().next().is_some() || !decided.after.is_empty() {
            // What this node had heard of before is done, or its steps are those of the head already.
            let is_new = |asked: &&proto::RolloutOfEntry| {
                !self.head.is_node(&asked.origin)
                    && self.origins.position(&asked.origin).counter < asked.counter
            };
            let asked = page.rollout.as_ref().filter(is_new);
            writing.rollout_of_snapshot = asked.map(|asked| (asked.origin.clone(), asked.counter));
            let rollout = asked.and_then(|asked| asked.rollout.clone());
            writing.add(judged, LogEntry { rollout, ..LogEntry::resync() }, self.config.server);
        }
        if has_replaced {
            writing.head.replaced_at = writing.head.revision;
            writing.take_id(new_id);
        }
        if !kind.is_merge() {
            (writing.head.owes_reissue, writing.head.owes_log) = (false, false);
        }
        self.add_reissued(writing, stored, now, &mut decided)?;
        let floors = page.deletion_floors.as_ref().map(|floors| &floors.counters);
        let snapshot = (clock, &page.regions, floors);
        let origins = self.origins.with_snapshot(snapshot, (&self.head.node, has_replaced));
        for (origin, of) in &origins {
            let at = stored::origin(origin);
            let value = checked::encode(&at, of);
            writing.write(at, value);
        }
        let reissued = decided.reissued.len();
        let resynced = Resynced { has_replaced, dropped: decided.dropped, reissued };
        writing.alone = Some(Alone::Snapshot(resynced, origins));
        Ok(())
    }

    /// SV41: a node whose records become those of the snapshot has its phases, too. One that only lacked entries keeps
    /// the phases that its operator has chosen.
    pub(super) fn takes_phases(&self, kind: Kind) -> bool {
        self.head.is_joining || !kind.is_merge()
    }

    /// Adds the entries under the new id, none of which is large.
    fn add_reissued(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        decided: &mut Decided,
    ) -> Result<(), Refused> {
        let mut rules = self.index.rules().clone();
        decided
            .after
            .iter()
            .filter(|(key, _)| Rules::is_rule(key))
            .for_each(|(key, state)| rules.note(key, state));
        for (_, state) in &mut decided.reissued {
            // SR21: a creation is one of a new incarnation, above all that were.
            if state.incarnation == 0 {
                state.incarnation = number::after(writing.head.incarnation_floor);
                state.origin.clone_from(&writing.head.node);
            }
        }
        let mut rest = &decided.reissued[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(ENTRY_RECORDS).take_while(|(_, state)| {
                bytes += state.encoded_len();
                bytes <= ENTRY_BYTES
            });
            let (entry, others) = rest.split_at(fits.count().max(1));
            rest = others;
            let judging = Judging { rules: &rules, ..self.judging(writing, stored, now) };
            let judged = Judged { is_replicated: true, ..judging.take(entry)? };
            let log = LogEntry { identity: "reissue".to_owned(), ..LogEntry::default() };
            writing.add(judged, log, self.config.server);
        }
        Ok(())
    }

    /// What entries did that the snapshot does not cover, or that are owed in any case.
    fn uncovered(
        &self,
        kind: Kind,
        clock: &Clock,
        stored: &Stored<'_>,
    ) -> Result<BTreeMap<RecordKey, Uncovered>, ReadError> {
        let revisions = match kind {
            Kind::Merge | Kind::Replace => self.origins.uncovered(clock),
            Kind::Reissue if !self.head.owes_log => Vec::new(),
            // Peers may follow another log of the former id, so that none of them shows what all have.
            Kind::Reissue => {
                self.head.former_nodes.iter().flat_map(|former| self.origins.kept(former)).collect()
            }
        };
        let mut uncovered: BTreeMap<RecordKey, Uncovered> = BTreeMap::new();
        for revision in revisions {
            let entry = stored.entry(revision)?.ok_or(Damaged { key: stored::log(revision) })?;
            let changes = entry.changes.iter().map(|change| (&change.key, change.outcome()));
            let originals = entry.originals.iter().map(|key| (key, proto::Outcome::Updated));
            for (key, outcome) in changes.chain(originals) {
                let Ok(key) = RecordKey::parse(key) else { continue };
                let of = uncovered.entry(key).or_default();
                of.has_changed = true;
                of.has_created |= outcome == proto::Outcome::Created;
            }
        }
        Ok(uncovered)
    }

    /// Decides about all records of the snapshot, and about those that only this node has.
    fn decide_all(
        &self,
        judging: &Judging<'_>,
        kind: Kind,
        uncovered: &BTreeMap<RecordKey, Uncovered>,
        decided: &mut Decided,
    ) -> Result<(), ReadError> {
        let view = judging.stored.view()?;
        let mut failed = None;
        let of = |key: &RecordKey| uncovered.get(key).copied().unwrap_or_default();
        let mut each = |key: RecordKey, staged: Option<RecordState>| -> Result<(), ReadError> {
            let present = judging.present(&key)?;
            decided.decide(kind, &key, (present, staged), of(&key));
            Ok(())
        };
        let mut until = |result: Result<(), ReadError>| match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        view.range(stored::STAGED.0, stored::STAGED.1, &mut |at, value| {
            let damaged = || ReadError::from(Damaged { key: bytes::Bytes::copy_from_slice(at) });
            until(stored::parse_staged(at).ok_or_else(damaged).and_then(|key| {
                let state = checked::decode(at, value.bytes)?;
                each(key, Some(state))
            }))
        })?;
        if !kind.is_merge() {
            view.range(stored::RECORDS.0, stored::RECORDS.1, &mut |at, _| {
                let found = stored::parse_record(at).filter(|(key, at)| {
                    let is_newest = self.index.get(key).is_some_and(|record| record.changed_at == *at);
                    is_newest && !phase::is_local(key)
                });
                let Some((key, _)) = found else { return ControlFlow::Continue(()) };
                until(match view.get(&stored::staged(&key)) {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => each(key, None),
                    Err(error) => Err(error.into()),
                })
            })?;
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Decided {
    /// Decides about one record: as it is here, and in the snapshot.
    fn decide(
        &mut self,
        kind: Kind,
        key: &RecordKey,
        (present, staged): (Option<RecordState>, Option<RecordState>),
        uncovered: Uncovered,
    ) {
        if kind == Kind::Replace {
            return self.replace(key, (present, staged), uncovered);
        }
        // SR20, SR31.
        let merged = match (&present, &staged) {
            (Some(present), Some(staged)) => merge(present, staged),
            (Some(one), None) | (None, Some(one)) => one.clone(),
            (None, None) => return,
        };
        if let (Some(present), Some(staged)) = (&present, &staged) {
            let lost = conflict::lost(present, staged, &merged);
            // The node of the snapshot may have created the record again after it deleted what is here.
            let is_lost = |lost: &Conflict| {
                let is_own = kind.is_merge() && uncovered.has_changed && lost.loser == *present;
                lost.loser.incarnation == merged.incarnation || is_own
            };
            self.lost.extend(lost.filter(is_lost));
        }
        let is_owed = kind == Kind::Reissue && present.is_some();
        if is_owed && (uncovered.has_changed || staged.as_ref() != Some(&merged)) {
            self.reissued.push((key.clone(), merged.clone()));
        }
        if present.as_ref() != Some(&merged) {
            self.after.push((key.clone(), merged));
        }
    }

    /// SR21: the snapshot counts, and what nobody else has is kept if that revives nothing.
    fn replace(
        &mut self,
        key: &RecordKey,
        (present, staged): (Option<RecordState>, Option<RecordState>),
        uncovered: Uncovered,
    ) {
        let Some(present) = present else {
            return self.after.extend(staged.map(|staged| (key.clone(), staged)));
        };
        let of_staged = staged.as_ref().map_or(0, |staged| staged.incarnation);
        self.incarnation = self.incarnation.max(present.incarnation).max(of_staged);
        let is_deleted = present.lifecycle() == proto::State::Deleted;
        match staged {
            // A merge of one incarnation revives nothing (SR37).
            Some(staged) if of_staged == present.incarnation => {
                let merged = merge(&present, &staged);
                self.lost.extend(conflict::lost(&present, &staged, &merged));
                if merged != staged {
                    self.reissued.push((key.clone(), merged));
                }
                if present != staged {
                    self.after.push((key.clone(), staged));
                }
                return;
            }
            // A deletion that the snapshot does not cover is none for other nodes, either: one that has never had the
            // record may create it.
            None if is_deleted => self.end_here(key, present),
            Some(staged) if is_deleted => {
                if present.incarnation > of_staged && uncovered.has_changed {
                    self.drop_change(key, &present, Some(&staged));
                }
                return self.after.push((key.clone(), staged));
            }
            // Above the floor, the node of the snapshot never had it.
            _ if present.incarnation > of_staged
                && (uncovered.has_created || present.incarnation > self.floor) =>
            {
                // The number follows when all of them are known.
                self.reissued.push((key.clone(), RecordState { incarnation: 0, ..present }));
            }
            _ => {
                if uncovered.has_changed || (self.has_forgotten && staged.is_none()) {
                    self.drop_change(key, &present, staged.as_ref());
                }
                if staged.is_none() {
                    // It was deleted, and that is forgotten at the node of the snapshot; or that node never had it,
                    // and others do. So its end here is no deletion for other nodes.
                    self.end_here(key, present);
                }
            }
        }
        self.after.extend(staged.map(|staged| (key.clone(), staged)));
    }

    fn drop_change(&mut self, key: &RecordKey, present: &RecordState, staged: Option<&RecordState>) {
        self.dropped.push((key.clone(), present.clone()));
        self.lost.push(Conflict::dropped(present, staged));
    }

    /// SR21: a record is deleted at this node alone.
    fn end_here(&mut self, key: &RecordKey, present: RecordState) {
        self.gone.push(key.clone());
        let lifecycle = proto::State::Deleted.into();
        self.after.push((key.clone(), RecordState { lifecycle, ..present }));
    }
}

/// How much one entry under the new id has at most; a single record may have more.
const ENTRY_RECORDS: usize = 1_000;
const ENTRY_BYTES: usize = 4 << 20;
