//! Forgets deleted records (SR25 to SR27).

use xds_proto::xds::store::v1 as proto;

use super::{Store, Writing};
use crate::key::{RecordKey, stored};
use crate::number;
use crate::phase;
use crate::record::{Local, Present};
use crate::stored::{ReadError, Stored};

impl Store {
    /// Forgets records that have been deleted for long, or that are too many, at most so many. SR27: new records of
    /// their keys start above their incarnations, so a uid is never used again.
    pub(super) fn collect(
        &self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        limit: usize,
    ) -> Result<(), ReadError> {
        let upto = self.collectable(writing);
        let (mut has_unknown, mut read_bytes) = (false, 0);
        // SR25. Those that were deleted first come first.
        let mut beyond = self.index.counts().1.saturating_sub(self.config.tombstone_limit);
        let deleted = self.index.tombstones().take_while(|(changed_at, _)| *changed_at <= upto);
        for (_, key) in deleted.take(LOOKED_AT) {
            if writing.batch.writes.len() >= limit || read_bytes > READ_BYTES {
                break;
            }
            let goes = |record: &&Present| beyond > 0 || self.is_old(record, now);
            let record = self.index.get(key).filter(goes).filter(|_| !self.index.is_held(key));
            let Some(record) = record else { continue };
            // SR62: no new record could follow it.
            if record.incarnation > number::LAST_FLOOR {
                continue;
            }
            // Another server of the store may have forgotten it.
            if let Some((local, bytes)) = stored.local_if_kept(key, record.changed_at)? {
                read_bytes += bytes;
                match deletion(key, local) {
                    Deletion::By(origin, counter) => {
                        let floor = writing.deletion_floors.entry(origin.into()).or_default();
                        *floor = counter.max(*floor);
                    }
                    Deletion::Unknown => has_unknown = true,
                    Deletion::OfThisStore => {}
                }
            }
            writing.delete(stored::record(key, record.changed_at));
            writing.head.incarnation_floor = writing.head.incarnation_floor.max(record.incarnation);
            writing.collected.push(key.clone());
            beyond = beyond.saturating_sub(1);
        }
        if has_unknown {
            // It is one of those that are forgotten.
            writing.deletion_floors = self.origins.floors_without(writing.head.floor);
        }
        Ok(())
    }

    /// The revision up to which deleted records may be forgotten. Older revisions refer to those that were
    /// deleted after the floor.
    ///
    /// SR26: in a store that replicates, the known clocks of all nodes have to cover what this node had when
    /// the record was deleted. Then what they write knows the deletion. What they wrote before has to be here,
    /// so that no older write can still arrive. A clock that is out of date says less, and is true.
    fn collectable(&self, writing: &Writing) -> u64 {
        let mut upto = writing.head.floor;
        if !self.replicates() {
            return upto;
        }
        for (_, counters) in self.nodes.iter().filter(|(id, _)| !writing.dropped_nodes.contains(*id)) {
            if !self.origins.has(counters) {
                return 0;
            }
            upto = upto.min(self.origins.covered(counters));
        }
        upto
    }

    /// SR25: whether a record has been deleted for long enough.
    fn is_old(&self, record: &Present, now: i64) -> bool {
        let for_long =
            |now: i64| record.deleted_at.is_some_and(|at| at <= now.saturating_sub(self.config.tombstones));
        if !self.replicates() {
            return for_long(now);
        }
        // SR61: a lease counts like an expiry.
        let end = record.lease.map(|lease| lease.stored_end).or(record.expires_at);
        // SR26: nodes that were all stopped for months start as they stopped.
        for_long(self.running.length()) || end.is_some_and(|end| end <= now)
    }
}

/// From where a store has a deletion.
enum Deletion {
    By(String, u64),
    /// A date has ended the record here, or it is one that other nodes do not get (SR5).
    OfThisStore,
    /// An earlier version of this program did not keep it.
    Unknown,
}

fn deletion(key: &RecordKey, local: Local) -> Deletion {
    let is_by_date = local.lifecycle_of_others() != proto::State::Unspecified;
    match local.deleted_by {
        _ if phase::is_local(key) || is_by_date => Deletion::OfThisStore,
        Some(by) => Deletion::By(by.origin, by.counter),
        None => Deletion::Unknown,
    }
}

/// How many deleted records a step looks at. Those that come first are old first, so none waits for ever.
const LOOKED_AT: usize = 10_000;
/// How much a step reads, so that commits do not wait for long (ST44).
const READ_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use crate::checked;
    use crate::clock::{Clock, Position};
    use crate::commit::Draft;
    use crate::engine::{Batch, Engine, MemoryEngine};
    use crate::record::RecordState;
    use crate::store::{Action, Config, Event, Identity, Ticket};
    use crate::time::SECOND;

    use super::*;

    fn step(store: &mut Store, engine: &mut MemoryEngine, event: Event, now: i64) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in store.step(event, now, &*engine.reader()) {
                match action {
                    Action::Write(batch) => events.push(Event::Written(engine.commit(&batch))),
                    Action::Answer(_, answer) => assert!(answer.is_ok(), "{answer:?}"),
                    Action::Compacted(_, answer) => assert!(answer.is_ok(), "{answer:?}"),
                    Action::Publish(_) | Action::Merged(..) | Action::Staged(..) | Action::TookId(..) => {}
                    Action::AnswerRegion(..) | Action::CallRegion { .. } => {}
                }
            }
        }
    }

    #[test]
    fn sr18_a_deletion_of_an_earlier_version_may_be_any_of_those_that_are_forgotten() {
        let mut engine = MemoryEngine::default();
        engine.commit(&Store::init(&Identity { node: "a".into(), ..Identity::default() })).unwrap();
        let load = |engine: &MemoryEngine| {
            let config =
                Config { is_replicated: true, tombstones: SECOND, ..Config::new(engine.limits(), 1) };
            Store::load(&*engine.view().unwrap(), config, SECOND, |_| {}).unwrap()
        };
        let mut store = load(&engine);
        let key = proto::Key { type_url: "a/t".into(), name: "x".into(), when: String::new() };
        let put = proto::Put { content: Some(proto::Content::default()), ..proto::Put::default() };
        let acts = [
            proto::change::Act::Put(put.clone()),
            proto::change::Act::Delete(proto::Delete::default()),
            proto::change::Act::Put(put),
        ];
        for (number, act) in acts.into_iter().enumerate() {
            // The last one is about another record.
            let name = if number < 2 { "x" } else { "y" };
            let key = Some(proto::Key { name: name.into(), ..key.clone() });
            let changes = vec![proto::Change { key, act: Some(act), condition: None }];
            let request = proto::CommitRequest { changes, ..proto::CommitRequest::default() };
            let draft = Draft::parse(request, "test".into()).unwrap();
            step(&mut store, &mut engine, Event::Commit(Ticket(0), draft), SECOND);
        }
        // Such a version kept the time alone.
        let at = stored::record(&RecordKey::parse(&key).unwrap(), 2);
        let value = engine.view().unwrap().get(&at).unwrap().unwrap();
        let (state, local): (RecordState, Local) = checked::decode_both(&at, value.bytes).unwrap();
        assert_eq!(local.deleted_by.map(|by| by.counter), Some(2));
        let local = Local { committed_at: SECOND, ..Local::default() };
        let value = checked::encode_both(&at, &state, &local);
        engine.commit(&Batch { compares: Vec::new(), writes: vec![(at, Some(value))] }).unwrap();
        let mut store = load(&engine);
        step(&mut store, &mut engine, Event::Compact(Ticket(0), Some(3)), 1000 * SECOND);
        assert_eq!(store.counts(), (1, 0));
        let mut clock = Clock::default();
        clock.set("a", Position { counter: 2, ..Position::default() });
        assert!(store.lacking(&clock, 9).out_of_sync[0].must_replace);
    }
}
