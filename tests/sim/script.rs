//! What happens in a world, as data made from a seed: who there is, and one step after another.
//!
//! Steps never depend on what the world answers, so a script with steps left out is a script too.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use xds_core::Parameters;

use crate::content::{Change, Kind, NAMES, SCHEMES, name_of, parameters};
use crate::known::{Asked, Rejects, asked_text};
use crate::random::Random;

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) replicas: usize,
    pub(crate) clients: Vec<Profile>,
    /// Makes the commits after the last step.
    pub(crate) salt: u64,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

/// What a client is like.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) protocol: Protocol,
    /// One stream for all types, or one for each.
    pub(crate) is_aggregated: bool,
    /// The parameters that are derived from its node.
    pub(crate) node: Parameters,
    /// It asks for everything by asking for nothing, where it can (S19, D16).
    pub(crate) is_legacy: bool,
    pub(crate) rejects: Rejects,
    /// Responses that the transport takes before the server has to wait.
    pub(crate) window: usize,
}

/// One thing that happens, and whether the server gets to send before the next.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) action: Action,
    pub(crate) serves: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Changes what is served. All replicas follow at once, or only the first.
    Commit {
        changes: Vec<Change>,
        lags: bool,
    },
    /// A replica follows all commits; an empty one gets everything in one.
    CatchUp {
        replica: usize,
    },
    /// A replica loses everything, its streams among it.
    Crash {
        replica: usize,
    },
    /// A client asks for this much of a type.
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
    /// A client and its server exchange all they have to say now.
    Exchange {
        client: usize,
    },
    /// A client's stream of a type breaks, and it comes back, perhaps to another replica.
    Reconnect {
        client: usize,
        kind: Kind,
        replica: usize,
    },
    Pass {
        time: Duration,
    },
}

impl Script {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (salt, replicas) = (random.next(), 1 + random.below(2));
        let mut clients: Vec<_> = (0..1 + random.below(3)).map(|_| Profile::random(&mut random)).collect();
        let twins = clients.len() > 1 && random.chance(40);
        if twins {
            let (node, rejects) = (clients[0].node.clone(), clients[0].rejects);
            clients[0].protocol = Protocol::Sotw;
            clients[1] = Profile { protocol: Protocol::Delta, node, rejects, ..clients[1].clone() };
        }
        let mut writer =
            Writer { random, number: 0, replicas, clients: clients.len(), twins, steps: Vec::new() };
        writer.write();
        Self { replicas, clients, salt, steps: writer.steps }
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
        }
    }
}

/// Writes a script.
struct Writer {
    random: Random,
    /// Makes each content another one, most of the time.
    number: i32,
    replicas: usize,
    clients: usize,
    /// The first two clients ask for the same.
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
        // Now and then it returns to an earlier content.
        self.number = if random.chance(10) { random.below(3) as i32 } else { self.number + 1 };
        Change {
            kind: random.pick(&Kind::ALL),
            name: random.below(NAMES),
            scheme: if random.chance(25) { 0 } else { random.below(SCHEMES.len()) },
            number: self.number,
            is_bad: random.chance(8),
            is_varied: random.chance(70),
            clusters: random.below(1 << NAMES) & random.below(1 << NAMES),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, is_aggregated, node, is_legacy, rejects, window } = self;
        let streams = if *is_aggregated { "one stream" } else { "a stream per type" };
        write!(f, "{protocol:?}, {streams}, window {window}, node {{{node}}}, rejects {rejects:?}")?;
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
            Self::Reconnect { client, kind, replica } => {
                write!(f, "c{client} reconnects {kind} to replica {replica}")
            }
            Self::Pass { time } => write!(f, "{time:?} pass"),
        }
    }
}
