//! `xds check`: reports all mistakes of a folder, without serving it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use xds::Parameters;
use xds::folder::lint::{Uncovered, Warning};
use xds::folder::{Contents, FolderError, FolderErrors, Location, Problem};
use xds_core::CommitError;

use super::progress::while_working;
use super::warnings::{STRICT, WarningOptions, warning_text};
use super::{DescriptorOptions, Failure, FolderOptions, load, say};
use policy_report::PolicyReport;

mod policy_report;

/// Check a folder: report all errors and likely mistakes, or count its resources per type
///
/// `xds serve` refuses a folder with errors: files that cannot be read as resources, variants that
/// overlap, variants that name different keys. Each name is checked on its own, so one run finds
/// all errors.
///
/// Warnings are likely mistakes that `xds serve` accepts: parameters that no variant of a name
/// matches, variants that no client gets, keys that make no difference, and references to resources
/// (routes, clusters, endpoints, secrets, extensions) that the folder does not have, or not for all
/// clients that would subscribe to them. Each comes with parameters that prove it. The check looks
/// for warnings only if all files can be read.
///
/// The file domains.yaml at the top of the folder lists the values that clients have.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("folder", |dir| dir.required(false).required_unless_present("policy")))]
pub(super) struct Check {
    #[command(flatten)]
    source: Option<FolderOptions>,
    #[command(flatten, next_help_heading = None)]
    descriptors: DescriptorOptions,
    /// Check this policy too (see docs/security.md), or alone without DIR
    ///
    /// Warnings are rules that no client gets to, `*` and braces that are plain text, and entries
    /// that are listed twice.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    #[command(flatten)]
    warnings: WarningOptions,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Lines for people
    Text,
    /// JSON on standard output
    Json,
}

impl Check {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let policy = self.policy.as_deref().map(PolicyReport::of).transpose()?;
        let folder = self.source.as_ref().map(|source| self.folder(source)).transpose()?;
        match self.format {
            ReportFormat::Text => {
                folder.iter().for_each(|report| report.text(self.warnings.strict));
                policy.iter().for_each(|report| report.text(self.warnings.strict));
            }
            ReportFormat::Json => {
                let mut object = folder.as_ref().map_or_else(no_folder, FolderReport::object);
                object["policy"] = policy.as_ref().map_or(Value::Null, PolicyReport::object);
                say(format_args!("{object:#}"));
            }
        }
        let code = folder.as_ref().map_or(ExitCode::SUCCESS, |report| report.code(self.warnings.strict));
        let is_refused = policy.is_some_and(|policy| policy.is_refused(self.warnings.strict));
        Ok(if is_refused && code == ExitCode::SUCCESS { ExitCode::from(2) } else { code })
    }

    fn folder<'a>(&self, source: &'a FolderOptions) -> Result<FolderReport<'a>, Failure> {
        let contents = load::contents(&source.open(self.descriptors.read()?));
        let errors = contents.errors();
        let mut warnings = while_working("comparing variants and references", || contents.warnings());
        self.warnings.policy().retain(&mut warnings);
        Ok(FolderReport { source, contents, errors, warnings })
    }
}

/// The result of the check of a folder.
struct FolderReport<'a> {
    source: &'a FolderOptions,
    contents: Contents,
    errors: Option<FolderErrors>,
    warnings: Vec<Warning>,
}

impl FolderReport<'_> {
    fn code(&self, is_strict: bool) -> ExitCode {
        match &self.errors {
            Some(errors) if errors.are_environment() => ExitCode::from(1),
            Some(_) => ExitCode::from(2),
            None if is_strict && !self.warnings.is_empty() => ExitCode::from(2),
            None => ExitCode::SUCCESS,
        }
    }

    fn text(&self, is_strict: bool) {
        let Self { source, contents, errors, warnings } = self;
        let errors = errors.as_ref();
        let folder = source.folder.display();
        if errors.is_none() || contents.isolated() > 0 {
            load::summary_of(source, contents).iter().for_each(say);
        }
        // List the errors and warnings of one file together.
        let mut found: Vec<(&str, u32, String)> = Vec::new();
        for error in errors.into_iter().flatten() {
            let text = super::error_line(&source.folder, error);
            found.push((&error.file, error.at.map_or(0, |at| at.line), text));
        }
        for warning in warnings {
            let first = warning.locations.first();
            found.push((
                first.map_or("", |location| &*location.file),
                first.map_or(0, |location| location.line),
                warning_text(warning),
            ));
        }
        found.sort_by_key(|(file, line, _)| (*file, *line));
        found.iter().for_each(|(_, _, text)| eprintln!("{text}"));
        let counted = [(errors.map_or(0, FolderErrors::len), "error"), (warnings.len(), "warning")];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        let counted: Vec<_> = counted.map(|(count, what)| super::counted(count, what)).collect();
        if !counted.is_empty() {
            let strict = if is_strict && errors.is_none() { STRICT } else { "" };
            eprintln!("{folder}: {}{strict}", counted.join(", "));
        }
        if contents.isolated() > 0 {
            let files = super::counted(contents.isolated(), "file");
            eprintln!(
                "{folder}: --isolate file: {files} would keep the last good content, and all other files would be \
                 served; `xds serve` would not start"
            );
        }
    }

    fn object(&self) -> Value {
        let Self { contents, errors, warnings, .. } = self;
        let types = contents.types().map(|type_url| {
            let (variants, names) = contents.count(type_url);
            json!({ "type": type_url.as_str(), "names": names, "variants": variants })
        });
        json!({
            "errors": errors.iter().flatten().map(error).collect::<Vec<_>>(),
            "warnings": warnings.iter().map(warning).collect::<Vec<_>>(),
            "summary": {
                "files": contents.files(),
                "resources": contents.resources(),
                "types": types.collect::<Vec<_>>(),
                "errors": errors.as_ref().map_or(0, FolderErrors::len),
                "warnings": warnings.len(),
                "isolated": contents.isolated(),
            },
        })
    }
}

/// The object of a check of a policy alone.
fn no_folder() -> Value {
    json!({ "errors": [], "warnings": [], "summary": null })
}

fn error(error: &FolderError) -> Value {
    let witness = match &error.problem {
        Problem::Commit { error, .. } => match &**error {
            CommitError::Ambiguous { witness, .. } => Some(parameters(witness)),
            _ => None,
        },
        _ => None,
    };
    json!({
        "file": &*error.file,
        "line": error.at.map(|at| at.line),
        "column": error.at.map(|at| at.column),
        "witness": witness,
        "message": error.message().to_string(),
    })
}

fn warning(warning: &Warning) -> Value {
    let reference =
        warning.reference().map(|reference| json!({ "type": reference.type_url, "name": reference.name }));
    json!({
        "kind": warning.kind(),
        "type": warning.type_url.as_str(),
        "name": warning.name.as_str(),
        "when": warning.constraints.as_ref().map(when),
        "places": warning.locations.iter().map(location).collect::<Vec<_>>(),
        "witnesses": warning.witnesses().iter().map(witness).collect::<Vec<_>>(),
        "reference": reference,
        "message": warning.to_string(),
        "hint": warning.hint(),
    })
}

fn witness(uncovered: &Uncovered) -> Value {
    let Uncovered { witness, absent, free } = uncovered;
    let keys = |keys: &[_]| keys.iter().map(|key: &std::sync::Arc<str>| key.to_string()).collect::<Vec<_>>();
    json!({ "parameters": parameters(witness), "absent": keys(absent), "any": keys(free) })
}

pub(super) fn location(location: &Location) -> Value {
    json!({ "file": &*location.file, "line": location.line })
}

pub(super) fn parameters(parameters: &Parameters) -> Value {
    parameters.iter().map(|(key, value)| (key.to_string(), Value::from(&**value))).collect()
}

/// The condition of a variant; `null` for a variant without constraints.
pub(super) fn when(constraints: &xds::Constraints) -> Option<String> {
    (!constraints.is_unconstrained()).then(|| constraints.to_string())
}

const EXAMPLES: &str = "\
Examples:
  xds check config && git push
  xds check config --strict                    likely mistakes are errors too
  xds check config --strict --allow gap        except names that only some clients have
  xds check config --policy policy.yaml        and the policy of `xds serve`
  xds check config --format json | jq -r '.warnings[] | .places[0].file + \": \" + .message'

domains.yaml, at the top of the folder (or domains.yml, domains.json): the values that clients have.
A key with a list is always present, with one of these values. A key that is not in the file can
have any value, or be absent.
  env: [prod, canary, test]
  version: { values: [v1, v2], absent: true }  # or not sent at all
  pod-name: { other: true }                    # always sent, with any value

JSON: one object with
  errors    [{file, line, column, witness, message}]
  warnings  [{kind, type, name, when, places: [{file, line}],
              witnesses: [{parameters, absent, any}], reference: {type, name}, message, hint}]
            kind: those of --allow
  summary   {files, resources, types: [{type, names, variants}], errors, warnings, isolated}
  policy    {rules, errors: [{file, line, column, message}],
             warnings: [{kind, file, line, column, message}]}, with --policy
  Fields that do not apply are null or an empty list. Fields may be added.

Exit codes:
  0  `xds serve` would serve the folder
  1  a file cannot be read
  2  an error; with --strict, a warning";
