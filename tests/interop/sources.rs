//! Envoy gets what a listener names by another configuration source (S34b), and by RDS: directly and through
//! a proxy.

use std::fmt;

use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::http;
use crate::mode::{Mode, Streams};
use crate::peers;
use crate::rejected::{inline_listener, scoped_listener, secret};
use crate::resources::listener;
use crate::server::Server;
use crate::wait::{SOON, until};
use crate::world::one_turn;

/// What the listeners name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Secret,
    Filter,
    Scopes,
    Routes,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    mode: Mode,
    named: Named,
    is_proxied: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let through = if self.is_proxied { ", through a proxy" } else { "" };
        write!(f, "{}, {:?}{through}", self.mode, self.named)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s34b_what_a_listener_names_by_another_source_is_sent_again() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turn = one_turn().await;
    // With a stream for each subscription there is nothing to share.
    for mode in Mode::ALL.into_iter().filter(|mode| mode.streams == Streams::Ads) {
        for named in [Named::Secret, Named::Filter, Named::Scopes, Named::Routes] {
            for is_proxied in [false, true] {
                run(Case { mode, named, is_proxied }).await;
            }
        }
    }
}

async fn run(case: Case) {
    eprintln!("--- {case}");
    let (folder, scratch) = (Folder::new(), Folder::new());
    folder.write("named.json", &[case.resource()]);
    let write = |name: &str, source: u32, text: &str| {
        folder.write(&format!("{name}.json"), &[case.listener(name, source, text)]);
    };
    write("web", 60, "one");
    let server = Server::start(folder.path()).await;
    let proxy = if case.is_proxied { Some(Server::proxy(server.port, &[]).await) } else { None };
    let port = proxy.as_ref().map_or(server.port, |proxy| proxy.port);
    let envoy = Envoy::launch_as(scratch.path(), case.mode, port, &json!({})).await.expect("it is installed");
    until_answer(&case, &envoy, "web", "200 one").await;

    write("web", 61, "another source");
    until_answer(&case, &envoy, "web", "200 another source").await;
    write("web", 61, "another text");
    until_answer(&case, &envoy, "web", "200 another text").await;
    write("second", 62, "two");
    until_answer(&case, &envoy, "second", "200 two").await;
}

/// The status of the answer, and the name of the server in it, by which each state of a listener is known.
async fn until_answer(case: &Case, envoy: &Envoy, listener: &str, expected: &str) {
    let what = format!("{case}: {listener} answers {expected}");
    let probe = async || {
        let port = envoy.port_now(listener).await?;
        let answer = http::get_from(port, HOST, "/").await.ok()?;
        (format!("{} {}", answer.status, answer.field("server")?) == expected).then_some(())
    };
    let ((), took) = until(&what, SOON, probe).await;
    eprintln!("{what} after {took:.1?}");
}

impl Case {
    /// A source whose text has this number: Envoy waits so many seconds for an answer.
    fn source(&self, number: u32) -> Value {
        let mut source = self.mode.config_source();
        source["initial_fetch_timeout"] = format!("{number}s").into();
        source
    }

    fn listener(&self, name: &str, source: u32, text: &str) -> Value {
        let source = self.source(source);
        // Envoy keeps a listener in use until the new one has everything.
        let mut listener = match self.named {
            Named::Routes => listener(self.mode, name, "named"),
            Named::Scopes => scoped_listener(self.mode, name),
            _ => inline_listener(name, &routes("inline")),
        };
        let chain = &mut listener["filter_chains"][0];
        let manager = &mut chain["filters"][0]["typed_config"];
        manager["server_name"] = text.into();
        match self.named {
            Named::Routes => manager["rds"]["config_source"] = source,
            Named::Filter => {
                let filters = manager["http_filters"].as_array_mut().expect("it has a router");
                let buffer = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
                let discovery = json!({"config_source": source, "type_urls": [buffer]});
                filters.insert(0, json!({"name": "named", "config_discovery": discovery}));
            }
            Named::Scopes => manager["scoped_routes"]["scoped_rds"]["scoped_rds_config_source"] = source,
            Named::Secret => {
                let context =
                    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
                let plain = chain.clone();
                chain["filter_chain_match"] = json!({"transport_protocol": "tls"});
                chain["transport_socket"] = json!({"name": "tls", "typed_config": {
                    "@type": context,
                    "common_tls_context": {"tls_certificate_sds_secret_configs": [
                        {"name": "named", "sds_config": source},
                    ]},
                }});
                listener["default_filter_chain"] = plain;
                let inspector =
                    "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
                listener["listener_filters"] =
                    json!([{"name": "inspector", "typed_config": {"@type": inspector}}]);
            }
        }
        listener
    }

    /// What the listeners name.
    fn resource(&self) -> Value {
        match self.named {
            Named::Secret => secret("named", "one", false),
            Named::Routes => routes("named"),
            Named::Filter => json!({
                "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
                "name": "named",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer",
                    "max_request_bytes": 1024,
                },
            }),
            Named::Scopes => {
                let mut routes = routes("inline");
                routes.as_object_mut().expect("a map").remove("@type");
                json!({
                    "@type": "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration",
                    "name": "named",
                    "route_configuration": routes,
                    "key": {"fragments": [{"string_key": HOST}]},
                })
            }
        }
    }
}

/// The host of the requests, by which Envoy finds the scope.
const HOST: &str = "here";

/// Routes that answer by themselves.
fn routes(name: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": name,
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "direct_response": {"status": 200}},
        ]}],
    })
}
