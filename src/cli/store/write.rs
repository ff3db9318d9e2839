//! Commits of a command: their options, and how they are sent.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use xds_core::RolloutSteps;
use xds_proto::xds::store::v1 as proto;

use super::connection::Connection;
use super::error::StoreError;
use super::report::Report;
use crate::cli::check::ReportFormat;
use crate::cli::say;
use crate::cli::serve::time;

#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct WriteOptions {
    /// Act as this named owner, such as a team. A put adds it to the owners of the resource. A delete
    /// releases it, and deletes the resource if no owner is left
    #[arg(long, value_name = "NAME")]
    pub(super) owner: Option<String>,
    /// Report what would change, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Why, for the history; at most 1 KiB
    #[arg(long, value_name = "TEXT")]
    pub(super) message: Option<String>,
    /// Wait until so many peers of the node have the change durably, for 5 s; then the command ends with an
    /// error, and the change stays [default: --ack of the server]
    #[arg(long, value_name = "PEERS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) ack: Option<u32>,
    /// Give the change to a few clients first, in these steps, such as '2 clients, 10%, 100%'
    ///
    /// Each server of the store gives it to its clients like this, as with --rollout of `xds serve`. The
    /// command ends when the change is stored; `xds rollout status` shows what clients say. A server
    /// without --rollout-state refuses it.
    #[arg(long, value_name = "STEPS")]
    pub(super) rollout: Option<RolloutSteps>,
    /// How long each step takes [default with --rollout: 30s]
    #[arg(long, value_name = "TIME", requires = "rollout", value_parser = time)]
    pub(super) rollout_wait: Option<Duration>,
}

impl WriteOptions {
    pub(super) fn request(&self, changes: Vec<proto::Change>) -> proto::CommitRequest {
        proto::CommitRequest {
            changes,
            dry_run: self.dry_run,
            owner: self.owner.clone().unwrap_or_default(),
            message: self.message.clone().unwrap_or_default(),
            ack_peers: self.ack.unwrap_or_default(),
            rollout: self.rollout(),
            ..proto::CommitRequest::default()
        }
    }

    fn rollout(&self) -> Option<proto::Rollout> {
        let RolloutSteps(steps) = self.rollout.as_ref()?;
        let wait = self.rollout_wait.and_then(|wait| wait.try_into().ok());
        Some(proto::Rollout { steps: steps.iter().map(ToString::to_string).collect(), wait })
    }

    /// Prints what a command did.
    pub(super) fn print(&self, report: &Report, subject: &str, format: ReportFormat) {
        match format {
            ReportFormat::Json => say(format_args!("{:#}", report.object(self.dry_run))),
            ReportFormat::Text => {
                report.lines();
                let dry_run = if self.dry_run { "dry run: " } else { "" };
                say(format_args!("{subject}: {dry_run}{}", report.summary()));
            }
        }
    }
}

/// Sends a commit.
pub(super) async fn commit(
    connection: &Connection,
    request: proto::CommitRequest,
) -> Result<proto::CommitResponse, StoreError> {
    let error = match send(connection, request.clone()).await {
        Err(StoreError::Refused(refused)) => refused,
        answer => return answer,
    };
    // SG22: once, because the writer may be another one meanwhile.
    let Some(address) = error.writer().map(str::to_owned) else { return Err(StoreError::Refused(error)) };
    let Some(there) = connection.at(&address).await else { return Err(StoreError::Refused(error)) };
    let mut response = send(&there, request).await?;
    response.warnings.push(format!("committed at {address}, the writer of the region that owns the names"));
    Ok(response)
}

async fn send(
    connection: &Connection,
    request: proto::CommitRequest,
) -> Result<proto::CommitResponse, StoreError> {
    let mut client = connection.store.clone();
    match connection.answer(client.commit(request.clone())).await {
        Err(StoreError::Silent { server, timeout, .. }) => {
            Err(StoreError::Silent { server, timeout, is_commit: true })
        }
        Err(StoreError::Lost { server, reason, .. }) => {
            Err(StoreError::Lost { server, reason, is_commit: true })
        }
        Err(StoreError::Refused(mut refused)) if refused.others > 0 => {
            if let Some(all) = violations(connection, &request).await {
                (refused.violations, refused.others) = (all, 0);
            }
            Err(StoreError::Refused(refused))
        }
        answer => answer,
    }
}

/// All that is wrong with a commit, in full: a status has no room for more than some of it. `None` if the store
/// would not refuse it any more, or does not say.
async fn violations(
    connection: &Connection,
    request: &proto::CommitRequest,
) -> Option<Vec<proto::Violation>> {
    let mut all = Vec::new();
    loop {
        let violations_from = Some(u32::try_from(all.len()).ok()?);
        let request = proto::CommitRequest { dry_run: true, violations_from, ..request.clone() };
        let response = connection.answer(connection.store.clone().commit(request)).await.ok()?;
        if response.violations.is_empty() {
            return None;
        }
        all.extend(response.violations);
        if all.len() >= response.violation_count as usize {
            return Some(all);
        }
    }
}

/// A change of a key, on a condition.
pub(super) fn change(
    key: proto::Key,
    condition: Option<proto::Condition>,
    act: proto::change::Act,
) -> proto::Change {
    proto::Change { key: Some(key), condition, act: Some(act) }
}

/// Prints an error as JSON too, for a program that reads standard output.
pub(super) fn print_error(format: ReportFormat, error: &StoreError) {
    if format == ReportFormat::Json {
        say(format_args!("{:#}", json!({ "error": error.object() })));
    }
}
