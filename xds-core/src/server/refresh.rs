//! When resources with a TTL are sent again (S39, S40, D26).

use std::sync::Arc;
use std::time::Duration;

use super::type_state::TypeState;
use crate::cache::Snapshot;
use crate::name::Revision;
use crate::variants::Variant;

impl TypeState {
    /// Sets the time of the next refresh of resources with a TTL: half of the shortest TTL, or of
    /// what is left of it where the source of an on-demand cache extends it.
    pub(super) fn time_refresh(&mut self, now: Duration, snapshot: &Snapshot) {
        let resources = Some(snapshot).filter(|_| self.terms.ttl && self.is_answered());
        let resources = resources.and_then(|snapshot| snapshot.of_type(&self.terms.type_url));
        let shortest = resources.and_then(|resources| match self.times.refresh_at {
            None if self.terms.sends_ttl_left => resources.shortest_remaining_ttl(now),
            _ => resources.ttls().shortest(),
        });
        let every = shortest.map(|ttl| ttl / 2);
        let next = every.map(|every| now + every.max(SHORTEST_REFRESH));
        self.times.refresh_at = next.map(|next| self.times.refresh_at.map_or(next, |at| at.min(next)));
    }

    /// A resource is sent with its whole TTL, which is part of its version. When it came to the
    /// cache long ago, the client soon gets a heartbeat with the TTL that is left.
    pub(super) fn refresh_late<'a>(&mut self, now: Duration, sent: impl Iterator<Item = &'a Arc<Variant>>) {
        let is_late = |variant: &Arc<Variant>| {
            variant.ttl().zip(variant.remaining_ttl(now)).is_some_and(|(ttl, left)| left < ttl / 10 * 9)
        };
        let mut sent = sent;
        if self.terms.ttl && self.terms.sends_ttl_left && sent.any(is_late) {
            self.times.refresh_at = Some(now);
        }
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
        if self.times.refresh_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.times.refresh_at = None;
        self.time_refresh(now, snapshot);
        let names =
            snapshot.of_type(&self.terms.type_url).into_iter().flat_map(|resources| resources.ttls().names());
        let chosen = names.flat_map(|name| self.resolve(snapshot).chosen(name));
        let client_has = |variant: &&Arc<Variant>| {
            variant.changed_at <= since && self.responses.rejections().detail(&self.key(variant)).is_none()
        };
        let timed = chosen.filter(|variant| variant.ttl().is_some());
        let mut timed: Vec<_> = timed.filter(client_has).cloned().collect();
        timed.sort_unstable_by(|a, b| (a.name(), a.constraints()).cmp(&(b.name(), b.constraints())));
        timed
    }
}

/// The shortest time between refreshes, whatever the TTL.
const SHORTEST_REFRESH: Duration = Duration::from_millis(100);
