//! The answer to a pull: entries, in messages.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use prost::Message;
use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Clock;
use xds_store::engine::View;
use xds_store::entry::Foreign;
use xds_store::read::{ReadError, Reads};
use xds_store::store::{Lacking, OutOfSync};

/// What a caller gets. The entries are read while they are sent.
#[derive(Debug)]
pub(crate) struct Pulled {
    view: Box<dyn View>,
    /// Of the caller.
    region: String,
    /// The revisions of entries that were not read yet, the oldest first: so no origin waits for another
    /// one, and those of each origin are in order (SR11).
    revisions: VecDeque<u64>,
    /// What of a round is in its last message.
    last: proto::PullResponse,
    /// What is sent next.
    part: proto::PullResponse,
    part_bytes: usize,
    /// The rest of an entry that is larger than a message.
    rest: VecDeque<proto::Entry>,
    /// How many bytes this round may still have; a first entry may be larger (SR12).
    room: usize,
    is_first: bool,
    is_done: bool,
}

impl Pulled {
    pub(crate) fn new(
        (view, region): (Box<dyn View>, String),
        lacking: Lacking,
        (node, clock): (String, &Clock),
        others: BTreeMap<String, proto::Clock>,
        (phases, schemas): (BTreeMap<u32, u32>, Vec<proto::Knows>),
        room: usize,
    ) -> Self {
        let Lacking { mut revisions, is_behind, out_of_sync, forked, .. } = lacking;
        revisions.sort_unstable();
        let to_wire =
            |OutOfSync { origin, floor, must_replace, .. }| proto::OutOfSync { origin, floor, must_replace };
        let out_of_sync = out_of_sync.into_iter().map(to_wire).collect();
        Self {
            view,
            region,
            revisions: revisions.into(),
            last: proto::PullResponse {
                is_last: true,
                is_behind,
                clock: clock.to_wire(),
                node,
                others,
                phases,
                schemas,
                ..Default::default()
            },
            part: proto::PullResponse { out_of_sync, forked, ..Default::default() },
            part_bytes: 0,
            rest: VecDeque::new(),
            room,
            is_first: true,
            is_done: false,
        }
    }

    /// The next message; `None` after the last one.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) fn next(&mut self) -> Result<Option<proto::PullResponse>, ReadError> {
        self.part.is_fetching = Reads::new(&*self.view)?.is_fetching()?;
        // SV42: the caller knows them before it has the entries.
        self.part.phases.clone_from(&self.last.phases);
        while let Some(entry) = self.rest.pop_front() {
            let is_whole = !entry.more;
            self.add(entry);
            if !is_whole {
                return Ok(Some(self.take()));
            }
        }
        while let Some(revision) = self.revisions.pop_front() {
            match Reads::new(&*self.view)?.foreign_in(&self.region, revision)? {
                Foreign::Skip(skip) => {
                    self.part_bytes += skip.encoded_len();
                    self.part.skips.push(skip);
                }
                Foreign::Entry(entry) => {
                    let bytes = entry.encoded_len();
                    if bytes > self.room && !self.is_first {
                        self.last.is_behind = true;
                        self.revisions.clear();
                        break;
                    }
                    self.room = self.room.saturating_sub(bytes);
                    self.is_first = false;
                    if bytes > PART_BYTES {
                        self.rest = split(entry);
                        // What came before is in a message of its own.
                        return if self.part_bytes > 0 { Ok(Some(self.take())) } else { self.next() };
                    }
                    self.add(entry);
                }
            }
            if self.part_bytes >= PART_BYTES {
                return Ok(Some(self.take()));
            }
        }
        if std::mem::replace(&mut self.is_done, true) {
            return Ok(None);
        }
        let part = self.take();
        let last = std::mem::take(&mut self.last);
        Ok(Some(proto::PullResponse {
            entries: part.entries,
            skips: part.skips,
            out_of_sync: part.out_of_sync,
            forked: part.forked,
            is_fetching: part.is_fetching,
            ..last
        }))
    }

    fn add(&mut self, entry: proto::Entry) {
        self.part_bytes += entry.encoded_len();
        self.part.entries.push(entry);
    }

    fn take(&mut self) -> proto::PullResponse {
        self.part_bytes = 0;
        std::mem::take(&mut self.part)
    }
}

/// SR12, SR13: an entry in several messages, the last of which has no `more`.
fn split(entry: proto::Entry) -> VecDeque<proto::Entry> {
    let states = entry.states.clone();
    let head = proto::Entry { states: Vec::new(), ..entry };
    let mut parts = VecDeque::from([head.clone()]);
    let mut bytes = 0;
    for state in states {
        let of_state = state.encoded_len();
        if bytes > 0 && bytes + of_state > PART_BYTES {
            parts.push_back(head.clone());
            bytes = 0;
        }
        bytes += of_state;
        parts.back_mut().expect("there is one").states.push(state);
    }
    let last = parts.len() - 1;
    parts.iter_mut().take(last).for_each(|part| part.more = true);
    parts
}

/// The size of a message; one record may be larger.
const PART_BYTES: usize = 1 << 20;
