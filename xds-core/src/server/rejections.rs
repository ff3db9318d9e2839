//! Rejected responses, until later responses correct them (D8).
//!
//! A NACK does not say which resource is bad, so the client may have applied all of the response,
//! some of it, or none. A rejection by itself causes no response (S6). When a later response
//! corrects one of its resources, delta sends the others once more; in SotW they stay rejected.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::contents::ResponseContents;
use crate::cache::Spans;
use crate::name::Revision;
use crate::protocol::Protocol;
use crate::variants::Variant;
use crate::wire::ResourceKey;

/// The rejected responses of one type on one stream.
///
/// A resource is in at most one group, and not in a group and among the uncertain ones.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// Rejected responses with some of the resources, oldest first.
    groups: Vec<Group>,
    /// The rejection of a full state, if no full state was ACKed since.
    full_state: Option<Nack>,
    /// Delta: resources that must be sent once more.
    uncertain: Option<Group>,
    /// The only resource of the response that was rejected last, if it is known to have had no
    /// other one.
    alone: Option<Arc<Variant>>,
}

/// Resources that were rejected together.
#[derive(Debug)]
struct Group {
    keys: BTreeSet<ResourceKey>,
    nack: Nack,
}

/// The client's error message, and the revisions that it is about.
#[derive(Debug, Clone)]
struct Nack {
    about: Spans,
    detail: Arc<str>,
}

impl Rejections {
    /// The client rejected a response with these contents.
    pub(super) fn on_nack(
        &mut self,
        contents: &ResponseContents,
        brings: Spans,
        detail: &str,
        alone: Option<Arc<Variant>>,
    ) {
        self.alone = alone;
        let mut nack = Nack { about: brings, detail: detail.into() };
        if matches!(contents, ResponseContents::FullState) {
            if let Some(before) = self.full_state.take() {
                nack.about.extend(&before.about);
            }
            self.full_state = Some(nack);
            return;
        }
        let mut keys: BTreeSet<_> = contents.keys().cloned().collect();
        for mut touched in self.take_touched(contents) {
            keys.append(&mut touched.keys);
            nack.about.extend(&touched.nack.about);
        }
        self.reject(Group { keys, nack });
    }

    /// The client accepted a response with these contents. `later` are the unanswered responses that
    /// were sent after it, with the revisions that they bring.
    pub(super) fn on_ack<'l>(
        &mut self,
        contents: &ResponseContents,
        protocol: Protocol,
        later: impl Iterator<Item = (&'l ResponseContents, &'l mut Spans)>,
    ) {
        if matches!(contents, ResponseContents::FullState) {
            self.full_state = None;
            return;
        }
        let mut later: Vec<_> = later.collect();
        for Group { mut keys, nack } in self.take_touched(contents) {
            keys.retain(|key| !contents.has(key));
            // A later response has some of them: its answer is about these.
            for (contents, brings) in later.iter_mut().filter(|_| protocol == Protocol::Delta) {
                let before = keys.len();
                keys.retain(|key| !contents.covers(key));
                if keys.len() < before {
                    brings.extend(&nack.about);
                }
            }
            match protocol {
                _ if keys.is_empty() => {}
                // S6: nothing is sent again for it. Until the content changes, the client may use
                // the content before it (S33). For the program that committed them, this is an
                // answer.
                Protocol::Sotw => {
                    self.reject(Group { keys, nack: Nack { about: Spans::default(), detail: nack.detail } });
                }
                Protocol::Delta => self.add_uncertain(Group { keys, nack }),
            }
        }
    }

    fn reject(&mut self, group: Group) {
        if !group.keys.is_empty() {
            self.groups.push(group);
        }
        if self.groups.len() > GROUPS_REMEMBERED {
            // The oldest two become one: at worst more is sent again than necessary.
            let mut oldest = self.groups.remove(0);
            self.groups[0].keys.append(&mut oldest.keys);
            self.groups[0].nack.about.extend(&oldest.nack.about);
        }
    }

    fn add_uncertain(&mut self, mut group: Group) {
        match &mut self.uncertain {
            Some(known) => {
                known.keys.append(&mut group.keys);
                known.nack.about.extend(&group.nack.about);
            }
            None => self.uncertain = Some(group),
        }
    }

    /// Takes the groups that have a resource in common with these contents.
    fn take_touched(&mut self, contents: &ResponseContents) -> Vec<Group> {
        let touches = |group: &mut Group| group.keys.iter().any(|key| contents.has(key));
        self.groups.extract_if(.., touches).collect()
    }

    /// The rejection counts for these revisions too.
    pub(super) fn extend_newest(&mut self, brings: &Spans) {
        let newest = self.groups.last_mut().map(|group| &mut group.nack);
        if let Some(nack) = self.full_state.as_mut().or(newest) {
            nack.about.extend(brings);
        }
    }

    /// A response has the current resources of some names. A rejected resource of these names that
    /// no longer exists is replaced by the keys of that response.
    pub(super) fn supersede(&mut self, contents: &ResponseContents, is_live: impl Fn(&ResourceKey) -> bool) {
        for Group { keys: group, .. } in &mut self.groups {
            let is_superseded = |key: &ResourceKey| {
                contents.of_name(&key.name).next().is_some() && !contents.has(key) && !is_live(key)
            };
            let (superseded, remaining): (Vec<_>, Vec<_>) =
                std::mem::take(group).into_iter().partition(is_superseded);
            *group = remaining.into_iter().collect();
            group.extend(superseded.iter().flat_map(|key| contents.of_name(&key.name)).cloned());
        }
    }

    /// Forgets the rejection of resources that are no longer subscribed to.
    pub(super) fn retain(&mut self, mut is_subscribed: impl FnMut(&ResourceKey) -> bool) {
        let mut retain = |group: &mut Group| {
            group.keys.retain(&mut is_subscribed);
            !group.keys.is_empty()
        };
        self.groups.retain_mut(&mut retain);
        self.uncertain.take_if(|group| !retain(group));
    }

    /// The client no longer subscribes to anything.
    pub(super) fn clear(&mut self) {
        *self = Self { alone: self.alone.take(), ..Self::default() };
    }

    /// The resources that must be sent once more.
    pub(super) fn uncertain(&self) -> impl Iterator<Item = &ResourceKey> {
        self.uncertain.iter().flat_map(|group| &group.keys)
    }

    /// Whether resources must be sent once more.
    pub(super) fn are_uncertain(&self) -> bool {
        self.uncertain.is_some()
    }

    /// The uncertain resources with these keys are sent. Returns the revisions that they complete,
    /// when none is left.
    pub(super) fn resend(&mut self, is_sent: impl Fn(&ResourceKey) -> bool) -> Option<Spans> {
        let group = self.uncertain.as_mut()?;
        group.keys.retain(|key| !is_sent(key));
        let resent = self.uncertain.take_if(|group| group.keys.is_empty())?;
        Some(resent.nack.about)
    }

    /// Takes the resource that the last NACK is about for sure.
    pub(super) fn take_alone(&mut self) -> Option<Arc<Variant>> {
        self.alone.take()
    }

    /// Whether there are none that no later response corrected.
    pub(super) fn is_empty(&self) -> bool {
        self.full_state.is_none() && self.groups.is_empty()
    }

    /// Whether a response with some of the resources was rejected.
    pub(super) fn have_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(super) fn have_full_state(&self) -> bool {
        self.full_state.is_some()
    }

    /// The resources of the groups.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        self.groups.iter().flat_map(|group| &group.keys)
    }

    /// The client's message when it rejected this resource.
    pub(super) fn detail(&self, key: &ResourceKey) -> Option<&Arc<str>> {
        let of_part = self.groups.iter().rev().find(|group| group.keys.contains(key));
        of_part.map(|group| &group.nack).or(self.full_state.as_ref()).map(|of| &of.detail)
    }

    /// Whether the newest rejected response contained this resource, as of this commit.
    pub(super) fn newest_has(&self, key: &ResourceKey, changed_at: Revision) -> bool {
        match (&self.full_state, self.groups.last()) {
            (Some(nack), _) => nack.about.cover(changed_at),
            (None, Some(group)) => group.nack.about.cover(changed_at) && group.keys.contains(key),
            (None, None) => false,
        }
    }

    /// The revisions that wait until the uncertain resources are sent and answered.
    pub(super) fn resent_revisions(&self) -> Option<&Spans> {
        self.uncertain.as_ref().map(|group| &group.nack.about)
    }

    /// The revisions that were rejected, with the client's messages.
    pub(super) fn rejected_revisions(&self) -> Vec<(Spans, Arc<str>)> {
        let nacks = self.groups.iter().map(|group| &group.nack).chain(&self.full_state);
        let nacks = nacks.filter(|nack| !nack.about.is_empty());
        nacks.map(|nack| (nack.about.clone(), Arc::clone(&nack.detail))).collect()
    }
}

/// The largest number of rejected responses that are kept separately.
const GROUPS_REMEMBERED: usize = 8;
