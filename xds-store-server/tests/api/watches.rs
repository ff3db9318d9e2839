//! Watch.

use proto::event::Kind;
use proto::watch_response::Part;
use tonic::Streaming;

use super::*;

async fn watch(served: &Served, request: proto::WatchRequest) -> Streaming<proto::WatchResponse> {
    served.store().await.watch(request).await.unwrap().into_inner()
}

async fn next(watch: &mut Streaming<proto::WatchResponse>) -> proto::WatchResponse {
    watch.message().await.unwrap().unwrap()
}

fn events(message: &proto::WatchResponse) -> Vec<(Kind, &str)> {
    let name = |event: &'_ proto::Event| event.record.as_ref().unwrap().key.as_ref().unwrap().name.clone();
    let names: Vec<_> = message.events.iter().map(|event| (event.kind(), name(event))).collect();
    names.into_iter().map(|(kind, name)| (kind, &*name.leak())).collect()
}

#[tokio::test]
async fn st28_a_watch_starts_with_a_snapshot_and_goes_on_with_changes() {
    let served = serve().await;
    let first = served.commit(vec![put("b", "1"), put("a", "1")]).await;
    let mut watch = watch(&served, proto::WatchRequest::default()).await;
    let snapshot = next(&mut watch).await;
    assert_eq!(
        (snapshot.part(), events(&snapshot)),
        (Part::Snapshot, vec![(Kind::Put, "a"), (Kind::Put, "b")])
    );
    assert_eq!(snapshot.revision, "");
    let end = next(&mut watch).await;
    assert_eq!((end.part(), end.events.len(), end.revision), (Part::SnapshotEnd, 0, first.revision));
    let second = served.commit(vec![put("a", "2"), delete("b")]).await;
    let changes = next(&mut watch).await;
    assert_eq!(
        (changes.part(), events(&changes)),
        (Part::Changes, vec![(Kind::Put, "a"), (Kind::Deleted, "b")])
    );
    assert_eq!((changes.revision, changes.more), (second.revision, false));
}

#[tokio::test]
async fn st28_after_the_revision_of_a_list_a_watch_misses_and_repeats_nothing() {
    let served = serve().await;
    served.commit(vec![put("a", "1")]).await;
    let list = served.store().await.list(proto::ListRequest::default()).await.unwrap().into_inner();
    let second = served.commit(vec![put("b", "1")]).await;
    let mut watch = watch(&served, proto::WatchRequest { after: list.revision, ..Default::default() }).await;
    let changes = next(&mut watch).await;
    assert_eq!((events(&changes), &changes.revision), (vec![(Kind::Put, "b")], &second.revision));
}

#[tokio::test]
async fn st33_a_watch_with_a_filter_reports_what_left_it() {
    let served = serve().await;
    let labelled = |payload: &str, env: &str| {
        let labels = [("env".to_owned(), env.to_owned())].into();
        let content = proto::Content { payload: payload.to_owned().into(), labels, ..Default::default() };
        act("a", proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() }))
    };
    let first = served.commit(vec![put("b", "1")]).await;
    let labels = [("env".to_owned(), "prod".to_owned())].into();
    let filter = Some(proto::Filter { labels, ..Default::default() });
    let request = proto::WatchRequest { filter, after: first.revision, ..Default::default() };
    let mut watch = watch(&served, request).await;
    for (env, kind) in [("prod", Kind::Put), ("test", Kind::Left), ("prod", Kind::Put)] {
        served.commit(vec![labelled("1", env), put("b", env)]).await;
        assert_eq!(events(&next(&mut watch).await), [(kind, "a")], "{env}");
    }
}

#[tokio::test(start_paused = true)]
async fn st29_a_watch_without_events_sends_bookmarks() {
    let served = serve_with(|config| config.authorize_every = Duration::from_secs(5)).await;
    let first = served.commit(vec![put("a", "1")]).await;
    let filter = Some(proto::Filter { names: vec!["none".into()], ..Default::default() });
    let request = proto::WatchRequest { after: first.revision.clone(), filter, ..Default::default() };
    let mut watch = watch(&served, request).await;
    let bookmark = next(&mut watch).await;
    assert_eq!((bookmark.part(), bookmark.revision), (Part::Bookmark, first.revision));
    let second = served.commit(vec![put("a", "2")]).await;
    // The paused clock may be faster than the thread that publishes the commit.
    let mut bookmark = next(&mut watch).await;
    while bookmark.revision != second.revision {
        assert_eq!((bookmark.part(), bookmark.events.len()), (Part::Bookmark, 0));
        bookmark = next(&mut watch).await;
    }
}

#[tokio::test]
async fn st27_a_large_commit_comes_in_parts_and_can_be_resumed_only_behind_it() {
    let served = serve().await;
    let first = served.commit(vec![put("z", "1")]).await;
    let large = "x".repeat(400 << 10);
    let second = served.commit((0..8).map(|number| put(&number.to_string(), &large)).collect()).await;
    let mut watch = watch(&served, proto::WatchRequest { after: first.revision, ..Default::default() }).await;
    let mut read = 0;
    loop {
        let message = next(&mut watch).await;
        assert!(message.encoded_len() < 2 << 20);
        read += message.events.len();
        assert_eq!(message.revision.is_empty(), message.more);
        if !message.more {
            assert_eq!((message.revision, read), (second.revision, 8));
            return;
        }
    }
}

#[tokio::test]
async fn st6_a_watch_ends_with_not_ready_when_the_server_stops() {
    let served = serve().await;
    let first = served.commit(vec![put("a", "1")]).await;
    let mut watch =
        watch(&served, proto::WatchRequest { after: first.revision.clone(), ..Default::default() }).await;
    served.store.stop().await;
    let status = watch.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&first.revision), "{status}");
    let not_ready: proto::NotReady = detail(&status);
    assert_eq!(not_ready.condition(), proto::status_response::Condition::Stopping);
}

#[tokio::test]
async fn st53_a_change_of_rights_ends_a_watch() {
    let served = serve().await;
    let first = served.commit(vec![put("a", "1"), put("b", "1")]).await;
    served.policy.set("token:ci", Rights { read: only(&["a"]), ..Rights::nothing() });
    let mut store = served.store_as(Some(CI)).await;
    let request = proto::WatchRequest { after: first.revision.clone(), ..Default::default() };
    let mut watch = store.watch(request.clone()).await.unwrap().into_inner();
    served.commit(vec![put("a", "2"), put("b", "2")]).await;
    assert_eq!(events(&next(&mut watch).await), [(Kind::Put, "a")]);
    served.policy.set("token:ci", Rights { read: only(&["a", "c"]), ..Rights::nothing() });
    let status = watch.message().await.unwrap_err();
    let why = Some(proto::violation::Why::Right(proto::RightMissing { right: "read".into() }));
    assert_eq!(violation(&status, Code::PermissionDenied).why, why);
    // So does a token that is removed.
    let mut watch = store.watch(request).await.unwrap().into_inner();
    next(&mut watch).await;
    served.access.set_tokens(Tokens::parse("other 0123456789abcdef\n").unwrap());
    assert_eq!(watch.message().await.unwrap_err().code(), Code::PermissionDenied);
}
