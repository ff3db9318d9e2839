//! Lists: records in the order of their keys, in pages of one store revision.

use std::ops::ControlFlow;

use prost::Message;

use super::{Filter, Knows, ReadError, Reads, RecordVersion};
use crate::key::RecordKey;

/// What a page of a list has.
#[derive(Clone, Copy)]
pub struct ListQuery<'q> {
    /// The records to list.
    pub filter: &'q Filter,
    /// The store revision.
    pub at: u64,
    /// The time, in nanoseconds since 1970: expired records are left out.
    pub now: i64,
    /// Keys that the caller may read; others are left out (ST53).
    pub may_read: &'q dyn Fn(&RecordKey) -> bool,
    /// The versions that the caller understands.
    pub knows: &'q Knows,
    /// Only keys behind this one.
    pub after: Option<&'q RecordKey>,
    /// How many records of the page earlier calls have read.
    pub taken: usize,
    /// The most records of the page.
    pub limit: usize,
    /// The most bytes of this call. One record is in a page whatever its size.
    pub limit_bytes: usize,
    /// The most keys to read. So a call ends soon also when few records match.
    pub scan_limit: usize,
}

/// A page of a list.
#[derive(Debug, Default)]
pub struct ListPage {
    /// The records, in the order of keys.
    pub records: Vec<RecordVersion>,
    /// Where the list goes on; `None` at its end.
    pub next: Option<NextPage>,
}

/// Where a list goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextPage {
    /// The page is full, and more records match behind its last one.
    Full,
    /// The scan limit was reached at this key. The caller may not be allowed to read it.
    Scanned(RecordKey),
}

impl Reads<'_> {
    /// A page of a list (ST26).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn list(&self, query: ListQuery<'_>) -> Result<ListPage, ReadError> {
        self.check(query.at)?;
        let mut page = ListPage::default();
        let (mut last, mut failed) = (None, None);
        let (mut bytes, mut scanned) = (0, 0);
        let policies = self.policies()?;
        for (from, to) in query.filter.ranges(query.after) {
            self.newest_of_each((&from, &to), query.at, &mut |version| {
                if scanned == query.scan_limit {
                    page.next = last.take().map(NextPage::Scanned);
                    return ControlFlow::Break(());
                }
                scanned += 1;
                let key = version.key.clone();
                let is_shown = match self.is_shown(&key, &version.state, query.at) {
                    Ok(is_shown) => is_shown,
                    Err(error) => {
                        failed = Some(error);
                        return ControlFlow::Break(());
                    }
                };
                if is_shown
                    && query.filter.matches_key(&key, policies)
                    && version.exists(query.now)
                    // SV36.
                    && self.is_readable(&key, &version.state, query.knows)
                    && query.filter.matches(&version.state)
                    && (query.may_read)(&key)
                {
                    bytes += version.state.encoded_len();
                    let taken = query.taken + page.records.len();
                    if taken >= query.limit || (bytes > query.limit_bytes && taken > 0) {
                        page.next = Some(NextPage::Full);
                        return ControlFlow::Break(());
                    }
                    page.records.push(version);
                }
                last = Some(key);
                ControlFlow::Continue(())
            })?;
            failed.take().map_or(Ok(()), Err)?;
            if page.next.is_some() {
                break;
            }
        }
        Ok(page)
    }
}

impl std::fmt::Debug for ListQuery<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListQuery").field("at", &self.at).field("after", &self.after).finish_non_exhaustive()
    }
}
