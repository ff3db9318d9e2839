//! What is allowed in a folder and yet unlikely to be meant (T10, T18).
//!
//! A folder that loads can still leave clients without what they need: parameters that no variant
//! of a name matches, a route to a cluster that only others get. Each warning comes with parameters
//! that prove it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use xds_core::matching::coverage::Coverage;
use xds_core::matching::normal::{Normal, TooComplex};
use xds_core::{Constraints, Formula, Parameters, ResourceName, TypeUrl, VariantSet};
use xds_proto::type_url as url;

use super::contents::{Contents, Located, Location};

pub use references::Reference;

mod references;
mod table;

/// One thing that is unlikely to be meant, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The type of the resource it is about.
    pub type_url: TypeUrl,
    /// Its name.
    pub name: ResourceName,
    /// The variant it is about; none where it is about all of them.
    pub constraints: Option<Constraints>,
    /// Where that variant is, or the first of all; then up to [`OTHER_PLACES_LIMIT`] others.
    pub locations: Vec<Location>,
    /// What it is.
    pub finding: Finding,
}

/// What is unlikely to be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// T18: some parameters have no variant, so for such clients the name does not exist (T4).
    /// Clients without a new key are the usual ones that are forgotten (T19, T48).
    Gap {
        /// Examples, at least one.
        gaps: Vec<Uncovered>,
        /// A condition for which a variant would fill the first one.
        filled_by: Formula,
        /// Keys of the name that `domains.yaml` does not have, so that they were taken to be
        /// anything.
        undeclared: Vec<Arc<str>>,
    },
    /// No client that `domains.yaml` allows gets the variant.
    Dead,
    /// All variants name the key, and none depends on it.
    IdleKey {
        /// The key.
        key: Arc<str>,
    },
    /// T10: the empty key is legal, and nobody means it.
    EmptyKey,
    /// The resource names one that the folder does not have.
    Missing {
        /// What it names.
        reference: Reference,
        /// A name that the folder has and that differs little.
        nearest: Option<String>,
    },
    /// Clients that get the variant have no variant of what it names.
    Uncovered {
        /// What it names.
        reference: Reference,
        /// Examples of such clients, at least one.
        gaps: Vec<Uncovered>,
    },
    /// The question which clients are covered takes too long to answer, for a reference if there is
    /// one.
    Unjudged {
        /// What the resource names, if that is the question.
        reference: Option<Reference>,
    },
}

/// Parameters without a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uncovered {
    /// An example.
    pub witness: Parameters,
    /// Keys that are absent in it, and matter.
    pub absent: Vec<Arc<str>>,
    /// Keys that do not matter: it would still have no variant.
    pub free: Vec<Arc<str>>,
}

/// Looks at every name and every reference.
pub(super) fn lint(contents: &Contents) -> Vec<Warning> {
    let mut lint =
        Lint { contents, warnings: Vec::new(), covered: HashMap::new(), nearest_left: NEAREST_LIMIT };
    for (type_url, names) in &contents.names {
        for (name, set) in names {
            let Some(set) = set else { continue };
            let mut variants: Vec<_> = set.iter().map(|(_, variant)| &**variant).collect();
            variants.sort_unstable_by(|a, b| a.location.cmp(&b.location));
            lint.variants(Subject { type_url, name, variants: &variants }, set);
            variants.iter().for_each(|variant| lint.references(variant));
        }
    }
    // Stable: what is said of one place stays in the order it was found in.
    lint.warnings.sort_by(|a, b| a.locations.first().cmp(&b.locations.first()));
    lint.warnings
}

struct Lint<'a> {
    contents: &'a Contents,
    warnings: Vec<Warning>,
    /// What was found out of references already, by what is named and by whom the referrer is for.
    covered: HashMap<(Reference, Constraints), Result<Vec<Uncovered>, TooComplex>>,
    /// How many more misspelt names to look for.
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
            set.coverage(&self.contents.domains, &Formula::All(Vec::new()), GAPS_LISTED)
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
        for reference in references::of(&referrer.resource, &self.contents.descriptors) {
            let name = ResourceName::from(reference.name.as_str());
            let target = self.contents.names.get(reference.type_url).and_then(|names| names.get(&name));
            match target {
                None => {
                    let nearest = self.nearest(&reference);
                    self.warn(referrer, Finding::Missing { reference, nearest });
                }
                // Its variants do not go together, which is an error of its own.
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

    /// Clients of a variant for which the variants of what it names are not.
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
        // Most often what belongs together is for the same clients.
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
        // Few of many variants have clients in common with the referrer, and the others cannot
        // cover it.
        let reachable = target.reachable(within)?;
        let reachable = reachable.iter().map(|(variant, _)| (&variant.resource.id().constraints, ()));
        let reachable = VariantSet::of(reachable).expect("part of a set is a set");
        let keys_of = |sets: Vec<&[Arc<str>]>| -> BTreeSet<Arc<str>> { sets.concat().into_iter().collect() };
        let named_keys =
            keys_of(reachable.key_sets().map(|(keys, _)| keys).chain([constraints.keys()]).collect());
        let named_keys: Vec<_> = named_keys.into_iter().collect();
        // Where no variant is for any of the clients, the keys of all variants make no difference.
        let mut other_keys = keys_of(target.key_sets().map(|(keys, _)| keys).collect());
        other_keys.retain(|key| !named_keys.contains(key));
        let gaps = reachable.coverage(&self.contents.domains, within, GAPS_LISTED)?.gaps.into_iter();
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

    /// The condition of a variant beside those that write down the same keys (T12).
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
    /// Every [`kind`](Self::kind) there is.
    pub const KINDS: [&'static str; 7] = [
        "gap",
        "dead-variant",
        "idle-key",
        "empty-key",
        "missing-reference",
        "uncovered-reference",
        "unjudged",
    ];

    /// What kind of warning it is, in a word that stays the same.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.finding {
            Finding::Gap { .. } => "gap",
            Finding::Dead => "dead-variant",
            Finding::IdleKey { .. } => "idle-key",
            Finding::EmptyKey => "empty-key",
            Finding::Missing { .. } => "missing-reference",
            Finding::Uncovered { .. } => "uncovered-reference",
            Finding::Unjudged { .. } => "unjudged",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match &self.finding {
            Finding::Gap { filled_by, undeclared, .. } => {
                let add = format!("a variant with `when: '{filled_by}'` is for the first of these");
                let undeclared = KeyList(undeclared);
                Some(match undeclared.0 {
                    [] => add,
                    _ => format!("{add}; or say in domains.yaml what values {undeclared} can have"),
                })
            }
            Finding::Dead => Some("if such clients are to come, add their values to domains.yaml".into()),
            Finding::IdleKey { .. } => {
                Some("unless a variant is about to depend on it, leave it out of every `when:`".into())
            }
            Finding::EmptyKey => None,
            Finding::Missing { nearest: Some(nearest), .. } => Some(format!("perhaps {nearest:?} is meant")),
            Finding::Missing { reference, nearest: None } => (reference.type_url == url::CLUSTER)
                .then(|| "nothing is wrong if it is in the bootstrap of every client".into()),
            Finding::Uncovered { reference, .. } => {
                let message = message_name(reference.type_url);
                let is_for_all = self.constraints.as_ref().is_none_or(Constraints::is_unconstrained);
                let or = if is_for_all {
                    "this one a `when:` without them"
                } else {
                    "leave them out of this `when:`"
                };
                Some(format!("give that {message} a variant for them, or {or}"))
            }
            Finding::Unjudged { .. } => Some("fewer or simpler `when:` help".into()),
        }
    }

    /// The parameters that prove it, if it is about parameters.
    #[must_use]
    pub fn witnesses(&self) -> &[Uncovered] {
        match &self.finding {
            Finding::Gap { gaps, .. } | Finding::Uncovered { gaps, .. } => gaps,
            Finding::Dead
            | Finding::IdleKey { .. }
            | Finding::EmptyKey
            | Finding::Missing { .. }
            | Finding::Unjudged { .. } => &[],
        }
    }

    /// What the resource names, if it is about that.
    #[must_use]
    pub fn reference(&self) -> Option<&Reference> {
        match &self.finding {
            Finding::Missing { reference, .. } | Finding::Uncovered { reference, .. } => Some(reference),
            Finding::Unjudged { reference } => reference.as_ref(),
            Finding::Gap { .. } | Finding::Dead | Finding::IdleKey { .. } | Finding::EmptyKey => None,
        }
    }
}

/// Without the place.
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
            Finding::EmptyKey => f.write_str("names the empty key"),
            Finding::Missing { reference, .. } => write!(f, "names {reference}, which is not in this folder"),
            Finding::Uncovered { reference, gaps } => {
                write!(f, "names {reference}, which has no variant for {}", Examples(gaps))
            }
            Finding::Unjudged { reference: None } => {
                f.write_str("too entangled to tell which clients have no variant")
            }
            Finding::Unjudged { reference: Some(reference) } => {
                write!(
                    f,
                    "names {reference}, and it is too entangled to tell for which clients that is missing"
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

/// As in `env="test", no version, any zone`.
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

/// The examples, one after another.
struct Examples<'a>(&'a [Uncovered]);

impl fmt::Display for Examples<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, gap) in self.0.iter().enumerate() {
            write!(f, "{}({gap})", if number == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Keys in words.
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

/// A key as it stands in a sentence: the empty one has to be seen.
struct KeyText<'a>(&'a str);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("\"\"") } else { f.write_str(self.0) }
    }
}

fn message_name(type_url: &str) -> &str {
    type_url.rsplit_once('/').map_or(type_url, |(_, name)| name)
}

/// How many examples of parameters a warning has.
const GAPS_LISTED: usize = 3;

/// How many places a warning lists after the first.
pub const OTHER_PLACES_LIMIT: usize = 7;

/// For how many missing names to look for a similar one: that takes a look at every name of the
/// type.
const NEAREST_LIMIT: usize = 20;

#[cfg(test)]
mod tests;
