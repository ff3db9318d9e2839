//! Members of wildcards and globs whose new variant a proxy rejects (T31, T45).

use std::collections::BTreeSet;

use super::Applier;
use crate::cache::LocatorStatus;
use crate::client::Protocol;
use crate::client::received::Removal;
use crate::code::Code;
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::subscription::Locator;
use crate::wire::CONTINUED;

impl Applier<'_> {
    /// T31, T45: when a response removes the variant of a member, and the variant in its place is
    /// rejected, the proxy has none for these parameters, but the member exists. So its clients are
    /// not told that it does not exist. To be called before the commit.
    pub(super) fn note_refused_members(&mut self, removals: &[Removal]) {
        if self.relay.is_none() || (self.applied.rejections.is_empty() && self.watched.refused.is_empty()) {
            return;
        }
        for at in self.watched.collections.clone() {
            let parameters = self.watched.entry(at).parameters.clone();
            for name in self.perhaps_refused(at, &parameters) {
                let key = (at, name.clone());
                let is_refused = self.is_refused(&name, &parameters);
                let status = if is_refused {
                    self.watched.refused.insert(key, self.sender().generation);
                    Some(status_of_refused(&name))
                } else if self.has_other_word(&key, &parameters, removals) {
                    self.watched.refused.remove(&key);
                    None
                } else {
                    continue;
                };
                self.changes.statuses.push((Locator { name, parameters: parameters.clone() }, status));
            }
        }
    }

    /// The names that this response may make refused members of a wildcard or glob, and those that
    /// were before.
    fn perhaps_refused(&self, at: u32, parameters: &Parameters) -> BTreeSet<ResourceName> {
        let rejected = self.applied.rejections.iter().filter(|of| of.constraints.matches(parameters));
        let mut watching = Vec::new();
        let is_member = |name: &&ResourceName| {
            self.watched.watching(name.as_str(), &mut watching);
            watching.contains(&at) && self.watched.entry(at).name != **name
        };
        let rejected = rejected.filter_map(|of| of.name.as_ref()).filter(is_member);
        let before = self.watched.refused.keys().filter(|(of, _)| *of == at).map(|(_, name)| name);
        rejected.chain(before).cloned().collect()
    }

    /// Whether these parameters have a rejected variant of a name, and no other one.
    fn is_refused(&self, name: &ResourceName, parameters: &Parameters) -> bool {
        let mut rejections = self.applied.rejections.iter();
        rejections.any(|of| of.name.as_ref() == Some(name) && of.constraints.matches(parameters))
            && !self.keeps_variant(name, parameters)
    }

    /// Whether these parameters have a variant of a name after this response. T34: a new one for
    /// others may take its place.
    fn keeps_variant(&self, name: &ResourceName, parameters: &Parameters) -> bool {
        let mut new = self.changes.put.keys().filter(|(of, _)| of == name).peekable();
        if new.peek().is_some() {
            return new.any(|(_, constraints)| constraints.matches(parameters));
        }
        let stored = self.watched.names.get(name).map(|named| &named.variants[..]).unwrap_or_default();
        let mut constraints = stored.iter().map(|stored| stored.accepted.constraints());
        constraints.any(|of| {
            of.matches(parameters) && !self.changes.removed.contains_key(&(name.clone(), of.clone()))
        })
    }

    /// Whether a member is not refused any more: this response has a variant, or a removal, or it is
    /// the answer of a new stream without the member.
    fn has_other_word(
        &self,
        key: &(u32, ResourceName),
        parameters: &Parameters,
        removals: &[Removal],
    ) -> bool {
        let name = &key.1;
        let is_it = |removal: &Removal| {
            removal.name == *name && removal.constraints.as_ref().is_none_or(|of| of.matches(parameters))
        };
        let is_continued = self.sender().config.protocol == Protocol::Delta
            && self.head.version.as_bytes().last() == Some(&CONTINUED);
        let is_old = self.watched.refused.get(key) != Some(&self.sender().generation);
        self.keeps_variant(name, parameters)
            || removals.iter().any(is_it)
            || (is_old && self.head.is_for_collections && !is_continued)
    }
}

/// The status of a member whose variant the proxy rejected.
pub(in crate::client) fn status_of_refused(name: &ResourceName) -> LocatorStatus {
    let message = format!("{:?} is rejected by the proxy", name.as_str()).into();
    LocatorStatus::Failed { code: Code::UNAVAILABLE, message }
}
