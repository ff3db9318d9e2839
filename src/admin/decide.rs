//! `/api/decide`: which variant some parameters get, why, and why they do not get the others.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};
use xds_core::matching::KeyTest;
use xds_core::{Parameters, Variants};

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, PAGE_ROWS, parameters, when};
use super::query::RequestQuery;
use super::resources::find;
use crate::explain::{NearMiss, near_miss};

pub(super) async fn decide(State(state): State<Arc<AdminState>>, query: RequestQuery) -> JsonAnswer {
    let snapshot = state.cache.snapshot();
    let type_url =
        query.type_url(&snapshot)?.ok_or_else(|| ApiError::bad("type is missing, such as type=RDS"))?;
    query.only(&["name", "parameters", "type"])?;
    let given = query.parameters()?;
    if query.text("name").is_empty() {
        return Err(ApiError::bad("name is missing, such as name=web-routes"));
    }
    let (type_url, name, variants) = find(&snapshot, type_url, query.text("name"))?;
    let mut answer = state.work(move |_| decision(&variants, &given)).await;
    answer["type"] = type_url.as_str().into();
    answer["name"] = name.as_str().into();
    answer["revision"] = snapshot.revision().to_string().into();
    Ok(JsonBody(answer))
}

fn decision(variants: &Variants, given: &Parameters) -> Value {
    let explained = variants.explain(given);
    let found = explained.found.map(|(_, variant)| variant);
    let mut others: Vec<_> = variants
        .iter()
        .filter(|variant| found.is_none_or(|found| !Arc::ptr_eq(found, variant)))
        .map(|variant| (variant, near_miss(variant.constraints().formula(), given)))
        .collect();
    // The nearest variants first; variants that no parameters match last.
    others.sort_by_cached_key(|(variant, miss)| {
        let failing = miss.as_ref().map_or(usize::MAX, |miss| miss.failing.len());
        (failing, variant.constraints().to_string())
    });
    let other_count = others.len();
    let others = others.iter().take(PAGE_ROWS).map(|(variant, miss)| {
        json!({
            "when": when(variant.constraints()),
            "digest": variant.version().to_string(),
            "fails": miss.as_ref().map(fails),
            "would_do": miss.as_ref().and_then(|miss| miss.matching.as_ref()).map(parameters),
        })
    });
    let test = |test: &KeyTest| json!({ "key": &*test.key, "value": test.value.as_deref(), "is_named": test.is_named });
    let unused = given.iter().filter(|(key, _)| !explained.tests.iter().any(|test| test.key == **key));
    json!({
        "parameters": parameters(given),
        "variant": found.map(|found| json!({
            "when": when(found.constraints()), "digest": found.version().to_string(),
        })),
        "tests": explained.tests.iter().map(test).collect::<Vec<_>>(),
        "unused": unused.map(|(key, _)| key.to_string()).collect::<Vec<_>>(),
        "others": others.collect::<Vec<_>>(),
        "other_count": other_count,
    })
}

fn fails(miss: &NearMiss) -> Value {
    let condition = |condition: &crate::explain::Condition| {
        json!({
            "needs": condition.formula().to_string(), "key": &*condition.key, "found": condition.found.as_deref(),
        })
    };
    miss.failing.iter().map(condition).collect()
}
