//! What a client knows of one type, by the rules for clients (T30b, T33, T34, T37).

use std::collections::{BTreeMap, BTreeSet};

use xds_core::{Cache, Constraints, Parameters};
use xds_proto::envoy::service::discovery::v3::ResourceName;

use crate::history::{Asked, content_of};

#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Where plain names get their parameters from.
    pub(crate) node: Parameters,
    is_sotw: bool,
    pub(crate) asked: BTreeSet<Asked>,
    /// By name and constraints; none of them for resources that came under the plain name.
    pub(crate) held: BTreeMap<(String, Constraints), Held>,
    /// What was asked for and is known not to exist.
    absent: BTreeSet<(String, Parameters)>,
    /// Whether this stream has sent a locator of the type.
    pub(crate) knows_locators: bool,
    pub(crate) nonce: String,
    /// Of the last response.
    pub(crate) version: String,
    /// The client may have dropped some of what the version stands for.
    is_partial: bool,
    pub(crate) has_asked: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) content: i32,
    pub(crate) version: String,
    /// It was sent on a stream before this one.
    is_old: bool,
    /// It was sent under its plain name, for who asks by that.
    is_plain: bool,
}

impl Known {
    pub(crate) fn new(node: &Parameters, is_sotw: bool) -> Self {
        Self { node: node.clone(), is_sotw, ..Self::default() }
    }

    /// T2: without parameters a locator is the plain name, where that has none either, so a client
    /// has only one of them.
    pub(crate) fn distinct(&self, mut asked: BTreeSet<Asked>) -> BTreeSet<Asked> {
        if self.node.is_empty() {
            let plain: BTreeSet<_> = asked.iter().filter(|(_, params)| params.is_none()).cloned().collect();
            let is_plain = |name: &Option<String>| plain.contains(&(name.clone(), None));
            asked.retain(|(name, params)| params.as_ref().is_none_or(|of| !of.is_empty() || !is_plain(name)));
        }
        asked
    }

    /// Asks for something else.
    pub(crate) fn ask(&mut self, asked: BTreeSet<Asked>) {
        self.knows_locators |= asked.iter().any(|(_, parameters)| parameters.is_some());
        self.is_partial |= asked.difference(&self.asked).any(|(name, _)| name.is_none());
        self.asked = asked;
        self.has_asked = true;
        self.drop_unasked();
    }

    /// The parameters with which a name is asked for.
    fn locators(&self, name: &str) -> Vec<Parameters> {
        let asked = self.asked.iter().filter(|(asked, _)| asked.as_deref().is_none_or(|asked| asked == name));
        asked.map(|(_, parameters)| parameters.as_ref().unwrap_or(&self.node).clone()).collect()
    }

    /// Whether the client asks for this name by a plain name or the plain wildcard.
    fn is_covered(&self, name: &str) -> bool {
        let covers = |(asked, parameters): &Asked| {
            parameters.is_none() && asked.as_ref().is_none_or(|asked| asked == name)
        };
        self.asked.iter().any(covers)
    }

    /// The version as a request says it. S32: for a wildcard one that is equal to the server's is
    /// not answered.
    pub(crate) fn version_info(&self) -> &str {
        let is_wildcard = self.asked.iter().any(|(name, _)| name.is_none());
        if self.is_partial && is_wildcard { "" } else { &self.version }
    }

    /// The version of a response, which brings all that it stands for.
    pub(crate) fn take_version(&mut self, version: String) {
        (self.version, self.is_partial) = (version, false);
    }

    /// T33: what no locator matches is dropped. D20: what came by name goes with the last plain
    /// name that covers it.
    fn drop_unasked(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(name, constraints), held| match held.is_plain {
            true => self.is_covered(name),
            false => self.locators(name).iter().any(|params| constraints.matches(params)),
        });
        self.held = held;
        let absent = std::mem::take(&mut self.absent);
        let is_asked = |(name, params): &(String, Parameters)| self.locators(name).contains(params);
        self.absent = absent.into_iter().filter(is_asked).collect();
    }

    /// T34: a variant takes the place of whatever its locators had.
    pub(crate) fn take(&mut self, resource_name: Option<&ResourceName>, value: &[u8], version: &str) {
        let (name, content) = content_of(value);
        let constraints = constraints_of(resource_name);
        let locators = self.locators(&name);
        let served: Vec<_> = locators.iter().filter(|params| constraints.matches(params)).collect();
        let is_plain = resource_name.is_none();
        // D20: what came by a plain name that was given up meanwhile went with it; a locator that
        // covers the name gets the resource in its own form (V25).
        if served.is_empty() || (is_plain && !self.is_covered(&name)) {
            return;
        }
        self.held.retain(|(other, theirs), _| {
            *other != name || *theirs == constraints || !served.iter().any(|params| theirs.matches(params))
        });
        served.iter().for_each(|params| _ = self.absent.remove(&(name.clone(), (*params).clone())));
        let held = Held { content, version: version.to_owned(), is_old: false, is_plain };
        self.held.insert((name, constraints), held);
    }

    /// T30b: nothing of the name is there.
    pub(crate) fn take_removal(&mut self, name: &str) {
        self.held.retain(|(other, _), _| other != name);
        for params in self.locators(name) {
            self.absent.insert((name.to_owned(), params));
        }
    }

    /// T30b: one variant of the name is gone. Back come the locators it matches: nothing is there
    /// for those that no variant serves once the response is taken whole.
    pub(crate) fn take_variant_removal(&mut self, resource_name: &ResourceName) -> Vec<(String, Parameters)> {
        let (name, constraints) = (&resource_name.name, constraints_of(Some(resource_name)));
        let matching = self.locators(name).into_iter().filter(|params| constraints.matches(params));
        let matching: Vec<_> = matching.collect();
        self.held.remove(&(name.clone(), constraints));
        // A resource that the client brought from another stream may no longer match it. The server
        // does not know its constraints, so these parameters alone say which one it removes.
        self.held.retain(|(other, theirs), held| {
            !(held.is_old && other == name && matching.iter().any(|params| theirs.matches(params)))
        });
        matching.into_iter().map(|params| (name.clone(), params)).collect()
    }

    /// What was removed, as far as nothing took its place.
    pub(crate) fn take_absent(&mut self, removed: Vec<(String, Parameters)>) {
        for (name, params) in removed {
            let serves = |(other, theirs): &(String, Constraints)| *other == name && theirs.matches(&params);
            if !self.held.keys().any(serves) {
                self.absent.insert((name, params));
            }
        }
    }

    /// A new stream: what is brought along, by name (T37).
    pub(crate) fn reconnect(&mut self) -> BTreeMap<String, String> {
        self.nonce.clear();
        self.knows_locators = self.asked.iter().any(|(_, parameters)| parameters.is_some());
        self.has_asked = !self.asked.is_empty();
        self.absent.clear();
        let names: Vec<_> = self.held.keys().map(|(name, _)| name.clone()).collect();
        let is_single = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
        let is_sotw = self.is_sotw;
        self.held.retain(|(name, _), held| {
            held.is_old = true;
            // Of several nobody could tell whether they are still there.
            is_sotw || is_single(name)
        });
        self.held.iter().map(|((name, _), held)| (name.clone(), held.version.clone())).collect()
    }

    /// Compares what came on this stream with what the cache has of it; `removals` says whether the
    /// client can know what is gone.
    pub(crate) fn check_held(&self, type_url: &str, cache: &Cache, removals: bool) -> Result<(), String> {
        let snapshot = cache.snapshot();
        for ((name, constraints), held) in &self.held {
            // What came by name before the first locator is on its way in the other form (V25).
            if held.is_old || (self.knows_locators && constraints.is_unconstrained()) {
                continue;
            }
            let variants = snapshot.get(&type_url.into(), &name.as_str().into());
            let found = variants.into_iter().flat_map(|variants| variants.iter());
            let serves = |variant: &&std::sync::Arc<xds_core::Variant>| match self.knows_locators {
                true => variant.constraints() == constraints,
                false => self.locators(name).iter().any(|params| variant.constraints().matches(params)),
            };
            let now = found.into_iter().find(serves).map(|variant| content_of(variant.payload()).1);
            if now != Some(held.content) && (removals || now.is_some()) {
                return Err(format!(
                    "{type_url} {name} [{constraints}]: the client has {} though it ACKed {now:?}",
                    held.content
                ));
            }
        }
        Ok(())
    }

    /// Compares with what the cache has; `removals` says whether the client can know what is gone.
    pub(crate) fn check(&self, type_url: &str, cache: &Cache, removals: bool) -> Result<(), String> {
        let snapshot = cache.snapshot();
        let resources = snapshot.of_type(&type_url.into());
        let (mut expected, mut absent) = (BTreeMap::new(), BTreeSet::new());
        for (name, variants) in resources.iter().flat_map(|resources| resources.iter()) {
            for params in self.locators(name.as_str()) {
                // Not by the structure under test.
                if let Some(variant) = variants.iter().find(|variant| variant.constraints().matches(&params))
                {
                    let is_told = self.knows_locators;
                    let constraints = if is_told { variant.constraints().clone() } else { Constraints::NONE };
                    let content = content_of(variant.payload()).1;
                    expected.insert((name.as_str().to_owned(), constraints), content);
                }
            }
        }
        let exists = |name: &str, params: &Parameters| {
            let variants = resources.and_then(|resources| resources.get(&name.into()));
            variants
                .is_some_and(|variants| variants.iter().any(|variant| variant.constraints().matches(params)))
        };
        for (name, params) in &self.asked {
            let params = params.as_ref().unwrap_or(&self.node);
            if let Some(name) = name.as_ref().filter(|name| !exists(name, params)) {
                absent.insert((name.clone(), params.clone()));
            }
        }
        let held = self.held.iter().filter(|(key, _)| removals || expected.contains_key(*key));
        let held: BTreeMap<_, _> = held.map(|(key, held)| (key.clone(), held.content)).collect();
        if held != expected {
            return Err(format!("{type_url}: client {held:?}, cache {expected:?}"));
        }
        let unheard: Vec<_> = absent.difference(&self.absent).collect();
        // S17: in SotW nobody is told that something does not exist.
        if !unheard.is_empty() && !self.is_sotw {
            return Err(format!("{type_url}: the client does not know that there is no {unheard:?}"));
        }
        Ok(())
    }
}

fn constraints_of(name: Option<&ResourceName>) -> Constraints {
    let message = name.and_then(|name| name.dynamic_parameter_constraints.as_ref());
    message.map_or(Constraints::NONE, |message| Constraints::from_proto(message).unwrap())
}
