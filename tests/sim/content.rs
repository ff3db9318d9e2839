//! The served content: types, payloads that name each other, and the commits that change them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use prost::Message;
use xds_core::{
    Cache, Constraints, KnownType, Parameters, Resource, Snapshot, Transaction, Variant, VariantId,
};
use xds_proto::type_url;

/// The types that are served, in the order of S33.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Cluster,
    Endpoints,
    Listener,
    Route,
    /// A type that is in no table.
    Thing,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Cluster, Self::Endpoints, Self::Listener, Self::Route, Self::Thing];

    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Cluster => type_url::CLUSTER,
            Self::Endpoints => type_url::CLUSTER_LOAD_ASSIGNMENT,
            Self::Listener => type_url::LISTENER,
            Self::Route => type_url::ROUTE_CONFIGURATION,
            Self::Thing => "type.googleapis.com/acme.Thing",
        }
    }

    pub(crate) fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    pub(crate) fn known(self) -> &'static KnownType {
        KnownType::of(self.url())
    }

    /// S25: whether a resource that is missing from a SotW response is deleted.
    pub(crate) fn is_full_state(self) -> bool {
        self.known().full_state
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "CDS",
            Self::Endpoints => "EDS",
            Self::Listener => "LDS",
            Self::Route => "RDS",
            Self::Thing => "Thing",
        })
    }
}

/// The content of a payload, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) number: i32,
    /// Clients that check payloads reject it.
    pub(crate) is_bad: bool,
    /// The address of a listener; 0 is none. Two listeners with one address conflict (S6e).
    pub(crate) address: i32,
    /// The clusters that a route names.
    pub(crate) clusters: Vec<String>,
}

impl Content {
    pub(crate) fn of(kind: Kind, payload: &[u8]) -> Result<Self, String> {
        let common = Common::decode(payload).map_err(|error| error.to_string())?;
        let clusters = match kind {
            Kind::Route => {
                let route = RouteConfiguration::decode(payload).map_err(|error| error.to_string())?;
                let routes = route.virtual_hosts.into_iter().flat_map(|host| host.routes);
                routes.filter_map(|route| route.action).map(|action| action.cluster).collect()
            }
            _ => Vec::new(),
        };
        let Common { name, number, is_bad, address } = common;
        Ok(Self { name, number, is_bad, address, clusters })
    }

    pub(crate) fn encode(&self, kind: Kind) -> Bytes {
        let Self { name, number, is_bad, address, .. } = self.clone();
        let mut payload = Common { name, number, is_bad, address }.encode_to_vec();
        match kind {
            // X16: a cluster with a new-style name would have to name its endpoints, so its type is
            // not EDS.
            Kind::Cluster if self.name.starts_with("xdstp:") => {}
            Kind::Cluster => payload.extend(Cluster { discovery_type: 3 }.encode_to_vec()),
            Kind::Route => {
                let action = |cluster: &String| Route { action: Some(Action { cluster: cluster.clone() }) };
                let routes = self.clusters.iter().map(action).collect();
                let virtual_hosts = vec![VirtualHost { routes }];
                payload.extend(RouteConfiguration { virtual_hosts }.encode_to_vec());
            }
            Kind::Endpoints | Kind::Listener | Kind::Thing => {}
        }
        payload.into()
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, if self.is_bad { "!" } else { "" })?;
        if self.address != 0 {
            write!(f, ":{}", self.address)?;
        }
        if !self.clusters.is_empty() {
            write!(f, ">{}", self.clusters.join("+"))?;
        }
        Ok(())
    }
}

/// The fields of all payloads: the name has the number that it has in Envoy's messages, the others
/// have numbers that Envoy's messages do not use.
#[derive(Clone, PartialEq, Message)]
struct Common {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "1000")]
    number: i32,
    #[prost(bool, tag = "1001")]
    is_bad: bool,
    #[prost(int32, tag = "1002")]
    address: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Cluster {
    #[prost(int32, tag = "2")]
    discovery_type: i32,
}

#[derive(Clone, PartialEq, Message)]
struct RouteConfiguration {
    #[prost(message, repeated, tag = "2")]
    virtual_hosts: Vec<VirtualHost>,
}

#[derive(Clone, PartialEq, Message)]
struct VirtualHost {
    #[prost(message, repeated, tag = "3")]
    routes: Vec<Route>,
}

#[derive(Clone, PartialEq, Message)]
struct Route {
    #[prost(message, optional, tag = "2")]
    action: Option<Action>,
}

#[derive(Clone, PartialEq, Message)]
struct Action {
    #[prost(string, tag = "1")]
    cluster: String,
}

/// Changes the variants of one name of one type, and the content of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    pub(crate) name: usize,
    /// An index of [`SCHEMES`].
    pub(crate) scheme: usize,
    pub(crate) number: i32,
    pub(crate) is_bad: bool,
    /// The address of a listener; 0 is none.
    pub(crate) address: i32,
    /// Whether the variants differ in content.
    pub(crate) is_varied: bool,
    /// A bit per cluster that a route names.
    pub(crate) clusters: usize,
}

impl Change {
    fn contents(&self) -> impl Iterator<Item = (Constraints, Bytes)> {
        PARSED[self.scheme % SCHEMES.len()].iter().zip(0..).map(|(constraints, at)| {
            let clusters = (0..MORE_NAMES).filter(|cluster| self.clusters >> cluster & 1 == 1);
            let content = Content {
                name: name_of(self.name),
                number: self.number * 10 + if self.is_varied { at } else { 0 },
                is_bad: self.is_bad,
                address: self.address,
                clusters: clusters.map(name_of).collect(),
            };
            (constraints.clone(), content.encode(self.kind))
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = SCHEMES[self.scheme % SCHEMES.len()];
        write!(f, "{} {}", self.kind, name_of(self.name))?;
        if scheme.is_empty() {
            return f.write_str(" gone");
        }
        for ((_, payload), when) in self.contents().zip(scheme) {
            let content = Content::of(self.kind, &payload).map_err(|_| fmt::Error)?;
            write!(f, " [{when}]={content}")?;
        }
        Ok(())
    }
}

/// The content to serve, and the commits that led to it.
#[derive(Debug, Default)]
pub(crate) struct Source {
    state: BTreeMap<VariantId, Bytes>,
    /// The puts and removals of each commit.
    pub(crate) log: Vec<BTreeMap<VariantId, Option<Bytes>>>,
}

impl Source {
    /// Appends a commit; of several changes of one name the last counts.
    pub(crate) fn commit(&mut self, changes: &[Change]) {
        let last: BTreeMap<_, _> =
            changes.iter().map(|change| ((change.kind, change.name % MORE_NAMES), change)).collect();
        let mut commit = BTreeMap::new();
        for ((kind, name), change) in last {
            let (url, name) = (kind.url(), name_of(name));
            let of_name =
                self.state.keys().filter(|id| id.type_url.as_str() == url && *id.name.as_str() == *name);
            commit.extend(of_name.map(|id| (id.clone(), None)));
            for (constraints, payload) in change.contents() {
                let (type_url, name) = (url.into(), name.as_str().into());
                commit.insert(VariantId { type_url, name, constraints }, Some(payload));
            }
        }
        for (id, payload) in &commit {
            match payload {
                Some(payload) => _ = self.state.insert(id.clone(), payload.clone()),
                None => _ = self.state.remove(id),
            }
        }
        self.log.push(commit);
    }

    /// Puts all content into a cache, and a copy of it under the names of another authority.
    pub(crate) fn mirror(&self, cache: &Cache, name_at: impl Fn(Kind, &str) -> String) {
        let snapshot = cache.snapshot();
        let mut changes: BTreeMap<VariantId, Option<Bytes>> = BTreeMap::new();
        for kind in Kind::ALL {
            for (name, variants) in
                snapshot.of_type(&kind.url().into()).into_iter().flat_map(|all| all.iter())
            {
                let id = |variant: &Arc<Variant>| VariantId {
                    type_url: kind.url().into(),
                    name: name.clone(),
                    constraints: variant.constraints().clone(),
                };
                changes.extend(variants.iter().map(|variant| (id(variant), None)));
            }
        }
        for (id, payload) in &self.state {
            changes.insert(id.clone(), Some(payload.clone()));
            let Some(kind) = Kind::of_url(id.type_url.as_str()) else { continue };
            let Ok(content) = Content::of(kind, payload) else { continue };
            let name = name_at(kind, id.name.as_str());
            let payload = Content { name: name.clone(), ..content }.encode(kind);
            changes.insert(VariantId { name: name.as_str().into(), ..id.clone() }, Some(payload));
        }
        put(cache, changes.iter().map(|(id, payload)| (id, payload.as_ref())));
    }

    /// The number of names of each type that exist or existed.
    pub(crate) fn name_count(&self) -> usize {
        let mut names = self.log.iter().flat_map(BTreeMap::keys).map(|id| id.name.as_str());
        if names.any(|name| (NAMES..MORE_NAMES).any(|more| name == name_of(more))) {
            MORE_NAMES
        } else {
            NAMES
        }
    }

    /// Applies one commit of the log to a cache.
    pub(crate) fn apply(&self, at: usize, cache: &Cache) {
        put(cache, self.log[at].iter().map(|(id, payload)| (id, payload.as_ref())));
    }

    /// Fills an empty cache in one commit.
    pub(crate) fn feed(&self, cache: &Cache) {
        put(cache, self.state.iter().map(|(id, payload)| (id, Some(payload))));
    }
}

/// Puts contents into a cache; `None` removes a variant.
pub(crate) fn put<'a>(cache: &Cache, changes: impl Iterator<Item = (&'a VariantId, Option<&'a Bytes>)>) {
    let mut transaction = Transaction::new();
    for (id, payload) in changes {
        match payload {
            None => transaction.remove(id.clone()),
            Some(payload) => {
                let resource = Resource::new(id.type_url.clone(), id.name.clone(), payload.clone());
                transaction.put(resource.unwrap().with_constraints(id.constraints.clone()));
            }
        }
    }
    cache.commit(transaction).unwrap();
}

/// The variant for some parameters. This evaluates all formulas, and does not use the structure
/// under test.
pub(crate) fn selected<'s>(
    snapshot: &'s Snapshot,
    kind: Kind,
    name: &str,
    params: &Parameters,
) -> Option<&'s Arc<Variant>> {
    let variants = snapshot.get(&kind.url().into(), &name.into())?;
    variants.iter().find(|variant| variant.constraints().matches(params))
}

/// The names of a type that exist.
pub(crate) fn names(snapshot: &Snapshot, kind: Kind) -> impl Iterator<Item = &str> {
    let resources = snapshot.of_type(&kind.url().into()).into_iter();
    resources.flat_map(|resources| resources.iter()).map(|(name, _)| name.as_str())
}

pub(crate) fn constraints_of_scheme(scheme: usize) -> &'static [Constraints] {
    &PARSED[scheme % SCHEMES.len()]
}

pub(crate) fn name_of(number: usize) -> String {
    char::from(b'a' + (number % MORE_NAMES) as u8).to_string()
}

/// Some parameters, the empty ones among them.
pub(crate) fn parameters(number: usize) -> Parameters {
    let sets: [&[(&str, &str)]; 6] = [
        &[],
        &[("env", "a")],
        &[("env", "a"), ("ver", "1")],
        &[("env", "b"), ("pod", "x")],
        &[("ver", "1")],
        &[("env", "")],
    ];
    sets[number % sets.len()].iter().copied().collect()
}

/// The number of names of each type that most events use.
pub(crate) const NAMES: usize = 4;

/// With these, a rejected response is long enough to be split more than twice.
pub(crate) const MORE_NAMES: usize = 8;

/// The sets of variants that a name can have: none, one for all clients, and partitions of several
/// kinds, with and without gaps. A change from one set to another is a new partition.
pub(crate) const SCHEMES: [&[&str]; 9] = [
    &[],
    &["true"],
    &["env=a", "env!=a"],
    &["env=a"],
    &["env in (a,b)", "env notin (a,b)"],
    &["env=a,ver=1", "env=a,ver!=1"],
    &["env,ver=1", "env,ver!=1", "!env,(ver || !ver)"],
    &["ver=1", "!ver"],
    &["env=a", "env=b", "!env"],
];

static PARSED: LazyLock<Vec<Vec<Constraints>>> = LazyLock::new(|| {
    SCHEMES.iter().map(|set| set.iter().map(|when| when.parse().unwrap()).collect()).collect()
});
