//! Get, List and History.

use proto::violation::Why;

use super::*;

#[tokio::test]
async fn st24_get_answers_a_record_or_not_found() {
    let served = serve().await;
    let committed = served.commit(vec![put("a", "1")]).await;
    let mut store = served.store().await;
    let answer = store.get(get("a")).await.unwrap().into_inner();
    let record = answer.record.unwrap();
    assert_eq!(record.content.unwrap().payload, "1");
    assert_eq!((&record.revision, &record.uid), (&committed.results[0].revision, &committed.results[0].uid));
    assert_eq!((answer.revision, record.generation), (committed.revision, 1));
    assert!(record.changed_at.is_some() && record.version.len() == 32);

    let absent = store.get(get("none")).await.unwrap_err();
    let violation = violation(&absent, Code::NotFound);
    assert_eq!(violation.key, Some(key("none")));
    assert_eq!(violation.why, Some(Why::Condition(proto::ConditionFailed::default())));
}

#[tokio::test]
async fn what_can_never_be_right_is_invalid_with_the_field() {
    let served = serve().await;
    served.commit(vec![put("a", "1")]).await;
    let mut store = served.store().await;
    let field = |status: Status| match violation(&status, Code::InvalidArgument).why {
        Some(Why::Invalid(invalid)) => invalid.field,
        why => panic!("{why:?}"),
    };
    assert_eq!(field(store.get(get("")).await.unwrap_err()), "key");
    assert_eq!(field(store.get(proto::GetRequest::default()).await.unwrap_err()), "key");
    let list = |request: proto::ListRequest| {
        let mut store = store.clone();
        async move { field(store.list(request).await.unwrap_err()) }
    };
    let page_token = "00".to_owned();
    assert_eq!(list(proto::ListRequest { page_token, ..Default::default() }).await, "page_token");
    let filter = Some(proto::Filter { names: vec![String::new()], ..Default::default() });
    assert_eq!(list(proto::ListRequest { filter, ..Default::default() }).await, "filter");
    // ST30: a revision of another store.
    let at_least = "s0000-1".to_owned();
    assert_eq!(list(proto::ListRequest { at_least, ..Default::default() }).await, "revision");
    let history = proto::HistoryRequest { before: "48".into(), ..Default::default() };
    assert_eq!(field(store.history(history).await.unwrap_err()), "before");
    let watch = proto::WatchRequest { after: "s0000-1".into(), ..Default::default() };
    assert_eq!(field(store.watch(watch).await.unwrap_err()), "after");
    let bookmark_every = Some(prost_types::Duration { seconds: 0, nanos: 1 });
    let watch = proto::WatchRequest { bookmark_every, ..Default::default() };
    assert_eq!(field(store.watch(watch).await.unwrap_err()), "bookmark_every");
}

#[tokio::test]
async fn st26_the_pages_of_a_list_are_of_one_revision() {
    let served = serve().await;
    let committed = served.commit((0..25).map(|number| put(&format!("n{number:02}"), "1")).collect()).await;
    let mut store = served.store().await;
    let mut request = proto::ListRequest { page_size: 10, ..Default::default() };
    let mut read = Vec::new();
    loop {
        let page = store.list(request.clone()).await.unwrap().into_inner();
        assert_eq!(page.revision, committed.revision);
        read.extend(page.records);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
        served.commit(vec![delete(&format!("n{:02}", read.len())), put("z", &read.len().to_string())]).await;
    }
    assert_eq!(read.len(), 25);
    assert!(read.iter().all(|record| record.content.as_ref().unwrap().payload == "1"));
    // The token is of the filter.
    request.filter = Some(proto::Filter { names: vec!["n*".into()], ..Default::default() });
    assert_eq!(store.list(request).await.unwrap_err().code(), Code::InvalidArgument);
    let request = proto::ListRequest { without_payload: true, ..Default::default() };
    let page = store.list(request).await.unwrap().into_inner();
    assert_eq!(page.records.len(), 24);
    assert!(page.records.iter().all(|record| record.content.as_ref().unwrap().payload.is_empty()));
}

#[tokio::test]
async fn a_page_is_small_enough_for_clients_with_the_default_limit_of_grpc() {
    let served = serve().await;
    let large = "x".repeat(700 << 10);
    served.commit((0..4).map(|number| put(&number.to_string(), &large)).collect()).await;
    served.commit(vec![put("4", &"y".repeat((4 << 20) - (65 << 10)))]).await;
    let mut store = served.store().await;
    let mut request = proto::ListRequest::default();
    let mut sizes = Vec::new();
    loop {
        let page = store.list(request.clone()).await.unwrap().into_inner();
        sizes.push(page.records.len());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(sizes, [1, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn st25_at_least_waits_for_a_revision_and_then_says_not_ready() {
    let served = serve().await;
    let committed = served.commit(vec![put("a", "1")]).await;
    let mut store = served.store().await;
    let reached = proto::GetRequest { at_least: committed.revision.clone(), ..get("a") };
    store.get(reached).await.unwrap();
    let ahead = committed.revision.replace("-1", "-9");
    let status = store.get(proto::GetRequest { at_least: ahead, ..get("a") }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let not_ready: proto::NotReady = detail(&status);
    assert_eq!(not_ready.condition(), proto::status_response::Condition::Serving);
    assert!(not_ready.retry_after.is_some());
}

#[tokio::test]
async fn st23_the_log_keeps_time_identity_owner_and_message_of_a_commit() {
    let served = serve().await;
    served.policy.set("token:ci", Rights { owner: Some("shop".into()), ..Rights::everything() });
    let mut store = served.store_as(Some(CI)).await;
    let began = xds_store::time::from_proto(&SystemTime::now().into());
    let request = proto::CommitRequest { message: "why".into(), ..commit_of(vec![put("a", "1")]) };
    store.commit(request).await.unwrap();
    let history = store.history(proto::HistoryRequest::default()).await.unwrap().into_inner();
    let [commit] = &history.commits[..] else { panic!("{history:?}") };
    // A request has no field for the identity: it is that of the token.
    let logged = (&*commit.identity, &*commit.owner, &*commit.message);
    assert_eq!(logged, ("token:ci", "shop", "why"));
    let at = xds_store::time::from_proto(commit.at.as_ref().unwrap());
    assert!((began..began + 60_000_000_000).contains(&at), "{at} is not after {began}");
}

#[tokio::test]
async fn st34_history_has_identity_message_and_content_of_each_commit() {
    let served = serve().await;
    served.commit(vec![put("a", "1"), put("b", "1")]).await;
    let mut store = served.store().await;
    let change = proto::CommitRequest { message: "why".into(), ..commit_of(vec![put("a", "2")]) };
    store.commit(change).await.unwrap();
    served.commit(vec![delete("a")]).await;
    let request = proto::HistoryRequest { key: Some(key("a")), limit: 2, ..Default::default() };
    let page = store.history(request.clone()).await.unwrap().into_inner();
    assert_eq!((page.commits.len(), &*page.floor), (2, ""));
    assert_eq!(page.commits[0].changes[0].content, None);
    let commit = &page.commits[1];
    // ST23: the identity is that of the connection.
    assert_eq!((&*commit.identity, &*commit.message), ("local", "why"));
    assert_eq!(commit.changes[0].content.as_ref().unwrap().payload, "2");
    let last =
        store.history(proto::HistoryRequest { before: page.next, ..request }).await.unwrap().into_inner();
    assert_eq!((last.commits.len(), &*last.next), (1, ""));
    assert_eq!(last.commits[0].changes.len(), 1);
    let all = proto::HistoryRequest { without_payload: true, ..Default::default() };
    let all = store.history(all).await.unwrap().into_inner();
    assert_eq!(all.commits.len(), 3);
    assert!(all.commits[1].changes[0].content.as_ref().unwrap().payload.is_empty());
}

#[tokio::test]
async fn sv6_a_client_gets_no_newer_version_than_it_knows() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let schemas = Schemas::default().declare(&key("a").type_url, "1.1".parse().unwrap()).unwrap();
    let mut config = StoreConfig::default();
    config.schemas = schemas.into();
    let served = serve_configured(engine, config, |_| {}).await;
    served.commit(vec![put("a", "1")]).await;
    let mut store = served.store().await;
    let schema = |record: Option<proto::Record>| record.unwrap().content.unwrap().schema;
    for (knows, shown) in [("", "1.1"), ("1", "1.0+downgraded"), ("2.0", "1.1")] {
        let request = proto::GetRequest { knows: knows.into(), ..get("a") };
        assert_eq!(schema(store.get(request).await.unwrap().into_inner().record), shown);
    }
    let knows = vec![proto::Knows { type_url: key("a").type_url, version: "1.0".into() }];
    let list = proto::ListRequest { knows: knows.clone(), ..Default::default() };
    let listed = store.list(list).await.unwrap().into_inner().records;
    assert_eq!(listed.into_iter().map(|record| schema(Some(record))).collect::<Vec<_>>(), ["1.0+downgraded"]);
    let watch = proto::WatchRequest { knows, ..Default::default() };
    let first = store.watch(watch).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let watched = first.events.into_iter().map(|event| schema(event.record));
    assert_eq!(watched.collect::<Vec<_>>(), ["1.0+downgraded"]);

    let request = proto::GetRequest { knows: "new".into(), ..get("a") };
    let why = violation(&store.get(request).await.unwrap_err(), Code::InvalidArgument).why;
    assert_eq!(why, Some(Why::Invalid(proto::Invalid { field: "knows".into() })));
}
