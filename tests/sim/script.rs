//! The events of a world, as data made from a seed: its members, and one step after another.
//!
//! Steps never depend on the reaction of the world, so a script without some of its steps is a
//! script too.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use xds_core::client::ErrorPolicy;
use xds_core::server::Protocol;
use xds_core::{Parameters, RolloutOrder};

use crate::agent::Access;
use crate::content::{Change, Kind, NAMES, SCHEMES, name_of, parameters};
use crate::known::{Asked, Rejects, asked_text};
use crate::random::Random;
use crate::refusing::Refusal;
use crate::relay::RelayDeed;

pub(crate) use relayed::{Liar, RelayProfile, Relaying};
pub(crate) use rolled_out::RolloutProfile;
pub(crate) use twins::Identity;

mod refused;
mod rejecting;
mod relayed;
mod rolled_out;
mod twins;

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) replicas: usize,
    pub(crate) clients: Vec<Profile>,
    pub(crate) agents: Vec<AgentProfile>,
    /// Caching proxies; if there are any, all clients connect to them.
    pub(crate) relays: Vec<RelayProfile>,
    /// How the servers roll out what the source commits.
    pub(crate) rollouts: Option<RolloutProfile>,
    /// The seed of the commits after the last step.
    pub(crate) salt: u64,
    pub(crate) steps: Vec<Step>,
}

/// The properties of a client.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) protocol: Protocol,
    /// One stream for all types, or one for each.
    pub(crate) is_aggregated: bool,
    /// The parameters that are derived from its node.
    pub(crate) node: Parameters,
    /// It subscribes to the wildcard by an empty request, where it can (S19, D16).
    pub(crate) is_legacy: bool,
    pub(crate) rejects: Rejects,
    /// The number of responses in flight at which the server has to wait.
    pub(crate) window: usize,
    pub(crate) identity: Identity,
    /// It answers every response at once.
    pub(crate) is_prompt: bool,
}

/// The properties of one of our clients.
#[derive(Debug, Clone)]
pub(crate) struct AgentProfile {
    /// By server number.
    pub(crate) homes: Vec<Home>,
    pub(crate) protocols: Vec<Protocol>,
    /// The servers for old-style names, in their order (C15).
    pub(crate) order: Vec<usize>,
    /// The server that lies; it is also the server of the liar's authority.
    pub(crate) liar: Option<usize>,
    pub(crate) policy: ErrorPolicy,
    /// The parameters of watches without parameters of their own (T40).
    pub(crate) parameters: Parameters,
    /// It rejects bad payloads.
    pub(crate) rejects: bool,
    pub(crate) window: usize,
    /// Its servers are proxies.
    pub(crate) is_relayed: bool,
}

/// The program behind a server of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    Replica(usize),
    Liar,
}

/// A watch of one of our clients.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    /// `None` for the wildcard.
    pub(crate) name: Option<String>,
    pub(crate) parameters: Option<Parameters>,
    /// Whether the name is of the liar's authority, if there is a liar.
    pub(crate) is_of_liar: bool,
    /// The watcher reads the state only when [`Deed::Look`] says so.
    pub(crate) is_slow: bool,
}

/// An event of one of our clients.
#[derive(Debug, Clone)]
pub(crate) enum Deed {
    Watch {
        target: Target,
    },
    Unwatch {
        which: usize,
    },
    /// A slow watcher reads the state.
    Look {
        which: usize,
    },
    /// The client sends requests.
    Say {
        server: usize,
        count: usize,
    },
    /// The server reads requests.
    Deliver {
        server: usize,
        count: usize,
    },
    /// The client reads responses.
    Take {
        server: usize,
        count: usize,
    },
    /// The stream breaks, and the messages in flight are lost.
    Cut {
        server: usize,
    },
    /// From now on an attempt to connect has this result.
    Access {
        server: usize,
        access: Access,
    },
    /// The liar sends lies.
    Lie {
        salt: u64,
        count: usize,
    },
    Exchange,
    /// The client does everything that is due.
    Drive,
}

/// One event, and whether the servers may send before the next one.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) action: Action,
    pub(crate) serves: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Changes the served content. All replicas follow at once, or only the first.
    Commit {
        changes: Vec<Change>,
        lags: bool,
    },
    /// A replica applies all commits that it lacks; an empty one gets everything in one commit.
    CatchUp {
        replica: usize,
    },
    /// A replica loses its content and its streams.
    Crash {
        replica: usize,
    },
    /// A client sets its subscription of a type.
    Ask {
        client: usize,
        kind: Kind,
        asked: BTreeSet<Asked>,
    },
    /// The server reads requests of a client.
    Deliver {
        client: usize,
        kind: Kind,
        count: usize,
    },
    /// A client reads responses.
    Take {
        client: usize,
        kind: Kind,
        count: usize,
    },
    /// A client and its server exchange messages until no message is left.
    Exchange {
        client: usize,
    },
    /// The requests of a client no longer arrive, and it reads no responses; its streams stay open
    /// until faults stop.
    Silence {
        client: usize,
    },
    /// The stream of a client for a type breaks, and the client reconnects, perhaps to another
    /// replica.
    Reconnect {
        client: usize,
        kind: Kind,
        replica: usize,
    },
    Pass {
        time: Duration,
    },
    /// A replica is replaced by another release, which refuses a type, or does not refuse it any more.
    Refuse {
        replica: usize,
        kind: Kind,
        refusal: Option<Refusal>,
    },
    /// An operator steers the rollout of a replica.
    Order {
        replica: usize,
        order: RolloutOrder,
    },
    Agent {
        agent: usize,
        deed: Deed,
    },
    Relay {
        relay: usize,
        deed: RelayDeed,
    },
}

impl Script {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (salt, mut replicas) = (random.next(), 1 + random.below(2));
        // Random numbers of their own, so that the rest of the script does not depend on them.
        let mut of_relays = Random::new(seed.rotate_left(32));
        let mut relays = Vec::new();
        if relayed::is_relayed(seed) {
            (replicas, relays) = (1, relayed::profiles(&mut of_relays));
        }
        // Random numbers of their own, too.
        let mut of_lies = Random::new((!seed).rotate_left(32));
        relays.iter_mut().for_each(|relay| relay.liar = relayed::liar(&mut of_lies));
        relayed::canaries(seed, &mut relays);
        let has_authority = relays.iter().any(|relay| relay.liar == Some(Liar::OfAuthority));
        let servers = if relays.is_empty() { replicas } else { relays.len() };
        let mut clients: Vec<_> = (0..1 + random.below(3)).map(|_| Profile::random(&mut random)).collect();
        let twins = clients.len() > 1 && random.chance(40);
        if twins {
            let (node, rejects) = (clients[0].node.clone(), clients[0].rejects);
            clients[0].protocol = Protocol::Sotw;
            clients[1] = Profile { protocol: Protocol::Delta, node, rejects, ..clients[1].clone() };
        }
        let mut writer = Writer {
            random,
            number: 0,
            replicas: replicas + relays.len(),
            clients: clients.len(),
            twins,
            steps: Vec::new(),
        };
        writer.write();
        // Random numbers of their own, so that the rest of the script does not depend on them.
        let mut random = Random::new(!seed);
        let count = random.pick(&[0, 0, 0, 1, 1, 2]).max(usize::from(has_authority));
        let mut agents: Vec<_> = (0..count).map(|_| AgentProfile::random(&mut random, servers)).collect();
        agents.iter_mut().filter(|_| has_authority).for_each(AgentProfile::know_liar);
        let steps = AgentWriter { random, agents: &agents }.write(writer.steps);
        let mut script = Self { replicas, clients, agents, relays, rollouts: None, salt, steps };
        script.write_identities(seed, servers);
        script.write_rejections(&mut Random::new(seed.rotate_left(40)));
        if !script.relays.is_empty() {
            script.write_relays(&mut of_relays);
            script.write_lies(&mut of_lies);
            script.write_disks(&mut Random::new((!seed).rotate_left(16)));
        }
        script.write_rollouts(&mut Random::new(seed.rotate_left(8)));
        script.write_refusals(&mut Random::new((!seed).rotate_left(48)));
        script
    }
}

impl Profile {
    fn random(random: &mut Random) -> Self {
        Self {
            protocol: random.pick(&[Protocol::Sotw, Protocol::Delta]),
            is_aggregated: random.chance(70),
            node: parameters(random.below(5)),
            is_legacy: random.chance(40),
            rejects: random.pick(&[Rejects::Nothing, Rejects::Nothing, Rejects::Bad, Rejects::Whole]),
            window: 1 + random.below(3),
            identity: Identity::Own,
            is_prompt: false,
        }
    }
}

impl AgentProfile {
    fn random(random: &mut Random, replicas: usize) -> Self {
        let mut homes: Vec<_> = (0..replicas).map(Home::Replica).collect();
        if random.chance(50) {
            homes.reverse();
        }
        if random.chance(25) {
            homes.truncate(1);
        }
        let mut order: Vec<_> = (0..homes.len()).collect();
        let liar = random.chance(35).then_some(homes.len());
        if let Some(liar) = liar {
            homes.push(Home::Liar);
            if random.chance(35) {
                order.insert(random.below(order.len() + 1), liar);
            }
        }
        let policy = ErrorPolicy {
            fail_on_data_errors: random.chance(25),
            resource_timer_is_transient_error: random.chance(20),
        };
        let protocol = random.pick(&[Protocol::Sotw, Protocol::Delta]);
        let is_mixed = random.chance(30);
        let mut protocols = vec![protocol; homes.len()];
        if is_mixed {
            protocols.iter_mut().for_each(|one| *one = random.pick(&[Protocol::Sotw, Protocol::Delta]));
        }
        Self {
            protocols,
            homes,
            order,
            liar,
            policy,
            parameters: if random.chance(60) { Parameters::new() } else { parameters(random.below(6)) },
            rejects: random.chance(40),
            window: 1 + random.below(3),
            is_relayed: false,
        }
    }

    /// Gives it a server for the liar's authority, if it has none.
    fn know_liar(&mut self) {
        if self.liar.is_none() {
            self.liar = Some(self.homes.len());
            self.homes.push(Home::Liar);
            self.protocols.push(self.protocols[0]);
        }
    }

    /// Whether all its servers for old-style names are honest.
    pub(crate) fn is_served_honestly(&self) -> bool {
        self.liar.is_none_or(|liar| !self.order.contains(&liar))
    }
}

/// Adds the events of our clients to a script.
struct AgentWriter<'a> {
    random: Random,
    agents: &'a [AgentProfile],
}

impl AgentWriter<'_> {
    fn write(&mut self, steps: Vec<Step>) -> Vec<Step> {
        let mut all = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            all.push(step);
            for agent in 0..self.agents.len() {
                if at == 0 {
                    for _ in 0..1 + self.random.below(5) {
                        let deed = Deed::Watch { target: self.target(agent) };
                        self.push(agent, deed, &mut all);
                    }
                    self.push(agent, Deed::Exchange, &mut all);
                }
                while self.random.chance(60) {
                    let deed = self.deed(agent);
                    self.push(agent, deed, &mut all);
                }
            }
        }
        all
    }

    fn push(&mut self, agent: usize, deed: Deed, all: &mut Vec<Step>) {
        let serves = self.random.chance(75);
        all.push(Step { action: Action::Agent { agent, deed }, serves });
    }

    fn target(&mut self, agent: usize) -> Target {
        let random = &mut self.random;
        let is_of_liar = self.agents[agent].liar.is_some() && random.chance(40);
        let name = name_of(random.below(NAMES));
        let has_parameters = random.chance(60);
        Target {
            kind: random.pick(&Kind::ALL),
            name: (is_of_liar || random.chance(75)).then_some(name),
            parameters: has_parameters.then(|| parameters(random.below(6))),
            is_of_liar,
            is_slow: random.chance(30),
        }
    }

    fn deed(&mut self, agent: usize) -> Deed {
        let target = self.target(agent);
        let random = &mut self.random;
        let server = random.below(self.agents[agent].homes.len());
        let (which, count) = (random.below(12), 1 + random.below(3));
        match random.below(100) {
            0..12 => Deed::Watch { target },
            12..21 => Deed::Unwatch { which },
            21..27 => Deed::Look { which },
            27..37 => Deed::Say { server, count },
            37..47 => Deed::Deliver { server, count },
            47..57 => Deed::Take { server, count },
            57..64 => Deed::Cut { server },
            64..76 => {
                let access = random.pick(&[Access::Open, Access::Open, Access::Refused, Access::Hanging]);
                Deed::Access { server, access }
            }
            76..86 if self.agents[agent].liar.is_some() => Deed::Lie { salt: random.next(), count },
            76..90 => Deed::Drive,
            _ => Deed::Exchange,
        }
    }
}

/// Writes a script.
struct Writer {
    random: Random,
    /// A counter, so that most contents differ.
    number: i32,
    replicas: usize,
    clients: usize,
    /// The first two clients have the same subscriptions.
    twins: bool,
    steps: Vec<Step>,
}

impl Writer {
    fn write(&mut self) {
        let length = 30 + self.random.below(40);
        let everything = 6 + self.random.below(10);
        let changes = (0..everything).map(|_| self.change()).collect();
        self.push(Action::Commit { changes, lags: false });
        for client in 0..self.clients {
            for kind in Kind::ALL {
                if self.random.chance(60) {
                    self.ask(client, kind);
                }
            }
            self.push(Action::Exchange { client });
        }
        while self.steps.len() < length {
            self.any();
        }
    }

    fn any(&mut self) {
        let random = &mut self.random;
        let (client, replica) = (random.below(self.clients), random.below(self.replicas));
        let (kind, count) = (random.pick(&Kind::ALL), 1 + random.below(3));
        match random.below(100) {
            0..22 => {
                let lags = random.chance(20);
                let count = 1 + if random.chance(30) { random.below(6) } else { random.below(2) };
                let changes = (0..count).map(|_| self.change()).collect();
                self.push(Action::Commit { changes, lags });
            }
            22..36 => self.ask(client, kind),
            36..50 => self.push(Action::Deliver { client, kind, count }),
            50..66 => self.push(Action::Take { client, kind, count }),
            66..80 => self.push(Action::Exchange { client }),
            80..88 => {
                let time = random.pick(&[10, 300, 1_100, 2_100, 5_100, 17_000]);
                self.push(Action::Pass { time: Duration::from_millis(time) });
            }
            88..94 => self.push(Action::Reconnect { client, kind, replica }),
            94..98 => self.push(Action::CatchUp { replica }),
            _ => self.push(Action::Crash { replica }),
        }
    }

    fn push(&mut self, action: Action) {
        let serves = self.random.chance(75);
        self.steps.push(Step { action, serves });
    }

    fn ask(&mut self, client: usize, kind: Kind) {
        let asked = self.asked(kind);
        if self.twins && client < 2 {
            self.push(Action::Ask { client: 1 - client, kind, asked: asked.clone() });
        }
        self.push(Action::Ask { client, kind, asked });
    }

    fn asked(&mut self, kind: Kind) -> BTreeSet<Asked> {
        let random = &mut self.random;
        let has_locators = random.chance(40);
        let wildcards = if kind.known().legacy_wildcard { 60 } else { 10 };
        let mut asked = BTreeSet::new();
        if random.chance(wildcards) {
            let params = (has_locators && random.chance(50)).then(|| parameters(random.below(6)));
            asked.insert((None, params));
            if random.chance(60) {
                return asked;
            }
        }
        for _ in 0..random.below(5) {
            let name = name_of(random.below(NAMES));
            let params = (has_locators && random.chance(75)).then(|| parameters(random.below(6)));
            asked.insert((Some(name), params));
        }
        asked
    }

    /// Changes one name of one type.
    fn change(&mut self) -> Change {
        let random = &mut self.random;
        // Sometimes it returns to an earlier content.
        self.number = if random.chance(10) { random.below(3) as i32 } else { self.number + 1 };
        Change {
            kind: random.pick(&Kind::ALL),
            name: random.below(NAMES),
            scheme: if random.chance(25) { 0 } else { random.below(SCHEMES.len()) },
            number: self.number,
            is_bad: random.chance(8),
            address: 0,
            is_varied: random.chance(70),
            clusters: random.below(1 << NAMES) & random.below(1 << NAMES),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, is_aggregated, node, is_legacy, rejects, window, identity, is_prompt } = self;
        let streams = if *is_aggregated { "one stream" } else { "a stream per type" };
        write!(f, "{protocol:?}, {streams}, window {window}, node {{{node}}}, rejects {rejects:?}")?;
        write!(f, ", id {identity:?}{}", if *is_prompt { ", answers at once" } else { "" })?;
        if *is_legacy { f.write_str(", legacy wildcard") } else { Ok(()) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.action, if self.serves { "" } else { " (server waits)" })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit { changes, lags } => {
                let changes = changes.iter().map(Change::to_string).collect::<Vec<_>>().join(", ");
                write!(f, "commit {changes}{}", if *lags { " on the first replica only" } else { "" })
            }
            Self::CatchUp { replica } => write!(f, "replica {replica} catches up"),
            Self::Crash { replica } => write!(f, "replica {replica} crashes"),
            Self::Ask { client, kind, asked } => write!(f, "c{client} asks {kind} {{{}}}", asked_text(asked)),
            Self::Deliver { client, kind, count } => write!(f, "server reads {count} of c{client} {kind}"),
            Self::Take { client, kind, count } => write!(f, "c{client} reads {count} of {kind}"),
            Self::Exchange { client } => write!(f, "c{client} and server exchange all"),
            Self::Silence { client } => write!(f, "c{client} falls silent"),
            Self::Reconnect { client, kind, replica } => {
                write!(f, "c{client} reconnects {kind} to replica {replica}")
            }
            Self::Pass { time } => write!(f, "{time:?} pass"),
            Self::Refuse { replica, kind, refusal: Some(refusal) } => {
                write!(f, "replica {replica} refuses {kind} {refusal} from now on")
            }
            Self::Refuse { replica, kind, refusal: None } => write!(f, "replica {replica} serves {kind}"),
            Self::Order { replica, order } => write!(f, "an operator orders {order:?} at replica {replica}"),
            Self::Agent { agent, deed } => write!(f, "a{agent}: {deed}"),
            Self::Relay { relay, deed } => write!(f, "proxy {relay} {deed}"),
        }
    }
}

impl fmt::Display for AgentProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { homes, protocols, order, liar, policy, parameters, rejects, window, .. } = self;
        write!(
            f,
            "asks servers {order:?}; {{{parameters}}}, window {window}, rejects bad: {rejects}, {policy:?}"
        )?;
        for (at, (home, protocol)) in homes.iter().zip(protocols).enumerate() {
            write!(f, "; s{at}: {home:?}, {protocol:?}")?;
        }
        liar.iter().try_for_each(|liar| write!(f, "; s{liar} lies"))
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watch { target: Target { kind, name, parameters, is_of_liar, is_slow } } => {
                let name = name.as_deref().unwrap_or("*");
                write!(f, "watches {kind} {name}")?;
                parameters.iter().try_for_each(|parameters| write!(f, "?{parameters}"))?;
                f.write_str(if *is_of_liar { " of the liar" } else { "" })?;
                f.write_str(if *is_slow { ", looking seldom" } else { "" })
            }
            Self::Unwatch { which } => write!(f, "watcher {which} goes"),
            Self::Look { which } => write!(f, "watcher {which} looks"),
            Self::Say { server, count } => write!(f, "says {count} to s{server}"),
            Self::Deliver { server, count } => write!(f, "s{server} reads {count}"),
            Self::Take { server, count } => write!(f, "reads {count} of s{server}"),
            Self::Cut { server } => write!(f, "the stream to s{server} breaks"),
            Self::Access { server, access } => write!(f, "s{server} is {access:?} from now on"),
            Self::Lie { salt, count } => write!(f, "{count} lies of {salt}"),
            Self::Exchange => f.write_str("exchanges all"),
            Self::Drive => f.write_str("does what is due"),
        }
    }
}
