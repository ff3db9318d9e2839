//! Which fields of payloads name other resources, and what the deletion of a target does (SG1, SG11):
//! the built-in table, and the records that add to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use xds_core::{FieldPath, NamePatterns, Resource, ResourceName};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;

use crate::key::{RecordKey, is_configuration};

/// The type of the records that are reference rules (ST55).
pub const RULE_TYPE: &str = "type.googleapis.com/xds.store.v1.ReferenceRule";

/// Finds fields of payloads by their names: a program gives it, because the store has no descriptors.
#[derive(Clone, Default)]
pub struct FieldSource(Option<Arc<FindField>>);

type FindField = dyn Fn(&str, &str) -> Option<FieldPath> + Send + Sync;

/// What the deletion of a target does to a record that refers to it, of all fields that do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Acts(u8);

/// A reference rule. It replaces what the built-in table says of its field.
#[derive(Debug, Clone, PartialEq)]
struct Rule {
    type_url: String,
    field: String,
    target_type: String,
    acts: Acts,
    external: NamePatterns,
    /// `None`: the built-in table reads the field.
    path: Option<FieldPath>,
}

/// A rule that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRule {
    /// The field of the rule that is wrong.
    pub(crate) field: &'static str,
    pub(crate) message: String,
}

/// The reference rules of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    fields: FieldSource,
    rules: BTreeMap<RecordKey, Result<Rule, BadRule>>,
    /// Those that can be used, by the type of the payload.
    by_type: BTreeMap<String, Vec<Rule>>,
}

/// A resource that a payload names.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    pub(crate) type_url: &'a str,
    pub(crate) name: ResourceName,
    pub(crate) acts: Acts,
}

impl FieldSource {
    /// Calls this function with the type URL of a payload, and the names of fields from its top, joined
    /// by dots. It gives the way to a text field; `None` if it does not know the type, or if the type
    /// has no such field.
    pub fn new(find: impl Fn(&str, &str) -> Option<FieldPath> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(find)))
    }

    fn find(&self, type_url: &str, field: &str) -> Option<FieldPath> {
        self.0.as_ref().and_then(|find| find(type_url, field))
    }
}

impl fmt::Debug for FieldSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FieldSource")
    }
}

impl Acts {
    /// Nothing. The target need not exist either.
    pub(crate) const ALLOW: Self = Self(0);
    /// The target cannot be deleted.
    pub(crate) const BLOCK: Self = Self(1);
    /// The referrer is deleted, too.
    pub(crate) const CASCADE: Self = Self(2);
    /// The field is cleared.
    pub(crate) const UNSET: Self = Self(4);
    /// The target goes with its last referrer.
    pub(crate) const COLLECT: Self = Self(8);

    /// What the built-in table says of references of records of one type to another type.
    fn built_in(source: &str, target: &str) -> Self {
        match (source, target) {
            (type_url::ROUTE_CONFIGURATION | type_url::VIRTUAL_HOST, type_url::CLUSTER)
            | (type_url::LISTENER | type_url::SCOPED_ROUTE_CONFIGURATION, type_url::ROUTE_CONFIGURATION)
            | (_, type_url::SECRET) => Self::BLOCK,
            (type_url::CLUSTER, type_url::CLUSTER_LOAD_ASSIGNMENT) => Self::COLLECT,
            // Static and dynamic configuration are often mixed.
            _ => Self::ALLOW,
        }
    }

    pub(crate) fn has(self, act: Self) -> bool {
        self.0 & act.0 != 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the target must exist (SG3).
    pub(crate) fn needs_target(self) -> bool {
        self.has(Self::BLOCK.and(Self::CASCADE).and(Self::UNSET))
    }

    /// As the API has it. A collected target does not block either.
    pub(crate) fn to_proto(self) -> proto::OnDelete {
        if self.has(Self::BLOCK) {
            proto::OnDelete::Block
        } else if self.has(Self::CASCADE) {
            proto::OnDelete::Cascade
        } else if self.has(Self::UNSET) {
            proto::OnDelete::Unset
        } else {
            proto::OnDelete::Allow
        }
    }
}

impl Rule {
    fn parse(payload: &[u8], fields: &FieldSource) -> Result<Self, BadRule> {
        let bad = |field, message: String| BadRule { field, message };
        let rule = proto::ReferenceRule::decode(payload);
        let rule = rule.map_err(|error| bad("", format!("the payload is no reference rule: {error}")))?;
        let on_delete = rule.on_delete();
        let proto::ReferenceRule { type_url, field, target_type_url: target_type, external, collect, .. } =
            rule;
        for (name, text) in [("type_url", &type_url), ("target_type_url", &target_type)] {
            if text.is_empty() || text.contains(char::is_control) || is_configuration(text) {
                return Err(bad(name, format!("{text:?} is no type of resources")));
            }
        }
        let acts = match on_delete {
            proto::OnDelete::Block => Acts::BLOCK,
            proto::OnDelete::Cascade => Acts::CASCADE,
            proto::OnDelete::Unset => Acts::UNSET,
            proto::OnDelete::Allow => Acts::ALLOW,
            proto::OnDelete::Unspecified => {
                return Err(bad("on_delete", "on_delete is not one of block, cascade, unset, allow".into()));
            }
        };
        let is_pattern = |text: &String| {
            let name = text.strip_suffix('*').unwrap_or(text);
            !text.is_empty() && !name.contains('*') && !text.contains(char::is_control)
        };
        if let Some(text) = external.iter().find(|text| !is_pattern(text)) {
            let message = format!("{text:?} is neither a name nor the beginning of names with * behind it");
            return Err(bad("external", message));
        }
        let path = match xds_core::target_of_field(&type_url, &field) {
            Some(named) if named == target_type => None,
            Some(named) => {
                return Err(bad("target_type_url", format!("{field} of {type_url} names {named}")));
            }
            None => {
                let path = fields.find(&type_url, &field);
                let unknown = || {
                    let message = format!("this server knows no text field {field:?} of {type_url}");
                    bad("field", format!("{message}; --descriptors of the server adds types"))
                };
                Some(path.ok_or_else(unknown)?)
            }
        };
        // A cluster without the name of its endpoints has endpoints of its own name.
        if acts.has(Acts::UNSET) && path.is_none() && target_type == type_url::CLUSTER_LOAD_ASSIGNMENT {
            return Err(bad("on_delete", format!("{field} cannot be unset: it always names endpoints")));
        }
        let acts = if collect { acts.and(Acts::COLLECT) } else { acts };
        let external = external.iter().map(String::as_str).collect();
        Ok(Self { type_url, field, target_type, acts, external, path })
    }

    /// What holds for this name in the field.
    fn acts_on(&self, name: &ResourceName) -> Acts {
        if self.external.matches(name) { Acts::ALLOW } else { self.acts }
    }
}

impl Rules {
    pub(crate) fn new(fields: FieldSource) -> Self {
        Self { fields, ..Self::default() }
    }

    /// Whether a record is a rule.
    pub(crate) fn is_rule(key: &RecordKey) -> bool {
        key.type_url().as_str() == RULE_TYPE
    }

    /// Whether this payload is a rule that can be used.
    pub(crate) fn check(&self, payload: &[u8]) -> Result<(), BadRule> {
        Rule::parse(payload, &self.fields).map(|_| ())
    }

    /// Takes the state of a record, if it is a rule.
    pub(crate) fn note(&mut self, key: &RecordKey, state: &proto::RecordState) {
        if !Self::is_rule(key) {
            return;
        }
        let content = state.content.as_ref().filter(|_| state.lifecycle() != proto::State::Deleted);
        match content {
            Some(content) => _ = self.rules.insert(key.clone(), Rule::parse(&content.payload, &self.fields)),
            None => _ = self.rules.remove(key),
        }
        self.by_type.clear();
        for rule in self.rules.values().flatten() {
            self.by_type.entry(rule.type_url.clone()).or_default().push(rule.clone());
        }
    }

    /// The rule that this server cannot use, and why: it lacks the descriptors of the type.
    pub(crate) fn lacking(&self) -> Option<(&RecordKey, &str)> {
        let mut bad = self.rules.iter().filter_map(|(key, rule)| Some((key, &*rule.as_ref().err()?.message)));
        bad.next()
    }

    /// The types whose rules differ.
    pub(crate) fn changed_types(&self, other: &Self) -> BTreeSet<String> {
        let of = |one: &Self, other: &Self| {
            let changed = one.rules.iter().filter(|(key, rule)| other.rules.get(key) != Some(rule));
            let types = changed.filter_map(|(_, rule)| Some(rule.as_ref().ok()?.type_url.clone()));
            types.collect::<BTreeSet<_>>()
        };
        &of(self, other) | &of(other, self)
    }

    /// The record of another rule for the field of a rule.
    pub(crate) fn twin(&self, key: &RecordKey) -> Option<&RecordKey> {
        let rule = self.rules.get(key)?.as_ref().ok()?;
        let is_twin = |other: &Rule| (&other.type_url, &other.field) == (&rule.type_url, &rule.field);
        let mut twins = self.rules.iter().filter(|(other, _)| *other != key);
        twins.find(|(_, other)| other.as_ref().is_ok_and(is_twin)).map(|(other, _)| other)
    }

    /// SG11: pairs of a cascade and of what blocks the deletion of its referrers, for people; only those
    /// that `before` does not have.
    pub(crate) fn refused_cascades(&self, before: &Self) -> Vec<String> {
        let usable = |rules: &Self| -> Vec<(RecordKey, Rule)> {
            let all = rules.rules.iter().filter_map(|(key, rule)| Some((key.clone(), rule.clone().ok()?)));
            all.collect()
        };
        let (all, before) = (usable(self), usable(before));
        let is_new = |rule: &(RecordKey, Rule)| !before.contains(rule);
        let mut warnings = Vec::new();
        for cascade in all.iter().filter(|(_, rule)| rule.acts.has(Acts::CASCADE)) {
            let (name, referrer) = (cascade.0.name(), &cascade.1.type_url);
            let cascades =
                format!("the rule {name} deletes {referrer} with what it names in {}", cascade.1.field);
            for block in all.iter().filter(|(_, rule)| rule.acts.has(Acts::BLOCK)) {
                if block.1.target_type == *referrer && (is_new(cascade) || is_new(block)) {
                    let blocks = block.0.name();
                    warnings.push(format!("{cascades}, which the rule {blocks} can block"));
                }
            }
            let built_in = BLOCKED.iter().find(|(target, _)| target == referrer);
            if let Some((_, by)) = built_in.filter(|_| is_new(cascade)) {
                warnings.push(format!("{cascades}, which {by} that name them can block"));
            }
        }
        warnings
    }

    /// Whether a rule adds a field to those of the built-in table.
    pub(crate) fn reads_paths(&self, resource: &Resource) -> bool {
        self.of_type(resource.type_url().as_str()).any(|rule| rule.path.is_some())
    }

    fn of_type(&self, type_url: &str) -> impl Iterator<Item = &Rule> {
        self.by_type.get(type_url).into_iter().flatten()
    }

    /// The resources that a payload names, in order, each once.
    pub(crate) fn named<'a>(&'a self, resource: &Resource) -> Vec<Named<'a>> {
        let source = resource.type_url().as_str();
        if self.of_type(source).next().is_none() {
            let named = resource.named_resources().map(|(type_url, name)| {
                let acts = Acts::built_in(source, type_url);
                Named { type_url, name, acts }
            });
            return named.collect();
        }
        let mut acts: BTreeMap<(&str, ResourceName), Acts> = BTreeMap::new();
        for (_, type_url, name, of_field) in self.by_field(resource) {
            let acts = acts.entry((type_url, name)).or_default();
            *acts = acts.and(of_field);
        }
        acts.into_iter().map(|((type_url, name), acts)| Named { type_url, name, acts }).collect()
    }

    /// What may hold between two types, if no payload is read: the most that a rule of them does.
    pub(crate) fn between(&self, source: &str, target: &str) -> Acts {
        let rules = self.of_type(source).filter(|rule| rule.target_type == target);
        rules.fold(Acts::built_in(source, target), |acts, rule| acts.and(rule.acts))
    }

    /// The fields of a payload that name a resource, in order, with what each does.
    pub(crate) fn fields(
        &self,
        resource: &Resource,
        type_url: &str,
        name: &ResourceName,
    ) -> Vec<(String, Acts)> {
        let source = resource.type_url().as_str();
        if self.of_type(source).next().is_none() {
            let acts = Acts::built_in(source, type_url);
            let fields = resource.fields_that_name(type_url, name).into_iter();
            return fields.map(|field| (field, acts)).collect();
        }
        let mut fields = self.by_field(resource);
        fields.retain(|(_, of_type, named, _)| *of_type == type_url && named == name);
        fields.sort();
        fields.dedup();
        fields.into_iter().map(|(field, _, _, acts)| (field, acts)).collect()
    }

    /// A payload without a name in the fields that are unset with its resource; `None` if there are none,
    /// or if the rest is no resource.
    pub(crate) fn without(&self, resource: &Resource, type_url: &str, name: &ResourceName) -> Option<Bytes> {
        let source = resource.type_url();
        let mut cleared: Option<Resource> = None;
        for (field, _) in
            self.fields(resource, type_url, name).iter().filter(|(_, acts)| acts.has(Acts::UNSET))
        {
            let before = cleared.as_ref().unwrap_or(resource);
            let rule = self.of_type(source.as_str()).find(|rule| rule.field == *field)?;
            let payload = match &rule.path {
                Some(path) => path.without(before.payload(), name).map(Bytes::from),
                None => before.payload_without(field, type_url, name),
            };
            cleared = Some(Resource::new(source.clone(), resource.name().clone(), payload?).ok()?);
        }
        cleared.map(|resource| resource.payload().clone())
    }

    /// A payload with another name in the fields that name a resource (SV30); `None` if no field does, or if
    /// the rest is no resource.
    pub(crate) fn renamed(
        &self,
        resource: &Resource,
        type_url: &str,
        (from, to): (&ResourceName, &ResourceName),
    ) -> Option<Bytes> {
        let source = resource.type_url().as_str();
        let mut payload = resource.renamed_payload(type_url, from, to);
        let rules = self.of_type(source).filter(|rule| rule.target_type == type_url);
        for path in rules.filter_map(|rule| rule.path.as_ref()).filter(|_| !resource.is_redirect()) {
            let renamed = path.renamed(payload.as_ref().unwrap_or_else(|| resource.payload()), from, to);
            payload = renamed.map(Bytes::from).or(payload);
        }
        payload
    }

    /// Each field of a payload with what it names.
    fn by_field<'a>(&'a self, resource: &Resource) -> Vec<(String, &'a str, ResourceName, Acts)> {
        let source = resource.type_url().as_str();
        let mut all = Vec::new();
        for (field, type_url, name) in resource.names_by_field() {
            let mut rules = self.of_type(source);
            let acts = rules
                .find(|rule| rule.path.is_none() && rule.field == field)
                .map_or_else(|| Acts::built_in(source, type_url), |rule| rule.acts_on(&name));
            all.push((field, type_url, name, acts));
        }
        for rule in self.of_type(source).filter(|_| !resource.is_redirect()) {
            let names = rule.path.as_ref().map(|path| path.names(resource.payload())).unwrap_or_default();
            all.extend(names.into_iter().map(|name| {
                let acts = rule.acts_on(&name);
                (rule.field.clone(), &*rule.target_type, name, acts)
            }));
        }
        all
    }
}

/// The types whose deletion the built-in table blocks, and what blocks it.
const BLOCKED: [(&str, &str); 3] = [
    (type_url::CLUSTER, "routes"),
    (type_url::ROUTE_CONFIGURATION, "listeners"),
    (type_url::SECRET, "resources"),
];
