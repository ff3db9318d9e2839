//! The newest view of a subscription for its watchers, and the wakers of watchers that wait for a
//! newer one.
//!
//! Nothing queues here. A watcher that is not polled uses memory only for what it watches, and
//! delays no other watcher.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use xds_core::ResourceName;
use xds_core::client::ResourceView;

/// The newest view of one subscription.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Inner>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// The view of the name; for a glob or wildcard, the view of the whole set.
    pub(crate) view: ResourceView,
    /// The members of a glob or wildcard.
    pub(crate) members: Option<Box<Members>>,
    /// The wakers for the next change: one per watcher, from its last poll.
    wakers: BTreeMap<u64, Waker>,
    /// The number of watchers so far.
    watchers: u64,
    /// No more changes will come.
    pub(crate) is_closed: bool,
}

/// The members of a glob or wildcard.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) views: BTreeMap<ResourceName, ResourceView>,
    /// Per watcher, the members that changed since its last look.
    unseen: BTreeMap<u64, BTreeMap<ResourceName, Reported>>,
}

/// Whether a member was reported to a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    Never,
    Before,
}

impl Slot {
    /// A slot with the state at the start.
    pub(crate) fn new(view: ResourceView, members: Option<BTreeMap<ResourceName, ResourceView>>) -> Self {
        let members = members.map(|views| Box::new(Members { views, ..Members::default() }));
        Self(Mutex::new(Inner { view, members, ..Inner::default() }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes a newer view.
    pub(crate) fn put(&mut self, member: Option<&ResourceName>, view: ResourceView) {
        match (member, &mut self.members) {
            (Some(name), Some(members)) => members.put(name, view),
            (Some(_), None) | (None, _) => self.view = view,
        }
    }

    /// Marks the end of changes; returns the wakers to wake.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.is_closed = true;
        self.take_waiting()
    }

    /// Takes the wakers to wake after a change.
    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.wakers).into_values()
    }

    /// Registers a watcher for the next change. Drop the returned waker after the slot is unlocked:
    /// it may own a task, and with it other watchers of the same slot.
    #[must_use]
    pub(crate) fn wait(&mut self, watcher: u64, waker: &Waker) -> Option<Waker> {
        match self.wakers.get_mut(&watcher) {
            Some(known) if known.will_wake(waker) => None,
            Some(known) => Some(std::mem::replace(known, waker.clone())),
            None => self.wakers.insert(watcher, waker.clone()),
        }
    }

    /// Adds a watcher that has seen nothing yet; returns its number.
    pub(crate) fn join(&mut self) -> u64 {
        self.watchers += 1;
        if let Some(members) = &mut self.members {
            let all = members.views.keys().map(|name| (name.clone(), Reported::Never));
            members.unseen.insert(self.watchers, all.collect());
        }
        self.watchers
    }

    /// Removes a watcher. Drop the returned waker as after [`Self::wait`].
    #[must_use]
    pub(crate) fn leave(&mut self, watcher: u64) -> Option<Waker> {
        if let Some(members) = &mut self.members {
            members.unseen.remove(&watcher);
        }
        self.wakers.remove(&watcher)
    }

    /// A member that changed since the last look of the watcher; the view is `None` if it is no
    /// longer a member.
    pub(crate) fn next_member(&mut self, watcher: u64) -> Option<(ResourceName, Option<ResourceView>)> {
        let members = self.members.as_mut()?;
        let (name, _) = members.unseen.get_mut(&watcher)?.pop_first()?;
        let view = members.views.get(&name).cloned();
        Some((name, view))
    }

    /// Makes a watcher look at a member once more.
    pub(crate) fn look_again(&mut self, watcher: u64, name: &ResourceName) {
        let members = self.members.as_mut();
        if let Some(unseen) = members.and_then(|members| members.unseen.get_mut(&watcher)) {
            unseen.insert(name.clone(), Reported::Before);
        }
    }
}

impl Members {
    fn put(&mut self, name: &ResourceName, view: ResourceView) {
        let is_removed = view.copy.is_none() && view.error.is_none();
        let before = match is_removed {
            true => self.views.remove(name),
            false => self.views.insert(name.clone(), view),
        };
        // A known member without a pending look was reported before.
        let reported = if before.is_some() { Reported::Before } else { Reported::Never };
        for unseen in self.unseen.values_mut() {
            let reported = *unseen.entry(name.clone()).or_insert(reported);
            // Otherwise, names that come and go would accumulate for a watcher that is not polled.
            if is_removed && reported == Reported::Never {
                unseen.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use xds_core::client::{Code, ResourceFailure};

    use super::*;

    struct Noop;

    impl Wake for Noop {
        fn wake(self: Arc<Self>) {}
    }

    fn present() -> ResourceView {
        let at = std::time::Duration::ZERO;
        let failure =
            ResourceFailure { code: Code::NOT_FOUND, message: "".into(), rejected_version: None, at };
        ResourceView { error: Some(Arc::new(failure)), ..ResourceView::default() }
    }

    /// Each task that polled a watcher was kept until the next change.
    #[test]
    fn a_watcher_that_is_asked_from_many_tasks_is_woken_in_the_last() {
        let slot = Slot::new(ResourceView::default(), None);
        let watcher = slot.lock().join();
        let (first, last) = (Waker::from(Arc::new(Noop)), Waker::from(Arc::new(Noop)));
        assert!(slot.lock().wait(watcher, &first).is_none());
        assert!(slot.lock().wait(watcher, &last).is_some_and(|waker| waker.will_wake(&first)));
        let woken: Vec<_> = slot.lock().take_waiting().collect();
        assert!(woken.len() == 1 && woken[0].will_wake(&last));
        assert!(slot.lock().wait(watcher, &last).is_none());
        assert!(slot.lock().leave(watcher).is_some());
        assert_eq!(slot.lock().take_waiting().count(), 0);
    }

    /// The names of all former members accumulated for a watcher that was not polled.
    #[test]
    fn a_member_that_came_and_went_unseen_leaves_nothing_behind() {
        let slot = Slot::new(ResourceView::default(), Some(BTreeMap::new()));
        let watcher = slot.lock().join();
        let (reported, other) = (ResourceName::new("reported"), ResourceName::new("other"));
        slot.lock().put(Some(&reported), present());
        assert!(matches!(slot.lock().next_member(watcher), Some((name, Some(_))) if name == reported));
        for name in [&reported, &other] {
            slot.lock().put(Some(name), present());
            slot.lock().put(Some(name), ResourceView::default());
        }
        // The removal of a reported member is reported.
        assert!(matches!(slot.lock().next_member(watcher), Some((name, None)) if name == reported));
        assert!(slot.lock().next_member(watcher).is_none());
    }
}
