//! The phases of a store, as records of its own (SV12).

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::position::StoredPosition;
use super::{Phase, Plan};
use crate::key::RecordKey;
use crate::record::RecordState;

/// What the store keeps of a plan.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PhaseRecord {
    /// The name of the plan.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// The number of the phase.
    #[prost(uint32, tag = "2")]
    pub(crate) phase: u32,
    /// When it left F0, in nanoseconds since 1970.
    #[prost(int64, tag = "3")]
    pub(crate) started_at: i64,
    /// Who changed the phase last.
    #[prost(string, tag = "4")]
    pub(crate) author: String,
    /// The phase before the commit that wrote this.
    #[prost(uint32, tag = "5")]
    pub(crate) from: u32,
    /// Where the pass goes on after a restart; `None`: at the beginning.
    #[prost(message, optional, tag = "6")]
    pub(crate) pass: Option<StoredPosition>,
    /// Whether the last whole pass in this phase had nothing to do.
    #[prost(bool, tag = "7")]
    pub(crate) is_clean: bool,
    /// Whether the plan was in F4 since it was below F2: new records may have no old one.
    #[prost(bool, tag = "8")]
    pub(crate) was_in_f4: bool,
    /// How many writes have split a record in this phase. A pass that began before one of them is not
    /// clean, because it may have been past the record.
    #[prost(uint64, tag = "9")]
    pub(crate) splits: u64,
    /// [`Plan::digest`] of the plan that began.
    #[prost(bytes = "bytes", tag = "10")]
    pub(crate) digest: Bytes,
    /// When a pass found no old record in F5 any more, in nanoseconds since 1970; 0: not yet.
    #[prost(int64, tag = "11")]
    pub(crate) done_at: i64,
}

/// The recorded phases, by the number of the plan.
#[derive(Debug, Default)]
pub(crate) struct Phases(BTreeMap<u32, PhaseRecord>);

impl PhaseRecord {
    /// The key of the record of a plan. The records have versions like all others, so a read at an old
    /// store revision sees the phase of that revision.
    pub(crate) fn key(plan: u32) -> RecordKey {
        let key = proto::Key { type_url: TYPE.to_owned(), name: plan.to_string(), when: String::new() };
        RecordKey::parse(&key).expect("a type and a number are a key")
    }

    /// The plan of a key; `None` if the key is of another type.
    pub(crate) fn plan(key: &RecordKey) -> Option<u32> {
        if key.type_url().as_str() == TYPE { key.name().as_str().parse().ok() } else { None }
    }

    /// Whether it was written by a step that shows or hides a form.
    pub(crate) fn changes_forms(&self) -> bool {
        let phases = Phase::of_number(self.from).zip(Phase::of_number(self.phase));
        phases.is_some_and(|(from, to)| !from.serves_as(to))
    }

    /// The phase of a stored record. A phase that this version does not know has no number here.
    pub(crate) fn of_state(state: &RecordState) -> Option<Self> {
        let content = state.content.as_ref().filter(|_| state.lifecycle() != proto::State::Deleted)?;
        Self::decode(&*content.payload).ok()
    }
}

impl Phases {
    /// Takes the state of a record, if it is of a plan.
    pub(crate) fn note(&mut self, key: &RecordKey, state: &RecordState) {
        let Some(plan) = PhaseRecord::plan(key) else { return };
        // A record that cannot be read is of a later version of this program.
        let unreadable = || PhaseRecord { phase: u32::MAX, ..PhaseRecord::default() };
        self.0.insert(plan, PhaseRecord::of_state(state).unwrap_or_else(unreadable));
    }

    pub(crate) fn get(&self, plan: u32) -> Option<&PhaseRecord> {
        self.0.get(&plan)
    }

    /// The phase of a plan.
    pub(crate) fn phase(&self, plan: &Plan) -> Phase {
        let record = self.0.get(&plan.number());
        record.and_then(|record| Phase::of_number(record.phase)).unwrap_or(Phase::F0)
    }

    /// SV13: the plan that the store has begun and not taken back, and that these plans lack: its number,
    /// its name, and the number of its phase.
    pub(crate) fn lacking(&self, plans: &[Plan]) -> Option<(u32, &str, u32)> {
        let is_known = |number: u32, record: &PhaseRecord| {
            let mut plans = plans.iter();
            let is_phase = Phase::of_number(record.phase).is_some();
            let is_it = |plan: &Plan| plan.number() == number && plan.digest() == record.digest;
            is_phase && plans.any(is_it)
        };
        // In F0 the store may still have new records of the plan.
        let begun = self.0.iter().filter(|(_, record)| record.phase != 0 || !record.is_clean);
        let mut lacking = begun.filter(|(number, record)| !is_known(**number, record));
        lacking.next().map(|(number, record)| (*number, &*record.name, record.phase))
    }
}

const TYPE: &str = "type.googleapis.com/xds.store.v1.PlanPhase";
