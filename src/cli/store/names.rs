//! The records that a command is about: a NAME is always a whole name, and `--match` takes a pattern.

use std::str::FromStr;

use clap::Args;
use xds::{TypeUrl, printable};
use xds_core::XdstpName;
use xds_proto::xds::store::v1 as proto;

use super::connection::Connection;
use super::error::StoreError;
use super::records;
use super::write::WriteOptions;
use crate::cli::check::ReportFormat;
use crate::cli::shown::resource_label;
use crate::cli::{Failure, say, type_name};

/// The record that a command is about.
#[derive(Debug, Args)]
pub(super) struct RecordName {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// The whole name of the resource
    #[arg(value_name = "NAME")]
    name: String,
    /// Which of several variants: its `when:`; an empty text is the one without constraints
    #[arg(long, value_name = "WHEN")]
    when: Option<String>,
}

impl RecordName {
    pub(super) fn of(
        type_name: Option<&String>,
        name: Option<&String>,
        when: Option<&String>,
    ) -> Option<Self> {
        Some(Self { type_name: type_name?.clone(), name: name?.clone(), when: when.cloned() })
    }

    pub(super) fn type_url(&self) -> Result<TypeUrl, Failure> {
        type_name::parse_any(&self.type_name).map_err(Failure::Type)
    }

    pub(super) async fn key(
        &self,
        connection: &Connection,
        type_url: &TypeUrl,
    ) -> Result<proto::Key, StoreError> {
        key(connection, type_url, &self.name, self.when.as_deref()).await
    }
}

/// The records that a command changes: one by its name, or all whose names match a pattern.
#[derive(Debug, Args)]
pub(super) struct RecordSelection {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// The whole name of the resource
    #[arg(value_name = "NAME", required_unless_present = "patterns", conflicts_with = "patterns")]
    name: Option<String>,
    /// Which of several variants: its `when:`; an empty text is the one without constraints
    #[arg(long, value_name = "WHEN", conflicts_with = "patterns")]
    when: Option<String>,
    /// All resources whose names begin like this: the beginning with `*` behind it, such as 'shop-*'.
    /// Shows what would change, and changes nothing without --yes. May be repeated
    #[arg(id = "patterns", long = "match", value_name = "PATTERN")]
    patterns: Vec<NamePattern>,
    /// Change what --match selects
    #[arg(long, requires = "patterns", conflicts_with = "name")]
    yes: bool,
}

/// What a [`RecordSelection`] selects.
pub(super) enum Selected {
    /// The record of a name; it may be absent.
    Named(proto::Key),
    /// The records that match a pattern, without payloads; at least one.
    Matching(Vec<proto::Record>),
}

impl RecordSelection {
    pub(super) fn type_url(&self) -> Result<TypeUrl, Failure> {
        type_name::parse_any(&self.type_name).map_err(Failure::Type)
    }

    pub(super) async fn find(
        &self,
        connection: &Connection,
        type_url: &TypeUrl,
    ) -> Result<Selected, StoreError> {
        if let Some(name) = &self.name {
            return Ok(Selected::Named(key(connection, type_url, name, self.when.as_deref()).await?));
        }
        let names = NameSelection { names: &[], patterns: &self.patterns };
        let filter = proto::Filter {
            type_urls: vec![type_url.as_str().to_owned()],
            names: names.filter(),
            ..proto::Filter::default()
        };
        let mut found = Vec::new();
        records::list(connection, filter, true, |record| {
            if record.key.as_ref().is_some_and(|key| names.selects(&key.name)) {
                found.push(record);
            }
            Ok(())
        })
        .await?;
        if found.is_empty() {
            let patterns: Vec<_> = self.patterns.iter().map(|pattern| printable(&pattern.0)).collect();
            let text = format!("no {} matches {}", type_name::short(type_url), patterns.join(", "));
            return Err(StoreError::Missing(text));
        }
        Ok(Selected::Matching(found))
    }

    /// The options of the commit: what a pattern selects is only shown until `--yes` confirms it.
    pub(super) fn confirmed(&self, write: &WriteOptions) -> WriteOptions {
        WriteOptions { dry_run: write.dry_run || self.is_unconfirmed(), ..write.clone() }
    }

    /// Says that nothing is changed yet, if so.
    pub(super) fn print_unconfirmed(&self, format: ReportFormat) {
        if self.is_unconfirmed() && format == ReportFormat::Text {
            say("nothing is changed: add --yes to change these");
        }
    }

    fn is_unconfirmed(&self) -> bool {
        !self.patterns.is_empty() && !self.yes
    }

    /// What the records are called in a report.
    pub(super) fn label(&self, selected: &Selected) -> String {
        match selected {
            Selected::Named(key) => records::label(key),
            Selected::Matching(records) if records.len() == 1 => "1 resource".to_owned(),
            Selected::Matching(records) => format!("{} resources", records.len()),
        }
    }
}

/// The beginning of names with `*` behind it, such as `shop-*`; `*` for all names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamePattern(String);

/// A text is no pattern.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pattern is the beginning of names with one `*` behind it, such as 'shop-*'")]
pub(super) struct NamePatternError;

impl FromStr for NamePattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        match text.split_once('*') {
            Some((_, "")) => Ok(Self(text.to_owned())),
            Some(_) | None => Err(NamePatternError),
        }
    }
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        self.0.strip_suffix('*').is_some_and(|beginning| name.starts_with(beginning))
    }
}

/// Whole names, and patterns; without any of them all names.
#[derive(Debug, Clone, Copy)]
pub(super) struct NameSelection<'a> {
    /// In their canonical form.
    pub(super) names: &'a [String],
    pub(super) patterns: &'a [NamePattern],
}

impl NameSelection<'_> {
    /// The names of a filter of the API, which takes each name with `*` at its end as a pattern. So the
    /// answer may have more records than [`selects`](Self::selects) does, but never fewer.
    pub(super) fn filter(&self) -> Vec<String> {
        let patterns = self.patterns.iter().map(|pattern| &pattern.0);
        self.names.iter().chain(patterns).cloned().collect()
    }

    pub(super) fn is_everything(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty()
    }

    pub(super) fn selects(&self, name: &str) -> bool {
        self.is_everything()
            || self.names.iter().any(|selected| selected == name)
            || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

/// The text that a store has for a name: new-style names have a canonical form.
pub(super) fn canonical(name: &str) -> String {
    match XdstpName::of(name) {
        Ok(Some(new_style)) => new_style.canonical().as_str().to_owned(),
        Ok(None) | Err(_) => name.to_owned(),
    }
}

/// The variant that a command is about: that of `--when`, or else the only one of the name. Without
/// any record it is the one without constraints, whose history may still be there.
pub(super) async fn key(
    connection: &Connection,
    type_url: &TypeUrl,
    name: &str,
    when: Option<&str>,
) -> Result<proto::Key, StoreError> {
    let key = |when: &str| proto::Key {
        type_url: type_url.as_str().to_owned(),
        name: name.to_owned(),
        when: when.to_owned(),
    };
    if let Some(when) = when {
        return Ok(key(when));
    }
    let names = [canonical(name)];
    let names = NameSelection { names: &names, patterns: &[] };
    let filter = proto::Filter {
        type_urls: vec![type_url.as_str().to_owned()],
        names: names.filter(),
        ..proto::Filter::default()
    };
    let mut found = Vec::new();
    records::list(connection, filter, true, |record| {
        found.extend(record.key.filter(|key| names.selects(&key.name)));
        Ok(())
    })
    .await?;
    match &found[..] {
        [] => Ok(key("")),
        [only] => Ok(only.clone()),
        several => {
            let variants: Vec<_> = several.iter().map(|key| format!("--when {:?}", key.when)).collect();
            let label = resource_label(type_url, name);
            Err(StoreError::Input(format!(
                "{label} has several variants: add one of {}",
                variants.join(", ")
            )))
        }
    }
}

/// The error of a command whose record is missing.
pub(super) fn missing(key: &proto::Key, what: &str) -> StoreError {
    let hint = pattern_hint(&key.name);
    StoreError::Missing(format!("{} {what}{hint}", records::label(key)))
}

/// A line for somebody who takes NAME for a pattern; empty for a name without `*`.
pub(super) fn pattern_hint(name: &str) -> String {
    let Some((beginning, _)) = name.split_once('*') else { return String::new() };
    let beginning = printable(beginning);
    format!("\n  hint: NAME is a whole name. For names that begin like it: --match '{beginning}*'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_beginning_with_a_star() {
        for (text, selected, others) in
            [("*", ["", "a", "*"], [""; 0].as_slice()), ("ab*", ["ab", "ab*", "abc"], &["a", "b", "xab"])]
        {
            let pattern: NamePattern = text.parse().unwrap();
            assert!(selected.iter().all(|name| pattern.matches(name)), "{text}");
            assert!(others.iter().all(|name| !pattern.matches(name)), "{text}");
        }
        for text in ["", "ab", "a*b", "*b", "ab**"] {
            assert_eq!(text.parse::<NamePattern>(), Err(NamePatternError), "{text}");
        }
    }

    #[test]
    fn a_name_with_a_star_selects_itself_only() {
        let names = [canonical("ab*"), canonical("xdstp://a/t.T/c*?y=1&x=2")];
        let selection = NameSelection { names: &names, patterns: &[] };
        assert_eq!(selection.filter(), ["ab*", "xdstp://a/t.T/c*?x=2&y=1"]);
        assert!(names.iter().all(|name| selection.selects(name)));
        let others = ["ab", "abc", "a", "xdstp://a/t.T/c?x=2&y=1", ""];
        assert!(others.iter().all(|name| !selection.selects(name)));
        let patterns = ["d*".parse().unwrap()];
        let selection = NameSelection { patterns: &patterns, ..selection };
        assert!(selection.selects("ab*") && selection.selects("dx") && !selection.selects("abc"));
        let nothing = NameSelection { names: &[], patterns: &[] };
        assert!(nothing.is_everything() && nothing.selects("abc"));
    }

    #[test]
    fn only_a_name_with_a_star_gets_a_hint_with_the_pattern() {
        assert_eq!(pattern_hint("ab"), "");
        assert!(pattern_hint("ab*").ends_with("--match 'ab*'"));
        assert!(pattern_hint("a*b*").ends_with("--match 'a*'"));
    }
}
