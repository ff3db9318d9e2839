//! What a client of our library has of one resource, and how often it had none.

use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;
use xds_client::{Client, Event, ResourceType};

/// It is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    seen: Arc<Mutex<Seen<T>>>,
    watching: JoinHandle<()>,
}

#[derive(Debug)]
struct Seen<T> {
    value: Option<T>,
    /// How often it had a value and lost it.
    lost: usize,
}

impl<T> Watched<T>
where
    T: ResourceType + Clone,
{
    pub(crate) fn start(client: &Client, name: &str) -> Self {
        let mut watcher = client.watch::<T>(name).expect("a name");
        let seen = Arc::new(Mutex::new(Seen { value: None, lost: 0 }));
        let noted = Arc::clone(&seen);
        let watching = tokio::spawn(async move {
            while let Some(event) = watcher.next().await {
                let mut seen = noted.lock().expect("no holder panics");
                match event {
                    Event::Changed(resource) => seen.value = Some(T::clone(resource.value())),
                    Event::Absent(_) => seen.lost += usize::from(seen.value.take().is_some()),
                    Event::Ambient(_) => {}
                }
            }
        });
        Self { seen, watching }
    }

    pub(crate) fn value(&self) -> Option<T> {
        self.seen.lock().expect("no holder panics").value.clone()
    }

    pub(crate) fn lost(&self) -> usize {
        self.seen.lock().expect("no holder panics").lost
    }
}

impl<T> Drop for Watched<T> {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
