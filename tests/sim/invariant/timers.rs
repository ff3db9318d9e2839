//! Timers run only on a current stream with a subscription to the resource (C5, P5.4, P5.5).

use std::time::Duration;

use xds_core::client::health::Health;

use super::Violation;
use crate::agent::Agent;

/// Checks a client that has just done everything that was due.
pub(crate) fn check(now: Duration, agent: &Agent) -> Result<(), Violation> {
    let Some(deadline) = agent.client.next_deadline() else { return Ok(()) };
    if deadline <= now {
        return Err(Violation::new(
            "timers",
            format!("at {now:?} it does not do what was due at {deadline:?}"),
        ));
    }
    // A liar may also set TTLs (S38).
    if agent.profile.liar.is_some() {
        return Ok(());
    }
    let silence = match agent.profile.policy.resource_timer_is_transient_error {
        true => TRANSIENT_TIMEOUT,
        false => TIMEOUT,
    };
    let mut links = agent.links.iter().flatten();
    // C5: when a preferred server answers again, it has to confirm what only the servers after it
    // sent (seed 2435).
    let is_return = agent.returned.is_some_and(|at| at + silence == deadline);
    // C5: the timer goes on as long as another server has the subscription (seed 11734).
    let is_shared = agent.ended.iter().any(|(locator, since)| {
        let mut links = agent.links.iter().flatten();
        *since + silence == deadline && links.any(|link| link.subscribed.contains_key(locator))
    });
    // G4b: that of a type goes on since its first subscription on the stream, of which another one may be left.
    // A refused type is tried again, and its timer starts when the client may subscribe to it.
    let is_of_type = (0..agent.client.servers()).any(|server| {
        let health = agent.client.health(server);
        let is_subscribed = || agent.links[server].as_ref().is_some_and(|link| !link.subscribed.is_empty());
        let is_probed =
            |health: &Health| health.isolated().any(|type_url| health.probe_at(type_url) == Some(deadline));
        health.is_some_and(|health| {
            let is_tried = health.to_subscribe().next().is_some();
            let is_awaited = health.next_deadline() == Some(deadline);
            (is_awaited && (is_subscribed() || is_tried)) || is_probed(health)
        })
    });
    // P5.2: after a failure, a stream without responses counts as good after a while.
    let is_explained = is_return
        || is_shared
        || is_of_type
        || links.any(|link| {
            link.opened + TIMEOUT == deadline
                || link.subscribed.values().any(|since| *since + silence == deadline)
        });
    if is_explained {
        return Ok(());
    }
    Err(Violation::new("timers", format!("at {now:?} no subscription is due at {deadline:?}")))
}

const TIMEOUT: Duration = Duration::from_secs(15);
const TRANSIENT_TIMEOUT: Duration = Duration::from_secs(30);
