//! Reads the resources of a file.
//!
//! A document is a `DiscoveryResponse` (Envoy's own file form), one resource with `@type`, or one
//! `envoy.service.discovery.v3.Resource` wrapper. A YAML file may hold several documents. `when`
//! beside `@type`, or the constraints in a wrapper's `resource_name`, make a resource a variant of
//! its name. Clients get the other fields of a wrapper with the resource.

use std::path::Path;

use prost_reflect::prost::Message;
use prost_reflect::prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use xds_core::{ConstraintError, Constraints, Resource, ResourceName, XdstpName};

use super::constraint_form;
use super::convert::{self, Fault, Packed};
use super::descriptors::Descriptors;
use super::error::{FolderError, Position, Problem};
use super::tree::{self, Entry, Node, Tree};
use super::wrapper::{Flaw, WrapperExtras};

/// The format of a file, by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    Yaml,
    Json,
    Protobuf,
}

impl FileFormat {
    /// The format of a file; `None` if a folder does not read such files.
    pub(super) fn of(file: &str) -> Option<Self> {
        match Path::new(file).extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            "pb" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// A resource and its place in the file.
#[derive(Debug, Clone)]
pub(super) struct ParsedResource {
    pub(super) resource: Resource,
    /// The line in a text file; in a .pb file the number of the resource, from 1.
    pub(super) line: u32,
}

/// Reads one file.
///
/// # Errors
/// All errors in the file.
pub(super) fn read(
    file: &str,
    format: FileFormat,
    content: &[u8],
    descriptors: &Descriptors,
    resource_limit: usize,
) -> Result<Vec<ParsedResource>, Vec<FolderError>> {
    let (lines, parsed, errors) = (Vec::new(), Vec::new(), Vec::new());
    let mut reader = FileReader { file, descriptors, resource_limit, lines, parsed, errors };
    match format {
        FileFormat::Protobuf => reader.protobuf(content),
        FileFormat::Yaml | FileFormat::Json => match str::from_utf8(content) {
            Ok(text) if text.trim_ascii().is_empty() => reader.error(None, None, Problem::Blank),
            Ok(text) => reader.text(format, text),
            Err(error) => {
                let valid = content.get(..error.valid_up_to()).unwrap_or_default();
                reader.error(Some(position_after(valid)), None, Problem::NotUtf8);
            }
        },
    }
    if reader.errors.is_empty() { Ok(reader.parsed) } else { Err(reader.errors) }
}

struct FileReader<'a> {
    file: &'a str,
    descriptors: &'a Descriptors,
    /// The largest payload, in bytes.
    resource_limit: usize,
    /// The lines of a YAML file; empty for other formats.
    lines: Vec<&'a str>,
    parsed: Vec<ParsedResource>,
    errors: Vec<FolderError>,
}

impl<'a> FileReader<'a> {
    fn text(&mut self, format: FileFormat, text: &'a str) {
        let documents = match format {
            FileFormat::Json => vec![tree::json(text)],
            FileFormat::Yaml | FileFormat::Protobuf => {
                self.lines = text.lines().collect();
                tree::yaml(text)
            }
        };
        for document in documents {
            match document {
                Ok(node) => self.document(&node),
                Err(error) => self.error(error.at, None, error.problem),
            }
        }
    }

    fn document(&mut self, node: &Node) {
        let Some(entries) = node.entries() else {
            return self.error(Some(node.at), None, Problem::NotADocument);
        };
        let is_response = match node.get("@type") {
            Some(type_node) => type_node.text().is_some_and(|url| message_name(url) == RESPONSE),
            None => node.get("resources").is_some(),
        };
        if !is_response {
            return self.resource(node);
        }
        let response = self.descriptors.builtin(RESPONSE);
        for entry in entries {
            match (entry.key.as_str(), &entry.value.tree) {
                ("@type", _) | ("resources", Tree::Null) => {}
                ("resources", Tree::List(items)) => items.iter().for_each(|item| self.resource(item)),
                ("resources", _) => {
                    let found = entry.value.describe();
                    self.field_error(
                        entry.at,
                        None,
                        "resources",
                        Problem::WrongValue { expected: "a list", found },
                    );
                }
                // The other fields of a response, such as its version, have no use in a folder.
                (key, _) if field(&response, key).is_some() => {}
                (key, _) => self.error(Some(entry.at), None, unknown_field(key, &response)),
            }
        }
    }

    /// Reads a resource, or a wrapper around one.
    fn resource(&mut self, node: &Node) {
        match node.get("@type").and_then(Node::text) {
            Some(url) if message_name(url) == WRAPPER => self.wrapper(node),
            _ => self.plain(node, WrapperHeader::default(), ""),
        }
    }

    fn wrapper(&mut self, node: &Node) {
        let wrapper = self.descriptors.builtin(WRAPPER);
        let mut header =
            WrapperHeader { name: node.get("name").and_then(Node::text), ..WrapperHeader::default() };
        let mut inner = None;
        let mut extras = Vec::new();
        for entry in node.entries().unwrap_or_default() {
            let subject = || Some(subject(WRAPPER, header.name));
            match entry.key.as_str() {
                // The version of a resource is a digest of its content, so the version in the file
                // is ignored.
                "@type" | "version" => {}
                WHEN => header.whens.push(entry),
                "name" if header.name.is_some() => {}
                "name" => {
                    let problem = Problem::WrongValue { expected: "a string", found: entry.value.describe() };
                    self.field_error(entry.value.at, subject(), "name", problem);
                }
                "resource_name" | "resourceName" => self.resource_name(entry, &mut header),
                "resource" => inner = Some(&entry.value),
                key if field(&wrapper, key).is_some_and(|field| WrapperExtras::has(field.name())) => {
                    extras.push(entry.clone());
                }
                key if field(&wrapper, key).is_some() => {
                    self.error(Some(entry.at), subject(), Problem::Unsupported { field: key.into() });
                }
                key => self.error(Some(entry.at), subject(), unknown_field(key, &wrapper)),
            }
        }
        header.extras = self.extras(&wrapper, extras, header.name);
        match inner {
            Some(inner) => self.plain(inner, header, "resource"),
            None => self.error(Some(node.at), Some(subject(WRAPPER, header.name)), Problem::EmptyWrapper),
        }
    }

    /// Reads the fields of a wrapper that clients get with the resource.
    fn extras(
        &mut self,
        wrapper: &MessageDescriptor,
        fields: Vec<Entry>,
        name: Option<&str>,
    ) -> WrapperExtras {
        let Some(first) = fields.first() else { return WrapperExtras::default() };
        let node = Node { at: first.at, tree: Tree::Map(fields) };
        let subject = Some(subject(WRAPPER, name));
        let message = match convert::message(wrapper, &node, self.descriptors) {
            Ok(message) => message,
            Err(faults) => {
                self.faults(faults, &subject, "");
                return WrapperExtras::default();
            }
        };
        WrapperExtras::of(&message).unwrap_or_else(|flaws| {
            for flaw in flaws {
                let at = flaw.at(node.entries().unwrap_or_default()).unwrap_or(node.at);
                let (field, problem) = flaw.into_problem();
                self.field_error(at, subject.clone(), &field, problem);
            }
            WrapperExtras::default()
        })
    }

    /// Reads the name and the constraints of a wrapper's `resource_name`.
    fn resource_name<'n>(&mut self, entry: &'n Entry, header: &mut WrapperHeader<'n>) {
        let name = entry.value.get("name");
        let subject = Some(subject(WRAPPER, header.name.or_else(|| name?.text())));
        if let (Some(again), Some(_)) = (name, header.name) {
            self.field_error(again.at, subject.clone(), "resource_name.name", Problem::GivenTwice);
        }
        header.name = header.name.or_else(|| name?.text());
        let message = self.descriptors.builtin(RESOURCE_NAME);
        match convert::message(&message, &entry.value, self.descriptors) {
            Ok(message) => match constraints_of(&message) {
                Ok(constraints) => header.constraints = constraints,
                Err(error) => {
                    let inner = entry.value.get(CONSTRAINTS).or_else(|| entry.value.get(CONSTRAINTS_CAMEL));
                    let at = inner.map_or(entry.value.at, |node| node.at);
                    let field = format!("resource_name.{CONSTRAINTS}");
                    self.field_error(at, subject, &field, error.into());
                }
            },
            Err(faults) => self.faults(faults, &subject, "resource_name"),
        }
    }

    /// Reads a resource with `@type`. Its name is the name of its wrapper, or else the name in the
    /// payload. `when` may be in the resource or in its wrapper. `prefix` is the field of the
    /// wrapper that has the resource.
    fn plain(&mut self, node: &Node, header: WrapperHeader<'_>, prefix: &str) {
        let WrapperHeader { name, mut whens, constraints, extras } = header;
        let shown = name.or_else(|| NAME_FIELDS.iter().find_map(|field| node.get(field)?.text()));
        let type_url = node.get("@type").and_then(Node::text);
        let subject = type_url.map(|url| subject(message_name(url), shown));
        whens.extend(node.entries().unwrap_or_default().iter().filter(|entry| entry.key == WHEN));
        let constraints = match *whens {
            [] => Ok(constraints),
            [entry] if constraints.is_unconstrained() => self.constraints(entry),
            [again] | [_, again, ..] => Err(vec![whole(again.at, Problem::GivenTwice)]),
        };
        // An error refuses the file, so any constraints will do.
        let constraints = constraints.unwrap_or_else(|faults| {
            self.faults(faults, &subject, WHEN);
            Constraints::NONE
        });
        let without_when = node.get(WHEN).map(|_| node.without(WHEN));
        match convert::any(without_when.as_ref().unwrap_or(node), self.descriptors) {
            Ok(Packed { type_url, payload }) => {
                let made = self.make(type_url, name, payload.into());
                let made = made.map(|made| extras.with(made.with_constraints(constraints)));
                self.place(made, Some(node.at), node.at.line);
            }
            Err(faults) => self.faults(faults, &subject, prefix),
        }
    }

    /// The constraints in the value of `when`.
    fn constraints(&self, entry: &Entry) -> Result<Constraints, Vec<Fault>> {
        if self.is_tagged(entry) {
            let expected = "a string in quotes, as it begins with `!`";
            let problem = Problem::WrongValue { expected, found: "a YAML tag".into() };
            return Err(vec![whole(entry.value.at, problem)]);
        }
        constraint_form::constraints(&entry.value, self.descriptors)
    }

    /// Whether there is a `!` between a key and its value. YAML reads `! beta` as `beta` with a
    /// tag, so the meaning would silently be the opposite.
    fn is_tagged(&self, entry: &Entry) -> bool {
        let index = |number: u32| number as usize - 1;
        let (from, to) = (entry.at, entry.value.at);
        let lines = self.lines.get(index(from.line)..=index(to.line)).unwrap_or_default();
        let last = lines.len().saturating_sub(1);
        lines.iter().enumerate().any(|(number, line)| {
            let start = if number == 0 { index(from.column) } else { 0 };
            let end = if number == last { index(to.column) } else { usize::MAX };
            let between = line.chars().take(end).skip(start);
            between.take_while(|c| *c != '#').any(|c| c == '!')
        })
    }

    /// Adds the errors of a message. `prefix` is the field that contains the message; it is empty
    /// for a whole resource.
    fn faults(&mut self, faults: Vec<Fault>, subject: &Option<Box<str>>, prefix: &str) {
        for Fault { at, field, problem } in faults {
            let field = match (prefix.is_empty(), field.is_empty()) {
                (true, _) => field,
                (false, true) => prefix.into(),
                (false, false) => format!("{prefix}.{field}").into(),
            };
            self.field_error(at, subject.clone(), &field, problem);
        }
    }

    fn protobuf(&mut self, content: &[u8]) {
        if content.is_empty() {
            return self.error(None, None, Problem::Blank);
        }
        let response = match DynamicMessage::decode(self.descriptors.builtin(RESPONSE), content) {
            Ok(response) => response,
            Err(error) => return self.error(None, None, Problem::Syntax { message: error.to_string() }),
        };
        let resources = response.get_field_by_name("resources");
        let items = resources.as_deref().and_then(|value| value.as_list()).unwrap_or_default();
        for (number, item) in (1..).zip(items.iter().filter_map(|item| item.as_message())) {
            let (mut type_url, mut payload) = unpack(item);
            let mut name = None;
            let mut constraints = Ok(Constraints::NONE);
            let mut extras = Ok(WrapperExtras::default());
            if message_name(&type_url) == WRAPPER {
                match DynamicMessage::decode(self.descriptors.builtin(WRAPPER), payload) {
                    Ok(wrapper) => {
                        name = text_field(&wrapper, "name");
                        extras = WrapperExtras::of(&wrapper);
                        let naming = wrapper.get_field_by_name("resource_name");
                        if let Some(naming) = naming.as_deref().and_then(|naming| naming.as_message()) {
                            name = name.or_else(|| text_field(naming, "name"));
                            constraints = constraints_of(naming);
                        }
                        let inner = wrapper.get_field_by_name("resource");
                        (type_url, payload) =
                            inner.as_deref().and_then(|any| any.as_message()).map(unpack).unwrap_or_default();
                    }
                    Err(error) => {
                        self.error(
                            None,
                            Some(subject(WRAPPER, None)),
                            Problem::Syntax { message: error.to_string() },
                        );
                        continue;
                    }
                }
            }
            let name = name.as_deref();
            let constraints = constraints.unwrap_or_else(|error| {
                let subject = subject(message_name(&type_url), name);
                self.errors.push(FolderError {
                    resource: Some(subject),
                    field: format!("resource_name.{CONSTRAINTS}").into(),
                    ..FolderError::new(self.file, error.into())
                });
                Constraints::NONE
            });
            let extras = extras.unwrap_or_else(|flaws| {
                for (field, problem) in flaws.into_iter().map(Flaw::into_problem) {
                    let resource = Some(subject(WRAPPER, name));
                    let field = field.into();
                    self.errors.push(FolderError { resource, field, ..FolderError::new(self.file, problem) });
                }
                WrapperExtras::default()
            });
            // The bytes are served unchanged, so check that a client can decode them.
            if let Some(message) = self.descriptors.message(&type_url)
                && let Err(error) = DynamicMessage::decode(message, payload.clone())
            {
                let subject = subject(message_name(&type_url), name);
                self.error(None, Some(subject), Problem::Syntax { message: error.to_string() });
                continue;
            }
            let made = self.make(&type_url, name, payload);
            self.place(made.map(|made| extras.with(made.with_constraints(constraints))), None, number);
        }
    }

    fn make(&self, type_url: &str, name: Option<&str>, payload: Bytes) -> Result<Resource, Problem> {
        let limit = self.resource_limit;
        let Some(name) = name else {
            let type_url = self.descriptors.type_url(type_url);
            return Ok(Resource::from_payload_within(limit, type_url, payload)?);
        };
        // X14: a locator in place of a resource. An invalid name is reported below, as for any
        // resource.
        if message_name(type_url) == LOCATOR
            && let Ok(Some(new_style)) = XdstpName::of(name)
            && new_style.resource_type() != LOCATOR
        {
            let type_url = format!("type.googleapis.com/{}", new_style.resource_type());
            if self.descriptors.message(&type_url).is_none() {
                return Err(Problem::UnknownType { type_url });
            }
            return Ok(Resource::redirect(self.descriptors.type_url(&type_url), name.into(), payload)?);
        }
        let type_url = self.descriptors.type_url(type_url);
        Ok(Resource::new_within(limit, type_url, ResourceName::from(name), payload)?)
    }

    fn place(&mut self, made: Result<Resource, Problem>, at: Option<Position>, line: u32) {
        match made {
            Ok(resource) => self.parsed.push(ParsedResource { resource, line }),
            Err(problem) => self.error(at, None, problem),
        }
    }

    fn error(&mut self, at: Option<Position>, resource: Option<Box<str>>, problem: Problem) {
        self.errors.push(FolderError { file: self.file.into(), at, resource, field: "".into(), problem });
    }

    fn field_error(&mut self, at: Position, resource: Option<Box<str>>, field: &str, problem: Problem) {
        self.errors.push(FolderError {
            file: self.file.into(),
            at: Some(at),
            resource,
            field: field.into(),
            problem,
        });
    }
}

/// The name, constraints and extras of a wrapper.
#[derive(Default)]
struct WrapperHeader<'a> {
    name: Option<&'a str>,
    whens: Vec<&'a Entry>,
    /// The constraints of `resource_name`.
    constraints: Constraints,
    extras: WrapperExtras,
}

/// An error of a value as a whole.
fn whole(at: Position, problem: Problem) -> Fault {
    Fault { at, field: Box::default(), problem }
}

/// The constraints in an `envoy.service.discovery.v3.ResourceName`.
fn constraints_of(resource_name: &DynamicMessage) -> Result<Constraints, ConstraintError> {
    let constraints = resource_name.get_field_by_name(CONSTRAINTS);
    // The encoded message keeps unknown fields, so `from_wire` refuses conditions of newer versions
    // (T9).
    let wire = constraints.as_deref().and_then(|value| value.as_message()).map(Message::encode_to_vec);
    Constraints::from_wire(&wire.unwrap_or_default())
}

/// The text of a field, unless it is empty.
fn text_field(message: &DynamicMessage, name: &str) -> Option<String> {
    let value = message.get_field_by_name(name)?;
    value.as_str().filter(|text| !text.is_empty()).map(String::from)
}

fn subject(message: &str, name: Option<&str>) -> Box<str> {
    name.map_or_else(|| message.into(), |name| format!("{message} {name:?}").into())
}

fn message_name(type_url: &str) -> &str {
    type_url.rsplit_once('/').map_or(type_url, |(_, name)| name)
}

fn field(message: &MessageDescriptor, key: &str) -> Option<prost_reflect::FieldDescriptor> {
    message.get_field_by_name(key).or_else(|| message.get_field_by_json_name(key))
}

fn unknown_field(key: &str, message: &MessageDescriptor) -> Problem {
    Problem::UnknownField {
        field: key.into(),
        message: message.full_name().into(),
        nearest: convert::nearest_field(key, message),
    }
}

/// The type URL and the value of an `Any`.
fn unpack(any: &DynamicMessage) -> (String, Bytes) {
    let type_url = any.get_field_by_number(1).and_then(|value| value.as_str().map(String::from));
    let value = any.get_field_by_number(2).and_then(|value| value.as_bytes().cloned());
    (type_url.unwrap_or_default(), value.unwrap_or_default())
}

/// The position of the end of the text.
pub(super) fn position_after(text: &[u8]) -> Position {
    let line_start = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let newlines = text.iter().filter(|&&byte| byte == b'\n').count();
    Position::new(newlines + 1, text.len() - line_start + 1)
}

const RESPONSE: &str = "envoy.service.discovery.v3.DiscoveryResponse";
/// The field beside `@type` with the constraints of the variant.
const WHEN: &str = "when";
const LOCATOR: &str = "xds.core.v3.ResourceLocator";
const WRAPPER: &str = "envoy.service.discovery.v3.Resource";
const RESOURCE_NAME: &str = "envoy.service.discovery.v3.ResourceName";
const CONSTRAINTS: &str = "dynamic_parameter_constraints";
const CONSTRAINTS_CAMEL: &str = "dynamicParameterConstraints";

/// The fields with the name of a resource, for error messages before the resource is decoded.
const NAME_FIELDS: [&str; 3] = ["name", "cluster_name", "clusterName"];

#[cfg(test)]
mod tests {
    use xds_core::VariantId;

    use xds_core::PAYLOAD_LIMIT_BYTES;

    use super::*;

    fn yaml(text: &str) -> Result<Vec<ParsedResource>, Vec<FolderError>> {
        read("f.yaml", FileFormat::Yaml, text.as_bytes(), &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES)
    }

    fn json(text: &str) -> Result<Vec<ParsedResource>, Vec<FolderError>> {
        read("f.json", FileFormat::Json, text.as_bytes(), &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES)
    }

    /// Names and lines of what was read.
    fn found(result: Result<Vec<ParsedResource>, Vec<FolderError>>) -> Vec<(String, u32)> {
        let parsed = result.unwrap();
        parsed.iter().map(|parsed| (parsed.resource.name().to_string(), parsed.line)).collect()
    }

    fn errors(result: Result<Vec<ParsedResource>, Vec<FolderError>>) -> Vec<String> {
        result.unwrap_err().iter().map(ToString::to_string).collect()
    }

    const CLUSTER: &str = r#""@type": type.googleapis.com/envoy.config.cluster.v3.Cluster"#;

    #[test]
    fn a_document_is_a_response_a_resource_or_a_wrapper() {
        let text = format!(
            "version_info: v1\nresources:\n- {CLUSTER}\n  name: a\n- {WRAPPED}\n  name: b\n  resource:\n    {CLUSTER}\n    \
             name: b\n---\n{CLUSTER}\nname: c\n---\n# nothing\n---\n{WRAPPED}\nname: d\nresource: {{{CLUSTER}, name: d}}\n",
        );
        let expected = [("a", 3), ("b", 8), ("c", 11), ("d", 18)].map(|(name, line)| (name.to_owned(), line));
        assert_eq!(found(yaml(&text)), expected);
    }

    #[test]
    fn json_knows_its_lines_too() {
        let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        let text = format!(
            "{{\"resources\": [\n  {{\"@type\": {cluster:?}, \"name\": \"a\",\n   \"connectTimeout\": \"1s\"}},\n\n  \
             {{\"name\": \"b\", \"@type\": {cluster:?}}}\n]}}"
        );
        assert_eq!(found(json(&text)), [("a".to_owned(), 2), ("b".to_owned(), 5)]);
        let text = text.replace("\"1s\"", "true");
        assert_eq!(
            errors(json(&text)),
            [
                "f.json:3:22: envoy.config.cluster.v3.Cluster \"a\": connectTimeout: the boolean true: invalid type: \
              boolean `true`, expected a duration string"
            ]
        );
        assert_eq!(errors(json("{\n \"a\" 1}")), ["f.json:2:6: expected `:`"]);
    }

    #[test]
    fn snake_and_camel_case_give_equal_payloads() {
        let snake = yaml(&format!("{CLUSTER}\nname: a\nconnect_timeout: 5s\n")).unwrap();
        let camel = yaml(&format!("name: a\nconnectTimeout: 5.0s\n{CLUSTER}\n")).unwrap();
        assert_eq!(snake[0].resource.version(), camel[0].resource.version());
    }

    #[test]
    fn all_mistakes_are_found_with_their_places() {
        let text = format!(
            "resources:
- {CLUSTER}
  name: a
  lb_policy: ROUND_ROBN
  conect_timeout: 5s
  load_assignment: {{cluster_name: a, endpoints: [{{priority: -1}}, {{lb_endpoints: 3}}]}}
- {CLUSTER}
- name: b
- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Clustr
- {CLUSTER}
  name: c
  type: EDS
  clusterType: {{name: x}}
  connect_timeout: 1s
  connectTimeout: 1s
- {CLUSTER}
  name: 5
extra: 1
---
[]
---
{CLUSTER}
name: [
"
        );
        let cluster = "envoy.config.cluster.v3.Cluster";
        let expected = [
            format!(
                "f.yaml:4:14: {cluster} \"a\": lb_policy: no value \"ROUND_ROBN\" in {cluster}.LbPolicy, perhaps \
                 `ROUND_ROBIN`"
            ),
            format!("f.yaml:5:3: {cluster} \"a\": no field `conect_timeout` in {cluster}, perhaps `connect_timeout`"),
            format!(
                "f.yaml:6:61: {cluster} \"a\": load_assignment.endpoints[0].priority: expected an integer from 0 to \
                 4294967295, found the number -1"
            ),
            format!(
                "f.yaml:6:81: {cluster} \"a\": load_assignment.endpoints[1].lb_endpoints: expected a list, found the \
                 number 3"
            ),
            format!("f.yaml:7:3: {cluster} without a name"),
            "f.yaml:8:3: missing `@type`".to_owned(),
            format!(
                "f.yaml:9:12: {cluster}: unknown `@type` \"type.googleapis.com/{cluster}\" (--descriptors adds types)"
            )
            .replace("Cluster", "Clustr"),
            format!(
                "f.yaml:13:3: {cluster} \"c\": clusterType: `type` is given already; `cluster_discovery_type` allows only \
                 one of its fields"
            ),
            format!("f.yaml:15:3: {cluster} \"c\": connectTimeout: given twice"),
            format!(
                "f.yaml:17:9: {cluster}: name: expected a string (quote it if it looks like a number), found the \
                 number 5"
            ),
            "f.yaml:18:1: no field `extra` in envoy.service.discovery.v3.DiscoveryResponse".to_owned(),
            "f.yaml:20:1: expected a resource with `@type`, or a map with `resources`".to_owned(),
        ];
        let found = errors(yaml(&text));
        assert_eq!(found[..expected.len()], expected);
        // The last error is in the words of the parser.
        assert_eq!(found.len(), expected.len() + 1);
        assert!(found[expected.len()].starts_with("f.yaml:23:7: "), "{found:?}");
    }

    #[test]
    fn a_mistake_in_an_any_within_the_resource_has_its_line_and_field() {
        let text = format!(
            "{CLUSTER}\nname: a\ntyped_extension_protocol_options:\n  http:\n    http2: 1\n    \"@type\": \
             type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n"
        );
        assert_eq!(
            errors(yaml(&text)),
            [
                "f.yaml:5:5: envoy.config.cluster.v3.Cluster \"a\": typed_extension_protocol_options[\"http\"]: no field \
              `http2` in envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
            ]
        );
    }

    #[test]
    fn what_a_wrapper_does_not_have_is_refused_rather_than_ignored() {
        let text = format!("{WRAPPED}\nname: a\nversion: x\nalias: [b]\n");
        assert_eq!(
            errors(yaml(&text)),
            [
                "f.yaml:4:1: envoy.service.discovery.v3.Resource \"a\": no field `alias` in \
                 envoy.service.discovery.v3.Resource, perhaps `aliases`",
                "f.yaml:1:1: envoy.service.discovery.v3.Resource \"a\": missing `resource`",
            ]
        );
    }

    #[test]
    fn a_wrapper_names_what_has_no_name_of_its_own_and_cannot_rename_the_rest() {
        let endpoint = "{\"@type\": type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint}";
        assert_eq!(found(yaml(&format!("{WRAPPED}\nname: e\nresource: {endpoint}"))), [("e".to_owned(), 3)]);
        assert_eq!(
            errors(yaml(&format!("{WRAPPED}\nname: a\nresource: {{{CLUSTER}, name: b}}"))),
            [r#"f.yaml:3:11: envoy.config.cluster.v3.Cluster "a" has a payload named "b""#]
        );
    }

    #[test]
    fn bytes_that_are_not_text_and_files_that_are_empty_are_refused() {
        let read = |content: &[u8]| {
            errors(read("f.yaml", FileFormat::Yaml, content, &Descriptors::envoy(), PAYLOAD_LIMIT_BYTES))
        };
        assert_eq!(read(b"a: 1\nb: \xff"), ["f.yaml:2:4: the file is not UTF-8"]);
        assert_eq!(
            read(b" \n"),
            ["f.yaml: the file is empty; for a file without resources write `resources: []`"]
        );
        assert_eq!(found(yaml("resources: []")), []);
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_crash() {
        let deep = format!("{CLUSTER}\nname: {}", "[".repeat(100_000));
        assert_eq!(yaml(&deep).unwrap_err().len(), 1);
        let deep = format!("{{\"name\": {}", "[".repeat(100_000));
        assert_eq!(json(&deep).unwrap_err().len(), 1);
    }

    #[test]
    fn null_is_a_field_not_given_and_anchors_are_followed() {
        let text = format!("{CLUSTER}\nname: &n a\nconnect_timeout: null\nalt_stat_name: *n\n");
        let expected = format!("{CLUSTER}\nname: a\nalt_stat_name: a\n");
        assert_eq!(
            yaml(&text).unwrap()[0].resource.payload(),
            yaml(&expected).unwrap()[0].resource.payload()
        );
    }

    #[test]
    fn only_true_and_false_are_booleans() {
        let text = format!("{CLUSTER}\nname: no\nignore_health_on_host_removal: yes\n");
        assert_eq!(
            errors(yaml(&text)),
            [
                "f.yaml:3:32: envoy.config.cluster.v3.Cluster \"no\": ignore_health_on_host_removal: expected true or \
              false, found the string \"yes\""
            ]
        );
    }

    const WRAPPED: &str = r#""@type": type.googleapis.com/envoy.service.discovery.v3.Resource"#;

    /// Names and constraints of what was read.
    fn audiences(result: Result<Vec<ParsedResource>, Vec<FolderError>>) -> Vec<String> {
        let parsed = result.unwrap();
        let show = |id: &VariantId| format!("{} [{}]", id.name, id.constraints);
        parsed.iter().map(|parsed| show(parsed.resource.id())).collect()
    }

    #[test]
    fn t1_when_may_stand_beside_type_wherever_a_resource_stands_and_is_not_in_the_payload() {
        let text = format!(
            "resources:\n- {CLUSTER}\n  name: a\n  when: env=prod\n- {WRAPPED}\n  when: '!b'\n  name: b\n  resource: \
             {{{CLUSTER}, name: b}}\n- {WRAPPED}\n  name: c\n  resource: {{when: \"c\", {CLUSTER}, name: c}}\n---\n\
             {CLUSTER}\nname: d\nwhen:  # oh!\n  env in (x, y),\n  !d\n"
        );
        assert_eq!(audiences(yaml(&text)), ["a [env=prod]", "b [!b]", "c [c]", "d [env in (x,y),!d]"]);
        let bare = yaml(&format!("{CLUSTER}\nname: a\n")).unwrap();
        assert_eq!(yaml(&text).unwrap()[0].resource.payload(), bare[0].resource.payload());
        let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        let text = format!("{{\"@type\": {cluster:?}, \"name\": \"a\", \"when\": \"!a\"}}");
        assert_eq!(audiences(json(&text)), ["a [!a]"]);
    }

    #[test]
    fn what_yaml_takes_for_a_tag_is_refused_rather_than_taken_for_its_opposite() {
        for when in ["! beta", "!beta", "\n  ! beta", "!(a)"] {
            let found = errors(yaml(&format!("{CLUSTER}\nname: a\nwhen: {when}\n")));
            assert_eq!(found.len(), 1);
            assert!(found[0].ends_with("in quotes, as it begins with `!`, found a YAML tag"), "{found:?}");
        }
    }

    #[test]
    fn a_resource_has_its_constraints_from_one_place_and_in_one_of_three_forms() {
        let subject = r#"envoy.config.cluster.v3.Cluster "a": when"#;
        let twice = format!("{WRAPPED}\nname: a\nwhen: x\nresource: {{{CLUSTER}, name: a, when: x}}\n");
        assert_eq!(errors(yaml(&twice)).len(), 1);
        assert!(errors(yaml(&twice))[0].ends_with(&format!("{subject}: given twice")));
        let twice = format!(
            "{{\n{}, \"name\": \"a\",\n\"when\": \"x\",\n\"when\": \"y\"}}",
            CLUSTER.replace("type.g", "\"type.g") + "\""
        );
        assert_eq!(errors(json(&twice)), [format!("f.json:4:1: {subject}: given twice")]);
        for when in [
            "\"env=prod,!version\"",
            "{and_constraints: {constraints: [{constraint: {key: env, value: prod}}, {notConstraints: {constraint: {key: \
             version, exists: {}}}}]}}",
            "{constraints: [{constraints: [{key: env, value: prod}, {key: version, exists: {}, invert: true}], \
             match_type: AND}]}",
        ] {
            assert_eq!(
                audiences(yaml(&format!("{CLUSTER}\nname: a\nwhen: {when}\n"))),
                ["a [env=prod,!version]"]
            );
        }
        let expected = r#"expected a string such as "env=prod,!version", or a map, found"#;
        for (when, found) in
            [("5", "the number 5"), ("[a]", "a list"), ("", "nothing"), ("true", "the boolean true")]
        {
            let found_errors = errors(yaml(&format!("{CLUSTER}\nname: a\nwhen: {when}\n")));
            assert_eq!(found_errors.len(), 1);
            assert!(found_errors[0].ends_with(&format!("{subject}: {expected} {found}")), "{found_errors:?}");
        }
    }

    #[test]
    fn t8_the_resource_name_of_a_wrapper_has_constraints_in_proto_json() {
        let wrapper = |resource_name: &str| {
            yaml(&format!("{WRAPPED}\nresource_name: {resource_name}\nresource: {{{CLUSTER}, name: a}}\n"))
        };
        let both = "{name: a, dynamicParameterConstraints: {and_constraints: {constraints: [{constraint: {key: env, value: \
                    prod}}, {not_constraints: {constraint: {key: version, exists: {}}}}]}}}";
        assert_eq!(audiences(wrapper(both)), ["a [env=prod,!version]"]);
        assert_eq!(found(wrapper("{name: a}")), [("a".to_owned(), 3)]);
        let subject = "envoy.service.discovery.v3.Resource \"a\": resource_name";
        assert_eq!(
            errors(wrapper("{name: a, dynamic_parameter_constraints: {constraint: {key: env}}}")),
            [format!(
                "f.yaml:2:57: {subject}.dynamic_parameter_constraints: top level: key `env` has neither `value` nor \
                 `exists`"
            )]
        );
        assert_eq!(
            errors(wrapper("{name: a, constraints: {}}")),
            [format!(
                "f.yaml:2:26: {subject}: no field `constraints` in envoy.service.discovery.v3.ResourceName"
            )]
        );
        assert_eq!(
            errors(wrapper("{name: a}\nname: a")),
            [format!("f.yaml:2:23: {subject}.name: given twice")]
        );
        assert!(errors(wrapper(&format!("{both}\nwhen: x")))[0].ends_with("when: given twice"));
    }

    #[test]
    fn t8_a_wrapper_in_a_pb_file_keeps_its_constraints() {
        use xds_proto::Any;
        use xds_proto::envoy::service::discovery::v3::dynamic_parameter_constraints as constraints;
        use xds_proto::envoy::service::discovery::v3::{
            DiscoveryResponse, DynamicParameterConstraints, Resource as Wrapper, ResourceName,
        };

        let read_pb = |constraint: constraints::SingleConstraint| {
            let cluster = yaml(&format!("{CLUSTER}\nname: a\n")).unwrap();
            let value = cluster[0].resource.payload().clone();
            let constraints =
                DynamicParameterConstraints { r#type: Some(constraints::Type::Constraint(constraint)) };
            let name = ResourceName { name: "a".into(), dynamic_parameter_constraints: Some(constraints) };
            let wrapper = Wrapper {
                resource_name: Some(name),
                resource: Some(Any { type_url: xds_proto::type_url::CLUSTER.into(), value }),
                ..Wrapper::default()
            };
            let wrapper = Any {
                type_url: format!("type.googleapis.com/{WRAPPER}"),
                value: wrapper.encode_to_vec().into(),
            };
            let response = DiscoveryResponse { resources: vec![wrapper], ..DiscoveryResponse::default() };
            read(
                "f.pb",
                FileFormat::Protobuf,
                &response.encode_to_vec(),
                &Descriptors::envoy(),
                PAYLOAD_LIMIT_BYTES,
            )
        };
        let value = constraints::single_constraint::ConstraintType::Value("prod".into());
        let constraint = constraints::SingleConstraint { key: "env".into(), constraint_type: Some(value) };
        assert_eq!(audiences(read_pb(constraint.clone())), ["a [env=prod]"]);
        assert_eq!(
            errors(read_pb(constraints::SingleConstraint { constraint_type: None, ..constraint })),
            [
                "f.pb: envoy.config.cluster.v3.Cluster \"a\": resource_name.dynamic_parameter_constraints: top level: key \
                 `env` has neither `value` nor `exists`"
            ]
        );
    }

    #[test]
    fn a_pb_file_is_a_response_whose_payloads_are_kept_byte_for_byte() {
        use xds_proto::Any;
        use xds_proto::envoy::service::discovery::v3::{DiscoveryResponse, Resource as Wrapper};
        use xds_proto::type_url;

        let cluster = |name: &str| {
            let payload = yaml(&format!("{CLUSTER}\nname: {name}\nlb_policy: RANDOM\n")).unwrap()[0]
                .resource
                .payload()
                .clone();
            Any { type_url: type_url::CLUSTER.into(), value: payload }
        };
        let wrapper = Wrapper { name: "b".into(), resource: Some(cluster("b")), ..Wrapper::default() };
        let wrapper =
            Any { type_url: format!("type.googleapis.com/{WRAPPER}"), value: wrapper.encode_to_vec().into() };
        let mut response =
            DiscoveryResponse { resources: vec![cluster("a"), wrapper], ..DiscoveryResponse::default() };
        let read = |response: &DiscoveryResponse| {
            read(
                "f.pb",
                FileFormat::Protobuf,
                &response.encode_to_vec(),
                &Descriptors::envoy(),
                PAYLOAD_LIMIT_BYTES,
            )
        };
        assert_eq!(found(read(&response)), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(read(&response).unwrap()[0].resource.payload(), &cluster("a").value);
        response.resources[0].value = (&b"\x0a\x01a\x2a\x01"[..]).into();
        let broken = errors(read(&response));
        assert!(broken[0].starts_with("f.pb: envoy.config.cluster.v3.Cluster: "), "{broken:?}");
    }
}
