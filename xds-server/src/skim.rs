//! Reads requests without decoding what did not change.
//!
//! With each ACK, Envoy repeats its node with some 500 extensions, and in SotW all its names. So
//! the node is read once. A list of names is not read again if its bytes equal those of the last
//! request of the type, or those of another stream.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use ahash::RandomState;
use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use xds_core::server::{DeltaRequest, Protocol, Request, SotwRequest};
use xds_core::subscription::{Locator, Requested};
use xds_core::{ClientName, Derived, Nonce, Parameters, ResourceName, SkippedMetadata, shortened};

use crate::node_parameters::NodeParameters;
use crate::peer::Peer;
use lists::List;

pub use lists::Lists;

mod lists;

/// What the client of a stream declares about itself. Each text is shortened to 512 bytes, see
/// [`shortened`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Client {
    /// `node.id`.
    pub id: String,
    /// `node.cluster`.
    pub cluster: String,
    /// Derived from its node (T46).
    pub parameters: Parameters,
    /// The metadata of its node that gives no parameter (T46).
    pub skipped_metadata: Vec<SkippedMetadata>,
    /// `node.user_agent_name`.
    pub user_agent: String,
    /// The client declares that it removes a resource when its TTL ends (S38).
    pub supports_ttl: bool,
}

impl Client {
    /// The name under which its streams are grouped and listed.
    pub(crate) fn name(&self) -> ClientName {
        ClientName { id: self.id.as_str().into(), cluster: self.cluster.as_str().into() }
    }
}

/// Reads the requests of one stream, for the machines of [`xds_core::server`].
#[derive(Debug)]
pub struct Skimmer {
    client: Option<Client>,
    /// The hash of the first node, and whether a different node has arrived since the last
    /// [`take_node_change`](Self::take_node_change) (G7).
    node: (u64, bool),
    /// Per type, the lists of its last SotW request.
    known: BTreeMap<String, Subscribed>,
    /// Shared with the other streams of a server.
    lists: Arc<Lists>,
    hasher: RandomState,
    default_type: String,
    parameters: NodeParameters,
    peer: Peer,
}

/// The lists of a SotW request: names and locators.
#[derive(Debug, Default, Clone)]
struct Subscribed {
    names: Arc<List>,
    locators: Arc<List>,
}

/// The bytes of some fields of a request. Usually the fields follow each other.
#[derive(Debug)]
struct FieldRun<'f> {
    frame: &'f [u8],
    place: Range<usize>,
    /// A copy of all fields, if they do not follow each other.
    pieces: Vec<u8>,
}

/// Why a frame is not a valid request. Only the sender can correct it, so the stream ends (G1).
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkimError {
    /// The bytes are not a protobuf message.
    #[error("the request is not protobuf: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A string field is not UTF-8.
    #[error("field {field} of the request is not UTF-8")]
    NotUtf8 {
        /// The number of the field in its message.
        field: u32,
    },
    /// G9: the type URL is longer than that of any message.
    #[error("a type URL of {len} bytes exceeds the limit of {limit}")]
    TypeUrlTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl Subscribed {
    fn requested(&self) -> Requested {
        Requested {
            names: self.names.requested.names.clone(),
            locators: self.locators.requested.locators.clone(),
        }
    }
}

impl<'f> FieldRun<'f> {
    fn of(frame: &'f [u8]) -> Self {
        Self { frame, place: 0..0, pieces: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.place.is_empty() && self.pieces.is_empty()
    }

    /// Adds the `len` bytes of the frame before `rest`: one field with its tag, or several.
    fn add(&mut self, len: usize, rest: &[u8]) {
        let end = self.frame.len() - rest.len();
        let added = end - len..end;
        if !self.pieces.is_empty() {
            self.pieces.extend_from_slice(&self.frame[added]);
        } else if self.place.is_empty() {
            self.place = added;
        } else if self.place.end == added.start {
            self.place.end = added.end;
        } else {
            self.pieces = [&self.frame[self.place.clone()], &self.frame[added]].concat();
        }
    }

    fn bytes(self) -> Cow<'f, [u8]> {
        if self.pieces.is_empty() { self.frame[self.place].into() } else { self.pieces.into() }
    }
}

impl Skimmer {
    /// A skimmer for a stream on which an empty type URL means `default_type` (S12).
    #[must_use]
    pub fn new(default_type: String) -> Self {
        Self {
            client: None,
            node: (0, false),
            known: BTreeMap::new(),
            lists: Arc::default(),
            hasher: RandomState::new(),
            default_type,
            parameters: NodeParameters::default(),
            peer: Peer::default(),
        }
    }

    /// Gives the client of this peer other parameters than the default ones (T46).
    #[must_use]
    pub fn with_parameters(self, parameters: NodeParameters, peer: Peer) -> Self {
        Self { parameters, peer, ..self }
    }

    /// Shares the lists that it reads with other streams.
    #[must_use]
    pub fn with_lists(self, lists: Arc<Lists>) -> Self {
        Self { lists, ..self }
    }

    /// The client: from the first request with a node (S11). Later nodes are ignored (G7).
    #[must_use]
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Reads a request of this protocol.
    ///
    /// # Errors
    /// See [`SkimError`]; the stream has to end with it.
    pub fn request(&mut self, protocol: Protocol, frame: &[u8]) -> Result<Request, SkimError> {
        match protocol {
            Protocol::Sotw => self.sotw(frame).map(Request::Sotw),
            Protocol::Delta => self.delta(frame).map(Request::Delta),
        }
    }

    /// Reads a `DiscoveryRequest`.
    ///
    /// # Errors
    /// See [`SkimError`]; the stream has to end with it.
    pub fn sotw(&mut self, frame: &[u8]) -> Result<SotwRequest, SkimError> {
        let mut request = SotwRequest::default();
        let (mut names, mut locators) = (FieldRun::of(frame), FieldRun::of(frame));
        let mut rest = frame;
        while !rest.is_empty() {
            let before = rest;
            let run = match before[0] {
                NAMES_TAG => Some(&mut names),
                LOCATORS_TAG => Some(&mut locators),
                _ => None,
            };
            // Compare only where a list begins. If it compared at each field, a client could make
            // it read the whole frame for each.
            if let Some(run) = run.filter(|run| run.is_empty())
                && let Some(len) = self.known_run(before)
            {
                rest = &before[len..];
                run.add(len, rest);
                continue;
            }
            let Some((field, bytes)) = next_field(&mut rest)? else { continue };
            match field {
                1 => request.version_info = text(field, bytes)?.to_owned(),
                2 => self.read_node(bytes)?,
                3 => names.add(before.len() - rest.len(), rest),
                4 => request.type_url = type_url(field, bytes)?,
                5 => request.response_nonce = Nonce::parse(text(field, bytes)?),
                6 => request.error_detail = Some(status_message(bytes)?),
                7 => locators.add(before.len() - rest.len(), rest),
                _ => {}
            }
        }
        if request.type_url.is_empty() {
            request.type_url.clone_from(&self.default_type);
        }
        let (names, locators) = (names.bytes(), locators.bytes());
        let known = self.known.get(&request.type_url);
        if known.is_none_or(|known| !known.names.is(&names) || !known.locators.is(&locators)) {
            let subscribed = Subscribed {
                names: self.lists.get(names, |raw| read_requested(raw, 3, 7))?,
                locators: self.lists.get(locators, |raw| read_requested(raw, 3, 7))?,
            };
            request.requested = Some(subscribed.requested());
            self.known.insert(request.type_url.clone(), subscribed);
        }
        Ok(request)
    }

    /// The length of a known list at the start of `frame`, if one is there as a whole.
    fn known_run(&self, frame: &[u8]) -> Option<usize> {
        let mut lists = self.known.values().flat_map(|known| [&known.names, &known.locators]);
        lists.find_map(|list| list.is_start_of(frame))
    }

    /// Reads a `DeltaDiscoveryRequest`.
    ///
    /// # Errors
    /// See [`SkimError`]; the stream has to end with it.
    pub fn delta(&mut self, frame: &[u8]) -> Result<DeltaRequest, SkimError> {
        let mut request = DeltaRequest::default();
        let (mut subscribe, mut unsubscribe) = (FieldRun::of(frame), FieldRun::of(frame));
        let mut rest = frame;
        while !rest.is_empty() {
            let before = rest;
            let Some((field, bytes)) = next_field(&mut rest)? else { continue };
            match field {
                1 => self.read_node(bytes)?,
                2 => request.type_url = type_url(field, bytes)?,
                3 | 8 => subscribe.add(before.len() - rest.len(), rest),
                4 | 9 => unsubscribe.add(before.len() - rest.len(), rest),
                5 => {
                    let (name, version) = text_pair(bytes)?;
                    request.initial_resource_versions.insert(ResourceName::new(name), version.to_owned());
                }
                6 => request.response_nonce = Nonce::parse(text(field, bytes)?),
                7 => request.error_detail = Some(status_message(bytes)?),
                _ => {}
            }
        }
        let (subscribe, unsubscribe) = (subscribe.bytes(), unsubscribe.bytes());
        if !subscribe.is_empty() {
            request.subscribe = self.lists.get(subscribe, |raw| read_requested(raw, 3, 8))?.requested.clone();
        }
        if !unsubscribe.is_empty() {
            request.unsubscribe = read_requested(&unsubscribe, 4, 9)?;
        }
        Ok(request)
    }

    fn read_node(&mut self, bytes: &[u8]) -> Result<(), SkimError> {
        let hash = self.node_hash(bytes);
        if self.client.is_some() {
            self.node.1 |= hash != self.node.0;
            return Ok(());
        }
        self.node.0 = hash;
        let Derived { parameters, skipped } = self.parameters.derive(bytes, &self.peer)?;
        let mut client = Client { parameters, skipped_metadata: skipped, ..Client::default() };
        for field in fields(bytes) {
            match field? {
                (1, bytes) => client.id = client_text(1, bytes)?,
                (2, bytes) => client.cluster = client_text(2, bytes)?,
                (6, bytes) => client.user_agent = client_text(6, bytes)?,
                (10, bytes) => client.supports_ttl |= is_ttl_feature(bytes),
                _ => {}
            }
        }
        self.client = Some(client);
        Ok(())
    }

    /// Whether a request since the last call had another node than the first one. Such a node is
    /// ignored (S11, G7).
    pub fn take_node_change(&mut self) -> bool {
        std::mem::take(&mut self.node.1)
    }

    /// The hash of the first bytes, which contain the id, the cluster and the metadata: an Envoy
    /// repeats 50 KB of node with each ACK.
    fn node_hash(&self, bytes: &[u8]) -> u64 {
        self.hasher.hash_one((bytes.len(), &bytes[..bytes.len().min(NODE_HASHED_BYTES)]))
    }
}

/// S38: the name of the feature in the protocol, also with the prefix that Envoy adds.
fn is_ttl_feature(feature: &[u8]) -> bool {
    let feature = feature.strip_prefix(b"envoy.config.").or_else(|| feature.strip_prefix(b"xds.config."));
    feature == Some(b"supports-resource-ttl")
}

/// The tags of the two lists of a `DiscoveryRequest`, as every encoder writes them.
const NAMES_TAG: u8 = 3 << 3 | 2;
const LOCATORS_TAG: u8 = 7 << 3 | 2;

/// How much of the message of a NACK is logged and kept (G15).
pub const DETAIL_LIMIT_BYTES: usize = 4096;

/// How much of a node id, a cluster and a user agent is kept. The longest known ones are names of
/// pods with their namespaces.
pub const CLIENT_TEXT_LIMIT_BYTES: usize = 512;

/// The longest type URL of a request (G9); real ones have some 100 bytes.
pub const TYPE_URL_LIMIT_BYTES: usize = 1024;

/// How much of a node is compared with the first one.
const NODE_HASHED_BYTES: usize = 1024;

/// Reads the names in one field and the locators in another.
fn read_requested(frame: &[u8], name_field: u32, locator_field: u32) -> Result<Requested, SkimError> {
    let (mut names, mut locators) = (Vec::new(), Vec::new());
    // The locators of a client share few sets of parameters.
    let mut known = BTreeSet::<Parameters>::new();
    for field in fields(frame) {
        let (field, bytes) = field?;
        if field == name_field {
            names.push(ResourceName::new(text(field, bytes)?));
        } else if field == locator_field {
            let mut locator = locator(bytes)?;
            match known.get(&locator.parameters) {
                Some(parameters) => locator.parameters = parameters.clone(),
                None => _ = known.insert(locator.parameters.clone()),
            }
            locators.push(locator);
        }
    }
    Ok(Requested { names: names.into_iter().collect(), locators: locators.into_iter().collect() })
}

/// A `ResourceLocator`. If a key occurs twice, the last value counts (T9).
fn locator(message: &[u8]) -> Result<Locator, SkimError> {
    let (mut name, mut parameters) = ("", BTreeMap::new());
    for field in fields(message) {
        match field? {
            (1, bytes) => name = text(1, bytes)?,
            (2, bytes) => {
                let (key, value) = text_pair(bytes)?;
                parameters.insert(key, value);
            }
            _ => {}
        }
    }
    Ok(Locator { name: name.into(), parameters: parameters.into_iter().collect() })
}

/// The message of a `google.rpc.Status`, shortened for the log (G15).
fn status_message(bytes: &[u8]) -> Result<String, SkimError> {
    Ok(shortened(text_pair(bytes)?.1, DETAIL_LIMIT_BYTES).into_owned())
}

/// A text of the node, shortened for logs, lists and the authorizer.
fn client_text(field: u32, bytes: &[u8]) -> Result<String, SkimError> {
    Ok(shortened(text(field, bytes)?, CLIENT_TEXT_LIMIT_BYTES).into_owned())
}

/// A stream keeps the type URLs of its requests, so a very long one is refused.
fn type_url(field: u32, bytes: &[u8]) -> Result<String, SkimError> {
    let (text, limit) = (text(field, bytes)?, TYPE_URL_LIMIT_BYTES);
    if text.len() > limit {
        return Err(SkimError::TypeUrlTooLong { len: text.len(), limit });
    }
    Ok(text.to_owned())
}

/// The strings in fields 1 and 2 of a message; the last of each wins.
fn text_pair(message: &[u8]) -> Result<(&str, &str), SkimError> {
    let mut pair = ("", "");
    for field in fields(message) {
        match field? {
            (1, bytes) => pair.0 = text(1, bytes)?,
            (2, bytes) => pair.1 = text(2, bytes)?,
            _ => {}
        }
    }
    Ok(pair)
}

fn text(field: u32, bytes: &[u8]) -> Result<&str, SkimError> {
    str::from_utf8(bytes).map_err(|_| SkimError::NotUtf8 { field })
}

/// The length-delimited fields of a message; other fields are skipped.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u32, &[u8]), SkimError>> {
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            match next_field(&mut rest) {
                Ok(Some(field)) => return Some(Ok(field)),
                Ok(None) => {}
                Err(error) => {
                    rest = &[];
                    return Some(Err(error.into()));
                }
            }
        }
        None
    })
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Option<(u32, &'a [u8])>, prost::DecodeError> {
    // Names and similar fields have a tag and a length of one byte each; this fast path reads a
    // list of a thousand names at once.
    if let [tag @ ..0x80, len @ ..0x80, after @ ..] = *rest
        && *tag > 7
        && tag & 7 == 2
        && let Some((bytes, after)) = after.split_at_checked(usize::from(*len))
    {
        *rest = after;
        return Ok(Some((u32::from(tag >> 3), bytes)));
    }
    let (field, wire_type) = decode_key(rest)?;
    if wire_type != WireType::LengthDelimited {
        skip_field(wire_type, field, rest, DecodeContext::default())?;
        return Ok(None);
    }
    let len = decode_varint(rest)?;
    let whole = *rest;
    match usize::try_from(len).ok().filter(|len| *len <= whole.len()) {
        Some(len) => {
            rest.advance(len);
            Ok(Some((field, &whole[..len])))
        }
        // prost has no public constructor for its error of a length beyond the end, so provoke the
        // error.
        None => Err(skip_field(WireType::LengthDelimited, field, &mut &[0x01][..], DecodeContext::default())
            .expect_err("one byte is announced and none follows")),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use quickcheck::QuickCheck;
    use xds_proto::envoy::config::core::v3::Node;
    use xds_proto::envoy::service::discovery::v3::{
        DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator,
    };
    use xds_proto::google::rpc::Status;

    use super::*;

    fn skimmer() -> Skimmer {
        Skimmer::new(String::new())
    }

    fn names(list: &[&str]) -> Requested {
        list.iter().map(|name| ResourceName::new(*name)).collect::<Vec<_>>().into()
    }

    fn request(list: &[&str]) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: "v".into(),
            node: Some(Node { id: "n".into(), cluster: "c".into(), ..Node::default() }),
            resource_names: list.iter().map(|name| (*name).into()).collect(),
            type_url: "t".into(),
            response_nonce: "7".into(),
            error_detail: Some(Status { code: 13, message: "bad".into(), ..Status::default() }),
            ..DiscoveryRequest::default()
        }
    }

    #[test]
    fn a_sotw_request_is_read_as_it_was_written() {
        let mut skimmer = skimmer();
        let read = skimmer.sotw(&request(&["a", "b"]).encode_to_vec()).unwrap();
        let expected = SotwRequest {
            type_url: "t".into(),
            version_info: "v".into(),
            response_nonce: Nonce::parse("7"),
            error_detail: Some("bad".into()),
            requested: Some(names(&["a", "b"])),
        };
        let client = Client { id: "n".into(), cluster: "c".into(), ..Client::default() };
        assert_eq!((read, skimmer.client), (expected, Some(client)));
    }

    #[test]
    fn s12_the_empty_type_and_the_type_of_the_service_are_one() {
        let mut skimmer = Skimmer::new("t".into());
        let mut read = |type_url: &str, list: &[&str]| {
            let message = DiscoveryRequest { type_url: type_url.into(), ..request(list) };
            skimmer.sotw(&message.encode_to_vec()).unwrap().requested
        };
        assert_eq!(read("", &["a"]), Some(names(&["a"])));
        assert_eq!(read("t", &["b"]), Some(names(&["b"])));
        assert_eq!(read("", &["a"]), Some(names(&["a"])));
    }

    #[test]
    fn t46_parameters_are_derived_from_the_node() {
        use prost_types::{Struct, Value, value::Kind};
        let env = Value { kind: Some(Kind::StringValue("prod".into())) };
        let metadata = Some(Struct { fields: [("env".to_owned(), env)].into() });
        let node = Some(Node { id: "n".into(), metadata, ..Node::default() });
        let mut skimmer = skimmer();
        skimmer.sotw(&DiscoveryRequest { node, ..request(&[]) }.encode_to_vec()).unwrap();
        assert_eq!(skimmer.client.unwrap().parameters.get("env").map(AsRef::as_ref), Some("prod"));
    }

    #[test]
    fn s11_g7_the_node_is_that_of_the_first_request_which_has_one() {
        let mut skimmer = skimmer();
        let mut read = |node: Option<&str>| {
            let node = node.map(|id| Node { id: id.into(), ..Node::default() });
            skimmer.sotw(&DiscoveryRequest { node, ..request(&[]) }.encode_to_vec()).unwrap();
            skimmer.client.clone().map(|client| client.id)
        };
        assert_eq!(read(None), None);
        assert_eq!(read(Some("first")).as_deref(), Some("first"));
        assert_eq!(read(None).as_deref(), Some("first"));
        assert_eq!(read(Some("other")).as_deref(), Some("first"));
    }

    #[test]
    fn g7_another_node_is_noticed_once_and_the_same_is_not() {
        let mut skimmer = skimmer();
        let mut changes = |id: &str| {
            let node = Some(Node { id: id.into(), ..Node::default() });
            skimmer.sotw(&DiscoveryRequest { node, ..request(&[]) }.encode_to_vec()).unwrap();
            skimmer.take_node_change()
        };
        assert_eq!(["a", "a", "b"].map(&mut changes), [false, false, true]);
        assert!(!skimmer.take_node_change());
    }

    #[test]
    fn s38_who_honours_a_ttl_is_read_from_its_features() {
        let supports = |features: &[&str]| {
            let client_features = features.iter().map(|feature| (*feature).to_owned()).collect();
            let node = Some(Node { client_features, user_agent_name: "envoy".into(), ..Node::default() });
            let mut skimmer = skimmer();
            skimmer.sotw(&DiscoveryRequest { node, ..request(&[]) }.encode_to_vec()).unwrap();
            let client = skimmer.client().unwrap();
            assert_eq!(client.user_agent, "envoy");
            client.supports_ttl
        };
        assert!(supports(&["other", "xds.config.supports-resource-ttl"]));
        assert!(supports(&["envoy.config.supports-resource-ttl"]));
        assert!(!supports(&["xds.config.resource-in-sotw"]));
    }

    #[test]
    fn s7_names_that_did_not_change_are_not_read_again() {
        let mut skimmer = skimmer();
        let mut read = |list: &[&str]| skimmer.sotw(&request(list).encode_to_vec()).unwrap().requested;
        assert_eq!(read(&["ab", "c"]), Some(names(&["ab", "c"])));
        assert_eq!(read(&["ab", "c"]), None);
        assert_eq!(read(&["a", "bc"]), Some(names(&["a", "bc"])));
        assert_eq!(read(&[]), Some(Requested::default()));
    }

    #[test]
    fn s7_a_list_that_goes_on_or_differs_late_is_read_as_it_is() {
        let mut skimmer = skimmer();
        let mut read = |list: &[&str]| skimmer.sotw(&request(list).encode_to_vec()).unwrap().requested;
        // If the known list were compared at every field, it would be compared in full 800,000
        // times.
        let (many, more) = ([vec!["a"; 200_000], vec!["b"]].concat(), vec!["a"; 1_000_000]);
        assert_eq!(read(&many), Some(names(&["a", "b"])));
        assert_eq!(read(&more), Some(names(&["a"])));
        assert_eq!(read(&["x", "y"]), Some(names(&["x", "y"])));
        assert_eq!(read(&["x", "y", "z"]), Some(names(&["x", "y", "z"])));
        assert_eq!(read(&["w", "x", "y", "z"]), Some(names(&["w", "x", "y", "z"])));
    }

    fn wire_locator(name: &str, pairs: &[(&str, &str)]) -> ResourceLocator {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ResourceLocator { name: name.into(), dynamic_parameters: pairs.collect() }
    }

    fn located(name: &str, pairs: &[(&str, &str)]) -> Locator {
        Locator { name: name.into(), parameters: pairs.iter().copied().collect() }
    }

    #[test]
    fn t9_of_a_key_given_twice_the_last_value_counts() {
        let (one, other) = ([0x12, 6, 10, 1, b'k', 18, 1, b'1'], [0x12, 6, 10, 1, b'k', 18, 1, b'2']);
        let read = locator(&[&[10, 1, b'n'][..], &one, &other].concat());
        assert_eq!(read, Ok(located("n", &[("k", "2")])));
    }

    #[test]
    fn s14_a_change_of_parameters_alone_is_a_change_of_the_subscription() {
        let mut skimmer = skimmer();
        let mut read = |env: &str| {
            let resource_locators = vec![wire_locator("l", &[("env", env)])];
            let message = DiscoveryRequest { resource_locators, ..request(&[]) };
            skimmer.sotw(&message.encode_to_vec()).unwrap().requested
        };
        let expected = |env| Some(Requested::from_iter([located("l", &[("env", env)])]));
        assert_eq!(read("prod"), expected("prod"));
        assert_eq!(read("prod"), None);
        assert_eq!(read("test"), expected("test"));
    }

    #[test]
    fn a_delta_request_is_read_as_it_was_written() {
        let message = DeltaDiscoveryRequest {
            type_url: "t".into(),
            resource_names_subscribe: vec!["a".into()],
            resource_names_unsubscribe: vec!["b".into()],
            initial_resource_versions: [("c".to_owned(), "1".to_owned())].into(),
            response_nonce: "7".into(),
            resource_locators_subscribe: vec![wire_locator("l", &[("env", "prod"), ("zone", "")])],
            resource_locators_unsubscribe: vec![wire_locator("m", &[])],
            ..DeltaDiscoveryRequest::default()
        };
        let expected = DeltaRequest {
            type_url: "t".into(),
            subscribe: Requested {
                locators: [located("l", &[("env", "prod"), ("zone", "")])].into_iter().collect(),
                ..names(&["a"])
            },
            unsubscribe: Requested { locators: [located("m", &[])].into_iter().collect(), ..names(&["b"]) },
            initial_resource_versions: [("c".into(), "1".to_owned())].into(),
            response_nonce: Nonce::parse("7"),
            error_detail: None,
        };
        assert_eq!(skimmer().delta(&message.encode_to_vec()), Ok(expected));
    }

    #[test]
    fn g15_what_a_client_says_is_kept_in_part_and_long_ids_that_differ_stay_apart() {
        let long = |end: &str| "x".repeat(1_000_000) + end;
        let client = |end: &str| {
            let node =
                Node { id: long(end), cluster: long(end), user_agent_name: long(end), ..Node::default() };
            let error_detail = Some(Status { message: long(end), ..Status::default() });
            let mut skimmer = skimmer();
            let request = DiscoveryRequest { node: Some(node), error_detail, ..request(&[]) };
            let read = skimmer.sotw(&request.encode_to_vec()).unwrap();
            assert!(read.error_detail.unwrap().len() <= DETAIL_LIMIT_BYTES);
            skimmer.client.unwrap()
        };
        let (one, other) = (client("1"), client("2"));
        for text in [&one.id, &one.cluster, &one.user_agent] {
            assert!(text.len() <= CLIENT_TEXT_LIMIT_BYTES && text.contains("1000001 bytes"), "{text}");
        }
        assert_ne!(one.name(), other.name());
    }

    #[test]
    fn g9_a_type_url_that_no_message_has_is_refused() {
        let message = DiscoveryRequest { type_url: "t".repeat(1025), ..request(&[]) };
        let refused = Err(SkimError::TypeUrlTooLong { len: 1025, limit: 1024 });
        assert_eq!(skimmer().sotw(&message.encode_to_vec()), refused);
        let message =
            DeltaDiscoveryRequest { type_url: message.type_url, ..DeltaDiscoveryRequest::default() };
        assert!(matches!(skimmer().delta(&message.encode_to_vec()), Err(SkimError::TypeUrlTooLong { .. })));
    }

    #[test]
    fn g1_a_truncated_frame_is_an_error_and_never_a_panic() {
        let frame = request(&["a", "b"]).encode_to_vec();
        assert!(matches!(skimmer().sotw(&frame[..frame.len() - 1]), Err(SkimError::Malformed(_))));
        assert_eq!(skimmer().sotw(&[0x1a, 1, 0xff]), Err(SkimError::NotUtf8 { field: 3 }));
    }

    #[test]
    fn any_bytes_are_read_or_refused_as_prost_does() {
        fn agrees(bytes: Vec<u8>) -> bool {
            let ours = skimmer().sotw(&bytes);
            match DiscoveryRequest::decode(bytes.as_slice()) {
                Ok(message) => ours.is_ok_and(|read| read.type_url == message.type_url),
                // The skimmer reads only parts of the node, so it accepts some nodes that prost
                // refuses.
                Err(_) => true,
            }
        }
        QuickCheck::new().tests(2000).quickcheck(agrees as fn(Vec<u8>) -> bool);
    }
}
