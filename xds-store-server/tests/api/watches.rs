//! Watch.

use proto::event::Kind;
use proto::watch_response::Part;
use tonic::Streaming;
use xds_store::engine::{Batch, Changes, EngineError, EngineLimits, EngineRevision, Reader};

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
async fn st31_a_read_after_an_event_answers_nothing_older() {
    let served = serve().await;
    let mut watch = watch(&served, proto::WatchRequest::default()).await;
    assert_eq!(next(&mut watch).await.part(), Part::SnapshotEnd);
    let mut store = served.store().await;
    for number in 0..50 {
        // The event may come before the answer of the commit.
        let payload = number.to_string();
        let changes = vec![put("a", &payload)];
        let mut writer = store.clone();
        let commit = tokio::spawn(async move { writer.commit(commit_of(changes)).await.unwrap() });
        let event = next(&mut watch).await.events.remove(0);
        assert_eq!(event.record.unwrap().content.unwrap().payload, payload);
        let record = store.get(get("a")).await.unwrap().into_inner().record.unwrap();
        let list = store.list(proto::ListRequest::default()).await.unwrap().into_inner().records;
        let read = [&record, &list[0]].map(|record| record.content.as_ref().unwrap().payload.clone());
        assert_eq!(read, [payload.as_str(), payload.as_str()]);
        commit.await.unwrap();
    }
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
async fn st53_st62_the_end_of_a_snapshot_says_whether_the_client_may_not_read_a_part_of_it() {
    let served = serve().await;
    served.commit(vec![put("a", "1"), put("b", "1")]).await;
    for (names, left_out) in [(&["a"][..], true), (&["a", "b"], false)] {
        served.policy.set("token:ci", Rights { read: only(names), ..Rights::nothing() });
        let mut watch =
            served.store_as(Some(CI)).await.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
        assert_eq!(next(&mut watch).await.events.len(), names.len());
        let end = next(&mut watch).await;
        assert_eq!((end.part(), end.left_out), (Part::SnapshotEnd, left_out));
    }
    // What the filter leaves out is not meant.
    served.policy.set("token:ci", Rights { read: only(&["a"]), ..Rights::nothing() });
    let filter = Some(proto::Filter { names: vec!["a".into()], ..Default::default() });
    let request = proto::WatchRequest { filter, ..Default::default() };
    let mut watch = served.store_as(Some(CI)).await.watch(request).await.unwrap().into_inner();
    assert_eq!(next(&mut watch).await.events.len(), 1);
    assert!(!next(&mut watch).await.left_out);
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

/// An engine that panics when its store writes for the second time.
#[derive(Debug)]
struct Defect {
    engine: MemoryEngine,
    is_shared: bool,
    commits: usize,
}

impl Engine for Defect {
    fn reader(&self) -> Arc<dyn Reader> {
        self.engine.reader()
    }

    fn commit(&mut self, batch: &Batch) -> Result<EngineRevision, EngineError> {
        self.commits += 1;
        assert_eq!(self.commits, 1, "a defect that a test wants");
        self.engine.commit(batch)
    }

    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn changes(&self, key: &[u8]) -> Option<Box<dyn Changes>> {
        self.engine.changes(key).filter(|_| self.is_shared)
    }
}

/// What clients of a watch and of reads get after a defect of the thread that writes.
async fn after_a_defect(is_shared: bool) -> Result<proto::WatchResponse, Status> {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let served = serve_store(Defect { engine, is_shared, commits: 0 }, |_| {}).await;
    let first = served.commit(vec![put("a", "1")]).await;
    let every = prost_types::Duration { seconds: 1, nanos: 0 };
    let request =
        proto::WatchRequest { after: first.revision, bookmark_every: Some(every), ..Default::default() };
    let mut watch = watch(&served, request).await;
    let refused = served.store().await.commit(commit_of(vec![put("a", "2")])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    let get = proto::GetRequest { key: Some(key("a")), ..Default::default() };
    served.store().await.get(get).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), watch.message());
    next.await
        .expect("it does not stay silent")
        .map(|message| message.expect("it does not end without a reason"))
}

#[tokio::test]
async fn st21_after_a_defect_of_the_writer_a_watch_goes_on_if_no_other_server_can_commit() {
    assert_eq!(after_a_defect(false).await.unwrap().part(), Part::Bookmark);
}

#[tokio::test]
async fn st21_after_a_defect_of_the_writer_a_watch_of_a_shared_store_ends_with_the_reason() {
    let ended = after_a_defect(true).await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
    let message = ended.message();
    assert!(
        message.starts_with("a defect ended the store's writer: restart the server: resume after "),
        "{message}"
    );
}

/// Regression: a watch whose client reads nothing kept 3 to 4.5 MB, so 250 of them 0.9 GB.
#[tokio::test]
async fn st32_the_messages_of_a_watch_are_small_whatever_there_is_to_tell() {
    let served = serve().await;
    let large = |from: usize| (from..from + 100).map(|number| put(&format!("n{number}"), &"x".repeat(5_000)));
    served.commit(large(0).collect()).await;
    let mut watch = watch(&served, proto::WatchRequest::default()).await;
    let (mut told, mut messages) = (0, 0);
    while told < 200 {
        let message = next(&mut watch).await;
        if message.part() == Part::SnapshotEnd {
            served.commit(large(100).collect()).await;
        }
        (told, messages) = (told + message.events.len(), messages + 1);
        // One record more than the size may be in it.
        assert!(message.encoded_len() < (64 << 10) + 6_000, "{} bytes", message.encoded_len());
    }
    assert!(messages > 14, "{messages}");
}
