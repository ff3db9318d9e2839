//! The metrics of gRFC A78, with the server of this project.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use xds_client::prometheus::Metrics;

use super::*;

/// A registry, and a client with metrics in it.
struct Counted {
    registry: Registry,
    client: Client,
}

impl Counted {
    fn start(builder: ClientBuilder) -> Self {
        let mut registry = Registry::default();
        let target = Metrics::register(&mut registry).target("checkout");
        let client = builder.recorder(target.clone()).start().unwrap();
        target.count_resources_of(&client);
        Self { registry, client }
    }

    /// The text of a scrape, without comments and common parts.
    fn scrape(&self) -> Vec<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("grpc_"));
        let mut lines: Vec<_> = lines
            .map(|line| {
                assert!(line.contains("{grpc_target=\"checkout\""), "{line}");
                let line = line.replace("grpc_xds_client_", "").replace("{grpc_target=\"checkout\",", "{");
                line.replace("grpc_xds_", "").replace("server=\"memory:1\"", "memory")
            })
            .collect();
        lines.sort();
        lines
    }
}

#[tokio::test(start_paused = true)]
async fn a_watched_type_counts_by_its_state_on_the_server() {
    for protocol in BOTH {
        let mut origin = Origin::start();
        origin.put(&[("a", "", "1")]);
        let counted = Counted::start(origin.client(protocol));
        let mut a = counted.client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
        let types = || {
            let mut text = String::new();
            encode(&mut text, &counted.registry).unwrap();
            text.lines()
                .filter(|line| line.starts_with("xds_client_types"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let line = |state| {
            let server = "grpc_xds_server=\"memory:1\",grpc_xds_resource_type=\"acme.Thing\"";
            format!("xds_client_types{{grpc_target=\"checkout\",{server},state=\"{state}\"}} 1")
        };
        assert_eq!(types(), [line("synced")], "{protocol:?}");
        origin.off().await;
        origin.on();
        // D21b: in delta the new stream confirms it at once; in SotW a server sends what it has.
        while types() != [line("synced")] {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        drop(a);
    }
}

#[tokio::test]
async fn p2_connected_counts_from_the_first_stream_and_ends_when_nobody_needs_it() {
    for protocol in BOTH {
        let origin = Origin::start();
        let counted = Counted::start(origin.client(protocol));
        assert_eq!(counted.scrape(), [""; 0]);
        // There is no response: in SotW, silence means absence.
        let watcher = counted.client.watch::<Thing>("none").unwrap();
        while origin.cache.subscription_counts().names == 0 {
            tokio::task::yield_now().await;
        }
        assert!(counted.scrape().contains(&"connected{memory} 1".to_owned()), "{:?}", counted.scrape());
        drop(watcher);
        while !counted.scrape().is_empty() && counted.scrape()[0].starts_with("connected") {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p2_an_outage_counts_once_and_a_response_ends_it() {
    for protocol in BOTH {
        let mut origin = Origin::start();
        origin.put(&[("a", "", "1")]);
        let counted = Counted::start(origin.client(protocol));
        let mut a = counted.client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
        let valid = "resource_updates_valid_total{memory,resource_type=\"acme.Thing\"}";
        let invalid = "resource_updates_invalid_total{memory,resource_type=\"acme.Thing\"} 0";
        let resources = "resources{authority=\"#old\",cache_state=\"acked\",resource_type=\"acme.Thing\"} 1";
        assert_eq!(counted.scrape(), ["connected{memory} 1", invalid, &format!("{valid} 1"), resources]);

        origin.off().await;
        assert!(matches!(next(&mut a).await, Event::Ambient(Some(_))));
        // Further failed attempts do not count as further failures.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let failures = "server_failure_total{memory} 1";
        assert_eq!(
            counted.scrape(),
            ["connected{memory} 0", invalid, &format!("{valid} 1"), resources, failures]
        );

        origin.on();
        // The next attempt may be far away.
        let well = tokio::time::timeout(Duration::from_secs(300), a.next()).await;
        assert!(matches!(well, Ok(Some(Event::Ambient(None)))));
        // P1.21: also in delta, where the server may have nothing to send (D21).
        let told = async {
            while counted.scrape()[0] != "connected{memory} 1" {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(1), told).await.expect("in time");
        origin.off().await;
        assert!(matches!(next(&mut a).await, Event::Ambient(Some(_))));
        assert_eq!(counted.scrape().last().unwrap(), "server_failure_total{memory} 2");
    }
}

#[tokio::test(start_paused = true)]
async fn p2_a_server_that_never_answered_fails_once() {
    let mut origin = Origin::start();
    origin.off().await;
    let counted = Counted::start(origin.client(Protocol::Delta));
    let mut a = counted.client.watch::<Thing>("a").unwrap();
    assert!(matches!(next(&mut a).await, Event::Absent(_)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let requested = "resources{authority=\"#old\",cache_state=\"requested\",resource_type=\"acme.Thing\"} 1";
    assert_eq!(counted.scrape(), ["connected{memory} 0", requested, "server_failure_total{memory} 1"]);
}

#[tokio::test]
async fn p2_a_bad_resource_is_counted_and_its_copy_is_cached() {
    let origin = Origin::start();
    origin.put(&[("a", "", "1"), ("b", "", "1")]);
    let counted = Counted::start(origin.client(Protocol::Delta));
    let mut both = counted.client.watch_many::<Thing>(["a", "b", "c"]).unwrap();
    for watcher in &mut both[..2] {
        assert_eq!(changed(watcher).await, "1");
    }
    assert!(matches!(next(&mut both[2]).await, Event::Absent(_)));
    let bad = Resource::new(THING, "a", bytes::Bytes::from_static(b"\x12\xff")).unwrap();
    // S6c: in one response, the server would send the bad one once more.
    let mut transaction = Transaction::new();
    transaction.put(bad);
    origin.cache.commit(transaction).unwrap();
    assert!(matches!(next(&mut both[0]).await, Event::Ambient(Some(_))));
    let mut transaction = Transaction::new();
    transaction.remove(VariantId::unconstrained(THING, "b"));
    origin.cache.commit(transaction).unwrap();
    assert!(matches!(next(&mut both[1]).await, Event::Ambient(Some(_))));
    let resources = |state: &str| {
        format!("resources{{authority=\"#old\",cache_state=\"{state}\",resource_type=\"acme.Thing\"}} 1")
    };
    assert_eq!(
        counted.scrape(),
        [
            "connected{memory} 1".to_owned(),
            "resource_updates_invalid_total{memory,resource_type=\"acme.Thing\"} 1".to_owned(),
            "resource_updates_valid_total{memory,resource_type=\"acme.Thing\"} 2".to_owned(),
            resources("does_not_exist"),
            resources("does_not_exist_but_cached"),
            resources("nacked_but_cached"),
        ]
    );
    // Counters outlive the client, gauges do not.
    let Counted { registry, client } = counted;
    drop((both, client));
    let mut text = String::new();
    loop {
        text.clear();
        encode(&mut text, &registry).unwrap();
        if !text.contains("connected{") {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(!text.contains("_resources{") && text.contains("_valid_total{"), "{text}");
}
