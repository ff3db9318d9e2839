//! `xds store migrate`: plans, and their steps from one phase to the next.

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::sleep;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::phase::Phase;

use super::connection::{Connection, ConnectionOptions};
use super::error::{Refused, StoreError};
use super::records::label;
use super::{run, while_waiting};
use crate::cli::check::ReportFormat;
use crate::cli::progress::Spinner;
use crate::cli::{Failure, counted, say};

/// Show and move the migrations of a store
///
/// A plan (`xds serve --schemas FILE`) migrates resources from an old form to a new one: another type,
/// name or major version. It goes from F0 to F5 by single steps. Each step can be taken back.
///
/// F0  not begun            clients get the old form
/// F1  writes both forms    each write changes both; clients get the old form
/// F2  serves both forms    clients get both forms
/// F3  copies               and the store writes the new form of what nobody writes, in the background
/// F4  writes the new form  clients get both forms, the old one converted from the new one
/// F5  new form only        clients get the new form; the old records are removed
///
/// `next`, `back` and `abort` print a line for each step that is done, and then how far the plan is. If a
/// step is prevented, the steps before it stay done: the error says where the plan is, and how to go on.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(super) struct Migrate {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(Look),
    Check(Check),
    /// Go one phase forward
    ///
    /// A step that needs a clean pass of the background copy waits for it: the copy has to find nothing to
    /// write. It ends with an error if records cannot be converted.
    Next(Step),
    /// Go one phase back
    ///
    /// A step that needs a clean pass of the background copy waits for it: the copy has to find nothing to
    /// write. It ends with an error if records cannot be converted.
    Back(Step),
    /// Go back to F0
    ///
    /// A step that needs a clean pass of the background copy waits for it: the copy has to find nothing to
    /// write. It ends with an error if records cannot be converted.
    Abort(Step),
}

/// Show the plans and their phases
#[derive(Debug, Args)]
struct Look {
    #[command(flatten)]
    connection: ConnectionOptions,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// Show how far a plan is, and what prevents its next step
#[derive(Debug, Args)]
struct Check {
    /// The number or the name of the plan [default: all plans]
    #[arg(value_name = "PLAN")]
    plan: Option<String>,
    #[command(flatten)]
    look: Look,
}

#[derive(Debug, Args)]
struct Step {
    /// The number or the name of the plan
    #[arg(value_name = "PLAN")]
    plan: String,
    /// Say what the step would do, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Go to F5 although clients ask for the old form by name: it is removed from them
    #[arg(long)]
    force: bool,
    /// Leave out a peer that is down: its id, or its address if it was never heard; repeatable
    #[arg(long, value_name = "NODE")]
    without: Vec<String>,
    /// Do not wait for a clean pass
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    look: Look,
}

/// Where a step leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Next,
    Back,
}

impl Direction {
    /// The phase after this one.
    fn after(self, phase: u32) -> u32 {
        match self {
            Self::Next => phase + 1,
            Self::Back => phase.saturating_sub(1),
        }
    }
}

impl Migrate {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        match &self.action {
            Action::List(look) => look.list(),
            Action::Check(check) => check.run(),
            Action::Next(step) => step.run(Direction::Next, false),
            Action::Back(step) => step.run(Direction::Back, false),
            Action::Abort(step) => step.run(Direction::Back, true),
        }
    }
}

impl Look {
    fn list(&self) -> Result<ExitCode, Failure> {
        run(&self.connection, self.format, async |connection| {
            let plans = plans(&connection).await?;
            match self.format {
                ReportFormat::Json => say(format_args!("{:#}", json!({ "plans": objects(&plans) }))),
                ReportFormat::Text if plans.is_empty() => {
                    say("this server has no plans (xds serve --schemas FILE)");
                }
                ReportFormat::Text => plans.iter().for_each(|plan| {
                    say(format_args!("{:>3} {} {}", plan.number, phase(plan.phase), plan.name));
                }),
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    /// Shows a plan after a step, and which phases it came to.
    fn print(&self, plan: &proto::PlanStatus, passed: &[u32]) {
        match self.format {
            ReportFormat::Json => {
                let mut object = object(plan);
                object["passed"] = passed.into();
                say(format_args!("{object:#}"));
            }
            ReportFormat::Text => text(plan).iter().for_each(say),
        }
    }
}

impl Check {
    fn run(&self) -> Result<ExitCode, Failure> {
        let Self { plan, look } = self;
        run(&look.connection, look.format, async |connection| {
            let plans = match plan {
                Some(plan) => vec![find(&connection, plan).await?],
                None => plans(&connection).await?,
            };
            match look.format {
                ReportFormat::Json => say(format_args!("{:#}", json!({ "plans": objects(&plans) }))),
                ReportFormat::Text => plans.iter().flat_map(text).for_each(say),
            }
            let is_closed = plans.iter().any(|plan| !plan.gates.is_empty());
            Ok(if is_closed { ExitCode::from(4) } else { ExitCode::SUCCESS })
        })
    }
}

impl Step {
    fn run(&self, direction: Direction, to_the_end: bool) -> Result<ExitCode, Failure> {
        run(&self.look.connection, self.look.format, async |connection| {
            let mut plan = find(&connection, &self.plan).await?;
            let is_end = |plan: &proto::PlanStatus| match direction {
                Direction::Next => plan.phase >= 5,
                Direction::Back => plan.phase == 0,
            };
            if is_end(&plan) && !to_the_end {
                let (name, phase) = (&plan.name, phase(plan.phase));
                return Err(StoreError::State(format!("the plan {name} is in {phase} already")));
            }
            let mut passed = Vec::new();
            while !is_end(&plan) {
                let from = plan.phase;
                let stepped = self.step(&connection, &plan, direction).await;
                plan = stepped.map_err(|error| stopped(error, &plan, direction, &passed))?;
                let to = direction.after(from);
                if self.look.format == ReportFormat::Text {
                    let dry_run = if self.dry_run { " is possible; nothing is changed" } else { "" };
                    let (number, name) = (plan.number, &plan.name);
                    say(format_args!("{number} {name}: {} -> {}{dry_run}", phase(from), phase(to)));
                }
                if self.dry_run {
                    break;
                }
                passed.push(to);
                if !to_the_end {
                    break;
                }
            }
            self.look.print(&plan, &passed);
            Ok(ExitCode::SUCCESS)
        })
    }

    /// One step, once its gates are open.
    async fn step(
        &self,
        connection: &Connection,
        plan: &proto::PlanStatus,
        direction: Direction,
    ) -> Result<proto::PlanStatus, StoreError> {
        let to_phase = direction.after(plan.phase);
        let request = proto::SetPhaseRequest {
            plan: plan.number,
            from_phase: plan.phase,
            to_phase,
            force: self.force,
            dry_run: self.dry_run,
            without: self.without.clone(),
        };
        let spinner = Spinner::hidden();
        loop {
            let mut client = connection.migration.clone();
            let done = connection.answer(client.set_phase(request.clone())).await;
            match done {
                Err(StoreError::Refused(refused)) if !self.no_wait && waits_for_pass(&refused) => {
                    while_waiting(&spinner, clean_pass(connection, plan, &spinner)).await?;
                }
                done => return Ok(done?.plan.unwrap_or_default()),
            }
        }
    }
}

/// The error of a step, with where the plan is now, and the command that goes on.
fn stopped(error: StoreError, plan: &proto::PlanStatus, direction: Direction, passed: &[u32]) -> StoreError {
    let (name, at, next) = (&plan.name, phase(plan.phase), phase(direction.after(plan.phase)));
    let clients = clients_get(plan.phase);
    let command: Vec<_> = env::args().skip(1).map(|argument| quoted(&argument)).collect();
    let hint = format!(
        "\n  {name} is in {at}: {clients}\n  the step to {next} is not done; once its cause is over, go on: xds {}",
        command.join(" ")
    );
    let reached = json!({
        "plan": plan.number, "phase": plan.phase, "phase_name": phase_name(plan.phase), "passed": passed,
    });
    StoreError::Stopped { error: Box::new(error), hint, reached }
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// A phase with its name. A newer server may have others.
fn phase(number: u32) -> String {
    Phase::of_number(number).map_or_else(|| format!("F{number}"), |phase| phase.to_string())
}

fn phase_name(number: u32) -> &'static str {
    Phase::of_number(number).map_or("", Phase::name)
}

fn clients_get(number: u32) -> String {
    Phase::of_number(number).map_or_else(String::new, |phase| format!("clients get {}", phase.clients_get()))
}

/// Whether a clean pass would open the gate.
fn waits_for_pass(refused: &Refused) -> bool {
    refused.violations.iter().any(|violation| match &violation.why {
        Some(Why::Gate(gate)) => PASS_GATES.contains(&&*gate.gate),
        _ => false,
    })
}

/// Waits until a pass had nothing to do.
async fn clean_pass(
    connection: &Connection,
    plan: &proto::PlanStatus,
    spinner: &Spinner,
) -> Result<(), StoreError> {
    loop {
        let plan = find(connection, &plan.number.to_string()).await?;
        if plan.is_clean {
            return Ok(());
        }
        let is_whole = plan.pass_done >= plan.pass_total;
        if plan.failed > 0 && is_whole {
            let lines = text(&plan).join("\n");
            return Err(StoreError::State(format!("records cannot be converted:\n{lines}")));
        }
        spinner.say(format!("pass: {} of {} records", plan.pass_done.min(plan.pass_total), plan.pass_total));
        sleep(LOOK_EVERY).await;
    }
}

async fn plans(connection: &Connection) -> Result<Vec<proto::PlanStatus>, StoreError> {
    let mut client = connection.migration.clone();
    Ok(connection.answer(client.plans(proto::PlansRequest {})).await?.plans)
}

/// The plan with this number or name.
async fn find(connection: &Connection, which: &str) -> Result<proto::PlanStatus, StoreError> {
    let number = which.parse().ok();
    let mut plans = plans(connection).await?.into_iter();
    let found = plans.find(|plan| Some(plan.number) == number || plan.name == which);
    found.ok_or_else(|| StoreError::Missing(format!("this server has no plan {which}")))
}

fn text(plan: &proto::PlanStatus) -> Vec<String> {
    let mut lines = vec![
        format!("{} {} is in {}: {}", plan.number, plan.name, phase(plan.phase), clients_get(plan.phase)),
        format!("  old form  {}: {}", plan.old_form, counted_of(plan.old_records)),
        format!("  new form  {}: {}", plan.new_form, counted_of(plan.new_records)),
    ];
    let mut fact = |name: &str, value: String| lines.push(format!("  {name:<9} {value}"));
    if let Some(at) = &plan.started_at {
        fact("begun", at.to_string());
    }
    if let Some(at) = &plan.done_at {
        fact("done", at.to_string());
    }
    if (1..4).contains(&plan.phase) && plan.behind > 0 {
        fact("behind", format!("{}, {} of them split", counted_of(plan.behind), plan.split));
    }
    if plan.streams_on_old > 0 {
        fact("streams", format!("{} ask for the old form", plan.streams_on_old));
    }
    if plan.failed > 0 {
        fact("failed", counted_of(plan.failed));
    }
    let failure = |failure: &proto::Violation| {
        let key = failure.key.as_ref().map(label).unwrap_or_default();
        format!("    {key}: {}", failure.message)
    };
    lines.extend(plan.failures.iter().map(failure));
    lines.extend(plan.gates.iter().map(|gate| format!("  closed: {}", gate_text(gate))));
    lines
}

fn counted_of(records: u64) -> String {
    counted(usize::try_from(records).unwrap_or(usize::MAX), "record")
}

/// What a closed gate waits for.
fn gate_text(gate: &proto::ClosedGate) -> String {
    let (count, node) = (gate.count, &gate.node);
    match &*gate.gate {
        "server_lacks_plan" => format!("the server {node} of this store runs without the plan"),
        "peer_phase" => {
            format!(
                "the peer {node} would be two phases away, or joins and has none yet: move it first, or wait"
            )
        }
        "peer_silent" => format!("the peer {node} is down: start it, or use --without {node}"),
        "peer_lacks_version" => format!("the peer {node} does not know the new form"),
        "pass_not_clean" => "the last pass of the copy wrote something: wait for a clean one".to_owned(),
        "way_back_not_clean" => "the pass back wrote something: wait for a clean one".to_owned(),
        "still_named" => format!("other records still name {count} of the resources that the step hides"),
        "streams_on_old" => format!("{count} streams ask for the old form"),
        "runs_at_startup" => "it has no `down`: start the server with --migrate startup".to_owned(),
        "needs_newer" => format!("{} need a newer version", counted_of(count)),
        other => other.to_owned(),
    }
}

fn objects(plans: &[proto::PlanStatus]) -> Vec<Value> {
    plans.iter().map(object).collect()
}

fn object(plan: &proto::PlanStatus) -> Value {
    let time = |time: &Option<prost_types::Timestamp>| time.as_ref().map(ToString::to_string);
    let failures = plan.failures.iter().map(|failure| {
        let proto::Key { type_url, name, when } = failure.key.clone().unwrap_or_default();
        json!({ "type": type_url, "name": name, "when": when, "reason": failure.message })
    });
    let gates =
        plan.gates.iter().map(|gate| json!({ "gate": gate.gate, "node": gate.node, "count": gate.count }));
    json!({
        "number": plan.number, "name": plan.name, "phase": plan.phase, "phase_name": phase_name(plan.phase),
        "clients_get": Phase::of_number(plan.phase).map(Phase::clients_get),
        "old_form": plan.old_form, "new_form": plan.new_form,
        "started_at": time(&plan.started_at), "done_at": time(&plan.done_at),
        "old_records": plan.old_records, "new_records": plan.new_records,
        "behind": plan.behind, "split": plan.split,
        "failed": plan.failed, "failures": failures.collect::<Vec<_>>(),
        "pass_done": plan.pass_done, "pass_total": plan.pass_total, "clean": plan.is_clean,
        "streams_on_old": plan.streams_on_old, "gates": gates.collect::<Vec<_>>(),
    })
}

/// The gates that a clean pass opens.
const PASS_GATES: [&str; 2] = ["pass_not_clean", "way_back_not_clean"];

const LOOK_EVERY: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  xds store migrate list --store data
  xds store migrate check new-names --store data
  xds store migrate next new-names --store data     one phase forward
  xds store migrate back new-names --store data     and back again
  xds store migrate abort new-names --store data    back to F0

JSON: `list` and `check` print {plans: [PLAN]}, the others PLAN: one object with number, name, phase
(0 to 5), phase_name, clients_get, passed (only `next`, `back`, `abort`: the phases that the steps
led to, in order; also in error.reached, with phase, if a step is prevented), old_form, new_form,
started_at, done_at, old_records, new_records, behind (old records whose new form is missing or
outdated), split, failed, failures [{type, name, when, reason}] (the first 20), pass_done,
pass_total, clean, streams_on_old, gates [{gate, node, count}] (what prevents the next step). Fields
may be added.

Exit codes:
  0  done; check: nothing prevents the next step
  1  the server cannot be reached, or refuses
  2  invalid input: arguments
  3  there is no such plan
  4  a step is prevented, or the phase was changed meanwhile; the steps before it are done";
