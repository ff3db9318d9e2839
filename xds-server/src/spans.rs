//! Commits and the answers to them, as spans of `tracing`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Level, Span, debug_span, enabled};
use xds_core::{Cache, ClientName, Commit, Decided, Outcome, Revision, TypeUrl};

use crate::follow::{Lost, Tracker, follow};

/// Makes a span of each commit that concerns anybody, for those who trace: to be spawned, once. It
/// ends with the cache, which it does not keep.
///
/// The span `commit` lasts until all streams that it concerned have answered, for 10 minutes at
/// most and among the newest 64 commits. In it is a span `answer` for each stream and type, which
/// lasts until that stream ACKs, rejects or ends; of one commit the first 256, as the rest tells
/// nothing new. Their target is `xds_commit`, and their level DEBUG; where that is not enabled, a
/// commit costs a note in a queue. No stream does any of it.
///
/// | span | fields |
/// | --- | --- |
/// | `commit` | `revision`, `changed` (names), `types`, `concerned` (streams, each as often as types), `acked`, `nacked`, `gone`, `undecided` |
/// | `answer` | `type`, `node`, `cluster`, `outcome`, and of a rejection `detail` and `otel.status_code` |
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
    /// Of a client that has no name there may be several.
    answers: HashMap<(ClientName, TypeUrl), Vec<Span>>,
    acked: usize,
    nacked: usize,
    gone: usize,
}

impl Tracker for Spans {
    fn on_commit(&mut self, commit: &Commit, changed: &[(TypeUrl, usize)]) -> bool {
        if commit.concerned() == 0 || !enabled!(target: TARGET, Level::DEBUG) {
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
            concerned = commit.concerned(),
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

    fn on_answer(&mut self, answer: &Decided, _: Duration) {
        let Some(of_commit) = self.open.get_mut(&answer.revision) else { return };
        let key = (answer.client.clone(), answer.type_url.clone());
        // It ends where it is dropped, here.
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
            Outcome::Gone | Outcome::Pending | Outcome::Late => {
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
        // They end before the span that they are in.
        drop(answers);
        span.record("acked", acked);
        span.record("nacked", nacked);
        span.record("gone", gone);
        span.record("undecided", undecided);
    }

    fn on_loss(&mut self, lost: Lost) {
        tracing::debug!(target: TARGET, ?lost, "commits or answers came faster than they were traced");
    }
}

/// What a filter has to name to have these spans, or to leave them out.
pub const TARGET: &str = "xds_commit";

/// Spans of answers to one commit; those to all commits are bounded by how many are followed.
const ANSWERS_SHOWN: usize = 256;

#[cfg(test)]
mod tests;
