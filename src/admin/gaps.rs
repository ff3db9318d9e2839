//! `/api/gaps`: parameters for which a name has no variant.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};
use xds_core::matching::coverage::Domains;
use xds_core::{Parameters, Variants};

use super::AdminState;
use super::answer::{JsonAnswer, JsonBody, paged, parameters};
use super::query::RequestQuery;
use super::resources::path;
use super::sweep::NameWithGaps;

/// The progress of the search through all names, and a page of its results. A request starts a
/// search if the cache changed since the last one. The search goes on when the request is over.
pub(super) async fn gaps(State(state): State<Arc<AdminState>>, query: RequestQuery) -> JsonAnswer {
    query.only(&["page", "search"])?;
    let (page, search) = (query.page()?, query.search());
    let snapshot = state.cache.snapshot();
    state.sweep.begin(&snapshot);
    // The function may read a file.
    let keys_in_domains = Arc::clone(&state).work(|state| state.sweep.domains().len()).await;
    let progress = state.sweep.progress();
    let found: Vec<_> = progress.found.iter().filter(|found| search.finds(found.name.as_str())).collect();
    let mut answer = paged(&found, page, |found: &&NameWithGaps| {
        json!({
            "type": found.type_url.as_str(),
            "name": found.name.as_str(),
            "path": path(&found.type_url, &found.name),
            "gaps": found.gaps,
        })
    });
    let pairs = [
        ("state", json!(progress.state.as_str())),
        ("names_done", progress.names_done.into()),
        ("names", progress.names.into()),
        ("revision", progress.revision.to_string().into()),
        ("is_current", (progress.revision == snapshot.revision()).into()),
        ("keys_in_domains", keys_in_domains.into()),
    ];
    answer.extend(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)));
    Ok(JsonBody(answer.into()))
}

/// `{"gaps": [{"parameters", "any"}], "is_judged": true}` for one name.
pub(super) fn gaps_of(variants: &Variants, domains: &Domains) -> Value {
    let judged =
        (variants.len() <= VARIANTS_JUDGED).then(|| variants.coverage(domains, GAPS_SHOWN).ok()).flatten();
    let Some(coverage) = judged else {
        return json!({ "gaps": [], "is_judged": false });
    };
    let gap = |witness: &Parameters, free: &[Arc<str>]| json!({ "parameters": parameters(witness), "any": free.iter().map(|key| &**key).collect::<Vec<_>>() });
    let gaps: Vec<_> = coverage.gaps.iter().map(|found| gap(&found.witness, &found.free)).collect();
    json!({ "gaps": gaps, "is_judged": true })
}

/// Gaps of one name in an answer.
const GAPS_SHOWN: usize = 5;

/// The search skips names with more variants, because it would take too long for a page.
const VARIANTS_JUDGED: usize = 1000;
