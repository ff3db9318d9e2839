//! The store that a mirror writes to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use prost::Message;
use tokio::time::sleep;
use tonic::Code;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::change::Act;

use crate::cli::store::apply::{Tuple, depth, tuple};
use crate::cli::store::connection::Connection;
use crate::cli::store::error::StoreError;
use crate::cli::store::records;
use crate::cli::store::write::{change, commit};

/// TO, and what was written to it.
///
/// Clients of TO see states that FROM had (ST62): what FROM changed in one commit is one commit here,
/// too. Owners follow in commits of their own, which change nothing for clients.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) to: Connection,
    /// The records that have a lease in FROM; while its records arrive, also those that have one in TO.
    leases: BTreeMap<Tuple, Duration>,
    /// Records whose state a person was warned of.
    warned: BTreeSet<Tuple>,
    pub(super) copied: usize,
}

/// All records of FROM at one revision, while they arrive in the order of their names.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// What TO has; without the records that have arrived.
    present: BTreeMap<Tuple, Present>,
    waiting: Batch,
    /// Whether FROM has no record so far.
    is_empty: bool,
    has_written: bool,
}

/// What TO has of a record.
#[derive(Debug)]
struct Present {
    state: State,
    owners: Vec<String>,
}

/// What a mirror copies of a record, besides its owners.
#[derive(Debug, PartialEq)]
struct State {
    version: String,
    /// Without payload, which the version stands for.
    content: Option<proto::Content>,
    expires_at: Option<prost_types::Timestamp>,
    lease: Option<prost_types::Duration>,
    is_quarantined: bool,
}

/// Changes that belong into one commit, and the owners of its records.
#[derive(Debug, Default)]
struct Batch {
    changes: Vec<proto::Change>,
    bytes: usize,
    owned: Vec<Owned>,
}

/// The owners that a record gets. The put has the content that the record has already.
#[derive(Debug)]
struct Owned {
    put: proto::Change,
    owners: Vec<String>,
    /// Those that it has; `None` if that is not known.
    present: Option<Vec<String>>,
}

impl Target {
    pub(super) fn new(to: Connection) -> Self {
        Self { to, leases: BTreeMap::new(), warned: BTreeSet::new(), copied: 0 }
    }

    /// Reads what TO has, before the records of FROM arrive.
    pub(super) async fn snapshot(&mut self) -> Result<Snapshot, StoreError> {
        self.copied = 0;
        let (mut present, mut leases) = (BTreeMap::new(), BTreeMap::new());
        let listed = records::list(&self.to, proto::Filter::default(), true, |record| {
            if let Some(key) = &record.key {
                if let Some(lease) = record.lease.and_then(|lease| Duration::try_from(lease).ok()) {
                    leases.insert(tuple(key), lease);
                }
                present.insert(tuple(key), Present { owners: owners(&record), state: State::of(record) });
            }
            Ok(())
        });
        listed.await?;
        self.leases = leases;
        Ok(Snapshot { present, waiting: Batch::default(), is_empty: true, has_written: false })
    }

    /// Writes whole revisions of FROM, in order.
    ///
    /// Several are joined as far as TO takes them in one commit, but not a deletion with a later put:
    /// the new record would keep the owners of the old one.
    pub(super) async fn write(&mut self, events: Vec<proto::Event>) -> Result<(), StoreError> {
        let mut left = vec![revisions(events)];
        while let Some(mut revisions) = left.pop() {
            if let Some(end) = joinable(&revisions) {
                left.push(revisions.split_off(end));
            }
            let mut newest = BTreeMap::new();
            for event in revisions.iter().flatten() {
                let Some(key) = event.record.as_ref().and_then(|record| record.key.as_ref()) else {
                    continue;
                };
                newest.insert(tuple(key), event);
            }
            let mut batch = Batch::default();
            for event in newest.into_values() {
                let record = event.record.clone().unwrap_or_default();
                let key = record.key.clone().unwrap_or_default();
                let owners = owners(&record);
                match Some(record).filter(|_| is_put(event)).and_then(|record| self.put(&record)) {
                    None => {
                        self.leases.remove(&tuple(&key));
                        batch.delete(key);
                    }
                    Some(put) => {
                        let put = change(key, None, Act::Put(put));
                        batch.put(put.clone());
                        batch.owned.push(Owned { put, owners, present: None });
                    }
                }
            }
            let copied = batch.changes.len();
            match self.commit(&proto::CommitRequest::default(), batch.changes.clone()).await {
                Err(error) if is_too_large(&error) && revisions.len() > 1 => {
                    left.push(revisions.split_off(revisions.len() / 2));
                    left.push(revisions);
                }
                Err(error) if is_too_large(&error) => self.write_batch(batch).await?,
                done => {
                    done?;
                    self.copied += copied;
                    self.own(batch.owned).await?;
                }
            }
        }
        Ok(())
    }

    /// How often leases have to be renewed; `None` without any.
    pub(super) fn renew_every(&self) -> Option<Duration> {
        self.leases.values().min().map(|shortest| *shortest / 4)
    }

    /// Renews the leases of all records that have one in FROM: a touch there makes no event. Whether
    /// TO still has all of them.
    pub(super) async fn renew(&self) -> Result<bool, StoreError> {
        let touch = |(type_url, name, when): Tuple| {
            change(proto::Key { type_url, name, when }, None, Act::Touch(proto::Touch {}))
        };
        let touches = self.leases.keys().cloned().map(touch).collect();
        match self.commit_in_parts(&proto::CommitRequest::default(), touches).await {
            Err(StoreError::Refused(refused)) if refused.code == Code::NotFound => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Renews the leases until TO fails: while FROM is away nobody can renew them there, and it starts
    /// them again when it comes back (ST40). Clears `after` if TO lacks one of the records.
    pub(super) async fn renew_always(&mut self, after: &mut String) -> StoreError {
        loop {
            let Some(every) = self.renew_every() else { return std::future::pending().await };
            match self.renew().await {
                Ok(true) => sleep(every).await,
                // The others are renewed all the same.
                Ok(false) => {
                    after.clear();
                    if let Err(error) = self.snapshot().await {
                        return error;
                    }
                    sleep(Duration::from_secs(1).min(every)).await;
                }
                Err(error) => return error,
            }
        }
    }

    async fn write_batch(&mut self, batch: Batch) -> Result<(), StoreError> {
        self.copied += batch.changes.iter().filter(|change| matches!(change.act, Some(Act::Put(_)))).count();
        self.commit_in_parts(&proto::CommitRequest::default(), batch.changes).await?;
        self.own(batch.owned).await
    }

    /// The put of what is served of a record; `None` if that is nothing.
    fn put(&mut self, record: &proto::Record) -> Option<proto::Put> {
        if let Some(quarantined) = &record.quarantined {
            let what =
                if quarantined.serve.is_some() { "gets its last good content" } else { "does not get it" };
            self.warn(record, |label| format!("{label} is quarantined; TO {what}"));
        }
        // ST40: after a start of FROM a lease lasts longer than its record says.
        let ends_at = record.expires_at.filter(|_| record.lease.is_none());
        let is_over =
            ends_at.is_some_and(|at| SystemTime::try_from(at).is_ok_and(|at| at <= SystemTime::now()));
        let content = served(record).filter(|_| !is_over).cloned();
        let lease = record.lease.filter(|_| content.is_some());
        let lease = lease.and_then(|lease| Duration::try_from(lease).ok());
        if let Some(key) = record.key.as_ref().map(tuple) {
            match lease {
                Some(lease) => self.leases.insert(key, lease),
                None => self.leases.remove(&key),
            };
        }
        let content = content?;
        Some(proto::Put {
            content: Some(content),
            expires_at: ends_at,
            lease: record.lease,
            owners: Vec::new(),
        })
    }

    fn warn(&mut self, record: &proto::Record, text: impl FnOnce(String) -> String) {
        let Some(key) = &record.key else { return };
        if self.warned.insert(tuple(key)) {
            eprintln!("warning: {}", text(records::label(key)));
        }
    }

    /// Gives records their owners.
    async fn own(&self, owned: Vec<Owned>) -> Result<(), StoreError> {
        // For each owner, first the records of which it becomes the only one, then those that it joins.
        let mut commits: BTreeMap<(bool, String), Vec<proto::Change>> = BTreeMap::new();
        for Owned { put, owners, present } in owned {
            let present = match (&owners[..], present, &put.key) {
                ([], _, _) => continue,
                (_, Some(present), _) => present,
                // To take over what one owns alone changes nothing.
                ([_], None, _) => vec![String::new()],
                (_, None, key) => {
                    let key = key.clone().unwrap_or_default();
                    records::get(&self.to, &key)
                        .await?
                        .map(|record| self::owners(&record))
                        .unwrap_or_default()
                }
            };
            let takes_over = present.iter().any(|owner| !owners.contains(owner));
            for (number, owner) in owners.into_iter().enumerate() {
                if takes_over || !present.contains(&owner) {
                    let joins = !takes_over || number > 0;
                    commits.entry((joins, owner)).or_default().push(put.clone());
                }
            }
        }
        for ((joins, owner), changes) in commits {
            let request =
                proto::CommitRequest { owner, take_over: !joins, ..proto::CommitRequest::default() };
            self.commit_in_parts(&request, changes).await?;
        }
        Ok(())
    }

    /// Commits the changes at once, or in parts if TO does not take so many. Then puts come before
    /// deletions, and changes of one name stay together, because variants may not overlap.
    async fn commit_in_parts(
        &self,
        request: &proto::CommitRequest,
        mut changes: Vec<proto::Change>,
    ) -> Result<(), StoreError> {
        let puts: BTreeSet<_> = changes.iter().filter(|change| !is_delete(change)).map(name).collect();
        changes.sort_by_cached_key(|change| {
            let name = name(change);
            let is_last = !puts.contains(&name);
            let depth = depth(&name.0);
            (is_last, if is_last { -depth } else { depth }, name)
        });
        let mut left = vec![changes];
        while let Some(part) = left.pop() {
            match self.commit(request, part.clone()).await {
                Err(error) if is_too_large(&error) && part.len() > 1 => {
                    let (first, second) = halves(part);
                    left.push(second);
                    left.push(first);
                }
                done => done?,
            }
        }
        Ok(())
    }

    async fn commit(
        &self,
        request: &proto::CommitRequest,
        changes: Vec<proto::Change>,
    ) -> Result<(), StoreError> {
        let mut request =
            proto::CommitRequest { changes, message: "mirror".to_owned(), is_copy: true, ..request.clone() };
        loop {
            let Err(error) = commit(&self.to, request.clone()).await else { return Ok(()) };
            // The clock of TO is ahead, so the record has ended there.
            let expired = error.invalid_changes(EXPIRES_AT);
            if expired.is_empty() {
                return Err(error);
            }
            for number in expired {
                match request.changes.get_mut(number) {
                    Some(change) if !is_delete(change) => {
                        change.act = Some(Act::Delete(proto::Delete::default()));
                    }
                    _ => return Err(error),
                }
            }
        }
    }
}

impl Snapshot {
    /// Takes further records, and writes them once there are many.
    pub(super) async fn add(
        &mut self,
        events: Vec<proto::Event>,
        target: &mut Target,
    ) -> Result<(), StoreError> {
        let mut last = None;
        for record in events.into_iter().filter_map(|event| event.record) {
            last.clone_from(&record.key);
            self.add_record(record, target);
        }
        let Some(last) = last.filter(|_| self.waiting.is_full()) else { return Ok(()) };
        // Further variants of the last name may follow.
        let whole = self.waiting.split_before(&last);
        self.write(whole, target).await
    }

    fn add_record(&mut self, record: proto::Record, target: &mut Target) {
        self.is_empty = false;
        let Some(key) = record.key.clone() else { return };
        let present = self.present.remove(&tuple(&key));
        let Some(put) = target.put(&record) else {
            if present.is_some() {
                self.waiting.delete(key);
            }
            return;
        };
        let (owners, put) = (owners(&record), change(key, None, Act::Put(put)));
        let had = present.as_ref().map_or(&[][..], |present| &present.owners);
        if owners.is_empty() && !had.is_empty() {
            let had = had.join(", ");
            target
                .warn(&record, |label| format!("{label} keeps its owner in TO, but has none in FROM: {had}"));
        }
        if owners != had {
            let (put, present) = (put.clone(), Some(had.to_vec()));
            self.waiting.owned.push(Owned { put, owners, present });
        }
        let served = State { is_quarantined: false, ..State::of(record) };
        if present.is_none_or(|present| present.state != served) {
            self.waiting.put(put);
        }
    }

    /// How many records TO would lose if this is all and FROM has none.
    pub(super) fn emptied(&self) -> usize {
        if self.is_empty { self.present.len() } else { 0 }
    }

    /// How many records TO has and FROM did not list.
    pub(super) fn missing(&self) -> usize {
        self.present.len()
    }

    /// Writes the rest, and deletes what TO has and FROM does not.
    pub(super) async fn end(mut self, target: &mut Target) -> Result<(), StoreError> {
        let mut rest = std::mem::take(&mut self.waiting);
        for (type_url, name, when) in std::mem::take(&mut self.present).into_keys() {
            target.leases.remove(&(type_url.clone(), name.clone(), when.clone()));
            rest.delete(proto::Key { type_url, name, when });
        }
        // The first commit of a store is a change even when it is empty (ST64).
        if rest.changes.is_empty() && !self.has_written {
            target.commit(&proto::CommitRequest::default(), Vec::new()).await?;
        }
        self.write(rest, target).await
    }

    /// Writes records, and deletes the other variants that TO has of their names.
    async fn write(&mut self, mut batch: Batch, target: &mut Target) -> Result<(), StoreError> {
        let names: BTreeSet<_> = batch.changes.iter().map(name).collect();
        for (type_url, name) in names {
            let first = (type_url.clone(), name.clone(), String::new());
            let others = self.present.range(first..);
            let others =
                others.take_while(|((of_type, of_name, _), _)| (of_type, of_name) == (&type_url, &name));
            for (type_url, name, when) in others.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                let key = (type_url.clone(), name.clone(), when.clone());
                self.present.remove(&key);
                target.leases.remove(&key);
                batch.delete(proto::Key { type_url, name, when });
            }
        }
        if !batch.changes.is_empty() {
            self.has_written = true;
            return target.write_batch(batch).await;
        }
        target.own(batch.owned).await
    }
}

impl State {
    fn of(record: proto::Record) -> Self {
        let content = served(&record).cloned();
        Self {
            content: content.map(|content| proto::Content { payload: bytes::Bytes::new(), ..content }),
            expires_at: record.expires_at.filter(|_| record.lease.is_none()),
            is_quarantined: record.quarantined.is_some(),
            version: record.version,
            lease: record.lease,
        }
    }
}

impl Batch {
    fn put(&mut self, put: proto::Change) {
        self.bytes += put.encoded_len();
        self.changes.push(put);
    }

    fn delete(&mut self, key: proto::Key) {
        self.changes.push(change(key, None, Act::Delete(proto::Delete::default())));
    }

    /// Whether it is about as large as a server takes by default.
    fn is_full(&self) -> bool {
        self.changes.len().max(self.owned.len()) >= BATCH_CHANGES || self.bytes >= BATCH_BYTES
    }

    /// Takes all but the name of this key, which comes last.
    fn split_before(&mut self, last: &proto::Key) -> Self {
        let is_before = |change: &proto::Change| name(change) != (last.type_url.clone(), last.name.clone());
        let end = self.changes.iter().rposition(is_before).map_or(0, |last| last + 1);
        let owned_end = self.owned.iter().rposition(|owned| is_before(&owned.put)).map_or(0, |last| last + 1);
        let rest =
            Self { changes: self.changes.split_off(end), owned: self.owned.split_off(owned_end), bytes: 0 };
        let bytes = rest.changes.iter().map(Message::encoded_len).sum();
        std::mem::replace(self, Self { bytes, ..rest })
    }
}

/// The events of each store revision.
fn revisions(events: Vec<proto::Event>) -> Vec<Vec<proto::Event>> {
    let of = |event: &proto::Event| event.record.as_ref().map(|record| record.store_revision.clone());
    let mut revisions: Vec<Vec<proto::Event>> = Vec::new();
    for event in events {
        match revisions.last_mut() {
            Some(revision) if revision.first().map(of) == Some(of(&event)) => revision.push(event),
            _ => revisions.push(vec![event]),
        }
    }
    revisions
}

/// How many revisions can be joined; `None`: all.
fn joinable(revisions: &[Vec<proto::Event>]) -> Option<usize> {
    let key = |event: &proto::Event| event.record.as_ref().and_then(|record| record.key.as_ref()).map(tuple);
    let mut deleted = BTreeSet::new();
    revisions.iter().position(|events| {
        let creates = events.iter().any(|event| is_put(event) && deleted.contains(&key(event)));
        deleted.extend(events.iter().filter(|event| !is_put(event)).map(key));
        creates
    })
}

/// Two parts, of which the first one is committed first.
fn halves(mut changes: Vec<proto::Change>) -> (Vec<proto::Change>, Vec<proto::Change>) {
    let middle = changes.len() / 2;
    let boundaries = (1..changes.len()).filter(|at| name(&changes[at - 1]) != name(&changes[*at]));
    match boundaries.min_by_key(|at| at.abs_diff(middle)) {
        Some(boundary) => {
            let second = changes.split_off(boundary);
            (changes, second)
        }
        // One name has more variants than a commit can change. A new one may overlap with a former one.
        None => {
            let (deletes, puts): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_delete);
            let mut all = [deletes, puts].concat();
            let second = all.split_off(middle);
            (all, second)
        }
    }
}

fn is_too_large(error: &StoreError) -> bool {
    // OUT_OF_RANGE: the request is longer than the server reads.
    let StoreError::Refused(refused) = error else { return false };
    matches!(refused.code, Code::ResourceExhausted | Code::OutOfRange)
}

fn is_put(event: &proto::Event) -> bool {
    event.kind == i32::from(proto::event::Kind::Put)
}

fn is_delete(change: &proto::Change) -> bool {
    matches!(change.act, Some(Act::Delete(_)))
}

/// Type and name of what is changed.
fn name(change: &proto::Change) -> (String, String) {
    change.key.as_ref().map(|key| (key.type_url.clone(), key.name.clone())).unwrap_or_default()
}

/// What clients get of a record.
fn served(record: &proto::Record) -> Option<&proto::Content> {
    match &record.quarantined {
        None => record.content.as_ref(),
        Some(quarantined) => quarantined.serve.as_ref(),
    }
}

fn owners(record: &proto::Record) -> Vec<String> {
    records::owners(record).into_iter().map(str::to_owned).collect()
}

const EXPIRES_AT: &str = "put.expires_at";
const BATCH_CHANGES: usize = 10_000;
const BATCH_BYTES: usize = 48 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, when: &str) -> proto::Key {
        proto::Key { type_url: "t".into(), name: name.into(), when: when.into() }
    }

    fn put(name: &str, when: &str) -> proto::Change {
        change(key(name, when), None, Act::Put(proto::Put::default()))
    }

    fn delete(name: &str, when: &str) -> proto::Change {
        change(key(name, when), None, Act::Delete(proto::Delete::default()))
    }

    #[test]
    fn st62_a_name_is_divided_only_if_it_is_too_large_by_itself() {
        let all = vec![put("a", ""), put("b", "x"), put("b", "y"), delete("b", "z")];
        let (first, second) = halves(all.clone());
        assert_eq!((&first[..], &second[..]), (&all[..1], &all[1..]));
        // A variant that is deleted may overlap with one that is put.
        let (first, second) = halves(second);
        assert_eq!((first, second), (vec![delete("b", "z")], vec![put("b", "x"), put("b", "y")]));
    }

    #[test]
    fn st62_a_full_batch_waits_for_all_variants_of_its_last_name() {
        let mut batch = Batch::default();
        for change in [put("a", ""), put("b", "x"), put("b", "y")] {
            batch.owned.push(Owned { put: change.clone(), owners: Vec::new(), present: None });
            batch.put(change);
        }
        let whole = batch.split_before(&key("b", "y"));
        assert_eq!((whole.changes, whole.owned.len()), (vec![put("a", "")], 1));
        assert_eq!((batch.changes, batch.owned.len()), (vec![put("b", "x"), put("b", "y")], 2));
    }

    #[test]
    fn st62_a_deletion_and_a_later_creation_are_not_joined() {
        let event = |kind: proto::event::Kind, name: &str| {
            let record = proto::Record { key: Some(key(name, "")), ..proto::Record::default() };
            vec![proto::Event { kind: kind.into(), record: Some(record) }]
        };
        let (put, deleted) = (proto::event::Kind::Put, proto::event::Kind::Deleted);
        let revisions = [event(put, "a"), event(deleted, "a"), event(put, "b"), event(put, "a")];
        assert_eq!(joinable(&revisions), Some(3));
        assert_eq!(joinable(&revisions[..3]), None);
        assert_eq!(joinable(&revisions[3..]), None);
    }
}
