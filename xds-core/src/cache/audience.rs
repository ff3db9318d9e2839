//! Which clients try a candidate.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::delivery::ClientName;
use super::interest::RegisteredStream;
use crate::constraint::Constraints;
use crate::hash::digest;

/// The clients that try a [candidate](super::Candidate).
///
/// As text: `2 clients`, `10%`, `100%`, or a condition in the syntax of `when:`, such as
/// `env=canary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audience {
    /// For each changed resource so many of the clients that are connected and that it affects.
    /// Clients that try another resource of the candidate count too.
    Clients(usize),
    /// A share of the node ids, in percent, by a stable hash: a greater share includes the clients
    /// of a smaller one. With 100 every client, also one without a node id; with less only clients
    /// that have one.
    Percent(u8),
    /// The clients whose parameters match. The parameters are those that the server derived from
    /// the node.
    When(Constraints),
}

impl Audience {
    /// Whether it has all of the clients of `other`, whoever is connected.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Percent(100), _) => true,
            (Self::Percent(share), Self::Percent(of_other)) => share >= of_other,
            (Self::Clients(count), Self::Clients(of_other)) => count >= of_other,
            _ => self == other,
        }
    }
}

impl FromStr for Audience {
    type Err = AudienceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Some(number) = text.strip_suffix('%') {
            let percent = number.trim().parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Self::Percent).ok_or_else(|| AudienceError::Percent { text: text.into() });
        }
        let count = text.strip_suffix("clients").or_else(|| text.strip_suffix("client"));
        if let Some(count) = count.and_then(|count| count.trim().parse().ok()) {
            return match count {
                0 => Err(AudienceError::Nobody),
                count => Ok(Self::Clients(count)),
            };
        }
        if text.is_empty() || text.chars().all(|c| c.is_ascii_digit()) {
            return Err(AudienceError::NoUnit { text: text.into() });
        }
        let condition = text.parse();
        condition
            .map(Self::When)
            .map_err(|error| AudienceError::When { text: text.into(), error: error.into() })
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clients(1) => f.write_str("1 client"),
            Self::Clients(count) => write!(f, "{count} clients"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::When(condition) => write!(f, "{condition}"),
        }
    }
}

/// Why a text is no [`Audience`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AudienceError {
    /// A share that is no whole number from 1 to 100.
    #[error("{text:?} is no whole number of percent from 1 to 100")]
    Percent {
        /// The text.
        text: Box<str>,
    },
    /// No clients at all.
    #[error("at least 1 client has to try a candidate")]
    Nobody,
    /// A number that may mean clients or percent, or nothing.
    #[error("{text:?} has no unit; write for example \"2 clients\", \"10%\" or \"env=canary\"")]
    NoUnit {
        /// The text.
        text: Box<str>,
    },
    /// A condition that cannot be read.
    #[error("{text:?} is neither a number of clients, nor a share in percent, nor a condition: {error}")]
    When {
        /// The text.
        text: Box<str>,
        /// Why it is no condition.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A step that is not larger than one before it.
    #[error("{step} is not larger than {before}; each step has to be larger than those before")]
    NotLarger {
        /// The step.
        step: Box<Audience>,
        /// One before it.
        before: Box<Audience>,
    },
}

/// The streams that see a candidate.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    /// Chosen one by one.
    clients: BTreeSet<ClientKey>,
    /// Chosen by a rule, now and later.
    rule: Option<Audience>,
}

/// One client: the streams with a name, or one stream without a node id (G6).
pub(super) type ClientKey = (ClientName, Option<u64>);

pub(super) fn client_key(stream: &RegisteredStream) -> ClientKey {
    let client = stream.client();
    let alone = client.id.is_empty().then_some(stream.id);
    (client, alone)
}

impl Chosen {
    pub(super) fn by_rule(rule: Audience) -> Self {
        Self { clients: BTreeSet::new(), rule: Some(rule) }
    }

    /// For each list of streams `count` clients: those that another list needs too, then by a stable
    /// hash of the node id.
    pub(super) fn of_each(lists: impl Iterator<Item = Vec<Arc<RegisteredStream>>>, count: usize) -> Self {
        let mut clients = BTreeSet::new();
        for streams in lists {
            let keys: BTreeSet<_> = streams.iter().map(|stream| client_key(stream)).collect();
            let (known, rest): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| clients.contains(key));
            let mut rest: Vec<_> = rest.into_iter().map(|key| (share_of(&key.0), key)).collect();
            rest.sort();
            let missing = count.saturating_sub(known.len());
            clients.extend(rest.into_iter().take(missing).map(|(_, key)| key));
        }
        Self { clients, rule: None }
    }

    pub(super) fn includes(&self, stream: &RegisteredStream) -> bool {
        if stream.keeps_stable.load(Ordering::Relaxed) {
            return false;
        }
        let by_rule = match &self.rule {
            None | Some(Audience::Clients(_)) => false,
            Some(Audience::Percent(100)) => true,
            Some(Audience::Percent(percent)) => {
                let client = stream.client();
                !client.id.is_empty() && share_of(&client) < u64::from(*percent) * SHARES / 100
            }
            Some(Audience::When(condition)) => condition.matches(&stream.parameters()),
        };
        by_rule || self.clients.contains(&client_key(stream))
    }
}

/// The place of a client among all node ids: from zero to [`SHARES`], the same on every machine.
fn share_of(client: &ClientName) -> u64 {
    let digest = digest(blake3::Hasher::new().update(client.id.as_bytes()));
    u64::try_from(digest % u128::from(SHARES)).unwrap_or_default()
}

/// Into how many parts [`share_of`] divides the clients.
const SHARES: u64 = 10_000;
