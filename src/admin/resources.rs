//! `/api/types` and `/api/resources`: types, names, and the clients of each variant.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Path, State};
use serde_json::{Map, Value, json};
use xds_core::matching::coverage::Domains;
use xds_core::{ResourceName, Snapshot, TypeUrl, Variant, Variants, XdstpName};

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, PAGE_ROWS, paged, when};
use super::clients::encoded;
use super::gaps::gaps_of;
use super::query::{RequestQuery, Search, type_url};
use crate::explain;
use crate::type_name::{service, short};

/// The types that have resources, with their number of names, and types with a service that had
/// resources before. In a proxy the remaining types are types that clients subscribed to in vain.
pub(super) async fn types(State(state): State<Arc<AdminState>>) -> JsonBody {
    let snapshot = state.cache.snapshot();
    let row = |(type_url, names): (&TypeUrl, usize)| {
        json!({
            "type": type_url.as_str(), "message": short(type_url), "service": service(type_url), "names": names,
        })
    };
    let is_known = |(type_url, names): &(&TypeUrl, usize)| *names > 0 || service(type_url).is_some();
    let rows: Vec<_> = snapshot.counts().filter(is_known).map(row).collect();
    JsonBody(json!({ "total": rows.len(), "rows": rows }))
}

/// A page of names, of one type or of all types.
pub(super) async fn list(State(state): State<Arc<AdminState>>, query: RequestQuery) -> JsonAnswer {
    query.only(&["page", "search", "type"])?;
    let snapshot = state.cache.snapshot();
    let (page, search, only) = (query.page()?, query.search(), query.type_url(&snapshot)?);
    Ok(JsonBody(state.work(move |state| listed(state, &snapshot, page, &search, only.as_ref())).await))
}

fn listed(
    state: &AdminState,
    snapshot: &Snapshot,
    page: usize,
    search: &Search,
    only: Option<&TypeUrl>,
) -> Value {
    let sorted = state.names.of(snapshot);
    let types = sorted.types.iter().filter(|(type_url, _)| only.is_none_or(|only| only == *type_url));
    let all = types.flat_map(|(type_url, names)| names.iter().map(move |name| (type_url, name)));
    let found: Vec<_> = all.filter(|(_, name)| search.finds(name.as_str())).collect();
    let row = |(type_url, name): &(&TypeUrl, &ResourceName)| {
        let variants = snapshot.get(type_url, name);
        let one = variants.filter(|variants| variants.len() == 1).and_then(|variants| variants.iter().next());
        json!({
            "type": type_url.as_str(),
            "name": name.as_str(),
            "path": path(type_url, name),
            "variants": variants.map_or(0, Variants::len),
            "keys": variants.map(keys),
            "when": one.and_then(|one| when(one.constraints())),
            "digest": one.map(|one| one.version().to_string()),
        })
    };
    let mut answer = paged(&found, page, row);
    answer.insert("revision".into(), snapshot.revision().to_string().into());
    answer.into()
}

/// One name with a page of its variants as a table, and the parameters that no variant covers.
pub(super) async fn one(
    State(state): State<Arc<AdminState>>,
    Path((word, name)): Path<(String, String)>,
    query: RequestQuery,
) -> JsonAnswer {
    query.only(&["page"])?;
    let snapshot = state.cache.snapshot();
    let (page, of_type) = (query.page()?, type_url(&word, &snapshot)?);
    let (of_type, name, variants) = find(&snapshot, of_type, &name)?;
    let answer = state.work(move |state| {
        let mut all: Vec<_> = variants.iter().collect();
        all.sort_by_cached_key(|variant| variant.constraints().to_string());
        let clients = state.cache.clients_by_variant(&of_type, &name);
        let mut answer = paged(&all, page, |variant| {
            drawn(variant, clients.get(variant.constraints()).copied().unwrap_or_default())
        });
        let domains = state.sweep.domains();
        answer.extend(head(&of_type, &name, &variants, &domains));
        answer.insert("revision".into(), snapshot.revision().to_string().into());
        answer.into()
    });
    Ok(JsonBody(answer.await))
}

fn head(
    type_url: &TypeUrl,
    name: &ResourceName,
    variants: &Variants,
    domains: &Domains,
) -> Map<String, Value> {
    let pairs = [
        ("type", type_url.as_str().into()),
        ("name", name.as_str().into()),
        ("keys", json!(keys(variants))),
        ("gaps", gaps_of(variants, domains)),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A variant without its payload: the page does not authenticate its readers.
fn drawn(variant: &Variant, clients: usize) -> Value {
    let cells = |row: explain::Row| -> Value {
        row.cells.into_iter().map(|(key, cell)| (key.to_string(), Value::from(cell))).collect()
    };
    let rows = explain::rows(variant.constraints());
    json!({
        "when": when(variant.constraints()),
        "rows": rows.map(|rows| rows.into_iter().map(cells).collect::<Vec<_>>()),
        "clients": clients,
        "digest": variant.version().to_string(),
        "size_bytes": variant.payload().len(),
        "ttl_ms": variant.ttl().map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        "aliases": variant.aliases().iter().take(PAGE_ROWS).map(|alias| alias.as_str().to_owned()).collect::<Vec<_>>(),
    })
}

/// The variants of a name.
pub(super) fn find(
    snapshot: &Snapshot,
    type_url: TypeUrl,
    name: &str,
) -> Result<(TypeUrl, ResourceName, Variants), ApiError> {
    // X4: any spelling of the name is accepted.
    let new_style = XdstpName::of(name).ok().flatten();
    let name = new_style.map_or_else(|| ResourceName::from(name), |new_style| new_style.canonical());
    match snapshot.get(&type_url, &name) {
        Some(variants) => Ok((type_url, name, variants.clone())),
        None => Err(ApiError::missing(format!("there is no {} {:?}", short(&type_url), name.as_str()))),
    }
}

/// The keys that the variants name, as many as fit on a page.
fn keys(variants: &Variants) -> Vec<String> {
    // TP2: the variants of a name usually name the same keys.
    let keys: BTreeSet<_> =
        variants.iter().take(PAGE_ROWS).flat_map(|variant| variant.constraints().keys()).collect();
    keys.into_iter().take(PAGE_ROWS).map(ToString::to_string).collect()
}

/// The path of a name in this API.
pub(super) fn path(type_url: &TypeUrl, name: &ResourceName) -> String {
    format!(
        "/api/resources/{}/{}",
        encoded(service(type_url).unwrap_or(type_url.as_str())),
        encoded(name.as_str())
    )
}
