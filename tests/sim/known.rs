//! What a client knows of one type, by the rules for clients (S25, S26, D11 to D14, T30b, T33, T34,
//! T37).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use xds_core::{Constraints, Parameters};

use crate::content::{Content, Kind};
use crate::relay::is_of_liar;
use crate::script::Protocol;
use crate::wire::{Item, Received};

/// A name, or `None` for the wildcard, and the parameters of a locator.
pub(crate) type Asked = (Option<String>, Option<Parameters>);

/// What a client holds is known by name and constraints; none of them also for what was told under
/// the plain name.
pub(crate) type Key = (String, Constraints);

#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    pub(crate) protocol: Protocol,
    /// Where plain names get their parameters from.
    pub(crate) node: Parameters,
    pub(crate) asked: BTreeSet<Asked>,
    pub(crate) held: BTreeMap<Key, Held>,
    /// What was asked for and is known not to exist.
    pub(crate) absent: BTreeSet<(String, Parameters)>,
    /// Whether this stream has sent a locator of the type.
    pub(crate) knows_locators: bool,
    pub(crate) nonce: String,
    /// The version it uses (S3, S4).
    pub(crate) version: String,
    /// What the server knew to be asked for when it made that version.
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
    /// It was told under the plain name, so that the client does not know for which other
    /// parameters it would be.
    pub(crate) is_plain: bool,
    /// It was sent on a stream before this one.
    is_old: bool,
}

/// Whether a client checks payloads, and how much it takes of a response with a bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejects {
    Nothing,
    /// A46: it uses the rest.
    Bad,
    /// A full state with a bad payload is not used at all, as Envoy does. Elsewhere it uses the
    /// rest: nobody sends that again.
    Whole,
}

/// Whether it is asked for by this. C16: the wildcard is not for what only proxies have servers
/// for.
pub(crate) fn stands_for(asked: &Option<String>, name: &str) -> bool {
    asked.as_deref().map_or_else(|| !is_of_liar(name), |asked| asked == name)
}

impl Held {
    /// Whether it was sent on the stream that stands.
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

    /// S25: whether what a response leaves out is gone.
    pub(crate) fn takes_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.kind.is_full_state()
    }

    /// Whether it can know what is gone (S26).
    pub(crate) fn hears_removals(&self) -> bool {
        self.protocol == Protocol::Delta || self.kind.is_full_state()
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
        if asked.difference(&self.asked).any(|(name, _)| name.is_none()) {
            // S32: it does not have all that the version stands for.
            self.version.clear();
        }
        self.is_legacy_stream &= asked.iter().eq([&(None, None)]);
        self.asked = asked;
        self.drop_unasked();
    }

    /// The parameters with which a name is asked for.
    pub(crate) fn locators(&self, name: &str) -> Vec<Parameters> {
        let asked = self.asked.iter().filter(|(asked, _)| stands_for(asked, name));
        asked.map(|(_, parameters)| parameters.as_ref().unwrap_or(&self.node).clone()).collect()
    }

    /// What a locator is served with.
    pub(crate) fn serves(&self, name: &str, params: &Parameters) -> Option<&Held> {
        let mut held = self.held.iter();
        held.find(|(key, held)| key.0 == name && self.is_for(key, held, params)).map(|(_, held)| held)
    }

    /// Whether something that is held is for these parameters.
    pub(crate) fn is_for(&self, (_, constraints): &Key, held: &Held, params: &Parameters) -> bool {
        if held.is_plain { *params == self.node } else { constraints.matches(params) }
    }

    /// Takes a response; `false` when some of it is rejected.
    pub(crate) fn take(&mut self, received: &Received, rejects: Rejects, sent_at: usize) -> bool {
        self.nonce.clone_from(&received.nonce);
        let is_bad = |item: &&Item| rejects != Rejects::Nothing && item.content.is_bad;
        let has_bad = received.resources.iter().any(|item| is_bad(&item));
        if has_bad && rejects == Rejects::Whole && self.takes_full_state() {
            return false;
        }
        let kept = self.kept(received.resources.iter().filter(is_bad));
        if self.takes_full_state() {
            self.held = kept;
        }
        received.removed.iter().for_each(|name| self.take_removal(name));
        received.removed_variants.iter().for_each(|(name, told)| self.take_variant_removal(name, told));
        received
            .resources
            .iter()
            .filter(|item| !is_bad(item))
            .for_each(|item| self.take_resource(item, sent_at));
        // S5: like gRPC it says the new version, of which it uses a part.
        self.version.clone_from(&received.version);
        !has_bad
    }

    /// What it goes on to use when a full state brings bad payloads.
    fn kept<'a>(&self, bad: impl Iterator<Item = &'a Item>) -> BTreeMap<Key, Held> {
        let bad: BTreeSet<_> = bad.map(|item| &item.name).collect();
        let held = self.held.iter().filter(|((name, _), _)| bad.contains(name));
        held.map(|(key, held)| (key.clone(), held.clone())).collect()
    }

    /// T34: a variant takes the place of whatever its locators had.
    fn take_resource(&mut self, item: &Item, sent_at: usize) {
        let (name, constraints) = (&item.name, item.constraints());
        let locators = self.locators(name);
        let is_for = |params: &&Parameters| match &item.told {
            Some(told) => told.matches(params),
            None => **params == self.node,
        };
        let served: Vec<_> = locators.iter().filter(is_for).collect();
        // T41, T33b: nobody asks for it (any more).
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
            Held { content, version, sent_at, is_plain: item.told.is_none(), is_old: false },
        );
    }

    /// T30b: nothing of the name is there.
    fn take_removal(&mut self, name: &str) {
        self.held.retain(|(other, _), _| other != name);
        for params in self.locators(name) {
            self.absent.insert((name.to_owned(), params));
        }
    }

    /// T30b: one variant of the name is gone, and nothing is there for the locators it matches.
    fn take_variant_removal(&mut self, name: &str, constraints: &Constraints) {
        let matching = self.locators(name).into_iter().filter(|params| constraints.matches(params));
        let matching: Vec<_> = matching.collect();
        self.held.remove(&(name.to_owned(), constraints.clone()));
        // What was brought from another stream and is no longer for who holds it is told by these
        // parameters alone, as the server cannot know its constraints (T35).
        let mut held = std::mem::take(&mut self.held);
        held.retain(|key, held| {
            let is_old = held.is_old && key.0 == name;
            !(is_old && matching.iter().any(|params| self.is_for(key, held, params)))
        });
        self.held = held;
        for params in matching {
            if self.serves(name, &params).is_none() {
                self.absent.insert((name.to_owned(), params));
            }
        }
    }

    /// T33: what no locator matches is dropped.
    fn drop_unasked(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        held.retain(|key, held| self.locators(&key.0).iter().any(|params| self.is_for(key, held, params)));
        self.held = held;
        let absent = std::mem::take(&mut self.absent);
        let is_asked = |(name, params): &(String, Parameters)| self.locators(name).contains(params);
        self.absent = absent.into_iter().filter(is_asked).collect();
    }

    /// A new stream, to which it brings what it holds.
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
            // T37: of several nobody could tell whether they are still there.
            is_sotw || is_single(name)
        });
    }

    /// D1, T37: the versions a new stream starts with.
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

/// Asked for as it is written in a trace.
pub(crate) fn asked_text<'a>(asked: impl IntoIterator<Item = &'a Asked>) -> String {
    let text = |(name, params): &Asked| {
        let name = name.as_deref().unwrap_or("*");
        params.as_ref().map_or_else(|| name.to_owned(), |params| format!("{name}?{params}"))
    };
    asked.into_iter().map(text).collect::<Vec<_>>().join(" ")
}
