//! What many states of one key become by the rules of the merge, without merging two of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use prost::Message;
use prost_types::Timestamp;
use xds_proto::xds::store::v1 as proto;
use xds_store::record::RecordState;

/// The state that the rules say for all states of a key, without pairs: an order cannot matter here.
pub(crate) fn all_at_once(states: &[RecordState]) -> RecordState {
    let incarnation = states.iter().map(|state| state.incarnation).max().unwrap();
    let all: Vec<_> = states.iter().filter(|state| state.incarnation == incarnation).cloned().collect();
    let generation = all.iter().map(|state| state.generation).max().unwrap();
    let of_generation = all.iter().filter(|state| state.generation == generation);
    let is_sealed = of_generation.clone().all(|state| state.is_sealed);
    let latest: Vec<_> = of_generation.filter(|state| state.is_sealed == is_sealed).collect();
    let digest = latest.iter().map(|state| &state.digest).min().unwrap();
    let winners = || latest.iter().filter(|state| state.digest == *digest);
    let covered = |state: &RecordState| {
        let (content, lease, mirror_of) = (state.content.clone(), state.lease, state.mirror_of.clone());
        RecordState { content, lease, mirror_of, ..Default::default() }.encode_to_vec()
    };
    let content = winners().min_by_key(|state| (state.content.is_none(), covered(state))).unwrap();
    let time = |at: Option<Timestamp>| at.map_or((true, 0, 0), |at| (false, at.seconds, at.nanos));
    let renewal = latest.iter().map(|state| state.renewal).max().unwrap();
    let renewed = latest.iter().filter(|state| state.renewal == renewal);
    let expiry = renewed.min_by_key(|state| (time(state.expires_at), &state.renewed_by)).unwrap();
    let serve_digest = |quarantined: &proto::Quarantined| {
        let served = RecordState { content: quarantined.serve.clone(), ..Default::default() };
        *blake3::hash(&served.encode_to_vec()).as_bytes()
    };
    let quarantines = latest.iter().filter_map(|state| state.quarantined.as_ref());
    let quarantined = quarantines
        .min_by_key(|quarantined| (time(quarantined.at), &quarantined.reason, serve_digest(quarantined)));
    let origin = winners().map(|state| &state.origin).min().unwrap();
    let writers =
        winners().filter(|state| state.origin == *origin).filter_map(|state| state.written_by.clone());
    let written_by = writers.min_by_key(|by| (Reverse((by.epoch, by.counter)), by.encode_to_vec()));
    let lifecycles = || all.iter().map(|state| state.lifecycle);
    let deleted = i32::from(proto::State::Deleted);
    RecordState {
        lifecycle: lifecycles()
            .find(|lifecycle| *lifecycle == deleted)
            .or_else(|| lifecycles().max())
            .unwrap(),
        created_at: all.iter().map(|state| state.created_at).min_by_key(|at| time(*at)).unwrap(),
        expires_at: expiry.expires_at,
        renewal,
        renewed_by: expiry.renewed_by.clone(),
        quarantined: quarantined.cloned(),
        origin: origin.clone(),
        written_by,
        owners: owners_of(&all),
        ..(*content).clone()
    }
}

fn owners_of(states: &[RecordState]) -> Vec<proto::OwnerState> {
    let mut owners: BTreeMap<_, (u64, bool, proto::OwnerState)> = BTreeMap::new();
    for state in states.iter().flat_map(|state| &state.owners) {
        let bytes = state.owner.as_ref().map(Message::encode_to_vec);
        let found = owners.entry(bytes).or_insert_with(|| (0, false, state.clone()));
        if (state.epoch, state.is_present) > (found.0, found.1) {
            *found = (state.epoch, state.is_present, state.clone());
        }
    }
    owners.into_values().map(|(_, _, state)| state).collect()
}
