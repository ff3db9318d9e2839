//! What happens: random histories, and the commits in them.

use std::collections::BTreeMap;

use prost::Message;
use quickcheck::{Arbitrary, Gen};
use xds_core::{Cache, Commit, Constraints, Parameters, Resource, Transaction, VariantId};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, ROUTE_CONFIGURATION};

pub(crate) const TYPES: [&str; 4] = [CLUSTER, CLUSTER_LOAD_ASSIGNMENT, LISTENER, ROUTE_CONFIGURATION];

/// A history of a client that asks by name alone.
#[derive(Debug, Clone)]
pub(crate) struct ByName(pub(crate) History);

/// A history of a client that may also send locators.
#[derive(Debug, Clone)]
pub(crate) struct Located(pub(crate) History);

#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The parameters of the client's node.
    pub(crate) node: u8,
    pub(crate) steps: Vec<Step>,
}

/// One thing that happens. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Gives names of types other variants, all at once.
    Commit(Vec<Change>),
    /// Asks for this much of a type.
    Ask {
        type_url: u8,
        asked: Vec<(u8, u8)>,
    },
    /// The client takes the oldest response from its inbox, and ACKs or NACKs it.
    Take {
        accept: bool,
    },
    Pass {
        ms: u16,
    },
    Reconnect,
}

/// Type, name, which variants it has, and their content.
pub(crate) type Change = (u8, u8, u8, u8);

/// A name, or `None` for the wildcard, and the parameters of a locator.
pub(crate) type Asked = (Option<String>, Option<Parameters>);

impl History {
    /// One after which everything is there for everybody, with a content that nothing had before,
    /// and one after which some of it is not, or has variants.
    pub(crate) fn last_commits(&self) -> [Vec<Change>; 2] {
        let all = (0..4).flat_map(|t| (0..NAMES).map(move |name| (t, name)));
        let seed = u8::try_from(self.steps.len() % 256).unwrap();
        let everything = all.clone().map(|(t, name)| (t, name, 1, FIRST_LAST));
        let keeps = |name: u8| seed & 1 << (name % 3) == 0;
        let some = all.map(|(t, name)| {
            (
                t,
                name,
                if keeps(name) { 1 + (name + t + seed % 100) % (SCHEMES - 1) } else { 0 },
                FIRST_LAST + 1,
            )
        });
        [everything.collect(), some.collect()]
    }

    fn shrunk(&self) -> impl Iterator<Item = Self> + use<> {
        let node = self.node;
        self.steps.shrink().map(move |steps| Self { node, steps })
    }
}

impl Arbitrary for ByName {
    fn arbitrary(g: &mut Gen) -> Self {
        let Located(mut history) = Located::arbitrary(g);
        for step in &mut history.steps {
            if let Step::Ask { asked, .. } = step {
                asked.iter_mut().for_each(|(_, parameters)| *parameters = 0);
            }
        }
        Self(history)
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrunk().map(Self))
    }
}

impl Arbitrary for Located {
    fn arbitrary(g: &mut Gen) -> Self {
        Self(History { node: u8::arbitrary(g), steps: Vec::arbitrary(g) })
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        Box::new(self.0.shrunk().map(Self))
    }
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 16 {
            0..5 => {
                let mut changes: Vec<Change> = Vec::arbitrary(g);
                changes.iter_mut().for_each(|(_, _, _, content)| *content %= FIRST_LAST);
                Self::Commit(changes)
            }
            5..9 => Self::Ask { type_url: u8::arbitrary(g), asked: Vec::arbitrary(g) },
            9..13 => Self::Take { accept: u8::arbitrary(g) % 4 > 0 },
            13..15 => Self::Pass { ms: u16::arbitrary(g) % 3000 },
            _ => Self::Reconnect,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match self {
            Self::Commit(changes) => Box::new(changes.shrink().map(Self::Commit)),
            Self::Ask { type_url, asked } => {
                let type_url = *type_url;
                Box::new(asked.shrink().map(move |asked| Self::Ask { type_url, asked }))
            }
            Self::Take { .. } | Self::Pass { .. } | Self::Reconnect => quickcheck::empty_shrinker(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(string, tag = "1")]
    name: String,
    /// An EDS cluster; a field that the other types do not have.
    #[prost(int32, tag = "2")]
    discovery_type: i32,
    #[prost(int32, tag = "100")]
    content: i32,
}

pub(crate) fn type_of(number: u8) -> &'static str {
    TYPES[usize::from(number) % TYPES.len()]
}

fn name_of(number: u8) -> String {
    format!("r{}", number % NAMES)
}

/// Every seventh is a wildcard; parameters are those of the node in every fourth.
pub(crate) fn asked_of(&(name, parameters_of): &(u8, u8)) -> Asked {
    let name = (name % 16 > 0).then(|| name_of(name));
    (name, (!parameters_of.is_multiple_of(4)).then(|| parameters(parameters_of / 4)))
}

/// Some parameters, the empty ones among them.
pub(crate) fn parameters(number: u8) -> Parameters {
    let sets: [&[(&str, &str)]; 5] =
        [&[], &[("env", "a")], &[("env", "a"), ("ver", "1")], &[("env", "b"), ("pod", "x")], &[("ver", "1")]];
    sets[usize::from(number) % sets.len()].iter().copied().collect()
}

/// The variants that a name can have; the first is none at all.
const VARIANTS: [&[&str]; 7] = [
    &[],
    &["true"],
    &["env=a", "env!=a"],
    &["env=a"],
    &["env=a,ver=1", "env=a,ver!=1"],
    &["env,ver=1", "env,ver!=1", "!env,(ver || !ver)"],
    &["ver=1", "!ver"],
];

/// The first of the contents that only the last commits bring.
const FIRST_LAST: u8 = 200;

const NAMES: u8 = 5;
const SCHEMES: u8 = 7;

pub(crate) fn commit(cache: &Cache, changes: &[Change]) -> Commit {
    let changes: BTreeMap<_, _> = changes
        .iter()
        .map(|(t, n, scheme, content)| ((type_of(*t), name_of(*n)), (*scheme, *content)))
        .collect();
    let mut transaction = Transaction::new();
    let snapshot = cache.snapshot();
    for ((type_url, name), (scheme, content)) in changes {
        let variants: Vec<Constraints> =
            VARIANTS[usize::from(scheme % SCHEMES)].iter().map(|when| when.parse().unwrap()).collect();
        let before = snapshot.get(&type_url.into(), &name.as_str().into());
        for old in before.into_iter().flat_map(|variants| variants.iter()) {
            if !variants.contains(old.constraints()) {
                let (type_url, name) = (type_url.into(), name.as_str().into());
                transaction.remove(VariantId { type_url, name, constraints: old.constraints().clone() });
            }
        }
        for (at, constraints) in variants.into_iter().enumerate() {
            let discovery_type = if type_url == CLUSTER { 3 } else { 0 };
            // Variants of a name have equal contents now and then (V29), those of the last commits
            // no others had.
            let part = if content < FIRST_LAST { content % 4 } else { content };
            let content =
                i32::from(part) + if content % 8 < 4 { 0 } else { 1000 * i32::try_from(at).unwrap() };
            let payload = Payload { name: name.clone(), discovery_type, content }.encode_to_vec();
            let resource = Resource::new(type_url, name.as_str(), payload).unwrap();
            transaction.put(resource.with_constraints(constraints));
        }
    }
    cache.commit(transaction).unwrap()
}

/// Name and content of a payload.
pub(crate) fn content_of(value: &[u8]) -> (String, i32) {
    let payload = Payload::decode(value).unwrap();
    (payload.name, payload.content)
}
