//! The page of a large server: 100,000 resources and 10,000 clients; a tenth of both in a debug
//! build.

use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::browser;
use crate::fleet::{Client, Fleet};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_asks_for_little_however_much_there_is() {
    let Some(browser) = browser("scale").await else { return };
    let (resources, clients) = if cfg!(debug_assertions) { (10_000, 1_000) } else { (100_000, 10_000) };
    let fleet = Fleet::start().await;
    let names = (0..resources).map(|number| format!("thing-{number:06}"));
    fleet.put(THING, names, "content").expect("nothing is wrong");
    let mut joined = Vec::new();
    for connection in 0..clients / CLIENTS_PER_CONNECTION {
        let channel = fleet.connect().await;
        for number in 0..CLIENTS_PER_CONNECTION {
            let number = connection * CLIENTS_PER_CONNECTION + number;
            let (id, pod) = (format!("edge-{number:05}"), number.to_string());
            let parameters = [("env", "prod"), ("pod", &*pod)];
            joined.push(Client::join(&channel, &id, &parameters, THING, &format!("thing-{number:06}")).await);
        }
    }

    // A cold start: the first time includes sorting the names of this revision.
    for path in [
        "/api/",
        "/api/clients",
        "/api/clients?search=edge-00420",
        "/api/clients/edge-00420?cluster=web",
        "/api/resources",
        "/api/resources?page=77",
        "/api/resources?search=9420",
        "/api/resources/Thing/thing-004200",
        "/api/commits",
        "/api/troubles",
    ] {
        let mut took = Vec::new();
        let mut len = 0;
        for _ in 0..TRIES {
            let begun = Instant::now();
            let (head, body) = get(&fleet, path).await;
            took.push(begun.elapsed());
            assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
            let answer: Value = serde_json::from_str(&body).expect("JSON");
            let rows = answer["rows"].as_array().map_or(0, Vec::len);
            assert!(rows <= 50 && body.len() < 64 << 10, "{path}: {rows} rows, {} bytes", body.len());
            len = body.len();
        }
        let first = took[0];
        took.sort();
        println!("{path}: first {first:?}, then {:?} (median of {TRIES}), {len} bytes", took[TRIES / 2]);
    }

    browser.open(&fleet.page("")).await;
    browser
        .until("document.querySelectorAll('main tbody tr').length === 50 && 'ready' in document.body.dataset")
        .await;
    let loaded = browser.value(LOADED).await;
    println!(
        "page of {clients} clients: rows after {} ms, {} requests, {} bytes",
        loaded[0], loaded[1], loaded[2]
    );
    let (requests, bytes) = (loaded[1].as_u64().expect("a count"), loaded[2].as_u64().expect("a count"));
    assert!(requests <= 12 && bytes < 512 << 10, "{loaded}");
    browser.open(&fleet.page("#/resources")).await;
    browser.until("document.querySelector('main tbody')?.textContent.includes('thing-000049')").await;
    let rows = browser.value("document.querySelectorAll('main *').length").await;
    assert!(rows.as_u64().expect("a count") < 2000, "{rows} elements");
    drop(joined);
}

async fn get(fleet: &Fleet, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(fleet.admin).await.expect("the port is open");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// The time until the first rows were shown, and the number of requests and bytes, without the
/// endless stream of events.
const LOADED: &str = "(() => {
    const all = performance.getEntriesByType('resource').filter((entry) => !entry.name.endsWith('/events'));
    const page = performance.getEntriesByType('navigation')[0];
    const bytes = all.concat(page).reduce((sum, entry) => sum + entry.transferSize, 0);
    return [Math.round(performance.getEntriesByName('rows')[0].startTime), all.length + 1, bytes];
})()";

const THING: &str = "type.googleapis.com/acme.Thing";

/// Clients per connection; a connection may have 200 streams.
const CLIENTS_PER_CONNECTION: usize = 100;

const TRIES: usize = 9;
