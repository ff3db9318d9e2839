//! The effects of one event.

use std::sync::Arc;

use super::accepted::Accepted;
use super::rejection::Rejection;
use super::{Client, WatchId};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;

/// The effects of one event.
#[derive(Debug, Default)]
pub struct Effects {
    /// The watches and members whose view changed, each once, in no particular order.
    pub touched: Vec<Touched>,
    /// Variants that are new or changed in the cache.
    pub accepted: Vec<Arc<Accepted>>,
    /// Variants that are no longer in the cache: a server deleted or replaced them, or their TTL
    /// ended. A variant that was removed because its last watcher left is not listed.
    pub removed: Vec<VariantId>,
    /// For a response that the client ACKs or NACKs: the result of applying it.
    pub response: Option<Applied>,
}

/// A watch or member whose view changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touched {
    /// The watch.
    pub watch: WatchId,
    /// The member of a glob or wildcard; `None` for the named resource, or for the glob or wildcard
    /// as a whole.
    pub member: Option<ResourceName>,
}

/// A response that was validated and applied.
#[derive(Debug)]
pub struct Applied {
    /// Its type.
    pub type_url: TypeUrl,
    /// How many resources were watched and valid, including unchanged ones.
    pub valid: usize,
    /// How many resources were ignored because no watch matches them (S24, T41).
    pub unwatched: usize,
    /// How many variants left the cache because new ones overlap them (T34) or came from another
    /// server (C15).
    pub replaced: usize,
    /// T43c: names of resources that a proxy leaves out, because it does not know which of its
    /// clients may have them: they came under a plain name without constraints, or with
    /// `do_not_cache`.
    pub plain: Vec<ResourceName>,
    /// The rejected parts. If there are any, the client NACKs the response (C2).
    pub rejections: Vec<Rejection>,
}

impl Applied {
    pub(super) fn new(type_url: TypeUrl) -> Self {
        let (valid, unwatched, replaced) = (0, 0, 0);
        Self { type_url, valid, unwatched, replaced, plain: Vec::new(), rejections: Vec::new() }
    }
}

impl Client {
    /// Lists each touched watch once, and leaves out watches without watchers.
    pub(super) fn sort_touched(&self, effects: &mut Effects) {
        effects.touched.sort_unstable();
        effects.touched.dedup();
        effects.touched.retain(|touched| self.store.entry(touched.watch).watchers > 0);
    }
}
