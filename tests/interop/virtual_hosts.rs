//! VHDS opens at once (D33): with the HTTP filter that demands hosts, and without it; directly, and through
//! a proxy.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::mode::{Mode, Protocol};
use crate::on_demand::{ask, demanding, domain, routes_on_demand};
use crate::peers;
use crate::resources::listener;
use crate::server::Server;
use crate::wait::{SOON, until};
use crate::world::one_turn;

#[derive(Debug, Clone, Copy)]
struct Case {
    mode: Mode,
    has_filter: bool,
    is_proxied: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filter = if self.has_filter { "with the filter" } else { "without the filter" };
        let through = if self.is_proxied { ", through a proxy" } else { "" };
        write!(f, "{}, {filter}{through}", self.mode)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d33_a_listener_whose_routes_use_vhds_opens_at_once() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turn = one_turn().await;
    for mode in Mode::ALL.into_iter().filter(|mode| mode.protocol == Protocol::Delta) {
        for has_filter in [false, true] {
            for is_proxied in [false, true] {
                run(Case { mode, has_filter, is_proxied }).await;
            }
        }
    }
}

async fn run(case: Case) {
    eprintln!("--- {case}");
    let (folder, scratch) = (Folder::new(), Folder::new());
    let write_routes = |name: &str, routes: &str| {
        let listener = if case.has_filter { demanding } else { listener }(case.mode, name, routes);
        folder.write(&format!("{name}.json"), &[listener, routes_on_demand(case.mode, routes)]);
    };
    write_routes("web", "rc");
    folder.write("hosts.json", &[host("rc", "a"), host("rc", "gone"), host("rc2", "a")]);
    let mut server = Server::start(folder.path()).await;
    let proxy = if case.is_proxied { Some(Server::proxy(server.port, &[]).await) } else { None };
    let port = proxy.as_ref().map_or(server.port, |proxy| proxy.port);
    let envoy = Envoy::launch_as(scratch.path(), case.mode, port, &json!({})).await.expect("it is installed");

    let start = Instant::now();
    let web = envoy.port("web").await;
    until_answer(&case, web, "a", "200 a").await;
    assert_at_once(&case, "web", start.elapsed());
    assert_eq!(ask(web, "gone").await, "200 gone", "{case}");
    assert_eq!(ask(web, "none").await, "404 ", "{case}");

    // On one stream for all types Envoy sends no request for the virtual hosts of other routes.
    let start = Instant::now();
    write_routes("other", "rc2");
    let other = envoy.port("other").await;
    until_answer(&case, other, "a", "200 a").await;
    assert_at_once(&case, "other", start.elapsed());

    folder.write("late.json", &[host("rc", "late")]);
    until_answer(&case, web, "late", "200 late").await;

    // D21: a host that went while the server was away.
    server.kill().await;
    folder.write("hosts.json", &[host("rc", "a"), host("rc", "new"), host("rc2", "a")]);
    server.restart().await;
    for (host, answer) in [("gone", "404 "), ("new", "200 new"), ("a", "200 a")] {
        until_answer(&case, web, host, answer).await;
    }
    let log = |server: &Server| server.lines_with("NACK");
    assert_eq!(log(proxy.as_ref().unwrap_or(&server)), [] as [String; 0], "{case}");
}

async fn until_answer(case: &Case, port: u16, host: &str, expected: &str) {
    let what = format!("{case}: {host} answers {expected}");
    until(&what, SOON, async || (ask(port, host).await == expected).then_some(())).await;
}

fn assert_at_once(case: &Case, listener: &str, took: Duration) {
    eprintln!("{case}: {listener} answers after {took:.1?}");
    assert!(took < AT_ONCE, "{case}: {listener} took {took:?}");
}

/// A virtual host with one domain, which answers with its name.
fn host(routes: &str, name: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.VirtualHost",
        "name": format!("{routes}/{name}"),
        "domains": [domain(name)],
        "routes": [{
            "match": {"prefix": "/"},
            "direct_response": {"status": 200, "body": {"inline_string": name}},
        }],
    })
}

/// Without an answer it is 15 s.
const AT_ONCE: Duration = Duration::from_secs(2);
