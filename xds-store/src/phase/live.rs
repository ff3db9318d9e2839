//! The servers of a store that are alive, with the plans that they have (SV15).

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{Plan, Schemas};
use crate::key::RecordKey;
use crate::record::RecordState;

/// What a server says of itself in its record, which ends with its lease.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LiveServer {
    /// The digests of its plans.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    plans: Vec<Bytes>,
}

/// The servers that have a record, also those whose record has ended, by their keys.
#[derive(Debug, Default)]
pub(crate) struct LiveServers(BTreeMap<RecordKey, LiveServer>);

impl LiveServer {
    pub(crate) fn of(schemas: &Schemas) -> Self {
        Self { plans: schemas.plans().iter().map(Plan::digest).collect() }
    }

    /// The key of the record of a server.
    pub(crate) fn key(server: u64) -> RecordKey {
        let name = format!("{server:016x}");
        let key = proto::Key { type_url: TYPE.to_owned(), name, when: String::new() };
        RecordKey::parse(&key).expect("a type and a number are a key")
    }

    pub(crate) fn is_key(key: &RecordKey) -> bool {
        key.type_url().as_str() == TYPE
    }

    fn has(&self, plan: &Plan) -> bool {
        self.plans.contains(&plan.digest())
    }
}

impl LiveServers {
    /// Takes the state of a record, if it is of a server.
    pub(crate) fn note(&mut self, key: &RecordKey, state: &RecordState) {
        if !LiveServer::is_key(key) {
            return;
        }
        let content = state.content.as_ref().filter(|_| state.lifecycle() != proto::State::Deleted);
        match content {
            // A record that cannot be read is of a later version, which says nothing of these plans.
            Some(content) => {
                let server = LiveServer::decode(&*content.payload).unwrap_or_default();
                self.0.insert(key.clone(), server);
            }
            None => _ = self.0.remove(key),
        }
    }

    /// The servers.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &RecordKey> {
        self.0.keys()
    }

    /// The servers that lack a plan.
    pub(crate) fn lacking(&self, plan: &Plan) -> impl Iterator<Item = &RecordKey> {
        self.0.iter().filter(|(_, server)| !server.has(plan)).map(|(key, _)| key)
    }
}

/// How long a server counts as alive after it said so the last time.
pub(crate) const LEASE: i64 = 30 * crate::time::SECOND;

const TYPE: &str = "type.googleapis.com/xds.store.v1.LiveServer";
