//! A new id for this node (SR29, SR31).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::staging::Alone;
use super::{LoadError, Store, Ticket, Writing};
use crate::checked::{self, Damaged};
use crate::engine::{Batch, View};
use crate::key::stored;
use crate::log::{Head, StoredOrigin};

impl Store {
    /// The batch that gives another id to a store that nobody has open, such as one in a copied folder, and the head
    /// with it. Another node may go on with the former id, so all that the log has of it is owed (SR31).
    ///
    /// `gives_up_deletions`: deletions that are forgotten here, and that a peer lacks, do not count any more. The
    /// resources come back from that peer. Without it, a node and a peer that each have forgotten deletions which
    /// the other one lacks take nothing from each other (SR22).
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn rename(view: &dyn View, id: &str, gives_up_deletions: bool) -> Result<(Batch, Head), LoadError> {
        let (former, revision) = Self::read_head(view)?;
        let mut writing = Writing::new(former.clone(), Some(revision), 0);
        let mut origins = stored_origins(view)?;
        if former.counter > 0 {
            let of_former = origins.entry(stored::origin(&former.node)).or_default();
            (of_former.counter, of_former.chain) = (former.counter, former.chain.clone());
            of_former.region.clone_from(&former.region);
        }
        if gives_up_deletions {
            origins.values_mut().for_each(|origin| origin.deletion_floor = 0);
        }
        for (at, origin) in origins {
            let value = checked::encode(&at, &origin);
            writing.write(at, value);
        }
        writing.take_id(id);
        // A node that has no snapshot yet has nothing that anybody could lack (SR24).
        let owes = !former.is_joining;
        (writing.head.owes_reissue, writing.head.owes_log) = (owes, owes);
        writing.seal();
        Ok((writing.batch, writing.head))
    }

    /// The batch that makes the node a replica of its region, or its writer (SG22), and the head with it. Nobody may
    /// have the store open.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn with_replica(view: &dyn View, is_replica: bool) -> Result<(Batch, Head), LoadError> {
        let (head, revision) = Self::read_head(view)?;
        // SG34: another node may have been the writer meanwhile.
        let blocked_by = Bytes::new();
        let was_replica = head.is_replica;
        let mut head = Head { is_replica, blocked_by, ..head };
        match (is_replica, was_replica) {
            (true, _) => head.hears_until = 0,
            // Only the writer before knows what other regions refer to.
            (false, true) => head.hear_again(),
            (false, false) => {}
        }
        let mut writing = Writing::new(head, Some(revision), 0);
        writing.seal();
        Ok((writing.batch, writing.head))
    }

    /// Whether the node took its id, and has not given to others yet what they lack of its former one (SR31).
    #[must_use]
    pub fn owes_reissue(&self) -> bool {
        self.head.owes_reissue
    }

    pub(super) fn take_new_id(&mut self, ticket: Ticket, id: String) {
        self.take_id = Some((ticket, id));
    }

    /// Adds the id that waits. The former one is that of another origin from now on, of which this node has what
    /// it wrote itself.
    pub(super) fn add_id(&self, writing: &mut Writing) {
        let Some((_, id)) = &self.take_id else { return };
        let former = &self.head.node;
        if self.head.counter > 0 {
            let at = stored::origin(former);
            let value = checked::encode(
                &at,
                &self.origins.stored(former, self.origins.position(former), &self.head.region),
            );
            writing.write(at, value);
        }
        writing.take_id(id);
        (writing.head.owes_reissue, writing.head.owes_log) = (true, true);
        writing.alone = Some(Alone::Id);
    }
}

/// What the engine keeps of each origin, by its key there.
fn stored_origins(view: &dyn View) -> Result<BTreeMap<Bytes, StoredOrigin>, LoadError> {
    let (mut origins, mut damaged) = (BTreeMap::new(), None);
    view.range(
        stored::ORIGINS.0,
        stored::ORIGINS.1,
        &mut |at, value| match checked::decode(at, value.bytes) {
            Ok(origin) => {
                origins.insert(Bytes::copy_from_slice(at), origin);
                ControlFlow::Continue(())
            }
            Err(found) => {
                damaged = Some(found);
                ControlFlow::Break(())
            }
        },
    )?;
    damaged.map_or(Ok(origins), |damaged: Damaged| Err(damaged.into()))
}

impl Writing {
    /// SR31: the former id is remembered. The numbers of the new one begin at 1 (SR4).
    pub(super) fn take_id(&mut self, id: &str) {
        let former = std::mem::replace(&mut self.head.node, id.to_owned());
        self.head.former_nodes.push(former);
        (self.head.counter, self.head.chain) = (0, Bytes::new());
        self.head.hear_again();
    }
}
