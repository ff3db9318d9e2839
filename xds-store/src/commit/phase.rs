//! A step of a plan from one phase to the next, as a commit (SV14, SV28).

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{ChangeResult, Judged, Judging};
use super::form::{Act, Draft, DraftChange, Put};
use super::refused::{RefusalCode, Refused, Violations};
use crate::content;
use crate::key::{RecordKey, stored};
use crate::phase::{Form, LEASE, LiveServer, Phase, PhaseRecord, PhaseStep, Plan, Schemas, StepTime, Taking};
use crate::record::{RecordState, content_digest};
use crate::refs::ReferrerChanges;
use crate::time;

impl Draft {
    /// Says that a server is alive, or that it is not any more (SV15). A repetition renews the lease.
    pub(crate) fn live_server(server: u64, schemas: &Schemas, is_alive: bool) -> Option<Self> {
        let key = LiveServer::key(server);
        let act = if is_alive {
            let payload = LiveServer::of(schemas).encode_to_vec().into();
            let content = proto::Content { payload, ..proto::Content::default() };
            let resource = content::resource(&key.id(), &content).ok()?;
            let (version, expires_at, lease, owners) = (None, None, Some(LEASE), Vec::new());
            Act::Put(Box::new(Put { content, version, resource, expires_at, lease, owners }))
        } else {
            Act::Delete { drain: false }
        };
        let change = DraftChange { key, expected: None, act };
        Some(Self::of_store(change, "server".to_owned(), false))
    }

    /// A step of a plan, by this identity. Both phases are compared, so of two equal steps one is
    /// refused. A step needs the right to operate, which the caller checks.
    #[must_use]
    pub fn set_phase(step: PhaseStep, identity: String, dry_run: bool) -> Self {
        let act = Act::Phase(step, StepTime::Serving);
        let change = DraftChange { key: PhaseRecord::key(step.plan), expected: None, act };
        Self::of_store(change, identity, dry_run)
    }

    /// A step of a plan before the server serves (SV32). It is refused while another server of the store is
    /// alive.
    #[must_use]
    pub fn set_phase_at_startup(step: PhaseStep) -> Self {
        let act = Act::Phase(step, StepTime::Startup);
        let change = DraftChange { key: PhaseRecord::key(step.plan), expected: None, act };
        Self::of_store(change, "startup".to_owned(), false)
    }
}

impl Judging<'_> {
    pub(super) fn step(
        &self,
        draft: &Draft,
        (step, time): (PhaseStep, StepTime),
        key: &RecordKey,
        changed: &mut Changed,
    ) -> Result<ChangeResult, Refused> {
        let plans = self.schemas.plans();
        let Some(plan) = plans.iter().find(|plan| plan.number() == step.plan) else {
            let message = format!("this server has no plan {}", step.plan);
            return Err(Refused::whole(RefusalCode::NotFound, message));
        };
        if !step.is_one() {
            let message =
                format!("a plan goes one phase at a time, and not from {:?} to {:?}", step.from, step.to);
            return Err(Refused::whole(RefusalCode::InvalidArgument, message));
        }
        let phases = self.records.index.phases();
        let present = phases.phase(plan);
        if present != step.from {
            let message = format!("the plan {} is in phase {present:?}", plan.name());
            return Err(Refused::whole(RefusalCode::Aborted, message));
        }
        self.check_servers(plan)?;
        self.check_time(plan, step, time)?;
        let recorded = phases.get(plan.number()).cloned().unwrap_or_default();
        let was_in_f4 = recorded.was_in_f4;
        match (step.from, step.to) {
            (Phase::F0, _) => self.check_begin(plan)?,
            // SV23: what has no new form would be lost. SV24: no pass converts records of a heartbeat plan.
            (Phase::F3, Phase::F4) if !recorded.is_clean && !plan.is_heartbeat() => {
                return Err(closed(plan, "pass_not_clean"));
            }
            // SV27: what has no old form would be lost, and so would references to new names.
            (Phase::F2, Phase::F1) if was_in_f4 && !recorded.is_clean && plan.has_way_back() => {
                return Err(closed(plan, "way_back_not_clean"));
            }
            // SV32: F4 has no old form to serve, and F5 could not follow.
            (Phase::F3, Phase::F4) if plan.is_one_way() && !plan.rewrites_references() => {
                self.check_unnamed(plan, Form::Old)?;
            }
            // SV30: clients would not find what others still name.
            (Phase::F2, Phase::F1) => self.check_unnamed(plan, Form::New)?,
            (Phase::F4, Phase::F5) => self.check_unnamed(plan, Form::Old)?,
            (Phase::F1 | Phase::F2 | Phase::F3 | Phase::F4 | Phase::F5, _) => {}
        }
        let record = PhaseRecord {
            name: plan.name().to_owned(),
            phase: step.to.number(),
            started_at: if step.from == Phase::F0 { self.now } else { recorded.started_at },
            author: draft.identity.clone(),
            from: step.from.number(),
            was_in_f4: step.to == Phase::F4 || (was_in_f4 && step.to.shows_new()),
            // A pass counts if it began in this phase.
            pass: None,
            is_clean: false,
            splits: 0,
            digest: plan.digest(),
            done_at: 0,
        };
        Ok(self.write_record(key, &record, changed))
    }

    /// Writes the record of a plan.
    pub(super) fn write_record(
        &self,
        key: &RecordKey,
        record: &PhaseRecord,
        changed: &mut Changed,
    ) -> ChangeResult {
        let state = self.state_of(key, record);
        let outcome = if state.generation == 1 { proto::Outcome::Created } else { proto::Outcome::Updated };
        changed.set(self, key, state, outcome)
    }

    /// The record of a plan as the next state of its key.
    fn state_of(&self, key: &RecordKey, record: &PhaseRecord) -> RecordState {
        let before = self.records.get(key);
        let (incarnation, generation) = self.next_generation(before.filter(|it| !it.is_deleted()), before);
        let content = proto::Content { payload: record.encode_to_vec().into(), ..proto::Content::default() };
        let state = RecordState {
            key: Some(key.to_proto()),
            lifecycle: proto::State::Live.into(),
            incarnation,
            generation,
            created_at: Some(time::to_proto(record.started_at)),
            content: Some(content),
            origin: self.head.node.clone(),
            ..RecordState::default()
        };
        RecordState { digest: content_digest(&state), ..state }
    }

    /// SV41: what the records of the plans become when this node takes the phases of another one.
    pub(crate) fn taken_phases(
        &self,
        phases: &[proto::PlanPhase],
        taking: Taking,
    ) -> Vec<(RecordKey, RecordState)> {
        let taken = self.records.index.phases().taken(phases, taking).into_iter();
        let keyed = taken.map(|(plan, record)| (PhaseRecord::key(plan), record));
        keyed.map(|(key, record)| (key.clone(), self.state_of(&key, &record))).collect()
    }

    /// Adds the record of a plan to the changes of a step of its pass.
    ///
    /// # Errors
    /// The engine cannot be read.
    pub(crate) fn with_record(
        &self,
        judged: Option<Judged>,
        plan: u32,
        record: &PhaseRecord,
    ) -> Result<Judged, Refused> {
        let mut changed = Changed::default();
        self.write_record(&PhaseRecord::key(plan), record, &mut changed);
        let of_plan = self.finish(changed, Vec::new(), Vec::new(), None)?;
        // SV12: the record of a plan is not replicated, but copies are.
        let is_replicated = judged.is_some();
        let judged = match judged {
            None => of_plan,
            Some(mut judged) => {
                judged.pending.extend(of_plan.pending);
                judged.changes.extend(of_plan.changes);
                // The log has the changes in the order of keys.
                judged.changes.sort_by_cached_key(|change| RecordKey::parse(&change.key).ok());
                judged
            }
        };
        Ok(Judged { is_replicated, ..judged })
    }

    /// SV15: a server that lacks the plan would write one form only, and could not accept commits.
    fn check_servers(&self, plan: &Plan) -> Result<(), Refused> {
        let lacking = self.records.index.servers().lacking(plan).filter(|key| self.is_alive(key));
        let mut violations = Violations::default();
        for key in lacking {
            let (gate, node) = ("server_lacks_plan".to_owned(), key.name().to_string());
            let message = format!("the server {node} of this store lacks the plan {}", plan.name());
            let why = proto::violation::Why::Gate(proto::ClosedGate { gate, node, count: 1 });
            violations.add(RefusalCode::FailedPrecondition, (0, None), message, why);
        }
        violations.into_result()
    }

    /// SV32: a plan without a way down goes forward only while nobody needs the old form, and a startup makes
    /// steps only while no other server serves.
    fn check_time(&self, plan: &Plan, step: PhaseStep, time: StepTime) -> Result<(), Refused> {
        match time {
            StepTime::Serving if plan.is_one_way() && step.is_forward() => {
                let gate = "runs_at_startup".to_owned();
                let message =
                    format!("the plan {} has no way down: it goes on before a server serves", plan.name());
                Err(gate_closed(proto::ClosedGate { gate, ..Default::default() }, message))
            }
            StepTime::Serving if plan.is_one_way() && step.from == Phase::F5 => {
                let message = format!("the plan {} has no way down", plan.name());
                Err(Refused::whole(RefusalCode::FailedPrecondition, message))
            }
            StepTime::Serving => Ok(()),
            StepTime::Startup => {
                let own = LiveServer::key(self.server);
                let mut others = self.records.index.servers().keys().filter(|key| **key != own);
                let other = others.find(|key| self.is_alive(key));
                let Some(other) = other else { return Ok(()) };
                let (gate, node) = ("other_server".to_owned(), other.name().to_string());
                let message = format!(
                    "the server {node} of this store is alive, or ended less than 30 s ago without saying so"
                );
                Err(gate_closed(proto::ClosedGate { gate, node, count: 1 }, message))
            }
        }
    }

    fn is_alive(&self, server: &RecordKey) -> bool {
        self.records.get(server).is_some_and(|record| record.exists(self.now))
    }

    /// A form that a step hides from clients is named by no record in a way that would keep it. This reads
    /// the keys of the types of the plan, and not their values.
    fn check_unnamed(&self, plan: &Plan, hidden: Form) -> Result<(), Refused> {
        // SV31: the name stays.
        if plan.keeps_name() {
            return Ok(());
        }
        let mut named = BTreeSet::new();
        for form in [Form::Old, Form::New] {
            let (from, to) = stored::of_type(plan.type_url(form));
            self.range((&from, &to), &mut |stored_key| {
                let key = stored::parse_record(stored_key).map(|(key, _)| key);
                let key = key.filter(|key| plan.form_of(key) == Some(form));
                let key = key
                    .and_then(|key| if form == hidden { Some(key) } else { plan.other_key(&key, form).ok() });
                if let Some(key) = key.filter(|key| self.is_named(key)) {
                    named.insert(key);
                }
                if named.len() < COUNTED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        let Some(first) = named.first() else { return Ok(()) };
        let (count, name) = (named.len(), plan.name());
        let message =
            format!("others still name {first:?} and {} more forms that the plan {name} hides", count - 1);
        let message = if count == 1 {
            format!("others still name {first:?}, which the plan {name} hides")
        } else {
            message
        };
        let count = count as u64;
        let gate = proto::ClosedGate { gate: "still_named".to_owned(), count, ..Default::default() };
        Err(gate_closed(gate, message))
    }

    fn is_named(&self, key: &RecordKey) -> bool {
        let unchanged = ReferrerChanges::default();
        let mut referrers = self.records.referrers(&unchanged, key.name_digest());
        referrers.any(|(_, acts)| acts.needs_target())
    }

    /// A plan begins only if the server knows its new form, the plans below it are done, and no record of
    /// the new form is there that the plan did not write (SV9). If there is any, this reads the keys of one
    /// type, and not their values.
    fn check_begin(&self, plan: &Plan) -> Result<(), Refused> {
        let refused = |message: String| Err(Refused::whole(RefusalCode::FailedPrecondition, message));
        if !self.schemas.knows(plan) {
            return refused(format!("a ceiling hides the new form of the plan {}", plan.name()));
        }
        // SV13.
        let phases = self.records.index.phases();
        let below = plan.number().checked_sub(1).filter(|below| *below > 0);
        if below.is_some_and(|below| phases.get(below).is_none_or(|below| below.done_at == 0)) {
            return refused(format!("the plan below {} is not done", plan.name()));
        }
        // Nobody can write one in F0 (SV37). SV42: at a node that is behind, peers have.
        if self.peer_phases.has_begun(plan) || self.records.index.form_counts(plan.number()).new == 0 {
            return Ok(());
        }
        let ((from, to), mut foreign) = (stored::of_type(plan.type_url(Form::New)), None);
        let mut each = |stored_key: &[u8]| {
            let key = stored::parse_record(stored_key).map(|(key, _)| key);
            let key = key.filter(|key| plan.form_of(key) == Some(Form::New));
            let is_foreign = |key: &RecordKey| {
                self.records.get(key).is_some_and(|record| record.exists(self.now) && record.stamp.is_none())
            };
            foreign = key.filter(is_foreign);
            if foreign.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.range((&from, &to), &mut each)?;
        match foreign {
            Some(key) => refused(format!("{key:?} exists, and the plan {} would write it", plan.name())),
            None => Ok(()),
        }
    }
}

/// A gate of a step is closed.
fn closed(plan: &Plan, gate: &str) -> Refused {
    let message =
        format!("the last pass of the plan {} had something to do: wait for a clean one", plan.name());
    gate_closed(proto::ClosedGate { gate: gate.to_owned(), ..proto::ClosedGate::default() }, message)
}

fn gate_closed(gate: proto::ClosedGate, message: String) -> Refused {
    let why = proto::violation::Why::Gate(gate);
    let mut violations = Violations::default();
    violations.add(RefusalCode::FailedPrecondition, (0, None), message, why);
    violations.into_result().err().unwrap_or_else(|| Refused::whole(RefusalCode::FailedPrecondition, ""))
}

/// Names that are counted at most, so that commits do not wait for long.
const COUNTED: usize = 1_000;
