//! What an event did, and whom it concerns.

use std::sync::Arc;

use super::accepted::Accepted;
use super::rejection::Rejection;
use super::{Client, WatchId};
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;

/// What an event did.
#[derive(Debug, Default)]
pub struct Effects {
    /// Whose view changed, each once, in no particular order.
    pub touched: Vec<Touched>,
    /// What is new in the cache.
    pub accepted: Vec<Arc<Accepted>>,
    /// What is there no longer, as the server says; not what nobody watches any more.
    pub removed: Vec<VariantId>,
    /// The response, if it was one that is answered.
    pub response: Option<Applied>,
}

/// Whose view changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touched {
    /// The subscription.
    pub watch: WatchId,
    /// Which of the resources it stands for; `None` for that of its own name, and for a glob or
    /// wildcard as a whole.
    pub member: Option<ResourceName>,
}

/// What was found in a response.
#[derive(Debug)]
pub struct Applied {
    /// Its type.
    pub type_url: TypeUrl,
    /// How many resources were watched and valid, unchanged ones too.
    pub valid: usize,
    /// How many resources nobody watches (S24, T41).
    pub unwatched: usize,
    /// Variants that gave way to others (T34).
    pub replaced: usize,
    /// T43c: names that a proxy cannot tell whom they are for, as they came without constraints and
    /// not as a locator's.
    pub plain: Vec<ResourceName>,
    /// What was wrong; if anything was, the response is rejected (C2).
    pub rejections: Vec<Rejection>,
}

impl Applied {
    pub(super) fn new(type_url: TypeUrl) -> Self {
        let (valid, unwatched, replaced) = (0, 0, 0);
        Self { type_url, valid, unwatched, replaced, plain: Vec::new(), rejections: Vec::new() }
    }
}

impl Client {
    /// Each once; who does not watch any more is not told.
    pub(super) fn sort_touched(&self, effects: &mut Effects) {
        effects.touched.sort_unstable();
        effects.touched.dedup();
        effects.touched.retain(|touched| {
            let (of_type, at) = touched.watch.place();
            self.types[of_type].entry(at).watchers > 0
        });
    }
}
