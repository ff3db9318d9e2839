//! Reads a policy: its rules, or its errors, and its likely mistakes, all with their places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Location, Spanned};
use xds::{Access, NamePatterns, type_name, type_url};
use xds_store_server::Replicate;

use super::super::yaml::{self, FilePosition, YamlError};
use super::pattern::{Pattern, PatternError};
use super::{Rule, StoreGrant, WriteGrant};

/// The rules of a policy, and likely mistakes in them, in the order of the file.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) rules: Vec<Rule>,
    pub(super) warnings: Vec<PolicyWarning>,
}

/// An error in a policy, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct PolicyMistake {
    pub(in crate::cli) place: FilePosition,
    /// The number of the rule, from 1.
    rule: Option<usize>,
    error: RuleError,
}

/// An error in a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleError {
    #[error("{0}")]
    Syntax(String),
    #[error("duplicate key {0:?}")]
    Twice(String),
    #[error("the policy has no rule: no client could read anything")]
    Empty,
    #[error("client {0}")]
    Client(#[from] PatternError),
    #[error("types: {0}")]
    Type(type_name::TypeError),
    #[error("the parameter {key} uses {{{name}}}, which client: {client} does not capture")]
    Unknown { key: String, name: String, client: String },
    #[error("{0} has no value: list the {0}, or leave the key out if all {0} are meant")]
    NoValue(&'static str),
    #[error("{key} uses {{{name}}}, which client: {client} does not capture")]
    Uncaptured { key: &'static str, name: String, client: String },
}

/// A likely mistake in a valid policy, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct PolicyWarning {
    pub(in crate::cli) place: FilePosition,
    /// The number of the rule, from 1.
    rule: usize,
    finding: PolicyFinding,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum PolicyFinding {
    #[error(
        "no client gets to this rule: {} clients match rule {by} (line {line}) first",
        if *.is_same { "the same" } else { "all its" }
    )]
    Unreached { by: usize, line: u64, is_same: bool },
    #[error(
        "names: {name:?} has a brace, which is plain text in a name: only `parameters` can use what `client` captures"
    )]
    NameBrace { name: String },
    #[error("names: {name:?} has a `*` before its end, where it is plain text")]
    NameStar { name: String },
    #[error("the parameter {key} has the value {value:?}, in which the brace is plain text")]
    ParameterBrace { key: String, value: String },
    #[error("the parameter {key} has the value {value:?}, in which `*` is plain text")]
    ParameterStar { key: String, value: String },
    #[error("types: {word:?} is listed already")]
    TypeTwice { word: String },
    #[error("names: {name:?} is listed already")]
    NameTwice { name: String },
    #[error("names: {name:?} is part of {by:?}")]
    NameCovered { name: String, by: String },
    #[error("{list}: an empty list means all {list}; leave it out if that is intended")]
    EmptyList { list: &'static str },
    #[error("types: {word:?} without names permits all secrets; write `names: [\"*\"]` if that is intended")]
    AllSecrets { word: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyDocument {
    rules: Spanned<Vec<RuleDocument>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleDocument {
    client: Spanned<String>,
    #[serde(default)]
    parameters: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    read: Vec<ReadDocument>,
    #[serde(default, deserialize_with = "flag")]
    inspect: bool,
    /// ST52: what it may change in a store. Names may use what `client` captures.
    #[serde(default)]
    write: Vec<ReadDocument>,
    owner: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "flag")]
    operate: bool,
    /// SR50: the region of the nodes that it may replicate as, or `*`.
    replicate: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadDocument {
    /// Without it, or with an empty list: all types.
    #[serde(default, deserialize_with = "present")]
    types: Option<ListDocument>,
    /// Without it, or with an empty list: all names.
    #[serde(default, deserialize_with = "present")]
    names: Option<ListDocument>,
}

/// A list. `None` for a key without a value, as in a file that was cut there.
type ListDocument = Spanned<Option<Vec<Spanned<String>>>>;

type List = Spanned<Vec<Spanned<String>>>;

/// Reads a key that is there, also if it has no value.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ListDocument>, D::Error> {
    ListDocument::deserialize(deserializer).map(Some)
}

/// Reads a boolean. Text such as `"true"` is not one, as in folders: serde would accept it.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    struct FlagVisitor;
    impl Visitor<'_> for FlagVisitor {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false")
        }

        fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
    }
    deserializer.deserialize_any(FlagVisitor)
}

/// # Errors
/// All errors of the file, at least one.
pub(super) fn parse(text: &str, path: &Path) -> Result<Document, Vec<PolicyMistake>> {
    let document: PolicyDocument = yaml::parse(text).map_err(|error| {
        let YamlError { line, column, message, duplicate } = error;
        let place = FilePosition { file: path.into(), line, column };
        let error = duplicate.map_or(RuleError::Syntax(message), RuleError::Twice);
        vec![PolicyMistake { place, rule: None, error }]
    })?;
    let mut reader =
        PolicyReader { path, rule: None, errors: Vec::new(), warnings: Vec::new(), places: Vec::new() };
    if document.rules.value.is_empty() {
        reader.error(document.rules.referenced, RuleError::Empty);
    }
    let mut rules = Vec::new();
    for (number, rule) in (1..).zip(document.rules.value) {
        reader.rule = Some(number);
        let place = reader.place(rule.client.referenced);
        if let Some(rule) = reader.rule(rule) {
            reader.reached(&rules, &rule, &place);
            rules.push(rule);
            reader.places.push(place);
        }
    }
    reader.warnings.sort_by_key(|warning| (warning.place.line, warning.place.column));
    let PolicyReader { errors, warnings, .. } = reader;
    if errors.is_empty() { Ok(Document { rules, warnings }) } else { Err(errors) }
}

struct PolicyReader<'a> {
    path: &'a Path,
    rule: Option<usize>,
    errors: Vec<PolicyMistake>,
    warnings: Vec<PolicyWarning>,
    /// The places of the rules that were read.
    places: Vec<FilePosition>,
}

impl PolicyReader<'_> {
    /// Reads a rule; `None` if its pattern is not valid.
    fn rule(&mut self, document: RuleDocument) -> Option<Rule> {
        let RuleDocument { client: text, parameters, read, inspect, write, owner, operate, replicate } =
            document;
        let client = match Pattern::parse(&text.value) {
            Ok(client) => client,
            Err(error) => {
                self.error(text.referenced, error.into());
                return None;
            }
        };
        for (key, value) in &parameters {
            self.parameter(key, value, &client, &text.value);
        }
        let mut access = Access::nothing();
        for ReadDocument { types, names } in read {
            let (types, names) = (self.list(types, "types"), self.list(names, "names"));
            let is_limited = names.is_some();
            let names = self.names(names);
            let Some(types) = types.filter(|types| !self.is_empty_list(types, "types")) else {
                access = access.with_every_type(&names);
                continue;
            };
            let mut seen = BTreeSet::new();
            for Spanned { value: word, referenced, .. } in types.value {
                match type_name::parse_any(&word) {
                    Ok(type_url) if !seen.insert(type_url.clone()) => {
                        self.warn(referenced, PolicyFinding::TypeTwice { word });
                    }
                    Ok(type_url) if !is_limited && type_url.as_str() == type_url::SECRET => {
                        self.warn(referenced, PolicyFinding::AllSecrets { word });
                        access = access.with_type(type_url, names.clone());
                    }
                    Ok(type_url) => access = access.with_type(type_url, names.clone()),
                    Err(error) => self.error(referenced, RuleError::Type(error)),
                }
            }
        }
        let write = self.write(write, &client, &text.value);
        if let Some(owner) = &owner {
            self.captured("owner", owner, &client, &text.value);
        }
        let replicate = match replicate {
            None => Replicate::No,
            Some(all) if all == "*" => Replicate::Any,
            Some(region) => Replicate::Region(region),
        };
        let store = StoreGrant { write, owner: owner.map(|owner| owner.value), operate, replicate };
        let parameters = parameters.into_iter().map(|(key, value)| (key, value.value)).collect();
        let (text, line) = (text.value, text.referenced.line());
        let access_cache = Mutex::default();
        Some(Rule { client, text, line, access, parameters, may_inspect: inspect, store, access_cache })
    }

    fn write(&mut self, write: Vec<ReadDocument>, client: &Pattern, text: &str) -> Vec<WriteGrant> {
        let mut grants = Vec::new();
        for ReadDocument { types, names } in write {
            let (types, names) = (self.list(types, "types"), self.list(names, "names"));
            let names = names.filter(|names| !self.is_empty_list(names, "names"));
            let names = names.map(|names| names.value);
            names.iter().flatten().for_each(|name| self.captured("write", name, client, text));
            let names = names.map(|names| names.into_iter().map(|name| name.value).collect());
            let types = types.filter(|types| !self.is_empty_list(types, "types"));
            let types = types.map(|types| {
                let read = types.value.into_iter().filter_map(|Spanned { value, referenced, .. }| {
                    let read = type_name::parse_any(&value);
                    read.map_err(|error| self.error(referenced, RuleError::Type(error))).ok()
                });
                read.collect()
            });
            grants.push(WriteGrant { types, names });
        }
        grants
    }

    /// Checks that `client` captures the names in the braces of a text.
    fn captured(&mut self, key: &'static str, value: &Spanned<String>, client: &Pattern, text: &str) {
        for name in super::names_in_braces(&value.value) {
            if !client.captures().any(|known| known == name) {
                let (name, client) = (name.to_owned(), text.to_owned());
                self.error(value.referenced, RuleError::Uncaptured { key, name, client });
            }
        }
    }

    fn parameter(&mut self, key: &str, value: &Spanned<String>, client: &Pattern, text: &str) {
        let Spanned { value, referenced: at, .. } = value;
        let mut plain = value.clone();
        for name in super::names_in_braces(value) {
            if client.captures().any(|known| known == name) {
                plain = plain.replace(&format!("{{{name}}}"), "");
            } else {
                let (key, name, client) = (key.to_owned(), name.to_owned(), text.to_owned());
                return self.error(*at, RuleError::Unknown { key, name, client });
            }
        }
        let (key, value) = (key.to_owned(), value.clone());
        if plain.contains(['{', '}']) {
            self.warn(*at, PolicyFinding::ParameterBrace { key, value });
        } else if plain.contains('*') {
            self.warn(*at, PolicyFinding::ParameterStar { key, value });
        }
    }

    fn list(&mut self, list: Option<ListDocument>, what: &'static str) -> Option<List> {
        let Spanned { value, referenced, defined } = list?;
        if value.is_none() {
            self.error(referenced, RuleError::NoValue(what));
        }
        Some(Spanned { value: value?, referenced, defined })
    }

    fn names(&mut self, names: Option<List>) -> NamePatterns {
        let Some(names) = names.filter(|names| !self.is_empty_list(names, "names")) else {
            return NamePatterns::everything();
        };
        let names = names.value;
        let prefix = |name: &str| name.strip_suffix('*').map(str::to_owned);
        let prefixes: Vec<_> =
            names.iter().filter_map(|name| Some((prefix(&name.value)?, name.value.clone()))).collect();
        let mut seen = BTreeSet::new();
        for Spanned { value: name, referenced: at, .. } in &names {
            let own = prefix(name);
            let text = own.as_ref().unwrap_or(name);
            let covering = prefixes.iter().find(|(prefix, by)| by != name && text.starts_with(prefix));
            let finding = if !seen.insert(name) {
                PolicyFinding::NameTwice { name: name.clone() }
            } else if text.contains(['{', '}']) {
                PolicyFinding::NameBrace { name: name.clone() }
            } else if text.contains('*') {
                PolicyFinding::NameStar { name: name.clone() }
            } else if let Some((_, by)) = covering {
                PolicyFinding::NameCovered { name: name.clone(), by: by.clone() }
            } else {
                continue;
            };
            self.warn(*at, finding);
        }
        names.iter().map(|name| &name.value).collect()
    }

    fn is_empty_list(&mut self, list: &List, what: &'static str) -> bool {
        if list.value.is_empty() {
            self.warn(list.referenced, PolicyFinding::EmptyList { list: what });
        }
        list.value.is_empty()
    }

    /// Warns if an earlier rule matches all clients of this rule.
    fn reached(&mut self, earlier: &[Rule], rule: &Rule, place: &FilePosition) {
        // A rule for tokens and a rule for certificates never match the same client.
        let covers = |earlier: &Rule| {
            earlier.is_for_tokens() == rule.is_for_tokens() && earlier.client.covers(&rule.client)
        };
        let Some(at) = earlier.iter().position(covers) else { return };
        let is_same = rule.client.covers(&earlier[at].client);
        let (number, line) = (self.rule.unwrap_or_default(), self.places[at].line);
        let finding = PolicyFinding::Unreached { by: at + 1, line, is_same };
        self.warnings.push(PolicyWarning { place: place.clone(), rule: number, finding });
    }

    fn error(&mut self, at: Location, error: RuleError) {
        self.errors.push(PolicyMistake { place: self.place(at), rule: self.rule, error });
    }

    fn warn(&mut self, at: Location, finding: PolicyFinding) {
        let rule = self.rule.unwrap_or_default();
        self.warnings.push(PolicyWarning { place: self.place(at), rule, finding });
    }

    fn place(&self, at: Location) -> FilePosition {
        FilePosition::new(self.path, at)
    }
}

impl PolicyMistake {
    /// The message without the place.
    pub(in crate::cli) fn message(&self) -> String {
        self.rule.map_or_else(String::new, |rule| format!("rule {rule}: ")) + &self.error.to_string()
    }
}

impl fmt::Display for PolicyMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message())
    }
}

impl PolicyWarning {
    /// The message without the place.
    pub(in crate::cli) fn message(&self) -> String {
        format!("rule {}: {}", self.rule, self.finding)
    }

    /// The kind of the warning, as a stable word.
    pub(in crate::cli) fn kind(&self) -> &'static str {
        match self.finding {
            PolicyFinding::Unreached { .. } => "unreached-rule",
            PolicyFinding::NameBrace { .. }
            | PolicyFinding::NameStar { .. }
            | PolicyFinding::ParameterBrace { .. }
            | PolicyFinding::ParameterStar { .. } => "literal-pattern",
            PolicyFinding::TypeTwice { .. }
            | PolicyFinding::NameTwice { .. }
            | PolicyFinding::NameCovered { .. } => "duplicate-entry",
            PolicyFinding::EmptyList { .. } => "empty-list",
            PolicyFinding::AllSecrets { .. } => "all-secrets",
        }
    }
}

impl fmt::Display for PolicyWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let errors = parse(text, Path::new("p.yaml")).unwrap_err();
        errors.iter().map(ToString::to_string).collect()
    }

    fn warnings(text: &str) -> Vec<String> {
        let warnings = parse(text, Path::new("p.yaml")).unwrap().warnings;
        warnings.iter().map(|warning| format!("{} ({})", warning, warning.kind())).collect()
    }

    #[test]
    fn all_errors_are_reported_with_their_places() {
        assert_eq!(
            errors(
                "rules:\n- client: 'a{b'\n- client: spiffe://a/{x}\n  parameters: { env: '{y}' }\n\
                 \x20 read:\n  - types: [CDS, XYZ]\n"
            ),
            [
                "p.yaml:2:11: rule 1: client \"a{b\" has an unmatched brace",
                "p.yaml:4:22: rule 2: the parameter env uses {y}, which client: spiffe://a/{x} does not capture",
                "p.yaml:6:18: rule 2: types: no type is called \"XYZ\"; use one of LDS, RDS, SRDS, VHDS, CDS, EDS, \
                 LEDS, SDS, RTDS, ECDS, a message with its package, or a type URL",
            ]
        );
        assert_eq!(
            errors("rules: []"),
            ["p.yaml:1:8: the policy has no rule: no client could read anything"]
        );
        let unknown = errors("rules:\n- client: a\n  reads: []\n");
        assert!(unknown[0].starts_with("p.yaml:3:3: ") && unknown[0].contains("reads"), "{unknown:?}");
        assert_eq!(errors("rules:\n- client: a\n  client: b\n"), ["p.yaml:3:3: duplicate key \"client\""]);
        assert!(errors("rules: [").iter().all(|error| error.starts_with("p.yaml:1:")));
        // As the schema says.
        for key in ["inspect", "operate"] {
            let quoted = errors(&format!("rules:\n- client: a\n  {key}: \"true\"\n"));
            assert!(quoted[0].starts_with("p.yaml:3:") && quoted[0].contains("true or false"), "{quoted:?}");
            assert_eq!(warnings(&format!("rules:\n- client: a\n  {key}: true\n")), [""; 0]);
        }
    }

    #[test]
    fn a_file_that_is_cut_after_a_key_is_an_error_and_types_of_secrets_without_names_a_warning() {
        let rule = "rules:\n- client: a\n  read:\n  - types:";
        assert_eq!(
            errors(rule),
            [
                "p.yaml:4:10: rule 1: types has no value: list the types, or leave the key out if all types are meant"
            ]
        );
        let cut = errors(&format!("{rule} [SDS]\n    names:\n- client: b\n  write: [{{names: }}]\n"));
        assert_eq!(cut.len(), 2, "{cut:?}");
        assert!(cut[0].starts_with("p.yaml:5:") && cut[1].starts_with("p.yaml:7:"), "{cut:?}");
        assert_eq!(
            warnings(&format!("{rule} [CDS, SDS]\n")),
            [
                "p.yaml:4:18: rule 1: types: \"SDS\" without names permits all secrets; write `names: [\"*\"]` if that is intended \
              (all-secrets)"
            ]
        );
        assert_eq!(warnings(&format!("{rule} [SDS]\n    names: ['*']\n")), [""; 0]);
    }

    #[test]
    fn what_is_hardly_meant_is_a_warning() {
        let text = "\
rules:
- client: spiffe://t/env/{env}/*
  parameters: { env: '{env}', zone: 'a*', pod: 'x{', ok: '{env}-a' }
  read:
  - types: [CDS, Cluster, EDS]
    names: [a, a, '{env}/x', 'a*b', 'shared/*', shared/x]
  - names: []
- client: spiffe://t/env/prod/sa/{sa}
- client: spiffe://t/env/{e}/*
  read: [{}]
";
        assert_eq!(
            warnings(text),
            [
                "p.yaml:3:37: rule 1: the parameter zone has the value \"a*\", in which `*` is plain text \
                 (literal-pattern)",
                "p.yaml:3:48: rule 1: the parameter pod has the value \"x{\", in which the brace is plain text \
                 (literal-pattern)",
                "p.yaml:5:18: rule 1: types: \"Cluster\" is listed already (duplicate-entry)",
                "p.yaml:6:16: rule 1: names: \"a\" is listed already (duplicate-entry)",
                "p.yaml:6:19: rule 1: names: \"{env}/x\" has a brace, which is plain text in a name: only `parameters` \
                 can use what `client` captures (literal-pattern)",
                "p.yaml:6:30: rule 1: names: \"a*b\" has a `*` before its end, where it is plain text \
                 (literal-pattern)",
                "p.yaml:6:49: rule 1: names: \"shared/x\" is part of \"shared/*\" (duplicate-entry)",
                "p.yaml:7:12: rule 1: names: an empty list means all names; leave it out if that is intended \
                 (empty-list)",
                "p.yaml:8:11: rule 2: no client gets to this rule: all its clients match rule 1 (line 2) first \
                 (unreached-rule)",
                "p.yaml:9:11: rule 3: no client gets to this rule: the same clients match rule 1 (line 2) first \
                 (unreached-rule)",
            ]
        );
    }
}
