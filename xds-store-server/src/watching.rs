//! Watches of a running store.
//!
//! ```text
//! Snapshot -> SnapshotEnd -> Changes
//!             (`after`) ----^
//! ```
//!
//! A watch is a position in the log (ST32). It reads the next part when the client has taken the
//! last one: HTTP/2 asks for a message only when it can send it. So a slow client costs one small
//! message of memory.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::watch_response::Part;
use xds_store::read::{EventQuery, Filter, Knows, Payload, Position, ReadError, Reads};

use crate::access::Caller;
use crate::listing::{Listing, STEP};
use crate::reading::{Reading, failed, printed};
use crate::standing::Standing;
use crate::status::{invalid, lacks, not_ready};
use crate::watches::WatchPlace;

/// A watch of one client.
#[derive(Debug)]
pub(crate) struct Watching {
    reading: Reading,
    caller: Caller,
    filter: Arc<Filter>,
    payload: Payload,
    knows: Arc<Knows>,
    standing: watch::Receiver<Standing>,
    phase: Phase,
    position: Position,
    /// The last message ended inside a revision.
    was_partial: bool,
}

#[derive(Debug)]
enum Phase {
    Snapshot(Listing),
    SnapshotEnd { left_out: bool },
    Changes,
}

/// The intervals of a watch.
#[derive(Debug, Clone, Copy)]
struct Timers {
    bookmark_every: Duration,
    bookmark_at: Instant,
    authorize_every: Duration,
}

impl Watching {
    /// Begins with what is there.
    pub(crate) async fn with_snapshot(
        reading: Reading,
        caller: Caller,
        filter: Arc<Filter>,
        (payload, knows): (Payload, Arc<Knows>),
    ) -> Result<Self, Status> {
        let at = reading.local(|reads| Ok(reads.head().revision)).await?;
        let listing = Listing {
            reading: reading.clone(),
            caller: caller.clone(),
            filter: Arc::clone(&filter),
            payload,
            knows: Arc::clone(&knows),
            at,
            after: None,
            has_left_out: false,
        };
        Ok(Self::new(reading, caller, (filter, payload, knows), Phase::Snapshot(listing), at))
    }

    /// Goes on behind a printed revision (ST28).
    pub(crate) async fn after(
        reading: Reading,
        caller: Caller,
        filter: Arc<Filter>,
        (payload, knows): (Payload, Arc<Knows>),
        after: String,
    ) -> Result<Self, Status> {
        let standing = reading.standing();
        let position = move |reads: &Reads<'_>| {
            let position = reads.parse(&after).and_then(|position| reads.check(position).map(|()| position));
            position.map_err(|error| match error {
                // ST30: a revision that this store does not have.
                ReadError::Revision(_) | ReadError::Ahead { .. } => invalid("after", error.to_string()),
                error => failed(&error, &standing),
            })
        };
        let position = reading.local(position).await?;
        Ok(Self::new(reading, caller, (filter, payload, knows), Phase::Changes, position))
    }

    fn new(
        reading: Reading,
        caller: Caller,
        (filter, payload, knows): (Arc<Filter>, Payload, Arc<Knows>),
        phase: Phase,
        at: u64,
    ) -> Self {
        let standing = reading.store.standing();
        let position = Position::after(at);
        Self { reading, caller, filter, payload, knows, standing, phase, position, was_partial: false }
    }

    /// The messages of the watch. They hold its place among the watches until they are dropped.
    pub(crate) fn into_stream(
        self,
        (bookmark_every, authorize_every): (Duration, Duration),
        place: WatchPlace,
    ) -> Pin<Box<dyn Stream<Item = Result<proto::WatchResponse, Status>> + Send>> {
        let timers = Timers { bookmark_every, bookmark_at: Instant::now() + bookmark_every, authorize_every };
        Box::pin(unfold(Some((self, timers, place)), async |state| {
            let (mut watching, mut timers, place) = state?;
            let message = watching.next(timers).await;
            timers.bookmark_at = Instant::now() + timers.bookmark_every;
            let state = message.is_ok().then_some((watching, timers, place));
            Some((message, state))
        }))
    }

    /// Waits for the next message.
    async fn next(&mut self, timers: Timers) -> Result<proto::WatchResponse, Status> {
        loop {
            // ST53.
            if !self.caller.is_unchanged() {
                let message = "the rights of this client have changed: watch again";
                return Err(lacks("read", None, message));
            }
            match &mut self.phase {
                Phase::Snapshot(listing) => {
                    let page = listing.page(SNAPSHOT_PAGE, MESSAGE_BYTES).await?;
                    if page.token.is_none() {
                        self.phase = Phase::SnapshotEnd { left_out: listing.has_left_out };
                    }
                    if !page.records.is_empty() {
                        return Ok(snapshot(page.records));
                    }
                }
                &mut Phase::SnapshotEnd { left_out } => {
                    self.phase = Phase::Changes;
                    let message = self.message(Part::SnapshotEnd, Vec::new());
                    return Ok(proto::WatchResponse { left_out, ..message });
                }
                Phase::Changes => {
                    if let Some(message) = self.change(timers).await? {
                        return Ok(message);
                    }
                }
            }
        }
    }

    /// The next changes or a bookmark; `None` if it is time to check the rights.
    async fn change(&mut self, timers: Timers) -> Result<Option<proto::WatchResponse>, Status> {
        let standing = self.standing.borrow_and_update().clone();
        if self.position.revision() < standing.revision() {
            let (filter, caller, payload) = (Arc::clone(&self.filter), self.caller.clone(), self.payload);
            let (mut position, knows) = (self.position.clone(), Arc::clone(&self.knows));
            let read = move |reads: &Reads<'_>| {
                let query = EventQuery {
                    filter: &filter,
                    may_read: &|key| caller.may_read(key),
                    payload,
                    knows: &knows,
                    limit: EVENTS,
                    limit_bytes: MESSAGE_BYTES,
                    scan_limit: STEP,
                };
                let read = reads.events(&mut position, query).map_err(|error| failed(&error, &standing))?;
                Ok((read, position))
            };
            let (read, position) = self.reading.local(read).await?;
            self.position = position;
            let was_partial = std::mem::replace(&mut self.was_partial, read.is_partial);
            let ends_part = was_partial && !read.is_partial;
            if read.events.is_empty() && !ends_part {
                // ST29: nothing of it is for this watch, so a bookmark says where it can be resumed.
                return Ok((Instant::now() >= timers.bookmark_at && !read.is_partial)
                    .then(|| self.message(Part::Bookmark, Vec::new())));
            }
            return Ok(Some(self.message(Part::Changes, read.events)));
        }
        if self.reading.store.ends_watches(standing.condition) {
            return Err(self.ended());
        }
        let authorize_at = Instant::now() + timers.authorize_every;
        tokio::select! {
            changed = self.standing.changed() => match changed {
                Ok(()) => Ok(None),
                Err(_) => Err(self.ended()),
            },
            () = sleep_until(timers.bookmark_at.min(authorize_at)) => {
                let is_due = Instant::now() >= timers.bookmark_at;
                Ok(is_due.then(|| self.message(Part::Bookmark, Vec::new())))
            }
        }
    }

    /// UNAVAILABLE, with the reason and the revision from which the watch can be resumed.
    fn ended(&self) -> Status {
        let standing = self.standing.borrow();
        let (reason, revision) = (&standing.reason, printed(&standing, self.position.revision()));
        let message = format!("{reason}: resume after {revision}, here later or at another server");
        not_ready(&standing, message)
    }

    fn message(&self, part: Part, events: Vec<proto::Event>) -> proto::WatchResponse {
        let revision = match self.was_partial {
            true => String::new(),
            false => printed(&self.standing.borrow(), self.position.revision()),
        };
        proto::WatchResponse { part: part.into(), events, revision, more: self.was_partial, left_out: false }
    }
}

fn snapshot(records: Vec<proto::Record>) -> proto::WatchResponse {
    let put = |record| proto::Event { kind: proto::event::Kind::Put.into(), record: Some(record) };
    let events = records.into_iter().map(put).collect();
    proto::WatchResponse { part: Part::Snapshot.into(), events, ..proto::WatchResponse::default() }
}

/// A message ends at this size. A client that reads nothing costs this about three times: decoded, encoded, and in the
/// buffer of its connection.
const MESSAGE_BYTES: usize = 64 << 10;
/// Records of a message of a snapshot.
const SNAPSHOT_PAGE: usize = 1_000;
/// Events of a message.
const EVENTS: usize = 1_000;
