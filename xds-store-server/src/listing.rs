//! Lists of a running store, in steps.

use std::cell::Cell;
use std::sync::Arc;

use prost::Message;
use tonic::Status;
use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::read::{Filter, Knows, ListQuery, NextPage, PageToken, Payload, Reads};

use crate::access::Caller;
use crate::reading::{Reading, failed, now};

/// A list at one store revision.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) reading: Reading,
    pub(crate) caller: Caller,
    pub(crate) filter: Arc<Filter>,
    pub(crate) payload: Payload,
    pub(crate) knows: Arc<Knows>,
    /// The store revision.
    pub(crate) at: u64,
    /// The last key that was read.
    pub(crate) after: Option<RecordKey>,
    /// Whether records were left out, because the client may not read them (ST53).
    pub(crate) has_left_out: bool,
}

/// A page of a list.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) records: Vec<proto::Record>,
    /// The token of the next page; `None` if this is the last one.
    pub(crate) token: Option<String>,
}

impl Listing {
    /// The next page, of at most this many records, which ends at this size.
    ///
    /// It is read in steps, and each step is a turn of its own: so many long lists delay no short
    /// read, and the list of a client that left ends.
    pub(crate) async fn page(&mut self, limit: usize, page_bytes: usize) -> Result<Page, Status> {
        let mut page = Page::default();
        let mut bytes = 0;
        loop {
            let (filter, caller, payload, at) =
                (Arc::clone(&self.filter), self.caller.clone(), self.payload, self.at);
            let (after, taken) = (self.after.clone(), page.records.len());
            let (standing, knows) = (self.reading.standing(), Arc::clone(&self.knows));
            let limit_bytes = page_bytes.saturating_sub(bytes);
            let step = move |reads: &Reads<'_>| {
                let has_left_out = Cell::new(false);
                let query = ListQuery {
                    filter: &filter,
                    at,
                    now: now(),
                    may_read: &|key| {
                        let may_read = caller.may_read(key);
                        has_left_out.set(has_left_out.get() | !may_read);
                        may_read
                    },
                    knows: &knows,
                    after: after.as_ref(),
                    taken,
                    limit,
                    limit_bytes,
                    scan_limit: STEP,
                };
                let failed = |error| failed(&error, &standing);
                let found = reads.list(query).map_err(failed)?;
                let last = found.records.last().map(|version| version.key.clone());
                let (after, is_full) = match found.next {
                    None => (None, false),
                    Some(NextPage::Scanned(key)) => (Some(key), false),
                    Some(NextPage::Full) => (last.or(after), true),
                };
                let records: Result<Vec<_>, _> =
                    found.records.iter().map(|version| reads.answer_to(version, payload, &knows)).collect();
                let token = after.clone().filter(|_| is_full);
                let token = token.map(|after| PageToken::new(at, after, &filter).to_text(reads));
                Ok((records.map_err(failed)?, after, token, has_left_out.get()))
            };
            let (records, after, token, has_left_out) = self.reading.local(step).await?;
            self.has_left_out |= has_left_out;
            bytes += records.iter().map(Message::encoded_len).sum::<usize>();
            page.records.extend(records);
            let is_end = after.is_none();
            self.after = after;
            if is_end || token.is_some() {
                page.token = token;
                return Ok(page);
            }
        }
    }
}

/// A page ends at this size, so that clients with the default limit of gRPC (4 MiB) can read it.
pub(crate) const PAGE_BYTES: usize = 1 << 20;
/// Keys or commits that are read in one piece, before other calls get a turn.
pub(crate) const STEP: usize = 10_000;
