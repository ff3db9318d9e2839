//! Warnings about likely mistakes in a valid folder (T10, T18).
//!
//! A valid folder can still leave clients without resources that they need: no variant of a name
//! matches their parameters, or a route names a cluster that only other clients get. Each warning
//! has parameters that prove it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use xds_core::matching::coverage::Coverage;
use xds_core::matching::normal::{Normal, TooComplex};
use xds_core::{Constraints, Formula, Parameters, ResourceName, TypeUrl, VariantSet};
use xds_proto::type_url as url;

use super::contents::{Contents, Located, Location};
use super::convert::nearest;
use super::document::message_name;

pub(super) use references::KnownReferences;
pub use references::Reference;

mod references;
mod table;

/// A likely mistake, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The type of the resource.
    pub type_url: TypeUrl,
    /// The name of the resource.
    pub name: ResourceName,
    /// The constraints of the variant; `None` if the warning is about all variants of the name.
    pub constraints: Option<Constraints>,
    /// The place of the variant, or of the first of all variants; then up to [`OTHER_PLACES_LIMIT`]
    /// others.
    pub locations: Vec<Location>,
    /// The kind of mistake.
    pub finding: Finding,
}

/// The kind of a likely mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// T18: no variant matches some parameters, so for such clients the name does not exist (T4).
    /// The usual cause is a new key that some clients do not have (T19, T48).
    Gap {
        /// Examples, at least one.
        gaps: Vec<Uncovered>,
        /// A condition: a variant with it would fill the first gap.
        filled_by: Formula,
        /// Keys of the name that `domains.yaml` does not have. The check assumes that they can have
        /// any value.
        undeclared: Vec<Arc<str>>,
    },
    /// No client that `domains.yaml` allows gets the variant.
    Dead,
    /// All variants name the key, and none depends on it.
    IdleKey {
        /// The key.
        key: Arc<str>,
    },
    /// T10: a variant names the empty key, which is valid but hardly intended.
    EmptyKey,
    /// No `when:` names a key of `domains.yaml`, but some name a similar one that is not in it.
    UnusedDomain {
        /// The key in `domains.yaml`.
        key: Arc<str>,
        /// The key that a `when:` of the resource names.
        similar: Arc<str>,
    },
    /// The resource refers to a resource that the folder does not have.
    Missing {
        /// The reference.
        reference: Reference,
        /// A similar name that the folder has.
        nearest: Option<String>,
    },
    /// Some clients that get the variant get no variant of the resource that it refers to.
    Uncovered {
        /// The reference.
        reference: Reference,
        /// Examples of such clients, at least one.
        gaps: Vec<Uncovered>,
    },
    /// The constraints are too complex to check.
    Unjudged {
        /// The reference that could not be checked; `None` if the variants of the name themselves
        /// could not be checked.
        reference: Option<Reference>,
    },
}

/// Parameters that no variant matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncovered {
    /// An example of such parameters.
    pub witness: Parameters,
    /// Keys that must be absent.
    pub absent: Vec<Arc<str>>,
    /// Keys that may have any value or be absent: no variant would match either way.
    pub free: Vec<Arc<str>>,
}

/// Checks all names and all references.
pub(super) fn lint(contents: &Contents, known: &mut KnownReferences) -> Vec<Warning> {
    let (covered, references) = (HashMap::new(), known.next());
    let mut lint = Lint { contents, warnings: Vec::new(), references, covered, nearest_left: NEAREST_LIMIT };
    for (type_url, names) in &contents.names {
        for (name, set) in names {
            let Some(set) = set else { continue };
            let mut variants: Vec<_> = set.iter().map(|(_, variant)| &**variant).collect();
            variants.sort_unstable_by(|a, b| a.location.cmp(&b.location));
            lint.variants(Subject { type_url, name, variants: &variants }, set);
            variants.iter().for_each(|variant| lint.references(variant));
        }
    }
    lint.domains();
    // The sort is stable: warnings about one place stay in the order in which they were found.
    lint.warnings.sort_by(|a, b| a.locations.first().cmp(&b.locations.first()));
    *known = lint.references.end();
    lint.warnings
}

struct Lint<'a> {
    contents: &'a Contents,
    warnings: Vec<Warning>,
    references: KnownReferences,
    /// The results for references that were checked already, by the reference and the constraints
    /// of the variant that has it.
    covered: HashMap<(Reference, Constraints), Result<Vec<Uncovered>, TooComplex>>,
    /// For how many more missing names to search a similar name.
    nearest_left: usize,
}

/// A name and its variants in the order of their places.
#[derive(Clone, Copy)]
struct Subject<'a> {
    type_url: &'a TypeUrl,
    name: &'a ResourceName,
    variants: &'a [&'a Located],
}

impl<'a> Lint<'a> {
    /// Keys of `domains.yaml` that are probably misspelt. A key alone is no mistake: clients may
    /// send it before a variant names it (T48).
    fn domains(&mut self) {
        let declared = &self.contents.domains;
        if declared.domains.is_empty() {
            return;
        }
        // The keys of constraints, each with one variant that names it.
        let mut named = BTreeMap::<&Arc<str>, &Located>::new();
        for (_, set) in self.contents.names.values().flatten() {
            for (_, variant) in set.iter().flat_map(VariantSet::iter) {
                let keys = variant.resource.id().constraints.keys();
                keys.iter().for_each(|key| _ = named.entry(key).or_insert(variant));
            }
        }
        let undeclared = || named.iter().filter(|(key, _)| !declared.domains.contains_key(**key));
        let unused = declared.locations.iter().filter(|(key, _)| !named.contains_key(*key));
        for (key, location) in unused.take(NEAREST_LIMIT) {
            let Some(nearest) = nearest(key, undeclared().map(|(key, _)| key.to_string())) else { continue };
            let Some((similar, variant)) = named.get_key_value(&Arc::from(nearest)) else { continue };
            let id = variant.resource.id().clone();
            self.warnings.push(Warning {
                type_url: id.type_url,
                name: id.name,
                constraints: None,
                locations: vec![location.clone()],
                finding: Finding::UnusedDomain { key: Arc::clone(key), similar: Arc::clone(similar) },
            });
        }
    }

    fn variants(&mut self, subject: Subject<'_>, set: &'a VariantSet<Arc<Located>>) {
        let [first, ..] = subject.variants else { return };
        let keys = first.resource.id().constraints.keys();
        if keys.is_empty() {
            return;
        }
        if keys.iter().any(|key| key.is_empty()) {
            self.warn_of_all(subject, Finding::EmptyKey);
        }
        let Ok(Coverage { gaps, dead, idle_keys }) =
            set.coverage(&self.contents.domains.domains, &Formula::All(Vec::new()), GAPS_LISTED)
        else {
            return self.warn_of_all(subject, Finding::Unjudged { reference: None });
        };
        if !gaps.is_empty() {
            let gaps: Vec<_> =
                gaps.into_iter().map(|gap| Uncovered::of(gap.witness, gap.free, keys)).collect();
            let filled_by = gaps[0].filling(keys);
            let undeclared = self.contents.undeclared(keys).into_iter().cloned().collect();
            self.warn_of_all(subject, Finding::Gap { gaps, filled_by, undeclared });
        }
        for variant in dead {
            self.warn(variant, Finding::Dead);
        }
        for key in idle_keys {
            self.warn_of_all(subject, Finding::IdleKey { key });
        }
    }

    fn references(&mut self, referrer: &Located) {
        let references = self.references.of(&referrer.resource, &self.contents.descriptors);
        for reference in references.iter().cloned() {
            let name = ResourceName::from(reference.name.as_str());
            let target = self.contents.names.get(reference.type_url).and_then(|names| names.get(&name));
            match target {
                None => {
                    let nearest = self.nearest(&reference);
                    self.warn(referrer, Finding::Missing { reference, nearest });
                }
                // The variants of the target conflict, which is reported as an error.
                Some(None) => {}
                Some(Some(set)) => match self.uncovered(&reference, referrer, set) {
                    Ok(gaps) if gaps.is_empty() => {}
                    Ok(gaps) => self.warn(referrer, Finding::Uncovered { reference, gaps }),
                    Err(TooComplex { .. }) => {
                        self.warn(referrer, Finding::Unjudged { reference: Some(reference) });
                    }
                },
            }
        }
    }

    /// Examples of clients that get the referring variant and no variant of the target.
    fn uncovered(
        &mut self,
        reference: &Reference,
        referrer: &Located,
        target: &VariantSet<Arc<Located>>,
    ) -> Result<Vec<Uncovered>, TooComplex> {
        let constraints = &referrer.resource.id().constraints;
        let mut variants = target.iter().map(|(_, variant)| &variant.resource.id().constraints);
        if target.len() == 1 && variants.all(Constraints::is_unconstrained) {
            return Ok(Vec::new());
        }
        // Usually the two have the same constraints.
        let sample = Normal::of(constraints.formula())?.sample();
        let theirs = sample.and_then(|sample| target.resolve(&sample));
        if theirs.is_some_and(|variant| variant.resource.id().constraints == *constraints) {
            return Ok(Vec::new());
        }
        let question = (reference.clone(), constraints.clone());
        if let Some(known) = self.covered.get(&question) {
            return known.clone();
        }
        let answer = self.uncovered_within(constraints, target);
        self.covered.insert(question, answer.clone());
        answer
    }

    fn uncovered_within(
        &self,
        constraints: &Constraints,
        target: &VariantSet<Arc<Located>>,
    ) -> Result<Vec<Uncovered>, TooComplex> {
        let within = constraints.formula();
        // Usually only few variants of the target can match clients of the referrer. The others
        // need no check.
        let reachable = target.reachable(within)?;
        let reachable = reachable.iter().map(|(variant, _)| (&variant.resource.id().constraints, ()));
        let reachable = VariantSet::of(reachable).expect("a subset of a variant set is a variant set");
        let keys_of = |sets: Vec<&[Arc<str>]>| -> BTreeSet<Arc<str>> { sets.concat().into_iter().collect() };
        let named_keys =
            keys_of(reachable.key_sets().map(|(keys, _)| keys).chain([constraints.keys()]).collect());
        let named_keys: Vec<_> = named_keys.into_iter().collect();
        // The keys of variants that match none of the clients make no difference.
        let mut other_keys = keys_of(target.key_sets().map(|(keys, _)| keys).collect());
        other_keys.retain(|key| !named_keys.contains(key));
        let gaps = reachable.coverage(&self.contents.domains.domains, within, GAPS_LISTED)?.gaps.into_iter();
        Ok(gaps
            .map(|gap| {
                let free = gap.free.into_iter().chain(other_keys.iter().cloned()).collect();
                Uncovered::of(gap.witness, free, &named_keys)
            })
            .collect())
    }

    fn nearest(&mut self, reference: &Reference) -> Option<String> {
        self.nearest_left = self.nearest_left.checked_sub(1)?;
        self.contents.nearest_name(reference.type_url, &reference.name)
    }

    fn warn(&mut self, variant: &Located, finding: Finding) {
        let id = variant.resource.id().clone();
        let locations = vec![variant.location.clone()];
        let (type_url, name, constraints) = (id.type_url, id.name, Some(id.constraints));
        self.warnings.push(Warning { type_url, name, constraints, locations, finding });
    }

    fn warn_of_all(&mut self, subject: Subject<'_>, finding: Finding) {
        let locations = subject.variants.iter().map(|variant| variant.location.clone());
        self.warnings.push(Warning {
            type_url: subject.type_url.clone(),
            name: subject.name.clone(),
            constraints: None,
            locations: locations.take(1 + OTHER_PLACES_LIMIT).collect(),
            finding,
        });
    }
}

impl Uncovered {
    fn of(witness: Parameters, free: Vec<Arc<str>>, keys: &[Arc<str>]) -> Self {
        let is_absent = |key: &&Arc<str>| witness.get(key).is_none() && !free.contains(key);
        let absent = keys.iter().filter(is_absent).cloned().collect();
        Self { witness, absent, free }
    }

    /// The condition of a variant that fills the gap. It names the same keys as the other variants
    /// (T12).
    fn filling(&self, keys: &[Arc<str>]) -> Formula {
        let condition = |key: &Arc<str>| {
            let exists = || Formula::Exists { key: Arc::clone(key) };
            match self.witness.get(key) {
                Some(value) => Formula::Equals { key: Arc::clone(key), value: Arc::clone(value) },
                None if self.free.contains(key) => {
                    Formula::Any(vec![exists(), Formula::Not(Box::new(exists()))])
                }
                None => Formula::Not(Box::new(exists())),
            }
        };
        Formula::All(keys.iter().map(condition).collect())
    }
}

impl Warning {
    /// All values of [`kind`](Self::kind).
    pub const KINDS: [&'static str; 8] = [
        "gap",
        "dead-variant",
        "idle-key",
        "empty-key",
        "unused-domain",
        "missing-reference",
        "uncovered-reference",
        "unjudged",
    ];

    /// The kind of the warning, as a stable word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.finding {
            Finding::Gap { .. } => "gap",
            Finding::Dead => "dead-variant",
            Finding::IdleKey { .. } => "idle-key",
            Finding::EmptyKey => "empty-key",
            Finding::UnusedDomain { .. } => "unused-domain",
            Finding::Missing { .. } => "missing-reference",
            Finding::Uncovered { .. } => "uncovered-reference",
            Finding::Unjudged { .. } => "unjudged",
        }
    }

    /// A suggestion for the author of the files.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match &self.finding {
            Finding::Gap { filled_by, undeclared, .. } => {
                let add = format!("a variant with `when: '{filled_by}'` fills the first of these");
                let undeclared = KeyList(undeclared);
                Some(match undeclared.0 {
                    [] => add,
                    _ => format!("{add}; or list in domains.yaml the values that {undeclared} can have"),
                })
            }
            Finding::Dead => Some("if there will be such clients, add their values to domains.yaml".into()),
            Finding::IdleKey { .. } => {
                Some("leave it out of every `when:`, unless a variant will depend on it soon".into())
            }
            Finding::EmptyKey => None,
            Finding::UnusedDomain { similar, .. } => {
                Some(format!("did you mean {similar:?} in domains.yaml?"))
            }
            Finding::Missing { nearest: Some(nearest), .. } => Some(format!("did you mean {nearest:?}?")),
            Finding::Missing { reference, nearest: None } => (reference.type_url == url::CLUSTER)
                .then(|| "no mistake if it is in the bootstrap of every client".into()),
            Finding::Uncovered { reference, .. } => {
                let message = message_name(reference.type_url);
                let is_for_all = self.constraints.as_ref().is_none_or(Constraints::is_unconstrained);
                let or = if is_for_all {
                    "give this one a `when:` that excludes them"
                } else {
                    "exclude them in this `when:`"
                };
                Some(format!("add a variant of that {message} for them, or {or}"))
            }
            Finding::Unjudged { .. } => Some("use fewer or simpler `when:` conditions".into()),
        }
    }

    /// The parameters that prove it; empty if the warning is not about parameters.
    #[must_use]
    pub fn witnesses(&self) -> &[Uncovered] {
        match &self.finding {
            Finding::Gap { gaps, .. } | Finding::Uncovered { gaps, .. } => gaps,
            Finding::Dead
            | Finding::IdleKey { .. }
            | Finding::EmptyKey
            | Finding::UnusedDomain { .. }
            | Finding::Missing { .. }
            | Finding::Unjudged { .. } => &[],
        }
    }

    /// The key that the warning is about, if it is about one.
    pub(super) fn key(&self) -> Option<&Arc<str>> {
        match &self.finding {
            Finding::IdleKey { key } | Finding::UnusedDomain { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The reference that the warning is about, if it is about one.
    #[must_use]
    pub fn reference(&self) -> Option<&Reference> {
        match &self.finding {
            Finding::Missing { reference, .. } | Finding::Uncovered { reference, .. } => Some(reference),
            Finding::Unjudged { reference } => reference.as_ref(),
            Finding::Gap { .. }
            | Finding::Dead
            | Finding::IdleKey { .. }
            | Finding::EmptyKey
            | Finding::UnusedDomain { .. } => None,
        }
    }
}

/// The message without the place.
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.type_url.message_name(), self.name.as_str())?;
        if let Some(constraints) =
            self.constraints.as_ref().filter(|constraints| !constraints.is_unconstrained())
        {
            write!(f, " [{constraints}]")?;
        }
        f.write_str(": ")?;
        match &self.finding {
            Finding::Gap { gaps, .. } => write!(f, "no variant for {}", Examples(gaps)),
            Finding::Dead => f.write_str("no client that domains.yaml allows gets this variant"),
            Finding::IdleKey { key } => {
                write!(f, "no variant depends on the key {key:?}, which all of them name")
            }
            Finding::EmptyKey => f.write_str("a `when:` has an empty key"),
            Finding::UnusedDomain { key, similar } => write!(
                f,
                "names the key {similar:?}, which domains.yaml does not have; no `when:` names its key {key:?}"
            ),
            Finding::Missing { reference, .. } => write!(f, "names {reference}, which is not in this folder"),
            Finding::Uncovered { reference, gaps } => {
                write!(f, "names {reference}, which has no variant for {}", Examples(gaps))
            }
            Finding::Unjudged { reference: None } => {
                f.write_str("the `when:` are too complex to check which clients have no variant")
            }
            Finding::Unjudged { reference: Some(reference) } => {
                write!(
                    f,
                    "names {reference}; the `when:` are too complex to check which clients do not get it"
                )
            }
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", message_name(self.type_url), self.name)
    }
}

/// For example `env="test", no version, any zone`.
impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<_> =
            self.witness.iter().map(|(key, value)| (key, format!("{key}={value:?}"))).collect();
        parts.extend(self.absent.iter().map(|key| (key, format!("no {}", KeyText(key)))));
        parts.extend(self.free.iter().map(|key| (key, format!("any {}", KeyText(key)))));
        parts.sort_unstable();
        parts.dedup_by(|a, b| a.0 == b.0);
        let parts: Vec<_> = parts.into_iter().map(|(_, text)| text).collect();
        f.write_str(&parts.join(", "))
    }
}

/// The examples, separated by commas.
struct Examples<'a>(&'a [Uncovered]);

impl fmt::Display for Examples<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, gap) in self.0.iter().enumerate() {
            write!(f, "{}({gap})", if number == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A list of keys as text.
struct KeyList<'a>(&'a [Arc<str>]);

impl fmt::Display for KeyList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, key) in self.0.iter().enumerate() {
            let comma = match number {
                0 => "",
                _ if number + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{comma}{}", KeyText(key))?;
        }
        Ok(())
    }
}

/// A key as text. The empty key is shown as `""`.
struct KeyText<'a>(&'a str);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("\"\"") } else { f.write_str(self.0) }
    }
}

/// How many examples of parameters a warning has.
const GAPS_LISTED: usize = 3;

/// How many more places a warning lists after the first.
pub const OTHER_PLACES_LIMIT: usize = 7;

/// For how many missing names to search a similar one: each search compares all names of the type.
const NEAREST_LIMIT: usize = 20;

#[cfg(test)]
mod tests;
