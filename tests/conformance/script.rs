//! Runs a script, and reports the line that fails.

mod notation;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use xds_core::server::{Protocol, Serving, StreamConfig, TypeConfig};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3 as discovery;
use xds_proto::google::rpc::Status;
use xds_proto::service::{SERVICES, Service};

use crate::wire::{Event, Request, Response, Wire};
use notation::{Ask, List, Said, describe, duration, is_code, node, shown_code, transaction, type_url};

#[derive(Clone)]
pub(crate) struct Script {
    name: String,
    lines: Vec<String>,
}

/// A running script.
struct Run<'w> {
    wire: &'w mut dyn Wire,
    streams: BTreeMap<String, Stream>,
}

/// A client's side of a stream.
struct Stream {
    protocol: Protocol,
    service: Option<&'static Service>,
    /// The node, until it was sent.
    node: Option<Node>,
    nonces: BTreeSet<String>,
    types: BTreeMap<String, Type>,
}

/// The responses and subscriptions of one type on a stream.
#[derive(Default)]
struct Type {
    /// The nonce and version of each response.
    responses: Vec<(String, String)>,
    /// In SotW: the version of the last accepted response.
    accepted: String,
    list: List,
    /// The last version sent of each resource, by name.
    versions: BTreeMap<String, String>,
}

impl Script {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Self { name, lines: text.lines().map(str::to_owned).collect() }
    }

    /// Runs the script on its own cache. The script must expect every response.
    pub(crate) fn run(&self, wire: &mut dyn Wire) {
        let mut run = Run { wire, streams: BTreeMap::new() };
        for (number, line) in self.lines.iter().enumerate() {
            let at = format!("{}:{}: {line}", self.name, number + 1);
            run.step(line.trim_end(), &at);
        }
        for name in run.streams.keys() {
            if let Some(event) = run.wire.receive_now(name) {
                let at = format!("{}: at the end {name} was sent more", self.name);
                panic!("{at}: {}", describe_event(&event, &at));
            }
        }
    }

    /// Variants of the script with an error in one expecting line, for each such line.
    pub(crate) fn spoilt(&self) -> Vec<Self> {
        let mut spoilt = Vec::new();
        for (number, line) in self.lines.iter().enumerate() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let wrong = match (word, rest) {
                ("version", _) if line.contains(" != ") => vec![line.replace(" != ", " = ")],
                ("version", _) => vec![line.replace(" = ", " != ")],
                ("refuse", _) => vec![format!("{line}~")],
                _ if !word.ends_with('<') && !word.ends_with("<?") => continue,
                (_, "nothing") => vec![format!("{word} X something=1")],
                _ => vec![format!("{line} ~"), format!("{word} nothing")],
            };
            spoilt.extend(wrong.into_iter().map(|line| {
                let mut script = self.clone();
                script.lines[number] = line;
                script
            }));
        }
        spoilt
    }

    /// The name of the script, and the lines in which it differs from another.
    pub(crate) fn difference(&self, other: &Self) -> String {
        let lines = self.lines.iter().zip(&other.lines).filter(|(line, other)| line != other);
        format!("{}: {}", self.name, lines.map(|(line, _)| line.as_str()).collect::<Vec<_>>().join("; "))
    }
}

impl Run<'_> {
    fn step(&mut self, line: &str, at: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => {}
            "server" => self.wire.configure(config(rest)),
            "commit" => self.commit(rest).expect(at),
            "refuse" => {
                let (changes, text) = rest.split_once(": ").expect(at);
                let error = self.commit(changes).expect_err(at);
                assert!(error.contains(text), "{at}\n  was refused with: {error}");
            }
            "open" => self.open(rest),
            "wait" => self.wire.pass(duration(rest)),
            "version" => self.compare(rest, at),
            _ => {
                let end = word.find(['>', '<']).unwrap_or_else(|| panic!("{at}\n  is no line of a script"));
                assert!(
                    self.streams.contains_key(&word[..end]),
                    "{at}\n  is about a stream that is not open"
                );
                match word.split_at(end) {
                    (name, ">") => self.ask(name, rest),
                    (name, "<") if rest == "nothing" => {
                        if let Some(event) = self.wire.receive_now(name) {
                            panic!("{at}\n  but was sent: {}", describe_event(&event, at));
                        }
                    }
                    (name, "<") => self.expect(name, rest, true, at),
                    (name, "<?") => self.expect(name, rest, false, at),
                    _ => panic!("{at}\n  is no line of a script"),
                }
            }
        }
    }

    /// Returns the reason why the cache refused the changes.
    fn commit(&mut self, text: &str) -> Result<(), String> {
        let transaction = transaction(text).map_err(|error| error.to_string())?;
        self.wire.commit(transaction).map_err(|error| error.to_string())
    }

    /// `a sotw Cluster as envoy env=prod`
    fn open(&mut self, text: &str) {
        let mut words = text.split(' ').peekable();
        let (name, protocol) = (words.next().unwrap(), words.next().unwrap());
        let protocol = match protocol {
            "sotw" => Protocol::Sotw,
            "delta" => Protocol::Delta,
            other => panic!("{other} is no protocol"),
        };
        let type_name = words.next_if(|word| *word != "as" && !word.contains('='));
        let service = type_name.map(|type_name| {
            let url = type_url(type_name);
            SERVICES.iter().find(|service| service.type_url == url).expect("a type with a service")
        });
        let id = words.next_if_eq(&"as").and_then(|_| words.next()).unwrap_or(name);
        let node = Some(node(id, words));
        self.wire.open(name, protocol, service);
        let stream = Stream { protocol, service, node, nonces: BTreeSet::new(), types: BTreeMap::new() };
        self.streams.insert(name.to_owned(), stream);
    }

    fn ask(&mut self, name: &str, text: &str) {
        let (type_name, words) = text.split_once(' ').unwrap_or((text, ""));
        let ask = Ask::parse(words);
        let type_of = |stream: &str| self.streams[stream].types.get(type_name);
        let held = ask.held.iter().map(|(name, from)| {
            if !self.streams.contains_key(from) {
                return (name.clone(), from.clone());
            }
            let version = type_of(from).and_then(|of| of.versions.get(name));
            let version = version.unwrap_or_else(|| panic!("{type_name} {name} was not sent to {from}"));
            (name.clone(), version.clone())
        });
        let held = held.collect();
        let version = ask.version.as_ref().map(|text| {
            let last = self.streams.get(text).and_then(|_| type_of(text)?.responses.last());
            last.map_or_else(|| text.clone(), |(_, version)| version.clone())
        });
        let stream = self.streams.get_mut(name).unwrap();
        let request = stream.request(type_name, ask, version, held);
        self.wire.send(name, request);
    }

    fn expect(&mut self, name: &str, expected: &str, answers: bool, at: &str) {
        let event = self.wire.receive(name).unwrap_or_else(|| panic!("{at}\n  but nothing was sent"));
        if let Some(end) = expected.strip_prefix("closed ") {
            let (code, text) = end.split_once(' ').unwrap_or((end, ""));
            assert!(is_code(code), "{at}\n  has no code of gRPC");
            let Event::Closed { code: found, text: why } = &event else {
                panic!("{at}\n  but was sent: {}", describe_event(&event, at));
            };
            let is_code = found.is_none_or(|found| shown_code(found as i32) == code);
            assert!(is_code && why.contains(text), "{at}\n  but: {}", describe_event(&event, at));
            return;
        }
        assert_eq!(describe_event(&event, at), expected, "{at}");
        let Event::Response(response) = event else { return };
        let type_name = response.type_url().rsplit('.').next().unwrap().to_owned();
        let stream = self.streams.get_mut(name).unwrap();
        stream.take(&type_name, &response, at);
        if answers {
            let request = stream.request(&type_name, Ask::ack(), None, BTreeMap::new());
            self.wire.send(name, request);
        }
    }

    /// `X a.n1 != b`: versions of two responses.
    fn compare(&self, text: &str, at: &str) {
        let words: Vec<_> = text.split(' ').collect();
        let [type_name, one, operator, other] = words[..] else { panic!("{at}\n  compares no two versions") };
        let version = |of: &str| {
            let (stream, nth) = of.split_once(".n").unwrap_or((of, ""));
            let responses = &self.streams[stream].types[type_name].responses;
            let at = nth.parse().unwrap_or(responses.len());
            responses[at - 1].1.clone()
        };
        assert_eq!(version(one) == version(other), operator == "=", "{at}");
    }
}

impl Stream {
    fn request(
        &mut self,
        type_name: &str,
        ask: Ask,
        version: Option<String>,
        held: BTreeMap<String, String>,
    ) -> Request {
        // S12: without a type, the type of the service counts.
        let type_url = if type_name == "none" { String::new() } else { type_url(type_name) };
        let of_service = self.service.filter(|_| type_name == "none").map(|service| service.type_url);
        let type_name = of_service.map_or(type_name, |url| url.rsplit('.').next().unwrap());
        let of = self.types.entry(type_name.to_owned()).or_default();
        let nth = |text: &str| text.strip_prefix('n')?.parse::<usize>().ok();
        let answers = self.protocol == Protocol::Sotw || ask.said != Said::Nothing;
        let nonce = match &ask.nonce {
            Some(text) => nth(text).map_or_else(|| text.clone(), |nth| of.responses[nth - 1].0.clone()),
            None => {
                of.responses.last().filter(|_| answers).map(|(nonce, _)| nonce.clone()).unwrap_or_default()
            }
        };
        let error_detail = match &ask.said {
            Said::Nack(why) => Some(Status { code: 3, message: why.clone(), ..Status::default() }),
            Said::Ack | Said::Nothing => {
                let answered = of.responses.iter().find(|(other, _)| *other == nonce);
                of.accepted = answered.map_or(&of.accepted, |(_, version)| version).clone();
                None
            }
        };
        let list = ask.list;
        let node = ask.node.or_else(|| self.node.take());
        match self.protocol {
            Protocol::Sotw => {
                // S14: an ACK or NACK without names repeats the last ones.
                if ask.said == Said::Nothing || !list.is_empty() {
                    of.list = list;
                }
                Request::Sotw(discovery::DiscoveryRequest {
                    version_info: version.unwrap_or_else(|| of.accepted.clone()),
                    node,
                    type_url,
                    response_nonce: nonce,
                    error_detail,
                    resource_names: of.list.names.clone(),
                    resource_locators: of.list.locators.clone(),
                })
            }
            Protocol::Delta => Request::Delta(discovery::DeltaDiscoveryRequest {
                node,
                type_url,
                response_nonce: nonce,
                error_detail,
                resource_names_subscribe: list.names,
                resource_names_unsubscribe: list.dropped_names,
                resource_locators_subscribe: list.locators,
                resource_locators_unsubscribe: list.dropped_locators,
                initial_resource_versions: held,
            }),
        }
    }

    /// Records a response, and checks rules that all responses follow.
    fn take(&mut self, type_name: &str, response: &Response, at: &str) {
        let nonce = response.nonce().to_owned();
        assert!(!nonce.is_empty(), "{at}\n  D7: there is no nonce");
        assert!(self.nonces.insert(nonce.clone()), "{at}\n  S2: the nonce {nonce} came before");
        assert!(!response.version().is_empty(), "{at}\n  S2: there is no version");
        let of = self.types.entry(type_name.to_owned()).or_default();
        of.responses.push((nonce, response.version().to_owned()));
        if let Response::Delta(response) = response {
            for resource in &response.resources {
                assert!(!resource.version.is_empty(), "{at}\n  D22: there is a resource without a version");
                let located = resource.resource_name.as_ref().map(|name| name.name.clone());
                let name = located.unwrap_or_else(|| resource.name.clone());
                of.versions.insert(name, resource.version.clone());
            }
        }
    }
}

fn describe_event(event: &Event, at: &str) -> String {
    match event {
        Event::Response(response) => describe(response, at),
        Event::Closed { code, text } => {
            let code = code.map_or_else(|| "?".to_owned(), |code| shown_code(code as i32));
            format!("closed {code} {text}")
        }
    }
}

fn of_type<'a>(config: &'a mut StreamConfig, type_name: &str) -> &'a mut TypeConfig {
    let url = type_url(type_name);
    let default = TypeConfig::of(&url);
    config.types.entry(url.as_str().into()).or_insert(default)
}

/// `names_limit=2 removal_grace=500ms unserved=Cluster`
fn config(text: &str) -> StreamConfig {
    let mut config = StreamConfig::default();
    for word in text.split(' ') {
        let (key, value) = word.split_once('=').unwrap();
        match key {
            "ack_wait" => config.ack_wait = duration(value),
            "owed_wait" => config.owed_wait = duration(value),
            "order_wait" => config.order_wait = duration(value),
            "removal_grace" => config.removal_grace = duration(value),
            "names_limit" => config.names_limit = value.parse().unwrap(),
            "parameters_limit" => config.parameters_limit = value.parse().unwrap(),
            "sync_wait" => config.sync_wait = duration(value),
            "not_found" => config.sotw_not_found = value == "sotw",
            "unserved" => of_type(&mut config, value).serving = Serving::NotServed,
            "refused" => of_type(&mut config, value).serving = Serving::Refused,
            "full_state" => of_type(&mut config, value).full_state = true,
            "sotw_ttl" => of_type(&mut config, value).ttl_in_sotw = true,
            "wildcard" => of_type(&mut config, value).legacy_wildcard = true,
            "no_wildcard" => of_type(&mut config, value).legacy_wildcard = false,
            other => panic!("{other} is nothing of a server"),
        }
    }
    config
}
