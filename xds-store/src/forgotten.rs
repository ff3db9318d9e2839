//! Nodes that will not come back, as records that all nodes get (SR33).

use std::collections::BTreeSet;

use xds_proto::xds::store::v1 as proto;

use crate::key::RecordKey;
use crate::record::RecordState;

/// The type of the records of forgotten nodes, whose names are the ids of the nodes (ST55).
pub const FORGOTTEN_TYPE: &str = "type.googleapis.com/xds.store.v1.ForgottenNode";

/// The nodes that are forgotten, by their records.
#[derive(Debug, Default)]
pub(crate) struct Forgotten(BTreeSet<Box<str>>);

impl Forgotten {
    /// The key of the record of a node; `None` if this is no id of a node.
    pub(crate) fn key(node: &str) -> Option<RecordKey> {
        let (type_url, name) = (FORGOTTEN_TYPE.to_owned(), node.to_owned());
        RecordKey::parse(&proto::Key { type_url, name, when: String::new() }).ok()
    }

    /// Takes the state of a record, if it is of a forgotten node.
    pub(crate) fn note(&mut self, key: &RecordKey, state: &RecordState) {
        if !key.has_type(FORGOTTEN_TYPE) {
            return;
        }
        let node = key.name();
        match state.lifecycle() {
            // No version of this program deletes one; another version may.
            proto::State::Deleted => _ = self.0.remove(node.as_str()),
            _ => _ = self.0.insert(node.as_str().into()),
        }
    }

    pub(crate) fn contains(&self, node: &str) -> bool {
        self.0.contains(node)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|node| &**node)
    }
}
