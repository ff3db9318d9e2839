use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use xds_core::server::{DeltaRequest, Next, Protocol, Service, Stream, StreamConfig};
use xds_core::{Resource, Transaction};

use super::*;

/// Records each span when it ends, with its fields.
#[derive(Debug)]
struct Ends {
    spans: Mutex<Vec<(String, usize)>>,
    lines: mpsc::UnboundedSender<String>,
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        *self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Ends {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = span.metadata().name().to_owned();
        span.record(&mut Text(&mut text));
        let mut spans = self.spans.lock().unwrap();
        spans.push((text, 1));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut Text(&mut self.spans.lock().unwrap()[span.into_u64() as usize - 1].0));
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.spans.lock().unwrap()[span.into_u64() as usize - 1].1 += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let (text, holders) = &mut self.spans.lock().unwrap()[span.into_u64() as usize - 1];
        *holders -= 1;
        if *holders == 0 {
            _ = self.lines.send(text.clone());
        }
        *holders == 0
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn put(cache: &Cache, content: &str) {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new(TYPE, "a", content.to_owned()).unwrap());
    cache.commit(transaction).unwrap();
}

fn asking(cache: &Arc<Cache>, id: &str) -> Stream {
    let watch = cache.watch();
    watch.name_client(ClientName { id: id.into(), cluster: "edge".into() });
    let mut stream = Stream::new(watch, Service::Aggregated, Protocol::Delta, StreamConfig::default());
    let subscribe = vec!["a".into()].into();
    stream
        .on_request(
            Duration::ZERO,
            DeltaRequest { type_url: TYPE.into(), subscribe, ..DeltaRequest::default() },
        )
        .unwrap();
    answer(cache, &mut stream, None);
    stream
}

fn answer(cache: &Cache, stream: &mut Stream, error: Option<&str>) {
    let Next::Send(response) = stream.next(Duration::ZERO, &cache.snapshot()) else { panic!("it is due") };
    let (response_nonce, error_detail) = (Some(response.nonce), error.map(str::to_owned));
    let answer =
        DeltaRequest { type_url: TYPE.into(), response_nonce, error_detail, ..DeltaRequest::default() };
    stream.on_request(Duration::ZERO, answer).unwrap();
    assert!(matches!(stream.next(Duration::ZERO, &cache.snapshot()), Next::Wait { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_a_span_with_one_for_each_answer_and_both_end_with_it() {
    let (lines, mut ended) = mpsc::unbounded_channel();
    let _tracing = tracing::subscriber::set_default(Ends { spans: Mutex::default(), lines });
    let cache = Cache::new();
    put(&cache, "1");
    let (mut accepts, mut rejects) = (asking(&cache, "accepts"), asking(&cache, "rejects"));
    tokio::spawn(trace_commits(&cache));
    put(&cache, "2");
    answer(&cache, &mut accepts, None);
    let answer_of = |node: &str| format!("answer type=\"acme.Thing\" node=\"{node}\" cluster=\"edge\"");
    assert_eq!(ended.recv().await.unwrap(), format!("{} outcome=\"acked\"", answer_of("accepts")));
    answer(&cache, &mut rejects, Some("no"));
    let nacked = "outcome=\"nacked\" detail=\"no\" otel.status_code=\"ERROR\"";
    assert_eq!(ended.recv().await.unwrap(), format!("{} {nacked}", answer_of("rejects")));
    let commit =
        "commit revision=2 changed=1 types=\"acme.Thing\" concerned=2 acked=1 nacked=1 gone=0 undecided=0";
    assert_eq!(ended.recv().await.unwrap(), commit);
}

#[tokio::test(start_paused = true)]
async fn so_many_answers_to_a_commit_are_shown_and_the_others_counted() {
    let (lines, mut ended) = mpsc::unbounded_channel();
    let _tracing = tracing::subscriber::set_default(Ends { spans: Mutex::default(), lines });
    let cache = Cache::new();
    put(&cache, "1");
    let streams: Vec<_> = (0..ANSWERS_SHOWN + 5).map(|number| asking(&cache, &number.to_string())).collect();
    tokio::spawn(trace_commits(&cache));
    put(&cache, "2");
    tokio::task::yield_now().await;
    drop(streams);
    for _ in 0..ANSWERS_SHOWN {
        assert!(ended.recv().await.unwrap().ends_with("outcome=\"gone\""));
    }
    let commit = ended.recv().await.unwrap();
    assert!(commit.ends_with(&format!("gone={} undecided=0", ANSWERS_SHOWN + 5)), "{commit}");
}

const TYPE: &str = "example.com/acme.Thing";
