//! Where watchers look: the newest view of what they watch, and who waits for a newer one.
//!
//! Nothing queues here. A watcher that does not look costs what it watches, and delays nobody.

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
    /// Of its own name; of a glob or wildcard as a whole.
    pub(crate) view: ResourceView,
    /// Of a glob or wildcard.
    pub(crate) members: Option<Box<Members>>,
    /// Who is to be woken when the view changes: each watcher where it was asked last.
    wakers: BTreeMap<u64, Waker>,
    /// How many watchers there were.
    watchers: u64,
    /// No more changes come.
    pub(crate) is_closed: bool,
}

/// What a glob or wildcard stands for.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub(crate) views: BTreeMap<ResourceName, ResourceView>,
    /// Per watcher, the members that changed since it looked.
    unseen: BTreeMap<u64, BTreeMap<ResourceName, Reported>>,
}

/// Whether a watcher was told of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    Never,
    Before,
}

impl Slot {
    /// With what is known at the start.
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

    /// No more changes come; who is to be woken.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.is_closed = true;
        self.take_waiting()
    }

    /// Who is to be woken after a change.
    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.wakers).into_values()
    }

    /// Wakes a watcher at the next change. What it gives back is to be dropped when the slot is not
    /// locked any more: it may be all that keeps a task, and with it other watchers of the same.
    #[must_use]
    pub(crate) fn wait(&mut self, watcher: u64, waker: &Waker) -> Option<Waker> {
        match self.wakers.get_mut(&watcher) {
            Some(known) if known.will_wake(waker) => None,
            Some(known) => Some(std::mem::replace(known, waker.clone())),
            None => self.wakers.insert(watcher, waker.clone()),
        }
    }

    /// A watcher that has seen nothing yet; its number.
    pub(crate) fn join(&mut self) -> u64 {
        self.watchers += 1;
        if let Some(members) = &mut self.members {
            let all = members.views.keys().map(|name| (name.clone(), Reported::Never));
            members.unseen.insert(self.watchers, all.collect());
        }
        self.watchers
    }

    /// A watcher that goes. What it gives back is to be dropped as by [`Self::wait`].
    #[must_use]
    pub(crate) fn leave(&mut self, watcher: u64) -> Option<Waker> {
        if let Some(members) = &mut self.members {
            members.unseen.remove(&watcher);
        }
        self.wakers.remove(&watcher)
    }

    /// A member that changed since the watcher looked; `None` for the view of one that is no member
    /// any more.
    pub(crate) fn next_member(&mut self, watcher: u64) -> Option<(ResourceName, Option<ResourceView>)> {
        let members = self.members.as_mut()?;
        let (name, _) = members.unseen.get_mut(&watcher)?.pop_first()?;
        let view = members.views.get(&name).cloned();
        Some((name, view))
    }

    /// Has a watcher look at a member once more.
    pub(crate) fn look_again(&mut self, watcher: u64, name: &ResourceName) {
        let members = self.members.as_mut();
        if let Some(unseen) = members.and_then(|members| members.unseen.get_mut(&watcher)) {
            unseen.insert(name.clone(), Reported::Before);
        }
    }
}

impl Members {
    fn put(&mut self, name: &ResourceName, view: ResourceView) {
        let is_gone = view.copy.is_none() && view.error.is_none();
        let before = match is_gone {
            true => self.views.remove(name),
            false => self.views.insert(name.clone(), view),
        };
        // What is there and not to be looked at was looked at.
        let reported = if before.is_some() { Reported::Before } else { Reported::Never };
        for unseen in self.unseen.values_mut() {
            let reported = *unseen.entry(name.clone()).or_insert(reported);
            // Names that come and go would pile up for a watcher that does not look.
            if is_gone && reported == Reported::Never {
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

    /// Each place that a watcher was asked from was kept until the next change, and with it the
    /// task.
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

    /// The names of all members that ever were piled up for a watcher that does not look.
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
        // Of what it was told, it hears that it went.
        assert!(matches!(slot.lock().next_member(watcher), Some((name, None)) if name == reported));
        assert!(slot.lock().next_member(watcher).is_none());
    }
}
