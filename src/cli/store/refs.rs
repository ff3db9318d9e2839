//! `xds refs why`: what a record names, what names it, and why it cannot be deleted.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tonic::Code;
use xds_proto::xds::store::v1 as proto;

use super::connection::ConnectionOptions;
use super::error::StoreError;
use super::names::{self, RecordName};
use super::records::label;
use super::run;
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, say};

/// Show which resources refer to each other
#[derive(Debug, Args)]
pub(in crate::cli) struct Refs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Why(Why),
}

/// Show what a resource refers to, what refers to it, and what blocks its deletion
///
/// The chain of blockers begins with the nearest one: each line has to be deleted, or changed, before
/// the line above it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Why {
    #[command(flatten)]
    record: RecordName,
    #[command(flatten)]
    connection: ConnectionOptions,
    /// How many steps of blockers to follow, at most 100
    #[arg(long, value_name = "STEPS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    depth: u32,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Refs {
    pub(in crate::cli) fn run(&self) -> Result<ExitCode, Failure> {
        match &self.action {
            Action::Why(why) => why.run(),
        }
    }
}

impl Why {
    fn run(&self) -> Result<ExitCode, Failure> {
        let type_url = self.record.type_url()?;
        run(&self.connection, self.format, async |connection| {
            let key = self.record.key(&connection, &type_url).await?;
            let request = proto::ReferencesRequest { key: Some(key.clone()), depth: self.depth };
            let mut client = connection.store.clone();
            let found = connection.answer(client.references(request)).await.map_err(|error| match error {
                StoreError::Refused(refused) if refused.code == Code::NotFound => {
                    names::missing(&key, "does not exist, and nothing names it")
                }
                other => other,
            })?;
            match self.format {
                ReportFormat::Json => say(format_args!("{:#}", object(&found))),
                ReportFormat::Text => {
                    text(&key, &found).into_iter().for_each(|line| say(format_args!("{line}")));
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn text(key: &proto::Key, found: &proto::ReferencesResponse) -> Vec<String> {
    let mut lines = vec![label(key)];
    lines.extend(found.targets.iter().map(|reference| {
        let missing = if reference.is_missing { ", which does not exist" } else { "" };
        format!("  refers to {}{}{missing}", labelled(reference.target.as_ref()), field(reference))
    }));
    lines.extend(found.referrers.iter().map(|reference| {
        format!(
            "  is used by {}{}{}",
            labelled(reference.source.as_ref()),
            field(reference),
            region(reference)
        )
    }));
    let more = found.referrer_count.saturating_sub(found.referrers.len() as u64);
    if more > 0 {
        lines.push(format!("  is used by {more} more"));
    }
    if found.blocked_by.is_empty() {
        lines.push("nothing blocks its deletion".to_owned());
        return lines;
    }
    lines.push("its deletion is blocked by".to_owned());
    lines.extend(found.blocked_by.iter().map(|reference| {
        let (source, target) = (labelled(reference.source.as_ref()), labelled(reference.target.as_ref()));
        format!("  {source}, which names {target}{}{}", field(reference), region(reference))
    }));
    if found.is_cycle {
        lines.push("  and so on: these name each other, so delete them in one commit".to_owned());
    }
    lines
}

fn labelled(key: Option<&proto::Key>) -> String {
    key.map(label).unwrap_or_default()
}

fn field(reference: &proto::Reference) -> String {
    if reference.field.is_empty() { String::new() } else { format!(" ({})", reference.field) }
}

/// Where the source is, if it is elsewhere.
fn region(reference: &proto::Reference) -> String {
    match (&*reference.source_region, reference.is_tentative) {
        ("", _) => String::new(),
        (region, false) => format!(", in region {region}"),
        (region, true) => format!(", in region {region}, which has not confirmed it yet"),
    }
}

fn object(found: &proto::ReferencesResponse) -> Value {
    let key = |key: &Option<proto::Key>| {
        let proto::Key { type_url, name, when } = key.clone().unwrap_or_default();
        json!({ "type": type_url, "name": name, "when": when })
    };
    let all = |references: &[proto::Reference]| -> Vec<Value> {
        let object = |reference: &proto::Reference| {
            let blocks = reference.on_delete() == proto::OnDelete::Block;
            json!({
                "source": key(&reference.source), "field": reference.field, "target": key(&reference.target),
                "blocks": blocks, "missing": reference.is_missing, "region": reference.source_region,
                "tentative": reference.is_tentative,
            })
        };
        references.iter().map(object).collect()
    };
    json!({
        "targets": all(&found.targets),
        "referrers": all(&found.referrers),
        "referrer_count": found.referrer_count,
        "blocked_by": all(&found.blocked_by),
        "cycle": found.is_cycle,
    })
}

const EXAMPLES: &str = "\
Example:
  xds refs why CDS checkout --store data

JSON: one object with
  targets         [{source, field, target, blocks, missing, region, tentative}], source and target
                  as {type, name, when}; region is that of a source in another region, else empty
  referrers       the same, the first 1000 that this client may read
  referrer_count  number of all
  blocked_by      the chain of blockers, the nearest first
  cycle           whether the last blocker is blocked by an earlier one
  Fields may be added.

Exit codes:
  0  shown
  1  the server cannot be reached, or refuses
  2  invalid input: arguments; several variants without --when
  3  it does not exist, and nothing refers to it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sg10_a_reference_of_another_region_is_shown_with_its_region() {
        let key = |name: &str| proto::Key { type_url: "t/T".into(), name: name.into(), when: String::new() };
        let reference = |source: &str, region: &str, is_tentative| proto::Reference {
            source: Some(key(source)),
            field: "f".into(),
            target: Some(key("x")),
            on_delete: proto::OnDelete::Block.into(),
            source_region: region.into(),
            is_tentative,
            is_missing: false,
        };
        let found = proto::ReferencesResponse {
            referrers: vec![
                reference("a", "us", true),
                reference("b", "us", false),
                reference("c", "", false),
            ],
            referrer_count: 3,
            blocked_by: vec![reference("b", "us", false)],
            ..Default::default()
        };
        let lines = text(&key("x"), &found);
        let ends = ["(f), in region us, which has not confirmed it yet", "(f), in region us", "(f)"];
        assert!(lines[1..4].iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{lines:?}");
        assert!(lines.last().unwrap().ends_with("x (f), in region us"), "{lines:?}");
        let first = &object(&found)["referrers"][0];
        assert_eq!((&first["region"], &first["tentative"]), (&"us".into(), &true.into()));
    }
}
