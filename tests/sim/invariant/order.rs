//! Make before break (S33): on a stream for all types, no client is sent the removal of a cluster
//! that a route in use names, unless a commit left the route without its cluster; and no client is
//! sent a route before it has answered the clusters that the route names.

use std::collections::BTreeMap;
use std::time::Duration;

use xds_core::server::StreamConfig;
use xds_core::{Parameters, Snapshot};

use super::{Sent, Violation};
use crate::client::Client;
use crate::connection::{Envelope, Seen};
use crate::content::{Content, Kind, selected};
use crate::known::{Held, Key, Known, stands_for};

/// Checks a response that a client has just applied.
pub(crate) fn check(
    envelope: &Envelope,
    before: &BTreeMap<Kind, Known>,
    client: &Client,
    snapshot: &Snapshot,
) -> Result<(), Violation> {
    let Some((had, has)) = before.get(&Kind::Cluster).zip(client.types.get(&Kind::Cluster)) else {
        return Ok(());
    };
    let is_excused = !client.profile.is_aggregated || is_excused(envelope, has);
    let Some(routes) = client.types.get(&Kind::Route).filter(|_| !is_excused) else { return Ok(()) };
    let is_held = |name: &str| has.held.keys().any(|(held, _)| held == name);
    for cluster in had.held.keys().map(|(name, _)| name).filter(|name| !is_held(name)) {
        let mut users = routes.held.iter().filter(|(_, route)| route.content.clusters.contains(cluster));
        if let Some(((route, _), _)) = users.find(|(key, held)| !names(routes, key, held, cluster, snapshot))
        {
            let what = format!("S33: {route} uses {cluster}, which was removed: {}", envelope.received);
            return Err(Violation::new("order", what));
        }
    }
    Ok(())
}

/// Checks the routes of a response when it is sent. Answers do not wait, and changes that the server
/// has known since `waits_since` wait no longer than `order_wait`.
pub(crate) fn check_sent(
    sent: &Sent<'_>,
    types: &BTreeMap<Kind, Seen>,
    waits_since: Duration,
    now: Duration,
) -> Result<(), Violation> {
    let order_wait = StreamConfig::default().order_wait;
    let Some(clusters) = types.get(&Kind::Cluster).filter(|_| sent.kind() == Kind::Route) else {
        return Ok(());
    };
    // S32: the client may have brought these clusters, which only the server knows.
    let is_brought = clusters.ideal.takes_full_state() && !clusters.is_answered;
    // S33b: nothing waits for a client that does not answer.
    let is_silent = clusters.unanswered.values().any(|(sent_at, _)| now >= *sent_at + order_wait);
    if is_brought || is_silent || now >= waits_since + order_wait {
        return Ok(());
    }
    for item in &sent.received.resources {
        let mut newly = sent.before.newly_asked.iter();
        let is_answer = newly.any(|(asked, _)| stands_for(asked, &item.name));
        let key = (item.name.clone(), item.constraints());
        let is_known = sent.before.ideal.held.get(&key).is_some_and(|held| held.content == item.content);
        if is_answer || is_known {
            continue;
        }
        for cluster in &item.content.clusters {
            let is_there = |params: &Parameters| selected(sent.snapshot, Kind::Cluster, cluster, params);
            let locators = clusters.ideal.locators(cluster);
            let is_unsent = locators
                .iter()
                .any(|params| is_there(params).is_some() && clusters.ideal.serves(cluster, params).is_none());
            let mut unanswered = clusters.unanswered.values().flat_map(|(_, keys)| keys);
            let is_unanswered = unanswered.any(|(name, _)| name == cluster);
            if is_unsent || is_unanswered {
                let why = if is_unsent { "was not sent" } else { "was not answered" };
                let what = format!("S33: {} uses {cluster}, which {why}: {}", item.name, sent.received);
                return Err(Violation::new("order", what));
            }
        }
    }
    Ok(())
}

fn is_excused(envelope: &Envelope, clusters: &Known) -> bool {
    let is_other = envelope.received.kind != Kind::Cluster;
    // A server does not know which resources a SotW client has from an earlier stream.
    let is_fresh = envelope.is_first && clusters.takes_full_state();
    // After a change of the subscription the client is sent removals at once (D10, D18).
    let has_changed = clusters.asked != envelope.asked;
    is_other || is_fresh || has_changed || envelope.answers || !envelope.routes_asked
}

/// Whether the newest content of a route, for any locator that uses it, names the cluster too.
fn names(routes: &Known, key: &Key, held: &Held, cluster: &str, snapshot: &Snapshot) -> bool {
    let users = routes.locators(&key.0).into_iter().filter(|params| routes.is_for(key, held, params));
    let newest: Vec<_> =
        users.filter_map(|params| selected(snapshot, Kind::Route, &key.0, &params)).collect();
    // S26: no response can report the removal of a route, and a client that subscribes to the
    // wildcard cannot say when a route is out of use.
    let is_unreported = newest.is_empty() && !routes.learns_of_removals();
    let is_wildcard = routes.asked.iter().any(|(name, _)| name.is_none());
    // S1: a SotW client does not report which routes it has from an earlier stream (seed 18463).
    let is_unknown = is_wildcard || !held.is_of_this_stream();
    (is_unreported && is_unknown)
        || newest.iter().any(|variant| {
            Content::of(Kind::Route, variant.payload())
                .is_ok_and(|content| content.clusters.iter().any(|of| of == cluster))
        })
}
