use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;

use prost_reflect::prost::Message as _;
use prost_reflect::{Kind, MapKey};
use quickcheck::quickcheck;

use super::*;

/// Numbers and enums differ. `name` is renamed, `baz` moves into a message, and `limits.burst` out of one.
const PROTO: &str = "
syntax = 'proto3';
package acme;
message V1 {
  string name = 1;
  int32 baz = 2;
  Color color = 3;
  repeated Color colors = 4;
  map<string, Part> parts = 5;
  oneof kind { string left = 6; Part right = 7; }
  Limits limits = 8;
  optional bool flag = 9;
  Shared shared = 10;
  message Part { bytes data = 1; repeated Part parts = 2; }
  message Limits { uint64 rate = 1; double burst = 2; }
  enum Color { UNSPECIFIED = 0; RED = 1; BLUE = 2; }
}
message V2 {
  Shared shared = 1;
  optional bool flag = 2;
  Limits limits = 3;
  oneof kind { Part right = 4; string left = 5; Part third = 6; }
  map<string, Part> parts = 7;
  repeated Color colors = 8;
  Color color = 9;
  Baz baz2 = 10;
  string title = 11;
  double burst = 12;
  message Part { repeated Part parts = 1; bytes data = 2; string label = 3; }
  message Limits { uint64 rate = 5; }
  message Baz { int32 qux = 1; int32 other = 2; }
  enum Color { UNSPECIFIED = 0; BLUE = 1; RED = 2; PINK = 3; }
}
message Shared { int32 a = 1; }
message Plain { string name = 1; int32 baz = 2; }
message Renumbered { string name = 5; int32 baz = 6; }
message OtherType { string name = 1; int64 baz = 2; }
message OtherPresence { string name = 1; optional int32 baz = 2; }
message Fewer { string name = 1; }
message OneOf { oneof kind { string name = 1; string other = 2; } }
message Two { optional string name = 1; optional string other = 2; }
message Paint { Color color = 1; enum Color { NONE = 0; RED = 1; } }
message OtherDefault { Color color = 1; enum Color { RED = 0; NONE = 1; } }
";

fn descriptors() -> &'static Descriptors {
    static DESCRIPTORS: OnceLock<Descriptors> = OnceLock::new();
    DESCRIPTORS.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("xds-fields-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (proto, set) = (folder.join("acme.proto"), folder.join("acme.binpb"));
        fs::write(&proto, PROTO).unwrap();
        let compiled = protox::compile([&proto], [&folder]).unwrap();
        fs::write(&set, compiled.encode_to_vec()).unwrap();
        let mut descriptors = Descriptors::envoy();
        descriptors.add_file(&set).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        descriptors
    })
}

fn places(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once(':'));
    pairs.map(|(path, place)| (path.to_owned(), place.to_owned())).collect()
}

fn pair(from: &str, to: &str, up: &str, down: &str) -> Result<(FieldConverter, FieldConverter), FieldError> {
    let (from, to) = (format!("t/acme.{from}"), format!("t/acme.{to}"));
    FieldConverter::pair(descriptors(), (&from, &to), (&places(up), &places(down)))
}

const UP: &str = "name:title baz:baz2.qux limits.burst:burst";
const DOWN: &str = "title:name baz2.qux:baz burst:limits.burst";

fn of_v1() -> (FieldConverter, FieldConverter) {
    pair("V1", "V2", UP, DOWN).unwrap()
}

/// A message from text, as protobuf prints it.
fn message(name: &str, text: &str) -> DynamicMessage {
    let descriptor = descriptors().message(&format!("t/acme.{name}")).unwrap();
    DynamicMessage::parse_text_format(descriptor, text).unwrap()
}

fn bytes(name: &str, text: &str) -> Bytes {
    encode::to_vec(&message(name, text)).into()
}

fn refused(converter: &FieldConverter, payload: &Bytes) -> String {
    converter.convert(payload, "name").unwrap_err()
}

#[test]
fn sv10_fields_go_to_their_places_and_others_keep_their_names() {
    let (up, down) = of_v1();
    let old = "name: 'a' baz: 7 color: RED colors: [BLUE, RED] limits { rate: 1 burst: 2.5 } flag: false \
               parts { key: 'b' value { data: 'x' parts { data: 'y' } } } right { data: 'z' } shared { a: 1 }";
    let new = "title: 'a' baz2 { qux: 7 } color: RED colors: [BLUE, RED] limits { rate: 1 } burst: 2.5 flag: false \
               parts { key: 'b' value { data: 'x' parts { data: 'y' } } } right { data: 'z' } shared { a: 1 }";
    let converted = up.convert(&bytes("V1", old), "name").unwrap();
    assert_eq!(converted, bytes("V2", new));
    assert_eq!(down.convert(&converted, "name").unwrap(), bytes("V1", old));
}

#[test]
fn sv10_equal_messages_have_equal_bytes_whatever_the_order_of_their_fields() {
    let (up, _) = pair("Plain", "Renumbered", "", "").unwrap();
    let (one, other) = (b"\x0a\x01a\x10\x07".as_slice(), b"\x10\x07\x0a\x01a".as_slice());
    let converted = |payload: &'static [u8]| up.convert(&payload.into(), "name").unwrap();
    assert_eq!(converted(one), converted(other));
    assert_eq!(converted(one), b"\x2a\x01a\x30\x07".as_slice());
}

#[test]
fn sv11_what_the_other_form_cannot_say_is_refused_with_its_field() {
    let (up, down) = of_v1();
    assert_eq!(refused(&up, &b"\x18\x07".as_slice().into()), "color: acme.V1.Color has no value 7");
    let pink = bytes("V2", "colors: [RED, PINK]");
    assert_eq!(refused(&down, &pink), "colors: acme.V1.Color has no value PINK");
    let third = bytes("V2", "third { data: 'x' }");
    assert_eq!(refused(&down, &third), "third is set, and acme.V1 has no place for it");
    let other = bytes("V2", "baz2 { other: 1 }");
    assert_eq!(refused(&down, &other), "baz2.other is set, and acme.V1 has no place for it");
    // A message without fields may mean something by being there.
    assert_eq!(refused(&down, &bytes("V2", "baz2 {}")), "baz2 is set, and acme.V1 has no place for it");
    let label = bytes("V2", "parts { key: 'b' value { label: 'x' } }");
    assert_eq!(refused(&down, &label), "parts.label is set, and acme.V1.Part has no place for it");
    // Field 99, in the message, and in one of its messages.
    let unknown = b"\x98\x06\x01".as_slice().into();
    assert_eq!(refused(&up, &unknown), "acme.V1 has no field with the number of 99");
    let unknown = b"\x42\x03\x98\x06\x01".as_slice().into();
    assert_eq!(refused(&up, &unknown), "acme.V1.Limits has no field with the number of limits.99");
    assert!(refused(&up, &b"\x0a\x7f".as_slice().into()).starts_with("it is no acme.V1: "));
    let (up, _) = pair("Two", "OneOf", "", "").unwrap();
    assert_eq!(
        refused(&up, &bytes("Two", "name: 'a' other: 'b'")),
        "acme.OneOf can have one of name and other only"
    );
}

#[test]
fn sv10_a_message_of_the_same_type_stays_with_its_unknown_fields() {
    let (up, down) = of_v1();
    // The field `shared` with its field 99.
    let old = Bytes::from_static(b"\x52\x05\x08\x01\x98\x06\x01");
    let new = up.convert(&old, "name").unwrap();
    assert_eq!(new, b"\x0a\x05\x08\x01\x98\x06\x01".as_slice());
    assert_eq!(down.convert(&new, "name").unwrap(), old);
}

#[test]
fn sv10_fields_that_cannot_be_right_are_refused_before_a_record_is_converted() {
    let error =
        |from: &str, to: &str, up: &str, down: &str| pair(from, to, up, down).unwrap_err().to_string();
    assert_eq!(
        error("None", "V2", "", ""),
        "there is no descriptor of t/acme.None: add it with --descriptors"
    );
    let no_place = "acme.Fewer has no field for baz: name its new place in `fields`";
    assert_eq!(error("Plain", "Fewer", "", ""), no_place);
    let other = "the field baz has another type than its new place baz";
    assert_eq!(error("Plain", "OtherType", "", ""), other);
    assert_eq!(error("Plain", "OtherPresence", "", ""), other);
    assert!(error("Paint", "OtherDefault", "", "").contains("color"));
    let twice = "two fields cannot be at baz2.qux, or one inside the other";
    assert_eq!(error("V1", "V2", "baz:baz2 name:baz2.qux", ""), twice);
    // The new place of `name` is that which `other` keeps.
    let no_place = "acme.Two has no field for other: name its new place in `fields`";
    assert_eq!(error("Two", "Two", "name:other", "other:name"), no_place);
    let none = "acme.V2 has no field baz3.qux, or it is inside a field that is not a single message";
    assert_eq!(error("V1", "V2", "baz:baz3.qux", "baz3.qux:baz"), none);
    assert_eq!(
        error("V1", "V2", UP, "title:name"),
        "`down` does not invert `up`: write down: { fields: { baz2.qux: baz, burst: limits.burst, title: name } }"
    );
}

/// A message whose fields are set as the bytes say.
fn random(
    descriptor: MessageDescriptor,
    entropy: &mut impl Iterator<Item = u8>,
    depth: u8,
) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let Some(byte) = entropy.next().filter(|byte| byte % 3 > 0) else { continue };
        let mut one = |kind: &Kind| match kind {
            Kind::Message(inner) => Value::Message(random(inner.clone(), entropy, depth + 1)),
            Kind::Enum(of) => Value::EnumNumber(i32::from(byte) % i32::try_from(of.values().len()).unwrap()),
            Kind::String => Value::String(byte.to_string()),
            Kind::Bytes => Value::Bytes(vec![byte; 3].into()),
            Kind::Int32 => Value::I32(i32::from(byte) - 128),
            Kind::Uint64 => Value::U64(byte.into()),
            Kind::Double => Value::F64(byte.into()),
            Kind::Bool => Value::Bool(byte > 100),
            other => panic!("{other:?}"),
        };
        let is_deep = depth > 3 && field.kind().as_message().is_some();
        let value = match field.kind() {
            _ if is_deep => continue,
            Kind::Message(entry) if field.is_map() => {
                let value = entry.map_entry_value_field().kind();
                let keys = (0..byte % 4).map(|key| MapKey::String(key.to_string()));
                Value::Map(keys.map(|key| (key, one(&value))).collect::<HashMap<_, _>>())
            }
            kind if field.is_list() => Value::List((0..byte % 4).map(|_| one(&kind)).collect()),
            kind => one(&kind),
        };
        message.set_field(&field, value);
    }
    message
}

quickcheck! {
    fn sv10_down_inverts_up_for_random_messages(entropy: Vec<u8>) -> bool {
        let (up, down) = of_v1();
        let old = descriptors().message("t/acme.V1").unwrap();
        let old = Bytes::from(encode::to_vec(&random(old, &mut entropy.into_iter().cycle().take(400), 0)));
        let new = up.convert(&old, "name").unwrap();
        let is_read = DynamicMessage::decode(descriptors().message("t/acme.V2").unwrap(), new.clone());
        is_read.is_ok_and(|new| new.unknown_fields().count() == 0) && down.convert(&new, "name") == Ok(old)
    }
}
