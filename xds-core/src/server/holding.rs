//! What a client has of one type: the selection at its cursor, with exceptions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{Membership, Snapshot, TypeSelection, Update};
use crate::name::{ResourceName, Revision, Version};
use crate::references::References;
use crate::variants::{KeyedBy, Variant};
use crate::wire::ResourceKey;

/// The resources of one type that a client has, or will have when it applied all responses.
///
/// They are not stored. They follow from the selection at its cursor, the revision up to which it
/// was sent everything, and from the exceptions, which each concern one key. A client that uses what
/// it was sent, and nothing that the cache removed, has no exceptions.
/// [`Responses`](super::responses::Responses) says which responses are unanswered or were rejected.
///
/// - Without a selection there is nothing else.
/// - Exceptions ahead of the cursor end when the cursor moves.
/// - A selection by name stays beside one by locator only.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// `None` while the client subscribes to nothing of the type.
    selection: Option<Membership>,
    /// The selection by name. When the client sends its first locator (V25), everything that it has
    /// by name must be sent again with constraints, so the selection by name stays until then.
    former: Option<Membership>,
    exceptions: BTreeMap<ResourceKey, Exception>,
    /// Names that were answered ahead of the cursor, also if nothing was found. What the client has
    /// of them is not what the selection at the cursor has.
    answered_ahead: BTreeSet<ResourceName>,
    /// The newest revision at which the client used exactly the resources that it had been sent
    /// (S33).
    clean_at: Revision,
}

/// How a client differs from the selection at its cursor, for one key.
#[derive(Debug)]
pub(super) enum Exception {
    /// An answer that did not wait for other types (S33) brought this newer variant.
    Ahead(Arc<Variant>),
    /// The cache removed the resource, and the removal was not sent yet (S33). When the client
    /// brought the name from another stream, its last content and the commit that removed it are
    /// not known. `version` is that of the content that the client has, if exactly that is known.
    Withheld {
        variant: Option<Arc<Variant>>,
        version: Option<Version>,
        removed_at: Revision,
        since: Duration,
    },
    /// The removal was sent, or cannot be sent in this protocol. The client keeps the resource,
    /// with these references, until it unsubscribes from the name (D29).
    Kept(References),
}

/// The answers ahead of the cursor, which ended when the cursor moved.
#[derive(Debug)]
pub(super) struct SentAhead {
    names: BTreeSet<ResourceName>,
    variants: BTreeMap<ResourceKey, Exception>,
}

/// What changed when the cursor moved.
#[derive(Debug)]
pub(super) struct Advance {
    pub(super) update: Arc<Update>,
    /// The changes of the selection by name, which ended.
    pub(super) former: Option<Arc<Update>>,
    pub(super) ahead: SentAhead,
}

impl Holding {
    pub(super) fn selection(&self) -> Option<&Membership> {
        self.selection.as_ref()
    }

    /// The same, to index a subscription.
    pub(super) fn selection_mut(&mut self) -> Option<&mut Membership> {
        self.selection.as_mut()
    }

    /// Whether the client subscribes to anything.
    pub(super) fn is_selecting(&self) -> bool {
        self.selection.is_some()
    }

    /// The revision up to which the client was sent its selection, or needed nothing.
    pub(super) fn cursor(&self) -> Revision {
        self.selection.as_ref().map_or(Revision::ZERO, Membership::cursor)
    }

    /// Whether the selection may have changed since it was sent.
    pub(super) fn is_behind(&self, snapshot: &Snapshot) -> bool {
        self.selection.as_ref().is_some_and(|selection| selection.position().is_behind(snapshot))
    }

    /// Moves the cursor to the snapshot, because the client has everything in it.
    pub(super) fn reach(&self, snapshot: &Snapshot) {
        if let Some(selection) = self.selection.as_ref().filter(|of| of.cursor() > Revision::ZERO) {
            selection.advance(snapshot.revision());
        }
    }

    /// Takes the cursor back: what is newer is sent, even if the client has it.
    pub(super) fn go_back(&self, to: Revision) {
        if let Some(selection) = &self.selection {
            selection.go_back(to);
        }
    }

    /// Whether resources that were sent by name must still be sent with constraints (V25).
    pub(super) fn is_switching(&self) -> bool {
        self.former.is_some()
    }

    /// The variants that the client should have of a name, each once.
    pub(super) fn chosen<'s>(&self, name: &ResourceName, snapshot: &'s Snapshot) -> Vec<&'s Arc<Variant>> {
        self.selection.as_ref().map(|of| of.chosen(name, snapshot)).unwrap_or_default()
    }

    /// The client subscribes to nothing any more.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// The client subscribes to something else. Returns whether the form of the keys changed, so
    /// that everything must be sent again (T25b).
    pub(super) fn select(
        &mut self,
        selection: TypeSelection,
        join: impl FnOnce(TypeSelection) -> Membership,
    ) -> bool {
        match &mut self.selection {
            Some(now) if now.selection().keyed_by == selection.keyed_by => {
                now.select(selection);
                false
            }
            _ => {
                let mut joined = join(selection);
                if let Some(former) = &mut self.selection {
                    joined.take_index_of(former);
                }
                self.former = self.selection.replace(joined);
                true
            }
        }
    }

    /// Updates the selections when the constraint keys that matter to them changed. Returns whether
    /// they changed.
    pub(super) fn refresh(&mut self, snapshot: &Snapshot) -> bool {
        let mut is_changed = false;
        for selection in self.selection.iter_mut().chain(&mut self.former) {
            is_changed |= selection.refresh(snapshot);
        }
        is_changed
    }

    /// Moves the cursor to the snapshot; `None` when the cache no longer has all removals.
    pub(super) fn advance(&mut self, snapshot: &Snapshot) -> Option<Advance> {
        let selection = self.selection.as_ref().expect("a type with a response to make has a subscription");
        let update = selection.update(snapshot)?;
        selection.advance(snapshot.revision());
        // V25: resources that the client has by name and that were removed are removed by name.
        let former = self.former.take().filter(|former| former.cursor() > Revision::ZERO);
        let former = match former {
            Some(former) => Some(former.update(snapshot)?),
            None => None,
        };
        let exceptions = std::mem::take(&mut self.exceptions).into_iter();
        let (ahead, exceptions) = exceptions.partition(|(_, exception)| exception.is_ahead());
        self.exceptions = exceptions;
        self.check();
        let names = std::mem::take(&mut self.answered_ahead);
        Some(Advance { update, former, ahead: SentAhead { names, variants: ahead } })
    }

    /// The client is sent a variant ahead of the cursor. Returns the revision of a removal that is
    /// no longer withheld.
    pub(super) fn send_ahead(&mut self, key: ResourceKey, variant: Arc<Variant>) -> Option<Revision> {
        self.answered_ahead.insert(variant.name().clone());
        match self.exceptions.insert(key, Exception::Ahead(variant)) {
            Some(Exception::Withheld { removed_at, .. }) => Some(removed_at),
            _ => None,
        }
    }

    /// The client is sent ahead of the cursor what there is of a name.
    pub(super) fn answer_ahead(&mut self, name: &ResourceName) {
        self.answered_ahead.insert(name.clone());
        // A withheld removal is sent by the answer itself.
        let by_name = ResourceKey::of_name(name);
        if self.exceptions.get(&by_name).is_some_and(Exception::is_ahead) {
            self.exceptions.remove(&by_name);
        }
    }

    /// Whether the client has anything else than the selection at the cursor.
    pub(super) fn has_exceptions(&self) -> bool {
        !self.exceptions.is_empty()
    }

    /// Whether exactly this variant was sent ahead of the cursor.
    pub(super) fn is_ahead_with(&self, key: &ResourceKey, variant: &Arc<Variant>) -> bool {
        self.exceptions.get(key).is_some_and(|exception| exception.is_ahead_with(variant))
    }

    /// Forgets what the client no longer subscribes to. Returns the keys of withheld removals.
    pub(super) fn retain(
        &mut self,
        is_subscribed: impl Fn(&ResourceKey) -> bool,
        has_as: impl Fn(&ResourceKey, &Variant) -> bool,
        is_wildcard: bool,
    ) -> Vec<ResourceKey> {
        let mut dropped = Vec::new();
        self.exceptions.retain(|key, exception| match exception {
            // D12: when the client subscribes again to a name that it gave up, the name must be
            // sent again.
            Exception::Ahead(variant) => has_as(key, variant),
            Exception::Withheld { variant, .. } => {
                // The key may lack constraints although the variant has some.
                let is_kept =
                    variant.as_ref().map_or_else(|| is_subscribed(key), |variant| has_as(key, variant));
                if !is_kept {
                    dropped.push(key.clone());
                }
                is_kept
            }
            // Under a wildcard the client cannot report that it no longer uses the resource.
            Exception::Kept(_) => !is_wildcard && is_subscribed(key),
        });
        dropped
    }

    /// Withholds a removal. An older entry stays: variants that were added and removed since then
    /// were never sent.
    pub(super) fn withhold(&mut self, key: ResourceKey, withheld: Exception) {
        debug_assert!(matches!(withheld, Exception::Withheld { .. }), "only removals are withheld");
        self.exceptions.entry(key).or_insert(withheld);
    }

    /// The client gets something under this key, or its removal, so it keeps nothing that the cache
    /// removed.
    pub(super) fn take_removed(&mut self, key: &ResourceKey) -> Option<Exception> {
        if self.exceptions.get(key).is_none_or(Exception::is_ahead) {
            return None;
        }
        self.exceptions.remove(key)
    }

    /// The removal of a resource is sent. The client keeps the resource if it still subscribes to
    /// the name. Returns the revision of the removal, if it was withheld.
    pub(super) fn on_removal_sent(&mut self, key: &ResourceKey, keeps: bool) -> Option<Revision> {
        let removed = self.take_removed(key)?;
        if keeps {
            self.exceptions.insert(key.clone(), Exception::Kept(removed.references()));
        }
        match removed {
            Exception::Withheld { removed_at, .. } => Some(removed_at),
            _ => None,
        }
    }

    /// The resources that the cache removed, and that the client has and still subscribes to (S33).
    pub(super) fn removed(&self) -> impl Iterator<Item = (&ResourceKey, &Exception)> {
        self.exceptions.iter().filter(|(_, exception)| !exception.is_ahead())
    }

    /// Whether there are any of these.
    pub(super) fn has_removed(&self) -> bool {
        self.removed().next().is_some()
    }

    pub(super) fn removed_with(&self, key: &ResourceKey) -> Option<&Exception> {
        self.exceptions.get(key).filter(|exception| !exception.is_ahead())
    }

    /// The client may need the content of this name again, although it has it (S34), or had it for one
    /// of several locators (T34).
    pub(super) fn forget_content(&mut self, name: &ResourceName) {
        let of_name = self.exceptions.range_mut(ResourceKey::of_name(name)..);
        for (_, exception) in of_name.take_while(|(key, _)| key.name == *name) {
            if let Exception::Withheld { version, .. } = exception {
                *version = None;
            }
        }
    }

    /// Whether a removal with this name is withheld.
    pub(super) fn withholds(&self, name: &ResourceName) -> bool {
        self.of_name(name).any(|(_, exception)| matches!(exception, Exception::Withheld { .. }))
    }

    /// The variants whose removal is withheld, as far as they are known.
    pub(super) fn withheld(&self) -> impl Iterator<Item = &Arc<Variant>> {
        self.exceptions.values().filter_map(|exception| match exception {
            Exception::Withheld { variant, .. } => variant.as_ref(),
            _ => None,
        })
    }

    /// The revisions of the withheld removals.
    pub(super) fn withheld_revisions(&self) -> impl Iterator<Item = Revision> {
        self.exceptions.values().filter_map(|exception| match exception {
            Exception::Withheld { removed_at, .. } => Some(*removed_at),
            _ => None,
        })
    }

    /// The keys of a name that the cache removed.
    pub(super) fn removed_of(&self, name: &ResourceName) -> Vec<ResourceKey> {
        let removed = self.of_name(name).filter(|(_, exception)| !exception.is_ahead());
        removed.map(|(key, _)| key.clone()).collect()
    }

    fn of_name(&self, name: &ResourceName) -> impl Iterator<Item = (&ResourceKey, &Exception)> {
        self.exceptions.range(ResourceKey::of_name(name)..).take_while(move |(key, _)| key.name == *name)
    }

    /// The client uses exactly the resources at its cursor (S33).
    pub(super) fn note_clean(&mut self) {
        debug_assert!(!self.has_removed(), "a client that uses removed resources is not clean");
        self.clean_at = self.cursor();
    }

    /// It is not known any more at which revision the client did.
    pub(super) fn forget_clean(&mut self) {
        self.clean_at = Revision::ZERO;
    }

    /// The newest revision of which that was noted.
    pub(super) fn clean_at(&self) -> Revision {
        self.clean_at
    }

    fn check(&self) {
        if cfg!(debug_assertions) {
            let keyed_by = self.selection.as_ref().map(|of| of.selection().keyed_by);
            let is_empty =
                self.former.is_none() && self.exceptions.is_empty() && self.answered_ahead.is_empty();
            assert!(keyed_by.is_some() || is_empty, "without a selection there is nothing else");
            assert!(!self.is_switching() || keyed_by == Some(KeyedBy::Locator), "only names are former");
        }
    }
}

impl Exception {
    fn is_ahead(&self) -> bool {
        matches!(self, Self::Ahead(_))
    }

    fn is_ahead_with(&self, variant: &Arc<Variant>) -> bool {
        matches!(self, Self::Ahead(sent) if variant.is_same_as(sent))
    }

    /// V29: whether the client still has the content of this variant, even if another variant
    /// brought it.
    pub(super) fn is_content_of(&self, variant: &Variant, keyed_by: KeyedBy) -> bool {
        match self {
            Self::Withheld { version, .. } => *version == Some(variant.version_for(keyed_by)),
            Self::Ahead(_) | Self::Kept(_) => false,
        }
    }

    /// The content that the client has, if its removal is withheld and it is known.
    pub(super) fn variant(&self) -> Option<&Variant> {
        match self {
            Self::Withheld { variant, .. } => variant.as_deref(),
            Self::Ahead(_) | Self::Kept(_) => None,
        }
    }

    /// The references of the content that the client has.
    pub(super) fn references(&self) -> References {
        match self {
            Self::Ahead(variant) | Self::Withheld { variant: Some(variant), .. } => {
                variant.references.clone()
            }
            Self::Withheld { variant: None, .. } => References::Unknown,
            Self::Kept(references) => references.clone(),
        }
    }
}

impl SentAhead {
    /// Whether a name was answered ahead of the cursor.
    pub(super) fn has_name(&self, name: &ResourceName) -> bool {
        self.names.contains(name)
    }

    /// Whether the client has exactly this variant.
    pub(super) fn has(&self, key: &ResourceKey, variant: &Arc<Variant>) -> bool {
        self.variants.get(key).is_some_and(|exception| exception.is_ahead_with(variant))
    }

    /// The names, each once.
    pub(super) fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.names.iter()
    }
}
