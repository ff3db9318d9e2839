//! What clients get of records, where that is not what their states say (SR47).

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use crate::index::{Pending, Records, Withheld};
use crate::key::RecordKey;
use crate::record::{Present, RecordState};

/// The records for which clients get something else once these changes are done, or get again what the state
/// says: with the states as clients get them. `state` reads that of a record that did not change.
///
/// # Errors
/// Those of `state`.
pub(crate) fn shown<E>(
    records: Records<'_>,
    pending: &Pending,
    state: impl Fn(&RecordKey, &Present) -> Result<RecordState, E>,
) -> Result<BTreeMap<RecordKey, RecordState>, E> {
    let mut shown = BTreeMap::new();
    for (name, after) in &pending.withheld {
        let nothing = Withheld::new();
        let before = records.withheld(*name).unwrap_or(&nothing);
        for key in after.keys() {
            let state = match (pending.states.get(key), records.get(key)) {
                (Some(state), _) => state.clone(),
                (None, Some(record)) if !before.contains_key(key) => state(key, record)?,
                (None, _) => continue,
            };
            shown.insert(key.clone(), hidden(state));
        }
        for key in before.keys().filter(|key| !after.contains_key(*key) && !pending.states.contains_key(*key))
        {
            if let Some(record) = records.get(key) {
                shown.insert(key.clone(), state(key, record)?);
            }
        }
    }
    Ok(shown)
}

/// The state of a record that is not served, for clients.
pub(crate) fn hidden(state: RecordState) -> RecordState {
    RecordState { lifecycle: proto::State::Deleted.into(), ..state }
}
