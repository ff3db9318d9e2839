//! The access of a client: the resources that it may read, and the parameters that the server sets
//! for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;

/// The access of a client: the resources that it may read, and the parameters that the server sets
/// for it, whatever the client says.
///
/// Set it on a stream before the first request ([`Stream::on_access`]). Streams with equal access
/// share their responses.
///
/// ```
/// use xds_core::{Access, NamePatterns, Parameters};
///
/// let routes = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
/// let access = Access::nothing()
///     .with_type(routes, NamePatterns::from_iter(["web", "team-a/*"]))
///     .with_parameters(Parameters::from_iter([("env", "prod")]));
/// assert!(access.allows(&routes.into(), &"team-a/shop".into()));
/// assert!(!access.allows(&routes.into(), &"team-b/shop".into()));
/// ```
///
/// [`Stream::on_access`]: crate::server::Stream::on_access
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    of_types: BTreeMap<TypeUrl, NamePatterns>,
    of_other_types: NamePatterns,
    parameters: Parameters,
}

/// Patterns of names. A pattern is a whole name, or a prefix with `*` at its end; `*` alone matches
/// every name.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePatterns(Arc<Patterns>);

#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Patterns {
    names: BTreeSet<String>,
    prefixes: BTreeSet<String>,
}

impl Access {
    /// All resources of all types. The parameters are those that the client sends.
    #[must_use]
    pub fn everything() -> Self {
        Self { of_other_types: NamePatterns::everything(), ..Self::nothing() }
    }

    /// No resource of any type.
    #[must_use]
    pub fn nothing() -> Self {
        let (of_types, of_other_types) = (BTreeMap::new(), NamePatterns::default());
        Self { of_types, of_other_types, parameters: Parameters::new() }
    }

    /// Adds names of one type to those that are allowed already.
    #[must_use]
    pub fn with_type(mut self, type_url: impl Into<TypeUrl>, names: NamePatterns) -> Self {
        let known = self.of_types.entry(type_url.into()).or_insert_with(|| self.of_other_types.clone());
        *known = known.with(&names);
        self
    }

    /// Adds names of every type to those that are allowed already.
    #[must_use]
    pub fn with_every_type(mut self, names: &NamePatterns) -> Self {
        let others = std::iter::once(&mut self.of_other_types);
        self.of_types.values_mut().chain(others).for_each(|known| *known = known.with(names));
        self
    }

    /// Sets parameters of the client, which replace those that its node gives. A locator without
    /// them, or with other values, is denied: the variant for these parameters is not the one that
    /// the locator requests.
    #[must_use]
    pub fn with_parameters(mut self, parameters: Parameters) -> Self {
        self.parameters = overlaid(&self.parameters, &parameters);
        self
    }

    /// Whether the client may read a resource.
    #[must_use]
    pub fn allows(&self, type_url: &TypeUrl, name: &ResourceName) -> bool {
        self.of_type(type_url).matches(name)
    }

    /// The names of a type that the client may read.
    #[must_use]
    pub fn of_type(&self, type_url: &TypeUrl) -> &NamePatterns {
        self.of_types.get(type_url).unwrap_or(&self.of_other_types)
    }

    /// The parameters that the server sets, whatever the client says.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The parameters of a client that claims these: those that the server sets replace its own.
    #[must_use]
    pub fn overlay(&self, claimed: &Parameters) -> Parameters {
        if self.parameters.is_empty() { claimed.clone() } else { overlaid(claimed, &self.parameters) }
    }

    /// The first parameter set by the server that a locator lacks or has with another value.
    pub(crate) fn missing(&self, claimed: &Parameters) -> Option<(&Arc<str>, &Arc<str>)> {
        self.parameters.iter().find(|(key, value)| claimed.get(key) != Some(value))
    }
}

impl Default for Access {
    fn default() -> Self {
        Self::everything()
    }
}

impl NamePatterns {
    /// Every name.
    #[must_use]
    pub fn everything() -> Self {
        ["*"].into_iter().collect()
    }

    /// Whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &ResourceName) -> bool {
        let (Patterns { names, prefixes }, name) = (&*self.0, name.as_str());
        names.contains(name) || prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// Whether every name matches.
    #[must_use]
    pub(crate) fn is_everything(&self) -> bool {
        self.0.prefixes.contains("")
    }

    /// Whether no name matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.names.is_empty() && self.0.prefixes.is_empty()
    }

    fn with(&self, more: &Self) -> Self {
        let (Patterns { names, prefixes }, more) = (&*self.0, &*more.0);
        let names = names.union(&more.names).cloned().collect();
        let prefixes = prefixes.union(&more.prefixes).cloned().collect();
        Self(Arc::new(Patterns { names, prefixes }))
    }
}

impl<P: AsRef<str>> FromIterator<P> for NamePatterns {
    fn from_iter<I: IntoIterator<Item = P>>(patterns: I) -> Self {
        let mut all = Patterns::default();
        for pattern in patterns {
            match pattern.as_ref().strip_suffix('*') {
                Some(prefix) => all.prefixes.insert(prefix.to_owned()),
                None => all.names.insert(pattern.as_ref().to_owned()),
            };
        }
        Self(Arc::new(all))
    }
}

/// The pairs of both; for keys that both have, the values of `over`.
fn overlaid(under: &Parameters, over: &Parameters) -> Parameters {
    let kept = under.iter().filter(|(key, _)| over.get(key).is_none());
    kept.chain(over.iter()).map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(access: &Access, type_url: &str, name: &str) -> bool {
        access.allows(&type_url.into(), &name.into())
    }

    #[test]
    fn a_type_has_its_own_names_and_all_others_the_common_ones() {
        let team = NamePatterns::from_iter(["team/*"]);
        let access =
            Access::nothing().with_every_type(&team).with_type("a", NamePatterns::from_iter(["web"]));
        assert!(
            allows(&access, "a", "web") && allows(&access, "a", "team/x") && allows(&access, "b", "team/x")
        );
        assert!(!allows(&access, "b", "web") && !allows(&access, "a", "webs"));
        let access =
            Access::nothing().with_type("a", NamePatterns::from_iter(["web"])).with_every_type(&team);
        assert!(allows(&access, "a", "team/x"), "in whatever order");
    }

    #[test]
    fn nothing_is_allowed_that_no_pattern_names() {
        assert!(NamePatterns::default().is_empty() && !allows(&Access::nothing(), "a", ""));
        assert!(allows(&Access::everything(), "a", "") && NamePatterns::everything().is_everything());
    }

    #[test]
    fn a_forced_parameter_takes_the_place_of_a_claimed_one() {
        let access = Access::everything().with_parameters(Parameters::from_iter([("env", "prod")]));
        let claimed = Parameters::from_iter([("env", "test"), ("zone", "a")]);
        assert_eq!(access.overlay(&claimed), Parameters::from_iter([("env", "prod"), ("zone", "a")]));
        assert!(access.missing(&claimed).is_some() && access.missing(&Parameters::new()).is_some());
        assert!(access.missing(&access.overlay(&claimed)).is_none());
    }
}
