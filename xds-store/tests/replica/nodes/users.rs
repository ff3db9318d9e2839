//! What users commit at a node: few names, so that nodes often change the same records.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::record::{RecordRevision, RecordState, served};

use crate::driven::envoy::*;
use crate::driven::*;
use crate::random::Random;

/// The constraints of the variants of a name.
pub(crate) const WHEN: [&str; 4] = ["", "env=1", "env in (1,2)", "env=2"];
/// The identity of all users.
pub(crate) const USER: &str = "user";

/// A random commit of a user of this node, whose wall clock shows `wall`, with or without dates and leases.
pub(crate) fn request<'s>(
    random: &mut Random,
    state_of: &dyn Fn(&RecordKey) -> Option<&'s RecordState>,
    (wall, has_dates): (i64, bool),
) -> proto::CommitRequest {
    let mut changes = BTreeMap::new();
    for _ in 0..=random.below(3) {
        let state = |key: &proto::Key| state_of(&RecordKey::parse(key).unwrap());
        let change = change(random, has_dates.then_some(wall), |name| {
            state(&key(name, "")).is_some_and(|state| state.lease.is_some() && served(state).is_some())
        });
        let state = state(change.key.as_ref().unwrap());
        let change = if random.chance(25) { conditional(random, state, change) } else { change };
        changes.insert(change.key.as_ref().unwrap().name.clone(), change);
    }
    let owner = (*random.pick(&["", "", "", "", "", "team", "shop"])).to_owned();
    let (take_over, allow_missing) = (random.chance(30), random.chance(60));
    proto::CommitRequest { owner, take_over, allow_missing, ..of(changes.into_values().collect::<Vec<_>>()) }
}

fn change(random: &mut Random, wall: Option<i64>, has_lease: impl Fn(&str) -> bool) -> proto::Change {
    let name = *random.pick(&["a", "b", "c"]);
    let payload = *random.pick(&["1", "2", "3"]);
    let (cluster_name, routes_name) = (*random.pick(&["x", "y"]), *random.pick(&["r", "s"]));
    let (when, alias) = (*random.pick(&WHEN), *random.pick(&["a", "b", "z"]));
    match random.below(24) {
        // Their variants overlap in each way (SR47).
        20..=22 => put_when("v", when, payload),
        23 => delete_when("v", when),
        0..=2 => delete(name),
        3..=6 if has_lease(name) => touch(name),
        3..=6 if wall.is_some() => put_lease(name, payload, 5 + random.below(15) as i64),
        7 => quarantine(name),
        8 => {
            let mut put = put(name, payload);
            if let (Some(wall), Some(proto::change::Act::Put(put))) = (wall, &mut put.act) {
                let seconds = 1 + random.below(4000) as i64;
                put.expires_at = Some(xds_store::time::to_proto(wall + seconds * SECOND));
            }
            put
        }
        9 => cluster(cluster_name),
        10 => eds_cluster(cluster_name, "e"),
        11 => endpoints("e"),
        12 | 13 => routes(routes_name, &[cluster_name]),
        14 => delete_at(cluster_key(cluster_name)),
        15 => delete_at(routes_key(routes_name)),
        16 => match random.below(4) {
            0 => delete_at(rule_key("rule")),
            1 => drain_at(cluster_key(cluster_name)),
            2 => Rule::of_routes(proto::OnDelete::Cascade).put("rule"),
            _ => Rule::of_routes(proto::OnDelete::Unset).put("rule"),
        },
        // SR47: another resource may have this name or alias.
        17 => aliased(name, alias),
        _ => put(name, payload),
    }
}

/// The change on a condition, which holds or not.
fn conditional(random: &mut Random, state: Option<&RecordState>, change: proto::Change) -> proto::Change {
    use proto::condition::Is;
    let is = match (random.below(3), state) {
        (0, _) | (_, None) => Is::Absent(true),
        (1, Some(_)) => Is::Exists(true),
        (_, Some(state)) => Is::Revision(RecordRevision::of(state).to_string()),
    };
    only_if(is, change)
}
