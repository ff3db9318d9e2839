//! Why a command of the store failed, for people and for programs.

use std::error::Error as _;
use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};
use tonic::{Code, Status};
use xds::client::bootstrap::ServerUriError;
use xds::printable;
use xds_proto::google::rpc;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;

use super::records::label;
use crate::cli::{NOTHING, counted};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum StoreError {
    #[error("no server: give --server HOST:PORT or --store DIR")]
    NoServer,
    #[error("{}: no such folder", folder.display())]
    NoFolder { folder: PathBuf },
    #[error(
        "no server answers for the store {folder}: start `xds serve --store {folder}`, with an admin port. If it \
         runs, restart it, or give --server and --token-file",
        folder = .folder.display()
    )]
    NotRunning { folder: PathBuf },
    #[error(
        "--store is a folder: for a store in etcd give --server HOST:PORT, the admin port of one of its servers"
    )]
    InEtcd,
    #[error("cannot read {}: {error}", file.display())]
    File { file: PathBuf, error: io::Error },
    #[error("{} is damaged ({reason}): start `xds serve --store` again", file.display())]
    LocalServer { file: PathBuf, reason: String },
    #[error("{} must have one line, `TOKEN` or `NAME TOKEN`", file.display())]
    TokenFile { file: PathBuf },
    #[error("the token has characters that a header cannot have")]
    TokenCharacters,
    #[error("a token must not be sent to {server} without TLS: use https://.., --tls or --ca")]
    TokenInPlain { server: String },
    #[error(transparent)]
    Address(ServerUriError),
    #[error("{server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    #[error("the connection to {server} was lost: {reason}{}", unknown(*.is_commit))]
    Lost { server: String, reason: String, is_commit: bool },
    #[error("{server} did not answer within {} s{}", timeout.as_secs(), unknown(*.is_commit))]
    Silent { server: String, timeout: Duration, is_commit: bool },
    #[error("{0}")]
    Refused(Box<Refused>),
    #[error("{0}")]
    Missing(String),
    /// ST69.
    #[error("{}", changed_later(.0))]
    ChangedLater(Vec<String>),
    /// SG15.
    #[error("{}", foreign(.0))]
    Foreign(Vec<String>),
    /// ST62: so many records of TO would be deleted.
    #[error(
        "FROM has no resources that its client may read, and TO has {0}\n  hint: --allow-empty deletes them"
    )]
    EmptyFrom(usize),
    /// A mirror: TO has records that FROM does not list, and the token of FROM may not read all records.
    #[error(
        "the client may not read all resources of FROM, and TO has {0} that FROM does not show\n  hint: give the client \
         the right to read them, or delete them in TO"
    )]
    NotShown(usize),
    /// What a store is like does not allow it.
    #[error("{0}")]
    State(String),
    /// A command of several steps ended before its last one.
    #[error("{error}{hint}")]
    Stopped {
        error: Box<Self>,
        /// Lines that begin with two spaces, for people: where it stopped, and how to go on.
        hint: String,
        /// The same for programs.
        reached: Value,
    },
    #[error("{0}")]
    Input(String),
    #[error("cannot write: {0}")]
    Output(io::Error),
}

fn unknown(is_commit: bool) -> &'static str {
    if is_commit { "; the commit may be done: look at `xds history`" } else { "" }
}

fn changed_later(labels: &[String]) -> String {
    let lines = labels.iter().map(|label| format!("{label} was changed after that commit"));
    let lines = lines.collect::<Vec<_>>().join("\n");
    lines + "\n  hint: --force undoes the commit all the same"
}

fn foreign(lines: &[String]) -> String {
    lines.join("\n") + "\n  hint: act as the owner with --owner, or use --take-over"
}

/// A refusal of the server.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Refused {
    pub(super) code: Code,
    message: String,
    pub(super) violations: Vec<proto::Violation>,
    /// How many further ones there are, which the status had no room for.
    pub(super) others: usize,
    /// OUT_OF_RANGE: the last forgotten revision.
    pub(super) floor: Option<String>,
    not_ready: Option<proto::NotReady>,
    /// The places of the changes in files, by their numbers.
    places: Vec<Option<String>>,
    /// What to do, for people.
    hint: Option<&'static str>,
}

impl StoreError {
    /// See [`Failure::exit_code`](crate::cli::Failure::exit_code).
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self {
            Self::NoServer
            | Self::InEtcd
            | Self::TokenFile { .. }
            | Self::TokenCharacters
            | Self::TokenInPlain { .. }
            | Self::Address(_)
            | Self::Input(_) => 2,
            Self::NotRunning { .. }
            | Self::NoFolder { .. }
            | Self::File { .. }
            | Self::LocalServer { .. }
            | Self::Unreachable { .. }
            | Self::Silent { .. }
            | Self::Lost { .. }
            | Self::Output(_) => 1,
            Self::Missing(_) => NOTHING,
            Self::ChangedLater(_)
            | Self::Foreign(_)
            | Self::EmptyFrom(_)
            | Self::NotShown(_)
            | Self::State(_) => 4,
            Self::Refused(refused) => refused.exit_code(),
            Self::Stopped { error, .. } => error.exit_code(),
        }
    }

    /// What a call of this server ended with.
    pub(super) fn of(status: &Status, server: &str) -> Self {
        let Some(mut cause) = status.source() else { return Self::Refused(Box::new(Refused::of(status))) };
        // There is no answer. The libraries add only their names to the first cause.
        while let Some(source) = cause.source() {
            cause = source;
        }
        Self::Lost { server: server.to_owned(), reason: cause.to_string(), is_commit: false }
    }

    /// Whether the server may come back.
    pub(super) fn is_away(&self) -> bool {
        match self {
            Self::NotRunning { .. } | Self::Unreachable { .. } | Self::Silent { .. } | Self::Lost { .. } => {
                true
            }
            Self::Refused(refused) => refused.code == Code::Unavailable,
            Self::Stopped { error, .. } => error.is_away(),
            _ => false,
        }
    }

    /// The numbers of the changes of which this field is invalid.
    pub(super) fn invalid_changes(&self, field: &str) -> Vec<usize> {
        let Self::Refused(refused) = self else { return Vec::new() };
        let is_it = |violation: &&proto::Violation| match &violation.why {
            Some(Why::Invalid(invalid)) => invalid.field == field,
            _ => false,
        };
        refused.violations.iter().filter(is_it).map(|violation| violation.change as usize).collect()
    }

    /// Adds the places of the changes and a hint to a refusal.
    pub(super) fn at(self, places: Vec<Option<String>>, hint: Option<&'static str>) -> Self {
        match self {
            Self::Refused(refused) => Self::Refused(Box::new(Refused { places, hint, ..*refused })),
            other => other,
        }
    }

    pub(super) fn object(&self) -> Value {
        match self {
            Self::Refused(refused) => refused.object(),
            Self::Stopped { error, reached, .. } => {
                let mut object = error.object();
                object["reached"] = reached.clone();
                object
            }
            other => json!({ "code": null, "message": other.to_string(), "violations": [] }),
        }
    }
}

impl Refused {
    /// The address of the node that accepts the commit, if that is all that is wrong (SG22).
    pub(super) fn writer(&self) -> Option<&str> {
        let mut addresses = self.violations.iter().map(|violation| match &violation.why {
            Some(Why::Region(owned)) if owned.other_regions.is_empty() => owned.writer_address.as_str(),
            _ => "",
        });
        let first = addresses.next().filter(|first| !first.is_empty())?;
        addresses.all(|address| address == first).then_some(first)
    }

    fn of(status: &Status) -> Self {
        let mut refused = Self {
            code: status.code(),
            message: status.message().to_owned(),
            violations: Vec::new(),
            others: 0,
            floor: None,
            not_ready: None,
            places: Vec::new(),
            hint: None,
        };
        let details = rpc::Status::decode(status.details()).unwrap_or_default().details;
        for detail in details {
            let name = detail.type_url.rsplit('/').next().unwrap_or_default();
            match name {
                "xds.store.v1.Refusal" => {
                    let refusal = proto::Refusal::decode(detail.value).unwrap_or_default();
                    refused.violations.extend(refusal.violations);
                    refused.others += refusal.others as usize;
                }
                "xds.store.v1.Compacted" => {
                    refused.floor =
                        proto::Compacted::decode(detail.value).ok().map(|compacted| compacted.floor);
                }
                "xds.store.v1.NotReady" => refused.not_ready = proto::NotReady::decode(detail.value).ok(),
                // A newer server may send others.
                _ => {}
            }
        }
        refused
    }

    fn exit_code(&self) -> u8 {
        match self.code {
            Code::InvalidArgument => 2,
            // A condition on what does not exist is refused by the state.
            Code::NotFound if self.has_condition() => 4,
            Code::NotFound => NOTHING,
            Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition | Code::OutOfRange => 4,
            _ => 1,
        }
    }

    fn has_condition(&self) -> bool {
        self.violations.iter().any(|violation| matches!(violation.why, Some(Why::Condition(_))))
    }

    fn place(&self, violation: &proto::Violation) -> Option<&str> {
        // A violation of the whole commit has no key and no change.
        violation.key.as_ref()?;
        self.places.get(violation.change as usize)?.as_deref()
    }

    fn line(&self, violation: &proto::Violation) -> String {
        let mut line = String::new();
        if let Some(place) = self.place(violation) {
            _ = write!(line, "{place}: ");
        }
        if let Some(key) = &violation.key {
            _ = write!(line, "{}", label(key));
        }
        let message = printable(&violation.message);
        match &violation.why {
            // It is being deleted, or has no lease.
            Some(Why::Condition(_)) if self.code == Code::FailedPrecondition => {
                _ = write!(line, ": {message}");
            }
            Some(Why::Condition(condition)) => line.push_str(&self.condition(condition)),
            Some(Why::Referred(referred)) if !referred.by.is_empty() => line.push_str(&used_by(referred)),
            Some(Why::Owned(owned)) if !owned.owners.is_empty() => {
                _ = write!(line, " belongs to {}", printable(&owned.owners.join(", ")));
            }
            Some(Why::Ambiguous(ambiguous)) if ambiguous.kind == "overlap" && ambiguous.other.is_some() => {
                line.push_str(&overlap(ambiguous));
            }
            _ if violation.key.is_some() => _ = write!(line, ": {message}"),
            _ => line.push_str(&message),
        }
        match &violation.why {
            Some(Why::Limit(limit)) if !limit.option.is_empty() => {
                _ = write!(line, " (option {} of the server)", limit.option);
            }
            Some(Why::Owned(owned)) if !message.contains("--take-over") && !owned.owners.is_empty() => {
                line.push_str("; act as its owner with --owner, or use --take-over");
            }
            Some(Why::MissingTarget(missing)) if !missing.is_not_imported && !missing.is_deleting => {
                line.push_str(" (--allow-missing)");
            }
            _ => {}
        }
        line
    }

    fn condition(&self, condition: &proto::ConditionFailed) -> String {
        match (&*condition.revision, self.code) {
            ("", _) => " does not exist".to_owned(),
            (revision, Code::AlreadyExists) => format!(" exists already, with revision {revision}"),
            (revision, _) => format!(" was changed: its revision is {revision} now"),
        }
    }

    fn object(&self) -> Value {
        let violations = self.violations.iter().map(|violation| {
            let key = violation.key.clone().unwrap_or_default();
            json!({
                "type": key.type_url, "name": key.name, "when": key.when,
                "message": violation.message,
                "at": self.place(violation),
                "reason": violation.why.as_ref().map(reason),
            })
        });
        json!({
            "code": code_name(self.code),
            "message": self.message,
            "violations": violations.collect::<Vec<_>>(),
            "floor": self.floor,
        })
    }
}

/// One line per violation, without `error: ` in front.
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<_> =
            self.violations.iter().take(VIOLATIONS_SHOWN).map(|violation| self.line(violation)).collect();
        let more = self.violations.len().saturating_sub(VIOLATIONS_SHOWN) + self.others;
        if more > 0 {
            lines.push(format!("and {} more", counted(more, "violation")));
        }
        if lines.is_empty() && self.code == Code::Unimplemented && self.message.is_empty() {
            lines.push(
                "this port has no store: give the admin port of a server with --store (UNIMPLEMENTED)".into(),
            );
        }
        if lines.is_empty() {
            lines.push(format!(
                "the server refuses: {} ({})",
                printable(&self.message),
                code_name(self.code)
            ));
        }
        if let Some(floor) = self.floor.as_ref().filter(|floor| !self.message.contains(&***floor)) {
            lines.push(format!("  revisions up to {floor} are forgotten"));
        }
        if let Some(proto::NotReady { retry_after: Some(after), .. }) = &self.not_ready {
            lines.push(format!("  try again in {after}"));
        }
        let hint = self.hint.filter(|_| self.has_condition());
        lines.extend(hint.map(|hint| format!("  hint: {hint}")));
        f.write_str(&lines.join("\n"))
    }
}

/// The other variant, and parameters that match both.
fn overlap(ambiguous: &proto::AmbiguousVariants) -> String {
    let when = ambiguous.other.as_ref().map_or("", |other| &other.when);
    let witness: Vec<_> = ambiguous.witness.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let witness = if witness.is_empty() { "all parameters".to_owned() } else { witness.join(",") };
    format!(" and [{}] both match {}", printable(when), printable(&witness))
}

/// What still refers to a record.
fn used_by(referred: &proto::Referred) -> String {
    let by = referred.by.iter().map(|reference| {
        let mut source = reference.source.as_ref().map(label).unwrap_or_default();
        if !reference.source_region.is_empty() {
            _ = write!(source, " in region {}", reference.source_region);
        }
        if reference.field.is_empty() { source } else { format!("{source} ({})", reference.field) }
    });
    let mut text = format!(" is used by {}", by.collect::<Vec<_>>().join(", "));
    let more = referred.count.saturating_sub(referred.by.len() as u64);
    if more > 0 {
        _ = write!(text, " and {more} more");
    }
    // SG34: what they refer to by now is not known.
    if !referred.silent_regions.is_empty() {
        _ = write!(text, " (no answer from region {})", referred.silent_regions.join(", "));
    }
    text + ": remove that first, or use --drain"
}

fn reason(why: &Why) -> Value {
    match why {
        Why::Invalid(invalid) => json!({ "kind": "invalid", "field": invalid.field }),
        Why::Condition(condition) => {
            json!({ "kind": "condition", "revision": condition.revision, "uid": condition.uid })
        }
        Why::Schema(schema) => {
            let proto::SchemaRefused { rule, stored, written, server, .. } = schema;
            json!({ "kind": "schema", "rule": rule, "stored": stored, "written": written, "server": server })
        }
        Why::Region(region) => json!({
            "kind": "region", "region": region.owner_region, "node": region.writer_node,
            "address": region.writer_address,
        }),
        Why::Owned(owned) => json!({ "kind": "owned", "owners": owned.owners }),
        Why::Ambiguous(ambiguous) => json!({
            "kind": "ambiguous", "other": ambiguous.other.as_ref().map(label),
            "witness": ambiguous.witness, "conflict": ambiguous.kind,
        }),
        Why::Referred(referred) => {
            let by = referred.by.iter().filter_map(|by| by.source.as_ref()).map(label);
            json!({ "kind": "referred", "by": by.collect::<Vec<_>>(), "count": referred.count,
                "silent_regions": referred.silent_regions })
        }
        Why::MissingTarget(missing) => json!({
            "kind": "missing_target", "target": missing.target.as_ref().map(label), "field": missing.field,
            "is_deleting": missing.is_deleting, "is_not_imported": missing.is_not_imported,
        }),
        Why::Limit(limit) => json!({
            "kind": "limit", "limit": limit.limit, "option": limit.option, "value": limit.value,
            "found": limit.found,
        }),
        Why::Right(right) => json!({ "kind": "right", "right": right.right }),
        Why::Gate(gate) => {
            json!({ "kind": "gate", "gate": gate.gate, "node": gate.node, "count": gate.count })
        }
    }
}

/// The name of a code as in the documents of gRPC.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// How many violations a person gets; JSON has all.
const VIOLATIONS_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use xds_proto::Any;

    use super::*;

    fn refused(code: Code, violations: Vec<proto::Violation>) -> Refused {
        let value = proto::Refusal { violations, others: 0 }.encode_to_vec().into();
        let details = vec![Any { type_url: "type.googleapis.com/xds.store.v1.Refusal".into(), value }];
        let status = rpc::Status { code: code as i32, message: "summary".into(), details };
        Refused::of(&Status::with_details(code, "summary", status.encode_to_vec().into()))
    }

    fn key(name: &str) -> Option<proto::Key> {
        let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".into();
        Some(proto::Key { type_url, name: name.into(), when: "env=prod".into() })
    }

    fn violation(change: u32, name: &str, message: &str, why: Why) -> proto::Violation {
        proto::Violation { change, key: key(name), message: message.into(), why: Some(why) }
    }

    #[test]
    fn each_violation_is_a_line_with_the_place_of_its_change() {
        let condition = |revision: &str| {
            Why::Condition(proto::ConditionFailed { revision: revision.into(), uid: "u".into() })
        };
        let changed = violation(1, "a", "long text", condition("r2"));
        let gone = violation(0, "b", "long text", condition(""));
        let refused = refused(Code::Aborted, vec![changed, gone]);
        let error =
            StoreError::Refused(Box::new(refused)).at(vec![None, Some("c/a.yaml:3".into())], Some("again"));
        assert_eq!(
            error.to_string(),
            "c/a.yaml:3: Cluster a [env=prod] was changed: its revision is r2 now\n\
             Cluster b [env=prod] does not exist\n  hint: again"
        );
        assert_eq!(error.exit_code(), 4);
        assert_eq!(error.object()["violations"][0]["reason"]["revision"], "r2");
        assert_eq!(error.object()["violations"][0]["at"], "c/a.yaml:3");
    }

    #[test]
    fn referrers_are_named_with_their_fields() {
        let field = "virtual_hosts.routes.route.cluster".to_owned();
        let by = vec![proto::Reference { source: key("web"), field, ..proto::Reference::default() }];
        let why = Why::Referred(proto::Referred { by, count: 3, silent_regions: Vec::new() });
        let refused = refused(Code::FailedPrecondition, vec![violation(0, "a", "x", why)]);
        assert_eq!(
            refused.to_string(),
            "Cluster a [env=prod] is used by Cluster web [env=prod] (virtual_hosts.routes.route.cluster) and 2 \
             more: remove that first, or use --drain"
        );
    }

    #[test]
    fn st66_a_violation_of_the_whole_commit_has_no_place() {
        let limit = proto::LimitExceeded {
            limit: "commit_changes".into(),
            option: "--commit-changes-limit".into(),
            value: 5,
            found: 6,
        };
        let message = "6 changes exceed the limit of 5".into();
        let violation = proto::Violation { change: 0, key: None, message, why: Some(Why::Limit(limit)) };
        let error = StoreError::Refused(Box::new(refused(Code::ResourceExhausted, vec![violation])));
        let error = error.at(vec![Some("a.yaml:1".into())], None);
        let text = "6 changes exceed the limit of 5 (option --commit-changes-limit of the server)";
        assert_eq!((error.to_string(), error.exit_code()), (text.to_owned(), 1));
    }

    #[test]
    fn without_details_the_text_of_the_server_and_the_code_are_shown() {
        let refused = Refused::of(&Status::unauthenticated("no valid token"));
        assert_eq!(refused.to_string(), "the server refuses: no valid token (UNAUTHENTICATED)");
        assert_eq!(refused.exit_code(), 1);
        assert_eq!(Refused::of(&Status::not_found("x")).exit_code(), 3);
        assert_eq!(Refused::of(&Status::invalid_argument("x")).exit_code(), 2);
    }
}
