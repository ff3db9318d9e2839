//! Copies that the region of their owner does not hold (SR51).
//!
//! A node of that region may have lost the record itself, and gets it back from the others there. So a copy goes
//! once two comparisons in a row found that the node lacks it.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{Action, Replica};
use crate::record::RecordState;

/// What one comparison finds.
#[derive(Debug, Default)]
pub(super) struct Removing {
    /// The peer has all names of its region.
    is_whole: bool,
    /// Of the page: what only this node has.
    own: BTreeMap<Vec<u8>, proto::RecordDigest>,
    lacked: Vec<proto::RecordDigest>,
}

/// What peers lacked in their last comparisons, by address: keys and revisions.
#[derive(Debug, Default)]
pub(super) struct Lacked(BTreeMap<String, BTreeSet<Vec<u8>>>);

impl Lacked {
    pub(super) fn forget(&mut self, address: &str) {
        self.0.remove(address);
    }
}

impl Removing {
    pub(super) fn begin(&mut self, theirs: &proto::DigestResponse) {
        self.is_whole = !theirs.is_fetching;
    }

    /// Takes a page of records.
    pub(super) fn note_own(&mut self, own: &[proto::RecordDigest], theirs: &[proto::RecordDigest]) {
        let key = |record: &proto::RecordDigest| {
            record.key.as_ref().map(Message::encode_to_vec).unwrap_or_default()
        };
        self.own = own.iter().map(|record| (key(record), record.clone())).collect();
        theirs.iter().for_each(|record| _ = self.own.remove(&key(record)));
    }

    /// Takes what the peer has of these keys.
    pub(super) fn note_lacked(&mut self, keys: &[proto::Key], found: &[RecordState], is_proof: bool) {
        let is_found = |key: &proto::Key| found.iter().any(|state| state.key.as_ref() == Some(key));
        for key in keys.iter().filter(|key| is_proof && self.is_whole && !is_found(key)) {
            let own = self.own.get(&key.encode_to_vec()).filter(|_| self.lacked.len() < LACKED);
            self.lacked.extend(own.cloned());
        }
    }
}

impl Replica {
    /// Removes what the peer lacks once more. The answer is whether it lacks something for the first time.
    pub(super) fn remove_lacked(&mut self, address: &str, removing: Removing) -> bool {
        let region = self.peers.get(address).map(|peer| peer.region().to_owned()).unwrap_or_default();
        let lacked = self.comparing.lacked();
        let before = lacked.0.remove(address).unwrap_or_default();
        // Nodes of one region tell each other of all deletions.
        if region.is_empty() || region == self.config.hello.region {
            return false;
        }
        let is_known = |record: &proto::RecordDigest| before.contains(&record.encode_to_vec());
        let (again, first): (Vec<_>, Vec<_>) = removing.lacked.into_iter().partition(is_known);
        let is_lacking = !first.is_empty();
        if is_lacking {
            lacked.0.insert(address.to_owned(), first.iter().map(Message::encode_to_vec).collect());
        }
        if !again.is_empty() {
            self.actions.push(Action::Remove(region, again));
        }
        is_lacking
    }
}

/// How many records one comparison removes at most. The next ones find the rest.
const LACKED: usize = 1_000;
