//! Replicas with equal content give equal versions. A client that moves from one to another at rest
//! is sent nothing (S31, S32, D9, D21, T37). Exceptions: endpoints follow their cluster (S34), and
//! in SotW everything but a full-state wildcard is sent again.

use std::collections::BTreeMap;

use super::Violation;
use xds_core::server::Protocol;

use crate::content::Kind;
use crate::known::Known;

use crate::wire::Received;

/// What a client knew before it moved.
pub(crate) type Before = BTreeMap<Kind, Known>;

/// Checks the responses after all clients moved. Known: a proxy that did not know yet what exists
/// sends resources again that a client brought (D21).
pub(crate) fn check(
    before: &[Before],
    sent: &[(usize, Received)],
    is_grouped: impl Fn(usize, usize) -> bool,
    are_relayed: bool,
) -> Result<(), Violation> {
    // S33b: the clusters of a client may be on the stream of another one (seed 14647).
    let has_clusters = |at: usize| {
        let mut clusters =
            sent.iter().filter(|(to, received)| is_grouped(*to, at) && received.kind == Kind::Cluster);
        clusters.any(|(_, received)| !received.resources.is_empty())
    };
    for (at, received) in sent {
        let Some(known) = before[*at].get(&received.kind).filter(|known| is_comparable(known)) else {
            continue;
        };
        let checked = match known.protocol {
            Protocol::Sotw => check_sotw(known, received),
            // S34: all clusters were sent again, so all endpoints are, too.
            Protocol::Delta if received.kind == Kind::Endpoints && has_clusters(*at) => Ok(()),
            Protocol::Delta => check_delta(known, received, are_relayed),
        };
        checked.map_err(|what| Violation::new("replicas", format!("{what}: to c{at} {received}")))?;
    }
    Ok(())
}

/// Whether the new stream uses the same form as the old one (by name or by locator), which counts
/// in versions (T24).
fn is_comparable(known: &Known) -> bool {
    known.knows_locators == known.asked.iter().any(|(_, params)| params.is_some())
}

fn check_sotw(known: &Known, received: &Received) -> Result<(), String> {
    // S31: a request that only drops names gets no response, so the client still has the version of
    // the larger selection.
    if !known.kind.is_full_state() || known.version_of != known.asked {
        return Ok(());
    }
    if known.version != received.version {
        return Err(format!("S31: the version was {}", known.version));
    }
    let is_wildcard = known.asked.iter().all(|(name, _)| name.is_none());
    if is_wildcard { Err("S32: it has all of this".into()) } else { Ok(()) }
}

fn check_delta(known: &Known, received: &Received, is_relayed: bool) -> Result<(), String> {
    for item in &received.resources {
        // T37: the client could not report which of several variants it has.
        let is_single = known.held.keys().filter(|(name, _)| *name == item.name).count() == 1;
        let Some(held) = known.held.get(&(item.name.clone(), item.constraints())) else {
            return Err(format!("D12: {} did not change", item.name));
        };
        if held.version != item.version {
            return Err(format!("D22: {} had version {}", item.name, held.version));
        }
        if is_single && !is_relayed {
            return Err(format!("D21: it has {}", item.name));
        }
    }
    Ok(())
}
