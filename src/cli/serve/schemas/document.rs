//! Reads the file of `--schemas`: versions of types and plans, or its errors with their places.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use xds::field_converter::{FieldConverter, FieldError};
use xds::folder::Descriptors;
use xds::{TypeUrl, type_name};
use xds_store::phase::{Converter, Plan, PlanError, PlanSpec, SchemaError, Schemas};
use xds_store::schema::{SchemaVersion, VersionError};

use crate::cli::yaml::{self, FilePosition, YamlError};

/// An error in the file, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct SchemaMistake {
    place: FilePosition,
    /// The name of the plan.
    plan: Option<String>,
    error: SchemaFileError,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum SchemaFileError {
    #[error("{0}")]
    Syntax(String),
    #[error("duplicate key {0:?}")]
    Twice(String),
    #[error(transparent)]
    Type(#[from] type_name::TypeError),
    #[error("{text:?} is no version: {error}")]
    Version { text: String, error: VersionError },
    #[error("the type {0} is declared twice: remove one of them")]
    DeclaredTwice(TypeUrl),
    #[error("the plan gives the version of {0}, its new form: remove the type here")]
    Declared(String),
    #[error("{0:?} is no name of a plan: write at most 128 letters, digits and . _ -")]
    PlanName(String),
    #[error("records of the type {0} cannot be migrated")]
    PlanType(String),
    #[error("an empty list means no name: leave it out for all names")]
    NoNames,
    #[error("{0:?} is neither a name nor the beginning of names with `*` behind it, such as shop-*")]
    Names(String),
    #[error("{0:?} is no name with {{name}} in place of the old name, such as new-{{name}}")]
    Template(String),
    #[error("references can be rewritten if the new form has the same type and another name: remove it here")]
    Rewriting,
    #[error(
        "a name may belong to both forms: give the new form another type or name, or the old one fewer names"
    )]
    SameForms,
    #[error("a name may belong to plan {0}, too: a record can have one plan")]
    Overlap(String),
    #[error("another plan has this name: give each plan a name of its own")]
    SameName,
    #[error("plans have the numbers from 1 without a hole: write {expected} in place of {found}")]
    Number { found: u32, expected: u32 },
    #[error(
        "the new form needs a later major version than the old one, which has {from}: write {} or more",
        from.next_major()
    )]
    NotLater { from: SchemaVersion },
    #[error(transparent)]
    Fields(#[from] FieldError),
    #[error("`up` and `down` are both `fields`, or both `identity`, which both are if left out")]
    OneWay,
    #[error(transparent)]
    Other(SchemaError),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SchemasDocument {
    #[serde(default)]
    types: Vec<TypeDocument>,
    #[serde(default)]
    plans: Vec<PlanDocument>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeDocument {
    #[serde(rename = "type")]
    type_name: Spanned<String>,
    version: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanDocument {
    number: Spanned<u32>,
    name: Spanned<String>,
    from: FromDocument,
    to: Spanned<ToDocument>,
    #[serde(default)]
    up: Option<Spanned<ConverterDocument>>,
    #[serde(default)]
    down: Option<Spanned<ConverterDocument>>,
    #[serde(default)]
    heartbeat: bool,
    rewrite_references: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ConverterDocument {
    /// The payload stays as it is.
    Identity,
    /// Paths in one form, and in the other one.
    Fields(BTreeMap<String, String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FromDocument {
    #[serde(rename = "type")]
    type_name: Spanned<String>,
    /// Without it: all names.
    names: Option<Spanned<Vec<Spanned<String>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToDocument {
    /// Without it: the type of the old form.
    #[serde(rename = "type")]
    type_name: Option<Spanned<String>>,
    /// Without it: the name of the old form.
    name: Option<Spanned<String>>,
    /// Without it: the next major of the old form.
    version: Option<Spanned<String>>,
}

/// # Errors
/// All errors of the file, at least one.
pub(super) fn parse(
    text: &str,
    path: &Path,
    descriptors: &Descriptors,
) -> Result<Schemas, Vec<SchemaMistake>> {
    let document: Option<SchemasDocument> = yaml::parse(text).map_err(|error| {
        let YamlError { line, column, message, duplicate } = error;
        let place = FilePosition { file: path.into(), line, column };
        let error = duplicate.map_or(SchemaFileError::Syntax(message), SchemaFileError::Twice);
        vec![SchemaMistake { place, plan: None, error }]
    })?;
    let SchemasDocument { types, mut plans } = document.unwrap_or_default();
    let mut reader = SchemaReader { path, descriptors, plan: None, errors: Vec::new() };
    let mut schemas = Schemas::default();
    let mut declared = Vec::new();
    for TypeDocument { type_name, version } in types {
        let type_url = reader.type_url(&type_name);
        let (Some(type_url), Some(version)) = (type_url, reader.version(&version)) else { continue };
        match schemas.clone().declare(type_url.as_str(), version) {
            Ok(with_type) => schemas = with_type,
            Err(_) => reader.error(type_name.referenced, SchemaFileError::DeclaredTwice(type_url.clone())),
        }
        declared.push((type_url, type_name.referenced));
    }
    plans.sort_by_key(|plan| plan.number.value);
    let read: Vec<_> = plans.iter().filter_map(|plan| reader.plan(plan, &schemas)).collect();
    if reader.errors.is_empty() {
        // One more at a time, so an error is that of the last one.
        let with_plans = |count: usize| schemas.clone().with_plans(read[..count].to_vec());
        let mut wrong = (1..=read.len()).zip(&plans);
        match wrong.find_map(|(count, plan)| Some((plan, with_plans(count).err()?))) {
            Some((plan, error)) => reader.wrong_together(error, plan, &declared),
            None => schemas = with_plans(read.len()).unwrap_or(schemas),
        }
    }
    if reader.errors.is_empty() { Ok(schemas) } else { Err(reader.errors) }
}

struct SchemaReader<'a> {
    path: &'a Path,
    descriptors: &'a Descriptors,
    /// The name of the plan that is read.
    plan: Option<String>,
    errors: Vec<SchemaMistake>,
}

impl SchemaReader<'_> {
    /// Reads a plan by itself; `None` if it has an error.
    fn plan(&mut self, document: &PlanDocument, schemas: &Schemas) -> Option<Plan> {
        let PlanDocument { number, name, from, to, .. } = document;
        self.plan = Some(name.value.clone());
        let before = self.errors.len();
        let from_type = self.type_url(&from.type_name).map(|it| it.as_str().to_owned()).unwrap_or_default();
        let to_type = match &to.value.type_name {
            Some(word) => self.type_url(word).map(|it| it.as_str().to_owned()).unwrap_or_default(),
            None => from_type.clone(),
        };
        let to_version = match &to.value.version {
            Some(text) => self.version(text),
            None => Some(schemas.version(&from_type).next_major()),
        };
        if let Some(names) = from.names.as_ref().filter(|names| names.value.is_empty()) {
            self.error(names.referenced, SchemaFileError::NoNames);
        }
        let to_version = to_version.filter(|_| self.errors.len() == before)?;
        let (up, down) = self.converters(document, &from_type, &to_type)?;
        let from_names = from.names.iter().flat_map(|names| &names.value);
        let spec = PlanSpec {
            number: number.value,
            name: name.value.clone(),
            from_type,
            from_names: from_names.map(|name| name.value.clone()).collect(),
            to_type,
            to_name: to.value.name.as_ref().map_or_else(|| "{name}".to_owned(), |name| name.value.clone()),
            to_version,
            up,
            down,
            heartbeat: document.heartbeat,
            rewrite_references: document.rewrite_references.as_ref().is_some_and(|it| it.value),
        };
        Plan::new(spec).map_err(|error| self.wrong_plan(error, document)).ok()
    }

    fn converters(
        &mut self,
        document: &PlanDocument,
        from_type: &str,
        to_type: &str,
    ) -> Option<(Converter, Converter)> {
        let fields = |converter: &Option<Spanned<ConverterDocument>>| match converter {
            Some(Spanned { value: ConverterDocument::Fields(fields), referenced, .. }) => {
                Some((fields.clone(), *referenced))
            }
            Some(Spanned { value: ConverterDocument::Identity, .. }) | None => None,
        };
        let (up, down, at) = match (fields(&document.up), fields(&document.down)) {
            (None, None) => return Some((Converter::Identity, Converter::Identity)),
            (Some((up, at)), Some((down, _))) => (up, down, at),
            // SV32.
            (Some((up, at)), None) if document.down.is_none() => {
                let up = FieldConverter::up_alone(self.descriptors, (from_type, to_type), &up);
                let up = up.map_err(|error| self.error(at, error.into())).ok()?;
                return Some((Converter::Code(Arc::new(up)), Converter::Missing));
            }
            (Some((_, at)), None) | (None, Some((_, at))) => {
                self.error(at, SchemaFileError::OneWay);
                return None;
            }
        };
        match FieldConverter::pair(self.descriptors, (from_type, to_type), (&up, &down)) {
            Ok((up, down)) => Some((Converter::Code(Arc::new(up)), Converter::Code(Arc::new(down)))),
            Err(error) => {
                self.error(at, error.into());
                None
            }
        }
    }

    /// An error of a plan by itself.
    fn wrong_plan(&mut self, error: PlanError, document: &PlanDocument) {
        let PlanDocument { number, name, from, to, .. } = document;
        let at = |spanned: &Option<Spanned<String>>| {
            spanned.as_ref().map_or(to.referenced, |spanned| spanned.referenced)
        };
        let (at, error) = match error {
            PlanError::Field { field: "name", text, .. } => {
                (name.referenced, SchemaFileError::PlanName(text))
            }
            PlanError::Field { field: "from_type", text, .. } => {
                (from.type_name.referenced, SchemaFileError::PlanType(text))
            }
            PlanError::Field { field: "to_type", text, .. } => {
                (at(&to.value.type_name), SchemaFileError::PlanType(text))
            }
            PlanError::Field { field: "from_names", text, .. } => {
                let names = from.names.iter().flat_map(|names| &names.value);
                let at = names.into_iter().find(|name| name.value == text).map(|name| name.referenced);
                (at.unwrap_or(from.type_name.referenced), SchemaFileError::Names(text))
            }
            PlanError::Field { field: "to_name", text, .. } => {
                (at(&to.value.name), SchemaFileError::Template(text))
            }
            PlanError::Field { field: "rewrite_references", .. } => {
                let at = document.rewrite_references.as_ref().map(|rewrite| rewrite.referenced);
                (at.unwrap_or(to.referenced), SchemaFileError::Rewriting)
            }
            PlanError::Overlap { .. } => (to.referenced, SchemaFileError::SameForms),
            error => (number.referenced, SchemaFileError::Other(error.into())),
        };
        self.error(at, error);
    }

    /// An error of a plan that is right by itself, beside the types and the plans before it.
    fn wrong_together(
        &mut self,
        error: SchemaError,
        document: &PlanDocument,
        declared: &[(TypeUrl, Location)],
    ) {
        let PlanDocument { number, name, from, to, .. } = document;
        self.plan = Some(name.value.clone());
        let (at, error) = match error {
            SchemaError::Twice { type_url } => {
                let found = declared.iter().find(|(declared, _)| declared.as_str() == type_url);
                (found.map_or(to.referenced, |(_, at)| *at), SchemaFileError::Declared(type_url))
            }
            SchemaError::Plan(PlanError::Overlap { other, .. }) if other == name.value => {
                (name.referenced, SchemaFileError::SameName)
            }
            SchemaError::Plan(PlanError::Overlap { other, .. }) => {
                (from.type_name.referenced, SchemaFileError::Overlap(other))
            }
            SchemaError::Plan(PlanError::Number { found, expected, .. }) => {
                (number.referenced, SchemaFileError::Number { found, expected })
            }
            SchemaError::Plan(PlanError::Version { from, .. }) => {
                let at = to.value.version.as_ref().map_or(to.referenced, |version| version.referenced);
                (at, SchemaFileError::NotLater { from })
            }
            error => (number.referenced, SchemaFileError::Other(error)),
        };
        self.error(at, error);
    }

    fn type_url(&mut self, word: &Spanned<String>) -> Option<TypeUrl> {
        let read = type_name::parse_any(&word.value);
        read.map_err(|error| self.error(word.referenced, error.into())).ok()
    }

    fn version(&mut self, text: &Spanned<String>) -> Option<SchemaVersion> {
        let read = text.value.parse();
        let wrong = |error| SchemaFileError::Version { text: text.value.clone(), error };
        read.map_err(|error| self.error(text.referenced, wrong(error))).ok()
    }

    fn error(&mut self, at: Location, error: SchemaFileError) {
        let place = FilePosition::new(self.path, at);
        self.errors.push(SchemaMistake { place, plan: self.plan.clone(), error });
    }
}

impl fmt::Display for SchemaMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, plan, error } = self;
        match plan {
            Some(plan) => write!(f, "{place}: plan {plan}: {error}"),
            None => write!(f, "{place}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let errors = parse(text, Path::new("s.yaml"), &Descriptors::envoy()).unwrap_err();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn sv2_sv9_a_file_declares_types_and_plans() {
        let text = "\
types: [{ type: CDS, version: 1.10 }, { type: acme.v1.Route, version: \"2\" }]
plans:
- { number: 2, name: route-v3, from: { type: acme.v1.Route }, to: { type: acme.v3.Route } }
- number: 1
  name: new-names
  from: { type: CDS, names: [\"shop-*\"] }
  to: { name: \"xdstp://acme/envoy.config.cluster.v3.Cluster/{name}\", version: \"2.1\" }
  heartbeat: true
  rewrite_references: true
";
        let descriptors = Descriptors::envoy();
        let parse = |text: &str| parse(text, Path::new("s.yaml"), &descriptors);
        let schemas = parse(text).unwrap();
        let version = |type_url| schemas.version(type_url).to_string();
        assert_eq!(version(xds::type_url::CLUSTER), "1.10");
        assert_eq!(version("type.googleapis.com/acme.v1.Route"), "2.0");
        let plans: Vec<_> = schemas.plans().iter().map(|plan| (plan.number(), plan.name())).collect();
        assert_eq!(plans, [(1, "new-names"), (2, "route-v3")]);
        // SV31: the forms are variants of one name.
        parse("plans: [{ number: 1, name: a, from: { type: CDS }, to: { version: 2 } }]").unwrap();
        for empty in ["", "# nothing", "{}"] {
            assert!(parse(empty).unwrap().plans().is_empty());
        }
    }

    #[test]
    fn sv9_all_errors_of_the_parts_of_a_file_are_reported_with_their_places() {
        assert_eq!(
            errors(
                "types:\n- { type: CDS, version: 0.1 }\n- { type: EDS, version: 1.1 }\n- { type: EDS, version: 1 }\n\
                 plans:\n- { number: 1, name: a b, from: { type: XDS }, to: { name: x } }\n\
                 - { number: 1, name: a b, from: { type: CDS }, to: { type: EDS } }\n\
                 - { number: 1, name: c, from: { type: CDS, names: [a*b] }, to: { type: EDS } }\n\
                 - { number: 1, name: d, from: { type: CDS, names: [] }, to: { type: EDS } }\n\
                 - { number: 1, name: e, from: { type: CDS }, to: { name: new } }\n\
                 - { number: 1, name: f, from: { type: CDS }, to: { name: \"new-{name}\" } }\n\
                 - { number: 1, name: g, from: { type: CDS }, to: { type: EDS }, rewrite_references: true }\n"
            ),
            [
                "s.yaml:2:25: \"0.1\" is no version: a schema version is MAJOR.MINOR or MAJOR, such as 1.1, with a \
                 major of at least 1",
                "s.yaml:4:11: the type type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment is declared \
                 twice: remove one of them",
                "s.yaml:6:41: plan a b: no type is called \"XDS\"; use one of LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, \
                 SDS, RTDS, ECDS, a message with its package, or a type URL",
                "s.yaml:7:22: plan a b: \"a b\" is no name of a plan: write at most 128 letters, digits and . _ -",
                "s.yaml:8:52: plan c: \"a*b\" is neither a name nor the beginning of names with `*` behind it, such \
                 as shop-*",
                "s.yaml:9:51: plan d: an empty list means no name: leave it out for all names",
                "s.yaml:10:58: plan e: \"new\" is no name with {name} in place of the old name, such as new-{name}",
                "s.yaml:11:50: plan f: a name may belong to both forms: give the new form another type or name, or \
                 the old one fewer names",
                "s.yaml:12:85: plan g: references can be rewritten if the new form has the same type and another name: \
                 remove it here",
            ]
        );
        let unknown = errors("plans:\n- { number: 1, nam: a }\n");
        assert!(unknown[0].starts_with("s.yaml:2:16: ") && unknown[0].contains("nam"), "{unknown:?}");
        assert_eq!(errors("types: []\ntypes: []\n"), ["s.yaml:2:1: duplicate key \"types\""]);
    }

    #[test]
    fn sv10_places_of_fields_are_checked_when_the_file_is_read() {
        let plan = |converters: &str| {
            let text = format!(
                "plans:\n- {{ number: 1, name: a, from: {{ type: CDS, names: [a] }}, to: {{ name: 'new-{{name}}' }},\n    \
                 {converters} }}\n"
            );
            let parsed = parse(&text, Path::new("s.yaml"), &Descriptors::envoy());
            parsed.map(|schemas| format!("{:?}", schemas.plans())).map_err(|errors| errors[0].to_string())
        };
        assert!(plan("up: { fields: {} }, down: { fields: {} }").unwrap().contains("FieldConverter"));
        assert!(plan("up: identity, down: identity").unwrap().contains("Identity"));
        assert_eq!(
            plan("up: { fields: { alt_stat_name: name } }, down: { fields: {} }").unwrap_err(),
            "s.yaml:3:9: plan a: `down` does not invert `up`: write down: { fields: { name: alt_stat_name } }"
        );
        assert_eq!(
            plan("up: { fields: {} }, down: identity").unwrap_err(),
            "s.yaml:3:9: plan a: `up` and `down` are both `fields`, or both `identity`, which both are if left out"
        );
        assert!(plan("up: { field: {} }").unwrap_err().contains("fields"));
    }

    #[test]
    fn sv32_a_plan_may_have_no_way_down() {
        let plan = |fields: &str| {
            let text = format!(
                "plans:\n- {{ number: 1, name: a, from: {{ type: CDS }}, to: {{ type: EDS }}, \
                 up: {{ fields: {fields} }} }}\n"
            );
            let parsed = parse(&text, Path::new("s.yaml"), &Descriptors::envoy());
            parsed.map(|schemas| format!("{:?}", schemas.plans())).map_err(|errors| errors[0].to_string())
        };
        // Endpoints have no place for most fields of clusters.
        let read = plan("{ name: cluster_name }").unwrap();
        assert!(read.contains("down: Missing") && read.contains("FieldConverter"), "{read}");
        assert_eq!(
            plan("{ connect_timeout: cluster_name }").unwrap_err(),
            "s.yaml:2:69: plan a: the field connect_timeout has another type than its new place cluster_name"
        );
        assert!(plan("{ nothing: cluster_name }").unwrap_err().contains("no field nothing"));
        assert!(
            plan("{ name: cluster_name, alt_stat_name: cluster_name }").unwrap_err().contains("two fields")
        );
    }

    #[test]
    fn sv9_sv13_an_error_of_plans_beside_each_other_is_that_of_the_later_one() {
        let with = |types: &str, first: &str, second: &str| {
            errors(&format!("types: [{types}]\nplans:\n- {{ {first} }}\n- {{ {second} }}\n")).remove(0)
        };
        let first = "number: 1, name: a, from: { type: t/A }, to: { type: t/A2 }";
        let second = |text: &str| with("", first, &format!("{text}, to: {{ type: t/B2 }}"));
        assert_eq!(
            second("number: 3, name: b, from: { type: t/B }"),
            "s.yaml:4:13: plan b: plans have the numbers from 1 without a hole: write 2 in place of 3"
        );
        assert_eq!(
            second("number: 2, name: a, from: { type: t/B }"),
            "s.yaml:4:22: plan a: another plan has this name: give each plan a name of its own"
        );
        assert_eq!(
            second("number: 2, name: b, from: { type: t/A }"),
            "s.yaml:4:39: plan b: a name may belong to plan a, too: a record can have one plan"
        );
        assert_eq!(
            with(
                "{ type: t/A2, version: 2 }",
                first,
                "number: 2, name: b, from: { type: t/B }, to: { type: t/B2 }"
            ),
            "s.yaml:1:17: plan a: the plan gives the version of t/A2, its new form: remove the type here"
        );
        assert_eq!(
            with(
                "{ type: t/B, version: 2.1 }",
                first,
                "number: 2, name: b, from: { type: t/B }, to: { type: t/B2, version: 2.2 }"
            ),
            "s.yaml:4:73: plan b: the new form needs a later major version than the old one, which has 2.1: write 3.0 \
             or more"
        );
    }

    #[test]
    fn sv9_the_example_of_the_page_can_be_read() {
        let folder = std::env::temp_dir().join(format!("xds-schemas-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let messages = [
            ("v1", "message Route { string name = 1; int32 baz = 2; }"),
            ("v2", "message Route { string name = 1; Baz baz2 = 2; message Baz { int32 qux = 1; } }"),
        ];
        let protos = messages.map(|(version, message)| {
            let proto = folder.join(format!("{version}.proto"));
            std::fs::write(&proto, format!("syntax = 'proto3'; package acme.{version}; {message}")).unwrap();
            proto
        });
        let set = folder.join("acme.binpb");
        let compiled = protox::compile(protos, [&folder]).unwrap();
        std::fs::write(&set, prost::Message::encode_to_vec(&compiled)).unwrap();
        let mut descriptors = Descriptors::envoy();
        descriptors.add_file(&set).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let page = include_str!("../../../../docs/store.md");
        let (_, example) = page.split_once("```yaml (unrun").unwrap();
        let (_, example) = example.split_once('\n').unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let schemas = parse(example, Path::new("s.yaml"), &descriptors).unwrap();
        assert_eq!(schemas.plans().len(), 2);
    }
}
