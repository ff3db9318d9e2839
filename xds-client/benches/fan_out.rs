//! Claim: however many resources one stream watches, one update reaches its watcher in the same
//! time; and a subscription costs less than 1 KiB of memory before its resource comes.
//!
//! Size: 1,000, 10,000 and 100,000 names, each with a watcher, on one delta stream to our own
//! server over memory; 2,000 changes one after the other, from the commit to the watcher. Peer: the
//! same with the least names.
//!
//!     cargo bench -p xds-client --bench fan_out
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

use std::alloc::System;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::io::duplex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use xds_client::bootstrap::Bootstrap;
use xds_client::{Client, Connector, Event, Io, Protocol, Watcher};
use xds_core::{Cache, Resource, Transaction};
use xds_server::{Server, ServerConfig};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[derive(Clone, PartialEq, Message)]
struct Thing {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "bytes", tag = "2")]
    content: bytes::Bytes,
}

impl prost::Name for Thing {
    const NAME: &'static str = "Thing";
    const PACKAGE: &'static str = "acme";
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!(
        "| names | bytes per subscription | with its resource of 200 B | one change, us (median, p99) |"
    );
    println!("| --- | --- | --- | --- |");
    let medians: Vec<_> = COUNTS.map(|count| runtime.block_on(measure(count))).into();
    let ratio = medians[medians.len() - 1].as_secs_f64() / medians[0].as_secs_f64();
    println!("\n{ratio:.2}x from {} to {} names", COUNTS[0], COUNTS[COUNTS.len() - 1]);
    assert!(ratio <= 2.0, "one update does not reach its watcher in constant time");
}

async fn measure(count: usize) -> Duration {
    let cache = Cache::new();
    put(&cache, 0..count, 0);
    let (sender, connections) = mpsc::channel(1);
    let config = ServerConfig::default();
    let server = Server::new(Arc::clone(&cache)).with_config(config);
    tokio::spawn(async move {
        server.serve_with_incoming(ReceiverStream::new(connections), std::future::pending()).await.unwrap();
    });
    // No server runs until everything is watched, so that only the subscriptions count.
    let (open, opened) = tokio::sync::watch::channel(false);
    let connector: Connector = Arc::new(move |_| {
        let (sender, mut opened) = (sender.clone(), opened.clone());
        Box::pin(async move {
            opened.wait_for(|open| *open).await.unwrap();
            let (ours, theirs) = duplex(1 << 20);
            sender.send(Ok::<_, io::Error>(theirs)).await.unwrap();
            Ok(Box::new(ours) as Box<dyn Io>)
        })
    });
    let client =
        Client::builder(Bootstrap::to_server("memory:1")).protocol(Protocol::Delta).connector(connector);
    let client = client.start().unwrap();
    let names: Vec<_> = (0..count).map(name).collect();
    let region = Region::new(ALLOCATOR);
    let mut watchers = client.watch_many::<Thing>(names.iter().map(String::as_str)).unwrap();
    let subscribed = held(&region);
    open.send(true).unwrap();
    for watcher in &mut watchers {
        assert_eq!(revision(watcher).await, 0);
    }
    let loaded = held(&region);
    let mut times = Vec::with_capacity(CHANGES);
    for change in 1..=CHANGES {
        let at = change * 7919 % count;
        let start = Instant::now();
        put(&cache, at..at + 1, change);
        while revision(&mut watchers[at]).await != change {}
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let (median, late) = (times[CHANGES / 2], times[CHANGES * 99 / 100]);
    println!(
        "| {count} | {} | {} | {:.0}, {:.0} |",
        subscribed / count,
        loaded / count,
        median.as_secs_f64() * 1e6,
        late.as_secs_f64() * 1e6
    );
    median
}

fn put(cache: &Cache, numbers: std::ops::Range<usize>, revision: usize) {
    let mut transaction = Transaction::new();
    for number in numbers {
        let mut content = vec![0; 150];
        content[..8].copy_from_slice(&revision.to_le_bytes());
        let thing = Thing { name: name(number), content: content.into() };
        let payload = thing.encode_to_vec();
        transaction.put(Resource::new(TYPE, thing.name.as_str(), payload).unwrap());
    }
    cache.commit(transaction).unwrap();
}

fn name(number: usize) -> String {
    format!("outbound|8080||service-{number:06}.default.svc")
}

/// The allocated bytes beyond those at the start of the region.
fn held(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

async fn revision(watcher: &mut Watcher<Thing>) -> usize {
    match watcher.next().await {
        Some(Event::Changed(thing)) => usize::from_le_bytes(*thing.content.first_chunk().unwrap()),
        other => panic!("unexpected {other:?}"),
    }
}

const TYPE: &str = "type.googleapis.com/acme.Thing";
const COUNTS: [usize; 3] = [1_000, 10_000, 100_000];
const CHANGES: usize = 2_000;
