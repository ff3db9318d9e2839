//! `xds diff`: what `xds apply` would change.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use xds_proto::xds::store::v1 as proto;

use super::apply::{ApplyOptions, Plan, tuple};
use super::document::Documents;
use super::report::{Report, outcome};
use super::{records, run, while_waiting};
use crate::cli::check::ReportFormat;
use crate::cli::progress::Spinner;
use crate::cli::shown::unified;
use crate::cli::{Failure, say};

/// Show what `xds apply` would change, as a unified diff of YAML
///
/// The server judges the commit as a dry run, so it needs the right to write, and a refusal is the
/// one that `xds apply` would get.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES,
    mut_arg("isolate", |isolate| isolate.hide(true)),
    mut_arg("dry_run", |dry_run| dry_run.hide(true)),
    mut_arg("message", |message| message.hide(true)))]
pub(in crate::cli) struct Diff {
    #[command(flatten)]
    options: ApplyOptions,
}

impl Diff {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        let options = &self.options;
        let changes = options.folder()?;
        let mut documents = Documents::new(options.descriptors.read()?);
        run(&options.connection, options.format, async |connection| {
            let spinner = Spinner::hidden();
            let mut report = Report::default();
            let judged = while_waiting(&spinner, async {
                let present = options.present(&connection, &changes, false, &spinner).await?;
                let plan = Plan::of(&changes, &present, options)?;
                options.commit(&connection, plan, true, &mut report, &spinner).await.map(|()| present)
            });
            let present = judged.await;
            drop(spinner);
            let present = present?;
            let contents = changes.iter().filter_map(|put| match (&put.change.key, &put.change.act) {
                (Some(key), Some(proto::change::Act::Put(proto::Put { content: Some(content), .. }))) => {
                    Some((tuple(key), content))
                }
                _ => None,
            });
            let new: BTreeMap<_, _> = contents.collect();
            let mut shown = Vec::new();
            for (result, place) in report.changes() {
                let key = result.key.clone().unwrap_or_default();
                let before = present.get(&tuple(&key)).and_then(|record| record.content.as_ref());
                let after = new.get(&tuple(&key)).copied();
                let text = difference(&mut documents, &key, before, after, place);
                let outcome = outcome(result.outcome());
                match options.format {
                    ReportFormat::Text if text.is_empty() => {
                        say(format_args!("{outcome} {}: the content is the same", records::label(&key)));
                    }
                    ReportFormat::Text => say(text.trim_end()),
                    ReportFormat::Json => shown.push(json!({
                        "outcome": outcome, "type": key.type_url, "name": key.name, "when": key.when,
                        "at": place, "diff": text,
                    })),
                }
            }
            if options.format == ReportFormat::Json {
                say(format_args!("{:#}", Value::Array(shown)));
            }
            Ok(ExitCode::from(if report.changes().next().is_some() { DIFFERENT } else { 0 }))
        })
    }
}

/// The difference of two contents of a record; empty if their documents are equal.
pub(super) fn difference(
    documents: &mut Documents,
    key: &proto::Key,
    before: Option<&proto::Content>,
    after: Option<&proto::Content>,
    place: Option<&str>,
) -> String {
    let label = records::label(key);
    let mut text = |content: Option<&proto::Content>| match content {
        Some(content) => documents.yaml(key, content),
        None => String::new(),
    };
    let (old, new) = (text(before), text(after));
    let name = |content: Option<&proto::Content>, place: Option<&str>| match content {
        None => "/dev/null".to_owned(),
        Some(_) => place.map_or_else(|| label.clone(), |place| format!("{label}  {place}")),
    };
    unified(&old, &new, Some((&name(before, None), &name(after, place))))
}

/// The exit code if there are differences.
const DIFFERENT: u8 = 5;

const EXAMPLES: &str = "\
Examples:
  xds diff config --store data
  xds diff config --store data --owner shop --prune

JSON: an array with an object per change: {outcome, type, name, when, at, diff}; or an error as of
`xds apply`. Fields may be added.

Exit codes:
  0  no difference
  1  the server cannot be reached, or refuses
  2  invalid input: arguments, the folder
  4  `xds apply` would be refused by the state
  5  differences";
