//! Identities and rights (ST50 to ST55, ST65).

use proto::violation::Why;

use super::*;

fn right(status: &Status) -> String {
    match violation(status, Code::PermissionDenied).why {
        Some(Why::Right(right)) => right.right,
        why => panic!("{why:?}"),
    }
}

#[tokio::test]
async fn st50_every_call_needs_an_identity() {
    let served = serve().await;
    let mut statuses = Vec::new();
    for token in [None, Some("wrong")] {
        let mut store = served.store_as(token).await;
        statuses.push(store.get(get("a")).await.unwrap_err());
        statuses.push(store.list(proto::ListRequest::default()).await.unwrap_err());
        statuses.push(store.watch(proto::WatchRequest::default()).await.unwrap_err());
        statuses.push(store.commit(proto::CommitRequest::default()).await.unwrap_err());
        statuses.push(store.history(proto::HistoryRequest::default()).await.unwrap_err());
        statuses.push(store.references(proto::ReferencesRequest::default()).await.unwrap_err());
        let mut maintenance = served.maintenance_as(token).await;
        statuses.push(maintenance.status(proto::StatusRequest::default()).await.unwrap_err());
        statuses.push(maintenance.compact(proto::CompactRequest::default()).await.unwrap_err());
        statuses.push(maintenance.backup(proto::BackupRequest::default()).await.unwrap_err());
        statuses.push(maintenance.conflicts(proto::ConflictsRequest::default()).await.unwrap_err());
        statuses.push(maintenance.forget(proto::ForgetRequest::default()).await.unwrap_err());
    }
    // ST51: one text.
    let first = statuses[0].message().to_owned();
    for status in &statuses {
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, &*first));
    }
    assert!(first.contains("wrong") && first.contains("neither"), "it covers both: {first}");
}

#[tokio::test]
async fn st52_st65_a_client_reads_and_writes_what_its_rights_say() {
    let served = serve().await;
    served.commit(vec![put("a", "1"), put("b", "1")]).await;
    served.policy.set("token:ci", Rights { read: only(&["a"]), write: only(&["c*"]), ..Rights::nothing() });
    let mut store = served.store_as(Some(CI)).await;
    store.get(get("a")).await.unwrap();
    assert_eq!(right(&store.get(get("b")).await.unwrap_err()), "read");
    // ST65: also for what does not exist.
    assert_eq!(right(&store.get(get("none")).await.unwrap_err()), "read");
    // ST53.
    let list = store.list(proto::ListRequest::default()).await.unwrap().into_inner();
    assert_eq!(names(&list.records), ["a"]);
    let history = store.history(proto::HistoryRequest::default()).await.unwrap().into_inner();
    assert_eq!(history.commits[0].changes.len(), 1);
    store.commit(commit_of(vec![put("c1", "1")])).await.unwrap();
    // All violations of the stage, and nothing is changed.
    let changes = vec![put("a", "2"), put("c2", "1"), delete("none")];
    let status = store.commit(commit_of(changes)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let refusal: proto::Refusal = detail(&status);
    assert_eq!(refusal.violations.iter().map(|violation| violation.change).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(served.store().await.get(get("c2")).await.unwrap_err().code(), Code::NotFound);
    // A certificate or token without a rule may do nothing.
    served.policy.set("token:ci", Rights::nothing());
    assert_eq!(right(&store.get(get("a")).await.unwrap_err()), "read");
}

#[tokio::test]
async fn st52_a_client_with_an_owner_acts_as_this_owner() {
    let served = serve().await;
    let rights = Rights { owner: Some("shop".into()), ..Rights::everything() };
    served.policy.set("token:ci", Rights { operate: false, ..rights });
    let mut store = served.store_as(Some(CI)).await;
    let as_owner =
        |owner: &str| proto::CommitRequest { owner: owner.into(), ..commit_of(vec![put("a", owner)]) };
    store.commit(as_owner("")).await.unwrap();
    store.commit(as_owner("shop")).await.unwrap();
    assert_eq!(right(&store.commit(as_owner("other")).await.unwrap_err()), "owner");
    let history = store.history(proto::HistoryRequest::default()).await.unwrap().into_inner();
    assert!(history.commits.iter().all(|commit| commit.owner == "shop" && commit.identity == "token:ci"));
    // A prune changes records that the commit does not name.
    served.policy.set("token:ci", Rights { owner: None, operate: false, ..Rights::everything() });
    let prune = proto::CommitRequest { prune: true, ..as_owner("other") };
    assert_eq!(right(&store.commit(prune).await.unwrap_err()), "owner");
}

#[tokio::test]
async fn st52_sg16_a_prune_needs_the_right_to_write_what_it_releases() {
    let served = serve().await;
    let as_team = |changes, prune| proto::CommitRequest { owner: "team".into(), prune, ..commit_of(changes) };
    let all = vec![put("mine", "1"), put("route", "1")];
    served.store().await.commit(as_team(all, false)).await.unwrap();
    let rights = Rights { read: only(&["mine"]), write: only(&["mine"]), ..Rights::nothing() };
    served.policy.set("token:ci", Rights { owner: Some("team".into()), ..rights });
    let mut store = served.store_as(Some(CI)).await;
    let status = store.commit(as_team(vec![put("mine", "2")], true)).await.unwrap_err();
    assert_eq!(right(&status), "write");
    // ST54.
    assert!(status.message().contains("1 record ") && !status.message().contains("route"), "{status:?}");
    assert_eq!(violation(&status, Code::PermissionDenied).key, None);
    served.store().await.get(get("route")).await.unwrap();
    // An alias of a put is a name that the client has to be allowed to write.
    let mut aliased = put("mine", "2");
    if let Some(proto::change::Act::Put(put)) = &mut aliased.act {
        put.content.as_mut().unwrap().aliases.push("alias".into());
    }
    assert_eq!(right(&store.commit(commit_of(vec![aliased])).await.unwrap_err()), "write");
}

#[tokio::test]
async fn st55_configuration_and_force_need_the_right_to_operate() {
    let served = serve().await;
    served.policy.set("token:ci", Rights { operate: false, ..Rights::everything() });
    let mut store = served.store_as(Some(CI)).await;
    let mut probe = put("a", "");
    probe.key.as_mut().unwrap().type_url = xds_store::record::PROBE_TYPE.into();
    assert_eq!(right(&store.commit(commit_of(vec![probe.clone()])).await.unwrap_err()), "operate");
    let force = proto::CommitRequest { force_schema: true, ..commit_of(vec![put("a", "1")]) };
    assert_eq!(right(&store.commit(force).await.unwrap_err()), "operate");
    let copy = proto::CommitRequest { is_copy: true, ..commit_of(vec![put("a", "1")]) };
    assert_eq!(right(&store.commit(copy).await.unwrap_err()), "operate");
    served.policy.set("token:ci", Rights::everything());
    store.commit(commit_of(vec![probe])).await.unwrap();
}
