//! The regions of a store, as `/api/store` and the page show them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use xds_proto::xds::store::v1 as proto;
use xds_store::log::Head;
use xds_store::read::{ReadError, Reads};
use xds_store::region::{Policies, Policy};
use xds_store_server::{PeersStatus, StoreHandle};

/// One for each region that this node or a peer is of, or that a policy names; the own one comes first. `None` for a
/// store without regions.
pub(super) fn regions(store: &StoreHandle, head: &Head) -> Result<Option<Vec<Value>>, ReadError> {
    let view = store.view()?;
    let reads = Reads::new(&*view)?;
    let policies = reads.policies()?;
    if head.region.is_empty() && policies.is_empty() {
        return Ok(None);
    }
    let status = store.peers().unwrap_or_default();
    Ok(Some(rows(head, policies, &status)))
}

fn rows(head: &Head, policies: &Policies, status: &PeersStatus) -> Vec<Value> {
    let mut regions: BTreeMap<&str, Option<&proto::RegionStatus>> = BTreeMap::new();
    let of_policies = policies.iter().flat_map(Policy::regions);
    let of_peers = status.peers.iter().map(|peer| &*peer.region).filter(|region| !region.is_empty());
    for region in of_policies.chain(of_peers).chain([&*head.region]) {
        regions.insert(region, None);
    }
    regions.extend(status.regions.iter().map(|status| (&*status.region, Some(status))));
    let mut rows: Vec<_> = regions.into_iter().filter(|(region, _)| !region.is_empty()).collect();
    rows.sort_by_key(|(region, _)| *region != head.region);
    rows.into_iter().map(|(region, of)| row(head, policies, status, (region, of))).collect()
}

fn row(
    head: &Head,
    policies: &Policies,
    status: &PeersStatus,
    (region, of): (&str, Option<&proto::RegionStatus>),
) -> Value {
    let is_own = region == head.region;
    let writer =
        status.writers.get(region).map(|(node, address)| json!({ "node": node, "address": address }));
    let own_writer = || json!({ "node": head.node, "address": null });
    let owned: Vec<_> = policies.iter().filter(|policy| policy.owner() == region).collect();
    let prefixes = owned.iter().take(PREFIXES_SHOWN).map(|policy| {
        let copies: Vec<_> = policy.regions().filter(|other| *other != region).collect();
        let is_fetching = is_own && status.fetching.iter().any(|prefix| prefix == policy.prefix());
        json!({ "prefix": policy.prefix(), "regions": copies, "is_fetching": is_fetching })
    });
    let age = of.and_then(|of| Duration::try_from(of.age?).ok());
    json!({
        "region": region, "is_own": is_own,
        "writer": if is_own && !head.is_replica { Some(own_writer()) } else { writer },
        "is_reachable": is_own || of.is_some_and(|of| of.is_reachable),
        "age_ms": age.map(|age| age.as_millis() as u64),
        "prefix_count": owned.len(), "prefixes": prefixes.collect::<Vec<_>>(),
    })
}

/// How many policies of a region are listed.
const PREFIXES_SHOWN: usize = 100;
