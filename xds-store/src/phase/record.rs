//! The phases of a store, as records of its own (SV12).

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::position::StoredPosition;
use super::{Phase, Plan};
use crate::key::{RecordKey, stored};
use crate::record::RecordState;
use crate::time;

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

/// What a node has after the snapshot whose phases it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// The records of the snapshot.
    OfPeer,
    /// Those, and its own.
    Merged,
}

impl PhaseRecord {
    /// The key of the record of a plan. The records have versions like all others, so a read at an old
    /// store revision sees the phase of that revision.
    pub(crate) fn key(plan: u32) -> RecordKey {
        let key = proto::Key { type_url: TYPE.to_owned(), name: plan.to_string(), when: String::new() };
        RecordKey::parse(&key).expect("a type and a number are a key")
    }

    /// Where the engine has the records of all plans.
    pub(crate) fn range() -> (Bytes, Bytes) {
        stored::of_type(TYPE)
    }

    /// The plan of a key; `None` if the key is of another type.
    pub(crate) fn plan(key: &RecordKey) -> Option<u32> {
        if key.type_url().as_str() == TYPE { key.name().as_str().parse().ok() } else { None }
    }

    /// SV13: whether a server has to know the plan. In F0 the store may still have new records of it.
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != 0 || !self.is_clean
    }

    /// Whether it was written by a step that shows or hides a form.
    pub(crate) fn changes_forms(&self) -> bool {
        let phases = Phase::of_number(self.from).zip(Phase::of_number(self.phase));
        phases.is_some_and(|(from, to)| !from.serves_as(to))
    }

    /// For other nodes (SV41).
    pub(crate) fn to_proto(&self, plan: u32) -> proto::PlanPhase {
        proto::PlanPhase {
            plan,
            name: self.name.clone(),
            phase: self.phase,
            started_at: Some(time::to_proto(self.started_at)),
            was_in_f4: self.was_in_f4,
            digest: self.digest.clone(),
            author: self.author.clone(),
        }
    }

    /// SV41: what a node records that takes the phase of another one. Its passes begin anew, because its records are
    /// others now.
    fn taken(of_peer: &proto::PlanPhase, own: &Self, taking: Taking) -> Self {
        let started_at = of_peer.started_at.as_ref().map_or(0, time::from_proto);
        let phase = Phase::of_number(of_peer.phase).map_or(of_peer.phase, |phase| match taking {
            Taking::OfPeer => phase.number(),
            // It has old records that no pass has copied: F4 would hide them.
            Taking::Merged if !own.was_in_f4 => phase.min(Phase::F3).number(),
            // It has new ones without an old one: F1 would hide them, and F0 remove them.
            Taking::Merged => phase.max(Phase::F2).number(),
        });
        let shows_new = Phase::of_number(phase).is_some_and(Phase::shows_new);
        Self {
            name: of_peer.name.clone(),
            phase,
            started_at,
            author: of_peer.author.clone(),
            from: own.phase,
            pass: None,
            is_clean: false,
            splits: 0,
            was_in_f4: shows_new && (of_peer.was_in_f4 || own.was_in_f4),
            digest: of_peer.digest.clone(),
            done_at: 0,
        }
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

    /// As another node says them.
    pub(crate) fn of_peer(phases: &[proto::PlanPhase]) -> Self {
        let none = PhaseRecord::default();
        let taken = |of_peer| PhaseRecord::taken(of_peer, &none, Taking::OfPeer);
        Self(phases.iter().map(|of_peer| (of_peer.plan, taken(of_peer))).collect())
    }

    /// SV41: the records of a node that takes the phases of another one. A plan that the other one has not begun is in
    /// F0 there.
    pub(crate) fn taken(&self, phases: &[proto::PlanPhase], taking: Taking) -> Vec<(u32, PhaseRecord)> {
        let has = |number: &u32| phases.iter().any(|of_peer| of_peer.plan == *number);
        let begun_here = self.0.iter().filter(|(number, own)| !has(number) && own.phase != 0);
        let in_f0 = begun_here.map(|(number, own)| proto::PlanPhase { phase: 0, ..own.to_proto(*number) });
        let none = PhaseRecord::default();
        let taken = |of_peer: proto::PlanPhase| {
            let own = self.0.get(&of_peer.plan).unwrap_or(&none);
            (of_peer.plan, PhaseRecord::taken(&of_peer, own, taking))
        };
        phases.iter().cloned().chain(in_f0).map(taken).collect()
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
        let begun = self.0.iter().filter(|(_, record)| record.has_begun());
        let mut lacking = begun.filter(|(number, record)| !is_known(**number, record));
        lacking.next().map(|(number, record)| (*number, &*record.name, record.phase))
    }
}

const TYPE: &str = "type.googleapis.com/xds.store.v1.PlanPhase";
