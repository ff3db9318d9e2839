//! What one stream got of one type so far, the same for both protocols.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::order::Release;
use super::response::{StreamConfig, StreamError, Verdict};
use crate::cache::{Membership, Removed, Snapshot, Update, Watch};
use crate::known_type::KnownType;
use crate::name::{Nonce, ResourceName, Revision, TypeUrl};
use crate::parameters::Parameters;
use crate::subscription::{Selection, Subscription};
use crate::variants::Variant;

/// One type on one stream: what is asked for, what was sent, what the client said about it.
///
/// The content a client has is not stored. It is what its selection held at the cursor of the membership, and what of
/// the [`gone`](Self::gone) is held besides.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) type_url: TypeUrl,
    pub(super) known: &'static KnownType,
    pub(super) subscription: Subscription,
    /// `None` while nothing is asked for.
    pub(super) membership: Option<Membership>,
    /// Responses that were neither ACKed nor NACKed, with the time they were sent.
    pub(super) in_flight: BTreeMap<Nonce, Duration>,
    /// The newest response of the type.
    pub(super) last_sent: Option<Nonce>,
    /// The newest response that was rejected, until a later one is accepted.
    pub(super) nacked: Option<Nonce>,
    /// What the client was sent, still asks for, and the cache no longer has.
    pub(super) gone: BTreeMap<ResourceName, Gone>,
    /// Since when there is something new that was not sent (S33).
    pub(super) waiting_since: Option<Duration>,
}

/// A resource that no longer exists and that the client may still use (S33).
#[derive(Debug)]
pub(super) enum Gone {
    /// The client was not told yet. Its last content is unknown when the client brought the name from another stream.
    Held { variant: Option<Arc<Variant>>, since: Duration },
    /// The client was told, or cannot be, and keeps what it has until it stops asking for the name.
    Told,
}

impl Gone {
    fn release_at(&self, release: Release, grace: Duration) -> Option<Duration> {
        match (self, release) {
            (Self::Told, _) | (_, Release::Later) => None,
            (Self::Held { since, variant: Some(_) }, Release::Now) => Some(*since),
            (Self::Held { since, .. }, Release::Now | Release::AfterGrace) => Some(*since + grace),
        }
    }
}

impl Progress {
    pub(super) fn new(type_url: TypeUrl) -> Self {
        Self {
            known: KnownType::of(type_url.as_str()),
            type_url,
            subscription: Subscription::default(),
            membership: None,
            in_flight: BTreeMap::new(),
            last_sent: None,
            nacked: None,
            gone: BTreeMap::new(),
            waiting_since: None,
        }
    }

    /// Follows a change of the subscription.
    pub(super) fn reselect(&mut self, watch: &Arc<Watch>, parameters: &Parameters) {
        let Some(selection) = self.subscription.selection() else {
            self.membership = None;
            self.gone.clear();
            return;
        };
        match &mut self.membership {
            Some(membership) => membership.select(selection),
            None => self.membership = Some(watch.join(&self.type_url, selection, parameters)),
        }
        if let Some(Selection::Names(names)) = self.membership.as_ref().map(Membership::selection) {
            self.subscription.share(names);
        }
        let subscription = &self.subscription;
        self.gone.retain(|name, _| subscription.covers(name));
    }

    /// Whether the selection may have changed since it was sent.
    pub(super) fn is_behind(&self, snapshot: &Snapshot) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.is_behind(snapshot))
    }

    /// Takes what the client has to learn and moves the cursor there. What was removed and may still be in use is held,
    /// except what the client cannot have.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        snapshot: &Snapshot,
        is_unknown: impl Fn(&Update, &Variant) -> bool,
    ) -> Result<Arc<Update>, StreamError> {
        let membership = self.membership.as_ref().expect("only a selection can be advanced");
        let Some(update) = membership.update(snapshot) else {
            return Err(StreamError::FellBehind { type_url: self.type_url.clone() });
        };
        membership.advance(snapshot.revision());
        for variant in &update.changed {
            self.gone.remove(variant.name());
        }
        if self.holds_removals() {
            for Removed { variant, .. } in
                update.removed.iter().filter(|gone| !is_unknown(&update, &gone.variant))
            {
                let held = Gone::Held { variant: Some(Arc::clone(variant)), since: now };
                self.gone.insert(variant.name().clone(), held);
            }
        }
        Ok(update)
    }

    /// S33: removals of a type that others refer to wait.
    pub(super) fn holds_removals(&self) -> bool {
        !self.known.referrers.is_empty()
    }

    /// The contents that are held, as far as they are known.
    pub(super) fn held(&self) -> impl Iterator<Item = &Arc<Variant>> {
        self.gone.values().filter_map(|gone| match gone {
            Gone::Held { variant, .. } => variant.as_ref(),
            Gone::Told => None,
        })
    }

    /// When the first of what is held may be let go.
    pub(super) fn release_at(&self, release: Release, grace: Duration) -> Option<Duration> {
        self.gone.values().filter_map(|gone| gone.release_at(release, grace)).min()
    }

    /// Lets go what may be; its names.
    ///
    /// A client deletes listeners, clusters and scopes when it is told. Other types it keeps using until it stops asking
    /// for them (D29).
    pub(super) fn release(&mut self, release: Release, grace: Duration, now: Duration) -> Vec<ResourceName> {
        let is_due = |gone: &Gone| gone.release_at(release, grace).is_some_and(|time| time <= now);
        let due = self.gone.iter().filter(|(_, gone)| is_due(gone));
        let released: Vec<_> = due.map(|(name, _)| name.clone()).collect();
        released.iter().for_each(|name| self.told(name));
        released
    }

    /// The client is told that a name is gone, if it had it.
    pub(super) fn told(&mut self, name: &ResourceName) {
        if self.known.full_state || self.selects_all() {
            self.gone.remove(name);
        } else if let Some(gone) = self.gone.get_mut(name) {
            *gone = Gone::Told;
        }
    }

    /// The variant of a name that the stream gets.
    pub(super) fn find(&self, name: &ResourceName, snapshot: &Snapshot) -> Option<Arc<Variant>> {
        self.membership.as_ref()?.find(name, snapshot)
    }

    /// Whether a first answer was given, or found needless.
    pub(super) fn is_answered(&self) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.cursor() > Revision::ZERO)
    }

    /// Everything it selects; `update` is what was made of it last.
    pub(super) fn everything(&self, update: &Arc<Update>, snapshot: &Snapshot) -> Arc<Update> {
        match &self.membership {
            Some(membership) if update.from > Revision::ZERO => membership.everything(snapshot),
            _ => Arc::clone(update),
        }
    }

    pub(super) fn sent(&mut self, now: Duration, nonce: Nonce) {
        self.in_flight.insert(nonce, now);
        if self.in_flight.len() > IN_FLIGHT_REMEMBERED {
            self.in_flight.pop_first();
        }
        self.last_sent = Some(nonce);
    }

    /// Books an ACK or NACK; `None` when the nonce is not one that waits for its answer.
    pub(super) fn book(&mut self, nonce: Nonce, error_detail: Option<String>) -> Option<Verdict> {
        self.in_flight.remove(&nonce)?;
        let type_url = self.type_url.clone();
        if let Some(detail) = error_detail {
            self.nacked = self.nacked.max(Some(nonce));
            Some(Verdict::Nacked { type_url, nonce, detail })
        } else {
            self.nacked = self.nacked.filter(|nacked| *nacked > nonce);
            Some(Verdict::Acked { type_url, nonce })
        }
    }

    /// S9b: until when newer content waits for the ACK of the response before it; `None` when it need not.
    pub(super) fn waits_for_ack(&self, now: Duration, config: &StreamConfig) -> Option<Duration> {
        let sent = self.in_flight.get(&self.last_sent?)?;
        Some(*sent + config.ack_wait).filter(|until| *until > now)
    }

    /// Whether it selects everything of the type.
    pub(super) fn selects_all(&self) -> bool {
        self.subscription.selection() == Some(Selection::All)
    }
}

/// Responses of one type whose verdict is still booked when it comes; older ones count as superseded.
const IN_FLIGHT_REMEMBERED: usize = 64;
