//! Virtual hosts on demand (D24, D25): Envoy subscribes to a host at the first request for it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::folder::Folder;
use crate::http;
use crate::load::{Connections, Load};
use crate::mode::{Mode, Protocol};
use crate::resources::{cluster, endpoints, listener, routes};
use crate::wait::{SOON, until};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_virtual_host_comes_on_demand() {
    for mode in Mode::ALL.into_iter().filter(|mode| mode.protocol == Protocol::Delta) {
        let fill = |folder: &mut Folder, red, blue| {
            folder.write("listener.json", &[demanding(mode, "web", "demand")]);
            folder.write("routes.json", &[routes_on_demand(mode, "demand")]);
            folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "two")]);
            folder.write("endpoints.json", &[endpoints("one", red), endpoints("two", blue)]);
            folder.write("known.json", &[virtual_host("demand", "known", "one")]);
        };
        let Some(world) = World::start_from(mode, fill).await else { return };
        let port = world.port;
        assert_eq!(ask(port, "known").await, "200 red", "{mode}: the first request waits for the host");
        assert_none(port, "unknown").await;

        let hosts = Vec::from_iter((0..HOSTS).map(|number| format!("host-{number}")));
        for host in &hosts {
            let file = format!("{host}.json");
            write(&world, &file, &virtual_host("demand", host, "one")).await;
            assert_eq!(ask(port, host).await, "200 red", "{mode}: {host}, the first request");
            let load = Load::start_from(port, &domain(host), "/", Connections::New);
            write(&world, &file, &virtual_host("demand", host, "two")).await;
            until_answer(port, host, "200 blue").await;
            load.finish().await.assert_nothing_lost();
        }

        // A host that did not exist is sent as soon as it exists.
        assert_none(port, "late").await;
        write(&world, "late.json", &virtual_host("demand", "late", "two")).await;
        until_answer(port, "late", "200 blue").await;

        for host in hosts.iter().map(String::as_str).chain(["late"]) {
            world.folder.remove(&format!("{host}.json"));
        }
        for host in hosts.iter().map(String::as_str).chain(["late"]) {
            let ((), took) = until_answer(port, host, "404 ").await;
            eprintln!("{mode}: {host} is gone after {took:.1?}");
            assert_none(port, host).await;
        }
        assert_eq!(ask(port, "known").await, "200 red", "{mode}: the others stay");
        // The host comes back.
        write(&world, "late.json", &virtual_host("demand", "late", "one")).await;
        until_answer(port, "late", "200 red").await;
        assert_eq!(world.server.lines_with("NACK"), [] as [String; 0], "{mode}");
    }

    /// Writes `resource`, and waits until the server has read it.
    async fn write(world: &World, file: &str, resource: &Value) {
        let reloads = || world.server.lines_with("folder reloaded").len();
        let before = reloads();
        world.folder.write(file, std::slice::from_ref(resource));
        until("the folder is read", SOON, async || (reloads() > before).then_some(())).await;
    }

    /// The host does not exist, which the server reports at once.
    async fn assert_none(port: u16, host: &str) {
        let start = Instant::now();
        assert_eq!(ask(port, host).await, "404 ", "{host}");
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{host} took {took:?}");
    }

    async fn until_answer(port: u16, host: &str, expected: &str) -> ((), Duration) {
        let what = format!("{host} answers {expected}");
        until(&what, SOON, async || (ask(port, host).await == expected).then_some(())).await
    }

    const HOSTS: usize = 5;
    /// The step takes milliseconds; the rest of the time is for a busy machine.
    const AT_ONCE: Duration = Duration::from_secs(2);
}

/// The status and body of the answer of `host`.
pub(crate) async fn ask(port: u16, host: &str) -> String {
    match http::get_from(port, &domain(host), "/").await {
        Ok(answer) => format!("{} {}", answer.status, answer.body),
        Err(failure) => format!("{failure:?}"),
    }
}

/// A listener whose routes have virtual hosts on demand.
pub(crate) fn demanding(mode: Mode, name: &str, routes: &str) -> Value {
    let mut listener = listener(mode, name, routes);
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    let filters = manager["http_filters"].as_array_mut().expect("it has a router");
    let on_demand = "type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand";
    filters.insert(0, json!({"name": "envoy.filters.http.on_demand", "typed_config": {"@type": on_demand}}));
    listener
}

/// A route configuration whose virtual hosts come by VHDS.
pub(crate) fn routes_on_demand(mode: Mode, name: &str) -> Value {
    let mut routes = routes(name, &[]);
    routes["virtual_hosts"] = json!([]);
    routes["vhds"] = json!({"config_source": mode.config_source()});
    routes
}

/// The virtual host `host` of the route configuration `routes`, which has one domain.
pub(crate) fn virtual_host(routes: &str, host: &str, cluster: &str) -> Value {
    let (name, domain) = (format!("{routes}/{host}"), domain(host));
    json!({
        "@type": "type.googleapis.com/envoy.service.discovery.v3.Resource",
        "name": name,
        "aliases": [format!("{routes}/{domain}")],
        "resource": {
            "@type": "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            // Envoy 1.40 finds a removed host by this name, so it must be the full name.
            "name": name,
            "domains": [domain],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster}}],
        },
    })
}

/// The `Host` header of requests for `host`.
pub(crate) fn domain(host: &str) -> String {
    format!("{host}.example")
}
