//! A folder that is applied to a store as one owner (ST60, ST61).

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::runtime::Handle;
use xds::folder::{Contents, FolderError, Location};
use xds::store_changes::{self, FolderChange};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::key::RecordKey;
use xds_store::read::{Filter, ListQuery, ReadError, Reads, RecordVersion};
use xds_store::record::{RecordRevision, RecordState};
use xds_store_server::StoreHandle;

/// Applies the contents of a folder: records of the owner become what the folder has.
#[derive(Debug)]
pub(super) struct AppliedFolder {
    store: StoreHandle,
    runtime: Handle,
    /// The folder, for the history of the store.
    name: String,
    owner: String,
    /// The digests of the contents of the records of the owner after the last time that the folder was
    /// applied. Empty before the first time: then the folder takes what is there as its own.
    seen: BTreeMap<RecordKey, Bytes>,
}

/// What differs between a folder and the records of its owner.
#[derive(Debug, Default)]
struct Difference {
    changes: Vec<proto::Change>,
    /// The place of each change; `None` for a deletion.
    places: Vec<Option<Location>>,
    errors: Vec<FolderError>,
}

impl AppliedFolder {
    pub(super) fn new(store: StoreHandle, runtime: Handle, name: String, owner: String) -> Self {
        Self { store, runtime, name, owner, seen: BTreeMap::new() }
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
        let request = proto::CommitRequest { changes, owner, message, ..proto::CommitRequest::default() };
        let draft = self.store.draft(request, IDENTITY.to_owned())?;
        self.runtime.block_on(self.store.commit(draft)).map(|_| ())
    }

    fn difference(&self, puts: &[FolderChange]) -> Result<Difference, ReadError> {
        let view = self.store.view()?;
        let (reads, now) = (Reads::new(&*view)?, now());
        let mut owned = owned(&reads, &self.owner, now)?;
        let mut difference = Difference::default();
        for put in puts {
            let Some(key) = key_of(&put.change) else { continue };
            let (record, is_owned) = match owned.remove(&key) {
                Some(record) => (Some(record), true),
                None => (reads.get(&key, now)?, false),
            };
            difference.put(put, record.as_ref().map(|record| &record.state), is_owned, self.seen.get(&key));
        }
        for (key, record) in owned {
            difference.delete(&key, &record.state, self.seen.get(&key));
        }
        Ok(difference)
    }

    /// Remembers the records of the owner, which are what the folder has.
    fn look(&mut self, puts: &[FolderChange]) -> Result<(), ReadError> {
        let view = self.store.view()?;
        let owned = owned(&Reads::new(&*view)?, &self.owner, now())?;
        let mut seen = BTreeMap::new();
        for put in puts {
            let Some(key) = key_of(&put.change) else { continue };
            let Some(record) = owned.get(&key) else { continue };
            let digest = match &put.change.act {
                Some(proto::change::Act::Put(put)) if put.content == record.state.content => {
                    record.state.digest.clone()
                }
                // Somebody changed it since: that is not the content of the folder.
                _ => self.seen.remove(&key).unwrap_or_default(),
            };
            seen.insert(key, digest);
        }
        self.seen = seen;
        Ok(())
    }
}

impl Difference {
    /// Adds what a resource of the folder changes in the record.
    fn put(
        &mut self,
        put: &FolderChange,
        record: Option<&RecordState>,
        is_owned: bool,
        seen: Option<&Bytes>,
    ) {
        let Some(proto::change::Act::Put(new)) = &put.change.act else { return };
        let error = |message: &str| FolderError::of_store(Some(&put.location), message.to_owned());
        let condition = match record {
            None => proto::condition::Is::Absent(true),
            Some(record) => {
                let revision = RecordRevision::of(record);
                let is_equal = record.content == new.content;
                // ST61. A quarantine of this content stays: another put would end it.
                if is_equal && (is_owned || record.quarantined.is_some()) {
                    return;
                }
                if !is_equal && !is_owned {
                    self.errors.push(error(FOREIGN));
                    return;
                }
                if !is_equal && seen.is_some_and(|seen| *seen != record.digest) {
                    self.errors.push(error(CHANGED));
                    return;
                }
                proto::condition::Is::Revision(revision.to_string())
            }
        };
        let condition = Some(proto::Condition { is: Some(condition) });
        self.changes.push(proto::Change { condition, ..put.change.clone() });
        self.places.push(Some(put.location.clone()));
    }

    /// Adds the deletion of a record that the folder does not have.
    fn delete(&mut self, key: &RecordKey, record: &RecordState, seen: Option<&Bytes>) {
        let revision = RecordRevision::of(record);
        if seen.is_some_and(|seen| *seen != record.digest) {
            let message = format!("{key:?} is not in the folder any more, but {CHANGED}");
            self.errors.push(FolderError::of_store(None, message));
            return;
        }
        let condition =
            Some(proto::Condition { is: Some(proto::condition::Is::Revision(revision.to_string())) });
        let act = Some(proto::change::Act::Delete(proto::Delete::default()));
        self.changes.push(proto::Change { key: Some(key.to_proto()), condition, act });
        self.places.push(None);
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

const FOREIGN: &str = "the store has another content for it, which does not belong to this folder's owner: \
                       delete it in the store, or take its content into the file";
const CHANGED: &str = "the store has another content for it than this folder gave it: somebody changed it. Take the \
                       change into the file, or restart the server to put the file's content back";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
            let applied = AppliedFolder::new(store.clone(), handle, "config".into(), "folder".into());
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

        /// Commits as somebody else.
        fn commit(&self, name: &str, act: proto::change::Act, owner: &str) -> u64 {
            let type_url = format!("type.googleapis.com/{CLUSTER}");
            let key = proto::Key { type_url, name: name.into(), when: String::new() };
            let change = proto::Change { key: Some(key), condition: None, act: Some(act) };
            let request = proto::CommitRequest {
                changes: vec![change],
                owner: owner.into(),
                take_over: !owner.is_empty(),
                ..Default::default()
            };
            let draft = Draft::parse(request, "token:other".into()).unwrap();
            self.runtime.block_on(self.store.commit(draft)).unwrap().revision
        }
    }

    impl Drop for Case {
        fn drop(&mut self) {
            _ = std::fs::remove_dir_all(&self.path);
        }
    }

    fn put(name: &str) -> proto::change::Act {
        let payload = [&[0x0a, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
        let content = proto::Content { payload: payload.into(), ..Default::default() };
        proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() })
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
        case.commit("b", put("b"), "");
        let errors = case.apply(&[("a", 1), ("b", 1)]).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("a.yaml:6:1: the store refuses it: "), "{errors:?}");
        assert!(errors[0].contains("does not belong to this folder's owner"), "{errors:?}");
        assert_eq!(case.apply(&[("a", 1)]), Ok(2));
        let key = RecordKey::parse(&proto::Key {
            type_url: format!("type.googleapis.com/{CLUSTER}"),
            name: "b".into(),
            when: String::new(),
        });
        let view = case.store.view().unwrap();
        assert!(Reads::new(&*view).unwrap().get(&key.unwrap(), now()).unwrap().is_some());
    }

    #[test]
    fn st60_a_change_that_somebody_made_meanwhile_is_an_error_with_file_and_line() {
        let mut case = Case::new("meanwhile");
        assert_eq!(case.apply(&[("a", 1), ("b", 1)]), Ok(1));
        case.commit("b", put("b"), "folder");
        let errors = case.apply(&[("a", 2), ("b", 1)]).unwrap_err();
        assert!(errors[0].starts_with("a.yaml:6:1: the store refuses it: "), "{errors:?}");
        assert!(errors[0].contains("somebody changed it"), "{errors:?}");
        let errors = case.apply(&[("a", 2)]).unwrap_err();
        assert!(errors[0].contains("is not in the folder any more"), "{errors:?}");
    }

    #[test]
    fn st60_a_change_right_after_the_commit_of_the_folder_is_not_taken_for_its_own() {
        for is_first in [true, false] {
            let mut case = Case::new(&format!("after-{is_first}"));
            assert_eq!(case.apply(&[("a", 1)]), Ok(1));
            case.commit("a", put("a"), "folder");
            if is_first {
                case.applied.seen.clear();
            }
            let contents = Folder::new(&case.path).contents(|_| {});
            case.applied.look(&store_changes::changes(&contents)).unwrap();
            let errors = case.apply(&[("a", 2)]).unwrap_err();
            assert!(errors[0].contains("somebody changed it"), "{errors:?}");
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
