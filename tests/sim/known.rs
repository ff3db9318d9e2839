//! What a client knows of one type, by the rules for clients (S25, S26, D11 to D14, T30b, T33, T34,
//! T37).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use xds_core::server::Protocol;
use xds_core::{Constraints, Parameters};

use crate::content::{Content, Kind};
use crate::relay::is_of_liar;

use crate::wire::{Item, Received};

/// A name, or `None` for the wildcard, and the parameters of a locator.
pub(crate) type Asked = (Option<String>, Option<Parameters>);

/// The key of a resource that a client has: name and constraints. A resource that was sent under
/// its plain name has no constraints.
pub(crate) type Key = (String, Constraints);

#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    pub(crate) protocol: Protocol,
    /// The parameters of plain names.
    pub(crate) node: Parameters,
    pub(crate) asked: BTreeSet<Asked>,
    pub(crate) held: BTreeMap<Key, Held>,
    /// Subscriptions whose resource is known not to exist.
    pub(crate) absent: BTreeSet<(String, Parameters)>,
    /// Whether this stream has sent a locator of the type.
    pub(crate) knows_locators: bool,
    pub(crate) nonce: String,
    /// The version that the client uses (S3, S4).
    pub(crate) version: String,
    /// The subscription that the server knew when it made that version.
    pub(crate) version_of: BTreeSet<Asked>,
    /// Whether this stream has sent a request of the type.
    pub(crate) has_asked: bool,
    /// Whether no request of the type on this stream has named anything but the wildcard (S19).
    pub(crate) is_legacy_stream: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) content: Content,
    pub(crate) version: String,
    /// The snapshot it was made from.
    pub(crate) sent_at: usize,
    /// It was sent under the plain name, so the client does not know its constraints.
    pub(crate) is_plain: bool,
    /// It was sent on an earlier stream.
    is_old: bool,
}

/// Whether a client checks payloads, and what it applies of a response with a bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejects {
    Nothing,
    /// A46: the client uses the rest.
    Bad,
    /// A full state with a bad payload is not used at all, like in Envoy. Of another response the
    /// client uses the rest, because the server does not send it again.
    Whole,
    /// Envoy uses the good clusters and listeners, and rejects a listener with the address of another
    /// one. Of the other types Envoy uses what comes before the first bad payload, and nothing after
    /// it, not even the removals. The version of a rejected response is not used.
    Envoy,
}

/// Whether a subscription covers a name. C16: the wildcard does not cover names of an authority
/// that has its own servers.
pub(crate) fn stands_for(asked: &Option<String>, name: &str) -> bool {
    asked.as_deref().map_or_else(|| !is_of_liar(name), |asked| asked == name)
}

impl Held {
    /// Whether it was sent on the current stream.
    pub(crate) fn is_of_this_stream(&self) -> bool {
        !self.is_old
    }
}

impl Known {
    pub(crate) fn new(kind: Kind, protocol: Protocol, node: &Parameters) -> Self {
        Self {
            kind,
            protocol,
            node: node.clone(),
            asked: BTreeSet::new(),
            held: BTreeMap::new(),
            absent: BTreeSet::new(),
            knows_locators: false,
            nonce: String::new(),
            version: String::new(),
            version_of: BTreeSet::new(),
            has_asked: false,
            is_legacy_stream: true,
        }
    }

    /// S25: whether a resource that is missing from a response is deleted.
    pub(crate) fn takes_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.kind.is_full_state()
    }

    /// Whether the client can learn of removals (S26).
    pub(crate) fn learns_of_removals(&self) -> bool {
        self.protocol == Protocol::Delta || self.kind.is_full_state()
    }

    /// T2: a locator without parameters equals the plain name, if plain names have no parameters
    /// either. So a client has only one of the two.
    pub(crate) fn distinct(&self, mut asked: BTreeSet<Asked>) -> BTreeSet<Asked> {
        if self.node.is_empty() {
            let plain: BTreeSet<_> = asked.iter().filter(|(_, params)| params.is_none()).cloned().collect();
            let is_plain = |name: &Option<String>| plain.contains(&(name.clone(), None));
            asked.retain(|(name, params)| params.as_ref().is_none_or(|of| !of.is_empty() || !is_plain(name)));
        }
        asked
    }

    /// Changes the subscription.
    pub(crate) fn ask(&mut self, asked: BTreeSet<Asked>) {
        self.knows_locators |= asked.iter().any(|(_, parameters)| parameters.is_some());
        if asked.difference(&self.asked).any(|(name, _)| name.is_none()) {
            // S32: the client does not have everything that the version covers.
            self.version.clear();
        }
        self.is_legacy_stream &= asked.iter().eq([&(None, None)]);
        self.asked = asked;
        self.drop_unasked();
    }

    /// The parameters with which the client subscribes to a name.
    pub(crate) fn locators(&self, name: &str) -> Vec<Parameters> {
        let asked = self.asked.iter().filter(|(asked, _)| stands_for(asked, name));
        asked.map(|(_, parameters)| parameters.as_ref().unwrap_or(&self.node).clone()).collect()
    }

    /// The resource that a locator has.
    pub(crate) fn serves(&self, name: &str, params: &Parameters) -> Option<&Held> {
        let mut held = self.held.iter();
        held.find(|(key, held)| key.0 == name && self.is_for(key, held, params)).map(|(_, held)| held)
    }

    /// Whether a resource of the client is for these parameters.
    pub(crate) fn is_for(&self, (_, constraints): &Key, held: &Held, params: &Parameters) -> bool {
        if held.is_plain { *params == self.node } else { constraints.matches(params) }
    }

    /// Applies a response; `false` if the client rejects a part of it.
    pub(crate) fn take(&mut self, received: &Received, rejects: Rejects, sent_at: usize) -> bool {
        self.nonce.clone_from(&received.nonce);
        let refused = self.refused(received, rejects);
        let has_bad = !refused.is_empty();
        if has_bad && rejects == Rejects::Whole && self.takes_full_state() {
            return false;
        }
        if has_bad && rejects == Rejects::Envoy && !matches!(self.kind, Kind::Cluster | Kind::Listener) {
            let before = received.resources.iter().take_while(|item| !item.content.is_bad);
            before.for_each(|item| self.take_resource(item, sent_at));
            return false;
        }
        let is_bad = |item: &&Item| refused.contains(&(item.name.clone(), item.constraints()));
        let kept = self.kept(received.resources.iter().filter(is_bad));
        if self.takes_full_state() {
            self.held = kept;
        }
        for name in &received.removed {
            // S37: an error of the wildcard says the same of a name that it alone covers.
            let is_listed = self.asked.iter().any(|(asked, _)| asked.as_ref() == Some(name));
            let is_unknown = received.has_error(name) || (!is_listed && received.has_error("*"));
            self.take_removal(name, is_unknown);
        }
        let bad: Vec<_> = received.resources.iter().filter(is_bad).collect();
        for (name, sent_with) in &received.removed_variants {
            if !self.keeps_instead(&bad, name, sent_with) {
                self.take_variant_removal(name, sent_with, &bad);
            }
        }
        received
            .resources
            .iter()
            .filter(|item| !is_bad(item))
            .for_each(|item| self.take_resource(item, sent_at));
        // S5: like gRPC, the client reports the new version, of which it uses a part.
        if !has_bad || rejects != Rejects::Envoy {
            self.version.clone_from(&received.version);
        }
        !has_bad
    }

    /// The resources of a response that the client rejects: bad ones, and listeners of Envoy whose
    /// address another listener has at that moment. Envoy first removes listeners, then it applies one
    /// after another.
    fn refused(&self, received: &Received, rejects: Rejects) -> BTreeSet<Key> {
        let mut refused = BTreeSet::new();
        if rejects == Rejects::Nothing {
            return refused;
        }
        let sent = received.names();
        let is_removed = |name: &String| match self.takes_full_state() {
            true => !sent.contains(name),
            false => received.removed.contains(name),
        };
        let held = self.held.iter().filter(|((name, _), _)| !is_removed(name));
        let mut addresses: BTreeMap<_, _> =
            held.map(|((name, _), held)| (name, held.content.address)).collect();
        let has_conflicts = rejects == Rejects::Envoy && self.kind == Kind::Listener;
        for item in &received.resources {
            let address = item.content.address;
            let is_taken = |(name, other): (&&String, &i32)| **name != item.name && *other == address;
            let conflicts = has_conflicts && address != 0 && addresses.iter().any(is_taken);
            if item.content.is_bad || conflicts {
                refused.insert((item.name.clone(), item.constraints()));
            } else if has_conflicts {
                addresses.insert(&item.name, address);
            }
        }
        refused
    }

    /// The resources that the client continues to use when a full state has bad payloads.
    fn kept<'a>(&self, bad: impl Iterator<Item = &'a Item>) -> BTreeMap<Key, Held> {
        let bad: BTreeSet<_> = bad.map(|item| &item.name).collect();
        let held = self.held.iter().filter(|((name, _), _)| bad.contains(name));
        held.map(|(key, held)| (key.clone(), held.clone())).collect()
    }

    /// T34: a variant replaces whatever its locators had.
    fn take_resource(&mut self, item: &Item, sent_at: usize) {
        let (name, constraints) = (&item.name, item.constraints());
        let locators = self.locators(name);
        let is_for = |params: &&Parameters| match &item.sent_with {
            Some(sent_with) => sent_with.matches(params),
            None => **params == self.node,
        };
        let served: Vec<_> = locators.iter().filter(is_for).collect();
        // T41, T33b: no subscription matches it (any more).
        if served.is_empty() {
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        held.retain(|key, held| {
            let is_other = key.0 != *name || key.1 == constraints;
            is_other || !served.iter().any(|params| self.is_for(key, held, params))
        });
        self.held = held;
        served.iter().for_each(|params| _ = self.absent.remove(&(name.clone(), (*params).clone())));
        let (content, version) = (item.content.clone(), item.version.clone());
        self.held.insert(
            (name.clone(), constraints),
            Held { content, version, sent_at, is_plain: item.sent_with.is_none(), is_old: false },
        );
    }

    /// T30b: no variant of the name exists. C9c: an error beside the removal says that nobody knows.
    fn take_removal(&mut self, name: &str, is_unknown: bool) {
        self.held.retain(|(other, _), _| other != name);
        if is_unknown {
            return;
        }
        for params in self.locators(name) {
            self.absent.insert((name.to_owned(), params));
        }
    }

    /// P1.6, T31: whether the client keeps a removed variant, because it rejects those that replace
    /// it. From then on its server does not know that the client has it (seed 2487).
    fn keeps_instead(&mut self, bad: &[&Item], name: &str, constraints: &Constraints) -> bool {
        let locators = self.locators(name);
        let is_rejected = |params: &Parameters| {
            let mut bad = bad.iter().filter(|item| item.name == name);
            bad.any(|item| item.sent_with.as_ref().is_some_and(|sent_with| sent_with.matches(params)))
        };
        let mut users = locators.iter().filter(|params| constraints.matches(params)).peekable();
        if users.peek().is_none() || !users.all(is_rejected) {
            return false;
        }
        let key = (name.to_owned(), constraints.clone());
        if let Some(held) = self.held.get_mut(&key) {
            held.is_old = true;
            return true;
        }
        // The server does not know the constraints of a resource from an earlier stream (seed 21600).
        self.held.iter().any(|(key, held)| held.is_old && key.0 == name)
    }

    /// T30b: one variant of the name is removed, and nothing exists for the locators that it
    /// matches.
    fn take_variant_removal(&mut self, name: &str, constraints: &Constraints, bad: &[&Item]) {
        let matching = self.locators(name).into_iter().filter(|params| constraints.matches(params));
        let matching: Vec<_> = matching.collect();
        self.held.remove(&(name.to_owned(), constraints.clone()));
        // The server does not know the constraints of a resource from an earlier stream. It removes
        // the resource by the parameters of its locator (T35).
        let mut held = std::mem::take(&mut self.held);
        held.retain(|key, held| {
            let is_old = held.is_old && key.0 == name;
            !(is_old && matching.iter().any(|params| self.is_for(key, held, params)))
        });
        self.held = held;
        // P1.5: for these the response has a variant, although the client rejects it (seed 101259).
        let is_rejected = |params: &Parameters| {
            let mut bad = bad.iter().filter(|item| item.name == name);
            bad.any(|item| item.sent_with.as_ref().is_some_and(|sent_with| sent_with.matches(params)))
        };
        for params in matching {
            if !is_rejected(&params) && self.serves(name, &params).is_none() {
                self.absent.insert((name.to_owned(), params));
            }
        }
    }

    /// T33: resources that no locator matches are dropped.
    fn drop_unasked(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        held.retain(|key, held| self.locators(&key.0).iter().any(|params| self.is_for(key, held, params)));
        self.held = held;
        let absent = std::mem::take(&mut self.absent);
        let is_asked = |(name, params): &(String, Parameters)| self.locators(name).contains(params);
        self.absent = absent.into_iter().filter(is_asked).collect();
    }

    /// A new stream. The client keeps its resources.
    pub(crate) fn reconnect(&mut self) {
        self.nonce.clear();
        self.knows_locators = self.asked.iter().any(|(_, parameters)| parameters.is_some());
        self.has_asked = false;
        self.is_legacy_stream = self.asked.iter().eq([&(None, None)]);
        self.absent.clear();
        let names: Vec<_> = self.held.keys().map(|(name, _)| name.clone()).collect();
        let is_single = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
        let is_sotw = self.protocol == Protocol::Sotw;
        self.held.retain(|(name, _), held| {
            held.is_old = true;
            // T37: of several variants of a name the server could not say which of them still
            // exist.
            is_sotw || is_single(name)
        });
    }

    /// D1, T37: the versions in the first request of a new stream.
    pub(crate) fn brought(&self) -> BTreeMap<String, String> {
        self.held.iter().map(|((name, _), held)| (name.clone(), held.version.clone())).collect()
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for ((name, constraints), held) in &self.held {
            write!(f, " {name}[{constraints}]={}", held.content)?;
        }
        self.absent.iter().try_for_each(|(name, params)| write!(f, " !{name}?{params}"))?;
        f.write_str(" }")
    }
}

/// A subscription, as traces write it.
pub(crate) fn asked_text<'a>(asked: impl IntoIterator<Item = &'a Asked>) -> String {
    let text = |(name, params): &Asked| {
        let name = name.as_deref().unwrap_or("*");
        params.as_ref().map_or_else(|| name.to_owned(), |params| format!("{name}?{params}"))
    };
    asked.into_iter().map(text).collect::<Vec<_>>().join(" ")
}
