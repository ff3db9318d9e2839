//! What clients get of records, where that is not what their states say (SR47).

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;

use crate::conflict::Conflict;
use crate::content;
use crate::index::{Pending, Records, Withheld};
use crate::key::{NameDigest, RecordKey};
use crate::record::{Present, RecordState, served};

/// What clients get of records, and what they lose with that.
pub(crate) struct Shown {
    /// The states as clients get them.
    pub(crate) states: BTreeMap<RecordKey, RecordState>,
    pub(crate) lost: Vec<Conflict>,
}

/// The records for which clients get something else once these changes are done, or get again what the state
/// says: with the states as clients get them. `state` reads that of a record that did not change.
///
/// # Errors
/// Those of `state`.
pub(crate) fn shown<E>(
    records: Records<'_>,
    pending: &Pending,
    state: impl Fn(&RecordKey, &Present) -> Result<RecordState, E>,
) -> Result<Shown, E> {
    let (mut shown, mut lost) = (BTreeMap::new(), Vec::new());
    let is_withheld = |key: &RecordKey| {
        let withheld =
            pending.withheld.get(&key.name_digest()).or_else(|| records.withheld(key.name_digest()));
        withheld.is_some_and(|withheld| withheld.contains_key(key))
    };
    for (key, aliases) in pending.lost_aliases.iter().filter(|(key, _)| !is_withheld(key)) {
        let nothing = BTreeSet::new();
        let before = records.lost_aliases(key).unwrap_or(&nothing);
        let own = match (pending.states.get(key), records.get(key)) {
            (Some(_), _) if aliases.is_empty() => continue,
            (Some(state), _) => state.clone(),
            (None, Some(record)) if aliases != before => state(key, record)?,
            (None, _) => continue,
        };
        if !aliases.is_subset(before) {
            lost.push(Conflict::alias(&own));
        }
        shown.insert(key.clone(), without_aliases(key, own, aliases));
    }
    for (name, after) in &pending.withheld {
        let nothing = Withheld::new();
        let before = records.withheld(*name).unwrap_or(&nothing);
        for (key, by) in after {
            let hidden_state = match (pending.states.get(key), records.get(key)) {
                (Some(state), _) => state.clone(),
                (None, Some(record)) if !before.contains_key(key) => state(key, record)?,
                (None, _) => continue,
            };
            if !before.contains_key(key) {
                let winner = by.as_ref().map(|by| match (pending.states.get(by), records.get(by)) {
                    (Some(state), _) => Ok(Some(state.clone())),
                    (None, Some(record)) => state(by, record).map(Some),
                    (None, None) => Ok(None),
                });
                let winner = winner.transpose()?.flatten();
                lost.push(Conflict::overlap(&hidden_state, winner.as_ref()));
            }
            shown.insert(key.clone(), hidden(hidden_state));
        }
        for key in before.keys().filter(|key| !after.contains_key(*key) && !pending.states.contains_key(*key))
        {
            if let Some(record) = records.get(key) {
                let aliases = pending.lost_aliases.get(key).or_else(|| records.lost_aliases(key));
                let own = state(key, record)?;
                let own = match aliases {
                    Some(aliases) => without_aliases(key, own, aliases),
                    None => own,
                };
                shown.insert(key.clone(), own);
            }
        }
    }
    for (name, after) in &pending.held {
        let nothing = BTreeSet::new();
        let before = records.held(*name).unwrap_or(&nothing);
        for key in after.union(before) {
            let own = match (pending.states.get(key), records.get(key)) {
                (Some(state), _) => state.clone(),
                (None, Some(record)) => state(key, record)?,
                (None, None) => continue,
            };
            match (after.contains(key), before.contains(key)) {
                (true, was_held) => {
                    if !was_held {
                        lost.push(Conflict::dangling(&own));
                    }
                    shown.insert(key.clone(), drained(own));
                }
                (false, _) => _ = shown.insert(key.clone(), own),
            }
        }
    }
    // A deleted record that is held anyhow may have got another state.
    for (key, state) in &pending.states {
        let name = key.name_digest();
        let is_held =
            !pending.held.contains_key(&name) && records.held(name).is_some_and(|held| held.contains(key));
        if is_held {
            shown.insert(key.clone(), drained(state.clone()));
        }
    }
    // SV17: which form of a resource counts follows from both. A merge may change one of them.
    for key in pending.states.keys() {
        let Some(other) = records.index.other_form(key) else { continue };
        if pending.states.contains_key(&other) || shown.contains_key(&other) || is_withheld(&other) {
            continue;
        }
        if let Some(record) = records.get(&other).filter(|record| !record.is_deleted()) {
            let own = state(&other, record)?;
            let own = match records.lost_aliases(&other) {
                Some(aliases) => without_aliases(&other, own, aliases),
                None => own,
            };
            shown.insert(other, own);
        }
    }
    Ok(Shown { states: shown, lost })
}

/// The state of a deleted record that is served, for clients. Its aliases may be those of other resources by now.
pub(crate) fn drained(mut state: RecordState) -> RecordState {
    state.lifecycle = proto::State::Deleting.into();
    state.content.iter_mut().for_each(|content| content.aliases.clear());
    state
}

/// The state of a record for clients that do not get these aliases of it. It is not served if its payload has one of
/// them, as a virtual host has its domains.
pub(crate) fn without_aliases(
    key: &RecordKey,
    mut state: RecordState,
    aliases: &BTreeSet<NameDigest>,
) -> RecordState {
    let type_url = key.type_url();
    let is_lost = |alias: &str| aliases.contains(&NameDigest::of(type_url.as_str(), alias));
    let quarantined = state.quarantined.iter_mut().filter_map(|quarantined| quarantined.serve.as_mut());
    for content in state.content.iter_mut().chain(quarantined) {
        content.aliases.retain(|alias| !is_lost(alias));
    }
    let resource = served(&state).and_then(|content| content::resource(&key.id(), content).ok());
    match resource.is_some_and(|resource| resource.aliases().iter().any(|alias| is_lost(alias.as_str()))) {
        true => hidden(state),
        false => state,
    }
}

/// The state of a record that is not served, for clients.
pub(crate) fn hidden(state: RecordState) -> RecordState {
    RecordState { lifecycle: proto::State::Deleted.into(), ..state }
}
