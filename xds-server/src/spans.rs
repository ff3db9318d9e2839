//! Commits and the ACKs and NACKs for them, as `tracing` spans.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Level, Span, debug_span, enabled};
use xds_core::{Cache, ClientName, Commit, Outcome, Revision, StreamOutcome, TypeUrl};

use crate::follow::{Lost, Tracker, follow};

/// Makes a span for each commit that affects a stream. Spawn it once; it ends with the cache, and
/// does not keep the cache alive.
///
/// The span `commit` lasts until all streams that the commit affects have answered, but at most 10
/// minutes, and only for the newest 64 commits. It contains a span `answer` for each stream and
/// type, which lasts until that stream sends an ACK or NACK or ends; only the first 256 of a commit
/// have one. The target is `xds_commit`, and the level DEBUG. If that is not enabled, a commit
/// costs one entry in a queue. No stream does any of this work.
///
/// | span | fields |
/// | --- | --- |
/// | `commit` | `revision`, `changed` (names), `types`, `concerned` (affected streams, once per type), `acked`, `nacked`, `gone`, `undecided` |
/// | `answer` | `type`, `node`, `cluster`, `outcome`, and for a NACK `detail` and `otel.status_code` |
pub fn trace_commits(cache: &Cache) -> impl Future<Output = ()> + Send + use<> {
    follow(cache, Spans::default())
}

#[derive(Debug, Default)]
struct Spans {
    open: BTreeMap<Revision, CommitSpan>,
}

#[derive(Debug)]
struct CommitSpan {
    span: Span,
    /// Streams without a client name share a key.
    answers: HashMap<(ClientName, TypeUrl), Vec<Span>>,
    acked: usize,
    nacked: usize,
    gone: usize,
}

impl Tracker for Spans {
    fn on_commit(&mut self, commit: &Commit, changed: &[(TypeUrl, usize)]) -> bool {
        if commit.affected() == 0 || !enabled!(target: TARGET, Level::DEBUG) {
            return false;
        }
        let types: Vec<_> = changed.iter().map(|(type_url, _)| type_url.message_name()).collect();
        let span = debug_span!(
            target: TARGET,
            parent: None,
            "commit",
            revision = %commit.revision,
            changed = commit.changed,
            types = types.join(" "),
            concerned = commit.affected(),
            acked = Empty,
            nacked = Empty,
            gone = Empty,
            undecided = Empty,
        );
        let mut answers = HashMap::<_, Vec<_>>::new();
        for (client, type_url) in commit.streams().take(ANSWERS_SHOWN) {
            let answer = debug_span!(
                target: TARGET,
                parent: &span,
                "answer",
                r#type = type_url.message_name(),
                node = &*client.id,
                cluster = &*client.cluster,
                outcome = Empty,
                detail = Empty,
                otel.status_code = Empty,
            );
            answers.entry((client, type_url.clone())).or_default().push(answer);
        }
        self.open.insert(commit.revision, CommitSpan { span, answers, acked: 0, nacked: 0, gone: 0 });
        true
    }

    fn on_answer(&mut self, answer: &StreamOutcome, _: Duration) {
        let Some(of_commit) = self.open.get_mut(&answer.revision) else { return };
        let key = (answer.client.clone(), answer.type_url.clone());
        // The span ends when it is dropped at the end of this function.
        let span = of_commit.answers.get_mut(&key).and_then(Vec::pop).unwrap_or_else(Span::none);
        match &answer.outcome {
            Outcome::Acked => {
                span.record("outcome", "acked");
                of_commit.acked += 1;
            }
            Outcome::Nacked { detail, .. } => {
                span.record("outcome", "nacked");
                span.record("detail", &**detail);
                span.record("otel.status_code", "ERROR");
                of_commit.nacked += 1;
            }
            Outcome::Disconnected | Outcome::Pending | Outcome::Splitting | Outcome::Late => {
                span.record("outcome", "gone");
                of_commit.gone += 1;
            }
        }
    }

    fn on_end(&mut self, revision: Revision, undecided: usize) {
        let Some(CommitSpan { span, answers, acked, nacked, gone }) = self.open.remove(&revision) else {
            return;
        };
        for answer in answers.values().flatten() {
            answer.record("outcome", "undecided");
        }
        // The `answer` spans have to end before the `commit` span that contains them.
        drop(answers);
        span.record("acked", acked);
        span.record("nacked", nacked);
        span.record("gone", gone);
        span.record("undecided", undecided);
    }

    fn on_loss(&mut self, lost: Lost) {
        tracing::debug!(
            target: TARGET,
            ?lost,
            "some commits or answers are not traced: they arrived faster than the task could read them"
        );
    }
}

/// The tracing target of these spans, for filters.
pub const TARGET: &str = "xds_commit";

/// The most `answer` spans of one commit. The number of followed commits bounds their total.
const ANSWERS_SHOWN: usize = 256;

#[cfg(test)]
mod tests;
