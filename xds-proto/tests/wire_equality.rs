//! The declaration of this crate equals Envoy's on the wire.
//!
//! Envoy's side is `descriptors/envoy.binpb.gz`, which `cargo xtask descriptors` makes from Envoy's
//! own files. The first half compares the two declarations; the second sends random messages
//! through both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    path::Path,
};

use flate2::read::GzDecoder;
use prost::{DecodeError, Message, Name};
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey,
    MessageDescriptor, MethodDescriptor, ServiceDescriptor, Value,
};
use quickcheck::{Arbitrary, Gen};
use xds_proto::{
    envoy::{
        admin::v3 as admin,
        config::core::v3 as core,
        service::{
            discovery::v3::{self as discovery, dynamic_parameter_constraints, resource},
            status::v3::{self as status, client_config},
        },
        r#type::{matcher::v3 as matcher, v3 as semantic_version},
    },
    google::rpc,
    service::{CSDS, SERVICES},
    xds::core::v3 as xds,
};

#[test]
fn every_declared_message_has_the_fields_of_envoys() {
    let envoy = envoy();
    let messages = declared_messages();
    assert!(messages.len() > 30, "only {} messages", messages.len());
    for ours in messages.iter().filter(|message| !PINNED.iter().any(|pin| pin.0 == message.full_name())) {
        let theirs = envoy.get_message_by_name(ours.full_name()).expect("Envoy declares the message");
        let (mut expected, mut choices) = (fields(&theirs), oneofs(&theirs));
        for number in omitted(ours.full_name()) {
            assert!(expected.remove(number).is_some(), "{}: Envoy has no field {number}", ours.full_name());
            choices.values_mut().for_each(|members| _ = members.remove(number));
        }
        choices.retain(|_, members| !members.is_empty());
        assert_eq!(fields(ours), expected, "{}", ours.full_name());
        assert_eq!(oneofs(ours), choices, "{}", ours.full_name());
    }
}

#[test]
fn messages_that_envoys_set_lacks_have_the_pinned_fields() {
    let (ours, envoy) = (ours(), envoy());
    for (name, pinned) in PINNED {
        assert_eq!(envoy.get_message_by_name(name), None, "{name} can be compared with Envoy's");
        let message = ours.get_message_by_name(name).unwrap();
        assert_eq!(fields(&message).into_values().collect::<Vec<_>>(), pinned, "{name}");
    }
}

#[test]
fn every_declared_enum_has_the_values_of_envoys() {
    let envoy = envoy();
    let enums: Vec<_> = ours().all_enums().filter(|found| is_ours(found.full_name())).collect();
    assert!(!enums.is_empty());
    for ours in enums {
        let theirs = envoy.get_enum_by_name(ours.full_name()).expect("Envoy declares the enum");
        assert_eq!(values(&ours), values(&theirs), "{}", ours.full_name());
    }
}

#[test]
fn the_discovery_file_declares_every_message_of_envoys() {
    let names = |pool: &DescriptorPool| -> BTreeSet<String> {
        let file = pool.get_file_by_name("envoy/service/discovery/v3/discovery.proto").unwrap();
        file.messages().map(|message| message.full_name().to_owned()).collect()
    };
    assert_eq!(names(&ours()), names(&envoy()));
}

#[test]
fn every_discovery_service_of_envoys_is_declared_with_its_methods() {
    let discovery_services = |pool: &DescriptorPool| -> BTreeMap<String, BTreeSet<String>> {
        let services = pool.services().filter(|service| {
            is_ours(service.full_name()) && service.methods().any(|method| speaks_discovery(&method))
        });
        services.map(|service| (service.full_name().to_owned(), methods(&service))).collect()
    };
    let ours = discovery_services(&ours());
    assert_eq!(ours.len(), SERVICES.len() + 1, "one per type, and the aggregated one");
    assert_eq!(ours, discovery_services(&envoy()));
}

#[test]
fn the_status_service_has_the_methods_of_envoys() {
    let methods_in = |pool: &DescriptorPool| methods(&pool.get_service_by_name(CSDS).unwrap());
    assert_eq!(methods_in(&ours()), methods_in(&envoy()));
}

#[test]
fn the_service_table_has_the_types_and_rest_paths_of_envoys_annotations() {
    let envoy = envoy();
    let resource = envoy.get_extension_by_name("envoy.annotations.resource").unwrap();
    let http = envoy.get_extension_by_name("google.api.http").unwrap();
    for row in SERVICES {
        let service = envoy.services().find(|service| service.full_name() == row.service).unwrap();
        let options = service.options();
        let annotation = options.get_extension(&resource);
        let served = annotation.as_message().unwrap().get_field_by_name("type").unwrap();
        assert_eq!(row.type_url, format!("type.googleapis.com/{}", served.as_str().unwrap()));
        let path = service.methods().find_map(|method| {
            let options = method.options();
            let rule = options.has_extension(&http).then(|| options.get_extension(&http).into_owned())?;
            Some(rule.as_message()?.get_field_by_name("post")?.as_str()?.to_owned())
        });
        assert_eq!(row.rest, path.as_deref(), "{}", row.service);
    }
}

#[test]
fn every_declared_message_is_sent_through_both() {
    let sent: BTreeSet<String> = codecs().into_iter().map(|codec| codec.name).collect();
    let declared = declared_messages().iter().map(|message| message.full_name().to_owned()).collect();
    assert_eq!(sent, declared);
}

#[test]
fn what_envoy_encodes_survives_our_structs() {
    let envoy = envoy();
    for codec in codecs() {
        let Some(descriptor) = envoy.get_message_by_name(&codec.name) else { continue };
        if is_partial(&descriptor) {
            continue;
        }
        let mut random = Random::new();
        for round in 0..ROUNDS {
            let sent = random.message(&descriptor, DEPTH).encode_to_vec();
            let received = (codec.recode)(&sent).unwrap();
            let decode = |bytes: &[u8]| DynamicMessage::decode(descriptor.clone(), bytes).unwrap();
            assert_eq!(decode(&received), decode(&sent), "{} in round {round}", codec.name);
        }
    }
}

#[test]
fn what_our_structs_encode_survives_envoy() {
    let (ours, envoy) = (ours(), envoy());
    for codec in codecs() {
        let Some(theirs) = envoy.get_message_by_name(&codec.name) else { continue };
        let descriptor = ours.get_message_by_name(&codec.name).unwrap();
        let mut random = Random::new();
        for round in 0..ROUNDS {
            let sent = (codec.recode)(&random.message(&descriptor, DEPTH).encode_to_vec()).unwrap();
            let received = DynamicMessage::decode(theirs.clone(), sent.as_slice()).unwrap();
            assert!(knows_all(&received), "{} in round {round}: {received}", codec.name);
            let returned = received.encode_to_vec();
            assert!((codec.equal)(&sent, &returned), "{} in round {round}: {received}", codec.name);
        }
    }
}

/// Messages that the set of Envoy's files does not have, as `fields` prints them; their source is
/// protocol.md A.
const PINNED: [(&str, &[&str]); 2] = [
    (
        "xds.core.v3.Resource",
        &[
            "1 name: optional message xds.core.v3.ResourceName, json name",
            "2 version: optional string, json version",
            "3 resource: optional message google.protobuf.Any, json resource",
        ],
    ),
    (
        "xds.core.v3.ResourceName",
        &[
            "1 id: optional string, json id",
            "2 authority: optional string, json authority",
            "3 resource_type: optional string, json resourceType",
            "4 context: optional message xds.core.v3.ContextParams, json context",
        ],
    ),
];

/// Fields of Envoy's messages that this crate omits on purpose: the superseded form of CSDS, which
/// would need all configuration dumps of Envoy, and matchers that the server refuses.
const OMITTED: [(&str, &[u32]); 4] = [
    ("envoy.service.status.v3.ClientConfig", &[2]),
    ("envoy.type.matcher.v3.RegexMatcher", &[1, 2]),
    ("envoy.type.matcher.v3.StringMatcher", &[8]),
    ("envoy.type.matcher.v3.StructMatcher", &[2, 3]),
];

fn omitted(message: &str) -> &'static [u32] {
    OMITTED.iter().find(|(name, _)| *name == message).map_or(&[], |(_, fields)| fields)
}

/// Whether a message has omitted fields, at any depth. Only messages of two packages have, and none
/// of those holds itself.
fn is_partial(message: &MessageDescriptor) -> bool {
    let holds_partial =
        |field: FieldDescriptor| matches!(field.kind(), Kind::Message(inner) if is_partial(&inner));
    let name = message.full_name();
    let may_hold =
        ["envoy.service.status.", "envoy.type.matcher."].iter().any(|package| name.starts_with(package));
    !omitted(name).is_empty() || (may_hold && message.fields().any(holds_partial))
}

fn ours() -> DescriptorPool {
    DescriptorPool::decode(xds_proto::FILE_DESCRIPTOR_SET).expect("the set is self-contained")
}

fn envoy() -> DescriptorPool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../descriptors/envoy.binpb.gz");
    let mut set = Vec::new();
    let packed = File::open(path).expect("`cargo xtask descriptors` was run");
    GzDecoder::new(packed).read_to_end(&mut set).expect("the set is gzip");
    DescriptorPool::decode(set.as_slice()).expect("the set is self-contained")
}

/// Whether this crate declares this name; the others are well-known types and types of other
/// projects.
fn is_ours(name: &str) -> bool {
    ["envoy.", "google.rpc.", "xds."].iter().any(|package| name.starts_with(package))
}

fn declared_messages() -> Vec<MessageDescriptor> {
    let pool = ours();
    let messages = pool.all_messages();
    messages.filter(|message| is_ours(message.full_name()) && !message.is_map_entry()).collect()
}

/// One line per field, by number: everything that decides its encoding, in binary and in JSON.
fn fields(message: &MessageDescriptor) -> BTreeMap<u32, String> {
    let line = |field: FieldDescriptor| {
        let json = field.json_name().to_owned();
        let line = format!("{} {}: {}, json {json}", field.number(), field.name(), kind(&field));
        (field.number(), line)
    };
    message.fields().map(line).collect()
}

fn kind(field: &FieldDescriptor) -> String {
    let label = match field.cardinality() {
        Cardinality::Optional => "optional",
        Cardinality::Required => "required",
        Cardinality::Repeated if field.is_packed() => "packed",
        Cardinality::Repeated => "repeated",
    };
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            format!("map from {} to {}", kind(&key), kind(&value))
        }
        Kind::Message(message) => format!("{label} message {}", message.full_name()),
        Kind::Enum(found) => format!("{label} enum {}", found.full_name()),
        scalar => format!("{label} {scalar:?}"),
    }
}

fn oneofs(message: &MessageDescriptor) -> BTreeMap<String, BTreeSet<u32>> {
    let members = |oneof: prost_reflect::OneofDescriptor| {
        (oneof.name().to_owned(), oneof.fields().map(|field| field.number()).collect())
    };
    message.oneofs().map(members).collect()
}

fn values(found: &EnumDescriptor) -> BTreeSet<(i32, String)> {
    found.values().map(|value| (value.number(), value.name().to_owned())).collect()
}

fn methods(service: &ServiceDescriptor) -> BTreeSet<String> {
    let stream = |streaming| if streaming { "stream " } else { "" };
    let line = |method: MethodDescriptor| {
        let input = stream(method.is_client_streaming()).to_owned() + method.input().full_name();
        let output = stream(method.is_server_streaming()).to_owned() + method.output().full_name();
        format!("{}: {input} to {output}", method.name())
    };
    service.methods().map(line).collect()
}

fn speaks_discovery(method: &MethodDescriptor) -> bool {
    [discovery::DiscoveryRequest::full_name(), discovery::DeltaDiscoveryRequest::full_name()]
        .iter()
        .any(|name| name == method.input().full_name())
}

/// Whether no field, at any depth, is one that the descriptor does not declare.
fn knows_all(message: &DynamicMessage) -> bool {
    fn knows(value: &Value) -> bool {
        match value {
            Value::Message(message) => knows_all(message),
            Value::List(values) => values.iter().all(knows),
            Value::Map(entries) => entries.values().all(knows),
            _ => true,
        }
    }
    message.unknown_fields().next().is_none() && message.fields().all(|(_, value)| knows(value))
}

/// A generated struct behind functions on its encoding.
struct Codec {
    name: String,
    recode: fn(&[u8]) -> Result<Vec<u8>, DecodeError>,
    equal: fn(&[u8], &[u8]) -> bool,
}

fn codec<M: Message + Name + Default + PartialEq>() -> Codec {
    Codec {
        name: M::full_name(),
        recode: |bytes| Ok(M::decode(bytes)?.encode_to_vec()),
        equal: |left, right| M::decode(left).is_ok_and(|left| M::decode(right) == Ok(left)),
    }
}

fn codecs() -> Vec<Codec> {
    vec![
        codec::<admin::UpdateFailureState>(),
        codec::<client_config::GenericXdsConfig>(),
        codec::<core::Address>(),
        codec::<core::BuildVersion>(),
        codec::<core::ControlPlane>(),
        codec::<core::EnvoyInternalAddress>(),
        codec::<core::Extension>(),
        codec::<core::Locality>(),
        codec::<core::Metadata>(),
        codec::<core::Node>(),
        codec::<core::Pipe>(),
        codec::<core::SocketAddress>(),
        codec::<discovery::DeltaDiscoveryRequest>(),
        codec::<discovery::DeltaDiscoveryResponse>(),
        codec::<discovery::DiscoveryRequest>(),
        codec::<discovery::DiscoveryResponse>(),
        codec::<discovery::DynamicParameterConstraints>(),
        codec::<discovery::Resource>(),
        codec::<discovery::ResourceError>(),
        codec::<discovery::ResourceLocator>(),
        codec::<discovery::ResourceName>(),
        codec::<dynamic_parameter_constraints::ConstraintList>(),
        codec::<dynamic_parameter_constraints::SingleConstraint>(),
        codec::<dynamic_parameter_constraints::single_constraint::Exists>(),
        codec::<matcher::NodeMatcher>(),
        codec::<matcher::RegexMatcher>(),
        codec::<matcher::StringMatcher>(),
        codec::<matcher::StructMatcher>(),
        codec::<resource::CacheControl>(),
        codec::<rpc::Status>(),
        codec::<semantic_version::SemanticVersion>(),
        codec::<status::ClientConfig>(),
        codec::<status::ClientStatusRequest>(),
        codec::<status::ClientStatusResponse>(),
        codec::<xds::Authority>(),
        codec::<xds::CollectionEntry>(),
        codec::<xds::ContextParams>(),
        codec::<xds::Resource>(),
        codec::<xds::ResourceLocator>(),
        codec::<xds::ResourceName>(),
        codec::<xds::collection_entry::InlineEntry>(),
        codec::<xds::resource_locator::Directive>(),
    ]
}

/// Makes the messages equal in every run.
struct Random(Gen);

impl Random {
    fn new() -> Self {
        Self(Gen::from_size_and_seed(12, 0x5eed))
    }

    fn message(&mut self, descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            let too_deep = depth == 0 && matches!(field.kind(), Kind::Message(_));
            if bool::arbitrary(&mut self.0) && !too_deep {
                message.set_field(&field, self.field(&field, depth));
            }
        }
        message
    }

    fn field(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let value = entry.map_entry_value_field();
                let entry = |random: &mut Self| {
                    (MapKey::String(String::arbitrary(&mut random.0)), random.value(&value.kind(), depth))
                };
                Value::Map((0..self.length()).map(|_| entry(self)).collect())
            }
            kind if field.is_list() => {
                Value::List((0..self.length()).map(|_| self.value(&kind, depth)).collect())
            }
            kind => self.value(&kind, depth),
        }
    }

    fn value(&mut self, kind: &Kind, depth: usize) -> Value {
        match kind {
            Kind::Bool => Value::Bool(bool::arbitrary(&mut self.0)),
            Kind::Int32 => Value::I32(i32::arbitrary(&mut self.0)),
            Kind::Int64 => Value::I64(i64::arbitrary(&mut self.0)),
            Kind::Uint32 => Value::U32(u32::arbitrary(&mut self.0)),
            // Made from an integer, because NaN equals nothing.
            Kind::Double => Value::F64(f64::from(i32::arbitrary(&mut self.0)) / 3.0),
            Kind::String => Value::String(String::arbitrary(&mut self.0)),
            Kind::Bytes => Value::Bytes(Vec::arbitrary(&mut self.0).into()),
            // Any number, since enums are open: an unknown value has to survive too.
            Kind::Enum(_) => Value::EnumNumber(i32::from(u8::arbitrary(&mut self.0) % 5)),
            Kind::Message(message) => Value::Message(self.message(message, depth.saturating_sub(1))),
            other => panic!("no declared field is of kind {other:?}"),
        }
    }

    fn length(&mut self) -> usize {
        usize::arbitrary(&mut self.0) % 4
    }
}

/// Random messages per message type and direction.
const ROUNDS: usize = 100;

/// How deep random messages nest.
const DEPTH: usize = 5;
