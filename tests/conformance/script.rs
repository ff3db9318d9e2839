//! What a script says, and what was wrong when it does not hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost::Message;
use xds::{Cache, CommitError, Constraints, Resource, Transaction, VariantId};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3 as discovery;

use crate::wire::{Protocol, Request, Response, Wire};

pub(crate) struct Script {
    name: String,
    lines: Vec<String>,
}

/// What a stream was sent so far.
struct Stream {
    protocol: Protocol,
    node: Option<Node>,
    /// By plain name: the version told last.
    versions: BTreeMap<String, String>,
    /// By type: the nonce told last, and in SotW what was asked for.
    types: BTreeMap<String, (String, Request)>,
}

/// A message whose field 1 is the name, with something to tell versions apart.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "100")]
    content: String,
}

impl Script {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Self { name, lines: text.lines().map(str::to_owned).collect() }
    }

    /// Runs it on a cache of its own.
    pub(crate) fn run(&self, wire: &mut dyn Wire) {
        let mut streams = BTreeMap::new();
        for (number, line) in self.lines.iter().enumerate() {
            let at = format!("{}:{}: {line}", self.name, number + 1);
            step(line, &at, wire, &mut streams);
        }
    }
}

fn step(line: &str, at: &str, wire: &mut dyn Wire, streams: &mut BTreeMap<String, Stream>) {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "" | "#" => {}
        "commit" => commit(wire.cache(), rest).expect(at),
        "refuse" => {
            let (changes, text) = rest.split_once(": ").expect(at);
            let error = commit(wire.cache(), changes).expect_err(at).to_string();
            assert!(error.contains(text), "{at}\n  was refused with: {error}");
        }
        "open" => {
            let mut words = rest.split(' ');
            let (name, protocol) = (words.next().expect(at), words.next().expect(at));
            let protocol = if protocol == "sotw" { Protocol::Sotw } else { Protocol::Delta };
            let stream = Stream {
                protocol,
                node: Some(node(words)),
                versions: BTreeMap::new(),
                types: BTreeMap::new(),
            };
            wire.open(name, protocol);
            streams.insert(name.to_owned(), stream);
        }
        _ => {
            let (name, direction) = word.split_at(word.len() - 1);
            let (subject, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            match direction {
                ">" => {
                    let request = request(subject, rest, streams);
                    let stream = streams.get_mut(name).expect(at);
                    stream.ask(name, subject, request, wire);
                }
                "<" if subject == "nothing" => {
                    if let Some(response) = wire.receive_now(name) {
                        panic!("{at}\n  but was sent: {}", describe(&response));
                    }
                }
                "<" => {
                    let response =
                        wire.receive(name).unwrap_or_else(|| panic!("{at}\n  but nothing was sent"));
                    let expected = format!("{subject} {rest}");
                    assert_eq!(describe(&response), expected, "{at}");
                    streams.get_mut(name).expect(at).acknowledge(name, &response, wire);
                }
                _ => panic!("{at}\n  is no line of a script"),
            }
        }
    }
}

impl Stream {
    fn ask(&mut self, name: &str, type_name: &str, request: Request, wire: &mut dyn Wire) {
        let nonce = self.types.get(type_name).map(|(nonce, _)| nonce.clone()).unwrap_or_default();
        self.types.insert(type_name.to_owned(), (nonce.clone(), request.clone()));
        self.send(name, type_name, nonce, request, wire);
    }

    fn acknowledge(&mut self, name: &str, response: &Response, wire: &mut dyn Wire) {
        let (type_url, nonce, resources) = match response {
            Response::Sotw(response) => (&response.type_url, &response.nonce, Vec::new()),
            Response::Delta(response) => (&response.type_url, &response.nonce, response.resources.clone()),
        };
        for resource in resources {
            let located = resource.resource_name.map(|name| name.name);
            self.versions.insert(located.unwrap_or(resource.name), resource.version);
        }
        let type_name = type_url.rsplit('.').next().unwrap().to_owned();
        let entry = self.types.get_mut(&type_name).unwrap();
        entry.0.clone_from(nonce);
        let (nonce, asked) = entry.clone();
        let request = if self.protocol == Protocol::Sotw { asked } else { Request::default() };
        self.send(name, &type_name, nonce, request, wire);
    }

    fn send(&mut self, name: &str, type_name: &str, nonce: String, request: Request, wire: &mut dyn Wire) {
        let node = self.node.take();
        let type_url = type_url(type_name);
        match self.protocol {
            Protocol::Sotw => wire.send_sotw(
                name,
                discovery::DiscoveryRequest {
                    node,
                    type_url,
                    response_nonce: nonce,
                    resource_names: request.names,
                    resource_locators: request.locators,
                    ..discovery::DiscoveryRequest::default()
                },
            ),
            Protocol::Delta => wire.send_delta(
                name,
                discovery::DeltaDiscoveryRequest {
                    node,
                    type_url,
                    response_nonce: nonce,
                    resource_names_subscribe: request.names,
                    resource_names_unsubscribe: request.dropped_names,
                    resource_locators_subscribe: request.locators,
                    resource_locators_unsubscribe: request.dropped_locators,
                    initial_resource_versions: request.held.into_iter().collect(),
                    ..discovery::DeltaDiscoveryRequest::default()
                },
            ),
        }
    }
}

fn commit(cache: &Cache, text: &str) -> Result<(), CommitError> {
    let (type_name, words) = text.split_once(' ').unwrap();
    let mut transaction = Transaction::new();
    for word in outside_brackets(words) {
        let type_url = type_url(type_name).as_str().into();
        let (removed, word) = word.strip_prefix('-').map_or((false, word), |word| (true, word));
        let (name, rest) = word.split_at(word.find(['[', '=']).unwrap_or(word.len()));
        let (when, rest) = rest.strip_prefix('[').map_or(("", rest), |rest| rest.split_once(']').unwrap());
        let constraints: Constraints =
            if when.is_empty() { Constraints::NONE } else { when.parse().unwrap() };
        if removed {
            transaction.remove(VariantId { type_url, name: name.into(), constraints });
        } else {
            let content = rest.strip_prefix('=').unwrap().to_owned();
            let payload = Payload { name: name.to_owned(), content }.encode_to_vec();
            let resource = Resource::new(type_url, name.into(), payload.into()).unwrap();
            transaction.put(resource.with_constraints(constraints));
        }
    }
    cache.commit(transaction).map(|_| ())
}

/// The words of a text; spaces within brackets part none.
fn outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_end = |character: char| {
        depth += i32::from(character == '[') - i32::from(character == ']');
        character == ' ' && depth == 0
    };
    text.split(is_end).collect()
}

/// The words after the type: names, locators, and what is held from another stream.
fn request(type_name: &str, text: &str, streams: &BTreeMap<String, Stream>) -> Request {
    let mut request = Request::default();
    let (words, held) = text.split_once(" holding ").unwrap_or((text, ""));
    if let Some((name, from)) = held.split_once(" from ") {
        let version =
            streams[from].versions.get(name).unwrap_or_else(|| panic!("{type_name} {name} from {from}"));
        request.held.push((name.to_owned(), version.clone()));
    }
    for word in words.split_whitespace() {
        let (dropped, word) = word.strip_prefix('-').map_or((false, word), |word| (true, word));
        let word = word.strip_prefix('+').unwrap_or(word);
        match (word.split_once('?'), dropped) {
            (Some((name, pairs)), _) => {
                let pairs = pairs.split('&').filter_map(|pair| pair.split_once('='));
                let locator = discovery::ResourceLocator {
                    name: name.to_owned(),
                    dynamic_parameters: pairs
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .collect(),
                };
                if dropped { &mut request.dropped_locators } else { &mut request.locators }.push(locator);
            }
            (None, true) => request.dropped_names.push(word.to_owned()),
            (None, false) => request.names.push(word.to_owned()),
        }
    }
    request
}

fn node<'a>(pairs: impl Iterator<Item = &'a str>) -> Node {
    use prost_types::{Struct, Value, value::Kind};
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap());
    let fields = pairs.map(|(key, text)| (key.to_owned(), value(text))).collect();
    Node { id: "script".to_owned(), metadata: Some(Struct { fields }), ..Node::default() }
}

/// Known types by their message, others as they are.
fn type_url(type_name: &str) -> String {
    match type_name {
        "RouteConfiguration" => xds_proto::type_url::ROUTE_CONFIGURATION.to_owned(),
        "Cluster" => xds_proto::type_url::CLUSTER.to_owned(),
        other => format!("type.googleapis.com/script.{other}"),
    }
}

fn describe(response: &Response) -> String {
    let mut words = Vec::new();
    let content = |value: &[u8]| {
        let payload = Payload::decode(value).unwrap();
        (payload.name, payload.content)
    };
    let located = |name: &discovery::ResourceName| {
        let constraints = name.dynamic_parameter_constraints.as_ref();
        let when = constraints.map(|message| Constraints::from_proto(message).unwrap().to_string());
        format!("{}[{}]", name.name, when.unwrap_or_default())
    };
    let resource = |resource: &discovery::Resource| {
        let (_, content) = content(&resource.resource.as_ref().unwrap().value);
        let name = resource.resource_name.as_ref().map_or_else(|| resource.name.clone(), located);
        // T25: only one of the two names.
        assert_eq!(resource.name.is_empty(), resource.resource_name.is_some());
        format!("{name}={content}")
    };
    let type_url = match response {
        Response::Sotw(response) => {
            for any in &response.resources {
                if any.type_url == xds_proto::type_url::RESOURCE {
                    words.push(resource(&discovery::Resource::decode(any.value.clone()).unwrap()));
                } else {
                    let (name, content) = content(&any.value);
                    words.push(format!("{name}={content}"));
                }
            }
            &response.type_url
        }
        Response::Delta(response) => {
            words.extend(response.resources.iter().map(resource));
            words.extend(response.removed_resources.iter().map(|name| format!("-{name}")));
            words.extend(response.removed_resource_names.iter().map(|name| format!("-{}", located(name))));
            &response.type_url
        }
    };
    format!("{} {}", type_url.rsplit('.').next().unwrap(), words.join(" "))
}
