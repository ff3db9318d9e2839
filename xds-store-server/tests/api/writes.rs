//! Commit.

use proto::violation::Why;

use super::*;

fn on(is: proto::condition::Is, change: proto::Change) -> proto::Change {
    proto::Change { condition: Some(proto::Condition { is: Some(is) }), ..change }
}

#[tokio::test]
async fn st9_a_condition_that_does_not_hold_is_a_code_with_what_is_there() {
    use proto::condition::Is;

    let served = serve().await;
    let committed = served.commit(vec![put("a", "1")]).await;
    let present = &committed.results[0];
    let mut store = served.store().await;
    let of_record = proto::ConditionFailed { revision: present.revision.clone(), uid: present.uid.clone() };
    let other = "0".repeat(32);
    for (is, name, code, found) in [
        (Is::Absent(true), "a", Code::AlreadyExists, of_record.clone()),
        (Is::Exists(true), "b", Code::NotFound, proto::ConditionFailed::default()),
        (Is::Revision(other.clone()), "a", Code::Aborted, of_record.clone()),
        (Is::Uid(other), "a", Code::Aborted, of_record.clone()),
    ] {
        let changes = vec![put("c", "1"), on(is.clone(), put(name, "2"))];
        let status = store.commit(commit_of(changes)).await.unwrap_err();
        let violation = violation(&status, code);
        assert_eq!((violation.change, violation.key), (1, Some(key(name))), "{is:?}");
        assert_eq!(violation.why, Some(Why::Condition(found)), "{is:?}");
    }
    // Nothing has changed.
    let list = store.list(proto::ListRequest::default()).await.unwrap().into_inner();
    assert_eq!((names(&list.records), list.revision), (vec!["a"], committed.revision.clone()));
    let change = on(Is::Revision(present.revision.clone()), put("a", "2"));
    store.commit(commit_of(vec![change])).await.unwrap();
}

#[tokio::test]
async fn st7_a_key_twice_is_invalid() {
    let served = serve().await;
    let changes = vec![put("a", "1"), put("a", "2")];
    let status = served.store().await.commit(commit_of(changes)).await.unwrap_err();
    let violation = violation(&status, Code::InvalidArgument);
    assert_eq!((violation.change, violation.key), (1, Some(key("a"))));
}

#[tokio::test]
async fn a_commit_answers_a_result_for_each_change_in_the_order_of_the_request() {
    use proto::Outcome::{Absent, Checked, Created, Deleted, Unchanged, Updated};

    let served = serve().await;
    let first = served.commit(vec![put("b", "1"), put("a", "1"), put("c", "1")]).await;
    let keys: Vec<_> = first.results.iter().map(|result| result.key.clone().unwrap().name).collect();
    assert_eq!(keys, ["b", "a", "c"]);
    let check = act("a", proto::change::Act::Check(proto::Check {}));
    let changes = vec![delete("none"), put("b", "1"), put("c", "2"), check, put("d", "1")];
    let second = served.commit(changes).await;
    let outcomes: Vec<_> = second.results.iter().map(proto::Result::outcome).collect();
    assert_eq!(outcomes, [Absent, Unchanged, Updated, Checked, Created]);
    assert_eq!(second.results[1].revision, first.results[0].revision);
    assert_eq!((&*second.results[0].revision, &*second.results[0].uid), ("", ""));
    let third = served.commit(vec![delete("a")]).await;
    assert_eq!((third.results[0].outcome(), &*third.results[0].revision), (Deleted, ""));
    // ST12.
    assert_eq!(served.commit(vec![put("b", "1")]).await.revision, third.revision);
}

#[tokio::test]
async fn acknowledgements_of_peers_that_do_not_exist_are_invalid() {
    let served = serve().await;
    let request = proto::CommitRequest { ack_peers: 1, ..commit_of(vec![put("a", "1")]) };
    let status = served.store().await.commit(request).await.unwrap_err();
    let why = Why::Invalid(proto::Invalid { field: "ack_peers".into() });
    assert_eq!(violation(&status, Code::InvalidArgument).why, Some(why));
}

#[tokio::test]
async fn a_rollout_is_refused_by_a_server_that_would_give_the_change_to_all() {
    let rollout = Some(proto::Rollout { steps: vec!["2 clients".into()], wait: None });
    let request = proto::CommitRequest { rollout, ..commit_of(vec![put("a", "1")]) };
    let served = serve().await;
    let status = served.store().await.commit(request.clone()).await.unwrap_err();
    let why = Why::Invalid(proto::Invalid { field: "rollout".into() });
    assert_eq!(violation(&status, Code::FailedPrecondition).why, Some(why));
    let served = serve_with(|config| config.rolls_out = true).await;
    served.store().await.commit(request).await.unwrap();
}

#[tokio::test]
async fn st6_a_store_that_stops_is_unavailable_with_its_condition() {
    let served = serve().await;
    served.commit(vec![put("a", "1")]).await;
    served.store.stop().await;
    let status = served.store().await.commit(commit_of(vec![put("b", "1")])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let not_ready: proto::NotReady = detail(&status);
    assert_eq!(not_ready.condition(), proto::status_response::Condition::Stopping);
}
