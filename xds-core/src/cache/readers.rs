//! Bounded queues of events, one for each reader.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use atomic_waker::AtomicWaker;

use super::lock;

/// The readers of events. A reader leaves by dropping its queue.
#[derive(Debug)]
pub(super) struct Readers<E> {
    count: AtomicUsize,
    queues: Mutex<Vec<Weak<Queue<E>>>>,
}

/// The events that one reader has not read yet.
#[derive(Debug)]
pub(super) struct Queue<E> {
    capacity: usize,
    state: Mutex<QueueState<E>>,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct QueueState<E> {
    events: VecDeque<E>,
    /// How many events were dropped since the last one that was read.
    lost: u64,
    is_closed: bool,
}

impl<E: Clone> Readers<E> {
    /// Whether there is any reader. Costs one load.
    pub(super) fn are_there(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn add(&self, capacity: usize) -> Arc<Queue<E>> {
        let queue = Queue::new(capacity);
        let mut queues = lock(&self.queues);
        queues.push(Arc::downgrade(&queue));
        self.count.store(queues.len(), Ordering::Relaxed);
        queue
    }

    pub(super) fn send(&self, events: Vec<E>) {
        if events.is_empty() {
            return;
        }
        let mut queues = lock(&self.queues);
        queues.retain(|queue| match queue.upgrade() {
            Some(queue) => {
                queue.push(events.iter().cloned());
                true
            }
            None => false,
        });
        self.count.store(queues.len(), Ordering::Relaxed);
    }
}

impl<E> Default for Readers<E> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), queues: Mutex::default() }
    }
}

impl<E> Drop for Readers<E> {
    fn drop(&mut self) {
        for queue in lock(&self.queues).iter().filter_map(Weak::upgrade) {
            lock(&queue.state).is_closed = true;
            queue.waker.wake();
        }
    }
}

impl<E> Queue<E> {
    /// Stores up to `capacity` events (at least one), then drops the oldest.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        let state = Mutex::new(QueueState { events: VecDeque::new(), lost: 0, is_closed: false });
        Arc::new(Self { capacity: capacity.max(1), state, waker: AtomicWaker::new() })
    }

    /// The next event, with the number of events that were dropped before it; `None` after the last
    /// event of a closed queue.
    pub(super) async fn next(&self) -> Option<(u64, E)> {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            let mut state = lock(&self.state);
            match state.pop() {
                Some(event) => Poll::Ready(Some(event)),
                None if state.is_closed => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// As [`next`](Self::next), but `None` when there is no event yet.
    pub(super) fn try_next(&self) -> Option<(u64, E)> {
        lock(&self.state).pop()
    }

    pub(super) fn push(&self, events: impl Iterator<Item = E>) {
        let mut state = lock(&self.state);
        for event in events {
            if state.events.len() == self.capacity {
                state.events.pop_front();
                state.lost += 1;
            }
            state.events.push_back(event);
        }
        drop(state);
        self.waker.wake();
    }
}

impl<E> QueueState<E> {
    fn pop(&mut self) -> Option<(u64, E)> {
        let event = self.events.pop_front()?;
        Some((std::mem::take(&mut self.lost), event))
    }
}
