//! The notation of resources, requests and responses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use prost::Message;
use xds::{Constraints, Resource, ResourceError, ResourceName, Transaction, VariantId};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3 as discovery;
use xds_proto::service::SERVICES;

use crate::wire::Response;

/// The words of a request after its type.
#[derive(Default)]
pub(crate) struct Ask {
    pub(crate) list: List,
    pub(crate) said: Said,
    pub(crate) nonce: Option<String>,
    pub(crate) version: Option<String>,
    /// Names with the streams that were sent them.
    pub(crate) held: Vec<(String, String)>,
    pub(crate) node: Option<Node>,
}

/// Names and locators to subscribe to and to unsubscribe from.
#[derive(Debug, Default, Clone)]
pub(crate) struct List {
    pub(crate) names: Vec<String>,
    pub(crate) locators: Vec<discovery::ResourceLocator>,
    pub(crate) dropped_names: Vec<String>,
    pub(crate) dropped_locators: Vec<discovery::ResourceLocator>,
}

/// The answer to a response in a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Said {
    #[default]
    Nothing,
    Ack,
    Nack(String),
}

/// A message with the name in field 1, and content that distinguishes versions.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    /// The EDS configuration of a cluster.
    #[prost(int32, tag = "2")]
    discovery_type: i32,
    #[prost(string, tag = "100")]
    content: String,
}

/// An `xds.core.v3.ResourceLocator`.
#[derive(Clone, PartialEq, Message)]
struct Locator {
    #[prost(string, tag = "2")]
    id: String,
}

impl Ask {
    pub(crate) fn ack() -> Self {
        Self { said: Said::Ack, ..Self::default() }
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut ask = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            match (word, word.split_once('=')) {
                ("ack", _) => ask.said = Said::Ack,
                ("nack", _) => ask.said = Said::Nack(words.by_ref().collect::<Vec<_>>().join(" ")),
                ("holding", _) => {
                    let names: Vec<_> = words.by_ref().take_while(|word| *word != "from").collect();
                    let from = words.next().unwrap();
                    ask.held.extend(names.into_iter().map(|name| (name.to_owned(), from.to_owned())));
                }
                (_, Some(("nonce", nonce))) => ask.nonce = Some(nonce.to_owned()),
                (_, Some(("version", version))) => ask.version = Some(version.to_owned()),
                (_, Some(("node", pairs))) => ask.node = Some(node("another", pairs.split('&'))),
                _ => ask.list.add(word),
            }
        }
        ask
    }
}

impl List {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.locators.is_empty()
    }

    /// `r` or `r?env=prod`, with a sign in delta. `xdstp:` names have context parameters after `?`,
    /// and dynamic parameters after `??`.
    fn add(&mut self, word: &str) {
        let (dropped, word) = word.strip_prefix('-').map_or((false, word), |word| (true, word));
        let word = unescaped(word.strip_prefix('+').unwrap_or(word));
        let mark = if word.starts_with("xdstp:") { "??" } else { "?" };
        match (word.split_once(mark), dropped) {
            (Some((name, pairs)), _) => {
                let pairs = pairs.split('&').filter_map(|pair| pair.split_once('='));
                let locator = discovery::ResourceLocator {
                    name: name.to_owned(),
                    dynamic_parameters: pairs
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                        .collect(),
                };
                if dropped { &mut self.dropped_locators } else { &mut self.locators }.push(locator);
            }
            (None, true) => self.dropped_names.push(word),
            (None, false) => self.names.push(word),
        }
    }
}

/// The changes of a commit: `X a=1 -b; Cluster c=1@eds`.
///
/// `a(b)=1` has another name in its payload; `a[env=prod]{ttl=5s,aliases=x+y}=1` has the extras of
/// a wrapper.
pub(crate) fn transaction(text: &str) -> Result<Transaction, ResourceError> {
    let mut transaction = Transaction::new();
    for of_type in text.split("; ").filter(|of_type| !of_type.is_empty()) {
        let (type_name, words) = of_type.split_once(' ').unwrap();
        for word in outside_brackets(words) {
            let type_url = type_url(type_name).as_str().into();
            let (removed, word) = word.strip_prefix('-').map_or((false, word), |word| (true, word));
            let (name, rest) = word.split_at(end_of_name(word, removed));
            let (when, rest) =
                rest.strip_prefix('[').map_or(("", rest), |rest| rest.split_once(']').unwrap());
            let constraints: Constraints =
                if when.is_empty() { Constraints::NONE } else { when.parse().unwrap() };
            if removed {
                transaction.remove(VariantId { type_url, name: name.into(), constraints });
            } else {
                let inner =
                    name.split_once('(').map(|(name, inner)| (name, inner.strip_suffix(')').unwrap()));
                let (name, inner) = inner.unwrap_or((name, name));
                let extras = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let (extras, rest) = extras.unwrap_or(("", rest));
                let content = rest.strip_prefix('=').unwrap();
                let resource = match content.strip_prefix('>') {
                    Some(id) => {
                        let locator = Locator { id: id.to_owned() }.encode_to_vec();
                        Resource::redirect(type_url, name.into(), locator.into())?
                    }
                    None => {
                        let payload = payload(inner, content).encode_to_vec();
                        Resource::new(type_url, name, payload)?
                    }
                };
                transaction.put(with_extras(resource, extras).with_constraints(constraints));
            }
        }
    }
    Ok(transaction)
}

/// A new-style name may contain `=`; then the text after it contains none.
fn end_of_name(word: &str, removed: bool) -> usize {
    let end = if word.starts_with("xdstp:") {
        let of_content = || word.rfind('=').filter(|_| !removed);
        word.find(['[', '{']).or_else(of_content)
    } else {
        word.find(['[', '{', '='])
    };
    end.unwrap_or(word.len())
}

/// `ttl=5s,aliases=x+y`
fn with_extras(resource: Resource, text: &str) -> Resource {
    let extras = text.split(',').filter(|extra| !extra.is_empty());
    extras.fold(resource, |resource, extra| match extra.split_once('=').unwrap() {
        ("ttl", time) => resource.with_ttl(duration(time)),
        ("aliases", names) => resource.with_aliases(names.split('+').map(ResourceName::new)),
        (other, _) => panic!("{other} is nothing of a wrapper"),
    })
}

fn payload(name: &str, content: &str) -> Payload {
    let without = content.strip_suffix("@eds");
    let discovery_type = if without.is_some() { DISCOVERY_TYPE_EDS } else { 0 };
    let content = without.unwrap_or(content);
    let repeated = content.split_once('*').map(|(text, times)| text.repeat(times.parse().unwrap()));
    Payload { name: name.to_owned(), discovery_type, content: repeated.unwrap_or_else(|| content.to_owned()) }
}

/// The words of a text. Spaces in brackets do not separate words.
fn outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_end = |character: char| {
        depth += i32::from(character == '[') - i32::from(character == ']');
        character == ' ' && depth == 0
    };
    text.split(is_end).collect()
}

/// Replaces `\u{1}` by a control character.
fn unescaped(text: &str) -> String {
    let mut parts = text.split("\\u{");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (code, rest) = part.split_once('}').unwrap();
        let character = char::from_u32(u32::from_str_radix(code, 16).unwrap()).unwrap();
        format!("{text}{character}{rest}")
    })
}

/// Pairs of the metadata, or `agent=` and `feature=`.
pub(crate) fn node<'a>(id: &str, pairs: impl Iterator<Item = &'a str>) -> Node {
    use prost_types::{Struct, Value, value::Kind};
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let mut node = Node { id: id.to_owned(), ..Node::default() };
    let mut fields = BTreeMap::new();
    for (key, text) in pairs.map(|pair| pair.split_once('=').unwrap()) {
        match key {
            "agent" => text.clone_into(&mut node.user_agent_name),
            "feature" => node.client_features.push(text.to_owned()),
            _ => _ = fields.insert(key.to_owned(), value(text)),
        }
    }
    node.metadata = Some(Struct { fields });
    node
}

/// The type URL of a message with a service; other types as they are.
pub(crate) fn type_url(type_name: &str) -> String {
    let mut urls = SERVICES.iter().map(|service| service.type_url);
    let known = urls.find(|url| url.rsplit('.').next() == Some(type_name));
    known.map_or_else(|| format!("type.googleapis.com/script.{type_name}"), str::to_owned)
}

/// `2s` or `500ms`
pub(crate) fn duration(text: &str) -> Duration {
    let millis = text.strip_suffix("ms").map(|number| number.parse().unwrap());
    let seconds = || text.strip_suffix('s').unwrap().parse::<u64>().unwrap() * 1000;
    Duration::from_millis(millis.unwrap_or_else(seconds))
}

/// Whether it is a gRPC code.
pub(crate) fn is_code(name: &str) -> bool {
    CODES.contains(&name)
}

pub(crate) fn shown_code(code: i32) -> String {
    let name = usize::try_from(code).ok().and_then(|code| CODES.get(code));
    name.map_or_else(|| code.to_string(), |name| (*name).to_owned())
}

/// Writes a response as a line, and checks rules that all responses follow. `at` is the place of
/// the response, for errors.
pub(crate) fn describe(response: &Response, at: &str) -> String {
    let type_url = response.type_url();
    let mut words = vec![type_url.rsplit('.').next().unwrap_or_default().to_owned()];
    let errors = match response {
        Response::Sotw(response) => {
            words.extend(response.resources.iter().map(|any| {
                if any.type_url == xds_proto::type_url::RESOURCE {
                    let resource = discovery::Resource::decode(any.value.clone()).unwrap();
                    assert!(is_needed(&resource), "{at}\n  S30: {} needs no wrapper", resource.name);
                    wrapped(&resource, type_url, at)
                } else {
                    assert_eq!(any.type_url, type_url, "{at}\n  S29: a resource of another type");
                    let payload = Payload::decode(any.value.clone()).unwrap();
                    format!("{}={}", payload.name, content(&payload))
                }
            }));
            &response.resource_errors
        }
        Response::Delta(response) => {
            words.extend(response.resources.iter().map(|resource| wrapped(resource, type_url, at)));
            words.extend(response.removed_resources.iter().map(|name| format!("-{}", name.escape_debug())));
            words.extend(response.removed_resource_names.iter().map(|name| format!("-{}", located(name))));
            &response.resource_errors
        }
    };
    let mut names = BTreeSet::new();
    for word in &words[1..] {
        let (is_removed, word) = word.strip_prefix('-').map_or((false, &**word), |word| (true, word));
        let name = match word.split_once(']') {
            Some((name, _)) => name,
            None => &word[..end_of_name(word, is_removed)],
        };
        assert!(names.insert(name), "{at}\n  S28 D13: {name} stands twice in: {}", words.join(" "));
    }
    words.extend(errors.iter().map(|name| error(name, at)));
    words.join(" ")
}

/// Whether a wrapper has anything that its payload does not have.
fn is_needed(wrapper: &discovery::Resource) -> bool {
    let has_extras = wrapper.ttl.is_some() || !wrapper.aliases.is_empty() || wrapper.resource_name.is_some();
    has_extras
        || wrapper.resource.as_ref().is_none_or(|any| {
            any.type_url == LOCATOR || Payload::decode(any.value.clone()).unwrap().name != wrapper.name
        })
}

/// `r=A` or `r[env=prod]=A`, with the extras of the wrapper: `r{ttl=5s,aliases=x+y}=A`; without
/// content `r{ttl=5s}`.
fn wrapped(resource: &discovery::Resource, type_url: &str, at: &str) -> String {
    let name = resource.resource_name.as_ref().map_or_else(|| resource.name.clone(), located);
    let has_one = resource.name.is_empty() == resource.resource_name.is_some();
    assert!(has_one, "{at}\n  T25: a resource has one of the two names");
    let ttl = resource.ttl.as_ref().map(|ttl| {
        let millis = if ttl.nanos == 0 { String::new() } else { format!("{}ms", ttl.nanos / 1_000_000) };
        if ttl.seconds == 0 { format!("ttl={millis}") } else { format!("ttl={}s{millis}", ttl.seconds) }
    });
    let aliases =
        Some(&resource.aliases).filter(|of| !of.is_empty()).map(|of| format!("aliases={}", of.join("+")));
    let extras: Vec<_> = ttl.into_iter().chain(aliases).collect();
    let extras = if extras.is_empty() { String::new() } else { format!("{{{}}}", extras.join(",")) };
    let content = resource.resource.as_ref().map(|any| {
        if any.type_url == LOCATOR {
            return format!("=>{}", Locator::decode(any.value.clone()).unwrap().id);
        }
        assert_eq!(any.type_url, type_url, "{at}\n  S29: a resource of another type");
        format!("={}", content(&Payload::decode(any.value.clone()).unwrap()))
    });
    format!("{name}{extras}{}", content.unwrap_or_default())
}

fn content(payload: &Payload) -> String {
    let suffix = if payload.discovery_type == DISCOVERY_TYPE_EDS { "@eds" } else { "" };
    match (payload.content.chars().next(), payload.content.len()) {
        (Some(first), size @ LARGE..) => format!("{first}*{size}"),
        _ => format!("{}{suffix}", payload.content),
    }
}

fn located(name: &discovery::ResourceName) -> String {
    let constraints = name.dynamic_parameter_constraints.as_ref();
    let when = constraints.map(|message| Constraints::from_proto(message).unwrap().to_string());
    format!("{}[{}]", name.name, when.unwrap_or_default())
}

/// `!r(NOT_FOUND)`
fn error(error: &discovery::ResourceError, at: &str) -> String {
    let name = error.resource_name.as_ref().expect("S37: an error has a name");
    let status = error.error_detail.as_ref().expect("S37: an error has a status");
    assert!(!status.message.is_empty(), "{at}\n  S37: an error has a text");
    let when = name.dynamic_parameter_constraints.as_ref().map(|_| located(name));
    let name = when.unwrap_or_else(|| name.name.clone());
    format!("!{}({})", name.escape_debug(), shown_code(status.code))
}

/// The locator in place of a redirected resource.
const LOCATOR: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";

/// Contents of at least this size are written as their size.
const LARGE: usize = 1000;

/// `envoy.config.cluster.v3.Cluster.EDS`.
const DISCOVERY_TYPE_EDS: i32 = 3;

/// The gRPC codes by their numbers.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
