//! A client for tests, with a notation of one line per message.
//!
//! | text | means |
//! | --- | --- |
//! | `CDS v1 n1: a=1 b[env=prod]=2 -c -d[env=prod] c!5` | a response: resources, removals, errors |
//! | `CDS [a b{env=prod}] v1 n1` | a SotW request: names and locators, version, nonce; `!text` rejects |
//! | `CDS +a +b{env=prod} -c (a:v1) n1` | a delta request: changes, initial versions, nonce |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    DynamicParameterConstraints, Resource, ResourceError, ResourceLocator, ResourceName,
};
use xds_proto::{Any, google::rpc::Status, type_url};

use super::*;
use crate::constraint::Constraints;

/// One client, with a clock, and the protocols of its servers.
pub(crate) struct Fixture {
    pub(crate) client: Client,
    pub(crate) now: Duration,
    protocols: Vec<Protocol>,
}

impl Fixture {
    /// A client of one server that speaks TP2, connected.
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self::with(protocol, ErrorPolicy::default())
    }

    pub(crate) fn with(protocol: Protocol, errors: ErrorPolicy) -> Self {
        let mut fixture = Self::of(&[(protocol, errors)]);
        fixture.open(0);
        fixture
    }

    /// A client of several servers, the first one preferred, none of them connected.
    pub(crate) fn of(servers: &[(Protocol, ErrorPolicy)]) -> Self {
        let config = |(at, (protocol, errors)): (usize, &(Protocol, ErrorPolicy))| ServerConfig {
            name: format!("s{at}").into(),
            protocol: *protocol,
            errors: *errors,
        };
        let all: Vec<_> = servers.iter().enumerate().map(config).collect();
        let mut config = ClientConfig::new(Bytes::from_static(b"\x0a\x04node"), all[0].clone());
        config.default_authority.servers = (0..all.len()).collect();
        config.default_authority.speaks_locators = true;
        config.servers = all;
        Self::of_config(config)
    }

    pub(crate) fn of_config(config: ClientConfig) -> Self {
        let protocols = config.servers.iter().map(|server| server.protocol).collect();
        Self { client: Client::new(config), now: Duration::ZERO, protocols }
    }

    /// Connects to a server. The requests are not read yet: see [`sent`](Self::sent).
    pub(crate) fn open(&mut self, server: usize) {
        self.client.on_connecting(server);
        self.client.on_open(self.now, server);
    }

    /// Connects to a server. Returns the requests, as [`sent`](Self::sent).
    pub(crate) fn connect(&mut self, server: usize) -> String {
        self.open(server);
        self.sent(server)
    }

    /// Ends the stream of a server, which then cannot be reached.
    pub(crate) fn lose(&mut self, server: usize) {
        self.end(server);
        self.fail(server);
    }

    /// Fails to connect to a server. Returns the changed views.
    pub(crate) fn fail(&mut self, server: usize) -> String {
        self.client.on_connecting(server);
        self.end(server)
    }

    /// The servers that are needed, by number.
    pub(crate) fn wanted(&self) -> Vec<usize> {
        (0..self.client.servers()).filter(|server| self.client.is_needed(*server)).collect()
    }

    /// The status of everything that is watched.
    pub(crate) fn statuses(&self) -> Vec<ResourceStatus> {
        self.client.report().iter().map(|report| report.status).collect()
    }

    /// Ends the stream of a server. Returns the changed views.
    pub(crate) fn end(&mut self, server: usize) -> String {
        let effects = self.client.on_end(self.now, server, StreamEnd::lost("gone", u32::MAX / 2));
        self.shown(&effects)
    }

    /// Lets time pass. Returns the changed views.
    pub(crate) fn pass(&mut self, seconds: u64) -> String {
        self.now += Duration::from_secs(seconds);
        let effects = self.client.on_timeout(self.now);
        self.shown(&effects)
    }

    /// Watches `a`, or `a{env=prod}`.
    pub(crate) fn watch(&mut self, type_name: &str, locator: &str) -> WatchId {
        let (name, parameters) = read_locator(locator);
        let parameters = locator.contains('{').then_some(parameters);
        self.client.on_watch(&url(type_name), &name, parameters).expect("it can be watched")
    }

    /// The requests to send to a server, one per line.
    pub(crate) fn sent(&mut self, server: usize) -> String {
        let mut lines = Vec::new();
        while let Some(request) = self.client.next_request(self.now, server) {
            lines.push(match self.protocols[server] {
                Protocol::Sotw => show_sotw(DiscoveryRequest::decode(request).expect("a request")),
                Protocol::Delta => show_delta(DeltaDiscoveryRequest::decode(request).expect("a request")),
            });
        }
        lines.join("\n")
    }

    /// Receives a response of the first server. Returns the changed views.
    pub(crate) fn get(&mut self, text: &str) -> String {
        self.get_from(0, text)
    }

    pub(crate) fn get_from(&mut self, server: usize, text: &str) -> String {
        let frame = response(text, self.protocols[server]);
        let effects = self.client.on_response(self.now, server, &frame).expect("a response");
        self.shown(&effects)
    }

    /// The view of a watch: `-` for nothing yet, the content, an error, or both.
    pub(crate) fn view(&self, watch: WatchId) -> String {
        show_view(&self.client.view(watch))
    }

    pub(crate) fn shown(&self, effects: &Effects) -> String {
        let show = |touched: &Touched| {
            let entry = self.client.store.entry(touched.watch);
            let member = touched.member.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
            let locator = show_locator(entry.name.as_str(), &entry.parameters);
            format!("{locator}{member}: {}", show_view(&self.client.view_of(touched)))
        };
        let mut lines: Vec<_> = effects.touched.iter().map(show).collect();
        lines.sort();
        lines.join("\n")
    }
}

fn show_view(view: &ResourceView) -> String {
    let copy = view.copy.as_ref().map(|copy| {
        let payload = copy.payload();
        let value = crate::wire::fields::text(payload, 2).unwrap_or_default();
        let stale = if copy.is_restored { "?" } else { "" };
        format!("{}{stale}", String::from_utf8_lossy(value))
    });
    let error = view.error.as_ref().map(|error| error.code.to_string());
    match (copy, error) {
        (None, None) => "-".to_owned(),
        (Some(copy), None) => copy,
        (None, Some(error)) => error,
        (Some(copy), Some(error)) => format!("{copy} beside {error}"),
    }
}

/// A payload: the name in field 1 and the content in field 2.
pub(crate) fn payload(name: &str, content: &str) -> Bytes {
    let field = |number: u8, text: &str| {
        let len = u8::try_from(text.len()).expect("tests use short texts");
        [&[number << 3 | 2, len], text.as_bytes()].concat()
    };
    [field(1, name), field(2, content)].concat().into()
}

pub(crate) fn url(type_name: &str) -> TypeUrl {
    TypeUrl::new(match type_name {
        "LDS" => type_url::LISTENER,
        "CDS" => type_url::CLUSTER,
        "EDS" => type_url::CLUSTER_LOAD_ASSIGNMENT,
        "RDS" => type_url::ROUTE_CONFIGURATION,
        "VHDS" => type_url::VIRTUAL_HOST,
        other => other,
    })
}

fn short(type_url: &str) -> &str {
    match type_url {
        type_url::LISTENER => "LDS",
        type_url::CLUSTER => "CDS",
        type_url::CLUSTER_LOAD_ASSIGNMENT => "EDS",
        type_url::ROUTE_CONFIGURATION => "RDS",
        type_url::VIRTUAL_HOST => "VHDS",
        other => other,
    }
}

/// Makes the response of a line.
pub(crate) fn response(text: &str, protocol: Protocol) -> Bytes {
    let split = text.split_once(": ").or_else(|| Some((text.strip_suffix(':')?, "")));
    let (head, body) = split.expect("a head and a body");
    let mut head = head.split(' ');
    let type_url = url(head.next().expect("a type")).as_str().to_owned();
    let (version, nonce) = (head.next().expect("a version"), head.next().expect("a nonce"));
    let (mut resources, mut removed, mut removed_names, mut errors) = (vec![], vec![], vec![], vec![]);
    for item in body.split_whitespace() {
        if let Some(name) = item.strip_prefix('-') {
            match name.contains('[') {
                true => removed_names.push(read_name(name)),
                false => removed.push(name.to_owned()),
            }
        } else if let Some((name, code)) = item.rsplit_once('!')
            && let Ok(code) = code.parse()
        {
            let status = Status { code, message: "told".into(), details: vec![] };
            errors.push(ResourceError { resource_name: Some(read_name(name)), error_detail: Some(status) });
        } else {
            resources.push(read_resource(item, &type_url, version));
        }
    }
    let (version, nonce) = (version.to_owned(), nonce.to_owned());
    match protocol {
        Protocol::Sotw => DiscoveryResponse {
            version_info: version,
            resources: resources.into_iter().map(to_any).collect(),
            type_url,
            nonce,
            resource_errors: errors,
            ..Default::default()
        }
        .encode_to_vec(),
        Protocol::Delta => DeltaDiscoveryResponse {
            system_version_info: version,
            resources,
            type_url,
            nonce,
            removed_resources: removed,
            removed_resource_names: removed_names,
            resource_errors: errors,
            ..Default::default()
        }
        .encode_to_vec(),
    }
    .into()
}

/// Reads `name[constraints]=content@ttl/alias`. All but name and content are optional. Without `=`
/// it is a heartbeat.
fn read_resource(item: &str, type_url: &str, version: &str) -> Resource {
    let is_new_style = item.starts_with("xdstp:");
    // A new-style name has slashes of its own.
    let content = if is_new_style { item.rfind('=').unwrap_or(item.len()) } else { 0 };
    // The target of a redirect has slashes, too.
    let slash = item[content..].find('/').filter(|_| !item[content..].starts_with("=>"));
    let slash = slash.map(|at| item.split_at(content + at));
    let (item, alias) = slash.map_or((item, None), |(item, alias)| (item, Some(&alias[1..])));
    let (item, ttl) = item.split_once('@').map_or((item, None), |(item, ttl)| (item, Some(ttl)));
    let end = item.find(']').map_or(0, |end| end);
    let equals = if is_new_style { item[end..].rfind('=') } else { item[end..].find('=') };
    let (name, content) = match equals {
        Some(at) => (&item[..end + at], Some(&item[end + at + 1..])),
        None => (item, None),
    };
    let is_located = name.contains('[');
    let named = read_name(name);
    let bare = named.name.clone();
    let any = |content| Any { type_url: type_url.to_owned(), value: payload(&bare, content) };
    let seconds = |ttl: &str| ttl.parse().expect("seconds");
    Resource {
        name: if is_located { String::new() } else { named.name.clone() },
        resource_name: is_located.then_some(named),
        resource: content.map(any),
        version: content.map_or(version, |_| version).to_owned(),
        ttl: ttl.map(|ttl| prost_types::Duration { seconds: seconds(ttl), nanos: 0 }),
        aliases: alias.into_iter().map(ToOwned::to_owned).collect(),
        ..Default::default()
    }
}

/// In SotW only a resource with a name of its own, a TTL or an alias needs a wrapper (S30).
fn to_any(resource: Resource) -> Any {
    let is_bare = resource.resource_name.is_none() && resource.ttl.is_none() && resource.resource.is_some();
    if is_bare && resource.aliases.is_empty() {
        return resource.resource.expect("looked at");
    }
    let type_url = "type.googleapis.com/envoy.service.discovery.v3.Resource".to_owned();
    Any { type_url, value: resource.encode_to_vec().into() }
}

/// Reads `name`, or `name[constraints]` with the syntax of `when:`, or `name[]` for no constraints.
fn read_name(text: &str) -> ResourceName {
    let (name, constraints) = match text.split_once('[') {
        None => (text, None),
        Some((name, rest)) => (name, rest.strip_suffix(']').filter(|rest| !rest.is_empty())),
    };
    let constraints = constraints.map(|text| {
        let constraints: Constraints = text.parse().expect("constraints");
        DynamicParameterConstraints::decode(constraints.wire().clone()).expect("constraints")
    });
    ResourceName { name: name.to_owned(), dynamic_parameter_constraints: constraints }
}

fn read_locator(text: &str) -> (String, Parameters) {
    let Some((name, rest)) = text.split_once('{') else { return (text.to_owned(), Parameters::new()) };
    let pairs = rest.strip_suffix('}').expect("a brace").split(',').filter(|pair| !pair.is_empty());
    (name.to_owned(), pairs.map(|pair| pair.split_once('=').expect("key=value")).collect())
}

fn show_locator(name: &str, parameters: &Parameters) -> String {
    if parameters.is_empty() {
        return name.to_owned();
    }
    let pairs: Vec<_> = parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{name}{{{}}}", pairs.join(","))
}

fn located(locators: &[ResourceLocator]) -> impl Iterator<Item = String> {
    locators.iter().map(|locator| {
        let parameters = locator.dynamic_parameters.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        show_locator(&locator.name, &parameters.collect())
    })
}

fn show_sotw(request: DiscoveryRequest) -> String {
    let node = if request.node.is_some() { "node " } else { "" };
    let names: Vec<_> =
        request.resource_names.iter().cloned().chain(located(&request.resource_locators)).collect();
    let head = format!("{node}{} [{}]", short(&request.type_url), names.join(" "));
    let error = request.error_detail.map(|status| format!("!{}", status.message)).unwrap_or_default();
    [head, request.version_info, request.response_nonce, error]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn show_delta(request: DeltaDiscoveryRequest) -> String {
    let node = if request.node.is_some() { "node " } else { "" };
    let mut parts = vec![format!("{node}{}", short(&request.type_url))];
    let added = request.resource_names_subscribe.iter().cloned();
    let added = added.chain(located(&request.resource_locators_subscribe));
    let removed = request.resource_names_unsubscribe.iter().cloned();
    let removed = removed.chain(located(&request.resource_locators_unsubscribe));
    parts.extend(added.map(|name| format!("+{name}")));
    parts.extend(removed.map(|name| format!("-{name}")));
    parts.extend(
        request.initial_resource_versions.iter().map(|(name, version)| format!("({name}:{version})")),
    );
    if !request.response_nonce.is_empty() {
        parts.push(request.response_nonce);
    }
    parts.extend(request.error_detail.map(|status| format!("!{}", status.message)));
    parts.join(" ")
}

/// Rejects payloads of a type with the content `bad`.
pub(crate) fn refuse_bad(client: &mut Client, type_name: &str) {
    client.declare(
        &url(type_name),
        Arc::new(|_, payload| match crate::wire::fields::text(payload, 2) {
            Some(b"bad") => Err("it is bad".to_owned()),
            _ => Ok(Arc::new(payload.clone())),
        }),
    );
}
