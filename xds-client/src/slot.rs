//! Where watchers look: the newest view of what they watch, and who waits for a newer one.
//!
//! Nothing queues here. A watcher that does not look costs what it watches, and delays nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use xds_core::ResourceName;
use xds_core::client::View;

/// The newest view of one subscription.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Inner>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// Of its own name; of a glob or wildcard as a whole.
    pub(crate) view: View,
    /// Of a glob or wildcard.
    pub(crate) members: Option<Box<Members>>,
    /// Who is to be woken when the view changes.
    wakers: Vec<Waker>,
    /// No more changes come.
    pub(crate) is_closed: bool,
}

/// What a glob or wildcard stands for.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) views: BTreeMap<ResourceName, View>,
    /// Per watcher, the members that changed since it looked.
    unseen: BTreeMap<u64, BTreeSet<ResourceName>>,
    watchers: u64,
}

impl Slot {
    /// With what is known at the start.
    pub(crate) fn new(view: View, members: Option<BTreeMap<ResourceName, View>>) -> Self {
        let members = members.map(|views| Box::new(Members { views, ..Members::default() }));
        Self(Mutex::new(Inner { view, members, ..Inner::default() }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes a newer view; who is to be woken.
    pub(crate) fn put(&mut self, member: Option<&ResourceName>, view: View) -> Vec<Waker> {
        match (member, &mut self.members) {
            (Some(name), Some(members)) => members.put(name, view),
            (Some(_), None) | (None, _) => self.view = view,
        }
        std::mem::take(&mut self.wakers)
    }

    /// No more changes come; who is to be woken.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.is_closed = true;
        std::mem::take(&mut self.wakers)
    }

    /// Wakes this one at the next change.
    pub(crate) fn wait(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|other| other.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    /// A watcher of a glob or wildcard that has seen nothing yet; its number.
    pub(crate) fn join(&mut self) -> u64 {
        let Some(members) = &mut self.members else { return 0 };
        members.watchers += 1;
        members.unseen.insert(members.watchers, members.views.keys().cloned().collect());
        members.watchers
    }

    pub(crate) fn leave(&mut self, watcher: u64) {
        if let Some(members) = &mut self.members {
            members.unseen.remove(&watcher);
        }
    }

    /// A member that changed since the watcher looked; `None` for the view of one that is no member any more.
    pub(crate) fn next_member(&mut self, watcher: u64) -> Option<(ResourceName, Option<View>)> {
        let members = self.members.as_mut()?;
        let name = members.unseen.get_mut(&watcher)?.pop_first()?;
        let view = members.views.get(&name).cloned();
        Some((name, view))
    }
}

impl Inner {
    /// Has a watcher look at a member once more.
    pub(crate) fn look_again(&mut self, watcher: u64, name: &ResourceName) {
        let members = self.members.as_mut();
        if let Some(unseen) = members.and_then(|members| members.unseen.get_mut(&watcher)) {
            unseen.insert(name.clone());
        }
    }
}

impl Members {
    fn put(&mut self, name: &ResourceName, view: View) {
        for unseen in self.unseen.values_mut() {
            unseen.insert(name.clone());
        }
        if view.copy.is_none() && view.error.is_none() {
            self.views.remove(name);
        } else {
            self.views.insert(name.clone(), view);
        }
    }
}
