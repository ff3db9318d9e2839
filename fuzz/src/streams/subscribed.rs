//! The subscription of a client for one type, and the resources that it then has: a second,
//! independent implementation of S14-S23, D2, D16-D20.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::subscription::{Locator, Requested};
use xds_core::{Constraints, KnownType, Parameters};

use super::content::Content;
use super::response::{Key, Received};

/// One type on one stream, seen from the client.
#[derive(Debug, Clone)]
pub(super) struct Subscribed {
    known: &'static KnownType,
    /// The parameters of plain names.
    derived: Parameters,
    is_new: bool,
    is_legacy: bool,
    /// The names and locators of the subscription.
    asked: BTreeSet<Wanted>,
    /// Subscribed names that cannot exist (G8).
    refused: BTreeSet<String>,
    /// The first request subscribed to nothing, and its empty response was not sent yet (S21).
    owes_nothing: bool,
    /// The resources of the client.
    pub(super) held: BTreeMap<Key, Received>,
    /// The version of the newest response, as long as it is that of the client's resources.
    pub(super) version: String,
}

/// A name with its parameters; `None` for a plain name (T2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    name: String,
    parameters: Option<Parameters>,
}

impl Subscribed {
    /// A type without a request; the client may have resources from another stream.
    pub(super) fn new(type_url: &str, derived: &Parameters, former: Option<Self>) -> Self {
        let (mut held, version) = former.map(|former| (former.held, former.version)).unwrap_or_default();
        let names: Vec<_> = held.keys().map(|key| key.name.clone()).collect();
        // T37: in delta the client cannot report what it has of a name with several variants.
        held.retain(|key, received| {
            received.version.is_empty() || names.iter().filter(|name| **name == key.name).count() == 1
        });
        // T25b: a variant without constraints is the plain name, and so it is brought.
        let is_plain = |key: &Key| key.canon.as_deref() == Some(Constraints::NONE.canon());
        let brought =
            |(key, received)| (if is_plain(&key) { Key { canon: None, ..key } } else { key }, received);
        let held = held.into_iter().map(brought).collect();
        Self {
            known: KnownType::of(type_url),
            derived: derived.clone(),
            is_new: true,
            is_legacy: false,
            asked: BTreeSet::new(),
            refused: BTreeSet::new(),
            owes_nothing: false,
            held,
            version,
        }
    }

    /// Whether no request of the type was accepted yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// SotW: the list is the whole subscription.
    pub(super) fn replace(&mut self, asked: &Requested) {
        let was_legacy = self.is_new || self.is_legacy;
        self.is_legacy = was_legacy && self.known.legacy_wildcard && is_empty(asked);
        self.is_new = false;
        self.asked = self.wanted(asked);
        self.drop_unasked();
    }

    /// Delta: removes the unsubscribed names, then adds the subscribed ones (D3).
    pub(super) fn edit(&mut self, subscribe: &Requested, unsubscribe: &Requested) {
        let is_first = std::mem::take(&mut self.is_new);
        if is_first {
            self.is_legacy = self.known.legacy_wildcard && is_empty(subscribe) && is_empty(unsubscribe);
        }
        let (left, came) = (self.wanted(unsubscribe), self.wanted(subscribe));
        self.is_legacy &= !left.contains(&Wanted { name: "*".into(), parameters: None });
        // D17: a first request with a name that cannot exist does not start the legacy wildcard. In
        // a later request such a name does not end it.
        self.is_legacy &= !(is_first && (has_invalid(subscribe) || has_invalid(unsubscribe)));
        self.asked.retain(|wanted| !left.contains(wanted));
        if !is_first {
            self.drop_unasked();
        }
        self.asked.extend(came);
        self.owes_nothing = (self.owes_nothing || is_first) && !self.is_asking();
        self.drop_unasked();
    }

    /// Applies a SotW response, and checks that it may be sent.
    pub(super) fn take_state(
        &mut self,
        resources: BTreeMap<Key, Received>,
        errors: &[String],
        version: &str,
    ) {
        let is_error_only = resources.is_empty() && !errors.is_empty();
        // S24
        assert!(self.is_asking() || is_error_only, "the type has no subscription: {self:?}");
        self.check(&resources, errors);
        if self.known.full_state && self.is_asking() {
            self.held.clear();
        }
        self.take(resources);
        version.clone_into(&mut self.version);
    }

    /// Applies a delta response, and checks that it may be sent.
    pub(super) fn take_changes(
        &mut self,
        resources: BTreeMap<Key, Received>,
        removed: &BTreeSet<Key>,
        errors: &[String],
    ) {
        // G8: a name that cannot exist is reported as removed.
        let is_refused = |key: &Key| is_invalid(&key.name) && self.refused.contains(&key.name);
        let is_empty = resources.is_empty() && removed.iter().all(is_refused);
        let is_answer = std::mem::take(&mut self.owes_nothing) || !errors.is_empty() || !removed.is_empty();
        assert!(self.is_asking() || (is_empty && is_answer), "the type has no subscription: {self:?}");
        self.check(&resources, errors);
        for key in removed {
            match &key.canon {
                // T30b
                None => self.held.retain(|held, _| held.name != key.name),
                Some(canon) => {
                    self.held.remove(key);
                    // T25b: a plain name has no constraints.
                    if canon == Constraints::NONE.canon() {
                        self.held.remove(&Key { canon: None, ..key.clone() });
                    }
                }
            }
        }
        self.take(resources);
    }

    fn check(&self, resources: &BTreeMap<Key, Received>, errors: &[String]) {
        for error in errors {
            // G8, or G13 before the first commit.
            let is_asked = self.asked.iter().any(|wanted| wanted.name == *error);
            assert!(self.refused.contains(error) || is_asked, "{error:?} was not subscribed to");
        }
        for (key, received) in resources {
            assert!(self.wants(key, received), "{key:?} is not subscribed to: {:?}", self.asked);
        }
    }

    fn take(&mut self, resources: BTreeMap<Key, Received>) {
        for (key, received) in resources {
            // T34: it replaces whatever its locators had, and what was sent under the plain name
            // (T25b).
            let params = self.locators().filter(|(name, _)| *name == "*" || *name == key.name);
            let params: Vec<_> = params.map(|(_, of)| of.clone()).collect();
            let overlaps = |old: &Option<Constraints>| match (old, &received.constraints) {
                (Some(old), Some(new)) => params.iter().any(|of| old.matches(of) && new.matches(of)),
                (None, _) | (_, None) => true,
            };
            self.held.retain(|held, old| held.name != key.name || !overlaps(&old.constraints));
            self.held.insert(key, received);
        }
    }

    /// Checks that the client has the resources that it subscribed to and, if removals are reported
    /// (`are_removals_sent`), no others.
    pub(super) fn check_held(&self, type_url: &str, content: &Content, are_removals_sent: bool) {
        for (name, parameters) in self.locators() {
            for (name, variant) in content.selected(type_url, name, parameters) {
                let located = Key { name: name.into(), canon: Some(variant.constraints.canon().to_vec()) };
                let by_name = Key { name: name.into(), canon: None };
                let held = self.held.get(&located).or_else(|| self.held.get(&by_name));
                let is_held = held.is_some_and(|held| held.payload == variant.payload);
                assert!(is_held, "{type_url} {name} {parameters} [{}]: {held:?}", variant.constraints);
            }
        }
        if !are_removals_sent {
            return;
        }
        for (key, received) in &self.held {
            let is_there = self.locators().any(|(name, parameters)| {
                content.selected(type_url, name, parameters).any(|(name, variant)| {
                    let is_variant =
                        key.canon.as_deref().is_none_or(|canon| canon == variant.constraints.canon());
                    key.name == name && is_variant && received.payload == variant.payload
                })
            });
            assert!(is_there, "{type_url} {key:?} was removed, and the client still has it");
        }
    }

    /// Whether every subscribed name exists. A name that does not exist may have existed before:
    /// then the client still uses the resource, and the server keeps the resources that it names
    /// (S33).
    pub(super) fn has_all(&self, type_url: &str, content: &Content) -> bool {
        self.locators().all(|(name, parameters)| {
            name == "*" || content.selected(type_url, name, parameters).next().is_some()
        })
    }

    /// Whether responses report removals by absence.
    pub(super) fn is_full_state(&self) -> bool {
        self.known.full_state
    }

    /// The number of subscribed names.
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether the client has any subscription (S24).
    fn is_asking(&self) -> bool {
        self.is_legacy || !self.asked.is_empty()
    }

    fn locators(&self) -> impl Iterator<Item = (&str, &Parameters)> {
        let asked = self
            .asked
            .iter()
            .map(|Wanted { name, parameters }| (name.as_str(), parameters.as_ref().unwrap_or(&self.derived)));
        asked.chain(self.is_legacy.then_some(("*", &self.derived)))
    }

    fn wants(&self, key: &Key, received: &Received) -> bool {
        self.locators().any(|(name, parameters)| {
            let matches = || received.constraints.as_ref().is_none_or(|of| of.matches(parameters));
            (name == "*" || name == key.name) && matches()
        })
    }

    /// T33b: resources without a subscription are dropped.
    fn drop_unasked(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        let before = held.len();
        held.retain(|key, received| self.wants(key, received));
        if held.len() < before {
            self.version.clear();
        }
        self.held = held;
    }

    fn wanted(&mut self, asked: &Requested) -> BTreeSet<Wanted> {
        let names =
            asked.names.iter().map(|name| Locator { name: name.clone(), parameters: Parameters::new() });
        let names = names.map(|locator| (locator, true));
        let locators = asked.locators.iter().map(|locator| (locator, false));
        let mut wanted = BTreeSet::new();
        for (Locator { name, parameters }, is_plain) in names.chain(locators) {
            let name = name.as_str().to_owned();
            if is_invalid(&name) || has_invalid_key(&parameters) {
                self.refused.insert(name);
                continue;
            }
            // T2: a locator without parameters equals the plain name, if plain names have no
            // parameters either.
            let is_plain = is_plain || (parameters.is_empty() && self.derived.is_empty());
            wanted.insert(Wanted { name, parameters: (!is_plain).then_some(parameters) });
        }
        wanted
    }
}

fn is_empty(asked: &Requested) -> bool {
    asked.names.is_empty() && asked.locators.is_empty()
}

/// G8, W2
fn is_invalid(name: &str) -> bool {
    name.is_empty() || has_control(name)
}

/// W2
fn has_invalid_key(parameters: &Parameters) -> bool {
    parameters.iter().any(|(key, _)| has_control(key))
}

fn has_invalid(asked: &Requested) -> bool {
    let has_name = asked.names.iter().any(|name| is_invalid(name.as_str()));
    let is_bad = |locator: Locator| is_invalid(locator.name.as_str()) || has_invalid_key(&locator.parameters);
    has_name || asked.locators.iter().any(is_bad)
}

fn has_control(text: &str) -> bool {
    text.contains(|c| c < ' ')
}
