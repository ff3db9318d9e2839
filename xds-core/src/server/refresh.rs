//! When resources with a TTL are sent again (S39, S40, D26).

use std::sync::Arc;
use std::time::Duration;

use super::terms::Terms;
use super::type_state::TypeState;
use crate::cache::{Snapshot, TypeSnapshot};
use crate::name::Revision;
use crate::variants::Variant;

/// When the resources of a type that have a TTL are sent again, before the TTL ends.
#[derive(Debug, Default)]
pub(super) struct TtlRefresh {
    at: Option<Duration>,
}

impl TtlRefresh {
    /// The time of the next refresh; `None` when there is nothing to refresh.
    pub(super) fn at(&self) -> Option<Duration> {
        self.at
    }

    /// Sets this time: half of the shortest TTL, or of what is left of it where the source of an
    /// on-demand cache extends it.
    fn schedule(&mut self, now: Duration, resources: Option<&TypeSnapshot>, terms: &Terms) {
        let shortest = resources.filter(|_| terms.ttl).and_then(|resources| match self.at {
            None if terms.sends_ttl_left => resources.shortest_remaining_ttl(now),
            _ => resources.ttls().shortest(),
        });
        let next = shortest.map(|ttl| now + (ttl / 2).max(SHORTEST_REFRESH));
        self.at = next.map(|next| self.at.map_or(next, |at| at.min(next)));
    }

    /// A resource is sent with its whole TTL, which is part of its version. When it came to the
    /// cache long ago, the client soon gets a heartbeat with the TTL that is left.
    pub(super) fn note_sent<'v>(
        &mut self,
        now: Duration,
        mut sent: impl Iterator<Item = &'v Arc<Variant>>,
        terms: &Terms,
    ) {
        let is_late = |variant: &Arc<Variant>| {
            variant.ttl().zip(variant.remaining_ttl(now)).is_some_and(|(ttl, left)| left < ttl / 10 * 9)
        };
        if terms.ttl && terms.sends_ttl_left && sent.any(is_late) {
            self.at = Some(now);
        }
    }
}

impl TypeState {
    /// Sets the time of the next refresh, once the client has resources.
    pub(super) fn schedule_refresh(&mut self, now: Duration, snapshot: &Snapshot) {
        let resources = snapshot.of_type(&self.terms.type_url).filter(|_| self.is_answered());
        self.ttl_refresh.schedule(now, resources, &self.terms);
    }

    /// Returns the resources to refresh now, and sets the next time.
    ///
    /// Without resources newer than `since`, which the client was not sent, and rejected ones: of
    /// these the client has another version (S39).
    pub(super) fn take_refresh(
        &mut self,
        now: Duration,
        since: Revision,
        snapshot: &Snapshot,
    ) -> Vec<Arc<Variant>> {
        if self.ttl_refresh.at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.ttl_refresh.at = None;
        self.schedule_refresh(now, snapshot);
        let resolution = self.resolve(snapshot);
        let names = resolution.resources().into_iter().flat_map(|resources| resources.ttls().names());
        let chosen = names.flat_map(|name| resolution.chosen(name));
        let client_has = |variant: &&Arc<Variant>| {
            variant.changed_at <= since
                && !self.responses.rejections().has(&self.key(variant), variant.changed_at)
        };
        let timed = chosen.filter(|variant| variant.ttl().is_some());
        let mut timed: Vec<_> = timed.filter(client_has).cloned().collect();
        timed.sort_unstable_by(|a, b| (a.name(), a.constraints()).cmp(&(b.name(), b.constraints())));
        timed
    }
}

/// The shortest time between refreshes, whatever the TTL.
const SHORTEST_REFRESH: Duration = Duration::from_millis(100);
