//! Maintenance.

use super::*;

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
    let compacted = maintenance.compact(request.clone()).await.unwrap().into_inner();
    assert_eq!(compacted.forgotten_revisions, 0);
    let ahead = proto::CompactRequest { revision: first.revision.replace("-1", "-9"), ..request.clone() };
    violation(&maintenance.compact(ahead).await.unwrap_err(), Code::InvalidArgument);
    let shrink = maintenance.compact(proto::CompactRequest { shrink: true, ..request }).await.unwrap_err();
    assert_eq!(shrink.code(), Code::Unimplemented);
}
