//! The gRPC service Migration: how far plans are, and the steps from one phase to the next (SV14).

use std::cmp::Ordering;
use std::sync::Arc;

use tonic::{Code, Request, Response, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::migration_server::Migration;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::commit::Draft;
use xds_store::key::RecordKey;
use xds_store::log::FORMAT;
use xds_store::phase::{Ceiling, Form, Phase, PhaseStep, Plan, Schemas};
use xds_store::schema::VersionError;
use xds_store::store::PlanProgress;
use xds_store::time;

use crate::access::Caller;
use crate::config::StreamsSource;
use crate::reading::Reading;
use crate::service::taken;
use crate::status::{gates_of, invalid, lacks, of_refused, refusal};

pub(crate) mod peers;

/// The service Migration of one running store.
#[derive(Debug)]
pub(crate) struct MigrationService {
    reading: Reading,
    streams: StreamsSource,
}

impl MigrationService {
    pub(crate) fn new(reading: Reading, streams: StreamsSource) -> Self {
        Self { reading, streams }
    }

    /// How far a plan is, with the closed gates of its next step.
    async fn status_of(&self, caller: &Caller, progress: PlanProgress) -> Result<proto::PlanStatus, Status> {
        let (schemas, number) = (self.reading.store.schemas(), progress.number);
        let plan = plan_of(&schemas, number)?.clone();
        let counts = progress.counts;
        let streams_on_old = self.streams_on_old(&plan).await;
        let next = Phase::of_number(progress.phase.number() + 1);
        let gates = match next {
            Some(to) => {
                let step = PhaseStep { plan: number, from: progress.phase, to };
                self.gates(&plan, step, streams_on_old).await
            }
            None => Vec::new(),
        };
        let failures = progress.pass.failures.iter().filter(|(key, _)| caller.may_read(key));
        let failure = |(key, why): &(RecordKey, String)| proto::Violation {
            key: Some(key.to_proto()),
            message: why.clone(),
            ..proto::Violation::default()
        };
        Ok(proto::PlanStatus {
            number,
            name: plan.name().to_owned(),
            phase: progress.phase.number(),
            old_form: plan.shown(Form::Old),
            new_form: plan.shown(Form::New),
            started_at: progress.started_at.map(time::to_proto),
            done_at: progress.done_at.map(time::to_proto),
            old_records: counts.old,
            new_records: counts.new,
            behind: counts.behind,
            split: counts.split,
            failed: progress.pass.failed,
            failures: failures.map(failure).collect(),
            pass_done: progress.pass.looked_at,
            pass_total: counts.old + counts.new,
            is_clean: progress.pass.is_clean,
            streams_on_old,
            gates,
        })
    }

    /// The closed gates of a step: those of the store, found by a dry run, and that of the streams.
    async fn gates(&self, plan: &Plan, step: PhaseStep, streams_on_old: u64) -> Vec<proto::ClosedGate> {
        let dry_run = self.reading.store.commit(Draft::set_phase(step, String::new(), true)).await;
        let refused = dry_run.err();
        let gates = refused.iter().flat_map(gates_of).cloned();
        gates.chain(streams_gate(step, streams_on_old)).chain(self.peer_gates(plan, step, &[])).collect()
    }

    /// SV15: what peers do not allow.
    fn peer_gates(&self, plan: &Plan, step: PhaseStep, without: &[String]) -> Vec<proto::ClosedGate> {
        let status = self.reading.store.peers();
        status.map_or_else(Vec::new, |status| peers::gates((&plan.needs(), step), &status.peers, without))
    }

    /// SV26: how many streams ask for the old form of a plan.
    async fn streams_on_old(&self, plan: &Plan) -> u64 {
        let plan = plan.clone();
        let is_old =
            move |type_url: &str, name: &str, by_name| plan.is_asked(Form::Old, (type_url, name), by_name);
        self.streams.count(Box::new(is_old)).await
    }
}

#[tonic::async_trait]
impl Migration for MigrationService {
    async fn plans(
        &self,
        request: Request<proto::PlansRequest>,
    ) -> Result<Response<proto::PlansResponse>, Status> {
        let (caller, proto::PlansRequest {}) = taken(request)?;
        if !caller.rights.operate && !caller.rights.inspect {
            return Err(lacks("inspect", None, "plans need the right to inspect or to operate"));
        }
        let mut plans = Vec::new();
        for progress in self.reading.standing().plans {
            plans.push(self.status_of(&caller, progress).await?);
        }
        let schemas = self.reading.store.schemas();
        let ceilings = schemas.stored_ceilings().map(|(type_url, version)| proto::Knows {
            type_url: type_url.to_owned(),
            version: version.to_string(),
        });
        Ok(Response::new(proto::PlansResponse { plans, ceilings: ceilings.collect() }))
    }

    async fn set_phase(
        &self,
        request: Request<proto::SetPhaseRequest>,
    ) -> Result<Response<proto::SetPhaseResponse>, Status> {
        let (caller, request) = taken(request)?;
        if !caller.rights.operate {
            return Err(lacks("operate", None, "a step of a plan needs the right to operate"));
        }
        let status = self.reading.store.peers().unwrap_or_default();
        if let Some(node) = request.without.iter().find(|node| !peers::is_down(&status.peers, node)) {
            return Err(invalid(
                "without",
                format!("{node} is no peer that is down, and cannot be left out"),
            ));
        }
        let phase = |field: &str, number: u32| {
            let phase = Phase::of_number(number);
            phase.ok_or_else(|| invalid(field, format!("{number} is no phase: phases are 0 to 5")))
        };
        let step = PhaseStep {
            plan: request.plan,
            from: phase("from_phase", request.from_phase)?,
            to: phase("to_phase", request.to_phase)?,
        };
        let schemas = self.reading.store.schemas();
        let plan = plan_of(&schemas, step.plan)?;
        if !request.force {
            let streams = self.streams_on_old(plan).await;
            if let Some(gate) = streams_gate(step, streams) {
                let message = format!("{streams} streams ask for the old form of the plan {}", plan.name());
                return Err(refusal(Code::FailedPrecondition, message, None, Why::Gate(gate)));
            }
        }
        let gates = self.peer_gates(plan, step, &request.without);
        if !gates.is_empty() {
            return Err(peers::refused(plan, gates));
        }
        let refused = |refused| of_refused(refused, &self.reading.standing(), &caller);
        let draft = Draft::set_phase(step, caller.client.identity(), request.dry_run);
        let committed = self.reading.store.commit(draft).await.map_err(refused)?;
        let mut plans = self.reading.standing().plans.into_iter();
        let progress = plans.find(|progress| progress.number == step.plan);
        let progress = progress.ok_or_else(|| unknown_plan(step.plan))?;
        let plan = self.status_of(&caller, progress).await?;
        let revision = self.reading.printed(committed.revision);
        Ok(Response::new(proto::SetPhaseResponse { plan: Some(plan), revision }))
    }

    async fn set_ceiling(
        &self,
        request: Request<proto::SetCeilingRequest>,
    ) -> Result<Response<proto::SetCeilingResponse>, Status> {
        let (caller, proto::SetCeilingRequest { of, dry_run }) = taken(request)?;
        if !caller.rights.operate {
            return Err(lacks("operate", None, "a ceiling needs the right to operate"));
        }
        let schema = match of {
            Some(proto::set_ceiling_request::Of::Schema(schema)) => schema,
            Some(proto::set_ceiling_request::Of::Format(format)) => return format_ceiling(format),
            None => return Err(invalid("of", "the ceiling of a type, or of the format, is missing")),
        };
        let version = match &*schema.version {
            "" => None,
            text => Some(text.parse().map_err(|error: VersionError| {
                invalid("schema.version", format!("{text:?} is no version: {error}"))
            })?),
        };
        let refused = |refused| of_refused(refused, &self.reading.standing(), &caller);
        let ceiling = Ceiling { type_url: schema.type_url, version };
        let draft = Draft::set_ceiling(ceiling, caller.client.identity(), dry_run).map_err(refused)?;
        self.reading.store.commit(draft).await.map_err(refused)?;
        Ok(Response::new(proto::SetCeilingResponse {}))
    }
}

fn plan_of(schemas: &Arc<Schemas>, number: u32) -> Result<&Plan, Status> {
    schemas.plans().iter().find(|plan| plan.number() == number).ok_or_else(|| unknown_plan(number))
}

fn unknown_plan(number: u32) -> Status {
    Status::not_found(format!("this server has no plan {number}"))
}

/// The format of a store cannot be lowered: this program writes one format only.
fn format_ceiling(format: u32) -> Result<Response<proto::SetCeilingResponse>, Status> {
    match format.cmp(&FORMAT) {
        Ordering::Equal => Ok(Response::new(proto::SetCeilingResponse {})),
        Ordering::Less => {
            let gate = proto::ClosedGate { gate: "needs_newer".into(), count: 1, ..Default::default() };
            let message = format!("the store has format {FORMAT}, which this server cannot lower");
            Err(refusal(Code::FailedPrecondition, message, None, Why::Gate(gate)))
        }
        Ordering::Greater => {
            Err(invalid("format", format!("this server writes format {FORMAT}, and not {format}")))
        }
    }
}

/// SV26: in F5 the old form is not served any more.
fn streams_gate(step: PhaseStep, streams: u64) -> Option<proto::ClosedGate> {
    let is_end = (step.from, step.to) == (Phase::F4, Phase::F5);
    let gate = || proto::ClosedGate { gate: "streams_on_old".into(), count: streams, ..Default::default() };
    (is_end && streams > 0).then(gate)
}
