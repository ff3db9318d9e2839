//! An upstream, the cache it fills and the view of both. Types go by one letter, events in short.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::client::health::Status;
use crate::client::health::fixture::{Fixture, shown_init, shown_state, url};
use crate::client::{Code, ReadRoute};
use crate::server::fixture::{commit, parameters, payload};
use crate::variants::Variant;

pub(super) struct Viewed {
    pub(super) upstream: Fixture,
    pub(super) cache: Arc<Cache>,
    pub(super) view: View,
}

impl Viewed {
    /// With these types requested.
    pub(super) fn of(types: &str) -> Self {
        let cache = Cache::new();
        Self { upstream: Fixture::of(types), view: View::new(&cache), cache }
    }

    /// With an Init that confirms its types, and what the text commits.
    pub(super) fn healthy(types: &str, text: &str) -> Self {
        let mut f = Self::of(types);
        f.open();
        f.commit(text);
        f.respond(types);
        assert!(f.upstream.health.is_init());
        f
    }

    pub(super) fn open(&mut self) {
        self.upstream.open();
        self.view.follow(&self.upstream.health);
    }

    pub(super) fn commit(&self, text: &str) {
        commit(&self.cache, text);
        self.view.follow(&self.upstream.health);
    }

    pub(super) fn respond(&mut self, types: &str) {
        self.upstream.respond(types);
        self.view.follow(&self.upstream.health);
    }

    pub(super) fn reject(&mut self, of: &str) {
        self.upstream.reject(of);
        self.view.follow(&self.upstream.health);
    }

    /// Loses the stream for a reason that has to do with no type.
    pub(super) fn lose(&mut self) {
        self.upstream.end(Code::UNAVAILABLE);
        self.view.follow(&self.upstream.health);
    }

    /// Lets the timers end.
    pub(super) fn pass(&mut self) {
        self.upstream.pass(15);
        self.view.follow(&self.upstream.health);
    }

    pub(super) fn watch(&self, types: &str) -> ViewWatch {
        self.try_watch(types, false).unwrap()
    }

    pub(super) fn try_watch(&self, types: &str, allow_rejected_types: bool) -> Result<ViewWatch, ViewError> {
        self.view.watch(request(types, allow_rejected_types))
    }

    /// Content and name of what a type has for some parameters, or where reads of it go.
    pub(super) fn read(&self, letter: &str, name: &str, text: &str) -> String {
        shown_read(&self.guard(letter), name, text)
    }

    pub(super) fn guard(&self, letter: &str) -> ReadGuard<Raw> {
        self.view.read_raw(&url(letter))
    }
}

pub(super) fn request(types: &str, allow_rejected_types: bool) -> ViewRequest {
    let types = types.split_whitespace().map(url).collect();
    ViewRequest { types, allow_rejected_types, previously_rejected: Vec::new() }
}

pub(super) fn status_of(letter: &str) -> Status {
    Status { code: Code(12), message: format!("what is {letter}?").into() }
}

pub(super) fn shown_read(guard: &ReadGuard<Raw>, name: &str, text: &str) -> String {
    match guard.route() {
        ReadRoute::Cache(resources) => {
            let found = resources.get_with(name, &parameters(text)).unwrap();
            found.map_or_else(|| "-".into(), |found| content(guard.type_url(), found.variant()))
        }
        ReadRoute::Upstream(status) => format!("upstream {}", status.code),
    }
}

fn content(type_url: &TypeUrl, variant: &Variant) -> String {
    let name = variant.name().as_str();
    let is_it = |content: &String| payload(type_url.message_name(), name, content) == *variant.payload();
    (0..10).map(|content: u8| content.to_string()).find(is_it).expect("contents are digits")
}

/// All events of a watch so far: `1: a !b` is an Init, `?a` a reclassification, `{+a x=1 -a
/// y[env=p]}` changes, then the end if it ended.
pub(super) fn reported(watch: &mut ViewWatch) -> String {
    let mut reported = Vec::new();
    loop {
        match watch.poll_event(&Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(event))) => reported.push(shown(&event)),
            Poll::Ready(Some(Err(error))) => reported.push(format!("failed: {error}")),
            Poll::Ready(None) => {
                reported.push("end".into());
                break;
            }
            Poll::Pending => break,
        }
    }
    reported.join(", ")
}

fn shown(event: &ViewEvent) -> String {
    let when = |constraints: &crate::Constraints| match constraints.is_unconstrained() {
        true => String::new(),
        false => format!("[{constraints}]"),
    };
    let change = |change: &ViewChange| match change {
        ViewChange::Put { type_url, variant } => {
            let (of, name, when) = (type_url.message_name(), variant.name(), when(variant.constraints()));
            format!("+{of} {name}{when}={}", content(type_url, variant))
        }
        ViewChange::Removed(id) => {
            format!("-{} {}{}", id.type_url.message_name(), id.name, when(&id.constraints))
        }
    };
    match event {
        ViewEvent::Init(init) => shown_init(init),
        ViewEvent::Reclassified { type_url, state } => shown_state(type_url, state),
        ViewEvent::Changes(changes) => {
            format!("{{{}}}", changes.iter().map(change).collect::<Vec<_>>().join(" "))
        }
    }
}

/// Counts how often a task is woken.
#[derive(Debug, Default)]
pub(super) struct Wakes(AtomicUsize);

impl Wakes {
    /// Since the last call.
    pub(super) fn taken(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
