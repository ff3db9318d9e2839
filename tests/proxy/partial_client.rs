//! A program with a client and no proxy, whose upstream ends each stream that subscribes to runtimes (G4b).

use std::time::{Duration, Instant};

use tonic::Code;
use xds::Cache;
use xds::client::bootstrap::Bootstrap;
use xds::client::{Client, Event, Protocol, Raw, Watcher};
use xds::type_url::{CLUSTER, RUNTIME, SECRET};

use super::partial::{REFUSED, Refusal, Upstream, commit};

/// The next event, in short.
async fn next(watcher: &mut Watcher<Raw>) -> String {
    let next = tokio::time::timeout(Duration::from_secs(20), watcher.next()).await;
    match next.expect("in time").expect("the client lives") {
        Event::Changed(_) => "changed".to_owned(),
        Event::Absent(failure) => failure.to_string(),
        Event::Ambient(failure) => format!("beside {failure:?}"),
    }
}

#[test]
fn g4b_a_client_has_the_other_types_and_the_refused_one_after_an_upgrade() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        for code in [Code::Unimplemented, Code::InvalidArgument] {
            run(protocol, code);
        }
    }
}

fn run(protocol: Protocol, code: Code) {
    let origin = Cache::new();
    commit(&origin, "1");
    let upstream = Upstream::start(&origin, Refusal::Always, code);
    let address = format!("http://{}", upstream.address);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = Instant::now();
    let client = runtime.block_on(async {
        Client::builder(Bootstrap::to_server(&address)).protocol(protocol).speaks_locators().start().unwrap()
    });
    let watch = |type_url: &str| client.with([("env", "a")]).watch_raw(&type_url.into(), "x").unwrap();
    let [mut cluster, mut secret, mut refused] = [CLUSTER, SECRET, RUNTIME].map(watch);
    runtime.block_on(async {
        assert_eq!((next(&mut cluster).await, next(&mut secret).await), ("changed".into(), "changed".into()));
        let text = next(&mut refused).await;
        assert!(text.ends_with(REFUSED), "{text}");
        let took = start.elapsed();
        eprintln!("{protocol:?} {code:?}: all are known after {took:.1?}");
        assert!(took < Duration::from_secs(3), "{took:?}");
        commit(&origin, "2");
        assert_eq!((next(&mut cluster).await, next(&mut secret).await), ("changed".into(), "changed".into()));
    });
    let upstream = upstream.upgrade(&origin);
    runtime.block_on(async {
        // The watcher is also told that the server is away, and when it is back.
        while next(&mut refused).await != "changed" {}
    });
    drop((client, runtime));
    upstream.stop();
}
