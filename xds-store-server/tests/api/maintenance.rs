//! Maintenance.

use xds_store::commit::Draft;
use xds_store::store::{Action, Config, Event, Ticket};

use super::*;

/// An engine whose store has one commit, made 8 days ago.
fn old_store(changes: Vec<proto::Change>) -> MemoryEngine {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let then = i64::try_from((since - Duration::from_secs(8 * 24 * 3600)).as_nanos()).unwrap();
    let mut store =
        Store::load(&*engine.view().unwrap(), Config::new(engine.limits(), 1), then, |_| {}).unwrap();
    let commit = Event::Commit(Ticket(1), Draft::parse(commit_of(changes), "me".into()).unwrap());
    let actions = store.step(commit, then, &*engine.reader());
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    engine.commit(batch).unwrap();
    engine
}

#[tokio::test]
async fn st44_a_compaction_changes_no_answer() {
    let served = serve_store(old_store(vec![put("a", "1"), put("b", "1")]), |_| {}).await;
    let answers = async || {
        let mut store = served.store().await;
        let get = store.get(get("a")).await.unwrap().into_inner();
        assert!(get.record.as_ref().unwrap().changed_at.is_some());
        let list = store.list(proto::ListRequest::default()).await.unwrap().into_inner();
        let mut watch = store.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
        let snapshot = [watch.message().await.unwrap().unwrap(), watch.message().await.unwrap().unwrap()];
        let snapshot = snapshot.map(|message| message.encode_to_vec());
        (get.encode_to_vec(), list.encode_to_vec(), snapshot)
    };
    let before = answers().await;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let compacted = maintenance.compact(proto::CompactRequest::default()).await.unwrap().into_inner();
    assert!(compacted.floor.ends_with("-1"), "{compacted:?}");
    assert_eq!(answers().await, before);
}

#[tokio::test]
async fn st59_the_status_has_the_condition_and_a_probe_writes_reads_and_deletes() {
    let served = serve().await;
    served.commit(vec![put("a", "1")]).await;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let status = maintenance.status(proto::StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!(status.condition(), proto::status_response::Condition::Serving);
    assert_eq!((status.records, status.probe_time), (1, None));
    let probe = maintenance.status(proto::StatusRequest { probe: true }).await.unwrap().into_inner();
    assert!(probe.probe_time.is_some());
    assert_eq!(probe.records, 1);
    assert_ne!(probe.revision, status.revision);
}

#[tokio::test]
async fn st72_the_status_has_what_an_operator_has_to_act_on_one_line_each() {
    let alarms = Arc::new(Mutex::new(Vec::new()));
    let shown = Arc::clone(&alarms);
    let backup_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let served = serve_with(|config| {
        config.additions = StatusSource::new(move || {
            let mut additions = StatusAdditions::default();
            additions.size_bytes = Some(4096);
            additions.last_backup_at = Some(backup_at);
            additions.alarms.clone_from(&shown.lock().unwrap());
            additions
        });
    })
    .await;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let status = maintenance.status(proto::StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.size_bytes, status.last_backup_at), (4096, Some(backup_at.into())));
    assert_eq!(status.alarms, [""; 0]);
    *alarms.lock().unwrap() = vec!["two\nlines\u{1b}".to_owned(), "x".repeat(10_000)];
    let status = maintenance.status(proto::StatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((&*status.alarms[0], status.alarms.len()), ("two lines", 2));
    assert!(status.alarms[1].len() <= 1024);
}

#[tokio::test]
async fn st52_maintenance_needs_the_right_to_operate_and_status_to_inspect() {
    let served = serve().await;
    let mut maintenance = served.maintenance_as(Some(CI)).await;
    let code = |result: Result<(), Status>| result.unwrap_err().code();
    served.policy.set("token:ci", Rights { inspect: true, ..Rights::nothing() });
    maintenance.status(proto::StatusRequest::default()).await.unwrap();
    let probe = maintenance.status(proto::StatusRequest { probe: true }).await;
    assert_eq!(code(probe.map(drop)), Code::PermissionDenied);
    let backup = maintenance.backup(proto::BackupRequest::default()).await;
    assert_eq!(code(backup.map(drop)), Code::PermissionDenied);
    served.policy.set("token:ci", Rights::nothing());
    let status = maintenance.status(proto::StatusRequest::default()).await;
    assert_eq!(code(status.map(drop)), Code::PermissionDenied);
}

#[tokio::test]
async fn st45_a_backup_comes_in_parts_and_ends_with_its_digest() {
    let served = serve().await;
    let payload = "x".repeat(100 << 10);
    let committed = served.commit((0..40).map(|number| put(&number.to_string(), &payload)).collect()).await;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let mut parts = maintenance.backup(proto::BackupRequest::default()).await.unwrap().into_inner();
    let (mut file, mut last) = (Vec::new(), None);
    while let Some(part) = parts.message().await.unwrap() {
        file.extend_from_slice(&part.data);
        assert_eq!(part.records, 40);
        last = Some(part);
    }
    let last = last.unwrap();
    assert_eq!((last.revision, last.digest.len()), (committed.revision, 32));
    let (content, digest) = file.split_at(file.len() - 32);
    assert_eq!((last.digest.as_ref(), digest), (blake3::hash(content).as_bytes().as_slice(), digest));
    assert_eq!(digest, last.digest);
}

#[tokio::test]
async fn a_store_without_peers_has_no_conflicts_and_forgets_no_node() {
    let served = serve().await;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let conflicts = maintenance.conflicts(proto::ConflictsRequest::default()).await.unwrap().into_inner();
    assert_eq!(conflicts, proto::ConflictsResponse::default());
    let node = served.store.standing().borrow().head.node.clone();
    let mut forget = async |node: &str| {
        maintenance.forget(proto::ForgetRequest { node: node.into(), force: false }).await.unwrap_err()
    };
    violation(&forget("none").await, Code::NotFound);
    violation(&forget("").await, Code::InvalidArgument);
    if !node.is_empty() {
        violation(&forget(&node).await, Code::FailedPrecondition);
    }
}

#[tokio::test]
async fn st44_a_compaction_forgets_what_no_list_may_still_read() {
    let served = serve().await;
    let first = served.commit(vec![put("a", "1")]).await;
    served.commit(vec![put("a", "2")]).await;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let request = proto::CompactRequest { revision: first.revision.clone(), shrink: false };
    // ST26: both revisions are younger than 5 minutes.
    let kept = maintenance.compact(request.clone()).await.unwrap_err();
    let why = violation(&kept, Code::FailedPrecondition);
    assert!(why.message.starts_with("no revision is forgotten; the store keeps the next one"), "{why:?}");
    let compacted = maintenance.compact(proto::CompactRequest::default()).await.unwrap().into_inner();
    assert_eq!(compacted.forgotten_revisions, 0);
    let ahead = proto::CompactRequest { revision: first.revision.replace("-1", "-9"), ..request.clone() };
    violation(&maintenance.compact(ahead).await.unwrap_err(), Code::InvalidArgument);
    let shrink = maintenance.compact(proto::CompactRequest { shrink: true, ..request }).await.unwrap_err();
    assert_eq!(shrink.code(), Code::Unimplemented);
}

#[tokio::test]
async fn st44_a_compaction_that_stops_before_its_revision_is_refused_and_says_where() {
    let served = serve_store(old_store(vec![put("a", "1")]), |_| {}).await;
    let second = served.commit(vec![put("a", "2")]).await.revision;
    let mut maintenance = served.maintenance_as(Some(LOCAL)).await;
    let mut compact =
        async |revision: String| maintenance.compact(proto::CompactRequest { revision, shrink: false }).await;
    let kept = compact(second.clone()).await.unwrap_err();
    let why = violation(&kept, Code::FailedPrecondition);
    let first = second.replace("-2", "-1");
    assert!(why.message.starts_with(&format!("revisions up to {first} are forgotten; the store")), "{why:?}");
    // What is forgotten already is no error.
    for revision in [first.replace("-1", "-0"), first.clone(), String::new()] {
        assert_eq!(compact(revision).await.unwrap().into_inner().floor, first);
    }
}
