//! Entries: the commits of a node, as other nodes get them (SR6). Here is what can never be right,
//! whatever the store holds (SR15).

use xds_proto::xds::store::v1 as proto;

use crate::authority::{AUTHORITY_TYPE, Authorities};
use crate::clock::{Chain, Position};
use crate::content;
use crate::forgotten::FORGOTTEN_TYPE;
use crate::key::RecordKey;
use crate::key::is_configuration;
use crate::log::LogEntry;
use crate::number;
use crate::phase;
use crate::record::{RecordState, content_digest};
use crate::region::{POLICY_TYPE, Policies};
use crate::rules::RULE_TYPE;
use crate::time;

/// What another node has of the log of an origin.
#[derive(Debug, Clone, PartialEq)]
pub enum Foreign {
    /// One commit.
    Entry(proto::Entry),
    /// Numbers that hold nothing for this node (SR14).
    Skip(proto::Skip),
}

/// An entry or a skip of the right form.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The first number of the origin that it is about.
    pub(crate) first: u64,
    /// With the number, the chain and all that the log has of it, but no changes.
    pub(crate) log: LogEntry,
    pub(crate) position: Position,
    /// As the origin wrote them, in the order of keys.
    pub(crate) states: Vec<(RecordKey, RecordState)>,
    /// Whether the chain follows from the states and the entry before.
    pub(crate) is_verifiable: bool,
}

impl Foreign {
    /// The origin.
    #[must_use]
    pub fn origin(&self) -> &str {
        match self {
            Self::Entry(entry) => &entry.origin,
            Self::Skip(skip) => &skip.origin,
        }
    }

    /// Whether it is a part of what the origin wrote (SG25).
    pub(crate) fn has_part(&self) -> bool {
        match self {
            Self::Entry(entry) => entry.is_partial,
            Self::Skip(_) => true,
        }
    }

    /// The last number that it is about.
    pub(crate) fn last(&self) -> u64 {
        match self {
            Self::Entry(entry) => entry.counter,
            Self::Skip(skip) => skip.last,
        }
    }

    /// What is wrong with it, for people, if it has not the right form.
    pub(crate) fn parse(&self) -> Result<Incoming, String> {
        let position = |counter, chain: &[u8]| match Chain::from_wire(chain) {
            Some(chain) if chain != Chain::default() => Ok(Position { counter, chain }),
            _ => Err("its chain has not 16 bytes".to_owned()),
        };
        match self {
            Self::Entry(entry) => Ok(Incoming {
                first: entry.counter,
                position: position(entry.counter, &entry.chain)?,
                states: entry.states.iter().map(parse_state).collect::<Result<_, _>>().and_then(in_order)?,
                log: LogEntry {
                    origin: entry.origin.clone(),
                    counter: entry.counter,
                    chain: entry.chain.clone(),
                    time: entry.at.as_ref().map(time::from_proto).unwrap_or_default(),
                    identity: entry.identity.clone(),
                    owner: entry.owner.clone(),
                    message: entry.message.clone(),
                    region: entry.region.clone(),
                    is_partial: entry.is_partial,
                    rollout: entry.rollout.clone(),
                    ..LogEntry::default()
                },
                is_verifiable: !entry.is_partial,
            }),
            Self::Skip(skip) if skip.first == 0 || skip.last < skip.first => {
                Err(format!("a skip from {} to {}", skip.first, skip.last))
            }
            Self::Skip(skip) => Ok(Incoming {
                first: skip.first,
                position: position(skip.last, &skip.chain)?,
                states: Vec::new(),
                log: LogEntry {
                    origin: skip.origin.clone(),
                    counter: skip.last,
                    chain: skip.chain.clone(),
                    skipped: skip.last - skip.first + 1,
                    region: skip.region.clone(),
                    ..LogEntry::default()
                },
                is_verifiable: false,
            }),
        }
    }
}

/// The order of keys is that in which the chain has the states (SR53).
fn in_order(states: Vec<(RecordKey, RecordState)>) -> Result<Vec<(RecordKey, RecordState)>, String> {
    if states.is_sorted_by(|(one, _), (next, _)| one < next) {
        Ok(states)
    } else {
        Err("its states are not in the order of keys".to_owned())
    }
}

/// Whether nodes exchange the record.
pub(crate) fn is_exchanged(key: &RecordKey) -> bool {
    let type_url = key.type_url();
    let is_replicated = [RULE_TYPE, POLICY_TYPE, AUTHORITY_TYPE, FORGOTTEN_TYPE].contains(&type_url.as_str());
    !phase::is_local(key) && (is_replicated || !is_configuration(type_url.as_str()))
}

/// What a store never commits, it never merges: the cache would refuse it (ST18), or nodes that merge it
/// would differ.
pub(crate) fn parse_state(state: &RecordState) -> Result<(RecordKey, RecordState), String> {
    let wire_key = state.key.as_ref().ok_or("a state has no key")?;
    let key = RecordKey::parse(wire_key).map_err(|error| format!("a key: {error}"))?;
    let wrong = |why: &str| format!("{key:?}: {why}");
    if key.to_proto() != *wire_key {
        return Err(wrong("its key is not in its canonical form"));
    }
    if !is_exchanged(&key) {
        return Err(wrong("records of this type are not replicated"));
    }
    if state.incarnation == 0 || state.generation == 0 {
        return Err(wrong("it has no incarnation or generation"));
    }
    if let Some(number) = number::out_of_range(state) {
        return Err(wrong(&format!("its {number} is above {} (SR62)", number::LAST)));
    }
    if !matches!(state.lifecycle(), proto::State::Live | proto::State::Deleting | proto::State::Deleted) {
        return Err(wrong("its lifecycle is unknown"));
    }
    if state.is_sealed {
        return Err(wrong("its content is sealed, and this node has no key for it"));
    }
    if state.content.is_none() && state.lifecycle() != proto::State::Deleted {
        return Err(wrong("it has no content"));
    }
    if state.digest != content_digest(state) {
        return Err(wrong("its digest is not that of its content"));
    }
    if key.has_type(POLICY_TYPE)
        && let Some(content) = &state.content
    {
        Policies::check(&content.payload).map_err(|error| wrong(&error.to_string()))?;
    }
    if key.has_type(AUTHORITY_TYPE)
        && let Some(content) = &state.content
    {
        Authorities::check(key.type_and_name().1, &content.payload)
            .map_err(|error| wrong(&error.to_string()))?;
    }
    let in_place = state.quarantined.as_ref().and_then(|quarantined| quarantined.serve.as_ref());
    let id = key.id();
    for content in state.content.iter().chain(in_place) {
        content::resource(&id, content).map_err(|error| wrong(&error.to_string()))?;
    }
    Ok((key, state.clone()))
}
