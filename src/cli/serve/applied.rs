//! A folder that is applied to a store as one owner (ST60, ST61).

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio::runtime::Handle;
use xds::folder::{Contents, FolderError, Location};
use xds::store_changes::{self, FolderChange};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::key::RecordKey;
use xds_store::read::{Filter, Knows, ListQuery, ReadError, Reads, RecordVersion};
use xds_store::record::{RecordRevision, RecordState, named_owners};
use xds_store_server::StoreHandle;

use crate::cli::store::records;

/// Applies the contents of a folder: records of the owner become what the folder has.
#[derive(Debug)]
pub(super) struct AppliedFolder {
    store: StoreHandle,
    runtime: Handle,
    /// The folder, for the history of the store.
    name: String,
    /// Where commands find the store: their option, for messages.
    place: String,
    owner: String,
    /// What the folder had when it was applied last; `None` before the first time. The log of the
    /// store does not say what the folder took over from others.
    seen: Option<Seen>,
}

/// Where store and folder had the same content, it has its number.
type Seen = BTreeMap<RecordKey, Option<ContentNumber>>;

/// Incarnation and generation: each put of another content, expiry or lease has its own.
type ContentNumber = (u64, u64);

/// Compares a folder with the records of its owner.
struct Comparison<'a> {
    folder: &'a AppliedFolder,
    reads: &'a Reads<'a>,
    now: i64,
    found: Difference,
}

/// What differs between a folder and the records of its owner.
#[derive(Default)]
struct Difference {
    changes: Vec<proto::Change>,
    /// The place of each change; `None` for a deletion.
    places: Vec<Option<Location>>,
    errors: Vec<FolderError>,
}

impl AppliedFolder {
    pub(super) fn new(
        store: StoreHandle,
        runtime: Handle,
        name: String,
        place: String,
        owner: String,
    ) -> Self {
        Self { store, runtime, name, place, owner, seen: None }
    }

    /// Applies these contents in one commit. Blocks.
    ///
    /// # Errors
    /// The store is unchanged. The errors have file and line where they can.
    pub(super) fn apply(&mut self, contents: &Contents, label: &str) -> Result<(), Vec<FolderError>> {
        let whole = |message: String| vec![FolderError::of_store(None, message)];
        let puts = store_changes::changes(contents);
        let mut attempts = ATTEMPTS;
        loop {
            let difference = self.difference(&puts).map_err(|error| whole(error.to_string()))?;
            let Difference { changes, places, errors } = difference;
            if !errors.is_empty() {
                return Err(errors);
            }
            // ST5: the first commit of a store ends its wait, even an empty one.
            let is_waiting = self.store.standing().borrow().revision() == 0;
            if !changes.is_empty() || is_waiting {
                attempts -= 1;
                match self.commit(changes, label) {
                    // Somebody else was faster: look again.
                    Err(Refused { code, .. }) if attempts > 0 && is_condition(code) => continue,
                    Err(refused) => return Err(errors_of(&refused, &places)),
                    Ok(()) => {}
                }
            }
            return self.look(&puts).map_err(|error| whole(error.to_string()));
        }
    }

    fn commit(&self, changes: Vec<proto::Change>, label: &str) -> Result<(), Refused> {
        let mut message = format!("folder {}", self.name);
        if !label.is_empty() {
            message = format!("{message} at {label}");
        }
        let owner = self.owner.clone();
        // SG3: clients may have the rest in their bootstrap. `xds check` warns about it.
        let allow_missing = true;
        let request = proto::CommitRequest {
            changes,
            owner,
            message,
            allow_missing,
            ..proto::CommitRequest::default()
        };
        // ST60: the folder changes what it put last, also if others joined it.
        let draft = self.store.draft(request, IDENTITY.to_owned())?.as_one_of_the_owners();
        self.runtime.block_on(self.store.commit(draft)).map(|_| ())
    }

    fn difference(&self, puts: &[FolderChange]) -> Result<Difference, ReadError> {
        let view = self.store.view()?;
        let (reads, now) = (Reads::new(&*view)?, now());
        let mut owned = owned(&reads, &self.owner, now)?;
        let mut comparison = Comparison { folder: self, reads: &reads, now, found: Difference::default() };
        for put in puts {
            let Some(key) = key_of(&put.change) else { continue };
            comparison.put(put, &key, owned.remove(&key))?;
        }
        for (key, record) in owned {
            comparison.delete(&key, &record)?;
        }
        Ok(comparison.found)
    }

    /// Remembers the records that are as the folder has them.
    fn look(&mut self, puts: &[FolderChange]) -> Result<(), ReadError> {
        let view = self.store.view()?;
        let owned = owned(&Reads::new(&*view)?, &self.owner, now())?;
        let seen = puts.iter().filter_map(|put| {
            let (key, new) = (key_of(&put.change)?, put_of(put)?);
            // Somebody may have changed it since.
            let same = owned.get(&key).filter(|record| is_same(&record.state, new));
            let number = same.map(|record| content_number(&record.state));
            Some((key, number))
        });
        self.seen = Some(seen.collect());
        Ok(())
    }
}

impl Comparison<'_> {
    /// Adds what a resource of the folder changes in the record, which the owner has or has not.
    fn put(
        &mut self,
        put: &FolderChange,
        key: &RecordKey,
        owned: Option<RecordVersion>,
    ) -> Result<(), ReadError> {
        let Some(new) = put_of(put) else { return Ok(()) };
        let is_owned = owned.is_some();
        let last = if is_owned { owned } else { self.reads.last(key)? };
        let record = last.as_ref().filter(|record| record.exists(self.now));
        let (condition, error) = match record {
            None => {
                let is_deleted = self.is_deleted_by_others(key, last.as_ref());
                let error = is_deleted.then(|| format!("somebody else deleted {} {DELETED}", label(key)));
                (proto::condition::Is::Absent(true), error)
            }
            Some(record) => {
                let (state, is_same) = (&record.state, is_same(&record.state, new));
                // ST61. A quarantine of this content stays: another put would end it.
                if is_same && (is_owned || state.quarantined.is_some()) {
                    return Ok(());
                }
                let error = match is_owned {
                    _ if is_same => None,
                    false => Some(format!("the store has another content for {} {FOREIGN}", label(key))),
                    true => self
                        .is_changed_by_others(key, record)?
                        .then(|| format!("somebody else changed {} {CHANGED}", label(key))),
                };
                (proto::condition::Is::Revision(RecordRevision::of(state).to_string()), error)
            }
        };
        if let Some(error) = error {
            let AppliedFolder { name, place, owner, .. } = self.folder;
            // SG15.
            let has_others =
                record.is_some_and(|record| named_owners(&record.state).any(|of| of != owner.as_str()));
            let take_over = if has_others { " --take-over" } else { "" };
            let message = format!("{error} with `xds apply {name} {place} --owner {owner}{take_over}`");
            self.found.errors.push(FolderError::of_store(Some(&put.location), message));
            return Ok(());
        }
        let condition = Some(proto::Condition { is: Some(condition) });
        self.found.changes.push(proto::Change { condition, ..put.change.clone() });
        self.found.places.push(Some(put.location.clone()));
        Ok(())
    }

    /// Adds the end of the ownership of a record that the folder does not have.
    fn delete(&mut self, key: &RecordKey, record: &RecordVersion) -> Result<(), ReadError> {
        let is_only_owner = named_owners(&record.state).all(|name| name == self.folder.owner);
        if is_only_owner && self.is_changed_by_others(key, record)? {
            let label = label(key);
            let message = format!("{label} is not in the folder any more, but {CHANGED_WITHOUT_FILE}");
            self.found.errors.push(FolderError::of_store(None, message));
            return Ok(());
        }
        let revision = RecordRevision::of(&record.state).to_string();
        let condition = Some(proto::Condition { is: Some(proto::condition::Is::Revision(revision)) });
        let act = Some(proto::change::Act::Delete(proto::Delete::default()));
        self.found.changes.push(proto::Change { key: Some(key.to_proto()), condition, act });
        self.found.places.push(None);
        Ok(())
    }

    /// ST60: whether a record of the owner has what somebody put without acting as this owner. What is
    /// forgotten counts as the owner's.
    fn is_changed_by_others(&self, key: &RecordKey, record: &RecordVersion) -> Result<bool, ReadError> {
        let seen = self.folder.seen.as_ref().and_then(|seen| seen.get(key));
        if seen == Some(&Some(content_number(&record.state))) {
            return Ok(false);
        }
        Ok(match self.reads.is_put_by(record, &self.folder.owner)? {
            Some(is_own) => !is_own,
            None => seen.is_some(),
        })
    }

    /// ST60: whether a record ended while the owner had it. An owner that deletes a record leaves it
    /// before.
    fn is_deleted_by_others(&self, key: &RecordKey, last: Option<&RecordVersion>) -> bool {
        let had = self.folder.seen.as_ref().map(|seen| seen.contains_key(key));
        match (had, last) {
            // It is new in the folder, whatever was there before.
            (Some(false), _) | (None, None) => false,
            (Some(true), None) => true,
            (Some(true) | None, Some(last)) => {
                named_owners(&last.state).any(|name| name == self.folder.owner)
            }
        }
    }
}

/// The records of an owner.
fn owned(reads: &Reads<'_>, owner: &str, now: i64) -> Result<BTreeMap<RecordKey, RecordVersion>, ReadError> {
    let filter = proto::Filter { owner: owner.to_owned(), ..proto::Filter::default() };
    let filter = Filter::parse(Some(filter)).expect("an owner alone is a filter");
    let query = ListQuery {
        filter: &filter,
        at: reads.head().revision,
        now,
        may_read: &|_| true,
        knows: Knows::ALL,
        after: None,
        taken: 0,
        limit: usize::MAX,
        limit_bytes: usize::MAX,
        scan_limit: usize::MAX,
    };
    Ok(reads.list(query)?.records.into_iter().map(|record| (record.key.clone(), record)).collect())
}

fn errors_of(refused: &Refused, places: &[Option<Location>]) -> Vec<FolderError> {
    if refused.violations.is_empty() {
        return vec![FolderError::of_store(None, refused.message.clone())];
    }
    let place = |change: u32| places.get(usize::try_from(change).ok()?)?.as_ref();
    let violations = refused.violations.iter();
    violations.map(|of| FolderError::of_store(place(of.change), of.message.clone())).collect()
}

fn is_condition(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::Aborted | RefusalCode::AlreadyExists | RefusalCode::NotFound)
}

fn put_of(change: &FolderChange) -> Option<&proto::Put> {
    match &change.change.act {
        Some(proto::change::Act::Put(put)) => Some(put),
        _ => None,
    }
}

/// Whether a record has what a file puts, which has neither expiry nor lease.
fn is_same(state: &RecordState, put: &proto::Put) -> bool {
    state.content == put.content && state.expires_at.is_none() && state.lease.is_none()
}

fn label(key: &RecordKey) -> String {
    records::label(&key.to_proto())
}

fn content_number(state: &RecordState) -> ContentNumber {
    (state.incarnation, state.generation)
}

fn key_of(change: &proto::Change) -> Option<RecordKey> {
    RecordKey::parse(change.key.as_ref()?).ok()
}

/// In nanoseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Who the log of the store says made the commits of a folder. No token or certificate has this
/// name: theirs begin with their kind.
const IDENTITY: &str = "folder";

/// How often to look again when others change the same records meanwhile.
const ATTEMPTS: usize = 5;

const FOREIGN: &str = "that does not belong to this folder's owner: take that into the file, delete it in the store, \
                       or put the file's content there";
const CHANGED: &str = "in the store: take the change into the file, or put the file's content back";
const DELETED: &str = "in the store: remove it from the file, or put it back";
const CHANGED_WITHOUT_FILE: &str =
    "somebody else changed it in the store: take it into the folder again, or delete it with `xds delete`";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use tokio::runtime::Runtime;
    use xds::folder::Folder;
    use xds_store::commit::Draft;
    use xds_store::engine::{Engine as _, MemoryEngine};
    use xds_store::store::{Identity, Store};
    use xds_store_server::StoreConfig;

    use super::*;

    /// A folder and a store, removed at the end.
    struct Case {
        path: PathBuf,
        store: StoreHandle,
        runtime: Runtime,
        applied: AppliedFolder,
    }

    impl Case {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xds-applied-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            let mut engine = MemoryEngine::default();
            engine.commit(&Store::init(&Identity::default())).unwrap();
            let store = StoreHandle::start(Box::new(engine), StoreConfig::default()).unwrap();
            let runtime = Runtime::new().unwrap();
            let handle = runtime.handle().clone();
            let applied = AppliedFolder::new(
                store.clone(),
                handle,
                "config".into(),
                "--store data".into(),
                "folder".into(),
            );
            Self { path, store, runtime, applied }
        }

        /// Applies a folder with clusters of these names and timeouts.
        fn apply(&mut self, clusters: &[(&str, u32)]) -> Result<u64, Vec<String>> {
            let document = |(name, seconds): &(&str, u32)| {
                format!(
                    "---\n\"@type\": type.googleapis.com/{CLUSTER}\nname: {name}\nconnect_timeout: {seconds}s\n"
                )
            };
            std::fs::write(self.path.join("a.yaml"), clusters.iter().map(document).collect::<String>())
                .unwrap();
            let contents = Folder::new(&self.path).contents(|_| {});
            let applied = self.applied.apply(&contents, "");
            applied.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
            Ok(self.store.standing().borrow().revision())
        }

        fn quarantined(&self) -> usize {
            let view = self.store.view().unwrap();
            let records = owned(&Reads::new(&*view).unwrap(), "folder", now()).unwrap();
            records.values().filter(|record| record.state.quarantined.is_some()).count()
        }

        /// Commits as somebody else, or as this owner.
        fn commit(&self, name: &str, act: proto::change::Act, owner: &str) -> u64 {
            let type_url = format!("type.googleapis.com/{CLUSTER}");
            let key = proto::Key { type_url, name: name.into(), when: String::new() };
            let change = proto::Change { key: Some(key), condition: None, act: Some(act) };
            let changes = vec![change];
            // An older server of the same store does not judge owners (SG15).
            let is_copy = true;
            let request =
                proto::CommitRequest { changes, owner: owner.into(), is_copy, ..Default::default() };
            let draft = Draft::parse(request, "token:other".into()).unwrap();
            self.runtime.block_on(self.store.commit(draft)).unwrap().revision
        }

        /// The server starts again, if it shall.
        fn restart(&mut self, is_restarted: bool) {
            if is_restarted {
                self.applied.seen = None;
            }
        }

        fn refused(&mut self, clusters: &[(&str, u32)]) -> String {
            self.apply(clusters).unwrap_err().join("\n")
        }
    }

    impl Drop for Case {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.path);
        }
    }

    fn put(name: &str, seconds: u8) -> proto::change::Act {
        let length = u8::try_from(name.len()).unwrap();
        let payload = [&[0x0a, length], name.as_bytes(), &[0x22, 0x02, 0x08, seconds]].concat();
        let content = proto::Content { payload: payload.into(), ..Default::default() };
        proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() })
    }

    fn delete() -> proto::change::Act {
        proto::change::Act::Delete(proto::Delete::default())
    }

    const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";

    #[test]
    fn st61_each_difference_is_one_commit_and_applying_the_same_again_is_none() {
        let mut case = Case::new("same");
        assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
        assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
        assert_eq!(case.apply(&[("a", 2), ("c", 1)]), Ok(2));
        assert_eq!(case.apply(&[("a", 2), ("c", 1)]), Ok(2));
    }

    #[test]
    fn st60_a_record_of_others_is_neither_overwritten_nor_deleted() {
        let mut case = Case::new("others");
        case.commit("b", put("b", 9), "");
        let errors = case.apply(&[("a", 1), ("b", 1)]).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("a.yaml:6:1: the store refuses it: "), "{errors:?}");
        assert!(errors[0].contains("does not belong to this folder's owner"), "{errors:?}");
        assert!(errors[0].ends_with("--owner folder`"), "{errors:?}");
        assert_eq!(case.apply(&[("a", 1)]), Ok(2));
        let key = RecordKey::parse(&proto::Key {
            type_url: format!("type.googleapis.com/{CLUSTER}"),
            name: "b".into(),
            when: String::new(),
        });
        let view = case.store.view().unwrap();
        assert!(Reads::new(&*view).unwrap().get(&key.unwrap(), now()).unwrap().is_some());
        case.commit("c", put("c", 9), "shop");
        let error = case.refused(&[("a", 1), ("c", 1)]);
        assert!(error.ends_with("--owner folder --take-over`"), "{error}");
    }

    #[test]
    fn st60_a_change_of_others_is_an_error_with_file_and_line_after_a_restart_too() {
        for is_restarted in [false, true] {
            let mut case = Case::new(&format!("meanwhile-{is_restarted}"));
            assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
            case.commit("b", put("b", 9), "");
            // Changes of owners and a quarantine leave the content to who put it.
            case.commit("b", put("b", 9), "shop");
            case.commit("b", proto::change::Act::Quarantine(proto::Quarantine::default()), "folder");
            case.commit("b", delete(), "shop");
            case.restart(is_restarted);
            let error = case.refused(&[("a", 2), ("b", 1)]);
            assert!(
                error.starts_with(
                    "a.yaml:6:1: the store refuses it: somebody else changed Cluster b in the store"
                ),
                "{error}"
            );
            assert!(error.ends_with("with `xds apply config --store data --owner folder`"), "{error}");
            let error = case.refused(&[("a", 2)]);
            assert!(error.contains("is not in the folder any more"), "{error}");
            // Who takes the change into the file may change it then.
            assert_eq!(case.apply(&[("a", 2), ("b", 9)]), Ok(6));
            assert_eq!(case.apply(&[("a", 2), ("b", 3)]), Ok(7));
        }
    }

    #[test]
    fn st60_who_acts_as_the_owner_of_the_folder_acts_for_it() {
        for is_restarted in [false, true] {
            let mut case = Case::new(&format!("as-owner-{is_restarted}"));
            assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
            case.commit("a", put("a", 9), "");
            case.refused(&[("a", 2), ("b", 1)]);
            // `xds apply config --owner folder`, and a deletion as this owner.
            case.commit("a", put("a", 2), "folder");
            case.commit("b", delete(), "folder");
            case.restart(is_restarted);
            assert_eq!(case.apply(&[("a", 3), ("b", 1)]), Ok(5));
        }
    }

    #[test]
    fn st60_what_others_deleted_is_not_put_back_after_a_restart_either() {
        for is_restarted in [false, true] {
            let mut case = Case::new(&format!("deleted-{is_restarted}"));
            assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
            case.commit("b", delete(), "");
            case.restart(is_restarted);
            let error = case.refused(&[("a", 2), ("b", 1)]);
            assert!(
                error.starts_with(
                    "a.yaml:6:1: the store refuses it: somebody else deleted Cluster b in the store"
                ),
                "{error}"
            );
            assert_eq!(case.apply(&[("a", 2)]), Ok(3));
            // It is new in the folder then.
            assert_eq!(case.apply(&[("a", 2), ("b", 1)]), Ok(4));
        }
    }

    #[test]
    fn st60_an_expiry_that_others_set_is_a_change() {
        for is_restarted in [false, true] {
            let mut case = Case::new(&format!("expiry-{is_restarted}"));
            assert_eq!(case.apply(&[("a", 1)]), Ok(1));
            let proto::change::Act::Put(same) = put("a", 1) else { unreachable!() };
            let expires_at = Some(SystemTime::now().checked_add(Duration::from_secs(600)).unwrap().into());
            case.commit("a", proto::change::Act::Put(proto::Put { expires_at, ..same }), "");
            case.restart(is_restarted);
            let error = case.refused(&[("a", 1), ("b", 1)]);
            assert!(error.contains("somebody else changed Cluster"), "{error}");
        }
    }

    #[test]
    fn st60_a_commit_whose_outcome_the_folder_does_not_know_is_its_own() {
        let mut case = Case::new("unknown");
        assert_eq!(case.apply(&[("a", 1)]), Ok(1));
        case.apply(&[("a", 1), ("b", 1)]).unwrap();
        let seen = case.applied.seen.clone();
        case.apply(&[("a", 2)]).unwrap();
        case.applied.seen = seen;
        assert_eq!(case.apply(&[("a", 3), ("b", 1)]), Ok(4));
    }

    #[test]
    fn st60_a_folder_joins_what_has_its_content_and_leaves_what_others_own_too() {
        let mut case = Case::new("joins");
        case.commit("a", put("a", 1), "shop");
        assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(2));
        case.restart(true);
        assert_eq!(case.apply(&[("a", 2), ("b", 1)]), Ok(3), "what it joined is its own");
        case.commit("a", put("a", 9), "shop");
        assert_eq!(case.apply(&[("b", 1)]), Ok(5), "its owner leaves, and nothing is overwritten");
    }

    #[test]
    fn st60_a_change_right_after_the_commit_of_the_folder_is_not_taken_for_its_own() {
        for is_first in [true, false] {
            let mut case = Case::new(&format!("after-{is_first}"));
            assert_eq!(case.apply(&[("a", 1)]), Ok(1));
            case.commit("a", put("a", 9), "");
            case.restart(is_first);
            let contents = Folder::new(&case.path).contents(|_| {});
            case.applied.look(&store_changes::changes(&contents)).unwrap();
            let error = case.refused(&[("a", 2)]);
            assert!(error.contains("somebody else changed Cluster"), "{error}");
        }
    }

    #[test]
    fn st60_a_quarantine_stays_until_the_file_changes() {
        let mut case = Case::new("quarantine");
        assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
        case.commit("b", proto::change::Act::Quarantine(proto::Quarantine::default()), "");
        assert_eq!(case.apply(&[("a", 2), ("b", 1)]), Ok(3));
        assert_eq!(case.quarantined(), 1);
        // The author corrects the file.
        assert_eq!(case.apply(&[("a", 2), ("b", 3)]), Ok(4));
        assert_eq!(case.quarantined(), 0);
    }
}
