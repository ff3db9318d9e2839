//! Reads the resources of a file.
//!
//! A document is a `DiscoveryResponse` (Envoy's own file form), one resource with `@type`, or one
//! `envoy.service.discovery.v3.Resource` wrapper. A YAML file may hold several documents. `when`
//! beside `@type`, or the constraints in a wrapper's `resource_name`, make a resource a variant of
//! its name. Clients get the other fields of a wrapper with the resource.

use prost_reflect::prost::Message;
use prost_reflect::prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use xds_core::{ConstraintError, Constraints, Resource, ResourceName, XdstpName};

use super::constraint_form;
use super::convert::{self, Fault, Packed, nearest_type};
use super::descriptors::Descriptors;
use super::error::{FolderError, Position, Problem};
use super::format::FileFormat;
use super::tree::{self, Entry, Node, Tree};
use super::wrapper::WrapperExtras;

mod protobuf;

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
                reader.error(Some(Position::after(valid)), None, Problem::NotUtf8);
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
                return Err(Problem::UnknownType {
                    nearest: nearest_type(&type_url, self.descriptors),
                    type_url,
                });
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

pub(super) fn subject(message: &str, name: Option<&str>) -> Box<str> {
    name.map_or_else(|| message.into(), |name| format!("{message} {name:?}").into())
}

/// The full name of the message of a type URL.
pub(super) fn message_name(type_url: &str) -> &str {
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

pub(super) const RESPONSE: &str = "envoy.service.discovery.v3.DiscoveryResponse";
/// The field beside `@type` with the constraints of the variant.
pub(super) const WHEN: &str = "when";
const LOCATOR: &str = "xds.core.v3.ResourceLocator";
pub(super) const WRAPPER: &str = "envoy.service.discovery.v3.Resource";
pub(super) const RESOURCE_NAME: &str = "envoy.service.discovery.v3.ResourceName";
const CONSTRAINTS: &str = "dynamic_parameter_constraints";
const CONSTRAINTS_CAMEL: &str = "dynamicParameterConstraints";

/// The fields with the name of a resource, for error messages before the resource is decoded.
const NAME_FIELDS: [&str; 3] = ["name", "cluster_name", "clusterName"];

#[cfg(test)]
mod tests;
