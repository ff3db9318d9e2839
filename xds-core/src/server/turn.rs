//! The turn of one type of a stream: what it needs to make a response, and the response.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::config::StreamConfig;
use super::response::Response;
use crate::cache::{RejectedOfType, Snapshot, Update};
use crate::name::{Nonce, ResourceName};
use crate::references::{NamedList, Target};
use crate::wire::ResourceKey;

/// What a type needs to make its response, besides its own state: the order has decided what may
/// go now (S33).
#[derive(Debug)]
pub(super) struct Turn<'t> {
    pub(super) now: Duration,
    pub(super) snapshot: &'t Snapshot,
    pub(super) config: &'t StreamConfig,
    /// Withheld removals that may be sent now.
    pub(super) released: Vec<ResourceKey>,
    /// Whether changes must wait for other types, so that only requests are answered.
    pub(super) must_wait: bool,
    /// Contents that other clients rejected, which go last (S6d).
    pub(super) known: Option<Arc<RejectedOfType>>,
    pub(super) nonces: &'t mut Nonces,
}

/// The source of the nonces of one stream.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    last: u64,
}

/// A response, with what it means for other types.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) response: Response,
    /// What is sent once more after it (S34, S34b).
    pub(super) followers: Followers,
    /// Whether it has the whole selection.
    pub(super) is_whole: bool,
}

/// What the resources in a response name, and is sent once more, in order.
#[derive(Debug)]
pub(super) enum Followers {
    /// All of an update, which the streams of a class share.
    Of(Arc<Update>),
    Some(NamedList),
}

impl Nonces {
    /// A nonce that the stream has not used yet (S2, D7).
    pub(super) fn next(&mut self) -> Nonce {
        self.last += 1;
        Nonce::nth(self.last)
    }

    /// The one that comes next.
    pub(super) fn upcoming(&self) -> Nonce {
        Nonce::nth(self.last + 1)
    }
}

impl Made {
    /// A response without resources.
    pub(super) fn without_resources(response: Response) -> Self {
        Self { response, followers: Followers::Some(Vec::new()), is_whole: false }
    }
}

impl Deref for Followers {
    type Target = [(Target, ResourceName)];

    fn deref(&self) -> &[(Target, ResourceName)] {
        match self {
            Self::Of(update) => update.followers(),
            Self::Some(named) => named,
        }
    }
}
