//! What becomes of all commits, as a bounded stream of events.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use atomic_waker::AtomicWaker;

use super::delivery::{ClientName, Outcome};
use super::{Cache, lock};
use crate::name::{Revision, TypeUrl};

/// Something that one stream of a client said about what it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryEvent {
    /// How many events were dropped before this one because nobody read them.
    pub lost: u64,
    /// The client.
    pub client: ClientName,
    /// The type it is about.
    pub type_url: TypeUrl,
    /// The commit up to which all is ACKed; of a [`Outcome::Nacked`] the last one that was rejected.
    pub revision: Revision,
    /// Never pending or late.
    pub outcome: Outcome,
}

/// A reader of [`DeliveryEvent`]s; dropping it ends them. Made by [`Cache::deliveries`].
#[derive(Debug)]
pub struct Deliveries(Arc<Queue>);

impl Cache {
    /// Tells of every ACK that completes something, every NACK and every stream that ends, from now on. Holds `capacity`
    /// events (at least one) for who is slow to read them, then drops the oldest.
    #[must_use]
    pub fn deliveries(&self, capacity: usize) -> Deliveries {
        let capacity = capacity.max(1);
        let queue = Arc::new(Queue { capacity, state: Mutex::default(), waker: AtomicWaker::new() });
        self.hub.add(&queue);
        Deliveries(queue)
    }
}

impl Deliveries {
    /// The next event; `None` when there will be none, because the cache is gone. Needs no runtime, and dropping the
    /// future loses nothing.
    pub async fn next(&mut self) -> Option<DeliveryEvent> {
        poll_fn(|cx| {
            self.0.waker.register(cx.waker());
            let mut state = lock(&self.0.state);
            match state.events.pop_front() {
                Some(event) => {
                    let lost = std::mem::take(&mut state.lost);
                    Poll::Ready(Some(DeliveryEvent { lost, ..event }))
                }
                None if state.is_closed => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// The readers.
#[derive(Debug, Default)]
pub(super) struct Hub {
    readers: AtomicUsize,
    queues: Mutex<Vec<Weak<Queue>>>,
}

#[derive(Debug)]
struct Queue {
    capacity: usize,
    state: Mutex<State>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<DeliveryEvent>,
    lost: u64,
    is_closed: bool,
}

impl Hub {
    /// Whether there is anybody to tell.
    pub(super) fn has_readers(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0
    }

    fn add(&self, queue: &Arc<Queue>) {
        let mut queues = lock(&self.queues);
        queues.push(Arc::downgrade(queue));
        self.readers.store(queues.len(), Ordering::Relaxed);
    }

    pub(super) fn send(&self, events: Vec<DeliveryEvent>) {
        if events.is_empty() {
            return;
        }
        let mut queues = lock(&self.queues);
        queues.retain(|queue| match queue.upgrade() {
            Some(queue) => {
                queue.push(&events);
                true
            }
            None => false,
        });
        self.readers.store(queues.len(), Ordering::Relaxed);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for queue in lock(&self.queues).iter().filter_map(Weak::upgrade) {
            lock(&queue.state).is_closed = true;
            queue.waker.wake();
        }
    }
}

impl Queue {
    fn push(&self, events: &[DeliveryEvent]) {
        let mut state = lock(&self.state);
        for event in events {
            if state.events.len() == self.capacity {
                state.events.pop_front();
                state.lost += 1;
            }
            state.events.push_back(event.clone());
        }
        drop(state);
        self.waker.wake();
    }
}
