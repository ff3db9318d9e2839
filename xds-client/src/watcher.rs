//! Watchers: the newest state of a watched resource, as a stream of changes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use xds_core::client::{Accepted, Code, ResourceFailure, ResourceView, WatchId};
use xds_core::{Constraints, Payload, ResourceName};

use crate::hub::Handle;
use crate::slot::Slot;

/// A resource in use, with its metadata. It dereferences to its message.
pub struct Resource<T> {
    value: Arc<T>,
    accepted: Arc<Accepted>,
}

impl<T> Resource<T> {
    /// The name of the resource; for an alias, the name of the resource behind it.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        self.accepted.name()
    }

    /// Its version: that of the resource in delta, that of the response in SotW. Opaque.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.accepted.version
    }

    /// The constraints of this variant; none for a resource that matches every client.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        self.accepted.constraints()
    }

    /// The number of the stream of its server that brought it, counted from 1; 0 for a restored
    /// resource.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.accepted.generation
    }

    /// Whether it comes from the last-known-good file and no server has confirmed it since.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.accepted.is_restored
    }

    /// The encoded message.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        self.accepted.payload()
    }

    /// The message, shared.
    #[must_use]
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T> Deref for Resource<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Clone for Resource<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), accepted: Arc::clone(&self.accepted) }
    }
}

impl<T> fmt::Debug for Resource<T>
where
    T: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("value", &self.value)
            .field("version", &self.accepted.version)
            .field("constraints", self.accepted.constraints())
            .field("is_stale", &self.accepted.is_restored)
            .finish_non_exhaustive()
    }
}

/// What happened to a resource since the last look of the watcher (C8).
#[derive(Debug)]
pub enum Event<T> {
    /// The resource is new or has changed. Any former error is over.
    Changed(Resource<T>),
    /// The resource is absent: stop using it. The error gives the reason. If there was no resource
    /// before, none is available so far.
    Absent(Arc<ResourceFailure>),
    /// An error that does not affect the resource: keep using it. `None`: the error is over.
    Ambient(Option<Arc<ResourceFailure>>),
}

/// Watches one resource. Dropping the last watcher of it ends the subscription.
///
/// It is a [`Stream`] of changes since the last look. A watcher that is polled rarely sees the
/// newest state and nothing in between; it delays no other watcher. The stream ends with the
/// client.
pub struct Watcher<T> {
    reader: SlotReader,
    seen: ResourceView,
    of: PhantomData<fn() -> T>,
}

/// Watches a glob or all resources of a type. Dropping the last watcher of it ends the
/// subscription.
///
/// As a [`Stream`] it returns members with their changes since the last look.
pub struct SetWatcher<T> {
    reader: SlotReader,
    seen: ResourceView,
    reported_complete: bool,
    members: std::collections::BTreeMap<ResourceName, ResourceView>,
    of: PhantomData<fn() -> T>,
}

/// An event of a glob or wildcard.
#[derive(Debug)]
pub enum SetEvent<T> {
    /// A member was added, changed or removed.
    Member(ResourceName, Event<T>),
    /// All members of the server have been reported. It occurs once, and again after an error of
    /// the whole set.
    Complete,
    /// The whole set is not available, or has an error that does not affect its members. `None`:
    /// the error is over.
    Failed(Option<Arc<ResourceFailure>>),
}

/// The slot that a watcher reads, and its subscription.
struct SlotReader {
    handle: Arc<Handle>,
    watch: WatchId,
    slot: Arc<Slot>,
    /// Its number among the watchers of the slot.
    watcher: u64,
}

impl<T> Watcher<T>
where
    T: Payload,
{
    pub(crate) fn new(handle: Arc<Handle>, watch: WatchId, slot: Arc<Slot>) -> Self {
        Self { reader: SlotReader::new(handle, watch, slot), seen: ResourceView::default(), of: PhantomData }
    }

    /// Waits for the next change; `None` when the client ended.
    pub async fn next(&mut self) -> Option<Event<T>> {
        std::future::poll_fn(|cx| self.poll_change(cx)).await
    }

    /// The resource to use now, whether or not it was reported as an event.
    #[must_use]
    pub fn borrow(&self) -> Option<Resource<T>> {
        let copy = self.reader.slot.lock().view.copy.clone()?;
        resource(&copy).ok()
    }

    /// The current error: beside the resource, or the reason for its absence.
    #[must_use]
    pub fn error(&self) -> Option<Arc<ResourceFailure>> {
        self.reader.slot.lock().view.error.clone()
    }

    fn poll_change(&mut self, cx: &Context<'_>) -> Poll<Option<Event<T>>> {
        let mut slot = self.reader.slot.lock();
        if let Some(event) = change(&mut self.seen, &slot.view) {
            return Poll::Ready(Some(event));
        }
        if slot.is_closed {
            return Poll::Ready(None);
        }
        let before = slot.wait(self.reader.watcher, cx.waker());
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

impl<T> SetWatcher<T>
where
    T: Payload,
{
    pub(crate) fn new(handle: Arc<Handle>, watch: WatchId, slot: Arc<Slot>) -> Self {
        Self {
            reader: SlotReader::new(handle, watch, slot),
            seen: ResourceView::default(),
            reported_complete: false,
            members: std::collections::BTreeMap::new(),
            of: PhantomData,
        }
    }

    /// Waits for the next change; `None` when the client ended.
    pub async fn next(&mut self) -> Option<SetEvent<T>> {
        std::future::poll_fn(|cx| self.poll_change(cx)).await
    }

    fn poll_change(&mut self, cx: &Context<'_>) -> Poll<Option<SetEvent<T>>> {
        let mut slot = self.reader.slot.lock();
        while let Some((name, view)) = slot.next_member(self.reader.watcher) {
            let seen = self.members.entry(name.clone()).or_default();
            let is_known = seen.copy.is_some() || seen.error.is_some();
            let event = match &view {
                Some(view) => change(seen, view),
                None if is_known => Some(Event::Absent(no_longer_member(&name))),
                None => None,
            };
            // If a new resource also has an ambient error, the error is the next event of the
            // member.
            let is_behind = view.as_ref().is_some_and(|view| view.error.is_some() && seen.error.is_none());
            if view.is_none() {
                self.members.remove(&name);
            }
            if is_behind {
                slot.look_again(self.reader.watcher, &name);
            }
            if let Some(event) = event {
                return Poll::Ready(Some(SetEvent::Member(name, event)));
            }
        }
        let error = slot.view.error.clone();
        if !is_same(&self.seen.error, &error) {
            self.seen.error.clone_from(&error);
            // While the error lasts, `Complete` is not reported again.
            self.reported_complete &= error.is_some();
            return Poll::Ready(Some(SetEvent::Failed(error)));
        }
        if slot.view.is_complete && !self.reported_complete {
            self.reported_complete = true;
            return Poll::Ready(Some(SetEvent::Complete));
        }
        if slot.is_closed {
            return Poll::Ready(None);
        }
        let before = slot.wait(self.reader.watcher, cx.waker());
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

impl<T> Stream for Watcher<T>
where
    T: Payload,
{
    type Item = Event<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event<T>>> {
        self.poll_change(cx)
    }
}

impl<T> Stream for SetWatcher<T>
where
    T: Payload,
{
    type Item = SetEvent<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SetEvent<T>>> {
        self.poll_change(cx)
    }
}

impl SlotReader {
    fn new(handle: Arc<Handle>, watch: WatchId, slot: Arc<Slot>) -> Self {
        let watcher = slot.lock().join();
        Self { handle, watch, slot, watcher }
    }
}

impl Drop for SlotReader {
    fn drop(&mut self) {
        let waiting = self.slot.lock().leave(self.watcher);
        drop(waiting);
        self.handle.hub().unwatch(self.watch);
    }
}

impl<T> fmt::Debug for Watcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("watch", &self.reader.watch).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SetWatcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetWatcher").field("watch", &self.reader.watch).finish_non_exhaustive()
    }
}

/// The next event for a watcher that has seen `seen` and not yet `now` (P1.18: the resource first,
/// then the error).
fn change<T>(seen: &mut ResourceView, now: &ResourceView) -> Option<Event<T>>
where
    T: Payload,
{
    match &now.copy {
        Some(copy) if seen.copy.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, copy)) => {
            seen.copy = Some(Arc::clone(copy));
            seen.error = None;
            Some(match resource(copy) {
                Ok(resource) => Event::Changed(resource),
                Err(error) => Event::Absent(unreadable(copy, &error)),
            })
        }
        Some(_) if !is_same(&seen.error, &now.error) => {
            seen.error.clone_from(&now.error);
            Some(Event::Ambient(now.error.clone()))
        }
        None if seen.copy.is_some() || !is_same(&seen.error, &now.error) => {
            let had_copy = seen.copy.take().is_some();
            seen.error.clone_from(&now.error);
            match &now.error {
                Some(error) => Some(Event::Absent(Arc::clone(error))),
                None if had_copy => Some(Event::Absent(unknown_for_now())),
                None => None,
            }
        }
        Some(_) | None => None,
    }
}

/// Whether both are the same error in memory, or both are none.
fn is_same(one: &Option<Arc<ResourceFailure>>, other: &Option<Arc<ResourceFailure>>) -> bool {
    one.as_ref().map(Arc::as_ptr) == other.as_ref().map(Arc::as_ptr)
}

fn resource<T>(accepted: &Arc<Accepted>) -> Result<Resource<T>, prost::DecodeError>
where
    T: Payload,
{
    Ok(Resource { value: T::of(accepted.variant())?, accepted: Arc::clone(accepted) })
}

fn no_longer_member(name: &ResourceName) -> Arc<ResourceFailure> {
    failure(Code::NOT_FOUND, format!("{:?} is no longer a member", name.as_str()))
}

fn unknown_for_now() -> Arc<ResourceFailure> {
    failure(Code::UNAVAILABLE, "the resource is no longer known".to_owned())
}

fn unreadable(accepted: &Accepted, error: &prost::DecodeError) -> Arc<ResourceFailure> {
    failure(Code::INVALID_ARGUMENT, format!("{:?}: {error}", accepted.name().as_str()))
}

fn failure(code: Code, message: String) -> Arc<ResourceFailure> {
    Arc::new(ResourceFailure {
        code,
        message: message.into(),
        rejected_version: None,
        at: std::time::Duration::ZERO,
    })
}
