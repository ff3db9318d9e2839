//! What a commit did, as lines for people or as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xds_proto::xds::store::v1::{self as proto, Outcome};

use super::records::label;
use crate::cli::say;

/// The results of one commit, or of several that belong together.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Each with the place of its change in a file.
    results: Vec<(proto::Result, Option<String>)>,
    counts: BTreeMap<usize, u64>,
    revision: String,
    warnings: Vec<String>,
    /// Effects that the server did not list.
    unlisted: u64,
}

impl Report {
    /// Adds the answer to a commit. `places` are those of its changes.
    pub(super) fn add(&mut self, response: proto::CommitResponse, places: &[Option<String>]) {
        let effects = response.effects.len() as u64;
        self.unlisted += response.effect_count.saturating_sub(effects);
        let places = places.iter().cloned().chain(std::iter::repeat(None));
        for (result, place) in response.results.into_iter().zip(places) {
            self.result(result, place);
        }
        for effect in response.effects {
            self.result(effect, None);
        }
        self.revision = response.revision;
        self.warnings.extend(response.warnings);
    }

    /// Counts records that were equal and not sent.
    pub(super) fn unchanged(&mut self, count: usize) {
        *self.counts.entry(rank(Outcome::Unchanged)).or_default() += count as u64;
    }

    pub(super) fn warn(&mut self, warnings: &[String]) {
        self.warnings.extend_from_slice(warnings);
    }

    fn result(&mut self, result: proto::Result, place: Option<String>) {
        *self.counts.entry(rank(result.outcome())).or_default() += 1;
        self.results.push((result, place));
    }

    /// The results that changed something, with the places of their changes.
    pub(super) fn changes(&self) -> impl Iterator<Item = (&proto::Result, Option<&str>)> {
        let results = self.results.iter().map(|(result, place)| (result, place.as_deref()));
        results.filter(|(result, _)| !matches!(result.outcome(), Outcome::Unchanged | Outcome::Checked))
    }

    /// Whether nothing was committed yet.
    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// What deletions in progress wait for.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = String> {
        let references = self.results.iter().flat_map(|(result, _)| &result.blocked_by);
        references.map(|reference| {
            let source = reference.source.as_ref().map(label).unwrap_or_default();
            let field = &reference.field;
            if field.is_empty() {
                format!("waits for {source}")
            } else {
                format!("waits for {source} ({field})")
            }
        })
    }

    pub(super) fn is_absent(&self) -> bool {
        self.results.iter().any(|(result, _)| result.outcome() == Outcome::Absent)
    }

    /// A line per change.
    pub(super) fn lines(&self) {
        for (result, _) in self.changes() {
            say(format_args!("{:<10} {}", outcome(result.outcome()), label_of(result)));
        }
        if self.unlisted > 0 {
            say(format_args!("and {} more", self.unlisted));
        }
        self.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    }

    /// Such as `1 created, 40 unchanged; revision s7f3a-48`.
    pub(super) fn summary(&self) -> String {
        let counts = self.counts.iter().filter(|(_, count)| **count > 0);
        let counts = counts.map(|(rank, count)| format!("{count} {}", OUTCOMES[*rank].1));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let counts = if counts.is_empty() { "nothing changed".to_owned() } else { counts };
        format!("{counts}; revision {}", self.revision)
    }

    pub(super) fn object(&self, is_dry_run: bool) -> Value {
        let changes = self.changes().map(|(result, place)| {
            let key = result.key.clone().unwrap_or_default();
            json!({
                "outcome": outcome(result.outcome()),
                "type": key.type_url, "name": key.name, "when": key.when,
                "revision": result.revision, "uid": result.uid, "at": place,
            })
        });
        let counts = self.counts.iter().map(|(rank, count)| (OUTCOMES[*rank].1.to_owned(), json!(count)));
        json!({
            "revision": self.revision,
            "dry_run": is_dry_run,
            "changes": changes.collect::<Vec<_>>(),
            "counts": counts.collect::<serde_json::Map<_, _>>(),
            "warnings": self.warnings,
        })
    }
}

fn label_of(result: &proto::Result) -> String {
    result.key.as_ref().map(label).unwrap_or_default()
}

/// The word for an outcome.
pub(super) fn outcome(outcome: Outcome) -> &'static str {
    OUTCOMES[rank(outcome)].1
}

fn rank(outcome: Outcome) -> usize {
    OUTCOMES.iter().position(|(known, _)| *known == outcome).unwrap_or_default()
}

/// All outcomes, in the order of a summary.
const OUTCOMES: [(Outcome, &str); 14] = [
    (Outcome::Unspecified, "unknown"),
    (Outcome::Created, "created"),
    (Outcome::Updated, "updated"),
    (Outcome::Deleted, "deleted"),
    (Outcome::Deleting, "deleting"),
    (Outcome::Released, "released"),
    (Outcome::Quarantined, "quarantined"),
    (Outcome::Unset, "unset"),
    (Outcome::Touched, "touched"),
    (Outcome::Expired, "expired"),
    (Outcome::Merged, "merged"),
    (Outcome::Checked, "checked"),
    (Outcome::Absent, "absent"),
    (Outcome::Unchanged, "unchanged"),
];
